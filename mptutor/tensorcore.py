"""16-bit arithmetic on the CPU the way a Tensor Core does it.

A Tensor Core multiplies 16-bit operands, adds the products up in FP32 and rounds each sum to
16 bits once.  A CPU without 16-bit multipliers does something else with FP16: its matrix products
and convolutions are 10 to 40 times slower than FP32, and some kernels round in between (the
gradients of a convolution) or add up in 16 bits (the row sum of log-softmax).

Inside `tensor_core()` the ops that multiply matrices, and log-softmax, run on the CPU as

    16-bit operands -> the same values in FP32 -> torch's FP32 kernel -> rounded to 16 bits once

forward and backward.  Every FP16 value is an FP32 value and so is the product of any two, which
makes the first two steps exact: the result is the rounded sum of exact products, added up in FP32.
It is bit for bit ``op(a.float(), b.float()).half()``, at little more than the price of FP32.

What is replaced are the CPU kernels of these ops, for the whole process (see `dispatcher`).
So it reaches every thread, autograd's included, ``out=`` and in-place forms, and ops inside other
ops (a GRU, ``F.bilinear``, ``nn.MultiheadAttention``).  Not reached: tensors elsewhere (CUDA,
meta, fake, sparse), other dtypes, and code that ``torch.compile`` generates itself.
Backward must run inside the context too, or it runs as the CPU would.

How a real Tensor Core differs: it adds up in an order of its own, a few products at a time, and
some generations keep fewer bits than FP32 on the way.  Everything that is not a product is left to
torch, whose CPU kernels mostly compute in FP32 and round once by themselves (pointwise ops,
softmax, sums, normalization; not so ``add`` with an alpha, ``prod`` or ``logsumexp``).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from mptutor.dispatcher import Kernel, Replacement, find_op, has_kernel

#: The ops a Tensor Core would run, by the names the dispatcher has for them below autograd
#: (``linear``, ``matmul``, ``einsum`` and ``conv2d`` all come down to these), and log-softmax.
#: Names that the installed torch does not have are skipped.
_OPS = (
    *("mm", "addmm", "_addmm_activation", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot"),
    *("convolution", "convolution_backward", "conv_tbc", "conv_tbc_backward"),
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    *("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"),
    *("_log_softmax", "_log_softmax_backward_data"),
)

#: Attention hands on the logarithm of its softmax's denominator, always in FP32, from forward
#: (where it is the second result) to backward (where it is an operand beside 16-bit ones).
_KEEPS_LOGSUMEXP = "_scaled_dot_product_flash_attention_for_cpu"

#: How many contexts ask for each dtype, and the dtypes that any asks for.
_asked: Counter[torch.dtype] = Counter()
_emulated: set[torch.dtype] = set()
_counting = threading.Lock()


class tensor_core:  # noqa: N801 - a context manager, used like a function
    """Compute as a Tensor Core would, as a context or as a switch.

    >>> a, b = torch.randn(2, 64, 64, dtype=torch.float16)
    >>> with tensor_core():
    ...     c = a @ b
    >>> torch.equal(c, (a.float() @ b.float()).half())
    True

    In a notebook, switch it on once with ``tensor_core().enable()``.  Contexts may be nested, in
    any order and for different dtypes, and end with an exception as well; the dtype is emulated
    until the last one that asked for it ends.

    Parameters
    ----------
    dtype
        `torch.float16`, `torch.bfloat16`, or both in a sequence.  BF16 is worth emulating where
        `has_units(torch.bfloat16)` is false: there it is as slow as FP16.
    """

    def __init__(self, dtype: torch.dtype | Iterable[torch.dtype] = torch.float16) -> None:
        several = isinstance(dtype, (list, tuple, set, frozenset))
        dtypes = tuple(dict.fromkeys(dtype)) if several else (dtype,)
        if not dtypes or any(given not in (torch.float16, torch.bfloat16) for given in dtypes):
            raise ValueError(
                f"dtype: must be torch.float16, torch.bfloat16 or several of them, got {dtype!r}"
            )
        self.dtypes = dtypes

    def enable(self) -> tensor_core:
        """Switch on until `disable` is called."""
        _replacement.__enter__()
        _count(self.dtypes, +1)
        return self

    def disable(self) -> None:
        """Take back one `enable` of these dtypes."""
        if any(_asked[dtype] == 0 for dtype in self.dtypes):
            raise RuntimeError(f"tensor_core: {self.dtypes} is not enabled, nothing to disable")
        _count(self.dtypes, -1)
        _replacement.__exit__()

    def __enter__(self) -> tensor_core:
        return self.enable()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.disable()


def _count(dtypes: tuple[torch.dtype, ...], change: int) -> None:
    with _counting:
        for dtype in dtypes:
            _asked[dtype] += change
            if _asked[dtype]:
                _emulated.add(dtype)
            else:
                _emulated.discard(dtype)


def has_units(dtype: torch.dtype) -> bool:
    """Tell whether oneDNN, and so torch, has fast kernels for a 16-bit dtype on this CPU.

    Raises
    ------
    ValueError
        If ``dtype`` is neither `torch.float16` nor `torch.bfloat16`.
    """
    probes = {
        torch.float16: "_is_mkldnn_fp16_supported",
        torch.bfloat16: "_is_mkldnn_bf16_supported",
    }
    if dtype not in probes:
        raise ValueError(f"dtype: must be torch.float16 or torch.bfloat16, got {dtype!r}")
    if not torch.backends.mkldnn.is_available():
        return False
    return bool(getattr(torch.ops.mkldnn, probes[dtype])())


def _build_kernels() -> dict[OpOverload, Kernel]:
    kernels: dict[OpOverload, Kernel] = {}
    for name in _OPS:
        if not hasattr(torch.ops.aten, name):
            continue
        op = find_op(name)
        kernels[op] = _rounding_once(op)
        # Only forms with a CPU kernel of their own: the others are made of `op` by torch.
        for form in (f"{name}.out", f"{name}_"):
            if has_kernel(form, "CPU"):
                kernels[find_op(form)] = _by_way_of(op, find_op(form))
    return kernels


def _rounding_once(op: OpOverload) -> Kernel:
    """Make the kernel that widens 16-bit operands, calls torch's, and rounds the results."""
    own = torch.library.get_kernel(op, "CPU").call_boxed
    keeps_logsumexp = op is find_op(_KEEPS_LOGSUMEXP)
    may_mix = op.name().startswith(f"aten::{_KEEPS_LOGSUMEXP}")

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        low = _common_dtype(args, may_mix)
        if low is None:
            return own(keys, *args, **kwargs)
        if kwargs:
            kwargs = {name: _widen(x, low) for name, x in kwargs.items()}
        result = own(keys, *[_widen(x, low) for x in args], **kwargs)
        if keeps_logsumexp:
            return (_narrow(result[0], low), *result[1:])
        if isinstance(result, Tensor):
            return _narrow(result, low)
        return tuple(_narrow(x, low) for x in result)

    return kernel


