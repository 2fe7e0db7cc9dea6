"""Which precision really ran, told by looking at a training from inside.

What was asked for is a string, and a string proves nothing. A framework may replace it, a scaler
may be switched off, and a wrapper may cast what goes in and what comes out. Four things tell the
truth, and each has its own place to look.

*Layers* are looked at where they multiply: the dtype of the output of every linear layer and
convolution. Not at the end of the model, for several frameworks cast the model's output back to
FP32, so that it says FP32 whatever happened inside; it is noted too, as the loop gets it. *Weights*
are the tensors that the optimizer updates, whose bits decide whether a small update is lost.
*Gradients* are what the optimizer gets.

A *loss scale* shows without asking any scaler. It is on the gradients when the backward pass has
put them down and it is off them when the optimizer takes its step; so the ratio of the two is the
scale, and 1 if there is none. Clipping in between would show in it as well.

All of it hangs on hooks that torch has for everybody (on modules, on parameters, on the step of any
optimizer), so it works the same for a raw loop and inside a framework's.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from mptutor.formats import get_format

_MULTIPLY = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Seen:
    """What was seen of a training.

    Attributes
    ----------
    layers, output, weights, gradients
        Names of formats, such as ``"FP16"``; of several, ``"BF16/FP32"``. `output` is the model's
        as the loss function gets it.
    scale
        How many times larger gradients were after the backward pass than at the optimizer's step;
        None if no step could tell.
    """

    layers: str
    output: str
    weights: str
    gradients: str
    scale: float | None

    @property
    def scaled(self) -> bool:
        """Whether the loss was scaled."""
        return self.scale is not None and self.scale != 1

    @property
    def recipe(self) -> str:
        """The course's name for it, one of `mptutor.experiments.recipes.RECIPES`.

        ``"no step"`` if the optimizer never ran, since then nothing was seen of its weights.
        """
        if not self.weights:
            return "no step"
        if self.weights != "FP32":
            return "naive FP16" if self.weights == "FP16" else f"pure {self.weights}"
        if self.layers == "FP32":
            return "FP32"
        unscaled_fp16 = self.layers == "FP16" and not self.scaled
        return f"AMP {self.layers}{' without scaler' if unscaled_fp16 else ''}"

    def __str__(self) -> str:
        scale = f"scale {self.scale:g}" if self.scaled else "no scale"
        return (
            f"layers {self.layers}, output {self.output}, weights {self.weights}, "
            f"gradients {self.gradients}, {scale}"
        )


class watch:  # noqa: N801 - a context manager, used like a function
    """Look at the training in the ``with`` block; what was seen is in `seen`.

    Parameters
    ----------
    model
        The model as it is before any framework wraps it.
    loss_fn
        A module such as `torch.nn.CrossEntropyLoss`, called with the model's output first.

    Examples
    --------
    >>> model, loss_fn = nn.Linear(4, 2), nn.CrossEntropyLoss()
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with watch(model, loss_fn) as w:
    ...     with torch.autocast("cpu", torch.bfloat16):
    ...         loss = loss_fn(model(torch.ones(3, 4)), torch.tensor([0, 1, 0]))
    ...     loss.backward()
    ...     optimizer.step()
    >>> print(w.seen)
    layers BF16, output BF16, weights FP32, gradients FP32, no scale
    """

    def __init__(self, model: nn.Module, loss_fn: nn.Module) -> None:
        self._model, self._loss_fn = model, loss_fn
        self._dtypes: dict[str, dict[torch.dtype, None]] = {
            what: {} for what in ("layers", "output", "weights", "gradients")
        }
        self._after_backward: dict[Tensor, float] = {}
        self._scale: float | None = None

    def __enter__(self) -> watch:
        layers = [m for m in self._model.modules() if isinstance(m, _MULTIPLY)]
        handles = [
            *(layer.register_forward_hook(self._see_layer) for layer in layers),
            *(
                w.register_post_accumulate_grad_hook(self._see_backward)
                for w in self._model.parameters()
            ),
            self._loss_fn.register_forward_pre_hook(self._see_output),
            register_optimizer_step_pre_hook(self._see_step),
        ]
        with ExitStack() as stack:
            for handle in handles:
                stack.callback(handle.remove)
            self._hooks = stack.pop_all()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._hooks.close()
        self._after_backward.clear()

    @property
    def seen(self) -> Seen:
        """What has been seen so far."""
        names = {what: _names(dtypes) for what, dtypes in self._dtypes.items()}
        return Seen(**names, scale=self._scale)

    def _note(self, what: str, tensor: Tensor) -> None:
        self._dtypes[what][tensor.dtype] = None

    def _see_layer(self, layer: nn.Module, inputs: Any, output: Tensor) -> None:
        self._note("layers", output)

    def _see_output(self, loss_fn: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._note("output", inputs[0])

    def _see_backward(self, weight: Tensor) -> None:
        self._after_backward[weight] = _largest(weight.grad)

    def _see_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for weight in (w for group in optimizer.param_groups for w in group["params"]):
            self._note("weights", weight)
            if weight.grad is None:
                continue
            self._note("gradients", weight.grad)
            before, now = self._after_backward.get(weight, 0.0), _largest(weight.grad)
            if 0 < before < float("inf") and 0 < now < float("inf"):
                self._scale = before / now


def _largest(grad: Tensor) -> float:
    return grad.detach().abs().max().item()


def _names(dtypes: Iterable[torch.dtype]) -> str:
    return "/".join(sorted(get_format(dtype).name for dtype in dtypes))
