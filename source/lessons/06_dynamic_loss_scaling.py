# %% [markdown]
# # 06 · How does GradScaler find the scale?
#
# A loss scale has to be large enough to save small gradients and small enough not to overflow, and
# where that window lies depends on the model, the data and the day of the training. PyTorch's
# `GradScaler` finds it without ever looking at the size of a gradient. This lesson takes it apart.
#
# Afterwards you will be able to
#
# - say what the scale does after any sequence of good and bad steps,
# - write a loss scaler that drives a training like PyTorch's, bit for bit,
# - tell harmless skips from a scale that collapses,
# - say what a scale of 0 does, and guard against it.
#
# 45 minutes. You need [lesson 01](01_number_formats.ipynb) and [lesson 05](05_loss_scaling.ipynb).
# In short: gradients at or below 2⁻²⁵ become zero in FP16, so the loss is multiplied by a *scale*
# before `backward()`, which makes every gradient that much larger; before the optimizer runs, the
# FP32 gradients are divided by it again.

# %%
import math

import torch

import mptutor as mpt
from mptutor.experiments.scaler_traces import run_scaler_traces
from mptutor.plots import plot_scaler_trace
from mptutor.scaling import DynamicLossScaler, ScalerState, next_state
from mptutor.widgets import ScalerSimulator

# %% [markdown]
# ## The rule
#
# The scale cannot be computed, so it is tried. There are two rules, and the only thing they look at
# is whether any gradient of a step came out as inf or NaN:
#
# - if so, the step is *skipped*: the optimizer does not run, and the scale is halved;
# - after 2000 steps in a row without, the scale is doubled (while it still can be, in FP32).
#
# In `mptutor` the rule is a function from one state to the next.

# %%
state = ScalerState(scale=2.0**16, growth_interval=4)
for found_inf in (True, True, False, False):
    state = next_state(state, found_inf)
    print(f"found_inf={found_inf!s:5}  scale 2^{math.log2(state.scale):.0f}")

# %% [markdown]
# The growth interval here is 4 instead of 2000, so that something happens. Two good steps have
# passed.
#
# > **Predict.** The next steps are good, bad, and then good seven times. What are the scales? What
# > has the bad step done to the good ones before it?

# %%
for found_inf in [False, True] + [False] * 7:
    state = next_state(state, found_inf)
    in_a_row = f"{state.growth_tracker} good steps in a row"
    print(f"found_inf={found_inf!s:5}  scale 2^{math.log2(state.scale):.0f}  {in_a_row}")
assert state.scale == 2.0**14 and state.growth_tracker == 3

# %% [markdown]
# A bad step sets the count back to zero, so the scale needs four good steps *in a row*. Nothing
# else is remembered.
#
# ## A real training
#
# A network with two hidden layers learns from real pictures in FP16, with autocast. Two things are
# set up to go wrong. The scale starts at 2²⁴, far too high. And three batches, at steps 60, 61 and
# 110, are a thousand times too bright, as if somebody had forgotten to normalize them. The growth
# interval is 25. It runs twice: with the scaler in `mptutor.scaling` and with
# `torch.amp.GradScaler`.
#
# > **Predict.** The largest gradients of this network just fit at about 2¹⁷. How many of the 150
# > steps will be skipped? Will the two trainings end with the same weights, or with nearly the
# > same?

# %%
options = {"init_scale": 2.0**24, "growth_interval": 25}
traces = run_scaler_traces(
    {
        "mptutor": lambda: DynamicLossScaler(**options),
        "torch": lambda: torch.amp.GradScaler("cpu", **options),
    }
)
traces

# %%
mpt.records.show("scalers")

# %%
plot_scaler_trace(traces, "torch")

# %% [markdown]
# The scale comes down within a few steps; such skips are harmless and cost a few steps out of
# thousands. The three bright batches are skipped too, and each halves the scale although nothing
# was wrong with it: it takes 25 good steps in a row to win one factor of 2 back. A scale that grows
# too far is caught in the same way, loses a step, and goes back.
#
# Both scalers agree to the last bit of the last weight.

# %%
ours, theirs = traces.of("mptutor"), traces.of("torch")
assert ours.scales == theirs.scales and ours.skipped == theirs.skipped
assert ours.weights_hash == theirs.weights_hash
assert all(theirs.skipped[step] for step in (0, 1, 2, *traces.broken_steps))
print(f"{sum(theirs.skipped)} of {len(theirs.skipped)} steps skipped")
assert sum(theirs.skipped) < 0.15 * len(theirs.skipped)

# %% [markdown]
# So this is all that GradScaler does. Its four calls, `scale`, `unscale_`, `step` and `update`, are
# written out in `mptutor/scaling.py`, a page to read.
#
# ## What a skip leaves alone
#
# > **Predict.** In a skipped step the gradients are inf. After `step` and `update`, what has
# > changed of these: the weights, the optimizer's momentum, the scale?

