"""Check a saved notebook without opening it: ``mptutor check NOTEBOOK``.

The notebook's code cells run in order, as far as they can, and then every task in it is checked. A
cell that fails costs what it defines and nothing more. The code runs with the rights of whoever
calls this, so it is for one's own notebooks; to grade somebody else's there is ``mptutor grade``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

from mptutor.checks import find_task
from mptutor.checks.judge import Verdict, judge
from mptutor.checks.notebook import LEARNERS_SEED, explain
from mptutor.checks.probes import try_out
from mptutor.checks.task import Task

#: How the line begins that the build puts in a solution's place.
_STUB = 'raise NotImplementedError("exercise'


class NotebookError(ValueError):
    """The file is no notebook of this course. The message says why."""


def check_notebook(path: Path) -> list[Verdict]:
    """Run a notebook and check every task in it.

    Raises
    ------
    NotebookError
        If the file cannot be read as a notebook, or holds no check cell.
    """
    cells = _read_cells(path)
    tasks = [find_task(task_id) for task_id in _task_ids(cells)]
    if not tasks:
        raise NotebookError(f"{path} holds no check cells: it is no exercise of this course")
    namespace = _run([cell for cell in cells if not _is_check(cell)])
    return [_verdict(task, namespace) for task in tasks]


def is_untouched(path: Path) -> bool:
    """Tell whether every solution cell of a notebook still holds its stub.

    Raises
    ------
    NotebookError
        If the file cannot be read as a notebook.
    """
    cells = [c for c in _read_cells(path) if _grade_id(c).startswith("solution-")]
    return bool(cells) and all(_STUB in cell["source"] for cell in cells)


def _read_cells(path: Path) -> list[dict[str, Any]]:
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        return [{**cell, "source": "".join(cell["source"])} for cell in code]
    except FileNotFoundError:
        raise NotebookError(f"there is no file {path}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise NotebookError(f"{path} is no notebook: {error}") from None


def _grade_id(cell: dict[str, Any]) -> str:
    return str(cell.get("metadata", {}).get("nbgrader", {}).get("grade_id", ""))


def _is_check(cell: dict[str, Any]) -> bool:
    return _grade_id(cell).startswith("check-")


def _task_ids(cells: list[dict[str, Any]]) -> list[str]:
    ids = [_grade_id(cell).removeprefix("check-") for cell in cells if _is_check(cell)]
    return [task_id.replace("-", ".") for task_id in dict.fromkeys(ids)]


def _run(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Run cells one after another in one namespace and return it, without their output."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception, SystemExit):
            exec(_as_python(cell["source"]), namespace)
    return namespace


def _as_python(source: str) -> str:
    """Turn IPython's magics into plain Python, where IPython is installed."""
    try:
        from IPython.core.inputtransformer2 import TransformerManager
    except ImportError:
        return source
    return TransformerManager().transform_cell(source)


def _verdict(task: Task, namespace: dict[str, Any]) -> Verdict:
    cases = task.cases(LEARNERS_SEED)
    written = namespace.get(task.function)
    if written is None:
        return Verdict(task.id, "unwritten", 0, len(cases))
    return judge(task, cases, [try_out(task.probe, written, case.inputs) for case in cases])


def main(argv: list[str]) -> int:
    """Run ``mptutor check``: 0 if all is right, 1 if not, 2 if there is nothing to check."""
    parser = argparse.ArgumentParser(prog="mptutor check", description="Check your own notebook.")
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    arguments = parser.parse_args(argv)
    try:
        verdicts = check_notebook(arguments.notebook)
    except NotebookError as error:
        print(f"mptutor check: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps([verdict.to_dict() for verdict in verdicts], indent=1))
    else:
        print("\n\n".join(_report(verdict) for verdict in verdicts))
    return 0 if all(verdict.right for verdict in verdicts) else 1


def _report(verdict: Verdict) -> str:
    function = find_task(verdict.task).function
    if verdict.right:
        return f"{verdict.task} {function}: right, in all {verdict.cases_total} cases."
    if verdict.outcome == "unwritten":
        return f"{verdict.task} {function}: not written yet."
    return "\n".join(explain(verdict, function))
