"""What people really write for exercise 02, and how right answers may look.

Each function is a whole answer. The decorator says which task it answers and which misunderstanding
the check must name; `right` marks unusual answers that must pass.
"""

import math
from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction

import torch
import torch.nn.functional as F

from tests.answers import right, wrong

# -- 02.1 round_to_bits ------------------------------------------------------------------------


def _step(x, bits):
    """The distance between numbers of so many significant bits around x."""
    return 2.0 ** (math.floor(math.log2(abs(x))) - bits + 1)


@wrong("02.1", "ties away from zero")
def rounds_as_at_school(x, bits):
    if x == 0:
        return 0.0
    step = _step(x, bits)
    return math.copysign(math.floor(abs(x) / step + 0.5) * step, x)


@wrong("02.1", "ties away from zero")
def lets_decimals_round_half_up(x, bits):
    f, e = math.frexp(x)
    steps = Decimal(math.ldexp(f, bits)).to_integral_value(rounding="ROUND_HALF_UP")
    return math.ldexp(float(steps), e - bits)


@wrong("02.1", "ties upwards")
def adds_a_half_and_floors(x, bits):
    if x == 0:
        return 0.0
    step = _step(x, bits)
    return math.floor(x / step + 0.5) * step


@wrong("02.1", "cut off")
def converts_to_int(x, bits):
    f, e = math.frexp(x)
    return int(f * 2**bits) * 2.0 ** (e - bits)


@wrong("02.1", "rounded down")
def divides_without_remainder(x, bits):
    if x == 0:
        return 0.0
    step = _step(x, bits)
    return x // step * step


@wrong("02.1", "bits behind the point")
def scales_by_the_bits_alone(x, bits):
    return round(x * 2**bits) / 2**bits


@wrong("02.1", "one bit too many")
def counts_the_bits_after_the_leading_one(x, bits):
    if x == 0:
        return 0.0
    step = 2.0 ** (math.floor(math.log2(abs(x))) - bits)
    return round(x / step) * step


@wrong("02.1", "one bit too few")
def thinks_frexp_starts_at_one(x, bits):
    f, e = math.frexp(x)
    return math.ldexp(round(math.ldexp(f, bits - 1)), e - bits + 1)


@wrong("02.1", "decimal digits")
def rounds_to_decimals(x, bits):
    return round(x, bits)


@wrong("02.1", "sign lost")
def takes_the_size_alone(x, bits):
    x = abs(x)
    if x == 0:
        return x
    step = _step(x, bits)
    return round(x / step) * step


@wrong("02.1", "logarithm of what is not positive")
def takes_the_logarithm_of_everything(x, bits):
    step = 2.0 ** (math.floor(math.log2(x)) - bits + 1)
    return round(x / step) * step


@right("02.1")
def adds_and_takes_away_a_large_number(x, bits):
    """The old trick: FP64 rounds to 53 bits by itself, so move the wanted place there."""
    if x == 0:
        return 0.0
    large = math.copysign(1.5 * 2.0**52 * _step(x, bits), x)
    return (x + large) - large


@right("02.1")
def works_in_fractions(x, bits):
    if x == 0:
        return x
    step = Fraction(_step(x, bits))
    below = Fraction(x) // step
    rest = Fraction(x) / step - below
    up = rest > Fraction(1, 2) or (rest == Fraction(1, 2) and below % 2 == 1)
    return float((below + up) * step)


@right("02.1")
def asks_decimal(x, bits):
    f, e = math.frexp(x)
    steps = Decimal(math.ldexp(f, bits)).to_integral_value(rounding=ROUND_HALF_EVEN)
    return torch.tensor(math.ldexp(float(steps), e - bits), dtype=torch.float64)


# -- 02.2 where_it_stops -----------------------------------------------------------------------


@wrong("02.2", "a whole ulp")
def waits_for_the_ulp_to_reach_the_term(term, mantissa_bits):
    power = 2.0**-100
    while power * 2.0**-mantissa_bits < term:
        power *= 2
    return power


@wrong("02.2", "ties move the sum")
def wants_half_an_ulp_to_exceed_the_term(term, mantissa_bits):
    power = 2.0**-100
    while power * 2.0**-mantissa_bits / 2 <= term:
        power *= 2
    return power


