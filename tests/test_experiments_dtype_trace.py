"""What lesson 07 says about dtypes, on the course's networks."""

import pytest
import torch

from mptutor.experiments.dtype_trace import DtypeTraceResult, run_dtype_trace

pytestmark = pytest.mark.lesson07


@pytest.fixture(scope="module", params=["small_cnn", "mlp", "transformer"])
def trace(request):
    return run_dtype_trace(request.param)


def test_parameters_and_their_gradients_stay_fp32(trace):
    with_weights = [layer for layer in trace.layers if layer.weight]
    assert with_weights
    assert {layer.weight for layer in with_weights} == {"float32"}
    assert {layer.weight_grad for layer in with_weights} == {"float32"}


def test_the_gradient_of_an_output_has_its_dtype(trace):
    for layer in trace.layers:
        assert layer.output_grad in (None, layer.output)


def test_products_come_out_in_16_bits_and_the_loss_in_32(trace):
    products = [layer for layer in trace.layers if layer.kind in ("Linear", "Conv2d")]
    assert products and {layer.output for layer in products} == {"float16"}
    assert trace.loss == "float32"


def test_batch_norm_runs_in_its_inputs_dtype_and_layer_norm_in_fp32():
    batch_norm = run_dtype_trace("small_cnn").layer("norm1")
    assert (batch_norm.input, batch_norm.weight, batch_norm.output) == (
        "float16",
        "float32",
        "float16",
    )
    assert run_dtype_trace("transformer").layer("norm").output == "float32"


def test_the_cpus_own_policy_can_be_traced_too():
    trace = run_dtype_trace("mlp", policy="cpu", dtype=torch.bfloat16)
    assert trace.layer("linear1").output == "bfloat16" and trace.device == "cpu"


def test_tracing_leaves_no_hook_and_no_simulation_behind():
    run_dtype_trace("mlp")
    half = torch.ones(2, 2, dtype=torch.float16)
    with torch.autocast("cpu", torch.float16):
        assert torch.softmax(half, -1).dtype == torch.float16  # CUDA's policy would give FP32


def test_it_survives_json(trace):
    assert DtypeTraceResult.from_json(trace.to_json()) == trace


def test_bad_arguments_are_named(trace):
    with pytest.raises(ValueError, match=r"model: got 'vgg', allowed are small_cnn"):
        run_dtype_trace("vgg")
    with pytest.raises(ValueError, match=r"policy: got 'tpu'"):
        run_dtype_trace(policy="tpu")
    with pytest.raises(ValueError, match=r"name: got 'x'"):
        trace.layer("x")


@pytest.mark.gpu
def test_a_gpu_gives_what_the_simulation_gives():
    on_gpu = run_dtype_trace("small_cnn", device="cuda")
    simulated = run_dtype_trace("small_cnn", device="cpu")
    assert on_gpu.layers == simulated.layers and on_gpu.loss == simulated.loss
