"""What was handed in: which files, by whom, for which lesson.

Folders come as nbgrader collects them (``submitted/STUDENT/ASSIGNMENT/NOTEBOOK.ipynb``), as a
learning platform packs them (``STUDENT_01_number_formats.ipynb``, all in one folder), or in
between. A student is the first folder below the one that was named or, without folders, the file.
Whatever lies there gets an answer, also what is no notebook.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_LESSON = re.compile(r"(?:^|[^0-9])(\d\d)[_-][a-z]")
_ASSIGNMENT = re.compile(r"[ _-]*(?<![0-9])\d\d[_-][a-z][a-z_-]*(?: *\(\d+\))?$")
#: What nbgrader and editors leave beside a notebook.
_BESIDE = ("timestamp.txt", "feedback", "__pycache__")


@dataclass(frozen=True)
class Submission:
    """A file by its student. ``lesson`` is what the name says, ``None`` if it does not.

    ``path`` lies below ``root``; it is ``None`` if there is a folder and no file in it.
    ``others`` are further notebooks in the same place, which are not graded.
    """

    student: str
    lesson: str | None
    path: Path | None
    root: Path
    others: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        """The file's name, as it is told to people."""
        return self.path.name if self.path else ""


def collect(paths: Iterable[Path]) -> list[Submission]:
    """Find the submissions in files and folders, sorted by lesson and student.

    Raises
    ------
    FileNotFoundError
        If one of the paths is not there.
    """
    found: dict[tuple[str, str], Submission] = {}
    for path in paths:
        for submission in _submissions_at(Path(path)):
            found.setdefault((submission.lesson or "", submission.student), submission)
    return [found[key] for key in sorted(found)]


def shard(submissions: Sequence[Submission], index: int, count: int) -> list[Submission]:
    """Return the share of one of ``count`` graders, 1 to ``count``: every count-th submission."""
    return list(submissions[index - 1 :: count])


def _submissions_at(path: Path) -> list[Submission]:
    if path.is_symlink() or not path.is_dir():
        if not os.path.lexists(path):
            raise FileNotFoundError(f"there is nothing at {path}")
        return [Submission(_student(path.stem), _lesson(path.name), path, path.parent)]
    submissions = []
    for entry in _entries(path):
        if entry.is_dir() and not entry.is_symlink():
            submissions += _of_student(entry, path)
        else:
            lesson = _lesson(entry.name) or _lesson(path.name)
            submissions.append(Submission(_student(entry.stem), lesson, entry, path))
    return submissions


def _of_student(folder: Path, root: Path) -> list[Submission]:
    """Return a student's submissions: one for each assignment's folder, else one for the folder."""
    inner = [e for e in _entries(folder) if e.is_dir() and _lesson(e.name)]
    if inner:
        return [_in_folder(folder.name, place, root) for place in inner]
    return [_in_folder(folder.name, folder, root)]


def _in_folder(student: str, folder: Path, root: Path) -> Submission:
    files = [entry for entry in _entries(folder) if entry.is_symlink() or not entry.is_dir()]
    notebooks = [file for file in files if file.suffix == ".ipynb"]
    named = [file for file in notebooks if file.stem == folder.name]
    choice = [*named, *notebooks, *files]
    chosen = choice[0] if choice else None
    others = tuple(file.name for file in notebooks if file != chosen)
    lesson = _lesson(folder.name) or (_lesson(chosen.name) if chosen else None)
    return Submission(student, lesson, chosen, root, others)


def _entries(folder: Path) -> list[Path]:
    names = sorted(os.listdir(folder))
    return [folder / name for name in names if name[0] not in ".~" and name not in _BESIDE]


def _lesson(name: str) -> str | None:
    match = _LESSON.search(name)
    return match[1] if match else None


def _student(stem: str) -> str:
    """Return the student in a file's name: what is left when the assignment's name is gone."""
    return _ASSIGNMENT.sub("", stem) or stem
