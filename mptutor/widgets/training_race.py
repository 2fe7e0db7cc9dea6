"""The training race: press Start, watch the curves grow, press Stop whenever you have seen enough.

A widget of plain buttons and a bar over any experiment that trains by recipe (`run_training`,
`run_vae`, `run_fine_tuning`, ...).  What a stopped race has done is kept, complete epochs and
incomplete ones; `TrainingRace.result` has it.

A cell that trains keeps the kernel, and with it every button's message, waiting until it ends.  So
the race runs in a thread.  Pressed, Start returns at once, the kernel is free, and Stop is heard.
A cell that asks for the `result` of a race still running waits for it, and starts one if nobody
has: a notebook that is run from top to bottom, by a person or by a program, needs no click.  While
it waits, Stop is heard where the front end sends a widget's messages to a subshell (JupyterLab from
4.4 on with ipykernel 7); interrupting the kernel, the square button, stops the race everywhere.

Two things are the process's and not the thread's: on a CPU, other cells that compute in 16 bits
while a race runs do so as it does, as a Tensor Core would, and the machine is shared with them.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import anywidget
from ipywidgets import HTML, Button, FloatProgress, HBox, VBox

from mptutor.experiments.race import Turn
from mptutor.experiments.training import run_taste
from mptutor.experiments.training_result import TrainingResult
from mptutor.widgets.base import palette_variables
from mptutor.widgets.race_picture import Lane, curves, standings

_REDRAW_EVERY_S = 0.1


class _QuietKeys(anywidget.AnyWidget):
    """Shows nothing; see ``quiet_keys.js``."""

    _esm = Path(__file__).with_name("quiet_keys.js")


class TrainingRace(VBox):
    """Start, stop, a bar, curves that grow, and where each recipe stands.

    Parameters
    ----------
    run
        What is raced: a function that takes ``progress`` and ``stop`` and returns a
        `TrainingResult`, such as `run_training`.  The default is `run_taste`.
    options
        Passed on to it: ``recipes``, ``seeds``, ``epochs``, ...

    Attributes
    ----------
    state
        ``"ready"``, ``"running"``, ``"finished"``, ``"stopped"`` or ``"failed"``.
    """

    def __init__(self, run: Callable[..., TrainingResult] = run_taste, **options: Any) -> None:
        self._run = partial(run, **options)
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._ended.set()
        self._outcome: TrainingResult | Exception | None = None
        self.state = "ready"
        self._start_button = Button(description="Start", button_style="primary", icon="play")
        self._stop_button = Button(description="Stop", icon="stop", disabled=True)
        self._bar = FloatProgress(min=0, max=1, layout={"flex": "1 1 120px"})
        self._status, self._figure = HTML(), HTML()
        self._start_button.on_click(lambda _: self.start())
        self._stop_button.on_click(lambda _: self.stop())
        super().__init__(
            [
                HTML(f"<style>{_css()}</style>"),
                HBox(
                    [self._start_button, self._stop_button, self._bar],
                    layout={"flex_flow": "row wrap", "align_items": "center"},
                ),
                self._status,
                self._figure,
                _QuietKeys(layout={"display": "none"}),
            ],
            layout={"max_width": "760px"},
        )
        self.add_class("mpt-race")
        self._clear()
        self._say("Ready.")

    # -- what a learner, or a cell, does -----------------------------------------------------------

    def start(self) -> None:
        """Start a race in a thread of its own, unless one is running."""
        if self.state == "running":
            return
        self._clear()
        self.state = "running"
        self._stop.clear()
        self._ended.clear()
        self._start_button.disabled, self._stop_button.disabled = True, False
        _hear_in_a_subshell(self._stop_button)
        self._say("Running.")
        # With the context of the cell, or the widget's messages would belong to none.
        work = partial(contextvars.copy_context().run, self._race)
        threading.Thread(target=work, name="training race", daemon=True).start()

    def stop(self) -> None:
        """Ask the race to stop after the steps it is at; what has been done is kept."""
        self._stop.set()
        self._stop_button.disabled = True

    @property
    def result(self) -> TrainingResult:
        """What the race gave: start one if there was none, wait for one that is running.

        Raises what the run raised.  On an interrupt from the keyboard the race is stopped, and what
        has been done is returned.
        """
        if self.state == "ready":
            self.start()
        self._wait()
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def complete(self) -> TrainingResult:
        """Return the result of a race that was not stopped: of the last one, or of one more."""
        self._wait()
        if self.state == "stopped":
            self.start()
        return self.result

    def _wait(self) -> None:
        # Not by joining the thread: interrupted there, Python 3.11 takes it for ended.
        while not self._ended.is_set():
            try:
                self._ended.wait(0.05)
            except KeyboardInterrupt:
                self.stop()

    # -- in the thread -----------------------------------------------------------------------------

    def _race(self) -> None:
        try:
            self._outcome = self._run(progress=self._take, stop=self._stop.is_set)
            self._end("finished" if self._outcome.finished else "stopped")
        except Exception as error:  # it is raised where the result is asked for
            self._outcome = error
            self._end("failed")
        finally:
            self._ended.set()

    def _take(self, turn: Turn) -> None:
        self._lane_of(turn).take(turn)
        self._last = turn
        if time.monotonic() >= self._next_drawing:
            self._draw()
            self._next_drawing = time.monotonic() + _REDRAW_EVERY_S

    def _lane_of(self, turn: Turn) -> Lane:
        for lane in self._lanes:
            if (lane.recipe, lane.seed) == (turn.recipe, turn.seed):
                return lane
        self._lanes.append(Lane(turn.recipe, turn.seed))
        return self._lanes[-1]

    def _end(self, state: str) -> None:
        self._draw()
        said = {
            "finished": "Finished.",
            "stopped": "Stopped. What has been done is kept.",
            "failed": f"It failed: {type(self._outcome).__name__}: {self._outcome}",
        }
        self._say(said[state])
        self._bar.bar_style = {"finished": "success", "failed": "danger"}.get(state, "")
        self._start_button.description = "Start again"
        self._start_button.disabled, self._stop_button.disabled = False, True
        self.state = state

    # -- what is seen ------------------------------------------------------------------------------

    def _clear(self) -> None:
        self._lanes: list[Lane] = []
        self._last: Turn | None = None
        self._next_drawing = 0.0
        self._bar.value, self._bar.bar_style = 0.0, ""
        self._draw()

    def _draw(self) -> None:
        if self._last is not None:
            self._bar.value = self._last.done
        steps = self._last.steps if self._last else 1
        self._figure.value = (
            f'<div class="mpt-race-figure">{curves(self._lanes, steps)}'
            f"{standings(self._lanes) if self._lanes else ''}</div>"
        )

    def _say(self, text: str) -> None:
        self._status.value = f'<p class="mpt-race-status" role="status">{escape(text)}</p>'

    def describe(self) -> str:
        """Return in a sentence how the race stands."""
        if not self._lanes:
            return "A training race. It runs in a notebook with a kernel: press Start there."
        recipes = ", ".join(dict.fromkeys(lane.recipe for lane in self._lanes))
        return f"A training race of {recipes}, {self._last.done:.0%} run, {self.state}."

    def __repr__(self) -> str:
        return f"TrainingRace: {self.describe()}"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """Offer the live widget, and the curves as they are to whatever cannot show that."""
        bundle = super()._repr_mimebundle_(**kwargs)
        data, *metadata = bundle if isinstance(bundle, tuple) else (bundle,)
        still = (
            f'<style>{_css()}</style><div class="mpt-race"><p>{escape(self.describe())}</p>'
            f"{self._figure.value if self._lanes else ''}</div>"
        )
        data = {**data, "text/plain": repr(self), "text/html": still}
        return (data, *metadata) if metadata else data


def _hear_in_a_subshell(button: Button) -> None:
    """Let clicks be heard where the front end sends them, while a cell keeps the main shell.

    ipykernel 7 sends what comes for a widget to the shell that spoke for it last, which is that of
    the cell, and has no public way to be told otherwise.
    """
    getattr(button.comm, "__dict__", {}).pop("_reply_subshell_id", None)


def _css() -> str:
    """Return the styles, with the colours of the page's theme in each front end."""
    light, dark = palette_variables(dark=False), palette_variables(dark=True)
    return f"""
.mpt-race {{ {light} color: var(--mpt-ink); }}
@media (prefers-color-scheme: dark) {{ .mpt-race {{ {dark} }} }}
body[data-jp-theme-light="true"] .mpt-race, body.vscode-light .mpt-race {{ {light} }}
body[data-jp-theme-light="false"] .mpt-race, body.vscode-dark .mpt-race,
html[theme="dark"] .mpt-race {{ {dark} }}
.mpt-race-status {{ margin: 2px 0; font-size: 13px; color: var(--mpt-ink); }}
.mpt-race-figure {{ font: 13px/1.45 system-ui, sans-serif; color: var(--mpt-ink); }}
.mpt-race .mpt-curves {{ display: block; width: 100%; }}
.mpt-race .mpt-curves text {{ fill: var(--mpt-muted); font-size: 12px; }}
.mpt-race .mpt-grid {{ stroke: var(--mpt-line); stroke-width: 1; fill: none; }}
.mpt-race .mpt-lane {{ fill: none; stroke-linejoin: round; }}
.mpt-race .mpt-key-line {{ width: 34px; height: 8px; vertical-align: middle; }}
.mpt-race .mpt-standings {{ border-collapse: collapse; margin: 4px 0; }}
.mpt-race .mpt-standings th, .mpt-race .mpt-standings td {{
  padding: 2px 12px 2px 0; text-align: right; font-variant-numeric: tabular-nums;
  white-space: nowrap; color: var(--mpt-ink); background: none; border: 0;
}}
.mpt-race .mpt-standings th:first-child {{ text-align: left; }}
.mpt-race .mpt-standings tr:first-child th {{ font-weight: 400; color: var(--mpt-muted); }}
"""
