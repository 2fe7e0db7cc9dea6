"""The simulator's scaler against torch's own and against a real run; its view against the model."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mptutor.experiments.scaler_traces import trace_scaler
from mptutor.scaler_state import ScalerState, next_state
from mptutor.widgets.gradient_history import STEPS, load_history
from mptutor.widgets.scaler_run import SPIKE, kind_of, simulate
from mptutor.widgets.scaler_simulator import CHOICES, ScalerSimulator
from tests.javascript import evaluate

pytestmark = pytest.mark.lesson06

SOURCE = ScalerSimulator._esm
FALL = list(range(166))


# -- the machine, against torch --------------------------------------------------------------------


def torchs_scales(found_infs, scale, growth, backoff, interval):
    scale, tracker = torch.full((1,), scale), torch.zeros(1, dtype=torch.int32)
    for found_inf in found_infs:
        found = torch.tensor([float(found_inf)])
        torch._amp_update_scale_(scale, tracker, found, growth, backoff, interval)
        yield scale.item(), tracker.item()


def test_the_views_next_state_is_next_state_and_torchs():
    """Over long random sequences, down to 0 and up to FP32's limit."""
    generator = torch.Generator().manual_seed(0)
    cases = []
    for growth, backoff in ((2.0, 0.5), (1.25, 0.9), (16.0, 0.25)):
        for interval in (1, 2, 5):
            for chance in (0.02, 0.5, 1.0):
                found = (torch.rand(250, generator=generator) < chance).tolist()
                cases.append((2.0**16, growth, backoff, interval, 0.0, found))
    cases.append((2.0**4, 2.0, 0.5, 3, 1.0, [True] * 9 + [False] * 7))
    names = ("scale", "growth_factor", "backoff_factor", "growth_interval", "min_scale", "found")
    run = """asked.map(({ found, ...start }) => {
      let state = { growth_tracker: 0, skips_in_a_row: 0, ...start };
      return found.map((f) => (state = nextState(state, f)));
    })"""
    seen = evaluate(SOURCE, run, asked=[dict(zip(names, case, strict=True)) for case in cases])
    for case, states in zip(cases, seen, strict=True):
        *start, found = case
        state = ScalerState(**dict(zip(names, start, strict=False)))
        for found_inf, view in zip(found, states, strict=True):
            state = next_state(state, found_inf)
            assert float(view["scale"]) == state.scale
            assert view["growth_tracker"] == state.growth_tracker
            assert view["skips_in_a_row"] == state.skips_in_a_row
        if start[4] == 0.0:
            *_, last = torchs_scales(found, *start[:4])
            assert last == (state.scale, state.growth_tracker)


@settings(max_examples=200)
@given(scale=st.floats(2.0**-149, 2.0**100, width=32), found_inf=st.booleans())
def test_any_scale_moves_as_torch_moves_it(scale, found_inf):
    ours = next_state(ScalerState(scale=scale, growth_interval=1), found_inf).scale
    assert [(ours, 0)] == list(torchs_scales([found_inf], scale, 2.0, 0.5, 1))


@pytest.mark.parametrize("exponent", [16, -126, -127, -128, -140, -149, None])
def test_a_healthy_step_ruins_the_weights_exactly_where_gradscaler_does(exponent):
    scale = 0.0 if exponent is None else 2.0**exponent
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    scaler.scale(weight.half().sum()).backward()
    scaler.step(optimizer)
    assert (kind_of(1.0, scale) == "ruined") == (not weight.isfinite().all())


@pytest.mark.parametrize(
    ("gradient", "scale", "kind"),
    [
        (65519.0, 1.0, "ran"),
        (65520.0, 1.0, "skipped"),
        (math.inf, 2.0**-140, "skipped"),
        (math.nan, 0.0, "skipped"),
        (2.0**-25, 1.0, "empty"),
        (2.0**-25 * 1.01, 1.0, "ran"),
        (1.0, 2.0**-127, "empty"),
        (1.0, 2.0**-128, "ruined"),
        (1.0, 0.0, "ruined"),
    ],
)
def test_what_becomes_of_a_step(gradient, scale, kind):
    assert kind_of(gradient, scale) == kind
    held = torch.tensor(gradient * scale).half()
    assert (kind == "skipped") == (not held.isfinite())
    assert kind != "empty" or held == 0


