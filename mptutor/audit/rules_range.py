"""Faults of range in the forward pass: where the first inf or NaN comes from, and near misses.

An operation is to blame if what went into it was finite and what came out was not. Everything
after it only passes the inf on, and turns it into NaN at the first difference or quotient.
"""

# ruff: noqa: D401  (the docstring of a rule is the "why" of its findings)

from __future__ import annotations

import math
from collections.abc import Iterator

from mptutor.audit.call_names import FILLS, POLES, PRODUCTS, QUOTIENTS, SUMS
from mptutor.audit.events import Backward, OptimizerStep, ScalerStep
from mptutor.audit.events_forward import Call, Forward, Values
from mptutor.audit.rules import NOTE, SUSPECT, WRONG, Evidence, Sighting, rule, seen_at
from mptutor.audit.rules_range_constants import overflowing_constant
from mptutor.formats import BF16, FP16

Sightings = Iterator[Sighting]
Operation = Forward | Call

#: Nearer than this factor to the largest FP16 number, an activation is a matter of luck.
HEADROOM = 4


@rule(
    WRONG,
    lesson=8,
    cause="The forward pass leaves FP16's range: no loss scale can mend that.",
    repair="torch.autocast(device_type, dtype=torch.bfloat16)\n# or FP32 for this part alone:\n"
    "with torch.autocast(device_type, enabled=False):\n    y = layer(x.float())",
)
def forward_overflow(evidence: Evidence) -> Sightings:
    """65519 is the last number that still rounds to 65504; beyond it lies inf."""
    for operation in _origins(evidence):
        if not _leaves_fp16(operation):
            continue
        seen = f"{_name(operation)} got finite values and gave {_gave(operation)}"
        if _left_out(evidence, operation):
            finite = "; the loss was finite all the same: something hid it, or divided by it"
            yield seen_at(operation, seen + finite, level=SUSPECT)
        elif _special_case(evidence, operation) is None:
            spread = _norm_after(evidence, operation)
            yield seen_at(operation, seen + spread + _next_nearest(evidence))


@rule(
    WRONG,
    lesson=7,
    cause="Attention logits leave FP16's range before they are scaled down; softmax makes NaN of "
    "them.",
    repair="logits = (q * head_dim**-0.5) @ k.transpose(-2, -1)   # scale first\n"
    "# or torch.nn.functional.scaled_dot_product_attention(q, k, v)",
)
def logits_overflow(evidence: Evidence) -> Sightings:
    """The product of q and k is the largest number in a transformer."""
    for operation in _culprits(evidence):
        if _special_case(evidence, operation) == "logits":
            seen = f"{_name(operation)} gave {_gave(operation)}, and softmax follows"
            yield seen_at(operation, seen)


@rule(
    WRONG,
    lesson=2,
    cause="A sum is taken in FP16 and passes 65504.",
    repair="total = x.float().sum()   # or x.sum(dtype=torch.float32), or a mean",
)
def sum_overflow(evidence: Evidence) -> Sightings:
    """CUDA's autocast sums in FP32; the CPU's does not, nor does anything outside autocast."""
    for operation in _culprits(evidence):
        if _special_case(evidence, operation) == "sum":
            n = math.prod(operation.inputs[0].shape) if operation.inputs else 0
            yield seen_at(operation, f"{_name(operation)} of {n:,} FP16 values gave inf")


@rule(
    SUSPECT,
    lesson=8,
    cause="An operation makes inf or NaN of finite values, and not for want of FP16's range.",
    repair="y = torch.log(x.clamp(min=1e-6))   # or log_softmax, logsigmoid, xlogy: whole forms",
)
def forward_not_finite(evidence: Evidence) -> Sightings:
    """A logarithm or a division of 0, a root of a negative number, weights gone astray."""
    for operation in _culprits(evidence):
        if not _leaves_fp16(operation) and not _fills(operation):
            level = WRONG if _reaches_loss(evidence, operation) else None
            yield seen_at(operation, f"{_name(operation)} gave {_gave(operation)}", level=level)


