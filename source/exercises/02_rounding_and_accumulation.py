# %% [markdown]
# # Exercise 02 · Rounding and accumulation
#
# Four functions, about 25 lines in all, 30 minutes. Lesson: [02 · Why does a sum stop
# growing?](../../lessons/02_rounding_and_accumulation.ipynb)
#
# Write each function in its cell and run the check below it. A check that does not pass shows you
# an input, what your function gave, what was expected, and where to reread.

# %%
import math

import torch

from mptutor.checks import check

# %% [markdown]
# ## 02.1 Round to nearest even
#
# **Write** `round_to_bits`, about 4 lines: round a number to so many significant bits, as if the
# exponent had no limits. FP16 keeps 11 significant bits of a normal number, the hidden one
# included. **Target:** right for numbers of every size and sign, and for every tie. Leave dtypes
# and `mptutor` aside.


# %% tags=["solution-02-1"]
def round_to_bits(x: float, bits: int) -> float:
    """Return the number with `bits` significant bits that is nearest to `x`; ties go to even.

    `math.frexp(x)` returns `(f, e)` with x = f · 2**e and 0.5 <= |f| < 1, or (0.0, 0) for zero.
    `math.ldexp(f, e)` is f · 2**e. `round(y)` takes a float to the nearest integer, ties to even.
    """
    ### BEGIN SOLUTION
    fraction, exponent = math.frexp(x)
    steps = math.ldexp(fraction, bits)
    return math.ldexp(round(steps), exponent - bits)
    ### END SOLUTION


# %% tags=["check-02-1"]
check("02.1", round_to_bits)

# %% [markdown]
# ## 02.2 Where a sum stops
#
# **Write** `where_it_stops`, about 4 lines: the value at which a running sum of equal terms stops
# growing, rounded to nearest even. **Target:** right for every format and term, with no adding
# up.


# %% tags=["solution-02-2"]
def where_it_stops(term: float, mantissa_bits: int) -> float:
    """Return the value that 0 + term + term + … never leaves.

    `term` is positive and a number of the format; `mantissa_bits` is 10 for FP16, 7 for BF16, 23
    for FP32. The exponent shall have no limits.
    """
    ### BEGIN SOLUTION
    power = 2.0**-200
    while power * 2.0**-mantissa_bits / 2 < term:
        power *= 2
    return power
    ### END SOLUTION


# %% tags=["check-02-2"]
check("02.2", where_it_stops)

# %% [markdown]
# ## 02.3 Sum in blocks
#
# **Write** `blocked_sum`, about 8 lines. Each block is a running sum, and so is the sum of the
# blocks. **Target:** the same bits as additions in that order give, all of them in the dtype of
# `x`.


# %% tags=["solution-02-3"]
def blocked_sum(x: torch.Tensor, block: int) -> torch.Tensor:
    """Return the sum of `x`, shape (n,), FP16 or BF16, as a tensor of shape () and the same dtype.

    A block is `block` neighbouring terms; the last one may be shorter. Running sums start at 0 and
    go from left to right.
    """
    ### BEGIN SOLUTION
    total = torch.zeros((), dtype=x.dtype)
    for start in range(0, len(x), block):
        of_block = torch.zeros((), dtype=x.dtype)
        for term in x[start : start + block]:
            of_block = of_block + term
        total = total + of_block
    return total
    ### END SOLUTION


# %% tags=["check-02-3"]
check("02.3", blocked_sum)

# %% [markdown]
# ## 02.4 Sum with a compensation
#
# **Write** `kahan_sum`, about 8 lines. The lesson shows how to compute what one addition lost.
# Carry it along: add it to the next term before that is added to the sum. **Target:** the same
# bits as Kahan's sum, all additions in the dtype of `x`.


# %% tags=["solution-02-4"]
def kahan_sum(x: torch.Tensor) -> torch.Tensor:
    """Return Kahan's sum of `x`, shape (n,), FP16 or BF16, as a tensor of shape () and that dtype.

    For each term: what is wanted is the term and what was lost before; add that to the total; what
    is lost now is what was wanted less what arrived. The last lost part is dropped.
    """
    ### BEGIN SOLUTION
    total = torch.zeros((), dtype=x.dtype)
    lost = torch.zeros((), dtype=x.dtype)
    for term in x:
        wanted = term + lost
        larger = total + wanted
        lost = wanted - (larger - total)
        total = larger
    return total
    ### END SOLUTION


# %% tags=["check-02-4"]
check("02.4", kahan_sum)

# %% [markdown]
# ## And if you have a minute
#
# Why does `lost = wanted - (larger - total)` need its parentheses? Take them away, run the check,
# and work out by hand what `wanted - larger + total` gives in FP16 for 32 + 0.01.
