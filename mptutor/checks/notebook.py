"""The check cell of an exercise: probe and judge in one process, for the learner's benefit.

>>> check("01.1", decode_fp16)                                                # doctest: +SKIP
01.1 decode_fp16: right, in all 40 cases.

A wrong answer raises, so that a notebook run from top to bottom shows it and a test of the
solutions can fail. What the learner sees is no traceback but a few plain lines: the input, what
came out, what was expected, and what it seems to show.
"""

from __future__ import annotations

from typing import Any

from mptutor.checks import find_task
from mptutor.checks.judge import Verdict, judge
from mptutor.checks.probes import try_out

LEARNERS_SEED = 0


class CheckFailed(AssertionError):
    """The check of a task did not pass. Shows itself in a notebook without a traceback."""

    def __init__(self, verdict: Verdict, function: str) -> None:
        self.verdict = verdict
        super().__init__("\n".join(explain(verdict, function)))

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def check(task_id: str, written: Any) -> None:
    """Try ``written`` on the cases of a task and say whether it is right.

    Parameters
    ----------
    task_id : str
        Such as ``"01.1"``.
    written : callable or class
        What the learner wrote.

    Raises
    ------
    NotImplementedError
        If there is nothing there yet.
    CheckFailed
        If it is wrong, with the first wrong case and the misunderstanding it shows.
    ValueError
        If there is no such task.
    """
    task = find_task(task_id)
    cases = task.cases(LEARNERS_SEED)
    answers = [try_out(task.probe, written, case.inputs) for case in cases]
    verdict = judge(task, cases, answers)
    if verdict.outcome == "unwritten":
        raise NotImplementedError(f"exercise {task_id}: {task.function} is not written yet")
    if not verdict.right:
        raise CheckFailed(verdict, task.function)
    print(f"{task_id} {task.function}: right, in all {verdict.cases_total} cases.")


def explain(verdict: Verdict, function: str) -> list[str]:
    """Return the lines that tell a learner about a verdict that is not right."""
    score = f"{verdict.cases_right} of {verdict.cases_total} cases right"
    lines = [f"{verdict.task} {function}: not yet, {score}. One that is not:", ""]
    lines += [
        f"  input     {verdict.case}",
        f"  yours     {verdict.got}",
        f"  expected  {verdict.expected}",
    ]
    if verdict.hint:
        lines += ["", verdict.hint]
    if verdict.reread:
        lines += [f"Reread: lesson {verdict.task[:2]}, “{verdict.reread}”."]
    return lines
