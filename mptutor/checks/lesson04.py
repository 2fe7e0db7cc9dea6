"""Lesson 04, *Why keep an FP32 copy?*: does a weight move, a master copy, the cut-off ratio."""

from __future__ import annotations

import math
import random

import torch
from torch import Tensor

from mptutor.checks.task import Case, Misunderstanding, Task
from mptutor.formats import get_format

# Headings of lesson 04 that the hints send the learner back to.
_UPDATE = "A weight and its update"
_RATIO = "The cut-off"
_MASTER = "The master copy"
_AUTOCAST = "Where autocast keeps it"

# -- 04.1 moves --------------------------------------------------------------------------------


def _moves(weight: Tensor, update: Tensor) -> Tensor:
    return (weight.float() + update).to(weight.dtype) != weight


def _moves_cases(seed: int) -> list[Case]:
    """Put updates at, just below and just above the middle between neighbours, up and down."""
    cases = []
    for dtype in (torch.float16, torch.bfloat16):
        ulp = torch.finfo(dtype).eps
        name = get_format(dtype).name
        settings = {
            "weight 1, updates around half an ulp up": (1.0, ulp / 2),
            "weight 1, updates around a quarter of an ulp down": (1.0, -ulp / 4),
            "an odd mantissa, updates around half an ulp up": (1 + ulp, ulp / 2),
            "an odd mantissa, updates around half an ulp down": (1 + 3 * ulp, -ulp / 2),
            "a weight just below 2, updates around half an ulp": (2 - ulp, ulp / 2),
            "a negative weight, updates around half an ulp": (-1.5, -ulp / 2),
            "a large weight, updates around half its ulp": (1024.0, 512 * ulp),
            "a small weight, updates around half its ulp": (2.0**-6, ulp / 128),
        }
        for label, (weight, middle) in settings.items():
            updates = [0.2, 0.9, 1 - 2.0**-15, 1.0, 1 + 2.0**-15, 1.1, 1.9, 2.0, 3.0]
            update = torch.tensor(middle) * torch.tensor(updates)
            cases.append(Case(f"{name}, {label}", (torch.full((9,), weight, dtype=dtype), update)))
        tiny = torch.tensor([0.0, 1e-6, -1e-6, 1e-5, 3e-5])
        large = torch.full((5,), 1024.0, dtype=dtype)
        cases.append(Case(f"{name}, weight 1024, updates that FP32 loses too", (large, tiny)))
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(40, generator=generator)
        updates = drawn * torch.rand(40, generator=generator) * 4 * ulp
        cases.append(Case(f"{name}, 40 random weights", (drawn.to(dtype), updates)))
    return cases


def _ulp_above(weight: Tensor) -> Tensor:
    fmt = get_format(weight.dtype)
    return torch.tensor([fmt.ulp(w) for w in weight.tolist()])


