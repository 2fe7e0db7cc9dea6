"""What the tasks of lesson 11 that mend a loop have in common: cases, comparison, beliefs.

A mended loop is graded by what it does: the findings that the audit still has, the dtype its layers
compute in, its scales and skips, and the weights it ends with. What it looks like plays no part, so
any right order and any right repair will do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mptutor.checks.driven import trainings_agree
from mptutor.checks.task import Case

# Headings of lesson 11 that the hints send the learner back to.
FIRST = "NaN from the first step"
GUARD = "NaN now and then"
AFTER = "NaN after a while, for good"
FLAT = "Flat, without a word"
LITTLE = "Learns, but too little"
HIDE = "Repairs that hide"
CHART = "The flow chart"


def cases_of(model: str, settings: dict[str, dict[str, Any]]) -> Callable[[int], list[Case]]:
    """Return what draws the cases of a seed: the same settings, other weights and data."""

    def cases(seed: int) -> list[Case]:
        return [
            Case(f"{label}, seed {seed}", (model, {"steps": 6, "seed": seed, **setting}))
            for label, setting in settings.items()
        ]

    return cases


def alike_within(
    tolerance: float, exact: Sequence[str] = ("layers in", "weights in", "steps", "scales")
) -> Callable[[Any, Any], bool]:
    """Compare two trainings: what was done exactly, the weights within a tolerance."""
    same_training = trainings_agree(weights=tolerance, exact=exact, losses=None)

    def agree(expected: Any, got: Any) -> bool:
        return same_training(expected, got) and _no_worse(expected["findings"], got["findings"])

    return agree


def _no_worse(expected: list[str], got: Any) -> bool:
    """Compare findings, without those that depend on the numbers and not on the loop.

    Two right loops may come differently close to a limit, and the batches are finite in any case.
    """
    aside = {"little_headroom", "skips_persist", "input_not_finite"}
    return isinstance(got, list) and set(got) - aside == set(expected) - aside
