"""What people really write for exercise 03, and how right answers may look."""

import math

import torch

from tests.answers import right, wrong

# -- 03.1 flush_limit --------------------------------------------------------------------------


@wrong("03.1", "smallest number")
def returns_the_smallest_subnormal(e, m):
    return 2.0 ** (1 - (2 ** (e - 1) - 1) - m)


@wrong("03.1", "smallest normal")
def knows_no_subnormals(e, m):
    return 2.0 ** (1 - (2 ** (e - 1) - 1))


@wrong("03.1", "half the smallest normal")
def halves_the_smallest_normal(e, m):
    return 2.0 ** (1 - (2 ** (e - 1) - 1)) / 2


@wrong("03.1", "one power too low")
def subtracts_the_bias_from_field_zero(e, m):
    return 2.0 ** (0 - (2 ** (e - 1) - 1) - m) / 2


@wrong("03.1", "one power too low")
def takes_half_of_the_fields_for_the_bias(e, m):
    bias = 2 ** (e - 1)
    return 2.0 ** (1 - bias - m) / 2


@wrong("03.1", "just below the tie")
def stops_below_the_tie(e, m):
    tie = 2.0 ** (1 - (2 ** (e - 1) - 1) - m - 1)
    return math.nextafter(tie, 0)


@wrong("03.1", "FP16 for all")
def answers_for_fp16(e, m):
    return 2.0**-25


@wrong("03.1", "precision")
def returns_half_an_eps(e, m):
    return 2.0**-m / 2


@right("03.1")
def works_on_exponents(e, m):
    return math.ldexp(1.0, 1 - 2 ** (e - 1) + 1 - m - 1)


@right("03.1")
def answers_with_a_tensor(e, m):
    emin = 2 - 2 ** (e - 1)
    return torch.tensor(2.0, dtype=torch.float64) ** (emin - m - 1)


# -- 03.2 count_zones --------------------------------------------------------------------------


def zones(**masks):
    return {name: int(mask.sum()) for name, mask in masks.items()}


@wrong("03.2", "zeros count as flushed")
def counts_every_zero(x):
    x = x[x.isfinite()]
    q = x.half().abs()
    return zones(
        zero=x == 0,
        flushed=q == 0,
        subnormal=(q > 0) & (q < 2**-14),
        normal=(q >= 2**-14) & q.isfinite(),
        overflowed=q.isinf(),
    )


def with_thresholds(x, flushed, normal=2.0**-14 - 2.0**-25, infinite=65520.0):
    """Sort by thresholds; `flushed` is a function of the sizes."""
    x = x[x.isfinite()].abs()
    lost = flushed(x) & (x != 0)
    left = ~lost & (x != 0)
    return zones(
        zero=x == 0,
        flushed=lost,
        subnormal=left & (x < normal),
        normal=left & (x >= normal) & (x < infinite),
        overflowed=left & (x >= infinite),
    )


@wrong("03.2", "threshold at the smallest number")
def flushes_below_the_smallest_number(x):
    return with_thresholds(x, lambda size: size < 2.0**-24)


@wrong("03.2", "tie survives")
def keeps_the_tie(x):
    return with_thresholds(x, lambda size: size < 2.0**-25)


@wrong("03.2", "subnormals flushed")
def flushes_below_the_smallest_normal(x):
    return with_thresholds(x, lambda size: size < 2.0**-14)


@wrong("03.2", "overflow beyond the largest number")
def overflows_above_the_largest(x):
    return with_thresholds(x, lambda s: s <= 2.0**-25, infinite=math.nextafter(65504.0, 1e9) + 0.01)


@wrong("03.2", "overflow at a power of two")
def overflows_from_2_to_the_16(x):
    return with_thresholds(x, lambda size: size <= 2.0**-25, infinite=65536.0)


@wrong("03.2", "sign not removed")
def forgets_the_sign(x):
    x = x[x.isfinite()]
    lost = (x <= 2.0**-25) & (x != 0)
    left = (x > 2.0**-25) & (x != 0)
    return zones(
        zero=x == 0,
        flushed=lost,
        subnormal=left & (x < 2.0**-14 - 2.0**-25),
        normal=left & (x >= 2.0**-14 - 2.0**-25) & (x < 65520),
        overflowed=left & (x >= 65520),
    )


@wrong("03.2", "infinities counted")
def counts_infinities_of_the_input(x):
    q = x.half().abs()
    return zones(
        zero=x == 0,
        flushed=(q == 0) & (x != 0),
        subnormal=(q > 0) & (q < 2**-14),
        normal=(q >= 2**-14) & q.isfinite(),
        overflowed=q.isinf(),
    )


