"""The meter against bytes counted by hand, against torch's own tracker, and on the GPU."""

import gc
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from mptutor.memory import MemoryMeter
from mptutor.models import small_cnn
from mptutor.tensorcore import tensor_core

FLOAT = 4  # bytes


def cpu_meter(*owners):
    return MemoryMeter(*owners, device="cpu")


# --- live bytes


def test_peak_counts_what_is_alive_together():
    with cpu_meter() as meter:
        a = torch.zeros(1000)
        b = a + 1
        del a
        c = b + 1
        c = c + 1
    del b, c
    # b, the old c and the new one
    assert meter.peak_bytes == 3 * 1000 * FLOAT
    assert meter.reading.start_bytes == 0
    assert meter.reading.end_bytes == 2 * 1000 * FLOAT


def test_views_and_in_place_operations_are_free():
    with cpu_meter() as meter:
        a = torch.zeros(40, 25)
        a.t()[3:].add_(1)
        a.detach().view(1000).relu_()
    assert meter.peak_bytes == 1000 * FLOAT
    assert meter.reading.end_bytes == 1000 * FLOAT


def test_older_tensors_were_there_all_along():
    older = torch.zeros(1000)
    with cpu_meter() as meter:
        torch.zeros(500)
        older.t()
    assert meter.reading.start_bytes == 1000 * FLOAT
    assert meter.peak_bytes == 1500 * FLOAT
    assert meter.reading.end_bytes == 1000 * FLOAT


def test_owners_count_from_the_start_and_when_freed():
    layer = nn.Linear(10, 10, bias=False)
    layer.weight.grad = torch.zeros(10, 10)
    with cpu_meter(layer) as meter:
        layer.zero_grad(set_to_none=True)
    assert meter.reading.start_bytes == 2 * 100 * FLOAT
    assert meter.reading.end_bytes == 100 * FLOAT


def test_new_tensors_from_python_values_are_new():
    with cpu_meter() as meter:
        a = torch.tensor([1.0, 2.0, 3.0])
    assert meter.reading.start_bytes == 0
    assert meter.peak_bytes == a.numel() * FLOAT


def test_growing_storage_is_counted_again():
    with cpu_meter() as meter:
        a = torch.empty(10)
        a.resize_(1000)
        a.add_(1)
    assert meter.peak_bytes == 1000 * FLOAT


def test_nothing_is_counted_after_leaving():
    with cpu_meter() as meter:
        a = torch.zeros(10)
    del a
    torch.zeros(1000)
    assert meter.reading.end_bytes == 10 * FLOAT


@given(
    st.lists(st.tuples(st.sampled_from(["new", "drop", "op"]), st.integers(1, 500)), max_size=30)
)
@settings(deadline=None, max_examples=50)
def test_agrees_with_bookkeeping_by_hand(steps):
    alive, peak = [], 0
    with cpu_meter() as meter:
        for action, n in steps:
            if action == "new":
                alive.append(torch.zeros(n))
            elif action == "op" and alive:
                alive.append(alive[n % len(alive)] * 2)
            elif alive:
                alive.pop(n % len(alive))
            peak = max(peak, sum(t.numel() * FLOAT for t in alive))
    assert meter.peak_bytes == peak
    assert meter.reading.end_bytes == sum(t.numel() * FLOAT for t in alive)


def test_adam_adds_two_states_a_parameter_and_gradients_one():
    layer = nn.Linear(32, 16)
    optimizer = torch.optim.Adam(layer.parameters())
    parameters = 32 * 16 + 16
    x = torch.zeros(4, 32)
    with cpu_meter(layer, optimizer) as meter:
        layer(x).sum().backward()
        optimizer.step()
    step_counters = 2 * FLOAT
    grown = meter.reading.end_bytes - meter.reading.start_bytes
    assert grown == 3 * parameters * FLOAT + step_counters
    with cpu_meter(layer, optimizer) as meter:
        pass
    assert meter.reading.start_bytes == 4 * parameters * FLOAT + step_counters


def test_agrees_with_torchs_memory_tracker():
    from torch.distributed._tools.mem_tracker import MemTracker

    torch.manual_seed(0)
    model = small_cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    step()
    with cpu_meter(model, optimizer, x, y) as meter:
        step()
    tracker = MemTracker()
    tracker.track_external(model, optimizer, x, y)
    with tracker:
        step()
    theirs = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    assert meter.peak_bytes == pytest.approx(theirs, rel=0.01)


# --- saved for the backward pass


def test_a_layer_saves_its_input():
    layer = nn.Linear(100, 10)
    with cpu_meter(layer) as meter:
        layer(torch.ones(8, 100)).sum().backward()
    assert meter.saved_bytes == 8 * 100 * FLOAT


def test_relu_and_the_next_layer_save_the_same_storage():
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5))
    with cpu_meter(model) as meter:
        output = model(torch.ones(8, 20))
    assert output.requires_grad
    assert meter.saved_bytes == (8 * 20 + 8 * 30) * FLOAT


