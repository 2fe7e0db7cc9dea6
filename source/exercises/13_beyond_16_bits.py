# %% [markdown]
# # Exercise 13 · Beyond 16 bits and beyond one device
#
# Three functions, about 22 lines in all, 40 minutes. Lesson: [13 · What lies beyond 16 bits, and
# beyond one device?](../../lessons/13_beyond_16_bits.ipynb)

# %%
import math

import torch
from torch import Tensor

import mptutor as mpt
from mptutor.checks import check
from mptutor.experiments.ranks import Ranks, on_ranks

# %% [markdown]
# ## 13.1 A scale from a history
#
# **Write** `scale_from`, about 5 lines: the largest power of two at which the largest of the
# remembered magnitudes still fits into E4M3, whose largest number is 448. **Target:** right for any
# history, and also where there is none to speak of.


# %% tags=["solution-13-1"]
def scale_from(history: list[float]) -> float:
    """Return a scale for the next tensor: a power of two, to be multiplied by.

    `history`: the largest magnitude of each tensor so far, oldest first. A zero, an inf or a NaN
    among them says nothing and is left out. If nothing remains, the scale is 1.0.
    """
    ### BEGIN SOLUTION
    known = [amax for amax in history if math.isfinite(amax) and amax > 0]
    if not known:
        return 1.0
    return 2.0 ** math.floor(math.log2(448 / max(known)))
    ### END SOLUTION


# %% tags=["check-13-1"]
check("13.1", scale_from)

# %% [markdown]
# ## 13.2 Rounded with a scale from the past
#
# **Write** `quantize_delayed`, about 5 lines, with `scale_from`: delayed scaling of one tensor.
# `mpt.quantize(x, mpt.FP8_E4M3)` rounds and clips to ±448. **Target:** the values, the scale and
# the history that the next step begins with, right at every step.


# %% tags=["solution-13-2"]
def quantize_delayed(
    x: Tensor, history: list[float], length: int
) -> tuple[Tensor, float, list[float]]:
    """Return the rounded values, the scale they were multiplied by, and the history after `x`.

    `x`: FP32, any shape. The values are FP32, of the same shape, each a number of E4M3; values over
    scale is what they stand for. `history`: the largest magnitudes of the tensors before `x`,
    oldest first. The one returned ends with that of `x` and has at most `length` entries.
    """
    ### BEGIN SOLUTION
    scale = scale_from(history)
    x_q = mpt.quantize(x * scale, mpt.FP8_E4M3)
    amax = x.abs().max().item()
    return x_q, scale, [*history, amax][-length:]
    ### END SOLUTION


# %% tags=["check-13-2"]
check("13.2", quantize_delayed)

# %% [markdown]
# ## 13.3 A mean that neither overflows nor flushes
#
# Each rank has an FP32 gradient, and all need the mean. Only FP16 may travel, in sums that are FP16
# themselves. `ranks.size` is their number; `ranks.sum(x)` and `ranks.max(x)` are what
# `dist.all_reduce` does with SUM and MAX, except that they return the answer. Every rank runs the
# same function, and each stops in a call until all have made it. Here `on_ranks` plays them one
# after another:

# %%
on_ranks(lambda x, ranks: ranks.sum(x), 2 * [torch.tensor([40_000, 2.0**-24]).half()])

# %% [markdown]
# **Write** `mean_over_ranks`, about 8 lines. **Target:** within a 256th of the exact mean, for
# gradients up to 2³⁰ and down to 2⁻⁵⁰ as long as those of one batch lie within ten binades; an inf
# or NaN on any rank makes the mean infinite or NaN on all. No more than one tensor of the
# gradient's size travels, in FP16. Single numbers are free.


# %% tags=["solution-13-3"]
def mean_over_ranks(grad: Tensor, ranks: Ranks) -> Tensor:
    """Return the mean of all ranks' gradients, FP32, the same on every rank.

    `grad`: this rank's gradient, FP32, of the same shape on all.
    """
    ### BEGIN SOLUTION
    largest = float(ranks.max(grad.abs().max()))  # all ranks get the same answer
    scale = 1.0
    if math.isfinite(largest) and largest > 0:
        room = 2.0**15 / ranks.size  # for the sum, and a bit to spare for rounding
        scale = 2.0 ** math.floor(math.log2(room / largest))
    total = ranks.sum((grad * scale).half())
    return total.float() / scale / ranks.size
    ### END SOLUTION


# %% tags=["check-13-3"]
check("13.3", mean_over_ranks)
