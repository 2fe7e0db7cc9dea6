"""Looking at tensors without disturbing them.

`lo_hi` rests on `aminmax`: one pass, no temporary, and a NaN anywhere makes both ends NaN. On a
CPU it's some 25 times faster than `isfinite().all()`, which makes a whole boolean tensor first.
A tensor whose memory is dense but permuted (channels last, a transpose) is looked at in the order
it lies in memory: walking it in index order costs six times as much.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)


def dtype_name(dtype: torch.dtype) -> str:
    """Return "float16" for torch.float16."""
    return str(dtype).removeprefix("torch.")


def is_fake(x: Tensor) -> bool:
    """Say whether `x` has a dtype and a shape but no numbers (FakeTensorMode, meta)."""
    return type(x).__name__ == "FakeTensor" or x.device.type == "meta"


def readable(x: Any) -> bool:
    """Say whether `x` is a floating point tensor whose numbers can be read here and now.

    Those of fake, sparse and empty tensors cannot, nor those inside vmap or grad, which look like
    ordinary tensors until one reads them.
    """
    return (
        type(x) in (Tensor, torch.nn.Parameter)
        and x.is_floating_point()
        and x.numel() > 0
        and x.layout is torch.strided
        and x.device.type != "meta"
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
    )


def tensors_in(value: Any, depth: int = 0) -> Iterator[Tensor]:
    """Go through the tensors in nested lists, tuples and dicts, three levels deep."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)) and depth < 3:
        for item in value:
            yield from tensors_in(item, depth + 1)
    elif isinstance(value, dict) and depth < 3:
        yield from tensors_in(list(value.values()), depth + 1)


def in_memory_order(x: Tensor) -> Tensor:
    """Return `x` as one dimension: a view if its memory is dense, else a copy."""
    x = x.detach()
    if x.is_contiguous():
        return x.view(-1)
    dense = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1:
            if stride != dense:
                return x.reshape(-1)
            dense *= size
    return x.as_strided((x.numel(),), (1,), x.storage_offset())


def lo_hi(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest value as zero-dimensional tensors."""
    return torch.ops.aten.aminmax.default(in_memory_order(x))


def sample(x: Tensor, most: int = 2048) -> Tensor:
    """Return at most `most` elements, evenly spread in index order; an odd stride avoids columns.

    Index order, so that samples of a weight and of its gradient show the same elements even if
    one is channels last and the other is not.
    """
    flat = x.detach().reshape(-1) if x.numel() <= most else x.detach().flatten()
    return flat[:: max(1, x.numel() // most) | 1][:most]
