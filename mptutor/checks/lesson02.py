"""Lesson 02, *Why does a sum stop growing?*: round, say where a sum stops, add up in two ways."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import torch
from torch import Tensor

from mptutor.checks.task import Case, Misunderstanding, Task

# Headings of lesson 02 that the hints send the learner back to.
_RUNNING = "Ten thousand hundredths"
_LAST_TERM = "The last term that counts"
_BINADES = "Wrong long before it stops"
_RATIO = "Small numbers are not to blame"
_MODES = "Which way to round"
_WIDER = "A wider accumulator"
_REPAIRS = "Without a wider accumulator"

# -- 02.1 round_to_bits ------------------------------------------------------------------------


def _round(x: float, bits: int) -> float:
    fraction, exponent = math.frexp(x)
    return math.ldexp(round(math.ldexp(fraction, bits)), exponent - bits)


def _round_as(x: float, bits: int, to_integer) -> float:
    """Round as somebody would who counts the steps rightly and rounds them with ``to_integer``."""
    fraction, exponent = math.frexp(x)
    return math.ldexp(to_integer(math.ldexp(fraction, bits)), exponent - bits)


def _half_away(steps: float) -> float:
    return math.copysign(math.floor(abs(steps) + 0.5), steps)


def _round_cases(seed: int) -> list[Case]:
    """Ties of both parities and signs, numbers that fit, all sizes, the next power of two."""
    ties = [(5.0, 2), (7.0, 2), (9.0, 3), (11.0, 3), (2.5, 2), (3.5, 2), (-5.0, 2), (-7.0, 2)]
    ties += [(-2.5, 2), (-9.0, 3), (2049.0, 11), (2051.0, 11), (257.0, 8), (1 + 2.0**-11, 11)]
    others = [(1.5, 2), (1.0, 1), (0.1, 11), (0.1, 8), (0.1, 24), (1 / 3, 11), (-1 / 3, 8)]
    others += [(0.0, 11), (1e-10, 11), (-1e10, 8), (0.01, 11), (3e38, 8), (1000.3, 4)]
    draw = random.Random(seed)
    drawn = [
        (math.ldexp(draw.uniform(-1, 1), draw.randrange(-40, 40)), draw.randrange(1, 25))
        for _ in range(16)
    ]
    drawn_ties = [
        (math.ldexp(2 * draw.randrange(64, 128) + 1, draw.randrange(-9, 9)), 7) for _ in range(6)
    ]
    every = ties + others + drawn + drawn_ties
    return [Case(f"x = {x!r}, bits = {bits}", (x, bits)) for x, bits in every]


_ROUND = Task(
    id="02.1",
    function="round_to_bits",
    points=2,
    reference=_round,
    cases=_round_cases,
    misunderstandings=(
        Misunderstanding(
            "ties away from zero",
            "Only ties are wrong: half way between two numbers you always take the larger one. "
            "Which neighbour has the even count of steps?",
            lambda x, bits: _round_as(x, bits, _half_away),
            _LAST_TERM,
        ),
        Misunderstanding(
            "ties upwards",
            "Only ties are wrong: you add a half and round down, so half way goes up, for "
            "negative numbers toward zero. Which neighbour has the even count of steps?",
            lambda x, bits: _round_as(x, bits, lambda steps: math.floor(steps + 0.5)),
            _LAST_TERM,
        ),
        Misunderstanding(
            "cut off",
            "Whatever does not fit is cut off, so that you take the neighbour toward zero, also "
            "where the other one is nearer.",
            lambda x, bits: _round_as(x, bits, math.trunc),
            _MODES,
        ),
        Misunderstanding(
            "rounded down",
            "You always take the lower neighbour, also where the upper one is nearer.",
            lambda x, bits: _round_as(x, bits, math.floor),
            _MODES,
        ),
        Misunderstanding(
            "bits behind the point",
            "Your steps have the same size for large and small numbers. Significant bits are "
            "counted from the first 1 of the number, wherever that is.",
            lambda x, bits: math.ldexp(round(math.ldexp(x, bits)), -bits),
            _BINADES,
        ),
        Misunderstanding(
            "one bit too many",
            "Your numbers keep one significant bit more than asked for. Does the count include "
            "the hidden bit?",
            lambda x, bits: _round(x, bits + 1),
            _BINADES,
        ),
        Misunderstanding(
            "one bit too few",
            "Your numbers keep one significant bit less than asked for. frexp's fraction starts "
            "at a half, not at one.",
            lambda x, bits: _round(x, bits - 1),
            _BINADES,
        ),
        Misunderstanding(
            "decimal digits",
            "You round to decimal digits. Bits count halves, quarters, eighths.",
            lambda x, bits: round(x, bits),
            _BINADES,
        ),
        Misunderstanding(
            "sign lost",
            "Negative numbers come out positive.",
            lambda x, bits: _round(abs(x), bits),
            _MODES,
        ),
        Misunderstanding(
            "logarithm of what is not positive",
            "Zero and negative numbers have no logarithm. Take zero aside, and the sign apart; "
            "or let frexp do it.",
            lambda x, bits: _round(x, bits) if math.log2(x) < math.inf else 0.0,
            _BINADES,
        ),
    ),
)

# -- 02.2 where_it_stops -----------------------------------------------------------------------


def _ceil_log2(x: float) -> int:
    fraction, exponent = math.frexp(x)
    return exponent - (fraction == 0.5)


def _floor_log2(x: float) -> int:
    return math.frexp(x)[1] - 1


def _stop(term: float, mantissa_bits: int) -> float:
    return 2.0 ** (_ceil_log2(term) + mantissa_bits + 1)


def _stop_cases(seed: int) -> list[Case]:
    """Take the lesson's sums, powers of two and what is beside them, and terms of any format."""
    known = [(1.0, 10), (1.0, 7), (1.0, 23), (1.0, 3), (0.25, 10), (8.0, 7), (2.0**-12, 23)]
    known += [(_round(0.01, 11), 10), (_round(0.01, 8), 7), (_round(0.1, 11), 10), (3.0, 10)]
    known += [(1.5, 7), (1 + 2.0**-10, 10), (2 - 2.0**-10, 10), (5.0, 3), (1.75, 2)]
    draw = random.Random(seed)
    for _ in range(10):
        bits = draw.randrange(2, 24)
        known.append((_round(math.ldexp(draw.uniform(0.5, 1), draw.randrange(-9, 9)), bits), bits))
    return [Case(f"term = {t!r}, mantissa_bits = {m}", (t, m)) for t, m in known]


