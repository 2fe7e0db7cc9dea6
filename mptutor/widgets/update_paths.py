"""What becomes of a weight when updates arrive, step by step: the update grid's arithmetic.

An update is an FP32 number, as an optimizer computes it. ``weight + update`` is exact before it is
rounded once: in FP64, since a weight starts at most 2^26 times as large as its update. The view's
``update_paths.js`` computes the same, and for stochastic rounding draws from the same numbers.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import lru_cache

from mptutor.formats import BF16, FP8_E4M3, FP8_E5M2, FP16, FP32, FloatFormat
from mptutor.scaler_state import to_fp32
from mptutor.widgets.typed_numbers import read_number

FORMATS = (FP32, FP16, BF16, FP8_E4M3, FP8_E5M2)

#: How a weight is kept from step to step: in its format, rounded to nearest or at random, or made
#: anew from an FP32 master copy.
WAYS = ("nearest", "stochastic", "master")

STEPS = 1000
STOCHASTIC_RUNS = 6

#: Where every format above has normal numbers.
SMALLEST_WEIGHT, LARGEST_WEIGHT = 2.0**-6, 2.0
SMALLEST_RATIO, LARGEST_RATIO = 2.0, 2.0**26

#: Chances are compared with these, which are whole 65536ths.
DRAW_STEPS = 2**16
_dice = random.Random(4)
DRAWS = [[_dice.randrange(DRAW_STEPS) for _ in range(STEPS)] for _ in range(STOCHASTIC_RUNS)]


@dataclass(frozen=True)
class Landing:
    """Where ``wanted`` lies on the grid of a format.

    ``below`` and ``above`` are the numbers on either side, equal if the format holds it;
    ``nearest`` is the one that nearest-even rounding takes; ``fraction`` is how far ``wanted`` is
    on the way from one to the other, and so the chance that stochastic rounding goes up.
    """

    wanted: float
    below: float
    above: float
    nearest: float
    fraction: float


def land(wanted: float, fmt: FloatFormat) -> Landing:
    """Find the numbers of ``fmt`` around ``wanted``; beyond the largest that one is taken."""
    wanted = min(max(wanted, -fmt.max), fmt.max)
    ulp = fmt.ulp(wanted)
    steps = wanted / ulp
    below, above = math.floor(steps), math.ceil(steps)
    return Landing(wanted, below * ulp, above * ulp, round(steps) * ulp, steps - below)


def cut_off(weight: float, update: float, fmt: FloatFormat) -> float:
    """Return the ratio |weight / update| from which on ``update`` is swallowed.

    Half way to the neighbour in the update's direction; whether the tie itself still counts depends
    on which of the two is even.
    """
    below, above = fmt.neighbours(weight)
    gap = above - weight if update > 0 else weight - below
    return abs(weight) / ((gap if math.isfinite(gap) else fmt.ulp(weight)) / 2)


@lru_cache(maxsize=64)
def path(
    fmt: FloatFormat, way: str, start: float, update: float, run: int = 0
) -> tuple[tuple[float, float], ...]:
    """Apply the update `STEPS` times: (held, weight) before the first step and after each."""
    held = weight = start
    points = [(held, weight)]
    for draw in DRAWS[run]:
        if way == "master":
            held = land(held + update, FP32).nearest
            weight = land(held, fmt).nearest
        else:
            landing = land(held + update, fmt)
            goes_up = (draw + 0.5) / DRAW_STEPS < landing.fraction
            by_chance = landing.above if goes_up else landing.below
            held = weight = landing.nearest if way == "nearest" else by_chance
        points.append((held, weight))
    return tuple(points)


# -- what was typed ------------------------------------------------------------------------------


def read_inputs(weight_text: str, update_text: str) -> tuple[float, float, str]:
    """Return weight and update in FP32, within the limits, and what was wrong with the texts.

    A text that is no number stands for 1, or for a 5000th of the weight.
    """
    weight, problem = _read(weight_text, "weight", 1.0)
    if not SMALLEST_WEIGHT <= weight <= LARGEST_WEIGHT:
        problem = problem or f"The weight is {weight_text}; allowed is 2^-6 to 2."
        weight = min(max(weight, SMALLEST_WEIGHT), LARGEST_WEIGHT)
    update, update_problem = _read(update_text, "update", -weight / 5000)
    size = min(max(abs(update), weight / LARGEST_RATIO), weight / SMALLEST_RATIO)
    if size != abs(update):
        update_problem = update_problem or (
            f"The update is {update_text}; allowed is a half to 2^-26 of the weight, up or down."
        )
        update = math.copysign(size, update)
    problem = problem or update_problem
    return weight, to_fp32(update), f"{problem} Shown is the nearest." if problem else ""


def _read(text: str, name: str, otherwise: float) -> tuple[float, str]:
    try:
        number = read_number(text)
    except ValueError as error:
        return otherwise, f"{name.capitalize()}: {error}"
    if math.isfinite(number):
        return to_fp32(number), ""
    return otherwise, f"The {name} is {text}; it has to be finite."
