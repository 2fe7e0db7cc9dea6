"""Errors of dtype in what training keeps: weights, averages and optimizer state in 16 bits."""

# ruff: noqa: D401  (the docstring of a rule is the "why" of its findings)

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from mptutor.audit.call_names import REPLACEMENTS
from mptutor.audit.events import OptimizerStep
from mptutor.audit.events_forward import Call, Forward
from mptutor.audit.rules import SUSPECT, WRONG, Evidence, Sighting, rule, seen_at
from mptutor.formats import FP16

Sightings = Iterator[Sighting]
HALF = ("float16", "bfloat16")

ADDED_TO_TOTAL = ("add_", "__iadd__")
AVERAGED = ("mul_", "__imul__", "lerp_")

#: Nearest-even rounding takes positive numbers up to this one to 0 in FP16.
FP16_ZERO = FP16.underflow_threshold


@rule(
    SUSPECT,
    lesson=4,
    cause="16-bit weights do not move: the update is less than half a step of their format.",
    repair="model.float()   # FP32 weights, and autocast around forward and loss",
)
def weights_stall(evidence: Evidence) -> Sightings:
    """The gradient is there and the update is right; rounding takes it back."""
    for step in evidence.of(OptimizerStep):
        if step.asked and step.lr > 0 and step.still / step.asked > 0.5:
            share = step.still / step.asked
            yield seen_at(
                step,
                f"{share:.0%} of the {'/'.join(step.dtypes)} weights with a gradient kept every "
                f"bit at lr {step.lr:g}",
                level=WRONG if share > 0.9 else None,
            )


@rule(
    SUSPECT,
    lesson=4,
    cause="Optimizer state kept in 16 bits does not move.",
    repair="optimizer = torch.optim.AdamW(model.float().parameters())   # FP32 state",
)
def optimizer_state_stalls(evidence: Evidence) -> Sightings:
    """A decay of 0.999 is 1 in BF16: the second moment stays where its largest value put it."""
    for step in evidence.of(OptimizerStep):
        for name, asked in step.state_asked.items():
            share = step.state_still[name] / max(1, asked)
            if share > 0.5 and step.step > 0:
                stuck = f"{share:.0%} of {step.algorithm}'s {name} kept every bit"
                yield seen_at(step, f"{stuck}, in {'/'.join(step.dtypes)}")


@rule(
    WRONG,
    lesson=4,
    cause="Adam's eps is 0 in FP16, and FP16 parameters get FP16 state.",
    repair="model.float()   # FP32 weights and state; or eps=1e-4 as a stop-gap",
)
def adam_eps_vanishes(evidence: Evidence) -> Sightings:
    """Where a gradient is below 2.4e-4 its square is 0 too, and the update is g/0."""
    for step in evidence.of(OptimizerStep):
        if "float16" in step.dtypes and step.eps and step.eps <= FP16_ZERO:
            yield seen_at(step, f"{step.algorithm} with eps={step.eps:g} and FP16 parameters")


@rule(
    SUSPECT,
    lesson=4,
    cause="An average or a weight kept in 16 bits does not move: the change is less than half a "
    "step of the format.",
    repair="average = [p.detach().float().clone() for p in model.parameters()]   # in FP32",
)
def average_stalls(evidence: Evidence) -> Sightings:
    """An EMA with a decay of 0.999 asks for changes of a thousandth: BF16 has steps of 1/256."""
    stuck = [c for c in evidence.of(Call) if c.asked and c.still / c.asked > 0.5]
    times = Counter((c.site.file, c.site.line) for c in stuck)
    for call in stuck:
        once = call.name in REPLACEMENTS and times[call.site.file, call.site.line] < 3
        if not once:
            kept = call.output.dtype if call.output is not None else "16 bits"
            share = call.still / call.asked
            yield seen_at(call, f"{share:.0%} of what should change in {kept} kept every bit")


@rule(
    SUSPECT,
    lesson=2,
    cause="A running total is kept in 16 bits: it stops growing once a term is less than half a "
    "step of it.",
    repair="total = torch.zeros((), device=device)   # FP32\n"
    "total += loss.detach()   # or total += loss.item(), a Python float",
)
def total_in_16_bits(evidence: Evidence) -> Sightings:
    """With equal terms BF16 stops after 256, FP16 after 2048; cleared before that, it is sound."""
    totals = [c for c in evidence.of(Call) if c.name in ADDED_TO_TOTAL and _half_number(c)]
    averaged = any(c.name in AVERAGED and _half_number(c) for c in evidence.of(Call))
    for line in dict.fromkeys(map(_line, totals)) if not averaged else ():
        calls = [c for c in totals if _line(c) == line]
        sizes = [c.output.largest for c in calls]
        if len(calls) >= 3 and None not in sizes and all(a < b for a, b in pairwise(sizes)):
            yield seen_at(calls[-1], f"{sizes[-1]:.4g} in {calls[-1].output.dtype} by now")


def _line(call: Call) -> tuple[str, int]:
    return call.site.file, call.site.line


def _half_number(call: Call) -> bool:
    """Say whether a call made one number in 16 bits that nothing is learned through."""
    x = call.output
    return x is not None and x.dtype in HALF and math.prod(x.shape) == 1 and not call.learns


@rule(
    SUSPECT,
    lesson=7,
    cause="BatchNorm's weights and running statistics are in 16 bits, and its averages stall.",
    repair="for m in model.modules():\n"
    "    if isinstance(m, torch.nn.modules.batchnorm._BatchNorm):\n        m.float()",
)
def half_batchnorm(evidence: Evidence) -> Sightings:
    """Training still looks right, since it uses the batch's own statistics; evaluation doesn't."""
    for forward in evidence.of(Forward):
        weight = forward.weight
        in_half = weight is not None and weight.dtype in HALF
        if "BatchNorm" in forward.layer and forward.training and in_half:
            yield seen_at(forward, f"'{forward.name}' is {weight.dtype}")
            return
