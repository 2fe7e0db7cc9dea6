# %% [markdown]
# # 10 · How do clipping, accumulation, checkpoints and torch.compile go with AMP?
#
# Scale, backward, step, update: four calls, and they fit any loop that does nothing else. Real
# loops clip, accumulate, have several losses or optimizers, penalties, checkpoints, schedulers,
# averages, and are compiled. Here each habit is tried twice, as it should be and as it is often
# found.
#
# Afterwards you will be able to
#
# - put clipping, accumulation, penalties and more than one loss or optimizer into an AMP loop,
# - say what each mistake costs, and under which condition it costs nothing,
# - save a training so that it goes on as if nothing had happened,
# - use `torch.compile` and activation checkpointing without leaving mixed precision.
#
# 50 minutes. You need [lesson 06](06_dynamic_loss_scaling.ipynb).

# %%
import copy
import io
import warnings
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import mptutor
from mptutor import records
from mptutor.data import batches, load
from mptutor.devices import pick_device
from mptutor.experiments.loop_patterns import run_loop_patterns, train_session
from mptutor.experiments.loops import PATTERNS, make_session
from mptutor.experiments.recipes import AMP_FP16
from mptutor.experiments.scaler_traces import hash_of
from mptutor.experiments.tasks import accuracy
from mptutor.plots import plot_loop_patterns
from mptutor.widgets import StepDebugger

# %% [markdown]
# ## One rule
#
# From `backward()` until something divides them, all gradients are *scale* times too large. Whoever
# looks at them, limits them, adds to them or steps on them in between has to know that. A session
# `s` holds a model, optimizers, a scaler, and a loss under autocast. `arithmetic` has a CPU compute
# in FP16 as a GPU would.

# %%
device = pick_device()
data = load("fashion-mnist-5k", device=device)
steps = [batch for epoch in (0, 1) for batch in batches(data.train, 128, seed=epoch)]
images, labels = steps[0]
s = make_session()

# %%
with AMP_FP16.arithmetic(device):
    s.scaler.scale(s.loss(images, labels)).backward()
    scaled = nn.utils.get_total_norm(p.grad for p in s.model.parameters())
s.scaler.unscale_(s.optimizer)
true = nn.utils.get_total_norm(p.grad for p in s.model.parameters())
print(f"norm of all gradients: {scaled:.5g}, unscaled {true:.5g}")

# %% [markdown]
# ## Clipping
#
# A pattern shows its right loop. A line with `+` is missing in the wrong one; a line with `-` is
# what the wrong one has instead.

# %%
print(PATTERNS["clipping"])

# %% [markdown]
# > **Predict.** Both train for an epoch on real pictures, with SGD. The limit is 1. How long is a
# > step without `unscale_`, compared to what it should be?

# %%
with_sgd = run_loop_patterns(["clipping"], epochs=1)
with_sgd

# %% [markdown]
# The limit met a norm with the scale in it, cut that to 1, and then the step was divided by 65536.
# No error, no skip; the loss stays where chance puts it.
#
# > **Predict.** Adam divides by the size of the gradients anyway. What does the same mistake cost
# > with Adam?

# %%
with_adam = run_loop_patterns(["clipping"], optimizer="adam", epochs=1)
for result in (with_sgd, with_adam):
    right, wrong = (result.of("clipping", v)[0].last_loss for v in ("right", "wrong"))
    print(f"{result.optimizer:4}  right {right:.3f}  wrong {wrong:.3f}")
    assert wrong - right > 1 if result is with_sgd else abs(wrong - right) < 0.1

# %% [markdown]
# Adam hides it. The clipping is wrong all the same: no step is left as it was, and the day somebody
# changes the optimizer, training stops.
#
# ## Accumulation
#
# Four micro-batches make one step. `update` may move the scale, so it belongs to the step, after
# the last of them. First the mistake that is loud.
#
# > **Predict.** `update()` after every micro-batch, `step` after four. When does it raise?

# %%
with AMP_FP16.arithmetic(device):
    s = make_session()
    s.scaler.scale(s.loss(images[:32], labels[:32]) / 4).backward()
try:
    s.scaler.update()
except AssertionError as error:
    print(error)

# %% [markdown]
# At the first one: no gradients have been checked, so there is nothing to update by. `unscale_` in
# every micro-batch raises at the second. If you clip, do both once, after the last. The silent
# mistake is an old one.
#
# > **Predict.** The loss is not divided by 4. Which other change of the loop does the same?

