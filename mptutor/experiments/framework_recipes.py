"""The same training through every framework's switch: what ran, whose bits it has, what it costs.

A small MLP is trained on the same batches from the same weights by raw loops, in Lightning Fabric,
Lightning's Trainer, Accelerate and FSDP2. Of each, `mptutor.experiments.what_ran` tells the
precision that really ran. If the final weights have the same bits as those of a raw loop, the
framework did what that loop does and nothing else, and its switch can be read as an abbreviation.

On a CPU requests for FP16 are answered with something else: Lightning's ``16-mixed`` runs in BF16
and warns, Accelerate's ``fp16`` in FP32 without a word, and so does a raw loop written for "cuda",
with a warning. The dtype of the model's output would not show it: Fabric and Accelerate cast it
back to FP32.

What a framework costs is measured against the raw loop that has its bits: the time from one step of
the optimizer to the next, which counts everything a loop does, and the peak of memory of a training
of two steps. On a CPU it is the time of the loop's own thread, so that other processes don't count.
Neither says what a GPU would gain: the CPU computes 16 bits as `mptutor.tensorcore` does where it
has no units for them. A way that is not installed, or is refused, has the reason in place of
numbers.
"""

from __future__ import annotations

import hashlib
import logging
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import islice, pairwise

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from mptutor.data import batches as batches_of
from mptutor.data import load
from mptutor.devices import pick_device, synchronize
from mptutor.experiments.framework_ways import WAYS, Way, find_way, import_seconds, lacks
from mptutor.experiments.progress import Progress, Reached, Stage, shown
from mptutor.experiments.raw_loops import Batches
from mptutor.experiments.result import Cell, Result
from mptutor.experiments.tasks import seeded
from mptutor.experiments.what_ran import Seen, watch
from mptutor.hardware import report
from mptutor.memory import MemoryMeter
from mptutor.models import mlp
from mptutor.tensorcore import has_units, tensor_core

_WIDTHS = (784, 128, 10)
_BATCH = 64
_WARMUP_STEPS = 5
#: What a warning has to be about to count as one.
_ABOUT_PRECISION = re.compile(r"precision|autocast|GradScaler|AMP", re.IGNORECASE)


@dataclass(frozen=True)
class WayRun:
    """One way to train, and what came of it.

    Attributes
    ----------
    name, asked, edits
        Of the `Way`.
    refusal
        Why it did not run; then everything below is None or empty.
    seen
        What was seen of it.
    warnings
        What it said about precision while it ran.
    losses
        Of every step.
    weights_hash
        SHA-256 of the final weights in FP32: equal if every bit is.
    same_bits_as
        The raw loop that ends with the same weights, if there is one.
    step_ms, overhead_ms
        Shortest time between two steps of the optimizer, and what it exceeds that of
        `same_bits_as` by. None if not measured.
    peak_bytes
        The most that a training of two steps held, the model included. None if not measured.
    """

    name: str
    asked: str
    edits: int
    refusal: str | None = None
    seen: Seen | None = None
    warnings: tuple[str, ...] = ()
    losses: tuple[float, ...] = ()
    weights_hash: str | None = None
    same_bits_as: str | None = None
    step_ms: float | None = None
    overhead_ms: float | None = None
    peak_bytes: int | None = None

    @property
    def ran(self) -> str | None:
        """The course's name for the recipe that ran."""
        return self.seen.recipe if self.seen else None

    @property
    def fell_back(self) -> bool:
        """Whether something else ran than what was asked for."""
        return self.ran not in (None, self.asked)

    def __str__(self) -> str:
        if self.refusal:
            return f"{self.name}: not run. {self.refusal}"
        said = "; ".join(self.warnings) or "nothing"
        return (
            f"{self.name}: asked for {self.asked}, ran {self.ran}\n"
            f"  {self.seen}\n  last loss {self.losses[-1]:.4f}; it said: {said}"
        )