@rule(
    NOTE,
    lesson=8,
    cause="An inf or NaN appears here, but reaches neither the loss nor the weights.",
    repair="pass   # nothing, if it is masked on purpose",
)
def inf_left_out(evidence: Evidence) -> Sightings:
    """A mask, or a branch that `where` discards. Its gradient could still be NaN."""
    for operation in _origins(evidence):
        if _left_out(evidence, operation) and not _leaves_fp16(operation):
            yield seen_at(operation, f"{_name(operation)} gave {_gave(operation)}")


@rule(
    SUSPECT,
    lesson=8,
    cause="Activations come within a factor of 4 of FP16's largest number.",
    repair="torch.autocast(device_type, dtype=torch.bfloat16)   # or FP32 for this layer",
)
def little_headroom(evidence: Evidence) -> Sightings:
    """A larger batch, a longer run or another seed may take them beyond."""
    for operation, largest in _fp16_magnitudes(evidence):
        if largest > FP16.max / HEADROOM:
            factor = FP16.max / largest
            yield seen_at(operation, f"{_name(operation)}: {largest:.0f}, {factor:.1f} x below")


@rule(
    WRONG,
    lesson=8,
    cause="The batch has inf or NaN in it before the model sees it.",
    repair="assert x.isfinite().all()   # precision is not the cause: clean the data",
)
def input_not_finite(evidence: Evidence) -> Sightings:
    """Found before anything was computed."""
    for forward in evidence.of(Forward):
        for values in forward.inputs[:1] if forward.root else ():
            if not values.finite and _from_outside(values):
                yield seen_at(forward, f"the input of {forward.layer} '{forward.name}'")
    for call in evidence.of(Call):
        if any(v.made_by is None and _has_nan(v) for v in call.inputs):
            yield seen_at(call, f"an input of {call.name}() has NaN in it")


@rule(
    SUSPECT,
    lesson=7,
    cause="Whole numbers are cast to 16 bits that cannot tell them apart: positions or indices.",
    repair="with torch.autocast(device_type, enabled=False):\n"
    "    angles = positions.float()[:, None] * frequencies.float()[None, :]",
)
def positions_rounded(evidence: Evidence) -> Sightings:
    """BF16 has no odd numbers above 256, FP16 none above 2048."""
    for call in evidence.of(Call):
        limit = _exact_up_to(call.output)
        if call.whole and limit is not None and limit < call.largest_cast < 1e30:
            yield seen_at(
                call,
                f"{call.name}() casts whole numbers up to {call.largest_cast:.0f} to "
                f"{call.output.dtype}, exact up to {limit:.0f}",
            )


# -- words the rules are made of -----------------------------------------------------------------


def _from_outside(values: Values) -> bool:
    """Say whether no operation made the values, except one that wrote a NaN into them."""
    return values.made_by is None or (values.made_by in FILLS and _has_nan(values))


def _has_nan(values: Values) -> bool:
    return values.hi is not None and math.isnan(values.hi)


def _origins(evidence: Evidence) -> Iterator[Operation]:
    """Operations with finite inputs whose result is not finite, one for each line."""
    lines: set[tuple] = set()
    for operation in evidence.of(Forward, Call):
        result = _result(operation)
        line = operation.site.file, operation.site.line
        if result is None or result.finite or line in lines or not operation.inputs:
            continue
        if isinstance(operation, Forward) and not operation.leaf:
            continue
        if _brought_in(operation) or _is_mask(operation, result):
            continue
        lines.add(line)
        yield operation


def _brought_in(operation: Operation) -> bool:
    """Say whether the inf came in, by an input or by a constant written there."""
    if any(not values.finite for values in operation.inputs):
        return True
    if isinstance(operation, Forward):
        return operation.weight is not None and not operation.weight.finite
    if any(not math.isfinite(c) for c in operation.constants):
        return True
    return overflowing_constant(operation) is not None


def _is_mask(operation: Operation, result: Values) -> bool:
    """Say whether it is -inf and nothing else, put there on purpose."""
    return _fills(operation) and result.lo == -math.inf and math.isfinite(result.hi)


