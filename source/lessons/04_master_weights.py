# %% [markdown]
# # 04 · Why keep an FP32 copy of the weights?
#
# A weight of 0.1 and an update of 0.00001 are both easy to store in 16 bits. Their sum is not. This
# lesson is about the moment in a training step when the two meet.
#
# Afterwards you will be able to
#
# - tell from a weight and an update whether a 16-bit weight will move at all,
# - count how many weights of a real network move in a step,
# - write an optimizer step with a master copy, and say why the order of its lines matters,
# - say where the master copy is when you use PyTorch's autocast.
#
# 40 minutes. You need [lesson 01](01_number_formats.ipynb): ulp, neighbours, ties.

# %%
import torch

import mptutor as mpt
from mptutor.experiments.fine_tuning import run_fine_tuning
from mptutor.plots import plot_training
from mptutor.widgets import UpdateGrid

# %% [markdown]
# ## A weight and its update
#
# Gradient descent subtracts a small number from a weight, thousands of times.
#
# > **Predict.** A weight starts at 1.0 and is updated a thousand times by −0.0002. In FP32 it ends
# > at 0.8. Where does it end in FP16? In BF16?

# %%
end = {}
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    weight = torch.tensor(1.0, dtype=dtype)
    for _ in range(1000):
        weight -= 0.0002
    end[dtype] = weight.item()
    print(dtype, weight.item())

# %% [markdown]
# Neither 16-bit weight has moved. No single update was large enough to reach beyond the middle
# between 1.0 and its neighbour below, so each was rounded away, a thousand times. Nothing
# overflowed and nothing became zero: 0.0002 alone is an ordinary number in both formats.

# %%
below, above = mpt.FP16.neighbours(1.0)
print(f"FP16 around 1: {below:.6f}, 1, {above:.6f}; the middle below is {(1 - below) / 2:.6f} away")
assert end[torch.float16] == end[torch.bfloat16] == 1.0
assert (1 - below) / 2 > 0.0002

# %% [markdown]
# ## The cut-off
#
# What counts is the *ratio* of the weight to its update. The paper that introduced mixed precision
# training says that an update can vanish when the weight is "at least 2048 times larger" in FP16
# (Micikevicius et al., ICLR 2018, section 3.1). Let us find the ratio exactly.
#
# > **Predict.** Is it 2048 for every weight? Think of 1.0 and 1.99, and of updates up and down.


# %%
def lost_from_ratio(weight: float, fmt: mpt.FloatFormat) -> tuple[float, float]:
    """From which ratio weight / update on is an update lost? (upwards, downwards)"""
    below, above = fmt.neighbours(weight)
    return weight / ((above - weight) / 2), weight / ((weight - below) / 2)


for weight in (1.0, 1.25, 1.5, 1.75, 1.9921875):
    for fmt in (mpt.FP16, mpt.BF16):
        up, down = lost_from_ratio(weight, fmt)
        print(f"{fmt.name} {weight:<10} up {up:6.0f}   down {down:6.0f}")

# %% [markdown]
# The neighbours of a number near 2 are as far away as those of a number near 1, so the ratio
# doubles on the way. Below a power of two the neighbour is closer, so downwards 1.0 behaves like 2.
# All in all the cut-off lies between 2048 and 4096 in FP16, and between 256 and 512 in BF16, which
# has three mantissa bits less. Here it is checked on the hardware's own arithmetic, for weights
# over 20 powers of two. (At 1.5 times the lower end, a weight moves if its significand is above
# 1.5, and half of them are.)


# %%
def share_moved(w: torch.Tensor, ratio: float) -> float:
    after = (w.float() + w.float() / ratio).to(w.dtype)
    return (after != w).float().mean().item()


weights = (torch.rand(100_000) + 1) * 2.0 ** torch.randint(-10, 10, (100_000,))
for dtype, low, high in ((torch.float16, 2048, 4096), (torch.bfloat16, 256, 512)):
    w = weights.to(dtype)
    assert share_moved(w, low * 0.99) == 1 and share_moved(w, high * 1.01) == 0
    print(dtype, f"ratio {1.5 * low:.0f}: {share_moved(w, 1.5 * low):.0%} of weights move")

