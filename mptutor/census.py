"""Count exponents once, instead of casting once for every scale.

How many gradients does a loss scale flush to zero, and how many does it push to infinity? A cast
answers for one scale and one format. A census answers for all of them, after one pass over the
values.

To multiply by a power of two is to add to the exponent; the significand stays. So x × 2^k passes a
threshold T exactly when x passes T × 2^-k. Take a histogram of the exponents, then, and all scales
are answered by reading it at shifted places. That is right up to the values in the same binade as
the threshold: FP16 overflows from 65520 on, which lies within [2^15, 2^16). `mptutor.census_cells`
therefore cuts every binade into 48 cells such that the thresholds of all formats fall between two
cells. With them the counts are exact, ties included, and no format need be known when counting.

The product scale × x is taken to be exact and rounded once, to the format. Casting ``x * scale``
does the same, but where the product leaves FP32's own range. A census describes the values that it
was given: what was flushed to zero before is a zero to it.

The price of exactness is passes over the bits: a census of a large tensor takes a small multiple of
the time of copying it, which ``benchmarks/census.py`` measures beside the casts it replaces.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import nn

from mptutor.census_cells import (
    CELLS_PER_BINADE,
    cell_of,
    count_cells,
    exponent_of,
    subnormal_mantissas,
)
from mptutor.formats import FP16, FP32, NAMED_FORMATS, FloatFormat, get_format

#: Loss scales are FP32 numbers; these are the exponents of the normal powers of two.
_SCALE_EXPONENTS = range(FP32.emin, FP32.emax + 1)


@dataclass(frozen=True)
class ScaleWindow:
    """The powers of two from ``smallest`` to ``largest`` that are safe as a loss scale.

    Empty if ``smallest`` is above ``largest``: then what prevents underflow causes overflow. If no
    scale prevents underflow ``smallest`` is infinite, if none prevents overflow ``largest`` is 0.
    """

    smallest: float
    largest: float

    @property
    def is_empty(self) -> bool:
        """Whether no scale is safe."""
        return self.smallest > self.largest

    @property
    def scales(self) -> list[float]:
        """Every power of two in the window."""
        if self.is_empty:
            return []
        return [2.0**k for k in range(_log2(self.smallest), _log2(self.largest) + 1)]

    def __contains__(self, scale: float) -> bool:
        return self.smallest <= scale <= self.largest

    def __str__(self) -> str:
        if self.is_empty:
            return "no scale"
        return f"2^{_log2(self.smallest)} to 2^{_log2(self.largest)}"


@dataclass(frozen=True, repr=False)
class ExponentCensus:
    """How many values lie where, precisely enough for every power of two as a scale.

    Made by `take_census`. Censuses of layers, steps or processes add up: ``a + b``, or
    ``sum(censuses, ExponentCensus())``.

    Attributes
    ----------
    zeros, infs, nans : int
        Values that are ±0, ±inf and NaN. No scale changes them, and they count as nothing else.
    cells : tuple of (int, int)
        Cell and count of all other values, in order of magnitude. A value in cell *c* of
        ``[2^e, 2^(e+1))``, 0 being the power of two itself, is listed under ``48 e + c``.

    Examples
    --------
    >>> census = take_census(torch.tensor([2.0**-25, 2.0**-24, 1.0, 65520.0]))
    >>> [census.flushed("FP16", scale) for scale in (0.5, 1, 2)]
    [2, 1, 0]
    >>> [census.overflowed("FP16", scale) for scale in (0.5, 1, 2)]
    [0, 1, 1]
    """

    zeros: int = 0
    infs: int = 0
    nans: int = 0
    cells: tuple[tuple[int, int], ...] = ()

    # -- counts ----------------------------------------------------------------------------------

    @property
    def total(self) -> int:
        """All values: zeros, infinities and NaNs included."""
        return self.zeros + self.infs + self.nans + self.nonzero

    @property
    def nonzero(self) -> int:
        """Finite values other than zero."""
        return self._running_counts[-1]

    @property
    def exponents(self) -> dict[int, int]:
        """Finite values other than zero by exponent *e*: how many lie in ``[2^e, 2^(e+1))``."""
        counts: Counter[int] = Counter()
        for cell, count in self.cells:
            counts[exponent_of(cell)] += count
        return dict(counts)

    def flushed(self, fmt: FloatFormat | str | torch.dtype, scale: float = 1.0) -> int:
        """Count nonzero values that become zero, times ``scale`` and rounded to ``fmt``.

        Parameters
        ----------
        fmt : FloatFormat, str or torch.dtype
            The format: `mptutor.FP16`, ``"FP16"`` or ``torch.float16``.
        scale : float
            A power of two.

        Raises
        ------
        ValueError
            If ``scale`` is no positive power of two, or there is no such format.
        """
        # The tie goes to zero, and the threshold is a cell of its own: the first of its binade.
        return self._below(cell_of(get_format(fmt).underflow_threshold) + 1, scale)

    def subnormal(self, fmt: FloatFormat | str | torch.dtype, scale: float = 1.0) -> int:
        """Count values that become subnormal numbers of ``fmt``: some of their bits are lost.

        Values just below the smallest normal number that round up to it are not among them.
        Parameters and errors as in `flushed`.
        """
        fmt = get_format(fmt)
        first_normal = cell_of(fmt.smallest_normal - fmt.smallest_subnormal / 2)
        return self._below(first_normal, scale) - self.flushed(fmt, scale)

    def overflowed(self, fmt: FloatFormat | str | torch.dtype, scale: float = 1.0) -> int:
        """Count finite values that rounding takes beyond ``fmt.max``.

        They become infinite in FP16; formats without infinities saturate or have NaN instead.
        Parameters and errors as in `flushed`.
        """
        return self.nonzero - self._below(cell_of(get_format(fmt).overflow_threshold), scale)

    def safe_scales(
        self,
        fmt: FloatFormat | str | torch.dtype,
        flushed_at_most: float = 0.001,
        overflowed_at_most: float = 0.0,
    ) -> ScaleWindow:
        """Return the scales at which ``fmt`` loses no more than this to underflow and overflow.

        Parameters
        ----------
        fmt : FloatFormat, str or torch.dtype
            The format.
        flushed_at_most, overflowed_at_most : float
            Tolerated share of the finite nonzero values. For overflow that is 0 unless given, as
            one infinite gradient costs the whole step.

        Raises
        ------
        ValueError
            If a share is not between 0 and 1, or there is no such format.
        """
        for name, share in (
            ("flushed_at_most", flushed_at_most),
            ("overflowed_at_most", overflowed_at_most),
        ):
            if not 0 <= share <= 1:
                raise ValueError(f"{name} is {share!r}; it is a share, from 0 to 1")
        scales = [2.0**k for k in _SCALE_EXPONENTS]
        unflushed = [s for s in scales if self.flushed(fmt, s) <= flushed_at_most * self.nonzero]
        finite = [s for s in scales if self.overflowed(fmt, s) <= overflowed_at_most * self.nonzero]
        return ScaleWindow(min(unflushed, default=math.inf), max(finite, default=0.0))

    # -- new censuses ----------------------------------------------------------------------------

    def __add__(self, other: ExponentCensus) -> ExponentCensus:
        if not isinstance(other, ExponentCensus):
            return NotImplemented
        cells = Counter(dict(self.cells))
        cells.update(dict(other.cells))
        return ExponentCensus(
            self.zeros + other.zeros,
            self.infs + other.infs,
            self.nans + other.nans,
            tuple(sorted(cells.items())),
        )

    def scaled(self, scale: float) -> ExponentCensus:
        """Return the census of the same values times ``scale``, a power of two."""
        shift = CELLS_PER_BINADE * _log2(scale)
        cells = tuple((cell + shift, count) for cell, count in self.cells)
        return ExponentCensus(self.zeros, self.infs, self.nans, cells)

    def to_json(self) -> str:
        """Return the census as JSON."""
        return json.dumps(
            {"zeros": self.zeros, "infs": self.infs, "nans": self.nans, "cells": self.cells}
        )

    @classmethod
    def from_json(cls, text: str) -> ExponentCensus:
        """Read what `to_json` wrote."""
        plain = json.loads(text)
        return cls(**{**plain, "cells": tuple((cell, count) for cell, count in plain["cells"])})

    # -- how it shows itself ---------------------------------------------------------------------

    def __str__(self) -> str:
        text = f"{self.total:,} values: {self.nonzero:,} finite and nonzero, {self.zeros:,} zeros"
        text += f", {self.infs:,} inf, {self.nans:,} NaN"
        if self.cells:
            binades = [exponent_of(cell) for cell, _ in (self.cells[0], self.cells[-1])]
            text += f"; magnitudes from 2^{binades[0]} to 2^{binades[1] + 1}"
        return text

    def __repr__(self) -> str:
        return f"<ExponentCensus of {self}>"

    def _repr_html_(self) -> str:
        head = "<tr><th>unscaled, in<th>flushed<th>subnormal<th>overflowed<th>safe scales"
        rows = [
            f"<tr><th>{fmt}<td>{self.flushed(fmt):,}<td>{self.subnormal(fmt):,}"
            f"<td>{self.overflowed(fmt):,}<td>{self.safe_scales(fmt)}"
            for fmt in NAMED_FORMATS.values()
            if fmt.bits <= FP16.bits
        ]
        return f"<table><caption>{self}</caption>{head}{''.join(rows)}</table>"

    # -- helpers ---------------------------------------------------------------------------------

    def _below(self, cell: int, scale: float) -> int:
        """Count finite nonzero values that lie below ``cell`` once multiplied by ``scale``."""
        unscaled = cell - CELLS_PER_BINADE * _log2(scale)
        return self._running_counts[bisect_left(self._cell_numbers, unscaled)]

    @cached_property
    def _cell_numbers(self) -> list[int]:
        return [cell for cell, _ in self.cells]

    @cached_property
    def _running_counts(self) -> list[int]:
        """How many values lie in the first 0, 1, 2, ... cells."""
        return list(accumulate((count for _, count in self.cells), initial=0))


# -- taking a census -----------------------------------------------------------------------------


def take_census(
    values: torch.Tensor | Iterable[torch.Tensor] | Mapping[str, torch.Tensor] | nn.Module,
) -> ExponentCensus:
    """Count the values of one or several tensors by magnitude.

    Parameters
    ----------
    values : tensor, iterable or mapping of tensors, or nn.Module
        Tensors of any shape, of a floating-point dtype of up to 32 bits, on any device. Of a
        module the gradients of its parameters are taken, those there are.

    Raises
    ------
    TypeError
        If something is no tensor of such a dtype. FP64 is refused since FP32 cannot hold it:
        ``values.float()`` rounds, and that may decide a tie.
    ValueError
        If a module has no gradients.
    """
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for tensor in _named_tensors(values).values():
        by_device.setdefault(tensor.device, []).append(tensor)
    return sum(map(_take, by_device.values()), ExponentCensus())


def take_census_by_layer(
    values: Mapping[str, torch.Tensor] | nn.Module,
) -> dict[str, ExponentCensus]:
    """Return a census for every name in a mapping, or for every parameter's gradient of a module.

    Errors as in `take_census`. ``sum(census.values(), ExponentCensus())`` is that of all.
    """
    return {name: take_census(tensor) for name, tensor in _named_tensors(values).items()}


def _named_tensors(
    values: torch.Tensor | Iterable[torch.Tensor] | Mapping[str, torch.Tensor] | nn.Module,
) -> dict[str, torch.Tensor]:
    """Return the tensors that ``values`` stands for, checked, by name or number."""
    if isinstance(values, nn.Module):
        tensors = {n: p.grad for n, p in values.named_parameters() if p.grad is not None}
        if not tensors:
            raise ValueError("values is a module without gradients; call backward() first")
    elif isinstance(values, torch.Tensor):
        tensors = {"values": values}
    elif isinstance(values, Mapping):
        tensors = dict(values)
    elif isinstance(values, Iterable) and not isinstance(values, (str, bytes)):
        tensors = {str(number): tensor for number, tensor in enumerate(values)}
    else:
        raise TypeError(
            f"values is a {type(values).__name__}; allowed are a tensor, an iterable or mapping "
            "of tensors, and an nn.Module"
        )
    for name, tensor in tensors.items():
        _check_countable(name, tensor)
    return tensors


def _check_countable(name: str, tensor: torch.Tensor) -> None:
    allowed = "allowed are dense tensors of a floating-point dtype of up to 32 bits"
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}; {allowed}")
    fits = tensor.is_floating_point() and tensor.dtype.itemsize <= 4
    if not fits or tensor.layout is not torch.strided:
        raise TypeError(f"{name} is a tensor of {tensor.dtype}, {tensor.layout}; {allowed}")


def _take(tensors: list[torch.Tensor]) -> ExponentCensus:
    """Take the census of tensors on one device."""
    table = count_cells(tensors)
    zeros_and_subnormals, normals, infs_and_nans = table[0], table[1:-1], table[-1]
    census = ExponentCensus(
        zeros=int(zeros_and_subnormals[0]),
        infs=int(infs_and_nans[0]),
        nans=int(infs_and_nans[1:].sum()),
        cells=_listed(normals.flatten(), first=CELLS_PER_BINADE * FP32.emin),
    )
    if zeros_and_subnormals[1:].any():
        # An FP32 subnormal is a whole number of 2^-149.
        mantissas = [subnormal_mantissas(tensor) for tensor in tensors]
        census += _take(mantissas).scaled(FP32.smallest_subnormal)
    return census


def _listed(counts: torch.Tensor, first: int) -> tuple[tuple[int, int], ...]:
    """List the counts that are not zero, with the numbers of their cells."""
    occupied = counts.nonzero().flatten()
    return tuple(zip((occupied + first).tolist(), counts[occupied].tolist(), strict=True))


def _log2(scale: float) -> int:
    """Return the exponent of a power of two."""
    significand, exponent = math.frexp(scale)
    if significand != 0.5:
        raise ValueError(f"scale is {scale!r}; a census answers for positive powers of two")
    return exponent - 1