def _leaves_fp16(operation: Operation) -> bool:
    """Say whether the result was too large for FP16, and not infinite in any format."""
    return _came_out_as(operation, "float16") and not _is_pole(operation) and not _fills(operation)


def _is_pole(operation: Operation) -> bool:
    """Say whether it is a logarithm or a quotient of 0, which no format's range would help."""
    if not isinstance(operation, Call) or operation.name not in POLES | QUOTIENTS:
        return False
    if operation.name in QUOTIENTS and len(operation.inputs) < 2:
        return False  # divided by a number
    at = operation.inputs[-1]
    return at.lo is not None and at.lo <= 0 <= at.hi


def _fills(operation: Operation) -> bool:
    return isinstance(operation, Call) and operation.fills


def _culprits(evidence: Evidence) -> Iterator[Operation]:
    return (o for o in _origins(evidence) if not _left_out(evidence, o))


def _left_out(evidence: Evidence, operation: Operation) -> bool:
    """Say whether the loss that follows was finite and its step took place."""
    backward = next(evidence.after(operation, Backward), None)
    step = next(evidence.after(operation, ScalerStep, OptimizerStep), None)
    if backward is None or step is None or backward.step != operation.step:
        return False
    if not backward.loss_is_finite:
        return False
    return step.took_place if isinstance(step, ScalerStep) else step.weights_finite is not False


def _reaches_loss(evidence: Evidence, operation: Operation) -> bool:
    backward = next(evidence.after(operation, Backward), None)
    return backward is not None and not backward.loss_is_finite


def _special_case(evidence: Evidence, operation: Operation) -> str | None:
    """Sums and attention logits have repairs of their own."""
    if not isinstance(operation, Call) or not _came_out_as(operation, "float16"):
        return None
    if operation.name in SUMS:
        return "sum"
    following = [c.name for c, _ in zip(evidence.after(operation, Call), range(5), strict=False)]
    if operation.name in PRODUCTS and "softmax" in following:
        return "logits"
    return None


def _result(operation: Operation) -> Values | None:
    if isinstance(operation, Forward):
        return operation.outputs[0] if operation.outputs else None
    return operation.output


def _came_out_as(operation: Operation, dtype: str) -> bool:
    result = _result(operation)
    return result is not None and result.dtype == dtype


def _gave(operation: Operation) -> str:
    result = _result(operation)
    return f"{'NaN' if math.isnan(result.hi) else 'inf'} in {result.dtype}"


def _name(operation: Operation) -> str:
    if isinstance(operation, Forward):
        return f"{operation.layer} '{operation.name}'"
    return f"{operation.name}()" + (f" in {operation.module}" if operation.module else "")


def _fp16_magnitudes(evidence: Evidence) -> Iterator[tuple[Operation, float]]:
    for operation in evidence.of(Forward, Call):
        result = _result(operation)
        leaf = isinstance(operation, Call) or operation.leaf
        if result is None or not leaf or not operation.inputs or _fills(operation):
            continue
        masked = result.lo == -FP16.max
        if result.dtype == "float16" and result.largest is not None and not masked:
            yield operation, result.largest


def _next_nearest(evidence: Evidence) -> str:
    """Say how near the other layers come."""
    others = [(big, _name(o)) for o, big in _fp16_magnitudes(evidence) if isinstance(o, Forward)]
    if not others:
        return ""
    largest, name = max(others)
    return f"; the nearest that stayed finite is {name}: {largest:.0f}"


def _norm_after(evidence: Evidence, operation: Operation) -> str:
    """Autocast leaves BatchNorm in its input's dtype, so an inf spreads over the whole batch."""
    following = (f for f, _ in zip(evidence.after(operation, Forward), range(8), strict=False))
    for forward in following:
        if "BatchNorm" in forward.layer and any(v.dtype == "float16" for v in forward.outputs):
            return f", which {forward.layer} '{forward.name}', in FP16 as well, spreads"
    return ""


def _exact_up_to(values: Values | None) -> float | None:
    """Return the number up to which a 16-bit format has every whole number."""
    formats = {"float16": FP16, "bfloat16": BF16}
    return 2.0 / formats[values.dtype].eps if values and values.dtype in formats else None
