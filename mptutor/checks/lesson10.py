"""Lesson 10, *real training loops*: clip, accumulate, two optimizers, resume, mend three faults.

A loop is graded by what it does: the dtype its layers compute in, its scales and skips, what it
returns, and the weights it ends with. What it looks like plays no part, so any right order will do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mptutor.checks import lesson10_loops as loops
from mptutor.checks.probes_loops import drive_loop, drive_optimizers
from mptutor.checks.probes_resume import drive_resume
from mptutor.checks.task import Agree, Case, Misunderstanding, Task

# Headings of lesson 10 that the hints send the learner back to.
_RULE = "One rule"
_CLIP = "Clipping"
_ACCUMULATE = "Accumulation"
_TWO = "Two losses, two optimizers"
_PENALTY = "A penalty on gradients"
_RESUME = "The scale is part of the checkpoint"
_ORDER = "The calls in another order"


def _cases(settings: dict[str, dict[str, Any]], *more: Any) -> Callable[[int], list[Case]]:
    """Return what draws the cases of a seed: the same settings, other weights and data."""

    def cases(seed: int) -> list[Case]:
        return [
            Case(f"{label}, seed {seed}", ("classifier", {"seed": seed, **setting}, *more))
            for label, setting in settings.items()
        ]

    return cases


def _alike(tolerance: float, returned: float | None = None) -> Agree:
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


def _driven(loop: Callable[..., Any], probe: Callable[..., Any] = drive_loop) -> Callable[..., Any]:
    """Return what a loop does with the inputs of a case; it does the same each time."""
    done: dict[str, Any] = {}

    def drive(*inputs: Any) -> Any:
        if repr(inputs) not in done:
            done[repr(inputs)] = probe(loop, inputs)
        return done[repr(inputs)]

    return drive


def _belief(
    name: str,
    reread: str,
    loop: Callable[..., Any],
    hint: str,
    probe: Callable[..., Any] = drive_loop,
) -> Misunderstanding:
    return Misunderstanding(name, hint, _driven(loop, probe), reread)


# -- 10.1 clip -----------------------------------------------------------------------------------

_CLIP_TASK = Task(
    id="10.1",
    function="clip",
    probe="drive_loop",
    reference=_driven(loops.clipping()),
    agree=_alike(1e-3, returned=0.02),
    cases=_cases(
        {
            "a growing scale": {"steps": 6, "lr": 1.0, "growth_interval": 2},
            "a scale that starts too high": {"steps": 6, "lr": 1.0, "init_scale": 2.0**22},
        }
    ),
    misunderstandings=(
        _belief(
            "clips scaled gradients",
            _CLIP,
            loops.clipping(unscale="neither"),
            "Look at the norms that you return: they carry the scale, and so do the gradients that "
            "meet your limit.",
        ),
        _belief(
            "divided once too often",
            _CLIP,
            loops.clipping(unscale="norm"),
            "The norms that you return are right, and the weights hardly move: what the optimizer "
            "gets is too small by the scale. Which gradients met the limit? And do you divide "
            "gradients that `scaler.step` divides too? It only knows what `unscale_` has done.",
        ),
        _belief(
            "clips after the step",
            _ORDER,
            loops.clipping(when="after"),
            "Your gradients are clipped when the step has used them already.",
        ),
        _belief(
            "norms after clipping",
            _CLIP,
            loops.clipping(norm="clipped"),
            "The training is right. The norms that you return are those after clipping.",
        ),
        _belief(
            "steps past the check",
            _ORDER,
            loops.clipping(step="optimizer"),
            "After `unscale_` your optimizer steps by itself. Who looks for inf then?",
        ),
        _belief(
            "clips each entry",
            _CLIP,
            loops.clipping_by_value,
            "You limit every entry of a gradient. Asked for is a limit on the norm of all of them "
            "together, which keeps their direction.",
        ),
        _belief(
            "AMP turned off",
            _RULE,
            loops.clipping_in_fp32,
            "The layers compute in FP32, where there is no scale to think of. Train in FP16 with "
            "`p.scaler`.",
        ),
    ),
)

# -- 10.2 accumulate -----------------------------------------------------------------------------

_ACCUMULATE_TASK = Task(
    id="10.2",
    function="accumulate",
    probe="drive_loop",
    reference=_driven(loops.accumulating()),
    agree=_alike(1e-3, returned=0.02),
    cases=_cases(
        {
            "10 batches, a growing scale": {"steps": 10, "growth_interval": 1},
            "19 batches, a scale that starts too high": {"steps": 19, "init_scale": 2.0**22},
        }
    ),
    misunderstandings=(
        _belief(
            "sum instead of mean",
            _ACCUMULATE,
            loops.accumulating(divide="no"),
            "Your gradients are the sum over a window. A step four times as long is another "
            "learning rate.",
        ),
        _belief(
            "last window dropped",
            _ACCUMULATE,
            loops.accumulating(last="dropped"),
            "The last window is not full, and its gradients are never used.",
        ),
        _belief(
            "last window divided by four",
            _ACCUMULATE,
            loops.accumulating(divide="four"),
            "All is right but the last window. Over how many batches is its mean taken?",
        ),
        _belief(
            "update after every batch",
            _ACCUMULATE,
            loops.accumulating(update="batch"),
            "`update` comes before anything was unscaled, and would move the scale in the middle "
            "of a sum.",
        ),
        _belief(
            "cleared in every batch",
            _ACCUMULATE,
            loops.accumulating(clear="batch"),
            "Only the last batch of a window is left when you step. When are gradients cleared?",
        ),
        _belief(
            "never cleared",
            _ORDER,
            loops.accumulating(clear="never"),
            "Gradients are never cleared. Old ones are unscaled again and again and hardly show, "
            "until a step is skipped: its inf stays, and every later step is skipped too.",
        ),
        _belief(
            "a step for every batch",
            _ACCUMULATE,
            loops.accumulating(step="batch", update="batch"),
            "You step after every batch. That is not accumulation.",
        ),
    ),
)

# -- 10.3 two_optimizers -------------------------------------------------------------------------


def _two_belief(name: str, reread: str, loop: Callable[..., Any], hint: str) -> Misunderstanding:
    return _belief(name, reread, loop, hint, drive_optimizers)


_TWO_TASK = Task(
    id="10.3",
    function="two_optimizers",
    points=2,
    probe="drive_optimizers",
    reference=_driven(loops.two_optimizers(), drive_optimizers),
    agree=_alike(2e-3),
    cases=_cases(
        {
            "a growing scale": {"steps": 6, "growth_interval": 2},
            "a scale that starts too high": {"steps": 6, "init_scale": 2.0**22},
        }
    ),
    misunderstandings=(
        _two_belief(
            "head past the scaler",
            _TWO,
            loops.two_optimizers(head="itself"),
            "The head's optimizer steps by itself. What is in its gradients then, and who keeps an "
            "inf out?",
        ),
        _two_belief(
            "a scaler each",
            _TWO,
            loops.two_optimizers(head="own"),
            "The head's gradients were scaled by `p.scaler` and are unscaled by another one. They "
            "agree only until one of them moves.",
        ),
        _two_belief(
            "update between the steps",
            _TWO,
            loops.two_optimizers(update="between"),
            "You update after each optimizer. The second one's gradients are then divided by a "
            "scale that they may not carry.",
        ),
        _two_belief(
            "penalty not scaled",
            _TWO,
            loops.two_optimizers(penalty="unscaled"),
            "The penalty reaches the gradients without the scale, and is divided by it.",
        ),
        _two_belief(
            "penalty left out",
            _TWO,
            loops.two_optimizers(penalty="none"),
            "Everything is there but the penalty on the head's weights.",
        ),
        _two_belief(
            "clips scaled gradients",
            _CLIP,
            loops.two_optimizers(clipped="scaled"),
            "The limit meets the body's gradients with the scale still in them.",
        ),
        _two_belief(
            "clips the head too",
            _CLIP,
            loops.two_optimizers(clipped="all"),
            "The body is unscaled and the head is not, and you clip them together. Only the body "
            "was to be clipped.",
        ),
        _two_belief(
            "head in both optimizers",
            _TWO,
            loops.two_optimizers(body="all"),
            "The head's weights are in both optimizers, and both step them.",
        ),
    ),
)

# -- 10.4 go_on ----------------------------------------------------------------------------------


def _resume_cases(seed: int) -> list[Case]:
    settings: dict[str, tuple[dict[str, Any], list[int]]] = {
        "stopped once, a growing scale": ({"growth_interval": 4}, [3, 3]),
        "stopped twice, a scale too high": (
            {"init_scale": 2.0**22, "growth_interval": 3},
            [4, 1, 4],
        ),
    }
    return [
        Case(
            f"{label}, seed {seed}",
            ("classifier", {"steps": 10, "seed": seed, "adam": True, "lr": 0.01, **setting}, parts),
        )
        for label, (setting, parts) in settings.items()
    ]


def _resume_belief(
    name: str, loop: Callable[..., Any], hint: str, reread: str = _RESUME
) -> Misunderstanding:
    return _belief(name, reread, loop, hint, drive_resume)


_RESUME_TASK = Task(
    id="10.4",
    function="go_on",
    points=2,
    probe="drive_resume",
    reference=_driven(loops.resuming(), drive_resume),
    agree=_alike(1e-6),
    cases=_resume_cases,
    misunderstandings=(
        _resume_belief(
            "scaler not saved",
            loops.resuming(parts=("model", "optimizer")),
            "Model and optimizer go on. The scale starts anew, and it had moved.",
        ),
        _resume_belief(
            "scale without its count",
            loops.resuming(parts=("model", "optimizer"), scale_only=True),
            "The scale goes on. The scaler also counts good steps, and that count is lost.",
        ),
        _resume_belief(
            "optimizer not saved",
            loops.resuming(parts=("model", "scaler")),
            "Model and scaler go on. Adam starts anew: its averages are gone.",
        ),
        _resume_belief(
            "model not saved",
            loops.resuming(parts=("optimizer", "scaler")),
            "The new process has weights of its own, and goes on with those.",
        ),
        _resume_belief(
            "batches from the start",
            loops.resuming(position=False),
            "The states go on. Your batches begin with the first one again.",
        ),
        _resume_belief(
            "saved too early",
            loops.resuming(early=True),
            "You take the states before you train. Some of them are shared with the running "
            "training and some are copies, which is why part of it looks right.",
        ),
        _resume_belief(
            "objects saved",
            loops.saving_objects,
            "A file with whole objects in it is code, and `torch.load` refuses it. Save states: "
            "dicts of tensors and numbers.",
        ),
    ),
)

# -- 10.5 mended ---------------------------------------------------------------------------------

_MEND_TASK = Task(
    id="10.5",
    function="mended",
    points=3,
    probe="drive_loop",
    reference=_driven(loops.penalizing()),
    agree=_alike(1e-3),
    cases=_cases(
        {
            "a growing scale": {"steps": 6, "growth_interval": 2},
            "a scale that starts too high": {"steps": 6, "init_scale": 2.0**21},
        }
    ),
    misunderstandings=(
        _belief(
            "update in every half",
            _ACCUMULATE,
            loops.penalizing(update="half"),
            "It still raises. Read what it says: what has not been recorded when `update` is "
            "called?",
        ),
        _belief(
            "penalty still scaled",
            _PENALTY,
            loops.penalizing(unscale=False),
            "It runs now, and every step is skipped. The gradients in the penalty carry the scale; "
            "the audit says so.",
        ),
        _belief(
            "still a sum",
            _ACCUMULATE,
            loops.penalizing(divide=False),
            "Two faults are gone. The third is no business of the audit: what is added up here, "
            "and what is it divided by?",
        ),
        _belief(
            "penalty without effect",
            _PENALTY,
            loops.penalizing(graph=False),
            "It trains, and the penalty has no effect. Is it there, does it stay in the graph, and "
            "does it go through the scaler with the loss?",
        ),
        _belief(
            "scale turned down",
            _RULE,
            loops.scale_of_one(loops.penalizing(unscale=False)),
            "With a scale of 1 scaled gradients are the gradients themselves, and small ones have "
            "lost their protection. Leave `p.scaler` as it is.",
        ),
        _belief(
            "AMP turned off",
            _RULE,
            loops.penalizing(amp=False),
            "The layers compute in FP32. The loop is to be right in FP16.",
        ),
    ),
)

TASKS = (_CLIP_TASK, _ACCUMULATE_TASK, _TWO_TASK, _RESUME_TASK, _MEND_TASK)
