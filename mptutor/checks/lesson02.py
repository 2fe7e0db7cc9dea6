"""Lesson 02, *Why does a sum stop growing?*: round, say where a sum stops, add up in two ways."""

from __future__ import annotations

import math
import random

from mptutor.checks.lesson02_sums import BLOCKED, KAHAN
from mptutor.checks.task import Case, Misunderstanding, Task

# Headings of lesson 02 that the hints send the learner back to.
_LAST_TERM = "The last term that counts"
_BINADES = "Wrong long before it stops"
_RATIO = "Small numbers are not to blame"
_MODES = "Which way to round"

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

TASKS = (_ROUND, _STOP, BLOCKED, KAHAN)
