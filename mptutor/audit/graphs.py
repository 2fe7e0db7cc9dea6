"""Counting autograd graphs that are still alive.

A graph lives as long as its root node, and the root keeps a small dictionary for notes. A mark
put there lives exactly as long as the graph does, and a weak reference to the mark tells, without
keeping anything alive, whether somebody still holds on to a loss of ten steps ago.
"""

from __future__ import annotations

import weakref

from torch import Tensor

_KEY = "mptutor.alive"


class _Mark:
    """Left on the root node of a graph."""


class GraphCounter:
    """Counts the marked graphs that are still alive."""

    def __init__(self) -> None:
        self._marks: list[weakref.ref[_Mark]] = []

    def count_and_add(self, roots: list[Tensor]) -> int:
        """Return how many earlier graphs live, then mark the graph of the first root."""
        self._marks = [mark for mark in self._marks if mark() is not None]
        alive = len(self._marks)
        if roots and roots[0].grad_fn is not None:
            mark = _Mark()
            roots[0].grad_fn.metadata[_KEY] = mark
            self._marks.append(weakref.ref(mark))
        return alive
