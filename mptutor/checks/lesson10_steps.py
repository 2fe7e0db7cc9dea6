"""Exercises 10.1 and 10.2: clip, accumulate."""

from __future__ import annotations

from mptutor.checks import lesson10_loops as loops
from mptutor.checks.driven import belief, driven, trainings_agree
from mptutor.checks.lesson10_cases import ACCUMULATION, CLIPPING, ORDER, RULE, cases_of
from mptutor.checks.task import Task

# -- 10.1 clip -----------------------------------------------------------------------------------

CLIP_TASK = Task(
    id="10.1",
    function="clip",
    probe="drive_loop",
    reference=driven(loops.clipping()),
    agree=trainings_agree(weights=1e-3),
    cases=cases_of(
        {
            "a growing scale": {"steps": 6, "lr": 1.0, "growth_interval": 2},
            "a scale that starts too high": {"steps": 6, "lr": 1.0, "init_scale": 2.0**22},
        }
    ),
    misunderstandings=(
        belief(
            "clips scaled gradients",
            CLIPPING,
            loops.clipping(unscale="neither"),
            "Look at the norms that you return: they carry the scale, and so do the gradients that "
            "meet your limit.",
        ),
        belief(
            "divided once too often",
            CLIPPING,
            loops.clipping(unscale="norm"),
            "The norms that you return are right, and the weights hardly move: what the optimizer "
            "gets is too small by the scale. Which gradients met the limit? And do you divide "
            "gradients that `scaler.step` divides too? It only knows what `unscale_` has done.",
        ),
        belief(
            "clips after the step",
            ORDER,
            loops.clipping(when="after"),
            "Your gradients are clipped when the step has used them already.",
        ),
        belief(
            "norms after clipping",
            CLIPPING,
            loops.clipping(norm="clipped"),
            "The training is right. The norms that you return are those after clipping.",
        ),
        belief(
            "steps past the check",
            ORDER,
            loops.clipping(step="optimizer"),
            "After `unscale_` your optimizer steps by itself. Who looks for inf then?",
        ),
        belief(
            "clips each entry",
            CLIPPING,
            loops.clipping_by_value,
            "You limit every entry of a gradient. Asked for is a limit on the norm of all of them "
            "together, which keeps their direction.",
        ),
        belief(
            "AMP turned off",
            RULE,
            loops.clipping_in_fp32,
            "The layers compute in FP32, where there is no scale to think of. Train in FP16 with "
            "`p.scaler`.",
        ),
    ),
)

# -- 10.2 accumulate -----------------------------------------------------------------------------

ACCUMULATE_TASK = Task(
    id="10.2",
    function="accumulate",
    probe="drive_loop",
    reference=driven(loops.accumulating()),
    agree=trainings_agree(weights=1e-3),
    cases=cases_of(
        {
            "10 batches, a growing scale": {"steps": 10, "growth_interval": 1},
            "19 batches, a scale that starts too high": {"steps": 19, "init_scale": 2.0**22},
        }
    ),
    misunderstandings=(
        belief(
            "sum instead of mean",
            ACCUMULATION,
            loops.accumulating(divide="no"),
            "Your gradients are the sum over a window. A step four times as long is another "
            "learning rate.",
        ),
        belief(
            "last window dropped",
            ACCUMULATION,
            loops.accumulating(last="dropped"),
            "The last window is not full, and its gradients are never used.",
        ),
        belief(
            "last window divided by four",
            ACCUMULATION,
            loops.accumulating(divide="four"),
            "All is right but the last window. Over how many batches is its mean taken?",
        ),
        belief(
            "last window divided by four, and its loss",
            ACCUMULATION,
            loops.accumulating(divide="four", told="parts"),
            "All is right but the last window, and the loss you return for it. Over how many "
            "batches are their means taken?",
        ),
        belief(
            "update after every batch",
            ACCUMULATION,
            loops.accumulating(update="batch"),
            "`update` comes before anything was unscaled, and would move the scale in the middle "
            "of a sum.",
        ),
        belief(
            "cleared in every batch",
            ACCUMULATION,
            loops.accumulating(clear="batch"),
            "Only the last batch of a window is left when you step. When are gradients cleared?",
        ),
        belief(
            "never cleared",
            ORDER,
            loops.accumulating(clear="never"),
            "Gradients are never cleared. Old ones are unscaled again and again and hardly show, "
            "until a step is skipped: its inf stays, and every later step is skipped too.",
        ),
        belief(
            "a step for every batch",
            ACCUMULATION,
            loops.accumulating(step="batch", update="batch"),
            "You step after every batch. That is not accumulation.",
        ),
    ),
)
