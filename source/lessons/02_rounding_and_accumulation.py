# %% [markdown]
# # 02 · Why does a sum stop growing?
#
# A network is mostly sums: dot products, means, losses, gradients from many examples. Add up in
# 16 bits, one term after the other, and at some point the sum ignores what you add. No error, no
# infinity, no warning.
#
# Afterwards you will be able to
#
# - say where a sum stops growing, in any format, before you run it,
# - tell which sums in PyTorch are in danger and which are not,
# - choose a repair: a wider accumulator, another order, a compensation, or rounding at random.
#
# 45 minutes. You need lesson [01](01_number_formats.ipynb), above all the ulp.

# %%
import torch
import torch.nn.functional as F

import mptutor as mpt
from mptutor import data, models
from mptutor.experiments.accumulation import run_running_sums, run_summations
from mptutor.plots import plot_running_sums, plot_stochastic_sums
from mptutor.widgets import AccumulationExplorer

# %% [markdown]
# ## Ten thousand hundredths
#
# A *running sum* adds one term at a time, and each partial sum is rounded before the next term
# comes. The variable that holds it is the *accumulator*.
#
# > **Predict.** 10,000 times 0.01 is 100. What does a running sum give in FP32? In FP16? In BF16?

# %%
n = 10_000


def add_up(x):
    total = torch.zeros_like(x[0])
    for term in x:
        total = total + term
    return total


hundredths = torch.full((n,), 0.01)
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    x = hundredths.to(dtype)
    print(dtype, add_up(x).item(), " exact for these terms:", n * x[0].item())
assert add_up(hundredths.half()) == 32 and add_up(hundredths.bfloat16()) == 4

# %% [markdown]
# FP32 is off by 0.003, FP16 ends at 32, BF16 at 4. The terms are not to blame: rounded to
# 16 bits they still make 100 and a little more. In FP16 two thirds went missing.
#
# ## The last term that counts
#
# Around 32 the numbers of FP16 lie one ulp apart, and whatever is added, the result must be one
# of them.
#
# > **Predict.** An FP16 sum stands at 32. How large must a term be, at least, to move it?

# %%
total = torch.tensor(32.0, dtype=torch.float16)
print("next number:", mpt.FP16.neighbours(32)[1], " half an ulp:", mpt.FP16.ulp(32) / 2)
for term in (0.0100, 0.0156, 0.0157):
    print("32 +", term, "=", (total + term).item())
assert total + 0.0156 == 32 and total + 0.0157 > 32

# %% [markdown]
# More than half an ulp; with less, 32 is the nearest number again. And exactly half is a tie,
# which goes to the even code. A power of two has mantissa 0, so it is even and keeps its place.
# That is the whole rule:
#
# **The sum stops at the first power of two at which half an ulp is at least the term.**
#
# Between two powers of two the ulp stays the same, so a sum that can move there moves on to the
# next one.
#
# For 0.01 in FP16: at 16 half an ulp is 2⁻⁷ ≈ 0.0078, too small; at 32 it is 2⁻⁶ ≈ 0.0156. It
# stops at 32.
#
# > **Predict.** Now count in ones. Where does the sum stop in FP16, in BF16, and in FP32? You
# > need only the mantissa bits: 10, 7 and 23.

# %%
for fmt, stop in ((mpt.FP16, 2.0**11), (mpt.BF16, 2.0**8), (mpt.FP32, 2.0**24)):
    total = torch.tensor([fmt.neighbours(stop)[0], stop], dtype=fmt.torch_dtype)
    print(f"{fmt.name}: {total.tolist()} + 1 = {(total + 1).tolist()}")
    assert (total + 1)[0] > total[0] and (total + 1)[1] == stop

# %% [markdown]
# One ulp is 2 there, half an ulp is the 1 you add. FP32 is not immune, only later: a counter of
# steps kept in FP32 stops at 16,777,216.
#
# ## Wrong long before it stops
#
# A sum can only move in whole ulps. So in each *binade*, from one power of two to the next, every
# term counts as a whole number of ulps.
#
# > **Predict.** Between 8 and 16 a term of 0.01 is 1.28 ulp, between 16 and 32 it is 0.64. What
# > does it count for in either? Is the sum too small or too large just before it stops?

# %%
term = mpt.quantize(0.01, mpt.FP16).item()
for power in (1, 2, 4, 8, 16, 32):
    ulp = mpt.FP16.ulp(power)
    print(f"from {power:>2}: {term / ulp:5.2f} ulp, counts as {round(term / ulp)}")

# %%
growth = run_running_sums(term=0.01, n=10_000)
plot_running_sums(growth)

# %%
fp32, fp16, bf16 = growth.curves
print(growth)
assert fp16.last_change * 0.01 < 28 and fp16.total == 32
assert fp16.sums[40] - fp16.sums[38] == 100 * mpt.FP16.ulp(16)  # terms 1,901 to 2,000

# %% [markdown]
# From 16 on each term counts for half as much again as it should. FP16 reaches 32 after 2,798
# terms, when 28 would be right, and stands still from there.

