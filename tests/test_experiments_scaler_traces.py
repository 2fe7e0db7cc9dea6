"""A training in FP16 with two scalers: the claims of lesson 06 on a third of its steps."""

import math

import pytest
import torch

from mptutor.experiments.scaler_traces import (
    ScalerTraceResult,
    run_scaler_traces,
    trace_scaler,
)
from mptutor.formats import FP16
from mptutor.plots import plot_scaler_trace
from mptutor.scaling import DynamicLossScaler, StaticLossScaler

pytestmark = pytest.mark.lesson06

OPTIONS = {"init_scale": 2.0**24, "growth_interval": 8}
SMALL = {"steps": 6, "widths": (784, 16, 10)}


@pytest.fixture(scope="module")
def traces():
    scalers = {
        "mptutor": lambda: DynamicLossScaler(**OPTIONS),
        "torch": lambda: torch.amp.GradScaler("cpu", **OPTIONS),
    }
    return run_scaler_traces(scalers, quick=True, device="cpu")


# -- the claims ------------------------------------------------------------------------------------


def test_both_scalers_drive_the_training_to_the_same_bits(traces):
    ours, theirs = traces.of("mptutor"), traces.of("torch")
    for field in ("scales", "skipped", "losses", "final_scale", "weights_hash"):
        assert getattr(ours, field) == getattr(theirs, field), field
    assert repr(ours.largest_gradients) == repr(theirs.largest_gradients)  # NaN is not itself


def test_quick_is_a_third_of_the_steps(traces):
    assert traces.broken_steps == (20, 20, 36)
    assert {len(trace.scales) for trace in traces.traces} == {50}


def test_the_first_steps_and_the_broken_ones_are_skipped(traces):
    trace = traces.of("torch")
    assert all(trace.skipped[:3]) and trace.skipped[20] and trace.skipped[36]
    assert sum(trace.skipped) < len(trace.skipped) / 2


def test_a_skip_halves_the_scale_and_a_run_of_good_steps_doubles_it(traces):
    trace = traces.of("torch")
    scales = [*trace.scales, trace.final_scale]
    good = 0
    for step, skipped in enumerate(trace.skipped):
        good = 0 if skipped else good + 1
        factor = 0.5 if skipped else 2.0 if good == 8 else 1.0
        assert scales[step + 1] == scales[step] * factor, step
        good %= 8


def test_a_step_is_skipped_exactly_if_a_gradient_overflowed(traces):
    trace = traces.of("torch")
    assert [not math.isfinite(g) for g in trace.largest_gradients] == list(trace.skipped)
    for scale, gradient in zip(trace.scales, trace.largest_gradients, strict=True):
        assert not math.isfinite(gradient) or 0 < gradient * scale <= FP16.max


def test_it_learns(traces):
    assert traces.of("torch").losses[-1] < traces.of("torch").losses[0]


# -- one trace -------------------------------------------------------------------------------------


def test_the_largest_gradient_does_not_depend_on_the_scale():
    quiet = trace_scaler(StaticLossScaler(1024.0), **SMALL)
    loud = trace_scaler(StaticLossScaler(4096.0), **SMALL)
    assert quiet.largest_gradients == pytest.approx(loud.largest_gradients, rel=0.02)
    assert quiet.scales == (1024.0,) * 6 and not any(quiet.skipped)


def test_the_seed_decides_the_training():
    first, again, other = (
        trace_scaler(StaticLossScaler(1024.0), seed=s, **SMALL) for s in (0, 0, 1)
    )
    assert first == again and first.weights_hash != other.weights_hash


def test_a_broken_batch_has_larger_gradients():
    calm = trace_scaler(StaticLossScaler(1.0), **SMALL)
    broken = trace_scaler(StaticLossScaler(1.0), broken_steps=[3], **SMALL)
    assert calm.largest_gradients[:3] == broken.largest_gradients[:3]
    assert broken.largest_gradients[3] > 100 * calm.largest_gradients[3]


# -- the result ------------------------------------------------------------------------------------


def test_it_survives_json(traces):
    text = traces.to_json()
    assert ScalerTraceResult.from_json(text).to_json() == text
    assert repr(ScalerTraceResult.from_json(text)) == repr(traces) and "Infinity" in text


def test_a_name_that_is_none_is_refused(traces):
    with pytest.raises(ValueError, match=r"name: got 'apex', allowed are \['mptutor', 'torch'\]"):
        traces.of("apex")


def test_the_table_has_a_row_for_each_scaler(traces):
    rows = traces.table()
    assert [row["scaler"] for row in rows] == ["mptutor", "torch"]
    assert rows[0]["skipped"] == sum(traces.of("mptutor").skipped) and rows[0]["steps"] == 50
    assert traces._repr_html_().count("<tr>") == 3


def test_the_picture_marks_the_skips(traces):
    picture = plot_scaler_trace(traces, "torch")
    skips = sum(traces.of("torch").skipped)
    assert f"{skips} steps are skipped: 0, 1, 2" in picture.alt
    with pytest.raises(ValueError, match="name: got 'apex'"):
        plot_scaler_trace(traces, "apex")
