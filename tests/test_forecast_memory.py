"""The memory of a forecast against real steps, torch's tracker, hand counts and a GPU."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from mptutor.experiments.recipes import AMP_BF16, AMP_FP16, FP32, RECIPES
from mptutor.forecast import (
    forecast,
)
from mptutor.forecast.ledger import PARTS, MemoryLedger
from mptutor.forecast.step import sgd, take_step
from mptutor.forecast.workloads import find_workload
from mptutor.memory import MemoryMeter
from mptutor.models import mlp, small_cnn

FLOAT = 4  # bytes


def plain_sgd(weights):
    return torch.optim.SGD(weights, lr=0.1, momentum=0.9, foreach=False)


def step_of(model, batch, recipe=FP32, **options):
    return take_step(find_workload(model), batch, recipe, **options)


@pytest.mark.parametrize("model", ["small_cnn", "mlp", "char_transformer"])
def test_peak_is_that_of_a_real_step(model):
    """The same step with values, watched by the meter that the lessons use."""
    workload = find_workload(model)
    net, inputs = workload.build(), workload.batch(16)
    optimizer = plain_sgd(net.parameters())

    def step():
        optimizer.zero_grad()
        loss = workload.loss(net(inputs), 16)
        loss.backward()
        del loss
        optimizer.step()

    step()
    optimizer.zero_grad()
    with MemoryMeter(net, optimizer, inputs, device="cpu") as meter:
        step()
    assert sum(step_of(model, 16, optimizer=plain_sgd).memory.values()) == meter.peak_bytes


def test_peak_is_what_torchs_tracker_says():
    with FakeTensorMode():
        net, inputs, targets = small_cnn(), torch.zeros(32, 3, 32, 32), torch.zeros(32).long()
        optimizer = plain_sgd(net.parameters())
        tracker = MemTracker()
        tracker.track_external(net, optimizer, inputs)

        def step():
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), targets).backward()
            optimizer.step()

        step()
        with tracker:
            step()
            tracker.reset_mod_stats()
            step()
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    ours = sum(step_of("small_cnn", 32, optimizer=plain_sgd).memory.values())
    # The tracker rounds storages up to 512 bytes, as CUDA's allocator does.
    assert ours == pytest.approx(peak["Total"], rel=0.01)


def test_parts_are_what_they_are_called():
    parameters = sum(p.numel() for p in mlp().parameters())
    fp32, amp = step_of("mlp", 8), step_of("mlp", 8, AMP_FP16)
    assert fp32.memory["parameters"] == amp.memory["parameters"] == parameters * FLOAT
    assert fp32.memory["optimizer"] == parameters * FLOAT  # the momentum
    assert fp32.memory["casts"] == 0
    assert fp32.memory["gradients"] == parameters * FLOAT  # at the peak, with so small a batch
    adam = take_step(find_workload("mlp"), 8, FP32, optimizer=lambda w: torch.optim.Adam(w))
    counters = FLOAT * len(list(mlp().parameters()))
    assert adam.memory["optimizer"] == 2 * parameters * FLOAT + counters


def test_casts_are_the_16_bit_copies_of_the_weights():
    memory = step_of("mlp", 4096, AMP_FP16).memory  # so many that the peak is in the backward pass
    # linear3 has used its copy by then, and linear1 needs none: the images get no gradient
    assert memory["casts"] == 2 * 512 * 512


def test_master_copies_belong_to_the_optimizer():
    parameters = sum(p.numel() for p in mlp().parameters())
    memory = step_of("mlp", 8, RECIPES["FP16 + master + scaler"]).memory
    assert memory["parameters"] == 2 * parameters
    assert memory["optimizer"] == 2 * FLOAT * parameters  # the master copy and its momentum


def test_activations_double_with_the_batch_and_shrink_under_amp():
    one, two = step_of("small_cnn", 64), step_of("small_cnn", 128)
    assert two.memory["activations"] == pytest.approx(2 * one.memory["activations"], rel=0.01)
    amp = step_of("small_cnn", 128, AMP_FP16).memory["activations"]
    assert 0.5 < amp / two.memory["activations"] < 0.7  # pooling's indices stay 64-bit


def test_inference_holds_no_gradients_and_saves_nothing():
    memory = step_of("small_cnn", 32, train=False).memory
    assert memory["gradients"] == memory["optimizer"] == 0
    assert memory["activations"] == 32 * 3 * 32 * 32 * FLOAT  # the input


def test_dropouts_mask_takes_a_byte():
    def build(*dropouts):
        return nn.Sequential(nn.Linear(1000, 1000), *dropouts, nn.Linear(1000, 1))

    def build_with_masks():
        return build(nn.Dropout(0.5), nn.Dropout(0.5))

    options = {"batch": 5000, "recipe": "fp32", "sample_shape": (1000,)}
    with_masks, without = (
        forecast(model, **options).peak_bytes_by_part["activations"]
        for model in (build_with_masks, build)
    )
    assert with_masks - without == 2 * 5000 * 1000


def test_shared_weights_are_counted_once():
    def tied():
        first, second = nn.Linear(50, 50, bias=False), nn.Linear(50, 50, bias=False)
        second.weight = first.weight
        return nn.Sequential(first, second)

    f = forecast(tied, batch=2, recipe="fp32", sample_shape=(50,))
    assert f.parameters == 2500
    assert f.peak_bytes_by_part["parameters"] == 2500 * FLOAT


def test_the_ledger_adds_up_at_the_peak():
    ledger = MemoryLedger()
    kept = torch.zeros(100)
    ledger.label("parameters", [kept])
    with ledger:
        a = kept + 1
        b = a + 1
        del a
        c = torch.zeros(10)
    ledger.label("gradients", [b])
    del c
    ledger.close()
    # kept, a and b
    assert ledger.at_peak() == dict.fromkeys(PARTS, 0) | {
        "parameters": 400,
        "gradients": 400,
        "temporary": 400,
    }


# --- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", [FP32, AMP_FP16, AMP_BF16], ids=lambda r: r.name)
def test_memory_is_that_of_a_step_on_this_gpu(recipe):
    from torchvision.models import resnet18

    device = torch.device("cuda")
    net, x = resnet18().to(device), torch.randn(64, 3, 224, 224, device=device)
    stepper = recipe.stepper(net, sgd)
    y = torch.zeros(64, dtype=torch.long, device=device)
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        stepper.zero_grad()
        with recipe.autocast_on(device):
            loss = F.cross_entropy(net(x), y)
        stepper.backward(loss)
        del loss
        stepper.step()
    measured = torch.cuda.max_memory_allocated()
    assert forecast("resnet18", batch=64, recipe=recipe).peak_bytes == pytest.approx(
        measured, rel=0.1
    )
