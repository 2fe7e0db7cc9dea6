import contextlib

import pytest
import torch

from mptutor.dispatcher import Replacement, find_op, registered
from mptutor.policy import PolicyTable, difference, observe
from mptutor.policy.calls import FAMILIES, Operands
from mptutor.policy.classes import autocast_on

FP16, FP32 = torch.float16, torch.float32


@pytest.fixture(scope="module")
def cuda() -> PolicyTable:
    return observe("cuda")


@pytest.fixture(scope="module")
def cpu() -> PolicyTable:
    return observe("cpu")


def test_it_covers_enough_ops(cuda, cpu):
    assert len(cuda) == len(cpu) >= 180
    assert len({entry.op for entry in cuda}) == len(cuda)
    assert sum(entry.observed for entry in cuda) >= 180
    assert all(entry.observed for entry in cpu)


def test_every_op_on_cudas_lists_is_called():
    """Note which autocast kernels the sample calls reach, by standing in for all of them."""
    reached = set()

    def noting(name):
        op = find_op(name)

        def kernel(keys, *args, **kwargs):
            reached.add(name)
            with torch._C._ExcludeDispatchKeyGuard(
                torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
            ):
                return op(*args, **kwargs)

        return kernel

    listed = registered("AutocastCUDA")
    with (
        Replacement("AutocastCPU", lambda: {find_op(n): noting(n) for n in listed}),
        autocast_on("cpu", FP16),
    ):
        for calls in FAMILIES.values():
            for call in calls.values():
                with contextlib.suppress(RuntimeError):
                    call(Operands("cpu", [FP32]))

    unreached = set(listed) - reached
    below_other_listed_ops = {
        *("_convolution", "_convolution.deprecated", "convolution"),
        *("cudnn_convolution", "cudnn_convolution_transpose", "_cudnn_rnn"),
        *("_thnn_fused_gru_cell", "_thnn_fused_lstm_cell"),
        *("_scaled_dot_product_flash_attention", "rnn_relu_cell"),
    }
    superseded_by_linalg = {
        *("norm.Scalar", "norm.ScalarOpt_dim", "frobenius_norm.dim"),
        *("nuclear_norm", "nuclear_norm.dim"),
    }
    of_factorizations = {"linalg_matrix_sqrth"}
    assert unreached <= below_other_listed_ops | superseded_by_linalg | of_factorizations


@pytest.mark.parametrize(
    ("op", "on_cuda", "on_cpu"),
    # Sources: the lists in torch's documentation of torch.amp, and facts the lessons rest on.
    [
        ("mm", "16-bit", "16-bit"),
        ("linear", "16-bit", "16-bit"),
        ("conv2d", "16-bit", "16-bit"),
        ("scaled_dot_product_attention", "16-bit", "16-bit"),
        ("nn.LSTMCell", "16-bit", "as given"),
        ("softmax", "FP32", "as given"),
        ("log_softmax", "FP32", "as given"),
        ("layer_norm", "FP32", "as given"),
        ("group_norm", "FP32", "as given"),
        ("batch_norm", "as given", "as given"),
        ("exp", "FP32", "as given"),
        ("sum", "FP32", "as given"),
        ("mean", "as given", "as given"),
        ("pow, tensor and number", "FP32", "as given"),
        ("cross_entropy", "FP32", "FP32"),
        ("mse_loss", "FP32", "FP32"),
        ("binary_cross_entropy", "raises", "FP32"),
        ("avg_pool3d", "as given", "FP32"),
        ("add", "widest", "widest"),
        ("relu", "as given", "as given"),
        ("nn.MultiheadAttention", "16-bit", "16-bit"),
        ("nn.MultiheadAttention, weights", "FP32", "16-bit"),
    ],
)
def test_known_rules(cuda, cpu, op, on_cuda, on_cpu):
    assert (cuda[op].rule, cpu[op].rule) == (on_cuda, on_cpu)