# %% [markdown]
# ## Small numbers are not to blame
#
# It is often said that small values round worse, and 0.01 is small.
#
# > **Predict.** Multiply every term by 1024, so that each is 10.24. Where does the FP16 sum stop,
# > and after how many terms: fewer, more, as many?

# %%
small = run_running_sums(term=0.01, formats=["FP16"]).curves[0]
large = run_running_sums(term=0.01 * 1024, formats=["FP16"]).curves[0]
for curve in (small, large):
    ratio = curve.total / curve.term
    print(f"term {curve.last_change} takes it to {curve.total}, {ratio:.0f} times a term")
assert large.sums == tuple(1024 * s for s in small.sums)

# %% [markdown]
# The same sums times 1024, term by term. What is absorbed depends on the *ratio* of sum to term,
# not on their size. In FP16 it happens at a ratio between 2¹¹ and 2¹², in BF16 between 2⁸ and 2⁹.
# (Below the smallest normal number size does matter; lesson 03 goes there.) Lesson 04 finds
# the two ratios again, between a weight and its update.
#
# ## Which way to round
#
# `quantize` knows other ways than nearest.
#
# > **Predict.** Rounded toward zero, where will the FP16 sum of hundredths stop? And rounded up?

# %%
for mode in ("nearest_even", "toward_zero", "up"):
    print(f"{mode:13}", mpt.quantize(32 + term, mpt.FP16, rounding=mode).item())
modes = run_running_sums(formats=["FP16"], roundings=["nearest_even", "toward_zero", "up"])
modes

# %%
nearest, toward_zero, up = modes.curves
assert toward_zero.total == 16 and up.total > 60 * up.exact

# %% [markdown]
# Toward zero, a term is lost as soon as it is less than a *whole* ulp: the sum stops one power of
# two earlier (unless the term is a power of two itself: ones stop at 2048 either way). Up, every
# term counts for at least one ulp, and from 16 on the sum doubles every 1,024 terms. Both err to
# one side in each step, so the errors pile up. Nearest does too, once all terms are alike.
#
# Take it in hand. The lower half shows where the next term lands.

# %% tags=["widget"]
AccumulationExplorer(n=2000, accumulator="FP16")

# %% [markdown]
# **Goal.** Let 10,000 terms of 0.01 end at exactly 16 in FP16; then let them end above 1,000.
#
# **Question.** With *nearest* and the term 0.1 the FP16 sum stops at 256. Where will BF16 stop,
# and why exactly eight times earlier?
#
# <details><summary>Answer</summary>
#
# At 32. BF16 has three mantissa bits less, so its ulp at 32 is as large as FP16's at 256.
#
# For the goal: round *toward zero*, then *up*.
#
# </details>

# %% [markdown]
# ## Right on average
#
# *Stochastic rounding* draws lots: 0.32 of an ulp becomes a whole one with a probability of 0.32,
# else nothing.
#
# > **Predict.** Round 32.01 to FP16 this way 100,000 times. Which values come out, and what is
# > their mean?

# %%
torch.manual_seed(0)
x = torch.full((100_000,), 32 + term)
x_q = mpt.quantize(x, mpt.FP16, rounding="stochastic")
print(x_q.unique(return_counts=True), "mean", x_q.double().mean().item())
assert abs(x_q.double().mean() - (32 + term)) < 4 * x_q.double().std() / 100_000**0.5

# %% [markdown]
# The mean is right although FP16 has nothing between 32 and 32.03. A sum rounded like this cannot
# stall: every term has its chance.
#
# > **Predict.** Of 256 such sums of our 10,000 terms, how far from 100 will a typical one end: by
# > 0.02, by 2, by 20?

# %%
random = run_running_sums(formats=["FP16"], roundings=["stochastic"], runs=256)
exact = random.curves[0].exact
print(f"mean {random.mean:.2f}, exact {exact:.2f}, spread {random.spread:.2f}")
assert abs(random.mean - exact) < 4 * random.spread / 256**0.5
assert 1 < random.spread < 2.5
plot_stochastic_sums(random)

# %% [markdown]
# No bias, but noise: errors of either sign partly cancel, so they grow like the square root of
# the number of terms. Lesson 04 rounds weights this way.
#
# ## A wider accumulator
#
# The usual repair: keep the *terms* in 16 bits and the *sum* in 32, and round once at
# the end. A Tensor Core does so for matrix products. What do PyTorch's own sums do?
#
# > **Predict.** `x` holds our terms in FP16. Which of these give 100, which give 32?

# %%
x = hundredths.half()
all_to_0 = torch.zeros(n, dtype=torch.int64)
with mpt.tensorcore.tensor_core():  # multiply FP16 as a Tensor Core does
    print("x @ ones    ", (x @ torch.ones_like(x)).item())
print("x.sum()     ", x.sum().item(), x.sum().dtype)
print("x.cumsum(0) ", x.cumsum(0)[-1].item())
print("index_add_  ", torch.zeros(1, dtype=torch.float16).index_add_(0, all_to_0, x).item())
assert x.sum() == add_up(x.float()).half() == 100

