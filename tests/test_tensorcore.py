"""The oracle is torch itself in FP32: run the op on widened operands, round the results once."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mptutor import models
from mptutor.dispatcher import registered
from mptutor.tensorcore import has_units, tensor_core

DTYPES = [torch.float16, torch.bfloat16]


def seeded(*shape, dtype=torch.float16, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype)


def check_rounded_once(function, *shapes, dtype=torch.float16):
    """Compare results and gradients of all operands with FP32-then-round, bit for bit."""
    low = [seeded(*s, dtype=dtype, seed=i).requires_grad_() for i, s in enumerate(shapes)]
    wide = [x.detach().float().requires_grad_() for x in low]

    expected = function(*wide)
    seed_gradient = seeded(*expected.shape, dtype=dtype, seed=99)
    expected.backward(seed_gradient.float())
    with tensor_core(dtype):
        result = function(*low)
        result.backward(seed_gradient)

    assert result.dtype is dtype
    assert torch.equal(result, expected.to(dtype))
    for i, (x, x_wide) in enumerate(zip(low, wide, strict=True)):
        assert x.grad.dtype is dtype
        assert torch.equal(x.grad, x_wide.grad.to(dtype)), f"gradient of operand {i}"


ONE_KERNEL = {
    "mm": (torch.mm, (7, 33), (33, 5)),
    "mm transposed": (lambda a, b: torch.mm(a.t(), b.t()), (33, 7), (5, 33)),
    "addmm": (torch.addmm, (7, 5), (7, 33), (33, 5)),
    "addmm scaled": (
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2),
        (7, 5),
        (7, 33),
        (33, 5),
    ),
    "bmm": (torch.bmm, (3, 7, 33), (3, 33, 5)),
    "baddbmm": (torch.baddbmm, (3, 7, 5), (3, 7, 33), (3, 33, 5)),
    "mv": (torch.mv, (7, 33), (33,)),
    "linear 2d": (F.linear, (4, 33), (5, 33), (5,)),
    "linear 3d": (F.linear, (2, 4, 33), (5, 33), (5,)),
    "matmul batched": (torch.matmul, (2, 3, 7, 33), (2, 3, 33, 5)),
    "einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), (3, 7, 33), (3, 5, 33)),
    "conv1d": (F.conv1d, (2, 3, 17), (4, 3, 3), (4,)),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, padding=1), (2, 3, 9, 9), (4, 3, 3, 3), (4,)),
    "conv2d no bias": (lambda x, w: F.conv2d(x, w, stride=2), (2, 3, 9, 9), (4, 3, 3, 3)),
    "conv2d groups": (lambda x, w: F.conv2d(x, w, groups=2), (2, 4, 9, 9), (6, 2, 3, 3)),
    "conv2d channels last": (
        lambda x, w: F.conv2d(x.to(memory_format=torch.channels_last), w),
        (2, 3, 9, 9),
        (4, 3, 3, 3),
    ),
    "conv3d": (F.conv3d, (1, 2, 5, 5, 5), (3, 2, 3, 3, 3)),
    "conv_transpose2d": (F.conv_transpose2d, (2, 3, 5, 5), (3, 4, 3, 3)),
    "conv_tbc": (lambda x, w, b: torch.conv_tbc(x, w, b), (8, 2, 4), (3, 4, 5), (5,)),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ONE_KERNEL)
def test_forward_and_backward_round_once(name, dtype):
    function, *shapes = ONE_KERNEL[name]
    check_rounded_once(function, *shapes, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_log_softmax_rounds_once(dtype):
    """Backward reads the rounded output of forward, so the oracle is the FP32 op given that."""
    z, grad = 8 * seeded(6, 50, dtype=dtype), seeded(6, 50, dtype=dtype, seed=1)
    z.requires_grad_()
    with tensor_core(dtype):
        result = F.log_softmax(z, dim=-1)
        result.backward(grad)
    assert torch.equal(result, F.log_softmax(z.float(), dim=-1).to(dtype))
    expected = torch.ops.aten._log_softmax_backward_data(
        grad.float(), result.detach().float(), -1, torch.float32
    )
    assert torch.equal(z.grad, expected.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_forward_rounds_once(dtype, causal):
    q, k, v = (seeded(2, 4, 16, 8, dtype=dtype, seed=i) for i in range(3))
    expected = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=causal)
    with tensor_core(dtype):
        result = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    assert torch.equal(result, expected.to(dtype))


@pytest.mark.parametrize("masked", [False, True])
def test_attention_backward_rounds_once(masked):
    """Backward reads the rounded output of forward, so the oracle is the FP32 op given that."""
    aten = torch.ops.aten
    q, k, v, grad = (seeded(2, 4, 16, 8, seed=i) for i in range(4))
    mask = seeded(2, 4, 16, 16, seed=9) if masked else None
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    with tensor_core():
        F.scaled_dot_product_attention(*leaves, attn_mask=mask).backward(grad)

    q, k, v, grad = (x.float() for x in (q, k, v, grad))
    mask = None if mask is None else mask.float()
    forward = aten._scaled_dot_product_flash_attention_for_cpu
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
    out, logsumexp = forward(q, k, v, attn_mask=mask)
    out = out.half().float()
    expected = backward(grad, q, k, v, out, logsumexp, 0.0, False, attn_mask=mask)
    for leaf, gradient in zip(leaves, expected, strict=True):
        assert torch.equal(leaf.grad, gradient.half())


def test_lstm_layer_rounds_once():
    """Under CPU autocast torch.nn.LSTM is one op for the whole layer."""
    torch.manual_seed(0)
    lstm, x = nn.LSTM(6, 10), torch.randn(5, 3, 6)
    rounded = nn.LSTM(6, 10)
    with torch.no_grad():
        for p, p_rounded in zip(lstm.parameters(), rounded.parameters(), strict=True):
            p_rounded.copy_(p.half())
    expected, _ = rounded(x.half().float())
    with tensor_core(), torch.autocast("cpu", dtype=torch.float16):
        result, _ = lstm(x)
        result.sum().backward()
    assert torch.equal(result, expected.half())
    assert all(p.grad.isfinite().all() and p.grad.any() for p in lstm.parameters())


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_half_recurrent_layers_multiply_in_fp32(layer):
    """A recurrent layer in FP16 is made of listed products and pointwise ops."""
    torch.manual_seed(0)
    module, x = layer(64, 64).half(), seeded(4, 3, 64)
    with tensor_core():
        result, _ = module(x)
    reference, _ = module.float()(x.float())
    torch.testing.assert_close(result.float(), reference, atol=4e-3, rtol=4e-3)


@pytest.mark.parametrize(
    "build", [models.small_cnn, models.mlp, models.char_transformer], ids=lambda f: f.__name__
)
def test_gradients_of_a_model_are_as_close_to_fp32_as_fp16_allows(build):
    torch.manual_seed(0)
    model = build()
    x = {
        "small_cnn": torch.randn(4, 3, 32, 32),
        "mlp": torch.randn(4, 784),
        "char_transformer": torch.randint(0, 96, (2, 16)),
    }[build.__name__]
    gradients = []
    for enabled in (False, True):
        model.zero_grad()
        with tensor_core(), torch.autocast("cpu", dtype=torch.float16, enabled=enabled):
            (64 * model(x).float().square().mean()).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    error = (gradients[0] - gradients[1]).norm() / gradients[0].norm()
    assert error < 2e-2


def test_log_softmax_of_a_confident_row_keeps_its_tail():
    """Natively the row sum is kept in FP16 and a margin of 10 gives a loss of exactly 0."""
    z = torch.tensor([[10.0] + [0.0] * 9], dtype=torch.float16)
    with tensor_core():
        loss = -F.log_softmax(z, dim=-1)[0, 0]
    assert loss == (-F.log_softmax(z.float(), dim=-1)[0, 0]).half() != 0


def test_sums_pass_2048_and_overflow_to_infinity():
    ones = torch.ones(1, 4096, dtype=torch.float16)
    with tensor_core():
        assert ones @ ones.t() == 4096
        assert (20 * ones) @ (2 * ones.t()) == torch.inf


# What is not emulated passes untouched.


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.complex64, torch.int32], ids=str
)
def test_other_dtypes_pass_untouched(dtype):
    a, b = (torch.arange(1, 13).reshape(3, 4).to(dtype), torch.ones(4, 2).to(dtype))
    expected = a @ b
    with tensor_core(DTYPES):
        result = a @ b
    assert result.dtype is dtype
    assert torch.equal(result, expected)


def test_only_the_dtype_that_is_asked_for_is_emulated():
    z = 8 * seeded(64, 100, dtype=torch.bfloat16)
    native, rounded = F.log_softmax(z, -1), F.log_softmax(z.float(), -1).bfloat16()
    with tensor_core(torch.float16):
        assert torch.equal(F.log_softmax(z, -1), native)
    with tensor_core(DTYPES):
        assert torch.equal(F.log_softmax(z, -1), rounded)


def test_mixed_dtypes_stay_an_error():
    a, b = torch.ones(2, 2, dtype=torch.float16), torch.ones(2, 2)
    with tensor_core():
        for left, right in ((a, b), (b, a)):
            with pytest.raises(RuntimeError, match="dtype"):
                torch.mm(left, right)
        with pytest.raises(RuntimeError, match="dtype"):
            torch.mm(a, a, out=torch.empty(2, 2))
        with pytest.raises(RuntimeError):
            torch.mm(a, torch.ones(3, 2, dtype=torch.float16))


def test_fake_and_meta_tensors_pass():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with tensor_core():
        meta = torch.empty(3, 4, dtype=torch.float16, device="meta")
        assert (meta @ meta.t()).dtype is torch.float16
        with FakeTensorMode():
            fake = torch.empty(3, 4, dtype=torch.float16)
            assert (fake @ fake.t()).shape == (3, 3)


def test_out_and_in_place_forms():
    a, b, c = seeded(7, 33), seeded(33, 5), seeded(7, 5)
    product, total = (a.float() @ b.float()), c.float() + a.float() @ b.float()
    with tensor_core():
        out = torch.empty(7, 5, dtype=torch.float16)
        assert torch.mm(a, b, out=out) is out
        assert torch.equal(out, product.half())
        empty = torch.empty(0, dtype=torch.float16)
        assert torch.equal(torch.mm(a, b, out=empty), product.half())
        strided = torch.zeros(7, 10, dtype=torch.float16)[:, ::2]
        torch.mm(a, b, out=strided)
        assert torch.equal(strided, product.half())
        in_place = c.clone()
        assert in_place.addmm_(a, b) is in_place
        torch.testing.assert_close(in_place.float(), total, atol=0, rtol=2**-11)


# A context that leaves everything as it was.


def native_and_rounded():
    """Return an input on which torch's own FP16 kernel and a Tensor Core disagree."""
    z = 8 * seeded(64, 100)
    native, rounded = F.log_softmax(z, -1), F.log_softmax(z.float(), -1).half()
    assert not torch.equal(native, rounded), "torch's own kernel rounds once now"
    return z, native, rounded


