"""Every format against torch, ml_dtypes, gfloat and the tables of the standards."""

import functools
import itertools
import math

import gfloat
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import mptutor as mpt
from mptutor.formats import NAMED_FORMATS, FloatFormat, check_overflow, get_format
from tests.float_oracles import (
    CUSTOM,
    ML_DTYPES,
    NAMED,
    SMALL,
    any_format,
    assert_same_numbers,
    fp32_value,
    gfloat_info,
    hard_values,
    ml_dtypes_values,
    positive_values,
    some_codes,
    torch_values,
    unbounded,
)

IN_TORCH = [mpt.FP16, mpt.BF16, mpt.FP8_E4M3, mpt.FP8_E5M2]
FINITE_DOUBLES = st.floats(allow_nan=False, allow_infinity=False)


def name_of(value):
    return value.name if isinstance(value, FloatFormat) else None


every = functools.partial(pytest.mark.parametrize, ids=name_of)


@functools.cache
def decoded_values(fmt):
    return np.array([fmt.decode(code).value for code in fmt.codes()])


# -- decode ------------------------------------------------------------------------------------


@every("fmt", IN_TORCH)
def test_every_code_is_the_number_torch_reads(fmt):
    assert_same_numbers(decoded_values(fmt), torch_values(fmt))


@every("fmt", list(ML_DTYPES))
def test_every_code_is_the_number_ml_dtypes_reads(fmt):
    assert_same_numbers(decoded_values(fmt), ml_dtypes_values(fmt))


@every("fmt", NAMED + CUSTOM)
def test_every_field_is_as_in_gfloat(fmt):
    kinds = {"ZERO": "zero", "SUBNORMAL": "subnormal", "NORMAL": "normal", "INFINITE": "inf"}
    for code in some_codes(fmt).tolist():
        got, want = fmt.decode(code), gfloat.decode_float(gfloat_info(fmt), code)
        assert got.kind == kinds.get(want.fclass.name, "nan")
        assert (got.code, got.sign) == (code, want.signbit)
        assert (got.exponent_field, got.mantissa_field) == (want.exp, want.significand)
        if got.kind in ("inf", "nan"):
            assert got.exponent is got.significand is None
            assert got.kind == "nan" or got.value == want.fval
        else:
            assert (got.exponent, got.significand) == (want.expval, want.fsignificand)
            assert_same_numbers(got.value, want.fval)
            assert got.value == (-1) ** got.sign * got.significand * 2.0**got.exponent


def test_fp32_and_tf32_codes_are_the_top_bits_of_fp32():
    for code in some_codes(mpt.FP32).tolist():
        assert_same_numbers(mpt.FP32.decode(code).value, fp32_value(code))
    for code in some_codes(mpt.TF32).tolist():
        assert_same_numbers(mpt.TF32.decode(code).value, fp32_value(code << 13))


def test_bits_and_text_show_the_fields():
    one_third = mpt.FP16.decode(0b1_01101_0101010101)
    assert one_third.bits == "1 01101 0101010101"
    assert str(one_third) == "1 01101 0101010101 = -1.3330078125 × 2^-2 = -0.333251953125"
    assert str(mpt.FP16.decode(0x7C00)) == "0 11111 0000000000 = inf"
    assert mpt.FP4_E2M1.decode(7).bits == "0 11 1"


def test_codes_count_upwards_with_the_values():
    for fmt in SMALL:
        assert len(fmt.codes()) == 2**fmt.bits
        assert (np.diff(decoded_values(fmt)[: fmt.max_code + 1]) > 0).all()


def test_decode_takes_numpy_integers_of_any_width():
    codes = np.arange(256, dtype=np.uint8)
    values = [mpt.FP8_E5M2.decode(code).value for code in codes]
    assert_same_numbers(values, torch_values(mpt.FP8_E5M2))


# -- encode ------------------------------------------------------------------------------------


@every("fmt", NAMED + CUSTOM)
def test_encode_undoes_decode(fmt):
    for code in some_codes(fmt).tolist():
        decoded = fmt.decode(code)
        overflow = "inf" if decoded.kind == "inf" else None
        again = fmt.encode(decoded.value, overflow)
        if decoded.kind == "nan":
            assert fmt.decode(again).kind == "nan" and fmt.decode(again).sign == decoded.sign
        else:
            assert again == code


