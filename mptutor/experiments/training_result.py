"""What training by recipe found: a record for every run, and what the seeds agree on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields

from mptutor.experiments.result import Cell, Result


@dataclass(frozen=True)
class EpochRecord:
    """One epoch of one run.

    Attributes
    ----------
    loss
        Mean over the epoch's steps.
    terms
        Means of the watched terms of the loss.
    accuracy
        On the test images after the epoch, 0 to 1; None if the task has none.
    scale
        Loss scale after the epoch; 1.0 without a scaler.
    skips
        Steps of this epoch that the scaler kept the optimizer from taking.
    share_flushed
        Of the gradients of all layers' outputs that FP32 finds to be other than zero, the share
        that the recipe's format at this scale would turn into zero; measured on one batch after the
        epoch.  None if the weights are no longer finite.
    """

    loss: float
    terms: dict[str, float]
    accuracy: float | None
    scale: float
    skips: int
    share_flushed: float | None

    def value(self, what: str) -> float | None:
        """Return a quantity by its name: that of a field, or of a term."""
        if what in self.terms:
            return self.terms[what]
        known = [field.name for field in fields(self) if field.name != "terms"]
        if what not in known:
            raise ValueError(f"what: got {what!r}, allowed are {', '.join([*known, *self.terms])}")
        return getattr(self, what)


@dataclass(frozen=True)
class Run:
    """One training of one model by one recipe.

    Attributes
    ----------
    recipe, seed
        Which.
    losses
        The loss of every step.
    epochs
        Complete epochs, and the one in which the loss ceased to be finite.
    diverged_at_step
        The step, counted from 1, from which on the loss is infinite or NaN; the run then ends.
    finished
        False if it was stopped before its last epoch.
    step_ms
        Median time of a step without loading and evaluating; None if too few were run.
    peak_bytes
        Weights, optimizer state and all that one more step needed at its peak.
    share_moved
        Of the weights that the optimizer updates, the share that one more step changed.
    """

    recipe: str
    seed: int
    losses: tuple[float, ...]
    epochs: tuple[EpochRecord, ...]
    diverged_at_step: int | None
    finished: bool
    step_ms: float | None
    peak_bytes: int | None
    share_moved: float | None

    @property
    def skips(self) -> int:
        """Skipped steps in all complete epochs."""
        return sum(epoch.skips for epoch in self.epochs)

    def last(self, what: str) -> float | None:
        """Return a field or a term of the last epoch's record."""
        return self.epochs[-1].value(what) if self.epochs else None


@dataclass(frozen=True)
class Spread:
    """The mean over seeds and their standard deviation (0 for a single seed)."""

    mean: float
    std: float
    seeds: int

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "NaN"
        return f"{self.mean:.4g}" + (f" ± {self.std:.2g}" if self.seeds > 1 else "")


@dataclass(frozen=True)
class TrainingResult(Result):
    """Trainings of the same task by several recipes.

    Attributes
    ----------
    task, data, optimizer
        What was trained, on what, and by what, such as ``"Adam(lr=0.001)"``.
    device, threads
        Where, and on a CPU with how many threads.  There the 16-bit arithmetic is that of
        `mptutor.simulate_amp`, and so are the times.
    epochs_wanted, steps_per_epoch, batch_size
        How long.
    runs
        In the order seed, recipe.
    finished
        False if it was stopped; the runs then hold what had been done.
    """

    task: str
    data: str
    optimizer: str
    device: str
    threads: int
    epochs_wanted: int
    steps_per_epoch: int
    batch_size: int
    runs: tuple[Run, ...]
    finished: bool

    @property
    def recipes(self) -> tuple[str, ...]:
        """The names of the recipes, in the order in which they were given."""
        return tuple(dict.fromkeys(run.recipe for run in self.runs))

    @property
    def terms(self) -> tuple[str, ...]:
        """The names of the watched terms of the loss."""
        return tuple(dict.fromkeys(t for run in self.runs for e in run.epochs for t in e.terms))

    @property
    def headline(self) -> str:
        """What was trained, in a line."""
        seeds = len({run.seed for run in self.runs})
        where = self.device
        if where == "cpu":
            where += (
                f" ({self.threads} {'thread' if self.threads == 1 else 'threads'}, simulated AMP)"
            )
        return (
            f"{self.task} on {self.data}: {self.optimizer}, batch {self.batch_size}, "
            f"{self.epochs_wanted} x {self.steps_per_epoch} steps, "
            f"{seeds} {'seed' if seeds == 1 else 'seeds'}, {where}"
            f"{'' if self.finished else ', stopped early'}"
        )

    def of(self, recipe: str) -> tuple[Run, ...]:
        """Return the runs of one recipe, one for each seed."""
        runs = tuple(run for run in self.runs if run.recipe == recipe)
        if not runs:
            raise ValueError(f"recipe: got {recipe!r}, this result has {', '.join(self.recipes)}")
        return runs

    def spread(self, recipe: str, what: str) -> Spread | None:
        """Return mean and spread over the seeds of what `Run.last` gives."""
        return _spread([run.last(what) for run in self.of(recipe)])

    def table(self) -> list[dict[str, Cell]]:
        """Return a row for every recipe, without columns that would be empty."""
        rows = [self._row(recipe) for recipe in self.recipes]
        used = [
            heading
            for heading in next(iter(rows), {})
            if any(row[heading] is not None for row in rows)
        ]
        return [{heading: row[heading] for heading in used} for row in rows]

    def _row(self, recipe: str) -> dict[str, Cell]:
        runs = self.of(recipe)
        row: dict[str, Cell] = {"recipe": recipe}
        for what in ("loss", *self.terms, "accuracy"):
            spread = self.spread(recipe, what)
            row[what] = None if spread is None else str(spread)
        diverged = [run.diverged_at_step for run in runs if run.diverged_at_step]
        moved = _spread([run.share_moved for run in runs])
        flushed = self.spread(recipe, "share_flushed")
        return row | {
            "NaN at step": min(diverged, default=None),
            "skips": sum(run.skips for run in runs),
            "flushed %": 100 * flushed.mean if flushed else None,
            "weights moved %": 100 * moved.mean if moved else None,
            "step ms": _median([run.step_ms for run in runs]),
            "peak MB": _in_mb(_median([run.peak_bytes for run in runs])),
        }


def _spread(values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    if not all(map(math.isfinite, known)):
        return Spread(math.nan, math.nan, len(known))
    std = statistics.stdev(known) if len(known) > 1 else 0.0
    return Spread(statistics.fmean(known), std, len(known))


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _in_mb(nbytes: float | None) -> float | None:
    return None if nbytes is None else nbytes / 1e6
