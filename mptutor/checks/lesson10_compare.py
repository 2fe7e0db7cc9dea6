"""How the trainings of exercise 10 are compared, whatever they look like.

A loop is graded by what it does: the dtype its layers compute in, its scales and skips, what it
returns, and the weights it ends with. So any right order will do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mptutor.checks.task import Agree, Case

# Headings of lesson 10 that the hints send the learner back to.
RULE = "One rule"
CLIPPING = "Clipping"
ACCUMULATION = "Accumulation"
TWO = "Two losses, two optimizers"
PENALTY = "A penalty on gradients"
CHECKPOINT = "The scale is part of the checkpoint"
ORDER = "The calls in another order"


def cases_of(settings: dict[str, dict[str, Any]]) -> Callable[[int], list[Case]]:
    """Return what draws the cases of a seed: the same settings, other weights and data."""

    def cases(seed: int) -> list[Case]:
        return [
            Case(f"{label}, seed {seed}", ("classifier", {"seed": seed, **setting}))
            for label, setting in settings.items()
        ]

    return cases


def alike(tolerance: float, returned: float | None = None) -> Agree:
    """Compare two trainings: steps and scales exactly, weights within a tolerance.

    `returned` is a relative tolerance for the numbers that the loops returned, if they count.
    """

    def agree(expected: Any, got: Any) -> bool:
        if not isinstance(got, dict) or got.keys() != expected.keys():
            return False
        a, b = expected["weights"], got["weights"]
        return (
            all(expected[key] == got[key] for key in ("layers in", "steps", "scales"))
            and isinstance(b, torch.Tensor)
            and a.shape == b.shape
            and torch.allclose(a, b, rtol=0, atol=tolerance, equal_nan=True)
            and (returned is None or _numbers_agree(expected["losses"], got["losses"], returned))
        )

    return agree


def _numbers_agree(expected: str, got: Any, tolerance: float) -> bool:
    try:
        a, b = ([float(word) for word in text.split()] for text in (expected, got))
    except (AttributeError, ValueError):
        return False
    if len(a) != len(b):
        return False
    # A norm that is not finite is inf or NaN, depending on what is added to what.
    a, b = (torch.tensor(x, dtype=torch.float64).nan_to_num(nan=torch.inf) for x in (a, b))
    return torch.allclose(a, b, rtol=tolerance, atol=0)
