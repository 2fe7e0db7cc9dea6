"""Loss scaling, written out to be read.

FP16 takes every number at or below 2^-25 to zero, and many gradients are smaller. Multiply the loss
by a *scale* S, and by the chain rule every gradient comes out S times as large: large enough to
survive. Divide by S before the optimizer looks, and the update is the one intended. With a power of
two nothing else changes, since only exponents move.

If S is too large, some gradient overflows to infinity. So a training step has four parts:

    scaler.scale(loss).backward()    backward through S × loss: gradients come out as S × grad
    scaler.unscale_(optimizer)       look for inf and NaN, divide by S; optional, step() sees to it
    scaler.step(optimizer)           run optimizer.step(), or skip it if anything was inf or NaN
    scaler.update()                  choose the scale of the next step

`StaticLossScaler` does this with one scale for ever. `DynamicLossScaler` moves the scale by the
rule in `mptutor.scaler_state`: halve it after a skip, double it after 2000 steps without one.

Everything follows `torch.amp.GradScaler` step for step: the same scale, the same steps skipped, the
same parameters to the last bit, errors of the same type. It has a weakness that is followed, too. A
NaN that no scale can cure is treated like an overflow, so the scale halves at every step, and after
166 skips in a row from 65536 it is exactly zero in FP32. The next healthy step then divides 0 by 0
and writes NaN into the parameters. Two options guard against it, both off unless asked for:
``min_scale`` is a floor under the scale, and ``warn_after_skips`` speaks up in time.

Where the real one differs:

* It keeps scale and counter in tensors on the device and updates them there, so the CPU need not
  wait for the GPU to learn the scale. Here they are Python numbers in a `ScalerState`, and every
  `unscale_` waits once to learn whether it found an infinity.
* It unscales all gradients of one device and dtype in one fused kernel; here it is a loop.
* It hands the scale to optimizers that can unscale by themselves (``fused=True``) instead of
  unscaling first. The update is the same for a scale that is a power of two.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch

from mptutor.scaler_state import ScalerState, next_state, to_fp32

# Re-exported: whoever looks for the state machine looks here first.
__all__ = ["DynamicLossScaler", "ScalerState", "StaticLossScaler", "next_state"]

# -- what is remembered of an optimizer between two updates --------------------------------------


class _Stage(Enum):
    """How far a step has come for one optimizer."""

    READY = "its gradients are still scaled"
    UNSCALED = "unscale_ has run"
    STEPPED = "step has run"


@dataclass
class _Progress:
    stage: _Stage = _Stage.READY
    found_inf: bool | None = None  # None: there was no gradient to look at


# -- the scalers ---------------------------------------------------------------------------------


class StaticLossScaler:
    """Loss scaling with a scale that stays; steps with inf or NaN gradients are skipped.

    Parameters
    ----------
    scale : float
        What the loss is multiplied by.
    enabled : bool
        If False, `scale` returns what it is given, `step` runs the optimizer, and everything else
        does nothing. So one training loop serves FP16, BF16 and FP32.
    warn_after_skips : int, optional
        Warn when this many steps in a row have been skipped, 1 or more. Unless given, never.

    Raises
    ------
    ValueError
        If ``warn_after_skips`` is not a whole number from 1 on.

    Attributes
    ----------
    stepped : bool or None
        Whether the last `step` ran the optimizer; None before the first. GradScaler does not tell,
        and a learning rate scheduler wants to know.
    """

    def __init__(
        self,
        scale: float = 2.0**16,
        enabled: bool = True,
        *,
        warn_after_skips: int | None = None,
    ) -> None:
        if warn_after_skips is not None and not _counts(warn_after_skips):
            raise ValueError(
                f"warn_after_skips is {warn_after_skips!r}; allowed are whole numbers from 1 on, "
                "and None"
            )
        self._state = ScalerState(scale=to_fp32(scale))
        self._enabled = enabled
        self._warn_after_skips = warn_after_skips
        self._scale_used = False
        self._progress: dict[int, _Progress] = {}  # by id(optimizer), since the last update
        self.stepped: bool | None = None

    # -- the four parts of a training step -------------------------------------------------------

    def scale(self, outputs: Any) -> Any:
        """Multiply a loss, or every tensor in nested iterables of losses, by the scale.

        Returns a tensor for a tensor, a list or tuple for a list or tuple, and for any other
        iterable one that is computed as it is read.

        Raises
        ------
        ValueError
            If ``outputs`` is neither a tensor nor iterable.
        """
        if not self._enabled:
            return outputs
        if isinstance(outputs, torch.Tensor):
            self._scale_used = True
            # An FP32 tensor and not a Python number: times an FP16 loss it gives FP32.
            return outputs * torch.tensor(
                self._state.scale, dtype=torch.float32, device=outputs.device
            )
        if isinstance(outputs, (list, tuple)):
            return type(outputs)(self.scale(output) for output in outputs)
        if isinstance(outputs, Iterable):
            return map(self.scale, outputs)
        got = type(outputs).__name__
        raise ValueError(f"outputs is a {got}; allowed are a tensor and iterables of tensors")

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients of ``optimizer`` by the scale, in place, and look for inf and NaN.

        `step` does it by itself. Call it only to look at gradients or to clip them, once for each
        optimizer and update, after the last backward of the step.

        Raises
        ------
        RuntimeError
            If it has been called for this optimizer since the last update, or `step` has.
        ValueError
            If a gradient is FP16: its overflow happened long ago, and dividing it would flush to
            zero what scaling had saved. Parameters stay FP32; autocast makes the FP16 copies.
        AssertionError
            If nothing has been scaled yet.
        """
        if not self._enabled:
            return
        self._require_scale_used("unscale_")
        progress = self._progress_of(optimizer)
        if progress.stage is _Stage.UNSCALED:
            raise RuntimeError(
                "unscale_() has already been called on this optimizer since the last update()"
            )
        if progress.stage is _Stage.STEPPED:
            raise RuntimeError("unscale_() is being called after step()")
        progress.found_inf = _unscale_gradients(optimizer, self._state.scale)
        progress.stage = _Stage.UNSCALED

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Run ``optimizer.step(*args, **kwargs)`` unless its gradients hold an inf or NaN.

        Returns what ``optimizer.step`` returns, and None if it was skipped.

        Raises
        ------
        RuntimeError
            If it has been called for this optimizer since the last update, or with a ``closure``,
            which would compute new gradients that nobody unscales.
        AssertionError
            If nothing has been scaled yet, or the optimizer has no gradients at all.
        """
        if not self._enabled:
            self.stepped = True
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise RuntimeError("closure: an enabled scaler does not support closures")
        self._require_scale_used("step")
        progress = self._progress_of(optimizer)
        if progress.stage is _Stage.STEPPED:
            raise RuntimeError("step() has already been called since the last update()")
        if progress.stage is _Stage.READY:
            self.unscale_(optimizer)
        if progress.found_inf is None:
            raise AssertionError(
                "No inf checks were recorded for this optimizer: none of its parameters has a "
                "gradient. Did backward() run, and reach these parameters?"
            )
        self.stepped = not progress.found_inf
        result = optimizer.step(*args, **kwargs) if self.stepped else None
        progress.stage = _Stage.STEPPED
        return result

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """End the training step: choose the next scale, and forget which optimizers have run.

        Call it once, after `step` of every optimizer. If several were used, one with an inf or NaN
        is enough to count as overflow.

        Parameters
        ----------
        new_scale : float or one-element tensor, optional
            The scale to use from now on, whatever was found.

        Raises
        ------
        AssertionError
            If nothing has been scaled yet, no gradients have been looked at since the last update,
            or ``new_scale`` has several elements or requires a gradient.
        """
        if not self._enabled:
            return
        self._require_scale_used("update")
        if new_scale is not None:
            self._state = replace(self._state, scale=to_fp32(_as_number(new_scale)))
        else:
            found = [p.found_inf for p in self._progress.values() if p.found_inf is not None]
            if not found:
                raise AssertionError(
                    "No inf checks were recorded prior to update: call step() or unscale_() first"
                )
            self._state = self._after(any(found))
            self._warn_of_skips()
        self._progress = {}

    def _after(self, found_inf: bool) -> ScalerState:
        """Return the next state. The scale stays here; only the skips are counted."""
        return replace(next_state(self._state, found_inf), scale=self._state.scale)

    # -- what GradScaler offers besides ----------------------------------------------------------

    def get_scale(self) -> float:
        """Return the scale, 1 if disabled."""
        return self._state.scale if self._enabled else 1.0

    def is_enabled(self) -> bool:
        """Return whether the scaler does anything."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold, ``{}`` if disabled. Call it after `update`."""
        return {"scale": self._state.scale} if self._enabled else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up where `state_dict` was called, be it ours or GradScaler's.

        Raises
        ------
        RuntimeError
            If ``state_dict`` is empty: it comes from a disabled scaler.
        """
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError("state_dict is empty; was it saved from a disabled scaler?")
        self._state = self._loaded(state_dict)

    def _loaded(self, state_dict: dict[str, Any]) -> ScalerState:
        return replace(self._state, scale=to_fp32(state_dict["scale"]), skips_in_a_row=0)

    # -- helpers ---------------------------------------------------------------------------------

    def _progress_of(self, optimizer: torch.optim.Optimizer) -> _Progress:
        return self._progress.setdefault(id(optimizer), _Progress())

    def _require_scale_used(self, method: str) -> None:
        if not self._scale_used:
            raise AssertionError(
                f"{method}() was called before scale(): was the loss scaled before backward()?"
            )

    def _warn_of_skips(self) -> None:
        if self._state.skips_in_a_row == self._warn_after_skips:
            warnings.warn(
                f"{self._warn_after_skips} steps in a row were skipped, and the scale is now "
                f"{self._state.scale:g}. If the loss itself is inf or NaN, no scale will cure it.",
                stacklevel=3,
            )


class DynamicLossScaler(StaticLossScaler):
    """Loss scaling with a scale that `next_state` moves: a `torch.amp.GradScaler` to be read.

    Parameters
    ----------
    init_scale : float
        The scale of the first step.
    growth_factor, backoff_factor, growth_interval
        The rule; see `ScalerState`. The defaults are GradScaler's.
    enabled, warn_after_skips
        See `StaticLossScaler`.
    min_scale : float
        A floor under the scale. GradScaler has none.

    Raises
    ------
    AssertionError
        If the growth factor is not above 1, or the backoff factor not below.
    ValueError
        If ``min_scale`` is negative or above ``init_scale``, or ``warn_after_skips`` is not a whole
        number from 1 on.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        *,
        min_scale: float = 0.0,
        warn_after_skips: int | None = None,
    ) -> None:
        super().__init__(init_scale, enabled, warn_after_skips=warn_after_skips)
        if enabled and not growth_factor > 1:
            raise AssertionError(f"growth_factor is {growth_factor}; it must be above 1")
        if enabled and not backoff_factor < 1:
            raise AssertionError(f"backoff_factor is {backoff_factor}; it must be below 1")
        if enabled and min_scale and not 0 <= min_scale <= init_scale:
            raise ValueError(f"min_scale is {min_scale}; it must lie from 0 to {init_scale}")
        self._state = replace(
            self._state,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
            min_scale=min_scale,
        )

    @property
    def state(self) -> ScalerState:
        """The state that `next_state` will move."""
        return self._state

    def _after(self, found_inf: bool) -> ScalerState:
        return next_state(self._state, found_inf)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold: the five entries of GradScaler, ``{}`` if disabled.

        Either loads what the other saved.
        """
        if not self._enabled:
            return {}
        return {
            "scale": self._state.scale,
            "growth_factor": self._state.growth_factor,
            "backoff_factor": self._state.backoff_factor,
            "growth_interval": self._state.growth_interval,
            "_growth_tracker": self._state.growth_tracker,
        }

    def _loaded(self, state_dict: dict[str, Any]) -> ScalerState:
        return replace(
            super()._loaded(state_dict),
            growth_factor=state_dict["growth_factor"],
            backoff_factor=state_dict["backoff_factor"],
            growth_interval=state_dict["growth_interval"],
            growth_tracker=state_dict["_growth_tracker"],
        )

    def get_growth_factor(self) -> float:
        """Return what the scale is multiplied by when it grows."""
        return self._state.growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Set what the scale is multiplied by when it grows."""
        self._state = replace(self._state, growth_factor=new_factor)

    def get_backoff_factor(self) -> float:
        """Return what the scale is multiplied by after a skip."""
        return self._state.backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set what the scale is multiplied by after a skip."""
        self._state = replace(self._state, backoff_factor=new_factor)

    def get_growth_interval(self) -> int:
        """Return how many steps without inf or NaN make the scale grow."""
        return self._state.growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Set how many steps without inf or NaN make the scale grow."""
        self._state = replace(self._state, growth_interval=new_interval)


