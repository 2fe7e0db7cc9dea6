# %% [markdown]
# # 05 · How large may the scale be?
#
# FP16 has room at the top that gradients do not use, and none at the bottom where they need it. So
# multiply the loss by a large number. This lesson finds out how large, before training, and then
# trains at the edges to see whether the answer holds.
#
# Afterwards you will be able to
#
# - write a training step with a loss scale,
# - find the window of safe scales of a network from one backward pass,
# - say what happens at a scale that is too high, and at one that is too low,
# - tell a problem that a scale mends from one that it does not.
#
# 45 minutes. You need [lesson 03](03_underflow.ipynb): the census, what is flushed and why.

# %%
import math

import torch
import torch.nn.functional as F

import mptutor as mpt
from mptutor.experiments.gradient_census import (
    layer_gradients,
    network_and_loss,
    run_gradient_census,
)
from mptutor.experiments.scale_sweep import run_scale_sweep
from mptutor.plots import plot_exponents, plot_scale_sweep
from mptutor.widgets import ScaleExplorer

# %% [markdown]
# ## One multiplication
#
# A backward pass is a chain of products. If the loss is multiplied by a number, the *loss scale*,
# every gradient in the chain comes out multiplied by it. The network is the one with eight sigmoid
# layers that FP16 could not train in lesson 03.
#
# > **Predict.** Multiply the loss by 1024, run backward in FP32, divide all gradients by 1024. Are
# > they the same as before: nearly, or bit for bit? And with 1000 instead?

# %%
net, loss = network_and_loss("sigmoid")
plain = layer_gradients(net, loss)
for scale in (1024, 1000):
    scaled = layer_gradients(net, lambda scale=scale: scale * loss())
    same = [torch.equal(scaled[n].weights / scale, plain[n].weights) for n in plain]
    print(f"scale {scale}: {sum(same)} of {len(same)} layers have the same bits")
    assert all(same) == (scale == 1024)

# %% [markdown]
# A power of two changes exponents and nothing else, in every product of the chain, so long as
# nothing leaves the range of the format. 1000 changes the significands, and each product is rounded
# anew. So scales are powers of two. That costs nothing, and it makes the census exact: a scale of
# 2ᵏ adds *k* to every exponent.

# %%
counted = run_gradient_census("sigmoid")
census = counted.census()
plot_exponents(census)

# %%
plot_exponents(census, scale=2.0**16)

# %% [markdown]
# The same bars, 16 places further to the right. This is a census of all gradients that mixed
# precision computes in FP16: of the layers' outputs and of the weights.
#
# ## The window
#
# > **Predict.** The largest gradient decides the largest scale, and 65520 is the number from which
# > FP16 is infinite. If the largest gradient is 0.065, which power of two is the largest safe
# > scale?

# %%
every_gradient = torch.cat([t.flatten() for g in plain.values() for t in (g.outputs, g.weights)])
largest = every_gradient.abs().max().item()
highest = 2.0 ** (math.ceil(math.log2(65520 / largest)) - 1)  # 65520 itself would be infinite
print(f"the largest gradient is {largest:.3f}, the largest safe scale 2^{math.log2(highest):.0f}")
assert (every_gradient * highest).half().isfinite().all()
assert (every_gradient * highest * 2).half().isinf().any()

# %% [markdown]
# The lower edge is a matter of what one is ready to lose. Say, one in a thousand.
#
# > **Predict.** Without a scale about half of these gradients are flushed. At which power of two is
# > it fewer than one in a thousand?

# %%
for power in (-20, 0, 4, 8, 12, 15, 16, 19, 20, 22):
    share = census.flushed(mpt.FP16, 2.0**power) / census.nonzero
    print(f"2^{power:<4} flushed {share:8.3%}   infinite {census.overflowed(mpt.FP16, 2.0**power)}")

# %%
window = census.safe_scales(mpt.FP16, flushed_at_most=0.001)
first_scale = torch.amp.GradScaler("cpu").get_scale()
print("safe scales:", window, "  PyTorch's scaler starts at", first_scale)
assert window.largest == highest and first_scale in window

# %%
for scale in (window.smallest / 2, window.smallest):
    lost = (every_gradient * scale).half() == 0
    print(f"2^{math.log2(scale):.0f}: {lost.sum() / len(lost):.3%} became zero in a cast")
    assert (lost.sum() <= 0.001 * len(lost)) == (scale == window.smallest)

