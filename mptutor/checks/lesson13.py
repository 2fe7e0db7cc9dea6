"""Lesson 13, *What lies beyond 16 bits, and beyond one device?*: scales for FP8, and a mean."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import torch
from torch import Tensor

from mptutor.checks.lesson13_mean import MEAN
from mptutor.checks.task import Case, Misunderstanding, Task
from mptutor.formats import FP8_E4M3, FP8_E5M2, FloatFormat
from mptutor.rounding import quantize

# Headings of lesson 13 that the hints send the learner back to.
_TENSOR = "One scale for a tensor"
_PAST = "A scale from the past"

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

TASKS = (_SCALE, _QUANTIZE, MEAN)
