"""Putting the watchers in place and taking them away again.

Three tiers, by cost:

the loop    GradScaler, autocast, the autograd engine, optimizers, clipping, schedulers, saving:
            about ten records a step, always on. It sees every error of order.
the layers  what comes out of each layer, and the gradient that comes back to it: dtypes and
            ranges, in the first steps, in every fiftieth, and after something went wrong.
the calls   every torch function called from Python, so that functional code is seen too: first
            steps only, again after trouble, and never where code is compiled, since a mode is
            part of what compiled code depends on and would make torch compile it again.

Watching costs nothing once `remove` has run, and while it runs the loop's numbers are the same to
the last bit.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

import torch
from torch.utils.weak import WeakIdKeyDictionary

from mptutor.audit.events import Backward, Event, GradOf, StepEnded
from mptutor.audit.events_forward import Forward
from mptutor.audit.recorder import Recorder
from mptutor.audit.seams import Seams
from mptutor.audit.site import Site, with_code
from mptutor.audit.trace import Trace
from mptutor.audit.watch_calls import CallWatch
from mptutor.audit.watch_gradients import GradientWatch
from mptutor.audit.watch_layers import LayerWatch
from mptutor.audit.watch_scaler import ScalerWatch, family
from mptutor.audit.watch_steps import StepWatch

#: How often layers are looked at once their first steps are over.
EVERY = 50

_running: Watch | None = None


class Watch:
    """Watches whatever trains between `install` and `remove`.

    Parameters
    ----------
    layer_steps, call_steps : int
        Number of first steps in which layers, and torch calls, are looked at; 0 for never.
    as_accelerator : bool
        Treat the CPU as an accelerator where it matters (reading values back), as tests do.
    """

    def __init__(
        self, layer_steps: int = 20, call_steps: int = 5, as_accelerator: bool = False
    ) -> None:
        for name, value in (("layer_steps", layer_steps), ("call_steps", call_steps)):
            if not isinstance(value, int) or value < 0:
                raise ValueError(f"{name} must be a number of steps, 0 or more; got {value!r}")
        self.layer_steps, self.call_steps = layer_steps, call_steps
        self.seams = Seams()
        self.recorder = Recorder()
        scaled_grads: WeakIdKeyDictionary[torch.Tensor, GradOf] = WeakIdKeyDictionary()
        self.scalers = ScalerWatch(self.recorder, self.end_of_step)
        self.gradients = GradientWatch(self.recorder, self.scalers, scaled_grads)
        self.steps = StepWatch(self.recorder, self.gradients, self.end_of_step)
        self.layers = LayerWatch(self.recorder, self.scalers)
        self.calls = CallWatch(self.recorder, self.gradients, as_accelerator)
        self.steps.on_compile = self._stop_looking_at_calls
        self.on_step: Callable[[int], None] = lambda step: None
        self._mark = 0

    def install(self) -> None:
        """Start to watch.

        Raises
        ------
        RuntimeError
            If an audit is running already; that one goes on undisturbed.
        """
        global _running
        if _running is not None:
            raise RuntimeError("an audit is already running: leave its `with` block first")
        _running = self
        try:
            self._find_optimizers()
            watchers = [self.scalers, self.gradients, self.steps, self.layers, self.calls]
            for watcher in watchers:
                watcher.install(self.seams)
            self.seams.active = True
            self._look()
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Take everything back, and read the numbers that still wait. May be called twice."""
        global _running
        self.seams.undo()
        if _running is self:
            _running = None
        try:
            with torch.no_grad():
                self.recorder.settle()
        except Exception as error:
            self.seams.problems.append(f"reading the last numbers: {error}")

    def trace(self) -> Trace:
        """Return what was seen so far."""
        events = list(self.recorder.events)
        _fill_in_code(events)
        return Trace(events)

    def end_of_step(self) -> None:
        """Read the step's numbers, then decide how closely to look at the next one."""
        self.recorder.record(StepEnded, memory_bytes=_memory_bytes())
        try:
            self.recorder.settle()
        finally:
            self._look()
            self.on_step(self.recorder.step)

    def _look(self) -> None:
        """Set how closely to look from here on."""
        step, trouble = self.recorder.step, self._trouble()
        self.calls.look(self.call_steps > 0 and (step < self.call_steps or trouble))
        first_steps = step < self.layer_steps or step % EVERY == 0
        self.recorder.look_at_layers = self.layer_steps > 0 and (first_steps or trouble)

    def _trouble(self) -> bool:
        """Say whether something came out of a layer, or a loss, that is not finite."""
        recent = self.recorder.events[self._mark :]
        self._mark = len(self.recorder.events)
        for event in recent:
            if isinstance(event, Backward) and not event.loss_is_finite:
                return True
            if isinstance(event, Forward) and any(not v.finite for v in event.outputs):
                return True
        return False

    def _stop_looking_at_calls(self) -> None:
        self.call_steps = 0
        self.calls.look(False)

    def _find_optimizers(self) -> None:
        """Find the optimizers made before the audit: about 50 ms, once.

        An object refers to its class, so the garbage collector can be asked for the instances.
        """
        for thing in gc.get_referrers(*family(torch.optim.Optimizer)):
            if issubclass(type(thing), torch.optim.Optimizer):
                self.recorder.optimizers.add(thing)


def _stop_in_child() -> None:
    """Switch the seams off in a forked process: a DataLoader worker has nothing to report."""
    if _running is not None:
        _running.seams.active = False


os.register_at_fork(after_in_child=_stop_in_child)


def _memory_bytes() -> int | None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.memory_allocated()
    return None


def _fill_in_code(events: list[Event]) -> None:
    lines: dict[tuple[str, int], Site] = {}
    for event in events:
        for name in ("site", "error_site", "scaled_grad_site"):
            site = getattr(event, name, None)
            if site is not None and not site.code:
                key = site.file, site.line
                lines[key] = lines.get(key) or with_code(site)
                setattr(event, name, lines[key])
