"""The forecast explorer's picture for readers without scripts: two bars for each recipe."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import wrap

from mptutor.forecast.result import Forecast
from mptutor.widgets import svg

#: What the parts of both bars are drawn in; the view's stylesheet says the same.
PART_COLOURS = {
    "parameters": "blue",
    "optimizer": "sky",
    "gradients": "green",
    "casts": "orange",
    "activations": "vermillion",
    "temporary": "grey",
}
BOUND_COLOURS = {"arithmetic": "vermillion", "memory": "blue", "launch": "grey"}

_WIDTH, _LEFT, _BAR, _GAP, _ROW = 680, 100, 235, 90, 26


def draw(said: str, forecasts: Mapping[str, Forecast], chosen: str) -> str:
    """Return an SVG of peak memory and step time by recipe, below the sentences ``said``.

    The name of the ``chosen`` recipe is bold.
    """
    lines = wrap(said, 96)
    top = 34 + 18 * len(lines)
    largest_bytes = max(f.peak_bytes for f in forecasts.values())
    largest_ms = max(f.step_ms for f in forecasts.values())
    parts = [svg.text(14, 26 + 18 * i, line, size=12) for i, line in enumerate(lines)]
    right = _LEFT + _BAR + _GAP
    parts += [
        svg.text(_LEFT, top + 6, "peak memory by part", size=11, fill="muted"),
        svg.text(right, top + 6, "time by what it waits for", size=11, fill="muted"),
    ]
    for row, (recipe, f) in enumerate(forecasts.items()):
        y = top + 16 + row * _ROW
        parts.append(svg.text(14, y + 12, recipe, size=12, bold=recipe == chosen))
        parts += _bar(_LEFT, y, f.peak_bytes_by_part, PART_COLOURS, _BAR / largest_bytes)
        parts += _bar(right, y, f.bound_ms, BOUND_COLOURS, (_BAR - 60) / largest_ms)
        parts.append(
            svg.text(
                _LEFT + f.peak_bytes * _BAR / largest_bytes + 5,
                y + 12,
                f"{f.peak_bytes / 1e6:.4g} MB",
                size=11,
            )
        )
        parts.append(
            svg.text(
                right + f.step_ms * (_BAR - 60) / largest_ms + 5,
                y + 12,
                f"{f.step_ms:.3g} ms",
                size=11,
            )
        )
    bottom = top + 16 + len(forecasts) * _ROW + 8
    parts += _legend(14, bottom, PART_COLOURS) + _legend(right, bottom, BOUND_COLOURS)
    return svg.drawing(_WIDTH, bottom + 40, said, parts)


def _bar(
    x: float, y: float, values: Mapping[str, float], colours: Mapping[str, str], scale: float
) -> list[str]:
    drawn = []
    for name, value in values.items():
        drawn.append(svg.rectangle(x, y, value * scale, 16, colours[name]))
        x += value * scale
    return drawn


def _legend(x: float, y: float, colours: Mapping[str, str]) -> list[str]:
    drawn, left = [], x
    for i, (name, hue) in enumerate(colours.items()):
        if i == 4:
            x, y = left, y + 16
        drawn.append(svg.rectangle(x, y, 10, 10, hue, radius=2))
        drawn.append(svg.text(x + 14, y + 9, name, size=11))
        x += 88
    return drawn
