# %% [markdown]
# # Exercise 04 · Master weights
#
# Three functions, about 20 lines in all, 25 minutes. Lesson: [04 · Why keep an FP32 copy of the
# weights?](../../lessons/04_master_weights.ipynb)

# %%
import math

from torch import Tensor

from mptutor.checks import check

# %% [markdown]
# ## 04.1 Does it move?
#
# **Write** `moves`, 1 to 3 lines: which 16-bit weights would an update change? The update is added
# exactly, or in FP32, and the sum is rounded to the weight's dtype. **Target:** right on both sides
# of a tie, in FP16 and BF16, for updates up and down.


# %% tags=["solution-04-1"]
def moves(weight: Tensor, update: Tensor) -> Tensor:
    """Return for each element whether `weight + update`, rounded to the weight's dtype, differs.

    `weight`: FP16 or BF16, any shape. `update`: FP32, the same shape. Returns a bool tensor.
    """
    ### BEGIN SOLUTION
    return (weight.float() + update).to(weight.dtype) != weight
    ### END SOLUTION


# %% tags=["check-04-1"]
check("04.1", moves)

# %% [markdown]
# ## 04.2 Gradient descent with a master copy
#
# **Write** `sgd_with_master`, about 6 lines: train 16-bit weights on a list of gradients, with
# plain gradient descent and an FP32 master copy. **Target:** the same bits as the reference after
# every step of every list.


# %% tags=["solution-04-2"]
def sgd_with_master(weight: Tensor, gradients: list[Tensor], lr: float) -> list[Tensor]:
    """Return the 16-bit weights after each step.

    `weight`: FP16, any shape; it starts the master copy and must not be changed. `gradients`: FP16,
    the same shape, one a step. In each step the master copy moves by -lr times the gradient, in
    FP32, and the 16-bit weights are made from it. Returns a list of FP16 tensors, one a step.
    """
    ### BEGIN SOLUTION
    master = weight.float()
    weights = []
    for gradient in gradients:
        master = master - lr * gradient.float()
        weights.append(master.to(weight.dtype))
    return weights
    ### END SOLUTION


# %% tags=["check-04-2"]
check("04.2", sgd_with_master)

# %% [markdown]
# ## 04.3 From which ratio on
#
# **Write** `lost_from_ratio`, about 4 lines: how many times larger a weight is than half the
# distance to its upper neighbour. Updates smaller than that are lost. **Target:** right for every
# positive normal number of a format with `mantissa_bits` mantissa bits, powers of two included.


# %% tags=["solution-04-3"]
def lost_from_ratio(weight: float, mantissa_bits: int) -> float:
    """Return weight / u, where u is half the distance from the weight to the number above it.

    `weight`: a positive normal number that the format holds exactly. `math.frexp(x)` returns
    `(f, e)` with x = f · 2**e and 0.5 <= f < 1.
    """
    ### BEGIN SOLUTION
    exponent = math.frexp(weight)[1] - 1
    ulp = 2.0 ** (exponent - mantissa_bits)
    return weight / (ulp / 2)
    ### END SOLUTION


# %% tags=["check-04-3"]
check("04.3", lost_from_ratio)
