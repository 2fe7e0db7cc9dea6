"""The scaler simulator: a loss scaler at work on recorded gradients, with accidents to order.

The gradients are those of a real training (`gradient_history`). The learner chooses where the scale
starts, how it grows and falls, and makes batches spike or turn NaN; the figure shows the scale step
by step against the edge where FP16 overflows, the skipped steps, and, if the NaNs do not end, the
fall to 0 and what the first good batch then does. `scaler_run` says how it is computed; the view
runs the same machine in JavaScript, and a test holds the two equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import traitlets

from mptutor.formats import FP16
from mptutor.palette import colour
from mptutor.scaler_state import ScalerState
from mptutor.widgets import svg
from mptutor.widgets.base import LiveFigure, javascript, stylesheet
from mptutor.widgets.gradient_history import STEPS, load_history
from mptutor.widgets.scaler_run import SPIKE, SimulatedStep, simulate

#: What the controls offer; the first of a list with 16, 2, 0.5, 2000 or 0 is GradScaler's own.
SMALLEST_EXPONENT, LARGEST_EXPONENT = -10, 40
CHOICES = {
    "growth": ("1.25", "2", "16"),
    "backoff": ("0.25", "0.5", "0.9"),
    "interval": ("5", "10", "25", "50", "100", "2000"),
    "floor": ("0", "1"),
}


@dataclass(frozen=True)
class ScalerSimulatorResult:
    """Everything the figure shows; ``problem`` is a sentence if a position made no sense.

    ``step`` is the one that is looked at; ``ruined_at`` the one that wrote NaN into the weights.
    """

    problem: str
    step: int
    steps: tuple[SimulatedStep, ...]
    final_scale: float
    ruined_at: int | None

    @property
    def scales(self) -> tuple[float, ...]:
        """The scale that each step used."""
        return tuple(step.scale for step in self.steps)

    @property
    def skips(self) -> int:
        """How many steps were skipped while there was something to lose."""
        return sum(step.kind == "skipped" for step in self.steps)


class ScalerSimulator(LiveFigure):
    """A dynamic loss scaler run over 400 recorded steps.

    Parameters
    ----------
    init_scale : float
        A power of two from 2^-10 to 2^40.
    growth_factor, backoff_factor, growth_interval, min_scale : float or str
        As in `ScalerState`; 1.25, 2 or 16; 0.25, 0.5 or 0.9; 5, 10, 25, 50, 100 or 2000; 0 or 1.
    spikes, nans : iterable of int
        Steps whose gradients are a thousand times larger, or NaN.
    step : int
        The step to look at, 0 to 399.

    Attributes
    ----------
    init_exponent, growth, backoff, interval, floor, spikes, nans, step
        What the learner changes: the exponent of the initial scale, and the rest as above, with
        choices as text. A position that is none gives a ``result.problem`` and the nearest, or is
        left out.

    Raises
    ------
    ValueError
        If ``init_scale`` is no power of two, or a factor, interval or floor is none of the above.
    """

    _esm = javascript(
        "numbers", "formats", "controls", "scaler_run", "scaler_chart", "scaler_simulator"
    )
    _css = stylesheet("controls", "scaler_simulator")

    init_exponent = traitlets.Int().tag(sync=True)
    growth = traitlets.Unicode().tag(sync=True)
    backoff = traitlets.Unicode().tag(sync=True)
    interval = traitlets.Unicode().tag(sync=True)
    floor = traitlets.Unicode().tag(sync=True)
    spikes = traitlets.List(traitlets.Int()).tag(sync=True)
    nans = traitlets.List(traitlets.Int()).tag(sync=True)
    step = traitlets.Int().tag(sync=True)
    choices = traitlets.Dict(read_only=True).tag(sync=True)

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float | str = 2,
        backoff_factor: float | str = 0.5,
        growth_interval: int | str = 25,
        min_scale: float | str = 0,
        spikes: Iterable[int] = (),
        nans: Iterable[int] = (),
        step: int = 0,
    ) -> None:
        super().__init__(
            init_exponent=_exponent_of(init_scale),
            growth=_text(growth_factor),
            backoff=_text(backoff_factor),
            interval=_text(growth_interval),
            floor=_text(min_scale),
            spikes=list(spikes),
            nans=list(nans),
            step=step,
        )
        self.set_trait("choices", _choices())

    @property
    def start(self) -> ScalerState:
        """The scaler before the first step."""
        exponent = min(max(self.init_exponent, SMALLEST_EXPONENT), LARGEST_EXPONENT)
        return ScalerState(
            scale=2.0**exponent,
            growth_factor=float(self.growth),
            backoff_factor=float(self.backoff),
            growth_interval=int(self.interval),
            min_scale=float(self.floor),
        )

    @property
    def result(self) -> ScalerSimulatorResult:
        """Every step, and where it all ends."""
        gradients = load_history().largest_gradients
        steps, state = simulate(gradients, self.start, set(self.spikes), set(self.nans))
        ruined = (i for i, step in enumerate(steps) if step.kind == "ruined")
        return ScalerSimulatorResult(
            problem=self._problem(),
            step=min(max(self.step, 0), STEPS - 1),
            steps=steps,
            final_scale=state.scale,
            ruined_at=next(ruined, None),
        )

    def describe(self) -> str:
        """Return how many steps were skipped and where the scale ends."""
        result = self.result
        if result.problem:
            return result.problem
        said = (
            f"From a scale of 2^{self.init_exponent}, {result.skips} of {STEPS} steps are skipped"
        )
        if result.ruined_at is not None:
            return f"{said}. Step {result.ruined_at} writes NaN into the weights."
        return f"{said}, and the scale ends at {result.final_scale:g}."

    def picture(self) -> str:
        """Return the scale against the edge of overflow as SVG."""
        return draw(self)

    def _problem(self) -> str:
        if not SMALLEST_EXPONENT <= self.init_exponent <= LARGEST_EXPONENT:
            return (
                f"The initial scale is 2^{self.init_exponent}; allowed is 2^{SMALLEST_EXPONENT} to "
                f"2^{LARGEST_EXPONENT}. Shown is the nearest."
            )
        for step in [*self.spikes, *self.nans]:
            if not 0 <= step < STEPS:
                return f"There is no step {step} to break; allowed is 0 to {STEPS - 1}."
        if not 0 <= self.step < STEPS:
            return (
                f"There is no step {self.step}; allowed is 0 to {STEPS - 1}. Shown is the nearest."
            )
        return ""

    @traitlets.validate("growth", "backoff", "interval", "floor")
    def _require_choice(self, proposal: Any) -> str:
        name, value = proposal["trait"].name, proposal["value"]
        if value not in CHOICES[name]:
            raise ValueError(f"{name} is {value!r}; allowed are {', '.join(CHOICES[name])}")
        return value


def _exponent_of(scale: float) -> int:
    mantissa, exponent = math.frexp(scale)
    if mantissa != 0.5:
        raise ValueError(f"init_scale is {scale!r}; allowed are powers of two")
    return exponent - 1


def _text(choice: float | str) -> str:
    return choice if isinstance(choice, str) else f"{choice:g}"


def _choices() -> dict[str, Any]:
    """Return what the view offers and needs to know."""
    history = load_history()
    return {
        **{name: list(options) for name, options in CHOICES.items()},
        "exponents": [SMALLEST_EXPONENT, LARGEST_EXPONENT],
        "gradients": list(history.largest_gradients),
        "made_by": history.made_by,
        "spike": SPIKE,
        "overflow_threshold": FP16.overflow_threshold,
        "underflow_threshold": FP16.underflow_threshold,
    }


# -- the picture for readers without scripts -----------------------------------------------------

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 640, 280, 64, 48, 620, 236


def draw(figure: ScalerSimulator) -> str:
    """Return the scale, the edge above which FP16 overflows, and the skips as an SVG document."""
    result = figure.result
    edges = [math.log2(FP16.overflow_threshold / g) for g in load_history().largest_gradients]
    scales = [math.log2(scale) if scale else -150.0 for scale in result.scales]
    low, high = min(*edges, *scales) - 1, max(*edges, *scales) + 1
    low_label = f"2^{low:.0f}" if all(result.scales) else "0"

    def place(step: int, log_scale: float) -> tuple[float, float]:
        x = _LEFT + step * (_RIGHT - _LEFT) / (STEPS - 1)
        return x, _BOTTOM - (log_scale - low) / (high - low) * (_BOTTOM - _TOP)

    def line(log_scales: list[float], stroke: str, width: float) -> str:
        points = " ".join("{:.1f},{:.1f}".format(*place(i, y)) for i, y in enumerate(log_scales))
        return (
            f'<polyline points="{points}" fill="none" stroke="{colour(stroke)}" '
            f'stroke-width="{width:g}"/>'
        )

    skipped = [(i, scales[i]) for i, step in enumerate(result.steps) if step.kind == "skipped"]
    marks = [place(*point) for point in skipped]
    return svg.drawing(
        _WIDTH,
        _HEIGHT,
        figure.describe(),
        [
            svg.text(14, 26, "The loss scale, and where FP16 overflows", bold=True, size=14),
            svg.text(_LEFT - 6, _TOP + 10, f"2^{high:.0f}", fill="muted", size=11, anchor="end"),
            svg.text(_LEFT - 6, _BOTTOM, low_label, fill="muted", size=11, anchor="end"),
            svg.text(_RIGHT, _BOTTOM + 20, f"{STEPS} steps", fill="muted", size=11, anchor="end"),
            line(edges, "infinite", 1),
            line(scales, "blue", 2.5),
            *(svg.text(x, y + 4, "×", size=14, anchor="middle") for x, y in marks),
            svg.rectangle(_LEFT, _BOTTOM + 12, 10, 10, "blue", radius=2),
            svg.text(_LEFT + 14, _BOTTOM + 21, "scale", size=12),
            svg.rectangle(_LEFT + 60, _BOTTOM + 12, 10, 10, "infinite", radius=2),
            svg.text(_LEFT + 74, _BOTTOM + 21, "overflows above", size=12),
            svg.text(_LEFT + 190, _BOTTOM + 21, "× step skipped", size=12),
        ],
    )
