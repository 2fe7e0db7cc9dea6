"""Where 16 bits are faster on this machine, and where they are not.

Half the bits mean half the memory traffic, and on hardware with units for the format several times
the arithmetic. Against that stands what does not shrink: starting an operation, and the casts from
FP32 that autocast puts around it. So there is a size from which on 16 bits win, and below it they
lose. The sweep finds it by timing square matrix products of growing size three ways: in FP32, in
16 bits, and from FP32 operands under autocast, casts included.

Where a format has no units here, the sweep leaves out sizes that would take minutes; a product in
emulated FP16 can be a hundred times slower than in FP32, and one size is enough to see it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from mptutor.devices import pick_device
from mptutor.experiments.progress import Progress, do_in_turn
from mptutor.experiments.result import Cell, Result
from mptutor.formats import get_format
from mptutor.hardware import report
from mptutor.timing import Timer

_LOW = (torch.float16, torch.bfloat16)

#: The largest product that is timed in a format without units: about 30 ms of emulated FP16.
_EMULATED_LIMIT = 256


@dataclass(frozen=True)
class ProductTime:
    """One size, one way: ``way`` is ``"FP32"``, ``"BF16"`` or ``"BF16 autocast"`` and the like."""

    size: int
    way: str
    step_ms: float
    spread: float
    gflops: float


@dataclass(frozen=True)
class SpeedSweepResult(Result):
    """Times of square matrix products on one device; ``finished`` unless it was stopped."""

    device: str
    device_name: str
    threads: int
    products: tuple[ProductTime, ...]
    finished: bool = True

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes, smallest first."""
        return tuple(dict.fromkeys(p.size for p in self.products))

    @property
    def ways(self) -> tuple[str, ...]:
        """The ways, FP32 first."""
        return tuple(dict.fromkeys(p.way for p in self.products))

    def speedup(self, size: int, way: str) -> float | None:
        """Return how many times faster than FP32 a way is at a size; None if it was left out."""
        ms = {p.way: p.step_ms for p in self.products if p.size == size}
        return ms["FP32"] / ms[way] if way in ms else None

    def crossover(self, way: str) -> int | None:
        """Return the smallest size from which on a way is faster than FP32, if there is one."""
        wins_from = None
        for size in self.sizes:
            speedup = self.speedup(size, way)
            if speedup is None or speedup <= 1:
                wins_from = None
            elif wins_from is None:
                wins_from = size
        return wins_from

    def table(self) -> list[dict[str, Cell]]:
        """Return a row for every size: FP32's time, and the others' speed relative to it."""
        fp32_ms = {p.size: p.step_ms for p in self.products if p.way == "FP32"}
        others = self.ways[1:]
        return [
            {"size": size, "FP32 ms": fp32_ms[size]}
            | {f"{way} x": self.speedup(size, way) for way in others}
            for size in self.sizes
        ]


def run_speed_sweep(
    sizes: Sequence[int] = (32, 64, 128, 256, 512, 1024),
    *,
    dtypes: Sequence[torch.dtype] = _LOW,
    repeats: int = 9,
    quick: bool = False,
    device: torch.device | str | None = None,
    progress: Progress = True,
    stop: Callable[[], bool] | None = None,
) -> SpeedSweepResult:
    """Time ``size x size`` matrix products in FP32, in each dtype, and under autocast to it.

    Parameters
    ----------
    sizes
        Sides of the matrices.
    dtypes
        Some of FP16 and BF16.
    repeats
        Laps for each time; the median is reported. Short products are repeated within a lap.
    quick
        Three small sizes, three laps.
    device
        Where; the default is `pick_device()`.
    progress, stop
        Told a `Stage` before each size; asked before each. Once `stop` says True, or on an
        interrupt from the keyboard, the sizes that have been timed are returned.
    """
    if unknown := [dtype for dtype in dtypes if dtype not in _LOW]:
        raise ValueError(f"dtypes: got {unknown}, allowed are torch.float16 and torch.bfloat16")
    if any(size < 1 for size in sizes):
        raise ValueError(f"sizes: got {tuple(sizes)}, allowed are positive integers")
    device = pick_device() if device is None else torch.device(device)
    if quick:
        sizes, repeats = tuple(sizes)[:3], 3
    hardware = report(device)
    native = {d for d in dtypes if hardware.support(get_format(d).name).status == "native"}

    def time_size(size: int) -> list[ProductTime]:
        ways = _ways(size, dtypes, native, device)
        return [_time(size, way, product, repeats, device) for way, product in ways.items()]

    jobs = [(f"products of {size} × {size}", partial(time_size, size)) for size in sizes]
    timed, finished = do_in_turn(jobs, progress, stop)
    products = tuple(product for size in timed for product in size)
    return SpeedSweepResult(
        str(device), hardware.device_name, hardware.threads, products, finished=finished
    )


def _ways(
    size: int, dtypes: Sequence[torch.dtype], native: set[torch.dtype], device: torch.device
) -> dict[str, Callable[[], object]]:
    a, b = torch.randn(2, size, size, device=device)
    ways: dict[str, Callable[[], object]] = {"FP32": lambda: a @ b}
    for dtype in dtypes:
        if dtype not in native and size > _EMULATED_LIMIT:
            continue
        name = get_format(dtype).name
        low_a, low_b = a.to(dtype), b.to(dtype)
        ways[name] = lambda x=low_a, y=low_b: x @ y
        ways[f"{name} autocast"] = lambda dtype=dtype: _autocast_product(a, b, dtype)
    return ways


def _autocast_product(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    with torch.autocast(a.device.type, dtype):
        return a @ b


def _time(
    size: int, way: str, product: Callable[[], object], repeats: int, device: torch.device
) -> ProductTime:
    # A lap of at least about 10 MFLOP, so that the clock is finer than what it measures.
    in_a_lap = max(1, 10_000_000 // (2 * size**3))

    def lap() -> None:
        for _ in range(in_a_lap):
            product()

    timing = Timer(device, warmup=2).measure(lap, repeats)
    step_ms = timing.median_ms / in_a_lap
    return ProductTime(size, way, step_ms, timing.spread, 2 * size**3 / step_ms / 1e6)
