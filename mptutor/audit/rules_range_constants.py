"""Numbers written into a program that 16 bits cannot hold."""

from __future__ import annotations

import math
from collections.abc import Iterator

from mptutor.audit.call_names import SCALINGS
from mptutor.audit.events_forward import Call
from mptutor.audit.rules import WRONG, Evidence, Sighting, rule, seen_at
from mptutor.formats import BF16, FP16

Sightings = Iterator[Sighting]
FORMATS = {"float16": FP16, "bfloat16": BF16}

#: A constant that vanishes does no harm in these: a mask's 0 is as good as a mask's 1e-9.
MASKS = {"where", "masked_fill", "masked_fill_", "__setitem__"}


@rule(
    WRONG,
    lesson=1,
    cause="A constant does not fit into FP16.",
    repair="scores.masked_fill(mask, torch.finfo(scores.dtype).min)   # of the tensor masked",
)
def constant_overflows(evidence: Evidence) -> Iterator[Sighting]:
    """masked_fill refuses -1e9; where, + and item assignment make -inf of it."""
    for call in evidence.of(Call):
        constant = overflowing_constant(call)
        if constant is not None:
            sign = "-" if constant < 0 else ""
            became = f"it raised: {call.error}" if call.error else f"it became {sign}inf"
            yield seen_at(call, f"{constant:g} in {call.name}() of {_target(call)}; {became}")


@rule(
    WRONG,
    lesson=3,
    cause="A guard against 0 is itself 0 in 16 bits.",
    repair="y = torch.log(x.float() + 1e-8)   # or a guard of at least torch.finfo(x.dtype).tiny",
)
def constant_vanishes(evidence: Evidence) -> Iterator[Sighting]:
    """FP16 rounds 2^-25 and everything below it to 0."""
    for call in evidence.of(Call):
        fmt = FORMATS.get(_target(call) or "")
        if fmt is None or call.name in MASKS | SCALINGS or call.error:
            continue
        for constant in call.constants:
            if 0 < abs(constant) <= fmt.underflow_threshold:
                yield seen_at(call, f"{constant:g} in {call.name}() of {_target(call)} is 0")


def overflowing_constant(call: Call) -> float | None:
    """Return the first finite constant of a call that is beyond its tensor's format."""
    fmt = FORMATS.get(_target(call) or "")
    if fmt is None:
        return None
    beyond = (c for c in call.constants if math.isfinite(c) and abs(c) >= fmt.overflow_threshold)
    return next(beyond, None)


def _target(call: Call) -> str | None:
    """Return the dtype the constant is turned into."""
    if call.name == "__setitem__" and call.inputs:
        return call.inputs[0].dtype
    if call.output is not None:
        return call.output.dtype
    return next((v.dtype for v in call.inputs if v.dtype in FORMATS), None)