@wrong("03.2", "zone before rounding")
def sorts_before_rounding(x):
    return with_thresholds(x, lambda size: size <= 2.0**-25, normal=2.0**-14)


@right("03.2")
def sorts_by_thresholds(x):
    return with_thresholds(x, lambda size: size <= 2.0**-25)


@right("03.2")
def goes_over_the_numbers_one_by_one(x):
    counts = dict.fromkeys(("zero", "flushed", "subnormal", "normal", "overflowed"), 0)
    for value in x.flatten().tolist():
        if not math.isfinite(value):
            continue
        q = abs(torch.tensor(value).half().item())
        if value == 0:
            counts["zero"] += 1
        elif q == 0:
            counts["flushed"] += 1
        elif q < 2.0**-14:
            counts["subnormal"] += 1
        elif q <= 65504:
            counts["normal"] += 1
        else:
            counts["overflowed"] += 1
    return counts


@right("03.2")
def looks_at_the_codes_of_fp16(x):
    x = x[x.isfinite()]
    code = x.half().view(torch.int16).int() & 0x7FFF
    return {
        "zero": (x == 0).sum(),
        "flushed": (code == 0).sum() - (x == 0).sum(),
        "subnormal": ((code > 0) & (code < 0x400)).sum(),
        "normal": ((code >= 0x400) & (code < 0x7C00)).sum(),
        "overflowed": (code == 0x7C00).sum(),
    }


# -- 03.3 lost_by_layer ------------------------------------------------------------------------


@wrong("03.3", "share of all gradients")
def divides_by_all(gradients):
    return {n: ((g != 0) & (g.half() == 0)).float().mean().item() for n, g in gradients.items()}


@wrong("03.3", "zeros are lost")
def takes_the_mean_of_zeros(gradients):
    return {n: (g.half() == 0).float().mean().item() for n, g in gradients.items()}


@wrong("03.3", "zeros are lost, of the nonzero")
def divides_all_zeros_by_the_nonzero(gradients):
    return {
        n: int((g.half() == 0).sum()) / max(1, int((g != 0).sum())) for n, g in gradients.items()
    }


def share(gradients, is_lost):
    lost = {}
    for name, grad in gradients.items():
        nonzero = grad[grad != 0]
        lost[name] = is_lost(nonzero).float().mean().item() if len(nonzero) else 0.0
    return lost


@wrong("03.3", "threshold at the smallest number")
def compares_with_the_smallest_number(gradients):
    return share(gradients, lambda g: g.abs() < 2.0**-24)


@wrong("03.3", "tie survives")
def keeps_ties(gradients):
    return share(gradients, lambda g: g.abs() < 2.0**-25)


@wrong("03.3", "subnormals are lost")
def compares_with_the_smallest_normal(gradients):
    return share(gradients, lambda g: g.abs() < torch.finfo(torch.float16).tiny)


@wrong("03.3", "sign not removed")
def compares_without_abs(gradients):
    return share(gradients, lambda g: g <= 2.0**-25)


@wrong("03.3", "per cent")
def answers_in_per_cent(gradients):
    return {n: 100 * s for n, s in share(gradients, lambda g: g.half() == 0).items()}


@wrong("03.3", "counts, not shares")
def counts_the_lost(gradients):
    return {n: int(((g != 0) & (g.half() == 0)).sum()) for n, g in gradients.items()}


@wrong("03.3", "all layers as one")
def throws_all_layers_together(gradients):
    everything = torch.cat([g.flatten() for g in gradients.values()])
    nonzero = everything[everything != 0]
    lost = int((nonzero.half() == 0).sum()) / max(len(nonzero), 1)
    return dict.fromkeys(gradients, lost)


@wrong("03.3", "a dead layer divides by zero")
def divides_python_numbers(gradients):
    return {
        n: int(((g != 0) & (g.half() == 0)).sum()) / int((g != 0).sum())
        for n, g in gradients.items()
    }


@wrong("03.3", "a dead layer is NaN")
def takes_the_mean_of_nothing(gradients):
    return {n: (g[g != 0].half() == 0).float().mean().item() for n, g in gradients.items()}


@right("03.3")
def takes_means_where_there_is_something(gradients):
    return share(gradients, lambda g: g.abs() <= 2.0**-25)


@right("03.3")
def answers_with_tensors(gradients):
    return {
        n: ((g != 0) & (g.half() == 0)).sum() / (g != 0).sum().clamp(min=1)
        for n, g in gradients.items()
    }
