"""Many ranks without a process: what they would compute together, one after another.

`on_ranks` calls a function once for each rank, with that rank's input and a `Ranks`, through which
it sums and compares with the others. In real processes each would stop in ``all_reduce`` until all
have come that far. Here a call that cannot be answered yet ends the turn. When every rank has come
to the same call, its answer is known, and all begin again from the start with one answer more. So
the function must do the same each time; its input is fresh each time.

What would hang real processes is an error here: a rank that returns while another one waits for it.

A sum is added up rank by rank, in the dtype of its terms, as gloo does with two. A GPU library adds
in rings and trees, and partial sums of many ranks are rounded in another order.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
from torch import Tensor


class RanksError(RuntimeError):
    """Ranks that do not do the same; real processes would wait for each other forever."""


class _WaitingError(BaseException):
    """Ends the turn of a rank whose call has no answer yet. No `except Exception` stops it."""


@dataclass
class Ranks:
    """What one rank knows of the others.

    Attributes
    ----------
    rank, size
        Which one this is, from 0, and of how many.
    sent
        What it has put on the wire so far: for each call the dtype and the number of elements.
    """

    rank: int
    size: int
    _answers: Sequence[Tensor] = ()
    _calls: list[tuple[str, Tensor]] = field(default_factory=list)

    @property
    def sent(self) -> list[tuple[torch.dtype, int]]:  # noqa: D102
        return [(x.dtype, x.numel()) for _, x in self._calls]

    def sum(self, x: Tensor | float) -> Tensor:
        """Return the sum of what all ranks give, in the dtype of ``x``; ``x`` stays as it is."""
        return self._call("sum", x)

    def max(self, x: Tensor | float) -> Tensor:
        """Return the largest of what all ranks give, element by element; NaN if one is NaN."""
        return self._call("max", x)

    def _call(self, name: str, x: Tensor | float) -> Tensor:
        self._calls.append((name, torch.as_tensor(x).detach().clone()))
        if len(self._calls) > len(self._answers):
            raise _WaitingError
        return self._answers[len(self._calls) - 1].clone()


def on_ranks(function: Callable[[Any, Ranks], Any], inputs: Sequence[Any]) -> list[Any]:
    """Call ``function(input, ranks)`` as every rank and return what each returned.

    Parameters
    ----------
    inputs
        One for each rank; every call gets a copy.

    Raises
    ------
    RanksError
        If the ranks do not all make the same calls with tensors of the same shape and dtype.

    Examples
    --------
    >>> on_ranks(lambda x, ranks: ranks.sum(x) / ranks.size, torch.tensor([1.0, 2.0, 6.0]))
    [tensor(3.), tensor(3.), tensor(3.)]
    """
    return [returned for returned, _ in with_ranks(function, inputs)]


def with_ranks(
    function: Callable[[Any, Ranks], Any], inputs: Sequence[Any]
) -> list[tuple[Any, Ranks]]:
    """Do what `on_ranks` does, and return each rank's `Ranks` too, which knows what was sent."""
    answers: list[Tensor] = []
    while True:
        turns = [_turn(function, x, Ranks(i, len(inputs), answers)) for i, x in enumerate(inputs)]
        waiting = [ranks for waits, _, ranks in turns if waits]
        if not waiting:
            return [(returned, ranks) for _, returned, ranks in turns]
        if len(waiting) < len(turns):
            done = next(ranks.rank for waits, _, ranks in turns if not waits)
            raise RanksError(
                f"rank {done} has returned, and rank {waiting[0].rank} waits in "
                f"{waiting[0]._calls[-1][0]}() for it; real processes would hang"
            )
        answers.append(_answer([ranks._calls[-1] for ranks in waiting]))


def _turn(function: Callable[[Any, Ranks], Any], x: Any, ranks: Ranks) -> tuple[bool, Any, Ranks]:
    try:
        return False, function(copy.deepcopy(x), ranks), ranks
    except _WaitingError:
        return True, None, ranks


def _answer(calls: list[tuple[str, Tensor]]) -> Tensor:
    kinds = [(name, x.dtype, tuple(x.shape)) for name, x in calls]
    if len(set(kinds)) > 1:
        other = next(i for i, kind in enumerate(kinds) if kind != kinds[0])
        raise RanksError(f"rank 0 calls {_told(kinds[0])}, rank {other} {_told(kinds[other])}")
    tensors = [x for _, x in calls]
    return reduce(torch.add if calls[0][0] == "sum" else torch.maximum, tensors)


def _told(kind: tuple[str, torch.dtype, tuple[int, ...]]) -> str:
    name, dtype, shape = kind
    return f"{name}() with {str(dtype).removeprefix('torch.')} of shape {list(shape)}"
