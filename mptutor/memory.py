"""Measures the memory of a piece of training: its peak, and what it keeps for the backward pass.

On CUDA torch's allocator counts for us: the peak is `torch.cuda.max_memory_allocated`.

A CPU has no such counter, and the size of the process says nothing below some 200 MB, because the
operating system hands out and takes back memory in its own time.  So there every operation is
watched (a `TorchDispatchMode`): each storage, the block of memory that one or more tensors look
into, is counted once when it first appears and taken off when it dies, which a weak reference
tells.  The result is exact to the byte for what tensors hold; scratch space that a kernel allocates
and frees before it returns is not seen.

The second number, on every device, is what autograd saves for the backward pass: mostly
activations, which is the part of memory that mixed precision shrinks.  A hook on each saved tensor
counts the distinct storages; parameters and the like are left out, since they exist anyway.
16-bit copies of weights that autocast makes are not left out, and neither is the input.  Tensors
that activation checkpointing keeps for itself are not seen.

Watching costs some microseconds an operation, so don't time and measure memory in the same run.
The FP32 copies that `mptutor.simulate_amp` makes are inside its kernels, and so not counted: the
reading is that of the training it simulates.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mptutor.devices import pick_device


@dataclass(frozen=True)
class MemoryReading:
    """What a `MemoryMeter` saw.

    Attributes
    ----------
    device
        Where.
    start_bytes
        Held on entry.  On CUDA: all that is allocated on the device.  Elsewhere: the owners given
        to the meter, and every older tensor that the code inside then used.
    peak_bytes
        The most that was held at one time, `start_bytes` included.
    end_bytes
        Held on leaving.
    saved_bytes
        The most that autograd held at one time for a backward pass still to come.
    saved_bytes_by_dtype
        The parts of `saved_bytes`, the largest first: ``{"float32": ..., "int64": ...}``.
    """

    device: str
    start_bytes: int
    peak_bytes: int
    end_bytes: int
    saved_bytes: int
    saved_bytes_by_dtype: dict[str, int]

    def __str__(self) -> str:
        mb = 1e-6
        parts = ", ".join(f"{n * mb:.2f} {dtype}" for dtype, n in self.saved_bytes_by_dtype.items())
        return (
            f"peak {self.peak_bytes * mb:.2f} MB (from {self.start_bytes * mb:.2f}), "
            f"saved for backward {self.saved_bytes * mb:.2f} MB"
            f"{f' ({parts})' if parts else ''}, {self.device}"
        )


class MemoryMeter:
    """Measures the memory of the code in its ``with`` block.

    Parameters
    ----------
    *owners
        Modules, optimizers and tensors that live already.  Their memory counts as held at the
        start, and what they own is not counted as saved for the backward pass.
    device
        Where to measure; the default is that of the first tensor the owners have, else
        `pick_device()`.

    Examples
    --------
    >>> model = nn.Linear(100, 10)
    >>> with MemoryMeter(model) as meter:
    ...     loss = model(torch.ones(8, 100)).sum()
    >>> meter.saved_bytes == 8 * 100 * 4  # the input, which the weight's gradient needs
    True
    """

    def __init__(
        self,
        *owners: nn.Module | torch.optim.Optimizer | Tensor,
        device: torch.device | str | None = None,
    ) -> None:
        self._owners = owners
        owned = list(_tensors_of(owners))
        if device is None:
            device = owned[0].device if owned else pick_device()
        self.device = torch.device(device)

    def __enter__(self) -> MemoryMeter:
        owned = list(_tensors_of(self._owners))  # again: gradients and states come and go
        on_cuda = self.device.type == "cuda"
        self._live = _CudaAllocator(self.device) if on_cuda else _LiveStorages(owned, self.device)
        self._saved = _SavedTensors(owned, self.device)
        with ExitStack() as stack:
            stack.enter_context(self._live)
            stack.enter_context(
                torch.autograd.graph.saved_tensors_hooks(self._saved.pack, self._saved.unpack)
            )
            self._contexts = stack.pop_all()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._contexts.__exit__(*exception)

    @property
    def reading(self) -> MemoryReading:
        """What has been seen so far."""
        by_dtype = sorted(self._saved.peak_by_dtype.items(), key=lambda item: -item[1])
        return MemoryReading(
            device=str(self.device),
            start_bytes=self._live.start_bytes,
            peak_bytes=self._live.peak_bytes,
            end_bytes=self._live.present_bytes,
            saved_bytes=self._saved.peak_bytes,
            saved_bytes_by_dtype={dtype: nbytes for dtype, nbytes in by_dtype if nbytes},
        )

    @property
    def peak_bytes(self) -> int:
        """`MemoryReading.peak_bytes`."""
        return self.reading.peak_bytes

    @property
    def saved_bytes(self) -> int:
        """`MemoryReading.saved_bytes`."""
        return self.reading.saved_bytes


class _CudaAllocator:
    """The counters of torch's CUDA allocator, which hands out multiples of 512 bytes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __enter__(self) -> None:
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        self.start_bytes = torch.cuda.memory_allocated(self._device)

    def __exit__(self, *_: object) -> None:
        self.peak_bytes = torch.cuda.max_memory_allocated(self._device)
        self.present_bytes = torch.cuda.memory_allocated(self._device)


