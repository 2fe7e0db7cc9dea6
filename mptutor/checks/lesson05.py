"""Lesson 05, *How large may the scale be?*: a step with a scale, and both edges of the window."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mptutor.census import take_census
from mptutor.checks.probes_steps import take_scaled_steps
from mptutor.checks.task import Case, Misunderstanding, Task
from mptutor.formats import FP16

# Headings of lesson 05 that the hints send the learner back to.
_ONE = "One multiplication"
_WINDOW = "The window"
_STEP = "A step with a scale"
_NOT = "What a scale does not mend"

# -- 05.1 training_step ------------------------------------------------------------------------


def _step_cases(seed: int) -> list[Case]:
    broken = random.Random(seed).randrange(1, 3)
    return [
        Case("scale 2^16, four steps", (2.0**16, 4, [])),
        Case(f"scale 2^16, a broken batch at step {broken}", (2.0**16, 4, [broken])),
        Case("scale 2^30, far too high", (2.0**30, 4, [])),
        Case("scale 2^-4, too low", (2.0**-4, 4, [])),
    ]


def _stepping(
    *,
    clears: bool = True,
    autocasts: bool = True,
    scales: bool = True,
    unscale: Callable[[Tensor, float], Tensor] = torch.div,
    is_bad: Callable[[Tensor], Any] = lambda grad: not grad.isfinite().all(),
    looks_at_loss: bool = False,
    returns: Callable[[bool], Any] = bool,
) -> Callable[..., Any]:
    """Return somebody who has all of a step right but what the arguments say."""

    def step(net, optimizer, images, labels, scale):
        if clears:
            optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16, enabled=autocasts):
            loss = F.cross_entropy(net(images), labels)
        scaled = loss * scale if scales else loss
        scaled.backward()
        gradients = [p.grad for p in net.parameters()]
        for grad in gradients:
            grad.copy_(unscale(grad, scale))
        bad = not scaled.isfinite() if looks_at_loss else any(map(is_bad, gradients))
        if not bad:
            optimizer.step()
        return returns(not bad)

    return step


def _what_happens_with(step: Callable[..., Any]) -> Callable[..., str]:
    return lambda *inputs: take_scaled_steps(step, inputs)


_STEP_TASK = Task(
    id="05.1",
    function="training_step",
    points=3,
    probe="take_scaled_steps",
    reference=_what_happens_with(_stepping()),
    cases=_step_cases,
    withheld=("mptutor.scaling",),
    misunderstandings=(
        Misunderstanding(
            "not unscaled",
            "The optimizer sees gradients that are still scaled, and takes steps that are as many "
            "times too large.",
            _what_happens_with(_stepping(unscale=lambda grad, scale: grad)),
            _STEP,
        ),
        Misunderstanding(
            "loss not scaled",
            "Your gradients are divided by a scale that the loss was never multiplied by. The "
            "weights hardly move.",
            _what_happens_with(_stepping(scales=False)),
            _STEP,
        ),
        Misunderstanding(
            "no scale at all",
            "Your steps are those of a scale of 1, whatever the scale.",
            _what_happens_with(_stepping(scales=False, unscale=lambda grad, scale: grad)),
            _STEP,
        ),
        Misunderstanding(
            "multiplied again",
            "Your gradients are multiplied by the scale a second time.",
            _what_happens_with(_stepping(unscale=torch.mul)),
            _STEP,
        ),
        Misunderstanding(
            "never skips",
            "Your optimizer runs with inf or NaN among the gradients. Then they are in the weights "
            "for good.",
            _what_happens_with(_stepping(is_bad=lambda grad: False)),
            _STEP,
        ),
        Misunderstanding(
            "inf alone",
            "Some steps have NaN gradients and no inf, and you let them pass.",
            _what_happens_with(_stepping(is_bad=lambda grad: grad.isinf().any())),
            _STEP,
        ),
        Misunderstanding(
            "inf replaced",
            "You make inf and NaN finite and go on. What else such a gradient holds is not to be "
            "trusted either.",
            _what_happens_with(
                _stepping(unscale=lambda grad, scale: grad.nan_to_num(0.0, 0.0, 0.0) / scale)
            ),
            _STEP,
        ),
        Misunderstanding(
            "looks at the loss",
            "You look for inf in the loss. It is FP32, and finite while FP16 gradients overflow.",
            _what_happens_with(_stepping(looks_at_loss=True)),
            _NOT,
        ),
        Misunderstanding(
            "unscaled in FP16",
            "You divide in FP16. What the scale has saved is flushed again.",
            _what_happens_with(
                _stepping(unscale=lambda grad, scale: (grad / scale).half().float())
            ),
            _STEP,
        ),
        Misunderstanding(
            "gradients pile up",
            "Your first step is right. Then the gradients of the step before are still there.",
            _what_happens_with(_stepping(clears=False)),
            _STEP,
        ),
        Misunderstanding(
            "no autocast",
            "Your forward pass runs in FP32. Then there is nothing to scale for.",
            _what_happens_with(_stepping(autocasts=False)),
            _STEP,
        ),
        Misunderstanding(
            "returns nothing",
            "Your steps are right. Say whether the optimizer ran: return True or False.",
            _what_happens_with(_stepping(returns=lambda ran: None)),
            _STEP,
        ),
        Misunderstanding(
            "returns whether it skipped",
            "Your steps are right, and what you return is the opposite of what is asked for.",
            _what_happens_with(_stepping(returns=lambda ran: not ran)),
            _STEP,
        ),
    ),
)

# -- 05.2 largest_scale ------------------------------------------------------------------------


def _largest_scale(gradients: list[Tensor]) -> float:
    census = take_census(gradients)
    return census.safe_scales(FP16).largest if census.nonzero else 1.0


def _largest_cases(seed: int) -> list[Case]:
    generator = torch.Generator().manual_seed(seed)

    def drawn(exponent: float, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) * 2.0**exponent

    def with_largest(value: float) -> Tensor:
        return torch.cat([torch.tensor([value]), torch.linspace(-value / 2, value / 2, 5)])

    three = [drawn(-20, 9), drawn(-6, 9), drawn(-25, 9)]
    return [
        Case("one layer", ([drawn(-12, 4, 5)],)),
        Case("three layers, the largest gradients in the middle", (three,)),
        Case("the largest gradient is 65519 × 2^-20", ([with_largest(65519 * 2.0**-20)],)),
        Case("the largest gradient is 65519.5 × 2^-20", ([with_largest(65519.5 * 2.0**-20)],)),
        Case("the largest gradient is 65520 × 2^-20", ([with_largest(65520 * 2.0**-20)],)),
        Case("the largest gradient is 65528 × 2^-20", ([with_largest(65528 * 2.0**-20)],)),
        Case("the largest gradient is 2^-4", ([with_largest(2.0**-4)],)),
        Case("the largest gradient is negative", ([torch.tensor([0.001, -0.3, 0.01])],)),
        Case("gradients above 65520", ([torch.tensor([3.0, 200_000.0])],)),
        Case("all zero", ([torch.zeros(3), torch.zeros(2, 2)],)),
        Case("very small gradients", ([drawn(-60, 8)],)),
    ]


def _upper(
    *,
    below: float = 65520.0,
    reaches: bool = False,
    largest: Callable[[list[Tensor]], float] = lambda gs: max(g.abs().max().item() for g in gs),
    power: Callable[[float], float] = math.floor,
    floor: float = 0.0,
) -> Callable[[list[Tensor]], float]:
    """Return somebody who has all of it right but what the arguments say."""

    def scale_of(gradients: list[Tensor]) -> float:
        most = largest(gradients)
        if most == 0:
            return 1.0
        scale = 2.0 ** power(math.log2(below / most))
        if power is math.floor and scale * most == below and not reaches:
            scale /= 2
        return max(scale, floor)

    return scale_of


def _smallest_nonzero(gradients: list[Tensor]) -> float:
    every = torch.cat([g.flatten() for g in gradients]).abs()
    return every[every > 0].min().item() if every.any() else 0.0


_LARGEST = Task(
    id="05.2",
    function="largest_scale",
    points=2,
    reference=_largest_scale,
    cases=_largest_cases,
    misunderstandings=(
        Misunderstanding(
            "overflow beyond 65504",
            "Your scale is too careful by a factor of 2 where a product lies between 65504 and "
            "65520. What does it round to?",
            _upper(below=65504.0, reaches=True),
            _WINDOW,
        ),
        Misunderstanding(
            "overflow from 65536",
            "Your scale lets products through that round to infinity, just below 65536.",
            _upper(below=65536.0),
            _WINDOW,
        ),
        Misunderstanding(
            "tie stays finite",
            "Only the tie is wrong: a product of exactly 65520. Which way does it round?",
            _upper(reaches=True),
            _WINDOW,
        ),
        Misunderstanding(
            "sign not removed",
            "The largest gradient may be a negative one.",
            _upper(largest=lambda gs: max(g.max().item() for g in gs)),
            _WINDOW,
        ),
        Misunderstanding(
            "no power of two",
            "Your scale is no power of two. It would round every gradient anew.",
            lambda gs: 65520 / most if (most := max(g.abs().max().item() for g in gs)) else 1.0,
            _ONE,
        ),
        Misunderstanding(
            "rounded up",
            "Your power is rounded up, so the largest gradient overflows.",
            _upper(power=math.ceil),
            _WINDOW,
        ),
        Misunderstanding(
            "rounded to nearest",
            "Your power is rounded to the nearest, so that some of the largest gradients overflow.",
            _upper(power=round),
            _WINDOW,
        ),
        Misunderstanding(
            "never below one",
            "Your scale does not fall below 1. Gradients that are too large need a smaller one.",
            _upper(floor=1.0),
            _WINDOW,
        ),
        Misunderstanding(
            "last layer decides",
            "One layer alone decides your scale. One infinite gradient anywhere costs the step.",
            _upper(largest=lambda gs: gs[-1].abs().max().item()),
            _WINDOW,
        ),
        Misunderstanding(
            "smallest gradient decides",
            "The smallest gradient decides your scale. Which one overflows first?",
            _upper(largest=_smallest_nonzero),
            _WINDOW,
        ),
        Misunderstanding(
            "all zero",
            "With gradients that are all zero you divide by zero. Nothing can overflow then; "
            "return 1.0.",
            lambda gs: _largest_scale(gs) if any(g.any() for g in gs) else 1 / 0,
            _WINDOW,
        ),
    ),
)

# -- 05.3 smallest_scale -----------------------------------------------------------------------

_FROM, _TO = -40, 100


def _first_power(is_enough: Callable[[float], bool]) -> float:
    return next((2.0**k for k in range(_FROM, _TO) if is_enough(2.0**k)), math.inf)


def _smallest_scale(gradients: list[Tensor], lost_at_most: float) -> float:
    census = take_census(gradients)
    return _first_power(lambda scale: census.flushed(FP16, scale) <= lost_at_most * census.nonzero)


def _smallest_cases(seed: int) -> list[Case]:
    generator = torch.Generator().manual_seed(seed)

    def drawn(exponent: float, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) * 2.0**exponent

    behind_relu = drawn(-28, 8, 20)
    behind_relu[:, :15] = 0
    powers = torch.tensor([2.0**-30, 2.0**-28, -(2.0**-26), 2.0**-10])
    between = torch.tensor([1.4 * 2.0**-30, 2.0**-20])
    uneven = [drawn(-40, 3), drawn(-16, 30, 30)]
    deep = [drawn(-44 + 6 * i, 7, 9) for i in range(5)]
    return [
        Case("2^-30, 2^-28, -2^-26, 2^-10; none may be lost", ([powers], 0.0)),
        Case("the same; one in four may be lost", ([powers], 0.25)),
        Case("the same; half may be lost", ([powers], 0.5)),
        Case("1.4 × 2^-30 and 2^-20; none may be lost", ([between], 0.0)),
        Case("three quarters are zero already", ([behind_relu], 0.02)),
        Case("five layers, each with larger gradients; 10 % may be lost", (deep, 0.1)),
        Case("two layers, a small and a large one; 1 %", (uneven, 0.01)),
        Case("large gradients", ([drawn(6, 33)], 0.0)),
        Case("all may be lost", ([drawn(-20, 10)], 1.0)),
    ]


def _lower(
    lost: Callable[[Tensor], Tensor] = lambda x: (x != 0) & (x.abs() <= 2.0**-25),
    of: Callable[[Tensor], Any] = lambda x: (x != 0).sum(),
    strictly: bool = False,
    at_least: float = 0.0,
) -> Callable[[list[Tensor], float], float]:
    """Return somebody who counts other gradients as lost, or takes a share of something else."""

    def scale_of(gradients: list[Tensor], lost_at_most: float) -> float:
        x = torch.cat([g.flatten() for g in gradients]).double()
        allowed = lost_at_most * int(of(x))

        def is_enough(scale: float) -> bool:
            count = int(lost(x * scale).sum())
            return count < allowed if strictly else count <= allowed

        return max(_first_power(is_enough), at_least)

    return scale_of


_SMALLEST = Task(
    id="05.3",
    function="smallest_scale",
    points=2,
    reference=_smallest_scale,
    cases=_smallest_cases,
    misunderstandings=(
        Misunderstanding(
            "tie survives",
            "Your scale takes a gradient to exactly 2^-25 and calls it saved.",
            _lower(lambda x: (x != 0) & (x.abs() < 2.0**-25)),
            _WINDOW,
        ),
        Misunderstanding(
            "threshold at the smallest number",
            "Your scale is too large: you ask for products of at least FP16's smallest number.",
            _lower(lambda x: (x != 0) & (x.abs() < 2.0**-24)),
            _WINDOW,
        ),
        Misunderstanding(
            "subnormals are lost",
            "You ask for normal numbers. Subnormal ones lose bits, but are not zero.",
            _lower(lambda x: (x != 0) & (x.abs() < 2.0**-14)),
            _WINDOW,
        ),
        Misunderstanding(
            "share of all gradients",
            "Zeros are among the gradients of which you allow a share, so you allow too many.",
            _lower(of=Tensor.numel),
            _WINDOW,
        ),
        Misunderstanding(
            "zeros are lost",
            "Gradients that are zero already count as lost. No scale saves those.",
            _lower(lambda x: x.abs() <= 2.0**-25),
            _WINDOW,
        ),
        Misunderstanding(
            "none may be lost",
            "Your scale does not depend on the share that may be lost.",
            lambda gradients, share: _smallest_scale(gradients, 0.0),
            _WINDOW,
        ),
        Misunderstanding(
            "fewer than the share",
            "At exactly the share that may be lost you go on. The share itself is allowed.",
            _lower(strictly=True),
            _WINDOW,
        ),
        Misunderstanding(
            "sign not removed",
            "Negative gradients all count as lost.",
            _lower(lambda x: (x != 0) & (x <= 2.0**-25)),
            _WINDOW,
        ),
        Misunderstanding(
            "never below one",
            "Your scale does not fall below 1. Large gradients do not need that much.",
            _lower(at_least=1.0),
            _WINDOW,
        ),
        Misunderstanding(
            "one power too small",
            "Your scale is the last one that is not enough.",
            lambda gradients, share: _smallest_scale(gradients, share) / 2,
            _WINDOW,
        ),
        Misunderstanding(
            "every layer by itself",
            "You allow the share in every layer by itself. It is asked for over all gradients "
            "together.",
            lambda gradients, share: max(_smallest_scale([g], share) for g in gradients),
            _WINDOW,
        ),
    ),
)

TASKS = (_STEP_TASK, _LARGEST, _SMALLEST)
