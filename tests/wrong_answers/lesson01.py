"""What people really write for exercise 01, and how right answers may look.

Each function is a whole answer. The decorator says which task it answers and which misunderstanding
the check must name; `right` marks unusual answers that must pass.
"""

import math
import struct

import torch

from tests.answers import right, wrong

# -- 01.1 decode_fp16 --------------------------------------------------------------------------


@wrong("01.1", "no hidden bit")
def forgets_the_hidden_bit(code):
    sign, e, m = code >> 15, (code >> 10) & 31, code & 1023
    if e == 31:
        return float("nan") if m else (-1) ** sign * math.inf
    exponent = -14 if e == 0 else e - 15
    return (-1) ** sign * (m / 1024) * 2.0**exponent


@wrong("01.1", "subnormals as normals")
def knows_no_subnormals(code):
    sign, e, m = code >> 15, (code >> 10) & 31, code & 1023
    if e == 31:
        return float("nan") if m else (-1) ** sign * math.inf
    return (-1) ** sign * (1 + m / 1024) * 2.0 ** (e - 15)


@wrong("01.1", "subnormals as normals")
def special_cases_zero_alone(code):
    sign, e, m = code >> 15, (code >> 10) & 31, code & 1023
    if e == 0 and m == 0:
        return -0.0 if sign else 0.0
    if e == 31:
        return float("nan") if m else (-1) ** sign * math.inf
    return (-1) ** sign * (1 + m / 1024) * 2.0 ** (e - 15)


@wrong("01.1", "subnormal exponent one too low")
def subtracts_the_bias_from_field_zero(code):
    sign, e, m = code >> 15, (code >> 10) & 31, code & 1023
    if e == 31:
        return float("nan") if m else (-1) ** sign * math.inf
    hidden = 1 if e else 0
    return (-1) ** sign * (hidden + m / 1024) * 2.0 ** (e - 15)


@wrong("01.1", "subnormals flushed")
def flushes_subnormals(code):
    sign, e, m = code >> 15, (code >> 10) & 31, code & 1023
    if e == 0:
        return math.copysign(0.0, -sign)
    if e == 31:
        return float("nan") if m else (-1) ** sign * math.inf
    return (-1) ** sign * (1 + m / 1024) * 2.0 ** (e - 15)


@wrong("01.1", "specials as numbers")
def has_no_infinity(code):
    sign, e, m = code >> 15, (code >> 10) & 31, code & 1023
    if e == 0:
        return (-1) ** sign * (m / 1024) * 2.0**-14
    return (-1) ** sign * (1 + m / 1024) * 2.0 ** (e - 15)


@wrong("01.1", "every special infinite")
def has_no_nan(code):
    sign, e, m = code >> 15, (code >> 10) & 31, code & 1023
    if e == 31:
        return (-1) ** sign * math.inf
    if e == 0:
        return (-1) ** sign * (m / 1024) * 2.0**-14
    return (-1) ** sign * (1 + m / 1024) * 2.0 ** (e - 15)


@wrong("01.1", "every special NaN")
def has_only_nan(code):
    sign, e, m = code >> 15, (code >> 10) & 31, code & 1023
    if e == 31:
        return math.nan
    if e == 0:
        return (-1) ** sign * (m / 1024) * 2.0**-14
    return (-1) ** sign * (1 + m / 1024) * 2.0 ** (e - 15)


@wrong("01.1", "minus zero lost")
def multiplies_integers(code):
    sign, e, m = (-1) ** (code >> 15), (code >> 10) & 31, code & 1023
    if e == 31:
        return math.nan if m else sign * math.inf
    if e == 0:
        return sign * m / 1024 / 2**14
    return sign * (1 + m / 1024) * 2.0 ** (e - 15)


@wrong("01.1", "sign ignored")
def drops_the_sign(code):
    e, m = (code >> 10) & 31, code & 1023
    if e == 31:
        return math.nan if m else math.inf
    return m / 1024 * 2.0**-14 if e == 0 else (1 + m / 1024) * 2.0 ** (e - 15)


@wrong("01.1", "two's complement")
def reads_a_signed_integer(code):
    negative = code >= 0x8000
    if negative:
        code = 0x10000 - code
    e, m = (code >> 10) & 31, code & 1023
    if e == 31:
        return math.nan if m else (-math.inf if negative else math.inf)
    x = m / 1024 * 2.0**-14 if e == 0 else (1 + m / 1024) * 2.0 ** (e - 15)
    return -x if negative else x


