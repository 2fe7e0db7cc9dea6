"""The update grid's model against torch and `quantize`; its view against the model."""

import json
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mptutor.formats import BF16, FP8_E4M3, FP16, FP32, get_format
from mptutor.rounding import quantize
from mptutor.widgets.update_grid import UpdateGrid
from mptutor.widgets.update_paths import (
    FORMATS,
    STEPS,
    STOCHASTIC_RUNS,
    WAYS,
    cut_off,
    land,
    path,
    read_inputs,
)
from tests.javascript import evaluate

pytestmark = pytest.mark.lesson04

by_format = pytest.mark.parametrize("fmt", FORMATS, ids=str)
weights = st.floats(2.0**-6, 2.0, width=32)
signs = st.sampled_from([-1.0, 1.0])
log_ratios = st.floats(1.0, 26.0)


# -- arithmetic ------------------------------------------------------------------------------------


@by_format
@given(x=st.floats(-400, 400, width=32))
def test_landing_is_quantizes(fmt, x):
    landing = land(x, fmt)
    for name, rounding in (("below", "down"), ("above", "up"), ("nearest", "nearest_even")):
        assert getattr(landing, name) == quantize(x, fmt, rounding=rounding).item()
    assert 0 <= landing.fraction <= 1
    assert (landing.fraction == 0) == (landing.below == landing.above)


@by_format
@given(weight=weights, sign=signs)
def test_the_cut_off_parts_kept_from_swallowed(fmt, weight, sign):
    weight = land(weight, fmt).nearest
    update = sign * weight / cut_off(weight, sign, fmt)
    assert land(weight + update * 0.999, fmt).nearest == weight
    assert land(weight + update * 1.001, fmt).nearest != weight


@pytest.mark.parametrize(("fmt", "low"), [(FP16, 2048), (BF16, 256)], ids=str)
@given(weight=weights, sign=signs)
def test_the_cut_off_of_the_lesson(fmt, low, weight, sign):
    assert low <= cut_off(land(weight, fmt).nearest, sign, fmt) <= 2 * low


@pytest.mark.parametrize("fmt", [FP32, FP16, BF16], ids=str)
@pytest.mark.parametrize(
    ("start", "update"),
    [(1.0, -0.0002), (1.0, 2.0**-11), (1.0, -(2.0**-12)), (0.5, -3e-5), (1.5, 0.01)],
)
def test_a_path_is_torchs(fmt, start, update):
    # PyTorch adds in FP32 and rounds to 16 bits: the same as one rounding, for these numbers.
    update = torch.tensor(update).item()
    weight = torch.tensor(start, dtype=fmt.torch_dtype)
    for _, ours in path(fmt, "nearest", start, update):
        assert ours == weight.item()
        weight = weight + update


@by_format
def test_a_master_copy_is_torchs_fp32_sum(fmt):
    master, update = torch.tensor(1.0), torch.tensor(-0.0002)
    for held, weight in path(fmt, "master", 1.0, update.item()):
        assert held == master.item()
        assert weight == quantize(master, fmt).item()
        master = master + update


@by_format
def test_at_random_each_step_takes_a_neighbour_and_the_mean_is_exact(fmt):
    update = torch.tensor(-0.0002).item()
    ends = []
    for run in range(STOCHASTIC_RUNS):
        weights = [weight for _, weight in path(fmt, "stochastic", 1.0, update, run)]
        for before, after in pairwise(weights):
            assert after in (land(before + update, fmt).below, land(before + update, fmt).above)
        ends.append(weights[-1])
    # A step of p ulp has the variance p (1 - p) ulp², at most 0.0002 times the ulp.
    deviation = math.sqrt(STEPS * 0.0002 * fmt.ulp(0.99) / STOCHASTIC_RUNS)
    assert abs(sum(ends) / STOCHASTIC_RUNS - 0.8) < 4 * deviation
    assert fmt == FP32 or len(set(ends)) > 1


