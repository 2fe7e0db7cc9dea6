"""The oracle is torch under CUDA autocast on fake tensors, and torch's own autocast kernels."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mptutor import models
from mptutor.dispatcher import registered
from mptutor.policy import CastClass, cast_classes, cuda_policy, difference, observe
from mptutor.policy.classes import autocast_on

FP16, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32

NO_CPU_KERNEL = "the CPU has no 16-bit kernel for it, a GPU does"
STRICTER_KERNEL = "the CPU's kernel refuses a mix of dtypes, the fake one takes it"

#: Every op for which the CPU under CUDA's policy differs from fake CUDA, and why.
REMAINING = {
    "avg_pool3d": NO_CPU_KERNEL,
    "local_response_norm": NO_CPU_KERNEL + " (it is made of avg_pool3d)",
    "fft.rfft": NO_CPU_KERNEL,
    "linalg.cross": STRICTER_KERNEL,
    "index_add": STRICTER_KERNEL,
    "index_copy": STRICTER_KERNEL,
}


class DtypeTrace(TorchDispatchMode):
    """Note each op with the dtypes that come out of it, casts and views left out."""

    def __init__(self):
        super().__init__()
        self.entries = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        result = op(*args, **(kwargs or {}))
        dtypes = [x.dtype for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        if dtypes and not op.is_view and op is not torch.ops.aten._to_copy.default:
            self.entries.append((op.overloadpacket.__name__, dtypes))
        return result

    def dtypes_of(self, name):
        return [dtypes for op, dtypes in self.entries if op == name]


class CallTrace(torch.overrides.TorchFunctionMode):
    """Note each call of a torch function with the dtypes that come out of it."""

    def __init__(self):
        super().__init__()
        self.entries = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        dtypes = [x.dtype for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        if dtypes:
            self.entries.append((function.__name__, dtypes))
        return result


class CharLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(96, 32)
        self.lstm = nn.LSTM(32, 64, num_layers=2)
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 96)

    def forward(self, codes):
        return self.head(self.norm(self.lstm(self.embed(codes))[0])).softmax(-1)


def image_batch():
    return torch.randn(4, 3, 32, 32)


def code_batch():
    return torch.randint(0, 96, (4, 16))


MODELS = {
    "cnn": (models.small_cnn, image_batch),
    "mlp": (lambda: models.mlp((3 * 32 * 32, 64, 10)), image_batch),
    "transformer": (models.char_transformer, code_batch),
    "lstm": (CharLSTM, code_batch),
}


def trace_on_cpu(build, batch, trace):
    model, x = build(), batch()
    with cuda_policy(), autocast_on("cpu", FP16), trace:
        model(x)
    return trace.entries


def trace_on_fake_cuda(build, batch, trace):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), torch.backends.cudnn.flags(enabled=False):
        with torch.device("cuda"):
            model, x = build(), batch()
        with autocast_on("cuda", FP16), trace:
            model(x)
    return trace.entries


# CUDA's policy, exactly.


def test_every_op_has_cudas_class():
    """Ask the kernels written here as one asks torch's own."""
    with cuda_policy():
        classes = cast_classes("cpu")
    cuda = cast_classes("cuda")
    assert cuda.pop("_cudnn_rnn") is CastClass.OWN
    for name, cast_class in cuda.items():
        assert classes[name] is cast_class, name
    for name in classes.keys() - cuda.keys() - {"_cudnn_rnn"}:
        recurrent = name.partition(".")[0] in ("lstm", "gru", "rnn_tanh", "rnn_relu")
        assert classes[name] is (CastClass.LOWER if recurrent else CastClass.AS_IS), name


@pytest.mark.parametrize("dtype", [FP16, BF16], ids=str)
def test_the_table_is_cudas_but_for_listed_ops(dtype):
    with cuda_policy():
        ours = observe("cpu", dtype)
    remaining = {a.op for a, _ in difference(observe("cuda", dtype), ours).ops}
    if dtype is FP16:
        assert remaining == set(REMAINING)
    else:
        assert remaining <= set(REMAINING)


@pytest.mark.parametrize("name", MODELS)
def test_functions_return_cudas_dtypes_in_a_model(name):
    assert trace_on_cpu(*MODELS[name], CallTrace()) == trace_on_fake_cuda(
        *MODELS[name], CallTrace()
    )


