"""What an audit could not look at: said in the report, so that silence isn't taken for health."""

from __future__ import annotations

import os
import sys

from mptutor.audit.events import Backward, CompileAsked, ScalerStep
from mptutor.audit.events_forward import Call, Forward
from mptutor.audit.trace import Trace
from mptutor.audit.watch_calls import compiled_code_exists

#: Packages that scale losses with code of their own.
OTHER_SCALERS = ("deepspeed", "apex")


def what_was_not_seen(trace: Trace, problems: list[str]) -> list[str]:
    """List, in sentences, what stayed out of sight in this run."""
    unseen = []
    if any(True for _ in trace.of(CompileAsked)) or compiled_code_exists():
        unseen.append(
            "Compiled code is seen from outside only, and torch calls were not looked at. "
            "With TORCHDYNAMO_DISABLE=1 the same run can be looked into."
        )
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1:
        unseen.append(f"This is one of {processes} processes; the others were not looked at.")
    for package in OTHER_SCALERS:
        if package in sys.modules:
            unseen.append(f"{package} is loaded: a loss scaler of its own is not seen.")
    if not trace.steps:
        learned = any(True for _ in trace.of(Backward, ScalerStep))
        unseen.append(
            "No optimizer step was seen."
            if learned
            else "No training was seen: neither a backward pass nor an optimizer step."
        )
    unseen += _sampled(trace)
    counted = {text: problems.count(text) for text in problems}
    for text, times in counted.items():
        repeated = f" ({times} times)" if times > 1 else ""
        unseen.append(f"The audit itself: {text}{repeated}.")
    return unseen


def _sampled(trace: Trace) -> list[str]:
    """Say in how many of the steps the costlier tiers looked, if not in all of them."""
    layers = len({f.step for f in trace.of(Forward) if f.leaf and f.step < trace.steps})
    calls = len({c.step for c in trace.of(Call) if c.step < trace.steps})
    if not calls or min(layers, calls) >= trace.steps:
        return []
    return [
        f"Every layer was looked at in {layers} of {trace.steps} steps, every torch call in "
        f"{calls}: what is counted there is counted in these."
    ]
