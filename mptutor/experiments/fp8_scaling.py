"""What FP8 does to real tensors, and what scales save.

`run_fp8_errors` rounds the operands of a trained layer to FP8 and narrower formats, unscaled and
with a scale for the tensor, for each row, for each block of 32 values. Things to look for:

* Weights and activations of about 1 need no scale in FP8. Gradients do: unscaled, E4M3 makes zero
  of every one.
* Once scaled, E5M2 is twice as far off as E4M3. It has a mantissa bit less, and the error of a
  value that is not subnormal depends on nothing else. Why gradients are given E5M2 all the same
  (Micikevicius et al., *FP8 Formats for Deep Learning*, 2022, arXiv:2209.05433, section 3) is
  range: it spans 32 binades to E4M3's 18, and gradients are spread wider than weights.
* An outlier channel takes the top of the range, and with one scale for the tensor most of the rest
  falls off its bottom in E4M3. A scale for each row helps little, since each row has the outlier in
  it. Blocks confine the damage to the outlier's 31 neighbours.

`run_delayed_scaling` compares current with delayed scaling while the gradients of a real training
jump: at one step they are many times larger, and later they become and stay larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from mptutor.devices import pick_device
from mptutor.experiments.fp8_tensors import (
    OUTLIER_FACTOR,
    Damage,
    fp8_task,
    measure_damage,
    train_and_watch,
    trained_operands,
)
from mptutor.experiments.result import Cell, Result
from mptutor.formats import FP4_E2M1, FP6_E2M3, FP6_E3M2, FP8_E4M3, FP8_E5M2, FloatFormat
from mptutor.fp8 import BLOCK_SIZE, GRANULARITIES, DelayedScale, amax_of, quantize_scaled

FORMATS = (FP8_E4M3, FP8_E5M2, FP6_E2M3, FP6_E3M2, FP4_E2M1)

#: Bits that a scale is stored in: FP32 for rows and tensors, E8M0 for blocks.
_SCALE_BITS = {"none": 0, "tensor": 32, "row": 32, "block": 8}

_HEADINGS = {
    "none": "no scale",
    "tensor": "per tensor",
    "row": "per row",
    "block": "per block",
}

#: How a scale is chosen from step to step.
WAYS = ("current", "delayed, max", "delayed, most recent")


# -- one tensor, every format and granularity ------------------------------------------------------


@dataclass(frozen=True)
class QuantizationError:
    """One tensor in one format with one kind of scale.

    Attributes
    ----------
    tensor, fmt, granularity
        Which.
    damage
        What rounding did.
    scales
        How many scales the tensor got.
    bits_per_value
        The format's bits, and each value's share of the scales' bits.
    """

    tensor: str
    fmt: str
    granularity: str
    damage: Damage
    scales: int
    bits_per_value: float


@dataclass(frozen=True)
class Fp8ErrorsResult(Result):
    """The damage that every format and kind of scale does to the tensors of a trained layer."""

    network: str
    data: str
    device: str
    epochs: int
    seed: int
    outlier_factor: float
    shapes: dict[str, tuple[int, ...]]
    errors: tuple[QuantizationError, ...]

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of the tensors."""
        return tuple(self.shapes)

    @property
    def formats(self) -> tuple[str, ...]:
        """The names of the formats."""
        return tuple(dict.fromkeys(error.fmt for error in self.errors))

    def of(
        self, tensor: str, fmt: FloatFormat | str = "FP8_E4M3", granularity: str = "tensor"
    ) -> QuantizationError:
        """Return what became of a tensor in a format with a kind of scale."""
        for error in self.errors:
            if (error.tensor, error.fmt, error.granularity) == (tensor, str(fmt), granularity):
                return error
        raise ValueError(
            f"tensor, fmt, granularity: got {tensor!r}, {str(fmt)!r}, {granularity!r}; this result "
            f"has {', '.join(self.tensors)}; {', '.join(self.formats)}; {', '.join(GRANULARITIES)}"
        )

    @property
    def headline(self) -> str:
        """What was rounded."""
        epochs = f"{self.epochs} epoch" + ("s" if self.epochs > 1 else "")
        return (
            f"{self.network} on {self.data} after {epochs}: mean relative error in %, "
            "values other than zero"
        )

    def table(self) -> list[dict[str, Cell]]:
        """Return a row for every tensor and format: the relative error for each kind of scale."""
        return self.shares("relative_error")

    def shares(self, what: str) -> list[dict[str, Cell]]:
        """Return a row for every tensor and format: a share of `Damage`, in %, for each scale."""
        return [
            {"values": tensor, "format": fmt}
            | {
                _HEADINGS[g]: 100 * getattr(self.of(tensor, fmt, g).damage, what)
                for g in GRANULARITIES
            }
            for tensor in self.tensors
            for fmt in self.formats
        ]