@wrong("02.2", "a fixed multiple of the term")
def multiplies_the_term(term, mantissa_bits):
    return term * 2 ** (mantissa_bits + 1)


@wrong("02.2", "the term over eps")
def divides_by_eps(term, mantissa_bits):
    return term / 2.0**-mantissa_bits


@wrong("02.2", "half an ulp below the term")
def takes_the_binade_of_the_term(term, mantissa_bits):
    exponent = math.floor(math.log2(term))
    return 2.0 ** (exponent + 1 + mantissa_bits)


@wrong("02.2", "nearest power of two")
def rounds_the_logarithm(term, mantissa_bits):
    return 2.0 ** round(math.log2(term * 2 ** (mantissa_bits + 1)))


@wrong("02.2", "one binade too late")
def counts_the_hidden_bit_twice(term, mantissa_bits):
    significant = mantissa_bits + 1
    return 2.0 ** (math.ceil(math.log2(term)) + significant + 1)


@wrong("02.2", "how many terms")
def counts_the_terms(term, mantissa_bits):
    stop = 2.0 ** (math.ceil(math.log2(term)) + mantissa_bits + 1)
    return stop / term


@wrong("02.2", "the number before")
def gives_the_last_sum_that_moved(term, mantissa_bits):
    stop = 2.0 ** (math.ceil(math.log2(term)) + mantissa_bits + 1)
    return stop - stop / 2 * 2.0**-mantissa_bits


@right("02.2")
def uses_a_logarithm(term, mantissa_bits):
    return 2.0 ** (math.ceil(math.log2(2 * term)) + mantissa_bits)


@right("02.2")
def comes_from_above(term, mantissa_bits):
    power = 2.0**100
    while power / 2 ** (mantissa_bits + 2) >= term:
        power /= 2
    return power


@right("02.2")
def reads_the_binary_digits(term, mantissa_bits):
    fraction, exponent = math.frexp(term)
    return 2 ** (exponent + mantissa_bits + (fraction > 0.5) + 20) / 2**20


# -- 02.3 blocked_sum --------------------------------------------------------------------------


def _running(terms, dtype):
    total = torch.zeros((), dtype=dtype)
    for term in terms:
        total = total + term
    return total


@wrong("02.3", "one running sum")
def goes_through_blocks_with_one_accumulator(x, block):
    total = torch.zeros((), dtype=x.dtype)
    for start in range(0, len(x), block):
        for term in x[start : start + block]:
            total += term
    return total


@wrong("02.3", "torch.sum in the blocks")
def sums_the_blocks_with_torch(x, block):
    return torch.stack([part.sum() for part in x.split(block)]).sum()


@wrong("02.3", "torch.sum over the blocks")
def sums_the_results_with_torch(x, block):
    parts = [_running(part, x.dtype) for part in x.split(block)]
    return torch.stack(parts).sum()


@wrong("02.3", "FP32 accumulator")
def accumulates_in_fp32(x, block):
    totals = [_running(part, torch.float32) for part in x.float().split(block)]
    return _running(totals, torch.float32).to(x.dtype)


@wrong("02.3", "last block dropped")
def reshapes_what_fits(x, block):
    full = len(x) // block
    total = torch.zeros((), dtype=x.dtype)
    for row in x[: full * block].reshape(full, block):
        total = total + _running(row, x.dtype)
    return total


@wrong("02.3", "terms dealt out")
def strides_through_x(x, block):
    parts = [_running(x[i::block], x.dtype) for i in range(block) if i < len(x)]
    return _running(parts, x.dtype)


@wrong("02.3", "number of blocks")
def makes_that_many_blocks(x, block):
    return _running([_running(part, x.dtype) for part in x.chunk(block)], x.dtype)


@wrong("02.3", "result in FP32")
def adds_to_an_fp32_zero_at_last(x, block):
    parts = [_running(part, x.dtype) for part in x.split(block)]
    return torch.zeros(()) + _running(parts, x.dtype)


@right("02.3")
def pads_and_adds_all_blocks_at_once(x, block):
    padded = F.pad(x, (0, -len(x) % block)).view(-1, block)
    of_block = torch.zeros(len(padded), dtype=x.dtype)
    for column in padded.T:
        of_block = of_block + column
    return _running(of_block, x.dtype)


