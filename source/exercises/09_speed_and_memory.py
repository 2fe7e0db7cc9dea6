# %% [markdown]
# # Exercise 09 · Speed and memory
#
# Predict bytes and then measure them, time a device that works behind your back, and mend a loop
# that is right and slow. Three functions, about 30 lines in all, 40 minutes. Lesson: [09 · What do
# I gain, and when nothing?](../../lessons/09_speed_and_memory.ipynb)

# %%
from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F

from mptutor.checks import check
from mptutor.experiments.clinic import Patient, patient, reader
from mptutor.hardware import MemoryMeter
from mptutor.models import mlp

# %% [markdown]
# ## 09.1 Predict, then measure
#
# `mlp((784, 512, 512, 10))` is linear, ReLU, linear, ReLU, linear. **Write** `saved_bytes`, about 7
# lines, with pencil and paper before the meter: how many bytes does autograd keep after the forward
# pass of such a network, from the input to the logits? **Target:** right to the byte, for any
# widths and batch, in FP32 and under autocast.


# %% tags=["solution-09-1"]
def saved_bytes(widths: list[int], batch: int, amp: bool) -> int:
    """Return what `net(x)` saves for the backward pass, in bytes, the FP32 weights not counted.

    `widths`: from input to logits, at least two; `x`: batch x widths[0], FP32, and needs no
    gradient. `amp`: under autocast to a 16-bit format; else all is FP32.
    """
    ### BEGIN SOLUTION
    inputs = batch * sum(widths[:-1])  # of the linear layers; a ReLU shares its output with one
    if not amp:
        return 4 * inputs
    # The first layer passes no gradient on, so nobody needs the copy of its weights.
    copies = sum(a * b for a, b in pairwise(widths[1:]))
    return 2 * inputs + 2 * copies
    ### END SOLUTION


# %% tags=["check-09-1"]
check("09.1", saved_bytes)

# %% [markdown]
# Now measure. At which batch does autocast begin to save memory in this network?

# %%
net = mlp((784, 512, 512, 10))
for batch in (128, 256, 512):
    measured = []
    for amp in (False, True):
        with MemoryMeter(net) as meter, torch.autocast("cpu", torch.bfloat16, enabled=amp):
            logits = net(torch.zeros(batch, 784))
        measured.append(meter.saved_bytes)
        del logits
    print(f"batch {batch}: FP32 {measured[0]:,} bytes, 16 bits {measured[1]:,}")

# %% [markdown]
# ## 09.2 Time a device that works behind your back
#
# The check has a device of its own, with a clock of its own, so that it can be exact on any
# computer. It queues what it is handed, its first three steps are slow, and about one step in ten
# is disturbed by somebody else. **Write** `step_ms`, about 8 lines. **Target:** within 5 % of what
# an undisturbed step takes.


# %% tags=["solution-09-2"]
def step_ms(step: Callable[[], None], wait: Callable[[], None], now: Callable[[], float]) -> float:
    """Return how long a step takes, in milliseconds.

    `step()` hands the device a training step and returns at once; `wait()` returns when the device
    has done all that it was handed; `now()` says what time it is, in milliseconds.
    """
    ### BEGIN SOLUTION
    for _ in range(5):
        step()
    laps = []
    for _ in range(21):
        wait()
        start = now()
        step()
        wait()
        laps.append(now() - start)
    return sorted(laps)[10]
    ### END SOLUTION


# %% tags=["check-09-2"]
check("09.2", step_ms)

# %% [markdown]
# ## 09.3 Right, and slow
#
# A loop over sequences: x is batch x 16 positions x 32. Its results are right, and a GPU would
# mostly wait. `mptutor.audit(as_accelerator=True)` treats the CPU as a GPU, for which Python waits
# whenever it wants a value.


# %%
def slow_loop(p: Patient) -> list[float]:
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        logits = 0
        for position in range(16):
            with torch.autocast("cpu", torch.float16):
                wide = p.model["widen"](x[:, position]).relu()
                logits = logits + p.model["head"](wide) / 16
        loss = F.cross_entropy(logits, y)
        if torch.isnan(loss):
            break
        p.scaler.scale(loss).backward()
        p.scaler.step(p.optimizer)
        p.scaler.update()
        losses.append(loss.item())
    return losses


print(slow_loop(patient(reader, steps=8)))

# %% [markdown]
# **Write** `quick_loop`, about 12 lines: the same training. **Target:** the layers compute in FP16,
# the weights and losses are those of the slow loop, each of the two weights is cast once a step,
# and no value is read back before the last step. The scaler looks after itself: what it reads by
# itself is not counted.


# %% tags=["solution-09-3"]
def quick_loop(p: Patient) -> list[float]:
    """Train `p.model` on every batch once, in FP16 with `p.scaler`; return the losses.

    `p.model["widen"]` and `p.model["head"]` take any number of dimensions before the last.
    """
    ### BEGIN SOLUTION
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            wide = p.model["widen"](x).relu()
            loss = F.cross_entropy(p.model["head"](wide).mean(1), y)
        p.scaler.scale(loss).backward()
        p.scaler.step(p.optimizer)
        p.scaler.update()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()
    ### END SOLUTION


# %% tags=["check-09-3"]
check("09.3", quick_loop)