# %%
print(PATTERNS["accumulation"])
accumulating = run_loop_patterns(["accumulation"], epochs=1)
plot_loop_patterns(accumulating, title="Forgetting to divide makes steps too long")

# %%
undivided, faster = make_session(), make_session()
faster.optimizer.param_groups[0]["lr"] *= 4
train_session(undivided, steps[:1], PATTERNS["accumulation"].wrong)
train_session(faster, steps[:1], PATTERNS["accumulation"].right)
pairs = zip(undivided.model.parameters(), faster.model.parameters(), strict=True)
assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)

# %% [markdown]
# With SGD it is a learning rate four times as high, to the last digits.
#
# ## Two losses, two optimizers
#
# One scaler serves them all. Every loss is scaled, every optimizer steps through the scaler, and
# `update` comes once, at the end.
#
# > **Predict.** In one wrong loop the main of two losses misses the scale, in another the second of
# > two optimizers, that of the head, steps without the scaler. Which ends in NaN, and how soon?

# %%
print(PATTERNS["two losses"], PATTERNS["two optimizers"], sep="\n\n")
two_of_each = run_loop_patterns(["two losses", "two optimizers"], epochs=1)
two_of_each

# %% [markdown]
# The unscaled loss is divided by 65536 and is gone: the network learns its second loss alone, and
# nothing looks broken. The head takes steps 65536 times too long. Its weights are huge at once and
# NaN soon, and all later steps are skipped, long after the fault.
#
# ## A penalty on gradients
#
# Here gradients become part of the loss. `autograd.grad` of a scaled loss gives scaled gradients.
# They are divided out of place, for they belong to a graph, and the whole loss is scaled again.
#
# > **Predict.** The penalty takes squares. Without the division, by which factor is it too large?

# %%
print(PATTERNS["gradient penalty"])
penalizing = run_loop_patterns(["gradient penalty"], epochs=1)

# %%
everything = with_sgd + accumulating + two_of_each + penalizing
plot_loop_patterns(everything)

# %% [markdown]
# By 65536², about 4 · 10⁹. Steps are skipped until the scale is so low that the penalty fits; that
# step is taken, is far too long, and the loss is NaN from then on.

# %%
for name in ("clipping", "two losses", "two optimizers", "gradient penalty"):
    right, wrong = (everything.of(name, variant)[0] for variant in ("right", "wrong"))
    print(f"{name:17} right {right.last_loss:.2f}  wrong {wrong.last_loss:.2f}")
    assert right.last_loss < 1.5 and not wrong.last_loss < 2
records.show("loop patterns")

# %% [markdown]
# ## Who tells you?
#
# > **Predict.** An audit watches three steps of each wrong loop. Which one does it pass?

# %%
passed = []
for name, pattern in PATTERNS.items():
    with mptutor.audit() as a:
        train_session(make_session(), steps[:3], pattern.wrong)
    rules = [finding.rule for finding in a.findings if finding.level == "wrong"]
    passed += [name] * (not rules)
    print(f"{name:17}", *rules[:1])
assert passed == ["accumulation"]

# %% [markdown]
# Steps four times too long are a matter of what you meant, and wrong in FP32 too.
#
# ## The calls in another order
#
# A step with clipping in slow motion. Each line shows what it leaves behind, on a real network with
# a real scaler.

# %% tags=["widget"]
StepDebugger()

# %% [markdown]
# **Goal.** Find a loop that raises nothing, skips nothing, and moves the weights, but less than a
# ten-thousandth as far as the right order does, on a healthy batch at a scale of 65536.
#
# **Question.** Without `zero_grad`, two steps on healthy batches look almost as they should. Choose
# the overflowing batch: why does the second step not recover, and what will the scale do if
# training goes on?
#
# <details><summary>Answer</summary>
#
# Goal: clip before `unscale_`. Question: clipping by an infinite norm multiplies by 0, and 0 · inf
# is NaN. NaN plus anything is NaN, so every later step is skipped, and each skip halves the scale,
# until it is 0.
#
# </details>
#
# ## The scale is part of the checkpoint
#
# A training stops half-way and goes on from a file in what stands for a new process: other weights,
# a fresh optimizer, a fresh scaler, until the file is loaded.
#
# > **Predict.** The scaler's state is left out. In one training the scale had to come down from
# > 2³⁰, in the other it stood at 2¹⁶ all the time. Which of them ends with other weights?