def test_it_replays_a_real_training():
    options = {"init_scale": 2.0**22, "growth_interval": 5}
    scaler = torch.amp.GradScaler("cpu", **options)
    trace = trace_scaler(scaler, steps=24, broken_steps=[15], widths=(784, 32, 10))
    start = ScalerState(scale=2.0**22, growth_interval=5)
    steps, state = simulate(trace.largest_gradients, start)
    assert tuple(step.scale for step in steps) == trace.scales
    assert tuple(step.skipped for step in steps) == trace.skipped
    assert state.scale == trace.final_scale and 0 < sum(trace.skipped) < 24


# -- the recording ---------------------------------------------------------------------------------


def test_the_recording_is_one_of_a_healthy_training():
    history = load_history()
    assert len(history.largest_gradients) == STEPS
    assert all(0 < g < 65520 / 256 for g in history.largest_gradients)
    assert "torch 2." in history.made_by and f"steps={STEPS}" in history.made_by


# -- setting the traits ----------------------------------------------------------------------------


def test_a_scale_too_high_comes_down_and_finds_the_edge():
    result = ScalerSimulator(init_scale=2.0**24).result
    assert [step.kind for step in result.steps[:3]] == ["skipped"] * 3
    assert result.final_scale < 2.0**24 and result.skips < 40 and result.ruined_at is None


def test_a_spike_costs_a_step_and_a_factor():
    calm = ScalerSimulator(init_scale=2.0**16).result
    spiked = ScalerSimulator(init_scale=2.0**16, spikes=[50]).result
    assert spiked.steps[50].gradient == calm.steps[50].gradient * SPIKE
    assert spiked.steps[50].kind == "skipped" and spiked.scales[51] == spiked.scales[50] / 2


def test_166_nans_take_the_scale_to_0_and_the_next_step_ruins_the_weights():
    result = ScalerSimulator(nans=FALL).result
    assert result.scales[165] == 2.0**-149 and result.scales[166] == 0
    assert result.ruined_at == 166 and result.steps[167].kind == "dead"
    assert {step.kind for step in result.steps[:166]} == {"skipped"}


def test_the_answer_of_the_lesson():
    """A healthy batch within the fall is harmless up to step 143 and deadly from step 144 on."""
    for healthy, kind in ((142, "empty"), (143, "empty"), (144, "ruined"), (150, "ruined")):
        result = ScalerSimulator(nans=[i for i in FALL if i != healthy]).result
        assert result.steps[healthy].kind == kind, healthy


def test_a_floor_prevents_it():
    result = ScalerSimulator(nans=FALL, min_scale=1).result
    assert result.ruined_at is None and min(result.scales) == 1


@pytest.mark.parametrize(
    ("trait", "value"), [(name, value) for name, values in CHOICES.items() for value in values]
)
@pytest.mark.parametrize("exponent", [-10, 40])
def test_every_choice_has_a_sentence_and_a_picture(trait, value, exponent):
    figure = ScalerSimulator(init_scale=2.0**exponent)
    setattr(figure, trait, value)
    for figure.step in (0, STEPS - 1):
        assert figure.result.problem == "" and figure.describe().endswith(".")
    assert figure.picture().count("<polyline") == 2


@pytest.mark.parametrize(
    ("trait", "value", "starts"),
    [
        ("init_exponent", 41, "The initial scale is 2^41; allowed is 2^-10 to 2^40."),
        ("init_exponent", -11, "The initial scale is 2^-11; allowed"),
        ("spikes", [3, STEPS], "There is no step 400 to break; allowed is 0 to 399."),
        ("nans", [-1], "There is no step -1 to break"),
        ("step", STEPS, "There is no step 400; allowed is 0 to 399. Shown is the nearest."),
        ("step", -1, "There is no step -1; allowed"),
    ],
)
def test_what_makes_no_sense_gets_a_sentence(trait, value, starts):
    figure = ScalerSimulator()
    setattr(figure, trait, value)
    assert figure.result.problem.startswith(starts) and figure.describe() == figure.result.problem
    assert len(figure.result.steps) == STEPS and 0 <= figure.result.step < STEPS


