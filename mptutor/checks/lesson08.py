"""Lesson 08, *Does it reach the same accuracy?*: turn an FP32 loop into AMP, and compare.

A loop is graded by what it does: the dtypes that layers compute in and weights are kept in, its
scales and skips, the weights it ends with and what it returns. What it looks like plays no part.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from statistics import fmean, pstdev, stdev
from typing import Any

import torch

from mptutor.checks import lesson08_loops as loops
from mptutor.checks.driven import driven, trainings_agree
from mptutor.checks.probes_amp import drive_in_precision, drive_logged_loop
from mptutor.checks.task import Case, Misunderstanding, Task

# Headings of lesson 08 that the hints send the learner back to.
_LISTING = "The loop that every text gives"
_LINES = "Line by line"
_RACE = "The race"
_PAIRS = "One lucky run"
_NAIVE = "Why naive FP16 died"
_VAE = "A term goes missing"


_AGREE = trainings_agree(weights=1e-3, exact=("layers in", "steps", "scales", "weights in"))


# -- 08.1 mixed ----------------------------------------------------------------------------------


def _logged_cases(seed: int) -> list[Case]:
    settings = {
        "a growing scale": {"growth_interval": 2},
        "a scale that starts too high": {"init_scale": 2.0**22},
    }
    return [
        Case(f"{label}, seed {seed}", ("classifier", {"steps": 6, "seed": seed, **setting}))
        for label, setting in settings.items()
    ]


def _logs(name: str, reread: str, loop: Callable[..., Any], hint: str) -> Misunderstanding:
    return Misunderstanding(name, hint, driven(loop, drive_logged_loop), reread)


_MIXED = Task(
    id="08.1",
    function="mixed",
    points=2,
    probe="drive_logged_loop",
    reference=driven(loops.logged(), drive_logged_loop),
    agree=_AGREE,
    cases=_logged_cases,
    misunderstandings=(
        _logs(
            "norms of scaled gradients",
            _LINES,
            loops.logged(unscaled=False),
            "It trains as it should. The norms are larger than in FP32, and by the same factor as "
            "something else in the loop.",
        ),
        _logs(
            "divided by the next scale",
            _LINES,
            loops.divided_after_update,
            "It trains as it should, and most norms are right. Those of steps after which the "
            "scale changed are not: which scale were their gradients multiplied by?",
        ),
        _logs(
            "divided twice",
            _LINES,
            loops.divided_twice,
            "It trains as it should. The norms are too small, by the scale: who had divided these "
            "gradients before you did?",
        ),
        _logs(
            "no scaler",
            _VAE,
            loops.without_scaler,
            "Autocast is there, and nothing keeps small gradients from becoming zero in FP16.",
        ),
        _logs(
            "the scaler in part",
            _LINES,
            loops.logged(scaled=False),
            "The scaler refuses: some of its calls are there and some are not. Follow a gradient: "
            "where is it multiplied by the scale, where divided, who decides whether the optimizer "
            "runs?",
        ),
        _logs(
            "the check is passed by",
            _LINES,
            loops.logged(step="optimizer"),
            "The optimizer runs in every step, whatever the scaler has found. Look at the case "
            "whose scale starts too high.",
        ),
        _logs(
            "the scale never moves",
            _LINES,
            loops.logged(updated=False),
            "The first step went well. What has to be told the scaler before the next one?",
        ),
        _logs(
            "a scaler without autocast",
            _LISTING,
            loops.logged(dtype=None),
            "The loss is scaled, and every layer computes in FP32: there is nothing to scale for.",
        ),
        _logs(
            "autocast's own dtype",
            _LINES,
            loops.logged(dtype=torch.bfloat16),
            "The layers compute in BF16. That is what autocast takes on a CPU unless it is told.",
        ),
        _logs(
            "FP16 weights",
            _NAIVE,
            loops.with_half_weights,
            "The weights are FP16. Under autocast they stay in FP32, and it makes the copies.",
        ),
        _logs(
            "another scaler",
            _LINES,
            loops.with_own_scaler,
            "It is mixed precision, with a scaler of yours. `p.scaler` was to be used; its first "
            "scale is another one.",
        ),
    ),
)

# -- 08.2 train ----------------------------------------------------------------------------------

_DTYPES = {"FP32": torch.float32, "FP16": torch.float16, "BF16": torch.bfloat16}


def _precision_cases(seed: int) -> list[Case]:
    options = {"steps": 6, "seed": seed, "init_scale": 2.0**20, "growth_interval": 3}
    return [
        Case(f"{name}, seed {seed}", ("classifier", options, dtype))
        for name, dtype in _DTYPES.items()
    ]


def _trains(name: str, reread: str, loop: Callable[..., Any], hint: str) -> Misunderstanding:
    return Misunderstanding(name, hint, driven(loop, drive_in_precision), reread)


_TRAIN = Task(
    id="08.2",
    function="train",
    points=2,
    probe="drive_in_precision",
    reference=driven(loops.in_precision(), drive_in_precision),
    agree=_AGREE,
    cases=_precision_cases,
    misunderstandings=(
        _trains(
            "scales in every precision",
            _LINES,
            loops.in_precision(scales=lambda dtype: True),
            "The scaler works in all three. In which of them can a gradient be too small?",
        ),
        _trains(
            "scales BF16",
            _LINES,
            loops.in_precision(scales=lambda dtype: dtype is not torch.float32),
            "BF16 has 16 bits, and the range of FP32. What is there to be saved?",
        ),
        _trains(
            "scales in no precision",
            _VAE,
            loops.in_precision(scales=lambda dtype: False),
            "FP16 goes without a scale. Nothing warns you; see what became of the KL term.",
        ),
        _trains(
            "always FP16",
            _LISTING,
            loops.in_precision(lowers_to=lambda dtype: torch.float16),
            "The layers compute in FP16, whatever dtype was asked for.",
        ),
        _trains(
            "autocast's own dtype",
            _LINES,
            loops.in_precision(lowers_to=lambda d: None if d is torch.float32 else torch.bfloat16),
            "16 bits it is, and BF16 each time: autocast was not told which, and this is a CPU.",
        ),
        _trains(
            "never autocast",
            _LISTING,
            loops.in_precision(lowers_to=lambda dtype: None),
            "Every layer computes in FP32, whatever dtype was asked for.",
        ),
        _trains(
            "cast weights",
            _NAIVE,
            loops.with_cast_weights,
            "You turn the model itself. Then the weights have 16 bits, and so have the updates.",
        ),
        _trains(
            "the scaler in part",
            _LINES,
            loops.in_precision(step=loops.unchecked_step),
            "In FP16 the scaler refuses: some of its calls are there and some are not.",
        ),
        _trains(
            "scaled losses",
            _LINES,
            loops.in_precision(notes_scaled=True),
            "It trains as it should. The losses returned for FP16 are as large as the scale makes "
            "them; the loss itself is wanted.",
        ),
        _trains(
            "another scaler",
            _LINES,
            loops.in_precision(own_scaler=True),
            "Dtypes are right. In FP16 `p.scaler` was to be used; the scales are another one's.",
        ),
    ),
)

# -- 08.3 compare --------------------------------------------------------------------------------

Accuracies = dict[str, float]


def _pairs(fp32: Accuracies, amp: Accuracies) -> list[float]:
    return [amp[seed] - fp32[seed] for seed in fp32 if seed in amp]


def _mean_and_error(differences: list[float]) -> tuple[float, float]:
    return fmean(differences), stdev(differences) / math.sqrt(len(differences))


def _compare(fp32: Accuracies, amp: Accuracies) -> tuple[float, float]:
    return _mean_and_error(_pairs(fp32, amp))


def _unpaired(fp32: Accuracies, amp: Accuracies) -> tuple[float, float]:
    a, b = ([*runs.values()] for runs in (fp32, amp))
    error = math.sqrt(stdev(a) ** 2 / len(a) + stdev(b) ** 2 / len(b))
    return fmean(b) - fmean(a), error


def _by_position(fp32: Accuracies, amp: Accuracies) -> tuple[float, float]:
    return _mean_and_error([b - a for a, b in zip(fp32.values(), amp.values(), strict=False)])


def _best_runs(fp32: Accuracies, amp: Accuracies) -> tuple[float, float]:
    return max(amp.values()) - max(fp32.values()), _compare(fp32, amp)[1]


def _backwards(fp32: Accuracies, amp: Accuracies) -> tuple[float, float]:
    difference, error = _compare(fp32, amp)
    return -difference, error


def _with_spread(fp32: Accuracies, amp: Accuracies) -> tuple[float, float]:
    differences = _pairs(fp32, amp)
    return fmean(differences), stdev(differences)


def _population(fp32: Accuracies, amp: Accuracies) -> tuple[float, float]:
    differences = _pairs(fp32, amp)
    return fmean(differences), pstdev(differences) / math.sqrt(len(differences))


def _compare_cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    cases = []
    for label, seeds, missing, apart in (
        ("five seeds", 5, 0, 0.0),
        ("the seeds in another order", 6, 0, -0.01),
        ("some seeds on one side only", 8, 2, 0.002),
    ):
        names = [str(n) for n in range(seeds)]
        fp32 = {name: draw.gauss(0.8, 0.02) for name in names}
        amp = {name: fp32[name] + apart + draw.gauss(0, 0.003) for name in names}
        shuffled = draw.sample(names, seeds - missing)
        if missing:
            del fp32[shuffled[0]]
        amp = {name: amp[name] for name in (shuffled if apart else names)}
        cases.append(Case(label, (fp32, amp)))
    return cases


def _close(expected: Any, got: Any) -> bool:
    return (
        isinstance(got, list)
        and len(got) == 2
        and all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in got)
        and all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(expected, got, strict=True))
    )


_COMPARE = Task(
    id="08.3",
    function="compare",
    points=2,
    reference=_compare,
    agree=_close,
    cases=_compare_cases,
    misunderstandings=(
        Misunderstanding(
            "not paired",
            "Your error has the spread of the seeds in it, which both recipes share. What differs "
            "between two runs of the same seed?",
            _unpaired,
            _PAIRS,
        ),
        Misunderstanding(
            "paired by position",
            "You pair the first with the first. Which runs began with the same weights and saw the "
            "same images?",
            _by_position,
            _PAIRS,
        ),
        Misunderstanding(
            "best runs",
            "You compare the best run of each. With enough seeds any recipe has a lucky one.",
            _best_runs,
            _PAIRS,
        ),
        Misunderstanding(
            "the other way round",
            "The sign is FP32's. The difference is to say what one gains by AMP.",
            _backwards,
            _PAIRS,
        ),
        Misunderstanding(
            "spread taken for error",
            "That is how far single differences lie apart. Their mean is known better than that, "
            "and better the more there are.",
            _with_spread,
            _PAIRS,
        ),
        Misunderstanding(
            "spread of a population",
            "Nearly. The spread of a sample of n is about a mean that was taken from the same n "
            "numbers, so one divides by n − 1.",
            _population,
            _PAIRS,
        ),
    ),
)

TASKS = (_MIXED, _TRAIN, _COMPARE)
