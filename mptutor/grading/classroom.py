"""A class, one submission after the other or several at a time.

No submission can stop another: whatever goes wrong with one is its result. Only if the sandbox
itself fails does the run end, since then nothing that follows could be trusted.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field

from mptutor.checks import lessons_with_tasks
from mptutor.grading.assignment import Assignment
from mptutor.grading.backends import open_backend
from mptutor.grading.collect import Submission, better
from mptutor.grading.examine import Start
from mptutor.grading.grade import grade, nothing_earned
from mptutor.grading.limits import Limits
from mptutor.grading.notebook import Unreadable, parse, read_file
from mptutor.grading.result import Cost, Result
from mptutor.grading.store import Store

#: What exercises import, so that not every student's process has to.
_OFTEN_IMPORTED = ("mptutor.rounding", "mptutor.census", "mptutor.scaling", "mptutor.simulate")


@dataclass(frozen=True)
class Settings:
    """How a class is graded."""

    seed: int
    backend: str = "namespaces"
    limits: Limits = field(default_factory=Limits)
    jobs: int = 1
    image: str = "mptutor-grading"
    container_options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Graded:
    """A result as it comes in; ``fresh`` unless it was there from an earlier run."""

    result: Result
    fresh: bool


def grade_class(
    submissions: Sequence[Submission],
    settings: Settings,
    store: Store,
    lesson: str | None = None,
) -> Iterator[Graded]:
    """Grade what is not graded yet, keep every result, and yield each as it comes.

    Parameters
    ----------
    submissions : sequence of Submission
        The class.
    settings : Settings
        How.
    store : Store
        Where results are kept.
    lesson : str, optional
        The lesson of all of them, whatever their names and cells say.

    Raises
    ------
    NoSandbox
        If the backend is not to be had.
    """
    by_lesson: dict[str, dict[str, Submission]] = defaultdict(dict)
    for one in submissions:
        ones = by_lesson[lesson or lesson_of(one)]
        ones[one.student] = better(ones[one.student], one) if one.student in ones else one
    for number, ones in sorted(by_lesson.items()):
        if number in lessons_with_tasks():
            yield from _grade_lesson([*ones.values()], number, settings, store)
        else:
            for one in ones.values():
                reason = "It is not to be told which exercise this is."
                yield _keep(store, Result(one.student, number, one.file, reason=reason))


def lesson_of(submission: Submission) -> str:
    """Return the lesson by the submission's name or else by its cells, or ``"unknown"``."""
    if submission.lesson or submission.path is None:
        return submission.lesson or "unknown"
    try:
        return parse(read_file(submission.path, submission.root)).lesson or "unknown"
    except Unreadable:
        return "unknown"


def _grade_lesson(
    submissions: Sequence[Submission], lesson: str, settings: Settings, store: Store
) -> Iterator[Graded]:
    assignment = Assignment.of_lesson(lesson, settings.seed)

    def open_the_backend() -> AbstractContextManager[Start]:
        return open_backend(
            settings.backend,
            settings.limits,
            preload=_OFTEN_IMPORTED,
            withheld=assignment.withheld,
            image=settings.image,
            container_options=settings.container_options,
        )

    with _on_demand(open_the_backend) as start, ThreadPoolExecutor(settings.jobs) as pool:
        futures = [
            pool.submit(_grade_one, one, assignment, start, settings, store) for one in submissions
        ]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _on_demand(open_backend: Callable[[], AbstractContextManager[Start]]) -> Iterator[Start]:
    """Open a backend when the first process is started: if all is graded, that is never."""
    with ExitStack() as stack:
        lock = threading.Lock()
        opened: list[Start] = []

        def start():
            with lock:
                if not opened:
                    opened.append(stack.enter_context(open_backend()))
            return opened[0]()

        yield start


def _grade_one(
    one: Submission, assignment: Assignment, start: Start, settings: Settings, store: Store
) -> Graded:
    key, notes = "", _notes(one)
    try:
        if one.path is None:
            raise Unreadable("There is no file in the folder.")
        data = read_file(one.path, one.root)
        key = assignment.key(one.file, data, f"{settings.limits} {settings.backend}")
        if known := store.get(assignment.lesson, one.student, key):
            return Graded(known, fresh=False)
        notebook = parse(data)
    except Unreadable as why:
        tasks = nothing_earned(assignment, str(why))
        lost = Result(one.student, assignment.lesson, one.file, tasks, str(why), (), notes, key)
        return _keep(store, lost)
    tasks, events, record = grade(notebook, assignment, start, settings.limits)
    notes = (*notebook.notes, *notes)
    result = Result(one.student, assignment.lesson, one.file, tasks, "", events, notes, key)
    return _keep(store, result, Cost(record.wall_s, record.cpu_s, record.peak_bytes))


def _notes(one: Submission) -> tuple[str, ...]:
    return (f"not graded: {', '.join(one.others)}"[:200],) if one.others else ()


def _keep(store: Store, result: Result, cost: Cost | None = None) -> Graded:
    store.put(result, cost or Cost(0.0))
    return Graded(result, fresh=True)
