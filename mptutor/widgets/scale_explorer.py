"""The scale explorer: a real network's gradients slide over a format as you drag the loss scale.

The gradients were counted once, by exponent (`mptutor.census`), and that is all that is sent to the
view: for every layer its cells and their counts. A loss scale of 2^k adds k to every exponent, so
the histogram moves by k bars and keeps its shape, and the zones of the format stay where they are.
What lies in each zone is exact for every scale and format, ties included, since the thresholds of
the formats fall between cells.

Whether a scale is safe is said of what is selected; what GradScaler would do next depends on the
whole network, as one infinite gradient anywhere costs the step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import traitlets

from mptutor.census import ExponentCensus, ScaleWindow
from mptutor.census_cells import CELLS_PER_BINADE, cell_of
from mptutor.experiments.gradient_census import (
    KINDS,
    GradientCensusResult,
    LayerCensus,
    run_gradient_census,
)
from mptutor.formats import BF16, FP8_E4M3, FP8_E5M2, FP16, FloatFormat, get_format
from mptutor.scaler_state import ScalerState
from mptutor.widgets import scale_picture
from mptutor.widgets.base import LiveFigure, javascript, stylesheet

FORMATS = (FP16, BF16, FP8_E5M2, FP8_E4M3)
ALL = "all"

#: The scales offered are 2^LOWEST to 2^HIGHEST.
LOWEST, HIGHEST = -20, 40

#: The share of the nonzero gradients that a safe scale may flush.
FLUSHED_AT_MOST = 0.001

#: The part of the axis of magnitudes that is drawn, as exponents.
AXIS = (-60, 36)


@dataclass(frozen=True)
class ScaleExplorerResult:
    """What the selected gradients become; ``problem`` is a sentence if the position made no sense.

    ``flushed``, ``subnormal``, ``normal`` and ``overflowed`` count the nonzero gradients at this
    scale. ``next_scale`` is what GradScaler would make of the scale, and ``skips`` whether it would
    skip the step; both look at the whole network.
    """

    problem: str
    scale: float
    zeros: int
    nonzero: int
    flushed: int
    subnormal: int
    normal: int
    overflowed: int
    window: ScaleWindow
    skips: bool


class ScaleExplorer(LiveFigure):
    """A network's gradients under the loss scale, format and layer of your choice.

    Parameters
    ----------
    *censuses : GradientCensusResult
        The networks to choose from; unless given, a deep sigmoid net and a small CNN.
    power : int
        The loss scale is 2 to this power, from -20 to 40.
    fmt : FloatFormat or str
        ``"FP16"``, ``"BF16"``, ``"FP8_E5M2"`` or ``"FP8_E4M3"``.
    kind : str
        ``"outputs"`` for the gradients of the layers' outputs, ``"weights"``, or ``"all"``.
    layer : str
        A layer by its name, or ``"all"``.

    Attributes
    ----------
    power, fmt, kind, layer, network
        What the learner changes. A power out of range or a layer that the network does not have
        gives a ``result.problem`` and the nearest that makes sense.

    Raises
    ------
    ValueError
        If ``fmt``, ``kind`` or ``network`` is none of those there are.
    """

    _esm = javascript("numbers", "controls", "scale_chart", "scale_explorer")
    _css = stylesheet("controls", "scale_explorer")

    power = traitlets.Int().tag(sync=True)
    fmt = traitlets.Unicode().tag(sync=True)
    kind = traitlets.Unicode().tag(sync=True)
    layer = traitlets.Unicode().tag(sync=True)
    network = traitlets.Unicode().tag(sync=True)
    networks = traitlets.Dict(read_only=True).tag(sync=True)
    choices = traitlets.Dict(read_only=True).tag(sync=True)

    def __init__(
        self,
        *censuses: GradientCensusResult,
        power: int = 0,
        fmt: FloatFormat | str = "FP16",
        kind: str = ALL,
        layer: str = ALL,
    ) -> None:
        self._censuses = {title_of(c): c for c in censuses or default_censuses()}
        first = next(iter(self._censuses))
        super().__init__(
            power=power, fmt=get_format(fmt).name, kind=kind, layer=layer, network=first
        )
        self.set_trait("networks", {title: _plain(c) for title, c in self._censuses.items()})
        self.set_trait("choices", _choices())

    @property
    def result(self) -> ScaleExplorerResult:
        """What the selected gradients become at this scale, and what GradScaler would do."""
        layer = self.layer if self._has_layer else ALL
        power = min(max(self.power, LOWEST), HIGHEST)
        fmt, scale = get_format(self.fmt), 2.0**power
        census, everything = self.census(self.kind, layer), self.census(ALL, ALL)
        flushed, subnormal = census.flushed(fmt, scale), census.subnormal(fmt, scale)
        overflowed = census.overflowed(fmt, scale)
        return ScaleExplorerResult(
            problem=self._problem(power),
            scale=scale,
            zeros=census.zeros,
            nonzero=census.nonzero,
            flushed=flushed,
            subnormal=subnormal,
            normal=census.nonzero - flushed - subnormal - overflowed,
            overflowed=overflowed,
            window=census.safe_scales(fmt, FLUSHED_AT_MOST),
            skips=fmt.overflow == "inf" and everything.overflowed(fmt, scale) > 0,
        )

    def census(self, kind: str, layer: str) -> ExponentCensus:
        """Return the gradients of a kind and a layer of the chosen network."""
        of = self._censuses[self.network]
        return of.census(None if kind == ALL else kind, None if layer == ALL else layer)

    def describe(self) -> str:
        """Return what the scale does, in two sentences."""
        result = self.result
        if result.problem:
            return result.problem
        scale = power_of_two(_exponent(result.scale))
        infinite = f"{result.overflowed:,}" if result.overflowed else "none"
        become = "infinite" if get_format(self.fmt).overflow == "inf" else "too large"
        return (
            f"At a scale of {scale}, {self.fmt} flushes {percent(result.flushed, result.nonzero)}"
            f" % of these gradients to zero and makes {infinite} {become}. "
            f"{_window_sentence(result.window)}"
        )

    def picture(self) -> str:
        """Return the histogram over the zones of the format as SVG."""
        layer = self.layer if self._has_layer else ALL
        exponents = self.census(self.kind, layer).exponents
        power = _exponent(self.result.scale)
        return scale_picture.draw(self.describe(), exponents, get_format(self.fmt), power, AXIS)

    @property
    def _has_layer(self) -> bool:
        layers = [row.layer for row in self._censuses[self.network].layers]
        return self.layer in (ALL, *layers)

    def _problem(self, shown_power: int) -> str:
        if not self._has_layer:
            return f"{self.network} has no layer {self.layer}; shown are all its layers."
        if shown_power != self.power:
            allowed = f"allowed are {LOWEST} to {HIGHEST}"
            return f"power is {self.power}; {allowed}. Shown is {power_of_two(shown_power)}."
        return ""

    @traitlets.validate("fmt", "kind", "network")
    def _require_choice(self, proposal: Any) -> str:
        name, value = proposal["trait"].name, proposal["value"]
        allowed = {
            "fmt": [fmt.name for fmt in FORMATS],
            "kind": [ALL, *KINDS],
            "network": list(self._censuses),
        }[name]
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}; allowed are {', '.join(allowed)}")
        return value


def percent(part: int, whole: int) -> str:
    """Return a share in per cent to four digits, never rounded to 0 or 100 unless it is."""
    if part in (0, whole) or not whole:
        return "0" if not part else "100"
    exact = 100 * part / whole
    if exact < 0.001:
        return "less than 0.001"
    return "more than 99.99" if exact > 99.99 else f"{exact:.4g}"


def power_of_two(exponent: int) -> str:
    """Return ``2`` with the exponent above it."""
    return "2" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def title_of(census: GradientCensusResult) -> str:
    """Return how a network is called among the choices."""
    epochs = f"{census.epochs} epoch" + ("s" if census.epochs > 1 else "")
    return f"{census.network}, {f'after {epochs}' if census.epochs else 'before training'}"


@cache
def default_censuses() -> tuple[GradientCensusResult, ...]:
    """Count the gradients of two networks that could hardly differ more, once a session."""
    return run_gradient_census("sigmoid"), run_gradient_census("cnn", epochs=1)


def _window_sentence(window: ScaleWindow) -> str:
    if window.is_empty:
        return "No scale is safe."
    smallest, largest = (power_of_two(_exponent(s)) for s in (window.smallest, window.largest))
    return f"Safe scales are {smallest} to {largest}."


def _exponent(scale: float) -> int:
    return math.frexp(scale)[1] - 1


# -- what the view is sent -------------------------------------------------------------------------


def _plain(census: GradientCensusResult) -> list[dict[str, Any]]:
    return [_plain_layer(row) for row in census.layers]


def _plain_layer(row: LayerCensus) -> dict[str, Any]:
    return {"name": row.layer, **{kind: _plain_census(getattr(row, kind)) for kind in KINDS}}


def _plain_census(census: ExponentCensus) -> dict[str, Any]:
    cells, counts = zip(*census.cells, strict=True) if census.cells else ((), ())
    return {"zeros": census.zeros, "cells": list(cells), "counts": list(counts)}


def _choices() -> dict[str, Any]:
    """Return what the view offers, and the thresholds of the formats as cells and exponents."""
    return {
        "formats": [_plain_format(fmt) for fmt in FORMATS],
        "kinds": [ALL, *KINDS],
        "lowest": LOWEST,
        "highest": HIGHEST,
        "axis": list(AXIS),
        "cells_per_binade": CELLS_PER_BINADE,
        "flushed_at_most": FLUSHED_AT_MOST,
        "growth_interval": ScalerState().growth_interval,
    }


def _plain_format(fmt: FloatFormat) -> dict[str, Any]:
    first_normal = fmt.smallest_normal - fmt.smallest_subnormal / 2
    return {
        "name": fmt.name,
        "overflow": fmt.overflow,
        "first_kept": cell_of(fmt.underflow_threshold) + 1,
        "first_normal": cell_of(first_normal),
        "first_infinite": cell_of(fmt.overflow_threshold),
        "edges": list(scale_picture.zone_edges(fmt)),
    }