def test_the_example_of_the_lesson():
    assert UpdateGrid(fmt=FP16, n=STEPS).result.weight == 1.0
    assert UpdateGrid(fmt=BF16, n=STEPS).result.weight == 1.0
    assert UpdateGrid(fmt=FP16, way="master", n=STEPS).result.weight == pytest.approx(0.8, abs=1e-3)


# -- setting the traits ----------------------------------------------------------------------------


@by_format
@pytest.mark.parametrize("way", WAYS)
def test_every_choice_has_a_sentence_and_a_picture(fmt, way):
    figure = UpdateGrid(fmt=fmt, way=way)
    for figure.n in (0, 1, STEPS):
        assert figure.result.problem == "" and figure.result.n == figure.n
        assert figure.describe().endswith(".")
        assert figure.picture().count("<polyline") == 4
    assert [row.fmt for row in figure.rows] == list(FORMATS)


def test_the_first_update_is_swallowed_where_the_row_says_so():
    figure = UpdateGrid(weight=1, update="-2^-10")
    assert [row.swallowed for row in figure.rows] == [False, False, True, True, True]
    for row in figure.rows:
        figure.fmt = row.fmt.name
        assert figure.result.swallowed == row.swallowed
        assert figure.result.ratio == 1024 and figure.result.cut_off == row.cut_off


@given(weight=weights, sign=signs, log_ratio=log_ratios)
@settings(max_examples=200)
def test_weight_and_update_of_allowed_size_are_taken_as_they_are(weight, sign, log_ratio):
    update = sign * weight / 2**log_ratio
    taken = read_inputs(repr(weight), repr(update))
    assert taken[0] == weight and taken[1] == pytest.approx(update, rel=2**-23)
    assert 1.99 < abs(taken[0] / taken[1]) < 2**26.01


@pytest.mark.parametrize(
    ("weight", "update", "starts"),
    [
        ("5", "-0.0002", "The weight is 5; allowed is 2^-6 to 2."),
        ("0", "-0.0002", "The weight is 0; allowed is 2^-6 to 2."),
        ("one", "-0.0002", "Weight: “one” is no number I can read."),
        ("inf", "-0.0002", "The weight is inf; it has to be finite."),
        ("1", "0", "The update is 0; allowed is a half to 2^-26 of the weight"),
        ("1", "-1", "The update is -1; allowed is a half"),
        ("1", "2^-40", "The update is 2^-40; allowed is a half"),
        ("1", "", "Update: Type a number"),
        ("1", "nan", "The update is nan; it has to be finite."),
    ],
)
def test_what_makes_no_sense_gets_a_sentence_and_the_nearest(weight, update, starts):
    figure = UpdateGrid(weight, update)
    result = figure.result
    assert result.problem.startswith(starts) and result.problem.endswith("Shown is the nearest.")
    assert figure.describe() == result.problem
    assert 2.0**-6 <= result.weight <= 2.0 and 1.99 < result.ratio < 2**26.01


@pytest.mark.parametrize(("n", "shown"), [(-1, 0), (STEPS + 1, STEPS)])
def test_a_step_that_is_none_gets_a_sentence(n, shown):
    result = UpdateGrid(n=n).result
    assert result.problem.startswith(f"n is {n:,}; allowed is 0 to 1,000") and result.n == shown


def test_choices_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="fmt is 'TF32'; allowed are FP32, FP16, BF16"):
        UpdateGrid(fmt="TF32")
    with pytest.raises(ValueError, match="way is 'up'; allowed are nearest, stochastic, master"):
        UpdateGrid(way="up")


def test_numbers_and_dtypes_are_welcome():
    figure = UpdateGrid(weight=0.5, update=-(2.0**-10), fmt=torch.bfloat16)
    assert (figure.weight, figure.update, figure.fmt) == ("0.5", "-0.0009765625", "BF16")


