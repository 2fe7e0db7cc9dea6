"""Pictures of lesson 01: how far apart a format's numbers lie, and how far they reach."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mptutor.formats import FloatFormat
from mptutor.palette import colour
from mptutor.plots.picture import Picture


def plot_spacing(formats: Sequence[FloatFormat]) -> Picture:
    """Draw the relative distance between neighbouring numbers over each format's whole range.

    Over the normal range it swings between ``eps / 2`` and ``eps`` within every binade, drawn as a
    band; below, it rises until the numbers run out.
    """
    names = " and ".join(fmt.name for fmt in formats)
    picture = Picture(
        "Relative precision is the same everywhere, until the exponent runs out",
        f"Relative distance between neighbouring numbers against their size, both on log scales, "
        f"for {names}. Each is a level band over the normal range and rises steeply below it.",
    )
    axes = picture.axes_for("size of the number", "distance to the next number,\nrelative to it")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for fmt in formats:
        hue = colour(fmt.name)
        normal = [fmt.smallest_normal, fmt.max]
        axes.fill_between(normal, fmt.eps / 2, fmt.eps, color=hue, linewidth=0, label=fmt.name)
        powers = [2.0**e for e in range(fmt.emin - fmt.mantissa_bits, fmt.emin + 1)]
        axes.plot(powers, [fmt.ulp(x) / x for x in powers], color=hue, linewidth=2)
        axes.plot(fmt.smallest_normal, fmt.eps, "o", color=hue, markersize=5)
    axes.plot([], [], "o", color=colour("muted"), markersize=5, label="smallest normal number")
    axes.legend(frameon=False, fontsize=8.5, loc="upper right")
    return picture


def plot_ranges(formats: Sequence[FloatFormat]) -> Picture:
    """Draw each format's range as a bar: normal numbers in full, subnormal ones lighter."""
    picture = Picture(
        "Exponent bits buy range: BF16 reaches as far as FP32, FP16 does not",
        "For each format a bar on a log scale from its smallest to its largest number, the "
        "subnormal part lighter. "
        + "; ".join(f"{f.name} {f.smallest_subnormal:.1e} to {f.max:.3g}" for f in formats),
        height=0.8 + 0.38 * len(formats),
    )
    axes = picture.axes_for("size of the number", "")
    for row, fmt in enumerate(reversed(formats)):
        lowest = math.log2(fmt.smallest_subnormal)
        axes.barh(
            row, fmt.emin - lowest, left=lowest, color=colour(fmt.name), alpha=0.4, height=0.6
        )
        axes.barh(
            row, math.log2(fmt.max) - fmt.emin, left=fmt.emin, color=colour(fmt.name), height=0.6
        )
    axes.set_yticks(range(len(formats)), [fmt.name for fmt in reversed(formats)])
    axes.xaxis.set_major_formatter(lambda power, _: f"$2^{{{power:.0f}}}$")
    axes.use_sticky_edges = False  # or the widest bar touches the axis
    axes.grid(axis="y", visible=False)
    return picture
