# %% [markdown]
# # Exercise 10 · Real training loops
#
# Clip, accumulate, train with two optimizers, go on from a checkpoint, and mend a loop with three
# faults: about 12 lines each, 50 minutes. Lesson: [10 · How do clipping, accumulation, checkpoints
# and torch.compile go with AMP?](../../lessons/10_real_training_loops.ipynb)
#
# A patient `p` has a `model`, an `optimizer`, a `scaler` and `batches`. All forward passes run
# under `torch.autocast("cpu", torch.float16)`. The checks train with scales that move, and with
# some that are too high at first.

# %%
import torch
import torch.nn.functional as F
from torch import nn

import mptutor
from mptutor.checks import check
from mptutor.experiments.clinic import Patient, patient

# %% [markdown]
# ## 10.1 Clip, and say how long the gradients were
#
# **Write** `clip`, about 12 lines, 8 minutes. Clip the norm of all gradients together at 0.1, and
# return for every batch what the norm of its true gradients was *before* clipping; for a batch that
# is skipped that is whatever comes out. **Target:** norms within 2% of those of the right loop, the
# same weights, scales and skips.


# %% tags=["solution-10-1"]
def clip(p: Patient) -> list[float]:
    """Train `p.model` on every batch once, clipped; return the norm of each batch's gradients."""
    ### BEGIN SOLUTION
    norms = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(p.model(x), y)
        p.scaler.scale(loss).backward()
        p.scaler.unscale_(p.optimizer)
        norm = nn.utils.clip_grad_norm_(p.model.parameters(), max_norm=0.1)
        p.scaler.step(p.optimizer)
        p.scaler.update()
        norms.append(norm.item())
    return norms
    ### END SOLUTION


# %% tags=["check-10-1"]
check("10.1", clip)

# %% [markdown]
# ## 10.2 Accumulate
#
# **Write** `accumulate`, about 14 lines, 10 minutes. One step for each window of four batches, on
# the mean of their gradients. There may be too few batches for the last window: it is stepped too,
# on the mean of those it has. Return the mean loss of each window. **Target:** losses within 2%,
# the weights, scales and skips of the right loop.


# %% tags=["solution-10-2"]
def accumulate(p: Patient) -> list[float]:
    """Train `p.model` on every batch once, four to a step; return the mean loss of each step."""
    ### BEGIN SOLUTION
    losses = []
    for start in range(0, len(p.batches), 4):
        window = p.batches[start : start + 4]
        total = 0.0
        p.optimizer.zero_grad()
        for x, y in window:
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(p.model(x), y) / len(window)
            p.scaler.scale(loss).backward()
            total += loss.item()
        p.scaler.step(p.optimizer)
        p.scaler.update()
        losses.append(total)
    return losses
    ### END SOLUTION


# %% tags=["check-10-2"]
check("10.2", accumulate)

# %% [markdown]
# ## 10.3 Two optimizers
#
# **Write** `two_optimizers`, about 15 lines, 10 minutes. Make two optimizers in place of
# `p.optimizer`: SGD with a rate of 0.5 for the body, `p.model[:-1]`, and Adam with 0.01 for the
# head, `p.model[-1]`. The loss has a penalty of 0.05 times the sum of the squares of the head's
# `weight`. The gradients of the body, and only those, are clipped at a norm of 0.1. Everything goes
# through `p.scaler`. **Target:** the weights, scales and skips of the right loop.


# %% tags=["solution-10-3"]
def two_optimizers(p: Patient) -> list[float]:
    """Train `p.model` on every batch once; return the losses without the penalty."""
    ### BEGIN SOLUTION
    body, head = p.model[:-1], p.model[-1]
    of_body = torch.optim.SGD(body.parameters(), lr=0.5)
    of_head = torch.optim.Adam(head.parameters(), lr=0.01)
    losses = []
    for x, y in p.batches:
        p.model.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(p.model(x), y)
        p.scaler.scale(loss + 0.05 * head.weight.square().sum()).backward()
        p.scaler.unscale_(of_body)
        nn.utils.clip_grad_norm_(body.parameters(), max_norm=0.1)
        p.scaler.step(of_body)
        p.scaler.step(of_head)
        p.scaler.update()
        losses.append(loss.item())
    return losses
    ### END SOLUTION


