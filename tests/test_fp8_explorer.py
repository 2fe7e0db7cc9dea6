"""The FP8 scale explorer's model against torch's casts; its view against the model."""

import json
import math

import pytest
import torch

from mptutor.fp8 import quantize_scaled
from mptutor.widgets import ScaleExplorer
from mptutor.widgets.fp8_explorer import (
    FORMATS,
    GRANULARITIES,
    HIGHEST,
    LOWEST,
    Fp8Explorer,
    tables_of,
)
from tests.javascript import evaluate

pytestmark = pytest.mark.lesson13

NAMES = [fmt.name for fmt in FORMATS]
DTYPES = {"FP8_E4M3": torch.float8_e4m3fn, "FP8_E5M2": torch.float8_e5m2}
OUTLIER_CHANNEL = 40
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def made_up(seed, rows=24, columns=96):
    """Return numbers with zeros, ties and the formats' thresholds among them."""
    generator = torch.Generator().manual_seed(seed)

    def powers(low, high):
        return 2.0 ** torch.randint(low, high, (rows,), generator=generator).float()

    x = torch.randn(rows, columns, generator=generator)
    x *= torch.exp2(5 * torch.randn(rows, columns, generator=generator) - 6)
    x[:, ::16] = 0
    x[:, 1] = powers(-30, 12)
    x[:, 33] = 464 * powers(-30, 6)
    x[:, 65] = 61440 * powers(-36, 2)
    return x


def with_outlier(x):
    x = x.clone()
    x[:, OUTLIER_CHANNEL] = 1e5 * (1 + x[:, OUTLIER_CHANNEL].abs())
    return x


TENSORS = {"noise": made_up(0), "outlier": with_outlier(made_up(1))}
TABLES = tables_of(TENSORS, {"outlier": OUTLIER_CHANNEL})


@pytest.fixture
def explorer():
    return Fp8Explorer(tensor="noise", tables=TABLES)


def positions():
    return [(t, f, g) for t in TENSORS for f in NAMES for g in GRANULARITIES]


# -- what is shown ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", NAMES)
@pytest.mark.parametrize("tensor", TENSORS)
def test_every_scale_counts_what_a_cast_does(explorer, tensor, fmt):
    explorer.tensor, explorer.fmt, explorer.granularity = tensor, fmt, "tensor"
    x, info = TENSORS[tensor], torch.finfo(DTYPES[fmt])
    for power in range(LOWEST, HIGHEST + 1):
        explorer.power = power
        scaled = x * 2.0**power
        limit = FORMATS[NAMES.index(fmt)].overflow_threshold
        cast = scaled.clamp(-info.max, info.max).to(DTYPES[fmt]).float()
        subnormal = (cast != 0) & (cast.abs() < info.smallest_normal)
        result = explorer.result
        assert result.zeros == (x == 0).sum() and result.nonzero == (x != 0).sum()
        assert result.flushed == ((cast == 0) & (x != 0)).sum()
        assert result.subnormal == subnormal.sum()
        assert result.clipped == (scaled.abs() >= limit).sum()
        zones = (result.flushed, result.subnormal, result.normal, result.clipped)
        assert sum(zones) == result.nonzero and result.problem == ""
        error = ((cast / 2.0**power - x) / x)[x != 0].abs().double().mean().item()
        assert result.relative_error == pytest.approx(error, rel=1e-5)


@pytest.mark.parametrize("fmt", NAMES)
@pytest.mark.parametrize("granularity", ["row", "block"])
@pytest.mark.parametrize("tensor", TENSORS)
def test_rows_and_blocks_count_what_their_scales_do(explorer, tensor, fmt, granularity):
    explorer.tensor, explorer.fmt, explorer.granularity = tensor, fmt, granularity
    x, result = TENSORS[tensor], explorer.result
    quantized = quantize_scaled(x, fmt, granularity)
    assert result.flushed == ((quantized.values == 0) & (x != 0)).sum()
    assert result.scales == {"row": 24, "block": 24 * 3}[granularity]
    for columns, (flushed, _, clipped) in enumerate(result.by_block):
        part = slice(32 * columns, 32 * columns + 32)
        assert flushed == ((quantized.values[:, part] == 0) & (x[:, part] != 0)).sum()
        limit = quantized.fmt.overflow_threshold
        assert clipped == ((x * quantized.scale)[:, part].abs() >= limit).sum()
    error = ((quantized.dequantize() - x) / x)[x != 0].abs().double().mean().item()
    assert result.relative_error == pytest.approx(error, rel=1e-5)


def test_the_amaxs_power_clips_nothing_and_the_next_does(explorer):
    for tensor in TENSORS:
        for fmt in FORMATS:
            explorer.tensor, explorer.fmt = tensor, fmt.name
            scale = explorer.result.amax_scale
            assert scale == pytest.approx(fmt.max / TENSORS[tensor].abs().max().item())
            explorer.power = math.floor(math.log2(scale))
            assert explorer.result.clipped == 0
            explorer.power += 2
            assert explorer.result.clipped > 0


def test_an_outlier_empties_all_blocks_or_only_its_own():
    explorer = Fp8Explorer(tensor="activations with outlier")
    explorer.power = math.floor(math.log2(explorer.result.amax_scale))
    assert all(flushed > 0 for flushed, _, _ in explorer.result.by_block)
    assert explorer.result.flushed > 0.4 * explorer.result.nonzero
    explorer.granularity = "block"
    losing = [i for i, (flushed, _, _) in enumerate(explorer.result.by_block) if flushed]
    assert losing == [explorer.tensors[explorer.tensor]["outlier_block"]]


