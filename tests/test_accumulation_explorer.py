"""The accumulation explorer's model against torch and `quantize`; its view against the model."""

import json
import math

import pytest
import torch

from mptutor.formats import BF16, FP16, FP32, get_format
from mptutor.rounding import quantize
from mptutor.widgets.accumulation_explorer import (
    ACCUMULATORS,
    EVERY,
    ROUNDINGS,
    STOCHASTIC_RUNS,
    TERMS,
    AccumulationExplorer,
    N,
    next_addition,
)
from tests.javascript import evaluate

pytestmark = pytest.mark.lesson02

CHOICES = [(a.name, r, t) for a in ACCUMULATORS for r in ROUNDINGS for t in TERMS]
POSITIONS = (0, 50, 350, 400, 1_600, 2_800, 5_000, 9_950, N)


@pytest.fixture(scope="module")
def explorer():
    return AccumulationExplorer()


def choose(explorer, accumulator, rounding, term, n):
    explorer.accumulator, explorer.rounding, explorer.term = accumulator, rounding, term
    explorer.n = n
    return explorer.result


# -- what is shown ---------------------------------------------------------------------------------


@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("fmt", ACCUMULATORS, ids=str)
def test_every_position_is_torchs_running_sum(explorer, fmt, term):
    x = torch.full((N,), float(term), dtype=fmt.torch_dtype)
    total = torch.zeros((), dtype=fmt.torch_dtype)
    for n in range(N + 1):
        if n % EVERY == 0:
            result = choose(explorer, fmt.name, "nearest_even", term, n)
            assert (result.n, result.total) == (n, total.item())
        if n < N:
            total = total + x[n]


@pytest.mark.parametrize(("accumulator", "rounding", "term"), CHOICES)
def test_the_next_addition_is_quantizes(explorer, accumulator, rounding, term):
    fmt = get_format(accumulator)
    for n in range(0, N + 1, 10 * EVERY):
        result = choose(explorer, accumulator, rounding, term, n)
        step = result.next
        if step is None:
            assert result.total == math.inf
            continue
        below = quantize(step.wanted, fmt, rounding="down").item()
        above = quantize(step.wanted, fmt, rounding="up").item()
        assert (step.below, step.above) == (below, above)
        if rounding != "stochastic":
            taken = step.above if step.chance_up else step.below
            assert taken == quantize(step.wanted, fmt, rounding=rounding).item()
        assert 0 <= step.chance_up <= 1


@pytest.mark.parametrize(("accumulator", "rounding", "term"), CHOICES)
def test_it_stands_still_exactly_from_the_last_term_that_counts(
    explorer, accumulator, rounding, term
):
    sums = [choose(explorer, accumulator, rounding, term, n).total for n in range(0, N + 1, EVERY)]
    result = explorer.result
    if result.stands_still:
        first = -(-result.last_change // EVERY)
        assert set(sums[first:]) == {sums[-1]} and sums[first - 1] != sums[-1]
    elif rounding != "stochastic":
        assert sums[-1] != sums[-2]


def test_the_headline(explorer):
    result = choose(explorer, "FP16", "nearest_even", "0.01", N)
    assert (result.total, result.stands_still) == (32.0, True)
    assert result.exact == pytest.approx(100.0, rel=1e-3)
    assert choose(explorer, "BF16", "nearest_even", "0.01", N).total == 4.0
    assert choose(explorer, "FP16", "toward_zero", "0.01", N).total == 16.0
    assert choose(explorer, "FP16", "up", "1", N).next is None


@pytest.mark.parametrize("fmt", ACCUMULATORS, ids=str)
def test_stochastic_sums_differ_and_stay_around_the_exact_one(explorer, fmt):
    result = choose(explorer, fmt.name, "stochastic", "0.01", N)
    assert len(result.totals) == STOCHASTIC_RUNS == len(set(result.totals))
    mean = sum(result.totals) / STOCHASTIC_RUNS
    spread = {"FP32": 1e-3, "FP16": 1.7, "BF16": 6.0}[fmt.name]
    assert abs(mean - result.exact) < 3 * spread / math.sqrt(STOCHASTIC_RUNS)


def test_ties_go_to_the_even_neighbour():
    assert next_addition(2048.0, 1.0, FP16, "nearest_even").chance_up == 0
    assert next_addition(2050.0, 1.0, FP16, "nearest_even").chance_up == 1
    assert next_addition(256.0, 1.0, BF16, "nearest_even").chance_up == 0
    assert next_addition(2.0**24, 1.0, FP32, "nearest_even").chance_up == 0


# -- setting the traits ----------------------------------------------------------------------------


@pytest.mark.parametrize(("accumulator", "rounding", "term"), CHOICES)
def test_every_position_has_a_sentence_and_a_picture(explorer, accumulator, rounding, term):
    for n in (0, N):
        assert choose(explorer, accumulator, rounding, term, n).problem == ""
        assert explorer.describe().endswith(".")
        assert explorer.picture().count("<polyline") == 5


@pytest.mark.parametrize(
    ("n", "shown"), [(17, 0), (-50, 0), (10_050, N), (10**9, N), (2_775, 2_800)]
)
def test_a_position_that_is_none_gets_a_sentence_and_the_nearest(n, shown):
    explorer = AccumulationExplorer(n)
    assert explorer.result.problem.startswith(f"n is {n:,}; allowed are multiples of 50 from 0")
    assert explorer.result.n == shown and explorer.describe() == explorer.result.problem


def test_choices_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="accumulator is 'FP8_E4M3'; allowed are FP32, FP16, BF16"):
        AccumulationExplorer(accumulator="FP8_E4M3")
    with pytest.raises(ValueError, match="rounding is 'down'; allowed are nearest_even"):
        AccumulationExplorer(rounding="down")
    with pytest.raises(ValueError, match=r"term is '0\.5'; allowed are 0\.01, 0\.1, 1"):
        AccumulationExplorer().term = "0.5"


