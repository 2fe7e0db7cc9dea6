"""Many running sums at once, each in a format and a rounding mode of its own.

A running sum adds one term after the other, and every partial sum is rounded before the next term
comes. The steps cannot be shared out, but sums can go side by side: each is a *lane*, an element of
one tensor, and ten thousand steps of a hundred lanes take as long as of one. A lane here adds the
same positive term again and again.

A step adds in FP64, where the sum of two such numbers is exact, counts the result in ulps of the
lane's format, rounds to a whole number of them and multiplies back. That is what `quantize` does in
one call for one format and one mode; done here for all lanes together it is thirty times quicker.
The tests hold every step equal to `quantize`, and nearest-even lanes equal to torch's own addition.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mptutor.formats import FloatFormat
from mptutor.rounding import ROUNDING_MODES, quantize

_FP64_EXPONENT_MASK = 0x7FF0000000000000

#: A term far below an ulp would vanish beside a large sum, in FP64 too. Such a term is replaced by
#: this fraction of the sum: still below half an ulp of FP32, so each mode does with it the same.
_LEAST_FRACTION = 2.0**-28


@dataclass(frozen=True)
class Lane:
    """One running sum: ``term``, rounded to ``fmt`` once, is added to the sum again and again.

    Raises
    ------
    ValueError
        If ``term`` is not positive and finite, or there is no such rounding mode.
    """

    fmt: FloatFormat
    term: float
    rounding: str = "nearest_even"

    def __post_init__(self) -> None:
        if self.rounding not in ROUNDING_MODES:
            raise ValueError(f"rounding is {self.rounding!r}; allowed are {ROUNDING_MODES}")
        if not 0 < self.term_q < math.inf:
            raise ValueError(
                f"term is {self.term!r}; allowed are positive numbers that {self.fmt.name} holds"
            )

    @property
    def term_q(self) -> float:
        """The term as the format stores it."""
        return quantize(float(self.term), self.fmt).item()


def running_sums(lanes: Sequence[Lane], n: int, seed: int = 0) -> Tensor:
    """Return every partial sum of every lane.

    Parameters
    ----------
    lanes
        Stochastic lanes draw numbers of their own, so equal ones give different sums.
    n
        How many terms to add.
    seed
        Of the stochastic lanes.

    Returns
    -------
    sums
        FP64, (n + 1, lanes): row i holds the sums after i terms, infinity where they overflowed.
    """
    if n < 1:
        raise ValueError(f"n is {n}; allowed are whole numbers from 1")
    # Lanes of one rounding mode stand together, so that one op on a slice rounds them all.
    order = sorted(range(len(lanes)), key=lambda i: ROUNDING_MODES.index(lanes[i].rounding))
    ordered = [lanes[i] for i in order]
    term = _column(ordered, lambda lane: lane.term_q)
    eps = _column(ordered, lambda lane: lane.fmt.eps)
    smallest_normal = _column(ordered, lambda lane: lane.fmt.smallest_normal)
    slices = _slices_of_modes(ordered)
    generator = torch.Generator().manual_seed(seed)

    sums = torch.zeros(n + 1, len(lanes), dtype=torch.float64)
    for i in range(n):
        steps = torch.mul(sums[i], _LEAST_FRACTION, out=sums[i + 1])
        steps.clamp_(min=term).add_(sums[i])
        ulp = _power_of_two_below(steps).clamp_(min=smallest_normal).mul_(eps)
        steps.div_(ulp)
        for mode, lanes_of_mode in slices:
            _round_(steps[lanes_of_mode], mode, generator)
        steps.mul_(ulp)
    # The lanes went on as if exponents had no end; from the first sum too large on it is infinite.
    sums[sums > _column(ordered, lambda lane: lane.fmt.max)] = torch.inf
    return sums[:, torch.tensor(order).argsort()]


def last_change(sums: Tensor) -> list[int]:
    """Return, for each column of `running_sums`, the number of the last term that changed it."""
    changed = sums[1:] != sums[:-1]
    counts = torch.arange(1, len(sums)).unsqueeze(1)
    return (changed * counts).amax(dim=0).tolist()


def _column(lanes: Sequence[Lane], value) -> Tensor:
    return torch.tensor([value(lane) for lane in lanes], dtype=torch.float64)


def _slices_of_modes(ordered: Sequence[Lane]) -> list[tuple[str, slice]]:
    modes = [lane.rounding for lane in ordered]
    first = {mode: modes.index(mode) for mode in modes}
    return [(mode, slice(start, start + modes.count(mode))) for mode, start in first.items()]


def _power_of_two_below(x: Tensor) -> Tensor:
    """Clear sign and mantissa, which leaves the power of two at or below each number."""
    return (x.view(torch.int64) & _FP64_EXPONENT_MASK).view(torch.float64)


def _round_(steps: Tensor, mode: str, generator: torch.Generator) -> None:
    """Round to whole numbers in place; the numbers are positive."""
    match mode:
        case "nearest_even":
            steps.round_()
        case "toward_zero" | "down":
            steps.floor_()
        case "up":
            steps.ceil_()
        case "stochastic":
            uniform = torch.rand(steps.shape, dtype=torch.float64, generator=generator)
            steps.add_(uniform).floor_()
