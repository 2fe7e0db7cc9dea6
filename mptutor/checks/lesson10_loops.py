"""The loops of exercise 10, right and in the ways people write them wrongly.

A loop is put together from parts, so that each belief differs from the right loop in the one part
that it is wrong about. These are answers: a grader keeps them from the code it grades.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Loop = Callable[[Any], list[float]]

MAX_NORM = 0.1
WINDOW = 4
PENALTY = 10.0


def loss_of(p: Any, x: Tensor, y: Tensor, amp: bool = True) -> Tensor:
    """Return the cross entropy, under autocast if `amp`."""
    with torch.autocast("cpu", torch.float16, enabled=amp):
        return F.cross_entropy(p.model(x), y)


def clip(weights: Any, limit: float = MAX_NORM) -> Tensor:
    """Clip the norm of all gradients together; return what it was."""
    return nn.utils.clip_grad_norm_(weights, limit)


# -- 10.1: clip, and return the true norms -------------------------------------------------------


def clipping(
    *, unscale: str = "both", when: str = "before", norm: str = "true", step: str = "scaler"
) -> Loop:
    """Return a loop that clips.

    `unscale` "both" gradients and what is returned, only the "norm" that is returned, or "neither";
    clip `when` it is "before" the step or "after"; return the `norm` that is "true" or "clipped";
    `step` by the "scaler" or the "optimizer".
    """

    def loop(p: Any) -> list[float]:
        norms = []
        for x, y in p.batches:
            p.optimizer.zero_grad()
            p.scaler.scale(loss_of(p, x, y)).backward()
            scale = p.scaler.get_scale()
            if unscale == "both":
                p.scaler.unscale_(p.optimizer)
            if when == "after":
                _step(p, step)
            found = clip(p.model.parameters())
            if norm == "clipped":
                found = nn.utils.get_total_norm([w.grad for w in p.model.parameters()])
            if when == "before":
                _step(p, step)
            p.scaler.update()
            norms.append((found / scale if unscale == "norm" else found).item())
        return norms

    return loop


def _step(p: Any, how: str) -> None:
    p.optimizer.step() if how == "optimizer" else p.scaler.step(p.optimizer)


def clipping_by_value(p: Any) -> list[float]:
    """Clip each entry instead of the norm."""
    norms = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        p.scaler.scale(loss_of(p, x, y)).backward()
        p.scaler.unscale_(p.optimizer)
        norms.append(nn.utils.get_total_norm([w.grad for w in p.model.parameters()]).item())
        nn.utils.clip_grad_value_(p.model.parameters(), MAX_NORM)
        p.scaler.step(p.optimizer)
        p.scaler.update()
    return norms


def clipping_in_fp32(p: Any) -> list[float]:
    """Clip without AMP."""
    norms = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        loss_of(p, x, y, amp=False).backward()
        norms.append(clip(p.model.parameters()).item())
        p.optimizer.step()
    return norms


# -- 10.2: accumulate ----------------------------------------------------------------------------


def accumulating(
    *,
    divide: str = "window",
    last: str = "stepped",
    clear: str = "window",
    update: str = "window",
    step: str = "window",
    told: str = "mean",
) -> Loop:
    """Return a loop that accumulates over windows of four batches, the last of which may be short.

    `divide` by the batches of the "window", by "four", or "no"; the `last` window is "stepped" or
    "dropped"; gradients are cleared (`clear`) once a "window", once a "batch" or "never"; `update`
    and `step` come once a "window" or a "batch". What is `told` of a window is the "mean" of its
    losses or the sum of the "parts" that went backward.
    """

    def loop(p: Any) -> list[float]:
        losses = []
        for start in range(0, len(p.batches), WINDOW):
            window = p.batches[start : start + WINDOW]
            if last == "dropped" and len(window) < WINDOW:
                break
            parts = {"window": len(window), "four": WINDOW, "no": 1}[divide]
            total = 0.0
            if clear == "window":
                p.optimizer.zero_grad()
            for x, y in window:
                if clear == "batch":
                    p.optimizer.zero_grad()
                loss = loss_of(p, x, y)
                p.scaler.scale(loss / parts).backward()
                total += loss.item() / (parts if told == "parts" else len(window))
                if step == "batch":
                    p.scaler.step(p.optimizer)
                if update == "batch":
                    p.scaler.update()
            if step == "window":
                p.scaler.step(p.optimizer)
            if update == "window":
                p.scaler.update()
            losses.append(total)
        return losses

    return loop


# -- 10.3: two optimizers ------------------------------------------------------------------------


def two_optimizers(
    *,
    head: str = "scaler",
    clipped: str = "body",
    penalty: str = "scaled",
    update: str = "once",
    body: str = "body",
    amp: bool = True,
) -> Loop:
    """Return a loop that trains the head by Adam and the rest by SGD.

    `head` steps through the "scaler", by "itself" or with a scaler of its "own"; `clipped` is the
    "body", the "scaled" body, "all" with the head still scaled or "unscaled", or "nothing"; the
    `penalty` is "scaled", "unscaled" or "none";
    `update` comes "once" or "between" the steps too; SGD has the "body" or "all".
    """

    def loop(p: Any) -> list[float]:
        layers = p.model if body == "all" else p.model[:-1]
        of_body = torch.optim.SGD(layers.parameters(), lr=0.5)
        of_head = torch.optim.Adam(p.model[-1].parameters(), lr=0.01)
        own = torch.amp.GradScaler("cpu", init_scale=p.scaler.get_scale())
        losses = []
        for x, y in p.batches:
            p.model.zero_grad()
            loss = loss_of(p, x, y, amp)
            term = 0.05 * p.model[-1].weight.square().sum() if penalty != "none" else 0.0
            if penalty == "unscaled":
                p.scaler.scale(loss).backward()
                term.backward()
            else:
                p.scaler.scale(loss + term).backward()
            if clipped in ("body", "all", "unscaled"):
                p.scaler.unscale_(of_body)
            if clipped == "unscaled":
                p.scaler.unscale_(of_head)
            if clipped != "nothing":
                whole = clipped in ("all", "unscaled")
                clip(p.model.parameters() if whole else p.model[:-1].parameters())
            p.scaler.step(of_body)
            if update == "between":
                p.scaler.update()
            if head == "scaler":
                p.scaler.step(of_head)
            elif head == "itself":
                of_head.step()
            else:
                own.scale(torch.zeros(()))  # a scaler of its own that scaled nothing of this
                own.step(of_head)
                own.update()
            p.scaler.update()
            losses.append(loss.item())
        return losses

    return loop


# -- 10.4: go on from a checkpoint ---------------------------------------------------------------


def resuming(
    *,
    parts: tuple[str, ...] = ("model", "optimizer", "scaler"),
    position: bool = True,
    scale_only: bool = False,
    early: bool = False,
) -> Callable[[Any, Any, int], dict[str, Any]]:
    """Return what goes on from a checkpoint.

    `parts` are saved and loaded, and the `position` among the batches. With `scale_only` the scale
    is kept and the rest of the scaler's state not; `early` saves before training.
    """

    def go_on(p: Any, checkpoint: dict[str, Any] | None, steps: int) -> dict[str, Any]:
        done = 0
        if checkpoint is not None:
            for part in parts:
                getattr(p, part).load_state_dict(checkpoint[part])
            done = checkpoint["done"] if position else 0
            if scale_only:
                p.scaler = torch.amp.GradScaler(
                    "cpu",
                    init_scale=checkpoint["scale"],
                    growth_interval=p.scaler.get_growth_interval(),
                )
        saved = _saved(p, parts, done + steps) if early else None
        for x, y in p.batches[done : done + steps]:
            p.optimizer.zero_grad()
            p.scaler.scale(loss_of(p, x, y)).backward()
            p.scaler.step(p.optimizer)
            p.scaler.update()
        return saved or _saved(p, parts, done + steps)

    return go_on


def _saved(p: Any, parts: tuple[str, ...], done: int) -> dict[str, Any]:
    states = {part: getattr(p, part).state_dict() for part in parts}
    return {**states, "done": done, "scale": p.scaler.get_scale()}


def saving_objects(p: Any, checkpoint: Any, steps: int) -> dict[str, Any]:
    """Save the objects instead of their states."""
    resuming()(p, None, steps)
    return {"model": p.model, "optimizer": p.optimizer, "scaler": p.scaler}


# -- 10.5: three faults --------------------------------------------------------------------------


def penalizing(
    *,
    unscale: bool = True,
    divide: bool = True,
    update: str = "step",
    graph: bool = True,
    amp: bool = True,
) -> Loop:
    """Return a loop that accumulates over two halves of a batch, with a penalty on gradients.

    The gradients of the penalty are divided by the scale (`unscale`), the loss of a half by two
    (`divide`); `update` comes once a "step" or once a "half". Without `graph` the penalty is a
    number.
    """

    def loop(p: Any) -> list[float]:
        losses = []
        for x, y in p.batches:
            p.optimizer.zero_grad()
            for some_x, some_y in zip(x.chunk(2), y.chunk(2), strict=True):
                some_x = some_x.clone().requires_grad_()
                loss = loss_of(p, some_x, some_y, amp)
                scaled = p.scaler.scale(loss)
                (grad,) = torch.autograd.grad(scaled, some_x, create_graph=True)
                grad = grad / p.scaler.get_scale() if unscale else grad
                penalty = PENALTY * (grad if graph else grad.detach()).square().sum()
                parts = 2 if divide else 1
                p.scaler.scale((loss + penalty) / parts).backward()
                if update == "half":
                    p.scaler.update()
            p.scaler.step(p.optimizer)
            if update == "step":
                p.scaler.update()
            losses.append(loss.item())
        return losses

    return loop


def scale_of_one(loop: Loop) -> Loop:
    """Turn the scale down to 1, where some faults do not show."""

    def turned_down(p: Any) -> list[float]:
        p.scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
        return loop(p)

    return turned_down
