"""The checks of the exercises: one module a lesson, tasks as data.

`check` is what a notebook calls. A new lesson's tasks live in a module ``lessonNN.py`` here, which
holds a tuple ``TASKS``.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mptutor.checks.task import Task


def lessons_with_tasks() -> list[str]:
    """Return the numbers of the lessons that have checks, such as ``"01"``."""
    numbers = [f"{number:02d}" for number in range(14)]
    return [number for number in numbers if find_spec(f"{__name__}.lesson{number}")]


def tasks_of(lesson: str) -> tuple[Task, ...]:
    """Return the tasks of a lesson.

    Raises
    ------
    ValueError
        If the lesson has none.
    """
    if lesson not in lessons_with_tasks():
        raise ValueError(f"lesson is {lesson!r}; allowed are {', '.join(lessons_with_tasks())}")
    return import_module(f"{__name__}.lesson{lesson}").TASKS


def find_task(task_id: str) -> Task:
    """Return the task with this id.

    Raises
    ------
    ValueError
        If there is none.
    """
    known = [task for lesson in lessons_with_tasks() for task in tasks_of(lesson)]
    for task in known:
        if task.id == task_id:
            return task
    raise ValueError(f"task_id is {task_id!r}; allowed are {', '.join(task.id for task in known)}")


def __getattr__(name: str) -> Any:
    """Provide `check` without importing it before a notebook asks for it."""
    if name == "check":
        return import_module(f"{__name__}.notebook").check
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
