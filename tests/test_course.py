"""The notebooks are derived from ``source/``: same bytes, nothing missing, nothing left over."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
DERIVED = ("lessons", "exercises", "solutions")


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory):
    out = tmp_path_factory.mktemp("course")
    command = [sys.executable, ROOT / "tools/build_course.py", "--out", out]
    subprocess.run(command, check=True, capture_output=True)
    return {path.relative_to(out): path.read_bytes() for path in out.rglob("*.ipynb")}


@pytest.fixture(scope="module")
def committed():
    return {
        path.relative_to(ROOT): path.read_bytes()
        for folder in DERIVED
        for path in (ROOT / folder).rglob("*.ipynb")
        if ".ipynb_checkpoints" not in path.parts
    }


def test_no_notebook_lacks_a_source_or_a_build(rebuilt, committed):
    assert sorted(rebuilt) == sorted(committed), "run `make build`"


def test_rebuilding_gives_the_committed_bytes(rebuilt, committed):
    changed = [str(path) for path in rebuilt if rebuilt[path] != committed.get(path)]
    assert changed == [], "edit source/, run `make build`, and commit both"


def test_every_exercise_belongs_to_a_lesson():
    lessons = {path.stem for path in (ROOT / "source/lessons").glob("*.py")}
    exercises = {path.stem for path in (ROOT / "source/exercises").glob("*.py")}
    assert exercises <= lessons


def test_notebooks_hold_no_outputs(committed):
    for path in committed:
        for cell in nbformat.read(ROOT / path, as_version=4).cells:
            if cell.cell_type == "code":
                assert cell.outputs == [] and cell.execution_count is None, path


def test_the_student_version_holds_no_solution(committed):
    for path, raw in committed.items():
        if path.parts[0] == "exercises":
            assert b"SOLUTION" not in raw, path


def test_the_readme_lists_every_lesson():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in (ROOT / "lessons").glob("*.ipynb"):
        assert f"lessons/{path.name}" in readme
