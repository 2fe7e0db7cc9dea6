"""Watching every torch function that the Python code calls.

A `TorchFunctionMode` sees each call with its arguments as written, Python numbers included, before
autocast has cast anything: the only place where `x + 1e-8` still shows its 1e-8. It does not see
what C++ does (backward, the inside of `F.cross_entropy`), nor other threads.

It's the costliest tier and part of what compiled code is guarded by, so it looks at the first
steps only, again after trouble, and not at all once torch.compile is in use.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mptutor.audit.call_names import CASTS, FILLS, IGNORED, SYNCS, TAKES_CONSTANTS, VIEWS
from mptutor.audit.call_probes import Probes
from mptutor.audit.events_forward import Call, Sync, Values
from mptutor.audit.recorder import Recorder, described, parameters_of
from mptutor.audit.seams import Seams
from mptutor.audit.tensors import is_fake, readable, tensors_in
from mptutor.audit.watch_gradients import GradientWatch

#: So many records without a step: whatever runs is no training loop.
AT_MOST = 20_000


@dataclass
class _Before:
    """What was looked at before a call: an average about to be updated, inputs about to change."""

    update: tuple[Tensor, Tensor] | None = None
    inputs: list[Values] | None = None


#: `x.data = y`, the one attribute whose assignment changes values.
_SET_DATA = torch.Tensor.data.__set__


class CallWatch:
    """Puts the mode on the stack and takes it off again."""

    def __init__(self, recorder: Recorder, gradients: GradientWatch, as_accelerator: bool) -> None:
        self.recorder = recorder
        self.probes = Probes(recorder, gradients)
        self.as_accelerator = as_accelerator
        self._mode: _Mode | None = None
        self._budget_ends = AT_MOST
        self._weights_at: set[int] = set()
        self._weights_as_of = -1

    def install(self, seams: Seams) -> None:
        """Start to watch."""
        self._seams = seams
        seams.on_undo(self.stop)

    def look(self, wanted: bool) -> None:
        """Look at calls from now on, or no longer."""
        self._budget_ends = len(self.recorder.events) + AT_MOST
        wanted = wanted and not compiled_code_exists()
        if wanted and self._mode is None:
            self._mode = _Mode(self)
            self._mode.__enter__()
        elif not wanted and self._mode is not None and _top_mode() is self._mode:
            self._mode.__exit__(None, None, None)
            self._mode = None
        self.recorder.look_at_calls = wanted

    def stop(self) -> None:
        """Take the mode off the stack, from under any that the user has pushed since."""
        self.recorder.look_at_calls = False
        if self._mode is None:
            return
        above = []
        stack = torch.overrides._get_current_function_mode_stack()
        if self._mode in stack:
            while _top_mode() is not self._mode:
                above.append(torch.overrides._pop_mode())
            self._mode.__exit__(None, None, None)
            for mode in reversed(above):
                torch.overrides._push_mode(mode)
        self._mode = None

    @property
    def wanted(self) -> bool:
        """Whether a call made now is the loop's own, and is to be looked at."""
        thread = self.recorder.thread
        inside_torch = thread.scaler_steps or thread.silent_steps
        within_budget = len(self.recorder.events) < self._budget_ends
        return self.recorder.look_at_calls and within_budget and not inside_torch

    # -- one call --------------------------------------------------------------------------------

    def _before(self, name: str, args: tuple, kwargs: dict) -> _Before:
        in_place = (name.endswith("_") and not name.startswith("__")) or name.startswith("__i")
        inputs = self._inputs((args, kwargs)) if in_place or name == "__setitem__" else None
        return _Before(self.probes.before(name, args), inputs)

    def _failed(self, name: str, args: tuple, kwargs: dict, error: Exception) -> None:
        text = str(error).strip().split("\n")[0]
        inputs = self._inputs((args, kwargs))
        facts = self._facts(name, args, kwargs, inputs, None)
        self.recorder.record(Call, **facts, output=None, error=text)

    def _after(self, name: str, args: tuple, kwargs: dict, result: Any, before: _Before) -> None:
        first = args[0] if args else None
        if name in SYNCS:
            if isinstance(first, Tensor) and (self.as_accelerator or first.device.type != "cpu"):
                self.recorder.record(Sync, how=name)
            return
        outputs = [first] if name in ("__setitem__", "set_data") else list(tensors_in(result))[:8]
        if not outputs or torch._C._current_autograd_node() is not None:
            return
        output, *others = outputs
        for other in filter(readable, others):
            if name in VIEWS and isinstance(first, Tensor):
                self.recorder.same_values(other, first)
            else:
                self.recorder.values_of(other, name, made=True)
        if is_fake(output):
            self._record_fake(name, args, kwargs, output)
        elif readable(output):
            self._record(name, args, kwargs, output, before)

    def _record(
        self, name: str, args: tuple, kwargs: dict, output: Tensor, before: _Before
    ) -> None:
        first = args[0] if args else None
        if name in VIEWS or (name in CASTS and output is first):
            if isinstance(first, Tensor):
                self.recorder.same_values(output, first)
                self.probes.same(output, first)
            return
        inputs = before.inputs if before.inputs is not None else self._inputs((args, kwargs))
        event = self.recorder.record(
            Call, **self._facts(name, args, kwargs, inputs, output), output=None
        )
        event.output = self.recorder.values_of(output, name, made=True)
        self.probes.after(event, name, args, kwargs, output, before.update)

    def _record_fake(self, name: str, args: tuple, kwargs: dict, output: Tensor) -> None:
        if name not in VIEWS and output.is_floating_point():
            inputs = self._inputs((args, kwargs))
            facts = self._facts(name, args, kwargs, inputs, output)
            self.recorder.record(Call, **facts, output=described(output, name))

    def _inputs(self, arguments: Any) -> list[Values]:
        found = []
        for x in tensors_in(arguments):
            if readable(x):
                found.append(self.recorder.values_of(x, self._origin(x)))
            elif is_fake(x):
                found.append(described(x))
        return found

    def _origin(self, x: Tensor) -> str | None:
        """Say where a tensor comes from that no call was seen to make: None if from outside."""
        if isinstance(x, torch.nn.Parameter):
            return "parameter"
        if x.data_ptr() in self.probes.gradients.owner_of:
            return "gradient"
        if x.data_ptr() in self._addresses_of_weights():
            return "parameter"
        return "a call not seen" if x.requires_grad else None

    def _addresses_of_weights(self) -> set[int]:
        """Return where the weights lie, so that `w.data` is known for what it is."""
        if self._weights_as_of != self.recorder.step:
            self._weights_as_of = self.recorder.step
            weights = [p for o in list(self.recorder.optimizers) for p in parameters_of(o)]
            self._weights_at = {w.data_ptr() for w in weights if readable(w)}
        return self._weights_at

    def _facts(
        self, name: str, args: tuple, kwargs: dict, inputs: list[Values], output: Tensor | None
    ) -> dict[str, Any]:
        thread = self.recorder.thread
        device = output.device.type if output is not None else None
        device = device or (inputs[0].device if inputs else "cpu")
        floats = [v for v in (*args, *kwargs.values()) if type(v) is float]
        return {
            "name": name,
            "inputs": inputs,
            "device": device,
            "autocast": self.recorder.autocast_dtype(device),
            "depth": thread.autocast_depth,
            "region": thread.region,
            "constants": floats if name in TAKES_CONSTANTS else [],
            "fills": name in FILLS or any(math.isinf(v) for v in floats),
            "learns": output is not None and output.requires_grad,
            "module": self._module(),
            "in_backward": torch._C._current_autograd_node() is not None,
        }

    def _module(self) -> str | None:
        modules = self.recorder.thread.modules
        if not modules:
            return None
        name = self.recorder.module_names.get(modules[-1], "?")
        return f"{type(modules[-1]).__name__} '{name}'"


class _Mode(TorchFunctionMode):
    """Hands each call to the watch before and after it is made."""

    def __init__(self, watch: CallWatch) -> None:
        super().__init__()
        self._watch = watch
        quietly = watch._seams.quietly
        self._before = quietly(watch._before)
        self._after = quietly(watch._after)
        self._failed = quietly(watch._failed)

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = "set_data" if func == _SET_DATA else getattr(func, "__name__", "")
        if name in IGNORED or torch.compiler.is_compiling() or not self._watch.wanted:
            return func(*args, **kwargs)
        before = self._before(name, args, kwargs) or _Before()
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            self._failed(name, args, kwargs, error)
            raise
        self._after(name, args, kwargs, result, before)
        return result


def _top_mode() -> Any:
    return torch.overrides._get_current_function_mode()


def compiled_code_exists() -> bool:
    """Say whether torch.compile has been used in this process."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    backends = getattr(frames, "cached_backends", {})
    return any(backend is not None for backend in backends.values())
