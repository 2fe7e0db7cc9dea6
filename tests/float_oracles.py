"""What other people's libraries say about the formats, for test_formats.py and test_rounding.py.

torch and ml_dtypes are asked by reading a code's bits as one of their numbers, so that no
conversion of theirs stands in between. gfloat is slow and complete: it knows any format, every
rounding mode, and works in FP64.
"""

import functools
import struct

import gfloat
import ml_dtypes
import numpy as np
import torch
from hypothesis import strategies as st

import mptutor as mpt

NAMED = list(mpt.formats.NAMED_FORMATS.values())
SMALL = [fmt for fmt in NAMED if fmt.bits <= 16]

ML_DTYPES = {
    mpt.FP16: np.dtype(np.float16),
    mpt.BF16: np.dtype(ml_dtypes.bfloat16),
    mpt.FP8_E4M3: np.dtype(ml_dtypes.float8_e4m3fn),
    mpt.FP8_E5M2: np.dtype(ml_dtypes.float8_e5m2),
    mpt.FP6_E2M3: np.dtype(ml_dtypes.float6_e2m3fn),
    mpt.FP6_E3M2: np.dtype(ml_dtypes.float6_e3m2fn),
    mpt.FP4_E2M1: np.dtype(ml_dtypes.float4_e2m1fn),
}

#: Formats nobody named: narrow and wide fields, other biases, every rule for the top codes.
CUSTOM = [
    mpt.FloatFormat("E5M7", 5, 7),
    mpt.FloatFormat("E5M10", 5, 10),  # FP16 without torch's cast
    mpt.FloatFormat("E8M7", 8, 7),  # BF16 without torch's cast
    mpt.FloatFormat("E5M2", 5, 2),  # FP8 E5M2 without torch's cast
    mpt.FloatFormat("E4M3", 4, 3),
    mpt.FloatFormat("E4M3 bias 8", 4, 3, bias=8, special="nan"),
    mpt.FloatFormat("E4M3 bias 1", 4, 3, bias=1, special="none"),
    mpt.FloatFormat("E4M3 bias 14", 4, 3, bias=14),
    mpt.FloatFormat("E2M1", 2, 1),
    mpt.FloatFormat("E2M1 bias 2", 2, 1, bias=2),
    mpt.FloatFormat("E3M1 nan", 3, 1, special="nan"),
    mpt.FloatFormat("E7M4 nan", 7, 4, special="nan"),
    mpt.FloatFormat("E7M4 bias 126", 7, 4, bias=126),
    mpt.FloatFormat("E8M1", 8, 1),
]


@st.composite
def any_format(draw, max_mantissa_bits=23):
    special = draw(st.sampled_from(["ieee", "nan", "none"]))
    exponent_bits = draw(st.integers(2, 8 if special == "ieee" else 7))
    mantissa_bits = draw(st.integers(1, max_mantissa_bits))
    top_field = 2**exponent_bits - (2 if special == "ieee" else 1)
    bias = draw(st.none() | st.integers(max(1, top_field - 127), min(top_field, 127)))
    return mpt.FloatFormat("any", exponent_bits, mantissa_bits, bias, special)


@functools.cache
def gfloat_info(fmt):
    nans = {"ieee": 2**fmt.mantissa_bits - 1, "nan": 1, "none": 0}[fmt.special]
    return gfloat.FormatInfo(
        name=fmt.name,
        k=1 + fmt.exponent_bits + fmt.mantissa_bits,
        precision=1 + fmt.mantissa_bits,
        bias=fmt.bias,
        is_signed=True,
        domain=gfloat.Domain.Extended if fmt.special == "ieee" else gfloat.Domain.Finite,
        has_nz=True,
        num_high_nans=nans,
        has_subnormals=True,
        is_twos_complement=False,
    )


def unbounded(fmt):
    """gfloat's description of the same grid with an exponent that no FP32 number exceeds."""
    return gfloat.FormatInfo(
        name="unbounded",
        k=1 + 10 + fmt.mantissa_bits,
        precision=1 + fmt.mantissa_bits,
        bias=fmt.bias,
        is_signed=True,
        domain=gfloat.Domain.Extended,
        has_nz=True,
        num_high_nans=0,
        has_subnormals=True,
        is_twos_complement=False,
    )


