"""Where a real network's gradients lie, layer by layer.

Mixed precision computes two kinds of gradients in 16 bits: those of a layer's output, which
backward hands from layer to layer, and those of its weights, which the optimizer gets (widened to
FP32 by then; what was lost stays lost).  Both are counted here, for every layer that has weights,
from one backward pass in FP32, so that what a format would lose is still there to be counted.

What shows depends on the network.  In eight sigmoid layers gradients shrink on their way back, by
about four to ten times a layer, and in the lower half none would survive in FP16.  A small CNN
loses a tenth and is none the worse for it: a census says what is lost, not whether it mattered.
Gradients that are zero in FP32 (behind a ReLU or a pooling, a large share) are counted apart; no
scale can save them.

The published figures of this kind are from Micikevicius et al., *Mixed Precision Training*, ICLR
2018, section 3.2: Multibox SSD, where 67 % of the activation gradients were zero in FP16, and
section 3.1, where about 5 % of a speech model's weight gradients were.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mptutor.census import ExponentCensus, take_census
from mptutor.data import load
from mptutor.devices import pick_device
from mptutor.experiments.deep_sigmoid import deep_sigmoid
from mptutor.experiments.result import Cell, Result
from mptutor.experiments.tasks import Task, adam, classify
from mptutor.formats import FP16
from mptutor.models import mlp, small_cnn

#: The networks whose gradients can be counted: title, and how to build one for 28 x 28 images.
NETWORKS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "sigmoid": ("8 sigmoid layers", deep_sigmoid),
    "cnn": ("small CNN", lambda: small_cnn((1, 28, 28))),
    "mlp": ("MLP", mlp),
}
KINDS = ("outputs", "weights")


@dataclass(frozen=True)
class LayerGradients:
    """The gradients of one layer: of its output, and of all its weights in one flat tensor."""

    outputs: Tensor
    weights: Tensor


@dataclass(frozen=True)
class LayerCensus:
    """The gradients of one layer, counted."""

    layer: str
    outputs: ExponentCensus
    weights: ExponentCensus


@dataclass(frozen=True)
class GradientCensusResult(Result):
    """The gradients of one network on one batch: the next that its training would see.

    Attributes
    ----------
    network, data, device
        What, on what, where.
    epochs, seed, batch_size
        How long it had been trained, in FP32, with Adam at 1e-3.
    layers
        From the input to the loss.
    """

    network: str
    data: str
    device: str
    epochs: int
    seed: int
    batch_size: int
    layers: tuple[LayerCensus, ...]

    def census(self, kind: str | None = None, layer: str | None = None) -> ExponentCensus:
        """Return the gradients of a kind, ``"outputs"`` or ``"weights"``, of a layer; or of all."""
        if kind not in (None, *KINDS):
            raise ValueError(f"kind: got {kind!r}, allowed are {', '.join(KINDS)} and None")
        names = [row.layer for row in self.layers]
        if layer not in (None, *names):
            raise ValueError(f"layer: got {layer!r}, allowed are {', '.join(names)} and None")
        rows = [row for row in self.layers if layer in (None, row.layer)]
        kinds = KINDS if kind is None else (kind,)
        return sum((getattr(row, k) for row in rows for k in kinds), ExponentCensus())

    @property
    def headline(self) -> str:
        """What was counted."""
        epochs = f"{self.epochs} epoch" + ("s" if self.epochs > 1 else "")
        age = f"after {epochs}" if self.epochs else "before training"
        return f"{self.network} on {self.data} {age}: gradients in FP32, flushed by FP16 unscaled"

    def table(self) -> list[dict[str, Cell]]:
        """Return a row for every layer, with what FP16 would make of its gradients."""
        return [{"layer": row.layer, **_said(row)} for row in self.layers]


def run_gradient_census(
    network: str = "sigmoid",
    *,
    epochs: int = 0,
    seed: int = 0,
    quick: bool = False,
    device: torch.device | str | None = None,
) -> GradientCensusResult:
    """Train a network in FP32 for some epochs and count the gradients of one batch.

    Parameters
    ----------
    network
        One of `NETWORKS`.
    epochs
        How long to train first; 0 counts the gradients of the first step.
    seed
        Of the weights and the order of the images.
    quick
        One epoch at most.
    device
        Where; the default is `pick_device()`.
    """
    device = pick_device() if device is None else torch.device(device)
    epochs = min(epochs, 1) if quick else epochs
    model, loss = network_and_loss(network, epochs=epochs, seed=seed, device=device)
    task = task_of(network, device)
    gradients = layer_gradients(model, loss)
    return GradientCensusResult(
        network=task.name,
        data=task.data,
        device=str(device),
        epochs=epochs,
        seed=seed,
        batch_size=task.batch_size,
        layers=tuple(
            LayerCensus(name, take_census(grad.outputs), take_census(grad.weights))
            for name, grad in gradients.items()
        ),
    )


def network_and_loss(
    network: str = "sigmoid",
    *,
    epochs: int = 0,
    seed: int = 0,
    device: torch.device | str | None = None,
) -> tuple[nn.Module, Callable[[], Tensor]]:
    """Return a network, trained for some epochs, and a function that computes its loss.

    The loss is that of the batch which training would see next.
    """
    device = pick_device() if device is None else torch.device(device)
    task = task_of(network, device)
    model = task.build(seed).to(device)
    optimizer = task.optimizer(model.parameters())
    for epoch in range(epochs):
        for batch in task.batches(seed, epoch):
            optimizer.zero_grad()
            task.loss(model, batch)[0].backward()
            optimizer.step()
    batch = next(task.batches(seed, epochs))
    return model, lambda: task.loss(model, batch)[0]


def task_of(network: str, device: torch.device | str | None = None) -> Task:
    """Return the task of training one of `NETWORKS`, with Adam at 1e-3, batch 128."""
    if network not in NETWORKS:
        raise ValueError(f"network: got {network!r}, allowed are {', '.join(NETWORKS)}")
    title, build = NETWORKS[network]
    data = load("fashion-mnist-5k", device=device or "cpu")
    return classify(title, data, build, adam(1e-3))


def layer_gradients(model: nn.Module, loss: Callable[[], Tensor]) -> dict[str, LayerGradients]:
    """Run forward and backward; return the gradients of every layer that has weights, by name.

    Layers of an `nn.Sequential` without names are called ``linear1``, ``conv2d2`` and so on.
    """
    layers = _layers_with_weights(model)
    of_outputs: dict[str, Tensor] = {}

    def watch(name: str) -> Callable[..., None]:
        def keep(grad: Tensor) -> None:
            of_outputs[name] = grad

        def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            output.register_hook(keep)

        return hook

    handles = [layer.register_forward_hook(watch(name)) for name, layer in layers.items()]
    model.zero_grad(set_to_none=True)
    try:
        loss().backward()
    finally:
        for handle in handles:
            handle.remove()
    return {
        name: LayerGradients(of_outputs[name], torch.cat([p.grad.flatten() for p in _own(layer)]))
        for name, layer in layers.items()
    }


def _layers_with_weights(model: nn.Module) -> dict[str, nn.Module]:
    layers = [(name, layer) for name, layer in model.named_modules() if _own(layer)]
    return {
        f"{type(layer).__name__.lower()}{number}" if name.isdigit() else name: layer
        for number, (name, layer) in enumerate(layers, 1)
    }


def _own(layer: nn.Module) -> list[nn.Parameter]:
    return list(layer.parameters(recurse=False))


def _said(row: LayerCensus) -> dict[str, Cell]:
    outputs, weights = row.outputs, row.weights
    return {
        "outputs": outputs.total,
        "zero in FP32 %": _percent(outputs.zeros, outputs.total),
        "flushed %": _percent(outputs.flushed(FP16), outputs.nonzero),
        "weights": weights.total,
        "weights flushed %": _percent(weights.flushed(FP16), weights.nonzero),
    }


def _percent(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None
