"""Watching optimizers, learning rate schedulers, checkpoints and torch.compile.

torch offers global hooks before and after every optimizer's step, whatever its class. The record
is made by the hook *after* the step: with a closure (LBFGS, Lightning) the forward, the backward
and the clipping all run inside `step`, and belong before it. Weights and optimizer state kept in
16 bits are sampled on both sides, to see whether they moved.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from mptutor.audit.events import CompileAsked, OptimizerStep, Saved, SchedulerStep, StateLoaded
from mptutor.audit.recorder import Recorder, parameters_of
from mptutor.audit.seams import Outcome, Seams
from mptutor.audit.tensors import HALF, dtype_name, readable, sample
from mptutor.audit.watch_gradients import GradientWatch

Optimizer = torch.optim.Optimizer

#: A parameter, the tensor sampled (itself or its state), and the sample before the step.
Sample = tuple[Tensor, Tensor, Tensor]


class StepWatch:
    """Records optimizer and scheduler steps, saving, loading and compiling."""

    def __init__(
        self, recorder: Recorder, gradients: GradientWatch, end_of_step: Callable[[], None]
    ) -> None:
        self.recorder = recorder
        self.gradients = gradients
        self.end_of_step = end_of_step
        self.on_compile: Callable[[], None] = lambda: None

    def install(self, seams: Seams) -> None:
        """Start to watch."""
        seams.hook(register_optimizer_step_pre_hook, self._before_step)
        seams.hook(register_optimizer_step_post_hook, self._after_step)
        seams.around(Optimizer, "__init__", self._made)
        seams.around(Optimizer, "load_state_dict", self._optimizer_loaded)
        seams.around(torch.serialization, "_save", self._saved)
        seams.around(torch, "compile", self._compiled)
        for cls in vars(lr_scheduler).values():
            if isinstance(cls, type) and issubclass(cls, LRScheduler) and "step" in vars(cls):
                seams.around(cls, "step", self._scheduler_stepped)

    def _made(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Iterator[None]:
        outcome: Outcome = yield
        if outcome.error is None:
            self.recorder.optimizers.add(optimizer)

    # -- optimizer steps -------------------------------------------------------------------------

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.recorder.optimizers.add(optimizer)
        thread = self.recorder.thread
        scaler_step = thread.scaler_steps[-1] if thread.scaler_steps else None
        if scaler_step is not None:
            scaler_step.stepped = True
            found_inf = getattr(optimizer, "found_inf", None)
            if isinstance(found_inf, Tensor):
                self.recorder.later(scaler_step, "found_inf", found_inf.detach().clone())
        closure = callable(kwargs.get("closure") or (args[1] if len(args) > 1 else None))
        edited = closure or self.gradients.edited(optimizer)
        thread.silent_steps += not closure
        before = _half_weights(optimizer), _half_state(optimizer)
        thread.optimizer_steps.append((closure, edited, *before))

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        thread = self.recorder.thread
        if not thread.optimizer_steps:
            return
        closure, edited, weights, state = thread.optimizer_steps.pop()
        thread.silent_steps = max(0, thread.silent_steps - (not closure))
        through = thread.scaler_steps[-1] if thread.scaler_steps else None
        group = optimizer.param_groups[0]
        params = parameters_of(optimizer)
        event = self.recorder.record(
            OptimizerStep,
            optimizer=self.recorder.name(optimizer),
            algorithm=type(optimizer).__name__,
            through=through.scaler if through is not None else None,
            dtypes=sorted({dtype_name(p.dtype) for p in params}),
            lr=float(group.get("lr", 0.0)),
            eps=group.get("eps"),
            depth=thread.autocast_depth,
            region=thread.region,
            cache=torch.is_autocast_cache_enabled(),
            edited=edited,
            calls_seen=self.recorder.look_at_calls,
        )
        asked, still = self._counts(weights)
        if asked is not None:
            self.recorder.later(event, "asked", asked)
            self.recorder.later(event, "still", still)
        for name, samples in state.items():
            asked, still = self._counts(samples)
            if asked is not None:
                self.recorder.later(event.state_asked, name, asked)
                self.recorder.later(event.state_still, name, still)
        few = [sample(p, 256).float().sum() for p in params[:8] if readable(p)]
        if few:
            self.recorder.later(event, "weights_finite", torch.stack(few).isfinite().all())
        self.recorder.step += 1
        if not thread.scaler_steps:
            self.end_of_step()

    @staticmethod
    def _counts(before: list[Sample]) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """Count the elements that had a gradient, and of these the ones that didn't change."""
        pairs = [
            (sample(p.grad).ne(0), sample(x).eq(old))
            for p, x, old in before
            if p.grad is not None and readable(p.grad)
        ]
        if not pairs:
            return None, None
        asked = sum(moved.sum() for moved, _ in pairs)
        return asked, sum((moved & kept).sum() for moved, kept in pairs)

    # -- the rest --------------------------------------------------------------------------------

    def _optimizer_loaded(self, optimizer: Optimizer, state: Any, *args: Any) -> Iterator[None]:
        outcome: Outcome = yield
        if outcome.error is None and isinstance(state, dict) and state.get("state"):
            self.recorder.record(StateLoaded, what="optimizer", name=self.recorder.name(optimizer))

    def _scheduler_stepped(self, scheduler: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
        thread = self.recorder.thread
        thread.scheduler_steps += 1
        if thread.scheduler_steps == 1 and not _called_by("_initial_step"):
            name = self.recorder.name(scheduler.optimizer)
            self.recorder.record(SchedulerStep, optimizer=name)
        yield
        thread.scheduler_steps -= 1

    def _saved(self, obj: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
        self.recorder.record(Saved, found=sorted(_states_in(obj)))
        yield

    def _compiled(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        self.on_compile()
        self.recorder.record(CompileAsked)
        yield


def _half_weights(optimizer: Optimizer) -> list[Sample]:
    params = [p for p in parameters_of(optimizer) if p.dtype in HALF and readable(p)]
    return [(p, p, sample(p).clone()) for p in params if p.grad is not None]


def _half_state(optimizer: Optimizer) -> dict[str, list[Sample]]:
    """Sample momenta and second moments kept in 16 bits, of the first parameters."""
    found: dict[str, list[Sample]] = {}
    for p in [p for p in parameters_of(optimizer) if p.grad is not None][:8]:
        for name, x in optimizer.state.get(p, {}).items():
            if isinstance(x, Tensor) and x.dtype in HALF and x.shape == p.shape and readable(x):
                found.setdefault(str(name), []).append((p, x, sample(x).clone()))
    return found


def _states_in(obj: Any, at_most: int = 500) -> set[str]:
    """Find optimizer and scaler states anywhere in a nested checkpoint."""
    found, queue = set(), [obj]
    for item in queue:  # grows while it is read
        if not isinstance(item, dict) or len(queue) > at_most:
            continue
        if {"growth_factor", "_growth_tracker"} <= set(item):
            found.add("scaler")
        elif {"state", "param_groups"} <= set(item):
            found.add("optimizer")
        else:
            for value in item.values():
                nested = value if isinstance(value, (list, tuple)) else [value]
                queue += [entry for entry in nested if isinstance(entry, dict)]
    return found


def _called_by(function: str, frames: int = 8) -> bool:
    frame = sys._getframe(1)
    for _ in range(frames):
        if frame is None:
            return False
        if frame.f_code.co_name == function:
            return True
        frame = frame.f_back
    return False
