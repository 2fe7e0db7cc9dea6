"""What the FP8 experiments found: the errors of one tensor, and those of many steps."""

from __future__ import annotations

from dataclasses import dataclass

from mptutor.experiments.fp8_tensors import Damage
from mptutor.experiments.result import Cell, Result
from mptutor.formats import FloatFormat
from mptutor.fp8 import GRANULARITIES

#: How a scale is chosen from step to step.
WAYS = ("current", "delayed, max", "delayed, most recent")

_HEADINGS = {
    "none": "no scale",
    "tensor": "per tensor",
    "row": "per row",
    "block": "per block",
}


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