# %% tags=["check-10-3"]
check("10.3", two_optimizers)

# %% [markdown]
# ## 10.4 Go on
#
# **Write** `go_on`, about 15 lines, 10 minutes. It is called once in each of several processes.
# Every one has a patient of its own, with the same batches, and with other weights, a fresh
# optimizer and a fresh scaler. It gets the checkpoint that the one before returned, or None, trains
# on the next `steps` batches, and returns a checkpoint: a dict that `torch.save` can write and
# `torch.load` reads with its default, `weights_only=True`. **Target:** bit for bit what one process
# would have done, scales and skips included.


# %% tags=["solution-10-4"]
def go_on(p: Patient, checkpoint: dict | None, steps: int) -> dict:
    """Train `p.model` on the next `steps` of `p.batches`, each once; return a checkpoint."""
    ### BEGIN SOLUTION
    done = 0
    if checkpoint is not None:
        p.model.load_state_dict(checkpoint["model"])
        p.optimizer.load_state_dict(checkpoint["optimizer"])
        p.scaler.load_state_dict(checkpoint["scaler"])
        done = checkpoint["done"]
    for x, y in p.batches[done : done + steps]:
        p.optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(p.model(x), y)
        p.scaler.scale(loss).backward()
        p.scaler.step(p.optimizer)
        p.scaler.update()
    return {
        "model": p.model.state_dict(),
        "optimizer": p.optimizer.state_dict(),
        "scaler": p.scaler.state_dict(),
        "done": done + steps,
    }
    ### END SOLUTION


# %% tags=["check-10-4"]
check("10.4", go_on)

# %% [markdown]
# ## 10.5 Three faults
#
# This loop takes each batch in two halves, to save memory, and has a penalty: 10 times the square
# of the gradient that the loss of a half has with respect to its inputs. A step is meant to follow
# the mean of both halves. One fault is loud, one the audit can see once the first is out of the
# way, and one nobody sees but you.


# %%
def broken(p: Patient) -> list[float]:
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        for some_x, some_y in zip(x.chunk(2), y.chunk(2), strict=True):
            some_x = some_x.clone().requires_grad_()
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(p.model(some_x), some_y)
            (grad,) = torch.autograd.grad(p.scaler.scale(loss), some_x, create_graph=True)
            penalty = 10 * grad.square().sum()
            p.scaler.scale(loss + penalty).backward()
            p.scaler.update()
        p.scaler.step(p.optimizer)
        losses.append(loss.item())
    return losses


try:
    with mptutor.audit() as a:
        broken(patient())
except AssertionError as error:
    print(error)

# %% [markdown]
# **Write** `mended`, about 15 lines, 12 minutes. **Target:** the weights, scales and skips of the
# right loop.


# %% tags=["solution-10-5"]
def mended(p: Patient) -> list[float]:
    """Train `p.model` on every batch once, in two halves; return the losses."""
    ### BEGIN SOLUTION
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        for some_x, some_y in zip(x.chunk(2), y.chunk(2), strict=True):
            some_x = some_x.clone().requires_grad_()
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(p.model(some_x), some_y)
            (grad,) = torch.autograd.grad(p.scaler.scale(loss), some_x, create_graph=True)
            grad = grad / p.scaler.get_scale()
            penalty = 10 * grad.square().sum()
            p.scaler.scale((loss + penalty) / 2).backward()
        p.scaler.step(p.optimizer)
        p.scaler.update()
        losses.append(loss.item())
    return losses
    ### END SOLUTION


# %% tags=["check-10-5"]
check("10.5", mended)
