"""How far a learner has come: ``mptutor progress``, and the map in lesson 00.

Nothing is kept about a learner anywhere. The exercises are checked anew as they lie on the disk,
each in a process of its own, so the answer can neither be out of date nor be lost.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

from mptutor.checks import tasks_of
from mptutor.checks.run import NotebookError, is_untouched
from mptutor.course import CourseNotFoundError, find_course

_TIMEOUT_S = 120

_WORDS = {
    "right": "right",
    "wrong": "not right yet",
    "raised": "raises an exception",
    "unwritten": "not written yet",
    "unreadable": "could not be checked",
}


@dataclass(frozen=True)
class TaskProgress:
    """Where one task stands.

    ``outcome`` is a `mptutor.checks.judge.Verdict`'s, or ``"unreadable"`` if its notebook cannot be
    run to an end.
    """

    task: str
    function: str
    outcome: str


@dataclass(frozen=True)
class Progress:
    """Where every task of the course stands."""

    tasks: tuple[TaskProgress, ...]

    @property
    def right(self) -> int:
        """How many tasks are solved."""
        return sum(task.outcome == "right" for task in self.tasks)

    def __str__(self) -> str:
        lines = [f"{t.task}  {t.function:24}{_WORDS[t.outcome]}" for t in self.tasks]
        return "\n".join([*lines, f"{self.right} of {len(self.tasks)} tasks right"])

    def _repr_html_(self) -> str:
        left = "style='text-align:left'"
        rows = "".join(
            f"<tr><td>{t.task}</td><td {left}><code>{escape(t.function)}</code></td>"
            f"<td {left}>{'●' if t.outcome == 'right' else '○'} {_WORDS[t.outcome]}</td></tr>"
            for t in self.tasks
        )
        return (
            f"<table><caption>{self.right} of {len(self.tasks)} tasks right</caption>"
            f"<tr><th>task</th><th>function</th><th>as saved on disk</th></tr>{rows}</table>"
        )


def progress(course: Path | None = None) -> Progress:
    """Check every exercise of the course as it is saved on disk.

    Parameters
    ----------
    course : Path, optional
        The course's folder; found from the current one unless given.
    """
    course = find_course() if course is None else course
    exercises = sorted((course / "exercises").glob("*/*.ipynb"))
    running = {path: _start(path) for path in exercises if not _is_untouched(path)}
    tasks: list[TaskProgress] = []
    for path in exercises:
        outcomes = _outcomes(running[path]) if path in running else {}
        otherwise = "unreadable" if path in running else "unwritten"
        for task in tasks_of(path.stem[:2]):
            outcome = outcomes.get(task.id, otherwise)
            tasks.append(TaskProgress(task.id, task.function, outcome))
    return Progress(tuple(tasks))


def _is_untouched(path: Path) -> bool:
    """Tell whether there is nothing to run: a process costs seconds, reading a file nothing."""
    try:
        return is_untouched(path)
    except NotebookError:
        return False


def _start(notebook: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "mptutor", "check", str(notebook), "--json"]
    return subprocess.Popen(
        command,
        cwd=notebook.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _outcomes(process: subprocess.Popen[str]) -> dict[str, str]:
    """Return the outcome of each task of one exercise, none of a notebook that hangs."""
    try:
        printed, _ = process.communicate(timeout=_TIMEOUT_S)
        return {verdict["task"]: verdict["outcome"] for verdict in json.loads(printed)}
    except (subprocess.TimeoutExpired, ValueError):
        process.kill()
        process.wait()
        return {}


def main(argv: list[str]) -> int:
    """Run ``mptutor progress``."""
    argparse.ArgumentParser(
        prog="mptutor progress", description="Show which exercises you have solved."
    ).parse_args(argv)
    try:
        print(progress())
    except CourseNotFoundError as error:
        print(f"mptutor progress: {error}\n{error.remedy}", file=sys.stderr)
        return 2
    return 0
