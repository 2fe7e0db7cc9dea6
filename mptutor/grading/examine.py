"""The examiner: leads a student's process through the notebook and the questions.

Cells come first, in order. Then the questions the student knows, for all tasks; when those answers
are in, the hidden ones. A process that dies, stalls or runs out of memory is replaced by a fresh
one that goes through the same cells again, without the cell or the question that was to blame. So
one endless loop, or one ``exit()``, costs what it belongs to and no more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from mptutor.grading.channel import NoReply
from mptutor.grading.limits import Limits

#: So often a submission gets a fresh process before the rest of it goes unanswered.
_MAX_STARTS = 6


@dataclass(frozen=True)
class Usage:
    """What a process used and how it ended. ``None`` where the backend cannot tell."""

    cpu_s: float | None = None
    peak_bytes: int | None = None
    end: str = ""


class Student(Protocol):
    """A process that runs a student's code."""

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send a request and return the reply, or raise `NoReply`."""

    def end(self) -> Usage:
        """End the process, if it has not ended, and say what it used. May be called again."""


Start = Callable[[], AbstractContextManager[Student]]


@dataclass(frozen=True)
class Cell:
    """A code cell of a notebook: its number among all cells, from 1, and its source."""

    number: int
    source: str


@dataclass(frozen=True, eq=False)
class Question:
    """The cases of one task, packed; ``hidden`` ones are for the grader only."""

    task: str
    function: str
    probe: str
    cases: tuple[Any, ...]
    hidden: bool


@dataclass(frozen=True)
class Answer:
    """What came back for a question: one packed answer a case, or a ``trouble`` instead.

    ``trouble`` is that of `NoReply`, or ``"memory"``, or ``"missing"`` if the notebook does not
    define the function.
    """

    answers: tuple[Any, ...] = ()
    trouble: str = ""


@dataclass
class Record:
    """What an examination took down."""

    answers: dict[Question, Answer] = field(default_factory=dict)
    cell_errors: dict[int, dict[str, str]] = field(default_factory=dict)
    cell_troubles: dict[int, str] = field(default_factory=dict)
    wall_s: float = 0.0
    cpu_s: float | None = None
    peak_bytes: int | None = None


def examine(
    cells: Sequence[Cell], questions: Sequence[Question], start: Start, limits: Limits
) -> Record:
    """Run the cells and put the questions, within the limits.

    Returns
    -------
    Record
        With an answer for every question.
    """
    record = Record()
    for _ in range(_MAX_STARTS):
        with start() as student:
            # The clock runs while there is a process: a start may have to wait for the backend.
            began = time.monotonic()
            deadline = began + limits.submission_s - record.wall_s
            try:
                _go_through(student, cells, questions, record, limits, deadline)
            except _Lost as lost:
                usage = student.end()
                lost.blame(record, "memory" if usage.end == "memory" else lost.why)
            record.wall_s = round(record.wall_s + time.monotonic() - began, 4)
            _add_up(record, student.end())
        if len(record.answers) == len(questions) or record.wall_s >= limits.submission_s:
            break
    out_of = "time" if record.wall_s >= limits.submission_s else "ended"
    for question in questions:
        record.answers.setdefault(question, Answer(trouble=out_of))
    return record


class _Lost(Exception):
    """The process is lost, in the middle of a cell or a question."""

    def __init__(self, at: Cell | Question, why: str) -> None:
        self.at, self.why = at, why

    def blame(self, record: Record, why: str) -> None:
        if isinstance(self.at, Cell):
            record.cell_troubles[self.at.number] = why
        else:
            record.answers[self.at] = Answer(trouble=why)


def _go_through(
    student: Student,
    cells: Sequence[Cell],
    questions: Sequence[Question],
    record: Record,
    limits: Limits,
    deadline: float,
) -> None:
    def ask(at: Cell | Question, request: dict[str, Any]) -> dict[str, Any]:
        seconds = min(limits.cell_s, deadline - time.monotonic())
        if seconds <= 0:
            raise _Lost(at, "time")
        try:
            return student.ask({**request, "seconds": seconds}, seconds + limits.grace_s)
        except NoReply as failure:
            raise _Lost(at, failure.why) from None

    for cell in cells:
        if cell.number not in record.cell_troubles:
            reply = ask(cell, {"run": cell.source, "name": f"cell {cell.number}"})
            _note(record, cell, reply)
    for question in sorted(questions, key=lambda question: question.hidden):
        if question not in record.answers:
            reply = ask(
                question,
                {"try": question.function, "probe": question.probe, "cases": question.cases},
            )
            record.answers[question] = _answer(question, reply)


def _note(record: Record, cell: Cell, reply: dict[str, Any]) -> None:
    error = reply.get("error")
    if reply.get("late") is True:
        record.cell_troubles[cell.number] = "time"
    elif type(error) is dict:
        parts = {key: str(error.get(key, "")) for key in ("type", "message", "line")}
        record.cell_errors.setdefault(cell.number, parts)


def _answer(question: Question, reply: dict[str, Any]) -> Answer:
    if reply.get("missing") is True:
        return Answer(trouble="missing")
    if reply.get("late") is True:
        return Answer(trouble="time")
    answers = reply.get("answers")
    if type(answers) is not list or len(answers) != len(question.cases):
        return Answer(trouble="garbled")
    return Answer(tuple(answers))


def _add_up(record: Record, usage: Usage) -> None:
    if usage.cpu_s is not None:
        record.cpu_s = round((record.cpu_s or 0.0) + usage.cpu_s, 3)
    if usage.peak_bytes is not None:
        record.peak_bytes = max(record.peak_bytes or 0, usage.peak_bytes)