def test_nested_contexts_end_in_any_order_and_after_an_exception():
    z, native, rounded = native_and_rounded()

    def is_on():
        result = F.log_softmax(z, -1)
        assert torch.equal(result, native) or torch.equal(result, rounded)
        return torch.equal(result, rounded)

    outer, inner = tensor_core(), tensor_core(DTYPES)
    outer.enable()
    inner.enable()
    outer.disable()
    assert is_on()
    inner.disable()
    assert not is_on()
    with pytest.raises(KeyError), tensor_core(), tensor_core():
        raise KeyError
    assert not is_on()
    with outer, outer:
        assert is_on()
    assert not is_on()
    with tensor_core(torch.bfloat16):
        assert not is_on()


def test_torchs_kernels_come_back():
    ops = registered("CPU")
    z, native, _ = native_and_rounded()
    for _ in range(3):
        with tensor_core():
            pass
    assert registered("CPU") == ops
    assert torch.equal(F.log_softmax(z, -1), native)


def test_disabling_what_is_not_enabled_is_an_error():
    switch = tensor_core()
    with pytest.raises(RuntimeError, match="not enabled"):
        switch.disable()
    with tensor_core(torch.bfloat16), pytest.raises(RuntimeError, match="not enabled"):
        switch.disable()


def test_other_dtypes_are_refused():
    with pytest.raises(ValueError, match=r"dtype: .*got torch.float32"):
        tensor_core(torch.float32)
    with pytest.raises(ValueError, match=r"dtype: .*got 'float16'"):
        has_units("float16")