def test_the_state_is_small():
    assert len(json.dumps(UpdateGrid().state(), allow_nan=False)) < 200_000


# -- the view computes what the model computes -----------------------------------------------------

INPUTS = [
    ("1", "-0.0002"),
    ("1", "2^-11"),
    ("2", "1"),
    ("2", "-1"),
    ("0.05", "-3e-5"),
    ("2^-6", "2^-32"),
    ("5", "-0.0002"),
    ("1", "nan"),
    ("1", "0"),
    ("one", "-0.1"),
]


def test_the_view_shows_what_the_model_shows():
    figure = UpdateGrid()
    asked = [
        {"weight": w, "update": u, "fmt": fmt.name, "way": way, "n": n}
        for w, u in INPUTS
        for fmt in FORMATS
        for way in WAYS
        for n in (0, 3, 777, STEPS + 5)
    ]
    pick = (
        "({ paths, rows, grid, fmt, ...rest }) => "
        "({ ...rest, rows: rows.map((row) => ({ ...row, fmt: row.fmt.name })) })"
    )
    seen = evaluate(
        UpdateGrid._esm,
        f"asked.map((position) => ({pick})(explore({{ ...position, choices }})))",
        asked=asked,
        choices=figure.choices,
    )
    for position, view in zip(asked, seen, strict=True):
        for name, value in position.items():
            setattr(figure, name, value)
        result = figure.result
        assert view["problem"] == result.problem, position
        for name in ("n", "held", "update", "exact", "ratio"):
            assert float(view[name]) == getattr(result, name), (position, name)
        assert float(view["cutOff"]) == result.cut_off and view["swallowed"] == result.swallowed
        assert tuple(map(float, view["weights"])) == result.weights, position
        for name in ("wanted", "below", "above", "nearest", "fraction"):
            assert float(view["landing"][name]) == getattr(result.landing, name), (position, name)
        if position["n"] == 0:
            rows = [
                (r["fmt"], float(r["cutOff"]), r["swallowed"], float(r["end"]))
                for r in view["rows"]
            ]
            assert rows == [(r.fmt.name, r.cut_off, r.swallowed, r.end) for r in figure.rows]


def test_the_view_says_what_happens():
    positions = [
        ("1", "-0.0002", "FP16", "nearest", 0),
        ("1", "-0.0003", "FP16", "nearest", 0),
        ("1", "-0.0002", "FP8_E4M3", "stochastic", 0),
        ("1", "-0.0002", "FP16", "master", 1),
        ("1", "-0.0002", "FP16", "master", 3),
        ("1", "2^-26", "BF16", "master", 0),
    ]
    names = ("weight", "update", "fmt", "way", "n")
    said = evaluate(
        UpdateGrid._esm,
        "asked.map((position) => sentence(explore({ ...position, choices })))",
        asked=[dict(zip(names, position, strict=True)) for position in positions],
        choices=UpdateGrid().choices,
    )
    assert said == [
        "FP16: 1 − 0.0002 is rounded back to 1. Swallowed: the weight is 5,000 times the update, "
        "and from 4,096 times on it is lost.",
        "FP16: 1 − 0.0003 becomes 0.9995117. Kept: the weight is 3,333 times the update; "
        "from 4,096 times on it would be lost.",
        "FP8 E4M3: 1 − 0.0002 goes to 0.9375 with a chance of 0.32 %, to 1 with 99.7 %.",
        "The master copy keeps the update: 0.9998 − 0.0002. The FP16 weight made from it moves to "
        "0.9995117.",
        "The master copy keeps the update: 0.9994 − 0.0002. The FP16 weight made from it moves to "
        "0.9990234.",
        "Even the FP32 master copy swallows this update: the weight is 67,108,864 times the "
        "update, and from 16,777,216 times on it is lost.",
    ]


def test_e4m3_stops_at_its_largest_number():
    assert land(1000.0, FP8_E4M3).nearest == get_format("FP8_E4M3").max == 448
