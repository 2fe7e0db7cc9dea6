"""The scale explorer's picture for readers without scripts: a histogram over a format's zones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

from mptutor.formats import FloatFormat
from mptutor.widgets import svg

_WIDTH, _LEFT, _TOP, _BOTTOM = 640, 16, 66, 226
_TICK_EVERY = 12
_ZONES = {"flushed": "becomes 0", "subnormal": "subnormal", "normal": "normal"}


def zone_edges(fmt: FloatFormat) -> tuple[float, float, float]:
    """Return where the zones of a format meet, as exponents."""
    edges = (fmt.underflow_threshold, fmt.smallest_normal, fmt.overflow_threshold)
    return tuple(map(math.log2, edges))


def draw(
    said: str,
    exponents: Mapping[int, int],
    fmt: FloatFormat,
    power: int,
    axis: tuple[int, int],
    beyond: str = "∞",
) -> str:
    """Return an SVG of values by exponent, times 2^power, below the sentences ``said``.

    ``beyond`` says what becomes of values that are too large.
    """
    place = _Place(*axis)
    lines = [
        svg.text(_LEFT, 24 + 18 * i, line, size=12, bold=i == 0)
        for i, line in enumerate(said.replace(". ", ".\n").split("\n"))
    ]
    most = max(exponents.values(), default=1)
    bars = [
        place.bar(e + power, count / most)
        for e, count in exponents.items()
        if axis[0] <= e + power < axis[1]
    ]
    ticks = [
        svg.text(place.x(e), _BOTTOM + 16, f"2^{e}", fill="muted", size=10, anchor="middle")
        for e in range(axis[0] + _TICK_EVERY, axis[1], _TICK_EVERY)
    ]
    return svg.drawing(
        _WIDTH, _BOTTOM + 28, said, [*lines, *_zones(fmt, place, beyond), *bars, *ticks]
    )


class _Place:
    """From exponents to pixels."""

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high
        self.step = (_WIDTH - 2 * _LEFT) / (high - low)

    def x(self, exponent: float) -> float:
        inside = min(max(exponent, self.low), self.high)
        return _LEFT + (inside - self.low) * self.step

    def bar(self, exponent: int, share: float) -> str:
        height = max(share * (_BOTTOM - _TOP - 20), 1)
        return svg.rectangle(self.x(exponent), _BOTTOM - height, self.step - 1, height, "ink")


def _zones(fmt: FloatFormat, place: _Place, beyond: str) -> list[str]:
    parts = []
    zones = _ZONES | {"infinite": beyond}
    borders = pairwise((place.low, *zone_edges(fmt), place.high))
    for (zone, name), (left, right) in zip(zones.items(), borders, strict=True):
        x, width = place.x(left), place.x(right) - place.x(left)
        parts.append(svg.rectangle(x, _TOP, width, _BOTTOM - _TOP, zone, opacity=0.4))
        if width > 60:
            parts.append(svg.text(x + 4, _TOP + 14, name, size=11))
    return parts
