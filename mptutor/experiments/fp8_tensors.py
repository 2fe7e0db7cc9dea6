"""Real tensors to be rounded to FP8, and what rounding did to them.

The tensors are the operands of one layer of a small trained network, all of a matrix product's:
its weights, its input activations, the gradient of its output. The fourth is made: the activations
with one channel multiplied by 100,000. Trained language models have such channels by themselves.
Sun et al., *Massive Activations in Large Language Models* (2024, arXiv:2402.17762), found a few
activations 100,000 times larger than the others; this small network has none.

Two errors are measured, since each hides something. The *relative error* is the mean of
|x_q - x| / |x| over all values but zeros: every value counts alike, and one that is flushed counts
as 100 %. The *norm error* is ‖x_q - x‖ / ‖x‖: it weighs values by their size, so that as long as an
outlier is right, everything else may be lost unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mptutor.data import load
from mptutor.devices import pick_device
from mptutor.experiments.tasks import Task, adam, classify
from mptutor.fp8 import ScaledTensor
from mptutor.models import mlp

#: The layer whose operands are taken, in the middle of the network.
LAYER = "linear2"
WIDTHS = (784, 256, 256, 10)

#: The names of the tensors.
TENSORS = ("weights", "activations", "activations with outlier", "gradients")

OUTLIER_FACTOR = 100_000.0


@dataclass(frozen=True, eq=False)
class Operands:
    """The operands of one layer's products on one batch, in FP32.

    Attributes
    ----------
    weights
        ``[out, in]``.
    activations
        The layer's input, ``[batch, in]``.
    gradients
        Those of its output, ``[batch, out]``.
    outlier_channel
        The channel of `activations` that is never zero and has the largest mean.
    """

    weights: Tensor
    activations: Tensor
    gradients: Tensor
    outlier_channel: int

    def with_outlier(self, factor: float = OUTLIER_FACTOR) -> Tensor:
        """Return the activations with their outlier channel multiplied by ``factor``."""
        activations = self.activations.clone()
        activations[:, self.outlier_channel] *= factor
        return activations

    def named(self, outlier_factor: float = OUTLIER_FACTOR) -> dict[str, Tensor]:
        """Return the tensors under the names of `TENSORS`."""
        tensors = (self.weights, self.activations, self.with_outlier(outlier_factor))
        return dict(zip(TENSORS, (*tensors, self.gradients), strict=True))


@dataclass(frozen=True)
class Damage:
    """What rounding did to a tensor.

    Attributes
    ----------
    relative_error, norm_error
        Shares; see the module's docstring.
    flushed, saturated
        Shares of the values other than zero: those that became zero, and those clipped to the
        format's largest number.
    """

    relative_error: float
    norm_error: float
    flushed: float
    saturated: float


def measure_damage(x: Tensor, quantized: ScaledTensor) -> Damage:
    """Compare a tensor with what was made of it; all zero for a tensor of zeros."""
    is_nonzero = x != 0
    count = int(is_nonzero.sum())
    if not count:
        return Damage(0.0, 0.0, 0.0, 0.0)
    error = quantized.dequantize() - x
    too_large = (x * quantized.scale).abs() >= quantized.fmt.overflow_threshold
    return Damage(
        relative_error=(error / x)[is_nonzero].abs().mean(dtype=torch.float64).item(),
        norm_error=(error.double().norm() / x.double().norm()).item(),
        flushed=((quantized.values == 0) & is_nonzero).sum().item() / count,
        saturated=too_large.sum().item() / count,
    )


def fp8_task(device: torch.device | str | None = None, widths: Sequence[int] = WIDTHS) -> Task:
    """Return the task of training an MLP on the shipped images, with Adam at 1e-3, batch 128."""
    device = pick_device() if device is None else torch.device(device)
    data = load("fashion-mnist-5k", device=device)
    return classify("MLP", data, lambda: mlp(widths), adam(1e-3))


def train_and_watch(task: Task, seed: int, device: torch.device) -> Iterator[Operands]:
    """Train in FP32 without end; yield the operands of every step, those of its weights before."""
    model = task.build(seed).to(device)
    optimizer = task.optimizer(model.parameters())
    epoch = 0
    while True:
        for batch in task.batches(seed, epoch):
            optimizer.zero_grad()
            operands = _operands(model, lambda batch=batch: task.loss(model, batch)[0])
            optimizer.step()
            yield operands
        epoch += 1


def trained_operands(
    epochs: int = 1, seed: int = 0, device: torch.device | str | None = None
) -> Operands:
    """Train the MLP in FP32 for some epochs and return the operands of the step after."""
    device = pick_device() if device is None else torch.device(device)
    task = fp8_task(device)
    steps = train_and_watch(task, seed, device)
    for _ in range(epochs * task.steps_per_epoch):
        next(steps)
    return next(steps)


def _operands(model: nn.Sequential, loss: Callable[[], Tensor]) -> Operands:
    """Run forward and backward, and keep what goes into the products of `LAYER`."""
    layer = model.get_submodule(LAYER)
    kept: dict[str, Tensor] = {}

    def keep_gradient(grad: Tensor) -> None:
        kept["gradients"] = grad.detach()

    def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        kept["activations"] = inputs[0].detach()
        output.register_hook(keep_gradient)

    weights = layer.weight.detach().clone()
    handle = layer.register_forward_hook(hook)
    try:
        loss().backward()
    finally:
        handle.remove()
    activations = kept["activations"]
    is_never_zero = (activations != 0).all(0)
    channel = int((activations.mean(0) * is_never_zero).argmax())
    return Operands(weights, activations, kept["gradients"], channel)
