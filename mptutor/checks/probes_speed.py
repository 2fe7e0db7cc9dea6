"""Probes for speed: a device with a queue and a clock of its own, and a loop watched for waiting.

Neither looks at the computer's clock, so neither depends on its speed. Like every probe they know
nothing of right and wrong; see `mptutor.checks.probes`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

#: More readings or steps than anybody needs: the code runs in circles.
_AT_MOST = 100_000

#: Ways in which Python reads a value back from a device, and the one in which it asks a question.
_VALUES = ("item", "__float__", "__int__", "tolist", "numpy", "cpu")
_QUESTIONS = ("__bool__", "nonzero")


@dataclass
class QueueDevice:
    """A device that queues steps, in a time of its own, in milliseconds.

    Handing over a step takes the host `launch_ms`. The device begins with it when it is through
    with all before. The first steps take `first_ms`; of the others one in `every` is disturbed,
    beginning with step `disturbed`, and takes nine times as long.
    """

    work_ms: float
    launch_ms: float
    first_ms: Sequence[float]
    disturbed: int
    every: int
    seed: int
    time_ms: float = 0.0
    free_at_ms: float = 0.0
    steps: int = 0
    readings: list[tuple[float, bool, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def step(self) -> None:
        """Queue a step and return."""
        self._count()
        self.time_ms += self.launch_ms
        self.free_at_ms = max(self.free_at_ms, self.time_ms) + self._duration_ms()
        self.steps += 1

    def wait(self) -> None:
        """Let the time pass until the queue is empty."""
        self._count()
        self.time_ms = max(self.time_ms, self.free_at_ms)

    def now(self) -> float:
        """Read the clock."""
        self._count()
        self.readings.append((self.time_ms, self.free_at_ms > self.time_ms, self.steps))
        return self.time_ms

    def _duration_ms(self) -> float:
        if self.steps < len(self.first_ms):
            return self.first_ms[self.steps]
        disturbed = self.steps % self.every == self.disturbed % self.every
        return self.work_ms * self._random.uniform(0.99, 1.01) * (9 if disturbed else 1)

    def _count(self) -> None:
        if self.steps + len(self.readings) > _AT_MOST:
            raise RuntimeError(f"more than {_AT_MOST} steps and readings of the clock")


def time_steps(written: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """Let the learner's function time a `QueueDevice` and tell what it said and did.

    ``inputs`` are the keywords of the device. ``"steps timed"`` are those between the first and the
    last reading of the clock; the first ones are slow, so they are told as well.
    """
    (options,) = inputs
    device = QueueDevice(**options)
    said = written(device.step, device.wait, device.now)
    if type(said) not in (int, float) or not device.readings:
        return {"ms": said, "readings of the clock": len(device.readings)}
    (start_ms, _, before), (end_ms, _, after) = device.readings[0], device.readings[-1]
    return {
        "ms": float(said),
        "waited before reading": not any(busy for _, busy, _ in device.readings[1:]),
        "slow first steps timed": max(0, min(after, len(device.first_ms)) - before),
        "steps timed": after - before,
        "said the whole stretch": after - before > 1 and abs(said - (end_ms - start_ms)) < 1e-6,
    }


def drive_quick_loop(written: Callable[[Any], Any], inputs: Sequence[Any]) -> dict[str, Any]:
    """Let the learner's loop train a patient as on a GPU and tell what it made Python wait for.

    ``inputs`` are the name of a model of `mptutor.experiments.clinic`, and keyword arguments of its
    `patient`. Values read back are counted up to the last step of the optimizer: after it nothing
    is left to wait for.
    """
    from mptutor import audit
    from mptutor.audit.events import ScalerStep
    from mptutor.audit.events_forward import Sync
    from mptutor.experiments import clinic

    name, options = inputs
    patient = clinic.patient(getattr(clinic, name), **options)
    looked_at = audit.Audit(layer_steps=0, call_steps=1000, as_accelerator=True)
    casts = _WeightCasts(patient.model.parameters())
    dtypes: set[str] = set()
    for layer in patient.model.values():
        layer.register_forward_hook(lambda *called: dtypes.add(str(called[2].dtype)))
    looked_at.start()
    try:
        with casts:
            losses = written(patient)
    finally:
        looked_at.stop()
    events = list(looked_at.trace.events)
    steps = [i for i, event in enumerate(events) if isinstance(event, ScalerStep)]
    in_time = events[: steps[-1]] if steps else events
    how = Counter(event.how for event in in_time if isinstance(event, Sync))
    weights = [w.detach().float().reshape(-1) for w in patient.model.parameters()]
    return {
        "layers in": sorted(dtype.removeprefix("torch.") for dtype in dtypes),
        "steps with the scaler": len(steps),
        "values read back": sum(how[name] for name in _VALUES),
        "questions asked": sum(how[name] for name in _QUESTIONS),
        "casts of weights": casts.count,
        "losses": _as_numbers(losses),
        "weights": torch.cat(weights),
    }


class _WeightCasts(TorchDispatchMode):
    """Counts how often one of the weight matrices is copied to 16 bits."""

    def __init__(self, parameters: Any) -> None:
        super().__init__()
        self.count = 0
        self._matrices = {w.data_ptr() for w in parameters if w.dim() > 1}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and result.element_size() == 2:
            self.count += args[0].data_ptr() in self._matrices
        return result


def _as_numbers(losses: Any) -> Any:
    if not isinstance(losses, (list, tuple, Tensor)):
        return f"no list, but a {type(losses).__name__}"
    return [float(torch.as_tensor(loss).detach()) for loss in losses]