def _by_way_of(op: OpOverload, form: OpOverload) -> Kernel:
    """Make the kernel of an ``out=`` or in-place form: compute `op`, copy the result."""
    own = torch.library.get_kernel(form, "CPU").call_boxed

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Tensor:
        target = kwargs.get("out", args[0])
        low = _common_dtype((*args, target), may_mix=False)
        if low is None:
            return own(keys, *args, **kwargs)
        result = op(*args, **{name: x for name, x in kwargs.items() if name != "out"})
        if target.shape != result.shape:
            target.resize_(result.shape)
        return target.copy_(result)

    return kernel


def _common_dtype(args: tuple[Any, ...], may_mix: bool) -> torch.dtype | None:
    """Return the 16-bit dtype to emulate, if it is asked for and the operands agree on it.

    Operands that disagree are an error in most ops, which is left to torch's own kernel to raise.
    """
    found = None
    for x in args:
        if isinstance(x, Tensor):
            dtype = x.dtype
            if found is None and dtype in _emulated:
                found = dtype
            elif dtype is not found and not may_mix and dtype.is_floating_point:
                return None
    return found


def _widen(x: Any, low: torch.dtype) -> Any:
    """Give a tensor's values in FP32; say FP32 where an argument names the dtype."""
    if isinstance(x, Tensor):
        return x.float() if x.dtype is low else x
    return torch.float32 if x is low else x


def _narrow(x: Any, low: torch.dtype) -> Any:
    """Round an FP32 result, leave others (a workspace, a missing gradient) as they are."""
    return x.to(low) if isinstance(x, Tensor) and x.dtype is torch.float32 else x


_replacement = Replacement("CPU", _build_kernels)
