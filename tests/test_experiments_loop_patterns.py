"""What lesson 10 says about real loops: what a mistake costs, and under which condition."""

import math

import pytest
import torch

from mptutor.experiments.loop_patterns import (
    LoopPatternsResult,
    run_loop_patterns,
    train_session,
)
from mptutor.experiments.loops import (
    PATTERNS,
    Pattern,
    accumulate_mean,
    clip_unscaled,
    make_session,
)

pytestmark = pytest.mark.lesson10


@pytest.fixture(scope="module")
def result():
    return run_loop_patterns(quick=True)


def only(result, pattern, variant):
    (run,) = result.of(pattern, variant)
    return run


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_right_loop_learns_and_skips_next_to_nothing(result, pattern):
    run = only(result, pattern, "right")
    assert run.last_loss < 1.5 < run.losses[0]
    assert run.skips <= 1


@pytest.mark.parametrize("pattern", ["clipping", "two losses"])
def test_a_loss_or_limit_off_by_the_scale_stops_learning_without_a_sign(result, pattern):
    run = only(result, pattern, "wrong")
    assert run.last_loss > 2.2
    assert run.skips == 0 and run.final_scale == 65536


@pytest.mark.parametrize("pattern", ["two optimizers", "gradient penalty"])
def test_scaled_gradients_in_the_weights_or_the_loss_end_in_nan(result, pattern):
    run = only(result, pattern, "wrong")
    assert math.isnan(run.last_loss) and run.skips > 10


def test_sums_instead_of_means_are_a_larger_learning_rate(result):
    right, wrong = (only(result, "accumulation", v) for v in ("right", "wrong"))
    assert right.losses[0] == wrong.losses[0] and right.losses[1:] != wrong.losses[1:]


def test_adam_hides_clipping_that_is_too_strict():
    result = run_loop_patterns(["clipping"], optimizer="adam", quick=True)
    right, wrong = (only(result, "clipping", v) for v in ("right", "wrong"))
    assert abs(right.last_loss - wrong.last_loss) < 0.1


def test_it_survives_json_and_shows_itself(result):
    again = LoopPatternsResult.from_json(result.to_json())
    assert again.to_json() == result.to_json()
    assert len(result.table()) == 2 * len(PATTERNS) and "NaN" in str(result)


def test_bad_arguments_are_named(result):
    with pytest.raises(ValueError, match=r"patterns: got 'cliping', allowed are clipping"):
        run_loop_patterns(["cliping"])
    with pytest.raises(ValueError, match=r"optimizer: got 'lion', allowed are sgd, adam"):
        run_loop_patterns(optimizer="lion")
    with pytest.raises(ValueError, match="pattern, variant"):
        result.of("clipping", "best")
    with pytest.raises(ValueError, match=r"optimizer: got 'lion'"):
        make_session("lion")
    with pytest.raises(ValueError, match="other: is of"):
        result + run_loop_patterns([], optimizer="adam", quick=True)


def test_own_loops_are_trained_too_and_results_add_up(result):
    mine = run_loop_patterns([Pattern("mine", accumulate_mean, clip_unscaled)], quick=True)
    assert only(mine, "mine", "right").losses == only(result, "accumulation", "right").losses
    both = result + mine
    assert both.patterns == (*PATTERNS, "mine")
    assert both.of("mine", "wrong")[0].losses == only(result, "clipping", "right").losses


def test_a_pattern_shows_its_right_loop_and_what_the_wrong_one_has_instead():
    lines = str(PATTERNS["clipping"]).splitlines()
    assert [line for line in lines if line[0] in "+-"] == ["+ s.scaler.unscale_(s.optimizer)"]
    assert lines[0] == "  s.optimizer.zero_grad()" and lines[-1] == "  return loss"
    for pattern in PATTERNS.values():
        changed = [line for line in str(pattern).splitlines() if line[0] in "+-"]
        assert 1 <= len(changed) <= 2, pattern.name


def test_a_session_is_trained_step_by_step_and_can_be_looked_at_after_each():
    session, seen = make_session(), []
    some = [(torch.randn(8, 784), torch.zeros(8, dtype=torch.long))] * 3
    losses = train_session(session, some, after_step=lambda: seen.append(len(seen)))
    assert len(losses) == 3 and losses[-1] < losses[0] and seen == [0, 1, 2]
    assert train_session(session, []) == []
