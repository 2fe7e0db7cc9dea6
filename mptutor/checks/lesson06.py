"""Lesson 06, *How does GradScaler find the scale?*: the rule, unscaling, a scaler of one's own."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mptutor.checks.probes import drive_scaler
from mptutor.checks.task import Case, Misunderstanding, Task
from mptutor.scaling import DynamicLossScaler

# Headings of lesson 06 that the hints send the learner back to.
_RULE = "The rule"
_TRAINING = "A real training"
_SKIP = "What a skip leaves alone"
_NEVER = "When skips never end"

# -- 06.1 next_scale ---------------------------------------------------------------------------


def _next_scale(scale: float, good: int, found_inf: bool, interval: int) -> tuple[float, int]:
    if found_inf:
        return scale / 2, 0
    good += 1
    return (scale * 2, 0) if good == interval else (scale, good)


def _next_scale_cases(seed: int) -> list[Case]:
    settings = [
        (65536.0, 0, True, 2000),
        (65536.0, 0, False, 2000),
        (1024.0, 1998, False, 2000),
        (1024.0, 1999, False, 2000),
        (1024.0, 1999, True, 2000),
        (1.0, 7, True, 2000),
        (0.5, 0, True, 2000),
        (8.0, 0, False, 1),
        (8.0, 0, True, 1),
    ]
    draw = random.Random(seed)
    for _ in range(8):
        interval = draw.randrange(2, 50)
        good = draw.choice([0, interval - 1, draw.randrange(interval)])
        settings.append((2.0 ** draw.randrange(-3, 24), good, draw.random() < 0.4, interval))
    label = "scale {:g}, {} good steps so far, found_inf={}, interval {}"
    return [Case(label.format(*setting), setting) for setting in settings]


_RULE_TASK = Task(
    id="06.1",
    function="next_scale",
    points=2,
    reference=_next_scale,
    cases=_next_scale_cases,
    misunderstandings=(
        Misunderstanding(
            "count survives a skip",
            "After a bad step your count of good steps goes on. Growth asks for good steps in a "
            "row.",
            lambda s, g, f, n: (s / 2, g) if f else _next_scale(s, g, f, n),
            _RULE,
        ),
        Misunderstanding(
            "skips count as steps",
            "Your count goes up after a bad step too, as if it counted all steps.",
            lambda s, g, f, n: (s / 2, g + 1) if f else _next_scale(s, g, f, n),
            _RULE,
        ),
        Misunderstanding(
            "one step late",
            "Your scale grows one step too late. Is this step itself among the good ones when you "
            "compare?",
            lambda s, g, f, n: (s / 2, 0) if f else (s * 2, 0) if g == n else (s, g + 1),
            _RULE,
        ),
        Misunderstanding(
            "count goes on after growth",
            "Once your scale has grown, the count is not set back, so it never grows again, or at "
            "every step.",
            lambda s, g, f, n: (s / 2, 0) if f else (s * 2 if g + 1 == n else s, g + 1),
            _RULE,
        ),
        Misunderstanding(
            "grows at every good step",
            "Your scale doubles after a single good step. It would overflow every second step.",
            lambda s, g, f, n: (s / 2, 0) if f else (s * 2, 0),
            _RULE,
        ),
        Misunderstanding(
            "upside down",
            "Your scale grows after an overflow. Which way do gradients go when the scale grows?",
            lambda s, g, f, n: (s * 2, 0) if f else (s / 2, 0) if g + 1 == n else (s, g + 1),
            _RULE,
        ),
        Misunderstanding(
            "floor at one",
            "Your scale does not fall below 1. A floor is a good idea, but PyTorch has none, and "
            "this rule is to be PyTorch's.",
            lambda s, g, f, n: (max(s / 2, 1.0), 0) if f else _next_scale(s, g, f, n),
            _NEVER,
        ),
        Misunderstanding(
            "back to the start",
            "After a bad step your scale does not depend on the scale before it.",
            lambda s, g, f, n: (2.0**16, 0) if f else _next_scale(s, g, f, n),
            _RULE,
        ),
    ),
)

# -- 06.2 unscale_and_check --------------------------------------------------------------------


def _unscale_and_check(gradients: list[Tensor], scale: float) -> tuple[list[Tensor], bool]:
    unscaled = [gradient / scale for gradient in gradients]
    return unscaled, not all(bool(gradient.isfinite().all()) for gradient in gradients)


def _unscale_cases(seed: int) -> list[Case]:
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return 1000 * torch.randn(*shape, generator=generator)

    def holed(value: float, *shape: int) -> Tensor:
        x = drawn(*shape)
        x.view(-1)[x.numel() // 2] = value
        return x

    inf, nan = float("inf"), float("nan")
    huge = torch.full((3,), 3e38)
    return [
        Case("two finite gradients", ([drawn(3), drawn(2, 2)], 1024.0)),
        Case("an inf in the last gradient", ([drawn(3), holed(inf, 5)], 1024.0)),
        Case("an inf in the first gradient", ([holed(inf, 5), drawn(3)], 1024.0)),
        Case("a -inf", ([drawn(3), holed(-inf, 4), drawn(1)], 65536.0)),
        Case("a NaN and no inf", ([holed(nan, 3), drawn(3)], 65536.0)),
        Case("inf and -inf in one gradient", ([torch.tensor([inf, -inf, 1.0])], 8.0)),
        Case("large and finite: above 65504", ([torch.tensor([70000.0, -1e6])], 65536.0)),
        Case("large and finite: the sum would overflow", ([huge, huge.clone()], 2.0)),
        Case("all zero", ([torch.zeros(4)], 65536.0)),
        Case("a scale below 1", ([drawn(4)], 0.25)),
        Case("no gradient at all", ([], 1024.0)),
    ]


_Unscaled = tuple[list[Tensor], bool]


def _check_with(bad: Callable[[Tensor], bool]) -> Callable[[list[Tensor], float], _Unscaled]:
    """Return somebody who has another idea of which gradients are bad."""
    return lambda gradients, scale: ([g / scale for g in gradients], any(map(bad, gradients)))


_UNSCALE = Task(
    id="06.2",
    function="unscale_and_check",
    points=2,
    reference=_unscale_and_check,
    cases=_unscale_cases,
    misunderstandings=(
        Misunderstanding(
            "inf alone",
            "You look for infinities. What becomes of inf × 0 further down in a backward pass?",
            _check_with(lambda g: bool(g.isinf().any())),
            _RULE,
        ),
        Misunderstanding(
            "NaN alone",
            "You look for NaN. An overflow is an infinity first.",
            _check_with(lambda g: bool(g.isnan().any())),
            _RULE,
        ),
        Misunderstanding(
            "plus infinity alone",
            "You miss gradients that overflow on the negative side.",
            _check_with(lambda g: bool((g == torch.inf).any() or g.isnan().any())),
            _RULE,
        ),
        Misunderstanding(
            "size of the gradients",
            "You call finite gradients bad because they are large. The rule does not look at size; "
            "these gradients are FP32 and can be larger than FP16's limit.",
            _check_with(lambda g: bool((~(g.abs() <= 65504)).any())),
            _RULE,
        ),
        Misunderstanding(
            "sum overflows",
            "You look at a sum of gradients. A sum of large finite numbers can overflow by itself.",
            _check_with(lambda g: not bool(g.sum().isfinite())),
            _RULE,
        ),
        Misunderstanding(
            "multiplied again",
            "Your gradients are multiplied by the scale once more.",
            lambda gradients, scale: (
                [g * scale for g in gradients],
                _unscale_and_check(gradients, scale)[1],
            ),
            _RULE,
        ),
        Misunderstanding(
            "not unscaled",
            "Your gradients are still scaled. The optimizer would take steps that are as many "
            "times too large.",
            lambda gradients, scale: (gradients, _unscale_and_check(gradients, scale)[1]),
            _RULE,
        ),
        Misunderstanding(
            "inf replaced",
            "You replace inf and NaN by ordinary numbers. The rest of such a gradient is not to be "
            "trusted either, so the whole step is skipped and nothing is repaired.",
            lambda gradients, scale: (
                [g.nan_to_num(0.0, 0.0, 0.0) / scale for g in gradients],
                _unscale_and_check(gradients, scale)[1],
            ),
            _SKIP,
        ),
        Misunderstanding(
            "last gradient decides",
            "Only one of the gradients decides your answer. One bad gradient anywhere is enough.",
            lambda gradients, scale: (
                [g / scale for g in gradients],
                bool(gradients) and not bool(gradients[-1].isfinite().all()),
            ),
            _RULE,
        ),
        Misunderstanding(
            "says what is finite",
            "Your second answer is the opposite of what is asked for.",
            lambda gradients, scale: (
                [g / scale for g in gradients],
                not _unscale_and_check(gradients, scale)[1],
            ),
            _RULE,
        ),
    ),
)

# -- 06.3 MyScaler -----------------------------------------------------------------------------


def _scaler_cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    broken = sorted(draw.sample(range(2, 11), 2))
    return [
        Case("a scale that starts too high", (2.0**22, 4, 12, [])),
        Case("a scale that grows", (2.0**12, 3, 12, [])),
        Case(f"broken batches at steps {broken}", (2.0**17, 3, 12, broken)),
    ]


class _Believer:
    """A scaler that has all of it right but what a subclass changes."""

    def __init__(self, init_scale: float, interval: int) -> None:
        self.now, self.good, self.interval, self.found_inf = init_scale, 0, interval, False

    def get_scale(self) -> float:
        return self.now

    def scale(self, loss: Tensor) -> Tensor:
        return loss * self.now

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        gradients = _gradients(optimizer)
        self.found_inf = self.is_bad(gradients)
        self.unscale(gradients)
        if not self.found_inf:
            optimizer.step()

    def is_bad(self, gradients: list[Tensor]) -> bool:
        return not all(bool(g.isfinite().all()) for g in gradients)

    def unscale(self, gradients: list[Tensor]) -> None:
        for gradient in gradients:
            gradient.div_(self.now)

    def update(self) -> None:
        self.now, self.good = _next_scale(self.now, self.good, self.found_inf, self.interval)


class _NotUnscaled(_Believer):
    def unscale(self, gradients: list[Tensor]) -> None:
        pass


class _NeverSkips(_Believer):
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        super().step(optimizer)
        if self.found_inf:
            optimizer.step()


class _Clips(_Believer):
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        for gradient in _gradients(optimizer):
            gradient.nan_to_num_(0.0, 65504.0, -65504.0)
        super().step(optimizer)


class _InfAlone(_Believer):
    def is_bad(self, gradients: list[Tensor]) -> bool:
        return any(bool(g.isinf().any()) for g in gradients)


class _CountsOverSkips(_Believer):
    def update(self) -> None:
        if self.found_inf:
            self.now /= 2
        else:
            self.now, self.good = _next_scale(self.now, self.good, False, self.interval)


class _Sticky(_Believer):
    def is_bad(self, gradients: list[Tensor]) -> bool:
        return self.found_inf or super().is_bad(gradients)


class _NeverGrows(_Believer):
    def update(self) -> None:
        if self.found_inf:
            self.now /= 2


class _UnscalesByTheNext(_Believer):
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        self.found_inf = self.is_bad(_gradients(optimizer))
        self.now, self.good = _next_scale(self.now, self.good, self.found_inf, self.interval)
        super().step(optimizer)

    def update(self) -> None:
        pass


class _LooksAtTheLoss(_Believer):
    def scale(self, loss: Tensor) -> Tensor:
        self.loss = loss * self.now
        return self.loss

    def is_bad(self, gradients: list[Tensor]) -> bool:
        return not bool(self.loss.isfinite())


def _gradients(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    groups = optimizer.param_groups
    return [p.grad for group in groups for p in group["params"] if p.grad is not None]


def _what_happens_with(scaler: Callable[[float, int], Any]) -> Callable[..., str]:
    return lambda *inputs: drive_scaler(scaler, inputs)


def _as_torch_does(init_scale: float, interval: int) -> DynamicLossScaler:
    return DynamicLossScaler(init_scale, growth_interval=interval)


_SCALER = Task(
    id="06.3",
    function="MyScaler",
    points=4,
    probe="drive_scaler",
    reference=_what_happens_with(_as_torch_does),
    cases=_scaler_cases,
    misunderstandings=(
        Misunderstanding(
            "not unscaled",
            "Your weights take steps with gradients that are still scaled, far too large ones.",
            _what_happens_with(_NotUnscaled),
            _RULE,
        ),
        Misunderstanding(
            "steps anyway",
            "Your scale goes down after an overflow, and the optimizer runs all the same. Then "
            "inf and NaN are in the weights for good.",
            _what_happens_with(_NeverSkips),
            _SKIP,
        ),
        Misunderstanding(
            "clips instead of skipping",
            "You make inf and NaN finite and go on. What is left of such a gradient is not a "
            "gradient, and nobody learns that the scale is too high.",
            _what_happens_with(_Clips),
            _SKIP,
        ),
        Misunderstanding(
            "inf alone",
            "Some steps have NaN gradients and no inf, and you let them pass.",
            _what_happens_with(_InfAlone),
            _RULE,
        ),
        Misunderstanding(
            "growth counted over skips",
            "Your scale grows too early: good steps before a skip still count.",
            _what_happens_with(_CountsOverSkips),
            _RULE,
        ),
        Misunderstanding(
            "once bad, always bad",
            "After the first overflow all of your steps are skipped. What has to be forgotten "
            "between two steps?",
            _what_happens_with(_Sticky),
            _TRAINING,
        ),
        Misunderstanding(
            "never grows",
            "Your scale never grows. Do you keep the count of good steps from one `update` to the "
            "next?",
            _what_happens_with(_NeverGrows),
            _RULE,
        ),
        Misunderstanding(
            "unscaled by another scale",
            "Skips are right, but at the steps where the scale changes your gradients are divided "
            "by another scale than the loss was multiplied by. When may the scale change?",
            _what_happens_with(_UnscalesByTheNext),
            _TRAINING,
        ),
        Misunderstanding(
            "looks at the loss",
            "You look for inf in the loss. It is FP32 and finite while the FP16 gradients "
            "overflow.",
            _what_happens_with(_LooksAtTheLoss),
            _RULE,
        ),
    ),
)

TASKS = (_RULE_TASK, _UNSCALE, _SCALER)
