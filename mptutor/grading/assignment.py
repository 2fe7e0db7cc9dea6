"""An assignment: the tasks of a lesson, made ready for a class.

The questions of every task come twice. The visible ones are those of the check in the student's
notebook, so a wrong answer to them can be shown. The hidden ones come from a seed that only the
grader has; they tell a function that is right from one that knows the visible answers by heart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import mptutor.checks
from mptutor.checks import tasks_of
from mptutor.checks.notebook import LEARNERS_SEED
from mptutor.checks.plain import Unknown, pack, unpack
from mptutor.checks.task import Case, Task
from mptutor.grading.examine import Question


@dataclass(frozen=True, eq=False)
class Assignment:
    """The tasks of a lesson and the seed of their hidden questions."""

    lesson: str
    tasks: tuple[Task, ...]
    seed: int

    @classmethod
    def of_lesson(cls, lesson: str, seed: int) -> Assignment:
        """Return the assignment of a lesson.

        Raises
        ------
        ValueError
            If the lesson has no tasks, or the seed is the learner's own.
        """
        if seed == LEARNERS_SEED:
            raise ValueError(f"seed is {seed}, which the students' own checks use; take another")
        return cls(lesson, tasks_of(lesson), seed)

    @cached_property
    def visible(self) -> dict[str, Sequence[Case]]:
        """The cases by task that the student's own check has."""
        return {task.id: task.cases(LEARNERS_SEED) for task in self.tasks}

    @cached_property
    def hidden(self) -> dict[str, Sequence[Case]]:
        """The cases by task that only the grader has."""
        return {task.id: task.cases(self.seed) for task in self.tasks}

    @cached_property
    def questions(self) -> tuple[Question, ...]:
        """All cases as questions to a student's process."""
        return tuple(
            Question(task.id, task.function, task.probe, _packed(task, cases), hidden)
            for hidden, by_task in ((False, self.visible), (True, self.hidden))
            for task in self.tasks
            for cases in [by_task[task.id]]
        )

    @cached_property
    def withheld(self) -> tuple[str, ...]:
        """The modules of this package that solve a task, and are kept from the students' code."""
        return tuple(sorted({name for task in self.tasks for name in task.withheld}))

    @cached_property
    def fingerprint(self) -> str:
        """A digest of everything but the submission that a result depends on."""
        digest = hashlib.sha256(f"{self.lesson} {self.seed}".encode())
        for folder in (Path(mptutor.checks.__file__).parent, Path(__file__).parent):
            for source in sorted(folder.glob("*.py")):
                digest.update(source.read_bytes())
        return digest.hexdigest()

    def key(self, file: str, content: bytes, conditions: str) -> str:
        """Return a digest of all that the result of a submission depends on.

        ``conditions`` are the limits and the backend: a longer time limit asks for a new grade.
        """
        name = file.encode("utf-8", "surrogateescape")
        parts = [self.fingerprint.encode(), conditions.encode(), name, content]
        return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _packed(task: Task, cases: Sequence[Case]) -> tuple[object, ...]:
    packed = tuple(pack(list(case.inputs)) for case in cases)
    for case, plain in zip(cases, packed, strict=True):
        if any(isinstance(value, Unknown) for value in unpack(plain)):
            raise ValueError(f"task {task.id}: an input of {case.label!r} is not plain data")
    return packed
