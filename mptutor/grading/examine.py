"""The examiner: leads a student's process through the notebook and the questions.

Cells come first, in order, then the questions the student knows. When the answers to all of these
are in, and not before, the hidden questions are sent. A process that dies, stalls or runs out of
memory is replaced by a fresh one that goes through the same cells again, without the cell or the
question that was to blame. So one endless loop, or one ``exit()``, costs what it belongs to and no
more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from mptutor.grading.channel import NoReply
from mptutor.grading.limits import Limits

#: So often a submission gets a fresh process before the rest of it goes unanswered.
_MAX_STARTS = 6
#: What is sent at once.
_BATCH_BYTES, _BATCH_ITEMS = 1 << 16, 32


@dataclass(frozen=True)
class Usage:
    """What a process used and how it ended. ``None`` where the backend cannot tell.

    ``end`` is ``"memory"`` if its memory ran over, and ``"lost"`` if its supervisor is gone, which
    is nobody's fault.
    """

    cpu_s: float | None = None
    peak_bytes: int | None = None
    end: str = ""


class Student(Protocol):
    """A process that runs a student's code."""

    def send(self, requests: Sequence[dict[str, Any]], seconds: float) -> None:
        """Send requests, or raise `NoReply`."""

    def receive(self, seconds: float) -> dict[str, Any]:
        """Return the reply to the next of them, or raise `NoReply`."""

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
                end = student.end().end
                if end != "lost":
                    lost.blame(record, "memory" if end == "memory" else lost.why)
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
    open_questions = [question for question in questions if question not in record.answers]
    known = [
        *(cell for cell in cells if cell.number not in record.cell_troubles),
        *(question for question in open_questions if not question.hidden),
    ]
    hidden = [question for question in open_questions if question.hidden]
    for batch in (*_batches(known), *_batches(hidden)):
        _put(student, batch, record, limits, deadline)


def _batches(items: Sequence[Cell | Question]) -> Iterator[list[Cell | Question]]:
    """Divide what is to be done, so that neither side fills the line while the other does too."""
    batch: list[Cell | Question] = []
    room = _BATCH_BYTES
    for item in items:
        size = len(item.source) if isinstance(item, Cell) else _BATCH_BYTES // 8
        if batch and (size > room or len(batch) == _BATCH_ITEMS):
            yield batch
            batch, room = [], _BATCH_BYTES
        batch.append(item)
        room -= size
    if batch:
        yield batch


def _put(
    student: Student,
    batch: Sequence[Cell | Question],
    record: Record,
    limits: Limits,
    deadline: float,
) -> None:
    def seconds_left(item: Cell | Question) -> float:
        seconds = min(limits.cell_s, deadline - time.monotonic())
        if seconds <= 0:
            raise _Lost(item, "time")
        return seconds

    seconds = seconds_left(batch[0])
    at = batch[0]
    try:
        student.send([_request(item, seconds) for item in batch], seconds + limits.grace_s)
        for at in batch:
            _take_down(record, at, student.receive(seconds_left(at) + limits.grace_s))
    except NoReply as failure:
        raise _Lost(at, failure.why) from None


def _request(item: Cell | Question, seconds: float) -> dict[str, Any]:
    if isinstance(item, Cell):
        return {"run": item.source, "name": f"cell {item.number}", "seconds": seconds}
    return {
        "try": item.function,
        "probe": item.probe,
        "cases": item.cases,
        "seconds": seconds,
    }


def _take_down(record: Record, item: Cell | Question, reply: dict[str, Any]) -> None:
    if isinstance(item, Cell):
        _note(record, item, reply)
    else:
        record.answers[item] = _answer(item, reply)


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
