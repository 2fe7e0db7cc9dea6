"""Grade the same class with nbgrader and with mptutor, submission by submission in turns.

Forty students answer exercise 01 with answers out of the misconception bank, right and wrong. Each
grader is one process that stays up for the whole class, so neither pays its start again: nbgrader
its imports, mptutor its warm parent. Both are held to one core. Needs the instructor extra.

    python benchmarks/grading.py [--submissions N] [--json FILE]
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import interleave, medians, report
from tests.grading.bank import answers_of, as_cell

ROOT = Path(__file__).resolve().parents[1]
NAME = "01_number_formats"
MEMORY_ROUNDS = 3


def main() -> int:
    if "--worker" in sys.argv:
        at = sys.argv.index("--worker")
        return {"nbgrader": serve_nbgrader, "mptutor": serve_mptutor}[sys.argv[at + 1]](
            Path(sys.argv[at + 2])
        )
    count = 40
    if "--submissions" in sys.argv:
        count = int(sys.argv[sys.argv.index("--submissions") + 1])
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder), count)
    return 0


def compare(course: Path, count: int) -> None:
    students = make_course(course, count + 1 + MEMORY_ROUNDS)  # the first is for warming up
    graders = {name: Grader(name, course) for name in ("nbgrader", "mptutor")}
    turns = {name: iter(students) for name in graders}
    seconds = interleave(
        {name: lambda name=name: graders[name].grade(next(turns[name])) for name in graders},
        rounds=count,
        clock=time.perf_counter,
    )
    for name, grader in graders.items():
        grader.watch_memory(turns[name])
    median_s = medians(seconds)
    same = graders["nbgrader"].scores == graders["mptutor"].scores
    rows = [
        {
            "grader": name,
            "submissions": len(seconds[name]),
            "median_s": median_s[name],
            "fastest_s": min(seconds[name]),
            "slowest_s": max(seconds[name]),
            "mean_cpu_s": (grader.cpu_s[count] - grader.cpu_s[0]) / count,
            "peak_mib": grader.peak_bytes / 2**20,
            "times as fast": median_s["nbgrader"] / median_s[name],
            "same verdicts": same,
        }
        for name, grader in graders.items()
    ]
    for grader in graders.values():
        grader.close()
    report("grading: seconds a submission", rows)


class Grader:
    """A grader in a process of its own, asked for one student at a time."""

    def __init__(self, name: str, course: Path) -> None:
        command = [sys.executable, __file__, "--worker", name, str(course)]
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self._process = subprocess.Popen(
            command,
            env={**os.environ, "PATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.scores: dict[str, dict[str, float]] = {}
        self.cpu_s: list[float] = []  # all up to then, after each submission
        self.peak_bytes = 0

    def grade(self, student: str) -> None:
        """Have a student's submission graded, and keep the scores."""
        self._process.stdin.write(student + "\n")
        self._process.stdin.flush()
        self.scores[student] = json.loads(self._process.stdout.readline())
        self.cpu_s.append(sum(map(processor_s, family(self._process.pid))))

    def close(self) -> None:
        """Let the process end."""
        self._process.stdin.close()
        self._process.wait()

    def watch_memory(self, students: Iterator[str]) -> None:
        """Grade some more with an eye on the memory, which holds up whoever is looked at."""
        work = threading.Thread(target=lambda: [self.grade(student) for student in students])
        work.start()
        while work.is_alive():
            held = sum(proportional_bytes(pid) for pid in family(self._process.pid))
            self.peak_bytes = max(self.peak_bytes, held)
            time.sleep(0.02)


def family(pid: int) -> Iterator[int]:
    """Yield a process and all that descend from it."""
    yield pid
    try:
        lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return
    for child in " ".join(lists).split():
        yield from family(int(child))


def processor_s(pid: int) -> float:
    """Return the processor time of a process and of those it has waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def proportional_bytes(pid: int) -> int:
    """Return the memory of a process, what it shares with others counted in part."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def make_course(course: Path, count: int) -> list[str]:
    """Release the exercise with nbgrader and hand in answers; return the students' names."""
    source = course / "source" / NAME
    source.mkdir(parents=True)
    shutil.copy(ROOT / "solutions" / NAME / f"{NAME}.ipynb", source)
    nbgrader_api(course).generate_assignment(NAME)
    released = json.loads((course / "release" / NAME / f"{NAME}.ipynb").read_text())
    bank = {task: [*map(as_cell, answers)] for task, answers in answers_of("01").items()}
    students = [f"student{number:02d}" for number in range(count)]
    for number, student in enumerate(students):
        notebook = json.loads(json.dumps(released))
        for cell in notebook["cells"]:
            name = cell["metadata"].get("nbgrader", {}).get("grade_id", "")
            if name.startswith("solution-"):
                task = name.removeprefix("solution-").replace("-", ".")
                cell["source"] = bank[task][number % len(bank[task])]
        place = course / "submitted" / student / NAME
        place.mkdir(parents=True)
        (place / f"{NAME}.ipynb").write_text(json.dumps(notebook))
    return students


def nbgrader_api(course: Path):
    from nbgrader.apps import NbGraderAPI
    from traitlets.config import Config

    config = Config()
    config.CourseDirectory.root = str(course)
    config.Exchange.course_id = "course"
    return NbGraderAPI(config=config)


def serve_nbgrader(course: Path) -> int:
    from nbgrader.api import Gradebook

    api = nbgrader_api(course)
    out = _take_stdout()
    for line in sys.stdin:
        student = line.strip()
        done = api.autograde(NAME, student, force=True, create=True)
        if not done["success"]:
            raise SystemExit(done.get("log", "nbgrader failed"))
        with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:
            grades = book.find_submission(NAME, student).notebooks[0].grades
            scores = {grade.name.removeprefix("check-"): grade.score for grade in grades}
        print(json.dumps(dict(sorted(scores.items()))), file=out, flush=True)
    return 0


def serve_mptutor(course: Path) -> int:
    from mptutor.grading.assignment import Assignment
    from mptutor.grading.backends import open_backend
    from mptutor.grading.grade import grade
    from mptutor.grading.limits import Limits
    from mptutor.grading.notebook import parse, read_file

    out = _take_stdout()
    limits, assignment = Limits(), Assignment.of_lesson("01", seed=1)
    with open_backend("namespaces", limits) as start:
        for line in sys.stdin:
            folder = course / "submitted" / line.strip()
            notebook = parse(read_file(folder / NAME / f"{NAME}.ipynb", folder))
            tasks, _, _ = grade(notebook, assignment, start, limits)
            scores = {task.task.replace(".", "-"): float(task.points) for task in tasks}
            print(json.dumps(dict(sorted(scores.items()))), file=out, flush=True)
    return 0


def _take_stdout():
    """Keep standard output for the answers; whatever else is printed goes to standard error."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return out


if __name__ == "__main__":
    sys.exit(main())
