"""The loops D, E and F of exercise 11, right and in the ways people mend them wrongly.

As in `lesson11_loops`: a belief differs from the right loop in the one part it is wrong about, and
a grader keeps these answers from the code it grades.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from mptutor.checks.lesson11_loops import (
    classify,
    loop_a,
    plain_step,
    train,
    unscaled_step,
)

PARTS = 4
Loop = Callable[[Any], Any]

# -- D: accumulation and clipping ----------------------------------------------------------------


def clip_all(p: Any) -> None:
    """Clip as loop D does."""
    nn.utils.clip_grad_norm_(p.model.parameters(), 0.1)


def parts_of(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return the micro-batches of a batch."""
    return list(zip(x.chunk(PARTS), y.chunk(PARTS), strict=True))


def part_loss(p: Any, x: Tensor, y: Tensor) -> Tensor:
    """Return a micro-batch's share of the loss, taken in FP16."""
    with torch.autocast("cpu", torch.float16):
        return classify(p.model, x, y) / PARTS


def loop_d(unscale: str = "last", clip: str = "once", clear_each: bool = False) -> Loop:
    """Return loop D.

    `unscale` is "last" (after the last part), "first" or "never"; `clip` is "once" a step or
    "none"; with `clear_each` gradients are cleared before every part.
    """

    def loop(p: Any) -> list[float]:
        losses = []
        for x, y in p.batches:
            p.optimizer.zero_grad()
            losses.append(0.0)
            for i, part in enumerate(parts_of(x, y)):
                if clear_each:
                    p.optimizer.zero_grad()
                loss = part_loss(p, *part)
                p.scaler.scale(loss).backward()
                if unscale == "first" and i == 0:
                    p.scaler.unscale_(p.optimizer)
                losses[-1] += loss.item()
            if unscale == "last":
                p.scaler.unscale_(p.optimizer)
            if clip == "once":
                clip_all(p)
            p.scaler.step(p.optimizer)
            p.scaler.update()
        return losses

    return loop


def step_every_part(p: Any) -> list[float]:
    """Take a step on every micro-batch."""
    losses = []
    for x, y in p.batches:
        for part in parts_of(x, y):
            p.optimizer.zero_grad()
            loss = part_loss(p, *part)
            p.scaler.scale(loss).backward()
            p.scaler.unscale_(p.optimizer)
            clip_all(p)
            p.scaler.step(p.optimizer)
            p.scaler.update()
            losses.append(loss.item())
    return losses


def catch_and_go_on(p: Any) -> list[float]:
    """Let the second unscale_ of a step raise, and go on."""
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        for part in parts_of(x, y):
            loss = part_loss(p, *part)
            p.scaler.scale(loss).backward()
            with suppress(RuntimeError):
                p.scaler.unscale_(p.optimizer)
                clip_all(p)
            losses.append(loss.item())
        p.scaler.step(p.optimizer)
        p.scaler.update()
    return losses


#: Whole batches, clipped as they should be: loop A, mended, has this in it.
loop_a_without_penalty = loop_a(penalty="none")


def loop_d_in_fp32(p: Any) -> list[float]:
    """Accumulate and clip in FP32."""
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        for some_x, some_y in parts_of(x, y):
            loss = classify(p.model, some_x, some_y) / PARTS
            loss.backward()
            losses.append(loss.item())
        clip_all(p)
        p.optimizer.step()
    return losses


# -- E: FP16 weights and a scaler ----------------------------------------------------------------


def half_with_scaler(p: Any, dtype: torch.dtype = torch.float16, step: Any = plain_step) -> Any:
    """Train with 16-bit weights and a scaler under autocast, as loop E does."""
    p.model.to(dtype)
    return train(p, lambda model, x, y: classify(model, x.to(dtype), y), step)


def half_without_scaler(p: Any) -> list[float]:
    """Throw the scaler out and keep the FP16 weights."""
    return half_with_scaler(p, step=unscaled_step)


def half_unscaled_by_hand(p: Any) -> list[float]:
    """Divide the FP16 gradients by the scale in the loop."""

    def step(p: Any, loss: Tensor) -> None:
        p.scaler.scale(loss).backward()
        for w in p.model.parameters():
            w.grad /= p.scaler.get_scale()
        p.optimizer.step()
        p.scaler.update(p.scaler.get_scale())

    return half_with_scaler(p, step=step)


def catch_the_unscaling(p: Any) -> list[float]:
    """Let `step` raise, and go on."""

    def step(p: Any, loss: Tensor) -> None:
        with suppress(ValueError):
            plain_step(p, loss)

    return half_with_scaler(p, step=step)


def allow_half_gradients(p: Any) -> list[float]:
    """Replace the check of the scaler by one that takes FP16 gradients."""
    checked = p.scaler._unscale_grads_
    p.scaler._unscale_grads_ = lambda *args: checked(*args[:-1], True)
    return half_with_scaler(p)


# -- F: a running average ------------------------------------------------------------------------


def train_in_bf16(p: Any, dtype: torch.dtype | None, after: Callable[[], None]) -> None:
    """Train as loop F does, calling `after` after each step; FP32 if `dtype` is None."""

    def step(p: Any, loss: Tensor) -> None:
        unscaled_step(p, loss)
        after()

    train(p, step=step, dtype=dtype)


def weights_of(p: Any) -> list[Tensor]:
    """Return the weights, detached: they share memory with the parameters."""
    return [w.detach() for w in p.model.parameters()]


def loop_f(
    keep: torch.dtype = torch.float32,
    rounded: bool = False,
    weight: float = 0.001,
    dtype: torch.dtype | None = torch.bfloat16,
) -> Loop:
    """Return loop F: an average kept in `keep`, of the weights or of the weights in BF16."""

    def now(p: Any) -> list[Tensor]:
        return [w.bfloat16().float() if rounded else w for w in weights_of(p)]

    def loop(p: Any) -> list[Tensor]:
        average = [w.to(keep, copy=True) for w in now(p)]

        def follow() -> None:
            for mean, w in zip(average, now(p), strict=True):
                mean.copy_(mean.float().lerp(w, weight))

        train_in_bf16(p, dtype, follow)
        return average

    return loop


def average_that_shares_memory(p: Any) -> list[Tensor]:
    """Forget the copy: `lerp_` of a tensor with itself changes nothing."""
    average = weights_of(p)

    def follow() -> None:
        for mean, w in zip(average, weights_of(p), strict=True):
            mean.lerp_(w, 0.001)

    train_in_bf16(p, torch.bfloat16, follow)
    return average


def plain_mean(p: Any) -> list[Tensor]:
    """Return the mean of the weights after each step."""
    sums = [torch.zeros_like(w) for w in weights_of(p)]

    def add() -> None:
        for total, w in zip(sums, weights_of(p), strict=True):
            total += w / len(p.batches)

    train_in_bf16(p, torch.bfloat16, add)
    return sums
