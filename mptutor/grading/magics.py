"""Notebook cells as plain Python: without magics, shell escapes and help requests.

A cell that Python can compile is left alone, so a ``%`` in a string is safe. In any other, lines
that only IPython understands are blanked, as are whole cells in another language. Nothing that a
shell would have done is done.
"""

from __future__ import annotations

import re

#: Cell magics whose body is Python.
_PYTHON_CELLS = {"time", "timeit", "capture", "prun", "python", "python3"}
_LINE = re.compile(r"^(\s*)(?:[%!?].*|[\w.]+\?{1,2}\s*)$")
_ASSIGNMENT = re.compile(r"^(\s*[\w, ]+=)\s*[%!].*$")


def without_magics(source: str) -> str:
    """Return what remains of a cell when IPython's own syntax is taken out. Keeps line numbers."""
    if _compiles(source):
        return source
    lines = source.splitlines()
    if lines and lines[0].startswith("%%"):
        magic = (lines[0][2:].split() or [""])[0]
        if magic not in _PYTHON_CELLS:
            return ""
        lines[0] = ""
    return "\n".join(_without_magic(line) for line in lines)


def _without_magic(line: str) -> str:
    if _LINE.match(line):
        return _LINE.sub(r"\1pass", line)
    return _ASSIGNMENT.sub(r"\1 None", line)


def _compiles(source: str) -> bool:
    try:
        compile(source, "cell", "exec")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True
