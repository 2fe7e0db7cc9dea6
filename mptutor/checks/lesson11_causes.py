"""Exercise 11.7: the audit's names for what is wrong with each of the six loops."""

from __future__ import annotations

import random
from typing import Any

from mptutor.checks.lesson11_repairs import AFTER, CHART, FIRST
from mptutor.checks.task import Case, Misunderstanding, Task

_CAUSES = {
    "A": ["loss_not_scaled", "clip_before_unscale"],
    "B": ["constant_overflows", "logits_overflow"],
    "C": ["adam_eps_vanishes"],
    "D": ["unscale_twice"],
    "E": ["half_parameters_with_scaler"],
    "F": ["average_stalls"],
}

#: What follows from each cause, and is in the report too or in the loss.
_CONSEQUENCES = {
    "A": ["no_gradients"],
    "B": ["every_step_skipped"],
    "C": ["weights_not_finite"],
    "D": ["update_missing"],
    "E": ["every_step_skipped"],
    "F": ["weights_stall"],
}

#: Other true names for the same thing: B's product is both, and C has no scaler besides.
_SAME = {"forward_overflow": "logits_overflow", "fp16_without_scaler": None}


def _cause_cases(seed: int) -> list[Case]:
    letters = list(_CAUSES)
    random.Random(seed).shuffle(letters)
    return [Case(f"loop {letter}", (letter,)) for letter in letters]


def _same_causes(expected: Any, got: Any) -> bool:
    if not isinstance(got, list) or not all(isinstance(name, str) for name in got):
        return False
    return {_SAME.get(n, n) for n in expected} - {None} == {_SAME.get(n, n) for n in got} - {None}


def _kind(loop: str) -> list[str]:
    return [
        {"A": "order", "B": "range", "C": "dtype", "D": "order", "E": "dtype"}.get(loop, "dtype")
    ]


NAMES = Task(
    id="11.7",
    function="causes",
    points=3,
    reference=lambda loop: _CAUSES[loop],
    cases=_cause_cases,
    agree=_same_causes,
    misunderstandings=(
        Misunderstanding(
            "one fault a loop",
            "Your names are right as far as they go. A loop can have two faults: mend the one you "
            "found and audit it again.",
            lambda loop: _CAUSES[loop][-1:],
            CHART,
        ),
        Misunderstanding(
            "the other fault alone",
            "Your names are right as far as they go. What stands first in the report is not all "
            "that stands there.",
            lambda loop: _CAUSES[loop][:1],
            CHART,
        ),
        Misunderstanding(
            "consequences",
            "You name what happened in the end. The report puts what it comes from above it.",
            lambda loop: _CONSEQUENCES[loop],
            FIRST,
        ),
        Misunderstanding(
            "consequences too",
            "The causes are there, and what follows from one of them beside it. What would be left "
            "of your list once the causes are mended?",
            lambda loop: _CAUSES[loop] + ["weights_not_finite"] * (loop == "C"),
            AFTER,
        ),
        Misunderstanding(
            "notes taken for faults",
            "Your list has notes in it. A note is true, and nothing has to be done.",
            lambda loop: [*_CAUSES[loop], "no_fast_units"],
            "A healthy loop",
        ),
        Misunderstanding(
            "the scale is to blame",
            "You blame the scale. Where does it stand in the report, if it is there at all?",
            lambda loop: ["scale_collapsed"],
            FIRST,
        ),
        Misunderstanding(
            "kinds",
            "That is the kind of fault. Asked for is its name, as the report has it in code.",
            _kind,
            CHART,
        ),
    ),
)
