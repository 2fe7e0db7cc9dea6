"""A probe for code that runs on every rank: it plays all of them and tells what came out.

Like every probe it knows nothing of right and wrong; see `mptutor.checks.probes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def drive_ranks(written: Callable[..., Any], inputs: Sequence[Any]) -> dict[str, Any]:
    """Call the learner's function as every rank and tell what it returned and sent.

    ``inputs`` is one list, with a gradient for each rank. What was sent is told once for each dtype
    of tensors that are as large as the gradient; single numbers travel for free.
    """
    from mptutor.experiments.ranks import with_ranks

    (gradients,) = inputs
    played = with_ranks(written, gradients)
    returned = [mean for mean, _ in played]
    numel = gradients[0].numel()
    sent = [_told(dtype) for dtype, count in played[0][1].sent if count >= numel]
    alike = all(_same(returned[0], other) for other in returned[1:])
    return {"mean": returned[0], "sent in": sent, "all ranks have the same": alike}


def _told(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _same(a: Any, b: Any) -> bool:
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return type(a) is type(b)
    return a.shape == b.shape and bool(torch.isclose(a, b, equal_nan=True).all())
