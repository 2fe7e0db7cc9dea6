"""The census against casting: torch's own casts, and gfloat's for formats that torch lacks."""

import math
from collections import Counter

import gfloat
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import mptutor as mpt
from mptutor.census import ExponentCensus, ScaleWindow, take_census, take_census_by_layer
from mptutor.census_cells import _PIECE, CELLS_PER_BINADE, cell_of, exponent_of
from tests.float_oracles import (
    CUSTOM,
    NAMED,
    any_format,
    hard_values,
    random_patterns,
    unbounded,
)

EXPONENTS = range(-10, 31)
SCALES = [2.0**k for k in EXPONENTS]


def fates(census, fmt, scale):
    counts = census.flushed(fmt, scale), census.subnormal(fmt, scale), census.overflowed(fmt, scale)
    return tuple(map(int, counts))


def fates_by_torch(x, fmt, scale):
    """Cast and look: what of the finite nonzero values is zero, subnormal, infinite?"""
    x = x[x.isfinite() & (x != 0)]
    x_q = (x * scale).to(fmt.torch_dtype).float()
    is_subnormal = (x_q != 0) & (x_q.abs() < fmt.smallest_normal)
    return (x_q == 0).sum().item(), is_subnormal.sum().item(), x_q.isinf().sum().item()


def fates_by_gfloat(x, fmt, scale):
    """The same in FP64, where the product is exact, with no largest number to stop at."""
    x = x[np.isfinite(x) & (x != 0)].astype(np.float64)
    x_q = np.abs(gfloat.round_ndarray(unbounded(fmt), x * scale))
    is_subnormal = (x_q != 0) & (x_q < fmt.smallest_normal)
    return int((x_q == 0).sum()), int(is_subnormal.sum()), int((x_q > fmt.max).sum())


def planted(fmt, exponents=EXPONENTS):
    """Thresholds of a format at every scale, the FP32 numbers beside them, and what is special."""
    thresholds = torch.tensor(
        [
            fmt.underflow_threshold,
            fmt.smallest_subnormal,
            fmt.smallest_subnormal * 1.5,
            fmt.smallest_normal - fmt.smallest_subnormal / 2,
            fmt.smallest_normal - fmt.smallest_subnormal,
            fmt.smallest_normal,
            fmt.max,
            (fmt.max + fmt.overflow_threshold) / 2,
            fmt.overflow_threshold,
            fmt.max + fmt.ulp(fmt.max) / 2,
            2.0 ** (fmt.emax + 1),
        ],
        dtype=torch.float64,
    )
    scaled = torch.cat([thresholds * 2.0**-k for k in exponents]).float()
    below = torch.nextafter(scaled, torch.tensor(0.0))
    above = torch.nextafter(scaled, torch.tensor(torch.inf))
    ends = torch.tensor([0.0, -0.0, 2.0**-149, 2.0**-126, 3.4028234663852886e38])
    special = torch.tensor([torch.inf, -torch.inf, torch.nan, torch.nan, torch.nan])
    x = torch.cat([scaled, below, above, ends, special])
    return torch.cat([x, -x])


# -- the same counts as casting --------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
def test_fp16_is_what_torch_casts_at_41_scales(scale):
    generator = torch.Generator().manual_seed(0)
    sizes = torch.exp2(6 * torch.randn(100_000, generator=generator) - 20)
    gradients = sizes * torch.randn(100_000, generator=generator)
    x = torch.cat([planted(mpt.FP16), torch.from_numpy(hard_values(mpt.FP16).copy()), gradients])
    assert fates(take_census(x), mpt.FP16, scale) == fates_by_torch(x, mpt.FP16, scale)


@pytest.mark.parametrize("fmt", [mpt.BF16, mpt.FP8_E5M2], ids=str)
def test_other_formats_of_torch_are_what_torch_casts(fmt):
    x = torch.cat([planted(fmt), torch.from_numpy(hard_values(fmt).copy())])
    # Scaled down, a product in BF16's subnormal range is rounded to FP32 first, and so twice.
    scales = SCALES if fmt.emin > -100 else [scale for scale in SCALES if scale >= 1]
    census = take_census(x)
    for scale in scales:
        assert fates(census, fmt, scale) == fates_by_torch(x, fmt, scale), scale