def test_the_goal_and_the_question_of_the_lesson_have_their_answers():
    explorer = Fp8Explorer(tensor="activations with outlier")
    unclipped = [p for p in range(LOWEST, HIGHEST + 1) if _at(explorer, p).clipped == 0]
    assert max(unclipped) == math.floor(math.log2(explorer.result.amax_scale))
    best = min(range(LOWEST, HIGHEST + 1), key=lambda p: _at(explorer, p).relative_error)
    rows = 128
    at_best = _at(explorer, best)
    assert at_best.relative_error < 0.03 and at_best.clipped >= rows
    explorer.granularity = "block"
    per_block = explorer.result
    assert per_block.relative_error < 0.1 * _at(explorer, max(unclipped), "tensor").relative_error


def _at(explorer, power, granularity=None):
    explorer.power = power
    explorer.granularity = granularity or explorer.granularity
    return explorer.result


# -- setting the traits ----------------------------------------------------------------------------


@pytest.mark.parametrize(("tensor", "fmt", "granularity"), positions())
def test_every_position_has_a_sentence_and_a_picture(explorer, tensor, fmt, granularity):
    explorer.tensor, explorer.fmt, explorer.granularity = tensor, fmt, granularity
    for power in (LOWEST, 0, HIGHEST):
        explorer.power = power
        assert explorer.result.problem == ""
        assert explorer.describe().endswith(" %.")
        assert explorer.picture().startswith("<svg") and "clipped" in explorer.picture()


def test_a_power_that_makes_no_sense_gets_a_sentence(explorer):
    explorer.power = 99
    assert explorer.describe() == "power is 99; allowed are -20 to 36. Shown is 2³⁶."
    assert explorer.result.clipped == _at(explorer, HIGHEST).clipped
    explorer.power, explorer.granularity = -99, "row"
    assert explorer.result.problem == "", "a row's scale is its own"


def test_choices_that_do_not_exist_are_refused(explorer):
    with pytest.raises(ValueError, match="fmt is 'FP16'; allowed are FP8_E4M3, FP8_E5M2"):
        explorer.fmt = "FP16"
    with pytest.raises(ValueError, match="granularity is 'column'; allowed are tensor, row, block"):
        Fp8Explorer(granularity="column", tables=TABLES, tensor="noise")
    with pytest.raises(ValueError, match="tensor is 'bias'; allowed are noise, outlier"):
        explorer.tensor = "bias"


def test_a_tensor_of_zeros_is_shown_too():
    explorer = Fp8Explorer(tensor="nothing", tables=tables_of({"nothing": torch.zeros(4, 40)}, {}))
    for explorer.granularity in GRANULARITIES:
        assert explorer.result.zeros == 160 and explorer.result.relative_error == 0
        assert explorer.describe() and explorer.picture()


def test_the_default_tensors_fit_into_the_state():
    explorer = Fp8Explorer()
    assert list(explorer.tensors) == [
        "weights",
        "activations",
        "activations with outlier",
        "gradients",
    ]
    assert len(json.dumps(explorer.state(), allow_nan=False)) < 200_000


# -- the view shows what the model shows -----------------------------------------------------------


def test_the_view_shows_what_the_model_shows(explorer):
    asked = [
        {"tensor": t, "fmt": f, "granularity": g, "power": power}
        for t, f, g in positions()
        for power in (-99, LOWEST, -3, 0, 7, HIGHEST)
    ]
    state = explorer.state()
    shown = evaluate(
        Fp8Explorer._esm,
        "asked.map((position) => { const v = explore({ ...shared, ...position });"
        " return [v.counts, v.zeros, v.error, v.scales, v.blocks, sentence(v)]; })",
        asked=asked,
        shared={"tensors": state["tensors"], "choices": state["choices"]},
    )
    for position, (counts, zeros, error, scales, blocks, said) in zip(asked, shown, strict=True):
        for name, value in position.items():
            setattr(explorer, name, value)
        result = explorer.result
        zones = (result.flushed, result.subnormal, result.normal, result.clipped)
        assert tuple(counts.values()) == zones, position
        assert (zeros, error, scales) == (result.zeros, result.relative_error, result.scales)
        found = [
            (b["counts"]["flushed"], b["counts"]["subnormal"], b["counts"]["infinite"])
            for b in blocks
        ]
        assert found == list(result.by_block)
        assert [b["hasOutlier"] for b in blocks] == [
            position["tensor"] == "outlier" and i == OUTLIER_CHANNEL // 32 for i in range(3)
        ]
        if not result.problem:
            assert said == explorer.describe()


def test_the_view_says_what_the_amax_asks_for(explorer):
    state = explorer.state()
    shared = {"tensors": state["tensors"], "choices": state["choices"], "power": 0}
    positions = [{"tensor": "noise", "fmt": "FP8_E4M3", "granularity": g} for g in GRANULARITIES]
    said = evaluate(
        Fp8Explorer._esm,
        "asked.map((position) => amaxSentence(explore({ ...shared, ...position })))",
        asked=positions,
        shared=shared,
    )
    scale = explorer.result.amax_scale
    asked_for = said[0].removeprefix("The amax asks for a scale of about ").split(";")[0]
    assert float(asked_for.replace(",", "")) == pytest.approx(scale, rel=0.005)
    assert said[0].endswith(f"2{str(math.floor(math.log2(scale))).translate(RAISED)}.")
    assert said[1].startswith("24 scales, each chosen by its own amax, from ")
    blocks = quantize_scaled(TENSORS["noise"], "FP8_E4M3", "block").scale
    powers = [int(math.log2(s)) for s in (blocks.min().item(), blocks.max().item())]
    assert said[2].endswith(" to ".join(f"2{str(p).translate(RAISED)}" for p in powers) + ".")


def test_the_scale_explorer_still_says_infinity_where_fp8_clips(explorer):
    assert "∞" in ScaleExplorer().picture() and "∞" not in explorer.picture()
