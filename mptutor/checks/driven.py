"""Training loops as references and as beliefs: driven as the learner's own loop is.

What is compared with the learner's result has to come from the same probe on the same inputs. A
training is the same each time, so it is run once for each case and remembered. Two trainings agree
if all that was done is the same, and what came out of it nearly so: right loops may add in another
order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

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


def trainings_agree(
    *,
    weights: float,
    exact: Sequence[str] = ("layers in", "steps", "scales"),
    losses: float | None = 0.02,
) -> Callable[[Any, Any], bool]:
    """Return the function that compares two trainings, each as a probe tells it.

    Parameters
    ----------
    weights
        How far two final weights may lie apart.
    exact
        What has to be equal.
    losses
        The relative tolerance for the losses, or for the norms where a probe tells those; None if
        they do not count.
    """

    def agree(expected: Any, got: Any) -> bool:
        if not isinstance(got, dict) or got.keys() != expected.keys():
            return False
        line = "norms" if "norms" in expected else "losses"
        return (
            all(expected[key] == got[key] for key in exact)
            and _weights_agree(expected["weights"], got["weights"], weights)
            and (losses is None or _numbers_agree(expected[line], got[line], losses))
        )

    return agree


def _weights_agree(expected: torch.Tensor, got: Any, tolerance: float) -> bool:
    return (
        isinstance(got, torch.Tensor)
        and expected.shape == got.shape
        and torch.allclose(expected, got, rtol=0, atol=tolerance, equal_nan=True)
    )


def _numbers_agree(expected: str, got: Any, tolerance: float) -> bool:
    try:
        a, b = ([float(word) for word in line.split()] for line in (expected, got))
    except (AttributeError, ValueError):
        return False
    # One that is not finite is inf or NaN, depending on what is added to what.
    return len(a) == len(b) and all(
        math.isclose(x, y, rel_tol=tolerance) or not (math.isfinite(x) or math.isfinite(y))
        for x, y in zip(a, b, strict=True)
    )
