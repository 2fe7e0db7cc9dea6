"""Update on the grid: a weight between two neighbours, an update arriving, kept or swallowed.

The learner chooses a format, types a weight and an update or drags their ratio, and says how the
weight is kept: in the format alone, rounded to nearest or at random, or beside an FP32 master copy.
One picture shows a single update on the numbers of the format, another a thousand of them in a row,
beside the exact sum.

The arithmetic is in `update_paths`. The view computes the same paths in JavaScript, so that it
answers without a kernel; a test holds the two equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import traitlets

from mptutor.formats import FP32, FloatFormat, get_format
from mptutor.palette import colour
from mptutor.widgets import svg
from mptutor.widgets.base import LiveFigure, javascript, stylesheet
from mptutor.widgets.typed_numbers import print_number
from mptutor.widgets.update_paths import (
    DRAW_STEPS,
    DRAWS,
    FORMATS,
    LARGEST_RATIO,
    LARGEST_WEIGHT,
    SMALLEST_RATIO,
    SMALLEST_WEIGHT,
    STEPS,
    STOCHASTIC_RUNS,
    WAYS,
    Landing,
    cut_off,
    land,
    path,
    read_inputs,
)


@dataclass(frozen=True)
class UpdateGridResult:
    """Everything the figure shows; ``problem`` is a sentence if what was typed made no sense.

    Attributes
    ----------
    n
        How many updates have been applied.
    weights
        The weight in its format: one a run, several if it is rounded at random.
    held
        What the next update is added to: the (first) weight, or the master copy.
    update, exact
        The update in FP32, and the start plus ``n`` updates, unrounded.
    landing
        The next update: where ``held + update`` falls.
    ratio, cut_off
        Weight over update, and from which ratio on such an update is swallowed.
    swallowed
        Whether the next update leaves no trace. At random it is never quite sure.
    """

    problem: str
    n: int
    weights: tuple[float, ...]
    held: float
    update: float
    exact: float
    landing: Landing
    ratio: float
    cut_off: float
    swallowed: bool

    @property
    def weight(self) -> float:
        """The weight; of the first run, if there are several."""
        return self.weights[0]


@dataclass(frozen=True)
class FormatRow:
    """One format's answer to the first update and to all of them, rounded to nearest."""

    fmt: FloatFormat
    start: float
    cut_off: float
    swallowed: bool
    end: float


# -- the model ---------------------------------------------------------------------------------


class UpdateGrid(LiveFigure):
    """A weight on the grid of a format, and an update that may be too small to reach a neighbour.

    Parameters
    ----------
    weight, update : float or str
        A number, or a text such as ``"0.1"`` or ``"-2^-12"``. The weight lies between 2^-6 and 2
        and is 2 to 2^26 times as large as the update.
    fmt : FloatFormat, str or torch.dtype
        FP32, FP16, BF16, FP8_E4M3 or FP8_E5M2.
    way : str
        How the weight is kept: ``"nearest"``, ``"stochastic"`` or ``"master"``.
    n : int
        How many updates have been applied, 0 to 1000.

    Attributes
    ----------
    weight, update, fmt, way, n
        What the learner changes, as above; weight, update and format are text. What makes no sense
        gives a ``result.problem`` and the nearest that does.

    Raises
    ------
    ValueError
        If ``fmt`` or ``way`` is none of the above.
    """

    _esm = javascript(
        "numbers",
        "formats",
        "controls",
        "number_line",
        "update_paths",
        "update_line",
        "update_chart",
        "update_grid",
    )
    _css = stylesheet("controls", "update_grid")

    weight = traitlets.Unicode().tag(sync=True)
    update = traitlets.Unicode().tag(sync=True)
    fmt = traitlets.Unicode().tag(sync=True)
    way = traitlets.Unicode().tag(sync=True)
    n = traitlets.Int().tag(sync=True)
    choices = traitlets.Dict(read_only=True).tag(sync=True)

    def __init__(
        self,
        weight: float | str = 1.0,
        update: float | str = -0.0002,
        fmt: Any = "FP16",
        way: str = "nearest",
        n: int = 0,
    ) -> None:
        super().__init__(
            weight=weight if isinstance(weight, str) else print_number(weight),
            update=update if isinstance(update, str) else print_number(update),
            fmt=get_format(fmt).name,
            way=way,
            n=n,
        )
        self.set_trait("choices", _choices())

    @property
    def result(self) -> UpdateGridResult:
        """The weight after ``n`` updates, and what the next one does."""
        fmt = get_format(self.fmt)
        weight, update, problem = read_inputs(self.weight, self.update)
        n = min(max(self.n, 0), STEPS)
        if n != self.n and not problem:
            problem = f"n is {self.n:,}; allowed is 0 to {STEPS:,}. Shown is the nearest."
        start = land(weight, fmt).nearest
        runs = range(STOCHASTIC_RUNS if self.way == "stochastic" else 1)
        points = [path(fmt, self.way, start, update, run)[n] for run in runs]
        held = points[0][0]
        grid = FP32 if self.way == "master" else fmt
        after = land(held + update, grid)
        swallowed = (
            after.nearest == held if self.way != "stochastic" else after.above == after.below
        )
        return UpdateGridResult(
            problem=problem,
            n=n,
            weights=tuple(weight for _, weight in points),
            held=held,
            update=update,
            exact=start + n * update,
            landing=land(after.nearest, fmt) if self.way == "master" else after,
            ratio=abs(held / update),
            cut_off=cut_off(held, update, grid),
            swallowed=swallowed,
        )

    @property
    def rows(self) -> list[FormatRow]:
        """What each format does with the weight and the update, rounded to nearest."""
        weight, update, _ = read_inputs(self.weight, self.update)
        rows = []
        for fmt in FORMATS:
            start = land(weight, fmt).nearest
            points = path(fmt, "nearest", start, update)
            is_lost = points[1][1] == start
            rows.append(FormatRow(fmt, start, cut_off(start, update, fmt), is_lost, points[-1][1]))
        return rows

    def describe(self) -> str:
        """Return what becomes of the next update, and where the weight stands."""
        result = self.result
        if result.problem:
            return result.problem
        what = {"nearest": "", "stochastic": ", rounded at random", "master": " with a master copy"}
        mean = sum(result.weights) / len(result.weights)
        fate = "is swallowed" if result.swallowed else "is kept"
        if self.way == "stochastic" and not result.swallowed:
            fate = "is rounded to a neighbour by chance"
        return (
            f"A weight in {self.fmt}{what[self.way]} starts at {self.weight} and is at {mean:.6g} "
            f"after {result.n:,} updates of {self.update}; exact is {result.exact:.6g}. The weight "
            f"is {result.ratio:,.0f} times the update, and the next one {fate}."
        )

    def picture(self) -> str:
        """Return the paths of the weight, kept in all three ways, as SVG."""
        return draw(self)

    @traitlets.validate("fmt", "way")
    def _require_choice(self, proposal: Any) -> str:
        name, value = proposal["trait"].name, proposal["value"]
        allowed = {"fmt": [fmt.name for fmt in FORMATS], "way": list(WAYS)}[name]
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}; allowed are {', '.join(allowed)}")
        return value


