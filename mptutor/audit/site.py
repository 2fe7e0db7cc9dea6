"""Which line of the user's program is running.

A finding is worth little without its line, and the line wanted is the user's own: neither torch's
nor a framework's. Walking the frames outwards and reading nothing but file names costs well under
a microsecond; `traceback.extract_stack` reads source files on the way and costs forty times that.
The text of the line is looked up once, at the end, when the audit has stopped watching.
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
import sysconfig
from typing import NamedTuple

import torch

_AUDIT = os.path.dirname(os.path.abspath(__file__))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


class Site(NamedTuple):
    """A line of a program, and what stood there."""

    file: str
    line: int
    code: str = ""

    def __str__(self) -> str:
        return f"{_cell_name(self.file) or os.path.basename(self.file)}:{self.line}"


#: Where something happened that no Python frame of the user's or a library's led to.
NOWHERE = Site("?", 0)


def here() -> Site:
    """Return the innermost line of the user's code, or failing that of a library's."""
    frame, library = sys._getframe(1), None
    while frame is not None:
        owner = _owner(frame.f_code.co_filename)
        if owner == "user":
            return Site(frame.f_code.co_filename, frame.f_lineno)
        if owner == "library" and library is None:
            library = Site(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return library or NOWHERE


def raised_in_backward(error: BaseException) -> Site | None:
    """Return the innermost user's line that `error` passed inside the autograd engine, if any.

    It is set when a custom Function's backward raised: the line of `.backward()` would not help.
    """
    innermost, inside = None, False
    step = error.__traceback__
    while step is not None:
        inside = inside or step.tb_frame.f_code.co_name == "_engine_run_backward"
        if inside and _owner(step.tb_frame.f_code.co_filename) == "user":
            innermost = Site(step.tb_frame.f_code.co_filename, step.tb_lineno)
        step = step.tb_next
    return innermost


def with_code(site: Site) -> Site:
    """Fill in what the line says. Done before the report: a notebook cell may be gone later."""
    return site._replace(code=linecache.getline(site.file, site.line).strip())


def called_by_torch() -> bool:
    """Say whether torch's own code made the call being watched, not the user's or a library's."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_AUDIT + os.sep):
        frame = frame.f_back
    return frame is not None and _owner(frame.f_code.co_filename) == "torch"


@functools.cache
def _owner(filename: str) -> str:
    if filename.startswith((_AUDIT + os.sep, _TORCH + os.sep, "<frozen", "<@")):
        return "torch"
    return "library" if filename.startswith(_LIBRARIES) else "user"


def _cell_name(filename: str) -> str | None:
    """Return the name a notebook gives to a cell, "Cell In[2]", for that cell's temporary file."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    name_of = getattr(getattr(shell, "compile", None), "format_code_name", None)
    name = name_of(filename) if name_of is not None else None
    return " ".join(name) if name else None
