"""Running sums step by step against torch and `quantize`; the claims of lesson 02."""

import math

import pytest
import torch

from mptutor.experiments.accumulation import (
    SUMMATIONS,
    RunningSumsResult,
    SummationsResult,
    add_up,
    add_up_compensated,
    add_up_in_blocks,
    add_up_in_pairs,
    run_running_sums,
    run_summations,
)
from mptutor.experiments.running_sums import Lane, last_change, running_sums
from mptutor.formats import BF16, FP8_E4M3, FP16, FP32
from mptutor.plots import plot_running_sums, plot_stochastic_sums
from mptutor.rounding import quantize

pytestmark = pytest.mark.lesson02

TERMS = (0.01, 0.1, 1.0, 0.7, 2.0**-9)
N = 3_000


def torchs_running_sum(term, dtype, n=N):
    x = torch.full((n,), term, dtype=dtype)
    sums = [torch.zeros((), dtype=dtype)]
    for value in x:
        sums.append(sums[-1] + value)
    return torch.stack(sums).double()


# -- running sums against other people's arithmetic ------------------------------------------------


@pytest.mark.parametrize("fmt", [FP16, BF16, FP32], ids=str)
def test_nearest_even_lanes_are_torchs_own_additions(fmt):
    sums = running_sums([Lane(fmt, term) for term in TERMS], N)
    for term, column in zip(TERMS, sums.T, strict=True):
        assert torch.equal(column, torchs_running_sum(term, fmt.torch_dtype))


@pytest.mark.parametrize("rounding", ["nearest_even", "toward_zero", "up", "down"])
@pytest.mark.parametrize("fmt", [FP16, BF16, FP8_E4M3], ids=str)
def test_every_step_is_one_quantize(fmt, rounding):
    sums = running_sums([Lane(fmt, term, rounding) for term in TERMS], N)
    for term, column in zip(TERMS, sums.T, strict=True):
        exact = column[:-1] + Lane(fmt, term).term_q
        kept = column[1:] < math.inf  # quantize saturates E4M3, and rounds down to the largest
        stepped = quantize(exact, fmt, rounding=rounding).double()
        # Beside 2^53 times the term even FP64 would lose it, so "up" is compared below that.
        kept &= column[:-1] < 2.0**40
        assert torch.equal(stepped[kept], column[1:][kept])


def test_lanes_do_not_touch_each_other():
    lanes = [Lane(f, t, r) for f in (FP16, BF16) for t in TERMS for r in ("up", "nearest_even")]
    together = running_sums(lanes, 500)
    for i, lane in enumerate(lanes):
        assert torch.equal(running_sums([lane], 500)[:, 0], together[:, i])


def test_a_stochastic_step_takes_a_neighbour_and_is_right_on_average():
    lane = Lane(FP16, 0.01, "stochastic")
    sums = running_sums([lane] * 400, N)
    below = quantize(sums[:-1] + lane.term_q, FP16, rounding="down").double()
    above = quantize(sums[:-1] + lane.term_q, FP16, rounding="up").double()
    assert bool(((sums[1:] == below) | (sums[1:] == above)).all())
    standard_error = sums[-1].std() / 20
    assert abs(sums[-1].mean() - N * lane.term_q) < 4 * standard_error
    assert len(set(sums[-1].tolist())) > 10


def test_the_spread_is_that_of_independent_coin_tosses():
    """Where the sum stays in one binade, each step has the variance p (1 - p) ulp²."""
    n, lane = 1_000, Lane(FP16, 1.2, "stochastic")
    sums = running_sums([lane] * 2_000, 4 * n)
    strayed = sums[4 * n] - sums[2 * n]  # 2400 to 4800: two binades
    assert sums[2 * n].min() > 2_048 and sums[4 * n].max() < 8_192
    in_ulps = [lane.term_q / ulp % 1 for ulp in (2.0, 4.0)]
    steps_before_4096 = (4_096 - 2 * n * lane.term_q) / lane.term_q
    variance = steps_before_4096 * in_ulps[0] * (1 - in_ulps[0]) * 4
    variance += (2 * n - steps_before_4096) * in_ulps[1] * (1 - in_ulps[1]) * 16
    assert strayed.std().item() == pytest.approx(math.sqrt(variance), rel=0.08)


def test_a_sum_too_large_is_infinite():
    sums = running_sums([Lane(FP16, 60_000.0), Lane(FP8_E4M3, 300.0, "up")], 3)
    assert sums[:, 0].tolist() == [0, 60_000, math.inf, math.inf]
    assert sums[2, 1] == math.inf


def test_the_seed_decides():
    lanes = [Lane(FP16, 0.01, "stochastic")] * 3
    assert torch.equal(running_sums(lanes, 900, seed=1), running_sums(lanes, 900, seed=1))
    assert not torch.equal(running_sums(lanes, 900, seed=1), running_sums(lanes, 900, seed=2))


