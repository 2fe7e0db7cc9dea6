"""quantize against torch, NumPy, ml_dtypes and gfloat, on the numbers that are hard to round."""

import functools
import math

import gfloat
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mptutor as mpt
from mptutor import rounding
from mptutor.formats import FloatFormat
from tests.float_oracles import (
    CUSTOM,
    ML_DTYPES,
    NAMED,
    any_format,
    assert_same_numbers,
    gfloat_info,
    hard_values,
    positive_values,
    random_patterns,
)

E5M7 = FloatFormat("E5M7", 5, 7)
#: Named formats that torch rounds for us, under a name that makes our own arithmetic do it.
OURS = {
    mpt.FP16: FloatFormat("E5M10", 5, 10),
    mpt.BF16: FloatFormat("E8M7", 8, 7),
    mpt.FP8_E5M2: FloatFormat("E5M2", 5, 2),
}
DIRECTED = {
    "nearest_even": gfloat.RoundMode.TiesToEven,
    "toward_zero": gfloat.RoundMode.TowardZero,
    "up": gfloat.RoundMode.TowardPositive,
    "down": gfloat.RoundMode.TowardNegative,
}


def name_of(value):
    return value.name if isinstance(value, FloatFormat) else None


every = functools.partial(pytest.mark.parametrize, ids=name_of)


def quantize(x, *args, dtype=None, **kwargs):
    """Round a NumPy array, as a tensor of ``dtype`` if given."""
    return mpt.quantize(torch.from_numpy(np.array(x)).to(dtype), *args, **kwargs).numpy()


def gfloat_round(x, fmt, rounding="nearest_even", overflow=None):
    """Round to ``fmt`` as gfloat does, which has no rule "nan" where there are infinities."""
    overflow = fmt.overflow if overflow is None else overflow
    with np.errstate(all="ignore"):
        x = np.asarray(x, dtype=np.float64)
        is_nan = np.isnan(x)
        if overflow == "saturate":
            x_q = gfloat.round_ndarray(
                gfloat_info(fmt), np.where(is_nan, 0, x), DIRECTED[rounding], sat=True
            )
        else:
            x_q = gfloat.round_ndarray(gfloat_info(fmt), x, DIRECTED[rounding], sat=False)
            if overflow == "nan":
                x_q = np.where(np.isinf(x_q), np.nan, x_q)
    return np.where(is_nan, np.nan, x_q)


# -- nearest even, as the libraries cast -------------------------------------------------------


def everything(fmt):
    return np.concatenate([hard_values(fmt), random_patterns()])


@every("fmt", list(OURS))
def test_casts_are_torchs_and_so_is_our_own_arithmetic(fmt):
    x = everything(fmt)
    want = torch.from_numpy(x).to(fmt.torch_dtype).float().numpy()
    assert_same_numbers(quantize(x, fmt), want, x)
    assert_same_numbers(quantize(x, OURS[fmt]), want, x)


def test_e4m3_is_torchs_in_range():
    # Beyond the range torch's versions differ: NaN before, saturation on the CPU in 2.14.
    x = everything(mpt.FP8_E4M3)
    x = x[~(np.abs(x) >= mpt.FP8_E4M3.overflow_threshold)]
    want = torch.from_numpy(x).to(torch.float8_e4m3fn).float().numpy()
    assert_same_numbers(quantize(x, mpt.FP8_E4M3), want, x)


@every("fmt", list(ML_DTYPES))
def test_casts_are_ml_dtypes(fmt):
    x = everything(fmt)
    if fmt.special == "none":  # ml_dtypes makes -0.0 of NaN, we keep it
        x = x[~np.isnan(x)]
    with np.errstate(all="ignore"):
        want = x.astype(ML_DTYPES[fmt]).astype(np.float32)
    overflow = "nan" if fmt is mpt.FP8_E4M3 else None
    assert_same_numbers(quantize(x, OURS.get(fmt, fmt), overflow=overflow), want, x)


def test_fp32_changes_nothing():
    x = random_patterns()
    assert_same_numbers(quantize(x, mpt.FP32), x)
    assert_same_numbers(quantize(x, mpt.FP32, "stochastic"), x)


