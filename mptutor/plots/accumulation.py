"""Pictures of lesson 02: running sums on their way, and what stochastic rounding makes of them."""

from __future__ import annotations

from matplotlib.axes import Axes

from mptutor.experiments.accumulation import RunningSumsResult, SumCurve
from mptutor.palette import colour
from mptutor.plots.picture import Picture, style


def plot_running_sums(result: RunningSumsResult) -> Picture:
    """Draw each running sum against the number of terms, and the exact sum as a dashed line."""
    said = "; ".join(
        f"{curve.fmt} ends at {curve.total:.4g}, last changed by term {curve.last_change:,}"
        for curve in result.curves
    )
    picture = Picture(
        "A running sum of few bits bends at every power of two, then stands still",
        f"Running sums against the number of terms, up to {result.n:,}: {said}. "
        f"Exact: {result.curves[0].exact:.4g}.",
    )
    axes = picture.axes_for("terms added", "running sum")
    _draw_exact(axes, result)
    for curve in result.curves:
        hue = colour(curve.fmt)
        label = f"{curve.fmt}: {curve.total:.4g}"
        axes.plot(_counts(result, curve), curve.sums, color=hue, linewidth=2, label=label)
        if curve.last_change < result.n:
            axes.plot(curve.last_change, curve.total, "o", color=hue, markersize=6)
            axes.annotate(
                f"stands still at {curve.total:g}",
                (curve.last_change, curve.total),
                xytext=(6, -14),
                textcoords="offset points",
                fontsize=8.5,
                color=colour("ink"),
            )
    axes.legend(frameon=False, fontsize=8.5, loc="upper left")
    return picture


def plot_stochastic_sums(result: RunningSumsResult, shown: int = 24) -> Picture:
    """Draw how far the first ``shown`` running sums stray, and where all of them end."""
    exact = result.curves[0].exact
    picture = Picture(
        "Rounded at random, single sums stray, and their mean does not",
        f"{len(result.curves)} stochastic running sums of {result.n:,} terms fan out around the "
        f"exact line. They end at {result.mean:.2f} on average, with a standard deviation of "
        f"{result.spread:.2f}; exact is {exact:.2f}.",
    )
    paths, ends = picture.subplots(1, 2, width_ratios=(3, 1.2), sharey=True)
    style(paths, "terms added", "running sum − exact sum")
    style(ends, "number of sums", "")
    hue = colour(result.curves[0].fmt)
    for curve in result.curves[:shown]:
        counts = _counts(result, curve)
        strayed = [s - k * curve.term for k, s in zip(counts, curve.sums, strict=True)]
        paths.plot(counts, strayed, color=hue, linewidth=0.8, alpha=0.5)
    ends.hist(
        [curve.total - exact for curve in result.curves],
        bins=24,
        orientation="horizontal",
        color=hue,
        alpha=0.6,
    )
    for axes in (paths, ends):
        axes.axhline(0, color=colour("ink"), linestyle="--", linewidth=1.2)
    ends.axhline(result.mean - exact, color=hue, linewidth=1.8)
    ends.set_title(f"mean {result.mean - exact:+.2f}", fontsize=8.5, color=colour("ink"))
    return picture


def _draw_exact(axes: Axes, result: RunningSumsResult) -> None:
    exact = result.curves[0].exact
    line = {"color": colour("ink"), "linestyle": "--", "linewidth": 1.2, "zorder": 3}
    axes.plot([0, result.n], [0, exact], label=f"exact: {exact:.4g}", **line)


def _counts(result: RunningSumsResult, curve: SumCurve) -> range:
    return range(0, result.every * len(curve.sums), result.every)
