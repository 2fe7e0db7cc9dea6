"""Standing with nbgrader: it releases and grades our exercises; our results enter its gradebook."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mptutor.grading.classroom import Settings, grade_class
from mptutor.grading.collect import collect
from mptutor.grading.gradebook import enter
from mptutor.grading.store import Store
from tests.grading.exercise01 import CHECKS, LIMITS, SEED, SOLVED

pytest.importorskip("nbgrader")
from nbgrader.api import Gradebook

ROOT = Path(__file__).resolve().parents[2]
NAME = "01_number_formats"
WRONG = "def ulp_fp16(x):\n    return 2.0**-10"


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course folder in which nbgrader has released exercise 01 and two students have answered."""
    folder = tmp_path_factory.mktemp("course")
    source = folder / "source" / NAME
    source.mkdir(parents=True)
    shutil.copy(ROOT / "solutions" / NAME / f"{NAME}.ipynb", source)
    nbgrader(folder, "generate_assignment", NAME)
    released = json.loads((folder / "release" / NAME / f"{NAME}.ipynb").read_text())
    for student, answers in (("ada", SOLVED), ("ben", {**SOLVED, "01-2": WRONG})):
        place = folder / "submitted" / student / NAME
        place.mkdir(parents=True)
        (place / f"{NAME}.ipynb").write_text(json.dumps(answered(released, answers)))
    return folder


def nbgrader(folder, *arguments):
    # It calls programs of its own environment, which need not be the one of the shell.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", *arguments],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def answered(released, answers):
    notebook = json.loads(json.dumps(released))
    for cell in notebook["cells"]:
        name = cell["metadata"].get("nbgrader", {}).get("grade_id", "")
        if name.startswith("solution-"):
            cell["source"] = answers[name.removeprefix("solution-")]
    return notebook


def scores(folder):
    with Gradebook(f"sqlite:///{folder / 'gradebook.db'}") as book:
        return {
            s.student.id: {g.name: g.score for n in s.notebooks for g in n.grades}
            for s in book.assignment_submissions(NAME)
        }


def test_nbgrader_releases_what_the_build_released(course):
    """The release has the stubs and check cells of ``exercises/``, and no solution."""
    released = json.loads((course / "release" / NAME / f"{NAME}.ipynb").read_text())
    built = json.loads((ROOT / "exercises" / NAME / f"{NAME}.ipynb").read_text())
    sources = [["".join(c["source"]) for c in n["cells"]] for n in (released, built)]
    assert "SOLUTION" not in str(sources)
    marks = [
        [c["metadata"].get("nbgrader", {}).get("grade_id") for c in n["cells"]]
        for n in (released, built)
    ]
    assert marks[0] == marks[1]
    for function in CHECKS.values():
        assert any(f"def {function}" in source for source in sources[0])


def test_nbgrader_and_ours_give_the_same_scores(course, start, tmp_path, monkeypatch):
    """Grade with ours and enter it, grade with nbgrader over it: no score changes."""
    from contextlib import nullcontext

    from mptutor.grading import classroom

    monkeypatch.setattr(classroom, "open_backend", lambda *args, **kwargs: nullcontext(start))
    store = Store(tmp_path / "out")
    list(grade_class(collect([course / "submitted"]), Settings(SEED, limits=LIMITS), store))
    assert enter(store.all(), str(course / "gradebook.db")) == 2
    ours = scores(course)
    assert ours["ada"] == {"check-01-1": 3, "check-01-2": 2, "check-01-3": 2}
    assert ours["ben"] == {"check-01-1": 3, "check-01-2": 0, "check-01-3": 2}
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:
        comment = book.find_comment("solution-01-2", NAME, NAME, "ben")
        assert "The distance is the same everywhere" in comment.auto_comment

    nbgrader(course, "autograde", NAME, "--force")
    assert scores(course) == ours
    nbgrader(course, "generate_feedback", NAME)
    assert (course / "feedback" / "ben" / NAME / f"{NAME}.html").exists()


def test_a_gradebook_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="no gradebook at"):
        enter([], str(tmp_path / "gradebook.db"))
