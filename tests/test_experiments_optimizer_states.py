"""Adam's moments in few bits, and gradients accumulated in few bits."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from mptutor.data import load
from mptutor.experiments.gradient_accumulation import (
    GradientAccumulationResult,
    run_gradient_accumulation,
)
from mptutor.experiments.optimizer_states import (
    BLOCK,
    STORAGES,
    Adam,
    OptimizerStatesResult,
    run_optimizer_states,
)
from mptutor.experiments.tasks import seeded
from mptutor.models import mlp

pytestmark = pytest.mark.lesson13


@pytest.fixture(scope="module")
def states():
    return run_optimizer_states()


@pytest.fixture(scope="module")
def sums():
    return run_gradient_accumulation()


def test_in_fp32_it_is_the_adam_of_torch():
    train = load().train
    ours, theirs = (seeded(lambda: mlp((784, 16, 10)), 0) for _ in range(2))
    mine = Adam(ours.parameters(), STORAGES["FP32"], lr=1e-3)
    torchs = torch.optim.Adam(theirs.parameters(), lr=1e-3)
    for step in range(20):
        part = slice(64 * step, 64 * step + 64)
        for model, optimizer in ((ours, mine), (theirs, torchs)):
            model.zero_grad()
            F.cross_entropy(model(train.images[part]), train.labels[part]).backward()
            optimizer.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["INT8 blocks", "FP8 blocks"])
def test_a_block_keeps_its_largest_value_and_spoils_no_other(name):
    storage = STORAGES[name]
    x = torch.randn(3, 2 * BLOCK + 7, generator=torch.Generator().manual_seed(0))
    kept = storage.keep(x)
    back = storage.read(kept, x.shape)
    assert back.shape == x.shape and kept[0].element_size() == 1
    assert kept[1].numel() == math.ceil(x.numel() / BLOCK)
    first, largest = x.flatten()[:BLOCK], x.flatten()[:BLOCK].abs().argmax()
    torch.testing.assert_close(back.flatten()[largest], first[largest], rtol=1e-6, atol=0)
    spoilt = x.clone()
    spoilt[0, 0] = 1e6
    again = storage.read(storage.keep(spoilt), x.shape)
    assert torch.equal(again.flatten()[BLOCK:], back.flatten()[BLOCK:])
    assert not torch.equal(again.flatten()[1:BLOCK], back.flatten()[1:BLOCK])


def test_an_int8_step_is_the_same_size_everywhere_and_zero_below_half_of_one():
    storage = STORAGES["INT8 blocks"]
    x = torch.tensor([127.0, 1.0, 0.6, 0.4, -0.4, -0.6])
    assert storage.read(storage.keep(x), x.shape).tolist() == [127.0, 1.0, 1.0, 0.0, 0.0, -1.0]
    zeros = torch.zeros(5)
    assert torch.equal(storage.read(storage.keep(zeros), zeros.shape), zeros)


def test_bf16_and_8_bits_train_as_well_as_fp32(states):
    (fp32,) = states.of("FP32")
    for name in ("BF16", "FP16, root of v", "INT8 blocks, root of v", "FP8 blocks"):
        (run,) = states.of(name)
        assert run.loss == pytest.approx(fp32.loss, rel=0.02), name
        assert run.accuracy > fp32.accuracy - 0.02


def test_fp16_and_int8_lose_v_and_are_lost(states):
    (fp32,) = states.of("FP32")
    for name in ("FP16", "INT8 blocks"):
        (run,) = states.of(name)
        assert run.share_of_lost_v > 0.05
        assert not run.loss < 10 * fp32.loss
        assert run.accuracy < 0.6
    assert fp32.share_of_lost_v == 0.0


def test_bytes_are_those_of_the_tensors(states):
    bytes_of = {run.storage: run.bytes_per_weight for run in states.runs}
    assert (bytes_of["FP32"], bytes_of["BF16"], bytes_of["FP16"]) == (8, 4, 4)
    numels = [w.numel() for w in mlp((784, 64, 10)).parameters()]
    blocks = sum(math.ceil(n / BLOCK) for n in numels)  # the last of a weight is filled up
    assert bytes_of["FP8 blocks"] == 2 * blocks * (BLOCK + 4) / sum(numels)


def test_seeds_devices_and_stop():
    runs = run_optimizer_states(storages=[STORAGES["BF16"]], quick=True, seeds=(3, 4), device="cpu")
    assert [run.seed for run in runs.runs] == [3] and runs.device == "cpu"
    assert run_optimizer_states(quick=True, stop=lambda: True).runs == ()


def test_errors_of_a_sum_grow_with_its_length_and_16_bits_grow_faster(sums):
    for fmt in ("FP32", "FP16", "BF16"):
        errors = [sums.of(fmt, n).relative_error for n in (4, 16, 64, 256)]
        assert errors == sorted(errors)
    assert 0.01 < sums.of("BF16", 256).relative_error < 0.04
    assert sums.of("FP16", 256).relative_error < 0.2 * sums.of("BF16", 256).relative_error
    assert sums.of("FP32", 256).relative_error < 1e-5
    assert sums.of("BF16", 256).share_lost > 0.05 > sums.of("BF16", 16).share_lost


def test_both_survive_json(states, sums):
    assert GradientAccumulationResult.from_json(sums.to_json()) == sums
    finite = replace(states, runs=states.of("BF16"))
    assert OptimizerStatesResult.from_json(finite.to_json()) == finite
    assert "v zero" in states._repr_html_() and "BF16 error %" in sums._repr_html_()


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"micro_batches and micro_batch_size: .* got 0 and 8"):
        run_gradient_accumulation(0)


@pytest.mark.gpu
def test_both_run_on_the_gpu():
    runs = run_optimizer_states(quick=True)
    assert runs.device.startswith("cuda") and len(runs.runs) == len(STORAGES)
    (fp32,), (bf16,), (fp16,) = (runs.of(name) for name in ("FP32", "BF16", "FP16"))
    assert bf16.loss == pytest.approx(fp32.loss, rel=0.02) and not fp16.loss < 10 * fp32.loss
    sums = run_gradient_accumulation(quick=True)
    assert sums.of("BF16", 64).relative_error > 100 * sums.of("FP32", 64).relative_error
