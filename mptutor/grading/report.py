"""A graded class as text: a line of progress, a table, ``grades.csv``."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TextIO

from mptutor.grading.result import Result
from mptutor.grading.text import for_csv, for_terminal

#: How an outcome shows in the table's narrow columns.
_SIGNS = {
    "right": "✓",
    "wrong": "✗",
    "raised": "!",
    "stopped": "■",
    "unwritten": "·",
    "missing": "·",
}
_COLUMNS = (
    *("student", "lesson", "task", "points", "max_points", "outcome"),
    *("misunderstanding", "reason", "file"),
)
LEGEND = "✓ right   ✗ wrong   ! raised an exception   ■ ran into a limit   · not there"


class Progress:
    """One line that says how far the class is and how long it will take.

    Where standard output is no terminal it keeps quiet.
    """

    def __init__(self, total: int, out: TextIO) -> None:
        self._total, self._out = total, out
        self._done = self._fresh = 0
        self._began = time.monotonic()

    def step(self, fresh: bool) -> None:
        """Count a submission; ``fresh`` if it was graded now."""
        self._done += 1
        self._fresh += fresh
        if self._out.isatty():
            self._out.write(f"\r\x1b[K{self._line()}")
            self._out.flush()

    def end(self) -> None:
        """Leave the line free again."""
        if self._out.isatty():
            self._out.write("\r\x1b[K")

    def _line(self) -> str:
        line = f"{self._done} of {self._total} graded"
        if self._fresh and self._done < self._total:
            each_s = (time.monotonic() - self._began) / self._fresh
            line += f", {_duration(each_s * (self._total - self._done))} left"
        return line


def table(results: Sequence[Result]) -> str:
    """Return a line for each submission: who, the tasks, the points, and what happened."""
    if not results:
        return "No submissions."
    width = min(32, max(len(result.student) for result in results))
    lines = []
    for result in results:
        signs = "".join(f" {_SIGNS[task.outcome]}" for task in result.tasks)
        points = f"{result.points:>3}/{result.max_points}"
        student = for_terminal(result.student)[:width].ljust(width)
        remark = result.reason or next(iter(result.events), "")
        lines.append(f"{result.lesson}  {student} {signs:<8} {points}  {for_terminal(remark)[:80]}")
    return "\n".join(line.rstrip() for line in [*lines, "", LEGEND])


def grades_csv(results: Iterable[Result]) -> str:
    """Return the grades, a line a submission and task, as a spreadsheet reads them."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for result in results:
        tasks = [asdict(task) for task in result.tasks] or [{"outcome": "unreadable"}]
        for task in tasks:
            row = {**asdict(result), **task, "reason": task.get("reason", result.reason)}
            writer.writerow({column: for_csv(_cell(row.get(column))) for column in _COLUMNS})
    return text.getvalue()


def _cell(value: object) -> str:
    return "" if value is None else str(value)


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
