"""What grading finds out: plain values that go to and from JSON.

A `Result` depends on the submission, the assignment and the seed alone, so that grading twice
gives the same bytes. What it took in time and memory is another matter each time, and another
value: `Cost`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class TaskResult:
    """One task of one submission.

    ``outcome`` is ``"right"``, ``"wrong"``, ``"raised"``, ``"unwritten"``, ``"missing"`` (the
    notebook does not define the function) or ``"stopped"`` (it ran into a limit). ``reason`` says
    it in a sentence. ``case``, ``got`` and ``expected`` show the first wrong case of those the
    student's own check has; ``for_instructor`` is about a hidden one and not for the student.
    """

    task: str
    function: str
    outcome: str
    points: int
    max_points: int
    reason: str
    misunderstanding: str | None = None
    hint: str = ""
    reread: str = ""
    case: str = ""
    got: str = ""
    expected: str = ""
    for_instructor: str = ""


@dataclass(frozen=True)
class Result:
    """One submission: what happened to it, and its tasks.

    ``reason`` is empty unless the file could not be graded at all. ``events`` are what its cells
    did that they should not, ``notes`` what was odd about the file. ``key`` stands for everything
    the result depends on.
    """

    student: str
    lesson: str
    file: str
    tasks: tuple[TaskResult, ...] = ()
    reason: str = ""
    events: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    key: str = ""

    @property
    def points(self) -> int:
        """The points earned."""
        return sum(task.points for task in self.tasks)

    @property
    def max_points(self) -> int:
        """The points there are."""
        return sum(task.max_points for task in self.tasks)

    def to_json(self) -> str:
        """Return the result as JSON, the same bytes for the same result."""
        totals = {"points": self.points, "max_points": self.max_points}
        return json.dumps({**asdict(self), **totals}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Result:
        """Read what `to_json` wrote.

        Raises
        ------
        ValueError
            If it is anything else.
        """
        try:
            fields: dict[str, Any] = json.loads(text)
            fields.pop("points")
            fields.pop("max_points")
            tasks = tuple(TaskResult(**task) for task in fields.pop("tasks"))
            events, notes = tuple(fields.pop("events")), tuple(fields.pop("notes"))
            return cls(tasks=tasks, events=events, notes=notes, **fields)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"not a result: {error}") from error


@dataclass(frozen=True)
class Cost:
    """What grading a submission took. ``None`` where the backend cannot tell.

    ``peak_bytes`` is the largest resident size of a process beyond what it shared with the grader
    at its start.
    """

    wall_s: float
    cpu_s: float | None = None
    peak_bytes: int | None = None

    def to_json(self) -> str:
        """Return the cost as JSON."""
        return json.dumps(asdict(self)) + "\n"