def test_encoded_nan_is_the_one_torch_makes():
    nan = torch.tensor(math.nan)
    assert mpt.FP16.encode(math.nan) == nan.half().view(torch.int16).item() == 0x7E00
    assert mpt.FP8_E4M3.encode(math.nan) == nan.to(torch.float8_e4m3fn).view(torch.uint8).item()
    assert mpt.FP32.encode(math.nan) == nan.view(torch.int32).item()


@every("fmt", [mpt.FP16, mpt.BF16, mpt.FP8_E5M2])
def test_encode_rounds_as_torch_casts(fmt):
    x = hard_values(fmt)[:-1]  # without NaN
    int_dtype = torch.uint8 if fmt.bits == 8 else torch.int16
    want = torch.from_numpy(x).to(fmt.torch_dtype).view(int_dtype)
    want = want.to(torch.int64) & (2**fmt.bits - 1)
    assert [fmt.encode(value) for value in x.tolist()] == want.tolist()


@every("fmt", list(ML_DTYPES))
def test_encode_rounds_as_ml_dtypes_casts(fmt):
    # Beyond the largest number ml_dtypes makes an E4M3 NaN, and saturates FP6 and FP4.
    overflow = "nan" if fmt is mpt.FP8_E4M3 else None
    x = hard_values(fmt)[:-1]
    with np.errstate(over="ignore", invalid="ignore"):
        codes = x.astype(ML_DTYPES[fmt]).view(np.uint16 if fmt.bits == 16 else np.uint8)
    want = codes & (2**fmt.bits - 1)
    assert [fmt.encode(value, overflow) for value in x.tolist()] == want.tolist()


@every("fmt", [mpt.TF32, *CUSTOM])
def test_encode_rounds_as_gfloat(fmt):
    for x in hard_values(fmt)[:-1:7].tolist():
        want = gfloat.round_float(gfloat_info(fmt), x, sat=fmt.overflow == "saturate")
        assert_same_numbers(fmt.decode(fmt.encode(x)).value, want)


@given(any_format(), st.floats(allow_nan=False))
def test_encode_rounds_doubles_of_any_size_once(fmt, x):
    want = gfloat.round_float(gfloat_info(fmt), x, sat=fmt.overflow == "saturate")
    assert_same_numbers(fmt.decode(fmt.encode(x)).value, want)


@given(st.floats(allow_nan=False))
def test_encode_to_fp32_is_numpys(x):
    with np.errstate(over="ignore"):
        assert mpt.FP32.encode(x) == int(np.float64(x).astype(np.float32).view(np.uint32))


@every("fmt", NAMED)
def test_overflow_rules_of_encode(fmt):
    for sign in (1, -1):
        for too_large in (sign * fmt.overflow_threshold, sign * 1e300, sign * math.inf):
            largest = fmt.encode(sign * fmt.max)
            assert fmt.encode(too_large, "saturate") == largest
            if fmt.special == "ieee":
                assert fmt.encode(too_large) == fmt.encode(too_large, "inf") == largest + 1
            else:
                assert fmt.encode(too_large) == largest
            if fmt.special != "none":
                kind = fmt.decode(fmt.encode(too_large, "nan")).kind
                assert kind == "nan"


# -- spacing and neighbours --------------------------------------------------------------------


@every("fmt", SMALL + [fmt for fmt in CUSTOM if fmt.bits < 16])
def test_neighbours_and_ulp_against_the_list_of_all_values(fmt):
    beyond = math.inf if fmt.special == "ieee" else math.nan
    positive = positive_values(fmt)
    values = np.concatenate([-positive[:0:-1], positive]).tolist()
    for below, above in itertools.pairwise(values):
        assert fmt.neighbours(below)[1] == above
        assert fmt.neighbours(above)[0] == below
        between = below + (above - below) * 0.3
        assert fmt.neighbours(between) == (below, above)
    for value, above in itertools.pairwise(positive.tolist()):
        assert fmt.ulp(value) == fmt.ulp(-value) == above - value
        assert fmt.ulp(value + (above - value) * 0.7) == above - value
    assert_same_numbers(fmt.neighbours(fmt.max), (values[-2], beyond))
    assert_same_numbers(fmt.neighbours(-fmt.max), (-beyond, values[1]))
    for large in (fmt.max * 1.01, fmt.max * 4, math.inf):
        assert_same_numbers(fmt.neighbours(large), (fmt.max, beyond))
        assert_same_numbers(fmt.neighbours(-large), (-beyond, -fmt.max))
        assert fmt.ulp(large) == fmt.ulp(fmt.max) == 2.0 ** (fmt.emax - fmt.mantissa_bits)


