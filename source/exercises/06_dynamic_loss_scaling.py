# %% [markdown]
# # Exercise 06 · Dynamic loss scaling
#
# Two functions and a class, about 35 lines in all, 40 minutes. At the end your own scaler drives a
# real training. Lesson: [06 · How does GradScaler find the
# scale?](../../lessons/06_dynamic_loss_scaling.ipynb)

# %%
import torch
from torch import Tensor

from mptutor.checks import check

# %% [markdown]
# ## 06.1 The rule
#
# **Write** `next_scale`, about 6 lines: the scale and the count of good steps after one more step,
# by PyTorch's rule. **Target:** right for every count and interval, and every scale that can still
# double.


# %% tags=["solution-06-1"]
def next_scale(scale: float, good: int, found_inf: bool, interval: int) -> tuple[float, int]:
    """Return the scale and the count of good steps after a step.

    `good`: how many good steps in a row there were before this one, less than `interval`.
    `found_inf`: whether this step had inf or NaN in its gradients. `interval`: how many good steps
    in a row make the scale grow.
    """
    ### BEGIN SOLUTION
    if found_inf:
        return scale / 2, 0
    good += 1
    if good == interval:
        return scale * 2, 0
    return scale, good
    ### END SOLUTION


# %% tags=["check-06-1"]
check("06.1", next_scale)

# %% [markdown]
# ## 06.2 Unscale and look
#
# **Write** `unscale_and_check`, about 4 lines. **Target:** right for lists of any length, and for
# gradients that are large without being infinite.


# %% tags=["solution-06-2"]
def unscale_and_check(gradients: list[Tensor], scale: float) -> tuple[list[Tensor], bool]:
    """Return the gradients divided by the scale, and whether any of them held an inf or NaN.

    `gradients`: FP32 tensors of any shapes, perhaps none. They come from the backward pass of a
    scaled loss.
    """
    ### BEGIN SOLUTION
    found_inf = any(not bool(gradient.isfinite().all()) for gradient in gradients)
    return [gradient / scale for gradient in gradients], found_inf
    ### END SOLUTION


# %% tags=["check-06-2"]
check("06.2", unscale_and_check)

# %% [markdown]
# ## 06.3 A scaler of your own
#
# **Write** the class `MyScaler`, about 20 lines. Use what you wrote above. The check trains a small
# network in FP16 with it, on real pictures, three times for 12 steps:
#
#     scaler = MyScaler(init_scale, interval)
#     for images, labels in batches:
#         optimizer.zero_grad()
#         with torch.autocast(...):
#             loss = cross_entropy(model(images), labels)
#         scaler.scale(loss).backward()
#         scaler.step(optimizer)
#         scaler.update()
#
# and writes down what it did. `"17 17x 16; weights 93053f56"` reads: a step at a scale of 2¹⁷, one
# more which was skipped, one at 2¹⁶, and a hash of the final weights. **Target:** the same steps,
# the same skips and the same bits as `torch.amp.GradScaler`.


# %% tags=["solution-06-3"]
class MyScaler:
    """A dynamic loss scaler with PyTorch's rule: factors 2 and 1/2."""

    def __init__(self, init_scale: float, interval: int) -> None:
        self.current = init_scale
        self.interval = interval
        ### BEGIN SOLUTION
        self.good = 0
        self.found_inf = False
        ### END SOLUTION

    def get_scale(self) -> float:
        """Return the scale that the next loss will be multiplied by."""
        return self.current

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss times the scale."""
        ### BEGIN SOLUTION
        return loss * self.current
        ### END SOLUTION

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Unscale the gradients in place and run the optimizer, unless one holds inf or NaN.

        The parameters are in `optimizer.param_groups[i]["params"]`; `p.grad` is None or a tensor.
        """
        ### BEGIN SOLUTION
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        unscaled, self.found_inf = unscale_and_check(gradients, self.current)
        for gradient, value in zip(gradients, unscaled, strict=True):
            gradient.copy_(value)
        if not self.found_inf:
            optimizer.step()
        ### END SOLUTION

    def update(self) -> None:
        """Choose the scale of the next step."""
        ### BEGIN SOLUTION
        self.current, self.good = next_scale(self.current, self.good, self.found_inf, self.interval)
        ### END SOLUTION


# %% tags=["check-06-3"]
check("06.3", MyScaler)
