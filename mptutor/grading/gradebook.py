"""Results into nbgrader's gradebook, for a course whose marks live there.

The exercises are nbgrader assignments, so nbgrader can release, collect and show them, and its
gradebook has a column for each check cell. Entering a result fills those columns as nbgrader's own
autograder would, with a comment on what was misunderstood. Manual scores and comments of an
instructor stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mptutor.grading.result import Result, TaskResult

if TYPE_CHECKING:
    from nbgrader.api import Gradebook, SubmittedNotebook


def enter(results: Sequence[Result], gradebook: str) -> int:
    """Enter results into nbgrader's gradebook.

    Parameters
    ----------
    results : sequence of Result
        The results. Those of no known lesson are left out.
    gradebook : str
        The database, as a file or as a URL. The assignments must be in it; ``nbgrader
        generate_assignment`` puts them there.

    Returns
    -------
    int
        How many submissions were entered.

    Raises
    ------
    ValueError
        If nbgrader is not installed, or the gradebook is not there, or lacks an assignment.
    """
    try:
        from nbgrader.api import Gradebook
    except ImportError:
        raise ValueError(
            "this needs nbgrader: install the instructor extra, pip install -e '.[instructor]'"
        ) from None
    if "://" not in gradebook:
        if not Path(gradebook).is_file():
            raise ValueError(f"there is no gradebook at {gradebook}")
        gradebook = f"sqlite:///{Path(gradebook).resolve()}"
    entered = [result for result in results if result.tasks]
    with Gradebook(gradebook) as book:
        for result in entered:
            _enter_one(book, result, _assignment_name(book, result.lesson))
    return len(entered)


def _assignment_name(book: Gradebook, lesson: str) -> str:
    """Return what the gradebook calls the assignment of a lesson: ``01_number_formats``."""
    names = [assignment.name for assignment in book.assignments]
    for name in names:
        if name.startswith((f"{lesson}_", f"{lesson}-")) or name == lesson:
            return name
    raise ValueError(
        f"the gradebook has no assignment for lesson {lesson}, only {', '.join(names) or 'none'}; "
        "run `nbgrader generate_assignment` first"
    )


def _enter_one(book: Gradebook, result: Result, assignment: str) -> None:
    book.update_or_create_student(result.student)
    submission = book.update_or_create_submission(assignment, result.student)
    by_id = {task.task: task for task in result.tasks}
    for notebook in submission.notebooks:
        _enter_scores(notebook, by_id)
        _enter_comments(notebook, by_id)
        notebook.flagged = bool(result.reason)
    book.db.commit()


def _enter_scores(notebook: SubmittedNotebook, by_id: dict[str, TaskResult]) -> None:
    for grade in notebook.grades:
        task = _task_of(grade.name, "check-", by_id)
        if task:
            grade.auto_score = grade.max_score * task.points / task.max_points
            grade.needs_manual_grade = False


def _enter_comments(notebook: SubmittedNotebook, by_id: dict[str, TaskResult]) -> None:
    for comment in notebook.comments:
        task = _task_of(comment.name, "solution-", by_id)
        if task:
            reread = f"Reread “{task.reread}”." if task.reread else ""
            comment.auto_comment = " ".join(filter(None, [task.reason, task.hint, reread]))


def _task_of(cell: str, prefix: str, by_id: dict[str, TaskResult]) -> TaskResult | None:
    """Return the task that a cell named ``check-01-1`` or ``solution-01-1`` belongs to."""
    return by_id.get(cell.removeprefix(prefix).replace("-", "."))