def run_fp8_errors(
    *,
    formats: Sequence[FloatFormat] = FORMATS,
    outlier_factor: float = OUTLIER_FACTOR,
    epochs: int = 1,
    seed: int = 0,
    quick: bool = False,
    device: torch.device | str | None = None,
) -> Fp8ErrorsResult:
    """Round the weights, activations and gradients of a trained layer in every way.

    Parameters
    ----------
    formats
        The formats to round to.
    outlier_factor
        What the outlier channel of the activations is multiplied by.
    epochs, seed
        How long the network is trained before, in FP32, and from which seed.
    quick
        The two FP8 formats alone.
    device
        Where; the default is `pick_device()`.
    """
    device = pick_device() if device is None else torch.device(device)
    formats = (FP8_E4M3, FP8_E5M2) if quick else formats
    tensors = trained_operands(epochs, seed, device).named(outlier_factor)
    task = fp8_task(device)
    return Fp8ErrorsResult(
        network=task.name,
        data=task.data,
        device=str(device),
        epochs=epochs,
        seed=seed,
        outlier_factor=outlier_factor,
        shapes={name: tuple(x.shape) for name, x in tensors.items()},
        errors=tuple(
            quantization_error(name, x, fmt, granularity)
            for name, x in tensors.items()
            for fmt in formats
            for granularity in GRANULARITIES
        ),
    )