# %% [markdown]
# A common slip is to call this underflow, a number that becomes zero because it is too small. The
# gradient may be large and the update healthy; it is the *addition* that loses it. So multiplying
# the loss by a large number (a *loss scale*, lesson 05) cannot help: it is divided out again before
# the optimizer.
#
# In the figure an update arrives at a weight that lies on the numbers of a format.

# %% tags=["widget"]
UpdateGrid(weight=1, update=-0.0002, fmt="FP16")

# %% [markdown]
# **Goal.** Keep the update −0.0002 and rounding to nearest. Find a weight that moves in FP16, then
# one that moves in BF16.
#
# **Question.** Go back to weight 1 in FP16 and choose *with an FP32 master copy*. In which of the
# first four updates does the FP16 weight move, and why not in all?
#
# <details><summary>Answer</summary>
#
# In the second and the fourth. The master copy takes every update; the weight made from it moves
# when the master has passed the middle between two FP16 numbers. Their distance is about 2.4
# updates.
#
# For the goal: anything up to 0.5 moves in FP16, anything up to 0.0625 in BF16.
#
# </details>
#
# The other two ways to keep the weight return at the end of this lesson.
#
# ## A real network
#
# When are updates that small? Late in training and in fine-tuning, where the learning rate is small
# and the weights have grown. The network below was trained on pictures of clothes, in FP32.
# Now it is fine-tuned on the same pictures upside down, by Adam with a learning rate of 3 · 10⁻⁵:
# in FP32, with all weights in BF16, and in BF16 with a master copy, which the optimizer updates in
# its place.
#
# > **Predict.** Adam moves a weight by about the learning rate. Weights of such a network are
# > around 0.05. Which share of the BF16 weights will move in one step?

# %%
tuning = run_fine_tuning(quick=True)
tuning

# %%
mpt.records.show("fine tuning")

# %%
plot_training(tuning, title="Pure BF16 falls behind; with a master copy it follows FP32")

# %%
fp32, pure, master = (tuning.of(recipe)[0] for recipe in tuning.recipes)
for run in (fp32, pure, master):
    print(f"{run.recipe:15} {run.share_moved:.0%} of the weights move in a step")

# %%
assert pure.share_moved < 0.5 < fp32.share_moved
assert pure.last("accuracy") < fp32.last("accuracy") - 0.05
assert abs(master.last("accuracy") - fp32.last("accuracy")) < 0.03

# %% [markdown]
# No NaN, no warning, a loss that goes down: only slower, because most weights stand still. (In the
# paper a model for Mandarin speech lost 80 % of its accuracy, in relative terms, when its FP16
# weights were updated without a copy: Micikevicius et al., section 3.1, figure 2a.) The cut-off
# says which ones move: 3 · 10⁻⁵ times 256 to 512 is about 0.008 to 0.015, and only weights smaller
# than that do. FP16 has three more mantissa bits, but Adam's 10⁻⁸ is zero in it; the same training
# is NaN at its second step, as in lesson 00.
#
# ## The master copy
#
# The repair is a copy of the weights in FP32. The optimizer works on the copy; the 16-bit weights
# are made from it after each step, for the forward and backward pass. Here it is for one weight.

# %%
update = torch.tensor(0.0002, dtype=torch.float16)
weight = torch.tensor(1.0, dtype=torch.float16)
master = weight.float()
for _ in range(1000):
    master -= update.float()
    weight = master.half()
print("master", master.item(), " weight", weight.item())
assert abs(master - 0.8) < 1e-3 and weight == master.half()

# %% [markdown]
# Now the same three lines in another order, as one often finds them.
#
# > **Predict.** This loop computes the update in FP32 too. Where does it end?

# %%
weight = torch.tensor(1.0, dtype=torch.float16)
for _ in range(1000):
    master = weight.float()
    master -= update.float()
    weight = master.half()
