"""How much of a loop is to be rewritten, counted from two listings.

What a recipe or a framework asks of a loop is the difference between two texts, so it is counted
from the texts. A listing is the body of a function without its docstring; two are compared line by
line, without regard to indentation, as `git diff -w` does. Added, changed and removed lines count
one each, import lines too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from difflib import SequenceMatcher
from textwrap import dedent

from mptutor.experiments.raw_loops import plain

Loop = Callable[..., list[float]]


def listing(loop: Loop) -> list[str]:
    """Return the lines of a loop's body, without docstring, blank lines and comments."""
    lines = inspect.getsource(loop).splitlines()
    body = lines[next(i for i, line in enumerate(lines) if line.strip().startswith('"""')) + 1 :]
    kept = [line for line in body if line.strip() and not line.strip().startswith("#")]
    return dedent("\n".join(kept)).splitlines()


def compare(loop: Loop, other: Loop = plain) -> list[str]:
    """Return both listings merged: lines of both after ``"  "``, mine ``"+ "``, theirs ``"- "``."""
    lines = []
    for kind, mine, theirs in _differences(loop, other):
        if kind == "equal":
            lines += [f"  {line}" for line in mine]
        else:
            lines += [f"- {line}" for line in theirs] + [f"+ {line}" for line in mine]
    return lines


def edits(loop: Loop, other: Loop = plain) -> int:
    """Return how many lines of the other listing are to be added, changed or taken out."""
    return sum(
        max(len(mine), len(theirs))
        for kind, mine, theirs in _differences(loop, other)
        if kind != "equal"
    )


def _differences(loop: Loop, other: Loop) -> list[tuple[str, list[str], list[str]]]:
    mine, theirs = listing(loop), listing(other)
    bare = [[line.strip() for line in lines] for lines in (theirs, mine)]
    matcher = SequenceMatcher(None, *bare, autojunk=False)
    return [(kind, mine[k:m], theirs[i:j]) for kind, i, j, k, m in matcher.get_opcodes()]