_STOP = Task(
    id="02.2",
    function="where_it_stops",
    points=2,
    reference=_stop,
    cases=_stop_cases,
    misunderstandings=(
        Misunderstanding(
            "a whole ulp",
            "You stop where the ulp reaches the term. A term smaller than an ulp may still be "
            "rounded up: from which part of an ulp on?",
            lambda t, m: 2.0 ** (_ceil_log2(t) + m),
            _LAST_TERM,
        ),
        Misunderstanding(
            "ties move the sum",
            "Only terms that are a power of two are wrong. For them half an ulp is exactly the "
            "term: where does the tie go?",
            lambda t, m: 2.0 ** (_floor_log2(t) + m + 2),
            _LAST_TERM,
        ),
        Misunderstanding(
            "a fixed multiple of the term",
            "You multiply the term by a fixed ratio. The ulp changes at powers of two only, so "
            "that is where a sum can stop.",
            lambda t, m: t * 2.0 ** (m + 1),
            _BINADES,
        ),
        Misunderstanding(
            "the term over eps",
            "You divide the term by eps. That is where an ulp has about the size of the term, "
            "and a term of one ulp still counts.",
            lambda t, m: t * 2.0**m,
            _LAST_TERM,
        ),
        Misunderstanding(
            "half an ulp below the term",
            "Your sum stops one power of two too early unless the term is a power of two: half "
            "an ulp is still less than the term there.",
            lambda t, m: 2.0 ** (_floor_log2(t) + m + 1),
            _LAST_TERM,
        ),
        Misunderstanding(
            "nearest power of two",
            "You round the logarithm of the term to the nearest. Half an ulp must be at least the "
            "term, however near a smaller power of two may be.",
            lambda t, m: 2.0 ** (round(math.log2(t)) + m + 1),
            _LAST_TERM,
        ),
        Misunderstanding(
            "one binade too late",
            "Your sum stops at twice the right value. Check it by hand with ones in FP16: what is "
            "2048 + 1?",
            lambda t, m: 2.0 ** (_ceil_log2(t) + m + 2),
            _LAST_TERM,
        ),
        Misunderstanding(
            "how many terms",
            "You give how often the term fits into the sum. Asked for is the sum itself.",
            lambda t, m: _stop(t, m) / t,
            _RATIO,
        ),
        Misunderstanding(
            "the number before",
            "You give the last number that the sum still leaves. Asked for is where it stays.",
            lambda t, m: _stop(t, m) - 2.0 ** _ceil_log2(t),
            _LAST_TERM,
        ),
    ),
)

