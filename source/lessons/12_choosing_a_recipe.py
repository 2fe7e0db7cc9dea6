# %% [markdown]
# # 12 · Raw AMP, BF16, Lightning, Accelerate, .half(), FSDP: which recipe?
#
# Every framework has a switch for the precision. This lesson trains the same small network through
# all of them and does not believe a switch: it prints what ran, not what was asked for. In some
# places that is something else.
#
# Afterwards you will be able to
#
# - see, in any loop and any framework, which precision really ran,
# - say what a framework's switch does to the numbers, and what it takes in lines and time,
# - notice when you get something else than you asked for,
# - choose a recipe from your hardware and your own measurements.
#
# 45 minutes. You need [lesson 06](06_dynamic_loss_scaling.ipynb). Recipes have the names of lesson
# 08: *AMP* keeps FP32 weights and lowers layers, *naive FP16* and *pure BF16* turn everything to 16
# bits.

# %%
import torch
from torch import nn

import mptutor as mpt
from mptutor import records
from mptutor.choice import choose
from mptutor.experiments import framework_loops, raw_loops
from mptutor.experiments.framework_recipes import run_framework_recipes, some_batches, try_way
from mptutor.experiments.listings import compare, edits
from mptutor.experiments.speed_sweep import run_speed_sweep
from mptutor.experiments.what_ran import watch
from mptutor.forecast.gpus import GPUS
from mptutor.models import mlp
from mptutor.plots import plot_choice, plot_framework_costs, plot_what_ran

# %% [markdown]
# ## One loop
#
# A loop as everybody writes it, in FP32. It is a function of the package, so that it can be run,
# printed and compared.

# %%
machine = mpt.hardware.report()
device = torch.device(machine.device)
on_cpu = device.type == "cpu"
print("\n".join(compare(raw_loops.plain)))

# %% [markdown]
# > **Predict.** How many of these lines must be added or changed for AMP in FP16? And in BF16? A
# > line that is only indented does not count.

# %%
for loop in (raw_loops.amp_fp16, raw_loops.amp_bf16):
    print(f"{loop.__name__}, lines: {edits(loop)}", *compare(loop)[1:-2], "", sep="\n")
assert edits(raw_loops.amp_fp16) > edits(raw_loops.amp_bf16) == 1

# %% [markdown]
# BF16 takes one line. FP16 needs a scaler, and the scaler four lines more.
#
# ## Where to look
#
# A framework wraps your model. This is what several of them put around it, in small.
#
# > **Predict.** The layers compute in BF16. What does the dtype of the output say?


# %%
class Wrapped(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        with torch.autocast(x.device.type, torch.bfloat16):
            return self.model(x).float()


model = mlp((784, 128, 10)).to(device)
seen = []
hook = model.linear1.register_forward_hook(lambda layer, inputs, out: seen.append(out.dtype))
output = Wrapped(model)(torch.ones(4, 784, device=device))
hook.remove()
print("output", output.dtype, " linear1", seen)
assert output.dtype == torch.float32 and seen == [torch.bfloat16]

# %% [markdown]
# The output says FP32, whatever went on inside. A *forward hook* on a layer that multiplies sees
# the truth. For weights, look at those the optimizer updates; for gradients, at what it is given.
#
# ## A scale without asking the scaler
#
# Was the loss scaled? A scaler object proves nothing: it may be switched off. But a scale is *on*
# the gradients when the backward pass has put them down, and *off* when the optimizer takes its
# step. Torch has a hook for both moments.
#
# > **Predict.** The scaler starts at 1024. What is the ratio of the two?

# %%
optimizer, weight, largest = raw_loops.sgd(model), model.linear1.weight, []
scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)
hooks = [
    weight.register_post_accumulate_grad_hook(lambda w: largest.append(w.grad.abs().max().item())),
    optimizer.register_step_pre_hook(lambda *_: largest.append(weight.grad.abs().max().item())),
]
x, y = some_batches(1, device)[0]
with torch.autocast(device.type, torch.float16):
    loss = nn.functional.cross_entropy(model(x), y)
scaler.scale(loss).backward()
scaler.step(optimizer)
for hook in hooks:
    hook.remove()
print(f"after backward {largest[0]:.4g}, at the step {largest[1]:.4g}")
assert largest[0] / largest[1] == 1024

# %% [markdown]
# ## A name for what ran
#
# Dtype of the layers, dtype of the weights, scale: that is enough to name the recipe. `watch` sets
# these hooks and does so.

# %%
model, loss_fn = mlp((784, 128, 10)).to(device), nn.CrossEntropyLoss()
with watch(model, loss_fn) as w:
    raw_loops.amp_fp16(model, loss_fn, some_batches(8, device), device)
print(w.seen, "->", w.seen.recipe)
assert w.seen.recipe == "AMP FP16"

