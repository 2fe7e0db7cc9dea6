"""A deep net that is dead from the start in FP16, and alive with a loss scale.

A sigmoid's slope is at most 1/4, so each of eight sigmoid layers makes the gradient smaller on its
way back, until it is below 2^-25 and FP16 makes it zero.  The lower layers get no gradient at all,
the upper ones learn from features that say nothing, and the loss stays at that of guessing,
``log(10) = 2.303``, epoch after epoch.  Multiplied by 65,536 the same gradients pass, and the net
trains as in FP32; so it does in BF16, whose range is FP32's.

This is an old-fashioned net, and meant to be.  Nets with ReLU, residuals and normalization were
found to train well partly because their gradients do not shrink, and most of them need no scaling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from mptutor.data import load
from mptutor.devices import pick_device
from mptutor.experiments.progress import Progress
from mptutor.experiments.race import race
from mptutor.experiments.recipes import AMP_BF16, AMP_FP16, AMP_FP16_UNSCALED, FP32, Recipe
from mptutor.experiments.tasks import adam, classify
from mptutor.experiments.training_result import TrainingResult


def deep_sigmoid(depth: int = 8, width: int = 256) -> nn.Sequential:
    """Build 784 -> width -> ... -> width -> 10 with `depth` sigmoid layers."""
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in in (784, *[width] * (depth - 1)):
        layers += [nn.Linear(fan_in, width), nn.Sigmoid()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


_RECIPES = (FP32, AMP_FP16_UNSCALED, AMP_FP16, AMP_BF16)


def run_deep_sigmoid(
    *,
    recipes: Sequence[Recipe] | None = None,
    seeds: Sequence[int] = (0,),
    epochs: int = 6,
    quick: bool = False,
    device: torch.device | str | None = None,
    progress: Progress = True,
    stop: Callable[[], bool] | None = None,
) -> TrainingResult:
    """Train eight sigmoid layers by every recipe, with Adam at 1e-3, batch 128.

    Unless named, the recipes are FP32, AMP FP16 without and with a scaler, and AMP BF16.  `quick`
    is four epochs and, unless named, the first three recipes.
    """
    device = pick_device() if device is None else torch.device(device)
    if recipes is None:
        recipes = _RECIPES[:3] if quick else _RECIPES
    if quick:
        epochs = 4
    task = classify(
        "8 sigmoid layers", load("fashion-mnist-5k", device=device), deep_sigmoid, adam(1e-3)
    )
    return race(
        task, recipes, seeds=seeds, epochs=epochs, device=device, progress=progress, stop=stop
    )
