"""Every lesson has the shape that the design asks for."""

import ast
import re
import statistics
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
LESSONS = sorted((ROOT / "lessons").glob("*.ipynb"))


def cells_of(path):
    return nbformat.read(path, as_version=4).cells


def code_lines(cell):
    return [line for line in cell.source.splitlines() if line.strip()]


@pytest.fixture(params=LESSONS, ids=lambda path: path.stem)
def lesson(request):
    return request.param


def test_it_opens_with_a_question_and_goals_and_closes_with_claims(lesson):
    first = cells_of(lesson)[0].source
    assert re.match(rf"# {lesson.stem[:2]} · .+\?\n", first), "the title is no question"
    goals = re.findall(r"^- ", first, flags=re.MULTILINE)
    assert "you will be able to" in first and 2 <= len(goals) <= 4
    last = cells_of(lesson)[-1].source
    assert "## What you have seen" in last
    assert len(re.findall(r"^- ", last, flags=re.MULTILINE)) >= len(goals)


def test_it_has_the_length_of_a_lesson(lesson):
    cells = cells_of(lesson)
    words = sum(len(c.source.split()) for c in cells if c.cell_type == "markdown")
    assert words <= 1500
    if lesson.stem[:2] != "00":
        assert 25 <= len(cells) <= 45


def test_code_cells_are_short(lesson):
    lengths = [len(code_lines(c)) for c in cells_of(lesson) if c.cell_type == "code"]
    assert statistics.median(lengths) <= 6
    assert max(lengths) <= 20


def test_predictions_stand_before_the_cell_that_answers_them(lesson):
    cells = cells_of(lesson)
    predictions = [i for i, c in enumerate(cells) if "> **Predict.**" in c.source]
    assert predictions, "no prediction is asked for"
    for i in predictions:
        assert cells[i + 1].cell_type == "code"
    if lesson.stem[:2] != "00":
        assert len(predictions) >= 4


def test_every_widget_has_a_goal_and_a_question(lesson):
    cells = cells_of(lesson)
    for i, cell in enumerate(cells):
        if "widget" in cell.metadata.get("tags", []):
            after = cells[i + 1].source
            assert cells[i + 1].cell_type == "markdown"
            assert "**Goal.**" in after and "**Question.**" in after and "?" in after


def test_claims_are_sealed_by_asserts(lesson):
    trees = [ast.parse(c.source) for c in cells_of(lesson) if c.cell_type == "code"]
    asserts = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    assert len(asserts) >= (2 if lesson.stem[:2] == "00" else 6)


def test_no_cell_draws_or_trains_out_of_sight_of_the_package(lesson):
    for cell in cells_of(lesson):
        if cell.cell_type == "code":
            assert "matplotlib" not in cell.source and "ipywidgets" not in cell.source


def test_it_is_plain_markdown_without_hype(lesson):
    for cell in cells_of(lesson):
        if cell.cell_type != "markdown":
            continue
        tags = set(re.findall(r"<(\w+)", cell.source))
        assert tags <= {"details", "summary"}, tags
        assert not re.search(r"[\U0001F300-\U0001FAFF\u2600-\u27BF]", cell.source), "an emoji"
