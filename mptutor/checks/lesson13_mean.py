"""Task 13.3: a mean over ranks that neither overflows nor flushes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mptutor.checks.probes_ranks import drive_ranks
from mptutor.checks.task import Case, Misunderstanding, Task, same
from mptutor.experiments.ranks import Ranks

# Headings of lesson 13 that the hints send the learner back to.
_SUM = "A sum is larger than its terms"
_RANGE = "Neither end"
_INF = "An inf on one rank"

_Mean = Callable[[Tensor, Ranks], Tensor]


def _averaging(
    *,
    largest: Callable[[Tensor, Ranks], Tensor] = lambda grad, ranks: ranks.max(grad.abs().max()),
    room: Callable[[Ranks], float] = lambda ranks: 2.0**15 / ranks.size,
    guard: bool = True,
    back: Callable[[Tensor, float], Tensor] = lambda total, n: total.float() / n,
    counts: Callable[[Ranks], float] = lambda ranks: ranks.size,
    unscales: bool = True,
) -> _Mean:
    """Return somebody who has all of it right but what the arguments say."""

    def mean_over_ranks(grad: Tensor, ranks: Ranks) -> Tensor:
        most = float(largest(grad, ranks))
        scale = 1.0
        if not guard or (math.isfinite(most) and most > 0):
            scale = 2.0 ** math.floor(math.log2(room(ranks) / most))
        total = ranks.sum((grad * scale).half())
        return back(total, counts(ranks) * (scale if unscales else 1.0))

    return mean_over_ranks


def _early(grad: Tensor, ranks: Ranks) -> Tensor:
    return _averaging()(grad, ranks) if grad.isfinite().all() else grad


def _own(grad: Tensor, ranks: Ranks) -> Tensor:
    most = ranks.max(grad.abs().max())
    return _averaging()(grad, ranks) if most.isfinite() and most > 0 else grad


def _clean(grad: Tensor, ranks: Ranks) -> Tensor:
    return _averaging()(grad.nan_to_num(0.0, 0.0, 0.0), ranks)


def _driven(mean: _Mean) -> Callable[..., Any]:
    return lambda *inputs: drive_ranks(mean, inputs)


def _mean_cases(seed: int) -> list[Case]:
    generator = torch.Generator().manual_seed(seed)

    def drawn(ranks: int, exponent: float) -> list[Tensor]:
        """Draw gradients of both signs, over ten binades, that do not cancel between ranks."""
        signs = torch.randn(6, 5, generator=generator).sign()
        powers = exponent - 10 * torch.rand(ranks, 6, 5, generator=generator)
        powers[:, 0, 0] = exponent
        return list(signs * 2.0**powers)

    uneven = drawn(4, -14)
    uneven[2] = uneven[2] * 2.0**12
    negative = [-grad.abs() for grad in drawn(4, 14.5)]
    for grad in negative:
        grad[0, 1] = 2.0**3
    with_inf, with_nan = drawn(4, -3), drawn(2, -3)
    with_inf[1][2, 2] = float("inf")
    with_nan[0][3, 1] = float("nan")
    return [
        Case("2 ranks, gradients up to 40,000", (drawn(2, math.log2(40_000)),)),
        Case("8 ranks, gradients up to 16,384", (drawn(8, 14),)),
        Case("4 ranks, gradients up to 2^30", (drawn(4, 30),)),
        Case("8 ranks, gradients up to 1", (drawn(8, 0),)),
        Case("8 ranks, gradients up to 2^-20", (drawn(8, -20),)),
        Case("4 ranks, gradients up to 2^-40", (drawn(4, -40),)),
        Case("4 ranks, those of rank 2 4096 times larger", (uneven,)),
        Case("4 ranks, the largest are negative", (negative,)),
        Case("an inf on rank 1 of 4", (with_inf,)),
        Case("a NaN on rank 0 of 2", (with_nan,)),
        Case("2 ranks, all zero", ([torch.zeros(2, 3), torch.zeros(2, 3)],)),
    ]


#: Eight terms rounded to FP16, and seven additions.
_TOLERANCE = 2.0**-8


def _nearly(expected: Any, got: Any) -> bool:
    """Compare what was done exactly, and the mean within FP16's precision.

    Where the mean is not finite the step is skipped, and its other entries do not matter. There,
    and where all gradients are zero, ranks that know it may send nothing more.
    """
    if not isinstance(got, dict) or got.keys() != expected.keys():
        return False
    a, b = expected["mean"], got["mean"]
    nothing_to_add = not a.isfinite().all() or not a.any()
    if not (same(expected["sent in"], got["sent in"]) or (nothing_to_add and got["sent in"] == [])):
        return False
    if not same(expected["all ranks have the same"], got["all ranks have the same"]):
        return False
    if not isinstance(b, Tensor) or b.dtype != torch.float32 or b.shape != a.shape:
        return False
    if not a.isfinite().all():
        return not b.isfinite().all()
    return torch.allclose(a, b, rtol=_TOLERANCE, atol=0)


MEAN = Task(
    id="13.3",
    function="mean_over_ranks",
    points=4,
    probe="drive_ranks",
    reference=_driven(_averaging()),
    cases=_mean_cases,
    agree=_nearly,
    misunderstandings=(
        Misunderstanding(
            "sum, then divide",
            "The mean would fit, but your sum overflows before it is divided.",
            _driven(lambda grad, ranks: ranks.sum(grad.half()).float() / ranks.size),
            _SUM,
        ),
        Misunderstanding(
            "divide, then sum",
            "Nothing overflows in your sum any more, unless a gradient does by itself. Small "
            "gradients become smaller before they are rounded, and flush.",
            _driven(lambda grad, ranks: ranks.sum((grad / ranks.size).half()).float()),
            _SUM,
        ),
        Misunderstanding(
            "FP32 on the wire",
            "Your mean is right, at twice the bytes. FP16 is to travel.",
            _driven(lambda grad, ranks: ranks.sum(grad) / ranks.size),
            _RANGE,
        ),
        Misunderstanding(
            "BF16 on the wire",
            "BF16 has the range and three bits fewer. FP16 is to travel.",
            _driven(lambda grad, ranks: ranks.sum(grad.bfloat16()).float() / ranks.size),
            _RANGE,
        ),
        Misunderstanding(
            "a scale for each rank",
            "Every rank chooses a scale by itself, and the sum adds numbers that were scaled "
            "differently. What must the ranks agree on first?",
            _driven(_averaging(largest=lambda grad, ranks: grad.abs().max())),
            _RANGE,
        ),
        Misunderstanding(
            "room for one rank",
            "Your scale makes room for one rank's largest gradient, and not for the sum.",
            _driven(_averaging(room=lambda ranks: 2.0**15)),
            _RANGE,
        ),
        Misunderstanding(
            "not unscaled",
            "Your mean is still scaled.",
            _driven(_averaging(unscales=False)),
            _RANGE,
        ),
        Misunderstanding(
            "unscaled in FP16",
            "You divide in FP16, where what the scale has saved is flushed again.",
            _driven(_averaging(back=lambda total, n: (total / n).float())),
            _RANGE,
        ),
        Misunderstanding(
            "sum for the mean",
            "You return the sum over the ranks.",
            _driven(_averaging(counts=lambda ranks: 1)),
            _SUM,
        ),
        Misunderstanding(
            "sign not removed",
            "The largest magnitude may belong to a negative gradient.",
            _driven(_averaging(largest=lambda grad, ranks: ranks.max(grad.max()))),
            _RANGE,
        ),
        Misunderstanding(
            "inf and NaN removed",
            "One rank overflowed, and your mean is finite on all. Nobody will skip the step.",
            _driven(_clean),
            _INF,
        ),
        Misunderstanding(
            "returns early",
            "A rank whose gradients are not finite returns before the others, which wait for it. "
            "With real processes that is forever.",
            _driven(_early),
            _INF,
        ),
        Misunderstanding(
            "each its own gradient",
            "All ranks know of the inf or NaN, and each returns its own gradient. Those that have "
            "none there will step, and the others skip.",
            _driven(_own),
            _INF,
        ),
        Misunderstanding(
            "zero, inf and NaN have no scale",
            "Your scale has no answer for gradients that are all zero, or for an inf or NaN.",
            _driven(_averaging(guard=False)),
            _RANGE,
        ),
    ),
)
