"""The forecast explorer's model against `forecast`; its view against the model."""

import itertools
import json

import pytest

from mptutor.forecast import GPUS, forecast
from mptutor.widgets.forecast_explorer import (
    MODELS,
    ForecastExplorer,
    bytes_text,
    digits,
    positions,
)
from mptutor.widgets.forecast_table import LARGEST_POWER, RECIPES, load_table, workload
from tests.javascript import evaluate

pytestmark = pytest.mark.lesson09


@pytest.fixture(scope="module")
def explorer():
    return ForecastExplorer()


def put(explorer, **position):
    with explorer.hold_trait_notifications():
        for name, value in {"layer": 0, **position}.items():
            setattr(explorer, name, value)


# -- what is shown is what `forecast` returns ------------------------------------------------------


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(
    ("model", "power"),
    [("small_cnn", 0), ("small_cnn", 7), ("mlp", 11), ("wide_mlp", 8), ("char_transformer", 5)],
)
def test_the_shipped_counts_are_those_of_a_step_taken_now(explorer, model, power, recipe):
    work = workload(model)
    known = model if model != "wide_mlp" else work.build
    now = forecast(
        known,
        batch=2**power,
        recipe=recipe,
        gpu="V100",
        sample_shape=work.sample_shape if model == "wide_mlp" else None,
        tf32_products=False,
    )
    put(explorer, model=model, power=power, recipe=recipe, gpu="V100", channels_last=False)
    shown = explorer.result.chosen
    assert shown.peak_bytes_by_part == now.peak_bytes_by_part
    assert shown.step_ms == pytest.approx(now.step_ms, rel=1e-9)
    assert shown.notes == now.notes and shown.time_is_checked == now.time_is_checked
    assert shown.roof == now.roof
    for ours, theirs in zip(shown.layers, now.layers, strict=True):
        assert (ours.layer, ours.phase, ours.flop, ours.moved_bytes, ours.bound) == (
            theirs.layer,
            theirs.phase,
            theirs.flop,
            theirs.moved_bytes,
            theirs.bound,
        )


def test_resnet50_is_counted_as_forecast_counts_it(explorer):
    now = forecast(
        "resnet50", batch=64, recipe="AMP FP16", gpu="A100", channels_last=True, tf32_products=False
    )
    put(explorer, model="resnet50", power=6, recipe="AMP FP16", gpu="A100", channels_last=True)
    shown = explorer.result.chosen
    assert shown.peak_bytes_by_part == now.peak_bytes_by_part
    assert shown.step_ms == pytest.approx(now.step_ms, rel=1e-9)
    assert len(shown.layers) == len(now.layers)


# -- what the lesson says of it --------------------------------------------------------------------


def test_the_goal_of_the_lesson_can_be_reached(explorer):
    put(explorer, model="mlp", power=7, recipe="AMP FP16", gpu="A100", channels_last=False)
    assert explorer.result.gain < 1 < explorer.result.peak_ratio
    explorer.power = 14
    assert explorer.result.gain > 1 > explorer.result.peak_ratio


def test_most_of_resnet50_waits_for_memory_on_an_a100(explorer):
    put(explorer, model="resnet50", power=8, recipe="AMP FP16", gpu="A100", channels_last=False)
    bounds = [layer.bound for layer in explorer.result.chosen.layers if layer.flop]
    assert bounds.count("memory") > len(bounds) / 2


# -- setting the traits ----------------------------------------------------------------------------


def test_every_choice_and_both_ends_of_every_range_make_sense(explorer):
    for position in positions():
        put(explorer, **position)
        result = explorer.result
        assert result.problem == "" and result.chosen.peak_bytes > 0 and result.gain > 0
        assert explorer.describe().startswith("Forecast, not measured: ")
        explorer.layer = sum(c.flop > 0 for c in result.chosen.layers) - 1
        assert explorer.result.problem == ""


@pytest.mark.parametrize("model", MODELS)
def test_every_network_has_a_picture(explorer, model):
    put(explorer, model=model, power=0, recipe="FP32")
    assert explorer.picture().startswith("<svg") and "not measured" in explorer.picture()


