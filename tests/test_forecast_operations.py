"""Operations and their prices: against torch's own counting, and by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from mptutor.experiments.recipes import FP32
from mptutor.forecast import (
    Gpu,
    LayerCost,
    find_gpu,
    forecast,
    forecast_on,
)
from mptutor.forecast.operations import OperationLog
from mptutor.forecast.roofline import FITTED, cost
from mptutor.forecast.step import sgd, take_step
from mptutor.forecast.workloads import find_workload

FLOAT = 4  # bytes


def plain_sgd(weights):
    return torch.optim.SGD(weights, lr=0.1, momentum=0.9, foreach=False)


def step_of(model, batch, recipe=FP32, **options):
    return take_step(find_workload(model), batch, recipe, **options)


# --- operations


@pytest.mark.parametrize("model", ["small_cnn", "mlp", "resnet18"])
def test_flop_is_what_torch_counts(model):
    workload = find_workload(model)
    with FakeTensorMode():
        net, inputs = workload.build(), workload.batch(4)
        with FlopCounterMode(display=False) as counter:
            workload.loss(net(inputs), 4).backward()
    assert sum(op.flop for op in step_of(model, 4).operations) == counter.get_total_flops()


def test_a_convolution_in_groups_does_the_work_of_its_groups():
    """Torch counts its backward pass as if there were none, so this is by hand."""

    def count(groups):
        net = nn.Conv2d(8, 16, 3, padding=1, groups=groups)
        images = torch.zeros(2, 8, 10, 10, requires_grad=True)
        with OperationLog(net) as log:
            net(images).sum().backward()
        return [op.flop for op in log.operations if op.kind == "convolution"]

    forward = 2 * (2 * 16 * 10 * 10) * (8 * 3 * 3)
    assert count(1) == [forward, 2 * forward]
    assert count(4) == [forward / 4, 2 * forward / 4]


def test_a_transposed_convolution():
    net = nn.ConvTranspose2d(8, 4, 2, stride=2)
    images = torch.zeros(2, 8, 10, 10)
    with FlopCounterMode(display=False) as counter, OperationLog(net) as log:
        net(images)
    assert log.operations[0].flop == counter.get_total_flops() > 0


def test_bytes_are_those_of_operands_and_results():
    x, y = torch.zeros(100), torch.zeros(100)
    with OperationLog(nn.Identity()) as log:
        x + y
        x.add_(y)
        x.view(10, 10).t()
        torch.empty(1000)
        torch.zeros(50)
        x[:1].expand(1000) + 1
    assert [(op.name, op.moved_bytes) for op in log.operations] == [
        ("add", 3 * 400),
        ("add_", 3 * 400),
        ("zeros", 50 * FLOAT),
        ("add", 400 + 1000 * FLOAT),  # an expanded tensor is as large as what it looks into
    ]


def test_every_operation_of_a_layer_is_found_in_both_directions():
    by_layer = {(c.layer, c.phase): c for c in forecast("small_cnn", batch=8).layers}
    for layer in ("conv1", "norm1", "relu1", "pool1", "conv2", "norm2", "relu2", "pool2", "head"):
        assert by_layer[layer, "forward"].operations >= 1
        assert by_layer[layer, "backward"].operations >= 1
    # conv1 needs no gradient for the images
    assert by_layer["conv1", "backward"].flop == by_layer["conv1", "forward"].flop
    assert by_layer["conv2", "backward"].flop == 2 * by_layer["conv2", "forward"].flop
    assert by_layer["", "update"].operations >= 2  # the scaler's and the optimizer's


def test_the_optimizer_is_one_launch_for_all_parameters():
    def updates(optimizer):
        step = step_of("mlp", 8, optimizer=optimizer)
        return sum(op.phase == "update" for op in step.operations)

    assert updates(sgd) < updates(plain_sgd)


# --- time

BIG = Gpu("big", 1e12, None, 1e13, 1e13, 1e12, 2**40, "HBM", ("training",), "made up")


def operation(x, work):
    with OperationLog(nn.Identity()) as log:
        work(x)
    return log.operations[0]


def test_an_operation_takes_the_longest_of_three():
    small = operation(torch.zeros(1), torch.relu)
    assert cost(small, BIG).bound == "launch"
    assert cost(small, BIG).seconds == FITTED.launch_s
    wide = operation(torch.zeros(10_000_000), torch.relu)
    assert cost(wide, BIG).bound == "memory"
    assert cost(wide, BIG).seconds == pytest.approx(8e7 / (1e12 * FITTED.hbm))
    product = operation(torch.zeros(1000, 1000), lambda x: x @ x)
    assert cost(product, BIG).bound == "arithmetic"
    assert cost(product, BIG).seconds == pytest.approx(2e9 / (1e12 * FITTED.cores))


def test_tf32_is_used_where_torch_allows_it(monkeypatch):
    a100, v100 = find_gpu("A100"), find_gpu("V100")
    product = operation(torch.zeros(2000, 2000), lambda x: x @ x)
    weight = torch.zeros(64, 64, 3, 3)
    convolution = operation(torch.zeros(8, 64, 32, 32), lambda x: F.conv2d(x, weight))
    slow, fast = cost(product, a100, tf32_products=False), cost(product, a100, tf32_products=True)
    assert fast.arithmetic_s < slow.arithmetic_s / 5
    assert cost(product, v100, tf32_products=True) == cost(product, v100, tf32_products=False)
    allowed = cost(convolution, a100).arithmetic_s
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert cost(convolution, a100).arithmetic_s > allowed


def test_channels_last_saves_transposes_on_tensor_cores_only():
    nchw, nhwc = (
        forecast_on(["V100", "A100"], "small_cnn", batch=512, recipe="fp32", channels_last=last)
        for last in (False, True)
    )
    assert nchw.on("A100").step_ms > nhwc.on("A100").step_ms  # TF32
    assert nchw.on("V100").step_ms == nhwc.on("V100").step_ms


def test_bound_times_and_layers_add_up():
    f = forecast("char_transformer", batch=32, gpu="T4")
    assert sum(f.bound_ms.values()) == pytest.approx(f.step_ms)
    assert sum(c.ms for c in f.layers) == pytest.approx(f.step_ms)
    assert f.samples_per_s == pytest.approx(32e3 / f.step_ms)
    assert f.roof.ridge == f.roof.reached_flops / f.roof.reached_bytes_per_s
    assert f.roof.flops == find_gpu("T4").fp16_flops
    for c in f.layers:
        assert isinstance(c, LayerCost)
        assert c.flop <= c.ms * 1e-3 * f.roof.flops
        assert c.moved_bytes <= c.ms * 1e-3 * f.roof.bytes_per_s