def torch_values(fmt):
    """Read every code of ``fmt`` as a number of torch's."""
    int_dtype = torch.int16 if fmt.bits == 16 else torch.uint8
    codes = torch.arange(2**fmt.bits).to(int_dtype)
    return codes.view(fmt.torch_dtype).float().numpy()


def ml_dtypes_values(fmt):
    """Read every code of ``fmt`` as a number of NumPy's or ml_dtypes'."""
    codes = np.arange(2**fmt.bits).astype(np.uint16 if fmt.bits == 16 else np.uint8)
    return codes.view(ML_DTYPES[fmt]).astype(np.float32)


def fp32_value(code):
    """Read a 32-bit code as an FP32 number."""
    return struct.unpack("<f", struct.pack("<I", code))[0]


def some_codes(fmt):
    """Every code of a format of up to 16 bits; of a wider one the edges and a random sample."""
    if fmt.bits <= 16:
        return np.arange(2**fmt.bits)
    positive = np.random.default_rng(0).integers(0, 2 ** (fmt.bits - 1), 4000)
    edges = [0, 2**fmt.mantissa_bits, fmt.max_code, 2 ** (fmt.bits - 1) - 1]
    for edge in edges:
        positive = np.append(positive, np.arange(edge - 4, edge + 5))
    positive = np.unique(positive[(positive >= 0) & (positive < 2 ** (fmt.bits - 1))])
    return np.append(positive, positive + 2 ** (fmt.bits - 1))


@functools.cache
def positive_values(fmt):
    """Every finite non-negative value of a format of up to 16 bits, in order, by gfloat."""
    values = gfloat.decode_ndarray(gfloat_info(fmt), np.arange(2 ** (fmt.bits - 1)))
    return values[np.isfinite(values)]


@functools.cache
def hard_values(fmt):
    """FP32 numbers that a rounding can get wrong.

    Values of the format and the ties between neighbours, the tie beyond the largest number
    included, the FP32 numbers on either side of each, zeros, the ends of FP32, infinities, NaN.
    """
    if fmt.bits <= 16:
        values = positive_values(fmt)
    else:
        codes = some_codes(fmt)
        codes = codes[codes < fmt.max_code]
        codes = np.unique(np.concatenate([codes, codes + 1]))
        values = gfloat.decode_ndarray(gfloat_info(fmt), codes)
    beyond = values[-1] + np.ldexp(1.0, np.frexp(values[-1])[1] - 1 - fmt.mantissa_bits)
    ties = (values + np.append(values[1:], beyond)) / 2
    with np.errstate(over="ignore"):
        exact = np.concatenate([values, ties, [beyond, 2 * beyond]]).astype(np.float32)
    ends = np.float32([0, 2**-149, 2**-126, np.finfo(np.float32).max, np.inf])
    positive = np.concatenate(
        [exact, np.nextafter(exact, np.float32(0)), np.nextafter(exact, np.float32(np.inf)), ends]
    )
    positive = np.unique(positive)
    return np.concatenate([positive, -positive, np.float32([np.nan])])


@functools.cache
def random_patterns(count=2**20):
    """FP32 numbers of every kind and size: uniformly random bits."""
    return np.random.default_rng(1).integers(0, 2**32, count, dtype=np.uint32).view(np.float32)


def assert_same_numbers(got, want, inputs=None):
    """Compare numbers one by one: NaN equals NaN, and -0.0 does not equal 0.0."""
    with np.errstate(invalid="ignore"):  # NumPy warns of signalling NaNs
        got, want = np.asarray(got, dtype=np.float64), np.asarray(want, dtype=np.float64)
    assert got.shape == want.shape
    same = (got == want) & (np.signbit(got) == np.signbit(want))
    wrong = np.flatnonzero(~(same | (np.isnan(got) & np.isnan(want))))
    if wrong.size:
        first = wrong[0]
        at = first if inputs is None else np.asarray(inputs, dtype=np.float64)[first].hex()
        message = f"{wrong.size} of {got.size} differ, the first at {at}"
        raise AssertionError(f"{message}: got {got[first]!r}, want {want[first]!r}")
