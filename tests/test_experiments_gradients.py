"""Counting gradients against casting them; the claims of lessons 03 and 05."""

import math

import pytest
import torch
from torch import nn

from mptutor.census import take_census
from mptutor.experiments.gradient_census import (
    GradientCensusResult,
    layer_gradients,
    network_and_loss,
    run_gradient_census,
)
from mptutor.experiments.scale_sweep import ScaleSweepResult, run_scale_sweep
from mptutor.formats import BF16, FP16
from mptutor.plots import plot_exponents, plot_gradient_census, plot_scale_sweep

pytestmark = [pytest.mark.lesson03, pytest.mark.lesson05]


@pytest.fixture(scope="module")
def sigmoid():
    return run_gradient_census(device="cpu")


@pytest.fixture(scope="module")
def cnn():
    return run_gradient_census("cnn", epochs=3, quick=True, device="cpu")


@pytest.fixture(scope="module")
def sweep():
    return run_scale_sweep(quick=True, device="cpu")


# -- the gradients ---------------------------------------------------------------------------------


def test_gradients_are_those_that_autograd_gives():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    x = torch.randn(5, 4)
    found = layer_gradients(net, lambda: net(x).square().sum())
    first = net[0](x)
    out = net[2](net[1](first))
    of_first, of_out = torch.autograd.grad(out.square().sum(), [first, out])
    assert list(found) == ["linear1", "linear2"]
    assert torch.equal(found["linear1"].outputs, of_first)
    assert torch.equal(found["linear2"].outputs, of_out)
    expected = torch.cat([net[2].weight.grad.flatten(), net[2].bias.grad])
    assert torch.equal(found["linear2"].weights, expected)


@pytest.mark.parametrize("network", ["sigmoid", "mlp"])
def test_a_census_counts_what_a_cast_does(network):
    result = run_gradient_census(network, device="cpu")
    for name, grad in layer_gradients(*network_and_loss(network, device="cpu")).items():
        for kind in ("outputs", "weights"):
            x = getattr(grad, kind)
            census = result.census(kind, name)
            for scale in (1.0, 2.0**10):
                flushed = ((x * scale).half() == 0).sum() - (x == 0).sum()
                assert census.flushed(FP16, scale) == flushed
                assert census.overflowed(FP16, scale) == (x * scale).half().isinf().sum()


def test_layers_and_kinds_add_up(sigmoid):
    both = sigmoid.census("outputs") + sigmoid.census("weights")
    assert sigmoid.census() == both
    layers = [sigmoid.census("outputs", row.layer).total for row in sigmoid.layers]
    assert sum(layers) == sigmoid.census("outputs").total


def test_sigmoid_gradients_shrink_towards_the_input(sigmoid):
    lost = [row.outputs.flushed(FP16) / row.outputs.nonzero for row in sigmoid.layers]
    assert lost[0] == lost[1] == 1.0 and lost[-1] == 0.0
    assert lost == sorted(lost, reverse=True)
    assert sigmoid.census().flushed(BF16) == 0


def test_a_cnn_loses_some_and_has_many_exact_zeros(cnn):
    outputs = cnn.census("outputs")
    assert 0.02 < outputs.flushed(FP16) / outputs.nonzero < 0.3
    assert 0.2 < outputs.zeros / outputs.total < 0.6
    assert cnn.epochs == 1


def test_the_random_state_of_the_caller_is_left_alone():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    run_gradient_census("mlp", device="cpu")
    assert torch.rand(1) == expected


# -- the sweep -------------------------------------------------------------------------------------


def test_the_window_is_confirmed_by_training(sweep):
    low, high = sweep.smallest_safe, sweep.largest_safe
    chance = math.log(10)
    assert 1 < low < high
    for edge in (low, high):
        assert sweep.at(edge).skips == 0 and sweep.at(edge).loss < chance - 0.3
    dead = sweep.at(1.0)
    assert dead.skips == 0 and dead.share_flushed > 0.3 and dead.loss > chance - 0.05
    too_high = sweep.at(8 * high)
    assert too_high.skips == too_high.steps and too_high.overflowed > 0
    assert all(math.isfinite(run.loss) for run in sweep.runs)


def test_the_sweep_starts_with_the_gradients_that_were_counted(sweep):
    model, loss = network_and_loss(device="cpu")
    grads = layer_gradients(model, loss).values()
    census = take_census([g for grad in grads for g in (grad.outputs, grad.weights)])
    assert census.safe_scales(FP16).smallest == sweep.smallest_safe
    assert census.safe_scales(FP16).largest == sweep.largest_safe


def test_a_sweep_can_be_stopped():
    result = run_scale_sweep([1.0, 2.0], epochs=1, device="cpu", stop=lambda: True)
    assert not result.finished and result.runs == ()


# -- results, pictures, errors ---------------------------------------------------------------------


def test_results_read_back(sigmoid, sweep):
    assert GradientCensusResult.from_json(sigmoid.to_json()) == sigmoid
    assert ScaleSweepResult.from_json(sweep.to_json()) == sweep
    assert "predicted window" in str(sweep) and "linear9" in str(sigmoid)


def test_pictures_say_what_they_show(sigmoid, cnn, sweep):
    assert "100 %" in plot_gradient_census(sigmoid).alt
    assert "zero in FP16" in plot_exponents(cnn.census("weights"), scale=8.0).get_suptitle()
    assert f"2^{math.log2(sweep.largest_safe):g}" in plot_scale_sweep(sweep).alt


def test_bad_arguments_are_refused_by_name(sigmoid, sweep):
    with pytest.raises(ValueError, match="network: got 'rnn', allowed are sigmoid, cnn, mlp"):
        run_gradient_census("rnn")
    with pytest.raises(ValueError, match="kind: got 'inputs'"):
        sigmoid.census("inputs")
    with pytest.raises(ValueError, match="layer: got 'conv1'"):
        sigmoid.census("outputs", "conv1")
    with pytest.raises(ValueError, match=r"scale: got 3\.0"):
        sweep.at(3.0)
