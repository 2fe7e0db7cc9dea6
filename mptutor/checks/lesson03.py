"""Lesson 03, *Where do the gradients go?*: where zero begins, a census, shares by layer."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mptutor.census import take_census
from mptutor.checks.task import Case, Misunderstanding, Task, same
from mptutor.formats import FP16, FloatFormat

# Headings of lesson 03 that the hints send the learner back to.
_BEGIN = "Where zero begins"
_CENSUS = "A census"
_BEFORE = "Zeros that were there before"
_LAYERS = "Layer by layer"

_SMALLEST, _TIE, _SMALLEST_NORMAL = 2.0**-24, 2.0**-25, 2.0**-14

# -- 03.1 flush_limit --------------------------------------------------------------------------


def _flush_limit(exponent_bits: int, mantissa_bits: int) -> float:
    return FloatFormat("asked for", exponent_bits, mantissa_bits).underflow_threshold


def _limit_cases(seed: int) -> list[Case]:
    known = [(5, 10), (8, 7), (5, 2), (4, 3), (8, 10), (3, 4)]
    draw = random.Random(seed)
    drawn = [(draw.randrange(3, 9), draw.randrange(1, 20)) for _ in range(5)]
    return [Case(f"{e} exponent bits, {m} mantissa bits", (e, m)) for e, m in known + drawn]


def _times(factor: float) -> Callable[[int, int], float]:
    """Return somebody who is off by a factor."""
    return lambda e, m: factor * _flush_limit(e, m)


_LIMIT = Task(
    id="03.1",
    function="flush_limit",
    reference=_flush_limit,
    cases=_limit_cases,
    misunderstandings=(
        Misunderstanding(
            "smallest number",
            "Your limit is the smallest number of the format, and that is a number, not zero. "
            "What is nearer to zero than to it?",
            _times(2),
            _BEGIN,
        ),
        Misunderstanding(
            "smallest normal",
            "Your limit is the smallest normal number. There are smaller numbers in the format.",
            lambda e, m: 2.0 ** (2 - 2 ** (e - 1)),
            _BEGIN,
        ),
        Misunderstanding(
            "half the smallest normal",
            "You halve the smallest normal number. Its neighbour below is not zero.",
            lambda e, m: 2.0 ** (1 - 2 ** (e - 1)),
            _BEGIN,
        ),
        Misunderstanding(
            "one power too low",
            "Your limit is half of the right one. Numbers with exponent field 0 have the same "
            "power of two as those with field 1, and the bias of FP16 is 15.",
            _times(0.5),
            _BEGIN,
        ),
        Misunderstanding(
            "just below the tie",
            "Your limit is the number just below the middle. Which way does a tie go, between zero "
            "and the smallest number?",
            lambda e, m: _flush_limit(e, m) * (1 - 2.0**-53),
            _BEGIN,
        ),
        Misunderstanding(
            "FP16 for all",
            "Your limit does not depend on the widths. It is FP16's.",
            lambda e, m: _TIE,
            _BEGIN,
        ),
        Misunderstanding(
            "precision",
            "Your answer is about the precision near 1. Where zero begins depends on the exponent "
            "bits first of all.",
            lambda e, m: 2.0 ** -(m + 1),
            _BEGIN,
        ),
    ),
)

# -- 03.2 count_zones --------------------------------------------------------------------------


def _count_zones(x: Tensor) -> dict[str, int]:
    census = take_census(x)
    flushed, subnormal = census.flushed(FP16), census.subnormal(FP16)
    overflowed = census.overflowed(FP16)
    normal = census.nonzero - flushed - subnormal - overflowed
    return _zones(census.zeros, flushed, subnormal, normal, overflowed)


def _zones(zero: Any, flushed: Any, subnormal: Any, normal: Any, overflowed: Any) -> dict[str, int]:
    counts = (zero, flushed, subnormal, normal, overflowed)
    names = ("zero", "flushed", "subnormal", "normal", "overflowed")
    return {name: int(count) for name, count in zip(names, counts, strict=True)}


def _zone_cases(seed: int) -> list[Case]:
    generator = torch.Generator().manual_seed(seed)

    def spread(size: int, middle: float) -> Tensor:
        powers = 8 * torch.randn(size, generator=generator) + middle
        return torch.randn(size, generator=generator) * torch.exp2(powers)

    above_tie = torch.nextafter(torch.tensor(_TIE), torch.tensor(1.0)).item()
    below_normal = _SMALLEST_NORMAL - 2.0**-26
    inf, nan = float("inf"), float("nan")
    return [
        Case("0.0, -0.0 and 1.0", (torch.tensor([0.0, -0.0, 1.0]),)),
        Case("2^-25 and the number above it", (torch.tensor([_TIE, above_tie]),)),
        Case(
            "2^-24, 2^-24 / 1.5, -2^-24", (torch.tensor([_SMALLEST, _SMALLEST / 1.5, -_SMALLEST]),)
        ),
        Case("2^-14, 2^-15, -2^-20", (torch.tensor([2.0**-14, 2.0**-15, -(2.0**-20)]),)),
        Case("a number that rounds up to 2^-14", (torch.tensor([below_normal, 2.0**-14]),)),
        Case("65504, 65519, 65520, -70000", (torch.tensor([65504.0, 65519.0, 65520.0, -7e4]),)),
        Case("inf, -inf, NaN, 1e-9", (torch.tensor([inf, -inf, nan, 1e-9]),)),
        Case("4 × 50 numbers from all over", (spread(200, -15).reshape(4, 50),)),
        Case("300 small gradients", (spread(300, -24),)),
        Case("no numbers", (torch.zeros(0),)),
    ]


def _sorting(
    *,
    absolute: bool = True,
    tie: float = _TIE,
    tie_flushes: bool = True,
    zeros_flush: bool = False,
    first_normal: float = _SMALLEST_NORMAL - 2.0**-25,
    first_infinite: float = 65520.0,
    finite_only: bool = True,
) -> Callable[[Tensor], dict[str, int]]:
    """Return somebody who has all of it right but what the arguments say."""

    def count(x: Tensor) -> dict[str, int]:
        x = x[x.isfinite()] if finite_only else x
        size = x.abs() if absolute else x
        small = size <= tie if tie_flushes else size < tie
        zero = x == 0
        flushed = small if zeros_flush else small & ~zero
        rest = ~(small | zero)
        overflowed = rest & (size >= first_infinite)
        subnormal = rest & (size < first_normal) & ~overflowed
        normal = rest & (size >= first_normal) & ~overflowed
        return _zones(*(mask.sum() for mask in (zero, flushed, subnormal, normal, overflowed)))

    return count


_ZONES = Task(
    id="03.2",
    function="count_zones",
    points=2,
    reference=_count_zones,
    cases=_zone_cases,
    misunderstandings=(
        Misunderstanding(
            "zeros count as flushed",
            "Numbers that are zero already are among your flushed ones. Nothing was lost there.",
            _sorting(zeros_flush=True),
            _BEFORE,
        ),
        Misunderstanding(
            "threshold at the smallest number",
            "You flush all that lies below the smallest number of FP16. What is nearest to a "
            "number in between?",
            _sorting(tie=_SMALLEST, tie_flushes=False),
            _BEGIN,
        ),
        Misunderstanding(
            "tie survives",
            "All is right but the tie itself. Where does exactly 2^-25 go?",
            _sorting(tie_flushes=False),
            _BEGIN,
        ),
        Misunderstanding(
            "subnormals flushed",
            "You flush everything below the smallest normal number. FP16 has numbers down there.",
            _sorting(tie=_SMALLEST_NORMAL, tie_flushes=False),
            _CENSUS,
        ),
        Misunderstanding(
            "overflow beyond the largest number",
            "Some of your overflowed numbers round to 65504. Rounding comes first.",
            _sorting(first_infinite=65504.01),
            _CENSUS,
        ),
        Misunderstanding(
            "overflow at a power of two",
            "You let numbers pass that become infinite. From which number on is the nearest no "
            "longer 65504?",
            _sorting(first_infinite=65536.0),
            _CENSUS,
        ),
        Misunderstanding(
            "sign not removed",
            "Your counts are wrong as soon as there are negative numbers. It is the size that "
            "decides.",
            _sorting(absolute=False),
            _CENSUS,
        ),
        Misunderstanding(
            "infinities counted",
            "Infinities of the input are among your overflowed numbers. They were infinite before.",
            _sorting(finite_only=False),
            _CENSUS,
        ),
        Misunderstanding(
            "zone before rounding",
            "You sort by the number before rounding. One just below 2^-14 becomes 2^-14, which is "
            "normal.",
            _sorting(first_normal=_SMALLEST_NORMAL),
            _CENSUS,
        ),
    ),
)

# -- 03.3 lost_by_layer ------------------------------------------------------------------------


def _lost_by_layer(gradients: dict[str, Tensor]) -> dict[str, float]:
    lost = {}
    for name, grad in gradients.items():
        census = take_census(grad)
        lost[name] = census.flushed(FP16) / max(census.nonzero, 1)
    return lost


def _layer_cases(seed: int) -> list[Case]:
    generator = torch.Generator().manual_seed(seed)

    def drawn(exponent: float, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) * 2.0**exponent

    holed = drawn(-24, 6, 20)
    holed[:, ::2] = 0
    ties = torch.tensor([_TIE, -_TIE, 1.5 * _TIE, 1.0, 0.0])
    deep = {f"layer{i}": drawn(-34 + 4 * i, 8, 8) for i in range(1, 6)}
    return [
        Case("a layer behind a ReLU: half of its gradients are zero", ({"conv": holed},)),
        Case("2^-25, -2^-25, 1.5 × 2^-25, 1, 0", ({"ties": ties},)),
        Case("five layers, each with larger gradients", (deep,)),
        Case(
            "two layers of very different size", ({"a": drawn(-25, 10), "b": drawn(-25, 30, 30)},)
        ),
        Case("a layer without any gradient that is not zero", ({"dead": torch.zeros(3, 3)},)),
        Case("large gradients", ({"head": drawn(2, 5)},)),
    ]


def _agree(expected: Any, got: Any) -> bool:
    """Compare shares up to FP32's rounding: a mean of ones and zeros is one way to get them."""
    if not isinstance(got, dict) or expected.keys() != got.keys():
        return False
    return all(_close(expected[name], got[name]) for name in expected)