@pytest.mark.parametrize("name", ["cnn", "mlp", "transformer"])
def test_ops_return_cudas_dtypes_in_a_model(name):
    """Attention takes the path made of plain ops in both, since its fused kernels have other names.

    An LSTM's ops cannot be compared: a layer is one op on a GPU, or a fused cell, and a dozen
    pointwise ones here.  What goes in and comes out is, in the test above.
    """
    with sdpa_kernel(SDPBackend.MATH):
        ours = trace_on_cpu(*MODELS[name], DtypeTrace())
        assert ours == trace_on_fake_cuda(*MODELS[name], DtypeTrace())
    assert {dtype for _, dtypes in ours for dtype in dtypes} >= {FP16}


def test_recurrent_layers_return_16_bits():
    x = torch.randn(5, 3, 8)
    for layer in (nn.LSTM, nn.GRU, nn.RNN):
        module = layer(8, 16)
        with cuda_policy(), torch.autocast("cpu", dtype=FP16):
            results = tree_leaves(module(x))
            assert {r.dtype for r in results} == {FP16}
            results[0].sum().backward()
        assert all(p.grad.dtype is FP32 for p in module.parameters())


def test_refusal_has_torchs_words():
    p = torch.full((4,), 0.5)
    with cuda_policy():
        with torch.autocast("cpu", dtype=FP16), pytest.raises(RuntimeError, match="unsafe to auto"):
            F.binary_cross_entropy(p, p)
        assert F.binary_cross_entropy(p, p).dtype is FP32
    with torch.autocast("cpu", dtype=FP16):
        assert F.binary_cross_entropy(p, p).dtype is FP32


def test_arguments_given_by_name_and_default():
    x = torch.ones(4, 4, dtype=FP16)
    with cuda_policy(), torch.autocast("cpu", dtype=FP16):
        assert torch.softmax(x, 0).dtype is FP32
        assert torch.softmax(x, 0, dtype=FP16).dtype is FP16
        assert torch.softmax(x, dim=0, dtype=None).dtype is FP32
        assert torch.sum(x, dim=0, dtype=torch.float64).dtype is torch.float64
        assert torch.ops.aten.norm.Scalar(x).dtype is FP32
        assert torch.ops.aten.norm.ScalarOpt_dim(x, 1, [0], keepdim=True).shape == (1, 4)
        assert F.linear(input=x, weight=x.float(), bias=None).dtype is FP16
        assert torch.addcmul(x, tensor1=x, tensor2=x.float()).dtype is FP32


def test_what_is_not_eligible_is_not_cast():
    double, whole = torch.ones(4, 4, dtype=torch.float64), torch.ones(4, 4, dtype=torch.int64)
    with cuda_policy(), torch.autocast("cpu", dtype=FP16):
        assert (double @ double).dtype is torch.float64
        assert double.exp().dtype is torch.float64
        assert double.softmax(0).dtype is torch.float64
        assert whole.sum().dtype is torch.int64
        with pytest.raises(RuntimeError, match="cannot promote"):
            torch.dot(torch.ones(4, dtype=BF16), torch.ones(4, dtype=BF16))


def test_values_are_those_of_explicit_casts():
    torch.manual_seed(0)
    x, w = torch.randn(4, 8), torch.randn(5, 8)

    def under_policy(x, w):
        with cuda_policy(), torch.autocast("cpu", dtype=FP16):
            return F.layer_norm(F.linear(x, w), (5,)).softmax(-1).log().sum()

    def by_hand(x, w):
        return F.layer_norm(F.linear(x.half(), w.half()).float(), (5,)).softmax(-1).log().sum()

    gradients = []
    for function in (under_policy, by_hand):
        leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
        gradients.append(torch.autograd.grad(function(*leaves), leaves))
    for ours, expected in zip(*gradients, strict=True):
        assert ours.dtype is FP32
        assert torch.equal(ours, expected)


def test_cross_entropy_takes_its_log_softmax_in_16_bits():
    """It asks log_softmax for its input's dtype, and CUDA's rule respects a dtype that is given."""
    z, y = torch.randn(4, 10).half(), torch.arange(4)
    with cuda_policy(), torch.autocast("cpu", dtype=FP16), DtypeTrace() as trace:
        assert F.cross_entropy(z, y).dtype is FP32
        F.log_softmax(z, -1)
    assert trace.dtypes_of("_log_softmax") == [[FP16], [FP32]]


