"""Lesson 01, *What can 16 bits hold?*: decode a code, find the ulp, fill in a range table."""

from __future__ import annotations

import math
import random

from mptutor.checks.task import Case, Misunderstanding, Task
from mptutor.formats import FP16, FloatFormat

# Headings of lesson 01 that the hints send the learner back to.
_FIELDS = "Three fields"
_SUBNORMAL = "Below the smallest normal number"
_TOP = "The last exponent"
_ULP = "The distance to the next number"
_TABLE = "Range against precision"

#: `FloatFormat` has all three answers ready.
_ANSWERS = ("mptutor.formats",)

# -- 01.1 decode_fp16 --------------------------------------------------------------------------


def _decode(code: int) -> float:
    return FP16.decode(code).value


def _decode_cases(seed: int) -> list[Case]:
    """Each region of the code space by its edges, and some codes from within."""
    edges = {
        "one": 0x3C00,
        "one and a half": 0x3E00,
        "the largest number": 0x7BFF,
        "the smallest normal number": 0x0400,
        "the smallest subnormal number": 0x0001,
        "the largest subnormal number": 0x03FF,
        "zero": 0x0000,
        "minus zero": 0x8000,
        "minus two": 0xC000,
        "a negative subnormal number": 0x8155,
        "plus infinity": 0x7C00,
        "minus infinity": 0xFC00,
        "a NaN": 0x7E00,
        "another NaN": 0x7C01,
        "a NaN with the sign set": 0xFE00,
    }
    draw = random.Random(seed)
    drawn = [draw.randrange(2**16) for _ in range(24)]
    cases = [Case(f"code 0x{code:04X}, {name}", (code,)) for name, code in edges.items()]
    return cases + [Case(f"code 0x{code:04X} = {code:016b}", (code,)) for code in drawn]


def _decode_as(
    code: int,
    *,
    sign_bit: int = 15,
    exponent_mask: int = 0x1F,
    bias: int = 15,
    hidden_bit: bool = True,
    subnormals: str = "right",
    specials: str = "right",
    signed: bool = True,
    mantissa_steps: int = 1024,
) -> float:
    """Decode as somebody would who has all of it right but what the arguments say."""
    negative = signed and bool(code >> sign_bit & 1)
    field, mantissa = code >> 10 & exponent_mask, code % 1024
    fraction = mantissa / mantissa_steps
    sign = -1.0 if negative else 1.0
    if field == exponent_mask and specials != "ignored":
        is_inf = mantissa == 0 or specials == "all infinite"
        return sign * math.inf if is_inf and specials != "all NaN" else math.nan
    if field == 0 and subnormals != "ignored":
        exponent = -bias if subnormals == "exponent 0 - bias" else 1 - bias
        return 0.0 * sign if subnormals == "zero" else sign * fraction * 2.0**exponent
    return sign * (hidden_bit + fraction) * 2.0 ** (field - bias)


def _decode_twos_complement(code: int) -> float:
    return _decode_as(code) if code < 0x8000 else -_decode_as(0x10000 - code)


_DECODE = Task(
    id="01.1",
    function="decode_fp16",
    points=3,
    withheld=_ANSWERS,
    reference=_decode,
    cases=_decode_cases,
    misunderstandings=(
        Misunderstanding(
            "no hidden bit",
            "Your significand is the mantissa field alone. Count the bits of precision that the "
            "lesson found in a normal number, and then the bits that are stored.",
            lambda code: _decode_as(code, hidden_bit=False),
            _FIELDS,
        ),
        Misunderstanding(
            "subnormals as normals",
            "Codes with an exponent field of 0 are read like all others, so you have no zero. "
            "What is different about them?",
            lambda code: _decode_as(code, subnormals="ignored"),
            _SUBNORMAL,
        ),
        Misunderstanding(
            "subnormal exponent one too low",
            "Your subnormal numbers are half of what they should be. Look at the step from the "
            "largest of them to the smallest normal number: is it an ulp?",
            lambda code: _decode_as(code, subnormals="exponent 0 - bias"),
            _SUBNORMAL,
        ),
        Misunderstanding(
            "subnormals flushed",
            "Every code with an exponent field of 0 gives zero. Some processors do that to save "
            "time, but the format does hold numbers there.",
            lambda code: _decode_as(code, subnormals="zero"),
            _SUBNORMAL,
        ),
        Misunderstanding(
            "specials as numbers",
            "The largest exponent field is read as one more power of two. In FP16 it is not used "
            "for numbers.",
            lambda code: _decode_as(code, specials="ignored"),
            _TOP,
        ),
        Misunderstanding(
            "every special infinite",
            "All codes with the largest exponent field give infinity. What does the mantissa "
            "tell apart there?",
            lambda code: _decode_as(code, specials="all infinite"),
            _TOP,
        ),
        Misunderstanding(
            "every special NaN",
            "All codes with the largest exponent field give NaN. One mantissa there means "
            "something else.",
            lambda code: _decode_as(code, specials="all NaN"),
            _TOP,
        ),
        Misunderstanding(
            "minus zero lost",
            "Only minus zero is wrong. In Python -1 * 0 is the integer 0, which has no sign: "
            "multiply floats, or use `math.copysign`.",
            lambda code: 0.0 if code == 0x8000 else _decode_as(code),
            _SUBNORMAL,
        ),
        Misunderstanding(
            "sign ignored",
            "The first bit makes no difference to your answer.",
            lambda code: _decode_as(code, signed=False),
            _FIELDS,
        ),
        Misunderstanding(
            "two's complement",
            "Negative codes are read as integers are, in two's complement. A floating-point code "
            "keeps its sign apart: flip that one bit and only the sign changes.",
            _decode_twos_complement,
            _FIELDS,
        ),
        Misunderstanding(
            "bias 16",
            "Your powers of two are off by one. Take the code of 1.0 apart: which exponent field "
            "stands for 2^0?",
            lambda code: _decode_as(code, bias=16),
            _FIELDS,
        ),
        Misunderstanding(
            "mantissa over 1023",
            "The mantissa is divided by its largest value. It counts steps from one power of two "
            "to the next: how many are there?",
            lambda code: _decode_as(code, mantissa_steps=1023),
            _FIELDS,
        ),
        Misunderstanding(
            "exponent field of the wrong width",
            "Not all bits of the exponent field arrive in your exponent, or some of another field "
            "do. Print it for the code of 1.0 and compare with the bit explorer.",
            lambda code: _decode_as(code, exponent_mask=0x3F),
            _FIELDS,
        ),
    ),
)

