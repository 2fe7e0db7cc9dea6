"""Does training in 16 bits reach the same accuracy?  One CNN, trained by every recipe.

The answer for this net, with Adam: every recipe with FP32 weights or an FP32 master copy does, with
or without a loss scale.  The differences are smaller than those between two seeds, so look at the
spread before you look at a difference.  It does not need loss scaling, although FP16 turns a good
part of its gradients into zero: flushed is not the same as damaged.

One recipe fails at once.  Naive FP16, everything ``.half()``, is NaN from the second step, and the
reason is the optimizer's: Adam divides by ``sqrt(v) + eps``, and its default ``eps`` of 1e-8 is 0
in FP16, as are the squares of small gradients.  What remains is 0 / 0.  With SGD, naive FP16 trains
this net as well as FP32 does; say which optimizer before you say that it fails.

Where the other failures are: a term of the loss lost without a scaler (`vae`), a net that stays
dead without one (`deep_sigmoid`), BF16 weights that stand still (`fine_tuning`).

``python -m mptutor.experiments.training`` runs all four over several seeds and prints their tables.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

from mptutor.data import ImageData, load
from mptutor.devices import pick_device
from mptutor.experiments.progress import Progress
from mptutor.experiments.race import race
from mptutor.experiments.recipes import (
    AMP_BF16,
    AMP_FP16,
    FP16_MASTER_SCALED,
    FP32,
    NAIVE_FP16,
    RECIPES,
    MakeOptimizer,
    Recipe,
)
from mptutor.experiments.tasks import adam, classify, shorten
from mptutor.experiments.training_result import TrainingResult
from mptutor.models import small_cnn


def run_training(
    *,
    recipes: Sequence[Recipe] = (FP32, NAIVE_FP16, FP16_MASTER_SCALED, AMP_FP16, AMP_BF16),
    seeds: Sequence[int] = (0, 1),
    epochs: int = 2,
    build: Callable[[], nn.Module] = small_cnn,
    data: ImageData | None = None,
    optimizer: MakeOptimizer | None = None,
    batch_size: int = 128,
    quick: bool = False,
    device: torch.device | str | None = None,
    progress: Progress = True,
    stop: Callable[[], bool] | None = None,
) -> TrainingResult:
    """Train an image classifier by every recipe.

    Parameters
    ----------
    recipes, seeds, epochs
        What is run: ``len(recipes) * len(seeds)`` trainings.
    build
        Makes the model, in FP32 on the CPU.
    data
        Images of the size that the model takes, on `device`; the default is the shipped set as
        3 x 32 x 32.
    optimizer
        Makes the optimizer; the default is Adam at 1e-3.
    batch_size
        Images a step.
    quick
        One epoch, one seed, half of the images.
    device
        Where; the default is `pick_device()`.
    progress
        Called with a `Turn` after every few steps; by default a notebook shows a line.
    stop
        Asked before every few steps; once it says True, what has been done is returned.  So it is
        on an interrupt from the keyboard.
    """
    device = pick_device() if device is None else torch.device(device)
    data = data or load("fashion-mnist-5k", size=32, channels=3, device=device)
    if quick:
        seeds, epochs, data = seeds[:1], 1, shorten(data, len(data.train) // 2)
    name = getattr(build, "__name__", "model")
    task = classify(name, data, build, optimizer or adam(), batch_size=batch_size)
    return race(
        task, recipes, seeds=seeds, epochs=epochs, device=device, progress=progress, stop=stop
    )


def run_taste(
    *,
    device: torch.device | str | None = None,
    progress: Progress = True,
    stop: Callable[[], bool] | None = None,
) -> TrainingResult:
    """Train the CNN for one epoch in FP32, in naive FP16 and in mixed precision."""
    recipes = (FP32, NAIVE_FP16, AMP_FP16)
    return run_training(
        recipes=recipes, seeds=(0,), epochs=1, device=device, progress=progress, stop=stop
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables recipe x (loss, accuracy, skips, time, memory) of all four trainings."""
    from mptutor.experiments.deep_sigmoid import run_deep_sigmoid
    from mptutor.experiments.fine_tuning import run_fine_tuning
    from mptutor.experiments.vae import run_vae

    everything = tuple(RECIPES.values())
    known: dict[str, Callable[..., TrainingResult]] = {
        "parity": lambda **o: run_training(recipes=everything, **o),
        "vae": run_vae,
        "vae-without-kl": lambda **o: run_vae(kl_weight=0.0, recipes=(FP32,), **o),
        "fine-tuning": run_fine_tuning,
        "deep-sigmoid": run_deep_sigmoid,
    }
    parser = argparse.ArgumentParser(prog="python -m mptutor.experiments.training")
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(known)}; default all")
    parser.add_argument("--seeds", type=int, default=5, help="how many (default 5)")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args(argv)
    if unknown := set(options.names) - set(known):
        parser.error(f"names: got {', '.join(unknown)}, allowed are {', '.join(known)}")
    results = {}
    for name in options.names or known:
        result = known[name](seeds=range(options.seeds))
        results[name] = result.to_plain()
        print(f"{result}\n", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
