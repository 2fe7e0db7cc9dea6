"""Exercises 11.3, 11.5 and 11.6: loops that keep in 16 bits what needs more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mptutor.checks import lesson11_loops as loops
from mptutor.checks import lesson11_loops_more as more
from mptutor.checks.driven import belief, driven
from mptutor.checks.lesson11_repairs import FLAT, HIDE, LITTLE, alike_within, cases_of
from mptutor.checks.probes_loops import drive_average
from mptutor.checks.task import Misunderstanding, Task

C = Task(
    id="11.3",
    function="mended_c",
    points=2,
    probe="drive_loop",
    reference=driven(loops.train),
    agree=alike_within(2e-3),
    cases=cases_of(
        "classifier",
        {
            "Adam at 0.01": {"adam": True, "lr": 0.01},
            "a scale that starts too high": {"adam": True, "lr": 0.01, "init_scale": 2.0**21},
        },
    ),
    misunderstandings=(
        belief(
            "eps raised",
            LITTLE,
            loops.larger_eps,
            "A larger eps is a stop-gap. The weights and Adam's state are still in FP16, and it "
            "is another optimizer for every weight with small gradients.",
        ),
        belief(
            "BF16 weights",
            LITTLE,
            lambda p: loops.all_in_half(p, dtype=torch.bfloat16),
            "BF16 keeps eps from vanishing, and has 8 bits to take an update in. The layers are to "
            "compute in FP16, and the weights belong elsewhere.",
        ),
        belief(
            "NaN made finite",
            HIDE,
            loops.clean_gradients,
            "You sweep the NaN out of the weights after each step. What was lost in there stays "
            "lost.",
        ),
        belief(
            "bad batches skipped",
            HIDE,
            loops.skip_when_nan,
            "You skip batches whose loss is NaN. The weights are NaN after the first step: from "
            "then on you skip everything.",
        ),
        belief(
            "no scaler",
            FLAT,
            lambda p: loops.train(p, step=loops.unscaled_step),
            "FP32 weights and autocast: right. In FP16 small gradients need one thing more.",
        ),
        belief(
            "FP16 weights with a scaler",
            LITTLE,
            lambda p: loops.all_in_half(p, loops.plain_step),
            "A scaler wants FP32 parameters. Who makes the 16-bit copies then?",
        ),
        belief(
            "AMP turned off",
            HIDE,
            lambda p: loops.train(p, step=loops.unscaled_step, dtype=None),
            "The layers compute in FP32. It trains, at twice the bits.",
        ),
        belief(
            "another optimizer",
            HIDE,
            loops.other_optimizer,
            "The precision is right. The optimizer is another one: Adam was not at fault.",
        ),
    ),
)


E = Task(
    id="11.5",
    function="mended_e",
    points=1,
    probe="drive_loop",
    reference=driven(loops.train),
    agree=alike_within(2e-3),
    cases=cases_of(
        "classifier",
        {
            "a growing scale": {"growth_interval": 2},
            "a scale that starts too high": {"init_scale": 2.0**22},
        },
    ),
    misunderstandings=(
        belief(
            "scaler thrown out",
            FLAT,
            more.half_without_scaler,
            "What raised is gone. The weights are in FP16 still, which is why it raised, and small "
            "gradients have lost their protection.",
        ),
        belief(
            "no scaler",
            FLAT,
            lambda p: loops.train(p, step=loops.unscaled_step),
            "FP32 weights: right. In FP16 small gradients need the scaler.",
        ),
        belief(
            "unscaled by hand",
            LITTLE,
            more.half_unscaled_by_hand,
            "You divide the gradients yourself, in FP16: what the scale had saved is flushed after "
            "all. And nobody looks for inf.",
        ),
        belief(
            "BF16 weights",
            LITTLE,
            lambda p: more.half_with_scaler(p, torch.bfloat16),
            "The scaler takes BF16 gradients without a word. Now the weights have 8 bits to take "
            "an update in.",
        ),
        belief(
            "exception caught",
            HIDE,
            more.catch_the_unscaling,
            "Nothing is raised any more, and no step is taken.",
        ),
        belief(
            "the check talked out of it",
            LITTLE,
            more.allow_half_gradients,
            "You made the scaler accept FP16 gradients. It refuses them for a reason: dividing "
            "them in FP16 flushes what the scale had saved.",
        ),
        belief(
            "AMP turned off",
            HIDE,
            lambda p: loops.train(p, step=loops.unscaled_step, dtype=None),
            "The layers compute in FP32. It trains, at twice the bits.",
        ),
    ),
)


def _average(name: str, reread: str, loop: Callable[[Any], Any], hint: str) -> Misunderstanding:
    return belief(name, reread, loop, hint, drive_average)


def _same_average(expected: Any, got: Any) -> bool:
    """Compare trainings that return an average: it moves by 1e-3, and is compared within 5e-6."""
    alike = alike_within(1e-3, exact=("layers in", "steps"))
    a, b = expected["average"], got.get("average") if isinstance(got, dict) else None
    return (
        alike(expected, got)
        and isinstance(b, torch.Tensor)
        and a.shape == b.shape
        and torch.allclose(a, b, rtol=0, atol=5e-6)
    )


F = Task(
    id="11.6",
    function="mended_f",
    points=2,
    probe="drive_average",
    reference=driven(more.loop_f(), drive_average),
    agree=_same_average,
    cases=cases_of(
        "classifier", {"30 steps": {"steps": 30}, "30 smaller steps": {"steps": 30, "lr": 0.1}}
    ),
    misunderstandings=(
        _average(
            "computed in FP32, kept in BF16",
            LITTLE,
            more.loop_f(keep=torch.bfloat16),
            "The sum is taken in FP32 and then rounded back to where it was. It is keeping the "
            "average that takes more bits.",
        ),
        _average(
            "another decay",
            HIDE,
            more.loop_f(weight=0.1),
            "It follows, as an average over ten steps. It was meant to be one over a thousand.",
        ),
        _average(
            "FP16 average",
            LITTLE,
            more.loop_f(keep=torch.float16),
            "FP16 has three bits more than BF16, and still not enough for a thousandth of a "
            "change.",
        ),
        _average(
            "average of rounded weights",
            LITTLE,
            more.loop_f(rounded=True),
            "The average is in FP32, and the weights are rounded to BF16 on their way into it. The "
            "error it began with stays for thousands of steps.",
        ),
        _average(
            "the average is the weights",
            LITTLE,
            more.average_that_shares_memory,
            "What you return is the weights. If you kept an average: `detach()` makes no copy, and "
            "neither does a cast that has nothing to do, so it shares the weights' memory. "
            "`bfloat16()` did make one.",
        ),
        _average(
            "plain mean",
            LITTLE,
            more.plain_mean,
            "That is the mean of all steps. A running average with a weight of 0.001 is still "
            "near its start after thirty.",
        ),
        _average(
            "AMP turned off",
            HIDE,
            more.loop_f(dtype=None),
            "The layers compute in FP32. BF16 was right for the layers; it is too little for the "
            "average.",
        ),
    ),
)
