"""What FP8 does to real tensors, and what scales save.

`run_fp8_errors` rounds the operands of a trained layer to FP8 and narrower formats, unscaled and
with a scale for the tensor, for each row, for each block of 32 values. Things to look for:

* These activations, of about 1, need no scale. The weights are smaller and better off with one, and
  gradients are lost without: unscaled, E4M3 makes zero of every one.
* Once scaled, E5M2 is twice as far off as E4M3. It has a mantissa bit less, and the error of a
  value that is not subnormal depends on nothing else. Why gradients are given E5M2 all the same
  (Micikevicius et al., *FP8 Formats for Deep Learning*, 2022, arXiv:2209.05433, section 3) is
  range: it spans 32 binades to E4M3's 18, and gradients are spread wider than weights.
* An outlier channel takes the top of the range, and with one scale for the tensor most of the rest
  falls off its bottom in E4M3. A scale for each row helps little, since each row has the outlier in
  it. Blocks confine the damage to the outlier's 31 neighbours.

`run_delayed_scaling` compares current with delayed scaling while the gradients of a real training
jump: at one step they are many times larger, and later they become and stay larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor

from mptutor.devices import pick_device
from mptutor.experiments.fp8_results import (
    WAYS,
    DelayedScalingResult,
    Fp8ErrorsResult,
    QuantizationError,
    ScalingTrace,
)
from mptutor.experiments.fp8_tensors import (
    OUTLIER_FACTOR,
    fp8_task,
    measure_damage,
    train_and_watch,
    trained_operands,
)
from mptutor.formats import FP4_E2M1, FP6_E2M3, FP6_E3M2, FP8_E4M3, FP8_E5M2, FloatFormat
from mptutor.fp8 import BLOCK_SIZE, GRANULARITIES, DelayedScale, amax_of, quantize_scaled

FORMATS = (FP8_E4M3, FP8_E5M2, FP6_E2M3, FP6_E3M2, FP4_E2M1)

#: Bits that a scale is stored in: FP32 for rows and tensors, E8M0 for blocks.
_SCALE_BITS = {"none": 0, "tensor": 32, "row": 32, "block": 8}


# -- one tensor, every format and granularity ------------------------------------------------------


def run_fp8_errors(
    *,
    formats: Sequence[FloatFormat] = FORMATS,
    outlier_factor: float = OUTLIER_FACTOR,
    epochs: int = 1,
    seed: int = 0,
    quick: bool = False,
    device: torch.device | str | None = None,
) -> Fp8ErrorsResult:
    """Round the weights, activations and gradients of a trained layer in every way.

    Parameters
    ----------
    formats
        The formats to round to.
    outlier_factor
        What the outlier channel of the activations is multiplied by.
    epochs, seed
        How long the network is trained before, in FP32, and from which seed.
    quick
        The two FP8 formats alone.
    device
        Where; the default is `pick_device()`.
    """
    device = pick_device() if device is None else torch.device(device)
    formats = (FP8_E4M3, FP8_E5M2) if quick else formats
    tensors = trained_operands(epochs, seed, device).named(outlier_factor)
    task = fp8_task(device)
    return Fp8ErrorsResult(
        network=task.name,
        data=task.data,
        device=str(device),
        epochs=epochs,
        seed=seed,
        outlier_factor=outlier_factor,
        shapes={name: tuple(x.shape) for name, x in tensors.items()},
        errors=tuple(
            quantization_error(name, x, fmt, granularity)
            for name, x in tensors.items()
            for fmt in formats
            for granularity in GRANULARITIES
        ),
    )


def quantization_error(
    name: str, x: Tensor, fmt: FloatFormat, granularity: str
) -> QuantizationError:
    """Round one tensor, ``[rows, n]``, and measure what that did."""
    quantized = quantize_scaled(x, fmt, granularity)
    rows, columns = x.shape
    blocks = rows * -(-columns // BLOCK_SIZE)
    scales = {"none": 0, "tensor": 1, "row": rows, "block": blocks}[granularity]
    return QuantizationError(
        tensor=name,
        fmt=fmt.name,
        granularity=granularity,
        damage=measure_damage(x, quantized),
        scales=scales,
        bits_per_value=fmt.bits + scales * _SCALE_BITS[granularity] / x.numel(),
    )


# -- many steps, current and delayed scales --------------------------------------------------------


def run_delayed_scaling(
    *,
    formats: Sequence[FloatFormat] = (FP8_E4M3, FP8_E5M2),
    length: int = 8,
    factor: float = 256.0,
    steps: int = 40,
    seed: int = 0,
    quick: bool = False,
    device: torch.device | str | None = None,
) -> DelayedScalingResult:
    """Round the gradients of the first steps of a training, which jump twice.

    Parameters
    ----------
    formats
        The formats to round to.
    length
        Steps that a delayed scale remembers. (Transformer Engine's default is 1024.)
    factor
        What the gradients of one step, and those of the last third of the steps, are multiplied by.
    steps
        How many steps, at least 8.
    seed
        Of the training.
    quick
        16 steps, a history of 4.
    device
        Where; the default is `pick_device()`.

    Raises
    ------
    ValueError
        If ``steps`` is below 8.
    """
    if steps < 8:
        raise ValueError(f"steps: got {steps}, allowed are 8 and more")
    device = pick_device() if device is None else torch.device(device)
    steps, length = (16, 4) if quick else (steps, length)
    spike_at, jump_at = steps // 4, 2 * steps // 3
    task = fp8_task(device)
    watched = islice(train_and_watch(task, seed, device), steps)
    gradients = [
        operands.gradients * (factor if step == spike_at or step >= jump_at else 1.0)
        for step, operands in enumerate(watched)
    ]
    return DelayedScalingResult(
        network=task.name,
        data=task.data,
        device=str(device),
        seed=seed,
        length=length,
        factor=factor,
        spike_at=spike_at,
        jump_at=jump_at,
        amaxes=tuple(amax_of(grad).item() for grad in gradients),
        traces=tuple(_trace(gradients, way, fmt, length) for fmt in formats for way in WAYS),
    )


def _trace(gradients: list[Tensor], way: str, fmt: FloatFormat, length: int) -> ScalingTrace:
    algorithm = "most_recent" if way == "delayed, most recent" else "max"
    state = DelayedScale(fmt, length=length, algorithm=algorithm)
    scales, damages = [], []
    for grad in gradients:
        quantized = quantize_scaled(grad, fmt) if way == "current" else state.quantize(grad)
        state = state.after(amax_of(grad).item())
        scales.append(quantized.scale.item())
        damages.append(measure_damage(grad, quantized))
    return ScalingTrace(way, fmt.name, tuple(scales), tuple(damages))
