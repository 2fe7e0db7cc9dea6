"""Shows how far a long run has come, while it runs, and makes way when it ends.

An experiment that takes longer than a breath tells what it has reached: a few words and the share
of the whole that is behind.  Whoever calls it may listen (``progress=my_function``) or want none of
it (``progress=False``).  By default a notebook shows one line with a bar below the cell, from half
a second on, and takes it away at the end, so that a saved notebook holds results and no bars.

A line is shown only where somebody is there to see it.  A program that runs notebooks, as nbval
and nbconvert do, tells the kernel that nobody can be asked for input; a script has no kernel.  Both
see nothing, and their outputs compare as they did before.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from html import escape
from typing import Any, Protocol, TypeVar

R = TypeVar("R")

_FIRST_AFTER_S = 0.5
_EVERY_S = 0.1


class Reached(Protocol):
    """What a run tells: ``said``, in a few words, and ``done``, from 0 to 1."""

    @property
    def said(self) -> str: ...  # noqa: D102
    @property
    def done(self) -> float: ...  # noqa: D102


@dataclass(frozen=True)
class Stage:
    """What a run does now, and the share of it that is behind, where there is no more to tell."""

    said: str
    done: float


#: A function to tell, True for a line in a notebook, False or None for silence.
Progress = Callable[[Any], None] | bool | None


@contextmanager
def shown(progress: Progress) -> Iterator[Callable[[Reached], None]]:
    """Yield the function that a run tells what it has reached."""
    if callable(progress):
        yield progress
    elif progress and somebody_watches():
        line = _Line()
        try:
            yield line.tell
        finally:
            line.remove()
    else:
        yield lambda reached: None


def do_in_turn(
    jobs: Sequence[tuple[str, Callable[[], R]]],
    progress: Progress,
    stop: Callable[[], bool] | None = None,
) -> tuple[tuple[R, ...], bool]:
    """Run one job after another; return what they returned, and whether all were run.

    Each job is a few words and a function. ``progress`` is told a `Stage` before each. Once
    ``stop`` says True, or on an interrupt from the keyboard, no more are run, and the results of
    those that had ended are returned.
    """
    done: list[R] = []
    with suppress(KeyboardInterrupt), shown(progress) as tell:
        for said, job in jobs:
            if stop and stop():
                break
            tell(Stage(said, len(done) / len(jobs)))
            done.append(job())
    return tuple(done), len(done) == len(jobs)


def somebody_watches() -> bool:
    """Say whether the code runs in a notebook in front of a person."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    # What the front end said with the cell that runs now; ipykernel has no public name for it.
    return bool(getattr(getattr(shell, "kernel", None), "_allow_stdin", False))


class _Line:
    """One line below a cell."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._next = time.monotonic() + _FIRST_AFTER_S

    def tell(self, reached: Reached) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _EVERY_S
        percent = f"{reached.said} ({reached.done:.0%})"
        bar = (
            f'<progress value="{reached.done:.3f}" max="1" aria-label="progress"></progress> '
            f"{escape(percent)}"
        )
        self._show({"text/html": bar, "text/plain": percent})

    def remove(self) -> None:
        if self._handle is not None:
            self._show({"text/html": "", "text/plain": ""})

    def _show(self, bundle: dict[str, str]) -> None:
        from IPython.display import display

        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)
