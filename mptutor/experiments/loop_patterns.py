"""What each mistake in a real training loop costs.

The loops are those of `mptutor.experiments.loops`, five patterns, each right and wrong, or your
own. They train an MLP on the same images. (Not the CNN: the second derivative of batch norm counts
its elements in the dtype of its input, and from 65520 on FP16 counts to infinity.)

None of the five wrong loops raises an error or warns. How much each costs depends on its setting,
and the setting is said with it: clipping scaled gradients stops SGD dead and Adam hardly notices,
for it divides by the size of the gradients anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import fmean, stdev

import torch
from torch import Tensor

from mptutor.data import ImageData, batches, load
from mptutor.devices import pick_device
from mptutor.experiments.loops import PATTERNS, Pattern, Session, Step, make_session, plain_step
from mptutor.experiments.progress import Progress, do_in_turn
from mptutor.experiments.recipes import AMP_FP16
from mptutor.experiments.result import Cell, Result
from mptutor.experiments.tasks import accuracy, order_seed


@dataclass(frozen=True)
class LoopRun:
    """One training by one loop: the loss of every step, and how many were skipped."""

    pattern: str
    variant: str
    loop: str
    seed: int
    losses: tuple[float, ...]
    accuracy: float
    final_scale: float
    skips: int

    @property
    def last_loss(self) -> float:
        """Mean over the last quarter of the steps."""
        return fmean(self.losses[-max(1, len(self.losses) // 4) :])


@dataclass(frozen=True)
class LoopPatternsResult(Result):
    """Every loop on the same task.

    ``optimizer`` is ``"sgd"`` or ``"adam"``. ``finished`` is False if the trainings were stopped;
    ``runs`` then holds those that had been done.
    """

    optimizer: str
    device: str
    epochs: int
    runs: tuple[LoopRun, ...]
    finished: bool = True

    def __add__(self, other: LoopPatternsResult) -> LoopPatternsResult:
        """Put the runs of two results of the same setting into one."""
        ours, theirs = ((r.optimizer, r.device, r.epochs) for r in (self, other))
        if ours != theirs:
            raise ValueError(f"other: is of {theirs}, and this result of {ours}")
        finished = self.finished and other.finished
        return replace(self, runs=self.runs + other.runs, finished=finished)

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns there are runs of, in their order."""
        return tuple(dict.fromkeys(run.pattern for run in self.runs))

    @property
    def headline(self) -> str:
        """What was trained, and where."""
        epochs = "1 epoch" if self.epochs == 1 else f"{self.epochs} epochs"
        return f"An MLP in AMP FP16, {self.optimizer}, {epochs} on {self.device}"

    def of(self, pattern: str, variant: str) -> tuple[LoopRun, ...]:
        """Return the runs, one for each seed, of the ``"right"`` or ``"wrong"`` variant."""
        runs = tuple(r for r in self.runs if (r.pattern, r.variant) == (pattern, variant))
        if not runs:
            have = sorted({(r.pattern, r.variant) for r in self.runs})
            raise ValueError(f"pattern, variant: got {(pattern, variant)}, this result has {have}")
        return runs

    def table(self) -> list[dict[str, Cell]]:
        """Return a row for every loop."""
        pairs = dict.fromkeys((run.pattern, run.variant) for run in self.runs)
        return [self._row(pattern, variant) for pattern, variant in pairs]

    def _row(self, pattern: str, variant: str) -> dict[str, Cell]:
        runs = self.of(pattern, variant)
        return {
            "pattern": pattern,
            "": variant,
            "loop": runs[0].loop,
            "last loss": _mean_and_spread([run.last_loss for run in runs]),
            "accuracy": _mean_and_spread([run.accuracy for run in runs]),
            "skips": sum(run.skips for run in runs),
            "final scale": runs[-1].final_scale,
        }


def _mean_and_spread(values: list[float]) -> str:
    if not all(map(math.isfinite, values)):
        return "NaN"
    spread = f" ± {stdev(values):.2g}" if len(values) > 1 else ""
    return f"{fmean(values):.3g}{spread}"


_VARIANTS = ("right", "wrong")


def run_loop_patterns(
    patterns: Sequence[str | Pattern] = tuple(PATTERNS),
    *,
    optimizer: str = "sgd",
    epochs: int = 2,
    seeds: Sequence[int] = (0,),
    quick: bool = False,
    device: torch.device | str | None = None,
    progress: Progress = True,
    stop: Callable[[], bool] | None = None,
) -> LoopPatternsResult:
    """Train the MLP by the right and the wrong loop of each pattern, in AMP FP16.

    Parameters
    ----------
    patterns
        Names from `PATTERNS`, or patterns of your own.
    optimizer
        ``"sgd"`` (0.1) or ``"adam"`` (1e-3).
    epochs, seeds
        How long and how often.
    quick
        One seed, one epoch.
    device
        Where; the default is `pick_device()`.
    progress, stop
        Called with a `Stage` before each training; asked before each. Once `stop` says True, or on
        an interrupt from the keyboard, the trainings done so far are returned.
    """
    chosen = [_named(pattern) for pattern in patterns]
    device = pick_device() if device is None else torch.device(device)
    data = load("fashion-mnist-5k", device=device)
    if quick:
        seeds, epochs = seeds[:1], 1

    def train(pattern: Pattern, variant: str, seed: int) -> LoopRun:
        session = make_session(optimizer, seed=seed, device=device)
        return _train(pattern, variant, session, data, epochs, seed)

    trainings = [
        (f"{pattern.name}, {variant}, seed {seed}", partial(train, pattern, variant, seed))
        for seed in seeds
        for pattern in chosen
        for variant in _VARIANTS
    ]
    runs, finished = do_in_turn(trainings, progress, stop)
    return LoopPatternsResult(optimizer, str(device), epochs, runs, finished)


def _named(pattern: str | Pattern) -> Pattern:
    if isinstance(pattern, Pattern):
        return pattern
    if pattern not in PATTERNS:
        raise ValueError(
            f"patterns: got {pattern!r}, allowed are {', '.join(PATTERNS)} and a Pattern"
        )
    return PATTERNS[pattern]


def _train(
    pattern: Pattern, variant: str, session: Session, data: ImageData, epochs: int, seed: int
) -> LoopRun:
    step: Step = getattr(pattern, variant)
    scales = [session.scaler.get_scale()]
    losses = train_session(
        session,
        (
            batch
            for epoch in range(epochs)
            for batch in batches(data.train, 128, seed=order_seed(seed, epoch))
        ),
        step,
        lambda: scales.append(session.scaler.get_scale()),
    )
    return LoopRun(
        pattern.name,
        variant,
        getattr(step, "__name__", variant),
        seed,
        tuple(losses),
        accuracy(session.model, data.test),
        scales[-1],
        sum(after < before for before, after in pairwise(scales)),
    )


def train_session(
    session: Session,
    steps: Iterable[tuple[Tensor, Tensor]],
    step: Step = plain_step,
    after_step: Callable[[], object] = lambda: None,
) -> list[float]:
    """Train a session on batches, with the arithmetic of an AMP GPU, and return the losses.

    Parameters
    ----------
    session
        What is trained.
    steps
        A batch of images and labels for each step.
    step
        What is done with a batch.
    after_step
        Called after each.
    """
    losses = []
    with AMP_FP16.arithmetic(session.device):
        for images, labels in steps:
            losses.append(step(session, images, labels).detach())
            after_step()
    return torch.stack(losses).tolist() if losses else []
