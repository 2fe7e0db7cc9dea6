"""Times a step of work on whatever device it runs on.

Three things make a naive ``time.time()`` around a training step wrong:

*The work is not done when the call returns.*  A GPU queues kernels and the Python line moves on.
On CUDA the timer therefore records two events in the queue and asks the device itself how far apart
they were; elsewhere it waits for the device and then reads the clock.

*The first steps are not like the rest.*  The first optimizer ever built imports torch's compiler
(about a second), the first convolution picks its algorithm, the first allocations go to the
operating system.  The first `warmup` laps are run and thrown away.

*No two steps take the same time.*  A background process makes one lap ten times as long and drags
the mean with it, so the median is reported, with the quartiles as its spread.

`torch.utils.benchmark.Timer` does more: it compiles a statement given as text, chooses how many
runs to pool, and sets the number of threads.  This one times laps of a loop as it is written,
which is what a training loop needs, at the price of not resolving microseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles

import torch

from mptutor.devices import pick_device, synchronize


@dataclass(frozen=True)
class Timing:
    """The laps of one measurement, warm-up left out, in the order they were run."""

    samples_ms: tuple[float, ...]
    device: str

    @property
    def median_ms(self) -> float:
        """Half of the laps took longer."""
        return median(self.samples_ms)

    @property
    def quartiles_ms(self) -> tuple[float, float]:
        """A quarter of the laps took less than the first, a quarter longer than the second."""
        if len(self.samples_ms) == 1:
            return self.samples_ms[0], self.samples_ms[0]
        low, _, high = quantiles(self.samples_ms, n=4, method="inclusive")
        return low, high

    @property
    def spread(self) -> float:
        """The distance between the quartiles relative to the median; above 0.1, measure again."""
        low, high = self.quartiles_ms
        return (high - low) / self.median_ms

    def __str__(self) -> str:
        low, high = self.quartiles_ms
        laps = f"{len(self.samples_ms)} lap{'s' if len(self.samples_ms) > 1 else ''}"
        return f"{self.median_ms:.3g} ms (quartiles {low:.3g} to {high:.3g}, {laps}, {self.device})"


class Timer:
    """Times laps: ``with timer: step()``, or ``timer.measure(step)``.

    Parameters
    ----------
    device
        Where the work runs; the default is `pick_device()`.
    warmup
        How many laps to run without counting them.

    Examples
    --------
    >>> timer = Timer("cpu", warmup=1)
    >>> for _ in range(5):
    ...     with timer:
    ...         _ = torch.ones(64, 64) @ torch.ones(64, 64)
    >>> len(timer.timing().samples_ms)
    4
    """

    def __init__(self, device: torch.device | str | None = None, warmup: int = 3) -> None:
        if warmup < 0:
            raise ValueError(f"warmup: got {warmup}, allowed is 0 or more")
        self.device = pick_device() if device is None else torch.device(device)
        self.warmup = warmup
        self._clock = _DeviceClock() if self.device.type == "cuda" else _HostClock(self.device)
        self._laps: list[tuple] = []

    def __enter__(self) -> Timer:
        self._started = self._clock.now()
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        if kind is None:  # a lap that broke off is no lap
            self._laps.append((self._started, self._clock.now()))

    def measure(self, work: Callable[[], object], repeats: int = 20) -> Timing:
        """Call `work` for the warm-up and then `repeats` times; return the timing of the latter."""
        if repeats < 1:
            raise ValueError(f"repeats: got {repeats}, allowed is 1 or more")
        self._laps.clear()
        for _ in range(self.warmup + repeats):
            with self:
                work()
        return self.timing()

    def timing(self) -> Timing:
        """Return what has been timed so far.

        Raises
        ------
        RuntimeError
            If no lap has been run beyond the warm-up.
        """
        counted = self._laps[self.warmup :]
        if not counted:
            raise RuntimeError(
                f"nothing to report: {len(self._laps)} laps, of which the first {self.warmup} "
                f"are warm-up; run more laps or lower warmup"
            )
        synchronize(self.device)
        samples = tuple(self._clock.elapsed_ms(start, end) for start, end in counted)
        return Timing(samples, str(self.device))


class _HostClock:
    """Waits for the device, then reads this computer's clock."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> float:
        synchronize(self._device)
        return time.perf_counter()

    def elapsed_ms(self, start: float, end: float) -> float:
        return (end - start) * 1e3


class _DeviceClock:
    """Marks the current CUDA stream; the times are read once the device has passed the marks."""

    def now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def elapsed_ms(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return start.elapsed_time(end)