# %% [markdown]
# Under autocast the weights are FP32, so gradients are FP32 too; only layers and scale tell
# FP16 from nothing at all.
#
# ## A loop from elsewhere
#
# This one was written on a machine with a GPU. It says `autocast("cuda")` and `GradScaler("cuda")`.
#
# > **Predict.** What does it run on your machine?

# %%
ported = try_way("torch.amp FP16 for cuda")
print(ported)
assert ported.ran == ("FP32" if device.type != "cuda" else "AMP FP16")

# %% [markdown]
# Without a GPU it trains in FP32, and the warnings are two lines among many. PyTorch falls back
# too, then. Now the frameworks. If one is missing, the cells say so and the rest runs.
#
# ## Lightning
#
# Fabric keeps your loop and takes over device and precision. The first time, most of the wait is
# the import of Lightning.

# %%
print(f"lines: {edits(framework_loops.fabric)}", *compare(framework_loops.fabric), sep="\n")

# %% [markdown]
# > **Predict.** With `precision="16-mixed"`: which dtype do layers have, and is there a scale?

# %%
fabric = try_way("Fabric 16-mixed")
print(fabric)
expected = {"cpu": "AMP BF16", "cuda": "AMP FP16"}.get(device.type, fabric.ran)
assert fabric.refusal or fabric.ran == expected

# %% [markdown]
# On a CPU you asked for FP16 and got BF16, without a scale. It did warn, once, in a sentence that
# scrolls by. And the output says FP32, as that of the wrapper did. On a CUDA GPU it must be FP16;
# the assert says so.
#
# > **Predict.** The repair builds the precision plugin by hand, with a scaler for this device. Will
# > its weights be near those of the raw FP16 loop, or the same to the last bit?

# %%
repaired = try_way("Fabric 16-mixed by plugin")
raw_fp16 = try_way("torch.amp FP16")
print(repaired, *compare(framework_loops.fabric_with_plugin)[:7], sep="\n")
print("same bits as the raw loop:", repaired.weights_hash == raw_fp16.weights_hash)
assert repaired.refusal or repaired.ran == raw_fp16.ran == "AMP FP16"
assert repaired.refusal or not on_cpu or repaired.weights_hash == raw_fp16.weights_hash

# %% [markdown]
# To the last bit. That is worth more than a comparison of curves: the switch is an abbreviation for
# the raw loop, and everything you know about that one holds.
#
# ## Accelerate
#
# > **Predict.** Accelerate's `mixed_precision="fp16"`: FP16, BF16 or something else? And what does
# > it say?

# %%
accelerate = try_way("Accelerate fp16")
plain = try_way("plain")
print(accelerate)
print("same bits as the plain loop:", accelerate.weights_hash == plain.weights_hash)
expected = {"cpu": "FP32", "cuda": "AMP FP16"}.get(device.type, accelerate.ran)
assert accelerate.refusal or accelerate.ran == expected
assert accelerate.refusal or not on_cpu or accelerate.weights_hash == plain.weights_hash

# %%
if not accelerate.refusal:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=on_cpu, mixed_precision="fp16")
    print("it says:", accelerator.mixed_precision, " its scaler:", accelerator.scaler)
    assert accelerator.mixed_precision == "fp16"
    assert accelerator.scaler is None or not on_cpu

# %% [markdown]
# On a CPU that is FP32, bit by bit, and not a word: the attribute still says `fp16`. If you had
# compared "FP16 with Accelerate" to FP32 there, you would have found perfect agreement.
#
# ## 16-bit weights
#
# `.half()` turns the weights themselves to FP16. With the SGD of these loops it trains.
#
# > **Predict.** One word is changed: Adam for SGD. What is the loss after two steps?