@wrong("01.1", "bias 16")
def takes_half_of_32_for_the_bias(code):
    sign, e, m = code >> 15, (code >> 10) & 31, code & 1023
    if e == 31:
        return math.nan if m else (-1) ** sign * math.inf
    if e == 0:
        return (-1) ** sign * (m / 1024) * 2.0**-15
    return (-1) ** sign * (1 + m / 1024) * 2.0 ** (e - 16)


@wrong("01.1", "mantissa over 1023")
def divides_by_the_largest_mantissa(code):
    sign, e, m = code >> 15, (code >> 10) & 31, code & 1023
    if e == 31:
        return math.nan if m else (-1) ** sign * math.inf
    if e == 0:
        return (-1) ** sign * (m / 1023) * 2.0**-14
    return (-1) ** sign * (1 + m / 1023) * 2.0 ** (e - 15)


@wrong("01.1", "exponent field of the wrong width")
def masks_six_bits(code):
    sign, e, m = code >> 15, (code >> 10) & 63, code & 1023
    if e == 63:
        return math.nan if m else (-1) ** sign * math.inf
    if e == 0:
        return (-1) ** sign * (m / 1024) * 2.0**-14
    return (-1) ** sign * (1 + m / 1024) * 2.0 ** (e - 15)


@right("01.1")
def unpacks_with_struct(code):
    return struct.unpack("<e", struct.pack("<H", code))[0]


@right("01.1")
def walks_through_the_bits(code):
    bits = f"{code:016b}"
    sign = -1.0 if bits[0] == "1" else 1.0
    exponent = sum(2**i for i, bit in enumerate(reversed(bits[1:6])) if bit == "1")
    fraction = sum(2.0 ** -(i + 1) for i, bit in enumerate(bits[6:]) if bit == "1")
    if exponent == 31:
        return sign * float("inf") if fraction == 0 else float("nan")
    return (
        sign * fraction * 2**-14 if exponent == 0 else sign * (1 + fraction) * 2 ** (exponent - 15)
    )


@right("01.1")
def answers_with_a_tensor(code):
    return torch.tensor([code], dtype=torch.int32).to(torch.uint16).view(torch.float16).double()


# -- 01.2 ulp_fp16 -----------------------------------------------------------------------------


@wrong("01.2", "ulp everywhere eps")
def thinks_eps_is_everywhere(x):
    return 2.0**-10


@wrong("01.2", "ulp proportional to x")
def multiplies_eps_by_x(x):
    return abs(x) * 2.0**-10


@wrong("01.2", "no floor at the smallest normal")
def goes_on_below_the_smallest_normal(x):
    if x == 0:
        return 0.0
    return 2.0 ** (math.floor(math.log2(abs(x))) - 10)


@wrong("01.2", "zero has no ulp")
def gives_zero_no_neighbour(x):
    if x == 0:
        return 0.0
    return max(2.0 ** (math.floor(math.log2(abs(x))) - 10), 2.0**-24)


@wrong("01.2", "zero as frexp sees it")
def asks_frexp_about_zero(x):
    return 2.0 ** (max(math.frexp(x)[1] - 1, -14) - 10)


@wrong("01.2", "half an ulp")
def gives_the_rounding_error(x):
    e = max(math.frexp(x)[1] - 1, -14) if x else -14
    return 2.0 ** (e - 11)


@wrong("01.2", "nearest power of two")
def rounds_the_logarithm(x):
    if x == 0:
        return 2.0**-24
    return 2.0 ** (max(round(math.log2(abs(x))), -14) - 10)


@wrong("01.2", "distance below a power of two")
def looks_down_at_powers_of_two(x):
    x = abs(x)
    if x < 2.0**-13:
        return 2.0**-24
    mantissa, e = math.frexp(x)
    return 2.0 ** (e - 1 - 10 - (mantissa == 0.5))


@wrong("01.2", "sign not removed")
def gives_negative_distances(x):
    e = max(math.frexp(x)[1] - 1, -14) if x else -14
    return math.copysign(2.0 ** (e - 10), x)


@wrong("01.2", "logarithm of a negative number")
def takes_the_logarithm_of_everything(x):
    return 2.0 ** (max(math.floor(math.log2(x)), -14) - 10)


@wrong("01.2", "exponent one too high")
def counts_from_frexp(x):
    if x == 0:
        return 2.0**-24
    return 2.0 ** (max(math.frexp(x)[1], -14) - 10)


