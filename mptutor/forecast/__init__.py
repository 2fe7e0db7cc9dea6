"""Forecast a training step on a GPU you don't have: its memory by part, its time, its layers.

One step is taken on fake tensors, which have shapes and no values (`mptutor.forecast.step`), under
CUDA's autocast policy.  It passes through the real model, the real autograd and the real optimizer,
so what each operation computes, moves and holds is not estimated but counted.  The counts are then
priced for a GPU by its data sheet (`mptutor.forecast.gpus`) and a roofline with the cost of
launches (`mptutor.forecast.roofline`).

>>> f = forecast("small_cnn", batch=128, recipe="amp-fp16", gpu="T4")
>>> f.peak_bytes_by_part["parameters"], f.fits
(103096, True)

What is counted is exact: the memory of tensors on a GPU, to the byte, but for what CUDA, cuBLAS and
cuDNN take for themselves.  What is priced is a model, and a forecast is called one wherever it
shows, with the error that it had against published measurements.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import torch

from mptutor.experiments.recipes import RECIPES, MakeOptimizer, Recipe
from mptutor.forecast.gpus import GPUS, Gpu, find_gpu
from mptutor.forecast.pricing import price
from mptutor.forecast.result import (
    MEMORY_ERROR,
    TIME_ERROR,
    Forecast,
    Forecasts,
    LayerCost,
    Roof,
)
from mptutor.forecast.step import ForecastError, Step, sgd, take_step
from mptutor.forecast.workloads import BuildModel, Loss, find_workload

__all__ = [
    "GPUS",
    "MEMORY_ERROR",
    "OPTIMIZERS",
    "TIME_ERROR",
    "Forecast",
    "ForecastError",
    "Forecasts",
    "Gpu",
    "LayerCost",
    "Roof",
    "find_gpu",
    "find_recipe",
    "forecast",
    "forecast_on",
]

#: Optimizers by the names that the command line knows.
OPTIMIZERS: dict[str, MakeOptimizer] = {
    "sgd": sgd,
    "adam": lambda weights: torch.optim.Adam(weights),
    "adamw": lambda weights: torch.optim.AdamW(weights),
}


def forecast(
    model: str | BuildModel,
    *,
    batch: int,
    recipe: str | Recipe = "amp-fp16",
    gpu: str | Gpu = "A100",
    **options: Any,
) -> Forecast:
    """Forecast a training step, or inference on a batch.

    Parameters
    ----------
    model
        A model of the course (``"small_cnn"``), a classifier of torchvision (``"resnet50"``), a
        function that builds a model, or where it is, ``"module:function"``.
    batch
        Samples in a step.
    recipe
        One of `mptutor.experiments.recipes.RECIPES` by name (``"AMP FP16"``) or by its name in
        small letters with hyphens (``"amp-fp16"``), or a `Recipe`.
    gpu
        One of `GPUS` by name, or a `Gpu`.
    **options
        As for `forecast_on`.

    Raises
    ------
    ValueError
        For a name that is not known; the message has those that are.
    ForecastError
        If the model's step depends on the values of tensors, or the model fails by itself.
    """
    return forecast_on([gpu], model, batch=batch, recipe=recipe, **options).forecasts[0]


def forecast_on(
    gpus: Iterable[str | Gpu] | None,
    model: str | BuildModel,
    *,
    batch: int,
    recipe: str | Recipe = "amp-fp16",
    optimizer: str | MakeOptimizer = "sgd",
    sample_shape: Iterable[int] | None = None,
    integers: bool = False,
    loss: Loss | None = None,
    channels_last: bool = False,
    tf32_products: bool | None = None,
    train: bool = True,
) -> Forecasts:
    """Forecast the same step on several GPUs, on all if `gpus` is None.

    Parameters
    ----------
    model, batch, recipe
        As for `forecast`.
    optimizer
        ``"sgd"`` (momentum 0.9), ``"adam"``, ``"adamw"``, or what makes one from parameters.
    sample_shape, integers
        The shape of one input, ``(3, 224, 224)``, and whether it holds integers; needed for models
        of your own.
    loss
        Model's output, batch size -> loss; cross entropy if not given.
    channels_last
        Images lie in NHWC (``memory_format=torch.channels_last``).
    tf32_products
        FP32 matrix products use TF32 where there is any; torch's setting if not given.
    train
        False for inference without gradients.
    """
    names = GPUS if gpus is None else gpus
    chosen = [find_gpu(name) for name in names]
    shape = None if sample_shape is None else tuple(sample_shape)
    recipe = find_recipe(recipe)
    workload_name, step = _step(
        model, batch, recipe, _find_optimizer(optimizer), shape, integers, loss, train
    )
    return Forecasts(
        tuple(
            price(
                step,
                gpu,
                model=workload_name,
                batch=batch,
                recipe=recipe,
                channels_last=channels_last,
                tf32_products=tf32_products,
            )
            for gpu in chosen
        )
    )


@lru_cache(maxsize=64)
def _step(
    model: str | BuildModel,
    batch: int,
    recipe: Recipe,
    optimizer: MakeOptimizer,
    sample_shape: tuple[int, ...] | None,
    integers: bool,
    loss: Loss | None,
    train: bool,
) -> tuple[str, Step]:
    """Take the step, which is the same on every GPU and takes seconds, once."""
    workload = find_workload(model, sample_shape=sample_shape, integers=integers, loss=loss)
    return workload.name, take_step(workload, batch, recipe, optimizer=optimizer, train=train)


def find_recipe(name: str | Recipe) -> Recipe:
    """Look up a recipe by its name, or by its name in small letters with hyphens."""
    if isinstance(name, Recipe):
        return name
    by_slug = {slug(known): recipe for known, recipe in RECIPES.items()}
    if slug(name) not in by_slug:
        raise ValueError(f"recipe: got {name!r}, allowed are {', '.join(by_slug)}")
    return by_slug[slug(name)]


def slug(name: str) -> str:
    """Write a name with small letters, digits and hyphens: ``"AMP FP16"`` -> ``"amp-fp16"``."""
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def _find_optimizer(optimizer: str | MakeOptimizer) -> MakeOptimizer:
    if not isinstance(optimizer, str):
        return optimizer
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"optimizer: got {optimizer!r}, allowed are {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[optimizer]
