"""FP8 on real tensors and in training: against casts by ml_dtypes and torch's scaled products."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mptutor as mpt
from mptutor.experiments.fp8_layers import (
    Fp8Linear,
    Fp8Recipe,
    share_flushed,
    with_fp8_products,
)
from mptutor.experiments.fp8_results import WAYS, DelayedScalingResult, Fp8ErrorsResult
from mptutor.experiments.fp8_scaling import run_delayed_scaling, run_fp8_errors
from mptutor.experiments.fp8_tensors import TENSORS, measure_damage, trained_operands
from mptutor.experiments.fp8_training import (
    E4M3_SCALED,
    E4M3_UNSCALED,
    FP8_DELAYED,
    FP8_SCALED,
    FP8_UNSCALED,
    FP32_PRODUCTS,
    Fp8TrainingResult,
    run_fp8_training,
)
from mptutor.fp8 import GRANULARITIES, DelayedScale, quantize_scaled
from mptutor.models import mlp
from mptutor.plots import plot_delayed_scaling, plot_fp8_errors, plot_fp8_training

pytestmark = pytest.mark.lesson13


@pytest.fixture(scope="module")
def operands():
    return trained_operands(device="cpu")


@pytest.fixture(scope="module")
def errors():
    return run_fp8_errors(device="cpu")


@pytest.fixture(scope="module")
def delayed():
    return run_delayed_scaling(device="cpu")


@pytest.fixture(scope="module")
def training():
    recipes = (FP32_PRODUCTS, FP8_SCALED, FP8_DELAYED, E4M3_SCALED, FP8_UNSCALED, E4M3_UNSCALED)
    return run_fp8_training(recipes=recipes, seeds=(0, 1), device="cpu")


# -- real tensors ----------------------------------------------------------------------------------


def test_the_operands_are_those_of_the_layers_products(operands):
    task_batch, out = operands.gradients.shape
    assert operands.weights.shape == (out, operands.activations.shape[1])
    assert operands.activations.shape[0] == task_batch
    outlier = operands.with_outlier(1e5)[:, operands.outlier_channel]
    assert (outlier > 0).all() and torch.equal(
        outlier, operands.activations[:, operands.outlier_channel] * 1e5
    )


@pytest.mark.parametrize(("fmt", "dtype"), [("FP8_E4M3", "e4m3fn"), ("FP8_E5M2", "e5m2")])
def test_errors_are_those_of_casts_by_ml_dtypes(operands, errors, fmt, dtype):
    fmt, dtype = mpt.get_format(fmt), getattr(ml_dtypes, f"float8_{dtype}")
    for name, x in operands.named().items():
        x = x.numpy()
        scale = np.float32(fmt.max / np.abs(x).max())
        scaled = np.clip(x * scale, -fmt.max, fmt.max)
        x_q = scaled.astype(dtype).astype(np.float32) / scale
        damage = errors.of(name, fmt, "tensor").damage
        error, kept = np.abs(x_q - x)[x != 0].astype(np.float64), np.abs(x)[x != 0]
        assert damage.relative_error == pytest.approx((error / kept).mean(), rel=1e-5)
        norm = np.linalg.norm((x_q - x).astype(np.float64)) / np.linalg.norm(x.astype(np.float64))
        assert damage.norm_error == pytest.approx(norm, rel=1e-5)
        assert damage.flushed == pytest.approx(((x_q == 0) & (x != 0)).sum() / (x != 0).sum())


def test_unscaled_e4m3_flushes_every_gradient_and_e5m2_a_part(errors):
    assert errors.of("gradients", "FP8_E4M3", "none").damage.flushed == 1
    assert 0.05 < errors.of("gradients", "FP8_E5M2", "none").damage.flushed < 0.7


@pytest.mark.parametrize("tensor", ["weights", "activations", "gradients"])
@pytest.mark.parametrize("granularity", ["tensor", "row", "block"])
def test_scaled_e5m2_is_twice_as_far_off_as_e4m3(errors, tensor, granularity):
    e4m3, e5m2 = (errors.of(tensor, f, granularity).damage for f in ("FP8_E4M3", "FP8_E5M2"))
    assert 1.7 < e5m2.relative_error / e4m3.relative_error < 2.2
    assert 0.02 < e4m3.norm_error < 0.035 and 0.045 < e5m2.norm_error < 0.06


def test_an_outlier_eats_the_others_per_tensor_and_only_its_neighbours_per_block(errors, operands):
    outlier = "activations with outlier"
    of = {g: errors.of(outlier, "FP8_E4M3", g).damage for g in GRANULARITIES}
    assert of["tensor"].flushed > 0.4 and of["row"].flushed > 0.1 > of["block"].flushed
    assert of["tensor"].relative_error > 10 * of["block"].relative_error
    x = operands.with_outlier()
    flushed = (quantize_scaled(x, "FP8_E4M3", "block").values == 0) & (x != 0)
    where = flushed.any(0).nonzero().flatten() // 32
    assert set(where.tolist()) == {operands.outlier_channel // 32}


def test_the_norm_error_does_not_notice_what_an_outlier_eats(errors):
    per_tensor = errors.of("activations with outlier", "FP8_E4M3", "tensor").damage
    unscaled = errors.of("activations with outlier", "FP8_E4M3", "none").damage
    assert per_tensor.norm_error < 0.05 < 0.5 < per_tensor.relative_error
    assert unscaled.relative_error < 0.05 < 0.5 < unscaled.norm_error


def test_narrower_formats_are_worse(errors):
    for tensor in ("weights", "activations", "gradients"):
        found = [errors.of(tensor, f, "block").damage.relative_error for f in errors.formats]
        assert found[0] == min(found) and found[-1] == max(found)


def test_scales_cost_a_quarter_of_a_bit_in_blocks(errors):
    weights = {g: errors.of("weights", "FP8_E4M3", g) for g in GRANULARITIES}
    assert [weights[g].scales for g in GRANULARITIES] == [0, 1, 256, 256 * 8]
    assert weights["block"].bits_per_value == 8.25 and weights["row"].bits_per_value == 8.125


def test_the_errors_read_back_and_show_themselves(errors):
    assert Fp8ErrorsResult.from_json(errors.to_json()) == errors
    assert len(errors.table()) == len(TENSORS) * 5 and "per block" in str(errors)
    assert errors.shares("flushed")[-1]["values"] == "gradients"
    with pytest.raises(ValueError, match=r"got 'biases', 'FP8_E4M3', 'tensor'; this result has"):
        errors.of("biases")
    assert run_fp8_errors(quick=True, device="cpu").formats == ("FP8_E4M3", "FP8_E5M2")


def test_a_tensor_of_zeros_takes_no_damage():
    x = torch.zeros(4, 4)
    damage = measure_damage(x, quantize_scaled(x, "FP8_E4M3"))
    assert damage.relative_error == damage.flushed == 0


# -- delayed scaling -------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", ["FP8_E4M3", "FP8_E5M2"])
def test_a_delayed_scale_clips_a_jump_and_a_current_one_does_not(delayed, fmt):
    for phase in ("at the spike", "at the jump"):
        for way in WAYS:
            trace = delayed.of(way, fmt)
            error, clipped = (
                delayed.mean(trace, phase, w) for w in ("relative_error", "saturated")
            )
            if way == "current":
                assert clipped == 0 and error < 0.06
            else:
                assert clipped > 0.5 and error > 0.5


def test_delayed_scales_are_those_of_the_amaxes_before(delayed):
    state = DelayedScale(mpt.FP8_E5M2, length=delayed.length)
    trace = delayed.of("delayed, max", "FP8_E5M2")
    for amax, scale in zip(delayed.amaxes, trace.scales, strict=True):
        assert scale == np.float32(state.scale)
        state = state.after(amax)


def test_a_remembered_spike_costs_e4m3_precision_for_the_length_of_the_history_and_e5m2_nothing(
    delayed,
):
    e4m3, e5m2 = (delayed.of("delayed, max", f) for f in ("FP8_E4M3", "FP8_E5M2"))
    current = delayed.of("current")
    assert delayed.mean(e4m3, "after the spike") > 1.5 * delayed.mean(current, "after the spike")
    recovered = delayed.spike_at + delayed.length + 1
    assert e4m3.damages[recovered].relative_error < 1.1 * current.damages[recovered].relative_error
    assert delayed.mean(e5m2, "after the spike") < 1.05 * delayed.mean(e5m2, "before")
    recent = delayed.of("delayed, most recent")
    assert delayed.mean(recent, "after the spike") < delayed.mean(e4m3, "after the spike")


def test_without_jumps_all_ways_agree(delayed):
    for phase in ("before", "after the jump"):
        means = [delayed.mean(delayed.of(way), phase) for way in WAYS]
        assert max(means) < 1.1 * min(means)


def test_the_delayed_scales_read_back_and_show_themselves(delayed):
    assert DelayedScalingResult.from_json(delayed.to_json()) == delayed
    assert len(delayed.table()) == 6
    with pytest.raises(ValueError, match="way, fmt: got 'guess'"):
        delayed.of("guess")
    with pytest.raises(ValueError, match="name: got 'later', allowed are before"):
        delayed.phase("later")
    with pytest.raises(ValueError, match="steps: got 7"):
        run_delayed_scaling(steps=7)
    quick = run_delayed_scaling(quick=True, device="cpu")
    assert len(quick.amaxes) == 16 and quick.jump_at - quick.spike_at > quick.length


# -- layers ----------------------------------------------------------------------------------------


def layer_and_batch(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(64, 96), torch.randn(32, 64, requires_grad=True), torch.randn(32, 96) * 1e-4


def gradients_of(layer, x, grad):
    x.grad = None
    layer.zero_grad()
    y = layer(x)
    y.backward(grad)
    return y.detach(), x.grad.clone(), layer.weight.grad.clone(), layer.bias.grad.clone()


def test_without_formats_the_products_are_linears():
    linear, x, grad = layer_and_batch()
    expected = gradients_of(linear, x, grad)
    found = gradients_of(Fp8Linear(linear, FP32_PRODUCTS), x, grad)
    for theirs, ours in zip(expected, found, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-6, atol=1e-7 * theirs.abs().max().item())


def test_per_tensor_all_three_products_are_torchs_scaled_ones():
    linear, x, grad = layer_and_batch()
    y, grad_x, grad_w, _ = gradients_of(Fp8Linear(linear, FP8_SCALED), x, grad)
    formats = (mpt.FP8_E4M3, mpt.FP8_E4M3, mpt.FP8_E5M2)
    qx, qw, qg = (
        quantize_scaled(t, f) for t, f in zip((x, linear.weight, grad), formats, strict=True)
    )

    def scaled_mm(a, b):
        (a, transposed_a), (b, transposed_b) = a, b
        left, right = (q.values.to(q.fmt.torch_dtype) for q in (a, b))
        left = left.t().contiguous() if transposed_a else left
        right = right.t() if transposed_b else right.t().contiguous().t()
        return torch._scaled_mm(
            left, right, scale_a=1 / a.scale, scale_b=1 / b.scale, out_dtype=torch.float32
        )

    for ours, theirs in (
        (y - linear.bias, scaled_mm((qx, False), (qw, True))),
        (grad_x, scaled_mm((qg, False), (qw, False))),
        (grad_w, scaled_mm((qg, True), (qx, False))),
    ):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5 * theirs.abs().max().item())


@pytest.mark.parametrize("granularity", ["row", "block"])
def test_rows_and_blocks_lie_along_what_is_summed_over(granularity):
    linear, x, grad = layer_and_batch()
    recipe = Fp8Recipe("mine", granularity=granularity)
    y, grad_x, grad_w, _ = gradients_of(Fp8Linear(linear, recipe), x, grad)

    def product(a, b, fmt_a, fmt_b):
        """Round a along its rows and b along its columns, which the product sums over."""
        left = quantize_scaled(a, fmt_a, granularity).dequantize()
        return left @ quantize_scaled(b.t(), fmt_b, granularity).dequantize().t()

    e4m3, e5m2, weight = mpt.FP8_E4M3, mpt.FP8_E5M2, linear.weight.detach()
    batch = x.detach()
    assert torch.allclose(y - linear.bias, product(batch, weight.t(), e4m3, e4m3), atol=1e-5)
    for ours, theirs in (
        (grad_x, product(grad, weight, e5m2, e4m3)),
        (grad_w, product(grad.t(), batch, e5m2, e4m3)),
    ):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6 * theirs.abs().max().item())


def test_delayed_layers_round_with_the_scales_of_the_step_before():
    linear, x, grad = layer_and_batch()
    layer = Fp8Linear(linear, FP8_DELAYED)
    first = gradients_of(layer, x, grad)[0]
    unscaled = gradients_of(Fp8Linear(linear, FP8_UNSCALED), x, grad)[0]
    assert torch.equal(first, unscaled)
    second = gradients_of(layer, x, grad)
    current = gradients_of(Fp8Linear(linear, FP8_SCALED), x, grad)
    for ours, theirs in zip(second, current, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6 * theirs.abs().max().item())


def test_every_linear_layer_is_replaced_and_keeps_its_weights():
    model = mlp((64, 32, 32, 10))
    weights = [p.data_ptr() for p in model.parameters()]
    with_fp8_products(model, FP8_SCALED)
    assert [p.data_ptr() for p in model.parameters()] == weights
    assert sum(isinstance(m, Fp8Linear) for m in model.modules()) == 3
    assert share_flushed(model) == 0
    F.cross_entropy(model(torch.randn(8, 64)), torch.arange(8)).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_recipes_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="granularity is 'column'"):
        Fp8Recipe("mine", granularity="column")
    with pytest.raises(ValueError, match="history is 4, but granularity is 'block'"):
        Fp8Recipe("mine", granularity="block", history=4)


# -- training --------------------------------------------------------------------------------------


def test_scaled_fp8_trains_like_fp32(training):
    fp32 = training.mean("FP32", "loss")
    for recipe in ("FP8 per tensor", "FP8 delayed", "E4M3 per tensor"):
        assert abs(training.mean(recipe, "loss") - fp32) < 0.05
        assert abs(training.mean(recipe, "accuracy") - training.mean("FP32", "accuracy")) < 0.04


def test_unscaled_e4m3_has_no_gradients_to_learn_from(training):
    assert training.mean("E4M3 unscaled", "share_flushed") > 0.9
    assert training.mean("E4M3 unscaled", "loss") > 3 * training.mean("FP32", "loss")
    assert training.mean("E4M3 unscaled", "accuracy") < 0.55


def test_unscaled_e5m2_gradients_lose_a_part_and_train_all_the_same(training):
    assert 0.05 < training.mean("FP8 unscaled", "share_flushed") < 0.5
    assert abs(training.mean("FP8 unscaled", "loss") - training.mean("FP32", "loss")) < 0.05


def test_scaled_e4m3_flushes_more_gradients_than_e5m2_and_few(training):
    e4m3, e5m2 = (
        training.mean(recipe, "share_flushed") for recipe in ("E4M3 per tensor", "FP8 per tensor")
    )
    assert e5m2 < e4m3 < 0.02


def test_blocks_train_too_and_a_quick_run_shows_both_sides():
    heard = []
    quick = run_fp8_training(quick=True, device="cpu", progress=heard.append)
    assert abs(quick.mean("MXFP8 blocks", "loss") - quick.mean("FP32", "loss")) < 0.06
    assert quick.mean("E4M3 unscaled", "loss") > 1.5 * quick.mean("FP32", "loss")
    assert [stage.done for stage in heard] == [0, 0.25, 0.5, 0.75] and quick.finished
    assert [stage.said for stage in heard] == [f"{recipe}, seed 0" for recipe in quick.recipes]


def test_a_training_that_is_stopped_keeps_its_runs():
    polls = iter([False, True])
    named = (FP32_PRODUCTS, FP8_UNSCALED)
    result = run_fp8_training(recipes=named, quick=True, device="cpu", stop=lambda: next(polls))
    assert result.recipes == ("FP32",) and not result.finished
    assert "stopped early" in result.headline


def test_the_training_reads_back_and_shows_itself(training):
    assert Fp8TrainingResult.from_json(training.to_json()) == training
    assert len(training.table()) == 6 and "±" in str(training)
    with pytest.raises(ValueError, match="recipe: got 'INT8', this result has FP32"):
        training.of("INT8")


@pytest.mark.gpu
def test_a_gpu_trains_alike():
    cpu, gpu = (run_fp8_training(quick=True, device=device) for device in ("cpu", "cuda"))
    for recipe in cpu.recipes:
        assert abs(cpu.mean(recipe, "loss") - gpu.mean(recipe, "loss")) < 0.05


# -- pictures --------------------------------------------------------------------------------------


def test_pictures_say_the_numbers_they_draw(errors, delayed, training):
    picture = plot_fp8_errors(errors)
    assert f"{100 * errors.of('gradients', 'FP8_E5M2', 'none').damage.relative_error:.3g}" in (
        picture.alt
    )
    drawn = [line.get_xdata()[0] for line in picture.axes[0].lines if len(line.get_xdata())]
    assert len(drawn) == len(TENSORS) * 2 * len(GRANULARITIES)
    below = plot_delayed_scaling(delayed, "FP8_E5M2").axes[1]
    assert [line.get_label() for line in below.lines] == list(WAYS)
    assert all(math.isfinite(y) for line in below.lines for y in line.get_ydata())
    labels = [text.get_text() for text in plot_fp8_training(training).axes[0].get_yticklabels()]
    assert labels == list(reversed(training.recipes))
