"""What people really write for exercise 13, and how right answers may look."""

import math

import torch

import mptutor as mpt
from tests.answers import right, wrong

# -- 13.1 scale_from --------------------------------------------------------------------------


def useful(history):
    return [amax for amax in history if math.isfinite(amax) and amax > 0]


def fitting(amax):
    return 2.0 ** math.floor(math.log2(448 / amax))


@wrong("13.1", "no power of two")
def exactly_448(history):
    return 448 / max(useful(history)) if useful(history) else 1.0


@wrong("13.1", "no power of two")
def asks_the_format(history):
    amax = max(useful(history), default=mpt.FP8_E4M3.max)
    return mpt.FP8_E4M3.max / amax


@wrong("13.1", "rounded up")
def rounds_up(history):
    amaxes = useful(history)
    return 2.0 ** math.ceil(math.log2(448 / max(amaxes))) if amaxes else 1.0


@wrong("13.1", "rounded to nearest")
def rounds_the_power(history):
    amaxes = useful(history)
    return 2.0 ** round(math.log2(448 / max(amaxes))) if amaxes else 1.0


@wrong("13.1", "top binade")
def like_mx(history):
    amaxes = useful(history)
    if not amaxes:
        return 1.0
    shared_exponent = math.floor(math.log2(max(amaxes))) - 8
    return 2.0**-shared_exponent


@wrong("13.1", "448 does not fit")
def stays_below(history):
    amaxes = useful(history)
    if not amaxes:
        return 1.0
    scale = 2.0**40
    while max(amaxes) * scale >= 448:
        scale /= 2
    return scale


@wrong("13.1", "upside down")
def the_mx_way_round(history):
    amaxes = useful(history)
    return 1 / fitting(max(amaxes)) if amaxes else 1.0


@wrong("13.1", "another format")
def remembers_e5m2(history):
    amaxes = useful(history)
    return 2.0 ** math.floor(math.log2(57344 / max(amaxes))) if amaxes else 1.0


@wrong("13.1", "last step alone")
def most_recent(history):
    amaxes = useful(history)
    return fitting(amaxes[-1]) if amaxes else 1.0


@wrong("13.1", "mean of the history")
def averages(history):
    amaxes = useful(history)
    return fitting(sum(amaxes) / len(amaxes)) if amaxes else 1.0


@wrong("13.1", "smallest of the history")
def takes_the_minimum(history):
    return fitting(min(useful(history))) if useful(history) else 1.0


@wrong("13.1", "zeros and infinities count")
def trusts_the_history(history):
    return 2.0 ** math.floor(math.log2(448 / max(history)))


@right("13.1")
def by_halving(history):
    amax = max((a for a in history if 0 < a < math.inf), default=None)
    if amax is None:
        return 1
    scale = 2.0**100
    while amax * scale > 448:
        scale /= 2
    return scale


@right("13.1")
def in_tensors(history):
    amaxes = torch.tensor(history, dtype=torch.float64)
    amaxes = amaxes[amaxes.isfinite() & (amaxes > 0)]
    if len(amaxes) == 0:
        return torch.tensor(1.0)
    return torch.exp2(torch.floor(torch.log2(448 / amaxes.max())))


# -- 13.2 quantize_delayed --------------------------------------------------------------------


def by_history(history):
    return fitting(max(useful(history))) if useful(history) else 1.0


def e4m3(x):
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).float()


def appended(history, x, length):
    return [*history, float(x.abs().max())][-length:]


@wrong("13.2", "current scaling")
def remembers_first(x, history, length):
    history = appended(history, x, length)
    scale = by_history(history)
    return e4m3(x * scale), scale, history


@wrong("13.2", "amax of the scaled tensor")
def remembers_the_scaled(x, history, length):
    scale = by_history(history)
    x = x * scale
    return e4m3(x), scale, appended(history, x, length)


@wrong("13.2", "amax of the rounded tensor")
def remembers_the_clipped(x, history, length):
    scale = by_history(history)
    x_q = e4m3(x * scale)
    return x_q, scale, appended(history, x_q / scale, length)


@wrong("13.2", "sign not removed")
def forgets_abs(x, history, length):
    scale = by_history(history)
    return e4m3(x * scale), scale, [*history, x.max().item()][-length:]


@wrong("13.2", "history without an end")
def never_forgets(x, history, length):
    scale = by_history(history)
    history.append(x.abs().max().item())
    return e4m3(x * scale), scale, history


@wrong("13.2", "forgets the newest")
def cuts_the_wrong_end(x, history, length):
    scale = by_history(history)
    return e4m3(x * scale), scale, [*history, x.abs().max().item()][:length]


@wrong("13.2", "scaled back")
def returns_what_it_stands_for(x, history, length):
    scale = by_history(history)
    return e4m3(x * scale) / scale, scale, appended(history, x, length)


@wrong("13.2", "divided by the scale")
def divides(x, history, length):
    scale = by_history(history)
    return e4m3(x / scale), scale, appended(history, x, length)


@wrong("13.2", "not scaled")
def forgets_the_scale(x, history, length):
    return e4m3(x), by_history(history), appended(history, x, length)


@wrong("13.2", "another format")
def rounds_to_e5m2(x, history, length):
    scale = by_history(history)
    x_q = (x * scale).to(torch.float8_e5m2).float()
    return x_q, scale, appended(history, x, length)


@right("13.2")
def through_the_dtype(x, history, length):
    scale = by_history(history)
    return e4m3(scale * x), scale, appended(history, x, length)


@right("13.2")
def with_a_deque(x, history, length):
    from collections import deque

    scale = torch.tensor(by_history(history))
    remembered = deque(history, maxlen=length)
    remembered.append(x.abs().amax())
    return mpt.quantize(x * scale, "FP8_E4M3"), scale, list(remembered)


