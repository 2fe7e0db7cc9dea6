"""Linear layers whose matrix products take FP8 operands, emulated in FP32.

A linear layer computes three products in a training step, and what goes into each is rounded:

    y      = x @ w.T        x: [batch, in], w: [out, in]      forward
    grad_x = grad @ w       grad: [batch, out]                backward, to the layer before
    grad_w = grad.T @ x                                       backward, to the optimizer

An FP8 Tensor Core multiplies such operands exactly and adds up in FP32, or nearly so; here they
are values of the format held in FP32, and FP32 multiplies and adds. So the emulation shows what
rounding the operands does to a training, on any device, and says nothing about speed. Weights,
biases and the optimizer stay FP32, and so does everything between two products.

A scale for the tensor serves in every product. Scales for rows or blocks have to lie along the
dimension that the product sums over, or they could not be divided out of the sum. It is another
one for each product, so ``w`` is rounded along its rows for one product and along its columns for
the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mptutor.formats import FP8_E4M3, FP8_E5M2, FloatFormat
from mptutor.fp8 import GRANULARITIES, DelayedScale, amax_of, quantize_scaled


@dataclass(frozen=True)
class Fp8Recipe:
    """Which format the operands of matrix products get, and what scales.

    Parameters
    ----------
    name
        What tables and legends call it.
    forward, backward
        The format of weights and activations, and that of gradients; None leaves them FP32.
    granularity
        One of `mptutor.fp8.GRANULARITIES`.
    history
        Steps that a delayed scale remembers; 0 is current scaling.

    Raises
    ------
    ValueError
        If there is no such granularity, or a history where there is no scale for the tensor.
    """

    name: str
    forward: FloatFormat | None = FP8_E4M3
    backward: FloatFormat | None = FP8_E5M2
    granularity: str = "tensor"
    history: int = 0

    def __post_init__(self) -> None:
        if self.granularity not in GRANULARITIES:
            raise ValueError(
                f"granularity is {self.granularity!r}; allowed are {', '.join(GRANULARITIES)}"
            )
        if self.history and self.granularity != "tensor":
            raise ValueError(
                f"history is {self.history}, but granularity is {self.granularity!r}; a delayed "
                "scale is one for the tensor"
            )

    @property
    def follows_the_product(self) -> bool:
        """Whether an operand is rounded anew for each product that it goes into."""
        return self.granularity in ("row", "block")


class Fp8Linear(nn.Module):
    """A linear layer that rounds the operands of its products; it shares the weights it is given.

    Attributes
    ----------
    nonzero, flushed
        Of all gradients rounded so far, how many were not zero, and how many of these became so.
    """

    def __init__(self, linear: nn.Linear, recipe: Fp8Recipe) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.recipe = recipe
        self.nonzero = self.flushed = 0
        self._delayed: dict[str, DelayedScale] = {}

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[batch, in]`` to ``[batch, out]``."""
        y = _Products.apply(x, self.weight, self)
        return y if self.bias is None else y + self.bias

    def round(self, operand: str, x: Tensor) -> Tensor:
        """Return an operand rounded along its last dimension, as FP32."""
        fmt = self.recipe.backward if operand == "grad" else self.recipe.forward
        if fmt is None:
            return x
        if not self.recipe.history:
            return quantize_scaled(x, fmt, self.recipe.granularity).dequantize()
        fresh = DelayedScale(fmt, length=self.recipe.history)
        state = self._delayed.get(operand, fresh)
        self._delayed[operand] = state.after(amax_of(x).item())
        return state.quantize(x).dequantize()

    def count_flushed(self, grad: Tensor, rounded: Tensor) -> None:
        """Note how many gradients rounding made zero."""
        is_nonzero = grad != 0
        self.nonzero += int(is_nonzero.sum())
        self.flushed += int((is_nonzero & (rounded == 0)).sum())


class _Products(torch.autograd.Function):
    """The three products of a linear layer without bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: Fp8Linear) -> Tensor:
        x_q, weight_q = layer.round("x", x), layer.round("weight", weight)
        ctx.layer = layer
        anew = layer.recipe.follows_the_product
        ctx.save_for_backward(*((x, weight) if anew else (x_q, weight_q)))
        return x_q @ weight_q.t()  # [batch, in] @ [in, out]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, None]:
        layer: Fp8Linear = ctx.layer
        x, weight = ctx.saved_tensors
        grad_q = layer.round("grad", grad)
        layer.count_flushed(grad, grad_q)
        grad_over_batch = grad_q.t()
        if layer.recipe.follows_the_product:
            x, weight = layer.round("x", x.t()).t(), layer.round("weight", weight.t()).t()
            grad_over_batch = layer.round("grad", grad.t())
        grad_x = grad_q @ weight if ctx.needs_input_grad[0] else None  # sums over out
        return grad_x, grad_over_batch @ x, None  # [out, batch] @ [batch, in], sums over the batch


def with_fp8_products(model: nn.Module, recipe: Fp8Recipe) -> nn.Module:
    """Replace every `nn.Linear` of a model, in place, and return the model."""
    for name, child in model.named_children():
        if isinstance(child, nn.Linear):
            setattr(model, name, Fp8Linear(child, recipe))
        else:
            with_fp8_products(child, recipe)
    return model


def share_flushed(model: nn.Module) -> float:
    """Return the share of all gradients other than zero that rounding has made zero so far."""
    layers = [layer for layer in model.modules() if isinstance(layer, Fp8Linear)]
    nonzero = sum(layer.nonzero for layer in layers)
    return sum(layer.flushed for layer in layers) / nonzero if nonzero else 0.0
