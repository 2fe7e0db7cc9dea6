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
from dataclasses import dataclass, replace
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
            key = (submission.lesson or "", submission.student)
            found[key] = better(found[key], submission) if key in found else submission
    return [found[key] for key in sorted(found)]


def better(one: Submission, other: Submission) -> Submission:
    """Return which of two for the same exercise is graded, with a note of the other.

    A notebook comes before another file, one that is named after the exercise before others.
    """

    def rank(submission: Submission) -> tuple[bool, bool]:
        return submission.file.endswith(".ipynb"), submission.lesson is not None

    if rank(other) > rank(one):
        one, other = other, one
    return replace(one, others=(*one.others, other.file, *other.others))


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
    """Return a student's submissions, one for each lesson that a folder or file is named after."""
    entries = _entries(folder)
    folders = [e for e in entries if e.is_dir() and not e.is_symlink() and _lesson(e.name)]
    found = [_choose(folder.name, place.name, _files(place), root) for place in folders]
    loose = _files(folder)
    if found or any(file.suffix == ".ipynb" for file in loose):
        loose = [file for file in loose if file.suffix == ".ipynb"]
    lessons = sorted({_lesson(file.name) or "" for file in loose})
    for lesson in lessons:
        files = [file for file in loose if (_lesson(file.name) or "") == lesson]
        found.append(_choose(folder.name, folder.name, files, root))
    return found or [_choose(folder.name, folder.name, [], root)]


def _choose(student: str, place: str, files: list[Path], root: Path) -> Submission:
    """Return what is graded of the files in one place: the notebook of its name, any, any file."""
    notebooks = [file for file in files if file.suffix == ".ipynb"]
    named = [file for file in notebooks if file.stem == place]
    chosen = next(iter([*named, *notebooks, *files]), None)
    others = tuple(file.name for file in notebooks if file != chosen)
    lesson = _lesson(place) or (_lesson(chosen.name) if chosen else None)
    return Submission(student, lesson, chosen, root, others)


def _files(folder: Path) -> list[Path]:
    return [entry for entry in _entries(folder) if entry.is_symlink() or not entry.is_dir()]


def _entries(folder: Path) -> list[Path]:
    names = sorted(os.listdir(folder))
    return [folder / name for name in names if name[0] not in ".~" and name not in _BESIDE]


def _lesson(name: str) -> str | None:
    match = _LESSON.search(name)
    return match[1] if match else None


def _student(stem: str) -> str:
    """Return the student in a file's name: what is left when the assignment's name is gone."""
    return _ASSIGNMENT.sub("", stem) or stem
