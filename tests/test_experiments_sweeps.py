"""The sweeps of lesson 09. Bytes are exact and asserted; times never are."""

import math

import pytest
import torch

from mptutor.experiments.memory_sweep import MemorySweepResult, run_memory_sweep
from mptutor.experiments.recipes import AMP_FP16
from mptutor.experiments.speed_sweep import (
    ProductTime,
    SpeedSweepResult,
    run_speed_sweep,
)
from mptutor.plots import plot_memory_sweep, plot_speed_sweep

pytestmark = pytest.mark.lesson09


@pytest.fixture(scope="module")
def memory():
    return run_memory_sweep(device="cpu")


@pytest.fixture(scope="module")
def speed():
    return run_speed_sweep(quick=True)


def test_a_cnn_saves_less_than_half_because_not_all_is_activations(memory):
    saved = memory.ratio("small_cnn", 128, "AMP FP16", "saved_bytes")
    assert 0.5 < saved < 0.7
    assert memory.of("small_cnn", 128, "AMP FP16").saved_bytes_by_dtype["int64"] == 2 * (
        128 * (16 * 16 * 16 + 32 * 8 * 8) * 8 // 2
    )


def test_a_wide_mlp_at_a_small_batch_saves_more_bytes_for_backward_under_amp(memory):
    step = memory.of("wide_mlp", 64, "AMP FP16")
    assert memory.ratio("wide_mlp", 64, "AMP FP16", "saved_bytes") > 10
    weight_copies = 2 * 2 * 4096 * 4096  # those that the inputs' gradients need, 2 bytes each
    assert step.saved_bytes_by_dtype["float16"] >= weight_copies


def test_more_activations_turn_the_balance(memory):
    small, large = (memory.ratio("mlp", b, "AMP FP16") for b in (128, 2048))
    assert large < 1 < small


def test_what_is_held_throughout_does_not_shrink(memory):
    for model, batch_size in {(s.model, s.batch_size) for s in memory.steps}:
        fp32, amp = (memory.of(model, batch_size, r).start_bytes for r in ("FP32", "AMP FP16"))
        assert amp == fp32 + 8  # the scale and its count, 4 bytes each


def test_a_wide_mlp_needs_more_memory_in_all(memory):
    assert memory.ratio("wide_mlp", 64, "AMP FP16") > 1
    assert memory.ratio("small_cnn", 128, "AMP FP16") < 0.7


def test_the_sweep_times_each_way_at_each_size(speed):
    assert speed.sizes == (32, 64, 128) and speed.ways[0] == "FP32"
    assert len(speed.products) == 3 * 5
    assert all(p.step_ms > 0 and math.isfinite(p.gflops) for p in speed.products)


def test_the_crossover_is_where_a_way_wins_for_good():
    def product(size, way, ms):
        return ProductTime(size, way, ms, 0.0, 1.0)

    times = {16: (1.0, 0.5), 32: (1.0, 2.0), 64: (1.0, 0.9), 128: (1.0, 0.5)}
    products = tuple(
        product(size, way, ms)
        for size, both in times.items()
        for way, ms in zip(("FP32", "BF16"), both, strict=True)
    )
    result = SpeedSweepResult("cpu", "a CPU", 1, products)
    assert result.crossover("BF16") == 64
    assert result.speedup(32, "BF16") == 0.5 and result.speedup(32, "FP16") is None
    assert result.crossover("FP16") is None


def test_both_survive_json_and_draw_themselves(memory, speed):
    assert MemorySweepResult.from_json(memory.to_json()) == memory
    assert SpeedSweepResult.from_json(speed.to_json()) == speed
    assert "small_cnn" in plot_memory_sweep(memory).alt
    assert "BF16" in plot_speed_sweep(speed).alt


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"dtypes: got \[torch.float64\]"):
        run_speed_sweep(dtypes=[torch.float64])
    with pytest.raises(ValueError, match=r"sizes: got \(0,\)"):
        run_speed_sweep((0,))
    with pytest.raises(ValueError, match=r"settings: got model 'vgg'"):
        run_memory_sweep([("vgg", 1)])
    with pytest.raises(ValueError, match=r"recipes: FP32 is missing"):
        run_memory_sweep(recipes=[AMP_FP16])