def test_rms_norm_follows_the_installed_torch(cuda):
    expected = "FP32" if "rms_norm" in registered("AutocastCUDA") else "as given"
    assert cuda["rms_norm"].rule == expected


def test_an_error_keeps_its_text(cuda):
    refused = cuda["binary_cross_entropy"].low
    assert str(refused) == "raises"
    assert "unsafe to autocast" in refused.error
    assert refused.observed


def test_what_fails_without_autocast_is_not_called_a_policy(cuda):
    silent = [entry.op for entry in cuda if not entry.observed]
    if not torch.cuda.is_available():
        assert set(silent) <= {"nn.GRU", "nn.GRUCell", "gaussian_nll_loss", "ctc_loss"}
    assert all(str(cuda[op].fp32) == "not observed" for op in silent)


def test_bf16_follows_the_same_rules(cuda, cpu):
    for table in (cuda, cpu):
        other = observe(table.device, torch.bfloat16)
        differing = {e.op for e in table if e.observed and e.rule != other[e.op].rule}
        # There are complex numbers of FP16, not of BF16; oneDNN's LSTM needs units for the dtype.
        assert differing <= {"fft.rfft", "nn.LSTM"}


def test_difference_lists_both_sides(cuda, cpu):
    result = difference(cuda, cpu)
    ops = {a.op for a, _ in result.ops}
    assert {"softmax", "sum", "exp", "avg_pool3d", "binary_cross_entropy"} <= ops
    assert not {"mm", "relu", "cross_entropy", "batch_norm"} & ops
    assert all(a.op == b.op for a, b in result.ops)
    assert len(difference(cuda, cuda)) == 0
    assert len(result) == len(difference(cpu, cuda))


def test_tables_show_themselves(cuda, cpu):
    html = cuda._repr_html_()
    assert html.count("<tr>") == len(cuda) + 1
    assert "x ** 2" in html and "padding=&#x27;same&#x27;" in html
    assert "softmax" in difference(cuda, cpu)._repr_html_()


def test_grouping_keeps_every_op(cuda):
    groups = cuda.by_rule()
    assert sum(map(len, groups.values())) == len(cuda)
    assert "softmax" in groups["FP32"]


def test_observing_leaves_no_trace():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    observe("cpu")
    observe("cuda")
    assert torch.equal(torch.rand(2), expected)
    for device in ("cpu", "cuda"):
        assert not torch.is_autocast_enabled(device)
    assert torch.get_autocast_dtype("cpu") is torch.bfloat16
    assert torch.backends.cudnn.enabled


def test_wrong_arguments_say_what_is_allowed(cuda):
    with pytest.raises(ValueError, match="device: must be 'cuda' or 'cpu', got 'mps'"):
        observe("mps")
    with pytest.raises(ValueError, match=r"dtype: .*got torch.float32"):
        observe("cpu", FP32)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="fake: False runs the ops on a CUDA GPU"):
            observe("cuda", fake=False)
    with pytest.raises(KeyError, match="no op called 'sofmax'"):
        cuda["sofmax"]


@pytest.mark.gpu
def test_fake_tensors_tell_what_the_gpu_does(cuda):
    real = observe("cuda", fake=False)
    for fake, true in zip(cuda, real, strict=True):
        if not fake.observed:
            continue
        for kind in ("low", "fp32", "mixed"):
            a, b = getattr(fake, kind), getattr(true, kind)
            # A real kernel may lack a 16-bit form or refuse a mix; it never returns another dtype.
            assert a.dtype == b.dtype or b.dtype is None, (fake.op, kind, b.error)


@pytest.mark.gpu
def test_recurrent_layers_on_a_gpu_return_16_bits():
    real = observe("cuda", fake=False)
    for op in ("nn.RNN", "nn.GRU", "nn.LSTM", "nn.RNNCell", "nn.GRUCell", "nn.LSTMCell"):
        assert real[op].rule == "16-bit"
