"""The step debugger: one AMP training step in slow motion, and what becomes of it in another order.

Forward, loss, scale, backward, unscale, clip, check, step or skip, update: nine lines, and each
leaves the gradients in a state that the next one relies on. The figure stops after every line and
shows the numbers: how large the gradients are, whether inf was found, how far the weights moved.
The learner steps forwards and backwards, chooses a batch and a scale, moves a call to another
place, doubles it or leaves it out, and sees the damage beside the right order, in numbers or as
the error that torch raises.

Nothing is made up: `step_loops` lists the loops, `step_runs` runs each on a real network with a
real `torch.amp.GradScaler`, and `step_recording` holds what was seen.

**Goal.** Find a loop that raises nothing, skips nothing, and moves the weights less than a
ten-thousandth as far as the right order does, on a healthy batch at a scale of 65536.

**Question.** Without ``zero_grad`` two steps on healthy batches look almost as they should. Choose
the overflowing batch: why does the second step not recover, and what happens to the scale if
training goes on?
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import traitlets

from mptutor.widgets import svg
from mptutor.widgets.base import LiveFigure, javascript, stylesheet
from mptutor.widgets.step_loops import LOOPS, MISTAKES, RIGHT, Loop
from mptutor.widgets.step_recording import load_recording, unpack
from mptutor.widgets.step_runs import BATCHES, SCALES, STEPS, Run, Stop


@dataclass(frozen=True)
class StepDebuggerResult:
    """Everything the figure shows; ``problem`` is a sentence if there is no such stop.

    ``run`` is the chosen loop's, ``right`` the right order's on the same batch and scale, ``stop``
    the place in ``run.stops`` that is looked at.
    """

    problem: str
    loop: Loop
    run: Run
    right: Run
    stop: int

    @property
    def now(self) -> Stop:
        """The stop that is looked at."""
        return self.run.stops[self.stop]


class StepDebugger(LiveFigure):
    """Two training steps with AMP, call by call, in the right order and in others.

    Parameters
    ----------
    loop : str
        The name of one of `mptutor.widgets.step_loops.LOOPS`, such as ``"clip before unscale_"``.
    batch : str
        ``"healthy"``, ``"overflowing"`` or ``"tiny"``.
    scale : float or str
        The scale at the start: 1, 1024, 65536 or 1048576.
    stop : int
        Which stop to look at, from 0.

    Attributes
    ----------
    loop, batch, scale, stop
        What the learner changes, as above, the scale as text. A stop that the run does not have
        gives a ``result.problem`` and the nearest.

    Raises
    ------
    ValueError
        If ``loop``, ``batch`` or ``scale`` is none of the above.
    """

    _esm = javascript(
        "numbers", "formats", "controls", "step_tape", "step_code", "step_chart", "step_debugger"
    )
    _css = stylesheet("controls", "step_debugger")

    loop = traitlets.Unicode().tag(sync=True)
    batch = traitlets.Unicode().tag(sync=True)
    scale = traitlets.Unicode().tag(sync=True)
    stop = traitlets.Int().tag(sync=True)
    recording = traitlets.Dict(read_only=True).tag(sync=True)

    def __init__(
        self,
        loop: str = RIGHT.name,
        batch: str = "healthy",
        scale: float | str = 2.0**16,
        stop: int = 0,
    ) -> None:
        text = scale if isinstance(scale, str) else _scale_text(scale)
        super().__init__(loop=loop, batch=batch, scale=text, stop=stop)
        self.set_trait("recording", {**load_recording(), "choices": _choices()})

    @property
    def result(self) -> StepDebuggerResult:
        """The run of the chosen loop, the right one's, and where we stand."""
        run, right = (
            unpack(load_recording(), loop, self.batch, float(self.scale))
            for loop in (LOOPS[self.loop], RIGHT)
        )
        last = len(run.stops) - 1
        problem = ""
        if not 0 <= self.stop <= last:
            problem = f"There is no stop {self.stop}; allowed is 0 to {last}. Shown is the nearest."
        stop = min(max(self.stop, 0), last)
        return StepDebuggerResult(problem, LOOPS[self.loop], run, right, stop)

    def describe(self) -> str:
        """Return how far each step moves the weights, and what is raised."""
        result = self.result
        if result.problem:
            return result.problem
        moves = [
            f"step {step + 1} {_movement(result.run, step)} ({_movement(result.right, step)})"
            for step in range(STEPS)
        ]
        said = (
            f"{self.loop}, {self.batch} batch, scale {self.scale}: how far the weights move, and "
            f"in brackets in the right order: {', '.join(moves)}."
        )
        return f"{said} {result.run.error}" if result.run.error else said

    def picture(self) -> str:
        """Return the loop and what each of its calls left behind as SVG."""
        return draw(self)

    @traitlets.validate("loop", "batch", "scale")
    def _require_choice(self, proposal: Any) -> str:
        name, value = proposal["trait"].name, proposal["value"]
        allowed = {"loop": LOOPS, "batch": BATCHES, "scale": list(map(_scale_text, SCALES))}[name]
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}; allowed are {', '.join(allowed)}")
        return value