_MOVES = Task(
    id="04.1",
    function="moves",
    points=2,
    reference=_moves,
    cases=_moves_cases,
    misunderstandings=(
        Misunderstanding(
            "one ratio for every weight",
            "You compare the ratio of weight to update with one number. The ratio at which an "
            "update is lost doubles from one power of two to the next.",
            lambda w, u: u.abs() * (2 / torch.finfo(w.dtype).eps) > w.float().abs(),
            _RATIO,
        ),
        Misunderstanding(
            "update rounded first",
            "Your update is rounded to 16 bits before it is added, and the sum once more. Just "
            "beside a tie, rounding twice is not rounding once.",
            lambda w, u: w + u.to(w.dtype) != w,
            _UPDATE,
        ),
        Misunderstanding(
            "update representable",
            "You ask whether the update survives in 16 bits by itself. It does, nearly always. "
            "What is lost is lost in the addition.",
            lambda w, u: u.to(w.dtype) != 0,
            _UPDATE,
        ),
        Misunderstanding(
            "tie always moves",
            "At exactly half way you always let the weight move. Who wins a tie?",
            lambda w, u: (_moves(w, u) | (u.abs() == _ulp_above(w) / 2)) & (u != 0),
            _RATIO,
        ),
        Misunderstanding(
            "whole ulp needed",
            "You ask for an update of a whole ulp. Where does rounding to nearest change its mind?",
            lambda w, u: u.abs() >= _ulp_above(w),
            _UPDATE,
        ),
        Misunderstanding(
            "same distance on both sides",
            "Just at a power of two your answers for updates toward zero are wrong. Are both "
            "neighbours equally far away?",
            lambda w, u: u.abs() > _ulp_above(w) / 2,
            _RATIO,
        ),
        Misunderstanding(
            "never rounded back",
            "Your sum stays in FP32, where nearly every update survives. The weight is stored in "
            "16 bits.",
            lambda w, u: w.float() + u != w.float(),
            _UPDATE,
        ),
        Misunderstanding(
            "asks what stays",
            "Every answer is the opposite of what is asked for.",
            lambda w, u: ~_moves(w, u),
            _UPDATE,
        ),
        Misunderstanding(
            "eps for every weight",
            "Your limit does not depend on the weight. Large weights have distant neighbours, "
            "small ones close neighbours.",
            lambda w, u: u.abs() > torch.finfo(w.dtype).eps / 2,
            _RATIO,
        ),
    ),
)

# -- 04.2 sgd_with_master ----------------------------------------------------------------------


def _sgd_with_master(weight: Tensor, gradients: list[Tensor], lr: float) -> list[Tensor]:
    master = weight.float()
    weights = []
    for gradient in gradients:
        master = master - lr * gradient.float()
        weights.append(master.to(weight.dtype))
    return weights


def _sgd_cases(seed: int) -> list[Case]:
    generator = torch.Generator().manual_seed(seed)

    def steps(count: int, value: float, *shape: int) -> list[Tensor]:
        noise = torch.randn(count, *shape, generator=generator)
        return list((value * (1 + 0.1 * noise)).half())

    ones = torch.ones(3).half()
    drawn = torch.randn(2, 5, generator=generator).half()
    return [
        Case("one large step", (ones, steps(1, 0.5, 3), 0.1)),
        Case("8 steps, each too small for FP16", (ones, steps(8, 0.02, 3), 0.01)),
        Case("tiny gradients and a small learning rate", (ones, steps(40, 3e-4, 3), 0.05)),
        Case("lr times gradient below FP16's range", (ones * 1e-4, steps(30, 1e-5, 3), 1e-3)),
        Case("random weights of shape (2, 5)", (drawn, steps(12, 0.3, 2, 5), 0.003)),
        Case("no step at all", (ones, [], 0.1)),
    ]


def _remade_master(weight: Tensor, gradients: list[Tensor], lr: float) -> list[Tensor]:
    weights = []
    for gradient in gradients:
        weight = (weight.float() - lr * gradient.float()).half()
        weights.append(weight)
    return weights


def _update_in_16_bits(weight: Tensor, gradients: list[Tensor], lr: float) -> list[Tensor]:
    master, weights = weight.float(), []
    for gradient in gradients:
        master = master - (lr * gradient).float()
        weights.append(master.half())
    return weights


def _masters(weight: Tensor, gradients: list[Tensor], lr: float) -> list[Tensor]:
    master, masters = weight.float(), []
    for gradient in gradients:
        master = master - lr * gradient.float()
        masters.append(master)
    return masters