print("weight", weight.item())
assert weight == 1.0

# %% [markdown]
# It stands still. A copy that is made anew from the rounded weight in every step has forgotten what
# the last step left over. The master copy must *keep* its digits from step to step; computing in
# FP32 is not enough.
#
# A copy costs memory: 2 bytes a weight become 6, where FP32 alone takes 4. What mixed precision
# saves in memory it saves on activations, not on weights. Lesson 09 does the whole account.
#
# ## Where autocast keeps it
#
# > **Predict.** Under `torch.autocast`, in which dtype are a layer's weight, its output and its
# > gradient? Which of them is the master copy?

# %%
layer = torch.nn.Linear(64, 64)
with torch.autocast("cpu", dtype=torch.bfloat16):
    out = layer(torch.randn(8, 64))
out.float().sum().backward()
print("weight", layer.weight.dtype, " output", out.dtype, " gradient", layer.weight.grad.dtype)
assert layer.weight.dtype == layer.weight.grad.dtype == torch.float32
assert out.dtype == torch.bfloat16

# %% [markdown]
# There is no second copy to manage. The parameters *are* FP32, and autocast casts them to 16 bits
# for the operations that want it, for a moment. Keeping an FP32 copy beside a 16-bit model is the
# older recipe. A model turned to 16 bits with `.half()` or `.bfloat16()` keeps no FP32 weights at
# all.
#
# ## Averages stall too
#
# Weights are not the only slow sums. An exponential moving average (EMA) of weights, a running
# mean in BatchNorm, Adam's own averages: all add a small share of something new to something old.
#
# > **Predict.** An average starts at 0 and follows a constant 1.0 with a decay of 0.999, for 10,000
# > steps. Where does it end in FP16? In BF16?

# %%
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    average = torch.tensor(0.0, dtype=dtype)
    for _ in range(10_000):
        average.lerp_(torch.ones((), dtype=dtype), 0.001)
    end[dtype] = average.item()
    print(dtype, average.item())
assert end[torch.bfloat16] < 0.5 < end[torch.float16] < 0.9 < end[torch.float32]

# %% [markdown]
# Each average stops where 0.001 · (1 − average), what the next step would add, falls to half an
# ulp. In BF16 that is less than half way. Keep averages in FP32, whatever the weights are.
#
# ## Chance instead of memory
#
# A master copy costs memory. There is another way: *stochastic rounding* goes to the neighbour
# above or below with probabilities that make it right on average. A lost update is then kept
# sometimes, and whole.
#
# > **Predict.** A thousand weights at 1.0, BF16, a thousand updates of −0.0002, stochastic
# > rounding. What is their mean at the end, and how far apart are they?

# %%
generator = torch.Generator().manual_seed(0)
weights = torch.ones(1000)
for _ in range(1000):
    weights = mpt.quantize(weights - 0.0002, mpt.BF16, "stochastic", generator=generator)
print(f"mean {weights.mean():.3f}, standard deviation {weights.std():.3f}")
assert abs(weights.mean() - 0.8) < 0.01 and weights.std() > 0

# %% [markdown]
# Right on average, and noisy one by one: a weight moves rarely, but then by a whole ulp. That is
# the price for doing without a copy.
#
# ## What you have seen
#
# - An update is lost when the weight is 2048 to 4096 times larger in FP16, and 256 to 512 times in
#   BF16. It depends on the mantissa and the direction, not on how small the update is.
# - In a real fine-tuning most BF16 weights stood still in a step, and the accuracy fell behind
#   without a warning.
# - An FP32 master copy repairs it, if it is kept from step to step and not remade from the rounded
#   weights. It costs memory.
# - Under autocast the parameters themselves are FP32; averages in 16 bits stall like weights.
#
# **Now you:** [exercise 04](../exercises/04_master_weights/04_master_weights.ipynb), 25 minutes.
# Lesson 05 turns to gradients that are too small by themselves.
