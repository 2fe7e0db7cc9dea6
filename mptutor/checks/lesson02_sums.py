"""The second half of lesson 02's tasks: add up in blocks, and with a compensation."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from mptutor.checks.task import Case, Misunderstanding, Task

# Headings of lesson 02 that the hints send the learner back to.
_RUNNING = "Ten thousand hundredths"
_WIDER = "A wider accumulator"
_REPAIRS = "Without a wider accumulator"

# -- 02.3 blocked_sum --------------------------------------------------------------------------


def _add_up(terms: Iterable[Tensor], dtype: torch.dtype) -> Tensor:
    total = torch.zeros((), dtype=dtype)
    for term in terms:
        total = total + term
    return total


def _blocked(x: Tensor, block: int) -> Tensor:
    return _add_up((_add_up(part, x.dtype) for part in x.split(block)), x.dtype)


def _terms(n: int, dtype: torch.dtype, seed: int, low: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (low + (1 - low) * torch.rand(n, generator=generator)).to(dtype)


def _name(dtype: torch.dtype) -> str:
    return {torch.float16: "FP16", torch.bfloat16: "BF16"}[dtype]


def _blocked_cases(seed: int) -> list[Case]:
    """Make blocks that fit and that do not, of one term and of all; both signs show more digits."""
    fp16, bf16 = torch.float16, torch.bfloat16
    kinds = [(10, 3, fp16, 0), (800, 100, fp16, 0), (800, 30, fp16, -1), (800, 30, bf16, -1)]
    kinds += [(697, 50, bf16, -1), (300, 1, bf16, 0), (300, 300, bf16, 0), (200, 500, fp16, -1)]
    kinds += [(720, 16, bf16, -1), (720, 7, fp16, -1), (500, 20, bf16, 0)]
    return [
        Case(
            f"{n} random terms of {_name(dtype)} from {low} to 1, blocks of {block}",
            (_terms(n, dtype, 100 * seed + i, low), block),
        )
        for i, (n, block, dtype, low) in enumerate(kinds)
    ]


BLOCKED = Task(
    id="02.3",
    function="blocked_sum",
    points=2,
    reference=_blocked,
    cases=_blocked_cases,
    misunderstandings=(
        Misunderstanding(
            "one running sum",
            "That is a single running sum: the blocks make no difference to it. Each block needs "
            "an accumulator of its own.",
            lambda x, block: _add_up(x, x.dtype),
            _REPAIRS,
        ),
        Misunderstanding(
            "torch.sum in the blocks",
            "`sum` adds up in FP32 inside and rounds once. Here every partial sum is to be "
            "rounded.",
            lambda x, block: torch.stack([part.sum() for part in x.split(block)]).sum(),
            _WIDER,
        ),
        Misunderstanding(
            "torch.sum over the blocks",
            "The sum over the blocks adds up in FP32 inside. It is to be a running sum in the "
            "dtype of x, too.",
            lambda x, block: torch.stack([_add_up(p, x.dtype) for p in x.split(block)]).sum(),
            _WIDER,
        ),
        Misunderstanding(
            "FP32 accumulator",
            "Your partial sums are kept in more bits than x has. That is the better repair, but "
            "blocks are for where you cannot have it.",
            lambda x, block: _blocked(x.float(), block).to(x.dtype),
            _WIDER,
        ),
        Misunderstanding(
            "last block dropped",
            "The terms behind the last full block are missing.",
            lambda x, block: _blocked(x[: len(x) // block * block], block),
            _REPAIRS,
        ),
        Misunderstanding(
            "terms dealt out",
            "Your blocks take terms that lie apart. A block is made of neighbours.",
            lambda x, block: _add_up(
                (_add_up(x[i::block], x.dtype) for i in range(min(block, len(x)))), x.dtype
            ),
            _REPAIRS,
        ),
        Misunderstanding(
            "number of blocks",
            "You take `block` for the number of blocks. It is the number of terms in each.",
            lambda x, block: _blocked(x, -(-len(x) // block)),
            _REPAIRS,
        ),
        Misunderstanding(
            "result in FP32",
            "The value is right, its dtype is not: an accumulator made without a dtype is FP32.",
            lambda x, block: _blocked(x, block).float(),
            _RUNNING,
        ),
    ),
)

# -- 02.4 kahan_sum ----------------------------------------------------------------------------


def _kahan(x: Tensor) -> Tensor:
    total = lost = torch.zeros((), dtype=x.dtype)
    for term in x:
        wanted = term + lost
        larger = total + wanted
        lost, total = wanted - (larger - total), larger
    return total


def _kahan_wrong_sign(x: Tensor) -> Tensor:
    total = lost = torch.zeros((), dtype=x.dtype)
    for term in x:
        wanted = term - lost
        larger = total + wanted
        lost, total = wanted - (larger - total), larger
    return total


def _kahan_forgets_what_it_owed(x: Tensor) -> Tensor:
    total = lost = torch.zeros((), dtype=x.dtype)
    for term in x:
        larger = total + (term + lost)
        lost, total = term - (larger - total), larger
    return total


def _kahan_owes_twice(x: Tensor) -> Tensor:
    total = lost = torch.zeros((), dtype=x.dtype)
    for term in x:
        wanted = term + lost
        larger = total + wanted
        lost, total = lost + (wanted - (larger - total)), larger
    return total


def _kahan_pays_at_the_end(x: Tensor) -> Tensor:
    total = lost = torch.zeros((), dtype=x.dtype)
    for term in x:
        larger = total + term
        lost, total = lost + (term - (larger - total)), larger
    return total + lost


def _kahan_measures_too_late(x: Tensor) -> Tensor:
    total = lost = torch.zeros((), dtype=x.dtype)
    for term in x:
        wanted = term + lost
        total = total + wanted
        lost = wanted - (total - total)
    return total


def _kahan_cases(seed: int) -> list[Case]:
    """Make sums that would stall, random ones, a single term, and some with large terms in them.

    Beside a large term part of the compensation is lost too. That tells Kahan's sum from one with a
    wider accumulator.
    """
    fp16, bf16 = torch.float16, torch.bfloat16
    hundredths = {n: torch.full((n,), 0.01) for n in (600, 3500)}
    cases = [
        Case("600 times 0.01 in BF16", (hundredths[600].to(bf16),)),
        Case("3500 times 0.01 in FP16", (hundredths[3500].to(fp16),)),
    ]
    kinds = [(300, bf16, 0, 1), (1500, fp16, 0, 1), (700, bf16, -1, 1), (700, fp16, -1, 1)]
    kinds += [(700, bf16, -1, 500), (700, fp16, -1, 5000), (400, bf16, -1, 900), (1, fp16, 0, 1)]
    for i, (n, dtype, low, larger) in enumerate(kinds):
        x = _terms(n, torch.float32, 200 * seed + i, low)
        x[::7] *= larger
        label = f"{n} random terms of {_name(dtype)} from {low} to 1"
        label += f", every seventh times {larger}" if larger > 1 else ""
        cases.append(Case(label, (x.to(dtype),)))
    return cases


KAHAN = Task(
    id="02.4",
    function="kahan_sum",
    points=3,
    reference=_kahan,
    cases=_kahan_cases,
    misunderstandings=(
        Misunderstanding(
            "nothing carried over",
            "That is the running sum: what an addition loses does not reach the next one. If you "
            "write `total + term + lost`, Python adds from the left, and `lost` meets the large "
            "total alone.",
            lambda x: _add_up(x, x.dtype),
            _REPAIRS,
        ),
        Misunderstanding(
            "wrong sign",
            "What was lost is taken away from the next term. It is still owed to the sum.",
            _kahan_wrong_sign,
            _REPAIRS,
        ),
        Misunderstanding(
            "old debt forgotten",
            "You compare what arrived with the term alone. What was to arrive is the term and "
            "what was owed before.",
            _kahan_forgets_what_it_owed,
            _REPAIRS,
        ),
        Misunderstanding(
            "debt counted twice",
            "Your lost parts pile up although each has been added to the next term already.",
            _kahan_owes_twice,
            _REPAIRS,
        ),
        Misunderstanding(
            "paid at the end",
            "You gather all lost parts and add them at the end. That is another algorithm, and "
            "its second sum may stall as well; here each part goes into the very next term.",
            _kahan_pays_at_the_end,
            _REPAIRS,
        ),
        Misunderstanding(
            "total changed too early",
            "What arrived is the difference between the new and the old total. You have "
            "overwritten the old one by then.",
            _kahan_measures_too_late,
            _REPAIRS,
        ),
        Misunderstanding(
            "FP32 accumulator",
            "Your partial sums are kept in more bits than x has. That is the better repair; here "
            "it must go without.",
            lambda x: _add_up(x.float(), torch.float32).to(x.dtype),
            _WIDER,
        ),
        Misunderstanding(
            "result in FP32",
            "The value is right, its dtype is not.",
            lambda x: _kahan(x).float(),
            _RUNNING,
        ),
    ),
)
