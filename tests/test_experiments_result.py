"""The base of all results: strict JSON there and back, and tables that say what is in it."""

import json
import math
from dataclasses import dataclass, fields

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mptutor.experiments.result import Result, html_table, show, text_table


@dataclass(frozen=True)
class Run:
    name: str
    loss: tuple[float, ...]
    scale: float | None


@dataclass(frozen=True)
class SampleResult(Result):
    device: str
    step_ms: float
    skips: int
    finished: bool
    pair: tuple[int, float]
    runs: tuple[Run, ...]
    best: Run | None
    shares: dict[str, float]
    label: str | None


any_float = st.floats(width=64)
runs = st.builds(Run, st.text(), st.lists(any_float).map(tuple), st.none() | any_float)
results = st.builds(
    SampleResult,
    device=st.text(),
    step_ms=any_float,
    skips=st.integers(),
    finished=st.booleans(),
    pair=st.tuples(st.integers(), any_float),
    runs=st.lists(runs, max_size=3).map(tuple),
    best=st.none() | runs,
    shares=st.dictionaries(st.text(), any_float, max_size=3),
    label=st.none() | st.text(),
)


def sample(**changes):
    run = Run("fp16", (1.5, math.nan), None)
    values = {
        "device": "cpu",
        "step_ms": 1.0,
        "skips": 3,
        "finished": True,
        "pair": (1, 0.5),
        "runs": (run,),
        "best": None,
        "shares": {"head": 0.25},
        "label": None,
    }
    return SampleResult(**{**values, **changes})


def refuse_constant(name):
    raise AssertionError(f"{name} is not JSON")


@given(results)
def test_json_is_strict_and_reads_back_equal(result):
    text = result.to_json()
    json.loads(text, parse_constant=refuse_constant)
    back = SampleResult.from_json(text)
    assert repr(back) == repr(result)  # repr, because NaN is not equal to itself
    assert back.to_json() == text


def test_equal_results_compare_equal_after_the_round_trip():
    result = sample(runs=())
    assert SampleResult.from_json(result.to_json()) == result


def test_types_come_back_as_declared():
    back = SampleResult.from_json(sample(step_ms=2, best=Run("a", (1.0,), math.inf)).to_json())
    assert type(back.step_ms) is float
    assert type(back.runs) is tuple and type(back.runs[0]) is Run
    assert back.best.scale == math.inf


def test_a_tensor_is_refused_with_the_name_of_its_field():
    with pytest.raises(TypeError, match=r"SampleResult\.runs\[0\]\.scale.*got Tensor"):
        sample(runs=(Run("x", (), torch.ones(1)),)).to_json()


def test_a_list_is_refused_because_it_would_come_back_a_tuple():
    with pytest.raises(TypeError, match=r"runs\[0\]\.loss.*got list"):
        sample(runs=(Run("x", [1.0], None),)).to_json()


def test_another_class_or_other_fields_are_refused():
    plain = sample().to_plain()
    with pytest.raises(ValueError, match="is a OtherResult"):
        SampleResult.from_plain({**plain, "result": "OtherResult"})
    del plain["skips"]
    with pytest.raises(ValueError, match="SampleResult: has the fields"):
        SampleResult.from_plain(plain)


def test_the_default_table_has_a_row_for_every_single_value():
    assert [row[""] for row in sample().table()] == [
        "device",
        "step_ms",
        "skips",
        "finished",
        "best",  # None here
        "label",
    ]


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (None, "–"),
        (True, "yes"),
        (1234567, "1,234,567"),
        (0.123456, "0.1235"),
        (65536.0, "65,536"),
        (2.0**40, "1.1e+12"),
        (math.nan, "NaN"),
        (-math.inf, "-inf"),
        ("a<b", "a<b"),
    ],
)
def test_cells(cell, text):
    assert show(cell) == text


def test_tables_align_numbers_right_and_escape():
    rows = [{"recipe": "a<b", "loss": 10.5}, {"recipe": "c", "loss": None}]
    assert text_table(rows).splitlines() == ["recipe  loss", "a<b     10.5", "c          –"]
    html = html_table(rows)
    assert "a&lt;b" in html and "<th style='text-align:right'>loss</th>" in html
    assert text_table([]) == "(nothing to show)"


def test_a_result_shows_itself():
    assert sample()._repr_html_() == html_table(sample().table())
    assert str(sample()).splitlines()[1].split() == ["device", "cpu"]


@dataclass(frozen=True)
class TitledResult(Result):
    loss: float

    @property
    def headline(self):
        return "a < b, 3 seeds"


def test_a_headline_stands_above_the_table():
    result = TitledResult(0.5)
    assert str(result).splitlines()[0] == "a < b, 3 seeds"
    assert result._repr_html_().startswith("<p>a &lt; b, 3 seeds</p><table>")


def test_a_result_is_frozen():
    with pytest.raises(AttributeError):
        sample().skips = 4
    assert "skips" in {field.name for field in fields(sample())}