# -- 02.3 blocked_sum --------------------------------------------------------------------------


def _add_up(terms: Iterable[Tensor], dtype: torch.dtype) -> Tensor:
    total = torch.zeros((), dtype=dtype)
    for term in terms:
        total = total + term
    return total


def _blocked(x: Tensor, block: int) -> Tensor:
    return _add_up((_add_up(part, x.dtype) for part in x.split(block)), x.dtype)


def _terms(n: int, dtype: torch.dtype, seed: int, low: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (low + (1 - low) * torch.rand(n, generator=generator)).to(dtype)


def _name(dtype: torch.dtype) -> str:
    return {torch.float16: "FP16", torch.bfloat16: "BF16"}[dtype]


def _blocked_cases(seed: int) -> list[Case]:
    """Make blocks that fit and that do not, of one term and of all; both signs show more digits."""
    fp16, bf16 = torch.float16, torch.bfloat16
    kinds = [(10, 3, fp16, 0), (800, 100, fp16, 0), (800, 30, fp16, -1), (800, 30, bf16, -1)]
    kinds += [(697, 50, bf16, -1), (300, 1, bf16, 0), (300, 300, bf16, 0), (200, 500, fp16, -1)]
    kinds += [(720, 16, bf16, -1), (720, 7, fp16, -1), (500, 20, bf16, 0)]
    return [
        Case(
            f"{n} random terms of {_name(dtype)} from {low} to 1, blocks of {block}",
            (_terms(n, dtype, 100 * seed + i, low), block),
        )
        for i, (n, block, dtype, low) in enumerate(kinds)
    ]


_BLOCKED = Task(
    id="02.3",
    function="blocked_sum",
    points=2,
    reference=_blocked,
    cases=_blocked_cases,
    misunderstandings=(
        Misunderstanding(
            "one running sum",
            "That is a single running sum: the blocks make no difference to it. Each block needs "
            "an accumulator of its own.",
            lambda x, block: _add_up(x, x.dtype),
            _REPAIRS,
        ),
        Misunderstanding(
            "torch.sum in the blocks",
            "`sum` adds up in FP32 inside and rounds once. Here every partial sum is to be "
            "rounded.",
            lambda x, block: torch.stack([part.sum() for part in x.split(block)]).sum(),
            _WIDER,
        ),
        Misunderstanding(
            "torch.sum over the blocks",
            "The sum over the blocks adds up in FP32 inside. It is to be a running sum in the "
            "dtype of x, too.",
            lambda x, block: torch.stack([_add_up(p, x.dtype) for p in x.split(block)]).sum(),
            _WIDER,
        ),
        Misunderstanding(
            "FP32 accumulator",
            "Your partial sums are kept in more bits than x has. That is the better repair, but "
            "blocks are for where you cannot have it.",
            lambda x, block: _blocked(x.float(), block).to(x.dtype),
            _WIDER,
        ),
        Misunderstanding(
            "last block dropped",
            "The terms behind the last full block are missing.",
            lambda x, block: _blocked(x[: len(x) // block * block], block),
            _REPAIRS,
        ),
        Misunderstanding(
            "terms dealt out",
            "Your blocks take every so-maniest term. A block is made of neighbours.",
            lambda x, block: _add_up(
                (_add_up(x[i::block], x.dtype) for i in range(min(block, len(x)))), x.dtype
            ),
            _REPAIRS,
        ),
        Misunderstanding(
            "number of blocks",
            "You take `block` for the number of blocks. It is the number of terms in each.",
            lambda x, block: _blocked(x, -(-len(x) // block)),
            _REPAIRS,
        ),
        Misunderstanding(
            "result in FP32",
            "The value is right, its dtype is not: an accumulator made without a dtype is FP32.",
            lambda x, block: _blocked(x, block).float(),
            _RUNNING,
        ),
    ),
)

# -- 02.4 kahan_sum ----------------------------------------------------------------------------


def _kahan(x: Tensor) -> Tensor:
    total = lost = torch.zeros((), dtype=x.dtype)
    for term in x:
        wanted = term + lost
        larger = total + wanted
        lost, total = wanted - (larger - total), larger
    return total


def _kahan_wrong_sign(x: Tensor) -> Tensor:
    total = lost = torch.zeros((), dtype=x.dtype)
    for term in x:
        wanted = term - lost
        larger = total + wanted
        lost, total = wanted - (larger - total), larger
    return total


def _kahan_forgets_what_it_owed(x: Tensor) -> Tensor:
    total = lost = torch.zeros((), dtype=x.dtype)
    for term in x:
        larger = total + (term + lost)
        lost, total = term - (larger - total), larger
    return total


def _kahan_owes_twice(x: Tensor) -> Tensor:
    total = lost = torch.zeros((), dtype=x.dtype)
    for term in x:
        wanted = term + lost
        larger = total + wanted
        lost, total = lost + (wanted - (larger - total)), larger
    return total


def _kahan_pays_at_the_end(x: Tensor) -> Tensor:
    total = lost = torch.zeros((), dtype=x.dtype)
    for term in x:
        larger = total + term
        lost, total = lost + (term - (larger - total)), larger
    return total + lost


def _kahan_measures_too_late(x: Tensor) -> Tensor:
    total = lost = torch.zeros((), dtype=x.dtype)
    for term in x:
        wanted = term + lost
        total = total + wanted
        lost = wanted - (total - total)
    return total


def _kahan_cases(seed: int) -> list[Case]:
    """Make sums that would stall, random ones, a single term, and some with large terms in them.

    Beside a large term part of the compensation is lost too. That tells Kahan's sum from one with a
    wider accumulator.
    """
    fp16, bf16 = torch.float16, torch.bfloat16
    hundredths = {n: torch.full((n,), 0.01) for n in (600, 3500)}
    cases = [
        Case("600 times 0.01 in BF16", (hundredths[600].to(bf16),)),
        Case("3500 times 0.01 in FP16", (hundredths[3500].to(fp16),)),
    ]
    kinds = [(300, bf16, 0, 1), (1500, fp16, 0, 1), (700, bf16, -1, 1), (700, fp16, -1, 1)]
    kinds += [(700, bf16, -1, 500), (700, fp16, -1, 5000), (400, bf16, -1, 900), (1, fp16, 0, 1)]
    for i, (n, dtype, low, larger) in enumerate(kinds):
        x = _terms(n, torch.float32, 200 * seed + i, low)
        x[::7] *= larger
        label = f"{n} random terms of {_name(dtype)} from {low} to 1"
        label += f", every seventh times {larger}" if larger > 1 else ""
        cases.append(Case(label, (x.to(dtype),)))
    return cases


_KAHAN = Task(
    id="02.4",
    function="kahan_sum",
    points=3,
    reference=_kahan,
    cases=_kahan_cases,
    misunderstandings=(
        Misunderstanding(
            "nothing carried over",
            "That is the running sum: what an addition loses does not reach the next one. Print "
            "your lost part for 32 + 0.01 in FP16; it should not be 0.",
            lambda x: _add_up(x, x.dtype),
            _REPAIRS,
        ),
        Misunderstanding(
            "wrong sign",
            "What was lost is taken away from the next term. It is still owed to the sum.",
            _kahan_wrong_sign,
            _REPAIRS,
        ),
        Misunderstanding(
            "old debt forgotten",
            "You compare what arrived with the term alone. What was to arrive is the term and "
            "what was owed before.",
            _kahan_forgets_what_it_owed,
            _REPAIRS,
        ),
        Misunderstanding(
            "debt counted twice",
            "Your lost parts pile up although each has been added to the next term already.",
            _kahan_owes_twice,
            _REPAIRS,
        ),
        Misunderstanding(
            "paid at the end",
            "You gather all lost parts and add them at the end. That is another algorithm, and "
            "its second sum may stall as well; here each part goes into the very next term.",
            _kahan_pays_at_the_end,
            _REPAIRS,
        ),
        Misunderstanding(
            "total changed too early",
            "What arrived is the difference between the new and the old total. You have "
            "overwritten the old one by then.",
            _kahan_measures_too_late,
            _REPAIRS,
        ),
        Misunderstanding(
            "FP32 accumulator",
            "Your partial sums are kept in more bits than x has. That is the better repair; here "
            "it must go without.",
            lambda x: _add_up(x.float(), torch.float32).to(x.dtype),
            _WIDER,
        ),
        Misunderstanding(
            "result in FP32",
            "The value is right, its dtype is not.",
            lambda x: _kahan(x).float(),
            _RUNNING,
        ),
    ),
)

TASKS = (_ROUND, _STOP, _BLOCKED, _KAHAN)
