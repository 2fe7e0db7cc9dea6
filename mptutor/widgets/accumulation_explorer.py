"""The accumulation explorer: a running sum that bends, stands still or runs away as terms come in.

The learner chooses what is added, which accumulator holds the sum and how it is rounded, and drags
the number of terms. All sums are computed once (`running_sums`): three terms, three accumulators,
four rounding modes, ten thousand steps each, and every fiftieth is sent to the view as the code of
its format. The view decodes and draws; what it says about the next addition follows from the sum
and the term alone.

Rounding down is missing among the modes: all terms are positive, so it does what rounding toward
zero does. Stochastic rounding is shown by several runs, since one proves nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import traitlets

from mptutor.experiments.running_sums import Lane, last_change, running_sums
from mptutor.formats import BF16, FP16, FP32, FloatFormat, get_format
from mptutor.palette import colour
from mptutor.widgets import svg
from mptutor.widgets.base import LiveFigure, javascript, stylesheet

ACCUMULATORS = (FP32, FP16, BF16)
ROUNDINGS = ("nearest_even", "toward_zero", "up", "stochastic")
TERMS = ("0.01", "0.1", "1")

#: How many terms there are, and how many lie between two positions of the slider.
N, EVERY = 10_000, 50

STOCHASTIC_RUNS = 6
_SEED = 2

#: Beside a sum this much larger FP64 would lose the term, so it is taken as this share of the sum.
#: Either way it lies far inside the first ulp. The view does the same.
_LEAST_FRACTION = 2.0**-28


@dataclass(frozen=True)
class NextAddition:
    """What the next term does to a sum.

    ``wanted`` is sum plus term, exactly; ``below`` and ``above`` are the numbers of the format on
    either side of it (equal if the format holds it); ``ulp`` is their distance. ``chance_up`` is
    how likely the mode takes ``above``.
    """

    term: float
    wanted: float
    below: float
    above: float
    ulp: float
    chance_up: float

    @property
    def term_in_ulps(self) -> float:
        """The term, counted in ulps of the sum."""
        return self.term / self.ulp


@dataclass(frozen=True)
class AccumulationExplorerResult:
    """Everything the explorer shows; ``problem`` is a sentence if the position made no sense.

    ``totals`` has one sum a run: several for stochastic rounding, else one. ``last_change`` is the
    number of the last of the ten thousand terms that changes the (first) sum.
    """

    problem: str
    n: int
    totals: tuple[float, ...]
    exact: float
    last_change: int
    next: NextAddition | None

    @property
    def total(self) -> float:
        """The sum; of the first run, if there are several."""
        return self.totals[0]

    @property
    def stands_still(self) -> bool:
        """Whether no further term will change the sum."""
        return self.n >= self.last_change and self.last_change < N


@cache
def _all_series() -> dict[str, dict[str, Any]]:
    """Compute every sum for every position, once a session."""
    keys = [(a, r, t) for a in ACCUMULATORS for r in ROUNDINGS for t in TERMS]
    runs = {key: STOCHASTIC_RUNS if key[1] == "stochastic" else 1 for key in keys}
    lanes = [Lane(a, float(t), r) for a, r, t in keys for _ in range(runs[a, r, t])]
    sums = running_sums(lanes, N, _SEED)
    changes = last_change(sums)
    series, first = {}, 0
    for fmt, rounding, term in keys:
        mine = slice(first, first + runs[fmt, rounding, term])
        first = mine.stop
        series[_key(fmt.name, rounding, term)] = {
            "term": lanes[mine.start].term_q,
            "last_change": changes[mine.start],
            "codes": [_codes(column, fmt) for column in sums[::EVERY, mine].T],
        }
    return series


def _key(accumulator: str, rounding: str, term: str) -> str:
    return f"{accumulator} {rounding} {term}"


def _codes(sums: torch.Tensor, fmt: FloatFormat) -> list[int]:
    as_int = torch.int32 if fmt.bits == 32 else torch.int16
    return sums.to(fmt.torch_dtype).view(as_int).tolist()


def next_addition(total: float, term: float, fmt: FloatFormat, rounding: str) -> NextAddition:
    """Say what adding ``term`` to a finite ``total`` gives in ``fmt``."""
    wanted = total + max(term, total * _LEAST_FRACTION)
    ulp = fmt.ulp(wanted)
    steps = wanted / ulp
    below, above = math.floor(steps) * ulp, math.ceil(steps) * ulp
    fraction = steps - math.floor(steps)
    if rounding == "nearest_even":
        chance_up = float(fraction > 0.5 or (fraction == 0.5 and math.floor(steps) % 2 == 1))
    else:
        chance_up = {"toward_zero": 0.0, "up": 1.0, "stochastic": fraction}[rounding]
    return NextAddition(term, wanted, below, above, ulp, chance_up)


class AccumulationExplorer(LiveFigure):
    """A running sum of equal terms, in the accumulator and the rounding mode of your choice.

    Parameters
    ----------
    n : int
        How many of the ten thousand terms have been added, a multiple of 50.
    accumulator : FloatFormat or str
        ``"FP32"``, ``"FP16"`` or ``"BF16"``.
    rounding : str
        ``"nearest_even"``, ``"toward_zero"``, ``"up"`` or ``"stochastic"``.
    term : float or str
        0.01, 0.1 or 1; it is rounded to the accumulator's format once.

    Attributes
    ----------
    n, accumulator, rounding, term
        What the learner changes, as above; ``term`` is text. An ``n`` that is no position gives a
        ``result.problem`` and the nearest position.

    Raises
    ------
    ValueError
        If ``accumulator``, ``rounding`` or ``term`` is none of the above.
    """

    _esm = javascript(
        "numbers",
        "formats",
        "controls",
        "accumulation_chart",
        "accumulation_line",
        "accumulation_explorer",
    )
    _css = stylesheet("controls", "accumulation_explorer")

    n = traitlets.Int().tag(sync=True)
    accumulator = traitlets.Unicode().tag(sync=True)
    rounding = traitlets.Unicode().tag(sync=True)
    term = traitlets.Unicode().tag(sync=True)
    series = traitlets.Dict(read_only=True).tag(sync=True)
    choices = traitlets.Dict(read_only=True).tag(sync=True)

    def __init__(
        self,
        n: int = N,
        accumulator: FloatFormat | str = "FP16",
        rounding: str = "nearest_even",
        term: float | str = "0.01",
    ) -> None:
        super().__init__(
            n=n,
            accumulator=get_format(accumulator).name,
            rounding=rounding,
            term=term if isinstance(term, str) else f"{term:g}",
        )
        self.set_trait("series", _all_series())
        self.set_trait("choices", _choices())

    @property
    def result(self) -> AccumulationExplorerResult:
        """The sum after ``n`` terms, and what the next term would do to it."""
        position = min(max(round(self.n / EVERY), 0), N // EVERY)
        n = position * EVERY
        fmt = get_format(self.accumulator)
        series = _all_series()[_key(self.accumulator, self.rounding, self.term)]
        totals = tuple(fmt.decode(codes[position]).value for codes in series["codes"])
        is_finite = math.isfinite(totals[0])
        step = next_addition(totals[0], series["term"], fmt, self.rounding) if is_finite else None
        problem = "" if n == self.n else _position_problem(self.n)
        exact = n * series["term"]
        return AccumulationExplorerResult(problem, n, totals, exact, series["last_change"], step)

    def describe(self) -> str:
        """Return where the sum stands, in a sentence or two."""
        result = self.result
        if result.problem:
            return result.problem
        mean = sum(result.totals) / len(result.totals)
        what = "sums are on average" if len(result.totals) > 1 else "sum is"
        said = f"After {result.n:,} terms of {self.term} the {self.accumulator} {what} {mean:.6g}"
        said += f", rounded {_ROUNDING_WORDS[self.rounding]}; exact is {result.exact:.6g}."
        if result.stands_still:
            said += f" It has stood still since term {result.last_change:,}."
        return said

    def picture(self) -> str:
        """Return the running sums of all accumulators as SVG."""
        return draw(self)

    @traitlets.validate("accumulator", "rounding", "term")
    def _require_choice(self, proposal: Any) -> str:
        name, value = proposal["trait"].name, proposal["value"]
        allowed = {
            "accumulator": [fmt.name for fmt in ACCUMULATORS],
            "rounding": ROUNDINGS,
            "term": TERMS,
        }[name]
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}; allowed are {', '.join(allowed)}")
        return value


_ROUNDING_WORDS = {
    "nearest_even": "to nearest",
    "toward_zero": "toward zero",
    "up": "up",
    "stochastic": "at random",
}


def _position_problem(n: int) -> str:
    return f"n is {n:,}; allowed are multiples of {EVERY} from 0 to {N:,}. Shown is the nearest."


def _choices() -> dict[str, Any]:
    """Return what the view offers and needs to know of the formats."""
    names = ("name", "exponent_bits", "mantissa_bits", "bias", "special", "overflow", "max_code")
    return {
        "formats": [{name: getattr(fmt, name) for name in names} for fmt in ACCUMULATORS],
        "roundings": list(ROUNDINGS),
        "terms": list(TERMS),
        "n": N,
        "every": EVERY,
    }


# -- the picture for readers without scripts -----------------------------------------------------

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 640, 300, 56, 48, 262


def draw(explorer: AccumulationExplorer) -> str:
    """Return the running sums of the chosen term and rounding as an SVG document."""
    term, rounding = explorer.term, explorer.rounding
    highest = 1.25 * N * float(term)
    title = f"Running sums of {term}, rounded {_ROUNDING_WORDS[rounding]}"
    right = _WIDTH - 150
    parts = [
        svg.text(14, 26, title, bold=True, size=14),
        svg.text(right, _BOTTOM + 22, f"{N:,} terms", fill="muted", size=11, anchor="end"),
        svg.text(_LEFT - 6, _BOTTOM + 4, "0", fill="muted", size=11, anchor="end"),
        svg.text(_LEFT - 6, _TOP + 4, f"{highest:g}", fill="muted", size=11, anchor="end"),
        _line([(_LEFT, _TOP), (_LEFT, _BOTTOM), (right, _BOTTOM)], "muted", 1),
    ]
    exact_end = _BOTTOM - (_BOTTOM - _TOP) / 1.25
    parts.append(_line([(_LEFT, _BOTTOM), (right, exact_end)], "ink", 1, dash="5 4"))
    for row, fmt in enumerate(ACCUMULATORS):
        codes = _all_series()[_key(fmt.name, rounding, term)]["codes"][0]
        sums = [fmt.decode(code).value for code in codes]
        shown = [(i, s) for i, s in enumerate(sums) if s <= highest]
        points = [
            (
                _LEFT + i * (right - _LEFT) / (len(sums) - 1),
                _BOTTOM - s / highest * (_BOTTOM - _TOP),
            )
            for i, s in shown
        ]
        parts.append(_line(points, fmt.name, 3 if fmt.name == explorer.accumulator else 1.5))
        parts.append(svg.rectangle(right + 16, _TOP + 24 * row, 12, 12, fmt.name, radius=2))
        label = f"{fmt.name}: {sums[-1]:.5g}"
        parts.append(svg.text(right + 34, _TOP + 11 + 24 * row, label, size=12))
    return svg.drawing(_WIDTH, _HEIGHT, explorer.describe(), parts)


def _line(points: list[tuple[float, float]], stroke: str, width: float, dash: str = "") -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour(stroke)}" '
        f'stroke-width="{width:g}"{dashes}/>'
    )
