"""The answers of exercise 07, right and as people give them.

The loops, functions and losses here are what each belief would write. They are answers: a grader
keeps them from the code it grades.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

FP16 = torch.float16


def _fp16() -> torch.autocast:
    return torch.autocast("cpu", FP16)


# -- 07.1: loops ---------------------------------------------------------------------------------


def _loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def _loss_in(region: Callable[[], Any]) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
    """Return a loss that enters a region of its own."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with region():
            return _loss(model, x, y)

    return loss


_loss_in_fp16 = _loss_in(_fp16)


def _loop(
    p: Any,
    loss_of: Callable[..., Tensor] = _loss_in_fp16,
    measure: Callable[..., Tensor] | None = None,
) -> list[float]:
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        p.scaler.scale(loss_of(p.model, x, y)).backward()
        p.scaler.step(p.optimizer)
        p.scaler.update()
        with torch.no_grad():
            losses.append((measure or loss_of)(p.model, x, y).item())
    return losses


def train(p: Any) -> list[float]:
    """Enter a region for forward and loss, and another to measure."""
    return _loop(p)


def region_around_the_loop(p: Any) -> list[float]:
    """Never let the casts of the weights go."""
    with _fp16():
        return _loop(p)


def region_around_the_step(p: Any) -> list[float]:
    """Measure in the region that the step was in, with the casts from before it."""
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with _fp16():
            p.scaler.scale(_loss(p.model, x, y)).backward()
            p.scaler.step(p.optimizer)
            p.scaler.update()
            with torch.no_grad():
                losses.append(_loss(p.model, x, y).item())
    return losses


def other_device(p: Any) -> list[float]:
    """Stay in FP32, as under a region of a device that no tensor is on."""
    return _loop(p, _loss)


def default_dtype(p: Any) -> list[float]:
    """Leave the dtype to the CPU's default."""
    return _loop(p, _loss_in(lambda: torch.autocast("cpu", torch.bfloat16)))


def loss_outside(p: Any) -> list[float]:
    """Take the loss of FP16 logits where autocast is off."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with _fp16():
            logits = model(x)
        return F.cross_entropy(logits, y)

    return _loop(p, loss)


def measured_outside(p: Any) -> list[float]:
    """Forget the region when measuring."""
    return _loop(p, measure=_loss)


def half_model(p: Any) -> list[float]:
    """Make the weights FP16."""
    p.model.half()
    return _loop(p)


# -- 07.2: functions -----------------------------------------------------------------------------


def _forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
    powers = torch.exp(x @ w)
    total = powers.sum(-1, keepdim=True)
    ctx.save_for_backward(x, w, powers / total)
    return total.log()


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    x, w, shares = ctx.saved_tensors
    return (grad * shares) @ w.mT, x.mT @ (grad * shares)


def _function(
    forward: Callable[..., Tensor] = _forward, backward: Callable[..., Any] = _backward
) -> Callable[[str], type[Function]]:
    """Return what makes an autograd function of the two, on any device."""
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return lambda device_type: type("LogPartition", (Function,), methods)


def _forward_with_floats(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
    return _forward(ctx, x.float(), w.float())


def _guarded_forward(
    cast_inputs: torch.dtype | None = torch.float32, forward: Callable[..., Tensor] = _forward
) -> Callable[..., Tensor]:
    return torch.amp.custom_fwd(forward, device_type="cpu", cast_inputs=cast_inputs)


_guarded_backward = torch.amp.custom_bwd(_backward, device_type="cpu")


def _forward_saving_its_inputs(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        powers = torch.exp(x.float() @ w.float())
        total = powers.sum(-1, keepdim=True)
        ctx.save_for_backward(x, w, powers / total)
        return total.log()


right_function = _function(_guarded_forward(forward=_forward_with_floats), _guarded_backward)
plain_function = _function()
inputs_not_cast = _function(_guarded_forward(None), _guarded_backward)
cast_to_16_bits = _function(_guarded_forward(FP16), _guarded_backward)
backward_unguarded = _function(_guarded_forward(forward=_forward_with_floats))
cast_in_a_region_only = _function(_guarded_forward(), _guarded_backward)
forward_unguarded = _function(backward=_guarded_backward)
floats_alone = _function(_forward_with_floats)
saved_as_given = _function(_forward_saving_its_inputs)

# -- 07.3: losses --------------------------------------------------------------------------------


def gram_loss(h: Tensor, target: Tensor) -> Tensor:
    """Compute on an island, in FP32."""
    with torch.autocast("cpu", enabled=False):
        h = h.float()
        return F.mse_loss(h @ h.mT / h.shape[1], target)


def plain_loss(h: Tensor, target: Tensor) -> Tensor:
    """Let autocast have the product."""
    return F.mse_loss(h @ h.mT / h.shape[1], target)


def switched_off_alone(h: Tensor, target: Tensor) -> Tensor:
    """Compute on an island in the dtype that h comes in."""
    with torch.autocast("cpu", enabled=False):
        return F.mse_loss((h @ h.mT / h.shape[1]).float(), target)


def divided_first(h: Tensor, target: Tensor) -> Tensor:
    """Keep the product from overflowing, in 16 bits."""
    return F.mse_loss((h / h.shape[1]) @ h.mT, target)


def divided_by_the_root_first(h: Tensor, target: Tensor) -> Tensor:
    """Keep the product from overflowing by making both of its sides smaller."""
    h = h / h.shape[1] ** 0.5
    return F.mse_loss(h @ h.mT, target)


def in_bf16(h: Tensor, target: Tensor) -> Tensor:
    """Take the format with the range."""
    with torch.autocast("cpu", torch.bfloat16):
        return F.mse_loss(h @ h.mT / h.shape[1], target)


def cut_off(h: Tensor, target: Tensor) -> Tensor:
    """Compute rightly, and lose the way back."""
    return gram_loss(h.detach(), target)


def made_finite(h: Tensor, target: Tensor) -> Tensor:
    """Repair the infinite products."""
    return F.mse_loss((h @ h.mT).nan_to_num() / h.shape[1], target)


def handed_back_low(h: Tensor, target: Tensor) -> Tensor:
    """Return the loss in the dtype of h."""
    return gram_loss(h, target).to(h.dtype)
