# %% [markdown]
# # 03 · Where do the gradients go?
#
# A gradient of 0.00000002 is a perfectly good number in FP32. In FP16 it is zero. This lesson
# counts how many gradients of real networks meet that end, in which layers, and when it matters.
#
# Afterwards you will be able to
#
# - say which numbers FP16 turns into zero, to the last digit,
# - take a census of a network's gradients and read off what FP16 would lose, without casting,
# - tell zeros that were lost from zeros that were there before,
# - tell a network that only loses gradients from one that is damaged by it.
#
# 40 minutes. You need [lesson 01](01_number_formats.ipynb): exponents, subnormal numbers, ties.

# %%
import math

import torch

import mptutor as mpt
from mptutor.experiments.deep_sigmoid import run_deep_sigmoid
from mptutor.experiments.gradient_census import (
    layer_gradients,
    network_and_loss,
    run_gradient_census,
)
from mptutor.experiments.recipes import AMP_FP16, AMP_FP16_UNSCALED, FP32
from mptutor.experiments.training import run_training
from mptutor.experiments.vae import run_vae
from mptutor.plots import plot_exponents, plot_gradient_census
from mptutor.widgets import ScaleExplorer

# %% [markdown]
# ## Where zero begins
#
# The smallest number of FP16 is 2⁻²⁴. One often reads that everything below it becomes zero: it
# *underflows*, or is *flushed*.
#
# > **Predict.** Here are a thousand numbers, evenly spaced from just above 0 up to 2⁻²⁴. How many
# > of them become zero in FP16?

# %%
x = torch.arange(1, 1001) * 2.0**-24 / 1000
flushed = (x.half() == 0).sum().item()
print(flushed, "of 1000; the largest of them is 2^", math.log2(x[x.half() == 0].max()))
assert flushed == 500

# %% [markdown]
# Half of them. FP16 rounds to the *nearest* number, and above 2⁻²⁵, the middle between 0 and 2⁻²⁴,
# the nearest is 2⁻²⁴. The middle itself is a tie and goes to zero, whose code is even. So the rule
# is: **at or below 2⁻²⁵**. Whoever counts with 2⁻²⁴ counts too many.
#
# ## A census
#
# Now a real network: a small CNN that has seen pictures of clothes for one epoch. The gradients
# come from one backward pass in FP32, so that what FP16 would lose is still there to be counted. We
# take those of the layers' outputs. Mixed precision computes them in FP16 and passes them on from
# layer to layer.

# %%
cnn, loss = network_and_loss("cnn", epochs=1)
gradients = {name: grad.outputs for name, grad in layer_gradients(cnn, loss).items()}
for name, grad in gradients.items():
    print(f"{name:6} {grad.numel():>9,} gradients, the largest is {grad.abs().max():.1e}")

# %% [markdown]
# To see what FP16 loses you could cast. But there is a way that tells more: look at the exponents
# alone, and count how many gradients have which. `torch.frexp` takes exponents off numbers (its
# significand lies between ½ and 1, so its exponent is one more than ours).
#
# > **Predict.** If you know for each exponent *e* how many gradients lie in [2ᵉ, 2ᵉ⁺¹), which of
# > them do you add up to get what FP16 flushes?

# %%
grad = gradients["conv1"]
nonzero = grad[grad != 0]
exponent = torch.frexp(nonzero).exponent - 1
below = (exponent < -25).sum().item()
print(f"{below:,} of {len(nonzero):,} lie below 2^-25: {below / len(nonzero):.2%}")

# %% [markdown]
# That is a prediction. Now cast, and count.
#
# > **Predict.** Will the two counts agree to the last gradient?

# %%
cast = nonzero.half()
lost = (cast == 0).sum().item()
ties = (nonzero.abs() == 2.0**-25).sum().item()
print(f"{lost:,} became zero; predicted were {below:,}, and {ties} lie exactly on the tie")
assert lost == below + ties

# %% [markdown]
# They agree but for gradients that lie exactly on 2⁻²⁵, if there are any: an exponent alone cannot
# tell these from those just above. `mptutor.take_census` counts a little more finely, so that no
# tie escapes. From one pass over the gradients it answers for every format.

# %%
census = mpt.take_census(grad)
assert census.flushed(mpt.FP16) == lost
census

# %%
plot_exponents(census)

