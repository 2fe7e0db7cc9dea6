"""Train at one fixed loss scale after another, to see whether the window of safe scales is real.

A census of the first step's gradients predicts a window.  Below its smallest scale more gradients
are flushed to zero than one is ready to lose, above its largest some overflow.  Here a network is
trained from the same start, on the same batches, at scales in the window, at its edges and outside.

The upper edge is sharp: at the largest safe scale no step is skipped, at twice that many are, and
two powers of two further every step is, so that the network never moves.  That is harm enough, but
clean: nothing is NaN.

The lower edge is soft.  The census says how many gradients are lost, not how much they would have
done.  Eight sigmoid layers learn at a scale that loses eight per cent of their gradients, and stand
still at one that loses a third, since those are all the gradients of the lower layers.  Likewise
Micikevicius et al. (ICLR 2018, section 3.2) report that a factor of 8 was enough for Multibox SSD,
of whose activation gradients 67 % were zero in FP16.

The edges are those of the first step.  Gradients move by a few powers of two as training goes on,
and a scale at the very edge may be outside later; that is why GradScaler's moves too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import torch

from mptutor.census import ScaleWindow
from mptutor.devices import pick_device
from mptutor.experiments.gradient_census import run_gradient_census, task_of
from mptutor.experiments.progress import Progress, do_in_turn
from mptutor.experiments.recipes import AMP_FP16, FP32, Recipe
from mptutor.experiments.result import Cell, Result
from mptutor.experiments.tasks import Task
from mptutor.formats import FP16
from mptutor.scaling import StaticLossScaler


@dataclass(frozen=True)
class ScaleRun:
    """One training at one scale.

    Attributes
    ----------
    scale
        The loss scale, all the way.
    loss
        Mean over the last epoch.
    steps, skips
        How many, and how many of them the scaler skipped.
    share_flushed
        Predicted: the share of the first step's nonzero gradients that FP16 flushes at this scale.
    overflowed
        Predicted: how many of them overflow.
    first_step_skipped
        Whether the first step really was.
    """

    scale: float
    loss: float
    steps: int
    skips: int
    share_flushed: float
    overflowed: int
    first_step_skipped: bool


@dataclass(frozen=True)
class ScaleSweepResult(Result):
    """One network trained in AMP FP16 at several fixed scales, and in FP32.

    ``smallest_safe`` and ``largest_safe`` are the window that the census of the first step's
    gradients predicts, with one in a thousand flushed at most and none overflowed.
    """

    network: str
    data: str
    device: str
    epochs: int
    seed: int
    smallest_safe: float
    largest_safe: float
    fp32_loss: float
    runs: tuple[ScaleRun, ...]
    finished: bool

    def at(self, scale: float) -> ScaleRun:
        """Return the run at a scale."""
        for run in self.runs:
            if run.scale == scale:
                return run
        raise ValueError(f"scale: got {scale}, allowed are {[run.scale for run in self.runs]}")

    @property
    def headline(self) -> str:
        """What was trained."""
        window = ScaleWindow(self.smallest_safe, self.largest_safe)
        return (
            f"{self.network} on {self.data}, {self.epochs} epochs, AMP FP16 at a fixed scale; "
            f"FP32 ends at {self.fp32_loss:.3f}; predicted window {window}"
        )

    def table(self) -> list[dict[str, Cell]]:
        """Return a row for every scale: predicted at the first step, then what happened."""
        return [
            {
                "scale": _power(run.scale),
                "flushed % (predicted)": 100 * run.share_flushed,
                "overflowed (predicted)": run.overflowed,
                "first step skipped": "yes" if run.first_step_skipped else "no",
                "steps skipped": f"{run.skips} of {run.steps}",
                "final loss": run.loss,
            }
            for run in self.runs
        ]


def run_scale_sweep(
    scales: Sequence[float] | None = None,
    *,
    network: str = "sigmoid",
    epochs: int = 4,
    seed: int = 0,
    quick: bool = False,
    device: torch.device | str | None = None,
    progress: Progress = True,
    stop: Callable[[], bool] | None = None,
) -> ScaleSweepResult:
    """Train a network in AMP FP16 at each scale, from the same start, on the same batches.

    Parameters
    ----------
    scales
        Powers of two; unless given, the edges of the predicted window, some below and some above.
    network
        One of `mptutor.experiments.gradient_census.NETWORKS`.
    epochs, seed
        Of each training.
    quick
        Four scales only: 1, both edges, and one beyond.
    device
        Where; the default is `pick_device()`.
    progress, stop
        Told a `Stage` before each training, that in FP32 included; asked before each. Once `stop`
        says True, or on an interrupt from the keyboard, the trainings done so far are returned.
    """
    device = pick_device() if device is None else torch.device(device)
    task = task_of(network, device)
    census = run_gradient_census(network, seed=seed, device=device).census()
    window = census.safe_scales(FP16)
    if scales is None:
        scales = _around(window, quick)
    train = partial(_train, task, epochs=epochs, seed=seed, device=device)
    jobs = [("FP32", partial(train, FP32, 1.0))]
    jobs += [(f"scale {_power(scale)}", partial(train, AMP_FP16, scale)) for scale in scales]
    trained, finished = do_in_turn(jobs, progress, stop)
    fp32_loss = trained[0][0] if trained else math.nan
    runs = []
    for scale, (loss, skipped) in zip(scales, trained[1:], strict=False):
        flushed = census.flushed(FP16, scale) / census.nonzero
        overflowed = census.overflowed(FP16, scale)
        counts = (len(skipped), sum(skipped), flushed, overflowed, skipped[0])
        runs.append(ScaleRun(scale, loss, *counts))
    return ScaleSweepResult(
        network=task.name,
        data=task.data,
        device=str(device),
        epochs=epochs,
        seed=seed,
        smallest_safe=window.smallest,
        largest_safe=window.largest,
        fp32_loss=fp32_loss,
        runs=tuple(runs),
        finished=finished,
    )


def _around(window: ScaleWindow, quick: bool) -> list[float]:
    """Return scales at the edges of a window and on both sides of it."""
    low, high = window.smallest, window.largest
    if quick:
        return [1.0, low, high, 8 * high]
    return [2.0**-20, 1.0, low / 2**12, low / 2**8, low, high, 2 * high, 8 * high]


def _train(
    task: Task, recipe: Recipe, scale: float, epochs: int, seed: int, device: torch.device
) -> tuple[float, list[bool]]:
    """Train at one scale; return the last epoch's mean loss, and for each step if it was skipped.

    In FP32 the scaler is off.
    """
    model = task.build(seed).to(device)
    optimizer = task.optimizer(model.parameters())
    scaler = StaticLossScaler(scale, enabled=recipe.scaler)
    losses, skipped = [], []
    with recipe.arithmetic(device):
        for epoch in range(epochs):
            for batch in task.batches(seed, epoch):
                optimizer.zero_grad()
                with recipe.autocast_on(device):
                    loss, _ = task.loss(model, batch)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                skipped.append(scaler.stepped is False)
                scaler.update()
                losses.append(loss.detach())
    last_epoch = torch.stack(losses[-task.steps_per_epoch :]).tolist()
    return fmean(last_epoch), skipped


def _power(scale: float) -> str:
    return f"2^{math.log2(scale):g}"