def test_choices_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match=r"growth is '3'; allowed are 1\.25, 2, 16"):
        ScalerSimulator(growth_factor=3)
    with pytest.raises(ValueError, match=r"init_scale is 1000\.0; allowed are powers of two"):
        ScalerSimulator(init_scale=1000.0)
    with pytest.raises(ValueError, match="init_scale is 0; allowed"):
        ScalerSimulator(init_scale=0)


def test_the_state_is_small():
    figure = ScalerSimulator(spikes=range(STEPS), nans=range(STEPS))
    assert len(json.dumps(figure.state(), allow_nan=False)) < 200_000


# -- the view computes what the model computes -----------------------------------------------------

POSITIONS = [
    {},
    {"init_scale": 2.0**24, "spikes": [60, 61, 110], "step": 60},
    {"init_scale": 2.0**40, "backoff_factor": 0.9, "growth_factor": 1.25, "growth_interval": 5},
    {"init_scale": 2.0**-10, "growth_interval": 2000, "step": 7},
    {"growth_factor": 16, "backoff_factor": 0.25, "growth_interval": 10, "nans": [9, 10]},
    {"nans": FALL, "step": 166},
    {"nans": FALL, "step": 300},
    {"nans": FALL, "min_scale": 1},
    {"nans": [i for i in FALL if i != 143], "step": 143},
    {"spikes": [5, 400], "step": 999},
]


def views(expression, positions):
    figures = [ScalerSimulator(**position) for position in positions]
    shared = {"choices": figures[0].choices}
    states = [{k: v for k, v in figure.state().items() if k != "choices"} for figure in figures]
    script = f"asked.map((state) => (({expression}))(explore({{ ...state, ...shared }})))"
    return zip(figures, evaluate(SOURCE, script, asked=states, shared=shared), strict=True)


def test_the_view_shows_what_the_model_shows():
    for figure, view in views("({ choices, start, ...rest }) => rest", POSITIONS):
        result = figure.result
        assert (view["problem"], view["step"]) == (result.problem, result.step)
        assert (view["skips"], view["ruinedAt"]) == (result.skips, result.ruined_at)
        assert float(view["finalScale"]) == result.final_scale
        for seen, step in zip(view["steps"], result.steps, strict=True):
            assert (float(seen["scale"]), seen["kind"]) == (step.scale, step.kind)
            assert seen["tracker"] == step.growth_tracker
            gradient = float(seen["gradient"])
            assert gradient == step.gradient or (math.isnan(gradient) and math.isnan(step.gradient))


def test_the_view_says_what_happens():
    said = [text for _, text in views("sentence", POSITIONS)]
    assert said[0] == (
        "Step 0: the largest gradient, 0.0714 × 2¹⁶ = 4,680, fits FP16. The step runs. "
        "Good step 1 in a row, of 25."
    )
    assert said[1].startswith("Step 60: the largest gradient, 109 × 2¹⁷ = 1")
    assert said[1].endswith(", is beyond FP16. Skipped, and the scale becomes 2¹⁶.")
    assert said[5].startswith("Step 166: the batch is fine and passes the check. But 1 / scale is")
    assert said[6].startswith("Step 300: the weights are NaN since step 166")
    assert said[8].endswith("rounds to 0 in FP16. The step runs and learns nothing.")
    ends = [text for _, text in views("summary", POSITIONS)]
    assert ends[5] == (
        "166 of 400 steps are skipped. Training is lost: step 166 writes NaN into the weights."
    )
    assert ends[3].endswith("The scale ends at 2⁻¹⁰.")