@pytest.mark.parametrize("fmt", NAMED + CUSTOM, ids=str)
def test_every_format_is_what_gfloat_rounds_at_41_scales(fmt):
    x = torch.cat([planted(fmt), torch.from_numpy(hard_values(fmt)[::7].copy())])
    census = take_census(x)
    for scale in SCALES:
        assert fates(census, fmt, scale) == fates_by_gfloat(x.numpy(), fmt, scale), scale


@settings(deadline=None, max_examples=150)
@given(any_format(), st.integers(-140, 140))
def test_any_format_at_any_scale(fmt, exponent):
    x = planted(fmt, exponents=[exponent, exponent - 1, 0])
    scale = 2.0**exponent
    assert fates(take_census(x), fmt, scale) == fates_by_gfloat(x.numpy(), fmt, scale)


@pytest.mark.parametrize("fmt", NAMED, ids=str)
def test_random_bits(fmt):
    x = random_patterns(2**20)
    census = take_census(torch.from_numpy(x.copy()))
    for scale in (2.0**-10, 1.0, 2.0**30):
        assert fates(census, fmt, scale) == fates_by_gfloat(x, fmt, scale)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_every_code_of_narrower_tensors(dtype):
    int_dtype = torch.int16 if dtype.itemsize == 2 else torch.uint8
    x = torch.arange(2 ** (8 * dtype.itemsize)).to(int_dtype).view(dtype)
    census = take_census(x)
    assert census == take_census(x.float())
    assert census.total == len(x)
    for fmt in (mpt.FP16, mpt.FP8_E4M3, mpt.FP4_E2M1):
        for scale in (2.0**-10, 1.0, 2.0**10):
            assert fates(census, fmt, scale) == fates_by_gfloat(x.float().numpy(), fmt, scale)


@given(st.lists(st.floats(width=32), max_size=30), st.integers(-20, 20))
def test_any_floats(values, exponent):
    x = torch.tensor(values, dtype=torch.float32)
    census = take_census(x)
    assert census.zeros == (x == 0).sum()
    assert census.infs == x.isinf().sum()
    assert census.nans == x.isnan().sum()
    assert census.total == len(values)
    assert fates(census, mpt.FP16, 2.0**exponent) == fates_by_torch(x, mpt.FP16, 2.0**exponent)


def test_the_tie_at_2_to_the_minus_25_and_its_neighbours():
    tie = torch.tensor(2.0**-25)
    above = torch.nextafter(tie, torch.tensor(1.0))
    assert take_census(tie).flushed("FP16") == 1
    assert take_census(above).flushed("FP16") == 0
    assert take_census(above).subnormal("FP16") == 1
    assert take_census(torch.tensor([65519.996, 65520.0])).overflowed(torch.float16) == 1
    assert take_census(torch.tensor([464.0, 464.00003])).overflowed(mpt.FP8_E4M3) == 1


def test_flushing_subnormals_to_zero_elsewhere_changes_nothing():
    x = planted(mpt.BF16)
    census = take_census(x)
    try:
        if not torch.set_flush_denormal(True):
            pytest.skip("this CPU cannot flush subnormals")
        assert take_census(x) == census
    finally:
        torch.set_flush_denormal(False)


# -- cells -----------------------------------------------------------------------------------------


def some_significands():
    """1 + all mantissas that are near a step: gap 2^i, or 1.5 × 2^i."""
    steps = {2**i for i in range(24)} | {3 * 2**i for i in range(22)}
    gaps = {step + near for step in steps for near in (-2, -1, 0, 1, 2)}
    gaps = [gap for gap in sorted(gaps) if 1 <= gap <= 2**23]
    return torch.tensor([2.0 - gap * 2.0**-23 for gap in gaps])


def test_values_are_filed_in_the_cell_that_the_thresholds_are_looked_up_in():
    for power in (2.0**-126, 1.0, 2.0**127):
        values = some_significands() * power
        want = Counter(map(cell_of, values.tolist()))
        for signed in (values, -values):
            assert take_census(signed).cells == tuple(sorted(want.items()))


def test_cells_are_numbered_by_magnitude():
    cells = [cell_of(value) for value in some_significands().sort().values.tolist()]
    assert cells == sorted(cells)
    # Gaps are whole numbers: none lies between 1 and 1.5, nor between 2 and 3.
    unused = {CELLS_PER_BINADE - 2, CELLS_PER_BINADE - 4}
    assert set(cells) == set(range(CELLS_PER_BINADE)) - unused


