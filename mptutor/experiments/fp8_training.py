"""Does training survive 8 bits?  An MLP whose matrix products take FP8 operands.

Weights and activations in E4M3 and gradients in E5M2, each tensor with a scale of its own, is the
recipe of Micikevicius et al., *FP8 Formats for Deep Learning* (2022, arXiv:2209.05433), and
Transformer Engine's default. Here it ends where FP32 does, within what two seeds differ by; so it
does with delayed scales, and with MX blocks, where Transformer Engine uses E4M3 for the gradients
as well, since a block needs less range than a tensor
(https://nvidia.github.io/TransformerEngine/features/low_precision_training/mxfp8/mxfp8.html).

What fails is E4M3 without scales: nearly all gradients lie below 2^-10 and become zero. E5M2
gradients without scales lose a good part of theirs and train all the same. Flushed, again, is not
the same as damaged.

And E4M3 gradients that *are* scaled do no harm to this small network either. What E5M2 buys is
room: for a tensor whose values are spread over more than E4M3's 18 binades, and for a scale that is
wrong because it comes from the step before (`fp8_scaling.run_delayed_scaling`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, stdev

import torch

from mptutor.devices import pick_device
from mptutor.experiments.fp8_layers import Fp8Recipe, share_flushed, with_fp8_products
from mptutor.experiments.fp8_tensors import fp8_task
from mptutor.experiments.progress import Progress, do_in_turn
from mptutor.experiments.result import Cell, Result, show
from mptutor.experiments.tasks import Task
from mptutor.formats import FP8_E4M3, FP8_E5M2

FP32_PRODUCTS = Fp8Recipe("FP32", None, None, "none")
FP8_SCALED = Fp8Recipe("FP8 per tensor")
FP8_DELAYED = Fp8Recipe("FP8 delayed", history=16)
MXFP8 = Fp8Recipe("MXFP8 blocks", FP8_E4M3, FP8_E4M3, "block")
E4M3_SCALED = Fp8Recipe("E4M3 per tensor", FP8_E4M3, FP8_E4M3)
FP8_UNSCALED = Fp8Recipe("FP8 unscaled", FP8_E4M3, FP8_E5M2, "none")
E4M3_UNSCALED = Fp8Recipe("E4M3 unscaled", FP8_E4M3, FP8_E4M3, "none")

RECIPES = (
    FP32_PRODUCTS,
    FP8_SCALED,
    FP8_DELAYED,
    MXFP8,
    E4M3_SCALED,
    FP8_UNSCALED,
    E4M3_UNSCALED,
)

_QUICK = (FP32_PRODUCTS, FP8_SCALED, MXFP8, E4M3_UNSCALED)

#: 96 is three blocks of 32; 784, the pixels of an image, is not a multiple of 32.
_WIDTHS = (784, 96, 96, 10)


@dataclass(frozen=True)
class Fp8Run:
    """One training by one recipe.

    Attributes
    ----------
    recipe, forward, backward, scale, seed
        What was run: the recipe's name, its formats, what shares a scale, and the seed.
    losses
        The mean over the steps of each epoch.
    accuracy
        On the test images at the end, 0 to 1.
    share_flushed
        Of all gradients other than zero that went into a product, how many rounding made zero.
    """

    recipe: str
    forward: str
    backward: str
    scale: str
    seed: int
    losses: tuple[float, ...]
    accuracy: float
    share_flushed: float


@dataclass(frozen=True)
class Fp8TrainingResult(Result):
    """Trainings of one MLP by several recipes and seeds."""

    network: str
    data: str
    device: str
    epochs: int
    steps_per_epoch: int
    batch_size: int
    runs: tuple[Fp8Run, ...]
    finished: bool

    @property
    def recipes(self) -> tuple[str, ...]:
        """The names of the recipes, in the order in which they were run."""
        return tuple(dict.fromkeys(run.recipe for run in self.runs))

    @property
    def headline(self) -> str:
        """What was trained."""
        seeds = len({run.seed for run in self.runs})
        return (
            f"{self.network} on {self.data}: Adam, batch {self.batch_size}, {self.epochs} x "
            f"{self.steps_per_epoch} steps, {seeds} {'seed' if seeds == 1 else 'seeds'}, "
            f"{self.device}, FP8 emulated{'' if self.finished else ', stopped early'}"
        )

    def of(self, recipe: str) -> tuple[Fp8Run, ...]:
        """Return the runs of one recipe, one for each seed."""
        runs = tuple(run for run in self.runs if run.recipe == recipe)
        if not runs:
            raise ValueError(f"recipe: got {recipe!r}, this result has {', '.join(self.recipes)}")
        return runs

    def mean(self, recipe: str, what: str) -> float:
        """Return the mean over the seeds of ``"loss"`` (of the last epoch) or a field of a run."""
        return fmean(_values(self.of(recipe), what))

    def table(self) -> list[dict[str, Cell]]:
        """Return a row for every recipe, with means and standard deviations over the seeds."""
        return [self._row(recipe) for recipe in self.recipes]

    def _row(self, recipe: str) -> dict[str, Cell]:
        runs = self.of(recipe)
        return {
            "recipe": recipe,
            "forward": runs[0].forward,
            "gradients": runs[0].backward,
            "scale": runs[0].scale,
            "loss": _spread(_values(runs, "loss")),
            "accuracy": _spread(_values(runs, "accuracy")),
            "gradients flushed %": 100 * self.mean(recipe, "share_flushed"),
        }


def run_fp8_training(
    *,
    recipes: Sequence[Fp8Recipe] | None = None,
    seeds: Sequence[int] = (0, 1),
    epochs: int = 2,
    quick: bool = False,
    device: torch.device | str | None = None,
    progress: Progress = True,
    stop: Callable[[], bool] | None = None,
) -> Fp8TrainingResult:
    """Train an MLP by every recipe, with Adam at 1e-3, batch 128.

    Parameters
    ----------
    recipes, seeds, epochs
        What is run: ``len(recipes) * len(seeds)`` trainings. All of `RECIPES` unless named.
    quick
        One seed, one epoch and, unless named, four recipes.
    device
        Where; the default is `pick_device()`. FP8 is emulated on every device.
    progress
        Called with a `Stage` before each training; True shows a line in a notebook, see `progress`.
    stop
        Asked before each training; once it says True, or on an interrupt from the keyboard, the
        trainings that have ended are returned.
    """
    device = pick_device() if device is None else torch.device(device)
    if recipes is None:
        recipes = _QUICK if quick else RECIPES
    if quick:
        seeds, epochs = seeds[:1], 1
    task = fp8_task(device, _WIDTHS)
    trainings = [
        (f"{recipe.name}, seed {seed}", partial(_train, task, recipe, seed, epochs, device))
        for seed in seeds
        for recipe in recipes
    ]
    runs, finished = do_in_turn(trainings, progress, stop)
    return Fp8TrainingResult(
        network=task.name,
        data=task.data,
        device=str(device),
        epochs=epochs,
        steps_per_epoch=task.steps_per_epoch,
        batch_size=task.batch_size,
        runs=runs,
        finished=finished,
    )


def _train(task: Task, recipe: Fp8Recipe, seed: int, epochs: int, device: torch.device) -> Fp8Run:
    model = with_fp8_products(task.build(seed).to(device), recipe)
    optimizer = task.optimizer(model.parameters())
    losses = []
    for epoch in range(epochs):
        of_steps = []
        for batch in task.batches(seed, epoch):
            optimizer.zero_grad()
            loss, _ = task.loss(model, batch)
            loss.backward()
            optimizer.step()
            of_steps.append(loss.detach())
        losses.append(torch.stack(of_steps).mean().item())
    return Fp8Run(
        recipe=recipe.name,
        forward=recipe.forward.name if recipe.forward else "FP32",
        backward=recipe.backward.name if recipe.backward else "FP32",
        scale="delayed" if recipe.history else recipe.granularity,
        seed=seed,
        losses=tuple(losses),
        share_flushed=share_flushed(model),
        accuracy=task.test(model),
    )


def _values(runs: Sequence[Fp8Run], what: str) -> list[float]:
    return [run.losses[-1] if what == "loss" else getattr(run, what) for run in runs]


def _spread(values: Sequence[float]) -> str:
    mean = show(fmean(values))
    return f"{mean} ± {stdev(values):.2g}" if len(values) > 1 else mean