# %% [markdown]
# One backward pass, and every scale is answered for this moment; casts agree at both edges. The
# share falls slowly, by a factor of two or so for each power of two, for the bars fall off slowly.
#
# ## A step with a scale
#
# Now a training step in FP16 with a fixed scale. Four things come after the forward pass: backward,
# divide, look, step. Dividing must come before anything that uses the size of a gradient, and
# looking before the step. On this machine `simulate_amp` makes the CPU compute as a GPU with Tensor
# Cores would.


# %%
def training_step(net, optimizer, images, labels, scale):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(net(images), labels)
    (loss * scale).backward()  # gradients come out scaled, large enough for FP16
    gradients = [p.grad for p in net.parameters()]  # these are FP32, like the weights
    for gradient in gradients:
        gradient /= scale  # in FP32, where small numbers are safe
    if not all(gradient.isfinite().all() for gradient in gradients):
        return False  # skip the step: leave weights and optimizer alone
    optimizer.step()
    return True


# %% [markdown]
# > **Predict.** Three scales: 1, 2¹⁶ and 2²⁴. At which of them is the step skipped? Which share of
# > the first layer's gradients is zero at each?

# %%
images, labels = torch.randn(128, 1, 28, 28), torch.randint(10, (128,))
for scale in (1.0, 2.0**16, 2.0**24):
    net, _ = network_and_loss("sigmoid")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with mpt.simulate_amp(torch.float16):
        stepped = training_step(net, optimizer, images, labels, scale)
    zeros = (net[1].weight.grad == 0).float().mean()
    print(f"scale 2^{math.log2(scale):<3.0f} stepped: {stepped!s:5}  zeros in layer 1: {zeros:.1%}")
    assert stepped == (scale < 2.0**24)

# %% [markdown]
# At 1 the step is taken and the first layer gets nothing. At 2²⁴ nothing is zero, and nothing is
# right: look at the gradients of the last layer and of the first, at 2²² and at 2²⁴.

# %%
for power in (22, 24):
    net, _ = network_and_loss("sigmoid")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with mpt.simulate_amp(torch.float16):
        training_step(net, optimizer, images, labels, 2.0**power)
    for name, grad in (("last", net[-1].weight.grad), ("first", net[1].weight.grad)):
        print(f"2^{power} {name:5}: {grad.isinf().sum()} inf, {grad.isnan().sum()} NaN")
assert net[1].weight.grad.isnan().all()

# %% [markdown]
# Overflow begins next to the loss, where gradients are largest, with infinities; further down all
# is still finite. At 2²⁴ the gradients of the logits themselves no longer fit, and since ∞ − ∞ and
# ∞ · 0 are NaN, everything below them is. That is why the scaler looks for both, and why it skips
# the step and does not try to repair anything. And in the other direction?
#
# > **Predict.** With a scale of 2⁻²⁰, far too low: how many gradients are NaN, how many zero?

# %%
net, _ = network_and_loss("sigmoid")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
with mpt.simulate_amp(torch.float16):
    stepped = training_step(net, optimizer, images, labels, 2.0**-20)
tiny = torch.cat([p.grad.flatten() for p in net.parameters()])
print(f"stepped: {stepped}, NaN: {tiny.isnan().sum()}, zero: {(tiny == 0).float().mean():.2%}")
assert stepped and not tiny.isnan().any() and (tiny == 0).float().mean() > 0.95

# %% [markdown]
# Zeros, never NaN. A scale that is too low is silent; one that is too high is loud, which is why
# scalers push upwards until something overflows.
#
# ## Trained at the edges
#
# Is the window real? The network is trained from the same start at fixed scales: at both edges of
# the predicted window, below it and above it. Four epochs each; guessing costs 2.303.
#
# > **Predict.** At which scales will it learn? Will the lower edge be as sharp as the upper one?

# %%
sweep = run_scale_sweep()
sweep

# %%
mpt.records.show("scales")

# %%
plot_scale_sweep(sweep)

# %%
low, high = sweep.smallest_safe, sweep.largest_safe
assert (low, high) == (window.smallest, window.largest)
assert sweep.at(low).skips == sweep.at(high).skips == 0 < sweep.at(2 * high).skips
assert sweep.at(8 * high).skips == sweep.at(8 * high).steps
assert max(sweep.at(low).loss, sweep.at(high).loss) < 2.0 < 2.25 < sweep.at(1.0).loss