def _choices() -> dict[str, Any]:
    """Return what the view offers and needs to know."""
    names = ("name", "exponent_bits", "mantissa_bits", "bias", "special", "overflow", "max_code")
    return {
        "formats": [{name: getattr(fmt, name) for name in names} for fmt in FORMATS],
        "ways": list(WAYS),
        "steps": STEPS,
        "draws": DRAWS,
        "draw_steps": DRAW_STEPS,
        "weights": [SMALLEST_WEIGHT, LARGEST_WEIGHT],
        "ratios": [SMALLEST_RATIO, LARGEST_RATIO],
    }


# -- the picture for readers without scripts -----------------------------------------------------

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 640, 280, 76, 48, 450, 236
_WAY_COLOURS = {"nearest": "vermillion", "stochastic": "green", "master": "blue"}
_WAY_LABELS = {"nearest": "to nearest", "stochastic": "at random", "master": "master copy"}


def draw(figure: UpdateGrid) -> str:
    """Return the thousand updates as an SVG document: exact, and kept in each of the ways."""
    fmt = get_format(figure.fmt)
    weight, update, _ = read_inputs(figure.weight, figure.update)
    start = land(weight, fmt).nearest
    paths = {way: [w for _, w in path(fmt, way, start, update)][::5] for way in WAYS}
    exact = [start + n * update for n in range(0, STEPS + 1, 5)]
    values = [*exact, *(w for p in paths.values() for w in p)]
    low, high = min(values), max(values)

    def line(points: list[float], stroke: str, width: float, dash: str = "") -> str:
        xs = [_LEFT + i * (_RIGHT - _LEFT) / (len(points) - 1) for i in range(len(points))]
        ys = [_BOTTOM - (p - low) / (high - low) * (_BOTTOM - _TOP) for p in points]
        where = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        return (
            f'<polyline points="{where}" fill="none" stroke="{colour(stroke)}" '
            f'stroke-width="{width:g}"{dashes}/>'
        )

    parts = [
        svg.text(14, 26, f"{STEPS:,} updates of {figure.update} in {fmt.name}", bold=True, size=14),
        svg.text(_LEFT - 6, _BOTTOM + 4, f"{low:.5g}", fill="muted", size=11, anchor="end"),
        svg.text(_LEFT - 6, _TOP + 4, f"{high:.5g}", fill="muted", size=11, anchor="end"),
        svg.text(_RIGHT, _BOTTOM + 20, f"{STEPS:,} steps", fill="muted", size=11, anchor="end"),
        line(exact, "ink", 1, dash="5 4"),
        svg.text(_RIGHT + 2, _TOP + 11, f"╌ exact: {exact[-1]:.4g}", size=12),
    ]
    for row, (way, points) in enumerate(paths.items(), start=1):
        parts.append(line(points, _WAY_COLOURS[way], 3 if way == figure.way else 1.5))
        label = f"{_WAY_LABELS[way]}: {points[-1]:.4g}"
        parts.append(svg.text(_RIGHT + 16, _TOP + 11 + 24 * row, label, size=12))
        parts.append(
            svg.rectangle(_RIGHT + 2, _TOP + 24 * row, 10, 10, _WAY_COLOURS[way], radius=2)
        )
    return svg.drawing(_WIDTH, _HEIGHT, figure.describe(), parts)
