"""Make autocast on the CPU follow CUDA's policy.

Autocast's lists differ from device to device: under ``torch.autocast("cpu")`` softmax, layer norm,
exp and sum stay in 16 bits, under ``torch.autocast("cuda")`` they run in FP32.  What a learner
sees on a laptop is therefore not what a GPU will do.  Inside `cuda_policy()` it is: every op gets
the rule that the installed torch has for CUDA (`cast_classes` asks for it), in a kernel written
here for the ``AutocastCPU`` column of the dispatcher, and ops that only the CPU lists lose theirs.

Such a kernel sits above autograd, as torch's own do, so its casts are part of the graph and
backward works; ``enabled=False`` regions, ``custom_fwd`` and ``custom_bwd`` behave as usual.
FP32 parameters are cast once in a region and the cast is kept, see `mptutor.policy.casting`.

Scope: the process.  Autocast itself stays thread-local, but in every thread that is in an autocast
region of the CPU the policy is CUDA's until the last `cuda_policy()` ends.

What remains different, and why:

* cuDNN's recurrent layers cast and repack their weights in a kernel of their own, which cannot
  run here.  ``lstm``, ``gru`` and ``rnn``, which would call it, cast all operands instead.
* An op without a CPU kernel for 16 bits raises where CUDA runs (``local_response_norm``,
  ``avg_pool3d``); some CPU kernels refuse a mix of dtypes that CUDA's take (``index_copy``).
* Weights cast in a region of one 16-bit dtype are cast anew in an inner region of the other;
  torch's cache hands out the first cast, and the op then raises.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from mptutor.dispatcher import Kernel, ProcessWide, Replacement, find_op, registered
from mptutor.policy import casting
from mptutor.policy.classes import CastClass, cast_classes

#: Layers that run as one cuDNN call on a GPU, see the module's docstring.
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")

_AUTOCAST_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_AUTOCAST_CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)


def cuda_policy() -> AbstractContextManager[object]:
    """Give the ops in ``torch.autocast("cpu", ...)`` the dtypes that CUDA would give them.

    >>> x = torch.ones(4)
    >>> with cuda_policy(), torch.autocast("cpu", dtype=torch.float16):
    ...     x.half().exp().dtype
    torch.float32

    It may be entered inside or around an autocast region, nested, and from several threads.
    Everything is as before when it ends, also with an exception.
    """
    return _policy


class _CudaPolicy(ProcessWide):
    def _install(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(Replacement("AutocastCPU", _build_kernels))
            stack.enter_context(casting.cleared_with_torchs_cache())
            # Attention layers have a fused path for inference, which they leave under CUDA
            # autocast.  They do not ask about the CPU's.
            attention = torch.backends.mha
            stack.callback(attention.set_fastpath_enabled, attention.get_fastpath_enabled())
            attention.set_fastpath_enabled(False)
            self._undo = stack.pop_all()

    def _remove(self) -> None:
        self._undo.close()


@functools.cache
def _build_kernels() -> dict[OpOverload, Kernel]:
    cpu_only = set(registered("AutocastCPU")) - set(registered("AutocastCUDA"))
    kernels = {find_op(name): torch.library.fallthrough_kernel for name in cpu_only}
    for name, cast_class in cast_classes("cuda").items():
        kernels[find_op(name)] = _MAKERS[cast_class](find_op(name))
    for layer in _RECURRENT:
        packet = getattr(torch.ops.aten, layer)
        for overload in ("input", "data"):
            kernels[getattr(packet, overload)] = _lower(getattr(packet, overload))
    return kernels


# One maker of kernels for each class; compare the `WrapFunction_`s in ATen/autocast_mode.h.


def _lower(op: OpOverload) -> Kernel:
    cast = _casting_arguments(op)

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype("cpu")
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_CPU):
            return cast(dtype, args, kwargs)

    return kernel


def _fp32(op: OpOverload) -> Kernel:
    cast = _casting_arguments(op)

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_CPU):
            return cast(torch.float32, args, kwargs)

    return kernel


def _promote(op: OpOverload) -> Kernel:
    cast = _casting_arguments(op)
    votes = _positions(op, "Tensor", "List[Tensor]")

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype("cpu")
        for position in votes:
            dtype = casting.widest(dtype, args[position] if position < len(args) else None)
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_CPU):
            return cast(dtype, args, kwargs)

    return kernel


def _fp32_dtype(op: OpOverload) -> Kernel:
    (position,) = (i for i, a in enumerate(op._schema.arguments) if a.name == "dtype")

    def kernel(keys: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        given = args[position - 1] if position <= len(args) else kwargs.get("dtype")
        if given is None and casting.eligible(x):
            args, kwargs = args[: position - 1], {**kwargs, "dtype": torch.float32}
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_CPU):
            return op(x, *args, **kwargs)

    return kernel


def _fp32_append(op: OpOverload) -> Kernel:
    with_dtype = _overload_with_dtype(op)
    names = [a.name for a in op._schema.arguments]
    # The dispatcher leaves out arguments at their default, which the other overload may not have.
    defaults = {a.name: a.default_value for a in op._schema.arguments if a.has_default_value()}

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        given = defaults | dict(zip(names, args, strict=False)) | kwargs
        dtype = torch.float32 if casting.eligible(args[0]) else args[0].dtype
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_CPU):
            return with_dtype(**given, dtype=dtype)

    return kernel


def _cudas_own(op: OpOverload) -> Kernel:
    """Make a kernel that calls CUDA's: it raises CUDA's error, or leaves CPU tensors alone."""

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_CPU):
            return op.redispatch(_AUTOCAST_CUDA, *args, **kwargs)

    return kernel


_MAKERS: dict[CastClass, Callable[[OpOverload], Kernel]] = {
    CastClass.LOWER: _lower,
    CastClass.FP32: _fp32,
    CastClass.FP32_DTYPE: _fp32_dtype,
    CastClass.FP32_APPEND: _fp32_append,
    CastClass.PROMOTE: _promote,
    CastClass.AS_IS: lambda op: torch.library.fallthrough_kernel,
    CastClass.REFUSED: _cudas_own,
    CastClass.OWN: _cudas_own,
}


def _casting_arguments(op: OpOverload) -> Callable[[torch.dtype, tuple, dict], Any]:
    """Make a function that casts the tensors among an op's arguments and calls the op.

    Lists of optional tensors are left alone, as torch does: they hold indices.
    """
    castable = _positions(op, "Tensor", "Optional[Tensor]", "List[Tensor]")

    def call(dtype: torch.dtype, args: tuple, kwargs: dict) -> Any:
        cast_args = [casting.cast(x, dtype) if i in castable else x for i, x in enumerate(args)]
        return op(*cast_args, **{name: casting.cast(x, dtype) for name, x in kwargs.items()})

    return call


def _positions(op: OpOverload, *kinds: str) -> list[int]:
    return [i for i, a in enumerate(op._schema.arguments) if str(a.type) in kinds]


def _overload_with_dtype(op: OpOverload) -> OpOverload:
    """Find the overload of an op that takes the same arguments and a dtype."""
    names = [a.name for a in op._schema.arguments]
    packet = op.overloadpacket
    for overload in packet.overloads():
        other = getattr(packet, overload)
        if [a.name for a in other._schema.arguments] == [*names, "dtype"]:
            return other
    raise LookupError(f"{op} has no overload that takes a dtype as well")


_policy = _CudaPolicy()