def test_max_pool_saves_int64_indices():
    x = torch.zeros(2, 3, 8, 8, requires_grad=True)
    with cpu_meter(x) as meter:
        F.max_pool2d(x, 2)
    assert meter.reading.saved_bytes_by_dtype == {"int64": 2 * 3 * 4 * 4 * 8}


def test_autocast_saves_16_bit_inputs_and_a_copy_of_the_weight():
    layer = nn.Linear(100, 10, bias=False)
    x = torch.ones(8, 100, requires_grad=True)
    with cpu_meter(layer, x) as meter, torch.autocast("cpu", torch.bfloat16):
        layer(x)
    assert meter.reading.saved_bytes_by_dtype == {"bfloat16": (8 * 100 + 10 * 100) * 2}


def test_no_grad_saves_nothing():
    layer = nn.Linear(100, 10)
    with cpu_meter(layer) as meter, torch.no_grad():
        layer(torch.ones(8, 100))
    assert meter.saved_bytes == 0


def test_steps_in_turn_do_not_add_up_but_pending_graphs_do():
    layer = nn.Linear(100, 10)
    inputs = [torch.ones(8, 100) for _ in range(3)]
    with cpu_meter(layer) as in_turn:
        for x in inputs:
            layer(x).sum().backward()
    assert in_turn.saved_bytes == 8 * 100 * FLOAT
    with cpu_meter(layer) as pending:
        sum(layer(x).sum() for x in inputs).backward()
    assert pending.saved_bytes == 3 * 8 * 100 * FLOAT


def test_freed_gradients_do_not_hide_activations():
    layer = nn.Linear(100, 100, bias=False)
    layer(torch.ones(100, 100)).sum().backward()
    with cpu_meter(layer) as meter:
        layer.zero_grad(set_to_none=True)
        for _ in range(5):  # one of these may well take the gradient's old address
            layer(torch.ones(100, 100)).sum().backward()
            layer.zero_grad(set_to_none=True)
    assert meter.saved_bytes == 100 * 100 * FLOAT


def test_the_graph_dies_with_its_output():
    with cpu_meter() as meter:
        x = torch.ones(1000, requires_grad=True)
        y = x.exp()
        gc.disable()
        try:
            del x, y
            assert meter._live.present_bytes == 0
        finally:
            gc.enable()


def test_gradients_are_the_same_under_the_meter():
    torch.manual_seed(0)
    model, x = small_cnn(), torch.randn(4, 3, 32, 32)
    grads = []
    for context in (nullcontext(), cpu_meter(model)):
        model.zero_grad()
        with context:
            model(x).square().mean().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_double_backward_works_under_the_meter():
    x = torch.ones(5, requires_grad=True)
    with cpu_meter(x):
        (grad,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        grad.sum().backward()
    assert torch.equal(x.grad, torch.full((5,), 6.0))


def test_fake_tensors_give_the_same_reading():
    """What a model would need can be read without having the memory."""
    readings = []
    for mode in (nullcontext(), FakeTensorMode()):
        with mode:
            model, x = small_cnn(), torch.zeros(8, 3, 32, 32)
            with cpu_meter(model) as meter:
                model(x).sum().backward()
        readings.append(meter.reading)
    assert readings[0] == readings[1]


def test_the_simulations_own_copies_are_not_seen():
    a, b = torch.zeros(64, 64, dtype=torch.float16), torch.zeros(64, 64, dtype=torch.float16)
    with tensor_core(), cpu_meter(a, b) as inside:
        a @ b
    with cpu_meter(a, b) as outside, tensor_core():
        a @ b
    assert inside.peak_bytes == outside.peak_bytes == 3 * 64 * 64 * 2


# --- use


def test_a_meter_can_be_used_again():
    meter = cpu_meter()
    for n in (1000, 10):
        with meter:
            torch.zeros(n)
        assert meter.peak_bytes == n * FLOAT


def test_takes_the_device_of_its_owners():
    assert MemoryMeter(nn.Linear(1, 1)).device.type == "cpu"


def test_refuses_other_owners():
    with pytest.raises(TypeError, match="owners: got a str"):
        MemoryMeter("model")


def test_reading_reads_well():
    with cpu_meter() as meter:
        torch.zeros(500_000, requires_grad=True).exp()
    assert str(meter.reading) == (
        "peak 4.00 MB (from 0.00), saved for backward 2.00 MB (2.00 float32), cpu"
    )


@pytest.mark.gpu
def test_cuda_peak_is_the_allocators():
    with MemoryMeter(device="cuda") as meter:
        a = torch.zeros(1 << 20, device="cuda")
        b = a + 1
        del a, b
    assert meter.peak_bytes - meter.reading.start_bytes == 2 * FLOAT << 20
    assert meter.reading.end_bytes == meter.reading.start_bytes


@pytest.mark.gpu
def test_saved_bytes_are_the_same_on_cpu_and_cuda():
    saved = []
    for device in ("cpu", "cuda"):
        with torch.device(device):
            model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
            x = torch.ones(32, 64)
        with MemoryMeter(model) as meter:
            model(x).sum().backward()
        saved.append(meter.saved_bytes)
    assert saved[0] == saved[1] == (32 * 64 + 32 * 128) * FLOAT