def _close(expected: float, got: Any) -> bool:
    if isinstance(got, Tensor) and got.numel() == 1:
        got = got.item()
    return type(got) in (int, float) and (same(expected, got) or abs(expected - got) < 1e-6)


def _shares(
    flushed: Callable[[Tensor], Tensor], of: Callable[[Tensor], int]
) -> Callable[[dict[str, Tensor]], dict[str, float]]:
    """Return somebody who takes other gradients for lost, or a share of something else."""
    return lambda gradients: {
        name: float(flushed(grad).sum()) / max(of(grad), 1) for name, grad in gradients.items()
    }


def _lost(grad: Tensor) -> Tensor:
    return (grad != 0) & (grad.half() == 0)


def _nonzero(grad: Tensor) -> int:
    return int((grad != 0).sum())


_SHARES = Task(
    id="03.3",
    function="lost_by_layer",
    points=2,
    reference=_lost_by_layer,
    cases=_layer_cases,
    agree=_agree,
    misunderstandings=(
        Misunderstanding(
            "share of all gradients",
            "Your share is one of all gradients, zeros included. Layers behind a ReLU look "
            "harmless that way.",
            _shares(_lost, Tensor.numel),
            _BEFORE,
        ),
        Misunderstanding(
            "zeros are lost",
            "You count every zero as lost, those too that FP32 has.",
            _shares(lambda g: g.half() == 0, Tensor.numel),
            _BEFORE,
        ),
        Misunderstanding(
            "zeros are lost, of the nonzero",
            "Your shares can be larger than 1. Zeros of FP32 are among the lost, but not among "
            "those you divide by.",
            _shares(lambda g: g.half() == 0, _nonzero),
            _BEFORE,
        ),
        Misunderstanding(
            "threshold at the smallest number",
            "You count as lost what lies below the smallest number of FP16. Some of it is rounded "
            "up.",
            _shares(lambda g: (g != 0) & (g.abs() < _SMALLEST), _nonzero),
            _BEGIN,
        ),
        Misunderstanding(
            "tie survives",
            "Only exact ties are wrong. Where does 2^-25 go?",
            _shares(lambda g: (g != 0) & (g.abs() < _TIE), _nonzero),
            _BEGIN,
        ),
        Misunderstanding(
            "subnormals are lost",
            "You count as lost what is merely subnormal.",
            _shares(lambda g: (g != 0) & (g.abs() < _SMALLEST_NORMAL), _nonzero),
            _CENSUS,
        ),
        Misunderstanding(
            "sign not removed",
            "Every negative gradient counts as lost. It is the size that decides.",
            _shares(lambda g: (g != 0) & (g <= _TIE), _nonzero),
            _CENSUS,
        ),
        Misunderstanding(
            "per cent",
            "Your shares go from 0 to 100.",
            lambda gradients: {k: 100 * v for k, v in _lost_by_layer(gradients).items()},
            _LAYERS,
        ),
        Misunderstanding(
            "counts, not shares",
            "You return how many are lost. A large layer loses more of them than a small one.",
            _shares(_lost, lambda grad: 1),
            _LAYERS,
        ),
        Misunderstanding(
            "all layers as one",
            "All of your layers have the same share: that of all gradients together.",
            lambda gradients: dict.fromkeys(
                gradients,
                float(sum(_lost(g).sum() for g in gradients.values()))
                / max(sum(map(_nonzero, gradients.values())), 1),
            ),
            _LAYERS,
        ),
        Misunderstanding(
            "a dead layer divides by zero",
            "A layer whose gradients are all zero has nothing to divide by. It has lost 0.0.",
            lambda gradients: {
                n: float(_lost(g).sum()) / _nonzero(g) for n, g in gradients.items()
            },
            _BEFORE,
        ),
        Misunderstanding(
            "a dead layer is NaN",
            "A layer whose gradients are all zero gives NaN: zero divided by zero.",
            lambda gradients: {
                n: (_lost(g).sum() / (g != 0).sum()).item() for n, g in gradients.items()
            },
            _BEFORE,
        ),
    ),
)

TASKS = (_LIMIT, _ZONES, _SHARES)