# %%
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for factor in (1.0, float("inf")):
    optimizer.zero_grad()
    scaler.scale((weight * factor).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    momentum = optimizer.state[weight]["momentum_buffer"].item()
    print(f"weight {weight.item():.2f}  momentum {momentum:.2f}  scale {scaler.get_scale()}")
assert weight.isfinite().all() and scaler.get_scale() == 512.0

# %% [markdown]
# The scale alone. The optimizer was not called, so its momentum and its count of steps stay as they
# were. A learning rate scheduler that is stepped beside it does move on; lesson 10 looks at that.
#
# And why is a power of two used? Because multiplying by it changes exponents only.

# %%
gradients = torch.randn(100_000)
exact = {factor: ((gradients * factor) / factor).equal(gradients) for factor in (1024.0, 1000.0)}
print(exact)
assert exact == {1024.0: True, 1000.0: False}

# %% [markdown]
# ## When skips never end
#
# A skip is the right answer to a scale that is too high. But any NaN in the gradients counts as
# overflow, and a NaN *loss* is not cured by a smaller scale.
#
# > **Predict.** Every batch gives NaN, from a scale of 65536 on. Each skip halves the
# > scale. The smallest FP32 number is 2⁻¹⁴⁹. After how many skips is the scale exactly zero?

# %%
state, skips = ScalerState(), 0
while state.scale > 0:
    state, skips = next_state(state, found_inf=True), skips + 1
print(skips, "skips")
assert skips == 166

# %% [markdown]
# 165 halvings lead from 2¹⁶ to 2⁻¹⁴⁹, and one more rounds to zero. `GradScaler` does the same, and
# all the time the weights are safe, since every step is skipped. Then the data is healthy again.
#
# > **Predict.** The scale is 0 and the next batch is fine. Is this step skipped? What are the
# > weights after it?

# %%
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for step in range(167):
    optimizer.zero_grad()
    factor = float("nan") if step < 166 else 1.0
    scaler.scale((weight * factor).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
print("scale", scaler.get_scale(), " weights", weight.tolist())
assert weight.isnan().all()

# %% [markdown]
# The loss times 0 is 0, and so are all gradients. Zero is finite, so the step is not skipped.
# Unscaling multiplies by 1 / scale, which is infinite, and 0 × inf writes NaN into every weight.
# Training is destroyed by the first *good* batch. Nothing warns you, because to the scaler it was a
# good step.
#
# Two guards: a floor under the scale, and a warning when skips do not end. `GradScaler` has
# neither; ours has both.

# %%
import warnings

weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=0.1)
scaler = DynamicLossScaler(min_scale=1.0, warn_after_skips=20)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for step in range(167):
        optimizer.zero_grad()
        factor = float("nan") if step < 166 else 1.0
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
print(caught[0].message)
print("scale", scaler.get_scale(), " weights", weight.tolist())
assert weight.isfinite().all()

# %% [markdown]
# With `GradScaler`, write the guard into the loop: stop if `scaler.get_scale()` falls below, say,
# 2⁻¹⁰. A summed loss may want a scale a little below 1, but nothing healthy wants that; look at the
# loss itself. (On a GPU `get_scale()` waits for the device, so look every hundred steps.)
#
# Here is a scaler to play with. The gradients are recorded; the accidents are yours.

# %% tags=["widget"]
ScalerSimulator(init_scale=2.0**16, growth_interval=25, spikes=[60, 61, 110])

# %% [markdown]
# **Goal.** Go to step 0, press *166 NaN batches*, and see what step 166 does. Then go back into the
# fall and make single steps healthy (Delete; N makes them NaN again). Which is the first whose
# healthy batch already writes NaN?
#
# **Question.** The scale is not 0 there. Why is the step deadly all the same?
#
# <details><summary>Answer</summary>
#
# Step 144, at a scale of 2⁻¹²⁸. GradScaler multiplies the gradients by 1 / scale, in FP32, where
# 2¹²⁸ is infinite. The gradients, flushed to 0, pass the check and become 0 × inf, which is NaN.
# One step earlier the factor is still finite, and the step only learns nothing.
#
# </details>
#
# Try a floor of 1 as well, and a growth interval of 5: how many more steps does it cost?
#
# ## The scale is part of the checkpoint
#
# > **Predict.** A training has found its scale and is saved. It is resumed with a fresh scaler that
# > starts at 2²⁴ again. What is lost?

# %%
found = theirs.final_scale
lost = math.log2(options["init_scale"] / found)
print(f"saved scale 2^{math.log2(found):.0f}: about {lost:.0f} steps are skipped once more")
assert lost > 0

# %% [markdown]
# A few steps, and the trajectory is another one from there on. Had the scale still stood at its
# start, nothing would be lost. `scaler.state_dict()` holds the scale *and* the count of good steps;
# a resumed training is bit-equal only with both.

# %%
print(torch.amp.GradScaler("cpu").state_dict())
assert set(torch.amp.GradScaler("cpu").state_dict()) == set(DynamicLossScaler().state_dict())

# %% [markdown]
# ## What you have seen
#
# - The scale is halved after any step with inf or NaN and doubled after an interval of good steps
#   in a row. The size of the gradients plays no part.
# - Our scaler and PyTorch's agree over a real training: same scales, same skips, same bits.
# - The first skips are harmless and leave weights and optimizer state alone. Skips that do not end
#   mean that the loss itself is broken.
# - After 166 skips from 65536 the scale is 0, and the next good step writes NaN into the weights,
#   as at any scale from 2⁻¹²⁸ down. A floor or an alarm prevents it.
#
# **Now you:** [exercise 06](../exercises/06_dynamic_loss_scaling/06_dynamic_loss_scaling.ipynb), 40
# minutes. It ends with your own scaler driving this training to the same bits.
