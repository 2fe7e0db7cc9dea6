"""The grade of one submission: a pure function of the notebook, the assignment and the seed.

The student's process answers, the judge decides (`mptutor.checks.judge`), and this module says it
in words that a student may read. Nothing that a student's code wrote while it knew the hidden
questions gets into those words: of a hidden question they name the misunderstanding and no more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mptutor.checks.judge import Verdict, judge
from mptutor.checks.task import Case, Task
from mptutor.grading.assignment import Assignment
from mptutor.grading.examine import Answer, Record, Start, examine
from mptutor.grading.limits import Limits
from mptutor.grading.notebook import Notebook
from mptutor.grading.result import TaskResult

_MAX_EVENTS = 20


def grade(
    notebook: Notebook, assignment: Assignment, start: Start, limits: Limits
) -> tuple[tuple[TaskResult, ...], tuple[str, ...], Record]:
    """Grade a notebook.

    Returns
    -------
    tasks : tuple of TaskResult
        One a task of the assignment.
    events : tuple of str
        What the notebook's cells did that they should not have, a sentence each.
    record : Record
        What it cost, among other things.
    """
    record = examine(notebook.cells, assignment.questions, start, limits)
    answers = {(q.task, q.hidden): answer for q, answer in record.answers.items()}
    tasks = tuple(
        _grade_task(task, assignment, answers, notebook, record, limits)
        for task in assignment.tasks
    )
    return tasks, _events(record, limits), record


def nothing_earned(assignment: Assignment, reason: str) -> tuple[TaskResult, ...]:
    """Return the tasks of a submission that could not be graded."""
    return tuple(
        TaskResult(task.id, task.function, "missing", 0, task.points, reason)
        for task in assignment.tasks
    )


def _grade_task(
    task: Task,
    assignment: Assignment,
    answers: dict[tuple[str, bool], Answer],
    notebook: Notebook,
    record: Record,
    limits: Limits,
) -> TaskResult:
    def result(outcome: str, reason: str, points: int = 0, **more: str | None) -> TaskResult:
        return TaskResult(task.id, task.function, outcome, points, task.points, reason, **more)

    visible, hidden = answers[task.id, False], answers[task.id, True]
    if visible.trouble == "missing":
        return result("missing", _why_missing(task.function, notebook, record))
    if visible.trouble:
        return result("stopped", _what_happened(task.function, visible.trouble, limits))
    verdict = _judge(task, assignment.visible[task.id], visible)
    if isinstance(verdict, str):
        return result("wrong", verdict)
    if not verdict.right:
        return result(
            verdict.outcome,
            _score(verdict),
            misunderstanding=verdict.misunderstanding,
            hint=verdict.hint,
            reread=verdict.reread,
            case=verdict.case,
            got=verdict.got,
            expected=verdict.expected,
        )
    if hidden.trouble:
        happened = _what_happened(task.function, hidden.trouble, limits)
        return result("stopped", f"Right on the cases of the notebook, but on others {happened}")
    beyond = _judge(task, assignment.hidden[task.id], hidden)
    if isinstance(beyond, str):
        return result("wrong", f"Right on the cases of the notebook. On others: {beyond}")
    if not beyond.right:
        return result(
            "wrong",
            f"Right on the cases of the notebook, wrong on "
            f"{beyond.cases_total - beyond.cases_right} of {beyond.cases_total} others.",
            misunderstanding=beyond.misunderstanding,
            hint=beyond.hint if beyond.misunderstanding else "",
            reread=beyond.reread,
            for_instructor=f"{beyond.case}: {beyond.got} where {beyond.expected} is right",
        )
    total = verdict.cases_total + beyond.cases_total
    return result("right", f"Right in all {total} cases.", task.points)


def _judge(task: Task, cases: Sequence[Case], answer: Answer) -> Verdict | str:
    """Have the answers judged; return a sentence instead if they are nothing to be judged.

    They come from a student's process and need not be what a probe writes. Whatever goes wrong
    with them, it is the answer that is wrong.
    """
    try:
        return judge(task, cases, answer.answers)
    except Exception as error:
        return f"The answers are nothing that can be compared ({type(error).__name__})."


def _score(verdict: Verdict) -> str:
    if verdict.outcome == "unwritten":
        return "Not written yet."
    return f"Right in {verdict.cases_right} of {verdict.cases_total} cases."


def _why_missing(function: str, notebook: Notebook, record: Record) -> str:
    defines = re.compile(rf"^\s*(?:async\s+)?(?:def|class)\s+{re.escape(function)}\b", re.M)
    for cell in notebook.cells:
        error = record.cell_errors.get(cell.number)
        if error and defines.search(cell.source):
            return f"Cell {cell.number}, which should define `{function}`, raised {error['type']}."
        if cell.number in record.cell_troubles and defines.search(cell.source):
            return f"Cell {cell.number}, which should define `{function}`, did not come to an end."
    return f"No cell defines `{function}`."


def _what_happened(subject: str, trouble: str, limits: Limits) -> str:
    did = {
        "time": f"was stopped after {limits.cell_s:g} s",
        "ended": "ended the whole process",
        "memory": f"used more than {limits.memory_bytes >> 20} MiB of memory",
        "output": f"answered with more than {limits.reply_bytes >> 20} MiB",
        "garbled": "gave answers that cannot be read",
        "missing": "was gone",
    }[trouble]
    return f"`{subject}` {did}."


def _events(record: Record, limits: Limits) -> tuple[str, ...]:
    events = {}
    for number, error in record.cell_errors.items():
        at = f", at `{error['line']}`" if error["line"] else ""
        message = f": {error['message']}" if error["message"] else ""
        events[number] = f"Cell {number} raised {error['type']}{message}{at}"[:300]
    for number, trouble in record.cell_troubles.items():
        events[number] = _what_happened(f"cell {number}", trouble, limits).replace("`", "")
    told = [events[number][:1].upper() + events[number][1:] for number in sorted(events)]
    if len(told) > _MAX_EVENTS:
        told = [*told[:_MAX_EVENTS], f"And {len(told) - _MAX_EVENTS} more cells like these."]
    return tuple(told)
