"""Pictures of lesson 09: where 16 bits are faster, and what they do to memory."""

from __future__ import annotations

from mptutor.experiments.memory_sweep import MemorySweepResult
from mptutor.experiments.speed_sweep import SpeedSweepResult
from mptutor.palette import colour
from mptutor.plots.picture import Picture


def plot_speed_sweep(result: SpeedSweepResult) -> Picture:
    """Draw how many times faster than FP32 each way is, over the size of the matrices."""
    picture = Picture(
        "16 bits win above a size, if at all; casts move it up",
        f"Speed of matrix products relative to FP32 against their size, on log scales, on "
        f"{result.device_name}. "
        + ". ".join(_crossover_in_words(result, way) for way in result.ways[1:]),
    )
    axes = picture.axes_for("side of the matrices", "speed relative to FP32")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.axhline(1, color=colour("ink"), linewidth=1.2)
    for way in result.ways[1:]:
        points = [(size, result.speedup(size, way)) for size in result.sizes]
        known = [(size, speedup) for size, speedup in points if speedup is not None]
        casts = "autocast" in way
        axes.plot(
            *zip(*known, strict=True),
            color=colour(way.split()[0]),
            linestyle="--" if casts else "-",
            marker="o",
            markersize=4,
            label=f"{way.removesuffix(' autocast')}{', casts included' if casts else ''}",
        )
    axes.legend(frameon=False, fontsize=8.5)
    return picture


def _crossover_in_words(result: SpeedSweepResult, way: str) -> str:
    size = result.crossover(way)
    return f"{way} is faster from {size} on" if size else f"{way} is never faster"


def plot_memory_sweep(result: MemorySweepResult) -> Picture:
    """Draw each step's peak as a bar: what stays, what was saved for backward, the rest."""
    steps = result.steps
    picture = Picture(
        "Only saved activations shrink, so the saving depends on their share",
        "Peak memory of training steps as stacked bars: held throughout, saved for the backward "
        "pass, and the rest. "
        + "; ".join(
            f"{s.model} batch {s.batch_size} {s.recipe}: {s.peak_bytes / 1e6:.1f} MB" for s in steps
        ),
        height=0.9 + 0.3 * len(steps),
    )
    axes = picture.axes_for("share of FP32's peak", "")
    for row, step in enumerate(reversed(steps)):
        peak_fp32 = result.of(step.model, step.batch_size, "FP32").peak_bytes
        rest = max(0, step.peak_bytes - step.start_bytes - step.saved_bytes)
        left = 0.0
        for nbytes, hue in (
            (step.start_bytes, "grey"),
            (step.saved_bytes, "blue"),
            (rest, "sky"),
        ):
            axes.barh(row, nbytes / peak_fp32, left=left, color=colour(hue), height=0.7)
            left += nbytes / peak_fp32
        axes.text(left, row, f"  {step.peak_bytes / 1e6:.1f} MB", va="center", fontsize=8.5)
    labels = [f"{s.model}, batch {s.batch_size}, {s.recipe}" for s in reversed(steps)]
    axes.set_yticks(range(len(steps)), labels)
    axes.grid(axis="y", visible=False)
    for hue, what in (
        ("grey", "weights and optimizer"),
        ("blue", "saved for backward"),
        ("sky", "gradients and the rest"),
    ):
        axes.barh(0, 0, color=colour(hue), label=what)
    axes.legend(frameon=False, fontsize=8.5, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.margins(x=0.12)
    return picture
