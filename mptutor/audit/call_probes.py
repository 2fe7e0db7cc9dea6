"""What single calls give away: stuck averages, rounded positions, scaled penalties, hand edits.

Each probe watches for one pattern among the torch functions called, and writes what it finds into
the `Call` event, or records an event of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from mptutor.audit.call_names import (
    ADDED_IN_PLACE,
    ADDITIONS,
    CHANGE_SCALE,
    CLAMPS,
    IN_PLACE_UPDATES,
    KEEP_SCALE,
    LINEAR_EDITS,
    PRODUCTS,
    REPLACEMENTS,
    TO_FP32,
    TO_HALF,
)
from mptutor.audit.events import Clip, GradientEdit, GradOf, ZeroGrad
from mptutor.audit.events_forward import Call
from mptutor.audit.recorder import Recorder
from mptutor.audit.site import Site, called_by_torch, here
from mptutor.audit.tensors import HALF, readable, sample
from mptutor.audit.watch_gradients import GradientWatch

#: Larger tensors are not searched for whole numbers: positions are few.
POSITIONS_AT_MOST = 1 << 20


class Probes:
    """The patterns looked for in calls."""

    def __init__(self, recorder: Recorder, gradients: GradientWatch) -> None:
        self.recorder = recorder
        self.gradients = gradients
        #: FP32 tensor -> (sample of the 16-bit tensor it was made from, line that had made that)
        self._raised = WeakIdKeyDictionary()
        self._lowered_at = WeakIdKeyDictionary()

    def before(self, name: str, args: tuple) -> tuple[Tensor, Tensor] | None:
        """Look at a call about to be made; returns the old values of an average, with a mask."""
        first = args[0] if args else None
        self._hand_edit(name, first, args)
        updates = name in IN_PLACE_UPDATES and readable(first) and first.dtype in HALF
        trained = updates and first.requires_grad and name != "set_data"
        if updates and first.numel() > 1 and not trained:
            return _asked_for(name, first, args)
        return None

    def after(
        self, event: Call, name: str, args: tuple, kwargs: dict, output: Tensor, update: Any
    ) -> None:
        """Look at a call that was made."""
        if update is not None:
            old, wanted = update
            self._compare(event, wanted, sample(args[0]) == old)
        self._carried_average(event, name, args, output)
        self._positions(event, name, args, kwargs, output)
        self._penalty(event, name, args, kwargs, output)

    def same(self, view: Tensor, x: Tensor) -> None:
        """Note that `view` shows the values of `x`."""
        if x in self.gradients.scaled_grads:
            self.gradients.scaled_grads[view] = self.gradients.scaled_grads[x]

    def _compare(self, event: Call, wanted: Tensor, kept: Tensor) -> None:
        self.recorder.later(event, "asked", wanted.sum())
        self.recorder.later(event, "still", (wanted & kept).sum())

    # -- gradients edited by hand ----------------------------------------------------------------

    def _hand_edit(self, name: str, first: Any, args: tuple) -> None:
        if name not in CLAMPS | LINEAR_EDITS | ADDED_IN_PLACE | {"zero_", "fill_"}:
            return
        if isinstance(first, (list, tuple)) and first:
            first = first[0]
        if not readable(first) or called_by_torch():
            return
        owner = self.gradients.owner_of.get(first.data_ptr())
        if owner is None:
            return
        factor = args[1] if len(args) > 1 else None
        if name == "zero_" or (name == "fill_" and factor == 0):
            self.recorder.record(ZeroGrad, optimizers=[owner])
        elif name in ADDED_IN_PLACE:
            if not self._carries_scale(factor):
                self.recorder.record(GradientEdit, how=name, optimizers=[owner], adds=True)
        elif name in CLAMPS or not _is_plain_number(factor):
            self.recorder.record(Clip, how=f"{name} by hand", optimizers=[owner])
        else:
            self.recorder.record(GradientEdit, how=name, optimizers=[owner])

    def _carries_scale(self, term: Any) -> bool:
        """Say whether a term added to gradients is a gradient itself."""
        if not isinstance(term, Tensor):
            return False
        return term in self.gradients.scaled_grads or term.data_ptr() in self.gradients.owner_of

    # -- averages --------------------------------------------------------------------------------

    def _carried_average(self, event: Call, name: str, args: tuple, output: Tensor) -> None:
        """Find an average raised to FP32, added to, and cast back to 16 bits at the same line."""
        first = args[0] if args else None
        if not isinstance(first, Tensor):
            return
        if output.dtype is torch.float32:
            if name in TO_FP32 and first.dtype in HALF and first.numel() > 1:
                self._raised[output] = sample(first).clone(), self._lowered_at.get(first)
            elif name in ADDITIONS:
                for x in args[:2]:
                    if isinstance(x, Tensor) and x in self._raised and x.shape == output.shape:
                        self._raised[output] = self._raised[x]
        elif name in TO_HALF and output.dtype in HALF and first in self._raised:
            old, made_at = self._raised[first]
            if made_at == here() and not output.requires_grad:
                self._compare(event, sample(first) != old.float(), sample(output) == old)
            self._lowered_at[output] = here()

    # -- positions -------------------------------------------------------------------------------

    def _positions(self, event: Call, name: str, args: tuple, kwargs: dict, output: Tensor) -> None:
        first = args[0] if args else None
        if output.dtype in HALF and name == "arange":
            self._whole_numbers(event, output)
        elif output.dtype in HALF and name == "cumsum" and readable(first):
            dim = args[1] if len(args) > 1 else kwargs["dim"]
            self._whole_numbers(event, first.detach().float().cumsum(dim))
        elif name in TO_HALF and output.dtype in HALF and isinstance(first, Tensor):
            if first.dtype in (torch.float32, torch.int64) and first.numel() >= 8:
                self._whole_numbers(event, first)
        elif name in PRODUCTS and event.autocast and output.dtype in HALF:
            for x in args[:3]:
                fp32 = readable(x) and x.dtype is torch.float32
                if fp32 and not isinstance(x, torch.nn.Parameter) and x.numel() > 1:
                    self._whole_numbers(event, x)
                    return

    def _whole_numbers(self, event: Call, x: Tensor) -> None:
        if x.numel() <= POSITIONS_AT_MOST and x.layout is torch.strided:
            x = x.detach()
            whole = (x == x.round()).all() if x.is_floating_point() else torch.ones((), dtype=bool)
            self.recorder.later(event, "whole", whole)
            self.recorder.later(event, "largest_cast", x.abs().amax().float())

    # -- penalties -------------------------------------------------------------------------------

    def _penalty(self, event: Call, name: str, args: tuple, kwargs: dict, output: Tensor) -> None:
        """Follow the result of autograd.grad on a scaled loss until something divides it."""
        scaled = self.gradients.scaled_grads
        for x in _flat((args, tuple(kwargs.values()))):
            source: GradOf | None = scaled.get(x)
            if source is None or name in CHANGE_SCALE:
                continue
            if name in KEEP_SCALE:
                scaled[output] = source
            elif source.create_graph:
                event.scaled_grad_site = Site(source.site.file, source.site.line)


def _asked_for(name: str, x: Tensor, args: tuple) -> tuple[Tensor, Tensor] | None:
    """Return a sample of `x` before an in-place update, and which of it the update should move."""
    old = sample(x).clone()
    other = args[1] if len(args) > 1 else None
    if name == "lerp_" and isinstance(other, Tensor) and other.shape == x.shape:
        return old, sample(other) != old
    if name in ("mul_", "__imul__"):
        return (old, old != 0) if isinstance(other, float) and other != 1.0 else None
    if isinstance(other, Tensor) and other.shape == x.shape:
        everything = torch.ones_like(old, dtype=torch.bool)
        return old, everything if name in REPLACEMENTS else sample(other) != 0
    return None


def _is_plain_number(factor: Any) -> bool:
    """Say whether a factor only averages: a whole number, one over one, or a power of two."""
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or factor == 0:
        return False
    ratios = abs(float(factor)), 1 / abs(float(factor))
    return any(abs(r - round(r)) < 1e-9 * r and r >= 1 for r in ratios)


def _flat(value: Any) -> list[Tensor]:
    found = []
    for item in value:
        if isinstance(item, Tensor):
            found.append(item)
        elif isinstance(item, (list, tuple)):
            found += _flat(item)
    return found
