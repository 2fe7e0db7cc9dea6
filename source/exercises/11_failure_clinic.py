# %% [markdown]
# # Exercise 11 · Failure clinic
#
# Six loops, none of them yours, all of them ill, two of them twice. Mend them, about 12 lines each,
# and name their causes; 60 minutes. Lesson: [11 · My loss is NaN. Now
# what?](../../lessons/11_failure_clinic.ipynb)

# %%
import torch
import torch.nn.functional as F
from torch import nn

import mptutor
from mptutor.checks import check
from mptutor.experiments.clinic import Patient, attention, patient

# %% [markdown]
# ## 11.1 Loop A learns nothing
#
# Clipped at a norm of 0.1, with a penalty on the size of the weights. In FP32 it trains well.


# %%
def loop_a(p: Patient) -> list[float]:
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(p.model(x), y)
        p.scaler.scale(loss).backward()
        penalty = 0.05 * sum(w.square().sum() for w in p.model.parameters())
        penalty.backward()
        nn.utils.clip_grad_norm_(p.model.parameters(), max_norm=0.1)
        p.scaler.step(p.optimizer)
        p.scaler.update()
        losses.append(loss.item())
    return losses


with mptutor.audit() as a:
    print(loop_a(patient(lr=1.0)))

# %% [markdown]
# Look at `a`, then **write** `mended_a`. It does what loop A was meant to do. **Target:** the
# weights, scales and skips of the right loop, and no finding of the audit above a note.


# %% tags=["solution-11-1"]
def mended_a(p: Patient) -> list[float]:
    """Train `p.model` on every batch once, in FP16 with `p.scaler`; return the losses.

    The losses are those of the cross entropy, without the penalty.
    """
    ### BEGIN SOLUTION
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(p.model(x), y)
        penalty = 0.05 * sum(w.square().sum() for w in p.model.parameters())
        p.scaler.scale(loss + penalty).backward()
        p.scaler.unscale_(p.optimizer)
        nn.utils.clip_grad_norm_(p.model.parameters(), max_norm=0.1)
        p.scaler.step(p.optimizer)
        p.scaler.update()
        losses.append(loss.item())
    return losses
    ### END SOLUTION


# %% tags=["check-11-1"]
check("11.1", mended_a)

# %% [markdown]
# ## 11.2 Loop B raises
#
# Attention through a window: a position sees itself and the one before it, and nothing else. The
# exception is not the whole story.


# %%
def loop_b(p: Patient) -> list[float]:
    near = torch.ones(16, 16).tril().triu(-1).bool()
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            q, k, v = p.model["qkv"](x).chunk(3, dim=-1)
            scores = (q @ k.mT) / q.shape[-1] ** 0.5
            scores = scores.masked_fill(~near, -1e9)
            loss = F.cross_entropy(p.model["head"](scores.softmax(-1) @ v).mean(1), y)
        p.scaler.scale(loss).backward()
        p.scaler.step(p.optimizer)
        p.scaler.update()
        losses.append(loss.item())
    return losses


try:
    with mptutor.audit() as a:
        loop_b(patient(attention))
except RuntimeError as error:
    print(error)

# %% [markdown]
# **Write** `mended_b`. **Target:** trained in FP16, with the mask in force, to nearly the same
# weights as the right loop, and no finding above a note.


# %% tags=["solution-11-2"]
def mended_b(p: Patient) -> list[float]:
    """Train `p.model` on every batch once, in FP16 with `p.scaler`; return the losses.

    `p.model["qkv"]` gives queries, keys and values side by side, `p.model["head"]` the classes.
    """
    ### BEGIN SOLUTION
    near = torch.ones(16, 16).tril().triu(-1).bool()
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            q, k, v = p.model["qkv"](x).chunk(3, dim=-1)
            scores = (q / q.shape[-1] ** 0.5) @ k.mT
            scores = scores.masked_fill(~near, float("-inf"))
            loss = F.cross_entropy(p.model["head"](scores.softmax(-1) @ v).mean(1), y)
        p.scaler.scale(loss).backward()
        p.scaler.step(p.optimizer)
        p.scaler.update()
        losses.append(loss.item())
    return losses
    ### END SOLUTION


# %% tags=["check-11-2"]
check("11.2", mended_b)

# %% [markdown]
# ## 11.3 Loop C is NaN after one step
#
# The first loss is fine. Everything is in FP16, "to save memory".


# %%
def loop_c(p: Patient) -> list[float]:
    p.model.half()
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        loss = F.cross_entropy(p.model(x.half()), y)
        loss.backward()
        p.optimizer.step()
        losses.append(loss.item())
    return losses


with mptutor.audit() as a:
    print(loop_c(patient(adam=True, lr=0.01)))

# %% [markdown]
# **Write** `mended_c`: the same model and optimizer, mixed precision done properly. **Target:** as
# in 11.1.


# %% tags=["solution-11-3"]
def mended_c(p: Patient) -> list[float]:
    """Train `p.model` on every batch once; layers compute in FP16. Return the losses."""
    ### BEGIN SOLUTION
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(p.model(x), y)
        p.scaler.scale(loss).backward()
        p.scaler.step(p.optimizer)
        p.scaler.update()
        losses.append(loss.item())
    return losses
    ### END SOLUTION


# %% tags=["check-11-3"]
check("11.3", mended_c)

