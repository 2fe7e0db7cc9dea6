"""Pictures of lesson 13: what FP8 does to tensors, to tensors that jump, and to a training."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from mptutor.experiments.fp8_results import WAYS, DelayedScalingResult, Fp8ErrorsResult
from mptutor.experiments.fp8_training import Fp8TrainingResult
from mptutor.formats import FloatFormat, get_format
from mptutor.fp8 import GRANULARITIES
from mptutor.palette import colour
from mptutor.plots.picture import Picture, style

#: Mark, size, hue and name of each kind of scale. Shape tells them apart without colour, and the
#: later are smaller, so that marks that agree are all seen.
_MARKS = {
    "none": ("X", 11, "grey", "no scale"),
    "tensor": ("o", 10, "blue", "one for the tensor"),
    "row": ("s", 6, "orange", "one a row"),
    "block": ("d", 4, "ink", "one a block of 32"),
}

_LINES = {
    "current": ("-", "ink"),
    "delayed, max": ("-", "blue"),
    "delayed, most recent": ("--", "orange"),
}


def plot_fp8_errors(
    result: Fp8ErrorsResult, formats: tuple[str, ...] = ("FP8_E4M3", "FP8_E5M2")
) -> Picture:
    """Draw each tensor's relative error in some formats, a mark for every kind of scale."""
    rows = [(tensor, fmt) for tensor in result.tensors for fmt in formats]
    said = "; ".join(_error_in_words(result, tensor, fmt) for tensor, fmt in rows)
    picture = Picture(
        "Scales save E4M3, and from an outlier only those of blocks do",
        f"Mean relative error in per cent of tensors in {' and '.join(formats)}, on a log scale. "
        f"{said}.",
        height=1.3 + 0.3 * len(rows),
    )
    axes = picture.axes_for("mean relative error, %", "")
    axes.set_xscale("log")
    axes.set_xticks([2, 5, 10, 20, 50, 100], ["2", "5", "10", "20", "50", "100"])
    for place, (tensor, fmt) in enumerate(reversed(rows)):
        for granularity in GRANULARITIES:
            mark, size, hue, _ = _MARKS[granularity]
            error = 100 * result.of(tensor, fmt, granularity).damage.relative_error
            axes.plot(error, place, mark, color=colour(hue), markersize=size)
    axes.set_yticks(range(len(rows)), [f"{tensor}, {fmt[4:]}" for tensor, fmt in reversed(rows)])
    for granularity in GRANULARITIES:
        mark, size, hue, name = _MARKS[granularity]
        axes.plot([], [], mark, color=colour(hue), markersize=size, label=name)
    _place_legend(axes)
    return picture


def _error_in_words(result: Fp8ErrorsResult, tensor: str, fmt: str) -> str:
    errors = [
        f"{100 * result.of(tensor, fmt, g).damage.relative_error:.3g} with {_MARKS[g][3]}"
        for g in GRANULARITIES
    ]
    return f"{tensor} in {fmt}: {', '.join(errors)}"


def plot_delayed_scaling(
    result: DelayedScalingResult, fmt: FloatFormat | str = "FP8_E4M3"
) -> Picture:
    """Draw, step by step, the largest number that each way's scale allows, and its error."""
    fmt = get_format(fmt)
    rows = {row["scale"]: row for row in result.table() if row["format"] == fmt.name}
    said = ". ".join(
        f"{way}: {row['before %']:.3g} % before the spike, {row['at the spike %']:.3g} % at it, "
        f"{row['after the spike %']:.3g} % after it, {row['at the jump %']:.3g} % at the jump"
        for way, row in rows.items()
    )
    picture = Picture(
        "A scale from earlier steps clips what has grown since",
        f"Gradients in {fmt.name}. Above, their amax and the largest number that the format "
        f"can hold with each scale, by step; below, the mean relative error. {said}.",
        height=5.2,
    )
    above, below = (style(axes, "", "") for axes in picture.subplots(2, sharex=True))
    style(above, "", "size, log scale")
    style(below, "training step", f"relative error in {fmt.name[4:]}, %")
    steps = range(len(result.amaxes))
    above.plot(steps, result.amaxes, "o", color=colour("grey"), markersize=5, label="amax")
    for way in WAYS:
        trace = result.of(way, fmt)
        dash, hue = _LINES[way]
        line = {"linestyle": dash, "color": colour(hue), "linewidth": 1.6}
        if way != "current":
            largest = [fmt.max / scale for scale in trace.scales[1:]]
            above.step(steps[1:], largest, where="mid", label=f"largest number, {way}", **line)
        errors = [100 * damage.relative_error for damage in trace.damages]
        below.plot(steps[1:], errors[1:], marker=".", label=way, **line)
    for axes in (above, below):
        axes.set_yscale("log", base=10)
        _place_legend(axes)
    below.yaxis.set_major_formatter("{x:g}")
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    return picture


def plot_fp8_training(result: Fp8TrainingResult) -> Picture:
    """Draw every run's loss in the last epoch, and beside it what share of gradients was lost."""
    recipes = result.recipes
    lost = {recipe: 100 * result.mean(recipe, "share_flushed") for recipe in recipes}
    said = "; ".join(
        f"{recipe} {result.mean(recipe, 'loss'):.3f}, {lost[recipe]:.2g} % of the gradients flushed"
        for recipe in recipes
    )
    picture = Picture(
        "Scaled, FP8 ends where FP32 does; unscaled, E4M3 does not learn",
        f"Training loss in the last epoch of {result.headline}. {said}.",
        height=1.2 + 0.34 * len(recipes),
    )
    axes = picture.axes_for(f"loss, mean of epoch {result.epochs}", "")
    for place, recipe in enumerate(reversed(recipes)):
        losses = [run.losses[-1] for run in result.of(recipe)]
        hue = colour("FP32" if recipe == "FP32" else result.of(recipe)[0].backward)
        axes.plot(losses, [place] * len(losses), "o", color=hue, alpha=0.6, markersize=6)
        mean = result.mean(recipe, "loss")
        axes.plot([mean, mean], [place - 0.3, place + 0.3], color=hue, linewidth=2)
    axes.set_yticks(range(len(recipes)), list(reversed(recipes)))
    axes.set_ylim(-0.6, len(recipes) - 0.4)
    axes.grid(axis="y", visible=False)
    right = axes.twinx()
    right.set_ylim(axes.get_ylim())
    right.set_yticks(range(len(recipes)), [f"{lost[recipe]:.2g} %" for recipe in reversed(recipes)])
    right.set_ylabel("gradients flushed", fontsize=9.5, color=colour("ink"))
    right.tick_params(length=0, labelsize=8.5)
    right.spines[:].set_visible(False)
    return picture


def _place_legend(axes: Axes) -> None:
    axes.legend(frameon=False, fontsize=8.5, loc="upper left", bbox_to_anchor=(1.0, 1.0))
