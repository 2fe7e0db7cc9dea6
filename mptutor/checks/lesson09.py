"""Lesson 09, *What do I gain, and when nothing?*: predict bytes, time a device, mend a slow loop.

No check looks at the time that anything takes. Bytes are counted; the device that is timed has a
clock of its own; and a loop is slow by what it makes Python wait for, and how often it casts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from mptutor.checks import lesson09_loops as loops
from mptutor.checks.driven import driven
from mptutor.checks.probes_speed import drive_quick_loop
from mptutor.checks.task import Case, Misunderstanding, Task

# Headings of lesson 09 that the hints send the learner back to.
_CLOCK = "How to fool yourself with a clock"
_SAVED = "What a layer saves"
_WAITS = "What makes a loop wait"

# -- 09.1 saved_bytes ----------------------------------------------------------------------------


def _saved_cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    some = [[draw.randrange(8, 300) for _ in range(n)] for n in (4, 5)]
    networks = [
        ([784, 512, 512, 10], 128),
        ([100, 10], 7),  # a single layer: no gradient goes through it
        ([256, 256, 256, 256], 4),
        ([32] * 6, 512),
        *((widths, draw.randrange(1, 200)) for widths in some),
    ]
    return [
        Case(
            f"{'-'.join(map(str, widths))}, batch {batch}, {'autocast' if amp else 'FP32'}",
            (widths, batch, amp),
        )
        for widths, batch in networks
        for amp in (False, True)
    ]


def _inputs_of_layers(widths: list[int], batch: int) -> int:
    return batch * sum(widths[:-1])


def _passing_weights(widths: list[int]) -> int:
    """Count the weights through which a gradient flows on: all but the first layer's."""
    return sum(a * b for a, b in pairwise(widths[1:]))


def _saving(
    activations: Callable[[list[int], int], int] = _inputs_of_layers,
    weights: Callable[[list[int]], int] = _passing_weights,
    in_fp32: Callable[[list[int], int], int] = lambda widths, batch: 0,
) -> Callable[[list[int], int, bool], int]:
    """Return somebody who counts these activations, and these weights under autocast.

    `in_fp32` are activations that autocast is believed to leave in FP32, beside those it halves.
    """

    def saved_bytes(widths: list[int], batch: int, amp: bool) -> int:
        if not amp:
            return 4 * activations(widths, batch)
        kept = in_fp32(widths, batch)
        return 4 * kept + 2 * (activations(widths, batch) - kept) + 2 * weights(widths)

    return saved_bytes


def _all_weights(widths: list[int]) -> int:
    return sum(a * b for a, b in pairwise(widths))


def _with_weights_in_fp32(widths: list[int], batch: int, amp: bool) -> int:
    return _saving()(widths, batch, amp) + 4 * (_all_weights(widths) + sum(widths[1:]))


_BYTES = Task(
    id="09.1",
    function="saved_bytes",
    points=2,
    reference=_saving(),
    cases=_saved_cases,
    misunderstandings=(
        Misunderstanding(
            "all is halved",
            "You halve everything. Under autocast a layer also multiplies by something that did "
            "not exist in FP32, and the backward pass multiplies by it again.",
            _saving(weights=lambda widths: 0),
            _SAVED,
        ),
        Misunderstanding(
            "copies of all weights",
            "You count a copy of every weight. What would the first layer's be saved for? Who "
            "asks for the gradient of the pictures?",
            _saving(weights=_all_weights),
            _SAVED,
        ),
        Misunderstanding(
            "ReLU counted twice",
            "A ReLU saves its output, and the next layer saves its input. How many tensors is "
            "that?",
            _saving(activations=lambda widths, b: b * (sum(widths[:-1]) + sum(widths[1:-1]))),
            _SAVED,
        ),
        Misunderstanding(
            "outputs for inputs",
            "You count what each layer puts out. The gradient of a weight needs what went in.",
            _saving(activations=lambda widths, b: b * sum(widths[1:])),
            _SAVED,
        ),
        Misunderstanding(
            "inputs and outputs",
            "You count the logits too. Which derivative in this network needs their values?",
            _saving(activations=lambda widths, b: b * sum(widths)),
            _SAVED,
        ),
        Misunderstanding(
            "the batch forgotten",
            "You leave out the pictures themselves. The first layer's weights have a gradient too.",
            _saving(activations=lambda widths, b: b * sum(widths[1:-1])),
            _SAVED,
        ),
        Misunderstanding(
            "the batch kept in FP32",
            "Under autocast you count the batch in FP32. It is in memory, since you hold it; what "
            "the layer multiplied by, and saves, is something else.",
            _saving(in_fp32=lambda widths, b: b * widths[0]),
            _SAVED,
        ),
        Misunderstanding(
            "weights counted",
            "You count the FP32 parameters. They exist anyway, and saving them costs nothing.",
            _with_weights_in_fp32,
            _SAVED,
        ),
        Misunderstanding(
            "numbers for bytes",
            "That is how many numbers are saved. How many bytes does each take?",
            lambda widths, batch, amp: _saving()(widths, batch, amp) // (2 if amp else 4),
            _SAVED,
        ),
    ),
)