@right("02.3")
def rounds_every_sum_of_floats(x, block):
    """Adding two 16-bit numbers in FP64 is exact, so rounding at once is adding in 16 bits."""
    total = 0.0
    for part in x.split(block):
        of_block = 0.0
        for term in part.tolist():
            of_block = torch.tensor(of_block + term).to(x.dtype).item()
        total = torch.tensor(total + of_block).to(x.dtype).item()
    return torch.tensor(total, dtype=x.dtype)


@right("02.3")
def works_in_place(x, block):
    total = x.new_zeros(())
    for part in torch.split(x, block):
        for i in range(1, len(part)):
            part[i] += part[i - 1]
        total += part[-1]
    return total


# -- 02.4 kahan_sum ----------------------------------------------------------------------------


@wrong("02.4", "nothing carried over")
def just_adds(x):
    return _running(x, x.dtype)


@wrong("02.4", "nothing carried over")
def starts_every_term_with_no_debt(x):
    total = torch.zeros((), dtype=x.dtype)
    for term in x:
        lost = torch.zeros((), dtype=x.dtype)
        wanted = term + lost
        larger = total + wanted
        lost = wanted - (larger - total)
        total = larger
    return total


@wrong("02.4", "wrong sign")
def turns_the_difference_round(x):
    total = lost = torch.zeros((), dtype=x.dtype)
    for term in x:
        wanted = term + lost
        larger = total + wanted
        lost = (larger - total) - wanted
        total = larger
    return total


@wrong("02.4", "old debt forgotten")
def compares_with_the_term(x):
    total = lost = torch.zeros((), dtype=x.dtype)
    for term in x:
        larger = total + (term + lost)
        arrived = larger - total
        lost = term - arrived
        total = larger
    return total


@wrong("02.4", "debt counted twice")
def gathers_and_carries(x):
    total = lost = torch.zeros((), dtype=x.dtype)
    for term in x:
        wanted = term + lost
        larger = total + wanted
        lost += wanted - (larger - total)
        total = larger
    return total


@wrong("02.4", "paid at the end")
def adds_the_lost_parts_last(x):
    total = torch.zeros((), dtype=x.dtype)
    lost = torch.zeros((), dtype=x.dtype)
    for term in x:
        larger = total + term
        lost = lost + (term - (larger - total))
        total = larger
    return total + lost


@wrong("02.4", "total changed too early")
def overwrites_the_total(x):
    total = x.new_zeros(())
    lost = x.new_zeros(())
    for term in x:
        wanted = term + lost
        old = total
        total += wanted  # in place, so that `old` is the new one
        lost = wanted - (total - old)
    return total


@wrong("02.4", "FP32 accumulator")
def accumulates_kahan_in_fp32(x):
    total = lost = torch.zeros(())
    for term in x.float():
        wanted = term + lost
        larger = total + wanted
        lost = wanted - (larger - total)
        total = larger
    return total.to(x.dtype)


@wrong("02.4", "result in FP32")
def returns_fp32(x):
    total = lost = torch.zeros((), dtype=x.dtype)
    for term in x:
        wanted = term + lost
        larger = total + wanted
        lost = wanted - (larger - total)
        total = larger
    return total.to(torch.float32)


@right("02.4")
def keeps_the_debt_with_the_other_sign(x):
    """As most textbooks write it."""
    s = c = torch.zeros((), dtype=x.dtype)
    for term in x:
        y = term - c
        t = s + y
        c = (t - s) - y
        s = t
    return s


@right("02.4")
def starts_with_the_first_term(x):
    total, lost = x[0].clone(), torch.tensor(0.0, dtype=x.dtype)
    for i in range(1, len(x)):
        wanted = x[i] + lost
        before = total.clone()
        total += wanted
        lost = wanted - (total - before)
    return total


@right("02.4")
def rounds_every_step_of_floats(x):
    def rounded(number):
        return torch.tensor(number, dtype=torch.float64).float().to(x.dtype).item()

    total = lost = 0.0
    for term in x.tolist():
        wanted = rounded(term + lost)
        larger = rounded(total + wanted)
        lost = rounded(wanted - rounded(larger - total))
        total = larger
    return torch.tensor(total, dtype=x.dtype)
