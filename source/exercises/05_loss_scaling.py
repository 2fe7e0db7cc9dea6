# %% [markdown]
# # Exercise 05 · Loss scaling
#
# Three functions, about 30 lines in all, 35 minutes. The first is a training step with a scale, the
# other two find the window that the scale should come from. Lesson: [05 · How large may the scale
# be?](../../lessons/05_loss_scaling.ipynb)
#
# Write each function in its cell and run the check below it. Leave `torch.amp.GradScaler` and
# `mptutor.take_census` aside; you are writing what they do.

# %%
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from mptutor.checks import check

# %% [markdown]
# ## 05.1 A step with a scale
#
# **Write** `training_step`, about 10 lines: one step of a classifier in mixed precision, with
# autocast and a fixed loss scale. The check takes four steps with it, four times, on real pictures
# and a CPU that computes like a GPU; one batch is broken. It tells what happened: `"ran skipped;
# weights 93053f56"` are two steps, of which the optimizer ran in the first, and a hash of the final
# weights. **Target:** the same steps and the same bits.


# %% tags=["solution-05-1"]
def training_step(
    net: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    images: Tensor,
    labels: Tensor,
    scale: float,
) -> bool:
    """Take one step in FP16 with a loss scale, or skip it; return whether the optimizer ran.

    `images`: b x 1 x 28 x 28, `labels`: b, FP32 parameters. The loss is the cross entropy of
    `net(images)`. A step with inf or NaN in any gradient is skipped.
    """
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(net(images), labels)
    (loss * scale).backward()
    gradients = [parameter.grad for parameter in net.parameters()]
    for gradient in gradients:
        gradient /= scale
    if not all(gradient.isfinite().all() for gradient in gradients):
        return False
    optimizer.step()
    return True
    ### END SOLUTION


# %% tags=["check-05-1"]
check("05.1", training_step)

# %% [markdown]
# ## 05.2 The upper edge
#
# **Write** `largest_scale`, about 7 lines: the largest power of two by which all gradients can be
# multiplied without any becoming infinite in FP16. If all are zero, return 1.0. **Target:** right
# on both sides of 65520, for gradients of any size and sign.


# %% tags=["solution-05-2"]
def largest_scale(gradients: list[Tensor]) -> float:
    """Return the largest safe scale for finite FP32 gradients of any shapes, at least one tensor.

    `math.log2` and `math.floor` may be of use. A scale may be below 1.
    """
    ### BEGIN SOLUTION
    largest = max(gradient.abs().max().item() for gradient in gradients)
    if largest == 0:
        return 1.0
    scale = 2.0 ** math.floor(math.log2(65520 / largest))
    return scale if scale * largest < 65520 else scale / 2
    ### END SOLUTION


# %% tags=["check-05-2"]
check("05.2", largest_scale)

# %% [markdown]
# ## 05.3 The lower edge
#
# **Write** `smallest_scale`, about 6 lines: the smallest power of two, from 2⁻⁴⁰ on, at which FP16
# flushes no more than the given share of all gradients that are not zero already. **Target:** right
# for ties, and for shares from 0 to 1.


# %% tags=["solution-05-3"]
def smallest_scale(gradients: list[Tensor], lost_at_most: float) -> float:
    """Return the smallest scale that loses at most this share, counted over all tensors together.

    `gradients`: finite FP32 tensors of any shapes, at least one number among them not zero.
    """
    ### BEGIN SOLUTION
    every = torch.cat([gradient.flatten() for gradient in gradients])
    sizes = every[every != 0].abs()
    scale = 2.0**-40
    while int((sizes * scale <= 2.0**-25).sum()) > lost_at_most * len(sizes):
        scale *= 2
    return scale
    ### END SOLUTION


# %% tags=["check-05-3"]
check("05.3", smallest_scale)

# %% [markdown]
# ## And if you have a minute
#
# Put the three together: take the gradients of a network of your own with one backward pass in
# FP32, print both edges, and train in between.
