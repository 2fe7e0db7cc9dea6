"""The bit explorer's model, and its view's arithmetic against the model's."""

import math
import random
from dataclasses import asdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mptutor.formats import BF16, FP8_E5M2, FP16, FP32, FloatFormat
from mptutor.widgets.bit_explorer import (
    NO_CODE,
    SHOWN_FORMATS,
    BitExplorer,
    BitExplorerResult,
    explore,
    nearest_code,
    relative_error,
)
from mptutor.widgets.typed_numbers import print_number
from tests.javascript import evaluate

pytestmark = pytest.mark.lesson01

BY_NAME = pytest.mark.parametrize("fmt", SHOWN_FORMATS, ids=str)
SMALL = [fmt for fmt in SHOWN_FORMATS if fmt.bits <= 8]


def same(a, b):
    return (math.isnan(a) and math.isnan(b)) or (a, math.copysign(1, a)) == (b, math.copysign(1, b))


# -- what is shown ---------------------------------------------------------------------------------

WANTED = ["0.1", "-1/3", "2048+1", "65519", "65520", "2^-24", "2^-25", "464", "465", "1e30", "0"]


@pytest.mark.parametrize("text", WANTED)
@pytest.mark.parametrize("fmt", [FP16, BF16, FP8_E5M2, FP32], ids=str)
def test_the_stored_value_is_torchs(fmt, text):
    result = BitExplorer(text, fmt).result
    stored = torch.tensor(result.wanted, dtype=torch.float64).to(fmt.torch_dtype)
    assert result[fmt].value == stored.double().item()


def test_every_format_is_there_at_once():
    stored = BitExplorer(0.1).result.stored
    assert list(stored) == [fmt.name for fmt in SHOWN_FORMATS]
    assert [s.value for s in stored.values()] == [
        *(torch.tensor(0.1, dtype=torch.float32).item(), 0.0999755859375, 0.10009765625),
        *(0.0999755859375, 0.09375, 0.1015625, 0.125, 0.125, 0.0),
    ]


def test_a_stored_number_knows_its_surroundings():
    stored = BitExplorer(2048).result["FP16"]
    assert (stored.below, stored.above, stored.ulp) == (2047.0, 2050.0, 2.0)
    assert (stored.bits, stored.code, stored.kind) == ("0 11010 0000000000", 0x6800, "normal")


@pytest.mark.parametrize(
    ("value", "wanted", "error"),
    [
        (1.0, 1.0, 0),
        (0.0, 0.0, 0),
        (3.0, 4.0, 0.25),
        (0.0, 4.0, 1),
        (math.inf, 7e4, math.inf),
        (448.0, math.inf, math.inf),
        (math.inf, math.inf, 0),
        (math.nan, 1.0, math.nan),
    ],
)
def test_the_relative_error_is_relative_to_the_wanted_number(value, wanted, error):
    assert same(relative_error(value, wanted), error)


# -- setting the traits ----------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", SMALL, ids=str)
def test_every_code_can_be_set_and_stays(fmt):
    explorer = BitExplorer(1.0, fmt)
    for code in fmt.codes():
        explorer.code = code
        assert explorer.code == code
        assert explorer.result[fmt].code == code
        assert same(explorer.result.wanted, fmt.decode(code).value)


@BY_NAME
def test_both_ends_of_every_range(fmt):
    explorer = BitExplorer(0.1, fmt)
    for code in (0, 1, fmt.max_code, 2 ** (fmt.bits - 1), 2**fmt.bits - 1):
        explorer.code = code
        assert (explorer.code, explorer.result.problem) == (code, "")
    for text in ("inf", "-inf", "-0", print_number(fmt.max), print_number(fmt.smallest_subnormal)):
        explorer.text = text
        assert explorer.code == fmt.encode(explorer.result.wanted)