# %% [markdown]
# The yellow zone is not for free either: subnormal numbers have fewer bits the smaller they are.
#
# > **Predict.** 2⁻²⁴ is the only number below 2⁻²³. How wrong can a gradient become that is *not*
# > flushed, relative to itself? Above 2⁻¹⁴ it is at most 2⁻¹¹, 0.05 %.

# %%
kept = nonzero[cast != 0]
error = (kept.half().float() - kept).abs() / kept.abs()
for low in (-25, -20, -14):
    here = (kept.abs() > 2.0**low) & (kept.abs() < 2.0 ** (low + 1))
    print(f"from 2^{low}: largest error {error[here].max():.2%}, mean {error[here].mean():.2%}")
assert error.max() > 0.5 and error[kept.abs() >= 2.0**-14].max() <= 2.0**-11

# %% [markdown]
# Just above 2⁻²⁵ a gradient is nearly doubled.
#
# ## Zeros that were there before
#
# > **Predict.** Behind `norm1` comes a ReLU, then a pooling that passes on one of four numbers.
# > Which share of the gradients of `norm1`'s outputs is zero already in FP32?

# %%
counted = run_gradient_census("cnn", epochs=1)
counted

# %%
outputs = counted.census("outputs")
zero_before = outputs.zeros / outputs.total
zero_in_fp16 = (outputs.zeros + outputs.flushed(mpt.FP16)) / outputs.total
print(f"zero in FP32 {zero_before:.1%}, in FP16 {zero_in_fp16:.1%}")
print(f"flushed, of those that were not zero: {outputs.flushed(mpt.FP16) / outputs.nonzero:.1%}")
assert counted.census("outputs", "norm1").zeros > 0.7 * gradients["norm1"].numel()
assert zero_before > zero_in_fp16 - zero_before

# %% [markdown]
# Most zeros are nobody's loss. So count the flushed gradients among those that were not zero.
#
# Two published figures to hold beside these. In FP16 training of the detector Multibox SSD, 67 % of
# the activation gradients were zero. In a Mandarin speech model about 5 % of the *weight* gradients
# lay below 2⁻²⁴ (Micikevicius et al., *Mixed Precision Training*, ICLR 2018, sections 3.1 and 3.2).
# We could not confirm whether the first figure includes gradients that are zero in FP32, as those
# behind a ReLU are; ours says which is which.
#
# ## Layer by layer
#
# Gradients pass through the layers from the loss to the input. The next network has eight layers
# with sigmoids, and the slope of a sigmoid is at most ¼.
#
# > **Predict.** At the last layer the gradients are around 2⁻¹⁰. Where do they lie eight layers
# > further down, if each divides them by 4 or more? What does FP16 make of them?

# %%
deep = run_gradient_census("sigmoid")
plot_gradient_census(deep)

# %%
for row in deep.layers:
    share = row.outputs.flushed(mpt.FP16) / row.outputs.nonzero
    print(f"{row.layer}: {share:7.2%} flushed   in BF16: {row.outputs.flushed(mpt.BF16)}")
lost = [row.outputs.flushed(mpt.FP16) / row.outputs.nonzero for row in deep.layers]
assert lost[0] == lost[1] == 1.0 and lost[-1] == 0.0
assert deep.census().flushed(mpt.BF16) == 0

# %% [markdown]
# The lowest layers get nothing at all. In BF16, which has FP32's exponents, nothing is lost.
#
# > **Predict.** Train this network in FP32 and in mixed precision with FP16, once without any
# > remedy and once with PyTorch's (a *loss scale*, lesson 05). Guessing among ten classes costs log
# > 10 ≈ 2.303. What will the three losses be after four epochs?

# %%
trained = run_deep_sigmoid(quick=True)
trained

# %%
mpt.records.show("deep sigmoid")

# %%
fp32, unscaled, scaled = (trained.of(name)[0] for name in trained.recipes)
assert unscaled.last("loss") > math.log(10) - 0.05, "it did learn"
assert fp32.last("loss") < 2.1 and scaled.last("loss") < 2.1

# %% [markdown]
# Dead, without NaN and without a warning. The upper layers do get gradients, but learn from
# features that never change. The scaled run loses gradients too, more with every epoch, and learns
# all the same; lesson 05 comes back to it.
#
# ## Flushed is not damaged
#
# The CNN loses gradients too, as the column `flushed` will say again.
#
# > **Predict.** How much worse does such a CNN train in FP16, without any remedy?

# %%
race = run_training(recipes=(FP32, AMP_FP16_UNSCALED), seeds=(0,))
race