def quantization_error(
    name: str, x: Tensor, fmt: FloatFormat, granularity: str
) -> QuantizationError:
    """Round one tensor, ``[rows, n]``, and measure what that did."""
    quantized = quantize_scaled(x, fmt, granularity)
    rows, columns = x.shape
    blocks = rows * -(-columns // BLOCK_SIZE)
    scales = {"none": 0, "tensor": 1, "row": rows, "block": blocks}[granularity]
    return QuantizationError(
        tensor=name,
        fmt=fmt.name,
        granularity=granularity,
        damage=measure_damage(x, quantized),
        scales=scales,
        bits_per_value=fmt.bits + scales * _SCALE_BITS[granularity] / x.numel(),
    )


# -- many steps, current and delayed scales --------------------------------------------------------


@dataclass(frozen=True)
class ScalingTrace:
    """The scales of one way, step by step, and the damage done at each."""

    way: str
    fmt: str
    scales: tuple[float, ...]
    damages: tuple[Damage, ...]


@dataclass(frozen=True)
class DelayedScalingResult(Result):
    """Gradients of a training that jump, rounded with current and with delayed scales.

    Attributes
    ----------
    network, data, device, seed
        Whose gradients, from where.
    length
        Steps that the delayed scales remember.
    factor
        What the gradients are multiplied by at `spike_at`, and from `jump_at` on.
    amaxes
        The largest magnitude at each step, the factor included.
    traces
        One for each format and way.
    """

    network: str
    data: str
    device: str
    seed: int
    length: int
    factor: float
    spike_at: int
    jump_at: int
    amaxes: tuple[float, ...]
    traces: tuple[ScalingTrace, ...]

    @property
    def formats(self) -> tuple[str, ...]:
        """The names of the formats."""
        return tuple(dict.fromkeys(trace.fmt for trace in self.traces))

    def of(self, way: str, fmt: FloatFormat | str = "FP8_E4M3") -> ScalingTrace:
        """Return the trace of a way and a format."""
        for trace in self.traces:
            if (trace.way, trace.fmt) == (way, str(fmt)):
                return trace
        raise ValueError(
            f"way, fmt: got {way!r}, {str(fmt)!r}; this result has {', '.join(WAYS)} and "
            f"{', '.join(self.formats)}"
        )

    @property
    def headline(self) -> str:
        """What was rounded, and when it jumped."""
        return (
            f"{self.network} on {self.data}: gradients of {len(self.amaxes)} steps, x "
            f"{self.factor:g} at step {self.spike_at} and from step {self.jump_at} on, history of "
            f"{self.length}"
        )

    def table(self) -> list[dict[str, Cell]]:
        """Return a row for every format and way: mean errors of the phases, and what was clipped.

        The phases: ``before`` the spike without the first step, for which a delayed scale has no
        history, ``at the spike``, the `length` steps ``after the spike``, ``at the jump`` and
        ``after the jump``.
        """
        return [self._row(trace) for trace in self.traces]

    def phase(self, name: str) -> range:
        """Return the steps of a phase, by its heading in the table."""
        spike, jump = self.spike_at, self.jump_at
        phases = {
            "before": range(1, spike),
            "at the spike": range(spike, spike + 1),
            "after the spike": range(spike + 1, min(spike + 1 + self.length, jump)),
            "at the jump": range(jump, jump + 1),
            "after the jump": range(jump + 1, len(self.amaxes)),
        }
        if name not in phases:
            raise ValueError(f"name: got {name!r}, allowed are {', '.join(phases)}")
        return phases[name]

    def mean(self, trace: ScalingTrace, phase: str, what: str = "relative_error") -> float:
        """Return the mean over a phase of a share of `Damage`."""
        steps = self.phase(phase)
        return sum(getattr(trace.damages[step], what) for step in steps) / len(steps)

    def _row(self, trace: ScalingTrace) -> dict[str, Cell]:
        phases = ("before", "at the spike", "after the spike", "at the jump", "after the jump")
        errors = {f"{name} %": 100 * self.mean(trace, name) for name in phases}
        clipped = 100 * self.mean(trace, "at the spike", "saturated")
        return {
            "format": trace.fmt,
            "scale": trace.way,
            **errors,
            "clipped at the spike %": clipped,
        }


def run_delayed_scaling(
    *,
    formats: Sequence[FloatFormat] = (FP8_E4M3, FP8_E5M2),
    length: int = 8,
    factor: float = 256.0,
    steps: int = 40,
    seed: int = 0,
    quick: bool = False,
    device: torch.device | str | None = None,
) -> DelayedScalingResult:
    """Round the gradients of the first steps of a training, which jump twice.

    Parameters
    ----------
    formats
        The formats to round to.
    length
        Steps that a delayed scale remembers. (Transformer Engine's default is 1024.)
    factor
        What the gradients of one step, and those of the last third of the steps, are multiplied by.
    steps
        How many steps, at least 8.
    seed
        Of the training.
    quick
        16 steps, a history of 4.
    device
        Where; the default is `pick_device()`.

    Raises
    ------
    ValueError
        If ``steps`` is below 8.
    """
    if steps < 8:
        raise ValueError(f"steps: got {steps}, allowed are 8 and more")
    device = pick_device() if device is None else torch.device(device)
    steps, length = (16, 4) if quick else (steps, length)
    spike_at, jump_at = steps // 4, 2 * steps // 3
    task = fp8_task(device)
    watched = islice(train_and_watch(task, seed, device), steps)
    gradients = [
        operands.gradients * (factor if step == spike_at or step >= jump_at else 1.0)
        for step, operands in enumerate(watched)
    ]
    return DelayedScalingResult(
        network=task.name,
        data=task.data,
        device=str(device),
        seed=seed,
        length=length,
        factor=factor,
        spike_at=spike_at,
        jump_at=jump_at,
        amaxes=tuple(amax_of(grad).item() for grad in gradients),
        traces=tuple(_trace(gradients, way, fmt, length) for fmt in formats for way in WAYS),
    )


def _trace(gradients: list[Tensor], way: str, fmt: FloatFormat, length: int) -> ScalingTrace:
    algorithm = "most_recent" if way == "delayed, most recent" else "max"
    state = DelayedScale(fmt, length=length, algorithm=algorithm)
    scales, damages = [], []
    for grad in gradients:
        quantized = quantize_scaled(grad, fmt) if way == "current" else state.quantize(grad)
        state = state.after(amax_of(grad).item())
        scales.append(quantized.scale.item())
        damages.append(measure_damage(grad, quantized))
    return ScalingTrace(way, fmt.name, tuple(scales), tuple(damages))
