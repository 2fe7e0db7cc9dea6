"""The loops of exercise 08, right and in the ways people write them wrongly.

These are answers: a grader keeps them from the code it grades.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F


def loss_of(p: Any, x: torch.Tensor, y: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """Return the cross entropy, under autocast to `dtype` unless that is None."""
    p.optimizer.zero_grad()
    with torch.autocast("cpu", dtype or torch.float16, enabled=dtype is not None):
        return F.cross_entropy(p.model(x), y)


def norm_of(p: Any) -> float:
    """Return the norm of all gradients together, as they are."""
    return torch.cat([w.grad.float().reshape(-1) for w in p.model.parameters()]).norm().item()


# -- a loop that logs the norm of its gradients ----------------------------------------------------


def logged(
    *,
    dtype: torch.dtype | None = torch.float16,
    scaled: bool = True,
    unscaled: bool = True,
    step: str = "scaler",
    updated: bool = True,
) -> Callable[[Any], list[float]]:
    """Return the loop of 08.1 from its parts.

    Whether the loss is `scaled`, whether gradients are `unscaled` before they are looked at, what
    steps (``"scaler"`` or ``"optimizer"``), and whether the scale is `updated`.
    """

    def loop(p: Any) -> list[float]:
        norms = []
        for x, y in p.batches:
            loss = loss_of(p, x, y, dtype)
            (p.scaler.scale(loss) if scaled else loss).backward()
            if unscaled:
                p.scaler.unscale_(p.optimizer)
            norms.append(norm_of(p))
            if step == "scaler":
                p.scaler.step(p.optimizer)
            else:
                p.optimizer.step()
            if updated:
                p.scaler.update()
        return norms

    return loop


without_scaler = logged(scaled=False, unscaled=False, step="optimizer", updated=False)


def divided_after_update(p: Any) -> list[float]:
    """Measure scaled gradients, and divide by the scale once the step is over."""
    norms = []
    for x, y in p.batches:
        p.scaler.scale(loss_of(p, x, y, torch.float16)).backward()
        norm = norm_of(p)
        p.scaler.step(p.optimizer)
        p.scaler.update()
        norms.append(norm / p.scaler.get_scale())
    return norms


def divided_twice(p: Any) -> list[float]:
    """Measure the gradients after the scaler's step, which divided them, and divide again."""
    norms = []
    for x, y in p.batches:
        p.scaler.scale(loss_of(p, x, y, torch.float16)).backward()
        p.scaler.step(p.optimizer)
        norms.append(norm_of(p) / p.scaler.get_scale())
        p.scaler.update()
    return norms


def with_own_scaler(p: Any) -> list[float]:
    """Train with a new scaler in place of the patient's."""
    p.scaler = torch.amp.GradScaler("cpu")
    return logged()(p)


def with_half_weights(p: Any) -> list[float]:
    """Turn the model to FP16, and scale."""
    p.model.half()
    norms = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        p.scaler.scale(F.cross_entropy(p.model(x.half()), y)).backward()
        p.scaler.unscale_(p.optimizer)
        norms.append(norm_of(p))
        p.scaler.step(p.optimizer)
        p.scaler.update()
    return norms


# -- one loop for every precision ------------------------------------------------------------------

_LOW = (torch.float16, torch.bfloat16)


def scaled_step(p: Any, loss: torch.Tensor) -> None:
    """Backward and step through the scaler."""
    p.scaler.scale(loss).backward()
    p.scaler.step(p.optimizer)
    p.scaler.update()


def plain_step(p: Any, loss: torch.Tensor) -> None:
    """Backward and step without a scaler."""
    loss.backward()
    p.optimizer.step()


def unchecked_step(p: Any, loss: torch.Tensor) -> None:
    """Scale, and let the optimizer step on scaled gradients."""
    p.scaler.scale(loss).backward()
    p.optimizer.step()
    p.scaler.update()


def in_precision(
    *,
    lowers_to: Callable[[torch.dtype], torch.dtype | None] = lambda d: d if d in _LOW else None,
    scales: Callable[[torch.dtype], bool] = lambda d: d is torch.float16,
    step: Callable[[Any, torch.Tensor], None] = scaled_step,
    own_scaler: bool = False,
    notes_scaled: bool = False,
) -> Callable[[Any, torch.dtype], list[float]]:
    """Return the loop of 08.2 from its parts.

    From the dtype asked for follow the one that autocast `lowers_to` and whether it `scales`; it
    returns the losses, or what the scaler made of them.
    """

    def loop(p: Any, dtype: torch.dtype) -> list[float]:
        if own_scaler:
            p.scaler = torch.amp.GradScaler("cpu")
        losses = []
        for x, y in p.batches:
            loss = loss_of(p, x, y, lowers_to(dtype))
            noted = p.scaler.scale(loss) if notes_scaled and scales(dtype) else loss
            (step if scales(dtype) else plain_step)(p, loss)
            losses.append(noted.item())
        return losses

    return loop


def with_cast_weights(p: Any, dtype: torch.dtype) -> list[float]:
    """Turn the model to the dtype asked for."""
    p.model.to(dtype)
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        loss = F.cross_entropy(p.model(x.to(dtype)), y)
        plain_step(p, loss)
        losses.append(loss.item())
    return losses