def test_positions_that_make_no_sense_get_a_sentence(explorer):
    put(explorer, model="resnet50", power=12)
    assert explorer.result.problem == (
        "A batch of 2^12 is not in the table of resnet50; allowed are powers of two from 1 to "
        "512. Shown is 512."
    )
    assert explorer.result.chosen.batch == 512
    put(explorer, model="mlp", power=3, layer=99)
    assert explorer.describe().startswith("There is no layer 99 with products in mlp")
    assert explorer.picture().startswith("<svg")
    put(explorer, power=-1)
    assert explorer.result.chosen.batch == 1


def test_choices_that_do_not_exist_are_refused(explorer):
    with pytest.raises(ValueError, match="model is 'vgg'; allowed are small_cnn, mlp"):
        explorer.model = "vgg"
    with pytest.raises(ValueError, match="recipe is 'FP8'; allowed are FP32, AMP FP16"):
        ForecastExplorer(recipe="FP8")
    with pytest.raises(ValueError, match="gpu: got 'P100', allowed are V100"):
        ForecastExplorer(gpu="P100")
    with pytest.raises(ValueError, match="batch is 100; allowed are powers of two"):
        ForecastExplorer(batch=100)


def test_bf16_without_units_is_said_to_be_imitated(explorer):
    put(explorer, model="small_cnn", power=7, recipe="AMP BF16", gpu="T4")
    assert any("imitates it" in note for note in explorer.result.chosen.notes)


def test_the_state_is_small(explorer):
    assert len(json.dumps(explorer.state(), allow_nan=False)) < 200_000


def test_the_table_has_every_batch():
    for model, largest in LARGEST_POWER.items():
        for recipe in RECIPES:
            assert len(load_table()[model][recipe]["peaks"]) == largest + 1


# -- the view computes what the model computes -----------------------------------------------------


def test_the_view_shows_what_the_model_shows(explorer):
    asked = [{**position, "layer": 1} for position in itertools.islice(positions(), 0, None, 7)]
    asked += [{**asked[0], "power": 99}, {**asked[0], "power": -1}, {**asked[0], "layer": 999}]
    state = explorer.state()
    shown = evaluate(
        ForecastExplorer._esm,
        "asked.map((position) => { const v = explore({ ...shared, ...position });"
        " return { said: sentence(v), notes: notesOf(v), gain: v.gain, peak: v.chosen.peak,"
        " ms: v.chosen.ms, bounds: v.chosen.bounds, roof: v.chosen.roof, layer: v.layer,"
        " layers: v.chosen.layers.map((l) => [l.name, l.phase, l.flop, l.bytes, l.ms, l.bound])"
        " }; })",
        asked=asked,
        shared={"steps": state["steps"], "choices": state["choices"]},
    )
    for position, view in zip(asked, shown, strict=True):
        put(explorer, **position)
        result = explorer.result
        f = result.chosen
        assert view["said"] == explorer.describe(), position
        assert view["notes"] == list(f.notes), position
        assert view["peak"] == f.peak_bytes and view["ms"] == pytest.approx(f.step_ms)
        assert view["bounds"] == pytest.approx(f.bound_ms)
        roof = (f.roof.flops, f.roof.bytes_per_s, f.roof.reached_flops, f.roof.reached_bytes_per_s)
        assert tuple(view["roof"].values()) == pytest.approx(roof), position
        layers = [c for c in f.layers if c.flop]
        assert layers[view["layer"]] == result.layer
        for seen, c in zip(view["layers"], layers, strict=True):
            assert seen[:4] == [c.layer, c.phase, c.flop, c.moved_bytes]
            assert seen[4] == pytest.approx(c.ms) and seen[5] == c.bound


def test_numbers_are_written_alike_on_both_sides():
    numbers = [0.000123, 0.0456, 0.28431, 1.0, 9.995, 34.38, 123.4, 1549.9, 64211.0]
    nbytes = [800, 1e3, 25_201_712, 999_999_999, 1e9, 22e9]
    written = evaluate(
        ForecastExplorer._esm,
        "[numbers.map(digits), nbytes.map(bytesText)]",
        numbers=numbers,
        nbytes=nbytes,
    )
    assert written == [list(map(digits, numbers)), list(map(bytes_text, nbytes))]


def test_every_gpu_of_the_forecast_can_be_chosen(explorer):
    assert [gpu["name"] for gpu in explorer.choices["gpus"]] == list(GPUS)
