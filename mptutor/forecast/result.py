"""A forecast as plain values: for one GPU, and for several side by side."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from mptutor.experiments.result import Cell, Result

#: What the forecasts that are checked against published measurements (tests/published.py) stay
#: within, save those that are named there with their cause.
TIME_ERROR = 0.25
MEMORY_ERROR = 0.10

#: What the CUDA context takes beside torch's tensors; `mptutor.forecast` does not count it.
CONTEXT_BYTES = 500_000_000


@dataclass(frozen=True)
class LayerCost:
    """What one layer does in one phase of the step.

    Attributes
    ----------
    layer, phase
        Its name in the model, ``""`` for what belongs to none, and ``"forward"``, ``"backward"`` or
        ``"update"``.
    operations
        How many kernels, about.
    flop, moved_bytes
        Floating-point operations of products; bytes to and from memory.
    ms
        Their time, milliseconds.
    bound
        What most of it waits for: ``"arithmetic"``, ``"memory"`` or ``"launch"``.
    """

    layer: str
    phase: str
    operations: int
    flop: int
    moved_bytes: int
    ms: float
    bound: str

    @property
    def intensity(self) -> float:
        """FLOP per byte, where the layer stands under the roof."""
        return self.flop / self.moved_bytes if self.moved_bytes else 0.0


@dataclass(frozen=True)
class Roof:
    """The roof over a step: what a GPU gives at best and what the forecast counts on.

    Attributes
    ----------
    flops, bytes_per_s
        By the data sheet, for the format of the recipe's products.
    reached_flops, reached_bytes_per_s
        What kernels are taken to get.
    """

    flops: float
    bytes_per_s: float
    reached_flops: float
    reached_bytes_per_s: float

    @property
    def ridge(self) -> float:
        """FLOP per byte from which on arithmetic and not memory is the limit."""
        return self.reached_flops / self.reached_bytes_per_s


@dataclass(frozen=True)
class Forecast(Result):
    """A training step on a GPU that isn't here, as `forecast` returns it.

    Attributes
    ----------
    model, batch, recipe, optimizer
        What is trained and how; optimizer ``"none"`` is inference.
    gpu, gpu_memory_bytes
        Where, and how much memory it has.
    channels_last
        Images lie in NHWC.
    parameters
        How many numbers the model has.
    step_ms
        Forecast of the step, milliseconds.
    bound_ms
        The parts of it that wait for ``"arithmetic"``, ``"memory"`` and ``"launch"``.
    peak_bytes_by_part
        What memory holds at its peak: ``"parameters"`` with buffers, ``"optimizer"`` states and
        master copies, ``"gradients"`` that exist at that moment, 16-bit ``"casts"`` of parameters,
        ``"activations"`` saved for backward, and ``"temporary"``.
    roof
        Of the GPU, in the format of the recipe.
    layers
        In order of their first operation.
    time_is_checked
        Whether forecasts like this one were held against published measurements, so that
        `TIME_ERROR` is the error to expect.
    notes
        What to know before relying on it.
    """

    model: str
    batch: int
    recipe: str
    optimizer: str
    gpu: str
    gpu_memory_bytes: float
    channels_last: bool
    parameters: int
    step_ms: float
    bound_ms: dict[str, float]
    peak_bytes_by_part: dict[str, int]
    roof: Roof
    layers: tuple[LayerCost, ...]
    time_is_checked: bool
    notes: tuple[str, ...]

    @property
    def peak_bytes(self) -> int:
        """All parts together: what ``torch.cuda.max_memory_allocated()`` would say."""
        return sum(self.peak_bytes_by_part.values())

    @property
    def time_error(self) -> str:
        """The error to expect of `step_ms`, in words."""
        return f"± {TIME_ERROR:.0%}" if self.time_is_checked else "not checked"

    @property
    def samples_per_s(self) -> float:
        """Of the batch, in a second of steps without waiting for data."""
        return 1e3 * self.batch / self.step_ms

    @property
    def fits(self) -> bool:
        """Whether the peak and CUDA's own memory fit into the GPU, by the forecast."""
        return self.peak_bytes + CONTEXT_BYTES <= self.gpu_memory_bytes

    @property
    def headline(self) -> str:
        """What is forecast, in a line that says that it is a forecast."""
        what = "inference" if self.optimizer == "none" else f"a training step with {self.optimizer}"
        layout = ", channels last" if self.channels_last else ""
        return (
            f"Forecast, not measured: {what}, {self.model}, batch {self.batch}, {self.recipe}"
            f"{layout}, {self.gpu}"
        )

    def table(self) -> list[dict[str, Cell]]:
        """Return rows for time, memory and the parts of both, with the error to expect."""
        time, memory = self.time_error, f"± {MEMORY_ERROR:.0%}"
        fits = f"{'yes' if self.fits else 'no'}, into {_show_bytes(self.gpu_memory_bytes)}"
        rows = [
            ("step", f"{self.step_ms:.4g} ms", time),
            ("throughput", f"{self.samples_per_s:.4g} samples/s", time),
        ]
        rows += [
            (f"  waits for {bound}", f"{ms / self.step_ms:.0%} of the step", "")
            for bound, ms in self.bound_ms.items()
        ]
        rows += [("peak memory", _show_bytes(self.peak_bytes), memory)]
        rows += [(f"  {part}", _show_bytes(n), "") for part, n in self.peak_bytes_by_part.items()]
        rows += [("fits", fits, "")]
        return [{"": what, "forecast": value, "error": error} for what, value, error in rows]

    def __str__(self) -> str:
        return super().__str__() + _as_text(self.notes)

    def _repr_html_(self) -> str:
        return super()._repr_html_() + _as_html(self.notes)


@dataclass(frozen=True)
class Forecasts(Result):
    """The same step on several GPUs."""

    forecasts: tuple[Forecast, ...]

    def on(self, gpu: str) -> Forecast:
        """Return the forecast for one of the GPUs."""
        for forecast in self.forecasts:
            if forecast.gpu == gpu:
                return forecast
        raise ValueError(f"gpu: got {gpu!r}, allowed are {[f.gpu for f in self.forecasts]}")

    @property
    def headline(self) -> str:
        """What is forecast, in a line that says that it is a forecast."""
        return self.forecasts[0].headline.rpartition(", ")[0]

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of all of them, each once."""
        return tuple(dict.fromkeys(note for f in self.forecasts for note in f.notes))

    def table(self) -> list[dict[str, Cell]]:
        """Return a row for every GPU."""
        return [
            {
                "GPU": f.gpu,
                "step ms": f.step_ms,
                "error": f.time_error,
                "samples/s": f.samples_per_s,
                **{
                    f"waits for {bound} %": 100 * ms / f.step_ms for bound, ms in f.bound_ms.items()
                },
                f"peak GB ± {MEMORY_ERROR:.0%}": f.peak_bytes / 1e9,
                "fits": f.fits,
            }
            for f in self.forecasts
        ]

    def __str__(self) -> str:
        return super().__str__() + _as_text(self.notes)

    def _repr_html_(self) -> str:
        return super()._repr_html_() + _as_html(self.notes)


def _as_text(notes: tuple[str, ...]) -> str:
    return "".join(f"\nNote: {note}" for note in notes)


def _as_html(notes: tuple[str, ...]) -> str:
    return f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul>" if notes else ""


def _show_bytes(nbytes: float) -> str:
    unit, size = ("GB", 1e9) if nbytes >= 1e9 else ("MB", 1e6)
    return f"{nbytes / size:.3g} {unit}"
