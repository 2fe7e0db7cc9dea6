"""The loops of exercise 09.3, right and in the ways people mend them wrongly.

These are answers: a grader keeps them from the code it grades.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def _block(amp: bool = True) -> Any:
    return torch.autocast("cpu", torch.float16, enabled=amp)


def loss_of(
    p: Any,
    x: Tensor,
    y: Tensor,
    *,
    amp: bool = True,
    by_position: bool = False,
    pool: str = "mean",
) -> Tensor:
    """Return the loss, of all positions at once, or of one after another in a block of its own."""
    if not by_position:
        with _block(amp):
            logits = p.model["head"](p.model["widen"](x).relu())
            return F.cross_entropy(getattr(logits, pool)(1), y)
    logits = 0
    for position in range(x.shape[1]):
        with _block():
            wide = p.model["widen"](x[:, position]).relu()
            logits = logits + p.model["head"](wide) / x.shape[1]
    return F.cross_entropy(logits, y)


def train(
    *,
    amp: bool = True,
    by_position: bool = False,
    pool: str = "mean",
    reads: bool = False,
    asks: bool = False,
    scaler: bool = True,
    returns: Callable[[list[Any]], Any] = list,
) -> Callable[[Any], Any]:
    """Return a training that reads each loss, asks of each whether it is NaN, and so on."""

    def loop(p: Any) -> Any:
        losses = []
        for x, y in p.batches:
            p.optimizer.zero_grad()
            loss = loss_of(p, x, y, amp=amp, by_position=by_position, pool=pool)
            if asks and torch.isnan(loss):
                break
            _step(p, loss, scaler)
            losses.append(loss.item() if reads else loss.detach())
        return returns(losses)

    return loop


def _step(p: Any, loss: Tensor, scaler: bool = True) -> None:
    if not scaler:
        loss.backward()
        p.optimizer.step()
        return
    p.scaler.scale(loss).backward()
    p.scaler.step(p.optimizer)
    p.scaler.update()


def one_block(p: Any) -> list[Tensor]:
    """Train inside one block of autocast, whose copies of the weights grow old."""
    losses = []
    with _block():
        for x, y in p.batches:
            p.optimizer.zero_grad()
            loss = F.cross_entropy(p.model["head"](p.model["widen"](x).relu()).mean(1), y)
            _step(p, loss)
            losses.append(loss.detach())
    return losses


def half_model(p: Any) -> list[Tensor]:
    """Keep the weights in FP16."""
    p.model.half()
    p.batches = [(x.half(), y) for x, y in p.batches]
    return train(amp=False)(p)