def test_it_reaches_every_thread():
    z, _, rounded = native_and_rounded()
    results = []
    with tensor_core():
        thread = threading.Thread(target=lambda: results.append(F.log_softmax(z, -1)))
        thread.start()
        thread.join()
    assert torch.equal(results[0], rounded)


def test_transforms_and_inference_mode_work():
    a, b = seeded(3, 7, 33), seeded(33, 5)
    expected = torch.stack([(x.float() @ b.float()).half() for x in a])
    with tensor_core():
        assert torch.equal(torch.func.vmap(lambda x: x @ b)(a), expected)
        with torch.inference_mode():
            assert torch.equal(torch.stack([x @ b for x in a]), expected)
        x = seeded(4, 8).requires_grad_()
        (gradient,) = torch.autograd.grad((x @ x.t()).sum(), x, create_graph=True)
        gradient.sum().backward()
        assert x.grad.isfinite().all()


def test_has_units_agrees_with_onednn():
    assert has_units(torch.bfloat16) == torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert has_units(torch.float16) == torch.ops.mkldnn._is_mkldnn_fp16_supported()


@pytest.mark.gpu
def test_cuda_tensors_pass_untouched():
    a = torch.randn(64, 64, device="cuda", dtype=torch.float16)
    expected = a @ a
    with tensor_core():
        assert torch.equal(a @ a, expected)


@pytest.mark.gpu
def test_a_gpu_is_within_an_ulp_of_the_emulation():
    """A real Tensor Core adds up in another order: equal but for a rounding here and there."""
    a, b = seeded(64, 256), seeded(256, 64)
    with tensor_core():
        emulated = (a @ b).float()
    real = (a.cuda() @ b.cuda()).cpu().float()
    spacing = torch.finfo(torch.float16).eps * emulated.abs().clamp(min=1)
    assert ((emulated - real).abs() <= spacing).all()
    assert (emulated == real).float().mean() > 0.95
