"""Pictures of training by recipe: the curves, and where the seeds end up.

Colour says the format (FP32, FP16, BF16), the line's dash says how it is used, and every recipe
is named.  Recipes that agree lie on top of each other; that is what there is to see.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from mptutor.experiments.recipes import RECIPES
from mptutor.experiments.training_result import Run, TrainingResult
from mptutor.palette import colour
from mptutor.plots.picture import Picture


def plot_training(
    result: TrainingResult, what: str = "loss", *, title: str | None = None
) -> Picture:
    """Draw one line for each recipe and seed.

    Parameters
    ----------
    result
        What `run_training`, `run_vae` and the like return, stopped early or not.
    what
        ``"loss"`` by step; ``"accuracy"``, ``"share_flushed"``, ``"scale"`` or a term of the loss
        by epoch.
    title
        What to see in it, if not just which curves these are.
    """
    picture = Picture(title or f"{result.task}: {what} by recipe", _describe(result, what))
    by_step = what == "loss"
    axes = picture.axes_for("step" if by_step else "epoch", _LABELS.get(what, what))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for place, recipe in enumerate(result.recipes):
        for i, run in enumerate(result.of(recipe)):
            ys = run.losses if by_step else [epoch.value(what) for epoch in run.epochs]
            # Each line narrower than those below it, so that lines that agree are all seen.
            line = {
                "color": _colour_of(recipe),
                "linestyle": dash_of(recipe),
                "linewidth": 1.2 + 5 * (1 - place / len(result.recipes)) ** 2,
                "marker": None if by_step else "o",
                "label": recipe if i == 0 else None,
            }
            _draw_curve(axes, run, ys, line)
    axes.legend(frameon=False, fontsize=8.5, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return picture


def plot_outcome(
    result: TrainingResult, what: str = "accuracy", *, title: str | None = None
) -> Picture:
    """Draw, for each recipe, every seed's last value of a quantity as a dot, and their mean.

    `what` is as in `plot_training`.
    """
    picture = Picture(
        title or f"{result.task}: {what} in the last epoch, a dot a seed",
        _describe(result, what),
        height=1.0 + 0.34 * len(result.recipes),
    )
    axes = picture.axes_for(_LABELS.get(what, what), "")
    for row, recipe in enumerate(reversed(result.recipes)):
        values = [value for run in result.of(recipe) if (value := run.last(what)) is not None]
        finite = [value for value in values if math.isfinite(value)]
        hue = _colour_of(recipe)
        axes.plot(finite, [row] * len(finite), "o", color=hue, alpha=0.6, markersize=5)
        if finite:
            mean = sum(finite) / len(finite)
            axes.plot([mean, mean], [row - 0.3, row + 0.3], color=hue, linewidth=2)
        if len(finite) < len(values):
            axes.annotate(
                "NaN", (0.01, row), xycoords=("axes fraction", "data"), va="center", color=hue
            )
    axes.set_yticks(range(len(result.recipes)), list(reversed(result.recipes)))
    axes.set_ylim(-0.6, len(result.recipes) - 0.4)
    axes.grid(axis="y", visible=False)
    return picture


_LABELS = {
    "loss": "training loss",
    "accuracy": "accuracy on the test images",
    "share_flushed": "share of gradients flushed to zero",
    "scale": "loss scale",
    "kl": "KL divergence",
    "reconstruction": "reconstruction error",
}


def _draw_curve(axes: Axes, run: Run, ys: Sequence[float | None], line: dict[str, object]) -> None:
    """Draw what is finite of a curve, and a cross where it ceases to be."""
    points = [(x, y) for x, y in enumerate(ys, 1) if y is not None and math.isfinite(y)]
    xs, values = zip(*points, strict=True) if points else ((), ())
    axes.plot(xs, values, **line)
    if points and run.diverged_at_step:
        axes.plot(xs[-1], values[-1], "X", color=line["color"], markersize=10, zorder=4)
        axes.annotate(
            f"  NaN at step {run.diverged_at_step}",
            points[-1],
            color=line["color"],
            fontsize=8.5,
            va="center",
        )


def _colour_of(recipe: str) -> str:
    return colour(RECIPES[recipe].fmt.name if recipe in RECIPES else "green")


def dash_of(recipe: str) -> str:
    """Return the dash that says how a recipe uses its format."""
    known = RECIPES.get(recipe)
    if known is None or known.fmt.name == "FP32":
        return "-"
    if known.autocast:
        return "-" if known.scaler or known.fmt.name == "BF16" else "--"
    return "-." if known.master else ":"


def _describe(result: TrainingResult, what: str) -> str:
    """Say in words what the picture shows: every recipe with its last value."""
    parts = []
    for recipe in result.recipes:
        if spread := result.spread(recipe, what):
            parts.append(f"{recipe} {spread}")
    return f"{what} of {result.headline}. At the end: {'; '.join(parts)}."
