"""Every forecast against its published measurement: within the promised error, or named."""

import pytest

from mptutor.forecast import GPUS, MEMORY_ERROR, TIME_ERROR
from tests.published import MEMORIES, SPEEDS, name_of


def speed_id(row):
    return f"{row.gpu} {name_of(row)}{'' if row.train else ' inference'} {row.samples_per_s:g}/s"


@pytest.mark.parametrize("row", SPEEDS, ids=speed_id)
def test_step_time(row):
    error = row.forecast().step_ms / row.step_ms - 1
    if row.outlier:
        assert abs(error) <= 0.40, "a named outlier has got worse: is the cause still the cause?"
    else:
        assert abs(error) <= TIME_ERROR, f"off by {error:+.0%}"


@pytest.mark.parametrize("row", MEMORIES, ids=name_of)
def test_peak_memory(row):
    error = row.forecast_bytes() / row.peak_bytes - 1
    assert abs(error) <= MEMORY_ERROR, f"off by {error:+.0%}"


def test_outliers_are_few_and_none_was_fitted():
    outliers = [row for row in SPEEDS if row.outlier]
    assert len(outliers) <= len(SPEEDS) / 10
    assert not any(row.fitted for row in outliers)


def test_most_of_what_was_not_fitted_is_within_the_error():
    held_out = [row for row in SPEEDS if not row.fitted]
    assert len(held_out) > len(SPEEDS) / 2


def test_what_is_called_checked_has_measurements():
    measured = {(row.gpu, "training" if row.train else "inference") for row in SPEEDS}
    assert measured == {(gpu.name, mode) for gpu in GPUS.values() for mode in gpu.checked}