# -- every mode and every overflow rule, as gfloat has them ------------------------------------


@pytest.mark.parametrize("mode", list(DIRECTED))
@every("fmt", [fmt for fmt in NAMED if fmt is not mpt.FP32] + CUSTOM)
def test_modes_and_overflow_rules_are_gfloats(fmt, mode):
    x = hard_values(fmt)
    x = np.concatenate([x[:: max(1, len(x) // 20_000)], x[-300:], random_patterns()[:20_000]])
    rules = {"ieee": ["inf", "saturate", "nan"], "nan": ["saturate", "nan"], "none": ["saturate"]}
    for overflow in rules[fmt.special]:
        want = gfloat_round(x, fmt, mode, overflow)
        assert_same_numbers(quantize(x, fmt, mode, overflow), want, x)
        in_fp64 = quantize(x, fmt, mode, overflow, dtype=torch.float64)
        assert_same_numbers(in_fp64, want, x)


@every("fmt", [mpt.FP16, mpt.BF16, E5M7])
def test_directed_overflow_is_that_of_ieee_754_7_4(fmt):
    inf, largest = math.inf, fmt.max
    x = [1.5 * largest, inf, -1.5 * largest, -inf, largest, -largest]
    x = torch.tensor(x, dtype=torch.float64)
    want = {
        "nearest_even": [inf, inf, -inf, -inf, largest, -largest],
        "toward_zero": [largest, inf, -largest, -inf, largest, -largest],
        "up": [inf, inf, -largest, -inf, largest, -largest],
        "down": [largest, inf, -inf, -inf, largest, -largest],
    }
    for mode, results in want.items():
        assert mpt.quantize(x, fmt, mode).tolist() == results
        assert mpt.quantize(x, fmt, mode, "inf").tolist() == results


def test_overflow_rules_side_by_side():
    x = torch.tensor([447.0, 464.0, 465.0, 1e6, -math.inf, math.nan])
    saturated = mpt.quantize(x, "FP8_E4M3")
    assert_same_numbers(saturated, [448, 448, 448, 448, -448, math.nan])
    assert_same_numbers(mpt.quantize(x, "FP8_E4M3", overflow="saturate"), saturated)
    as_nan = mpt.quantize(x, "FP8_E4M3", overflow="nan")
    assert_same_numbers(as_nan, [448, 448, math.nan, math.nan, math.nan, math.nan])
    x = torch.tensor([65519.0, 65520.0, -65520.0])
    assert mpt.quantize(x, "FP16").tolist() == [65504, math.inf, -math.inf]
    assert mpt.quantize(x, "FP16", overflow="saturate").tolist() == [65504, 65504, -65504]
    assert_same_numbers(
        mpt.quantize(x, "FP16", overflow="nan"), np.float32([65504, np.nan, np.nan])
    )


# -- stochastic --------------------------------------------------------------------------------


def toss(x, fmt, count, **kwargs):
    generator = torch.Generator().manual_seed(7)
    return mpt.quantize(x.expand(count), fmt, "stochastic", generator=generator, **kwargs)


@every("fmt", [mpt.FP16, mpt.BF16, mpt.FP8_E4M3, mpt.FP8_E5M2, mpt.FP6_E3M2, mpt.FP4_E2M1, E5M7])
def test_stochastic_never_moves_a_value_of_the_format(fmt):
    x = positive_values(fmt).astype(np.float32)
    x = np.concatenate([x, -x, np.float32([np.nan])])
    for _ in range(5):
        assert_same_numbers(quantize(x, fmt, "stochastic"), x)
    infinities = np.float32([np.inf, -np.inf])
    want = infinities if fmt.special == "ieee" else np.sign(infinities) * fmt.max
    assert_same_numbers(quantize(infinities, fmt, "stochastic"), want)


@every("fmt", [mpt.FP16, mpt.BF16, mpt.TF32, *CUSTOM, mpt.FP8_E4M3, mpt.FP4_E2M1])
def test_stochastic_goes_to_one_of_the_two_neighbours(fmt):
    x = np.concatenate([hard_values(fmt)[::3], random_patterns()[:50_000]])
    below = quantize(x, fmt, "down", "saturate")
    above = quantize(x, fmt, "up", "saturate")
    for dtype in (torch.float32, torch.float64):
        x_q = quantize(x, fmt, "stochastic", "saturate", dtype=dtype)
        assert (np.isnan(x) | (x_q == below) | (x_q == above)).all()
        assert (np.isnan(x) | (np.signbit(x_q) == np.signbit(x))).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("chance", [2**-12, 0.125, 0.3, 0.5, 0.75, 1 - 2**-10])
@pytest.mark.parametrize("fmt, base", [("FP16", 1.0), ("BF16", 96.0), ("FP8_E5M2", 2.0**-15)])
def test_stochastic_goes_away_from_zero_as_often_as_it_should(fmt, base, chance, dtype):
    ulp, count = mpt.get_format(fmt).ulp(base), 400_000
    for sign in (1, -1):
        x = sign * torch.tensor(base + chance * ulp, dtype=dtype)
        chance = (abs(x.item()) - base) / ulp  # FP32 has rounded it
        moved = toss(x, fmt, count) == sign * (base + ulp)
        for half in (moved, moved[::2], moved[1::2], moved[:1000]):
            deviation = math.sqrt(len(half) * chance * (1 - chance))
            assert abs(half.sum().item() - len(half) * chance) < 5 * deviation + 1
        # The two halves of a 64-bit draw must not know of each other.
        both = (moved[::2] & moved[1::2]).sum().item()
        deviation = math.sqrt(count / 2 * chance**2)
        assert abs(both - count / 2 * chance**2) < 5 * deviation + 1


def test_stochastic_is_right_on_average():
    x = torch.linspace(-3, 3, 101)
    mean = torch.stack([mpt.quantize(x, "FP4_E2M1", "stochastic") for _ in range(4000)]).mean(0)
    # One toss deviates by at most half a step of 1; six standard deviations of the mean.
    torch.testing.assert_close(mean, x, atol=6 * 0.5 / math.sqrt(4000), rtol=0)


def test_stochastic_takes_numbers_far_below_an_ulp_to_zero_whatever_their_sign():
    for tiny in (1e-12, 1e-16, 1e-38, 1e-45):
        for sign in (1, -1):
            x_q = toss(torch.tensor(sign * tiny), "FP16", 100_000)
            assert (x_q != 0).sum() < (10 if tiny == 1e-12 else 1)
            assert (torch.signbit(x_q) == (sign < 0)).all()


@pytest.mark.parametrize("draw", [2**63 - 1, -(2**63), 0, -1])
def test_stochastic_is_certain_where_nothing_is_left_to_chance(draw, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "random_", lambda x, *_, **__: x.fill_(draw))
    x = torch.tensor([1.0, -1.0, 0.0, -0.0, 1e-16, -1e-16])
    for dtype in (torch.float32, torch.float64):
        x_q = mpt.quantize(x.to(dtype), "FP16", "stochastic")
        assert_same_numbers(x_q, [1.0, -1.0, 0.0, -0.0, 0.0, -0.0])


def test_stochastic_obeys_the_generator_and_leaves_the_others_alone():
    x = torch.rand(1001)

    def run(seed):
        return mpt.quantize(x, "BF16", "stochastic", generator=torch.Generator().manual_seed(seed))

    state = torch.get_rng_state()
    assert torch.equal(run(1), run(1)) and not torch.equal(run(1), run(2))
    assert torch.equal(torch.get_rng_state(), state)
    first = mpt.quantize(x, "BF16", "stochastic")
    torch.set_rng_state(state)
    assert torch.equal(mpt.quantize(x, "BF16", "stochastic"), first)
    mpt.quantize(x, "BF16")
    assert not torch.equal(torch.get_rng_state(), state)


# -- inputs ------------------------------------------------------------------------------------


def test_fp64_is_rounded_once():
    x = torch.tensor([1 + 2**-11 + 2**-40, 2**-25 + 2**-60], dtype=torch.float64)
    assert mpt.quantize(x.float(), "FP16").tolist() == [1.0, 0.0]  # twice: FP32 lands on the tie
    assert mpt.quantize(x, "FP16").tolist() == [1 + 2**-10, 2**-24]
    assert mpt.quantize(1 + 2**-11 + 2**-40, "FP16") == 1 + 2**-10


def test_fp64_is_numpys():
    bits = np.random.default_rng(2).integers(0, 2**64, 200_000, dtype=np.uint64)
    x = np.concatenate([bits.view(np.float64), np.random.default_rng(3).normal(size=200_000)])
    ties = hard_values(mpt.FP16).astype(np.float64)
    x = np.concatenate([x, np.nextafter(ties, np.inf), np.nextafter(ties, -np.inf)])
    with np.errstate(all="ignore"):
        assert_same_numbers(quantize(x, "FP16"), x.astype(np.float16), x)
        assert_same_numbers(quantize(x, "FP32"), x.astype(np.float32), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e5m2])
def test_other_precisions_are_widened_first(dtype):
    int_dtype = torch.uint8 if dtype.itemsize == 1 else torch.int16
    x = torch.arange(2 ** (8 * dtype.itemsize)).to(int_dtype).view(dtype)
    for fmt in ("FP16", "FP8_E4M3", "FP4_E2M1", "TF32"):
        assert_same_numbers(mpt.quantize(x, fmt), mpt.quantize(x.float(), fmt))


def test_a_python_float_gives_a_tensor_without_dimensions():
    x_q = mpt.quantize(0.1, torch.float16)
    assert x_q.shape == () and x_q.dtype is torch.float32
    assert x_q.item() == float(np.float16(0.1))


def test_shapes():
    assert mpt.quantize(torch.tensor(0.1), "BF16").shape == ()
    assert mpt.quantize(torch.empty(0), "BF16").shape == (0,)
    assert mpt.quantize(torch.empty(3, 0, 2), "TF32", "stochastic").shape == (3, 0, 2)
    x = torch.randn(6, 5, 4)
    for view in (x.t() if x.dim() == 2 else x.transpose(0, 2), x[::2, 1:], x[0].expand(3, 5, 4)):
        for fmt in ("FP16", "TF32"):
            x_q = mpt.quantize(view, fmt)
            assert x_q.shape == view.shape
            assert torch.equal(x_q, mpt.quantize(view.contiguous(), fmt))
    images = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    assert torch.equal(mpt.quantize(images, "FP16"), images.half().float())


PIECES = ("_PIECE", "_STOCHASTIC_PIECE", "_CAST_PIECE")


@pytest.mark.parametrize("mode", rounding.ROUNDING_MODES)
@pytest.mark.parametrize("fmt", ["FP16", "TF32"])
def test_pieces_do_not_show(fmt, mode, monkeypatch):
    def run(x):
        return mpt.quantize(x, fmt, mode, generator=torch.Generator().manual_seed(3))

    sizes = {getattr(rounding, name) for name in PIECES}
    xs = [torch.randn(n) for size in sizes for n in (1, size - 1, size, size + 1, 2 * size + 3)]
    in_pieces = [run(x) for x in xs]
    for name in PIECES:
        monkeypatch.setattr(rounding, name, 2**30)
    for x, x_q in zip(xs, in_pieces, strict=True):
        assert torch.equal(x_q, run(x))


def test_threads_do_not_show():
    x = torch.randn(1_000_003)
    one = [mpt.quantize(x, fmt, "up") for fmt in ("FP16", "TF32", "FP8_E4M3")]
    torch.set_num_threads(2)
    try:
        two = [mpt.quantize(x, fmt, "up") for fmt in ("FP16", "TF32", "FP8_E4M3")]
    finally:
        torch.set_num_threads(1)
    assert all(map(torch.equal, one, two))


def test_flushing_denormals_changes_no_format_narrower_than_fp32s_range():
    fmts = [mpt.FP16, E5M7, mpt.FP8_E4M3, mpt.FP6_E2M3]
    xs = [torch.from_numpy(hard_values(fmt)) for fmt in fmts]
    xs = [x[(x == 0) | (x.abs() >= 2**-126)] for x in xs]
    modes = ("nearest_even", "toward_zero", "down")
    usual = [mpt.quantize(x, f, m) for x, f in zip(xs, fmts, strict=True) for m in modes]
    assert torch.set_flush_denormal(True) or pytest.skip("this CPU cannot flush")
    try:
        flushed = [mpt.quantize(x, f, m) for x, f in zip(xs, fmts, strict=True) for m in modes]
    finally:
        torch.set_flush_denormal(False)
    for before, after in zip(usual, flushed, strict=True):
        assert_same_numbers(after, before)


# -- out, autograd, side effects ---------------------------------------------------------------


@pytest.mark.parametrize("mode", rounding.ROUNDING_MODES)
@every("fmt", [mpt.FP16, mpt.TF32, mpt.FP8_E4M3, E5M7])
def test_out(fmt, mode):
    x = torch.from_numpy(hard_values(mpt.FP8_E4M3)) * 1.01

    def run(x, out=None):
        return mpt.quantize(x, fmt, mode, generator=torch.Generator().manual_seed(5), out=out)

    before, want = x.clone(), run(x)
    out = torch.full_like(x, 7)
    assert run(x, out) is out
    assert_same_numbers(out, want)
    assert_same_numbers(run(x.double(), torch.empty_like(x)), run(x.double()))
    assert_same_numbers(x, before)
    assert run(x, out=x) is x
    assert_same_numbers(x, want)


@pytest.mark.parametrize("fmt", ["FP16", "TF32"])
@pytest.mark.parametrize("make", [torch.Tensor.double, torch.Tensor.half, torch.Tensor.clone])
def test_the_input_is_left_alone(fmt, make):
    x = make(torch.randn(100))
    before = x.clone()
    for mode in rounding.ROUNDING_MODES:
        mpt.quantize(x, fmt, mode)
        assert torch.equal(x, before)


def test_no_gradient_flows():
    x = torch.randn(10, requires_grad=True)
    for fmt in ("FP16", "TF32"):
        x_q = mpt.quantize(x * 2, fmt)
        assert not x_q.requires_grad and x_q.grad_fn is None
    assert not mpt.quantize(torch.nn.Parameter(torch.ones(3)), "FP16").requires_grad
    with torch.inference_mode():
        assert torch.equal(mpt.quantize(x, "BF16"), x.bfloat16().float())


@pytest.mark.parametrize(
    "out, error, message",
    [
        (torch.empty(3), ValueError, r"of shape \(3,\) on cpu.*allowed is .* of shape \(2, 3\)"),
        (torch.empty(2, 3, dtype=torch.half), ValueError, r"torch.float16 .*torch.float32"),
        (torch.empty(3, 2).t(), ValueError, r"out is a non-contiguous"),
        (torch.empty(2, 3, requires_grad=True), ValueError, r"with grad; .* without grad"),
        (torch.empty(2, 3, device="meta"), ValueError, r"on meta, .* on cpu"),
        (np.empty((2, 3), np.float32), TypeError, r"out is a ndarray; allowed is a contiguous"),
    ],
)
def test_wrong_out(out, error, message):
    with pytest.raises(error, match=message):
        mpt.quantize(torch.ones(2, 3), "FP16", out=out)


@pytest.mark.parametrize("x", [torch.ones(3, dtype=torch.int64), torch.ones(3) > 0])
def test_tensors_without_a_fraction_are_refused(x):
    with pytest.raises(TypeError, match=rf"x is a tensor of {x.dtype}; allowed are a float and"):
        mpt.quantize(x, "FP16")


@pytest.mark.parametrize("x", [3, True, [1.0, 2.0], np.ones(3), None, 1j, torch.ones(1) * 1j])
def test_what_is_no_tensor_is_refused(x):
    with pytest.raises(TypeError, match=r"x is a \w+.*; allowed are a float and tensors of"):
        mpt.quantize(x, "FP16")


def test_wrong_names_are_refused():
    x = torch.ones(3)
    with pytest.raises(ValueError, match=r"fmt is 'FP17'; allowed are .*FP4_E2M1"):
        mpt.quantize(x, "FP17")
    with pytest.raises(ValueError, match=r"rounding is 'nearest'; allowed are .*'nearest_even'"):
        mpt.quantize(x, "FP16", "nearest")
    with pytest.raises(ValueError, match=r"overflow is 'clip'; allowed are .*'saturate'"):
        mpt.quantize(x, "FP16", overflow="clip")
    with pytest.raises(ValueError, match=r"overflow is 'inf', but FP8_E4M3 has no inf"):
        mpt.quantize(x, "FP8_E4M3", overflow="inf")
    with pytest.raises(ValueError, match=r"overflow is 'nan', but FP6_E2M3 has no nan"):
        mpt.quantize(x, "FP6_E2M3", overflow="nan")


# -- laws --------------------------------------------------------------------------------------

FP32_NUMBERS = st.floats(width=32, allow_nan=False)
MODES = st.sampled_from(list(DIRECTED))


@given(any_format(), st.lists(st.floats(width=32), min_size=1), MODES)
def test_any_format_is_gfloats(fmt, numbers, mode):
    want = gfloat_round(numbers, fmt, mode)
    assert_same_numbers(quantize(np.float32(numbers), fmt, mode), want, numbers)


@given(any_format(), st.lists(st.floats(), min_size=1), MODES)
def test_any_format_is_gfloats_from_fp64(fmt, numbers, mode):
    want = gfloat_round(numbers, fmt, mode)
    assert_same_numbers(quantize(np.float64(numbers), fmt, mode), want, numbers)


@given(any_format(), st.lists(FP32_NUMBERS, min_size=2), MODES)
def test_rounding_keeps_order_and_settles_at_once(fmt, numbers, mode):
    x_q = quantize(np.sort(np.float32(numbers)), fmt, mode)
    assert (x_q[:-1] <= x_q[1:]).all()
    assert_same_numbers(quantize(x_q, fmt, mode), x_q)
    assert_same_numbers(quantize(x_q, fmt, "stochastic"), x_q)


@given(any_format(), st.lists(FP32_NUMBERS, min_size=1), MODES)
def test_rounding_is_symmetric(fmt, numbers, mode):
    x = np.float32(numbers)
    mirrored = {"up": "down", "down": "up"}.get(mode, mode)
    assert_same_numbers(quantize(-x, fmt, mirrored), -quantize(x, fmt, mode))


@given(any_format(), FP32_NUMBERS)
def test_quantize_and_encode_agree(fmt, x):
    assert_same_numbers(mpt.quantize(x, fmt).item(), fmt.decode(fmt.encode(x)).value)


# -- GPU ---------------------------------------------------------------------------------------


@pytest.mark.gpu
@every("fmt", NAMED + CUSTOM)
def test_a_gpu_rounds_as_a_cpu(fmt):
    x = torch.from_numpy(np.concatenate([hard_values(fmt), random_patterns()]))
    for mode in DIRECTED:
        want = mpt.quantize(x, fmt, mode)
        assert_same_numbers(mpt.quantize(x.cuda(), fmt, mode).cpu(), want, x)
        assert_same_numbers(mpt.quantize(x.cuda().double(), fmt, mode).cpu(), want, x)


@pytest.mark.gpu
def test_stochastic_on_a_gpu():
    x = torch.full((1_000_001,), 1 + 0.3 * 2**-10, device="cuda")
    generator = torch.Generator("cuda").manual_seed(0)
    moved = mpt.quantize(x, "FP16", "stochastic", generator=generator) > 1
    assert abs(moved.sum().item() - 0.3 * len(x)) < 5 * math.sqrt(len(x) * 0.3 * 0.7) + 1
    x = torch.from_numpy(positive_values(mpt.FP16).astype(np.float32)).cuda()
    assert torch.equal(mpt.quantize(-x, "FP16", "stochastic"), -x)