@BY_NAME
def test_nan_in_every_format(fmt):
    explorer = BitExplorer("nan", fmt)
    stored = explorer.result[fmt]
    if fmt.special == "none":
        assert (explorer.code, stored.code, stored.bits, stored.kind) == (
            NO_CODE,
            None,
            None,
            "none",
        )
    else:
        assert (explorer.code, stored.kind) == (stored.code, "nan")
    assert math.isnan(stored.value)


@pytest.mark.parametrize("number", [0.1, -7e4, 1e-9])
def test_choosing_a_format_keeps_the_number(number):
    explorer = BitExplorer(number)
    for fmt in SHOWN_FORMATS:
        explorer.fmt = fmt.name
        assert explorer.result.wanted == number
        assert explorer.code == fmt.encode(number)


def test_setting_a_code_wants_the_number_it_stands_for():
    explorer = BitExplorer(0.1)
    explorer.code = 0x7BFF
    assert explorer.text == "65504"
    explorer.code = 0x7E01
    assert (explorer.text, explorer.result["FP16"].bits) == ("nan", "0 11111 1000000001")


def test_a_typed_text_is_kept_as_typed():
    explorer = BitExplorer(1)
    explorer.text = "2048 + 1"
    assert (explorer.text, explorer.code) == ("2048 + 1", FP16.encode(2049))


def test_what_the_view_sends_is_kept_as_sent():
    explorer = BitExplorer(0.1)
    explorer.set_state({"text": "nan", "code": 0x7E01})
    assert (explorer.text, explorer.code) == ("nan", 0x7E01)
    explorer.set_state({"text": "1/3", "fmt": "BF16", "code": BF16.encode(1 / 3)})
    assert (explorer.text, explorer.fmt, explorer.code) == ("1/3", "BF16", BF16.encode(1 / 3))


def test_formats_of_ones_own():
    e3m4 = FloatFormat("E3M4", exponent_bits=3, mantissa_bits=4)
    explorer = BitExplorer(0.1, e3m4, formats=[FP16, e3m4])
    assert list(explorer.result.stored) == ["FP16", "E3M4"]
    assert explorer.result[e3m4].value == e3m4.decode(e3m4.encode(0.1)).value


# -- input that makes no sense ---------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "abc", "1/0", "2^0.5"])
def test_an_unreadable_text_gets_a_sentence_and_changes_nothing_else(text):
    explorer = BitExplorer(0.5)
    explorer.text = text
    result = explorer.result
    assert result.problem.endswith("Type a number such as 0.1, 2048+1 or 2^-25.")
    assert (result.wanted, result["FP16"].value, explorer.code) == (0.5, 0.5, FP16.encode(0.5))
    assert explorer.describe() == result.problem
    explorer.text = "0.25"
    assert (explorer.result.problem, explorer.result.wanted) == ("", 0.25)


@pytest.mark.parametrize("code", [-2, 65536, 10**12])
def test_a_code_out_of_range_gets_a_sentence(code):
    explorer = BitExplorer(0.5)
    explorer.code = code
    assert (
        explorer.result.problem == f"{code} is no code of FP16: its 16 bits count from 0 to 65535."
    )
    assert explorer.result["FP16"].value == 0.5


def test_a_code_mends_an_unreadable_text():
    explorer = BitExplorer(0.5)
    explorer.text = "abc"
    explorer.code = FP16.encode(2.0)
    assert (explorer.text, explorer.result.problem) == ("2", "")


def test_a_format_that_is_not_shown_is_refused():
    with pytest.raises(ValueError, match="fmt is 'FP32'; allowed are FP16, BF16"):
        BitExplorer(0.1, FP32, formats=[FP16, BF16])
    with pytest.raises(ValueError, match="fmt is 'FP17'; allowed are"):
        BitExplorer(0.1).fmt = "FP17"


@BY_NAME
@pytest.mark.parametrize("text", [*WANTED, "nan", "-inf", "abc"])
def test_the_picture_and_the_sentence_can_always_be_made(fmt, text):
    explorer = BitExplorer(text, fmt)
    assert explorer.describe().endswith(".")
    assert explorer.picture().count("<rect") == 1 + sum(shown.bits for shown in SHOWN_FORMATS)


