# %% [markdown]
# # Exercise 01 · Number formats
#
# Three functions, about 20 lines in all, 25 minutes. Lesson: [01 · What can 16 bits
# hold?](../../lessons/01_number_formats.ipynb)
#
# Write each function in its cell and run the check below it. A check that does not pass shows you
# an input, what your function gave, what was expected, and where to reread.
#
# The point is to do the arithmetic yourself, so leave `mptutor.FloatFormat`, `view` and
# `torch.finfo` aside. Plain Python is enough.

# %%
import math

from mptutor.checks import check

# %% [markdown]
# ## 01.1 Decode a code
#
# **Write** `decode_fp16`, about 9 lines: from a 16-bit code to its number. **Target:** right for
# codes of every kind: normal and subnormal numbers, both zeros, infinities and NaNs.


# %% tags=["solution-01-1"]
def decode_fp16(code: int) -> float:
    """Return the number that an FP16 code stands for.

    `code` is an integer from 0 to 65535: one sign bit, five exponent bits, ten mantissa bits.
    `math.inf`, `math.nan` and `math.ldexp(significand, exponent)` may be of use.
    """
    ### BEGIN SOLUTION
    sign = -1.0 if code >> 15 else 1.0
    exponent_field = code >> 10 & 0b11111
    mantissa = code & 0b1111111111
    if exponent_field == 31:
        return sign * math.inf if mantissa == 0 else math.nan
    if exponent_field == 0:
        return sign * math.ldexp(mantissa / 1024, -14)
    return sign * math.ldexp(1 + mantissa / 1024, exponent_field - 15)
    ### END SOLUTION


# %% tags=["check-01-1"]
check("01.1", decode_fp16)

# %% [markdown]
# ## 01.2 The distance to the next number
#
# **Write** `ulp_fp16`, about 4 lines: how far apart the numbers of FP16 lie around `x`. At a power
# of two, where the distance changes, give the one above it. **Target:** right for every finite `x`
# that FP16 can reach, zero and negative numbers included.


# %% tags=["solution-01-2"]
def ulp_fp16(x: float) -> float:
    """Return the distance between neighbouring FP16 numbers around `x`, for |x| up to 65504.

    `math.frexp(x)` returns `(f, e)` with x = f · 2**e and 0.5 <= |f| < 1.
    """
    ### BEGIN SOLUTION
    if x == 0:
        return 2.0**-24
    exponent = math.frexp(x)[1] - 1
    return 2.0 ** (max(exponent, -14) - 10)
    ### END SOLUTION


# %% tags=["check-01-2"]
check("01.2", ulp_fp16)

# %% [markdown]
# ## 01.3 A range table
#
# **Write** `range_table`, about 8 lines: the limits of any format of the same kind as FP16, from
# its two widths. The bias is 2 ** (exponent_bits − 1) − 1, and the last exponent field is kept for
# infinity and NaN. **Target:** right for FP16, BF16, FP32, TF32, E5M2 and a few that nobody uses.


# %% tags=["solution-01-3"]
def range_table(exponent_bits: int, mantissa_bits: int) -> dict[str, float]:
    """Return the limits of a format, as floats.

    "max": the largest number; "smallest_normal"; "smallest_subnormal"; "eps": the distance from 1
    to the next larger number.
    """
    ### BEGIN SOLUTION
    bias = 2 ** (exponent_bits - 1) - 1
    emin = 1 - bias
    eps = 2.0**-mantissa_bits
    return {
        "max": (2 - eps) * 2.0**bias,
        "smallest_normal": 2.0**emin,
        "smallest_subnormal": 2.0 ** (emin - mantissa_bits),
        "eps": eps,
    }
    ### END SOLUTION


# %% tags=["check-01-3"]
check("01.3", range_table)

# %% [markdown]
# ## And if you have a minute
#
# FP8 E4M3 has no infinities and one NaN a sign, so its last exponent field holds numbers too.
# What is its largest number by your formula, and what does `mptutor.FP8_E4M3.max` say? Lesson 13
# makes use of the difference.
