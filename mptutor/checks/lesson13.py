"""Lesson 13, *What lies beyond 16 bits and beyond one device?*: a scale for FP8, and a mean."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mptutor.checks.probes_ranks import drive_ranks
from mptutor.checks.task import Case, Misunderstanding, Task, same
from mptutor.experiments.ranks import Ranks
from mptutor.formats import FP8_E4M3, FP8_E5M2, FloatFormat
from mptutor.rounding import quantize

# Headings of lesson 13 that the hints send the learner back to.
_TENSOR = "One scale for a tensor"
_PAST = "A scale from the past"
_SUM = "A sum is larger than its terms"
_RANGE = "Neither end"
_INF = "An inf on one rank"

# -- 13.1 scale_from --------------------------------------------------------------------------


def _remembered(history: list[float]) -> list[float]:
    return [amax for amax in history if math.isfinite(amax) and amax > 0]


def _power(amax: float, largest: float = 448.0) -> float:
    """Return the largest power of two at which ``amax`` still fits."""
    significand, exponent = math.frexp(largest / amax)
    return math.ldexp(1.0, exponent - 1) if significand else 1.0


def _scale_from(history: list[float]) -> float:
    known = _remembered(history)
    return _power(max(known)) if known else 1.0


def _scale_cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    amaxes = [draw.uniform(1, 2) * 2.0 ** draw.randrange(-20, 6) for _ in range(6)]
    inf, nan = float("inf"), float("nan")
    settings = [
        ("one step", [amaxes[0]]),
        ("six steps", amaxes),
        ("the largest was the first", sorted(amaxes, reverse=True)),
        ("the largest was the last", sorted(amaxes)),
        ("exactly 448", [3.0, 448.0]),
        ("just above 448 × 2^-10", [449 * 2.0**-10]),
        ("480 × 2^-12, in E4M3's top binade and above its largest", [480 * 2.0**-12, 1e-3]),
        ("a power of two", [2.0**-7]),
        ("larger than 448", [7000.0, 2.0]),
        ("no step yet", []),
        ("all zero", [0.0, 0.0]),
        ("a step that was all zero", [0.0, amaxes[1], 0.0]),
        ("a step that overflowed", [amaxes[2], inf]),
        ("a step with NaN", [nan, amaxes[3]]),
        ("a NaN after a larger one", [amaxes[4], nan, amaxes[4] / 64]),
    ]
    return [Case(label, (history,)) for label, history in settings]


def _chooses(
    of: Callable[[list[float]], float] = max, power: Callable[[float], float] = _power
) -> Callable[[list[float]], float]:
    """Return somebody who has all of it right but what the arguments say."""

    def scale_from(history: list[float]) -> float:
        known = _remembered(history)
        return power(of(known)) if known else 1.0

    return scale_from


_SCALE = Task(
    id="13.1",
    function="scale_from",
    points=2,
    reference=_scale_from,
    cases=_scale_cases,
    withheld=("mptutor.fp8",),
    misunderstandings=(
        Misunderstanding(
            "no power of two",
            "Your scale takes the amax to 448 exactly. A power of two is asked for, which rounds "
            "nothing when it multiplies.",
            _chooses(power=lambda amax: 448 / amax),
            _TENSOR,
        ),
        Misunderstanding(
            "rounded up",
            "Your power is rounded up, so the amax is clipped.",
            _chooses(power=lambda amax: 2.0 ** math.ceil(math.log2(448 / amax))),
            _TENSOR,
        ),
        Misunderstanding(
            "rounded to nearest",
            "Your power is rounded to the nearest one, so some amaxes are clipped.",
            _chooses(power=lambda amax: 2.0 ** round(math.log2(448 / amax))),
            _TENSOR,
        ),
        Misunderstanding(
            "top binade",
            "You take the amax into E4M3's top binade, from 256 to 512. From 448 on it is clipped.",
            _chooses(power=lambda amax: 2.0 ** (8 - math.floor(math.log2(amax)))),
            _TENSOR,
        ),
        Misunderstanding(
            "448 does not fit",
            "Your scale is too careful by a factor of 2 where the amax comes to lie on 448. That "
            "is a number of E4M3.",
            _chooses(power=lambda amax: _power(amax, math.nextafter(448.0, 0.0))),
            _TENSOR,
        ),
        Misunderstanding(
            "upside down",
            "Your scale is the reciprocal. Small tensors need a large one.",
            _chooses(power=lambda amax: 1 / _power(amax)),
            _TENSOR,
        ),
        Misunderstanding(
            "another format",
            "Your scale takes the amax up to E5M2's largest number. Which one is E4M3's?",
            _chooses(power=lambda amax: _power(amax, 57344.0)),
            _TENSOR,
        ),
        Misunderstanding(
            "last step alone",
            "Only the last step decides your scale. What is the rest of the history for?",
            _chooses(of=lambda known: known[-1]),
            _PAST,
        ),
        Misunderstanding(
            "mean of the history",
            "You take the mean of the history. Whatever is larger will be clipped.",
            _chooses(of=lambda known: sum(known) / len(known)),
            _PAST,
        ),
        Misunderstanding(
            "smallest of the history",
            "The smallest amax of the history decides your scale. Which one is clipped first?",
            _chooses(of=min),
            _PAST,
        ),
        Misunderstanding(
            "zeros and infinities count",
            "Histories with a zero, an inf or a NaN upset your scale, or no history at all. Such "
            "steps say nothing about the next tensor.",
            lambda history: _power(max(history)),
            _PAST,
        ),
    ),
)

# -- 13.2 quantize_delayed --------------------------------------------------------------------

_Answer = tuple[Tensor, float, list[float]]


def _delayed(
    *,
    looks_ahead: bool = False,
    fmt: FloatFormat = FP8_E4M3,
    scaled: Callable[[Tensor, float], Tensor] = torch.mul,
    amax: Callable[[Tensor, Tensor, float], float] = lambda x, x_q, scale: x.abs().max().item(),
    kept: Callable[[list[float], int], list[float]] = lambda history, n: history[-n:],
    returns: Callable[[Tensor, float], Tensor] = lambda x_q, scale: x_q,
) -> Callable[[Tensor, list[float], int], _Answer]:
    """Return somebody who has all of it right but what the arguments say."""

    def quantize_delayed(x: Tensor, history: list[float], length: int) -> _Answer:
        seen = [*history, x.abs().max().item()][-length:] if looks_ahead else history
        scale = _scale_from(seen)
        x_q = quantize(scaled(x, scale), fmt, overflow="saturate")
        remembered = kept([*history, amax(x, x_q, scale)], length)
        return returns(x_q, scale), scale, remembered

    return quantize_delayed


def _delayed_cases(seed: int) -> list[Case]:
    generator = torch.Generator().manual_seed(seed)

    def drawn(exponent: float, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) * 2.0**exponent

    grown = drawn(-4, 3, 4)
    negative = -drawn(-10, 5).abs() - 2.0**-12
    return [
        Case("no history yet", (drawn(-12, 6), [], 4)),
        Case("as large as before", (drawn(-10, 4, 5), [2.0**-8, 3 * 2.0**-9], 4)),
        Case("64 times larger than before", (grown, [2.0**-9, 2.0**-8], 4)),
        Case("much smaller than before", (drawn(-20, 7), [0.5, 0.25], 4)),
        Case("the history is full", (drawn(-8, 6), [0.5, 0.125, 2.0**-6, 2.0**-5], 4)),
        Case("the history is full of steps", (drawn(-9, 5), [2.0**-k for k in range(1, 9)], 8)),
        Case("a history of one", (drawn(-6, 6), [2.0**-3], 1)),
        Case("the largest is negative", (negative, [2.0**-7], 3)),
        Case("all zero", (torch.zeros(4), [2.0**-5], 3)),
        Case("an inf in the tensor", (torch.tensor([0.25, float("inf"), -1.0]), [1.0], 3)),
    ]


_QUANTIZE = Task(
    id="13.2",
    function="quantize_delayed",
    points=3,
    reference=_delayed(),
    cases=_delayed_cases,
    withheld=("mptutor.fp8",),
    misunderstandings=(
        Misunderstanding(
            "current scaling",
            "Your scale knows this tensor's amax already. Delayed scaling reads a tensor once, and "
            "has only the steps before it.",
            _delayed(looks_ahead=True),
            _PAST,
        ),
        Misunderstanding(
            "amax of the scaled tensor",
            "Your history remembers the amax after scaling, which says little about the tensor.",
            _delayed(amax=lambda x, x_q, scale: (x * scale).abs().max().item()),
            _PAST,
        ),
        Misunderstanding(
            "amax of the rounded tensor",
            "Your history remembers the amax after clipping. A tensor that has grown will be "
            "clipped in every step to come.",
            _delayed(amax=lambda x, x_q, scale: x_q.abs().max().item() / scale),
            _PAST,
        ),
        Misunderstanding(
            "sign not removed",
            "The largest magnitude may belong to a negative number.",
            _delayed(amax=lambda x, x_q, scale: x.max().item()),
            _TENSOR,
        ),
        Misunderstanding(
            "history without an end",
            "Your history grows beyond its length. An outlier would be remembered forever.",
            _delayed(kept=lambda history, n: history),
            _PAST,
        ),
        Misunderstanding(
            "forgets the newest",
            "Your history keeps the oldest steps and forgets the newest.",
            _delayed(kept=lambda history, n: history[:n]),
            _PAST,
        ),
        Misunderstanding(
            "scaled back",
            "Your values are divided by the scale again. What travels and is multiplied are the "
            "scaled ones; the scale goes beside them.",
            _delayed(returns=lambda x_q, scale: x_q / scale),
            _TENSOR,
        ),
        Misunderstanding(
            "divided by the scale",
            "You divide by the scale before rounding.",
            _delayed(scaled=torch.div),
            _TENSOR,
        ),
        Misunderstanding(
            "not scaled",
            "Your values are rounded unscaled.",
            _delayed(scaled=lambda x, scale: x),
            _TENSOR,
        ),
        Misunderstanding(
            "another format",
            "Your values are E5M2's.",
            _delayed(fmt=FP8_E5M2),
            _TENSOR,
        ),
    ),
)

# -- 13.3 mean_over_ranks ---------------------------------------------------------------------

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

    Where the mean is not finite the step is skipped, and its other entries do not matter.
    """
    if not isinstance(got, dict) or got.keys() != expected.keys():
        return False
    a, b = expected["mean"], got["mean"]
    if any(not same(expected[key], got[key]) for key in expected if key != "mean"):
        return False
    if not isinstance(b, Tensor) or b.dtype != torch.float32 or b.shape != a.shape:
        return False
    if not a.isfinite().all():
        return not b.isfinite().all()
    return torch.allclose(a, b, rtol=_TOLERANCE, atol=0)


_MEAN = Task(
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
            "zero, inf and NaN have no scale",
            "Your scale has no answer for gradients that are all zero, or for an inf or NaN.",
            _driven(_averaging(guard=False)),
            _RANGE,
        ),
    ),
)

TASKS = (_SCALE, _QUANTIZE, _MEAN)
