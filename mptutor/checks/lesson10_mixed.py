"""Exercises 10.3 and 10.5: two optimizers, and a loop with three faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mptutor.checks import lesson10_loops as loops
from mptutor.checks.driven import belief, driven, trainings_agree
from mptutor.checks.lesson10_cases import (
    ACCUMULATION,
    CLIPPING,
    PENALTY,
    RULE,
    TWO,
    cases_of,
)
from mptutor.checks.probes_loops import drive_optimizers
from mptutor.checks.task import Misunderstanding, Task

# -- 10.3 two_optimizers -------------------------------------------------------------------------


def _two_belief(name: str, reread: str, loop: Callable[..., Any], hint: str) -> Misunderstanding:
    return belief(name, reread, loop, hint, drive_optimizers)


TWO_TASK = Task(
    id="10.3",
    function="two_optimizers",
    points=2,
    probe="drive_optimizers",
    reference=driven(loops.two_optimizers(), drive_optimizers),
    agree=trainings_agree(weights=2e-3, losses=None),
    cases=cases_of(
        {
            "a growing scale": {"steps": 6, "growth_interval": 2},
            "a scale that starts too high": {"steps": 6, "init_scale": 2.0**22},
        }
    ),
    misunderstandings=(
        _two_belief(
            "head past the scaler",
            TWO,
            loops.two_optimizers(head="itself"),
            "The head's optimizer steps by itself. What is in its gradients then, and who keeps an "
            "inf out?",
        ),
        _two_belief(
            "a scaler each",
            TWO,
            loops.two_optimizers(head="own"),
            "The head's gradients were scaled by `p.scaler` and are unscaled by another one. They "
            "agree only until one of them moves.",
        ),
        _two_belief(
            "update between the steps",
            TWO,
            loops.two_optimizers(update="between"),
            "You update after each optimizer. The second one's gradients are then divided by a "
            "scale that they may not carry.",
        ),
        _two_belief(
            "penalty not scaled",
            TWO,
            loops.two_optimizers(penalty="unscaled"),
            "The penalty reaches the gradients without the scale, and is divided by it.",
        ),
        _two_belief(
            "penalty left out",
            TWO,
            loops.two_optimizers(penalty="none"),
            "Everything is there but the penalty on the head's weights.",
        ),
        _two_belief(
            "clips scaled gradients",
            CLIPPING,
            loops.two_optimizers(clipped="scaled"),
            "The limit meets the body's gradients with the scale still in them.",
        ),
        _two_belief(
            "clips the head too",
            CLIPPING,
            loops.two_optimizers(clipped="all"),
            "The body is unscaled and the head is not, and you clip them together. Only the body "
            "was to be clipped.",
        ),
        _two_belief(
            "clips both as one",
            CLIPPING,
            loops.two_optimizers(clipped="unscaled"),
            "All is unscaled, and the norm that meets the limit is that of body and head together. "
            "Whose was it to be?",
        ),
        _two_belief(
            "head in both optimizers",
            TWO,
            loops.two_optimizers(body="all"),
            "The head's weights are in both optimizers, and both step them.",
        ),
    ),
)

# -- 10.5 mended ---------------------------------------------------------------------------------

MEND_TASK = Task(
    id="10.5",
    function="mended",
    points=3,
    probe="drive_loop",
    reference=driven(loops.penalizing()),
    agree=trainings_agree(weights=1e-3, losses=None),
    cases=cases_of(
        {
            "a growing scale": {"steps": 6, "growth_interval": 2},
            "a scale that starts too high": {"steps": 6, "init_scale": 2.0**21},
        }
    ),
    misunderstandings=(
        belief(
            "update in every half",
            ACCUMULATION,
            loops.penalizing(update="half"),
            "It still raises. Read what it says: what has not been recorded when `update` is "
            "called?",
        ),
        belief(
            "penalty still scaled",
            PENALTY,
            loops.penalizing(unscale=False),
            "It runs now, and every step is skipped. The gradients in the penalty carry the scale; "
            "the audit says so.",
        ),
        belief(
            "still a sum",
            ACCUMULATION,
            loops.penalizing(divide=False),
            "Two faults are gone. The third is no business of the audit: what is added up here, "
            "and what is it divided by?",
        ),
        belief(
            "penalty without effect",
            PENALTY,
            loops.penalizing(graph=False),
            "It trains, and the penalty has no effect. Is it there, does it stay in the graph, and "
            "does it go through the scaler with the loss?",
        ),
        belief(
            "scale turned down",
            RULE,
            loops.scale_of_one(loops.penalizing(unscale=False)),
            "With a scale of 1 scaled gradients are the gradients themselves, and small ones have "
            "lost their protection. Leave `p.scaler` as it is.",
        ),
        belief(
            "AMP turned off",
            RULE,
            loops.penalizing(amp=False),
            "The layers compute in FP32. The loop is to be right in FP16.",
        ),
    ),
)
