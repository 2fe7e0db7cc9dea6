"""The picture of right and wrong loops: every run drawn, NaN marked, words carry the numbers."""

import math

import pytest

from mptutor.experiments.loop_patterns import LoopPatternsResult, LoopRun
from mptutor.plots import plot_loop_patterns

pytestmark = pytest.mark.lesson10


def run(pattern, variant, losses, seed=0):
    return LoopRun(pattern, variant, "step", seed, losses, 0.5, 1.0, 0)


@pytest.fixture
def result():
    runs = (
        run("clipping", "right", (2.0, 1.5, 1.0)),
        run("clipping", "wrong", (2.0, 2.0, 900.0)),
        run("penalty", "right", (2.0, 1.4, 0.9)),
        run("penalty", "right", (2.0, 1.3, 0.8), seed=1),
        run("penalty", "wrong", (2.0, math.nan, math.nan)),
    )
    return LoopPatternsResult("sgd", "cpu", 1, runs)


def test_a_panel_for_each_pattern_and_a_line_for_each_run(result):
    panels = plot_loop_patterns(result).axes
    assert [axes.get_title() for axes in panels] == ["clipping", "penalty"]
    drawn = [[list(line.get_ydata()) for line in axes.lines] for axes in panels]
    assert drawn[0][:2] == [[2.0, 1.5, 1.0], [2.0, 2.0, 900.0]]
    assert drawn[1][:3] == [[2.0, 1.4, 0.9], [2.0, 1.3, 0.8], [2.0]]


def test_right_losses_decide_the_axis_and_nan_is_said(result):
    clipping, penalty = plot_loop_patterns(result).axes
    assert clipping.get_ylim() == penalty.get_ylim() == (0, pytest.approx(2.8))
    assert [text.get_text().strip() for text in penalty.texts] == ["NaN from 2"]
    assert not clipping.texts


def test_the_words_carry_the_numbers(result):
    picture = plot_loop_patterns(result, title="See")
    assert picture.get_suptitle() == "See"
    assert "clipping, right: last loss 1, accuracy 0.5" in picture.alt
    assert "penalty, wrong: last loss NaN" in picture.alt and "1 epoch on cpu" in picture.alt
