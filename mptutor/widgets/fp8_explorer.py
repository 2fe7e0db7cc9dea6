"""The FP8 scale explorer: real tensors over FP8's narrow range, and the scales that put them there.

The tensors are the operands of one layer of a small trained network: weights, activations, the same
activations with one channel multiplied by 100,000, gradients (`mptutor.experiments.fp8_tensors`).
With one scale for the tensor the learner drags the scale, and the histogram slides over what the
format makes zero, holds with fewer bits, holds, and clips. With a scale for each row or block there
is nothing to drag: each amax chooses its own, and the values pile up at the top of the range.

Below, the tensor is cut into blocks of 32 columns, each with its share of values in every zone.
There it shows what an outlier channel does: one scale for the tensor, and it empties all the
blocks; a scale for each block, and it empties only its own.

For the lesson:

**Goal.** Take *activations with outlier* in E4M3 and one scale for the tensor. Find the largest
scale that clips nothing, and read what share becomes zero. Then find the scales that clip next to
nothing and lose the least.

**Question.** Keep one scale for the tensor and drag it to where the mean relative error is
smallest, below 3 %. Why is that the worst scale of all? (*It clips the whole outlier channel,
thousands of times over. Every value counts alike in this error, and the outlier's are less than one
in a hundred; but they are the largest by far, and the layer's product is made mostly of them.*)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import traitlets

from mptutor.experiments.fp8_tensors import TENSORS, trained_operands
from mptutor.formats import FP8_E4M3, FP8_E5M2, FloatFormat, get_format
from mptutor.fp8 import BLOCK_SIZE
from mptutor.widgets import scale_picture
from mptutor.widgets.base import LiveFigure, javascript, stylesheet
from mptutor.widgets.fp8_tables import Counts, FormatTable, Outcome, TensorTable, make_table
from mptutor.widgets.scale_explorer import percent, power_of_two

FORMATS = (FP8_E4M3, FP8_E5M2)
GRANULARITIES = ("tensor", "row", "block")

#: One scale for the tensor is offered from 2^LOWEST to 2^HIGHEST.
LOWEST, HIGHEST = -20, 36

#: The part of the axis of scaled magnitudes that is drawn, as exponents.
AXIS = (-36, 28)


@dataclass(frozen=True)
class Fp8ExplorerResult:
    """What becomes of the chosen tensor; ``problem`` is a sentence if the position made no sense.

    ``flushed``, ``subnormal``, ``normal`` and ``clipped`` count the values other than zero, and
    ``by_block`` has all but the normal ones for every 32 columns. ``relative_error`` is the mean
    over them. ``amax_scale`` is the one scale that the tensor's amax asks for, and ``scales`` how
    many scales there are.
    """

    problem: str
    zeros: int
    nonzero: int
    flushed: int
    subnormal: int
    normal: int
    clipped: int
    by_block: tuple[Counts, ...]
    relative_error: float
    amax_scale: float
    scales: int


class Fp8Explorer(LiveFigure):
    """Real tensors in FP8, under the scales of your choice.

    Parameters
    ----------
    power : int
        The scale for the whole tensor is 2 to this power, from -20 to 36.
    fmt : FloatFormat or str
        ``"FP8_E4M3"`` or ``"FP8_E5M2"``.
    tensor : str
        ``"weights"``, ``"activations"``, ``"activations with outlier"`` or ``"gradients"``.
    granularity : str
        What shares a scale: ``"tensor"``, ``"row"`` or ``"block"``.

    Attributes
    ----------
    power, fmt, tensor, granularity
        What the learner changes. A power out of range gives a ``result.problem`` and the nearest
        that makes sense.

    Raises
    ------
    ValueError
        If ``fmt``, ``tensor`` or ``granularity`` is none of those there are.
    """

    _esm = javascript("numbers", "controls", "scale_chart", "fp8_chart", "fp8_explorer")
    _css = stylesheet("controls", "scale_explorer", "fp8_explorer")

    power = traitlets.Int().tag(sync=True)
    fmt = traitlets.Unicode().tag(sync=True)
    tensor = traitlets.Unicode().tag(sync=True)
    granularity = traitlets.Unicode().tag(sync=True)
    tensors = traitlets.Dict(read_only=True).tag(sync=True)
    choices = traitlets.Dict(read_only=True).tag(sync=True)

    def __init__(
        self,
        *,
        power: int = 0,
        fmt: FloatFormat | str = "FP8_E4M3",
        tensor: str = "weights",
        granularity: str = "tensor",
        tables: dict[str, TensorTable] | None = None,
    ) -> None:
        self._tables = tables or default_tables()
        super().__init__(
            power=power, fmt=get_format(fmt).name, tensor=tensor, granularity=granularity
        )
        self.set_trait("tensors", {name: _plain(table) for name, table in self._tables.items()})
        self.set_trait("choices", _choices())

    @property
    def result(self) -> Fp8ExplorerResult:
        """What becomes of the tensor in this position."""
        table, of_format = self._table, self._of_format
        outcome = self._outcome
        flushed, subnormal, clipped = outcome.total
        nonzero = sum(table.nonzero)
        parts = of_format.parts.get(self.granularity)
        return Fp8ExplorerResult(
            problem=self._problem,
            zeros=table.zeros,
            nonzero=nonzero,
            flushed=flushed,
            subnormal=subnormal,
            normal=nonzero - flushed - subnormal - clipped,
            clipped=clipped,
            by_block=outcome.counts,
            relative_error=outcome.relative_error,
            amax_scale=of_format.amax_scale,
            scales=parts.scales if parts else 1,
        )

    def describe(self) -> str:
        """Return what the scales do, in two sentences."""
        result = self.result
        if result.problem:
            return result.problem
        clips = (
            f"clips {percent(result.clipped, result.nonzero)} %"
            if result.clipped
            else ("clips none")
        )
        return (
            f"With {self._scale_said}, {self.fmt} makes {percent(result.flushed, result.nonzero)} "
            f"% of the {self.tensor} zero and {clips}. "
            f"Mean relative error: {100 * result.relative_error:.3g} %."
        )

    def picture(self) -> str:
        """Return the histogram over the zones of the format as SVG."""
        parts = self._of_format.parts.get(self.granularity)
        exponents = parts.exponents if parts else self._table.exponents
        power = 0 if parts else self._shown_power
        return scale_picture.draw(
            self.describe(), exponents, get_format(self.fmt), power, AXIS, beyond="clipped"
        )

    @property
    def _table(self) -> TensorTable:
        return self._tables[self.tensor]

    @property
    def _of_format(self) -> FormatTable:
        return self._table.formats[self.fmt]

    @property
    def _shown_power(self) -> int:
        return min(max(self.power, LOWEST), HIGHEST)

    @property
    def _outcome(self) -> Outcome:
        if self.granularity == "tensor":
            return self._of_format.by_power[self._shown_power - LOWEST]
        return self._of_format.parts[self.granularity].outcome

    @property
    def _scale_said(self) -> str:
        return {
            "tensor": f"one scale of {power_of_two(self._shown_power)}",
            "row": "a scale for each row",
            "block": f"a scale for each block of {BLOCK_SIZE}",
        }[self.granularity]

    @property
    def _problem(self) -> str:
        shown = self._shown_power
        if self.granularity != "tensor" or shown == self.power:
            return ""
        allowed = f"allowed are {LOWEST} to {HIGHEST}"
        return f"power is {self.power}; {allowed}. Shown is {power_of_two(shown)}."

    @traitlets.validate("fmt", "tensor", "granularity")
    def _require_choice(self, proposal: Any) -> str:
        name, value = proposal["trait"].name, proposal["value"]
        allowed = {
            "fmt": [fmt.name for fmt in FORMATS],
            "tensor": list(self._tables),
            "granularity": GRANULARITIES,
        }[name]
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}; allowed are {', '.join(allowed)}")
        return value


@cache
def default_tables() -> dict[str, TensorTable]:
    """Train the network and count its tensors, once a session."""
    operands = trained_operands(device="cpu")
    return tables_of(operands.named(), {TENSORS[2]: operands.outlier_channel})


def tables_of(
    tensors: dict[str, torch.Tensor], outlier_channels: dict[str, int]
) -> dict[str, TensorTable]:
    """Compute the tables of tensors ``[rows, columns]`` and the outlier channels that some have."""
    powers = range(LOWEST, HIGHEST + 1)
    return {
        name: make_table(x, FORMATS, powers, outlier_channels.get(name))
        for name, x in tensors.items()
    }


# -- what the view is sent -------------------------------------------------------------------------


def _plain(table: TensorTable) -> dict[str, Any]:
    return {
        "zeros": table.zeros,
        "nonzero": list(table.nonzero),
        "exponents": _pairs(table.exponents),
        "outlier": _pairs(table.outlier),
        "outlier_block": table.outlier_block,
        "formats": {name: _plain_format(of) for name, of in table.formats.items()},
    }


def _plain_format(of: FormatTable) -> dict[str, Any]:
    return {
        "amax_power": math.log2(of.amax_scale),
        "counts": [[list(counts) for counts in outcome.counts] for outcome in of.by_power],
        "errors": [outcome.relative_error for outcome in of.by_power],
        "parts": {
            granularity: {
                "counts": [list(counts) for counts in parts.outcome.counts],
                "error": parts.outcome.relative_error,
                "exponents": _pairs(parts.exponents),
                "outlier": _pairs(parts.outlier),
                "scales": parts.scales,
                "range": [parts.smallest, parts.largest],
            }
            for granularity, parts in of.parts.items()
        },
    }


def _pairs(exponents: dict[int, int]) -> list[list[int]]:
    return [[exponent, count] for exponent, count in sorted(exponents.items())]


def _choices() -> dict[str, Any]:
    return {
        "formats": [
            {"name": fmt.name, "beyond": "clipped", "edges": list(scale_picture.zone_edges(fmt))}
            for fmt in FORMATS
        ],
        "granularities": list(GRANULARITIES),
        "lowest": LOWEST,
        "highest": HIGHEST,
        "axis": list(AXIS),
        "axis_name": "value × scale",
        "block_size": BLOCK_SIZE,
    }