@right("01.2")
def takes_the_larger_of_two(x):
    x = abs(x)
    return max(2.0 ** (math.floor(math.log2(x)) - 10), 2.0**-24) if x else 2.0**-24


@right("01.2")
def asks_for_the_next_code(x):
    below = torch.tensor(abs(x), dtype=torch.float64)
    codes = torch.arange(0x7C01, dtype=torch.int16).view(torch.float16).double()
    codes[-1] = 65536.0
    i = int(torch.searchsorted(codes, below, right=True)) - 1
    return float(codes[i + 1] - codes[i])


@right("01.2")
def searches_with_a_loop(x):
    power = 2.0**-14
    while power * 2 <= abs(x):
        power *= 2
    return power / 1024


# -- 01.3 range_table --------------------------------------------------------------------------


def _table(largest, smallest_normal, smallest_subnormal, eps):
    return {
        "max": largest,
        "smallest_normal": smallest_normal,
        "smallest_subnormal": smallest_subnormal,
        "eps": eps,
    }


@wrong("01.3", "last exponent used for numbers")
def forgets_the_reserved_exponent(e, m):
    bias = 2 ** (e - 1) - 1
    largest = (2 - 2.0**-m) * math.ldexp(1.0, min(2**e - 1 - bias, 1000))
    return _table(largest, 2.0 ** (1 - bias), 2.0 ** (1 - bias - m), 2.0**-m)


@wrong("01.3", "largest number a power of two")
def forgets_the_full_mantissa(e, m):
    bias = 2 ** (e - 1) - 1
    return _table(2.0 ** (bias + 1), 2.0 ** (1 - bias), 2.0 ** (1 - bias - m), 2.0**-m)


@wrong("01.3", "exponent field 0 as a normal number")
def starts_with_field_zero(e, m):
    bias = 2 ** (e - 1) - 1
    return _table((2 - 2.0**-m) * 2.0**bias, 2.0**-bias, 2.0 ** (-bias - m), 2.0**-m)


@wrong("01.3", "subnormal tie")
def takes_the_flush_limit(e, m):
    bias = 2 ** (e - 1) - 1
    return _table((2 - 2.0**-m) * 2.0**bias, 2.0 ** (1 - bias), 2.0 ** (-bias - m), 2.0**-m)


@wrong("01.3", "no subnormals")
def ends_at_the_smallest_normal(e, m):
    bias = 2 ** (e - 1) - 1
    return _table((2 - 2.0**-m) * 2.0**bias, 2.0 ** (1 - bias), 2.0 ** (1 - bias), 2.0**-m)


@wrong("01.3", "eps halved")
def gives_the_unit_roundoff(e, m):
    bias = 2 ** (e - 1) - 1
    emin = 1 - bias
    return _table((2 - 2.0**-m) * 2.0**bias, 2.0**emin, 2.0 ** (emin - m), 2.0 ** -(m + 1))


@wrong("01.3", "bias without minus one")
def forgets_the_minus_one(e, m):
    bias = 2 ** (e - 1)
    emax = 2**e - 2 - bias
    return _table((2 - 2.0**-m) * 2.0**emax, 2.0 ** (1 - bias), 2.0 ** (1 - bias - m), 2.0**-m)


@wrong("01.3", "exponent and mantissa swapped")
def swaps_the_widths(e, m):
    e, m = m, e
    bias = 2 ** (e - 1) - 1
    return _table((2 - 2.0**-m) * 2.0**bias, 2.0 ** (1 - bias), 2.0 ** (1 - bias - m), 2.0**-m)


@right("01.3")
def works_in_whole_numbers(e, m):
    emax = 2 ** (e - 1) - 1
    largest = (2 ** (m + 1) - 1) * 2**emax / 2**m
    return _table(largest, 2.0 ** (1 - emax), 2.0 ** (1 - emax - m), 1 / 2**m)


@right("01.3")
def adds_up_the_mantissa(e, m):
    bias = 2 ** (e - 1) - 1
    significand = sum(2.0**-i for i in range(m + 1))
    smallest = 1.0
    for _ in range(bias - 1 + m):
        smallest /= 2
    return _table(significand * 2.0**bias, 2.0 ** (1 - bias), smallest, 2.0**-m)


@right("01.3")
def answers_with_tensors(e, m):
    bias = 2 ** (e - 1) - 1
    limits = ((2 - 2.0**-m) * 2.0**bias, 2.0 ** (1 - bias), 2.0 ** (1 - bias - m), 2.0**-m)
    return _table(*(torch.tensor(limit, dtype=torch.float64) for limit in limits))
