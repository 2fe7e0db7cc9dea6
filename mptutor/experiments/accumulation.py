"""Ways to add up the same numbers in few bits, and how far off each ends.

The running sum is the obvious way and the worst: when the sum has become so large that a term is
less than half an ulp of it, rounding to nearest gives the old sum back, and it never grows again.
Before that, every term counts as a whole number of ulps, too much in one binade and too little in
the next. `run_running_sums` shows it term by term.

`run_summations` compares the repairs. A wider accumulator is the one that hardware takes: 16-bit
operands, an FP32 sum, one rounding at the end. Without one, the order of the additions can be
changed (blocks, pairs), so that no term ever meets a sum that is too large for it; or the lost
part of each term can be carried along (Kahan, *Further remarks on reducing truncation errors*,
1965). The error of a running sum grows as *n u* with *n* terms and unit roundoff *u*, that of pairs
as *u* log *n*, that of Kahan's sum as 2 *u* + *n u*² (Higham, *Accuracy and Stability of Numerical
Algorithms*, 4.2 and 4.3). With BF16's *u* = 2^-8 and ten thousand terms *n u*² is 15 %: Kahan's
compensation is rounded too, and in BF16 that shows.

All sums here run in the dtype of their terms by torch's own addition. What does not show: speed.
On a GPU none of these loops is how one would add up; torch's reductions add in FP32 and in pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mptutor.experiments.result import Cell, Result
from mptutor.experiments.running_sums import Lane, last_change, running_sums
from mptutor.formats import BF16, FP16, FP32, FloatFormat, get_format

# -- ways to add up ------------------------------------------------------------------------------


def add_up(x: Tensor) -> Tensor:
    """Return the running sum over the first dimension, every partial sum in the dtype of ``x``."""
    total = torch.zeros_like(x[0])
    for term in x:
        total = total + term
    return total


def add_up_in_fp32(x: Tensor) -> Tensor:
    """Return the running sum with an FP32 accumulator, rounded to the dtype of ``x`` once."""
    return add_up(x.float()).to(x.dtype)


def add_up_in_blocks(x: Tensor, block: int = 100) -> Tensor:
    """Return the running sum of the running sums of blocks; ``len(x)`` is a multiple of a block."""
    if len(x) % block:
        raise ValueError(f"block is {block}; allowed are divisors of the number of terms, {len(x)}")
    return add_up(add_up(x.reshape(-1, block).T))


def add_up_in_pairs(x: Tensor) -> Tensor:
    """Add neighbours, then the sums of neighbours, until one is left; all in the dtype of ``x``."""
    while len(x) > 1:
        odd_one = x[len(x) // 2 * 2 :]
        x = torch.cat([x[:-1:2] + x[1::2], odd_one])
    return x[0]


def add_up_compensated(x: Tensor) -> Tensor:
    """Return Kahan's sum, in the dtype of ``x``: what one addition lost, the next one adds."""
    total = lost = torch.zeros_like(x[0])
    for term in x:
        wanted = term + lost
        larger = total + wanted
        lost = wanted - (larger - total)
        total = larger
    return total


SUMMATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "running sum": add_up,
    "blocks of 100": add_up_in_blocks,
    "pairs": add_up_in_pairs,
    "compensated (Kahan)": add_up_compensated,
    "FP32 accumulator": add_up_in_fp32,
    "torch.sum": torch.sum,
}

# -- running sums, term by term ------------------------------------------------------------------


@dataclass(frozen=True)
class SumCurve:
    """A running sum on its way: ``sums[i]`` after ``i × every`` terms.

    ``term`` is the term as the format stores it, ``exact`` what ``n`` of these terms add up to, and
    ``last_change`` the number of the last term that changed the sum.
    """

    fmt: str
    rounding: str
    term: float
    sums: tuple[float, ...]
    exact: float
    last_change: int

    @property
    def total(self) -> float:
        """The sum after all terms."""
        return self.sums[-1]

    @property
    def relative_error(self) -> float:
        """How far off the sum ends, relative to the exact one."""
        return (self.total - self.exact) / self.exact


@dataclass(frozen=True)
class RunningSumsResult(Result):
    """Running sums of ``n`` equal terms; every ``every``-th partial sum is kept."""

    n: int
    every: int
    curves: tuple[SumCurve, ...]

    def table(self) -> list[dict[str, Cell]]:
        """Return a row for each curve."""
        return [
            {
                "accumulator": curve.fmt,
                "rounding": curve.rounding.replace("_", " "),
                "sum": curve.total,
                "exact": curve.exact,
                "error %": 100 * curve.relative_error,
                "last term that counted": curve.last_change,
            }
            for curve in self.curves
        ]

    @property
    def mean(self) -> float:
        """The mean of all sums."""
        return sum(curve.total for curve in self.curves) / len(self.curves)

    @property
    def spread(self) -> float:
        """The standard deviation of all sums."""
        return torch.tensor([c.total for c in self.curves], dtype=torch.float64).std().item()