# %%
def resumed(init_scale, parts):
    s, file = make_session("adam", init_scale=init_scale), io.BytesIO()
    train_session(s, steps[:20])
    torch.save({part: getattr(s, part).state_dict() for part in parts}, file)
    file.seek(0)
    saved = torch.load(file)
    s = make_session("adam", seed=1, init_scale=init_scale)
    for part in parts:
        getattr(s, part).load_state_dict(saved[part])
    train_session(s, steps[20:40])
    return hash_of(s.model)


for power in (30, 16):
    unbroken = make_session("adam", init_scale=2.0**power)
    train_session(unbroken, steps[:40])
    kept, lost = (["model", "optimizer", "scaler"], ["model", "optimizer"])
    same = [resumed(2.0**power, parts) == hash_of(unbroken.model) for parts in (kept, lost)]
    print(f"from 2^{power}, the same bits? With the scaler's state {same[0]}, without {same[1]}")
    assert same == [True, power == 16]

# %% [markdown]
# With all three states it goes on bit for bit. Without the scaler's it searches for its scale once
# more, unless that had never left its start. Save it always: the condition is not yours to choose.
#
# ## A scheduler and skipped steps
#
# A schedule that is stepped beside skipped steps moves on. The guard that is often advised steps it
# only if the scale did not fall.
#
# > **Predict.** One cycle of 80 steps, from a scale of 2³⁰, of which the first are skipped.
# > Which ends with the lower loss, guarded or not?


# %%
def scheduled(guard):
    s, scales = make_session(init_scale=2.0**30), [2.0**30]
    schedule = torch.optim.lr_scheduler.OneCycleLR(s.optimizer, max_lr=0.2, total_steps=80)

    def move_on():
        scales.append(s.scaler.get_scale())
        if not (guard and scales[-1] < scales[-2]):
            schedule.step()

    losses = train_session(s, steps, after_step=move_on)
    return fmean(losses[-10:]), schedule.get_last_lr()[0]


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    rates = {}
    for guard in (False, True):
        loss, rates[guard] = scheduled(guard)
        print(f"guarded {guard!s:5}  last loss {loss:.3f}  last learning rate {rates[guard]:.2g}")
assert rates[False] < rates[True] and "lr_scheduler.step()" in str(caught[0].message)

# %% [markdown]
# The guarded schedule is late by the skipped steps and stops before its end, with a rate that never
# came down. A guard is right where a schedule must count *updates*. PyTorch's warning about the
# order of the two comes if the very first step is skipped, and asks for nothing then.
#
# ## An average of the weights
#
# An exponential moving average (EMA) is updated after each step; a skipped step adds the old
# weights once more, which does no harm. Its dtype can.
#
# > **Predict.** One average takes 1 part in 50 of the weights, a slower one 1 in 200. Kept in BF16,
# > with 8 significant bits, which of them still follows?

# %%
s = make_session("adam")
kinds = [(part, dtype) for part in (50, 200) for dtype in (torch.float32, torch.bfloat16)]
averages = {kind: copy.deepcopy(s.model).to(kind[1]) for kind in kinds}


def follow():
    for (part, dtype), average in averages.items():
        for mean, w in zip(average.parameters(), s.model.parameters(), strict=True):
            mean.data.lerp_(w.detach().to(dtype), 1 / part)


train_session(s, steps, after_step=follow)
scores = {kind: accuracy(average.float(), data.test) for kind, average in averages.items()}
for (part, dtype), score in scores.items():
    print(f"1 in {part:3}  {dtype!s:15}  accuracy {score:.3f}")
assert scores[200, torch.bfloat16] < scores[200, torch.float32]

# %% [markdown]
# The slower the average, the smaller its step, and below half an ulp it does not move
# ([lesson 04](04_master_weights.ipynb)). A quick average gets by. Keep averages in FP32.
#
# ## Evaluation
#
# > **Predict.** The model was trained under autocast and is evaluated without. How many of the 1000
# > answers change?

# %%
with torch.no_grad(), AMP_FP16.arithmetic(device):
    plain = s.model(data.test.images)
    with AMP_FP16.autocast_on(device):
        mixed = s.model(data.test.images)
changed = (plain.argmax(-1) != mixed.argmax(-1)).sum().item()
print(plain.dtype, mixed.dtype, f"{changed} of {len(plain)} answers differ")
assert changed < 0.01 * len(plain)