# %% [markdown]
# ## 11.4 Loop D raises
#
# It accumulates over 4 micro-batches, since there is no memory for more at a time, and clips.


# %%
def loop_d(p: Patient) -> list[float]:
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        for some_x, some_y in zip(x.chunk(4), y.chunk(4), strict=True):
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(p.model(some_x), some_y) / 4
            p.scaler.scale(loss).backward()
            p.scaler.unscale_(p.optimizer)
            nn.utils.clip_grad_norm_(p.model.parameters(), max_norm=0.1)
        p.scaler.step(p.optimizer)
        p.scaler.update()
        losses.append(4 * loss.item())
    return losses


try:
    with mptutor.audit() as a:
        loop_d(patient(lr=1.0))
except RuntimeError as error:
    print(error)

# %% [markdown]
# **Write** `mended_d`. **Target:** the weights, scales and skips of the right loop, 16 rows at a
# time, and no finding above a note.


# %% tags=["solution-11-4"]
def mended_d(p: Patient) -> list[float]:
    """Train `p.model` with one clipped step for each batch, on 4 micro-batches of it in turn.

    Returns a loss for each batch, of whichever part.
    """
    ### BEGIN SOLUTION
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        for some_x, some_y in zip(x.chunk(4), y.chunk(4), strict=True):
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(p.model(some_x), some_y) / 4
            p.scaler.scale(loss).backward()
        p.scaler.unscale_(p.optimizer)
        nn.utils.clip_grad_norm_(p.model.parameters(), max_norm=0.1)
        p.scaler.step(p.optimizer)
        p.scaler.update()
        losses.append(4 * loss.item())
    return losses
    ### END SOLUTION


# %% tags=["check-11-4"]
check("11.4", mended_d)

# %% [markdown]
# ## 11.5 Loop E raises as well
#
# The message says what the scaler does not like. Why does it not?


# %%
def loop_e(p: Patient) -> list[float]:
    p.model.half()
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(p.model(x.half()), y)
        p.scaler.scale(loss).backward()
        p.scaler.step(p.optimizer)
        p.scaler.update()
        losses.append(loss.item())
    return losses


try:
    with mptutor.audit() as a:
        loop_e(patient())
except ValueError as error:
    print(error)

# %% [markdown]
# **Write** `mended_e`. **Target:** as in 11.1.


# %% tags=["solution-11-5"]
def mended_e(p: Patient) -> list[float]:
    """Train `p.model` on every batch once, in FP16 with `p.scaler`; return the losses."""
    ### BEGIN SOLUTION
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(p.model(x), y)
        p.scaler.scale(loss).backward()
        p.scaler.step(p.optimizer)
        p.scaler.update()
        losses.append(loss.item())
    return losses
    ### END SOLUTION


# %% tags=["check-11-5"]
check("11.5", mended_e)

# %% [markdown]
# ## 11.6 Loop F keeps an average that does not follow
#
# It trains well. The running average of its weights, to be used for evaluation, is where it was.


# %%
def loop_f(p: Patient) -> list[torch.Tensor]:
    average = [w.detach().bfloat16() for w in p.model.parameters()]
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(p.model(x), y)
        loss.backward()
        p.optimizer.step()
        for mean, w in zip(average, p.model.parameters(), strict=True):
            mean.lerp_(w.detach().bfloat16(), 0.001)
    return average


with mptutor.audit() as a:
    loop_f(patient())

# %% [markdown]
# **Write** `mended_f`. **Target:** the same training, an average that moves by a thousandth of the
# way at each step to within 5e-6 of the right one, and no finding above a note.


# %% tags=["solution-11-6"]
def mended_f(p: Patient) -> list[torch.Tensor]:
    """Train `p.model` on every batch once, in BF16; return the running average of its weights.

    A tensor for each parameter, in order. The average begins at the weights before training, and
    after each step comes nearer to the new ones by 0.001 of the way.
    """
    ### BEGIN SOLUTION
    average = [w.detach().clone() for w in p.model.parameters()]
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(p.model(x), y)
        loss.backward()
        p.optimizer.step()
        for mean, w in zip(average, p.model.parameters(), strict=True):
            mean.lerp_(w.detach(), 0.001)
    return average
    ### END SOLUTION


# %% tags=["check-11-6"]
check("11.6", mended_f)

# %% [markdown]
# ## 11.7 Name the causes
#
# **Write** `causes`, 1 to 6 lines. **Target:** for each loop, A to F, the names the audit has for
# its faults, and for nothing else: a cause, not what follows from it. A and B have two each, and
# not every fault shows while another one is in its way. Where the audit has two names for the same
# thing, either will do.


# %% tags=["solution-11-7"]
def causes(loop: str) -> list[str]:
    """Return the audit's names for the faults of a loop, in any order.

    `loop`: "A" to "F". The name is the one in code beside a finding, `finding.rule`.
    """
    ### BEGIN SOLUTION
    return {
        "A": ["loss_not_scaled", "clip_before_unscale"],
        "B": ["constant_overflows", "logits_overflow"],
        "C": ["adam_eps_vanishes"],
        "D": ["unscale_twice"],
        "E": ["half_parameters_with_scaler"],
        "F": ["average_stalls"],
    }[loop]
    ### END SOLUTION


# %% tags=["check-11-7"]
check("11.7", causes)