# %%
fp32, unscaled = (race.of(name)[0] for name in race.recipes)
assert unscaled.last("share_flushed") > 0.01
assert abs(unscaled.last("accuracy") - fp32.last("accuracy")) < 0.02

# %% [markdown]
# Not at all. The lost gradients are the smallest ones, and they are added to larger ones that
# survive: a weight's gradient sums over thousands of positions. A census says what is lost. Whether
# it *mattered*, only training tells. Most ordinary small nets are like this one.
#
# ## A term of the loss
#
# What matters, then? All gradients of some layers, as above. Or all gradients of something that the
# loss asks for. A variational autoencoder has a loss of two terms: how well it draws the picture
# again, and, with a small weight, a term called KL that keeps its 16 hidden numbers close to a
# normal distribution. With a weight of 10⁻⁴ and a batch of 128, the gradient of the KL term for a
# hidden mean μ is 10⁻⁴ / (128 · 16) · μ.
#
# > **Predict.** The means lie between −2 and 2 or so. How large must one be for its gradient to
# > survive in FP16?

# %%
factor = 1e-4 / (128 * 16)
print(f"the gradient is 2^{math.log2(factor):.1f} · μ; it survives if |μ| > {2**-25 / factor:.2f}")

# %%
mu = torch.randn(128, 16, requires_grad=True)
log_variance = torch.full((128, 16), -1.0, requires_grad=True)
kl = -0.5 * (1 + log_variance - mu**2 - log_variance.exp()).mean()
(1e-4 * kl).backward()
for name, grad in (("mean", mu.grad), ("log variance", log_variance.grad)):
    census = mpt.take_census(grad)
    print(f"{name}: {census.flushed(mpt.FP16) / census.nonzero:.0%} flushed")
assert (log_variance.grad.half() == 0).all()

# %% [markdown]
# So nothing holds the variances. Train it, again with and without the remedy.
#
# > **Predict.** What will you see in the loss without it? A NaN? A worse picture? Which term moves?

# %%
vae = run_vae(recipes=(FP32, AMP_FP16, AMP_FP16_UNSCALED), quick=True)
vae

# %%
mpt.records.show("vae")

# %%
fp32, scaled, unscaled = (vae.of(name)[0] for name in vae.recipes)
same_picture = unscaled.last("reconstruction") / fp32.last("reconstruction")
print(f"reconstruction × {same_picture:.2f}, KL × {unscaled.last('kl') / fp32.last('kl'):.2f}")
assert abs(same_picture - 1) < 0.05
assert unscaled.last("kl") > 1.15 * fp32.last("kl")
assert abs(scaled.last("kl") / fp32.last("kl") - 1) < 0.1

# %% [markdown]
# The pictures are as good as ever and nothing warns you: a term of the loss is simply off. Look at
# the column `flushed`, too. It is *lower* here than in the CNN that was none the worse. It is not
# how many gradients are lost that counts, but which.
#
# ## Take hold of it
#
# Here are the gradients you counted. The bars stand in the zones of the format; a row per layer
# shows what each would lose. A loss scale multiplies all gradients, so it moves the bars.

# %% tags=["widget"]
ScaleExplorer(deep, counted)

# %% [markdown]
# **Goal.** In the sigmoid net, find the smallest scale at which layer `linear1` by itself loses
# less than 1 % of its gradients.
#
# **Question.** Set the scale back to 2⁰ and choose BF16. The bars stay where they are. Why is
# nothing lost?
#
# <details><summary>Answer</summary>
#
# The gradients are the same; the zones have moved. BF16 flushes at or below 2⁻¹³⁴, far off the left
# edge of the figure. It pays with precision: three mantissa bits fewer for every gradient.
#
# </details>

# %% [markdown]
# ## What you have seen
#
# - FP16 makes zero what is at or below 2⁻²⁵. From there to 2⁻¹⁴ numbers survive with an error that
#   grows up to the number itself.
# - The exponents of one backward pass tell what FP16 will flush; the cast confirmed it, ties
#   included.
# - Many gradients are zero in FP32 already. Count those apart.
# - The CNN lost gradients and trained as well as in FP32. The deep sigmoid net lost all gradients
#   of whole layers and stayed at chance; the autoencoder lost a term of its loss in silence.
#
# **Now you:** [exercise 03](../exercises/03_underflow/03_underflow.ipynb), 25 minutes. The remedy
# is the subject of [lesson 05](05_loss_scaling.ipynb).
