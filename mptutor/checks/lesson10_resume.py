"""Exercise 10.4: go on from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mptutor.checks import lesson10_loops as loops
from mptutor.checks.driven import belief, driven, trainings_agree
from mptutor.checks.lesson10_cases import CHECKPOINT
from mptutor.checks.probes_resume import drive_resume
from mptutor.checks.task import Case, Misunderstanding, Task

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
    name: str, loop: Callable[..., Any], hint: str, reread: str = CHECKPOINT
) -> Misunderstanding:
    return belief(name, reread, loop, hint, drive_resume)


RESUME_TASK = Task(
    id="10.4",
    function="go_on",
    points=2,
    probe="drive_resume",
    reference=driven(loops.resuming(), drive_resume),
    agree=trainings_agree(weights=1e-6, losses=None),
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