# -- 09.2 step_ms --------------------------------------------------------------------------------

_EVERY = 8  # one step in eight is disturbed


def _device_cases(seed: int) -> list[Case]:
    """Draw eight devices, so that whichever single step is timed is disturbed on one of them."""
    draw = random.Random(seed)
    cases = []
    for n in range(_EVERY):
        work_ms = round(draw.uniform(2, 60), 2)
        options = {
            "work_ms": work_ms,
            "launch_ms": round(work_ms / 200, 4),
            "first_ms": [150 * work_ms, 12 * work_ms, 3 * work_ms],
            "disturbed": n,
            "every": _EVERY,
            "seed": draw.randrange(10**6),
        }
        cases.append(Case(f"device {n + 1}", (options,)))
    return cases


def _same_timing(expected: Any, got: Any) -> bool:
    """Compare what is known of one timing with another: a time within 5 %, the rest exactly."""
    if not isinstance(got, dict):
        return False
    for name, value in expected.items():
        if name == "ms":
            ms = got.get("ms")
            if type(ms) not in (int, float) or not abs(ms / value - 1) <= 0.05:
                return False
        elif name == "slow first steps timed":
            if bool(got.get(name)) != bool(value):
                return False
        elif got.get(name) != value:
            return False
    return True


def _clock_belief(name: str, hint: str, tells: Callable[[dict], dict]) -> Misunderstanding:
    return Misunderstanding(name, hint, tells, _CLOCK)


_TIMING = Task(
    id="09.2",
    function="step_ms",
    points=2,
    probe="time_steps",
    reference=lambda options: {"ms": options["work_ms"]},
    agree=_same_timing,
    cases=_device_cases,
    misunderstandings=(
        _clock_belief(
            "waits for nothing",
            "You read the clock while the device is still at work. What you time is how long it "
            "takes to hand a step over, or to be through with somebody else's.",
            lambda options: {"waited before reading": False},
        ),
        _clock_belief(
            "seconds",
            "That would be right in seconds.",
            lambda options: {"ms": options["work_ms"] / 1000},
        ),
        _clock_belief(
            "all steps for one",
            "That is the time of all steps that you timed.",
            lambda options: {"waited before reading": True, "said the whole stretch": True},
        ),
        _clock_belief(
            "a single step",
            "You time one step. On some devices it is a disturbed one, or the first. How would "
            "you know?",
            lambda options: {"waited before reading": True, "steps timed": 1},
        ),
        _clock_belief(
            "slow first steps counted",
            "There are slow first steps among those you timed, and they happen once in a training.",
            lambda options: {
                "waited before reading": True,
                "said the whole stretch": False,
                "slow first steps timed": 3,
            },
        ),
        _clock_belief(
            "the mean",
            "You wait, and you leave the first steps out, though are they done when you start the "
            "clock? One step in eight takes nine times as long, and a mean cannot tell it from the "
            "others.",
            lambda options: {"waited before reading": True, "slow first steps timed": 0},
        ),
    ),
)

# -- 09.3 quick_loop -----------------------------------------------------------------------------

#: So many read-backs or questions in a training are no habit.
_FEW = 2
_STEPS = 5


def _loop_cases(seed: int) -> list[Case]:
    return [
        Case(f"{label}, seed {seed}", ("reader", {"steps": _STEPS, "seed": seed, **setting}))
        for label, setting in {
            "SGD": {"lr": 0.5},
            "a scale that starts too high": {"lr": 0.5, "init_scale": 2.0**20},
        }.items()
    ]