_SGD = Task(
    id="04.2",
    function="sgd_with_master",
    points=3,
    reference=_sgd_with_master,
    cases=_sgd_cases,
    misunderstandings=(
        Misunderstanding(
            "nothing kept between steps",
            "Every one of your steps starts from the rounded 16-bit weight, so what the last step "
            "left over is gone. It does not help to compute in FP32 if nothing in FP32 is kept.",
            _remade_master,
            _MASTER,
        ),
        Misunderstanding(
            "update computed in 16 bits",
            "Your master copy is FP32, but lr times the gradient is rounded to FP16 before it "
            "gets there; a small product is zero by then.",
            _update_in_16_bits,
            _MASTER,
        ),
        Misunderstanding(
            "master returned",
            "You return the FP32 copy. Forward and backward pass use the 16-bit weights, and those "
            "are asked for.",
            _masters,
            _MASTER,
        ),
        Misunderstanding(
            "uphill",
            "Your weights move the wrong way: along the gradient.",
            lambda w, g, lr: _sgd_with_master(w, g, -lr),
            _UPDATE,
        ),
        Misunderstanding(
            "weights never refreshed",
            "The master copy moves and the 16-bit weights do not: they are never made from it "
            "again.",
            lambda w, g, lr: [w for _ in g],
            _MASTER,
        ),
        Misunderstanding(
            "the same tensor every time",
            "All entries of your list are the last step's weights. Did you put one tensor in "
            "again and again and change it in place?",
            lambda w, g, lr: [_sgd_with_master(w, g, lr)[-1] for _ in g],
            _MASTER,
        ),
        Misunderstanding(
            "starting weights included",
            "Your list has one entry too many: the weights before the first step.",
            lambda w, g, lr: [w, *_sgd_with_master(w, g, lr)],
            _MASTER,
        ),
        Misunderstanding(
            "last weights alone",
            "Your list has a single entry, for the last step. One a step is asked for.",
            lambda w, g, lr: _sgd_with_master(w, g, lr)[-1:],
            _MASTER,
        ),
    ),
)

# -- 04.3 lost_from_ratio ----------------------------------------------------------------------


def _lost_from_ratio(weight: float, mantissa_bits: int) -> float:
    ulp = 2.0 ** (math.frexp(weight)[1] - 1 - mantissa_bits)
    return weight / (ulp / 2)


def _ratio_cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    cases = []
    for bits, name in ((10, "FP16"), (7, "BF16"), (23, "FP32"), (3, "FP8 E4M3")):
        steps = [0, 2**bits - 1, 2 ** (bits - 1), draw.randrange(2**bits)]
        weights = [math.ldexp(1 + s / 2**bits, draw.randrange(-5, 6)) for s in steps]
        cases += [Case(f"{name}, weight {w!r}", (w, bits)) for w in [1.0, 1.5, *weights]]
    return cases


_RATIO_TASK = Task(
    id="04.3",
    function="lost_from_ratio",
    points=2,
    reference=_lost_from_ratio,
    cases=_ratio_cases,
    misunderstandings=(
        Misunderstanding(
            "whole ulp",
            "All of your ratios are half of what is asked for. An update is lost up to the middle "
            "between two neighbours, not up to the neighbour. Or is your exponent one too high? "
            "`frexp` gives a fraction from 0.5 to 1.",
            lambda w, m: _lost_from_ratio(w, m) / 2,
            _RATIO,
        ),
        Misunderstanding(
            "2048 for every weight",
            "Your ratio is the same for all weights of a format. It is right at the powers of "
            "two; what happens between them?",
            lambda w, m: 2.0 ** (m + 1),
            _RATIO,
        ),
        Misunderstanding(
            "neighbour below",
            "At powers of two your ratio is twice what is asked for. The neighbour below such a "
            "number is closer than the one above.",
            lambda w, m: _lost_from_ratio(w, m) * (2 if math.frexp(w)[0] == 0.5 else 1),
            _RATIO,
        ),
        Misunderstanding(
            "ratio upside down",
            "Your number is the update over the weight.",
            lambda w, m: 1 / _lost_from_ratio(w, m),
            _RATIO,
        ),
        Misunderstanding(
            "update instead of ratio",
            "Your number is the update itself. Asked for is how many times larger the weight is.",
            lambda w, m: w / _lost_from_ratio(w, m),
            _RATIO,
        ),
        Misunderstanding(
            "hidden bit counted twice",
            "All of your ratios are twice what is asked for. Does your count of bits include the "
            "hidden one?",
            lambda w, m: _lost_from_ratio(w, m + 1),
            _RATIO,
        ),
    ),
)

TASKS = (_MOVES, _SGD, _RATIO_TASK)
