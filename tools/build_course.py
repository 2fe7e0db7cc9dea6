"""Build the course: ``source/`` -> ``lessons/``, ``exercises/``, ``solutions/``.

Lessons and exercises are written as Python files in jupytext's percent format, which people can
read, compare and lint. Notebooks are derived from them and never edited by hand:

    source/lessons/NN_name.py    ->  lessons/NN_name.ipynb
    source/exercises/NN_name.py  ->  solutions/NN_name/NN_name.ipynb    solved
                                 ->  exercises/NN_name/NN_name.ipynb    the student's

The last two are nbgrader's "source" and "release" layouts, one folder an assignment. In an exercise
the tag ``solution-01-1`` marks the cell in which task 01.1 is solved and ``check-01-1`` the cell
that checks it; here they become nbgrader's cell metadata, and nbgrader's own preprocessors make the
student's version. The code between ``### BEGIN SOLUTION`` and ``### END SOLUTION`` is what it
removes.

The same source gives the same bytes, always: cell ids are numbered and nothing else is random. A
test builds the course into an empty folder and compares.

    python tools/build_course.py [--out FOLDER]
"""

from __future__ import annotations

import argparse
import copy
import re
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode
from nbgrader.preprocessors import CheckCellMetadata, ClearOutput, ClearSolutions, LockCells

from mptutor.checks import find_task

ROOT = Path(__file__).resolve().parent.parent

_TASK_TAG = re.compile(r"(solution|check)-(\d\d)-(\d)")

_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def build(out: Path) -> list[Path]:
    """Build every notebook of the course below ``out`` and return their paths."""
    written = []
    for source in sorted((ROOT / "source/lessons").glob("*.py")):
        written.append(write(read(source), out / "lessons" / f"{source.stem}.ipynb"))
    for source in sorted((ROOT / "source/exercises").glob("*.py")):
        solved = with_nbgrader_metadata(read(source))
        place = Path(source.stem, f"{source.stem}.ipynb")
        written.append(write(solved, out / "solutions" / place))
        written.append(write(for_students(solved), out / "exercises" / place))
    return written


def read(source: Path) -> NotebookNode:
    """Read an authored file as a notebook with numbered cell ids and no outputs."""
    notebook = jupytext.read(source, fmt="py:percent")
    notebook.metadata = NotebookNode(copy.deepcopy(_METADATA))
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02d}"
    return notebook


def write(notebook: NotebookNode, target: Path) -> Path:
    """Validate a notebook and write it."""
    nbformat.validate(notebook)
    target.parent.mkdir(parents=True, exist_ok=True)
    text = nbformat.writes(notebook) + "\n"
    target.write_text(text, encoding="utf-8", newline="\n")
    return target


def with_nbgrader_metadata(notebook: NotebookNode) -> NotebookNode:
    """Expand the tags of solution and check cells to nbgrader's metadata."""
    notebook = copy.deepcopy(notebook)
    for cell in notebook.cells:
        match = _task_tag(cell)
        if match is None:
            continue
        is_check = match[1] == "check"
        cell.metadata["nbgrader"] = NotebookNode(
            schema_version=3,
            grade_id=match[0],
            grade=is_check,
            solution=not is_check,
            locked=is_check,
            task=False,
        )
        if is_check:
            cell.metadata["nbgrader"]["points"] = find_task(_task_id(match)).points
    return notebook


def for_students(solved: NotebookNode) -> NotebookNode:
    """Take the solutions out with nbgrader's own preprocessors.

    Each stub says which task it stands for, so it is set cell by cell.
    """
    notebook = copy.deepcopy(solved)
    for step in (LockCells(), ClearOutput(), CheckCellMetadata()):
        notebook, _ = step.preprocess(notebook, {})
    clear = ClearSolutions()
    for number, cell in enumerate(notebook.cells):
        match = _task_tag(cell)
        if match is not None and match[1] == "solution":
            stub = f'raise NotImplementedError("exercise {_task_id(match)}: not written yet")'
            clear.code_stub = {"python": stub}
        clear.preprocess_cell(cell, {"language": "python"}, number)
    return notebook


def _task_tag(cell: NotebookNode) -> re.Match[str] | None:
    matches = (_TASK_TAG.fullmatch(tag) for tag in cell.metadata.get("tags", []))
    return next(filter(None, matches), None)


def _task_id(match: re.Match[str]) -> str:
    return f"{match[2]}.{match[3]}"


def main() -> None:
    """Build into the repository, or into the folder given."""
    parser = argparse.ArgumentParser(description="Build the course's notebooks from source/.")
    parser.add_argument("--out", type=Path, default=ROOT, help="build below this folder")
    for path in build(parser.parse_args().out):
        print(path)


if __name__ == "__main__":
    main()
