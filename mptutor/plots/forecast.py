"""Pictures of forecasts: what memory is for, and where each layer lies under the roof.

Both say in their titles that they show a forecast.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from mptutor.forecast.result import Forecast, LayerCost
from mptutor.palette import colour
from mptutor.plots.picture import Picture

_PART_COLOURS = {
    "parameters": "blue",
    "optimizer": "sky",
    "gradients": "green",
    "casts": "orange",
    "activations": "vermillion",
    "temporary": "grey",
}
_BOUND_MARKS = {
    "arithmetic": ("^", "vermillion"),
    "memory": ("o", "blue"),
    "launch": ("s", "grey"),
}


def plot_memory(forecasts: Sequence[Forecast], *, title: str | None = None) -> Picture:
    """Draw a bar for each forecast, the peak in its parts.

    Meant for the same model by several recipes or batch sizes: a bar is named by what differs.
    """
    names = _names(forecasts)
    peaks = "; ".join(
        f"{name} {f.peak_bytes / 1e9:.3g} GB" for name, f in zip(names, forecasts, strict=True)
    )
    picture = Picture(
        title or "Forecast: what memory is for at its peak",
        f"Forecast of peak memory. {peaks}.",
        height=1.4 + 0.42 * len(forecasts),
    )
    axes = picture.axes_for("GB at the peak", "")
    for row, forecast in enumerate(reversed(forecasts)):
        start = 0.0
        for part, nbytes in forecast.peak_bytes_by_part.items():
            size = nbytes / 1e9
            label = part if row == 0 else None
            hue = colour(_PART_COLOURS[part])
            axes.barh(row, size, left=start, height=0.6, color=hue, label=label, edgecolor="white")
            start += size
    axes.set_yticks(range(len(forecasts)), list(reversed(names)))
    axes.grid(axis="y", visible=False)
    axes.legend(frameon=False, fontsize=8.5, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return picture


def plot_roofline(forecast: Forecast, *, title: str | None = None) -> Picture:
    """Draw the GPU's roof, and each layer where its intensity and its forecast rate put it."""
    shown = [c for c in forecast.layers if c.flop]
    left_out = sum(c.ms for c in forecast.layers if not c.flop) / forecast.step_ms
    picture = Picture(
        title
        or f"Forecast: {forecast.model}, {forecast.recipe}, under the roof of the {forecast.gpu}",
        f"{len(shown)} layers with products under the roof of the {forecast.gpu}, by forecast; its "
        f"ridge is at {forecast.roof.ridge:.0f} FLOP per byte. {_count_bounds(shown)}. What has no "
        f"products and is not drawn takes {left_out:.0%} of the step.",
    )
    axes = picture.axes_for("FLOP per byte", "TFLOP/s", xscale="log", yscale="log")
    _draw_roof(axes, forecast, shown)
    for bound, (mark, hue) in _BOUND_MARKS.items():
        of = [c for c in shown if c.bound == bound]
        axes.plot(
            [c.intensity for c in of],
            [c.flop / c.ms * 1e-9 for c in of],
            mark,
            color=colour(hue),
            alpha=0.7,
            markersize=5,
            label=f"waits for {bound}",
        )
    axes.legend(frameon=False, fontsize=8.5, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return picture


def _headline(forecast: Forecast, shown: Sequence[LayerCost]) -> str:
    waiting = sum(c.bound == "memory" for c in shown)
    what = f"{forecast.model}, {forecast.recipe}, {forecast.gpu}"
    return f"{what}: {waiting} of {len(shown)} layers wait for memory"


def _draw_roof(axes: Axes, forecast: Forecast, shown: Sequence[LayerCost]) -> None:
    roof = forecast.roof
    low = min([c.intensity for c in shown] + [roof.ridge]) / 3
    high = max([c.intensity for c in shown] + [roof.ridge]) * 3
    for flops, bytes_per_s, line, label in (
        (roof.flops, roof.bytes_per_s, ":", "data sheet"),
        (roof.reached_flops, roof.reached_bytes_per_s, "-", "what kernels get"),
    ):
        ridge = flops / bytes_per_s
        heights = [min(flops, x * bytes_per_s) / 1e12 for x in (low, ridge, high)]
        axes.plot((low, ridge, high), heights, line, color=colour("ink"), label=label)


def _count_bounds(layers: Sequence[LayerCost]) -> str:
    counts = {bound: sum(c.bound == bound for c in layers) for bound in _BOUND_MARKS}
    return ", ".join(f"{n} wait for {bound}" for bound, n in counts.items())


def _names(forecasts: Sequence[Forecast]) -> list[str]:
    """Name each forecast by what is not the same in all of them."""
    columns = [
        [f.model for f in forecasts],
        [f"batch {f.batch}" for f in forecasts],
        [f.recipe for f in forecasts],
        [f.optimizer for f in forecasts],
    ]
    differing = [column for column in columns if len(set(column)) > 1] or columns[:1]
    return [", ".join(words) for words in zip(*differing, strict=True)]
