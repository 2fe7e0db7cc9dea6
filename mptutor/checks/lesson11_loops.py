"""The loops of exercise 11, right and in the ways people mend them wrongly.

A loop is put together from parts, so that each belief differs from the right loop in the one part
that it is wrong about. These are answers: a grader keeps them from the code it grades.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Forward = Callable[[nn.Module, Tensor, Tensor], Tensor]
Step = Callable[[Any, Tensor], None]


def classify(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the cross entropy."""
    return F.cross_entropy(model(x), y)


def plain_step(p: Any, loss: Tensor) -> None:
    """Scale, backward, step, update."""
    p.scaler.scale(loss).backward()
    p.scaler.step(p.optimizer)
    p.scaler.update()


def unscaled_step(p: Any, loss: Tensor) -> None:
    """Go without a scaler."""
    loss.backward()
    p.optimizer.step()


def train(
    p: Any,
    forward: Forward = classify,
    step: Step = plain_step,
    dtype: torch.dtype | None = torch.float16,
) -> list[float]:
    """Train on every batch once, under autocast to `dtype`, or without if that is None."""
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with torch.autocast("cpu", dtype or torch.float16, enabled=dtype is not None):
            loss = forward(p.model, x, y)
        step(p, loss)
        losses.append(loss.item())
    return losses


# -- A: clipping and a penalty -------------------------------------------------------------------


def penalty_of(p: Any) -> Tensor:
    """Return the penalty on the size of the weights."""
    return 0.05 * sum(w.square().sum() for w in p.model.parameters())


def clipping_step(
    p: Any,
    loss: Tensor,
    *,
    penalty: str = "scaled",
    clip: str = "unscaled",
) -> None:
    """Step with a penalty ("scaled", "unscaled", "none") and clipping.

    `clip` is "unscaled", "scaled", "after" the step, or "none".
    """
    p.scaler.scale(loss).backward()
    if penalty == "scaled":
        p.scaler.scale(penalty_of(p)).backward()
    if penalty == "unscaled":
        penalty_of(p).backward()
    if clip == "unscaled":
        p.scaler.unscale_(p.optimizer)
    if clip in ("unscaled", "scaled"):
        nn.utils.clip_grad_norm_(p.model.parameters(), 0.1)
    p.scaler.step(p.optimizer)
    if clip == "after":
        nn.utils.clip_grad_norm_(p.model.parameters(), 0.1)
    p.scaler.update()


def loop_a(**options: Any) -> Callable[[Any], list[float]]:
    """Return loop A with a step of `clipping_step`'s options."""
    return lambda p: train(p, step=lambda p, loss: clipping_step(p, loss, **options))


def without_amp_a(p: Any) -> list[float]:
    """Train loop A in FP32."""

    def step(p: Any, loss: Tensor) -> None:
        (loss + penalty_of(p)).backward()
        nn.utils.clip_grad_norm_(p.model.parameters(), 0.1)
        p.optimizer.step()

    return train(p, step=step, dtype=None)


def scale_of_one_a(p: Any) -> list[float]:
    """Turn the scale down to 1, where clipping and the penalty are right by accident."""
    p.scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    return loop_a(penalty="unscaled", clip="scaled")(p)


# -- B: attention with a mask --------------------------------------------------------------------


def attention_loss(
    scale_first: bool = True,
    fill: float | None = float("-inf"),
    clean: bool = False,
) -> Forward:
    """Return the loss of masked attention.

    `fill` is what the mask puts in (None: no mask), `clean` makes NaN and inf finite.
    """
    near = torch.ones(16, 16).tril().triu(-1).bool()

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        q, k, v = model["qkv"](x).chunk(3, dim=-1)
        root = q.shape[-1] ** 0.5
        scores = (q / root) @ k.mT if scale_first else (q @ k.mT) / root
        if clean:
            scores = scores.nan_to_num()
        if fill is not None:
            scores = scores.masked_fill(~near, fill)
        return F.cross_entropy(model["head"](scores.softmax(-1) @ v).mean(1), y)

    return loss


def loop_b(dtype: torch.dtype | None = torch.float16, **options: Any) -> Callable[[Any], Any]:
    """Return loop B with `attention_loss`'s options."""
    return lambda p: train(p, attention_loss(**options), dtype=dtype)


def catch_exceptions(p: Any) -> list[float]:
    """Give up every batch that raises."""
    losses = []
    forward = attention_loss(scale_first=False, fill=-1e9)
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with suppress(RuntimeError), torch.autocast("cpu", torch.float16):
            loss = forward(p.model, x, y)
            plain_step(p, loss)
            losses.append(loss.item())
    return losses


def skip_bad_losses(p: Any) -> list[float]:
    """Leave out every batch whose loss is not finite."""

    def step(p: Any, loss: Tensor) -> None:
        if loss.isfinite():
            plain_step(p, loss)

    return train(p, attention_loss(scale_first=False), step)


# -- C: all in FP16 ------------------------------------------------------------------------------


def all_in_half(p: Any, step: Step = unscaled_step, dtype: torch.dtype = torch.float16) -> Any:
    """Train with weights in 16 bits."""
    p.model.to(dtype)
    return train(p, lambda model, x, y: classify(model, x.to(dtype), y), step, dtype=None)


def larger_eps(p: Any) -> list[float]:
    """Raise Adam's eps until it does not vanish."""
    p.optimizer.param_groups[0]["eps"] = 1e-4
    return all_in_half(p)


def clean_gradients(p: Any) -> list[float]:
    """Make what the step left in weights and gradients finite."""

    def step(p: Any, loss: Tensor) -> None:
        loss.backward()
        p.optimizer.step()
        with torch.no_grad():
            for w in p.model.parameters():
                w.nan_to_num_()

    return all_in_half(p, step)


def other_optimizer(p: Any) -> list[float]:
    """Take SGD, which has no eps."""
    p.optimizer = torch.optim.SGD(p.model.parameters(), lr=0.1)
    return train(p)


def skip_when_nan(p: Any) -> list[float]:
    """Step only while the loss is finite."""
    return all_in_half(p, lambda p, loss: unscaled_step(p, loss) if loss.isfinite() else None)