@dataclass(frozen=True)
class FrameworkRecipesResult(Result):
    """All ways on one device.

    ``import_seconds`` has the packages that are installed. ``finished`` is False if the run was
    stopped, and `runs` then holds what had been done.
    """

    device: str
    device_name: str
    threads: int
    steps: int
    import_seconds: dict[str, float]
    runs: tuple[WayRun, ...]
    finished: bool = True

    @property
    def headline(self) -> str:
        """What was trained and where, in a line."""
        threads = f", {self.threads} thread{'' if self.threads == 1 else 's'}"
        imports = "; ".join(f"import {p}: {s:.2f} s" for p, s in self.import_seconds.items())
        return (
            f"MLP {'-'.join(map(str, _WIDTHS))}, batch {_BATCH}, SGD, {self.steps} steps on "
            f"{self.device_name}{threads if self.device == 'cpu' else ''}. {imports}"
        )

    def of(self, name: str) -> WayRun:
        """Return the run of one way."""
        for run in self.runs:
            if run.name == name:
                return run
        raise ValueError(f"name: got {name!r}, allowed are {', '.join(r.name for r in self.runs)}")

    def table(self) -> list[dict[str, Cell]]:
        """Return a row for every way; one that did not run has dashes."""
        return [self._row(run) for run in self.runs]

    def _row(self, run: WayRun) -> dict[str, Cell]:
        seen, package = run.seen, _package_of(run.name)
        return {
            "way": run.name,
            "asked": run.asked,
            "ran": "not run" if seen is None else run.ran,
            "output": seen and seen.output,
            "weights": seen and seen.weights,
            "gradients": seen and seen.gradients,
            "scale": f"{seen.scale:g}" if seen and seen.scaled else None,
            "warned": bool(run.warnings) if seen else None,
            "bits of": run.same_bits_as,
            "edits": run.edits,
            "import s": self.import_seconds.get(package) if package else None,
            "over raw ms": run.overhead_ms,
            "peak MB": run.peak_bytes and run.peak_bytes / 1e6,
            "last loss": run.losses[-1] if run.losses else None,
        }


def run_framework_recipes(
    names: Sequence[str] = tuple(way.name for way in WAYS),
    *,
    steps: int = 30,
    rounds: int = 2,
    quick: bool = False,
    device: torch.device | str | None = None,
    progress: Progress = True,
    stop: Callable[[], bool] | None = None,
) -> FrameworkRecipesResult:
    """Train by every way: once watched, once metered, and in `rounds` for its time.

    Parameters
    ----------
    names
        Of the ways, see `WAYS`. The raw loops among them are what the others are compared with.
    steps
        Of each training.
    rounds
        How often all ways are timed in turn.
    quick
        Ten steps, one round.
    device
        Where; the default is `pick_device()`.
    progress
        Called with a `Stage` before each training; True shows a line in a notebook, see `progress`.
    stop
        Asked before each training; once it says True, or on an interrupt from the keyboard, what
        has been done is returned.
    """
    if steps <= _WARMUP_STEPS:
        raise ValueError(f"steps: got {steps}, allowed are {_WARMUP_STEPS + 1} or more")
    ways = [find_way(name) for name in names]
    device = pick_device() if device is None else torch.device(device)
    if quick:
        steps, rounds = 10, 1
    stop = stop or (lambda: False)
    data = some_batches(steps, device)
    runs: list[WayRun] = []
    laps: dict[str, list[float]] = {}
    finished = False
    # On an interrupt, Lightning's Trainer does not raise it again but exits.
    with suppress(KeyboardInterrupt, SystemExit), shown(progress) as tell:
        for i, way in enumerate(ways):
            if stop():
                break
            tell(Stage(way.name, i / len(ways) / (1 + rounds)))
            runs.append(_metered(way, _watched(way, data, device), data, device))
        else:
            finished = _time_in_turn(ways, runs, data, device, rounds, laps, stop, tell)
    times = {name: min(taken) for name, taken in laps.items()}
    hardware = report(device)
    return FrameworkRecipesResult(
        device.type,
        hardware.device_name,
        hardware.threads,
        steps,
        {p: import_seconds(p) for p in _installed(ways[: len(runs)])},
        _compare([replace(r, step_ms=times.get(r.name)) for r in runs]),
        finished=finished,
    )


def try_way(name: str, *, steps: int = 20, device: torch.device | str | None = None) -> WayRun:
    """Train by one way and say what ran, without timing it or comparing it with others."""
    device = pick_device() if device is None else torch.device(device)
    return _watched(find_way(name), some_batches(steps, device), device)


def some_batches(count: int, device: torch.device) -> Batches:
    """Return the first batches of an epoch, images b x 1 x 28 x 28 in FP32 and labels."""
    data = load("fashion-mnist-5k", device=device).train
    return list(islice(batches_of(data, _BATCH, seed=0), count))


def _watched(way: Way, data: Batches, device: torch.device) -> WayRun:
    """Train once under watch, or say why not."""
    blank = WayRun(way.name, way.asked, way.edits, refusal=lacks(way))
    if blank.refusal:
        return blank
    model, loss_fn = seeded(lambda: mlp(_WIDTHS), 0).to(device), nn.CrossEntropyLoss()
    try:
        with _surroundings(device), _warnings_about_precision() as said, watch(model, loss_fn) as w:
            losses = way.loop(model, loss_fn, data, device)
            weights_hash = _hash_of(model)
    except (ImportError, RuntimeError, ValueError, NotImplementedError) as error:
        return replace(blank, refusal=f"{type(error).__name__}: {' '.join(str(error).split())}")
    return replace(
        blank, seen=w.seen, warnings=tuple(said), losses=tuple(losses), weights_hash=weights_hash
    )


