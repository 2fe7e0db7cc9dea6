# %% [markdown]
# # 13 · What lies beyond 16 bits, and beyond one device?
#
# Networks can be trained in eight bits, if every tensor gets a scale. With more than one device
# gradients travel, in bits of their own. Both ask the old questions again: what overflows, what is
# flushed, who notices?
#
# Afterwards you will be able to
#
# - choose a format and a scale for a tensor in FP8, and say what an outlier does to each,
# - say which part of an optimizer's memory may shrink to 16 or 8 bits, and which may not,
# - average gradients over many devices so that nothing overflows and nothing flushes,
# - read the precision settings of DDP and FSDP2, and say what an inf on one device must do.
#
# 60 minutes. You need [lesson 02](02_rounding_and_accumulation.ipynb) and
# [lesson 06](06_dynamic_loss_scaling.ipynb).

# %%
import torch

import mptutor as mpt
from mptutor.experiments.distributed import run_distributed
from mptutor.experiments.fp8_scaling import run_delayed_scaling, run_fp8_errors
from mptutor.experiments.fp8_tensors import trained_operands
from mptutor.experiments.fp8_training import run_fp8_training
from mptutor.experiments.gradient_accumulation import run_gradient_accumulation
from mptutor.experiments.optimizer_states import run_optimizer_states
from mptutor.experiments.ranks import on_ranks
from mptutor.fp8 import DelayedScale
from mptutor.plots import plot_delayed_scaling, plot_fp8_errors
from mptutor.widgets import Fp8Explorer

E4M3, E5M2 = mpt.FP8_E4M3, mpt.FP8_E5M2
device = mpt.hardware.pick_device()

# %% [markdown]
# ## One scale for a tensor
#
# There are two FP8 formats. E4M3 has three mantissa bits and ends at 448; E5M2 has two, and FP16's
# exponents. Here are the gradients of one layer of a small trained network.
#
# > **Predict.** Rounded as they are, which share becomes zero in E4M3? And in E5M2?

# %%
gradients = trained_operands(epochs=1, seed=0, device=device).gradients
gradients = gradients[gradients != 0]
lost = {f.name: (mpt.quantize(gradients, f) == 0).float().mean().item() for f in (E4M3, E5M2)}
print({name: f"{share:.1%}" for name, share in lost.items()})
assert lost["FP8_E4M3"] > 0.99 and lost["FP8_E5M2"] > 0.1

# %% [markdown]
# So every tensor gets a scale, which takes its largest magnitude, its *amax*, to the
# format's largest number; rounded down to a power of two it multiplies exactly. What is computed
# from the tensor is divided by the scale.
#
# > **Predict.** Scaled so, which of the two formats is closer to the gradients, and by what factor?

# %%
amax, errors = gradients.abs().max(), {}
for fmt in (E4M3, E5M2):
    scale = fmt.max / amax
    x = mpt.quantize(gradients * scale, fmt) / scale
    errors[fmt.name] = ((x - gradients) / gradients).abs().mean().item()
    print(f"{fmt.name}: scale {scale:.3g}, mean relative error {errors[fmt.name]:.2%}")
assert 1.7 < errors["FP8_E5M2"] / errors["FP8_E4M3"] < 2.1

# %% [markdown]
# A mantissa bit is a factor of two. Yet the usual recipe is E4M3 forward and E5M2 *backward*
# (Micikevicius et al., [FP8 Formats for Deep Learning](https://arxiv.org/abs/2209.05433), 2022):
# gradients are spread wider, and E5M2 spans 32 binades where E4M3 has 18.
#
# In large language models a few activations are 100,000 times larger than the others (Sun et al.,
# [Massive Activations](https://arxiv.org/abs/2402.17762), 2024). So one channel here is made so
# large.
#
# > **Predict.** What does this outlier do to the others in E4M3, with one scale for the tensor, one
# > a row, and one a block of 32 neighbours? A row here is one image.

# %%
table = run_fp8_errors(formats=(E4M3, E5M2))
plot_fp8_errors(table)