class _LiveStorages(TorchDispatchMode):
    """Counts the bytes of all storages that are alive, from the operations that make them."""

    def __init__(self, owned: Iterable[Tensor], device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._alive: dict[int, tuple[weakref.ref, int]] = {}
        self.start_bytes = self.peak_bytes = self.present_bytes = 0
        for tensor in owned:
            self._notice_older(tensor)

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._alive.clear()  # drops the weak references, so nothing is counted from here on

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        # torch.tensor(...) makes its tensor unseen and then passes it through lift_fresh.
        notice_operand = (
            self._notice_new if func is torch.ops.aten.lift_fresh.default else self._notice_older
        )
        for operand in tree_leaves((args, kwargs)):
            notice_operand(operand)
        result = func(*args, **kwargs)
        for output in tree_leaves(result):
            self._notice_new(output)
        return result

    def _notice_new(self, value: Any) -> None:
        self.present_bytes += self._count(value)
        self.peak_bytes = max(self.peak_bytes, self.present_bytes)

    def _notice_older(self, value: Any) -> None:
        """Count a tensor that was there before us: at the start, at the peak and now."""
        grown_bytes = self._count(value)
        self.start_bytes += grown_bytes
        self.peak_bytes += grown_bytes
        self.present_bytes += grown_bytes

    def _count(self, value: Any) -> int:
        """Return the bytes by which this tensor's storage is new or has grown."""
        if not _is_countable(value, self._device):
            return 0
        storage = value.untyped_storage()
        key, nbytes = storage._cdata, storage.nbytes()
        known = self._alive.get(key)
        if known is None:
            self._alive[key] = weakref.ref(storage, partial(self._forget, key)), nbytes
            return nbytes
        self._alive[key] = known[0], nbytes
        return nbytes - known[1]

    def _forget(self, key: int, _: weakref.ref) -> None:
        _, nbytes = self._alive.pop(key)
        self.present_bytes -= nbytes


class _SavedTensors:
    """Counts the bytes of the storages that autograd has saved and not yet released."""

    def __init__(self, owned: Iterable[Tensor], device: torch.device) -> None:
        self._device = device
        self._excluded = weakref.WeakSet(tensor.untyped_storage() for tensor in owned)
        self._held: dict[int, _Held] = {}
        self._by_dtype: dict[str, int] = {}
        self._bytes = self.peak_bytes = 0
        self.peak_by_dtype: dict[str, int] = {}

    def pack(self, tensor: Tensor) -> _Saved:
        # Detached, as keeping a node's own output would make it keep itself alive.
        saved = _Saved(tensor.detach())
        if _is_countable(tensor, self._device):
            self._hold(saved)
        return saved

    def unpack(self, saved: _Saved) -> Tensor:
        return saved.tensor

    def _hold(self, saved: _Saved) -> None:
        storage = saved.tensor.untyped_storage()
        if storage in self._excluded:
            return
        key, nbytes = storage._cdata, storage.nbytes()
        weakref.finalize(saved, self._release, key).atexit = False
        if key not in self._held:
            self._held[key] = _Held(nbytes, str(saved.tensor.dtype).removeprefix("torch."))
            self._add(self._held[key].dtype, nbytes)
        self._held[key].times += 1

    def _release(self, key: int) -> None:
        held = self._held[key]
        held.times -= 1
        if not held.times:
            del self._held[key]
            self._add(held.dtype, -held.nbytes)

    def _add(self, dtype: str, nbytes: int) -> None:
        self._bytes += nbytes
        self._by_dtype[dtype] = self._by_dtype.get(dtype, 0) + nbytes
        if self._bytes > self.peak_bytes:
            self.peak_bytes, self.peak_by_dtype = self._bytes, dict(self._by_dtype)


@dataclass(frozen=True, eq=False)
class _Saved:
    """A saved tensor: autograd drops this object when it no longer needs the tensor."""

    tensor: Tensor


@dataclass
class _Held:
    """A storage that saved tensors look into, and how many of them there are."""

    nbytes: int
    dtype: str
    times: int = 0


def _tensors_of(owners: Iterable[nn.Module | torch.optim.Optimizer | Tensor]) -> Iterator[Tensor]:
    for owner in owners:
        if isinstance(owner, Tensor):
            yield owner
        elif isinstance(owner, nn.Module):
            yield from owner.parameters()
            yield from owner.buffers()
            yield from (p.grad for p in owner.parameters() if p.grad is not None)
        elif isinstance(owner, torch.optim.Optimizer):
            state = tree_leaves(list(owner.state.values()))
            yield from (leaf for leaf in state if isinstance(leaf, Tensor))
        else:
            raise TypeError(
                f"owners: got a {type(owner).__name__}, allowed are modules, optimizers and tensors"
            )


def _is_countable(value: Any, device: torch.device) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and value.device.type == device.type
    )
