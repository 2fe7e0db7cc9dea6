"""How a learner's code is tried out: the half of a check that runs beside it.

A probe is given what the learner wrote and the plain inputs of one case, and returns what
happened: the value, or the exception. It knows nothing of right and wrong, and this module imports
nothing that does, so a grader can run it inside a sandbox where no answer is to be found.

A task names its probe. `call` serves whenever the learner writes a function.
"""

from __future__ import annotations

import copy
import math
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mptutor.checks.plain import pack
from mptutor.checks.probes_amp import drive_in_precision, drive_logged_loop
from mptutor.checks.probes_autocast import differentiate_function, differentiate_loss
from mptutor.checks.probes_looks import take_a_look
from mptutor.checks.probes_loops import drive_average, drive_loop, drive_optimizers
from mptutor.checks.probes_ranks import drive_ranks
from mptutor.checks.probes_resume import drive_resume
from mptutor.checks.probes_speed import drive_quick_loop, time_steps
from mptutor.checks.probes_steps import take_scaled_steps

#: Where code lies that no learner wrote: Python's, what is installed, and ours.
_NOT_THE_LEARNERS = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(__file__).resolve().parents[1]),
)

Probe = Callable[[Any, Sequence[Any]], Any]


def call(written: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """Call the learner's function with the inputs of one case."""
    return written(*inputs)


def drive_scaler(written: Callable[[float, int], Any], inputs: Sequence[Any]) -> str:
    """Train a small network with the learner's scaler and tell what it did, step by step.

    ``inputs`` are init scale, growth interval, number of steps, and the steps with a broken batch.
    ``"16 16x 15; weights 93053f56"`` says: two steps at a scale of 2^16, the second one skipped,
    one at 2^15, and the hash that the final weights have.
    """
    from mptutor.experiments.scaler_traces import trace_scaler

    init_scale, growth_interval, steps, broken_steps = inputs
    scaler = written(init_scale, growth_interval)
    trace = trace_scaler(scaler, steps=steps, broken_steps=broken_steps, widths=(784, 32, 10))
    powers = [f"{math.log2(scale):g}" if scale > 0 else "scale 0" for scale in trace.scales]
    told = [p + ("x" if skip else "") for p, skip in zip(powers, trace.skipped, strict=True)]
    return f"{' '.join(told)}; weights {trace.weights_hash[:8]}"


#: The probes a task can name. A new kind of exercise adds its own here.
PROBES: dict[str, Probe] = {
    "call": call,
    "differentiate_function": differentiate_function,
    "differentiate_loss": differentiate_loss,
    "drive_scaler": drive_scaler,
    "drive_loop": drive_loop,
    "drive_logged_loop": drive_logged_loop,
    "drive_in_precision": drive_in_precision,
    "drive_average": drive_average,
    "drive_optimizers": drive_optimizers,
    "drive_resume": drive_resume,
    "drive_quick_loop": drive_quick_loop,
    "time_steps": time_steps,
    "drive_ranks": drive_ranks,
    "take_scaled_steps": take_scaled_steps,
    "take_a_look": take_a_look,
}


def try_out(probe: str, written: Any, inputs: Sequence[Any]) -> dict[str, Any]:
    """Run a probe on one case and take down what happened, as plain data.

    Returns
    -------
    dict
        ``{"value": …}``, or ``{"error": {"type": …, "message": …, "line": …}}`` with the line of
        the learner's code that raised, where it can be told.
    """
    try:
        # A function that works in place must not spoil the inputs for the next one.
        return {"value": pack(PROBES[probe](written, copy.deepcopy(list(inputs))))}
    except Exception as error:
        return {"error": _describe(error)}


def _describe(error: Exception) -> dict[str, str]:
    frames = traceback.extract_tb(error.__traceback__)
    written = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_LEARNERS)]
    line = written[-1].line if written else ""
    return {
        "type": type(error).__name__,
        "message": str(error)[:500],
        "line": (line or "")[:200],
    }
