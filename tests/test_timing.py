"""The timer: warm-up, median and spread, laps that break off.  No time is asserted."""

import pytest
import torch

from mptutor.timing import Timer, Timing


def test_warm_up_laps_are_run_and_not_counted():
    runs = []
    timing = Timer("cpu", warmup=2).measure(lambda: runs.append(1), repeats=5)
    assert len(runs) == 7
    assert len(timing.samples_ms) == 5
    assert all(sample >= 0 for sample in timing.samples_ms)


def test_laps_of_a_loop():
    timer = Timer("cpu", warmup=1)
    for _ in range(4):
        with timer:
            torch.ones(8) + 1
    assert len(timer.timing().samples_ms) == 3


def test_measure_starts_anew():
    timer = Timer("cpu", warmup=0)
    timer.measure(lambda: None, repeats=3)
    assert len(timer.measure(lambda: None, repeats=2).samples_ms) == 2


def test_a_lap_that_breaks_off_is_no_lap():
    timer = Timer("cpu", warmup=0)
    with pytest.raises(KeyError), timer:
        raise KeyError
    with pytest.raises(RuntimeError, match="nothing to report: 0 laps"):
        timer.timing()


def test_only_warm_up_is_nothing_to_report():
    timer = Timer("cpu", warmup=3)
    with timer:
        pass
    with pytest.raises(RuntimeError, match="1 laps, of which the first 3 are warm-up"):
        timer.timing()


def test_median_and_spread_ignore_one_interruption():
    timing = Timing((10.0, 11.0, 12.0, 13.0, 500.0), "cpu")
    assert timing.median_ms == 12.0
    assert timing.quartiles_ms == (11.0, 13.0)
    assert timing.spread == pytest.approx(2 / 12)
    assert str(timing) == "12 ms (quartiles 11 to 13, 5 laps, cpu)"


def test_a_single_lap_has_no_spread():
    assert Timing((7.0,), "cpu").spread == 0


@pytest.mark.parametrize(("name", "value"), [("warmup", -1), ("repeats", 0)])
def test_bad_numbers_are_named(name, value):
    with pytest.raises(ValueError, match=f"{name}: got {value}"):
        if name == "warmup":
            Timer("cpu", warmup=value)
        else:
            Timer("cpu").measure(lambda: None, repeats=value)


@pytest.mark.gpu
def test_cuda_laps_last_as_long_as_the_work_not_the_launch():
    """The host's clock sees the launch only; the device sees a known number of cycles."""
    timing = Timer("cuda", warmup=1).measure(lambda: torch.cuda._sleep(10_000_000), repeats=3)
    longer = Timer("cuda", warmup=1).measure(lambda: torch.cuda._sleep(100_000_000), repeats=3)
    assert longer.median_ms > timing.median_ms
    assert timing.device == "cuda"
