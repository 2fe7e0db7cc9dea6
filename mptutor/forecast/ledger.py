"""Keeps account of memory through a step, and says at its peak what it was for.

Every storage is entered when it first appears and struck off when it dies, which gives the peak
exactly, as `mptutor.memory.MemoryMeter` does.  The account can also say *whose* each byte is, but
mostly not at once: that a buffer is a gradient shows when it turns up as some parameter's ``.grad``
at the end of backward.  So entries are labelled when it is known, and added up by label afterwards,
as of the moment of the peak.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

#: What memory is for.  A storage that gets several labels keeps the first of these.
PARTS = ("parameters", "optimizer", "gradients", "casts", "activations", "temporary")


@dataclass
class _Entry:
    nbytes: int
    born: int
    part: str = "temporary"
    died: int | None = None


class MemoryLedger(TorchDispatchMode):
    """Accounts for all storages that the code in its ``with`` block makes or uses.

    `label` says what tensors are for, during the block or after it.  Tensors saved for the backward
    pass are activations, unless they get another label, and 16-bit copies of parameters are casts.
    """

    def __init__(self) -> None:
        super().__init__()
        self._entries: list[_Entry] = []
        self._current: dict[int, _Entry] = {}
        self._refs: dict[int, weakref.ref] = {}
        self._parameters: weakref.WeakSet = weakref.WeakSet()
        self._clock = 0
        self._saving = torch.autograd.graph.saved_tensors_hooks(self._note_saved, lambda x: x)

    def __enter__(self) -> MemoryLedger:
        self._saving.__enter__()
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._saving.__exit__(*exception)

    def close(self) -> None:
        """Stop following storages; what is alive now counts as alive to the end."""
        self._refs.clear()

    def label(self, part: str, tensors: Iterable[Tensor]) -> None:
        """Say what tensors are for: one of `PARTS`."""
        for tensor in tensors:
            entry = self._enter_storage(tensor.untyped_storage())
            if PARTS.index(part) < PARTS.index(entry.part):
                entry.part = part
            if part == "parameters":
                self._parameters.add(tensor.untyped_storage())

    def at_peak(self) -> dict[str, int]:
        """Return the bytes of each part when their sum was greatest."""
        changes = [(entry.born, entry.nbytes) for entry in self._entries]
        changes += [(e.died, -e.nbytes) for e in self._entries if e.died is not None]
        held = peak = peak_at = 0
        for moment, change in sorted(changes):
            held += change
            if held > peak:
                peak, peak_at = held, moment
        by_part = dict.fromkeys(PARTS, 0)
        for entry in self._entries:
            if entry.born <= peak_at and (entry.died is None or entry.died > peak_at):
                by_part[entry.part] += entry.nbytes
        return by_part

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        is_cast = func is torch.ops.aten._to_copy.default and self._is_parameter(args[0])
        for output in tree_leaves(result):
            if isinstance(output, Tensor):
                entry = self._enter_storage(output.untyped_storage())
                if is_cast and entry.part in ("temporary", "activations"):
                    entry.part = "casts"
        return result

    def _is_parameter(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage() in self._parameters

    def _note_saved(self, tensor: Tensor) -> Tensor:
        self.label("activations", [tensor])
        # Detached, as keeping a node's own output would make it keep itself alive.
        return tensor.detach()

    def _enter_storage(self, storage: Any) -> _Entry:
        key = storage._cdata
        if key not in self._current:
            entry = _Entry(storage.nbytes(), born=self._tick())
            self._current[key] = entry
            self._entries.append(entry)
            self._refs[key] = weakref.ref(storage, lambda _: self._strike(key))
        return self._current[key]

    def _strike(self, key: int) -> None:
        self._current.pop(key).died = self._tick()
        self._refs.pop(key, None)

    def _tick(self) -> int:
        self._clock += 1
        return self._clock
