import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mptutor import models, simulate_amp
from mptutor.tensorcore import tensor_core

FP16, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32


def train(steps, dtype=None, init_scale=2.0**16):
    """Train the small CNN on random images; return its losses, skipped steps and parameters."""
    torch.manual_seed(0)
    model, x, y = models.small_cnn(), torch.randn(16, 3, 32, 32), torch.arange(16) % 10
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, enabled=dtype is FP16)
    losses, skipped = [], 0
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype or BF16, enabled=dtype is not None):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        skipped += scaler.get_scale() < before
        losses.append(loss.item())
    return losses, skipped, list(model.parameters())


@pytest.mark.parametrize("dtype", [FP16, BF16], ids=str)
def test_training_goes_as_in_fp32(dtype):
    losses, _, _ = train(15)
    with simulate_amp(dtype):
        simulated, skipped, parameters = train(15, dtype, init_scale=1024.0)
    assert skipped == 0
    assert simulated[-1] < 0.5 * simulated[0]
    assert simulated[-1] == pytest.approx(losses[-1], rel=0.2)
    assert simulated[0] == pytest.approx(losses[0], rel=2 * torch.finfo(dtype).eps)
    assert all(p.dtype is FP32 and p.grad.dtype is FP32 for p in parameters)


def test_a_scale_too_high_is_found():
    with simulate_amp():
        _, skipped, parameters = train(15, FP16, init_scale=2.0**30)
    assert 5 <= skipped < 15
    assert all(p.isfinite().all() for p in parameters)


def test_policy_and_arithmetic_together():
    """A forward and backward pass equals one with the casts written out, multiplied in FP32."""
    torch.manual_seed(0)
    w, x, grad = torch.randn(6, 5), torch.randn(4, 5), torch.randn(4, 6)
    leaf = w.clone().requires_grad_()
    with simulate_amp():
        with torch.autocast("cpu", dtype=FP16):
            result = F.linear(x, leaf).softmax(-1)
        result.backward(grad)

    def rounded(t):
        return t.half().float()

    product = rounded(rounded(x) @ rounded(w).t())
    expected = product.softmax(-1)
    assert result.dtype is FP32
    assert torch.equal(result, expected)
    into_product = rounded(torch.ops.aten._softmax_backward_data(grad, expected, -1, FP32))
    assert torch.equal(leaf.grad, rounded(into_product.t() @ rounded(x)))


def test_autocast_without_a_dtype_uses_the_simulated_one():
    a = torch.ones(2, 2)

    def default_dtype():
        with torch.autocast("cpu"):
            return (a @ a).dtype

    assert default_dtype() is BF16
    with simulate_amp():
        assert default_dtype() is FP16
        with simulate_amp(BF16):
            assert default_dtype() is BF16
        assert default_dtype() is FP16
    assert default_dtype() is BF16
    assert (a @ a).dtype is FP32


def is_on():
    """Look at the policy and at the arithmetic."""
    z = 8 * torch.randn(64, 100, generator=torch.Generator().manual_seed(0)).half()
    with torch.autocast("cpu", dtype=FP16):
        policy = z.exp().dtype is FP32
    arithmetic = torch.equal(F.log_softmax(z, -1), F.log_softmax(z.float(), -1).half())
    assert policy == arithmetic
    return policy


def test_it_ends_with_the_last_context_and_after_an_exception():
    assert not is_on()
    with pytest.raises(KeyError), simulate_amp(), simulate_amp():
        assert is_on()
        raise KeyError
    assert not is_on()
    switch = simulate_amp().enable()
    with simulate_amp(), tensor_core():
        pass
    assert is_on()
    switch.disable()
    assert not is_on()
    with pytest.raises(RuntimeError, match="not enabled"):
        switch.disable()


def test_it_may_begin_inside_a_region():
    x = torch.ones(2, 2)
    with torch.autocast("cpu", dtype=FP16), simulate_amp():
        assert (x @ x).dtype is FP16
        assert (x @ x).exp().dtype is FP32
    assert not is_on()


def test_other_dtypes_are_refused():
    with pytest.raises(ValueError, match=r"dtype: .*got torch.float64"):
        simulate_amp(torch.float64)
    assert not is_on()


def test_the_failure_the_cpu_hides():
    """Attention written by hand with FP16 softmax input keeps FP32 probabilities, as on a GPU."""
    torch.manual_seed(0)
    layer, x = nn.Linear(8, 8), torch.randn(4, 8)
    with torch.autocast("cpu", dtype=FP16):
        assert layer(x).softmax(-1).dtype is FP16
    with simulate_amp(), torch.autocast("cpu", dtype=FP16):
        assert layer(x).softmax(-1).dtype is FP32


def test_simulations_may_end_in_any_order():
    before = torch.get_autocast_dtype("cpu")
    first, second = simulate_amp(torch.float16).enable(), simulate_amp(torch.bfloat16).enable()
    first.disable()
    assert torch.get_autocast_dtype("cpu") is torch.bfloat16
    second.disable()
    assert torch.get_autocast_dtype("cpu") is before


@pytest.mark.parametrize("dtype", ["half", torch.float32, [torch.float16], None])
def test_another_dtype_is_refused_before_anything_is_changed(dtype):
    with pytest.raises(ValueError, match=r"dtype: must be torch\.float16 or torch\.bfloat16, got"):
        simulate_amp(dtype)
