"""Exercise 11.2: a loop whose numbers leave the range of FP16, twice."""

from __future__ import annotations

from mptutor.checks import lesson11_loops as loops
from mptutor.checks.driven import belief, driven
from mptutor.checks.lesson11_repairs import FIRST, GUARD, HIDE, alike_within, cases_of
from mptutor.checks.task import Task

B = Task(
    id="11.2",
    function="mended_b",
    points=2,
    probe="drive_loop",
    reference=driven(loops.loop_b()),
    agree=alike_within(1e-2),
    cases=cases_of(
        "attention", {"a scale of 2^16": {}, "a scale of 2^12": {"init_scale": 2.0**12}}
    ),
    misunderstandings=(
        belief(
            "logits still overflow",
            FIRST,
            loops.loop_b(scale_first=False),
            "The constant fits now. Look at the loss: there was a second fault behind the "
            "exception.",
        ),
        belief(
            "constant still too large",
            FIRST,
            loops.loop_b(fill=-1e9),
            "The exception is still there. What is the smallest number of the dtype that `scores` "
            "has?",
        ),
        belief(
            "exception caught",
            HIDE,
            loops.catch_exceptions,
            "Nothing is raised any more, and nothing is learned: every batch is given up.",
        ),
        belief(
            "NaN made finite",
            HIDE,
            loops.loop_b(scale_first=False, clean=True),
            "You make the overflowed logits finite. All that overflowed are now equal, and softmax "
            "cannot tell them apart. Keep them from overflowing.",
        ),
        belief(
            "bad batches skipped",
            HIDE,
            loops.skip_bad_losses,
            "You leave out batches whose loss is not finite. That is all of them.",
        ),
        belief(
            "mask too weak",
            GUARD,
            loops.loop_b(fill=0.0),
            "Your constant fits into FP16, but scores go below it. Where they do, softmax prefers "
            "the positions that were to be hidden.",
        ),
        belief(
            "mask left out",
            HIDE,
            loops.loop_b(fill=None),
            "Nothing overflows, for the mask is gone. Position 0 must not see position 5.",
        ),
        belief(
            "AMP turned off",
            HIDE,
            loops.loop_b(dtype=None),
            "The layers compute in FP32. Both faults are gone and so is what 16 bits are for; two "
            "lines are enough.",
        ),
    ),
)