# %%
model = mlp((784, 128, 10)).to(device).half()
optimizer = torch.optim.Adam(model.parameters())
losses = []
with mpt.tensorcore.tensor_core():  # multiply FP16 as a Tensor Core does
    for x, y in some_batches(3, device):
        optimizer.zero_grad()
        loss = loss_fn(model(x.half()), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
print(losses)
assert losses[1] != losses[1], "the second loss is a number"

# %% [markdown]
# Adam's eps of 10⁻⁸ is 0 in FP16; lesson 00 began with it. BF16 weights have no such trouble, and
# the other one: they stall (lesson 04). So 16-bit weights are for inference, or under a master
# copy.
#
# Lightning calls this `16-true` and `bf16-true`. Fabric and Trainer have the same words for it.
#
# > **Predict.** Do the two mean the same? One of them gives the loss FP32 outputs.

# %%
raw = {name: try_way(name) for name in (".bfloat16()", ".bfloat16(), FP32 loss")}
for name in ("Fabric bf16-true", "Trainer bf16-true"):
    run = try_way(name)
    same = [n for n, r in raw.items() if r.weights_hash == run.weights_hash]
    print(run, f"  same bits as: {same}", sep="\n")
    assert run.refusal or run.ran == "pure BF16"

# %% [markdown]
# Fabric casts the output back and takes the loss in FP32; Trainer takes it in BF16. Same words,
# different bits.
#
# ## FSDP
#
# FSDP shards weights, gradients and optimizer over many devices; lesson 13 does it with two
# processes. Its policy is a precision switch of its own, without autocast: the shards stay FP32,
# and layers get copies in `param_dtype`. Here is one process that holds the only shard.
#
# > **Predict.** Which raw loop has its bits?

# %%
fsdp = try_way("FSDP2 BF16")
raw_bf16 = try_way("torch.amp BF16")
print(fsdp, *compare(raw_loops.fsdp)[:8], sep="\n")
print("same bits as torch.amp BF16:", fsdp.weights_hash == raw_bf16.weights_hash)
assert fsdp.refusal or (fsdp.ran, fsdp.seen.weights) == ("AMP BF16", "FP32")

# %% [markdown]
# ## One table
#
# All of them: watched once, metered once, and timed in turn. *Bits of* names the raw loop that ends
# with the same weights. *Over raw* is what a step takes beyond that one, at its shortest; *import*
# is what the framework takes before anything runs, on top of PyTorch.

# %%
result = run_framework_recipes()
result

# %%
plot_what_ran(result)

# %%
ran = [run for run in result.runs if not run.refusal]
fallen = [run for run in ran if run.fell_back]
print("fell back:", {run.name: run.ran for run in fallen})
assert all(run.asked == "AMP FP16" for run in fallen) and bool(fallen) == (device.type != "cuda")
assert all(run.seen.gradients == run.seen.weights for run in ran)

# %%
plot_framework_costs(result)

# %% [markdown]
# *Numbers:* where *bits of* has an entry, a framework changes nothing. A scale below 65536 tells of
# skipped steps. *Lines:* a switch is one word, once the loop is written for the framework; Trainer
# replaces the loop. *Time:* what a framework adds is Python around the step, so it weighs most on a
# network as tiny as this. Differences smaller than those between two ways of the same framework
# are noise. FSDP in one process pays for what it does not need here.
#
# *Memory:* 16-bit weights halve weights and gradients. AMP adds 16-bit copies of the weights, and a
# small MLP has few activations to save on (lesson 09).

# %%
records.show("frameworks")

# %% [markdown]
# ## Which one?
#
# Three questions, to be answered by hardware: does it fit, does it multiply BF16, does it multiply
# FP16?
#
# > **Predict.** A model of 70 million parameters, trained with Adam. Which recipe do the answers of
# > your machine lead to?

# %%
choice = choose(machine, parameters=70_000_000)
choice

# %%
plot_choice(choice)

# %% [markdown]
# > **Predict.** The same for a T4, from its data sheet. And 7 billion parameters on an H100 with
# > 80 GB?

# %%
t4, h100 = choose(GPUS["T4"], 70_000_000), choose(GPUS["H100"], 7_000_000_000)
print(t4, h100, sep="\n\n")
assert (t4.recipe, h100.recipe) == ("AMP FP16", "FSDP")

# %% [markdown]
# Mixed precision keeps FP32 weights (4 bytes), gradients (4) and Adam's two averages (8): 16 bytes
# a parameter, before any activation.
#
# The framework is another choice. Where it has a raw loop's bits it does not change the numbers, so
# choose it for what else it does for you.
#
# ## Then measure
#
# A chart knows your chip and not your network. So: train a few hundred steps in FP32 and in the
# candidate, several seeds; see *what ran*; compare losses with the seeds' spread; compare time and
# peak memory. Keep FP32 if the gain is small.
#
# > **Predict.** A matrix product in 16 bits on your machine: how many times the speed of FP32, at
# > 128 and at 512?

# %%
speed = run_speed_sweep((128, 512), repeats=5)
print(speed)
for way in ("FP16", "BF16"):
    print(
        f"{way}, 128 wide: {speed.speedup(128, way):.2f} times FP32; {machine.support(way).status}"
    )

# %% [markdown]
# A dash is a size left out because it would take too long in emulation. If your machine emulates a
# format, its factor is below 1 and the chart sent you past it.
#
# ## What you have seen
#
# - Hooks on layers, on gradients and on the optimizer's step told what ran, in raw loops and inside
#   Lightning, Accelerate and FSDP alike; the output's dtype did not.
# - A switch of Lightning, Accelerate or FSDP had the bits of a raw loop. It took lines, an import
#   and some time in each step.
# - On a CPU, requests for FP16 were answered with BF16 or FP32, and not always with a warning. On a
#   CUDA GPU the same asserts ask for FP16.
# - Three questions about the hardware led to a candidate; what ran, loss, time and memory decide.
#
# **Now you:** [exercise 12](../exercises/12_choosing_a_recipe/12_choosing_a_recipe.ipynb), 45
# minutes. Lesson 13 goes below 16 bits and beyond one device.