# %%
of = {g: table.of("activations with outlier", E4M3, g).damage for g in ("tensor", "row", "block")}
for granularity, damage in of.items():
    print(f"{granularity:6}  error {damage.relative_error:.1%}  zero {damage.flushed:.1%}")
assert of["tensor"].flushed > 0.3 > of["block"].flushed
assert of["block"].relative_error < 0.1 < of["row"].relative_error

# %% [markdown]
# A scale moves the window and does not widen it. Every row has the outlier in it, so rows help
# little; blocks confine the damage to the outlier's neighbours. Without a scale only the outlier is
# wrong, clipped to 448. The explorer further down asks what that means. In the MX formats 32 values
# share a power of two ([OCP
# specification](https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf)).
#
# ## A scale from the past
#
# An amax of this very tensor is *current* scaling, and costs an extra pass over it. *Delayed*
# scaling goes by earlier steps: round with the scale at hand, note the true amax, before clipping,
# and choose the next scale by the largest amax remembered. NVIDIA's Transformer Engine remembers
# [1024 steps](https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/api/common.html)
# by default.
#
# > **Predict.** The amax is 7 once, then 1 again. With a history of three, which tensors are
# > rounded with which scale?

# %%
state = DelayedScale(E4M3, length=3)
for amax in (1.0, 7.0, 1.0, 1.0, 1.0, 1.0):
    print(f"scale {state.scale:3.0f}, amax {amax:.0f} -> scaled up to {state.scale * amax:.0f}")
    state = state.after(amax)
assert state.scale == 448

# %% [markdown]
# The 7 met a scale made for 1 and was clipped, from 3136 to 448. Then it kept the scale down until
# it was forgotten. Now the gradients of a training, 256 times larger in one step, and later for
# good.
#
# > **Predict.** How far off are they in that step? And in the eight steps after it, with a history
# > of eight, in E4M3 and in E5M2?

# %%
delayed = run_delayed_scaling()
plot_delayed_scaling(delayed)

# %%
past = {fmt.name: delayed.of("delayed, max", fmt) for fmt in (E4M3, E5M2)}
for name, trace in past.items():
    told = [f"{p}: {delayed.mean(trace, p):.1%}" for p in ("before", "at the spike")]
    print(name, *told, f"after the spike: {delayed.mean(trace, 'after the spike'):.1%}")
e4m3, e5m2 = past.values()
assert delayed.mean(e4m3, "at the spike") > 0.5
assert delayed.mean(e4m3, "after the spike") > 1.5 * delayed.mean(e4m3, "before")
assert delayed.mean(e5m2, "after the spike") < 1.1 * delayed.mean(e5m2, "before")

# %% [markdown]
# After the spike the scale is 256 times too small. E4M3 has not that much room to spare, E5M2 has:
# another reason to give it the gradients. *Most recent*, the last amax alone, forgets sooner. A
# rise that stays costs one step.
#
# ## Trained in eight bits
#
# The operands of all matrix products are rounded to FP8; sums, weights and optimizer stay FP32.
#
# > **Predict.** E4M3 and E5M2 with a scale for each tensor, MX blocks, and E4M3 without scales:
# > which of these learn as well as FP32?

# %%
trained = run_fp8_training(quick=True)
loss = {name: trained.mean(name, "loss") for name in trained.recipes}
assert loss["FP8 per tensor"] < 1.05 * loss["FP32"] and loss["MXFP8 blocks"] < 1.05 * loss["FP32"]
assert loss["E4M3 unscaled"] > 1.5 * loss["FP32"]
trained

# %% tags=["widget"]
Fp8Explorer(tensor="activations with outlier", power=0)

# %% [markdown]
# **Goal.** With one scale for the tensor, find the largest scale in E4M3 that clips nothing, and
# read what becomes zero.
#
# **Question.** Drag the scale to the smallest mean relative error, below 3 %. Why is that the worst
# scale of all?
#
# <details><summary>Answer</summary>
#
# It clips the whole outlier channel, thousands of times over. Its values are few, and each counts
# like any other in this error; but the layer's product is made mostly of them.
#
# </details>