# %% [markdown]
# These three add up in FP32 inside, and only their *results* are FP16. `index_add_` adds into a
# tensor that is stored in 16 bits; where it goes term by term, it stops at 32.
#
# > **Predict.** So `sum` is safe. What is the sum of 70,000 ones in FP16, and what is their mean?

# %%
ones = torch.ones(70_000, dtype=torch.float16)
print("sum", ones.sum().item(), " mean", ones.mean().item())
assert ones.sum().isinf() and ones.mean() == 1

# %% [markdown]
# The accumulator held 70,000, the result could not: `mean` divides first and rounds then.
#
# ## Where running sums hide
#
# Here is a network that nobody has trained, and its
# losses on 5,000 images, as a model in pure BF16 would give them.
#
# > **Predict.** The losses are about 2.3 each. What mean does the loop report after 400, 1,000
# > and 5,000 images?

# %%
images = data.load("fashion-mnist-5k", device="cpu").train
torch.manual_seed(0)
with torch.no_grad():
    logits = models.mlp()(images.images.flatten(1))
losses = F.cross_entropy(logits, images.labels, reduction="none").bfloat16()

total = torch.zeros((), dtype=torch.bfloat16)
for count, loss in enumerate(losses, start=1):
    total += loss
    if count in (50, 400, 1000, 2000, 5000):
        true_mean = losses[:count].double().mean()
        print(f"{count:>4} images: reported {total / count:.3f}, true {true_mean:.3f}")
assert total / len(losses) < 0.3 < 2.2 < true_mean

# %% [markdown]
# From 512 on each loss counts as 4, so at 400 images the mean is too high and the sum is already at
# 1024. There half an ulp is 4, and nothing moves it any more. The network learns nothing, and its
# reported loss falls to a tenth. Repair: accumulate in FP32, or in a Python `float`, which is FP64.

# %%
total = 0.0
for loss in losses:
    total += loss.item()
print(total / len(losses))
assert abs(total / len(losses) - true_mean) < 1e-6

# %% [markdown]
# The second hiding place is `.grad`. Backward *adds* to it, in the dtype of the parameter.
#
# > **Predict.** A thousand micro-batches, each with a gradient of 0.01. What is in `w.grad` if
# > `w` is BF16, and what if it is FP32?

# %%
for dtype in (torch.bfloat16, torch.float32):
    w = torch.zeros(1, dtype=dtype, requires_grad=True)
    for _ in range(1000):
        (0.01 * w).sum().backward()
    print(dtype, w.grad.item())
    assert (w.grad == 4) if dtype is torch.bfloat16 else abs(w.grad - 10) < 0.01

# %% [markdown]
# More than half of the gradient is gone. It is one reason why mixed precision keeps parameters,
# and so gradients, in FP32.
#
# ## Without a wider accumulator
#
# If there is none, change the order. Sum *blocks* of 100, then sum the 100 results: no term meets
# a sum that is 2,048 times as large. *Pairs* go further: add neighbours, then neighbours of the
# results, and so on.
#
# Or keep what is lost. An addition's rounding error can itself be computed, in 16 bits:

# %%
total, term = torch.tensor([32.0, 0.01], dtype=torch.float16)
larger = total + term
arrived = larger - total
lost = term - arrived
print(f"wanted {term.item():.6f}, arrived {arrived.item()}, lost {lost.item():.6f}")
assert larger == 32 and lost == term

# %% [markdown]
# Add `lost` to the next term, and nothing is forgotten, only put off. That is *Kahan's*
# compensated sum, at four additions a term.
#
# > **Predict.** Which of them comes within one ulp of the exact sum, in FP16 and in BF16?

# %%
repairs = run_summations(hundredths)
repairs

# %%
kahan = {fmt: repairs.of("compensated (Kahan)", fmt) for fmt in ("FP16", "BF16")}
assert abs(kahan["FP16"].error_ulps) < 1 < abs(kahan["BF16"].error_ulps)
assert all(abs(repairs.of("FP32 accumulator", fmt).error_ulps) < 1 for fmt in kahan)

# %% [markdown]
# Within one ulp in both formats are the pairs and the FP32 accumulator. Blocks miss in both, and
# Kahan's sum misses in BF16 by two ulps: `lost` itself is exact, but adding it to the next term is
# rounded to 8 bits too, and 10,000 such errors show.

# %% [markdown]
# ## What you have seen
#
# - A running sum stops at the first power of two at which half an ulp is at least the term:
#   32 for hundredths in FP16, 4 in BF16. Long before, it is wrong. The ratio decides, not the size.
# - PyTorch's reductions and products add up in FP32; only their results are 16-bit.
#   Your own loops and `.grad` add up in the dtype they are stored in.
# - An FP32 accumulator repairs it at the root. Blocks, pairs and compensation help without one.
#   Stochastic rounding is right on average, with a spread.
#
# **Now you:**
# [exercise 02](../exercises/02_rounding_and_accumulation/02_rounding_and_accumulation.ipynb), 30
# minutes. Then lesson 03 follows the gradients to where FP16 ends.