@pytest.mark.parametrize("fmt, dtype", [(mpt.FP16, np.float16), (mpt.FP32, np.float32)])
def test_neighbours_and_ulp_are_numpys(fmt, dtype):
    codes = some_codes(fmt)[::5].astype(np.uint16 if fmt.bits == 16 else np.uint32)
    values = codes.view(dtype)
    values = values[np.isfinite(values)]
    with np.errstate(over="ignore", under="ignore"):
        below, above = np.nextafter(values, dtype(-np.inf)), np.nextafter(values, dtype(np.inf))
        spacing = np.spacing(np.abs(values))
    spacing[np.abs(values) == fmt.max] = fmt.max - np.nextafter(dtype(fmt.max), dtype(0))
    got = np.array([fmt.neighbours(x) for x in values.tolist()])
    # numpy steps from the smallest negative number to -0.0; the course writes that zero as 0.0.
    assert (got[:, 0] == below).all() and (got[:, 1] == above).all()
    assert [fmt.ulp(x) for x in values.tolist()] == spacing.tolist()


@given(any_format(), FINITE_DOUBLES)
def test_neighbours_enclose_any_number(fmt, x):
    below, above = fmt.neighbours(x)
    info = gfloat_info(fmt)
    assume(abs(x) < fmt.max)
    assert below < x < above
    assert below == gfloat.round_float(info, below) and above == gfloat.round_float(info, above)
    rounded_down = gfloat.round_float(info, x, gfloat.RoundMode.TowardNegative)
    rounded_up = gfloat.round_float(info, x, gfloat.RoundMode.TowardPositive)
    is_member = rounded_down == rounded_up
    assert is_member or (below, above) == (rounded_down, rounded_up)
    # No third number lies nearer: a little way towards x every neighbour is rounded back.
    assert gfloat.round_float(info, below + (x - below) / 8) == below or is_member


def test_neighbours_and_ulp_at_nan_and_zero():
    assert_same_numbers(mpt.FP16.neighbours(math.nan), (math.nan, math.nan))
    assert math.isnan(mpt.FP16.ulp(math.nan))
    for zero in (0.0, -0.0):
        assert mpt.FP16.neighbours(zero) == (-(2.0**-24), 2.0**-24)
    assert_same_numbers(mpt.FP16.neighbours(1e-9), (0.0, 2.0**-24))
    assert_same_numbers(mpt.FP16.neighbours(-1e-9), (-(2.0**-24), 0.0))


# -- limits ------------------------------------------------------------------------------------


@every("fmt", [mpt.FP32, *IN_TORCH])
def test_limits_are_those_torch_reports(fmt):
    info = torch.finfo(fmt.torch_dtype)
    assert (fmt.max, -fmt.max, fmt.eps) == (info.max, info.min, info.eps)
    assert (fmt.smallest_normal, fmt.bits) == (info.smallest_normal, info.bits)


@every("fmt", list(ML_DTYPES))
def test_limits_are_those_ml_dtypes_reports(fmt):
    import ml_dtypes

    info = ml_dtypes.finfo(ML_DTYPES[fmt])
    assert (fmt.max, fmt.eps, fmt.bits) == (float(info.max), float(info.eps), info.bits)
    assert fmt.smallest_normal == float(info.smallest_normal)
    assert fmt.smallest_subnormal == float(info.smallest_subnormal)
    assert (fmt.emin, fmt.emax) == (info.minexp, math.floor(math.log2(info.max)))


@pytest.mark.parametrize(
    "fmt, bits, precision, emax, bias, exponent_bits, mantissa_bits",
    [(mpt.FP16, 16, 11, 15, 15, 5, 10), (mpt.FP32, 32, 24, 127, 127, 8, 23)],
)
def test_ieee_754_2019_table_3_5(fmt, bits, precision, emax, bias, exponent_bits, mantissa_bits):
    assert (fmt.bits, fmt.mantissa_bits + 1) == (bits, precision)
    assert (fmt.emax, fmt.emin, fmt.bias) == (emax, 1 - emax, bias)
    assert (fmt.exponent_bits, fmt.mantissa_bits) == (exponent_bits, mantissa_bits)