# -- where it stops --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fmt", "term", "stop"),
    [(FP16, 0.01, 32), (BF16, 0.01, 4), (FP16, 1.0, 2048), (BF16, 1.0, 256), (FP8_E4M3, 1.0, 16)],
    ids=str,
)
def test_it_stops_where_half_an_ulp_reaches_the_term(fmt, term, stop):
    sums = running_sums([Lane(fmt, term)], N)
    changed = last_change(sums)[0]
    assert sums[-1, 0] == stop and changed < N
    assert sums[changed, 0] == stop and sums[changed - 1, 0] < stop
    assert fmt.ulp(stop) / 2 >= Lane(fmt, term).term_q > fmt.ulp(stop / 2) / 2


def test_scaling_by_a_power_of_two_changes_nothing():
    ones = running_sums([Lane(FP16, 0.01 * 2.0**k) for k in (0, 5, 10)], N)
    assert torch.equal(ones[:, 1], 32 * ones[:, 0])
    assert torch.equal(ones[:, 2], 1024 * ones[:, 0])


# -- ways to add up --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", SUMMATIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_each_way_of_adding_up_is_exact_where_nothing_is_rounded(method, dtype):
    x = torch.tensor([1.0, 0.0, 2.0, 0.5] * 25).to(dtype)
    total = SUMMATIONS[method](x)
    assert total.dtype == dtype and total.shape == () and total == 87.5


def test_pairs_take_any_number_of_terms():
    for n in range(1, 40):
        assert add_up_in_pairs(torch.ones(n)).item() == n


def test_blocks_are_running_sums_of_neighbours():
    x = torch.rand(300, generator=torch.Generator().manual_seed(1)).half()
    by_hand = add_up(torch.stack([add_up(block) for block in x.split(100)]))
    assert torch.equal(add_up_in_blocks(x), by_hand)
    with pytest.raises(ValueError, match="block is 7; allowed are divisors"):
        add_up_in_blocks(x, 7)


def test_compensation_keeps_to_its_bound():
    """Higham, 4.3: the error is at most 2 u + n u² (and higher terms) for positive terms."""
    for dtype, u in ((torch.float16, 2.0**-11), (torch.bfloat16, 2.0**-8)):
        for seed in range(5):
            x = torch.rand(1_000, generator=torch.Generator().manual_seed(seed)).to(dtype)
            exact = x.double().sum()
            bound = 2 * u + 3 * len(x) * u * u
            assert abs(add_up_compensated(x).double() - exact) / exact < bound


@pytest.fixture(scope="module")
def summations():
    return run_summations(quick=True)


def test_what_lesson_02_claims_of_the_repairs(summations):
    for fmt in (FP16, BF16):
        running = summations.of("running sum", fmt)
        assert running.relative_error < -0.1
        for method in ("FP32 accumulator", "torch.sum", "pairs", "compensated (Kahan)"):
            assert abs(summations.of(method, fmt).error_ulps) <= 1
        blocks = summations.of("blocks of 100", fmt)
        assert abs(blocks.relative_error) < 0.03


@pytest.fixture(scope="module")
def running():
    return run_running_sums(quick=True)


def test_what_lesson_02_claims_of_running_sums(running):
    fp32, fp16, bf16 = running.curves
    assert abs(fp32.relative_error) < 1e-4
    assert (fp16.total, bf16.total) == (32, 4)
    assert fp16.last_change < running.n


def test_results_survive_json(running, summations):
    for result, kind in ((running, RunningSumsResult), (summations, SummationsResult)):
        assert kind.from_json(result.to_json()) == result
        assert "<table>" in result._repr_html_()


def test_pictures_say_what_they_show(running):
    assert "FP16 ends at 32" in plot_running_sums(running).alt
    random = run_running_sums(formats=["FP16"], roundings=["stochastic"], runs=20, quick=True)
    assert "16 stochastic running sums" in plot_stochastic_sums(random).alt


def test_bad_arguments_are_refused_by_name():
    with pytest.raises(ValueError, match="every is 7; allowed are divisors"):
        run_running_sums(n=100, every=7)
    with pytest.raises(ValueError, match="methods has 'abacus'; allowed are running sum"):
        run_summations(methods=["abacus"])
    with pytest.raises(ValueError, match="rounding is 'away'"):
        Lane(FP16, 1.0, "away")
    with pytest.raises(ValueError, match="term is -1"):
        Lane(FP16, -1.0)
    with pytest.raises(ValueError, match="term is 1e-09"):
        Lane(FP16, 1e-9)
    with pytest.raises(ValueError, match="n is 0"):
        running_sums([Lane(FP16, 1.0)], 0)