# %% [markdown]
# ## What the optimizer keeps
#
# Adam keeps two averages for each weight, of its gradient, *m*, and of the square, *v*: 8 bytes
# in FP32. A step goes by m / (√v + 10⁻⁸). Below, both are only *kept* in fewer bits; the step is
# computed in FP32.
#
# > **Predict.** BF16, FP16, INT8 with a scale for every 256 values: which will train? (Think of *v*
# > for a gradient of 10⁻³.)

# %%
states = run_optimizer_states()
run = {r.storage: r for r in states.runs}
for fails in ("FP16", "INT8 blocks"):
    assert not run[fails].loss < 10 * run["FP32"].loss
for works in ("BF16", "FP16, root of v", "INT8 blocks, root of v", "FP8 blocks"):
    assert run[works].loss < 1.02 * run["FP32"].loss
states

# %%
mpt.records.show("optimizer states")

# %% [markdown]
# Where *v* is kept as zero and *m* is not, a step is divided by 10⁻⁸. The root of *v* has half the
# binades, and then 8 bits are enough. E4M3 in blocks holds even *v* itself. Real 8-bit
# optimizers use blocks too, with 256 unevenly spaced values (Dettmers et al., [8-bit
# Optimizers](https://arxiv.org/abs/2110.02861), 2022).
#
# > **Predict.** *v* is 1 and all gradients are zero from now on, so v ← 0.999 v. After 1000 steps
# > it is 0.37. In BF16?

# %%
for beta in (0.999, 0.95):
    v = torch.tensor(1.0, dtype=torch.bfloat16)
    for _ in range(1000):
        v = v * beta
    print(f"factor {beta}: {v.item():.2g}")
    assert (v == 1) == (beta == 0.999)

# %% [markdown]
# Lesson 02's standstill: *v* can grow and cannot fall, so steps stay small. Short trainings do not
# show it. [DeepSeek-V3](https://arxiv.org/abs/2412.19437) kept both in BF16, with 0.95.
#
# ## Micro-batches
#
# > **Predict.** The gradients of 256 micro-batches are added into a BF16 tensor. How far off is the
# > sum? And which share of the last gradients changes nothing?

# %%
sums = run_gradient_accumulation()
assert sums.of("BF16", 256).relative_error > 5 * sums.of("FP16", 256).relative_error
assert sums.of("BF16", 256).share_lost > 0.05 and sums.of("FP32", 256).share_lost == 0
sums

# %% [markdown]
# The error grows with the count, and FP32 costs one buffer.
# [Llama 3](https://arxiv.org/abs/2407.21783) (section 3.3.2) accumulated in FP32.
#
# ## Two processes
#
# Data parallel training gives each process, or *rank*, a part of the batch, and averages the
# gradients before the step: an *all-reduce*. Here are two real processes, started by `torchrun` on
# [distributed_worker.py](../mptutor/experiments/distributed_worker.py). Most of the wait is
# their import of torch.

# %%
two = run_distributed()
two

# %% [markdown]
# Where none can start, the tables stay empty.
#
# ## A sum is larger than its terms
#
# > **Predict.** Both ranks have 40,000. What does FP16 make of the mean, added first and divided
# > afterwards? Divided first? And if both have FP16's smallest number?

# %%
two.means

# %%
for m in two.means.means:
    if m.fmt == "FP16":
        fails = m.value < 1 if m.way == "divide, then sum" else m.value > 1
        assert (m.mean == m.value) != fails
    else:
        assert abs(m.mean - m.value) < 0.01 * m.value

# %% [markdown]
# PyTorch's DDP hooks [divide
# first](https://docs.pytorch.org/docs/stable/_modules/torch/distributed/algorithms/ddp_comm_hooks/default_hooks.html),
# which trades a loud failure for a silent one. More ranks make both worse; `on_ranks` plays many
# without a process.
#
# > **Predict.** 64 ranks divide first. From which power of two on is the mean zero?


# %%
def divide_first(grad, ranks):
    return ranks.sum(grad.half() / ranks.size)


for power in (-16, -18, -19, -20):
    mean = on_ranks(divide_first, [torch.tensor(2.0**power)] * 64)[0]
    print(f"2^{power}: {mean.item()}")
    assert (mean == 0) == (power <= -19)