@pytest.mark.gpu
def test_cross_entropy_takes_its_log_softmax_in_16_bits_on_a_gpu():
    torch.manual_seed(0)
    z, y = (8 * torch.randn(64, 10, device="cuda")).half(), torch.arange(64, device="cuda") % 10
    with torch.autocast("cuda", dtype=FP16), DtypeTrace() as trace:
        loss = F.cross_entropy(z, y, reduction="none")
    assert trace.dtypes_of("_log_softmax") == [[FP16]]
    in_fp16 = F.nll_loss(F.log_softmax(z.float(), -1).half().float(), y, reduction="none")
    in_fp32 = F.cross_entropy(z.float(), y, reduction="none")
    assert (loss == in_fp16).float().mean() > 0.95
    assert not torch.equal(loss, in_fp32)


@pytest.mark.gpu
@pytest.mark.parametrize("name", MODELS)
def test_functions_return_a_gpus_dtypes_in_a_model(name):
    build, batch = MODELS[name]
    with torch.device("cuda"):
        model, x = build(), batch()
    with torch.autocast("cuda", dtype=FP16), CallTrace() as trace:
        model(x)
    assert trace_on_cpu(build, batch, CallTrace()) == trace.entries


# Regions and functions.


def test_disabled_regions_are_plain():
    x = torch.ones(4, 4, dtype=FP16)
    with cuda_policy():
        assert x.exp().dtype is FP16, "no autocast, no policy"
        with torch.autocast("cpu", dtype=FP16):
            with torch.autocast("cpu", enabled=False):
                assert x.exp().dtype is FP16
                assert (x.float() @ x.float()).dtype is FP32
            assert x.exp().dtype is FP32
            with torch.autocast("cpu", dtype=BF16):
                assert (x.float() @ x.float()).dtype is BF16
            assert (x.float() @ x.float()).dtype is FP16


def test_custom_functions_see_the_dtypes_they_ask_for():
    seen = {}

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", cast_inputs=FP32)
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            seen["forward"] = a.dtype, (a @ b).dtype
            return a @ b

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx, grad):
            a, b = ctx.saved_tensors
            seen["backward"] = grad.dtype, (grad @ b.t()).dtype
            return grad @ b.t(), a.t() @ grad

    a, b = (torch.randn(3, 3).half().requires_grad_() for _ in range(2))
    with cuda_policy():
        with torch.autocast("cpu", dtype=FP16):
            result = Product.apply(a, b)
        result.sum().backward()
    assert seen == {"forward": (FP32, FP32), "backward": (FP32, FP32)}
    assert a.grad.dtype is FP16


# Scope.


def softmax_dtype():
    with torch.autocast("cpu", dtype=FP16):
        return torch.ones(2, dtype=FP16).softmax(0).dtype


def test_everything_is_as_before_also_after_an_exception():
    ops, classes = registered("AutocastCPU"), cast_classes("cpu")
    clear, fast = torch.clear_autocast_cache, torch.backends.mha.get_fastpath_enabled()
    with pytest.raises(KeyError), cuda_policy():
        assert softmax_dtype() is FP32
        raise KeyError
    assert softmax_dtype() is FP16
    assert registered("AutocastCPU") == ops
    assert cast_classes("cpu") == classes
    assert torch.clear_autocast_cache is clear
    assert torch.backends.mha.get_fastpath_enabled() is fast


def test_nested_contexts_end_with_the_last():
    with cuda_policy():
        with cuda_policy():
            pass
        assert softmax_dtype() is FP32
    assert softmax_dtype() is FP16


def test_it_may_begin_inside_a_region():
    x = torch.ones(2, dtype=FP16)
    with torch.autocast("cpu", dtype=FP16):
        assert x.softmax(0).dtype is FP16
        with cuda_policy():
            assert x.softmax(0).dtype is FP32
        assert x.softmax(0).dtype is FP16


def test_other_threads_follow_it_in_regions_of_their_own():
    x, seen = torch.ones(2, dtype=FP16), {}

    def work():
        seen["plain"] = x.softmax(0).dtype
        seen["region"] = softmax_dtype()

    with cuda_policy(), torch.autocast("cpu", dtype=FP16):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen == {"plain": FP16, "region": FP32}


def test_cuda_autocast_is_untouched():
    with cuda_policy():
        assert cast_classes("cuda")["softmax.int"] is CastClass.FP32_DTYPE
    assert not torch.cuda.is_initialized() or torch.cuda.is_available()