def _scale_text(scale: float) -> str:
    return f"{scale:.12g}"


def _movement(run: Run, step: int) -> str:
    stops = [stop for stop in run.stops if stop.step == step]
    return f"{stops[-1].weights.moved:.3g}" if stops else "never comes"


def _choices() -> dict[str, Any]:
    """Return what the view offers: the loops with their calls, batches and scales."""
    loops = [
        {"name": loop.name, "calls": [asdict(call) for call in loop.calls]}
        for loop in LOOPS.values()
    ]
    return {
        "loops": loops,
        "known": [RIGHT.name, *(loop.name for loop in MISTAKES)],
        "batches": BATCHES,
        "scales": list(map(_scale_text, SCALES)),
    }


# -- the picture for readers without scripts -----------------------------------------------------

_WIDTH, _ROW, _TOP = 720, 22, 64


def draw(figure: StepDebugger) -> str:
    """Return the code, and beside each line the gradient norm after it in both steps."""
    result = figure.result
    calls = result.loop.calls
    columns = [440, 560]
    parts = [
        svg.text(14, 26, f"{figure.loop}: {figure.batch} batch, scale {figure.scale}", bold=True),
        svg.text(14, 48, "gradient norm after each call", fill="muted", size=12),
        *(
            svg.text(x + 90, 48, f"step {step + 1}", fill="muted", size=12, anchor="end")
            for step, x in enumerate(columns)
        ),
    ]
    for line, call in enumerate(calls):
        y = _TOP + _ROW * (line + 0.5)
        indent = 18 if call.autocast else 0
        parts.append(svg.text(14 + indent, y, call.code, code=True, size=12))
        for step, x in enumerate(columns):
            said = _norm_text(result.run, step, line)
            parts.append(svg.text(x + 90, y, said, code=True, size=12, anchor="end"))
    y = _TOP + _ROW * (len(calls) + 0.7)
    for step, x in enumerate(columns):
        said = _movement(result.run, step)
        parts.append(svg.text(x + 90, y, said, code=True, size=12, anchor="end", bold=True))
    parts.append(svg.text(14, y, "how far the weights moved", bold=True, size=12))
    error = result.run.error.split("\n")[0][:100]
    parts.append(svg.text(14, y + _ROW, error, size=12))
    return svg.drawing(_WIDTH, y + 2 * _ROW, figure.describe(), parts)


def _norm_text(run: Run, step: int, line: int) -> str:
    here = [stop for stop in run.stops if (stop.step, stop.line) == (step, line)]
    if not here:
        return ""
    if here[-1].event == "raised":
        return "raises"
    return f"{here[-1].gradients.norm:.4g}" if here[-1].gradients else "none"
