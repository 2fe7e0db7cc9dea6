"""Where the course is: the folder with ``lessons/``, found from wherever a command is typed."""

from __future__ import annotations

from pathlib import Path

#: The lesson that everything opens with, relative to the course's folder.
FIRST_LESSON = Path("lessons") / "00_start_here.ipynb"


class CourseNotFoundError(RuntimeError):
    """No folder with the lessons was found; the text says where and what to do."""

    remedy = "change into the folder you cloned the course to, and try again."

    def __init__(self, start: Path) -> None:
        super().__init__(f"no {FIRST_LESSON.as_posix()} in {start} or any folder above it")


def find_course(start: Path | None = None) -> Path:
    """Return the course's folder.

    It is the first of `start` (by default the current folder) and its parents that holds the first
    lesson; failing that, the folder that `mptutor` itself is imported from, which is the course's
    when it was installed with ``pip install -e``.

    Raises
    ------
    CourseNotFoundError
        If none of them holds the first lesson.
    """
    start = (start or Path.cwd()).resolve()
    beside_package = Path(__file__).resolve().parent.parent
    for folder in (start, *start.parents, beside_package):
        if (folder / FIRST_LESSON).is_file():
            return folder
    raise CourseNotFoundError(start)
