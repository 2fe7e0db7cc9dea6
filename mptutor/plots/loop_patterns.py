"""Picture of lesson 10: what a mistake in a loop does to the loss.

A panel for each pattern, the right loop and the wrong one in it. Where a loss ceases to be finite
there is a cross.
"""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from mptutor.experiments.loop_patterns import LoopPatternsResult, LoopRun
from mptutor.palette import colour
from mptutor.plots.picture import Picture, style

_LINES = {
    "right": {"color": colour("good"), "linestyle": "-", "linewidth": 1.6},
    "wrong": {"color": colour("bad"), "linestyle": "--", "linewidth": 1.6},
}


def plot_loop_patterns(result: LoopPatternsResult, *, title: str | None = None) -> Picture:
    """Draw the loss of the right and the wrong loop of each pattern, a line a seed.

    Parameters
    ----------
    result
        What `run_loop_patterns` returns.
    title
        What to see in it, if not just what the lines are.
    """
    picture = Picture(
        title or "No wrong loop raised an error: the loss has to tell",
        _describe(result),
        width=max(4.0, 1.0 + 1.65 * len(result.patterns)),
        height=2.9,
    )
    highest = _highest(result)
    panels = picture.subplots(1, len(result.patterns), sharey=True, squeeze=False)[0]
    for i, (axes, pattern) in enumerate(zip(panels, result.patterns, strict=True)):
        style(axes, "step", "training loss" if i == 0 else "")
        axes.set_title(pattern, fontsize=9.5, color=colour("ink"))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=3))
        axes.set_ylim(0, highest)
        for variant, line in _LINES.items():
            for run in result.runs:
                if (run.pattern, run.variant) == (pattern, variant):
                    _draw(axes, run, line, highest)
    for variant, line in _LINES.items():
        panels[0].plot([], [], **line, label=f"{variant} loop")
    picture.legend(
        *panels[0].get_legend_handles_labels(),
        frameon=False,
        fontsize=8.5,
        loc="outside lower center",
        ncols=2,
    )
    return picture


def _draw(axes: Axes, run: LoopRun, line: dict[str, object], highest: float) -> None:
    """Draw a run as far as its loss is finite; a cross says that it ceased to be."""
    finite = [step for step, loss in enumerate(run.losses, 1) if math.isfinite(loss)]
    axes.plot(finite, [run.losses[step - 1] for step in finite], **line)
    if len(finite) < len(run.losses):
        step = next(s for s, loss in enumerate(run.losses, 1) if not math.isfinite(loss))
        axes.plot(step, 0.93 * highest, "X", color=line["color"], markersize=8)
        axes.annotate(
            f"  NaN from {step}",
            (step, 0.93 * highest),
            fontsize=8,
            color=line["color"],
            va="center",
        )


def _highest(result: LoopPatternsResult) -> float:
    """Return the top of the axis: above every right loss, and no matter how high wrong ones are."""
    right = [loss for run in result.runs if run.variant == "right" for loss in run.losses]
    return 1.4 * max(loss for loss in right if math.isfinite(loss))


def _describe(result: LoopPatternsResult) -> str:
    """Say in words what the picture shows: the last loss of each loop."""
    parts = [
        f"{row['pattern']}, {row['']}: last loss {row['last loss']}, accuracy {row['accuracy']}"
        for row in result.table()
    ]
    return f"Training loss by step. {result.headline}. {'; '.join(parts)}."