def test_every_gap_of_a_binade_is_on_its_side_of_every_border():
    values = torch.arange(2**23, dtype=torch.int32).add_(127 << 23).view(torch.float32)
    gaps = 2**23 - torch.arange(2**23)
    census = take_census(values)
    below = [count for cell, count in census.cells if cell < 1]
    assert below == [1]  # the power of two
    for i in range(23):
        last = cell_of(2.0 - 2.0 ** (i - 23))
        assert sum(n for cell, n in census.cells if cell >= last) == (gaps <= 2**i).sum()
    for i in range(1, 23):
        last = cell_of(2.0 - (3 * 2 ** (i - 1) - 1) * 2.0**-23)
        assert sum(n for cell, n in census.cells if cell >= last) == (gaps < 1.5 * 2**i).sum()


@given(st.floats(2.0**-149, 2.0**127, width=32))
def test_a_power_of_two_shifts_the_cell(value):
    assert exponent_of(cell_of(value)) == math.frexp(value)[1] - 1
    for k in (-30, 1, 30):
        assert cell_of(value * 2.0**k) == cell_of(value) + k * CELLS_PER_BINADE


def test_exponents_are_those_of_frexp():
    x = torch.from_numpy(random_patterns(2**16).copy())
    x = x[x.isfinite() & (x != 0)]
    census = take_census(x)
    want = torch.frexp(x.double())[1] - 1
    values, counts = want.unique(return_counts=True)
    assert census.exponents == dict(zip(values.tolist(), counts.tolist(), strict=True))
    assert list(census.exponents) == sorted(census.exponents)


# -- what may be counted ---------------------------------------------------------------------------


def test_pieces_join_without_seams():
    generator = torch.Generator().manual_seed(1)
    for sizes in ([_PIECE + 1], [_PIECE - 5, 1, 7, _PIECE - 1, 2 * _PIECE + 1], [3, 0, _PIECE]):
        tensors = [torch.randn(size, generator=generator) for size in sizes]
        values = torch.cat(tensors)
        census = take_census(tensors)
        assert census.total == sum(sizes)
        assert census == take_census(values)
        assert census == sum(
            (take_census(piece) for piece in values.split(12345)), ExponentCensus()
        )
        want = fates_by_torch(values, mpt.FP16, 2.0**-12)
        assert fates(census, mpt.FP16, 2.0**-12) == want


def test_tensors_of_any_shape_and_layout_in_memory():
    x = torch.randn(6, 8, requires_grad=True)
    census = take_census(x)
    assert take_census(x.t()) == census
    assert take_census([x[:, ::2], x[:, 1::2]]) == census
    assert take_census({"a": x[:3], "b": x[3:]}) == census
    assert take_census(iter(x)) == census
    assert take_census(x[0, 0]).total == 1


def test_nothing_makes_an_empty_census():
    for nothing in ([], {}, torch.empty(0), [torch.empty(0), torch.empty(3, 0)]):
        census = take_census(nothing)
        assert census == ExponentCensus()
        assert census.total == 0 and fates(census, mpt.FP16, 1.0) == (0, 0, 0)
    assert len(ExponentCensus().safe_scales("FP16").scales) == 254


def test_a_modules_gradients_as_a_whole_and_by_layer():
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3), nn.Linear(9, 9))
    with pytest.raises(ValueError, match="values is a module without gradients"):
        take_census(model)
    model[:3](torch.randn(7, 5)).square().sum().backward()
    by_layer = take_census_by_layer(model)
    assert list(by_layer) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert by_layer["0.weight"] == take_census(model[0].weight.grad)
    assert sum(by_layer.values(), ExponentCensus()) == take_census(model)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (3.0, "values is a float"),
        ("gradients", "values is a str"),
        ([1.0], "0 is a float"),
        (torch.arange(3), "torch.int64"),
        (torch.zeros(3, dtype=torch.float64), "torch.float64"),
        (torch.zeros(3, dtype=torch.complex64), "torch.complex64"),
        ({"embedding": torch.zeros(3, 3).to_sparse()}, "embedding is .*sparse"),
    ],
)
def test_what_cannot_be_counted_is_refused(values, message):
    with pytest.raises(TypeError, match=message):
        take_census(values)


# -- what a census answers -------------------------------------------------------------------------


def some_census(seed):
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.exp2(4 * torch.randn(1000, generator=generator) - 16)
    x = torch.randn(1000, generator=generator) * sizes
    return x, take_census(x)