def _metered(way: Way, run: WayRun, data: Batches, device: torch.device) -> WayRun:
    """Train two steps on one batch under the memory meter."""
    if run.refusal or (way.resizes_storages and device.type != "cuda"):
        return run
    model, loss_fn = seeded(lambda: mlp(_WIDTHS), 0).to(device), nn.CrossEntropyLoss()
    with _surroundings(device), _warnings_about_precision(), MemoryMeter(model) as meter:
        way.loop(model, loss_fn, data[:1] * 2, device)
    return replace(run, peak_bytes=meter.peak_bytes)


def _time_in_turn(
    ways: Sequence[Way],
    runs: Sequence[WayRun],
    data: Batches,
    device: torch.device,
    rounds: int,
    laps: dict[str, list[float]],
    stop: Callable[[], bool],
    tell: Callable[[Reached], None],
) -> bool:
    """Put the times between two steps of each way that runs into `laps`, from interleaved rounds.

    Every way has the same work to do in each step, so what makes one of its steps longer than
    another is other processes; the shortest is the one they disturbed least. Returns False if it
    was stopped.
    """
    for turn in range(1, rounds + 1):
        for i, (way, run) in enumerate(zip(ways, runs, strict=True)):
            if run.refusal:
                continue
            if stop():
                return False
            tell(Stage(f"{way.name}, timed", (turn + i / len(ways)) / (1 + rounds)))
            laps.setdefault(way.name, []).extend(_laps_ms(way, data, device))
    return True


def _laps_ms(way: Way, data: Batches, device: torch.device) -> list[float]:
    """Train once and return the times between steps of the optimizer."""
    model, loss_fn = seeded(lambda: mlp(_WIDTHS), 0).to(device), nn.CrossEntropyLoss()
    ends: list[float] = []
    # This thread's own time leaves out what other processes take; Windows counts it in 16 ms.
    alone = device.type == "cpu" and sys.platform != "win32"
    clock = time.thread_time if alone else time.perf_counter

    def note_end(*_: object) -> None:
        synchronize(device)
        ends.append(clock())

    hook = register_optimizer_step_post_hook(note_end)
    try:
        with _surroundings(device), _warnings_about_precision():
            way.loop(model, loss_fn, data, device)
    finally:
        hook.remove()
    laps = [1e3 * (end - start) for start, end in pairwise(ends)]
    return laps[_WARMUP_STEPS - 1 :]


def _compare(runs: Sequence[WayRun]) -> tuple[WayRun, ...]:
    """Find for each run the raw loop that has its bits, and what it takes beyond that."""
    raw = [run for run in runs if find_way(run.name).is_reference and not run.refusal]
    return tuple(_beside(run, raw) for run in runs)


def _beside(run: WayRun, raw: Sequence[WayRun]) -> WayRun:
    same = next((r for r in raw if r.weights_hash == run.weights_hash and r.name != run.name), None)
    if same is None:
        return run
    timed = same.step_ms is not None and run.step_ms is not None
    overhead_ms = run.step_ms - same.step_ms if timed else None
    return replace(run, same_bits_as=same.name, overhead_ms=overhead_ms)


@contextmanager
def _surroundings(device: torch.device) -> Iterator[None]:
    """Give a loop a Tensor Core's arithmetic on a CPU, and take away what frameworks leave."""
    without_units = [
        dtype
        for dtype in (torch.float16, torch.bfloat16)
        if device.type == "cpu" and not has_units(dtype)
    ]
    try:
        with tensor_core(without_units) if without_units else nullcontext(), _quiet_loggers():
            _forget_accelerator()
            yield
    finally:
        _forget_accelerator()
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def _forget_accelerator() -> None:
    """Let Accelerate take another precision: the first one asked for holds for the process."""
    if "accelerate.state" in sys.modules:
        sys.modules["accelerate.state"].AcceleratorState._reset_state(reset_partial_state=True)


@contextmanager
def _quiet_loggers() -> Iterator[None]:
    """Keep Lightning from saying which devices it found."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


@contextmanager
def _warnings_about_precision() -> Iterator[list[str]]:
    """Collect what is said about precision, each sentence once, and drop other warnings."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield said
    texts = (" ".join(str(warning.message).split()) for warning in caught)
    said += dict.fromkeys(text for text in texts if _ABOUT_PRECISION.search(text))


def _hash_of(model: nn.Module) -> str:
    """Return the SHA-256 of the weights' values in FP32, of sharded ones put together again."""
    digest = hashlib.sha256()
    for weight in model.parameters():
        whole = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
        digest.update(whole.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()


def _package_of(name: str) -> str | None:
    return find_way(name).package


def _installed(ways: Sequence[Way]) -> list[str]:
    return list(dict.fromkeys(w.package for w in ways if w.package and not lacks(w)))
