"""The picture of lesson 07: the dtype of everything in a model, layer by layer."""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from mptutor.experiments.dtype_trace import DtypeTraceResult, LayerDtypes
from mptutor.palette import colour, ink_on
from mptutor.plots.picture import Picture

#: The columns: what is looked at, and where a `LayerDtypes` has it.
_COLUMNS = {
    "input": "input",
    "weight": "weight",
    "output": "output",
    "gradient\nof output": "output_grad",
    "gradient\nof weight": "weight_grad",
}

#: What is in 16 bits is filled; FP32 is outlined, and integers have a thin line.
_FILLS = {"float16": "FP16", "bfloat16": "BF16"}


def plot_dtype_trace(result: DtypeTraceResult) -> Picture:
    """Draw a row for every layer in the order they ran, and a cell for each dtype around it."""
    rows = [*result.layers, LayerDtypes("", "loss", None, None, result.loss, None, None)]
    picture = Picture(_title(result), _describe(result), width=7.5, height=1.3 + 0.29 * len(rows))
    axes = picture.axes_for("", "")
    for y, row in enumerate(rows):
        for x, name in enumerate(_COLUMNS.values()):
            _draw_cell(axes, x, y, getattr(row, name))
    axes.set_xlim(0, len(_COLUMNS))
    axes.set_ylim(len(rows), 0)
    axes.set_xticks([x + 0.5 for x in range(len(_COLUMNS))], list(_COLUMNS))
    axes.set_yticks(
        [y + 0.5 for y in range(len(rows))], [f"{row.layer}  {row.kind}".strip() for row in rows]
    )
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.grid(visible=False)
    return picture


def _draw_cell(axes: Axes, x: float, y: float, dtype: str | None) -> None:
    if dtype is None:
        axes.text(x + 0.5, y + 0.5, "–", ha="center", va="center", color=colour("muted"))
        return
    fill = colour(_FILLS.get(dtype, "surface"))
    edge = fill if dtype in _FILLS else colour("FP32" if dtype == "float32" else "line")
    box = Rectangle((x + 0.03, y + 0.1), 0.94, 0.8, facecolor=fill, edgecolor=edge, linewidth=1.2)
    axes.add_patch(box)
    axes.text(x + 0.5, y + 0.5, dtype, ha="center", va="center", fontsize=8.5, color=ink_on(fill))


def _title(result: DtypeTraceResult) -> str:
    weights = _among(layer.weight for layer in result.layers)
    low = sum(layer.output == result.dtype for layer in result.layers)
    return f"The weights are {weights}; {low} of {len(result.layers)} layers put out {result.dtype}"


def _among(dtypes: Iterable[str | None]) -> str:
    return " and ".join(sorted({dtype for dtype in dtypes if dtype}))


def _describe(result: DtypeTraceResult) -> str:
    outputs = "; ".join(f"{layer.layer} {layer.output}" for layer in result.layers)
    return (
        f"A table of dtypes in one step of {result.model}, {result.policy} autocast to "
        f"{result.dtype}. Weights: {_among(x.weight for x in result.layers)}; their gradients: "
        f"{_among(x.weight_grad for x in result.layers)}. Outputs: {outputs}; loss {result.loss}. "
        "The gradient of an output has the output's dtype."
    )