def test_censuses_add_up():
    (x, a), (y, b) = some_census(0), some_census(1)
    both = take_census([x, y, planted(mpt.FP16)])
    assert a + b + take_census(planted(mpt.FP16)) == both
    assert sum([a, b], ExponentCensus()) == b + a
    with pytest.raises(TypeError):
        a + 1


def test_scaled_is_the_census_of_the_scaled_values():
    x, census = some_census(2)
    for scale in (2.0**-9, 1.0, 2.0**16):
        assert census.scaled(scale) == take_census(x * scale)
    assert take_census(planted(mpt.FP16)).scaled(4.0).nans == 6


@pytest.mark.parametrize("fmt", [mpt.FP16, mpt.BF16, mpt.FP8_E4M3], ids=str)
@pytest.mark.parametrize(("flushed", "overflowed"), [(0.0, 0.0), (0.01, 0.0), (0.2, 0.05), (1, 1)])
def test_safe_scales_are_those_where_casting_is_safe(fmt, flushed, overflowed):
    x, census = some_census(3)
    window = census.safe_scales(fmt, flushed, overflowed)
    safe = []
    for scale in (2.0**k for k in range(-126, 128)):
        fate = fates_by_gfloat(x.numpy(), fmt, scale)
        if fate[0] <= flushed * len(x) and fate[2] <= overflowed * len(x):
            safe.append(scale)
    assert window.scales == safe
    assert window.is_empty == (safe == [])
    assert all(scale in window for scale in safe)


def test_a_window_with_nothing_in_it():
    wide = take_census(torch.tensor([2.0**-60, 2.0**60]))
    window = wide.safe_scales("FP16", flushed_at_most=0.0)
    assert window == ScaleWindow(smallest=2.0**36, largest=2.0**-45)
    assert window.is_empty and window.scales == [] and 1.0 not in window
    assert str(window) == "no scale"
    assert take_census(torch.tensor([1e-45])).safe_scales("FP4_E2M1").smallest == math.inf


def test_the_window_of_powers_of_two():
    window = take_census(torch.tensor([2.0**-30, 2.0**-2])).safe_scales("FP16")
    assert window == ScaleWindow(smallest=2.0**6, largest=2.0**17)
    assert str(window) == "2^6 to 2^17" and 2.0**17 in window and 2.0**18 not in window


@pytest.mark.parametrize("scale", [0.0, 3.0, -2.0, math.inf, math.nan])
def test_scales_that_are_no_power_of_two_are_refused(scale):
    _, census = some_census(0)
    for ask in (census.flushed, census.subnormal, census.overflowed):
        with pytest.raises(ValueError, match=r"scale is .* powers of two"):
            ask("FP16", scale)
    with pytest.raises(ValueError, match="powers of two"):
        census.scaled(scale)


@pytest.mark.parametrize("name", ["flushed_at_most", "overflowed_at_most"])
@pytest.mark.parametrize("share", [-0.1, 1.5, math.nan])
def test_shares_outside_0_to_1_are_refused(name, share):
    with pytest.raises(ValueError, match=name):
        some_census(0)[1].safe_scales("FP16", **{name: share})


def test_json_reads_back_equal():
    for census in (some_census(0)[1], take_census(planted(mpt.FP16)), ExponentCensus()):
        assert ExponentCensus.from_json(census.to_json()) == census


def test_a_census_shows_itself_and_cannot_be_changed():
    census = take_census(planted(mpt.FP16))
    assert f"{census.total:,} values" in str(census) and str(census) in repr(census)
    assert "FP8_E4M3" in census._repr_html_() and census._repr_html_().count("<tr>") == 8
    assert hash(census) == hash(take_census(planted(mpt.FP16)))
    with pytest.raises(AttributeError):
        census.zeros = 3


@pytest.mark.gpu
def test_on_cuda_the_census_is_the_same():
    x = torch.cat([planted(mpt.FP16), torch.from_numpy(random_patterns(2**20).copy())])
    on_gpu = x.to("cuda")
    assert take_census(on_gpu) == take_census(x)
    assert take_census([on_gpu[:1000], x[1000:]]) == take_census(x)
    assert fates(take_census(on_gpu), mpt.FP16, 2.0**10) == fates_by_torch(on_gpu, mpt.FP16, 2**10)
