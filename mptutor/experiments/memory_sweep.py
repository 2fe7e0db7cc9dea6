"""What mixed precision saves in memory, and when it costs some.

A training step holds four things: parameters, their gradients, the optimizer's state, and what
autograd saves in the forward pass for the backward pass. Under AMP the first three stay FP32. Only
saved activations shrink, and not all of those: the indices of a max-pooling are 64-bit integers,
and a norm on autocast's FP32 list saves its FP32 input. On top come the 16-bit copies of the
weights, which live until autocast's cache is emptied.

So the saving depends on how much of the memory is activations. Convolutions and attention at
ordinary batch sizes have many; a wide, shallow MLP at a small batch has few, and its weight copies
cost more than its activations save. The sweep runs one training step for each setting and reads
the meter; bytes are exact and do not depend on the machine's speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mptutor.devices import pick_device
from mptutor.experiments.progress import Progress, do_in_turn
from mptutor.experiments.recipes import AMP_BF16, AMP_FP16, FP32, Recipe
from mptutor.experiments.result import Cell, Result
from mptutor.experiments.tasks import seeded
from mptutor.memory import MemoryMeter
from mptutor.models import mlp, small_cnn

Sample = Callable[[int], Tensor]


@dataclass(frozen=True)
class StepMemory:
    """One training step of one model: bytes held before it, at its peak, and saved for backward.

    ``start_bytes`` are the parameters and the optimizer's state. ``saved_bytes_by_dtype`` says what
    the saved bytes are made of.
    """

    model: str
    batch_size: int
    recipe: str
    start_bytes: int
    peak_bytes: int
    saved_bytes: int
    saved_bytes_by_dtype: dict[str, int]


@dataclass(frozen=True)
class MemorySweepResult(Result):
    """The memory of training steps on one device; ``finished`` unless it was stopped."""

    device: str
    steps: tuple[StepMemory, ...]
    finished: bool = True

    def of(self, model: str, batch_size: int, recipe: str) -> StepMemory:
        """Return one step's memory."""
        for step in self.steps:
            if (step.model, step.batch_size, step.recipe) == (model, batch_size, recipe):
                return step
        have = [(s.model, s.batch_size, s.recipe) for s in self.steps]
        raise ValueError(f"no step {(model, batch_size, recipe)}; this result has {have}")

    def ratio(self, model: str, batch_size: int, recipe: str, what: str = "peak_bytes") -> float:
        """Return a recipe's ``"peak_bytes"`` or ``"saved_bytes"`` relative to FP32's."""
        step, fp32 = (self.of(model, batch_size, r) for r in (recipe, FP32.name))
        return getattr(step, what) / getattr(fp32, what)

    def table(self) -> list[dict[str, Cell]]:
        """Return a row for every step."""
        return [
            {
                "model": s.model,
                "batch": s.batch_size,
                "recipe": s.recipe,
                "saved MB": s.saved_bytes / 1e6,
                "peak MB": s.peak_bytes / 1e6,
                "saved / FP32": self.ratio(s.model, s.batch_size, s.recipe, "saved_bytes"),
                "peak / FP32": self.ratio(s.model, s.batch_size, s.recipe),
            }
            for s in self.steps
        ]


def _wide_mlp() -> nn.Sequential:
    return mlp((4096, 4096, 4096, 4096))


#: Name -> how to build it, and the inputs of a batch.
_MODELS: dict[str, tuple[Callable[[], nn.Module], Sample]] = {
    "small_cnn": (small_cnn, lambda b: torch.randn(b, 3, 32, 32)),
    "mlp": (mlp, lambda b: torch.randn(b, 784)),
    "wide_mlp": (_wide_mlp, lambda b: torch.randn(b, 4096)),
}


def run_memory_sweep(
    settings: Sequence[tuple[str, int]] = (
        ("small_cnn", 32),
        ("small_cnn", 128),
        ("mlp", 128),
        ("mlp", 2048),
        ("wide_mlp", 64),
    ),
    *,
    recipes: Sequence[Recipe] = (FP32, AMP_FP16, AMP_BF16),
    quick: bool = False,
    device: torch.device | str | None = None,
    progress: Progress = True,
    stop: Callable[[], bool] | None = None,
) -> MemorySweepResult:
    """Measure one training step, with SGD and momentum, for each setting and recipe.

    Parameters
    ----------
    settings
        Pairs of a model, ``"small_cnn"``, ``"mlp"`` or ``"wide_mlp"`` (three layers of 4096), and a
        batch size.
    recipes
        FP32 must be among them: all ratios are relative to it.
    quick
        The first three settings and the first two recipes.
    device
        Where; the default is `pick_device()`.
    progress, stop
        Told a `Stage` before each step; asked before each. Once `stop` says True, or on an
        interrupt from the keyboard, the steps that have been measured are returned.
    """
    if unknown := [name for name, _ in settings if name not in _MODELS]:
        raise ValueError(f"settings: got model {unknown[0]!r}, allowed are {', '.join(_MODELS)}")
    if FP32 not in recipes:
        raise ValueError("recipes: FP32 is missing, and the ratios need it")
    recipes = sorted(recipes, key=lambda recipe: recipe != FP32)  # the ratios need it first
    if quick:
        settings, recipes = settings[:3], recipes[:2]
    device = pick_device() if device is None else torch.device(device)
    jobs = [
        (f"{name}, batch {size}, {recipe.name}", partial(_measure, name, size, recipe, device))
        for name, size in settings
        for recipe in recipes
    ]
    steps, finished = do_in_turn(jobs, progress, stop)
    return MemorySweepResult(str(device), steps, finished=finished)


def _measure(name: str, batch_size: int, recipe: Recipe, device: torch.device) -> StepMemory:
    build, sample = _MODELS[name]
    model = recipe.prepare(seeded(build, 0).to(device))
    stepper = recipe.stepper(model, lambda w: torch.optim.SGD(w, lr=1e-3, momentum=0.9))
    inputs = sample(batch_size).to(device)
    targets = torch.zeros(batch_size, dtype=torch.int64, device=device)

    def forward() -> Tensor:
        with recipe.autocast_on(device):
            return F.cross_entropy(model(inputs), targets)

    with recipe.arithmetic(device):
        while stepper.updates == 0:  # the first makes the optimizer's state; a skipped one does not
            stepper.zero_grad()
            stepper.backward(forward())
            stepper.step()
        stepper.zero_grad()
        with MemoryMeter(model, stepper.optimizer, inputs, targets) as meter:
            stepper.backward(forward())
            stepper.step()
    reading = meter.reading
    return StepMemory(
        name,
        batch_size,
        recipe.name,
        reading.start_bytes,
        reading.peak_bytes,
        reading.saved_bytes,
        reading.saved_bytes_by_dtype,
    )
