"""The student's side: runs cells, tries functions, answers in plain data.

The process that runs this belongs to the student's code, which can change anything here. It holds
nothing worth taking, and what it sends is read as answers and nothing else.

One request a line, one reply a line, both JSON::

    {"run": SOURCE, "name": "cell 3", "seconds": 10}
        ->  {"error": null | ERROR, "late": bool}
    {"try": FUNCTION, "probe": "call", "cases": [...], "seconds": 10}
        ->  {"answers": [...], "late": bool}

``late`` says that the time limit stopped it.
"""

from __future__ import annotations

import json
import linecache
import os
import random
import signal
import sys
import types
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, BinaryIO

import torch

from mptutor import checks
from mptutor.checks.plain import unpack
from mptutor.checks.probes import try_out
from mptutor.grading.magics import without_magics


class TimeUp(BaseException):
    """The time limit of a cell or a task has passed."""


class NoShell:
    """Stands in for IPython's shell: there, and without effect."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until there are no more."""
    namespace = _fresh_namespace()
    for line in requests:
        request = json.loads(line)
        reply = _run(request, namespace) if "run" in request else _try(request, namespace)
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()


def prepare() -> None:
    """Do once, in the parent of many, what each of them would pay for.

    All copies of a process draw the same random numbers, so a submission gets the same marks
    however often it is graded.
    """
    # The check cells are not run, but a notebook may still import what they call.
    checks.check = lambda *args, **kwargs: None
    torch.set_num_threads(1)
    random.seed(0)
    torch.manual_seed(0)
    with suppress(ImportError):  # torch does without numpy, most exercises do not
        import_module("numpy.random").seed(0)
    # The first tensor operations load and set up more than the import does.
    (torch.ones(8, 8) @ torch.ones(8, 8)).to(torch.float16).float().sum().item()


def silence() -> None:
    """Send everything that is printed nowhere, and read nothing."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)


def _fresh_namespace() -> dict[str, Any]:
    """Make the ``__main__`` that the cells run in."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    sys.argv = ["notebook"]
    shell = NoShell()
    main.__dict__.update(get_ipython=lambda: shell, display=lambda *args, **kwargs: None)
    return main.__dict__


def _run(request: dict[str, Any], namespace: dict[str, Any]) -> dict[str, Any]:
    name = request["name"]

    def run() -> None:
        source = without_magics(request["run"])
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        exec(compile(source, name, "exec"), namespace)

    error = _within(request["seconds"], run)
    return {"error": error and _describe(error), "late": isinstance(error, TimeUp)}


def _try(request: dict[str, Any], namespace: dict[str, Any]) -> dict[str, Any]:
    answers: list[Any] = []

    def answer_all() -> None:
        written = namespace[request["try"]]
        for case in request["cases"]:
            answers.append(_answer(request["probe"], written, unpack(case)))

    if request["try"] not in namespace:
        return {"missing": True}
    error = _within(request["seconds"], answer_all)
    return {"answers": answers, "late": error is not None}


def _answer(probe: str, written: Any, inputs: list[Any]) -> dict[str, Any]:
    """Try one case. Nothing that a student's function raises ends the process, not even exit()."""
    try:
        return try_out(probe, written, inputs)
    except TimeUp:
        raise
    except BaseException as error:
        return {"error": _describe(error)}


def _within(seconds: float, work: Callable[[], None]) -> BaseException | None:
    """Do some of the student's work for so long at most, and return what it raised, if anything."""
    signal.signal(signal.SIGALRM, _raise_time_up)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            work()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except BaseException as error:
        return error
    return None


def _raise_time_up(signal_number: int, frame: Any) -> None:
    raise TimeUp


def _describe(error: BaseException) -> dict[str, str]:
    try:
        message = str(error)[:500]
    except BaseException:
        message = ""
    return {"type": type(error).__name__, "message": message, "line": _line_of(error)}


def _line_of(error: BaseException) -> str:
    """Return the line of the student's code that raised, as far as it can be told."""
    if isinstance(error, SyntaxError):
        return (error.text or "").strip()[:200] if isinstance(error.text, str) else ""
    line, trace = "", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        line = linecache.cache[name][2][trace.tb_lineno - 1] if _is_cell(name) else line
        trace = trace.tb_next
    return line.strip()[:200]


def _is_cell(name: str) -> bool:
    return name.startswith("cell ") and name in linecache.cache


def main() -> None:
    """Answer requests on standard input, as a container runs it."""
    with os.fdopen(os.dup(0), "rb") as requests, os.fdopen(os.dup(1), "wb") as replies:
        silence()
        prepare()
        serve(requests, replies)


if __name__ == "__main__":
    main()