# -- numbers and gradients -------------------------------------------------------------------------


def _as_number(new_scale: float | torch.Tensor) -> float:
    if isinstance(new_scale, torch.Tensor):
        if new_scale.numel() != 1 or new_scale.requires_grad:
            raise AssertionError(
                f"new_scale has {new_scale.numel()} elements and requires_grad="
                f"{new_scale.requires_grad}; allowed are a number and one element without grad"
            )
        return new_scale.item()
    return float(new_scale)


@torch.no_grad()
def _unscale_gradients(optimizer: torch.optim.Optimizer, scale: float) -> bool | None:
    """Divide every gradient by ``scale``; tell if one was inf or NaN, or None if there is none."""
    # The reciprocal is rounded once, to FP32, as in GradScaler; 1/0 is infinity there.
    inverse = to_fp32(1 / scale) if scale != 0 else math.inf
    found_inf = None
    for grad in _gradients(optimizer):
        found_inf = bool(found_inf) or not torch.isfinite(grad).all().item()
        grad.mul_(inverse)
    return found_inf


def _gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the gradients there are; of a sparse one the values that are stored."""
    grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
    grads = [grad for grad in grads if grad is not None]
    if any(grad.dtype is torch.float16 for grad in grads):
        raise ValueError("Attempting to unscale FP16 gradients: keep the parameters in FP32")
    return [grad._values() if grad.is_sparse else grad for grad in grads]


def _counts(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 1
