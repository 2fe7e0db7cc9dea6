# %% [markdown]
# # Exercise 03 · Underflow
#
# Three functions, about 20 lines in all, 25 minutes. Lesson: [03 · Where do the gradients
# go?](../../lessons/03_underflow.ipynb)
#
# Write each function in its cell and run the check below it. You may cast to FP16 or compare with
# thresholds, as you like; leave `mptutor.take_census` aside, since it is what you are writing.

# %%
from torch import Tensor

from mptutor.checks import check

# %% [markdown]
# ## 03.1 Where zero begins, in any format
#
# **Write** `flush_limit`, about 4 lines: the largest positive number that becomes zero when it is
# rounded to nearest, ties to even, in a format with these widths. The bias is
# 2 ** (exponent_bits − 1) − 1, and there are subnormal numbers. **Target:** right for FP16, BF16,
# both FP8 formats' widths and a few that nobody uses.


# %% tags=["solution-03-1"]
def flush_limit(exponent_bits: int, mantissa_bits: int) -> float:
    """Return the largest number that rounds to zero; 2 ** -25 for FP16, `flush_limit(5, 10)`."""
    ### BEGIN SOLUTION
    bias = 2 ** (exponent_bits - 1) - 1
    smallest_normal = 2.0 ** (1 - bias)
    smallest = smallest_normal * 2.0**-mantissa_bits
    return smallest / 2
    ### END SOLUTION


# %% tags=["check-03-1"]
check("03.1", flush_limit)

# %% [markdown]
# ## 03.2 A census for FP16
#
# **Write** `count_zones`, about 10 lines: what FP16 makes of a tensor's numbers. **Target:** right
# for zeros, ties, negative numbers, infinities and NaNs; the five counts need not add up to all.


# %% tags=["solution-03-2"]
def count_zones(x: Tensor) -> dict[str, int]:
    """Count what rounding to FP16 makes of an FP32 tensor of any shape.

    "zero": numbers that are zero already; "flushed": others that become zero; "subnormal" and
    "normal": numbers that become such; "overflowed": finite numbers that become infinite.
    Infinities and NaNs of `x` itself are counted nowhere.
    """
    ### BEGIN SOLUTION
    x = x[x.isfinite()]
    x_q = x.half().abs()
    smallest_normal = 2.0**-14
    return {
        "zero": int((x == 0).sum()),
        "flushed": int(((x_q == 0) & (x != 0)).sum()),
        "subnormal": int(((x_q > 0) & (x_q < smallest_normal)).sum()),
        "normal": int(((x_q >= smallest_normal) & x_q.isfinite()).sum()),
        "overflowed": int(x_q.isinf().sum()),
    }
    ### END SOLUTION


# %% tags=["check-03-2"]
check("03.2", count_zones)

# %% [markdown]
# ## 03.3 Layer by layer
#
# **Write** `lost_by_layer`, about 6 lines: the share of each layer's gradients that FP16 loses, as
# the lesson counts it: among those that are not zero already. **Target:** right for layers of any
# shape, for ties, and for a layer whose gradients are all zero, which has lost 0.0.


# %% tags=["solution-03-3"]
def lost_by_layer(gradients: dict[str, Tensor]) -> dict[str, float]:
    """Return, for every layer, a share from 0 to 1. The gradients are finite FP32 tensors."""
    ### BEGIN SOLUTION
    lost = {}
    for layer, grad in gradients.items():
        nonzero = grad[grad != 0]
        flushed = int((nonzero.half() == 0).sum())
        lost[layer] = flushed / max(len(nonzero), 1)
    return lost
    ### END SOLUTION


# %% tags=["check-03-3"]
check("03.3", lost_by_layer)
