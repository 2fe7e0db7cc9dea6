"""Recipes: what is refused, and that the hooks do what a hand-written loop does."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mptutor.experiments import recipes
from mptutor.experiments.recipes import (
    AMP_BF16,
    AMP_FP16,
    BF16_MASTER,
    FP16_MASTER,
    FP16_MASTER_SCALED,
    FP32,
    NAIVE_FP16,
    PURE_BF16,
    RECIPES,
    Recipe,
)
from mptutor.simulate import simulate_amp
from mptutor.tensorcore import tensor_core

CPU = torch.device("cpu")
FP16_, BF16_ = torch.float16, torch.bfloat16


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"weights": torch.float64}, "weights: got torch.float64"),
        ({"autocast": torch.float32}, "autocast: got torch.float32"),
        ({"weights": FP16_, "autocast": FP16_}, "FP16 weights leave it nothing to keep in FP32"),
        ({"weights": BF16_, "autocast": FP16_}, "autocast works on FP32 weights"),
        ({"master": True}, "FP32 already"),
        ({"autocast": FP16_, "master": True}, "FP32 already"),
        ({"scaler": True}, "gradients are FP32"),
        ({"autocast": BF16_, "scaler": True}, "gradients are BF16, whose range is FP32's"),
        ({"weights": BF16_, "scaler": True}, "nothing that a loss scale could save"),
        ({"weights": BF16_, "master": True, "scaler": True}, "gradients are BF16"),
        ({"weights": FP16_, "scaler": True}, "GradScaler refuses FP16 gradients"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(options, reason):
    with pytest.raises(ValueError, match=f"recipe 'x': .*{reason}"):
        Recipe("x", **options)


def test_torch_refuses_fp16_gradients_as_the_recipe_says():
    model = nn.Linear(2, 1).half()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(1, 2).half()).sum()).backward()
    with pytest.raises(ValueError, match="unscale FP16 gradients"):
        scaler.step(optimizer)


def test_the_nine_recipes_are_all_that_make_sense():
    dtypes = (torch.float32, FP16_, BF16_)
    sensible = set()
    for weights in dtypes:
        for autocast in (None, FP16_, BF16_):
            for master in (False, True):
                for scaler in (False, True):
                    options = (weights, autocast, master, scaler)
                    try:
                        Recipe("x", *options)
                    except ValueError:
                        continue
                    sensible.add(options)
    known = {(r.weights, r.autocast, r.master, r.scaler) for r in RECIPES.values()}
    assert known == sensible


def build(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 5))


def batches(steps=6):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        images = torch.randn(32, 20, generator=generator)
        yield images, torch.randint(0, 5, (32,), generator=generator)


def sgd(weights):
    return torch.optim.SGD(weights, lr=0.3, momentum=0.9)


def train(recipe, make_optimizer=sgd):
    model = recipe.prepare(build())
    with recipe.arithmetic(CPU):
        stepper = recipe.stepper(model, make_optimizer)
        for images, labels in batches():
            stepper.zero_grad()
            with recipe.autocast_on(CPU):
                loss = F.cross_entropy(model(images), labels)
            stepper.backward(loss)
            stepper.step()
    return model, stepper


def assert_equal_weights(model, other):
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("recipe", [NAIVE_FP16, PURE_BF16])
@pytest.mark.parametrize("units", [True, False])
def test_fp16_weights_are_emulated_even_where_there_are_units(recipe, units, monkeypatch):
    monkeypatch.setattr(recipes, "has_units", lambda dtype: units)
    emulated = isinstance(recipe.arithmetic(CPU), tensor_core)
    assert emulated == (recipe is NAIVE_FP16 or not units)


def test_fp32_is_the_ordinary_loop():
    model = build()
    optimizer = sgd(model.parameters())
    for images, labels in batches():
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    assert_equal_weights(train(FP32)[0], model)


def test_amp_fp16_is_the_loop_of_torchs_documentation():
    model = build()
    optimizer, scaler = sgd(model.parameters()), torch.amp.GradScaler("cpu")
    with simulate_amp():
        for images, labels in batches():
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=FP16_):
                loss = F.cross_entropy(model(images), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    trained, stepper = train(AMP_FP16)
    assert_equal_weights(trained, model)
    assert stepper.scale == scaler.get_scale() == 65536


def test_naive_fp16_is_half():
    model = build().half()
    optimizer = sgd(model.parameters())
    with tensor_core():
        for images, labels in batches():
            optimizer.zero_grad()
            F.cross_entropy(model(images.half()).float(), labels).backward()
            optimizer.step()
    trained, _ = train(NAIVE_FP16)
    assert_equal_weights(trained, model)
    assert {w.dtype for w in trained.parameters()} == {FP16_}


@pytest.mark.parametrize("recipe", [FP16_MASTER, FP16_MASTER_SCALED, BF16_MASTER])
def test_the_model_is_the_rounded_master_copy(recipe):
    model, stepper = train(recipe)
    assert {w.dtype for w in stepper.weights} == {torch.float32}
    for weight, master in zip(model.parameters(), stepper.weights, strict=True):
        assert torch.equal(weight, master.to(recipe.weights))
        assert not torch.equal(weight.float(), master)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=list(RECIPES))
def test_every_recipe_trains_this_net_with_sgd(recipe):
    model, stepper = train(recipe)
    expected = [w.detach() for w in train(FP32)[0].parameters()]
    for weight, reference in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(weight.float(), reference, atol=0.05, rtol=0.05)
    assert (stepper.steps, stepper.updates, stepper.skips) == (6, 6, 0)


def test_an_infinite_gradient_is_a_skip_that_leaves_the_weights():
    model = AMP_FP16.prepare(build())
    stepper = AMP_FP16.stepper(model, sgd)
    before = [w.detach().clone() for w in model.parameters()]
    stepper.backward(model(torch.full((1, 20), torch.inf)).sum())
    stepper.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    assert (stepper.skips, stepper.scale) == (1, 32768)


def test_held_bytes_are_weights_master_copy_and_optimizer_state():
    numbers = 20 * 16 + 16 + 16 * 5 + 5
    momentum = lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9)  # noqa: E731
    assert train(FP32, momentum)[1].held_bytes == numbers * (4 + 4)
    assert train(PURE_BF16, momentum)[1].held_bytes == numbers * (2 + 2)
    assert train(BF16_MASTER, momentum)[1].held_bytes == numbers * (2 + 4 + 4)


def test_formats():
    assert [r.fmt.name for r in (FP32, AMP_FP16, AMP_BF16, PURE_BF16)] == [
        "FP32",
        "FP16",
        "BF16",
        "BF16",
    ]


def test_nothing_is_left_switched_on():
    a, b = torch.randn(2, 8, 8, dtype=FP16_)
    before = a @ b
    for recipe in RECIPES.values():
        train(recipe)
    assert torch.equal(a @ b, before)
    assert torch.ones(2).half().exp().dtype is FP16_
    with torch.autocast("cpu", dtype=FP16_):
        assert torch.ones(2).half().exp().dtype is FP16_  # CPU's list, not CUDA's


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=list(RECIPES))
def test_every_recipe_trains_on_a_gpu(recipe):
    device = torch.device("cuda")
    model = recipe.prepare(build().to(device))
    with recipe.arithmetic(device):
        stepper = recipe.stepper(model, sgd)
        for images, labels in batches():
            stepper.zero_grad()
            with recipe.autocast_on(device):
                loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            stepper.backward(loss)
            stepper.step()
    for weight, reference in zip(model.parameters(), train(FP32)[0].parameters(), strict=True):
        torch.testing.assert_close(weight.float().cpu(), reference.detach(), atol=0.05, rtol=0.05)
