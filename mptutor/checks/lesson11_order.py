"""Exercises 11.1 and 11.4: loops whose calls come in the wrong order."""

from __future__ import annotations

from mptutor.checks import lesson11_loops as loops
from mptutor.checks import lesson11_loops_more as more
from mptutor.checks.driven import belief, driven
from mptutor.checks.lesson11_repairs import CHART, HIDE, alike_within, cases_of
from mptutor.checks.task import Task

A = Task(
    id="11.1",
    function="mended_a",
    points=2,
    probe="drive_loop",
    reference=driven(loops.loop_a()),
    agree=alike_within(1e-3),
    cases=cases_of(
        "classifier",
        {
            "a growing scale": {"lr": 1.0, "growth_interval": 2},
            "a scale that starts too high": {"lr": 1.0, "init_scale": 2.0**22},
        },
    ),
    misunderstandings=(
        belief(
            "clips scaled gradients",
            CHART,
            loops.loop_a(clip="scaled"),
            "The penalty is right now. The limit still meets gradients that are larger by the "
            "scale.",
        ),
        belief(
            "penalty not scaled",
            CHART,
            loops.loop_a(penalty="unscaled"),
            "Clipping is right now. The gradients of the penalty are divided by a scale that they "
            "were never multiplied by.",
        ),
        belief(
            "clips after the step",
            CHART,
            loops.loop_a(clip="after"),
            "Your gradients are clipped when nobody needs them any more. When are they unscaled, "
            "and when used?",
        ),
        belief(
            "clipping given up",
            HIDE,
            loops.loop_a(clip="none"),
            "It learns, without clipping. The loop was meant to clip.",
        ),
        belief(
            "penalty given up",
            HIDE,
            loops.loop_a(penalty="none"),
            "It learns, without the penalty. The loop was meant to have one.",
        ),
        belief(
            "AMP turned off",
            HIDE,
            loops.without_amp_a,
            "The layers compute in FP32. That is where the loop was right to begin with; it is to "
            "be right in FP16.",
        ),
        belief(
            "scale turned down",
            HIDE,
            loops.scale_of_one_a,
            "With a scale of 1, scaled gradients are the gradients themselves, so the order does "
            "not show, and small gradients have lost their protection. Leave `p.scaler` as it is.",
        ),
    ),
)


D = Task(
    id="11.4",
    function="mended_d",
    points=2,
    probe="drive_loop",
    reference=driven(more.loop_d()),
    agree=alike_within(1e-3, exact=("layers in", "rows", "steps", "scales")),
    cases=cases_of(
        "classifier",
        {
            "a growing scale": {"lr": 1.0, "growth_interval": 2},
            "a scale that starts too high": {"lr": 1.0, "init_scale": 2.0**24},
        },
    ),
    misunderstandings=(
        belief(
            "clips scaled gradients",
            CHART,
            more.loop_d(unscale="never"),
            "Nothing is raised any more, and the limit meets gradients that carry the scale. "
            "`unscale_` has its place: once for each step.",
        ),
        belief(
            "unscales before the last part",
            CHART,
            more.loop_d(unscale="first"),
            "`unscale_` is called once now, before the last backward. What comes after it is added "
            "with the scale to gradients without.",
        ),
        belief(
            "clipping given up",
            HIDE,
            more.loop_d(unscale="never", clip="none"),
            "It trains, without clipping. The loop was meant to clip.",
        ),
        belief(
            "a step for every part",
            CHART,
            more.step_every_part,
            "Each micro-batch now takes a step of its own: four times as many, on a quarter of the "
            "data each. The four were meant to be one.",
        ),
        belief(
            "only the last part",
            CHART,
            more.loop_d(clear_each=True),
            "Gradients are cleared before every part, so only the last of the four is in the step.",
        ),
        belief(
            "accumulation given up",
            HIDE,
            more.loop_a_without_penalty,
            "The numbers are right, and a whole batch goes through the model at once. Whoever "
            "accumulates has no memory for that.",
        ),
        belief(
            "exception caught",
            HIDE,
            more.catch_and_go_on,
            "The exception is gone and so is three quarters of every batch.",
        ),
        belief(
            "AMP turned off",
            HIDE,
            more.loop_d_in_fp32,
            "The layers compute in FP32. The loop is to be right in FP16.",
        ),
    ),
)
