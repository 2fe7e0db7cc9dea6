"""What the tasks of exercise 10 have in common: the headings of their hints, and their cases.

A loop is graded by what it does: the dtype its layers compute in, its scales and skips, what it
returns, and the weights it ends with. So any right order will do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mptutor.checks.task import Case

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
