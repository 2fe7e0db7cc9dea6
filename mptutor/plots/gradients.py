"""Pictures of lessons 03 and 05: where gradients lie, and what a loss scale makes of a training."""

from __future__ import annotations

import math

from matplotlib.axes import Axes

from mptutor.census import ExponentCensus
from mptutor.experiments.gradient_census import GradientCensusResult
from mptutor.experiments.scale_sweep import ScaleSweepResult
from mptutor.formats import FP16, FloatFormat, get_format
from mptutor.palette import colour
from mptutor.plots.picture import Picture

_ZONE_NAMES = {
    "flushed": "becomes 0",
    "subnormal": "subnormal",
    "normal": "normal",
    "infinite": "becomes ∞",
}


def plot_exponents(
    census: ExponentCensus, fmt: FloatFormat | str = FP16, scale: float = 1.0
) -> Picture:
    """Draw how many values lie in each binade, times ``scale``, over the zones of a format."""
    fmt = get_format(fmt)
    shift = int(math.log2(scale))
    lost = 100 * census.flushed(fmt, scale) / census.nonzero
    times = f" times 2^{shift}" if shift else ""
    picture = Picture(
        f"{lost:.3g} % of the nonzero gradients{times} become zero in {fmt}",
        f"Histogram of {census.nonzero:,} nonzero values{times} by exponent, from "
        f"2^{min(census.exponents) + shift} to 2^{max(census.exponents) + shift + 1}, over the "
        f"zones of {fmt}: {lost:.3g} % flushed, "
        f"{100 * census.subnormal(fmt, scale) / census.nonzero:.3g} % subnormal, "
        f"{census.overflowed(fmt, scale):,} overflowed.",
        height=3,
    )
    axes = picture.axes_for(
        "size of the gradient" + (f", {times.strip()}" if times else ""), "% of them"
    )
    exponents = sorted(census.exponents)
    shares = [100 * census.exponents[e] / census.nonzero for e in exponents]
    axes.bar([e + shift + 0.5 for e in exponents], shares, width=0.9, color=colour("ink"))
    low, high = min(exponents[0] + shift - 2, -30), max(exponents[-1] + shift + 3, 26)
    axes.set_xlim(low, high)
    _draw_zones(axes, fmt, low, high, label=True)
    return picture


def plot_gradient_census(
    result: GradientCensusResult, kind: str = "outputs", fmt: FloatFormat | str = FP16
) -> Picture:
    """Draw where each layer's gradients lie, as a row of boxes, the darker the more."""
    fmt = get_format(fmt)
    rows = [(row.layer, getattr(row, kind)) for row in result.layers]
    lost = [f"{100 * c.flushed(fmt) / c.nonzero:.3g} %" if c.nonzero else "–" for _, c in rows]
    said = "; ".join(f"{name} {text}" for (name, _), text in zip(rows, lost, strict=True))
    picture = Picture(
        f"Where the gradients of each layer's {kind} lie, and what {fmt} would flush",
        f"A row for every layer, darker where more of its gradients lie, over the zones of {fmt}. "
        f"Flushed to zero: {said}.",
        height=1.2 + 0.3 * len(rows),
    )
    axes = picture.axes_for("size of the gradient", "")
    occupied = [e for _, census in rows for e in census.exponents]
    low, high = min(*occupied, -30), max(*occupied, -8) + 2
    for place, (_, census) in enumerate(rows):
        most = max(census.exponents.values(), default=1)
        for exponent, count in census.exponents.items():
            axes.barh(
                place,
                1,
                left=exponent,
                height=0.8,
                color=colour("ink"),
                alpha=(count / most) ** 0.5,
            )
    axes.set_xlim(low, high)
    axes.set_ylim(-0.6, len(rows) + 0.1)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    right = axes.twinx()
    right.set_ylim(axes.get_ylim())
    right.set_yticks(range(len(rows)), lost, fontsize=8.5, color=colour("ink"))
    right.set_ylabel("flushed", fontsize=9.5, color=colour("ink"))
    right.tick_params(length=0)
    right.spines[:].set_visible(False)
    _draw_zones(axes, fmt, low, high, label=True)
    return picture


def plot_scale_sweep(result: ScaleSweepResult) -> Picture:
    """Draw the final loss against the loss scale, over the window that the census predicted."""
    said = "; ".join(
        f"2^{math.log2(run.scale):g}: loss {run.loss:.3f}, {run.skips} of {run.steps} steps skipped"
        for run in result.runs
    )
    picture = Picture(
        "Inside the predicted window the network learns; above it steps are skipped",
        f"Final loss of {result.network} against the loss scale. {said}. Predicted window "
        f"2^{math.log2(result.smallest_safe):g} to 2^{math.log2(result.largest_safe):g}; FP32 ends "
        f"at {result.fp32_loss:.3f}.",
    )
    axes = picture.axes_for("loss scale", f"loss, mean of epoch {result.epochs}")
    _power_ticks(axes)
    axes.axvspan(
        math.log2(result.smallest_safe),
        math.log2(result.largest_safe),
        color=colour("normal"),
        alpha=0.3,
        linewidth=0,
        label="predicted window",
    )
    axes.axhline(result.fp32_loss, color=colour("FP32"), linestyle="--", linewidth=1, label="FP32")
    runs = sorted(result.runs, key=lambda run: run.scale)
    powers = [math.log2(run.scale) for run in runs]
    axes.plot(
        powers, [r.loss for r in runs], "o-", color=colour("FP16"), linewidth=1.8, label="AMP FP16"
    )
    skipping = [(p, r) for p, r in zip(powers, runs, strict=True) if r.skips]
    axes.plot(
        [p for p, _ in skipping],
        [r.loss for _, r in skipping],
        "x",
        color=colour("ink"),
        markersize=8,
        markeredgewidth=2,
        label="with skipped steps",
    )
    axes.legend(frameon=False, fontsize=8.5, loc="center left")
    return picture


def _draw_zones(axes: Axes, fmt: FloatFormat, low: float, high: float, label: bool) -> None:
    """Tint the background of an axis of exponents by what ``fmt`` makes of such numbers."""
    edges = (
        low,
        math.log2(fmt.underflow_threshold),
        math.log2(fmt.smallest_normal),
        math.log2(fmt.overflow_threshold),
        high,
    )
    for i, (zone, name) in enumerate(_ZONE_NAMES.items()):
        left, right = max(edges[i], low), min(edges[i + 1], high)
        if left >= right:
            continue
        axes.axvspan(left, right, color=colour(zone), alpha=0.3, linewidth=0, zorder=0)
        if label and right - left > 7:
            at = ((left + right) / 2, 1.0)
            place = axes.get_xaxis_transform()
            axes.text(*at, name, transform=place, ha="center", va="top", fontsize=8.5)
    _power_ticks(axes)


def _power_ticks(axes: Axes) -> None:
    axes.xaxis.set_major_formatter(lambda power, _: f"$2^{{{power:.0f}}}$")
    axes.grid(axis="y", visible=False)