def _same_waiting(expected: Any, got: Any) -> bool:
    """Compare two trainings: dtypes and steps exactly, waits and casts by habit, values nearly."""
    if not isinstance(got, dict) or got.keys() != expected.keys():
        return False
    habits = ("values read back", "questions asked")
    a, b = expected["weights"], got["weights"]
    return (
        all(expected[key] == got[key] for key in ("layers in", "steps with the scaler"))
        and all((expected[key] <= _FEW) == (got[key] <= _FEW) for key in habits)
        and _casts_often(expected) == _casts_often(got)
        and _close(expected["losses"], got["losses"])
        and isinstance(b, torch.Tensor)
        and a.shape == b.shape
        and torch.allclose(a, b, rtol=0, atol=1e-2)
    )


def _casts_often(told: dict[str, Any]) -> int:
    """Tell fewer than one cast of each weight a step, one, and more apart."""
    a_step = told["casts of weights"] / _STEPS
    return (a_step > 2) - (a_step < 2)


def _close(a: Any, b: Any) -> bool:
    if not (isinstance(a, list) and isinstance(b, list) and len(a) == len(b)):
        return a == b
    return all(abs(x - y) <= 5e-3 * abs(x) for x, y in zip(a, b, strict=True))


def _loop_belief(name: str, loop: Callable[[Any], Any], hint: str) -> Misunderstanding:
    return Misunderstanding(name, hint, driven(loop, drive_quick_loop), _WAITS)


_LOOP = Task(
    id="09.3",
    function="quick_loop",
    points=3,
    probe="drive_quick_loop",
    reference=driven(loops.train(), drive_quick_loop),
    agree=_same_waiting,
    cases=_loop_cases,
    misunderstandings=(
        _loop_belief(
            "nothing mended",
            loops.train(by_position=True, reads=True, asks=True),
            "It does what the slow loop does. Count in each step where Python wants a value, and "
            "how often a weight is cast.",
        ),
        _loop_belief(
            "losses read in every step",
            loops.train(reads=True),
            "The loss is still read back in every step. Who needs it there?",
        ),
        _loop_belief(
            "the question kept",
            loops.train(asks=True),
            "The loss is not read any more, but an `if` needs an answer, and for that Python waits "
            "as well. Who else looks for NaN in each step, without being asked?",
        ),
        _loop_belief(
            "waits, but casts once",
            loops.train(reads=True, asks=True),
            "The casts are mended. Python still waits twice in every step.",
        ),
        _loop_belief(
            "casts at every position",
            loops.train(by_position=True),
            "Nothing waits any more. Each of the 16 blocks of autocast still casts both weights "
            "anew, and each product is a sixteenth of what it could be.",
        ),
        _loop_belief(
            "one block for the training",
            loops.one_block,
            "One block of autocast around all steps keeps its copies of the weights. Compare the "
            "losses with those of the slow loop.",
        ),
        _loop_belief(
            "AMP and scaler turned off",
            loops.train(amp=False, scaler=False),
            "Neither autocast nor the scaler is left: this is the loop in FP32.",
        ),
        _loop_belief(
            "AMP turned off",
            loops.train(amp=False),
            "Nothing is cast any more, for nothing is in 16 bits.",
        ),
        _loop_belief(
            "the scaler left out",
            loops.train(scaler=False),
            "The scaler does read a value, once a step, and is worth it. It belongs to the loop.",
        ),
        _loop_belief(
            "the model in FP16",
            loops.half_model,
            "Weights in FP16 need no casts, and the scaler refuses them, for it wants FP32 "
            "gradients. Lesson 04 says why it is right.",
        ),
        _loop_belief(
            "losses given up",
            loops.train(returns=lambda losses: []),
            "It is quick, and tells nothing. The losses are wanted, all of them, only not now.",
        ),
        _loop_belief(
            "the last loss alone",
            loops.train(returns=lambda losses: losses[-1:]),
            "One loss comes back where the slow loop has one for each step.",
        ),
        _loop_belief(
            "the sum over positions",
            loops.train(pool="sum"),
            "The logits are summed over the positions where the slow loop takes their mean.",
        ),
    ),
)

TASKS = (_BYTES, _TIMING, _LOOP)
