"""The desk where everything seen is written down.

Observers in many places write to one `Recorder`: it knows the step, gives short names to
optimizers and scalers, keeps what each thread is in the middle of, and collects the numbers that
are still on a device. Those wait until the step ends and are then read together, one transfer for
each device and dtype, so that watching a GPU costs one synchronisation a step and not hundreds.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from mptutor.audit.events import Event, ScalerStep
from mptutor.audit.events_forward import Values
from mptutor.audit.site import here
from mptutor.audit.tensors import dtype_name, lo_hi

E = TypeVar("E", bound=Event)


@dataclass
class ThreadState:
    """What one thread is in the middle of.

    `silent_steps` counts optimizer steps without a closure: what they call is torch's doing, not
    the loop's. `error_seen` is the identity of an exception that has been recorded already.
    """

    autocast_depth: int = 0
    region: int = 0
    modules: list[torch.nn.Module] = field(default_factory=list)
    errors_before: list[BaseException | None] = field(default_factory=list)
    scaler_steps: list[ScalerStep | None] = field(default_factory=list)
    optimizer_steps: list[Any] = field(default_factory=list)
    silent_steps: int = 0
    error_seen: int = 0
    engine_runs: int = 0
    scheduler_steps: int = 0


class Recorder:
    """Writes the events of one audit.

    Attributes
    ----------
    look_at_layers, look_at_calls : bool
        Whether the two costlier tiers are looking at present.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.step = 0
        self.look_at_layers = self.look_at_calls = False
        self.optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.module_names: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self.main_thread = threading.get_ident()
        self.main = ThreadState()
        self._threads = threading.local()
        self._threads.state = self.main
        self._names: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self._counts: dict[str, int] = {}
        self._waiting: list[tuple[Any, str, Tensor]] = []
        self._chores: list[Callable[[], None]] = []
        self._seen = WeakIdKeyDictionary()

    @property
    def thread(self) -> ThreadState:
        """The state of the thread that asks."""
        if not hasattr(self._threads, "state"):
            self._threads.state = ThreadState()
        return self._threads.state

    def record(self, kind: type[E], **facts: Any) -> E:
        """Write down that something happened, where and in which step."""
        event = kind(step=self.step, site=here(), thread=threading.get_ident(), **facts)
        self.events.append(event)
        return event

    def later(self, target: Any, name: str, number: Tensor) -> None:
        """Set `target.name` (or `target["name"]`) to this number when the step ends."""
        self._waiting.append((target, name, number))

    def at_end_of_step(self, chore: Callable[[], None]) -> None:
        """Run `chore` when the numbers of the step have been read."""
        self._chores.append(chore)

    def settle(self) -> None:
        """Read every number that waits, and write it where it belongs."""
        waiting, self._waiting = self._waiting, []
        groups: dict[tuple, list] = {}
        for item in waiting:
            groups.setdefault((item[2].device, item[2].dtype), []).append(item)
        for items in groups.values():
            for (target, name, _), number in zip(items, _read(items), strict=True):
                if isinstance(target, dict):
                    target[name] = number
                else:
                    setattr(target, name, number)
        chores, self._chores = self._chores, []
        for chore in chores:
            chore()

    def values_of(self, x: Tensor, made_by: str | None = None, made: bool = False) -> Values:
        """Describe a readable tensor, and measure its range unless that has been done.

        With `made`, `x` has just been made by `made_by`, so whatever was known of it is old.
        """
        state = _state(x)
        if not made:
            known, known_state = self._seen.get(x, (None, None))
            if known is not None and known_state == state:
                return known
        values = described(x, made_by)
        lo, hi = lo_hi(x)
        self.later(values, "lo", lo)
        self.later(values, "hi", hi)
        self._seen[x] = values, state
        return values

    def same_values(self, view: Tensor, x: Tensor) -> None:
        """Note that `view` shows the values of `x`, whose range stands for both."""
        if x in self._seen:
            self._seen[view] = self._seen[x][0], _state(view)

    def name(self, thing: Any) -> str:
        """Return the name under which an optimizer or a scaler appears: AdamW1, GradScaler1."""
        if thing not in self._names:
            kind = type(thing).__name__
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._names[thing] = f"{kind}{self._counts[kind]}"
        return self._names[thing]

    def autocast_dtype(self, device: str) -> str | None:
        """Return the dtype autocast gives on `device` in this thread, or None if it is off."""
        if not torch.is_autocast_enabled(device):
            return None
        return dtype_name(torch.get_autocast_dtype(device))


def _state(x: Tensor) -> tuple:
    """Return what changes when a tensor gets new values, as far as torch tells."""
    return x.data_ptr(), x.dtype, None if x.is_inference() else x._version


def described(x: Tensor, made_by: str | None = None) -> Values:
    """Describe a tensor without reading its numbers."""
    return Values(dtype_name(x.dtype), tuple(x.shape), x.device.type, made_by=made_by)


def gradients_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the gradients an optimizer has at present."""
    params = (p for group in optimizer.param_groups for p in group["params"])
    return [p.grad for p in params if p.grad is not None]


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the parameters an optimizer updates."""
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]


def _read(items: list[tuple[Any, str, Tensor]]) -> list[float | None]:
    try:
        return torch.stack([number.detach().reshape(()) for _, _, number in items]).tolist()
    except RuntimeError:  # a tensor that can't be read any more, as after a CUDA error
        return [None] * len(items)