# -- 01.2 ulp_fp16 -----------------------------------------------------------------------------


def _ulp_cases(seed: int) -> list[Case]:
    """Both sides of powers of two, the subnormal range, the ends, negative numbers."""
    values = [1.0, 1.5, 1.9990234375, 2.0, 0.75, 0.5, 2048.0, 2047.0, 65504.0, 1000.0, 0.1]
    values += [FP16.smallest_normal, FP16.smallest_normal * 1.5, 2 * FP16.smallest_normal]
    values += [FP16.smallest_normal / 2, FP16.smallest_subnormal, 3e-6, 0.0, -1.0, -3.0, -1e-6]
    draw = random.Random(seed)
    values += [math.ldexp(draw.uniform(1, 2), draw.randrange(-20, 15)) for _ in range(16)]
    return [Case(f"x = {x!r}", (x,)) for x in values]


def _exponent(x: float) -> int:
    return math.frexp(x)[1] - 1


_ULP_TASK = Task(
    id="01.2",
    function="ulp_fp16",
    points=2,
    withheld=_ANSWERS,
    reference=FP16.ulp,
    cases=_ulp_cases,
    misunderstandings=(
        Misunderstanding(
            "ulp everywhere eps",
            "The distance is the same everywhere in your answer. Compare the neighbours of 1 and "
            "of 1000 in the bit explorer.",
            lambda x: FP16.eps,
            _ULP,
        ),
        Misunderstanding(
            "ulp proportional to x",
            "Your distance grows with every step inside a binade. The numbers between two powers "
            "of two lie evenly.",
            lambda x: FP16.eps * abs(x),
            _ULP,
        ),
        Misunderstanding(
            "no floor at the smallest normal",
            "Your distance goes on shrinking below the smallest normal number. There the numbers "
            "lie evenly down to zero.",
            lambda x: 2.0 ** (_exponent(abs(x)) - 10) if x else 0.0,
            _SUBNORMAL,
        ),
        Misunderstanding(
            "zero has no ulp",
            "Only 0 is wrong. Zero has a neighbour too.",
            lambda x: FP16.ulp(x) if x else 0.0,
            _SUBNORMAL,
        ),
        Misunderstanding(
            "zero as frexp sees it",
            "Only 0 is wrong. `frexp(0)` gives the exponent 0, as if zero lay beside 1. Which is "
            "the number next to zero?",
            lambda x: 2.0 ** (max(_exponent(x), -14) - 10),
            _SUBNORMAL,
        ),
        Misunderstanding(
            "half an ulp",
            "All of your answers are half of what is asked for. The largest error of rounding is "
            "half the distance between neighbours; here the distance is wanted.",
            lambda x: FP16.ulp(x) / 2,
            _ULP,
        ),
        Misunderstanding(
            "nearest power of two",
            "You take the power of two nearest to x. The distance depends on the binade that x "
            "lies in.",
            lambda x: (
                2.0 ** (max(round(math.log2(abs(x))), -14) - 10) if x else FP16.smallest_subnormal
            ),
            _ULP,
        ),
        Misunderstanding(
            "distance below a power of two",
            "Only powers of two are wrong. There the distance changes, and the one above is asked "
            "for.",
            lambda x: (
                FP16.ulp(x) / 2
                if math.frexp(x)[0] in (0.5, -0.5) and abs(x) > FP16.smallest_normal
                else FP16.ulp(x)
            ),
            _ULP,
        ),
        Misunderstanding(
            "sign not removed",
            "Negative numbers are treated unlike positive ones. A distance has no sign.",
            lambda x: FP16.ulp(x) if x >= 0 else -FP16.ulp(x),
            _ULP,
        ),
        Misunderstanding(
            "logarithm of a negative number",
            "Negative numbers, or zero, have no logarithm. Their neighbours are as far away as "
            "those of the positive number.",
            lambda x: 2.0 ** (max(math.floor(math.log2(x)), -14) - 10),
            _ULP,
        ),
        Misunderstanding(
            "exponent one too high",
            "Your distances are twice too large. `frexp` gives a fraction from 0.5 to 1, a "
            "significand lies between 1 and 2: is your exponent one too high?",
            lambda x: 2.0 ** (max(math.frexp(x)[1], -14) - 10) if x else FP16.smallest_subnormal,
            _ULP,
        ),
    ),
)

