"""Casting one argument as autocast does, and remembering the casts of weights.

Autocast casts floating-point tensors of its device, FP64 excepted.  The weights of a model are cast
over and over, by every op that uses them and every step, so casts of them are kept: those of FP32
leaves that need a gradient, to the 16-bit dtype of the region.  Gradients of several uses then meet
in the one 16-bit copy, and are added there in 16 bits.

The cache is emptied when the outermost autocast region ends.  Until then it is not looked at
again: a weight that an optimizer changes inside a region keeps its old cast.  Torch's cache is
stale in the same way, which is why a region belongs around forward and not around the whole loop.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

#: From a weight's identity and a dtype to the weight, held weakly, and its cast.
_casts: dict[tuple[int, torch.dtype], tuple[weakref.ref[Tensor], Tensor]] = {}


def eligible(x: Tensor) -> bool:
    """Tell whether CPU autocast may cast a tensor: on the CPU, floating point, not FP64."""
    return x.is_cpu and x.is_floating_point() and x.dtype is not torch.float64


def cast(x: Any, dtype: torch.dtype) -> Any:
    """Cast a tensor, or the tensors in a list, if they are eligible; return others as they are."""
    if isinstance(x, (list, tuple)):
        return [cast(y, dtype) for y in x]
    if not isinstance(x, Tensor) or x.dtype is dtype or not eligible(x):
        return x
    return _kept_cast(x, dtype) if _is_weight(x, dtype) else x.to(dtype)


def widest(dtype: torch.dtype, x: Any) -> torch.dtype:
    """Widen a dtype, autocast's or FP32, to hold a tensor or the tensors in a list."""
    if isinstance(x, (list, tuple)):
        for y in x:
            dtype = widest(dtype, y)
        return dtype
    if not isinstance(x, Tensor) or x.dtype is dtype or not eligible(x):
        return dtype
    if torch.float32 in (dtype, x.dtype):
        return torch.float32
    raise RuntimeError(f"autocast to {dtype} cannot promote an operand of {x.dtype}")


@contextmanager
def cleared_with_torchs_cache() -> Iterator[None]:
    """Empty the cache whenever torch's is emptied, and at the end.

    Autocast calls `torch.clear_autocast_cache` when its outermost region ends.
    """
    clear_torchs = torch.clear_autocast_cache

    def clear_autocast_cache() -> None:
        _casts.clear()
        clear_torchs()

    torch.clear_autocast_cache = clear_autocast_cache
    try:
        yield
    finally:
        torch.clear_autocast_cache = clear_torchs
        _casts.clear()


def _is_weight(x: Tensor, dtype: torch.dtype) -> bool:
    return (
        x.requires_grad
        and x.is_leaf
        and x.dtype is torch.float32
        and dtype is torch.get_autocast_dtype("cpu")
        and torch.is_autocast_cache_enabled()
        and not x._is_view()
        and not torch.is_inference_mode_enabled()
    )


def _kept_cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    weight, kept = _casts.get((id(x), dtype), (None, None))
    if weight is not None and weight() is x:
        return kept
    # Under no_grad as well: the cast may be used again where gradients are wanted.
    with torch.enable_grad():
        kept = x.to(dtype)
    _casts[id(x), dtype] = weakref.ref(x), kept
    return kept