@pytest.mark.parametrize(
    "fmt, bias, emax, emin, largest, smallest_normal, smallest_subnormal",
    [
        # OCP 8-bit Floating Point Specification (OFP8), tables 1 and 2
        (mpt.FP8_E4M3, 7, 8, -6, 448, 2**-6, 2**-9),
        (mpt.FP8_E5M2, 15, 15, -14, 57344, 2**-14, 2**-16),
        # OCP Microscaling Formats (MX) Specification, tables of 5.3.2 (FP6) and 5.3.3 (FP4)
        (mpt.FP6_E2M3, 1, 2, 0, 7.5, 1.0, 0.125),
        (mpt.FP6_E3M2, 3, 4, -2, 28.0, 0.25, 0.0625),
        (mpt.FP4_E2M1, 1, 2, 0, 6.0, 1.0, 0.5),
    ],
)
def test_ocp_tables(fmt, bias, emax, emin, largest, smallest_normal, smallest_subnormal):
    assert (fmt.bias, fmt.emax, fmt.emin, fmt.max) == (bias, emax, emin, largest)
    assert (fmt.smallest_normal, fmt.smallest_subnormal) == (smallest_normal, smallest_subnormal)


def test_ofp8_table_2_special_codes():
    assert [c for c in range(256) if mpt.FP8_E4M3.decode(c).kind == "nan"] == [0x7F, 0xFF]
    assert [c for c in range(256) if mpt.FP8_E5M2.decode(c).kind == "inf"] == [0x7C, 0xFC]
    nans = [0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]
    assert [c for c in range(256) if mpt.FP8_E5M2.decode(c).kind == "nan"] == nans
    assert mpt.FP8_E4M3.max_code == 0x7E and mpt.FP8_E5M2.max_code == 0x7B


# -- thresholds --------------------------------------------------------------------------------


@every("fmt", [mpt.FP16, mpt.BF16, mpt.FP8_E5M2])
def test_thresholds_are_where_torch_casts_change(fmt):
    def cast(x):
        return torch.tensor(x, dtype=torch.float32).to(fmt.torch_dtype).float()

    under, over = np.float32(fmt.underflow_threshold), np.float32(fmt.overflow_threshold)
    assert float(under) == fmt.underflow_threshold and float(over) == fmt.overflow_threshold
    assert cast(under) == 0 and cast(np.nextafter(under, np.float32(1))) > 0
    assert cast(over).isinf() and cast(np.nextafter(over, np.float32(0))) == fmt.max


def test_thresholds_everybody_should_know():
    assert mpt.FP16.overflow_threshold == 65520
    assert mpt.FP16.underflow_threshold == 2.0**-25
    assert mpt.FP8_E4M3.overflow_threshold == 464 + 2.0**-15  # 464 is a tie, and 448 is even
    assert mpt.FP4_E2M1.overflow_threshold == 7


@given(any_format())
def test_thresholds_are_the_last_and_first_fp32_number(fmt):
    grid = unbounded(fmt)
    under = fmt.underflow_threshold
    assert gfloat.round_float(grid, under) == 0
    assert gfloat.round_float(grid, math.nextafter(under, 1)) == fmt.smallest_subnormal

    over = fmt.overflow_threshold
    assert gfloat.round_float(grid, over) > fmt.max
    if fmt.mantissa_bits < 23:  # with 23 bits the real tie is given, which is no FP32 number
        over = np.float32(over)
        assert float(over) == fmt.overflow_threshold
        assert gfloat.round_float(grid, float(np.nextafter(over, np.float32(0)))) == fmt.max


@given(any_format(max_mantissa_bits=23))
def test_comparing_fp32_numbers_with_the_threshold_tells_which_overflow(fmt):
    x = torch.tensor(fmt.max)
    x = torch.stack([x, torch.nextafter(x, torch.tensor(math.inf)), x * 1.75])
    overflows = [gfloat.round_float(unbounded(fmt), value) > fmt.max for value in x.tolist()]
    assert (x >= fmt.overflow_threshold).tolist() == overflows


