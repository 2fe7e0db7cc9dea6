"""The three proofs of every exercise.

The solution passes every check; the untouched stub fails every check, with NotImplementedError and
nothing else; every wrong answer people really give is rejected with its own hint, and unusual right
answers pass.
"""

import contextlib
import io
from collections import Counter
from pathlib import Path

import nbformat
import pytest

from mptutor.checks import check, lessons_with_tasks, tasks_of
from mptutor.checks.notebook import CheckFailed
from mptutor.checks.plain import pack
from tests.answers import answers

ROOT = Path(__file__).resolve().parent.parent
TASKS = [task for lesson in lessons_with_tasks() for task in tasks_of(lesson)]
ANSWERS = answers()


def notebook(kind: str, lesson: str) -> nbformat.NotebookNode:
    (path,) = (ROOT / kind).glob(f"{lesson}_*/*.ipynb")
    return nbformat.read(path, as_version=4)


def run_cells(kind: str, lesson: str) -> dict[str, Exception | None]:
    """Run a notebook's code cells and return what each check cell raised."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    raised: dict[str, Exception | None] = {}
    for cell in notebook(kind, lesson).cells:
        if cell.cell_type != "code":
            continue
        grade_id = cell.metadata.get("nbgrader", {}).get("grade_id", "")
        if not grade_id.startswith("check-"):
            exec(cell.source, namespace)
            continue
        raised[grade_id] = None
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(cell.source, namespace)
        except Exception as error:
            raised[grade_id] = error
    return raised


def marked(values, name):
    """Give each value an id, ``LESSON...``, and the mark of the lesson that the id starts with."""
    return [
        pytest.param(value, id=name(value), marks=getattr(pytest.mark, f"lesson{name(value)[:2]}"))
        for value in values
    ]


LESSONS = marked(lessons_with_tasks(), str)
BY_TASK = marked(TASKS, lambda task: task.id)
WRONG = marked([a for a in ANSWERS if a.misunderstanding], lambda a: a.name)
RIGHT = marked([a for a in ANSWERS if not a.misunderstanding], lambda a: a.name)


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_solution_passes_every_check(lesson):
    raised = run_cells("solutions", lesson)
    assert len(raised) == len(tasks_of(lesson))
    assert {k: v for k, v in raised.items() if v is not None} == {}


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_untouched_stub_fails_with_not_implemented_error_alone(lesson):
    raised = run_cells("exercises", lesson)
    assert len(raised) == len(tasks_of(lesson))
    assert {type(error) for error in raised.values()} == {NotImplementedError}


@pytest.mark.parametrize("answer", WRONG)
def test_a_wrong_answer_is_rejected_with_its_own_hint(answer):
    with pytest.raises(CheckFailed) as failed:
        check(answer.task, answer.written)
    assert failed.value.verdict.misunderstanding == answer.misunderstanding


@pytest.mark.parametrize("answer", RIGHT)
def test_an_unusual_right_answer_passes(answer, capsys):
    check(answer.task, answer.written)
    assert "right" in capsys.readouterr().out


@pytest.mark.parametrize("task", BY_TASK)
def test_every_task_has_its_banks(task):
    mine = [answer for answer in ANSWERS if answer.task == task.id]
    wrong_names = Counter(a.misunderstanding for a in mine if a.misunderstanding)
    assert sum(wrong_names.values()) >= 6, "fewer than six wrong answers"
    assert sum(a.misunderstanding is None for a in mine) >= 2, (
        "fewer than two unusual right answers"
    )
    known = {m.name for m in task.misunderstandings}
    assert known == set(wrong_names), "each misunderstanding needs an answer that shows it"
    hints = [m.hint for m in task.misunderstandings]
    assert len(set(hints)) == len(hints), "two misunderstandings share a hint"


@pytest.mark.parametrize("task", BY_TASK)
def test_every_hint_points_to_a_heading_of_the_lesson(task):
    (path,) = (ROOT / "source/lessons").glob(f"{task.lesson}_*.py")
    text = path.read_text(encoding="utf-8")
    for belief in task.misunderstandings:
        assert f"# ## {belief.reread}\n" in text, f"{belief.name}: no heading {belief.reread!r}"


@pytest.mark.parametrize("task", BY_TASK)
def test_hidden_cases_differ_and_the_reference_holds_on_them(task):
    def plain(seed):
        return [(case.label, pack(case.inputs)) for case in task.cases(seed)]

    assert plain(0) != plain(1)
    assert plain(1) == plain(1), "cases must depend on the seed alone"
