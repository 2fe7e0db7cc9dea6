"""How a learner's code is tried out: the half of a check that runs beside it.

A probe is given what the learner wrote and the plain inputs of one case, and returns what
happened: the value, or the exception. It knows nothing of right and wrong, and this module imports
nothing that does, so a grader can run it inside a sandbox where no answer is to be found.

A task names its probe. `call` serves whenever the learner writes a function.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from mptutor.checks.plain import pack

Probe = Callable[[Any, Sequence[Any]], Any]


def call(written: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """Call the learner's function with the inputs of one case."""
    return written(*inputs)


#: The probes a task can name. A new kind of exercise adds its own here.
PROBES: dict[str, Probe] = {"call": call}


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
    outside = [frame for frame in frames if frame.filename != __file__]
    line = outside[-1].line if outside else ""
    return {
        "type": type(error).__name__,
        "message": str(error)[:500],
        "line": (line or "")[:200],
    }
