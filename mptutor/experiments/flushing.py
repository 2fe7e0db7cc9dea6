"""What share of a network's gradients a 16-bit format would turn into zero.

The gradients are those of the layers' outputs, which backward passes from layer to layer in 16
bits; a gradient that is lost there is lost for every layer before.  They are computed in FP32, so
that what the format would lose is still there to be counted, and gradients that are zero in FP32
too (behind a ReLU, for instance) are left out.

Flushed is not the same as damaged: whether anything was learnt from the gradients that are lost is
another question, which only training answers.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from mptutor.census import take_census
from mptutor.formats import FloatFormat


def share_flushed(
    model: nn.Module, loss: Callable[[], Tensor], fmt: FloatFormat, scale: float = 1.0
) -> float | None:
    """Return the share of gradients other than zero that ``fmt`` at this loss scale flushes.

    Parameters
    ----------
    model
        An FP32 model; its weights get gradients, and its batch norms see one more batch.
    loss
        Computes the loss of one batch with this model.
    fmt, scale
        The format that the gradients would have, and what they would be multiplied by.

    Returns
    -------
    share
        From 0 to 1; None if a gradient is infinite or NaN, or all are zero.
    """
    census = take_census(output_gradients(model, loss))
    nonzero = census.total - census.zeros
    if census.nans or census.infs or not nonzero:
        return None
    return census.flushed(fmt, scale) / nonzero


def output_gradients(model: nn.Module, loss: Callable[[], Tensor]) -> list[Tensor]:
    """Run forward and backward; return the gradients of the outputs of all innermost modules."""
    gradients: list[Tensor] = []

    def watch(module: nn.Module, inputs: tuple, output: Tensor) -> None:
        output.register_hook(gradients.append)

    layers = [m for m in model.modules() if not any(m.children()) and not isinstance(m, nn.Flatten)]
    handles = [layer.register_forward_hook(watch) for layer in layers]
    try:
        loss().backward()
    finally:
        for handle in handles:
            handle.remove()
    return gradients
