"""Lesson 11, *My loss is NaN. Now what?*: mend three loops, name the causes of six.

A mended loop is graded by what it does: the findings that the audit still has, the dtype its layers
compute in, its scales and skips, and the weights it ends with. What it looks like plays no part, so
any right order and any right repair will do.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from mptutor.checks import lesson11_loops as loops
from mptutor.checks.probes_loops import drive_loop
from mptutor.checks.task import Case, Misunderstanding, Task

# Headings of lesson 11 that the hints send the learner back to.
_FIRST = "NaN from the first step"
_GUARD = "NaN now and then"
_AFTER = "NaN after a while, for good"
_FLAT = "Flat, without a word"
_LITTLE = "Learns, but too little"
_HIDE = "Repairs that hide"
_CHART = "The flow chart"


def _cases(model: str, settings: dict[str, dict[str, Any]]) -> Callable[[int], list[Case]]:
    """Return what draws the cases of a seed: the same settings, other weights and data."""

    def cases(seed: int) -> list[Case]:
        return [
            Case(f"{label}, seed {seed}", (model, {"steps": 6, "seed": seed, **setting}))
            for label, setting in settings.items()
        ]

    return cases


def _alike_within(tolerance: float) -> Callable[[Any, Any], bool]:
    """Compare two trainings: all that was done exactly, the weights within a tolerance."""

    def agree(expected: Any, got: Any) -> bool:
        if not isinstance(got, dict) or got.keys() != expected.keys():
            return False
        exact = "layers in", "steps", "scales"
        a, b = expected["weights"], got["weights"]
        return (
            all(expected[key] == got[key] for key in exact)
            and _no_worse(expected["findings"], got["findings"])
            and isinstance(b, torch.Tensor)
            and a.shape == b.shape
            and torch.allclose(a, b, rtol=0, atol=tolerance, equal_nan=True)
        )

    return agree


def _no_worse(expected: list[str], got: Any) -> bool:
    """Compare findings, without those that depend on the numbers and not on the loop.

    Two right loops may come differently close to a limit, and the batches are finite in any case.
    """
    aside = {"little_headroom", "skips_persist", "input_not_finite"}
    return isinstance(got, list) and set(got) - aside == set(expected) - aside


def _driven(loop: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return what a loop does with the inputs of a case; it does the same each time."""
    done: dict[str, Any] = {}

    def drive(*inputs: Any) -> Any:
        if repr(inputs) not in done:
            done[repr(inputs)] = drive_loop(loop, inputs)
        return done[repr(inputs)]

    return drive


def _belief(name: str, reread: str, loop: Callable[[Any], Any], hint: str) -> Misunderstanding:
    return Misunderstanding(name, hint, _driven(loop), reread)


# -- 11.1 mended_a -------------------------------------------------------------------------------

_A = Task(
    id="11.1",
    function="mended_a",
    points=2,
    probe="drive_loop",
    reference=_driven(loops.loop_a()),
    agree=_alike_within(1e-3),
    cases=_cases(
        "classifier",
        {
            "a growing scale": {"lr": 1.0, "growth_interval": 2},
            "a scale that starts too high": {"lr": 1.0, "init_scale": 2.0**22},
        },
    ),
    misunderstandings=(
        _belief(
            "clips scaled gradients",
            _CHART,
            loops.loop_a(clip="scaled"),
            "The penalty is right now. The limit still meets gradients that are larger by the "
            "scale.",
        ),
        _belief(
            "penalty not scaled",
            _CHART,
            loops.loop_a(penalty="unscaled"),
            "Clipping is right now. The gradients of the penalty are divided by a scale that they "
            "were never multiplied by.",
        ),
        _belief(
            "clips after the step",
            _CHART,
            loops.loop_a(clip="after"),
            "Your gradients are clipped when nobody needs them any more. When are they unscaled, "
            "and when used?",
        ),
        _belief(
            "clipping given up",
            _HIDE,
            loops.loop_a(clip="none"),
            "It learns, without clipping. The loop was meant to clip.",
        ),
        _belief(
            "penalty given up",
            _HIDE,
            loops.loop_a(penalty="none"),
            "It learns, without the penalty. The loop was meant to have one.",
        ),
        _belief(
            "AMP turned off",
            _HIDE,
            loops.without_amp_a,
            "The layers compute in FP32. That is where the loop was right to begin with; it is to "
            "be right in FP16.",
        ),
        _belief(
            "scale turned down",
            _HIDE,
            loops.scale_of_one_a,
            "With a scale of 1, scaled gradients are the gradients themselves, so the order does "
            "not show, and small gradients have lost their protection. Leave `p.scaler` as it is.",
        ),
    ),
)

# -- 11.2 mended_b -------------------------------------------------------------------------------

