"""Lesson 12, *which recipe?*: see what ran, notice that it is not what was asked, and choose.

What is seen of a step is compared dtype by dtype, in any order; the scale may be computed from any
gradient, so it is right to a thousandth.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from mptutor.checks.lesson12_choices import PICK
from mptutor.checks.lesson12_looks import looking, seen_by
from mptutor.checks.probes_looks import MAKES
from mptutor.checks.task import Case, Misunderstanding, Task, same

# Headings of lesson 12 that the hints send the learner back to.
_WHERE = "Where to look"
_SCALE = "A scale without asking the scaler"
_NAME = "A name for what ran"

# -- 12.1 look_at ------------------------------------------------------------------------------


def _look_cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    return [Case(name, (name, 2.0 ** draw.randint(5, 12), seed)) for name in MAKES]


def _same_look(expected: Any, got: Any) -> bool:
    if not isinstance(got, dict) or got.keys() != expected.keys():
        return False
    scale = got["scale"]
    scale = scale.item() if isinstance(scale, torch.Tensor) and scale.numel() == 1 else scale
    return (
        all(same(expected[key], got[key]) for key in expected if key != "scale")
        and type(scale) in (int, float)
        and math.isclose(scale, expected["scale"], rel_tol=1e-3)
    )


def _look(name: str, hint: str, reread: str, **options: Any) -> Misunderstanding:
    return Misunderstanding(name, hint, seen_by(looking(**options)), reread)


_LOOK = Task(
    id="12.1",
    function="look_at",
    points=3,
    probe="take_a_look",
    reference=seen_by(looking()),
    cases=_look_cases,
    agree=_same_look,
    withheld=("mptutor.experiments.what_ran",),
    misunderstandings=(
        _look(
            "looks at the model's output",
            "You look at what the model hands out. In some cases that has been cast on the way "
            "out; what was it inside?",
            _WHERE,
            layers="model",
        ),
        _look(
            "looks at every module",
            "You look at modules that multiply nothing, too: a norm, a cast at the end.",
            _WHERE,
            layers="every",
        ),
        _look(
            "weights that are not trained",
            "You count weights that no optimizer updates. One case has a frozen layer.",
            _WHERE,
            weights="model",
        ),
        _look(
            "looks when it is over",
            "You look at the gradients after the step. By then they are unscaled, and in some "
            "cases gone.",
            _SCALE,
            when="after",
        ),
        _look(
            "no scale",
            "Your scale is always 1. Compare gradients at two moments: when the backward pass "
            "has put them down, and when the optimizer takes them.",
            _SCALE,
            scale="one",
        ),
        _look(
            "scale guessed",
            "Your scale is what a new GradScaler starts with, wherever there is FP16. Measure it.",
            _SCALE,
            scale="guessed",
        ),
        _look(
            "ratio upside down",
            "Your scale is the reciprocal of what it should be.",
            _SCALE,
            scale="inverse",
        ),
        _look(
            "hooks left behind",
            "You saw everything. Your hooks are still there, and will see the next step as well.",
            _WHERE,
            removes=False,
        ),
        _look(
            "more than one step",
            "You let the model train for more than one step. Everything can be seen in one.",
            _WHERE,
            steps=2,
        ),
    ),
)

# -- 12.2 ran_instead --------------------------------------------------------------------------

_FP32, _FP16, _BF16 = torch.float32, torch.float16, torch.bfloat16


def _recipe(
    layers: Sequence[torch.dtype], weights: Sequence[torch.dtype], scale: float, **wrong: bool
) -> str:
    """Name a recipe; `wrong` has the ways to get it wrong."""
    low = [d for d in (_FP16, _BF16) if d in layers]
    if wrong.get("any_fp32") and _FP32 in layers:
        low = []
    if wrong.get("scale_decides") and scale != 1:
        return "AMP FP16"
    decides = layers if wrong.get("layers_decide") else weights
    if _FP16 in decides or _BF16 in decides:
        return "naive FP16" if _FP16 in decides else "pure BF16"
    if not low:
        return "FP32"
    if low[0] is _BF16:
        return "AMP BF16"
    return "AMP FP16" if scale != 1 or wrong.get("no_scaler") else "AMP FP16 without scaler"


def _ran_instead(asked: str, seen: dict[str, Any], **wrong: bool) -> str | None:
    ran = _recipe(seen["layers"], seen["weights"], seen["scale"], **wrong)
    return None if ran == asked else ran


def _seen(layers: list[Any], weights: Any, scale: float = 1.0) -> dict[str, Any]:
    return {"layers": layers, "weights": [weights], "gradients": [weights], "scale": scale}


def _instead_cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    scale = 2.0 ** draw.randint(3, 16)
    amp = _seen([_FP16], _FP32, scale)
    cases = [
        Case("asked for AMP FP16, and there it is", ("AMP FP16", amp)),
        Case("asked for AMP FP16, all is FP32", ("AMP FP16", _seen([_FP32], _FP32))),
        Case("asked for AMP FP16, layers in BF16", ("AMP FP16", _seen([_BF16], _FP32))),
        Case("asked for AMP FP16, no scale", ("AMP FP16", _seen([_FP16], _FP32))),
        Case("asked for AMP FP16, weights in FP16", ("AMP FP16", _seen([_FP16], _FP16))),
        Case("AMP FP16 with an FP32 head", ("AMP FP16", _seen([_FP32, _FP16], _FP32, scale))),
        Case("asked for FP32, a layer in FP16", ("FP32", _seen([_FP16, _FP32], _FP32, scale))),
        Case("asked for AMP BF16, with a scaler", ("AMP BF16", _seen([_BF16], _FP32, scale))),
        Case("asked for AMP BF16, weights in BF16", ("AMP BF16", _seen([_BF16], _BF16))),
        Case("asked for AMP BF16, FP32 head", ("AMP BF16", _seen([_BF16, _FP32], _FP32))),
        Case("asked for FP32, FP32 with a scaler", ("FP32", _seen([_FP32], _FP32, scale))),
        Case("asked for naive FP16, and there it is", ("naive FP16", _seen([_FP16], _FP16))),
        Case("asked for naive FP16, FP32 weights", ("naive FP16", _seen([_FP16], _FP32, scale))),
        Case("asked for pure BF16, FP32 weights", ("pure BF16", _seen([_BF16], _FP32))),
    ]
    draw.shuffle(cases)
    return cases


def _names_anyway(asked: str, seen: dict[str, Any]) -> str:
    return _recipe(seen["layers"], seen["weights"], seen["scale"])


def _instead(name: str, hint: str, believes: Callable[..., Any]) -> Misunderstanding:
    return Misunderstanding(name, hint, believes, _NAME)


_INSTEAD = Task(
    id="12.2",
    function="ran_instead",
    points=2,
    reference=_ran_instead,
    cases=_instead_cases,
    withheld=("mptutor.experiments.what_ran",),
    misunderstandings=(
        _instead(
            "layers taken for weights",
            "You call it 16-bit weights when layers compute in 16 bits. Whose dtype makes the "
            "difference between AMP and .half()?",
            partial(_ran_instead, layers_decide=True),
        ),
        _instead(
            "scaler forgotten",
            "FP16 over FP32 weights has two names. Which one depends on something that is no "
            "dtype.",
            partial(_ran_instead, no_scaler=True),
        ),
        _instead(
            "one FP32 layer is enough",
            "You say FP32 as soon as one layer is. A head taken out of autocast is FP32 in many "
            "an AMP training.",
            partial(_ran_instead, any_fp32=True),
        ),
        _instead(
            "a scale means FP16",
            "You go by the scale. It is no proof of FP16: a scaler can be put around anything.",
            partial(_ran_instead, scale_decides=True),
        ),
        _instead(
            "named where nothing is wrong",
            "Your names are right. Where what was asked for ran, return None.",
            _names_anyway,
        ),
        _instead(
            "says that, not what",
            "You say whether something else ran. Asked for is what.",
            lambda asked, seen: _ran_instead(asked, seen) is not None,
        ),
        _instead(
            "gradients decide",
            "You go by the gradients' dtype. Under autocast it is that of the weights, whatever "
            "the layers computed in.",
            lambda asked, seen: None if (ran := _by_gradients(seen["gradients"])) == asked else ran,
        ),
    ),
)


def _by_gradients(gradients: Sequence[torch.dtype]) -> str:
    return {_FP32: "FP32", _FP16: "naive FP16", _BF16: "pure BF16"}[gradients[0]]


TASKS = (_LOOK, _INSTEAD, PICK)