# -- the view computes what the model computes -----------------------------------------------------

SOURCE = BitExplorer._esm
ROWS = BitExplorer(0.1).state()["rows"]


def row_of(fmt):
    return next(row for row in ROWS if row["name"] == fmt.name)


def codes_to_compare(fmt):
    """Every code up to 16 bits; of the wider formats the ends, the binades and random ones."""
    if fmt.bits <= 16:
        return list(fmt.codes())
    step, sign = 2**fmt.mantissa_bits, 2 ** (fmt.bits - 1)
    binades = [c + d for c in range(0, sign, step) for d in (-2, -1, 0, 1, 2)]
    chosen = [c for c in [*binades, sign - 1] if 0 <= c < sign]
    draw = random.Random(0)
    return [
        *chosen,
        *(c + sign for c in chosen),
        *(draw.randrange(2 * sign) for _ in range(20_000)),
    ]


def numbers_to_compare():
    """Values of FP16, the ties between them and what lies right beside, and any double at all."""
    numbers = [FP16.decode(code).value for code in range(0, FP16.max_code + 1, 7)]
    ties = [x + FP16.ulp(x) / 2 for x in numbers]
    beside = [math.nextafter(x, to) for x in ties for to in (0, math.inf)]
    draw = random.Random(0)
    any_size = [math.ldexp(draw.uniform(-1, 1), draw.randrange(-200, 200)) for _ in range(8000)]
    limits = [t for f in SHOWN_FORMATS for t in (f.max, f.smallest_subnormal, f.smallest_normal)]
    around = [x * k for x in limits for k in (0.5, 0.75, 1, 1 + 2**-25, 1 + 2**-24, 1.03125, 1.5)]
    numbers += ties + beside + any_size + around
    return [s * x for x in numbers for s in (1, -1)] + [
        0.0,
        -0.0,
        math.inf,
        -math.inf,
        5e-324,
        1e308,
    ]


@BY_NAME
def test_the_view_decodes_as_the_model_does(fmt):
    codes = codes_to_compare(fmt)
    fields = (
        "[d.sign, d.exponentField, d.mantissaField, d.exponent, d.significand, d.kind, d.value]"
    )
    decoded = f"codes.map((c) => {{ const d = decode(c, row); return {fields}; }})"
    for code, seen in zip(
        codes, evaluate(SOURCE, decoded, codes=codes, row=row_of(fmt)), strict=True
    ):
        d = fmt.decode(code)
        expected = [d.sign, d.exponent_field, d.mantissa_field, d.exponent, d.significand, d.kind]
        assert seen[:-1] == expected, code
        assert same(float(seen[-1]), d.value), code


@BY_NAME
def test_the_view_encodes_as_the_model_does(fmt):
    numbers = numbers_to_compare()
    texts = [print_number(x) for x in [*numbers, math.nan]]
    seen = evaluate(
        SOURCE, "texts.map((t) => encode(readNumber(t), row))", texts=texts, row=row_of(fmt)
    )
    expected = [nearest_code(x, fmt) for x in [*numbers, math.nan]]
    assert [NO_CODE if code is None else code for code in seen] == expected


@BY_NAME
def test_the_view_finds_the_models_neighbours(fmt):
    codes = codes_to_compare(fmt)[::3] if fmt.bits > 8 else codes_to_compare(fmt)
    spaced = "codes.map((c) => { const { value } = decode(c, row); "
    spaced += "return [...neighbours(value, row), ulpOf(value, row)]; })"
    for code, seen in zip(
        codes, evaluate(SOURCE, spaced, codes=codes, row=row_of(fmt)), strict=True
    ):
        value = fmt.decode(code).value
        expected = [*fmt.neighbours(value), fmt.ulp(value)]
        assert all(same(float(a), b) for a, b in zip(seen, expected, strict=True)), code


