"""The one training loop: several recipes side by side, a few steps of each in turn.

Taking turns has three uses.  The clock is fair, since a machine that slows down slows all recipes
down.  A picture of the race moves as one watches.  And a race that is stopped half way has all its
recipes half way.

Nothing is read from the device within a turn: ``loss.item()`` after every step would make a GPU
wait for each step, and change what is being timed.  Losses are kept where they are and read
together at the end of the turn.

A run whose loss is infinite or NaN at the end of a turn has nothing more to learn, and ends there.
(Not at the first such loss: a scaler skips that step, and the weights may be sound.)
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from statistics import fmean

import torch
from torch import Tensor, nn

from mptutor.devices import pick_device
from mptutor.experiments.flushing import share_flushed
from mptutor.experiments.progress import Progress, shown
from mptutor.experiments.recipes import Recipe
from mptutor.experiments.tasks import Batch, Task
from mptutor.experiments.training_result import EpochRecord, Run, TrainingResult
from mptutor.memory import MemoryMeter
from mptutor.timing import Timer

STEPS_A_TURN = 10


@dataclass(frozen=True)
class Turn:
    """What a race tells its `progress` function after every turn.

    Attributes
    ----------
    recipe, seed
        Whose turn it was.
    step, steps
        Steps taken by now, of how many.
    losses
        Those of the turn's steps.
    scale, skips
        Now, and so far.
    epoch
        The record of the epoch, if the turn completed one.
    done
        The share of the whole race that is behind, 0 to 1; what diverged has no more to run.
    """

    recipe: str
    seed: int
    step: int
    steps: int
    losses: tuple[float, ...]
    scale: float
    skips: int
    epoch: EpochRecord | None
    done: float = 0.0

    @property
    def said(self) -> str:
        """The turn in a few words."""
        return f"{self.recipe}, seed {self.seed}: step {self.step} of {self.steps}"


def race(
    task: Task,
    recipes: Sequence[Recipe],
    *,
    seeds: Sequence[int],
    epochs: int,
    device: torch.device | str | None = None,
    progress: Progress = True,
    stop: Callable[[], bool] | None = None,
) -> TrainingResult:
    """Train by every recipe, with every seed.

    Parameters
    ----------
    task
        Whose batches are on `device`.
    progress
        Called with a `Turn` after every turn; True shows a line in a notebook, see `progress`.
    stop
        Asked before every turn; once it says True, or on an interrupt from the keyboard, what has
        been done so far is returned.
    """
    if not recipes or not seeds or epochs < 1:
        raise ValueError(
            f"recipes, seeds and epochs: at least one of each, got {len(recipes)} recipes, "
            f"{len(seeds)} seeds and {epochs} epochs"
        )
    device = pick_device() if device is None else torch.device(device)
    runs: list[Run] = []
    finished = True
    with shown(progress) as tell:
        for number, seed in enumerate(seeds):
            if finished:
                entered = (_Contender(task, recipe, seed, epochs, device) for recipe in recipes)
                report = partial(_report, tell, number, len(seeds))
                done, finished = _take_turns(entered, report, stop or (lambda: False))
                runs += done
    return TrainingResult(
        task=task.name,
        data=task.data,
        optimizer=_describe(task.optimizer([nn.Parameter(torch.zeros(1))])),
        device=str(device),
        threads=torch.get_num_threads(),
        epochs_wanted=epochs,
        steps_per_epoch=task.steps_per_epoch,
        batch_size=task.batch_size,
        runs=tuple(runs),
        finished=finished,
    )


#: Hears of every turn, and of the share of its seed's race that is behind.
_Report = Callable[[Turn, float], None]


def _report(
    tell: Callable[[Turn], None], seeds_done: int, seeds: int, turn: Turn, share: float
) -> None:
    tell(replace(turn, done=(seeds_done + share) / seeds))


def _take_turns(
    runs: Iterable[_Contender], report: _Report, stop: Callable[[], bool]
) -> tuple[list[Run], bool]:
    """Advance all runs to their end, or until stopped; return their records and which it was."""
    entered: list[_Contender] = []
    try:
        with ExitStack() as arithmetic:
            for run in runs:
                entered.append(run)
                # For all at once: entering has a price, and no recipe sees another's dtype.
                arithmetic.enter_context(run.recipe.arithmetic(run.device))
            finished = _advance(entered, report, stop)
    except KeyboardInterrupt:
        finished = False
    return [run.record() for run in entered], finished


def _advance(runs: list[_Contender], report: _Report, stop: Callable[[], bool]) -> bool:
    while waiting := [run for run in runs if not run.ended]:
        for run in waiting:
            if stop():
                return False
            turn = run.take_turn()
            report(turn, fmean(entered.share_done for entered in runs))
    return True


class _Contender:
    """One model on its way through its epochs."""

    def __init__(
        self, task: Task, recipe: Recipe, seed: int, epochs: int, device: torch.device
    ) -> None:
        self.task, self.recipe, self.seed = task, recipe, seed
        self.epochs, self.device = epochs, device
        self.net = task.build(seed).to(device)
        self.model = recipe.prepare(self.net)
        self.stepper = recipe.stepper(self.model, task.optimizer)
        self.timer = Timer(device)
        self.losses: list[float] = []
        self.records: list[EpochRecord] = []
        self.ended = False
        self.peak_bytes: int | None = None
        self.share_moved: float | None = None
        self._start_epoch()

    @property
    def share_done(self) -> float:
        """How much of the run is behind, 0 to 1."""
        if self.ended:
            return 1.0
        return len(self.losses) / (self.epochs * self.task.steps_per_epoch)

    def take_turn(self) -> Turn:
        """Take some steps, and complete the epoch if they were its last."""
        losses = self._read([self._take_timed_step(b) for b in islice(self._batches, STEPS_A_TURN)])
        diverged = not math.isfinite(losses[-1])
        epoch = None
        if diverged or len(self._epoch_terms) == self.task.steps_per_epoch:
            epoch = self._complete_epoch()
            self.ended = diverged or len(self.records) == self.epochs
            if self.ended:
                self._measure_one_more_step()
            else:
                self._start_epoch()
        return Turn(
            recipe=self.recipe.name,
            seed=self.seed,
            step=len(self.losses),
            steps=self.epochs * self.task.steps_per_epoch,
            losses=losses,
            scale=self.stepper.scale,
            skips=self.stepper.skips,
            epoch=epoch,
        )

    def record(self) -> Run:
        """Return what is known by now."""
        steps_to_last_finite = max(
            (step for step, loss in enumerate(self.losses, 1) if math.isfinite(loss)), default=0
        )
        diverged = steps_to_last_finite < len(self.losses)
        enough = len(self.losses) > self.timer.warmup
        return Run(
            recipe=self.recipe.name,
            seed=self.seed,
            losses=tuple(self.losses),
            epochs=tuple(self.records),
            diverged_at_step=steps_to_last_finite + 1 if diverged else None,
            finished=self.ended,
            step_ms=self.timer.timing().median_ms if enough else None,
            peak_bytes=self.peak_bytes,
            share_moved=None if diverged else self.share_moved,
        )

    def _start_epoch(self) -> None:
        self._batches: Iterator[Batch] = self.task.batches(self.seed, len(self.records))
        self._epoch_terms: list[dict[str, float]] = []
        self._skips_before = self.stepper.skips

    def _take_step(self, batch: Batch) -> dict[str, Tensor]:
        """Take the step that every recipe takes; return the loss and its terms, unread."""
        self.stepper.zero_grad()
        with self.recipe.autocast_on(self.device):
            loss, terms = self.task.loss(self.model, batch)
        self.stepper.backward(loss)
        self.stepper.step()
        return {"loss": loss.detach(), **{name: term.detach() for name, term in terms.items()}}

    def _take_timed_step(self, batch: Batch) -> dict[str, Tensor]:
        with self.timer:
            return self._take_step(batch)

    def _read(self, steps: list[dict[str, Tensor]]) -> tuple[float, ...]:
        """Bring a turn's losses and terms to the host, all at once."""
        values = torch.stack([torch.stack([*step.values()]).float() for step in steps]).tolist()
        self._epoch_terms += [dict(zip(steps[0], row, strict=True)) for row in values]
        losses = tuple(row[0] for row in values)
        self.losses += losses
        return losses

    def _complete_epoch(self) -> EpochRecord:
        means = {t: fmean(step[t] for step in self._epoch_terms) for t in self._epoch_terms[0]}
        record = EpochRecord(
            loss=means.pop("loss"),
            terms=means,
            accuracy=self._test(),
            scale=self.stepper.scale,
            skips=self.stepper.skips - self._skips_before,
            share_flushed=self._share_flushed(),
        )
        self.records.append(record)
        return record

    def _test(self) -> float | None:
        if self.task.test is None:
            return None
        self.model.eval()
        with self.recipe.autocast_on(self.device):
            accuracy = self.task.test(self.model)
        self.model.train()
        return accuracy

    def _share_flushed(self) -> float | None:
        """Ask FP32 for the gradients, and the census for their fate in this recipe's format."""
        in_fp32 = copy.deepcopy(self.net).float()
        batch = self._some_batch()
        return share_flushed(
            in_fp32, lambda: self.task.loss(in_fp32, batch)[0], self.recipe.fmt, self.stepper.scale
        )

    def _measure_one_more_step(self) -> None:
        """See what a step holds at its peak and which weights it moves, outside the race."""
        batch = self._some_batch()
        self.stepper.zero_grad()
        before = [weight.detach().clone() for weight in self.stepper.weights]
        with MemoryMeter(device=self.device) as meter:
            self._take_step(batch)
        reading = meter.reading
        self.peak_bytes = self.stepper.held_bytes + reading.peak_bytes - reading.start_bytes
        pairs = zip(self.stepper.weights, before, strict=True)
        moved = torch.stack([(now != then).sum() for now, then in pairs]).sum()
        self.share_moved = moved.item() / sum(weight.numel() for weight in before)

    def _some_batch(self) -> Batch:
        """Return the first batch of an epoch that is never trained."""
        return next(self.task.batches(self.seed, self.epochs))


def _describe(optimizer: torch.optim.Optimizer) -> str:
    """Name an optimizer and the settings that matter here: ``Adam(lr=0.001, eps=1e-08)``."""
    chosen = {k: optimizer.defaults.get(k) for k in ("lr", "momentum", "eps", "weight_decay")}
    settings = ", ".join(f"{name}={value:g}" for name, value in chosen.items() if value)
    return f"{type(optimizer).__name__}({settings})"