_B = Task(
    id="11.2",
    function="mended_b",
    points=2,
    probe="drive_loop",
    reference=_driven(loops.loop_b()),
    agree=_alike_within(1e-2),
    cases=_cases("attention", {"a scale of 2^16": {}, "a scale of 2^12": {"init_scale": 2.0**12}}),
    misunderstandings=(
        _belief(
            "logits still overflow",
            _FIRST,
            loops.loop_b(scale_first=False),
            "The constant fits now. Look at the loss: there was a second fault behind the "
            "exception.",
        ),
        _belief(
            "constant still too large",
            _FIRST,
            loops.loop_b(fill=-1e9),
            "The exception is still there. What is the smallest number of the dtype that `scores` "
            "has?",
        ),
        _belief(
            "exception caught",
            _HIDE,
            loops.catch_exceptions,
            "Nothing is raised any more, and nothing is learned: every batch is given up.",
        ),
        _belief(
            "NaN made finite",
            _HIDE,
            loops.loop_b(scale_first=False, clean=True),
            "You make the overflowed logits finite. All that overflowed are now equal, and softmax "
            "cannot tell them apart. Keep them from overflowing.",
        ),
        _belief(
            "bad batches skipped",
            _HIDE,
            loops.skip_bad_losses,
            "You leave out batches whose loss is not finite. That is all of them.",
        ),
        _belief(
            "mask too weak",
            _GUARD,
            loops.loop_b(fill=0.0),
            "Your constant fits into FP16, but scores go below it. Where they do, softmax prefers "
            "the positions that were to be hidden.",
        ),
        _belief(
            "mask left out",
            _HIDE,
            loops.loop_b(fill=None),
            "Nothing overflows, for the mask is gone. Position 0 must not see position 5.",
        ),
        _belief(
            "AMP turned off",
            _HIDE,
            loops.loop_b(dtype=None),
            "The layers compute in FP32. Both faults are gone and so is what 16 bits are for; two "
            "lines are enough.",
        ),
    ),
)

# -- 11.3 mended_c -------------------------------------------------------------------------------

_C = Task(
    id="11.3",
    function="mended_c",
    points=2,
    probe="drive_loop",
    reference=_driven(loops.train),
    agree=_alike_within(2e-3),
    cases=_cases(
        "classifier",
        {
            "Adam at 0.01": {"adam": True, "lr": 0.01},
            "a scale that starts too high": {"adam": True, "lr": 0.01, "init_scale": 2.0**21},
        },
    ),
    misunderstandings=(
        _belief(
            "eps raised",
            _LITTLE,
            loops.larger_eps,
            "A larger eps is a stop-gap. The weights and Adam's state are still in FP16, and it "
            "is another optimizer for every weight with small gradients.",
        ),
        _belief(
            "BF16 weights",
            _LITTLE,
            lambda p: loops.all_in_half(p, dtype=torch.bfloat16),
            "BF16 keeps eps from vanishing, and has 8 bits to take an update in. The layers are to "
            "compute in FP16, and the weights belong elsewhere.",
        ),
        _belief(
            "NaN made finite",
            _HIDE,
            loops.clean_gradients,
            "You sweep the NaN out of the weights after each step. What was lost in there stays "
            "lost.",
        ),
        _belief(
            "bad batches skipped",
            _HIDE,
            loops.skip_when_nan,
            "You skip batches whose loss is NaN. The weights are NaN after the first step: from "
            "then on you skip everything.",
        ),
        _belief(
            "no scaler",
            _FLAT,
            lambda p: loops.train(p, step=loops.unscaled_step),
            "FP32 weights and autocast: right. In FP16 small gradients need one thing more.",
        ),
        _belief(
            "FP16 weights with a scaler",
            _LITTLE,
            lambda p: loops.all_in_half(p, loops.plain_step),
            "A scaler wants FP32 parameters. Who makes the 16-bit copies then?",
        ),
        _belief(
            "AMP turned off",
            _HIDE,
            lambda p: loops.train(p, step=loops.unscaled_step, dtype=None),
            "The layers compute in FP32. It trains, at twice the bits.",
        ),
        _belief(
            "another optimizer",
            _HIDE,
            loops.other_optimizer,
            "The precision is right. The optimizer is another one: Adam was not at fault.",
        ),
    ),
)

# -- 11.4 causes ---------------------------------------------------------------------------------

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


_NAMES = Task(
    id="11.4",
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
            _CHART,
        ),
        Misunderstanding(
            "the other fault alone",
            "Your names are right as far as they go. What stands first in the report is not all "
            "that stands there.",
            lambda loop: _CAUSES[loop][:1],
            _CHART,
        ),
        Misunderstanding(
            "consequences",
            "You name what happened in the end. The report puts what it comes from above it.",
            lambda loop: _CONSEQUENCES[loop],
            _FIRST,
        ),
        Misunderstanding(
            "consequences too",
            "The causes are there, and what follows from one of them beside it. What would be left "
            "of your list once the causes are mended?",
            lambda loop: _CAUSES[loop] + ["weights_not_finite"] * (loop == "C"),
            _AFTER,
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
            _FIRST,
        ),
        Misunderstanding(
            "kinds",
            "That is the kind of fault. Asked for is its name, as the report has it in code.",
            _kind,
            _CHART,
        ),
    ),
)

TASKS = (_A, _B, _C, _NAMES)