# -- 01.3 range_table --------------------------------------------------------------------------

_KEYS = ("max", "smallest_normal", "smallest_subnormal", "eps")


def _range_table(exponent_bits: int, mantissa_bits: int) -> dict[str, float]:
    fmt = FloatFormat("asked for", exponent_bits, mantissa_bits)
    return {key: getattr(fmt, key) for key in _KEYS}


def _range_cases(seed: int) -> list[Case]:
    known = [(5, 10), (8, 7), (8, 23), (8, 10), (5, 2), (4, 3), (3, 4), (2, 5)]
    draw = random.Random(seed)
    drawn = [(draw.randrange(2, 9), draw.randrange(1, 24)) for _ in range(6)]
    return [Case(f"{e} exponent bits, {m} mantissa bits", (e, m)) for e, m in known + drawn]


def _range_table_as(
    e: int,
    m: int,
    *,
    bias: int | None = None,
    last_exponent_used: bool = False,
    full_mantissa: bool = True,
    emin_shift: int = 0,
    subnormal_steps: int = 0,
    eps_shift: int = 0,
) -> dict[str, float]:
    """Fill in the table as somebody would who has all of it right but what the arguments say."""
    bias = 2 ** (e - 1) - 1 if bias is None else bias
    emax = 2**e - 1 - (0 if last_exponent_used else 1) - bias
    emin = 1 - bias + emin_shift
    # In whole numbers, since some of these go beyond what a float can hold.
    largest = (2 ** (m + 1) - 1) * 2**emax / 2**m if full_mantissa else 2.0 ** (emax + 1)
    return {
        "max": float(largest),
        "smallest_normal": 2.0**emin,
        "smallest_subnormal": 2.0 ** (emin - m + subnormal_steps),
        "eps": 2.0 ** (-m + eps_shift),
    }


_RANGE = Task(
    id="01.3",
    function="range_table",
    points=2,
    withheld=_ANSWERS,
    reference=_range_table,
    cases=_range_cases,
    misunderstandings=(
        Misunderstanding(
            "last exponent used for numbers",
            "Your largest number uses the last exponent field, which these formats keep for "
            "infinity and NaN.",
            lambda e, m: _range_table_as(e, m, last_exponent_used=True),
            _TOP,
        ),
        Misunderstanding(
            "largest number a power of two",
            "Your largest number is a power of two. The largest number has a full mantissa.",
            lambda e, m: _range_table_as(e, m, full_mantissa=False),
            _TOP,
        ),
        Misunderstanding(
            "exponent field 0 as a normal number",
            "Your smallest normal number has the exponent field 0. Which field do the normal "
            "numbers start with?",
            lambda e, m: _range_table_as(e, m, emin_shift=-1),
            _SUBNORMAL,
        ),
        Misunderstanding(
            "subnormal tie",
            "Your smallest subnormal number is half as large as it should be. At or below that "
            "value rounding gives zero; the smallest number itself lies above it.",
            lambda e, m: _range_table_as(e, m, subnormal_steps=-1),
            _SUBNORMAL,
        ),
        Misunderstanding(
            "no subnormals",
            "Your smallest subnormal number is normal. Which codes have an exponent field of 0?",
            lambda e, m: _range_table_as(e, m, subnormal_steps=m),
            _SUBNORMAL,
        ),
        Misunderstanding(
            "eps halved",
            "Your eps is the largest relative error of rounding, half of the distance that is "
            "asked for.",
            lambda e, m: _range_table_as(e, m, eps_shift=-1),
            _ULP,
        ),
        Misunderstanding(
            "bias without minus one",
            "Your powers of two are off by one. The bias of FP16 is 15, with 5 exponent bits.",
            lambda e, m: _range_table_as(e, m, bias=2 ** (e - 1)),
            _FIELDS,
        ),
        Misunderstanding(
            "exponent and mantissa swapped",
            "The two widths have changed places somewhere.",
            lambda e, m: _range_table_as(m, e),
            _TABLE,
        ),
    ),
)

TASKS = (_DECODE, _ULP_TASK, _RANGE)
