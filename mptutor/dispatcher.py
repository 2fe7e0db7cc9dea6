"""Replace kernels of the installed torch for a while, and ask it which kernels it has.

Every torch call ends in the *dispatcher*, a table with a row per op (``aten::mm``) and a column
per dispatch key.  A call walks the keys that apply to it, highest first: ``AutocastCPU`` casts the
arguments, ``AutogradCPU`` records the backward pass, ``CPU`` computes.  Ops have kernels only where
something is to be done, so the column of a key is the list of ops it knows about:
`registered("AutocastCUDA")` is CUDA's autocast list, whether or not there is a GPU.

`Replacement` puts Python functions into one column of the table and takes them out again, after
which torch's own kernels are back.  The table belongs to the process: while a replacement is in
force, every thread sees it.  So entries are counted, and the last one to leave puts things back
(`ProcessWide`).

``torch.library`` is the public way to do this; a ``TorchDispatchMode``, the usual one, is entered
by every op of the thread, at some microseconds each, where a replaced kernel costs nothing to the
ops that are not replaced, and reaches backward passes in whatever thread they run.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping

import torch
from torch._ops import OpOverload

Kernel = Callable[..., object]


def registered(dispatch_key: str) -> list[str]:
    """Name the aten ops with a kernel of their own for a key, ``["mm", "sum.dim_IntList"]``."""
    return sorted(
        name.removeprefix("aten::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and has_kernel(name, dispatch_key)
    )


def has_kernel(name: str, dispatch_key: str) -> bool:
    """Tell whether an op, ``"mm.out"``, is there and registered for a key, not through an alias."""
    qualified = f"aten::{name.removeprefix('aten::')}"
    exists = torch._C._dispatch_has_kernel(qualified)
    return exists and torch._C._dispatch_has_kernel_for_dispatch_key(qualified, dispatch_key)


def find_op(name: str) -> OpOverload:
    """Look up the op called ``"mm"`` or, with an overload, ``"sum.dim_IntList"``."""
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


class ProcessWide:
    """A context that changes the whole process, entered any number of times, by any thread.

    The first entry installs the change, the last exit removes it, whatever the order in between.
    """

    def __init__(self) -> None:
        self._entries = 0
        self._lock = threading.RLock()

    def __enter__(self) -> ProcessWide:
        with self._lock:
            if self._entries == 0:
                self._install()
            self._entries += 1
        return self

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            if self._entries == 0:
                raise RuntimeError(f"{type(self).__name__}: it was not entered, nothing to leave")
            self._entries -= 1
            if self._entries == 0:
                self._remove()

    def _install(self) -> None:
        raise NotImplementedError

    def _remove(self) -> None:
        raise NotImplementedError


class Replacement(ProcessWide):
    """Kernels to put into one column of the dispatcher.

    Parameters
    ----------
    dispatch_key
        The column, for example ``"CPU"``.
    build
        Called at each first entry, it returns the kernels to put in.  They are called with the
        dispatch key set first, then the op's own arguments.  `torch.library.fallthrough_kernel`
        as a kernel makes the op skip this column.
    """

    def __init__(self, dispatch_key: str, build: Callable[[], Mapping[OpOverload, Kernel]]) -> None:
        super().__init__()
        self._dispatch_key = dispatch_key
        self._build = build
        self._library: torch.library.Library | None = None

    def _install(self) -> None:
        kernels = self._build()
        self._library = torch.library.Library("aten", "IMPL")
        try:
            with warnings.catch_warnings():
                # Torch warns that a kernel is overridden, which is the point.
                warnings.filterwarnings("ignore", message=".*[Oo]verrid")
                for op, kernel in kernels.items():
                    self._library.impl(op, kernel, self._dispatch_key, with_keyset=True)
        except BaseException:
            self._remove()
            raise

    def _remove(self) -> None:
        library, self._library = self._library, None
        library._destroy()
