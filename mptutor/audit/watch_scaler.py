"""Watching GradScaler and autocast.

The methods are watched on the classes, so scalers made before the audit are seen as well, and so
are those of frameworks: `torch.cuda.amp.GradScaler` and Accelerate's inherit them, FSDP's
`ShardedGradScaler` overrides some, which are watched too. Scalers that share no code with torch's
(DeepSpeed, Apex) are not seen.

For autocast the constructor counts as well: only there does it show that autocast was asked for
and has switched itself off, with no more than a warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.amp import GradScaler
from torch.amp.autocast_mode import autocast

from mptutor.audit.events import (
    AutocastOff,
    EnterAutocast,
    Scale,
    ScalerMade,
    ScalerStep,
    StateLoaded,
    StateTaken,
    Unscale,
    Update,
)
from mptutor.audit.recorder import Recorder, gradients_of
from mptutor.audit.seams import Outcome, Seams
from mptutor.audit.tensors import dtype_name, tensors_in

#: Under this key the autograd node of a scaled loss carries the name of its scaler.
SCALED_BY = "mptutor.scaled_by"


class ScalerWatch:
    """Records what GradScalers and autocast blocks do."""

    def __init__(self, recorder: Recorder, end_of_step: Any) -> None:
        self.recorder = recorder
        self.end_of_step = end_of_step
        self.scale_now: torch.Tensor | None = None

    def install(self, seams: Seams) -> None:
        """Start to watch."""
        observers = {
            "__init__": self._made,
            "scale": self._scaled,
            "unscale_": self._unscaled,
            "step": self._stepped,
            "update": self._updated,
            "state_dict": self._state_taken,
            "load_state_dict": self._state_loaded,
        }
        for cls in family(GradScaler):
            for name, observer in observers.items():
                if cls is GradScaler or name in vars(cls):
                    seams.around(cls, name, observer)
        seams.around(autocast, "__init__", self._autocast_made)
        seams.around(autocast, "__enter__", self._autocast_entered)
        seams.around(autocast, "__exit__", self._autocast_left)

    def _made(
        self, scaler: GradScaler, device: str = "cuda", *args: Any, enabled: bool = True, **kwargs
    ) -> Iterator[None]:
        outcome: Outcome = yield
        if outcome.error is None:
            self.recorder.record(
                ScalerMade,
                scaler=self.recorder.name(scaler),
                device=getattr(scaler, "_device", device),
                asked=enabled,
                enabled=scaler.is_enabled(),
            )

    def _scaled(self, scaler: GradScaler, outputs: Any) -> Iterator[None]:
        outcome: Outcome = yield
        if not scaler.is_enabled() or outcome.error is not None:
            return
        name = self.recorder.name(scaler)
        event = self.recorder.record(
            Scale,
            scaler=name,
            dtypes=[dtype_name(x.dtype) for x in tensors_in(outputs)],
            init_scale=scaler._init_scale,
        )
        self.scale_now = scaler._scale.detach().clone()
        self.recorder.later(event, "scale", self.scale_now)
        for x in tensors_in(outcome.result):
            if x.grad_fn is not None:
                x.grad_fn.metadata[SCALED_BY] = name

    def _unscaled(self, scaler: GradScaler, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        if not scaler.is_enabled():
            return
        self.recorder.optimizers.add(optimizer)
        event = self.recorder.record(
            Unscale,
            scaler=self.recorder.name(scaler),
            optimizer=self.recorder.name(optimizer),
            within_step=bool(self.recorder.thread.scaler_steps),
            grad_dtypes=sorted({dtype_name(g.dtype) for g in gradients_of(optimizer)}),
        )
        outcome: Outcome = yield
        event.error = outcome.error_text

    def _stepped(
        self, scaler: GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any
    ) -> Iterator[None]:
        if not scaler.is_enabled():
            return
        self.recorder.optimizers.add(optimizer)
        event = self.recorder.record(
            ScalerStep,
            scaler=self.recorder.name(scaler),
            optimizer=self.recorder.name(optimizer),
            grads=len(gradients_of(optimizer)),
        )
        thread = self.recorder.thread
        thread.scaler_steps.append(event)
        outcome: Outcome = yield
        thread.scaler_steps.pop()
        event.error = outcome.error_text
        if not event.stepped:
            self.recorder.step += 1  # a skipped step counts
        self.end_of_step()

    def _updated(self, scaler: GradScaler, new_scale: Any = None) -> Iterator[None]:
        if not scaler.is_enabled() or scaler._scale is None:
            return
        thread = self.recorder.thread
        event = self.recorder.record(
            Update, scaler=self.recorder.name(scaler), given=new_scale is not None
        )
        self.recorder.later(event, "before", scaler._scale.detach().clone())
        thread.scaler_steps.append(None)  # what it calls is not the loop's doing
        outcome: Outcome = yield
        thread.scaler_steps.pop()
        event.error = outcome.error_text
        self.recorder.later(event, "after", scaler._scale.detach().clone())

    def _state_taken(self, scaler: GradScaler, *args: Any, **kwargs: Any) -> Iterator[None]:
        yield
        if scaler.is_enabled():
            self.recorder.record(StateTaken, scaler=self.recorder.name(scaler))

    def _state_loaded(self, scaler: GradScaler, *args: Any, **kwargs: Any) -> Iterator[None]:
        outcome: Outcome = yield
        if outcome.error is None and scaler.is_enabled():
            self.recorder.record(StateLoaded, what="scaler", name=self.recorder.name(scaler))

    def _autocast_made(
        self,
        region: autocast,
        device_type: str = "cuda",
        dtype: Any = None,
        enabled: bool = True,
        *args: Any,
        **kwargs: Any,
    ) -> Iterator[None]:
        outcome: Outcome = yield
        if outcome.error is None and enabled and not region._enabled:
            self.recorder.record(AutocastOff, device=device_type)

    def _autocast_entered(self, region: autocast) -> Iterator[None]:
        outcome: Outcome = yield
        if outcome.error is not None:
            return
        thread = self.recorder.thread
        if thread.autocast_depth == 0:
            thread.region += 1
        thread.autocast_depth += 1
        self.recorder.record(
            EnterAutocast,
            device=region.device,
            dtype=dtype_name(region.fast_dtype),
            enabled=bool(region._enabled),
            depth=thread.autocast_depth,
            region=thread.region,
        )

    def _autocast_left(self, region: autocast, *args: Any) -> Iterator[None]:
        thread = self.recorder.thread
        thread.autocast_depth = max(0, thread.autocast_depth - 1)
        yield


def family(cls: type) -> list[type]:
    """Return a class and all classes derived from it."""
    return [cls, *(kind for child in cls.__subclasses__() for kind in family(child))]
