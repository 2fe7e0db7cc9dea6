# %% [markdown]
# # Exercise 08 · Training with AMP
#
# Two loops and a comparison, about 30 lines in all, 40 minutes. Lesson: [08 · Does it reach the
# same accuracy?](../../lessons/08_training_with_amp.ipynb)

# %%
import torch
import torch.nn.functional as F
from torch import nn

from mptutor.checks import check
from mptutor.experiments.clinic import Patient, patient

# %% [markdown]
# ## 08.1 From FP32 to mixed precision
#
# This loop trains in FP32 and logs the norm of its gradients. `p` holds a model, its optimizer, its
# batches, and a scaler that nobody uses yet.


# %%
def in_fp32(p: Patient) -> list[float]:
    norms = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        loss = F.cross_entropy(p.model(x), y)
        loss.backward()
        norms.append(nn.utils.get_total_norm([w.grad for w in p.model.parameters()]).item())
        p.optimizer.step()
    return norms


print(in_fp32(patient(steps=6)))

# %% [markdown]
# **Write** `mixed`, about 10 lines: the same training with FP16 autocast and `p.scaler`. On a CPU
# the device type is `"cpu"`. **Target:** layers in FP16, weights in FP32, the scales and skips of
# `GradScaler`, the weights of the reference, and norms that compare with FP32's; in a skipped step
# the norm is not finite.


# %% tags=["solution-08-1"]
def mixed(p: Patient) -> list[float]:
    """Train `p.model` on every batch once; return the norm of all gradients for each step.

    The norm is that of the gradients of the loss itself.
    """
    ### BEGIN SOLUTION
    norms = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(p.model(x), y)
        p.scaler.scale(loss).backward()
        p.scaler.unscale_(p.optimizer)
        norms.append(nn.utils.get_total_norm([w.grad for w in p.model.parameters()]).item())
        p.scaler.step(p.optimizer)
        p.scaler.update()
    return norms
    ### END SOLUTION


# %% tags=["check-08-1"]
check("08.1", mixed)

# %% [markdown]
# ## 08.2 One loop for three precisions
#
# People keep one loop and a switch. **Write** `train`, about 12 lines. It trains in the precision
# it is told, with what that precision needs and nothing that it does not. **Target:** for each of
# the three the dtype of the layers, the weights, scales and skips of the reference, and its losses.


# %% tags=["solution-08-2"]
def train(p: Patient, dtype: torch.dtype) -> list[float]:
    """Train `p.model` on every batch once; return the losses, unscaled.

    `dtype`: torch.float32 for plain training, torch.float16 or torch.bfloat16 for mixed precision.
    Where a scaler is needed it is `p.scaler`.
    """
    ### BEGIN SOLUTION
    off = torch.amp.GradScaler("cpu", enabled=False)
    scaler = p.scaler if dtype is torch.float16 else off
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not torch.float32):
            loss = F.cross_entropy(p.model(x), y)
        scaler.scale(loss).backward()
        scaler.step(p.optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses
    ### END SOLUTION


# %% tags=["check-08-2"]
check("08.2", train)

# %% [markdown]
# ## 08.3 Is it the recipe, or the seed?
#
# Somebody has trained with several seeds by two recipes and noted the accuracies, by seed. They did
# not run every seed with both. **Write** `compare`, about 4 lines: by how much AMP is better, on
# average over the seeds that both have, and the standard error of that mean: the standard deviation
# of the differences (of a sample, so with n − 1), divided by √n. **Target:** right to six digits.


# %% tags=["solution-08-3"]
def compare(fp32: dict[str, float], amp: dict[str, float]) -> tuple[float, float]:
    """Return the mean difference AMP − FP32 over the common seeds, and its standard error.

    `fp32`, `amp`: seed -> accuracy, in any order; at least two seeds are in both.
    """
    ### BEGIN SOLUTION
    seeds = fp32.keys() & amp.keys()
    differences = torch.tensor([amp[s] - fp32[s] for s in seeds], dtype=torch.float64)
    error = differences.std() / len(differences) ** 0.5
    return differences.mean().item(), error.item()
    ### END SOLUTION


# %% tags=["check-08-3"]
check("08.3", compare)
