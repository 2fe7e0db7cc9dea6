"""The oracle is torch's own cache of cast weights, in autocast regions without the policy."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from mptutor.policy import cuda_policy
from mptutor.policy.casting import cast, eligible, widest

FP16, BF16, FP32, FP64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


def test_only_floating_point_on_the_cpu_is_eligible():
    assert eligible(torch.ones(1)) and eligible(torch.ones(1, dtype=BF16))
    assert not eligible(torch.ones(1, dtype=FP64))
    assert not eligible(torch.ones(1, dtype=torch.int64))
    assert not eligible(torch.ones(1, device="meta"))


def test_lists_are_cast_inside_and_others_returned():
    x, whole = torch.ones(1), torch.ones(1, dtype=torch.int64)
    assert [y.dtype for y in cast([x, whole], FP16)] == [FP16, torch.int64]
    assert cast(x, FP32) is x
    assert cast("ij,jk", FP16) == "ij,jk" and cast(None, FP16) is None


def test_the_widest_dtype_is_fp32():
    x = torch.ones(1)
    assert widest(FP16, [x.half(), x.half()]) is FP16
    assert widest(FP16, [x.half(), x]) is FP32
    assert widest(FP32, x.bfloat16()) is FP32
    assert widest(FP16, x.double()) is FP16
    with pytest.raises(RuntimeError, match=r"float16 cannot promote .*bfloat16"):
        widest(FP16, x.bfloat16())


def casts_in(scenario, w, x):
    """Count the casts torch makes while a scenario runs."""

    class Counting(TorchDispatchMode):
        casts = 0

        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            self.casts += op is torch.ops.aten._to_copy.default
            return op(*args, **(kwargs or {}))

    with Counting() as counting:
        scenario(w, x)
    return counting.casts


def twice_in_a_region(w, x):
    with torch.autocast("cpu", dtype=BF16):
        torch.mm(x, w), torch.mm(x, w)


def in_two_regions(w, x):
    twice_in_a_region(w, x)
    twice_in_a_region(w, x)


def in_nested_regions(w, x):
    with torch.autocast("cpu", dtype=BF16):
        twice_in_a_region(w, x)
        torch.mm(x, w)


def with_the_cache_off(w, x):
    with torch.autocast("cpu", dtype=BF16, cache_enabled=False):
        torch.mm(x, w), torch.mm(x, w)


def without_gradients_first(w, x):
    with torch.autocast("cpu", dtype=BF16):
        with torch.no_grad():
            torch.mm(x, w)
        assert torch.mm(x, w).requires_grad


def cleared_in_between(w, x):
    with torch.autocast("cpu", dtype=BF16):
        torch.mm(x, w)
        torch.clear_autocast_cache()
        torch.mm(x, w)


def a_view_of_the_weight(w, x):
    with torch.autocast("cpu", dtype=BF16):
        view = w.t()
        torch.mm(x, view), torch.mm(x, view)


def not_a_weight(w, x):
    with torch.autocast("cpu", dtype=BF16):
        plain = w.detach()
        torch.mm(x, plain), torch.mm(x, plain)


@pytest.mark.parametrize(
    "scenario",
    [
        twice_in_a_region,
        in_two_regions,
        in_nested_regions,
        with_the_cache_off,
        without_gradients_first,
        cleared_in_between,
        a_view_of_the_weight,
        not_a_weight,
    ],
    ids=lambda f: f.__name__,
)
def test_weights_are_cast_as_often_as_torch_casts_them(scenario):
    w, x = nn.Parameter(torch.randn(4, 4)), torch.randn(4, 4, dtype=BF16)
    expected = casts_in(scenario, w, x)
    with cuda_policy():
        assert casts_in(scenario, w, x) == expected


def test_the_cache_is_as_stale_as_torchs():
    w, x = nn.Parameter(torch.eye(2)), torch.ones(2, 2)
    with cuda_policy():
        with torch.autocast("cpu", dtype=BF16):
            before = x @ w
            with torch.no_grad():
                w.mul_(2)
            assert torch.equal(x @ w, before)
        with torch.autocast("cpu", dtype=BF16):
            assert torch.equal(x @ w, 2 * before)


def test_the_cache_keeps_no_weight_alive_and_mistakes_none_for_another():
    x = torch.ones(2, 2)
    with cuda_policy(), torch.autocast("cpu", dtype=BF16):
        for value in range(1, 20):
            w = nn.Parameter(torch.full((2, 2), float(value)))
            assert (x @ w)[0, 0] == 2 * value
            del w
