"""FP8 scaling against torch's casts and scaled products, ml_dtypes, and gfloat's MX blocks."""

import math

import gfloat
import ml_dtypes
import numpy as np
import pytest
import torch
from gfloat import formats as gf

import mptutor as mpt
from mptutor.fp8 import (
    BLOCK_SIZE,
    DelayedScale,
    amax_of,
    amax_scale,
    power_of_two_scale,
    quantize_scaled,
)

pytestmark = pytest.mark.lesson13

FP8 = [mpt.FP8_E4M3, mpt.FP8_E5M2]

#: The MX formats of the OCP specification as gfloat defines them.
MX = {
    mpt.FP8_E4M3: gf.format_info_mxfp8_e4m3,
    mpt.FP8_E5M2: gf.format_info_mxfp8_e5m2,
    mpt.FP6_E2M3: gf.format_info_mxfp6_e2m3,
    mpt.FP6_E3M2: gf.format_info_mxfp6_e3m2,
    mpt.FP4_E2M1: gf.format_info_mxfp4_e2m1,
}


def drawn(*shape, seed=0, spread=6):
    """Return numbers over many binades, zeros among them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    x = x * torch.exp2(spread * torch.randn(shape, generator=generator))
    return x * (torch.rand(shape, generator=generator) > 0.05)


# -- per tensor and per row, against casts and torch._scaled_mm ------------------------------------


@pytest.mark.parametrize("granularity", ["none", "tensor", "row", "block"])
@pytest.mark.parametrize("fmt", FP8, ids=str)
def test_values_are_what_ml_dtypes_casts_to_once_clipped(fmt, granularity):
    x = drawn(64, 96)
    q = quantize_scaled(x, fmt, granularity)
    clipped = (x * q.scale).clamp(-fmt.max, fmt.max).numpy()
    dtype = {mpt.FP8_E4M3: ml_dtypes.float8_e4m3fn, mpt.FP8_E5M2: ml_dtypes.float8_e5m2}[fmt]
    assert np.array_equal(q.values.numpy(), clipped.astype(dtype).astype(np.float32))
    assert torch.equal(q.values.to(fmt.torch_dtype).float(), q.values)


@pytest.mark.parametrize("fmt", FP8, ids=str)
@pytest.mark.parametrize("granularity", ["tensor", "row"])
def test_the_amax_lands_on_the_largest_number(fmt, granularity):
    q = quantize_scaled(drawn(16, 64), fmt, granularity)
    assert (amax_of(q.values, granularity) == fmt.max).all()


@pytest.mark.parametrize("left", FP8, ids=str)
@pytest.mark.parametrize("granularity", ["tensor", "row"])
def test_products_are_those_of_torchs_scaled_matmul(left, granularity):
    a, b = drawn(32, 64, seed=1, spread=2), drawn(48, 64, seed=2, spread=2)
    qa, qb = (quantize_scaled(x, f, granularity) for x, f in ((a, left), (b, mpt.FP8_E4M3)))
    product = qa.dequantize() @ qb.dequantize().t()
    theirs = torch._scaled_mm(
        qa.values.to(qa.fmt.torch_dtype),
        qb.values.to(qb.fmt.torch_dtype).t(),
        scale_a=1 / qa.scale,
        scale_b=(1 / qb.scale).t() if granularity == "row" else 1 / qb.scale,
        out_dtype=torch.float32,
    )
    assert torch.allclose(product, theirs, rtol=1e-5, atol=1e-6 * theirs.abs().max().item())


@pytest.mark.gpu
@pytest.mark.parametrize("granularity", ["tensor", "row"])
def test_products_are_those_of_the_gpus_fp8_units(granularity):
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs a GPU with FP8 units")
    a, b = (drawn(64, 64, seed=s, spread=2).cuda() for s in (1, 2))
    qa, qb = (quantize_scaled(x, mpt.FP8_E4M3, granularity) for x in (a, b))
    theirs = torch._scaled_mm(
        qa.values.to(torch.float8_e4m3fn),
        qb.values.to(torch.float8_e4m3fn).t(),
        scale_a=1 / qa.scale,
        scale_b=(1 / qb.scale).t() if granularity == "row" else 1 / qb.scale,
        out_dtype=torch.bfloat16,
    ).float()
    product = qa.dequantize() @ qb.dequantize().t()
    assert torch.allclose(product, theirs, rtol=2**-7, atol=2**-9 * theirs.abs().max().item())


def test_a_scale_that_is_given_is_used():
    q = quantize_scaled(torch.tensor([1.0, 1000.0]), mpt.FP8_E4M3, scale=4.0)
    assert q.scale == 4 and q.values.tolist() == [4, 448]
    with pytest.raises(ValueError, match="granularity is 'row'; allowed is 'tensor'"):
        quantize_scaled(torch.ones(2), mpt.FP8_E4M3, "row", scale=2.0)


# -- blocks, against gfloat's MX -------------------------------------------------------------------


@pytest.mark.parametrize("fmt", MX, ids=str)
def test_blocks_are_what_gfloat_makes_of_them(fmt):
    for block in drawn(60, BLOCK_SIZE, spread=8):
        theirs = gfloat.quantize_block(
            MX[fmt], block.double().numpy(), gfloat.compute_scale_amax
        ).astype(np.float32)
        ours = quantize_scaled(block, fmt, "block").dequantize()
        assert np.array_equal(ours.numpy(), theirs)


@pytest.mark.parametrize("fmt", MX, ids=str)
def test_block_scales_are_what_gfloat_and_e8m0_hold(fmt):
    amax = torch.exp2(torch.arange(-149.0, 128)) * 1.0
    amax = torch.cat([amax, 1.75 * amax[30:], torch.nextafter(amax, torch.tensor(0.0))[1:]])
    amax = amax[amax.isfinite() & (amax > 0)]
    scale = power_of_two_scale(amax, fmt)
    theirs = [gfloat.compute_scale_amax(fmt.emax, np.array([a.item()])) for a in amax.double()]
    assert (1 / scale.double()).tolist() == theirs
    stored = (1 / scale.double()).to(torch.float32).to(torch.float8_e8m0fnu)
    assert torch.equal(stored.float().double() * scale.double(), torch.ones_like(scale).double())


@pytest.mark.parametrize("fmt", MX, ids=str)
def test_rounded_up_the_shared_exponent_clips_nothing_and_wastes_less_than_a_bit(fmt):
    amax = torch.linspace(1, 2, 257)
    scaled = amax * power_of_two_scale(amax, fmt, round_up=True)
    assert (scaled <= fmt.max).all() and (2 * scaled > fmt.max).all()
    assert (amax * power_of_two_scale(amax, fmt) > fmt.max).any()


def test_the_last_block_may_be_short():
    x = drawn(3, 40)
    q = quantize_scaled(x, mpt.FP8_E4M3, "block")
    assert q.values.shape == x.shape == q.scale.shape
    parts = [quantize_scaled(p, mpt.FP8_E4M3, "block").values for p in (x[:, :32], x[:, 32:])]
    assert torch.equal(q.values, torch.cat(parts, 1))


@pytest.mark.parametrize(
    ("granularity", "shape"), [("tensor", ()), ("row", (4, 1)), ("block", (4, 3))]
)
def test_amaxes_are_those_of_the_parts(granularity, shape):
    x = drawn(4, 80)
    amax = amax_of(x, granularity)
    assert amax.shape == shape
    assert amax.max() == x.abs().max() == torch.linalg.vector_norm(x, math.inf)
    if granularity == "block":
        assert torch.equal(amax[:, 1], x[:, 32:64].abs().amax(1))


# -- amaxes that say nothing -----------------------------------------------------------------------


@pytest.mark.parametrize("choose", [amax_scale, power_of_two_scale])
def test_an_amax_of_zero_or_not_finite_gives_a_scale_of_one(choose):
    assert choose(torch.tensor([0.0, math.inf, math.nan]), mpt.FP8_E4M3).tolist() == [1, 1, 1]


def test_scales_stay_finite():
    tiny = torch.tensor(2.0**-149)
    assert amax_scale(tiny, mpt.FP8_E5M2) == torch.finfo(torch.float32).max
    assert power_of_two_scale(tiny, mpt.FP8_E5M2) == 2.0**127
    q = quantize_scaled(torch.tensor([0.0, 0.0]), mpt.FP8_E4M3, "block")
    assert q.dequantize().tolist() == [0, 0]


@pytest.mark.parametrize("granularity", ["tensor", "row", "block"])
def test_infinity_is_clipped_and_nan_stays(granularity):
    q = quantize_scaled(torch.tensor([1.0, math.inf, math.nan]), mpt.FP8_E4M3, granularity)
    assert q.values[:2].tolist() == [1, 448] and q.values[2].isnan()


def test_what_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="granularity is 'column'; allowed are none, tensor, row"):
        quantize_scaled(torch.ones(2), mpt.FP8_E4M3, "column")
    for scale in (0.0, -1.0, float("nan"), float("inf"), torch.ones(2)):
        with pytest.raises(ValueError, match="allowed is one number above 0"):
            quantize_scaled(torch.ones(2), "FP8_E4M3", scale=scale)
    with pytest.raises(ValueError, match="block_size is 0"):
        amax_of(torch.ones(2), "block", 0)
    with pytest.raises(ValueError, match="which has no scale"):
        amax_of(torch.ones(2), "none")
    with pytest.raises(ValueError, match="algorithm is 'mean'"):
        DelayedScale(mpt.FP8_E4M3, algorithm="mean")
    with pytest.raises(ValueError, match="length is 0"):
        DelayedScale(mpt.FP8_E4M3, length=0)


# -- delayed scaling -------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 3, 16])
def test_delayed_scaling_is_the_amax_of_a_window_one_step_late(length):
    amaxes = drawn(200).abs().clamp(min=1e-6).tolist()
    state = DelayedScale(mpt.FP8_E4M3, length=length)
    for step, amax in enumerate(amaxes):
        if step:
            window = amaxes[max(0, step - length) : step]
            assert state.scale == mpt.FP8_E4M3.max / max(window)
        state = state.after(amax)
    assert len(state.history) == length


def test_most_recent_is_a_history_of_one():
    amaxes = drawn(50).abs().clamp(min=1e-6).tolist()
    recent = DelayedScale(mpt.FP8_E5M2, length=8, algorithm="most_recent")
    one = DelayedScale(mpt.FP8_E5M2, length=1)
    for amax in amaxes:
        recent, one = recent.after(amax), one.after(amax)
        assert recent.scale == one.scale


def test_a_margin_leaves_room():
    state = DelayedScale(mpt.FP8_E4M3, margin=2).after(1.0)
    assert state.scale == 112 and state.quantize(torch.tensor([4.0])).values == 448


@pytest.mark.parametrize("amax", [0.0, math.inf, math.nan])
def test_an_amax_that_says_nothing_leaves_the_scale(amax):
    state = DelayedScale(mpt.FP8_E4M3, length=1).after(7.0)
    assert state.after(amax).scale == state.scale == 64
    assert DelayedScale(mpt.FP8_E4M3).after(amax).scale == 1


@pytest.mark.parametrize("amax", [math.inf, math.nan])
def test_the_scale_waits_until_what_is_not_finite_is_forgotten(amax):
    state = DelayedScale(mpt.FP8_E4M3, length=2).after(7.0).after(amax)
    assert state.after(3.5).scale == 64 and state.after(3.5).after(3.5).scale == 128