def run_running_sums(
    term: float = 0.01,
    n: int = 10_000,
    *,
    formats: Sequence[FloatFormat | str] = (FP32, FP16, BF16),
    roundings: Sequence[str] = ("nearest_even",),
    runs: int = 1,
    every: int = 50,
    seed: int = 0,
    quick: bool = False,
) -> RunningSumsResult:
    """Add ``term`` to zero ``n`` times, in each format with each rounding mode.

    Parameters
    ----------
    runs
        How many sums of each kind; they differ in stochastic rounding alone.
    every
        Keep every ``every``-th partial sum; it must divide ``n``.
    quick
        A third of the terms and at most 16 runs, which still stall.
    """
    if quick:
        n, runs = n // 3 // every * every, min(runs, 16)
    if every < 1 or n % every:
        raise ValueError(f"every is {every}; allowed are divisors of n = {n}")
    kinds = [(get_format(fmt), rounding) for fmt in formats for rounding in roundings]
    lanes = [Lane(fmt, term, rounding) for fmt, rounding in kinds for _ in range(runs)]
    sums = running_sums(lanes, n, seed)
    curves = tuple(
        SumCurve(
            fmt=lane.fmt.name,
            rounding=lane.rounding,
            term=lane.term_q,
            sums=tuple(column.tolist()),
            exact=n * lane.term_q,
            last_change=changed,
        )
        for lane, column, changed in zip(lanes, sums[::every].T, last_change(sums), strict=True)
    )
    return RunningSumsResult(n=n, every=every, curves=curves)


# -- ways to add up, side by side -----------------------------------------------------------------


@dataclass(frozen=True)
class Summation:
    """How one way of adding up ended: ``error_ulps`` is in ulps of the exact sum."""

    method: str
    fmt: str
    total: float
    exact: float
    error_ulps: float

    @property
    def relative_error(self) -> float:
        """The error relative to the exact sum."""
        return (self.total - self.exact) / self.exact


@dataclass(frozen=True)
class SummationsResult(Result):
    """Several ways to add up the same ``n`` terms; ``terms`` says in words what they were."""

    n: int
    terms: str
    summations: tuple[Summation, ...]

    def table(self) -> list[dict[str, Cell]]:
        """Return a row for each method, two columns a format."""
        rows: dict[str, dict[str, Cell]] = {}
        for done in self.summations:
            row = rows.setdefault(done.method, {"": done.method})
            row[f"{done.fmt} sum"] = done.total
            row[f"{done.fmt} off by (ulp)"] = round(done.error_ulps, 2)
        return list(rows.values())

    def of(self, method: str, fmt: FloatFormat | str) -> Summation:
        """Return one of the summations."""
        name = get_format(fmt).name
        return next(s for s in self.summations if (s.method, s.fmt) == (method, name))


def run_summations(
    x: Tensor | None = None,
    *,
    formats: Sequence[FloatFormat | str] = (FP16, BF16),
    methods: Sequence[str] = tuple(SUMMATIONS),
    seed: int = 0,
    quick: bool = False,
) -> SummationsResult:
    """Add up the same terms in several ways and formats.

    Parameters
    ----------
    x
        Terms, FP32, 1-D, their number a multiple of 100; ten thousand random ones between 0 and
        0.02 unless given, so that no method gains from terms that are all alike.
    quick
        Only 5,000 random terms.
    """
    unknown = [method for method in methods if method not in SUMMATIONS]
    if unknown:
        raise ValueError(f"methods has {unknown[0]!r}; allowed are {', '.join(SUMMATIONS)}")
    terms = "given"
    if x is None:
        n = 5_000 if quick else 10_000
        x = 0.02 * torch.rand(n, generator=torch.Generator().manual_seed(seed))
        terms = f"random between 0 and 0.02, seed {seed}"
    summations = tuple(
        _summation(method, x.to(fmt.torch_dtype), fmt)
        for fmt in map(get_format, formats)
        for method in methods
    )
    return SummationsResult(n=len(x), terms=terms, summations=summations)


def _summation(method: str, x: Tensor, fmt: FloatFormat) -> Summation:
    total, exact = SUMMATIONS[method](x).item(), x.double().sum().item()
    return Summation(method, fmt.name, total, exact, (total - exact) / fmt.ulp(exact))
