"""Gradients that travel: what becomes of them between two real processes.

Data parallel training gives each process, or *rank*, a part of the batch. Each computes gradients,
and before the optimizer runs they are averaged over all ranks, so that all take the same step. The
average is made by the network, in a dtype of its own: half the bits are half the bytes on the wire.
So a new question stands beside those of the lessons before: what do *these* bits lose?

* A sum over ranks is larger than its terms. In FP16 40,000 + 40,000 is infinite, although the mean
  fits. So divide first. Then small numbers become smaller before they are added, and flush.
* DDP (`DistributedDataParallel`) averages FP32 gradients in FP32. A *communication hook* changes
  what travels: ``fp16_compress_hook``, ``bf16_compress_hook``. It casts scaled gradients, so a loss
  scale that FP32 would bear can be too large for it.
* FSDP2 (`fully_shard`) keeps a part of every weight, gradient and optimizer state on each rank. Its
  `MixedPrecisionPolicy` has two dtypes: ``param_dtype`` to compute in, ``reduce_dtype`` to average
  gradients in. Weights and optimizer stay FP32.
* An inf on one rank must stop the step on all. Under DDP the average spreads it. Under FSDP2 it may
  lie in the part that one rank alone has, and whoever looks at their own part alone goes on.

Two processes on one machine talk over gloo. What is not seen here: time, and anything that comes
with hundreds of ranks, such as partial sums that are 16-bit several times over.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from mptutor.experiments.progress import Progress
from mptutor.experiments.result import Cell, Result
from mptutor.experiments.two_processes import ProcessError, launch


@dataclass(frozen=True)
class Mean:
    """One number on each of two ranks, averaged; `way` says in which order."""

    fmt: str
    way: str
    value: float
    mean: float


@dataclass(frozen=True)
class MeansResult(Result):
    """The mean of the same number on two ranks: it should be the number."""

    means: tuple[Mean, ...] = ()

    def table(self) -> list[dict[str, Cell]]:
        """Return a row for each format and way, a column for each number."""
        rows: dict[tuple[str, str], dict[str, Cell]] = {}
        for m in self.means:
            row = rows.setdefault((m.fmt, m.way), {"on the wire": m.fmt, "way": m.way})
            row[f"{_told(m.value)} on both"] = m.mean
        return list(rows.values())

    def of(self, fmt: str, way: str) -> dict[float, float]:
        """Return the mean of each number."""
        return {m.value: m.mean for m in self.means if (m.fmt, m.way) == (fmt, way)}


def _told(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"2^{math.log2(value):g}"


@dataclass(frozen=True)
class Averaged:
    """The gradients of one backward pass, averaged over the ranks, beside FP32's.

    Attributes
    ----------
    by, setting
        ``"DDP"`` and the name of its hook, or ``"FSDP2"`` and its policy.
    computed_in, wire
        Formats of the matrix products, and of gradients on the wire.
    wire_bytes
        Of all gradients of one rank.
    loss_scale
        What the loss was multiplied by.
    relative_error
        Norm of the difference over norm of the FP32 gradients, after unscaling; inf or NaN if any
        gradient is.
    weights
        Dtype of the weights that the optimizer sees.
    """

    by: str
    setting: str
    computed_in: str
    wire: str
    wire_bytes: int
    loss_scale: float
    relative_error: float
    weights: str

    @property
    def finite(self) -> bool:
        """Whether all gradients are."""
        return math.isfinite(self.relative_error)


@dataclass(frozen=True)
class GradientsResult(Result):
    """Gradients averaged in all ways, at all scales."""

    averaged: tuple[Averaged, ...] = ()

    def table(self) -> list[dict[str, Cell]]:
        """Return a row for each way and scale."""
        return [
            {
                "by": a.by,
                "setting": a.setting,
                "computed in": a.computed_in,
                "on the wire": a.wire,
                "kB": a.wire_bytes / 1e3,
                "loss ×": f"2^{math.log2(a.loss_scale):g}",
                "relative error": a.relative_error,
                "finite": a.finite,
            }
            for a in self.averaged
        ]

    def by(self, by: str) -> GradientsResult:
        """Return those of DDP or FSDP2 alone."""
        return GradientsResult(tuple(a for a in self.averaged if a.by == by))


@dataclass(frozen=True)
class Skip:
    """What two ranks did about an inf on one of them.

    `scales` and `stepped` have an entry for each rank: the scale after the step, and whether its
    weights moved.
    """

    loop: str
    scale_before: float
    scales: tuple[float, ...]
    stepped: tuple[bool, ...]

    @property
    def together(self) -> bool:
        """Whether all ranks did the same."""
        return len(set(self.scales)) == len(set(self.stepped)) == 1


@dataclass(frozen=True)
class SkipsResult(Result):
    """What each loop made of an inf on rank 1 alone."""

    skips: tuple[Skip, ...] = ()

    def table(self) -> list[dict[str, Cell]]:
        """Return a row for each loop."""
        return [
            {
                "loop": s.loop,
                "scale before": s.scale_before,
                **{f"rank {rank}: scale": scale for rank, scale in enumerate(s.scales)},
                **{f"rank {rank}: stepped": moved for rank, moved in enumerate(s.stepped)},
                "together": s.together,
            }
            for s in self.skips
        ]

    def of(self, loop: str) -> Skip:
        """Return what one loop did."""
        return next(s for s in self.skips if s.loop == loop)


@dataclass(frozen=True)
class DistributedResult(Result):
    """What two processes found out, or in `problem` why there are none.

    With a problem the other parts are empty.
    """

    problem: str = ""
    backend: str = ""
    ranks: int = 0
    means: MeansResult = MeansResult()
    gradients: GradientsResult = GradientsResult()
    skips: SkipsResult = SkipsResult()

    @property
    def headline(self) -> str:
        """Where it ran, or why not."""
        return self.problem or f"{self.ranks} processes, over {self.backend}"

    def table(self) -> list[dict[str, Cell]]:
        """Return a row for each part, with the number of its entries."""
        parts = {
            "means": self.means.means,
            "gradients": self.gradients.averaged,
            "skips": self.skips.skips,
        }
        return [{"part": name, "measured": len(entries)} for name, entries in parts.items()]


def run_distributed(
    *,
    timeout_s: float = 180.0,
    progress: Progress = True,
    stop: Callable[[], bool] | None = None,
) -> DistributedResult:
    """Start two processes on `mptutor.experiments.distributed_worker` and return what they found.

    They run on the CPU, whatever the machine, and most of the time they import torch. Where they
    cannot be started, fail, are stopped or interrupted, or are not done in `timeout_s` seconds, the
    result says so in a sentence. None is left behind.
    """
    worker = "mptutor.experiments.distributed_worker:measure"
    try:
        text = launch(worker, timeout_s=timeout_s, progress=progress, stop=stop)
        return DistributedResult.from_json(text)
    except ProcessError as error:
        return DistributedResult(problem=str(error))
    except KeyboardInterrupt:
        return DistributedResult(problem="The processes were interrupted before they were done.")
