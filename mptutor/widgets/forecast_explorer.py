"""The forecast explorer: what a training step holds, and waits for, on a GPU that you don't have.

Choose a network, a batch and a GPU; every recipe has a row with its peak of memory in parts and its
time by what it waits for, and every layer with products of the chosen recipe stands as a mark under
the roof of the GPU. What is shown is a forecast and is called one, with its error.

The counts of the steps are shipped (`forecast_table`). Here `mptutor.forecast.pricing` prices them,
so ``result`` is the same `Forecast` that `mptutor.forecast.forecast` returns; the view does the
same arithmetic in JavaScript, and a test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
import traitlets

from mptutor.forecast.gpus import GPUS, find_gpu
from mptutor.forecast.ledger import PARTS
from mptutor.forecast.pricing import price
from mptutor.forecast.result import (
    CONTEXT_BYTES,
    MEMORY_ERROR,
    TIME_ERROR,
    Forecast,
    LayerCost,
)
from mptutor.forecast.roofline import FITTED
from mptutor.widgets import forecast_picture
from mptutor.widgets.base import LiveFigure, javascript, stylesheet
from mptutor.widgets.forecast_table import LARGEST_POWER, RECIPES, load_table, step_at

MODELS = tuple(LARGEST_POWER)
BOUNDS = ("arithmetic", "memory", "launch")


@dataclass(frozen=True)
class ForecastExplorerResult:
    """What is shown; ``problem`` is a sentence if the position made no sense.

    ``forecasts`` has one for each recipe, ``chosen`` is that of the chosen one, and ``layer`` the
    layer that is looked at, one of those with products.
    """

    problem: str
    forecasts: dict[str, Forecast]
    chosen: Forecast
    layer: LayerCost

    @property
    def gain(self) -> float:
        """How many times faster than FP32 the chosen recipe is."""
        return self.forecasts["FP32"].step_ms / self.chosen.step_ms

    @property
    def peak_ratio(self) -> float:
        """The chosen recipe's peak relative to FP32's."""
        return self.chosen.peak_bytes / self.forecasts["FP32"].peak_bytes


class ForecastExplorer(LiveFigure):
    """Memory and time of a training step, and its layers under the roof of a GPU: a forecast.

    Parameters
    ----------
    model : str
        ``"small_cnn"``, ``"mlp"``, ``"wide_mlp"`` (three layers of 4096), ``"char_transformer"`` or
        ``"resnet50"``.
    batch : int
        A power of two.
    recipe : str
        ``"FP32"``, ``"AMP FP16"``, ``"AMP BF16"`` or ``"pure BF16"``.
    gpu : str
        One of `mptutor.forecast.GPUS`.
    channels_last : bool
        Images lie in NHWC.

    Attributes
    ----------
    model, power, recipe, gpu, channels_last, layer
        What the learner changes: the batch is 2 to the ``power``, and ``layer`` counts the layers
        with products, forward and backward, from 0. A number out of range gives a
        ``result.problem`` and the nearest.

    Raises
    ------
    ValueError
        If ``batch`` is no power of two, or a name is none of those there are.
    """

    _esm = javascript(
        "numbers", "controls", "forecast_prices", "forecast_charts", "forecast_explorer"
    )
    _css = stylesheet("controls", "forecast_explorer")

    model = traitlets.Unicode().tag(sync=True)
    power = traitlets.Int().tag(sync=True)
    recipe = traitlets.Unicode().tag(sync=True)
    gpu = traitlets.Unicode().tag(sync=True)
    channels_last = traitlets.Bool().tag(sync=True)
    layer = traitlets.Int().tag(sync=True)
    steps = traitlets.Dict(read_only=True).tag(sync=True)
    choices = traitlets.Dict(read_only=True).tag(sync=True)

    def __init__(
        self,
        model: str = "small_cnn",
        batch: int = 128,
        recipe: str = "AMP FP16",
        gpu: str = "A100",
        channels_last: bool = False,
    ) -> None:
        if batch < 1 or batch & (batch - 1):
            raise ValueError(f"batch is {batch}; allowed are powers of two")
        super().__init__(
            model=model,
            power=batch.bit_length() - 1,
            recipe=recipe,
            gpu=find_gpu(gpu).name,
            channels_last=channels_last,
        )
        self.set_trait("steps", load_table())
        self.set_trait("choices", _choices())

    @property
    def result(self) -> ForecastExplorerResult:
        """The forecasts of every recipe, and the layer that is looked at."""
        power = min(max(self.power, 0), LARGEST_POWER[self.model])
        forecasts = {
            recipe: _forecast(self.model, power, recipe, self.gpu, self.channels_last)
            for recipe in RECIPES
        }
        chosen = forecasts[self.recipe]
        layers = [c for c in chosen.layers if c.flop]
        layer = min(max(self.layer, 0), len(layers) - 1)
        return ForecastExplorerResult(
            self._problem(power, len(layers)), forecasts, chosen, layers[layer]
        )

    def describe(self) -> str:
        """Return what the chosen recipe takes and gains, as a forecast."""
        result = self.result
        if result.problem:
            return result.problem
        f = result.chosen
        error = f"± {TIME_ERROR:.0%}" if f.time_is_checked else "nothing checks it"
        versus = (
            ""
            if self.recipe == "FP32"
            else f" FP32 takes {digits(result.gain)} times as long, and this peak is "
            f"{digits(100 * result.peak_ratio)} % of FP32's."
        )
        return (
            f"Forecast, not measured: a step of {f.model}, batch {f.batch}, {f.recipe}, on the "
            f"{f.gpu} takes {digits(f.step_ms)} ms ({error}) and holds "
            f"{bytes_text(f.peak_bytes)} at its peak (± {MEMORY_ERROR:.0%}).{versus}"
        )

    def picture(self) -> str:
        """Return memory and time of every recipe as SVG."""
        return forecast_picture.draw(self.describe(), self.result.forecasts, self.recipe)

    def _problem(self, shown_power: int, layers: int) -> str:
        if shown_power != self.power:
            largest = 2 ** LARGEST_POWER[self.model]
            return (
                f"A batch of 2^{self.power} is not in the table of {self.model}; allowed are "
                f"powers of two from 1 to {largest}. Shown is {2**shown_power}."
            )
        if not 0 <= self.layer < layers:
            return (
                f"There is no layer {self.layer} with products in {self.model}; allowed are 0 to "
                f"{layers - 1}. Shown is the nearest."
            )
        return ""

    @traitlets.validate("model", "recipe", "gpu")
    def _require_choice(self, proposal: Any) -> str:
        name, value = proposal["trait"].name, proposal["value"]
        allowed = {"model": MODELS, "recipe": tuple(RECIPES), "gpu": tuple(GPUS)}[name]
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}; allowed are {', '.join(allowed)}")
        return value


@cache
def _forecast(model: str, power: int, recipe: str, gpu: str, channels_last: bool) -> Forecast:
    return price(
        step_at(model, recipe, power),
        GPUS[gpu],
        model=model,
        batch=2**power,
        recipe=RECIPES[recipe],
        channels_last=channels_last,
        tf32_products=False,
    )


def digits(x: float) -> str:
    """Return a number to three significant digits: ``0.284``, ``34.3``, ``1550``."""
    return f"{float(f'{x:.3g}'):g}"


def bytes_text(nbytes: float) -> str:
    """Return bytes with the unit that leaves few digits: ``25.2 MB``."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if nbytes >= size:
            return f"{digits(nbytes / size)} {unit}"
    return f"{digits(nbytes / 1e3)} kB"


def _choices() -> dict[str, Any]:
    """Return what the view offers, and what it needs to price a step."""
    return {
        "models": list(MODELS),
        "recipes": list(RECIPES),
        "gpus": [_plain(gpu) for gpu in GPUS.values()],
        "largest_power": dict(LARGEST_POWER),
        "parts": list(PARTS),
        "bounds": list(BOUNDS),
        "efficiency": asdict(FITTED),
        "tf32_convolutions": torch.backends.cudnn.allow_tf32,
        "context_bytes": CONTEXT_BYTES,
        "time_error": TIME_ERROR,
        "memory_error": MEMORY_ERROR,
    }


def _plain(gpu: Any) -> dict[str, Any]:
    plain = asdict(gpu)
    del plain["source"]
    return {**plain, "checked": "training" in gpu.checked}


def positions() -> Iterator[dict[str, Any]]:
    """Go through every choice and both ends of every range, for tests."""
    for model, largest in LARGEST_POWER.items():
        for recipe in RECIPES:
            for gpu in GPUS:
                for power in (0, min(7, largest), largest):
                    for channels_last in (False, True):
                        yield {
                            "model": model,
                            "recipe": recipe,
                            "gpu": gpu,
                            "power": power,
                            "channels_last": channels_last,
                        }