def test_numbers_and_formats_are_welcome_as_choices():
    explorer = AccumulationExplorer(accumulator=torch.bfloat16, term=1.0)
    assert (explorer.accumulator, explorer.term) == ("BF16", "1")


def test_the_state_is_small(explorer):
    assert len(json.dumps(explorer.state(), allow_nan=False)) < 200_000


# -- the view computes what the model computes -----------------------------------------------------

SOURCE = AccumulationExplorer._esm


def test_the_view_shows_what_the_model_shows(explorer):
    state = explorer.state()
    asked = [
        {"accumulator": a, "rounding": r, "term": t, "n": n}
        for a, r, t in CHOICES
        for n in POSITIONS
    ]
    shown = evaluate(
        SOURCE,
        "asked.map((position) => explore({ ...shared, ...position }))",
        asked=asked,
        shared={"series": state["series"], "choices": state["choices"]},
    )
    for position, view in zip(asked, shown, strict=True):
        result = choose(explorer, **position)
        assert tuple(map(float, view["totals"])) == result.totals, position
        assert view["exact"] == result.exact and view["standsStill"] == result.stands_still
        assert (view["next"] is None) == (result.next is None)
        if result.next:
            names = {"chanceUp": "chance_up"}
            for name in ("term", "wanted", "below", "above", "ulp", "chanceUp"):
                expected = getattr(result.next, names.get(name, name))
                assert float(view["next"][name]) == expected, (position, name)


def test_the_view_says_where_the_sum_stands(explorer):
    asked = [
        ("FP16", "nearest_even", "0.01", 0),
        ("FP16", "nearest_even", "0.01", 2_000),
        ("FP16", "nearest_even", "0.01", N),
        ("FP16", "up", "1", N),
        ("FP16", "nearest_even", "1", 1_000),
    ]
    state = explorer.state()
    keys = ("accumulator", "rounding", "term", "n")
    said = evaluate(
        SOURCE,
        "asked.map((position) => sentence(explore({ ...shared, ...position })))",
        asked=[dict(zip(keys, position, strict=True)) for position in asked],
        shared={"series": state["series"], "choices": state["choices"]},
    )
    assert said == [
        "Nothing has been added yet. The first term is 0.01 in FP16.",
        "After 2,000 terms the FP16 sum is 19.5313; exact is 20.004. "
        "The next term is 0.64 ulp and counts as 1.",
        "After 10,000 terms the FP16 sum is 32; exact is 100.02. "
        "It has stood still since term 2,798: a term is 0.32 ulp.",
        "After 10,000 terms the FP16 sum has overflowed to ∞; exact is 10000.",
        "After 1,000 terms the FP16 sum is 1000; exact is 1000. "
        "The next term is 2 ulp, and all of it counts.",
    ]
