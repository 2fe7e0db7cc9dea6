"""Pictures of training by recipe: every recipe is named, and the words carry the numbers."""

import math

import pytest

from mptutor.experiments.training_result import EpochRecord, Run, TrainingResult
from mptutor.plots.training import plot_outcome, plot_training


def run(recipe, seed, losses, accuracy, diverged_at_step=None):
    epoch = EpochRecord(losses[-1], {"kl": 5.5}, accuracy, 1.0, 0, 0.25)
    return Run(recipe, seed, losses, (epoch,), diverged_at_step, True, 1.0, 1000, 1.0)


@pytest.fixture
def result():
    runs = (
        run("FP32", 0, (2.0, 1.5, 1.0), 0.8),
        run("naive FP16", 0, (2.0, math.nan, math.nan), 0.1, diverged_at_step=2),
        run("FP32", 1, (2.0, 1.5, 1.2), 0.7),
        run("my own recipe", 0, (2.0, 1.5, 1.1), 0.75),
    )
    return TrainingResult("net", "data", "Adam", "cpu", 1, 1, 3, 128, runs, True)


def test_a_line_for_every_run_a_label_for_every_recipe(result):
    axes = plot_training(result).axes[0]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["FP32", "naive FP16", "my own recipe"]
    curves = [line for line in axes.lines if line.get_marker() == "None"]
    assert [list(line.get_ydata()) for line in curves] == [
        [2.0, 1.5, 1.0],
        [2.0, 1.5, 1.2],
        [2.0],
        [2.0, 1.5, 1.1],
    ]
    assert [text.get_text().strip() for text in axes.texts] == ["NaN at step 2"]


def test_what_is_known_by_epoch_is_drawn_by_epoch(result):
    axes = plot_training(result, "kl").axes[0]
    assert axes.get_xlabel() == "epoch" and axes.get_ylabel() == "KL divergence"
    with pytest.raises(ValueError, match="what: got 'elbo'"):
        plot_training(result, "elbo")


def test_every_seed_is_a_dot_and_the_mean_a_bar(result):
    axes = plot_outcome(result).axes[0]
    dots = [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "o"]
    bars = [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "None"]
    assert dots == [[0.75], [0.1], [0.8, 0.7]]
    assert bars[-1] == pytest.approx([0.75, 0.75])
    assert "NaN" in [text.get_text() for text in plot_outcome(result, "loss").axes[0].texts]


def test_the_words_carry_the_numbers(result):
    assert "FP32 1.1 ± 0.14; naive FP16 NaN; my own recipe 1.1" in plot_training(result).alt
    assert "FP32 0.75 ± 0.071; naive FP16 0.1" in plot_outcome(result).alt
    assert plot_training(result, title="See").get_suptitle() == "See"


def test_a_race_stopped_before_its_first_epoch_can_be_drawn(result):
    started = Run("FP32", 0, (2.0,), (), None, False, None, None, None)
    early = TrainingResult("net", "data", "Adam", "cpu", 1, 1, 3, 128, (started,), False)
    for picture in (plot_training(early), plot_training(early, "kl"), plot_outcome(early)):
        assert "stopped early" in picture.alt