# -- 13.3 mean_over_ranks ---------------------------------------------------------------------


@wrong("13.3", "sum, then divide")
def sums_first(grad, ranks):
    return ranks.sum(grad.half()).float() / ranks.size


@wrong("13.3", "divide, then sum")
def like_the_hook(grad, ranks):
    return ranks.sum(grad.half() / ranks.size).float()


@wrong("13.3", "divide, then sum")
def divides_in_fp32(grad, ranks):
    return ranks.sum((grad / ranks.size).half()).float()


@wrong("13.3", "FP32 on the wire")
def sums_in_fp32(grad, ranks):
    return ranks.sum(grad) / ranks.size


@wrong("13.3", "BF16 on the wire")
def takes_bfloat16(grad, ranks):
    return ranks.sum(grad.bfloat16()).float() / ranks.size


def chosen(largest, room):
    if largest == 0 or not math.isfinite(largest):
        return 1.0
    return 2.0 ** math.floor(math.log2(room / largest))


@wrong("13.3", "a scale for each rank")
def asks_nobody(grad, ranks):
    scale = chosen(grad.abs().max().item(), 30_000 / ranks.size)
    return ranks.sum((grad * scale).half()).float() / scale / ranks.size


@wrong("13.3", "room for one rank")
def fills_the_range(grad, ranks):
    scale = chosen(ranks.max(grad.abs().max()).item(), 65504)
    return ranks.sum((grad * scale).half()).float() / scale / ranks.size


@wrong("13.3", "not unscaled")
def forgets_to_unscale(grad, ranks):
    scale = chosen(ranks.max(grad.abs().max()).item(), 65504 / ranks.size)
    return ranks.sum((grad * scale / ranks.size).half()).float()


@wrong("13.3", "unscaled in FP16")
def unscales_too_soon(grad, ranks):
    scale = chosen(ranks.max(grad.abs().max()).item(), 2**15 / ranks.size)
    total = ranks.sum((grad * scale).half())
    return (total / (scale * ranks.size)).float()


@wrong("13.3", "sum for the mean")
def forgets_to_divide(grad, ranks):
    scale = chosen(ranks.max(grad.abs().max()).item(), 2**15 / ranks.size)
    return ranks.sum((grad * scale).half()).float() / scale


@wrong("13.3", "sign not removed")
def forgets_the_magnitude(grad, ranks):
    largest = ranks.max(grad.max()).item()
    scale = 2.0 ** math.floor(math.log2(2**15 / ranks.size / largest)) if largest > 0 else 1.0
    scale = scale if math.isfinite(largest) else 1.0
    return ranks.sum((grad * scale).half()).float() / scale / ranks.size


@wrong("13.3", "inf and NaN removed")
def repairs_gradients(grad, ranks):
    grad = torch.nan_to_num(grad, nan=0.0, posinf=0.0, neginf=0.0)
    scale = chosen(ranks.max(grad.abs().max()).item(), 2**15 / ranks.size)
    return ranks.sum((grad * scale).half()).float() / scale / ranks.size


@wrong("13.3", "returns early")
def gives_up_alone(grad, ranks):
    largest = grad.abs().max()
    if not largest.isfinite():
        return torch.full_like(grad, math.nan)
    scale = chosen(ranks.max(largest).item(), 2**15 / ranks.size)
    return ranks.sum((grad * scale).half()).float() / scale / ranks.size


@wrong("13.3", "each its own gradient")
def keeps_what_it_has(grad, ranks):
    largest = ranks.max(grad.abs().max()).item()
    if largest == 0 or not math.isfinite(largest):
        return grad
    scale = chosen(largest, 2**15 / ranks.size)
    return ranks.sum((grad * scale).half()).float() / scale / ranks.size


@wrong("13.3", "zero, inf and NaN have no scale")
def never_meets_them(grad, ranks):
    largest = ranks.max(grad.abs().max()).item()
    scale = 2.0 ** math.floor(math.log2(2**15 / ranks.size / largest))
    return ranks.sum((grad * scale).half()).float() / scale / ranks.size


@right("13.3")
def with_a_scale_that_is_no_power(grad, ranks):
    largest = ranks.max(grad.abs().amax())
    scale = 60_000 / ranks.size / largest
    if not (scale.isfinite() and scale > 0):
        scale = torch.tensor(1.0)
    return ranks.sum((grad * scale).to(torch.float16)).to(torch.float32) / (scale * ranks.size)


@right("13.3")
def the_largest_becomes_one(grad, ranks):
    largest = max(ranks.max(grad.max()), ranks.max(-grad.min()))
    if not largest.isfinite():
        largest = torch.tensor(1.0)
    elif largest == 0:
        return ranks.sum(grad.half()).float()
    total = ranks.sum((grad / largest).half()).float()
    return total * largest / ranks.size


@right("13.3")
def all_stop_together(grad, ranks):
    largest = ranks.max(grad.abs().max())
    if not largest.isfinite():
        return torch.full_like(grad, math.nan)
    if largest == 0:
        return torch.zeros_like(grad)
    scale = chosen(largest.item(), 2**15 / ranks.size)
    return ranks.sum((grad * scale).half()).float() / scale / ranks.size


@right("13.3")
def divides_before_the_sum(grad, ranks):
    mine = grad.double() / ranks.size
    largest = ranks.size * ranks.max(mine.abs().max()).item()
    scale = 2.0 ** (15 - math.frexp(largest)[1]) if 0 < largest < math.inf else 1.0
    return (ranks.sum((mine * scale).half()).double() / scale).float()
