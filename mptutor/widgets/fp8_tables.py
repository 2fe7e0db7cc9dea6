"""What the FP8 scale explorer shows in every position it can take, computed once.

For each tensor and format: with one scale for the tensor, a count of every zone and the error for
each power of two that the scale may be; with a scale for each row or block, which their amaxes
choose, a single one. Counts are kept apart for every 32 columns, so that it shows where in the
tensor values are lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mptutor.census import ExponentCensus, take_census
from mptutor.experiments.fp8_tensors import measure_damage
from mptutor.formats import FloatFormat
from mptutor.fp8 import BLOCK_SIZE, amax_of, quantize_scaled

#: Flushed, subnormal and clipped values; the rest of the nonzero ones are normal.
Counts = tuple[int, int, int]


@dataclass(frozen=True)
class Outcome:
    """What rounding made of a tensor in one position.

    Attributes
    ----------
    counts
        One for every 32 columns.
    relative_error
        The mean over all values other than zero, 0 to 1, to six digits.
    """

    counts: tuple[Counts, ...]
    relative_error: float

    @property
    def total(self) -> Counts:
        """The counts of the whole tensor."""
        return tuple(map(sum, zip(*self.counts, strict=True)))


@dataclass(frozen=True)
class ScaledParts:
    """A tensor whose rows or blocks have scales of their own.

    Attributes
    ----------
    outcome
        What rounding made of it.
    exponents, outlier
        Scaled values by exponent: all, and those of the outlier channel.
    scales
        How many scales there are.
    smallest, largest
        The scales' range, as powers of two.
    """

    outcome: Outcome
    exponents: dict[int, int]
    outlier: dict[int, int]
    scales: int
    smallest: float
    largest: float


@dataclass(frozen=True)
class FormatTable:
    """One tensor in one format: what each position gives.

    Attributes
    ----------
    amax_scale
        The scale that the tensor's amax asks for.
    by_power
        The outcome with one scale for the tensor, for every power offered.
    parts
        With scales of their own for ``"row"`` and ``"block"``.
    """

    amax_scale: float
    by_power: tuple[Outcome, ...]
    parts: dict[str, ScaledParts]


@dataclass(frozen=True)
class TensorTable:
    """One tensor: its values by exponent, and a table for every format.

    Attributes
    ----------
    amax, zeros
        Its largest magnitude, and how many values are zero.
    nonzero
        How many are not, in every 32 columns.
    exponents, outlier
        Values by exponent: all, and those of the outlier channel, if there is one.
    outlier_block
        Which 32 columns have it.
    """

    amax: float
    zeros: int
    nonzero: tuple[int, ...]
    exponents: dict[int, int]
    outlier: dict[int, int]
    outlier_block: int | None
    formats: dict[str, FormatTable]


def make_table(
    x: Tensor, formats: tuple[FloatFormat, ...], powers: range, outlier_channel: int | None = None
) -> TensorTable:
    """Compute everything about a tensor, ``[rows, columns]``."""
    columns = [take_census(part) for part in x.split(BLOCK_SIZE, dim=1)]
    whole = sum(columns, ExponentCensus())
    return TensorTable(
        amax=amax_of(x).item(),
        zeros=whole.zeros,
        nonzero=tuple(census.nonzero for census in columns),
        exponents=whole.exponents,
        outlier=_outlier_exponents(x, outlier_channel),
        outlier_block=None if outlier_channel is None else outlier_channel // BLOCK_SIZE,
        formats={
            fmt.name: FormatTable(
                amax_scale=quantize_scaled(x, fmt).scale.item(),
                by_power=tuple(_one_scale(x, columns, fmt, power) for power in powers),
                parts={g: _own_scales(x, fmt, g, outlier_channel) for g in ("row", "block")},
            )
            for fmt in formats
        },
    )


def _one_scale(x: Tensor, columns: list[ExponentCensus], fmt: FloatFormat, power: int) -> Outcome:
    scale = 2.0**power
    error = measure_damage(x, quantize_scaled(x, fmt, scale=scale)).relative_error
    return Outcome(tuple(_counts(census, fmt, scale) for census in columns), _six_digits(error))


def _own_scales(
    x: Tensor, fmt: FloatFormat, granularity: str, outlier_channel: int | None
) -> ScaledParts:
    quantized = quantize_scaled(x, fmt, granularity)
    scaled = x * quantized.scale
    columns = [take_census(part) for part in scaled.split(BLOCK_SIZE, dim=1)]
    outcome = Outcome(
        counts=tuple(_counts(census, fmt, 1.0) for census in columns),
        relative_error=_six_digits(measure_damage(x, quantized).relative_error),
    )
    # Parts that are all zero have a scale of 1, which nothing was multiplied by.
    amax = amax_of(x, granularity)
    every = quantized.scale if granularity == "row" else quantized.scale[:, ::BLOCK_SIZE]
    used = every[amax > 0] if (amax > 0).any() else torch.ones(1)
    return ScaledParts(
        outcome=outcome,
        exponents=sum(columns, ExponentCensus()).exponents,
        outlier=_outlier_exponents(scaled, outlier_channel),
        scales=amax.numel(),
        smallest=math.log2(used.min().item()),
        largest=math.log2(used.max().item()),
    )


def _counts(census: ExponentCensus, fmt: FloatFormat, scale: float) -> Counts:
    return (
        census.flushed(fmt, scale),
        census.subnormal(fmt, scale),
        census.overflowed(fmt, scale),
    )


def _outlier_exponents(x: Tensor, channel: int | None) -> dict[int, int]:
    return {} if channel is None else take_census(x[:, channel]).exponents


def _six_digits(x: float) -> float:
    return float(f"{x:.6g}")
