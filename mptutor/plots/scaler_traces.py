"""The picture of lesson 06: a loss scale looking for its place."""

from __future__ import annotations

from mptutor.experiments.scaler_traces import ScalerTraceResult
from mptutor.palette import colour
from mptutor.plots.picture import Picture


def plot_scaler_trace(result: ScalerTraceResult, name: str) -> Picture:
    """Draw the scale of one trace step by step, with a mark for every skipped step."""
    trace = result.of(name)
    steps = range(len(trace.scales))
    skipped = [step for step in steps if trace.skipped[step]]
    picture = Picture(
        "The scale falls until nothing overflows, then tries a larger one now and then",
        f"Loss scale against training step, on a log scale. It starts at {trace.scales[0]:g} and "
        f"ends at {trace.final_scale:g}. {len(skipped)} steps are skipped: "
        f"{', '.join(map(str, skipped))}.",
    )
    axes = picture.axes_for("training step", "loss scale")
    axes.set_yscale("log", base=2)
    axes.step(steps, trace.scales, where="post", color=colour("FP16"), linewidth=1.8)
    axes.plot(
        skipped,
        [trace.scales[step] for step in skipped],
        "x",
        color=colour("ink"),
        markersize=7,
        markeredgewidth=2,
        label="step skipped: inf in the gradients",
    )
    for i, step in enumerate(result.broken_steps):
        label = "batch a thousand times too bright" if i == 0 else None
        axes.axvline(step, color=colour("muted"), linewidth=1, linestyle=":", label=label)
    axes.legend(frameon=False, fontsize=8.5)
    return picture
