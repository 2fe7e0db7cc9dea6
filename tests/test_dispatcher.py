import pytest
import torch

from mptutor.dispatcher import ProcessWide, Replacement, find_op, has_kernel, registered


def doubling(op):
    inner = torch.library.get_kernel(op, "CPU")

    def kernel(keys, x):
        return 2 * inner.call_boxed(keys, x)

    return kernel


def doubled_exp():
    return {find_op("exp"): doubling(find_op("exp"))}


def test_ops_are_found_by_name():
    assert find_op("mm") is torch.ops.aten.mm.default
    assert find_op("sum.dim_IntList") is torch.ops.aten.sum.dim_IntList
    assert has_kernel("mm", "CPU") and has_kernel("aten::mm.out", "CPU")
    assert not has_kernel("linear", "CPU"), "it is made of other ops"
    assert not has_kernel("no_such_op", "CPU")


def test_a_column_is_a_list_of_ops():
    cuda, cpu = registered("AutocastCUDA"), registered("AutocastCPU")
    assert {"mm", "exp", "sum.dim_IntList"} <= set(cuda)
    assert "exp" not in cpu
    assert cuda == sorted(cuda)


def test_a_replacement_lasts_until_the_last_exit():
    zero, replacement = torch.zeros(1), Replacement("CPU", doubled_exp)
    with replacement:
        with replacement:
            assert zero.exp() == 2
        assert zero.exp() == 2
    assert zero.exp() == 1
    with replacement:
        assert zero.exp() == 2
    assert zero.exp() == 1


def test_autograd_sees_the_replacement():
    x = torch.zeros(1, requires_grad=True)
    with Replacement("CPU", doubled_exp):
        x.exp().backward()
    assert x.grad == 2, "the derivative of exp is its result"


def test_a_replacement_that_fails_to_install_leaves_nothing():
    def half_wrong():
        return {**doubled_exp(), find_op("log"): "not a function"}

    with pytest.raises(TypeError), Replacement("CPU", half_wrong):
        pass
    assert torch.zeros(1).exp() == 1

    def failing():
        raise KeyError("no kernels")

    replacement = Replacement("CPU", failing)
    for _ in range(2):
        with pytest.raises(KeyError), replacement:
            pass


def test_a_process_wide_context_installs_once():
    events = []

    class Noting(ProcessWide):
        def _install(self):
            events.append("install")

        def _remove(self):
            events.append("remove")

    context = Noting()
    with context, context, context:
        assert events == ["install"]
    assert events == ["install", "remove"]
