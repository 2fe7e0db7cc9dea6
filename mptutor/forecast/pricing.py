"""Prices a step for a GPU: adds up the costs of its operations, by limit and by layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import torch

from mptutor.experiments.recipes import Recipe
from mptutor.forecast.gpus import Gpu
from mptutor.forecast.operations import Operation
from mptutor.forecast.result import Forecast, LayerCost, Roof
from mptutor.forecast.roofline import FITTED, Cost, arithmetic_rate, bandwidth, cost
from mptutor.forecast.step import Step

_BOUNDS = ("arithmetic", "memory", "launch")

Priced = tuple[Operation, Cost]


def price(
    step: Step,
    gpu: Gpu,
    *,
    model: str,
    batch: int,
    recipe: Recipe,
    channels_last: bool = False,
    tf32_products: bool | None = None,
) -> Forecast:
    """Turn a step into the forecast for a GPU; `forecast` has the parameters."""
    priced = [
        (op, cost(op, gpu, channels_last=channels_last, tf32_products=tf32_products))
        for op in step.operations
    ]
    bound_ms = _by_bound(priced)
    mode = "inference" if step.optimizer == "none" else "training"
    return Forecast(
        model=model,
        batch=batch,
        recipe=recipe.name,
        optimizer=step.optimizer,
        gpu=gpu.name,
        gpu_memory_bytes=gpu.memory_bytes,
        channels_last=channels_last,
        parameters=step.parameters,
        step_ms=sum(bound_ms.values()),
        bound_ms=bound_ms,
        peak_bytes_by_part=dict(step.memory),
        roof=_roof(priced, gpu, tf32_products),
        layers=_by_layer(priced),
        time_is_checked=mode in gpu.checked and not _mostly_launches(bound_ms),
        notes=tuple(_notes(priced, gpu, recipe, mode, bound_ms)),
    )


def _by_bound(priced: list[Priced]) -> dict[str, float]:
    bound_ms = dict.fromkeys(_BOUNDS, 0.0)
    for _, c in priced:
        bound_ms[c.bound] += 1e3 * c.seconds
    return bound_ms


def _by_layer(priced: list[Priced]) -> tuple[LayerCost, ...]:
    groups: dict[tuple[str, str], list[Priced]] = defaultdict(list)
    for op, c in priced:
        groups[op.layer, op.phase].append((op, c))
    return tuple(_sum(layer, phase, group) for (layer, phase), group in groups.items())


def _sum(layer: str, phase: str, group: list[Priced]) -> LayerCost:
    bound_ms = _by_bound(group)
    return LayerCost(
        layer=layer,
        phase=phase,
        operations=len(group),
        flop=sum(op.flop for op, _ in group),
        moved_bytes=sum(op.moved_bytes for op, _ in group),
        ms=sum(bound_ms.values()),
        bound=max(bound_ms, key=bound_ms.get),
    )


def _roof(priced: list[Priced], gpu: Gpu, tf32_products: bool | None) -> Roof:
    """Draw the roof for the products that make up most of the arithmetic."""
    flop_at: dict[tuple[float, bool], int] = defaultdict(int)
    for op, _ in priced:
        flop_at[arithmetic_rate(op, gpu, tf32_products)] += op.flop
    flops, on_tensor_cores = max(flop_at, key=flop_at.get)
    share = FITTED.tensor_cores if on_tensor_cores else FITTED.cores
    return Roof(flops, gpu.bytes_per_s, flops * share, bandwidth(gpu))


def _mostly_launches(bound_ms: dict[str, float]) -> bool:
    return bound_ms["launch"] > 0.5 * sum(bound_ms.values())


def _notes(
    priced: list[Priced], gpu: Gpu, recipe: Recipe, mode: str, bound_ms: dict[str, float]
) -> Iterator[str]:
    step_ms = sum(bound_ms.values())
    if mode not in gpu.checked:
        yield f"Nothing checks the time: no published {mode} on the {gpu.name} was found."
    if recipe.fmt.torch_dtype is torch.bfloat16 and gpu.bf16_flops is None:
        yield f"The {gpu.name} has no units for BF16 and imitates it, perhaps slower than forecast."
    if mode in gpu.checked and _mostly_launches(bound_ms):
        yield (
            f"On the {gpu.name} the step mostly launches kernels.  How long that takes depends on "
            f"the computer around it, and no published measurement was found to check it."
        )
    depthwise_s = sum(c.seconds for op, c in priced if op.narrowest == 1)
    if 1e3 * depthwise_s > 0.1 * step_ms:
        yield (
            "Networks of depthwise convolutions came out too fast, by up to a third: kernels for "
            "them get less of the bandwidth than others."
        )
