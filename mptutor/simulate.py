"""Make this CPU behave like an AMP GPU.

Two things separate a training loop under AMP on a CPU from the same loop on a GPU: autocast gives
many ops another dtype, and 16-bit arithmetic is slow and rounded elsewhere.  `simulate_amp` mends
both at once: `mptutor.policy.cuda_policy` lends the CPU CUDA's rules, `mptutor.tensorcore.
tensor_core` the arithmetic.  Losses, gradients, the scaler's skips and the accuracy one gets are
then those of mixed precision on a GPU, at about the speed of FP32 on the CPU.

What it does not reproduce:

* *The order of additions.*  Sums are added up in FP32 as the CPU likes to, so the last bit of a
  16-bit result can differ.  A GPU's order depends on its generation, the shape and the library.
* *What GPU libraries choose.*  cuDNN may take a Winograd or FFT convolution, cuBLAS may add partial
  sums in 16 bits (``torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction``), flash
  attention rounds its probabilities to 16 bits before the second product.
* *TF32.*  What is FP32 here is FP32, while a GPU from Ampere on runs FP32 convolutions in TF32
  unless told not to.
* *Recurrent layers and a few ops* for which the policy differs, see `mptutor.policy.apply`.
* *Random numbers, speed and memory*, and code that ``torch.compile`` generates.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack

import torch

from mptutor.policy import cuda_policy
from mptutor.tensorcore import tensor_core


class _DefaultDtypes(threading.local):
    """What ``torch.autocast("cpu")`` uses if it is given no dtype, asked for by whom.

    Simulations may end in any order, as those of a race whose runs take turns do. So the original
    is kept apart, and the default is what the last one still running has asked for.
    """

    def __init__(self) -> None:
        self._asked: list[tuple[object, torch.dtype]] = []
        self._original = torch.get_autocast_dtype("cpu")

    def ask(self, dtype: torch.dtype) -> object:
        if not self._asked:
            self._original = torch.get_autocast_dtype("cpu")
        ticket = object()
        self._asked.append((ticket, dtype))
        torch.set_autocast_dtype("cpu", dtype)
        return ticket

    def take_back(self, ticket: object) -> None:
        self._asked = [asked for asked in self._asked if asked[0] is not ticket]
        last = self._asked[-1][1] if self._asked else self._original
        torch.set_autocast_dtype("cpu", last)


_default_dtypes = _DefaultDtypes()


class simulate_amp:  # noqa: N801 - a context manager, used like a function
    """Let CPU tensors be trained as a GPU with AMP would, as a context or as a switch.

    Put it around the whole loop, backward and optimizer step included.  It does not enter autocast:
    inside, write the loop as for a GPU, with ``"cpu"`` in place of ``"cuda"``::

        scaler = torch.amp.GradScaler("cpu")
        with simulate_amp():
            for x, y in batches:
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = F.cross_entropy(model(x), y)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()

    In a notebook, ``amp = simulate_amp().enable()`` switches it on for the cells that follow, and
    ``amp.disable()`` off again.  Contexts may be nested and end in any order, and everything is as
    before when the last one ends, also with an exception.  Policy and arithmetic are changed for
    the whole process, the default dtype for the thread.

    Parameters
    ----------
    dtype
        `torch.float16` or `torch.bfloat16`: the dtype whose arithmetic is emulated, and what
        ``torch.autocast("cpu")`` uses if it is given none, as CUDA's autocast uses FP16.
        BF16 is emulated even on a CPU that has units for it, so that the numbers are the same on
        every machine; `cuda_policy` alone is the faster way there.
    """

    def __init__(self, dtype: torch.dtype = torch.float16) -> None:
        if dtype not in (torch.float16, torch.bfloat16):
            raise ValueError(f"dtype: must be torch.float16 or torch.bfloat16, got {dtype!r}")
        self._dtype = dtype
        self._arithmetic = tensor_core(dtype)
        self._undo: list[ExitStack] = []

    def enable(self) -> simulate_amp:
        """Switch on until `disable` is called."""
        with ExitStack() as stack:
            stack.enter_context(cuda_policy())
            stack.enter_context(self._arithmetic)
            stack.callback(_default_dtypes.take_back, _default_dtypes.ask(self._dtype))
            self._undo.append(stack.pop_all())
        return self

    def disable(self) -> None:
        """Take back one `enable`."""
        if not self._undo:
            raise RuntimeError("simulate_amp: it is not enabled, nothing to disable")
        self._undo.pop().close()

    def __enter__(self) -> simulate_amp:
        return self.enable()

    def __exit__(self, *exception: object) -> None:
        self.disable()
