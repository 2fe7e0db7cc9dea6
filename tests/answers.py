"""The banks of answers: how wrong and unusual right ones are written down and collected.

A bank is a module of `tests.wrong_answers`, one a lesson. Its functions are whole answers,
marked by what the check must make of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from mptutor.checks import lessons_with_tasks


@dataclass(frozen=True)
class Answer:
    task: str
    written: Any
    misunderstanding: str | None  # None for an answer that is right

    @property
    def name(self) -> str:
        return f"{self.task}-{self.written.__name__}"


_bank: dict[str, list[Answer]] = {}


def wrong(task: str, misunderstanding: str) -> Callable:
    """Mark a wrong answer that the check must reject, naming this misunderstanding."""
    return _marks(task, misunderstanding)


def right(task: str) -> Callable:
    """Mark a right answer, however unusual."""
    return _marks(task, None)


def _marks(task: str, misunderstanding: str | None) -> Callable:
    def mark(written: Any) -> Any:
        _bank.setdefault(task, []).append(Answer(task, written, misunderstanding))
        return written

    return mark


def answers() -> list[Answer]:
    """Return every answer of every bank."""
    for lesson in lessons_with_tasks():
        import_module(f"tests.wrong_answers.lesson{lesson}")
    return [answer for bank in _bank.values() for answer in bank]
