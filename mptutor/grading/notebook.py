"""Any file as a notebook, or a sentence that says why not.

A class hands in everything: half a download, a PDF renamed, a notebook of another year, one that
was run through three editors. What can be graded is graded, what cannot is answered. The file is
read by hand and not with nbformat, since what matters here is not whether it conforms but whether
the cells can be found.

A file is also the first thing a student controls. So a link is not followed (it could lead to the
solution), a pipe is not waited for, and size and number of parts are looked at before anything is
parsed.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mptutor.grading.examine import Cell

MAX_FILE_BYTES = 32 << 20
MAX_PARTS = 500_000

_CHECK_CALL = re.compile(r"""\bcheck\(\s*["'](\d\d)\.\d+["']""")


class Unreadable(Exception):
    """The file is no notebook that can be graded; the text is a sentence for whoever sent it."""


@dataclass(frozen=True)
class Notebook:
    """What is graded of a notebook.

    ``cells`` are the code cells to run, ``grade_ids`` all of nbgrader's cell names in order,
    ``lesson`` the number of the lesson that the notebook says it belongs to, if any, and ``notes``
    whatever was odd about it.
    """

    cells: tuple[Cell, ...]
    grade_ids: tuple[str, ...] = ()
    lesson: str | None = None
    notes: tuple[str, ...] = ()


def read_file(path: Path, within: Path) -> bytes:
    """Read a file that was handed in.

    Parameters
    ----------
    path : Path
        The file.
    within : Path
        The folder that was handed in. No link below it is followed.

    Raises
    ------
    Unreadable
        If it is no ordinary file, too large, or not where it claims to be.
    """
    if path.parent.resolve() != within.resolve() / path.parent.relative_to(within):
        raise Unreadable("The folder is a link to another place, which is not followed.")
    try:
        # Without O_NONBLOCK, opening a pipe would wait for somebody to write to it.
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        descriptor = os.open(path, flags)
    except OSError as error:
        if path.is_symlink():
            raise Unreadable("The file is a link to another one, which is not followed.") from None
        raise Unreadable(f"The file cannot be opened: {error.strerror}.") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable("This is no ordinary file.")
        if status.st_size > MAX_FILE_BYTES:
            raise Unreadable(
                f"The file has {status.st_size >> 20} MiB; at most {MAX_FILE_BYTES >> 20} MiB are "
                "read. Clear the outputs and save it again."
            )
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_FILE_BYTES)
    finally:
        os.close(descriptor)


def parse(data: bytes) -> Notebook:
    """Find the cells in the bytes of a file.

    Raises
    ------
    Unreadable
        If there are none to be found.
    """
    content = _load(data)
    if type(content) is not dict:
        raise Unreadable("The file is JSON, but no notebook.")
    raw_cells = _raw_cells(content)
    if raw_cells is None:
        raise Unreadable("The file is JSON, but no notebook: it has no cells.")
    cells, grade_ids, notes = [], [], _notes_on(content)
    for number, raw in enumerate(raw_cells, start=1):
        if type(raw) is not dict:
            notes.append(f"cell {number} is broken and was left out")
            continue
        marks = _nbgrader_marks(raw)
        if type(marks.get("grade_id")) is str:
            grade_ids.append(marks["grade_id"])
        if raw.get("cell_type") == "code" and marks.get("grade") is not True:
            cells.append(Cell(number, _source(raw)))
    notes += _notes_on_ids(grade_ids)
    if not raw_cells:
        notes.append("the notebook is empty")
    return Notebook(tuple(cells), tuple(grade_ids), _lesson(raw_cells, grade_ids), tuple(notes))


def _load(data: bytes) -> Any:
    if not data.strip():
        raise Unreadable("The file is empty.")
    if data.count(b"[") + data.count(b"{") > MAX_PARTS:
        raise Unreadable("The file has far more parts than a notebook. Clear the outputs.")
    try:
        return json.loads(data)
    except RecursionError:
        raise Unreadable("The file is nested deeper than any notebook.") from None
    except UnicodeDecodeError:
        raise Unreadable("The file is not text, so it is no notebook.") from None
    except ValueError as error:
        if data.lstrip()[:1] == b"{":
            raise Unreadable(f"The file breaks off or is damaged ({error}).") from None
        raise Unreadable("The file is no notebook: it is not JSON.") from None


def _raw_cells(content: dict[str, Any]) -> list[Any] | None:
    """Return the cells, of the current format or of the one before 2015 with its worksheets."""
    if type(content.get("cells")) is list:
        return content["cells"]
    sheets = content.get("worksheets")
    if type(sheets) is not list:
        return None
    of_sheets = [sheet.get("cells") for sheet in sheets if type(sheet) is dict]
    return [cell for cells in of_sheets if type(cells) is list for cell in cells]


def _source(raw: dict[str, Any]) -> str:
    source = raw.get("source", raw.get("input", ""))
    if type(source) is list:
        source = "".join(line for line in source if type(line) is str)
    return source if type(source) is str else ""


def _nbgrader_marks(raw: dict[str, Any]) -> dict[str, Any]:
    metadata = raw.get("metadata")
    marks = metadata.get("nbgrader") if type(metadata) is dict else None
    return marks if type(marks) is dict else {}


def _notes_on(content: dict[str, Any]) -> list[str]:
    notes = []
    if "worksheets" in content:
        notes.append("the notebook has the format of before 2015")
    metadata = content.get("metadata")
    kernel = metadata.get("kernelspec") if type(metadata) is dict else None
    if type(kernel) is dict:
        language = kernel.get("language", kernel.get("name", "python"))
        if type(language) is str and "python" not in language.lower():
            notes.append(f"the notebook was made for another kernel, {language[:40]!r}")
    return notes


def _notes_on_ids(grade_ids: list[str]) -> list[str]:
    twice = [name for name, count in Counter(grade_ids).items() if count > 1]
    return [f"cell {name[:60]!r} is there more than once; the last one counts" for name in twice]


def _lesson(raw_cells: list[Any], grade_ids: list[str]) -> str | None:
    """Return the lesson by its marked cells or, where an editor dropped the marks, its checks."""
    named = [m[1] for name in grade_ids if (m := re.match(r"(?:solution|check)-(\d\d)\b", name))]
    if not named:
        sources = (_source(raw) for raw in raw_cells if type(raw) is dict)
        named = [number for source in sources for number in _CHECK_CALL.findall(source)]
    return Counter(named).most_common(1)[0][0] if named else None
