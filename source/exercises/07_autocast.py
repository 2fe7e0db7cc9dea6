# %% [markdown]
# # Exercise 07 · Autocast
#
# A loop, an autograd function and a loss, about 35 lines in all, 40 minutes. All three are right in
# FP32 and are to be right under autocast. Lesson: [07 · Which dtype does each op get, and
# why?](../../lessons/07_autocast.ipynb)

# %%
import torch
import torch.nn.functional as F
from torch import Tensor

from mptutor.checks import check
from mptutor.experiments.clinic import Patient, patient

# %% [markdown]
# ## 07.1 Place the region
#
# This loop trains, and after each step it measures the loss on the same batch once more, with the
# new weights. A scaler is in it already, and no autocast.


# %%
def train_in_fp32(p: Patient) -> list[float]:
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        loss = F.cross_entropy(p.model(x), y)
        p.scaler.scale(loss).backward()
        p.scaler.step(p.optimizer)
        p.scaler.update()
        with torch.no_grad():
            losses.append(F.cross_entropy(p.model(x), y).item())
    return losses


train_in_fp32(patient(steps=6))

# %% [markdown]
# **Write** `train`, about 12 lines: the same under autocast to FP16. The tensors are on the CPU.
# **Target:** all layers compute in FP16, while training and while measuring; scales, weights and
# measured losses are those of the right loop.


# %% tags=["solution-07-1"]
def train(p: Patient) -> list[float]:
    """Train `p.model` on every batch once in FP16; return the loss on each batch after its step."""
    ### BEGIN SOLUTION
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(p.model(x), y)
        p.scaler.scale(loss).backward()
        p.scaler.step(p.optimizer)
        p.scaler.update()
        with torch.no_grad(), torch.autocast("cpu", torch.float16):
            losses.append(F.cross_entropy(p.model(x), y).item())
    return losses
    ### END SOLUTION


# %% tags=["check-07-1"]
check("07.1", train)

# %% [markdown]
# ## 07.2 A function of your own
#
# The logarithm of a sum of exponentials, `log Σⱼ exp((x @ w)ᵢⱼ)`, with its backward pass. In FP16
# the exponential overflows from 11.1 on, and a logit of 40 has a spacing of 1/32.


# %%
class LogPartition(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        powers = torch.exp(x @ w)  # b x c
        total = powers.sum(-1, keepdim=True)  # b x 1
        ctx.save_for_backward(x, w, powers / total)
        return total.log()

    @staticmethod
    def backward(ctx, grad):  # b x 1
        x, w, shares = ctx.saved_tensors
        return (grad * shares) @ w.mT, x.mT @ (grad * shares)


# %% [markdown]
# **Write** `make_log_partition`, about 15 lines. **Target:** a function that computes in FP32
# throughout, forward and backward, for FP32 and 16-bit inputs, in any region or none, wherever
# `backward()` is called. The check runs it on the CPU, with CUDA's list.


# %% tags=["solution-07-2"]
def make_log_partition(device_type: str) -> type[torch.autograd.Function]:
    """Return an autograd function class, right under autocast on devices of this type.

    Its `apply` takes `x`, b x d, and `w`, d x c, and gives b x 1 in FP32. Each gradient has the
    dtype of its input.
    """

    ### BEGIN SOLUTION
    class Guarded(LogPartition):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device_type, cast_inputs=torch.float32)
        def forward(ctx, x, w):
            return LogPartition.forward(ctx, x.float(), w.float())

        @staticmethod
        @torch.amp.custom_bwd(device_type=device_type)
        def backward(ctx, grad):
            return LogPartition.backward(ctx, grad)

    return Guarded
    ### END SOLUTION


# %% tags=["check-07-2"]
check("07.2", make_log_partition)

# %% [markdown]
# ## 07.3 A loss that stays in FP32
#
# Style transfer compares Gram matrices, all products of the rows of `h` with each other. Features
# of a few hundred are ordinary, and their products are beyond FP16. The loss is called inside the
# training's region.
#
# **Write** `gram_loss`, about 4 lines. **Target:** the FP32 loss to one part in 10,000, for `h` in
# FP16, BF16 or FP32, in any region or none, with a gradient.


# %% tags=["solution-07-3"]
def gram_loss(h: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared difference between `h @ h.mT / d` and the target, in FP32.

    `h`: b x d features, on any device. `target`: b x b, FP32.
    """
    ### BEGIN SOLUTION
    with torch.autocast(h.device.type, enabled=False):
        h = h.float()
        return F.mse_loss(h @ h.mT / h.shape[1], target)
    ### END SOLUTION


# %% tags=["check-07-3"]
check("07.3", gram_loss)
