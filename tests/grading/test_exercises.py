"""Every exercise fits the frame: solved it earns all, as it was released it earns nothing."""

import json
from pathlib import Path

import pytest

from mptutor.checks import lessons_with_tasks
from mptutor.grading.assignment import Assignment
from mptutor.grading.backends import NoSandbox, open_backend
from mptutor.grading.grade import grade
from mptutor.grading.kit import kit
from mptutor.grading.limits import Limits
from mptutor.grading.notebook import parse
from tests.grading.exercise01 import SEED

ROOT = Path(__file__).resolve().parents[2]
SOLVED = sorted((ROOT / "solutions").glob("*/*.ipynb"))


@pytest.fixture(scope="module")
def grade_file():
    limits = Limits(cell_s=60, submission_s=300)

    def graded(path):
        assignment = Assignment.of_lesson(path.stem[:2], SEED)
        with open_backend("namespaces", limits, withheld=assignment.withheld) as start:
            return grade(parse(path.read_bytes()), assignment, start, limits)[:2]

    try:
        with open_backend("namespaces", limits) as start, start() as student:
            student.ask({"run": "", "name": "cell 1", "seconds": 1}, 60)
            student.end()
    except NoSandbox as why:
        pytest.skip(str(why))
    return graded


@pytest.mark.parametrize("path", SOLVED, ids=lambda path: path.stem)
def test_the_solution_earns_all(grade_file, path):
    tasks, events = grade_file(path)
    assert events == ()
    assert {task.task: task.reason for task in tasks if task.outcome != "right"} == {}


@pytest.mark.parametrize("path", SOLVED, ids=lambda path: path.stem)
def test_the_stub_earns_nothing(grade_file, path):
    released = ROOT / "exercises" / path.parent.name / path.name
    tasks, events = grade_file(released)
    assert events == ()
    assert {task.outcome for task in tasks} == {"unwritten"}


@pytest.mark.parametrize("lesson", lessons_with_tasks())
def test_every_input_is_plain_data_that_stays_the_same_for_a_seed(lesson):
    first, second = Assignment.of_lesson(lesson, SEED), Assignment.of_lesson(lesson, SEED)
    for one, other in zip(first.questions, second.questions, strict=True):
        assert json.dumps(one.cases) == json.dumps(other.cases)


def test_the_kit_holds_no_answer():
    with kit() as folder:
        package = folder / "mptutor"
        beside = {path.name for path in (package / "checks").iterdir()}
        assert {
            name.partition("_")[0].removesuffix(".py") for name in beside - {"__init__.py"}
        } == {
            "plain",
            "probes",
        }
        assert not (package / "grading" / "grade.py").exists()
        assert (package / "formats.py").exists()
        for path in package.rglob("*.py"):
            assert "Misunderstanding(" not in path.read_text(encoding="utf-8"), path
    assert not folder.exists()


def test_a_module_can_be_withheld():
    with kit(["mptutor.formats", "mptutor.experiments", "mptutor.no_such"]) as folder:
        assert not (folder / "mptutor" / "formats.py").exists()
        assert not (folder / "mptutor" / "experiments").exists()
        assert (folder / "mptutor" / "rounding.py").exists()