@given(
    text=st.one_of(st.floats().map(print_number), st.sampled_from([*WANTED, "nan", "abc", "-inf"])),
    fmt=st.sampled_from(SHOWN_FORMATS),
    code=st.integers(-2, 2**33),
)
@settings(max_examples=300)
def states(seen, text, fmt, code):
    """Collect states; running the view once for all of them is quicker than once for each."""
    seen.append((text, fmt, code % 2 ** (fmt.bits + 1) if code > 0 else code))


def test_the_view_shows_what_the_model_shows():
    collected = []
    states(collected)
    asked = [{"text": t, "fmt": f.name, "code": c, "rows": ROWS} for t, f, c in collected]
    shown = evaluate(SOURCE, "asked.map(explore)", asked=asked)
    for (text, fmt, code), view in zip(collected, shown, strict=True):
        assert_same_result(view, explore(text, fmt, code))


def assert_same_result(view, model: BitExplorerResult):
    assert same(float(view["wanted"]), model.wanted)
    assert view["problem"] == model.problem
    for seen, expected in zip(view["stored"], map(asdict, model.stored.values()), strict=True):
        assert seen["fmt"]["name"] == expected["fmt"]
        assert seen["code"] == expected["code"] and seen["kind"] == expected["kind"]
        assert seen["bits"] == (expected["bits"] and expected["bits"].replace(" ", ""))
        for name in ("value", "below", "above", "ulp", "relative_error"):
            name_there = name.replace("relative_error", "relativeError")
            assert same(float(seen[name_there]), expected[name]), (name, expected)


def test_the_view_says_what_a_format_makes_of_a_number():
    asked = [("0.1", "FP16"), ("65520", "FP16"), ("2^-25", "FP16"), ("3*2^-24", "FP16")]
    asked += [
        ("1000", "FP8_E4M3"),
        ("nan", "FP4_E2M1"),
        ("nan", "FP16"),
        ("0.5", "FP16"),
        ("460", "FP8_E4M3"),
    ]
    asked = [{"text": t, "fmt": f, "code": 0, "rows": ROWS} for t, f in asked]
    assert evaluate(SOURCE, "asked.map((state) => sentence(explore(state)))", asked=asked) == [
        "FP16 stores 0.1 as 0.0999755859. That is off by 0.024 %.",
        "65520 is too large for FP16. It becomes ∞. The largest number is 65504.",
        "2^-25 is too small for FP16. It becomes 0. The smallest positive number is 5.96e-8.",
        "FP16 holds 3*2^-24 exactly. It is subnormal: 2 significant bits are left of 11.",
        "1000 is too large for FP8 E4M3. It becomes 448, the largest number.",
        "FP4 E2M1 has no NaN: each of its codes is a number.",
        "FP16 stores NaN: not a number.",
        "FP16 holds 0.5 exactly.",
        "FP8 E4M3 stores 460 as 448. That is off by 2.6 %.",
    ]


EXACT = [
    (0.0999755859375, "0.0999755859375"),
    (2.0**-24, "5.9604644775390625e-8"),
    (2.0**-14, "0.00006103515625"),
    (2.0**40, "1.099511627776e12"),
    (65504.0, "65504"),
    (-0.5, "-0.5"),
]


@pytest.mark.parametrize(("x", "text"), EXACT)
def test_the_view_prints_all_digits_while_they_are_few(x, text):
    assert evaluate(SOURCE, "exactNumber(x)", x=x) == text
    assert float(text) == x


@pytest.mark.parametrize("x", [2.0**-149, 0.1])
def test_the_view_says_when_there_are_more_digits(x):
    assert evaluate(SOURCE, "exactNumber(x)", x=x) == f"{float(f'{x:.15g}')}…"


def test_a_lesson_chooses_the_numbers_to_jump_to():
    assert BitExplorer(examples=["100", "0.1"]).examples == [
        ["100", "the number 100"],
        ["0.1", "one tenth"],
    ]
    with pytest.raises(ValueError, match="Type a number"):
        BitExplorer(examples=["ten"])
