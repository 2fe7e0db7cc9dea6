"""A task is data.

An exercise asks the learner for a function. Its task holds the cases to try the function on, the
reference to compare with, and the misunderstandings that people really have. The *probe*
(`mptutor.checks.probes`) runs the learner's code on the cases; the *judge*
(`mptutor.checks.judge`) reads what came back and answers with a verdict. In a notebook both run in
one process, a grader runs them in two, and the same definition serves.

A misunderstanding is a function too: the one that somebody with this belief would write. When the
answers agree with it wherever they are wrong, the belief is found, and its hint can speak to it.

Cases come from a seed. Seed 0 is the learner's; a grader draws others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Agree = Callable[[Any, Any], bool]


@dataclass(frozen=True)
class Case:
    """One trial: the inputs, and a few words for them that a learner can read."""

    label: str
    inputs: tuple[Any, ...]


@dataclass(frozen=True)
class Misunderstanding:
    """A wrong idea by name, the hint that speaks to it, and the answers it would give.

    ``hint`` names the idea without giving the answer away, ``believes`` has the signature of what
    the task asks for, and ``reread`` is the heading in the lesson that clears it up.
    """

    name: str
    hint: str
    believes: Callable[..., Any]
    reread: str


def same(expected: Any, got: Any) -> bool:
    """Tell whether two plain values are the same: numbers exactly, tensors bit for bit.

    A NaN is the same as a NaN, and 0.0 differs from -0.0. An int, a float and a tensor of one
    element that stand for the same number are the same, so that a right answer may come in any
    of these dresses; two tensors must agree in dtype and shape.
    """
    if isinstance(expected, (int, float)) and isinstance(got, torch.Tensor) and got.numel() == 1:
        got = got.item()
    if isinstance(expected, (int, float)) and not isinstance(expected, bool):
        return _same_number(expected, got)
    if type(expected) is not type(got):
        return False
    if isinstance(expected, torch.Tensor):
        alike = expected.dtype == got.dtype and expected.shape == got.shape
        both_nan = expected.isnan() & got.isnan() if alike else None
        return alike and bool((both_nan | _same_bits(expected, got)).all())
    if isinstance(expected, list):
        return len(expected) == len(got) and all(map(same, expected, got))
    if isinstance(expected, dict):
        return expected.keys() == got.keys() and all(same(expected[k], got[k]) for k in expected)
    return expected == got


def _same_number(expected: float, got: Any) -> bool:
    if type(got) not in (int, float):
        return False
    if expected != expected:
        return got != got  # NaN is the number that differs from itself
    # Only zeros can be equal and differ in sign.
    return expected == got and (got != 0 or math.copysign(1, expected) == math.copysign(1, got))


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a == b) & (a.signbit() == b.signbit())


@dataclass(frozen=True)
class Task:
    """Everything a check needs to know about one task of an exercise.

    ``id`` is ``"LESSON.NUMBER"``, ``function`` the name the learner is asked to define, ``cases``
    makes the trials of a seed, ``probe`` names the entry of `mptutor.checks.probes.PROBES` that
    carries them out, and ``agree`` compares an expected value with the learner's. ``withheld``
    names modules, such as ``"mptutor.scaling"``, that are the answer themselves: a grader keeps
    them from the code it grades.
    """

    id: str
    function: str
    reference: Callable[..., Any]
    cases: Callable[[int], Sequence[Case]]
    misunderstandings: tuple[Misunderstanding, ...]
    points: int = 1
    probe: str = "call"
    agree: Callable[[Any, Any], bool] = same
    withheld: tuple[str, ...] = ()

    @property
    def lesson(self) -> str:
        """The number of the lesson this task belongs to, ``"01"``."""
        return self.id.partition(".")[0]