# %% [markdown]
# ## Fewer bits on the wire
#
# > **Predict.** DDP's FP16 and BF16 hooks halve the bytes. Which has the smaller error? Which
# > fails, at a loss scale of 2²²?

# %%
two.gradients.by("DDP")

# %% [markdown]
# FP16 has the smaller error, and a window: at 2⁻¹² it flushes. BF16 has no edges. FSDP2 keeps a
# part of each weight, gradient and optimizer state on every rank, in FP32. Its policy has a dtype
# to compute in and one to reduce gradients in, which is the first unless given.
#
# > **Predict.** Computed in BF16: how much better is reducing in FP32 than in BF16, with two ranks?

# %%
two.gradients.by("FSDP2")

# %%
relative = {(a.setting, a.loss_scale): a.relative_error for a in two.gradients.averaged}
policy = "param_dtype=bfloat16, reduce_dtype="
if relative:
    assert relative["fp16_compress_hook", 1] < relative["bf16_compress_hook", 1] / 4
    assert not relative["fp16_compress_hook", 2**22] < 1
    assert relative[policy + "float32", 1] > 0.9 * relative[policy + "None", 1]

# %% [markdown]
# Hardly: the products were BF16 already, and two ranks add once.
#
# ## Neither end
#
# To have FP16's bits without its ends, agree on a scale first. One number of each rank is enough.

# %%
grads = [torch.tensor([3e-9, -2e-8]), torch.tensor([1e-9, 7e-8]), torch.tensor([5e-9, 1e-8])]
agreed = on_ranks(lambda grad, ranks: ranks.max(grad.abs().max()), grads)
print(agreed)
assert agreed == [grads[1].max()] * 3

# %% [markdown]
# Now all ranks can choose the same scale, with room for as many terms as there are ranks.
#
# ## An inf on one rank
#
# Under FSDP2 an inf may lie in the part of one rank alone.
#
# > **Predict.** Each rank looks at its own part, then steps, or skips and halves its scale. What
# > has happened to the model after that step?

# %%
for skip in two.skips.skips:
    assert skip.together == (skip.loop != "FSDP2, each looks at its own part")
two.skips

# %% [markdown]
# Half of the model moved, half did not, and the scales differ. So `found_inf` is reduced too, with
# MAX; PyTorch's scaler does it. And nobody may leave early:


# %%
def leaves_early(grad, ranks):
    return None if grad.isinf().any() else ranks.sum(grad)


try:
    on_ranks(leaves_early, [torch.tensor([1.0]), torch.tensor([torch.inf])])
except RuntimeError as error:
    print(error)

# %% [markdown]
# ## Many GPUs
#
# What two processes do not show:
#
# - A 16-bit sum over hundreds of ranks is rounded at every addition. Llama 3 reduced gradients in
#   FP32 (the same section); so does
#   [`reduce_dtype=torch.float32`](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html).
# - A delayed FP8 scale must be the same on all ranks. Transformer Engine reduces the amax over them
#   ([`reduce_amax`](https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/api/common.html)).
# - DeepSeek-V3 scaled tiles of 128 activations and blocks of 128 × 128 weights, all in E4M3.

# %% [markdown]
# ## What you have seen
#
# - FP8 needs a scale for every tensor. E4M3 is the more exact, E5M2 has the room; an outlier costs
#   a tensor's scale its small values, and blocks confine it. A delayed scale clips what it did not
#   foresee.
# - Adam's *v* stands under a fraction bar: FP16 and evenly spaced 8 bits make it zero, its root
#   survives. BF16 works, and cannot fall slowly.
# - A sum overflows before it is divided, a quotient flushes before it is added. A scale that all
#   ranks agree on avoids both.
# - Hooks and `reduce_dtype` say what travels, `param_dtype` what computes; the weights stay FP32.
#   An inf on one rank is everybody's.
#
# **Now you:** [exercise 13](../exercises/13_beyond_16_bits/13_beyond_16_bits.ipynb), 40 minutes.
