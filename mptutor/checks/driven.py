"""Training loops as references and as beliefs: driven as the learner's own loop is.

What is compared with the learner's result has to come from the same probe on the same inputs. A
training is the same each time, so it is run once for each case and remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mptutor.checks.probes_loops import drive_loop
from mptutor.checks.task import Misunderstanding

Drive = Callable[[Callable[..., Any], Sequence[Any]], Any]


def driven(loop: Callable[..., Any], probe: Drive = drive_loop) -> Callable[..., Any]:
    """Return the function that tells, of the inputs of a case, what a probe sees `loop` do."""
    done: dict[str, Any] = {}

    def drive(*inputs: Any) -> Any:
        if repr(inputs) not in done:
            done[repr(inputs)] = probe(loop, inputs)
        return done[repr(inputs)]

    return drive


def belief(
    name: str,
    reread: str,
    loop: Callable[..., Any],
    hint: str,
    probe: Drive = drive_loop,
) -> Misunderstanding:
    """Return the misunderstanding of somebody who writes this loop."""
    return Misunderstanding(name, hint, driven(loop, probe), reread)
