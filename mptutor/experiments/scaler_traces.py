"""What a loss scaler does over a training: its scale, its skips, and where the weights end up.

A small network is trained in AMP FP16 with any scaler that has GradScaler's four calls, and after
every step its scale is written down, and whether the optimizer ran. Run twice with two scalers, the
traces can be compared step by step, and the weights bit by bit.

Overflow is real here and not injected: an init scale far too high makes the first steps overflow,
a batch of images a thousand times too bright (a broken file, a missing normalization) makes one
step overflow later. The largest gradient of each step is kept too. In FP16 a step overflows when
that gradient times the scale reaches 65520, so a simulation can ask what any other scaler would
have done: nearly exactly, since in a real run a skipped step changes the next gradients.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mptutor.data import batches, load
from mptutor.devices import pick_device
from mptutor.experiments.progress import Progress, do_in_turn
from mptutor.experiments.recipes import AMP_FP16
from mptutor.experiments.result import Cell, Result
from mptutor.experiments.tasks import order_seed, seeded
from mptutor.models import mlp

#: How much brighter than it should be a broken batch is.
BROKEN_BRIGHTNESS = 1000.0

_IMAGES_A_STEP = 64


class Scaler(Protocol):
    """What a training loop asks of a scaler; GradScaler's interface."""

    def scale(self, outputs: Tensor) -> Tensor: ...  # noqa: D102
    def step(self, optimizer: torch.optim.Optimizer) -> Any: ...  # noqa: D102
    def update(self) -> None: ...  # noqa: D102
    def get_scale(self) -> float: ...  # noqa: D102


@dataclass(frozen=True)
class ScalerTrace:
    """One training with one scaler.

    Attributes
    ----------
    name
        The scaler's.
    scales
        The scale that each step used.
    skipped
        Whether each step left the optimizer out.
    losses
        Unscaled.
    largest_gradients
        The largest magnitude among the gradients of all layers' outputs and weights, unscaled; inf
        where one overflowed, or NaN where it went on into others.
    final_scale
        The scale after the last step.
    weights_hash
        SHA-256 of the final weights' bytes: equal if and only if every bit is.
    """

    name: str
    scales: tuple[float, ...]
    skipped: tuple[bool, ...]
    losses: tuple[float, ...]
    largest_gradients: tuple[float, ...]
    final_scale: float
    weights_hash: str


@dataclass(frozen=True)
class ScalerTraceResult(Result):
    """The same training with several scalers; ``broken_steps`` had a batch that is too bright.

    ``finished`` is False if the trainings were stopped; ``traces`` has those that had ended.
    """

    device: str
    broken_steps: tuple[int, ...]
    traces: tuple[ScalerTrace, ...]
    finished: bool = True

    def of(self, name: str) -> ScalerTrace:
        """Return the trace of one scaler."""
        for trace in self.traces:
            if trace.name == name:
                return trace
        raise ValueError(f"name: got {name!r}, allowed are {[t.name for t in self.traces]}")

    def table(self) -> list[dict[str, Cell]]:
        """Return a row for every scaler."""
        return [
            {
                "scaler": trace.name,
                "steps": len(trace.scales),
                "skipped": sum(trace.skipped),
                "first scale": _as_power(trace.scales[0]),
                "final scale": _as_power(trace.final_scale),
                "final loss": trace.losses[-1],
                "hash of the weights": trace.weights_hash[:8],
            }
            for trace in self.traces
        ]


def _as_power(scale: float) -> str:
    return f"2^{math.log2(scale):g}" if scale > 0 else "0"


def run_scaler_traces(
    scalers: Mapping[str, Callable[[], Scaler]],
    *,
    steps: int = 150,
    broken_steps: Sequence[int] = (60, 61, 110),
    seed: int = 0,
    quick: bool = False,
    device: torch.device | str | None = None,
    progress: Progress = True,
    stop: Callable[[], bool] | None = None,
) -> ScalerTraceResult:
    """Train the same MLP on the same batches in AMP FP16 with each scaler.

    Parameters
    ----------
    scalers
        Name -> a function that makes a fresh scaler.
    steps, broken_steps
        How many, counted from 0, and which of them get images that are too bright.
    seed
        Of the weights and the order of the images.
    quick
        A third of the steps.
    device
        Where; the default is `pick_device()`.
    progress, stop
        Told a `Stage` before each training; asked before each. Once `stop` says True, or on an
        interrupt from the keyboard, the traces of those that have ended are returned.
    """
    device = pick_device() if device is None else torch.device(device)
    if quick:
        steps, broken_steps = steps // 3, [step // 3 for step in broken_steps]

    def trace(name: str) -> ScalerTrace:
        return trace_scaler(
            scalers[name](),
            name=name,
            steps=steps,
            broken_steps=broken_steps,
            seed=seed,
            device=device,
        )

    traces, finished = do_in_turn(
        [(name, partial(trace, name)) for name in scalers], progress, stop
    )
    return ScalerTraceResult(str(device), tuple(broken_steps), traces, finished=finished)


def trace_scaler(
    scaler: Scaler,
    *,
    name: str = "",
    steps: int = 150,
    broken_steps: Sequence[int] = (),
    seed: int = 0,
    widths: Sequence[int] = (784, 512, 512, 10),
    device: torch.device | str = "cpu",
) -> ScalerTrace:
    """Train an MLP of these widths in AMP FP16 with one scaler and write down what it does."""
    device = torch.device(device)
    model = seeded(lambda: mlp(widths), seed).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    watch = _LargestGradient(model)
    ran: list[bool] = []
    optimizer.register_step_post_hook(lambda *_: ran.append(True))
    scales, skipped, losses, largest = [], [], [], []
    with AMP_FP16.arithmetic(device):
        for step, (images, labels) in enumerate(islice(_stream(seed, device), steps)):
            optimizer.zero_grad()
            if step in broken_steps:
                images = images * BROKEN_BRIGHTNESS
            with AMP_FP16.autocast_on(device):
                loss = F.cross_entropy(model(images), labels)
            scales.append(float(scaler.get_scale()))
            scaler.scale(loss).backward()
            largest.append(watch.read() / scales[-1] if scales[-1] else 0.0)
            ran.clear()
            scaler.step(optimizer)
            skipped.append(not ran)
            scaler.update()
            losses.append(loss.item())
    final_scale = float(scaler.get_scale())
    return ScalerTrace(
        name,
        tuple(scales),
        tuple(skipped),
        tuple(losses),
        tuple(largest),
        final_scale,
        hash_of(model),
    )


def _stream(seed: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches for ever, each epoch in an order of its own."""
    train = load("fashion-mnist-5k", device=device).train
    epoch = 0
    while True:
        for images, labels in batches(train, _IMAGES_A_STEP, seed=order_seed(seed, epoch)):
            yield images.flatten(1), labels
        epoch += 1


def hash_of(model: nn.Module) -> str:
    """Return the SHA-256 of the weights' bytes: equal if and only if every bit is."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


class _LargestGradient:
    """Reads off, after a backward pass, the largest gradient that passed through a model."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._of_outputs: list[Tensor] = []
        for layer in model.children():
            layer.register_forward_hook(self._watch_output)

    def _watch_output(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda grad: self._of_outputs.append(grad.abs().amax().float()))

    def read(self) -> float:
        of_weights = [p.grad.abs().amax() for p in self._model.parameters() if p.grad is not None]
        largest = torch.stack([*self._of_outputs, *of_weights]).amax().item()
        self._of_outputs.clear()
        return largest
