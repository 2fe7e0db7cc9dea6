"""Where results lie, so that a run may be interrupted at any moment.

::

    OUT/run.json                        the seed of the hidden questions
    OUT/results/LESSON/STUDENT.json     a result
    OUT/costs/LESSON/STUDENT.json       what it took
    OUT/feedback/LESSON/STUDENT.html    for the student
    OUT/grades.csv  OUT/summary.html    for the instructor

A file appears whole or not at all, by renaming. A result carries the key of all it depends on, so
a run that finds it there already need not grade again, and one that finds another key will.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from pathlib import Path
from urllib.parse import quote

from mptutor.grading.result import Cost, Result


def write_whole(path: Path, text: str) -> None:
    """Write a file so that no reader, and no power cut, ever finds half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        # A student's text may hold characters that are none, half of a surrogate pair say.
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


class Store:
    """The results of one run in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def seed(self, wanted: int | None) -> int:
        """Return the seed of this run: the wanted one, else that of last time, else a new one.

        It is kept, so that a run that goes on after an interruption asks the same questions.
        """
        path = self.folder / "run.json"
        if wanted is None and path.exists():
            return int(json.loads(path.read_text())["seed"])
        seed = secrets.randbits(32) + 1 if wanted is None else wanted
        write_whole(path, json.dumps({"seed": seed}) + "\n")
        return seed

    def path(self, kind: str, lesson: str, student: str, suffix: str) -> Path:
        """Return where a file about a submission lies."""
        return self.folder / kind / file_name(lesson) / (file_name(student) + suffix)

    def put(self, result: Result, cost: Cost) -> None:
        """Keep a result."""
        where = result.lesson, result.student
        write_whole(self.path("costs", *where, ".json"), cost.to_json())
        write_whole(self.path("results", *where, ".json"), result.to_json())

    def get(self, lesson: str, student: str, key: str) -> Result | None:
        """Return the result with this key, if it is there."""
        try:
            result = Result.from_json(self.path("results", lesson, student, ".json").read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return result if result.key == key else None

    def all(self) -> list[Result]:
        """Return all results, by lesson and student."""
        paths = sorted(self.folder.glob("results/*/*.json"))
        return [Result.from_json(path.read_bytes()) for path in paths]


def file_name(name: str) -> str:
    """Return a name as a file name that can lead nowhere else."""
    safe = quote(os.fsencode(name), safe=" @+=,")
    return safe.replace(".", "%2E", 1) if safe.startswith(".") else safe or "%"
