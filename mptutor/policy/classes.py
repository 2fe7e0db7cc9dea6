"""Which rule autocast applies to each op, asked of the installed torch.

Autocast is a column of kernels in torch's dispatcher (see `mptutor.dispatcher`): ``AutocastCUDA``
has one for each op on CUDA's lists, ``AutocastCPU`` for each on the CPU's.  Such a kernel casts
the arguments and passes them on to the op proper.  So a kernel can be asked for its rule: call it
with made-up arguments and catch what it passes on.

`cast_classes` does that.  The tensors are *stand-ins* that have a device and a dtype but no
values, hence no GPU is needed; and the op is caught in the column below (``Tracer``, otherwise
used only by ``torch.jit.trace``), so it never runs and the arguments need not make sense.
Nothing is copied from torch's source or documentation, where the same lists are kept as macros in
``ATen/autocast_mode.h``; a test compares the two.

Two kernels do more than cast and tell nothing when asked: one refuses to run at all
(``binary_cross_entropy`` on CUDA), one repacks the weights of cuDNN's recurrent layers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from mptutor.dispatcher import Kernel, Replacement, find_op, registered


class CastClass(Enum):
    """What autocast does to the arguments of an op, under the names of torch's ``CastPolicy``."""

    LOWER = "casts to 16 bits"
    FP32 = "casts to FP32"
    FP32_DTYPE = "asks for an FP32 result, unless the caller gave a dtype"
    FP32_APPEND = "calls the overload that takes a dtype, asking for FP32"
    PROMOTE = "casts to the widest dtype among its operands"
    AS_IS = "passes them on as they are"
    REFUSED = "raises an error"
    OWN = "has a rule of its own"


def cast_classes(device: str, dtype: torch.dtype = torch.float16) -> dict[str, CastClass]:
    """Ask each autocast kernel of a device type for its rule.

    Parameters
    ----------
    device
        ``"cuda"`` (no GPU is needed) or ``"cpu"``.
    dtype
        The 16-bit dtype to ask with; the rules are the same for both.

    Returns
    -------
    dict
        From the name of an aten op, ``"mm"`` or ``"sum.dim_IntList"``, to its class.

    Raises
    ------
    ValueError
        If ``device`` or ``dtype`` is another one.
    """
    if device not in ("cuda", "cpu"):
        raise ValueError(f"device: must be 'cuda' or 'cpu', got {device!r}")
    if dtype not in (torch.float16, torch.bfloat16):
        raise ValueError(f"dtype: must be torch.float16 or torch.bfloat16, got {dtype}")
    names = registered(f"Autocast{device.upper()}")
    with Replacement("Tracer", lambda: _catching_kernels(names)), autocast_on(device, dtype):
        return {name: _classify(find_op(name), device, dtype) for name in names}


@contextmanager
def autocast_on(device: str, dtype: torch.dtype) -> Iterator[None]:
    """Enter autocast for a device type, there or not.

    ``torch.autocast("cuda")`` switches itself off on a machine without a GPU; these are the
    steps it would take.
    """
    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, dtype)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])


class _Call(NamedTuple):
    """A call as an autocast kernel passed it on."""

    op: OpOverload
    dtypes: set[torch.dtype]
    dtype_argument: torch.dtype | None


class _CaughtError(Exception):
    """Carries the call out of the op that was to run."""


class _StandIn(Tensor):
    """A tensor with a device and a dtype and nothing in it."""

    @staticmethod
    def __new__(cls, device: str, dtype: torch.dtype) -> _StandIn:
        return Tensor._make_wrapper_subclass(cls, (2, 2), dtype=dtype, device=device)

    @classmethod
    def __torch_dispatch__(cls, op: OpOverload, *rest: Any) -> None:
        raise NotImplementedError(f"a stand-in tensor has no values to give to {op}")


def _classify(op: OpOverload, device: str, dtype: torch.dtype) -> CastClass:
    low, wide = _StandIn(device, dtype), _StandIn(device, torch.float32)
    try:
        from_low, from_wide, from_both = (
            _passed_on(op, operands) for operands in ([low], [wide], [low, wide])
        )
    except RuntimeError as error:
        return CastClass.REFUSED if "autocast" in str(error) else CastClass.OWN
    if from_low.dtypes == {torch.float32}:
        return CastClass.FP32
    if from_wide.dtypes == {dtype}:
        return CastClass.LOWER
    if from_both.dtypes == {torch.float32}:
        return CastClass.PROMOTE
    if from_low.op is not op:
        return CastClass.FP32_APPEND
    if from_low.dtype_argument is torch.float32:
        return CastClass.FP32_DTYPE
    return CastClass.AS_IS


def _passed_on(op: OpOverload, operands: list[Tensor]) -> _Call:
    """Call an op with the operands over and over, and return what its autocast kernel passes on."""
    supply = itertools.cycle(operands)
    arguments = op._schema.arguments
    args = [_made_up(a, supply) for a in arguments if not a.kwarg_only]
    kwargs = {a.name: _made_up(a, supply) for a in arguments if a.kwarg_only}
    try:
        with torch._C._IncludeDispatchKeyGuard(torch._C._parse_dispatch_key("Tracer")):
            op(*args, **kwargs)
    except _CaughtError as caught:
        return _Call(*caught.args)
    raise RuntimeError(f"{op} ran without passing through its own kernels")


def _made_up(argument: torch._C.Argument, supply: Iterator[Tensor]) -> Any:
    """Make up a value of an argument's type, taking tensors from `supply`."""
    kind = str(argument.type)
    if kind in ("Tensor", "Optional[Tensor]"):
        return next(supply)
    if kind == "List[Tensor]":
        return [next(supply), next(supply)]
    if kind.startswith("Optional") or argument.has_default_value():
        return argument.default_value
    if kind.startswith("List"):
        return []
    return {"str": "", "bool": False, "float": 1.0}.get(kind, 1)


def _catching_kernels(names: list[str]) -> dict[OpOverload, Kernel]:
    """Make a kernel that catches the call, for the ops and their overloads; let casts work."""
    packets = {find_op(name).overloadpacket for name in names}
    ops = [getattr(packet, overload) for packet in packets for overload in packet.overloads()]
    return {op: _catching_kernel(op) for op in ops} | {torch.ops.aten.to.dtype: _cast}


def _cast(keys: Any, x: Tensor, dtype: torch.dtype, *rest: Any) -> Tensor:
    return _StandIn(x.device.type, dtype)


def _catching_kernel(op: OpOverload) -> Kernel:
    positions = {a.name: i for i, a in enumerate(op._schema.arguments)}

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> None:
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        given = dict(zip(positions, args, strict=False)) | kwargs
        raise _CaughtError(op, {x.dtype for x in tensors}, given.get("dtype"))

    return kernel