# -- formats as values -------------------------------------------------------------------------


def test_formats_are_frozen_values():
    with pytest.raises(AttributeError):
        mpt.FP16.bias = 3
    assert FloatFormat("E4M3", 4, 3) == FloatFormat("E4M3", 4, 3, bias=7)
    assert len({FloatFormat("E4M3", 4, 3), FloatFormat("E4M3", 4, 3, 7), mpt.FP16}) == 2
    assert FloatFormat("E4M3", 4, 3).max == 240 and mpt.FP8_E4M3.max == 448


def test_get_format():
    for name, fmt in NAMED_FORMATS.items():
        assert fmt.name == name and str(fmt) == name
        assert get_format(fmt) is get_format(name) is get_format(name.lower()) is fmt
        if fmt.torch_dtype is not None:
            assert get_format(fmt.torch_dtype) is fmt
    custom = FloatFormat("E5M7", 5, 7)
    assert get_format(custom) is custom


@pytest.mark.parametrize("unknown", ["FP12", "", None, 16, torch.int32, torch.float64, np.float16])
def test_get_format_refuses_the_unknown(unknown):
    with pytest.raises(ValueError, match=r"fmt is .*allowed are .*BF16"):
        get_format(unknown)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"exponent_bits": 1}, r"exponent_bits is 1; allowed are integers from 2 to 8"),
        ({"exponent_bits": 9}, r"exponent_bits is 9; .* 2 to 8"),
        ({"exponent_bits": 8, "special": "nan"}, r"exponent_bits is 8; .* 2 to 7"),
        ({"exponent_bits": 8, "special": "none"}, r"exponent_bits is 8; .* 2 to 7"),
        ({"exponent_bits": 4.0}, r"exponent_bits is 4\.0"),
        ({"exponent_bits": "4"}, r"exponent_bits is '4'"),
        ({"exponent_bits": True}, r"exponent_bits is True"),
        ({"mantissa_bits": 0}, r"mantissa_bits is 0; .* 1 to 23"),
        ({"mantissa_bits": 24}, r"mantissa_bits is 24; .* 1 to 23"),
        ({"bias": 0}, r"bias is 0; .* 1 to 14"),
        ({"bias": 15}, r"bias is 15; .* 1 to 14"),
        ({"bias": 16, "special": "nan"}, r"bias is 16; .* 1 to 15"),
        ({"exponent_bits": 8, "bias": 126}, r"bias is 126; .* 127 to 127"),
        ({"special": "fn"}, r"special is 'fn'; allowed are \('ieee', 'nan', 'none'\)"),
    ],
)
def test_a_format_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        FloatFormat(**{"name": "bad", "exponent_bits": 4, "mantissa_bits": 3, **arguments})


def test_bad_codes_and_numbers_are_refused():
    for code in (-1, 65536, 1.0, "0", None, True):
        with pytest.raises(ValueError, match=r"code is .*; allowed are integers from 0 to 65535"):
            mpt.FP16.decode(code)
    for x in ("a", "1", None):
        with pytest.raises(TypeError, match=rf"x is {x!r}; allowed are real numbers"):
            mpt.FP16.encode(x)
    with pytest.raises(ValueError, match="x is nan, and FP4_E2M1 has no code for it"):
        mpt.FP4_E2M1.encode(math.nan)
    with pytest.raises(ValueError, match=r"overflow is 'wrap'; allowed are .*'saturate'"):
        mpt.FP16.encode(1.0, overflow="wrap")
    for fmt, overflow in [(mpt.FP8_E4M3, "inf"), (mpt.FP4_E2M1, "inf"), (mpt.FP4_E2M1, "nan")]:
        with pytest.raises(ValueError, match=f"'{overflow}', but {fmt.name} has no {overflow}"):
            check_overflow(fmt, overflow)


def test_a_format_shows_itself_in_plain_html():
    page = FloatFormat("<b>E4M3</b>", 4, 3)._repr_html_()
    assert page.startswith("<table>") and page.endswith("</table>")
    assert "&lt;b&gt;E4M3&lt;/b&gt;" in page and "1 + 4 + 3" in page and "240" in page
    for active in ("<script", "style=", "<b>", "onclick"):
        assert active not in page
