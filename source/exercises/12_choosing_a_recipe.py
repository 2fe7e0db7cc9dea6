# %% [markdown]
# # Exercise 12 · Choosing a recipe
#
# Three functions, about 45 lines in all, 45 minutes. The first sees what a training step really
# runs in, the second notices that it is not what was asked for, the third picks a recipe from
# measurements. Lesson: [12 · Raw AMP, BF16, Lightning, Accelerate, .half(), FSDP: which
# recipe?](../../lessons/12_choosing_a_recipe.ipynb)
#
# Write each function in its cell and run the check below it. Leave
# `mptutor.experiments.what_ran` aside; you are writing what it does.

# %%
import math
from collections.abc import Callable
from statistics import fmean

import torch
from torch import Tensor, nn

from mptutor.checks import check

# %% [markdown]
# ## 12.1 See what ran
#
# **Write** `look_at`, about 25 lines. You get a model, its optimizer and a function that takes one
# training step, from zeroing the gradients to the update of whatever scaler there may be. Who
# wrote the step, and what is around the model, you don't know.
#
# **Target:** right for ten ways to make the step, among them casts at the end of the model, a
# frozen layer in BF16, a head taken out of autocast, and gradients that are dropped as soon as the
# optimizer has used them. Take exactly one step and leave no hook behind.


# %% tags=["solution-12-1"]
def look_at(
    model: nn.Module, optimizer: torch.optim.Optimizer, step: Callable[[], None]
) -> dict[str, object]:
    """Take one step and tell what it ran in.

    Returns a dict with these keys, the first three each a set or list of dtypes:

    - ``"layers"``: what linear layers (`nn.Linear`) put out,
    - ``"weights"``: of the weights that the optimizer updates,
    - ``"gradients"``: of their gradients,
    - ``"scale"``: how many times larger gradients were after the backward pass than when the
      optimizer took them, a float; 1.0 without a loss scale.
    """
    ### BEGIN SOLUTION
    weights = [w for group in optimizer.param_groups for w in group["params"]]
    layers, gradients, after_backward, scales = set(), set(), {}, [1.0]

    def see_layer(layer: nn.Module, inputs: tuple, output: Tensor) -> None:
        layers.add(output.dtype)

    def see_backward(w: Tensor) -> None:
        after_backward[w] = w.grad.abs().max().item()

    def see_step(*_: object) -> None:
        for w in weights:
            gradients.add(w.grad.dtype)
            scales.append(after_backward[w] / w.grad.abs().max().item())

    linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
    hooks = [layer.register_forward_hook(see_layer) for layer in linear]
    hooks += [w.register_post_accumulate_grad_hook(see_backward) for w in weights]
    hooks.append(optimizer.register_step_pre_hook(see_step))
    step()
    for hook in hooks:
        hook.remove()
    return {
        "layers": layers,
        "weights": {w.dtype for w in weights},
        "gradients": gradients,
        "scale": scales[-1],
    }
    ### END SOLUTION


# %% tags=["check-12-1"]
check("12.1", look_at)

# %% [markdown]
# ## 12.2 Notice that it is something else
#
# | recipe | weights | layers | scale |
# |---|---|---|---|
# | `"FP32"` | FP32 | FP32 | any |
# | `"AMP FP16"` | FP32 | FP16 | not 1 |
# | `"AMP FP16 without scaler"` | FP32 | FP16 | 1 |
# | `"AMP BF16"` | FP32 | BF16 | any |
# | `"naive FP16"` | FP16 | any | any |
# | `"pure BF16"` | BF16 | any | any |
#
# A recipe that lowers layers to 16 bits is still that recipe if some of its layers are in FP32. No
# case has FP16 and BF16 layers together.
#
# **Write** `ran_instead`, about 10 lines. **Target:** the right name, or None, for 14
# observations.


# %% tags=["solution-12-2"]
def ran_instead(asked: str, seen: dict) -> str | None:
    """Return the recipe that ran if it is another one than asked for, else None.

    `asked`: a name of the table. `seen`: what `look_at` returns, with lists of dtypes.
    """
    ### BEGIN SOLUTION
    if torch.float16 in seen["weights"]:
        ran = "naive FP16"
    elif torch.bfloat16 in seen["weights"]:
        ran = "pure BF16"
    elif torch.float16 in seen["layers"]:
        ran = "AMP FP16" if seen["scale"] != 1 else "AMP FP16 without scaler"
    else:
        ran = "AMP BF16" if torch.bfloat16 in seen["layers"] else "FP32"
    return None if ran == asked else ran
    ### END SOLUTION


# %% tags=["check-12-2"]
check("12.2", ran_instead)

# %% [markdown]
# ## 12.3 Pick by measurement
#
# Somebody has trained the same model by several recipes, FP32 among them, and hands you a list of
# dicts such as
#
# ```python
# {
#     "asked": "AMP FP16", "ran": "AMP BF16",
#     "losses": [0.49, 0.50, 0.51], "step_ms": 4.0, "peak_mb": 600.0,
# }
# ```
#
# with one final loss for each seed. The rule:
#
# 1. A recipe is *sound* if the loss is finite for every seed, and their mean no higher than the
#    highest loss of FP32.
# 2. It *fits* if its peak is no higher than the memory.
# 3. Of those that are sound and fit, the fastest is picked. But if FP32 fits too, it stays FP32
#    unless a step takes at most 0.9 of FP32's time: a scaler and its surprises should pay.
# 4. If none is sound and fits, the answer is None.
#
# A measurement is one of what *ran*; return that name. FP32 is in the list once as what was asked
# for, in any place.
#
# **Write** `pick`, about 10 lines. **Target:** right for 12 lists.


# %% tags=["solution-12-3"]
def pick(measured: list[dict], memory_mb: float) -> str | None:
    """Return the name of the recipe to use, None if there is none."""
    ### BEGIN SOLUTION
    fp32 = next(row for row in measured if row["asked"] == "FP32")

    def is_sound(losses: list[float]) -> bool:
        return all(map(math.isfinite, losses)) and fmean(losses) <= max(fp32["losses"])

    fit = [row for row in measured if row["peak_mb"] <= memory_mb and is_sound(row["losses"])]
    best = min(fit, key=lambda row: row["step_ms"], default=None)
    if best is None:
        return None
    if fp32 in fit and best["step_ms"] > 0.9 * fp32["step_ms"]:
        return "FP32"
    return best["ran"]
    ### END SOLUTION


# %% tags=["check-12-3"]
check("12.3", pick)

# %% [markdown]
# ## And if you have a minute
#
# Turn `look_at` on a training of your own: one step, four answers, and `ran_instead` with the name
# of the recipe that you believe you use.