# %% [markdown]
# Hardly any: the weights are FP32, so both are right. Evaluate in the precision that you will
# deploy in. Forgetting autocast costs speed, and with compiled code something else.
#
# ## torch.compile
#
# Compiled code is made for the autocast state that it meets. The backend here takes note of each
# graph and runs it as it is.
#
# > **Predict.** Two calls under autocast, one without, one under `no_grad`. How many compilations?

# %%
graphs, x = [], torch.randn(4, 8)
compiled = torch.compile(nn.Linear(8, 8), backend=lambda graph, _: graphs.append(graph) or graph)
for autocast, grad in ((True, True), (True, True), (False, True), (True, False)):
    with torch.autocast("cpu", torch.bfloat16, autocast), torch.set_grad_enabled(grad):
        compiled(x)
    print(f"autocast {autocast!s:5}  gradients {grad!s:5}  compiled so far: {len(graphs)}")
assert len(graphs) == 3

# %% [markdown]
# A forgotten autocast is one more compilation. The default backend then generates code, which can
# take many seconds and on a CPU needs a C++ compiler; `aot_eager` does all the rest and needs none.
# It shows a fault that no error tells.
#
# > **Predict.** A nested region keeps a loss in FP32. Compiled, in which dtype is its *backward*?

# %%
weight = torch.randn(8, 8, requires_grad=True)


def protected(x):
    with torch.autocast("cpu", enabled=False):
        return (x @ weight).square().mean()


def autocast_inside(x):
    with torch.autocast("cpu", torch.bfloat16):
        return protected(x)


(exact,) = torch.autograd.grad(protected(x), weight)
for function, outside in ((protected, True), (autocast_inside, False)):
    with torch.autocast("cpu", torch.bfloat16, enabled=outside):
        loss = torch.compile(function, backend="aot_eager")(x)
    (grad,) = torch.autograd.grad(loss, weight)
    error = ((grad - exact).norm() / exact.norm()).item()
    print(f"autocast {'outside' if outside else 'inside'}: relative error {error:.2g}")
    assert (error > 1e-4) == outside
torch.compiler.reset()  # an audit looks less closely once there is compiled code

# %% [markdown]
# In BF16. The backward is traced together with the forward, under the autocast that stands around
# both, and the nested region no longer counts. Enter autocast *inside* what you compile, and leave
# backward, clipping and the scaler outside.
#
# ## Activation checkpointing
#
# Activations are thrown away and computed again in backward, when autocast is no longer on.
#
# > **Predict.** Recomputed by hand without autocast, or by `torch.utils.checkpoint`: which gives
# > the same bits as no recomputing?


# %%
def by_hand(s):
    with AMP_FP16.autocast_on(device):
        kept = s.model[:-1](images).detach().requires_grad_()
        loss = F.cross_entropy(s.model[-1](kept), labels)
    loss.backward()
    again = s.model[:-1](images)  # without autocast
    again.backward(kept.grad.to(again.dtype))


def by_torch(s):
    with AMP_FP16.autocast_on(device):
        kept = checkpoint(s.model[:-1], images, use_reentrant=False)
        loss = F.cross_entropy(s.model[-1](kept), labels)
    loss.backward()


# %%
first = []
for backward in (lambda s: s.loss(images, labels).backward(), by_hand, by_torch):
    s = make_session()
    with AMP_FP16.arithmetic(device):
        backward(s)
    first.append(s.model[1].weight.grad)
same = [torch.equal(grad, first[0]) for grad in first]
print(f"the same bits: by hand {same[1]}, by torch {same[2]}")
assert same == [True, False, True]

# %% [markdown]
# `checkpoint` enters autocast again by itself, whatever old warnings say. By hand it is yours to
# remember.
#
# ## What you have seen
#
# - Between backward and step gradients carry the scale. Clipping, second losses, second optimizers
#   and penalties that forget it stopped a training or ended in NaN, without an error.
# - Conditions decide what a mistake costs: Adam hid clipping, an unmoved scale hid the missing
#   state, and a guarded schedule was late instead of safe.
# - A training went on bit for bit once model, optimizer *and* scaler were saved.
# - With `torch.compile`, autocast belongs inside the compiled function; `checkpoint` takes care of
#   it by itself.
#
# **Now you:** [exercise 10](../exercises/10_real_training_loops/10_real_training_loops.ipynb), 50
# minutes.
