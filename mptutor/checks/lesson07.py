"""Lesson 07, *Which dtype does each op get, and why?*: a loop, a function and a loss.

All three are judged by what they do: the dtypes of what comes out, the numbers, the gradients. The
function and the loss run under CUDA's policy, in regions of either 16-bit dtype and in none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mptutor.checks import lesson07_answers as answers
from mptutor.checks.driven import trainings_agree
from mptutor.checks.probes_autocast import differentiate_function, differentiate_loss
from mptutor.checks.probes_loops import drive_loop
from mptutor.checks.task import Case, Misunderstanding, Task

# Headings of lesson 07 that the hints send the learner back to.
_STEP = "One step, dtype by dtype"
_RULES = "Five rules"
_DEVICE = "Another device, another list"
_LOSSES = "Losses"
_ISLANDS = "Islands of FP32"
_CACHE = "Weights are cast once"
_OWN = "A function of your own"

FP16, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32

#: How far a number may be off, relative to the largest: by the order of additions in FP32, and for
#: gradients of 16-bit inputs by a rounding that falls to the other side.
_TOLERANCE = {FP32: 1e-4, FP16: 2e-3, BF16: 1.6e-2}


def _close(expected: Any, got: Any) -> bool:
    """Compare two tensors: dtype and shape exactly, values within the dtype's tolerance."""
    if not isinstance(expected, Tensor) or not isinstance(got, Tensor):
        return expected is got is None
    if expected.dtype != got.dtype or expected.shape != got.shape:
        return False
    a, b = expected.float(), got.float()
    finite = a[a.isfinite()].abs()
    largest = finite.max().item() if finite.numel() else 0.0
    slack = _TOLERANCE[expected.dtype] * largest
    return torch.allclose(a, b, rtol=0, atol=slack, equal_nan=True)


def _all_close(expected: Any, got: Any) -> bool:
    return (
        isinstance(got, dict)
        and got.keys() == expected.keys()
        and all(_close(expected[key], got[key]) for key in expected)
    )


def _driven(drive: Callable[..., Any], written: Any) -> Callable[..., Any]:
    """Return what a probe makes of an answer; on the same inputs it makes the same each time."""
    done: dict[Any, Any] = {}

    def driven(*inputs: Any) -> Any:
        key = tuple(map(_key, inputs))
        if key not in done:
            done[key] = drive(written, [_fresh(x) for x in inputs])
        return done[key]

    return driven


def _key(x: Any) -> Any:
    return (x.dtype, tuple(x.flatten().tolist())) if isinstance(x, Tensor) else repr(x)


def _fresh(x: Any) -> Any:
    return x.detach().clone() if isinstance(x, Tensor) else x


# -- 07.1 train ----------------------------------------------------------------------------------


def _loop_cases(seed: int) -> list[Case]:
    settings = {
        "a scale of 2^16": {"lr": 1.0},
        "a scale that starts too high": {"lr": 1.0, "init_scale": 2.0**22},
        "Adam": {"adam": True, "lr": 0.02},
    }
    return [
        Case(f"{label}, seed {seed}", ("classifier", {"steps": 6, "seed": seed, **setting}))
        for label, setting in settings.items()
    ]


def _loop(name: str, reread: str, loop: Callable[[Any], Any], hint: str) -> Misunderstanding:
    return Misunderstanding(name, hint, _driven(drive_loop, loop), reread)


_TRAIN = Task(
    id="07.1",
    function="train",
    points=2,
    probe="drive_loop",
    reference=_driven(drive_loop, answers.train),
    agree=trainings_agree(weights=2e-3),
    cases=_loop_cases,
    misunderstandings=(
        _loop(
            "region around the loop",
            _CACHE,
            answers.region_around_the_loop,
            "Your weights change, and forward does not notice. Which casts of them does it use, "
            "and when are those thrown away?",
        ),
        _loop(
            "region around the step",
            _CACHE,
            answers.region_around_the_step,
            "You train rightly, and what you measure after the step are the losses from before it. "
            "The optimizer has been there in between; has your region ended?",
        ),
        _loop(
            "not in 16 bits",
            _DEVICE,
            answers.other_device,
            "All layers compute in FP32. A region casts tensors of one type of device, and only "
            "between its `with` and its end.",
        ),
        _loop(
            "the CPU's default dtype",
            _DEVICE,
            answers.default_dtype,
            "The layers compute in BF16. That is what a CPU's autocast casts to unless it is told.",
        ),
        _loop(
            "loss outside",
            _LOSSES,
            answers.loss_outside,
            "The layers are right. Which dtype has your loss, where it is computed, and what does "
            "the scale make of it?",
        ),
        _loop(
            "measured in FP32",
            _STEP,
            answers.measured_outside,
            "You train in FP16 and measure in FP32: these are not the losses of the network that "
            "you train.",
        ),
        _loop(
            "half the model",
            _STEP,
            answers.half_model,
            "The weights themselves are FP16 now. Under autocast they stay FP32, and so do their "
            "gradients, which is what the scaler asks for.",
        ),
    ),
)

# -- 07.2 make_log_partition -----------------------------------------------------------------------


