"""Probes for what a learner writes to be right under autocast: a function, a loss.

Both run on CPU tensors under CUDA's policy (`mptutor.policy.cuda_policy`), in a region of the dtype
that the case asks for or in none, and return plain values: dtypes, results, gradients. Nothing here
knows which of them are right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch import Tensor


def differentiate_function(written: Callable[[str], Any], inputs: Sequence[Any]) -> dict[str, Any]:
    """Apply the autograd function that the learner's code makes, and go backward through it.

    ``inputs`` are two tensors, the dtype of the region or None, and whether backward is called
    inside of it.
    """
    x, w, region, backward_inside = inputs
    x, w = x.requires_grad_(), w.requires_grad_()
    with _cuda_policy(), ExitStack() as stack:
        stack.enter_context(_region(region))
        result = written("cpu").apply(x, w)
        if not backward_inside:
            stack.close()
        result.sum().backward()
    return {"result": result, "gradient of x": x.grad, "gradient of w": w.grad}


def differentiate_loss(written: Callable[..., Tensor], inputs: Sequence[Any]) -> dict[str, Any]:
    """Call the learner's loss of two tensors in a region, and go backward outside of it.

    ``inputs`` are the tensors and the dtype of the region or None. The gradient of the first is
    None if the loss does not depend on it.
    """
    h, target, region = inputs
    h = h.requires_grad_()
    with _cuda_policy():
        with _region(region):
            loss = written(h, target)
        if isinstance(loss, Tensor) and loss.requires_grad:
            loss.sum().backward()
    return {"loss": loss, "gradient of h": h.grad}


def _region(dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    return nullcontext() if dtype is None else torch.autocast("cpu", dtype)


def _cuda_policy() -> AbstractContextManager[Any]:
    from mptutor.policy import cuda_policy

    return cuda_policy()