# %% [markdown]
# The upper edge is sharp. One power of two beyond it steps are skipped, three beyond it all of
# them. At the edge itself there is no reserve: the window is that of the untrained network, and
# gradients grow and shrink while it learns. In lesson 03 the share flushed at 2¹⁶ rose epoch by
# epoch, and the network learned all the same.
#
# The lower edge is soft, and lies far below the one in a thousand that we asked for.

# %%
below = [run for run in sweep.runs if run.scale < low and run.loss < 2.1]
for run in below:
    lost = f"loses {run.share_flushed:.1%} at the start"
    print(f"2^{math.log2(run.scale):.0f} {lost} and learns: {run.loss:.2f}")
assert below and min(run.share_flushed for run in below) > 0.01

# %% [markdown]
# Flushed is not damaged, once more. The paper found the same: in the detector Multibox SSD, 67 % of
# the activation gradients were zero without a scale; below 2⁻²⁷ they did not matter, between 2⁻²⁷
# and 2⁻²⁴ they did, and a scale of 8 was enough to match FP32. Over many networks its authors used
# scales from 8 to 32768, and many needed none (Micikevicius et al., ICLR 2018, section 3.2).
#
# So take the census for the *upper* edge, stay a few powers of two below it, and be generous.
#
# ## What a scale does not mend
#
# "The loss is NaN, so the scale must be wrong" is said often.
#
# > **Predict.** An activation of 300 is squared in FP16, as in a norm or a distance. What is the
# > loss at scales of 2¹⁶, 1 and 2⁻¹⁰?

# %%
activation = torch.tensor([300.0, 4.0], dtype=torch.float16, requires_grad=True)
for scale in (2.0**16, 1.0, 2.0**-10):
    squares = activation**2
    loss = (squares / squares.sum()).sum()
    print(f"scale {scale:>10}: loss {loss.item()}, scaled loss {(loss.float() * scale).item()}")
    assert loss.isnan()

# %% [markdown]
# NaN at each. The scale multiplies the *loss*; when the forward pass overflows, it has not been
# used yet. A scale moves gradients and nothing else. For the forward pass there are other remedies:
# this operation in FP32, or BF16.

# %%
squares = activation.float() ** 2
loss = (squares / squares.sum()).sum()
print("the same in FP32:", loss.item())
assert loss.isfinite()

# %% [markdown]
# ## Find it by hand
#
# The green band is the window for what is selected. Below the figure you see which layers set it.

# %% tags=["widget"]
ScaleExplorer(counted, run_gradient_census("cnn", epochs=1), power=0)

# %% [markdown]
# **Goal.** For the sigmoid net, find the largest scale at which nothing is infinite; then the layer
# that sets this edge, and the layer that sets the lower one.
#
# **Question.** Choose FP8_E5M2, the format that FP8 training uses for gradients. Is there a safe
# scale for the whole network? What could one do?
#
# <details><summary>Answer</summary>
#
# `linear9`, next to the loss, has the largest gradients and sets the upper edge; `linear1`, at the
# far end, sets the lower one. E5M2 has FP16's exponents and eight mantissa bits fewer, hence fewer
# subnormals: its zone of zeros reaches up to 2⁻¹⁷, and the window of the whole network is empty.
# Each layer by itself does have one. So give every tensor its own scale, as lesson 13 does.
#
# </details>

# %% [markdown]
# ## What you have seen
#
# - A step with a scale: multiply the loss, backward, divide in FP32, look for inf and NaN, step or
#   skip. With a power of two the gradients come back bit for bit.
# - One census gives the window: the largest gradient sets the upper edge, the smallest ones that
#   you are not ready to lose the lower one.
# - Too high is loud: inf, NaN, skipped steps. Too low is silent: zeros, never NaN. Training
#   confirmed the upper edge to the power of two, and found the lower one far softer.
# - A loss that is NaN comes from the forward pass, and no scale mends it.
#
# **Now you:** [exercise 05](../exercises/05_loss_scaling/05_loss_scaling.ipynb), 35 minutes.
# Gradients move while a network learns; [lesson 06](06_dynamic_loss_scaling.ipynb) lets the scale
# move too.