def _function_cases(seed: int) -> list[Case]:
    draw = torch.Generator().manual_seed(seed)

    def inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        x, w = torch.randn(4, 6, generator=draw), torch.randn(6, 5, generator=draw)
        return (2.5 * x).to(dtype), (2.5 * w).to(dtype)

    return [
        Case("FP32 inputs, a region of FP16", (*inputs(FP32), FP16, False)),
        Case("FP16 inputs, a region of FP16", (*inputs(FP16), FP16, False)),
        Case(
            "x in FP16, w in FP32, a region of FP16",
            (inputs(FP16)[0], inputs(FP32)[1], FP16, False),
        ),
        Case("FP32 inputs, a region of BF16", (*inputs(FP32), BF16, False)),
        Case("FP32 inputs, backward inside the region", (*inputs(FP32), FP16, True)),
        Case("FP16 inputs, backward inside the region", (*inputs(FP16), FP16, True)),
        Case("FP32 inputs, no region", (*inputs(FP32), None, False)),
        Case("FP16 inputs, no region", (*inputs(FP16), None, False)),
    ]


def _function(
    name: str, written: Callable[[str], Any], hint: str, reread: str = _OWN
) -> Misunderstanding:
    return Misunderstanding(name, hint, _driven(differentiate_function, written), reread)


_LOG_PARTITION = Task(
    id="07.2",
    function="make_log_partition",
    points=3,
    probe="differentiate_function",
    reference=_driven(differentiate_function, answers.right_function),
    agree=_all_close,
    cases=_function_cases,
    misunderstandings=(
        _function(
            "not guarded",
            answers.plain_function,
            "It behaves as if nothing guarded it. Is there a decorator on each method, and is it "
            "for the device type that is handed in?",
        ),
        _function(
            "inputs not cast",
            answers.inputs_not_cast,
            "Forward and backward have the same autocast state now: both in 16 bits. This function "
            "wants its inputs in FP32.",
        ),
        _function(
            "cast to 16 bits",
            answers.cast_to_16_bits,
            "Your inputs are cast, to the dtype that has too few digits for this function.",
        ),
        _function(
            "backward not guarded",
            answers.backward_unguarded,
            "Forward is right. Backward is right too, until somebody calls it inside a region.",
        ),
        _function(
            "forward not guarded",
            answers.forward_unguarded,
            "Your backward is told to use the state that forward had, and nobody has noted it.",
        ),
        _function(
            "cast in a region only",
            answers.cast_in_a_region_only,
            "In a region all is right. What does `cast_inputs` cast where autocast is off?",
        ),
        _function(
            "floats alone",
            answers.floats_alone,
            "You cast to FP32 by hand, and autocast is still on: what does it do to the operands "
            "of a product?",
            _ISLANDS,
        ),
        _function(
            "saved as given",
            answers.saved_as_given,
            "Forward computes in FP32. What it saves for backward is still in the dtype it was "
            "given.",
        ),
    ),
)

# -- 07.3 gram_loss --------------------------------------------------------------------------------


def _loss_cases(seed: int) -> list[Case]:
    draw = torch.Generator().manual_seed(seed)

    def inputs(size: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        h = (size * torch.randn(8, 64, generator=draw)).to(dtype)
        other = size * torch.randn(8, 64, generator=draw)
        return h, other @ other.mT / 64

    return [
        Case("large h in FP16, a region of FP16", (*inputs(200.0, FP16), FP16)),
        Case("large h in FP32, a region of FP16", (*inputs(200.0, FP32), FP16)),
        Case("ordinary h in FP16, a region of FP16", (*inputs(1.0, FP16), FP16)),
        Case("ordinary h in FP32, a region of FP16", (*inputs(1.0, FP32), FP16)),
        Case("large h in BF16, a region of BF16", (*inputs(200.0, BF16), BF16)),
        Case("large h in FP16, no region", (*inputs(200.0, FP16), None)),
        Case("large h in FP32, no region", (*inputs(200.0, FP32), None)),
    ]


def _loss(
    name: str, written: Callable[..., Any], hint: str, reread: str = _ISLANDS
) -> Misunderstanding:
    return Misunderstanding(name, hint, _driven(differentiate_loss, written), reread)


_GRAM = Task(
    id="07.3",
    function="gram_loss",
    points=3,
    probe="differentiate_loss",
    reference=_driven(differentiate_loss, answers.gram_loss),
    agree=_all_close,
    cases=_loss_cases,
    misunderstandings=(
        _loss(
            "product in 16 bits",
            answers.plain_loss,
            "The product is still computed in 16 bits. A cast in front of it is undone by "
            "autocast, one behind it comes too late, and a region for another type of device "
            "changes nothing.",
        ),
        _loss(
            "switched off without a cast",
            answers.switched_off_alone,
            "You switched autocast off, so nothing casts your operands: not to 16 bits, and not "
            "from them either.",
        ),
        _loss(
            "divided first",
            answers.divided_first,
            "Nothing overflows any more. The products are still rounded to 16 bits, which is less "
            "than one part in 10,000.",
            _RULES,
        ),
        _loss(
            "divided by the root first",
            answers.divided_by_the_root_first,
            "Both sides are smaller now and the product fits. It is a 16-bit product all the same: "
            "does that have the digits asked for?",
            _RULES,
        ),
        _loss(
            "computed in BF16",
            answers.in_bf16,
            "BF16 has the range, and 8 significant bits.",
        ),
        _loss(
            "cut off from h",
            answers.cut_off,
            "The loss is right, and no gradient comes back from it.",
            _LOSSES,
        ),
        _loss(
            "made finite",
            answers.made_finite,
            "You replace the products that overflow by the largest FP16 number. They are not equal "
            "to it, nor to each other.",
            _LOSSES,
        ),
        _loss(
            "handed back in 16 bits",
            answers.handed_back_low,
            "You compute in FP32 and hand the result back in the dtype of h. Which dtype should a "
            "loss have when the scale meets it?",
            _LOSSES,
        ),
    ),
)

TASKS = (_TRAIN, _LOG_PARTITION, _GRAM)
