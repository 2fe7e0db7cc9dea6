"""Training by recipe: the loop, and the claims of lesson 08 in their quick forms."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mptutor.data import batches, load
from mptutor.experiments.deep_sigmoid import run_deep_sigmoid
from mptutor.experiments.fine_tuning import run_fine_tuning
from mptutor.experiments.flushing import share_flushed
from mptutor.experiments.race import STEPS_A_TURN, race
from mptutor.experiments.recipes import (
    AMP_BF16,
    AMP_FP16,
    AMP_FP16_UNSCALED,
    FP16_MASTER,
    FP16_MASTER_SCALED,
    FP32,
    NAIVE_FP16,
    RECIPES,
)
from mptutor.experiments.tasks import adam, classify, order_seed, shorten
from mptutor.experiments.training import main, run_training
from mptutor.experiments.training_result import Run, TrainingResult
from mptutor.experiments.vae import run_vae
from mptutor.formats import BF16, FP16
from mptutor.models import mlp


@pytest.fixture(scope="module")
def data():
    return shorten(load("fashion-mnist-5k"), 128 * 12)


def small_mlp():
    return mlp((784, 32, 10))


@pytest.fixture(scope="module")
def task(data):
    """Twelve steps an epoch, of a millisecond each."""
    return classify("small", data, small_mlp, adam())


# The loop


@pytest.fixture(scope="module")
def small_result(task):
    turns = []
    result = race(
        task, list(RECIPES.values()), seeds=(3, 4), epochs=2, device="cpu", progress=turns.append
    )
    return result, turns


def test_it_is_the_loop_one_would_write(task, data, small_result):
    torch.manual_seed(3)
    model = small_mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for epoch in range(2):
        for images, labels in batches(data.train, 128, seed=order_seed(3, epoch)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    with torch.no_grad():
        right = model(data.test.images).argmax(-1) == data.test.labels
    run = small_result[0].of("FP32")[0]
    assert list(run.losses) == losses
    assert run.last("accuracy") == right.sum().item() / len(right)
    assert run.epochs[0].loss == pytest.approx(sum(losses[:12]) / 12)


def test_every_recipe_and_seed_is_there_once(small_result):
    result, _ = small_result
    assert [(run.seed, run.recipe) for run in result.runs] == [
        (seed, recipe) for seed in (3, 4) for recipe in RECIPES
    ]
    assert result.finished and all(run.finished for run in result.runs)
    healthy = [run for run in result.runs if run.recipe != NAIVE_FP16.name]
    assert all(len(run.losses) == 24 and len(run.epochs) == 2 for run in healthy)
    assert result.headline.startswith("small on fashion-mnist-5k: Adam(lr=0.001, eps=1e-08)")


def test_recipes_take_turns(small_result):
    _, turns = small_result
    first_seed = [turn for turn in turns if turn.seed == 3]
    assert [turn.recipe for turn in first_seed[: len(RECIPES)]] == list(RECIPES)
    fp32 = [turn for turn in first_seed if turn.recipe == "FP32"]
    assert [turn.step for turn in fp32] == [10, 12, 22, 24]
    assert [turn.epoch is not None for turn in fp32] == [False, True, False, True]
    assert all(len(turn.losses) <= STEPS_A_TURN and turn.steps == 24 for turn in turns)


def test_a_diverged_run_ends_with_its_turn(small_result):
    run = small_result[0].of(NAIVE_FP16.name)[0]
    assert run.diverged_at_step == 2 and len(run.losses) == STEPS_A_TURN
    assert math.isfinite(run.losses[0]) and all(map(math.isnan, run.losses[1:]))
    assert run.finished and len(run.epochs) == 1 and math.isnan(run.last("loss"))
    assert run.last("accuracy") == pytest.approx(0.1)
    assert run.share_moved is None and run.last("share_flushed") is None


def test_memory_is_counted(small_result):
    result, _ = small_result
    numbers = 784 * 32 + 32 + 32 * 10 + 10
    for recipe, held, gradients in (
        ("FP32", 4 * 3, 4),  # weights and Adam's two moments
        ("BF16 + master", 2 + 4 * 3, 2 + 4),
        ("pure BF16", 2 * 3, 2),
    ):
        least = (held + gradients) * numbers
        assert least < result.of(recipe)[0].peak_bytes < least + 3 * 4 * numbers
    assert all(run.step_ms > 0 for run in result.runs)


def test_json_round_trip(small_result):
    text = small_result[0].to_json()
    assert TrainingResult.from_json(text).to_json() == text
    assert "NaN at step" in small_result[0]._repr_html_()


def test_spread_is_over_the_seeds(small_result):
    result, _ = small_result
    first, second = (run.last("loss") for run in result.of("FP32"))
    spread = result.spread("FP32", "loss")
    assert spread.mean == pytest.approx((first + second) / 2)
    assert spread.std == pytest.approx(abs(first - second) / math.sqrt(2))
    assert math.isnan(result.spread(NAIVE_FP16.name, "loss").mean)
    with pytest.raises(ValueError, match="recipe: got 'fp32', this result has FP32, AMP FP16"):
        result.of("fp32")
    with pytest.raises(ValueError, match="what: got 'elbo', allowed are loss, accuracy"):
        result.spread("FP32", "elbo")


def test_the_learners_random_numbers_are_left_alone(task):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    race(task, [FP32], seeds=(0,), epochs=1, device="cpu")
    assert torch.equal(torch.rand(3), expected)


def test_stop_returns_what_there_is(task):
    answers = iter([False, False, False, True])
    result = race(
        task, [FP32, AMP_FP16], seeds=(0, 1), epochs=5, device="cpu", stop=lambda: next(answers)
    )
    assert not result.finished and not any(run.finished for run in result.runs)
    assert [(run.seed, run.recipe, len(run.losses)) for run in result.runs] == [
        (0, "FP32", 12),
        (0, "AMP FP16", 10),
    ]
    assert [len(run.epochs) for run in result.runs] == [1, 0]
    assert "stopped early" in result.headline and "AMP FP16" in str(result)
    assert TrainingResult.from_json(result.to_json()) == result


def test_an_interrupt_returns_what_there_is(task):
    def interrupt(turn):
        raise KeyboardInterrupt

    result = race(task, [AMP_FP16], seeds=(0, 1), epochs=5, device="cpu", progress=interrupt)
    assert not result.finished
    assert [len(run.losses) for run in result.runs] == [STEPS_A_TURN]
    half = torch.ones(2, dtype=torch.float16)
    with torch.autocast("cpu", dtype=torch.float16):
        assert half.exp().dtype is torch.float16  # the simulation has ended


def test_skips_are_counted_and_the_scale_falls(task):
    def steep(model, batch):
        loss, terms = task.loss(model, batch)
        return loss * 2.0**8, terms

    result = race(replace(task, loss=steep), [AMP_FP16], seeds=(0,), epochs=1, device="cpu")
    (run,) = result.runs
    assert run.skips > 0 and run.epochs[0].scale == 65536 / 2**run.skips


def test_nothing_to_run_is_refused(task):
    with pytest.raises(ValueError, match="got 0 recipes, 1 seeds and 1 epochs"):
        race(task, [], seeds=(0,), epochs=1)


# The share of flushed gradients


class Chain(nn.Module):
    """Multiplies by ``factor`` twice, so that the gradients are powers of it."""

    def __init__(self, factor):
        super().__init__()
        self.first, self.second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.first.weight, factor)
        nn.init.constant_(self.second.weight, factor)

    def forward(self, x):
        return self.second(self.first(x))


@pytest.mark.parametrize(
    ("fmt", "scale", "share"), [(FP16, 1.0, 0.5), (FP16, 2.0, 0.0), (BF16, 1.0, 0.0)]
)
def test_what_is_at_2_to_the_minus_25_is_flushed(fmt, scale, share):
    """The gradients are 1 and 2^-25: the tie that goes to zero."""
    model = Chain(2.0**-25)
    assert share_flushed(model, lambda: model(torch.ones(1, 1)).sum(), fmt, scale) == share


def test_gradients_that_are_zero_in_fp32_do_not_count():
    model = nn.Sequential(Chain(1.0), nn.ReLU())
    assert share_flushed(model, lambda: model(-torch.ones(1, 1)).sum(), FP16) == 0.0
    model = Chain(1.0)
    assert share_flushed(model, lambda: 0 * model(torch.ones(1, 1)).sum(), FP16) is None
    assert share_flushed(model, lambda: torch.inf * model(torch.ones(1, 1)).sum(), FP16) is None


# The claims


@pytest.mark.lesson08
def test_parity_with_adam_and_naive_fp16_is_nan_from_the_second_step():
    recipes = (FP32, AMP_FP16, AMP_BF16, AMP_FP16_UNSCALED, FP16_MASTER_SCALED, NAIVE_FP16)
    result = run_training(recipes=recipes, quick=True)
    fp32 = result.of("FP32")[0]
    for recipe in recipes[1:-1]:
        (run,) = result.of(recipe.name)
        assert abs(run.last("loss") - fp32.last("loss")) < 0.02
        assert abs(run.last("accuracy") - fp32.last("accuracy")) < 0.02
        assert run.peak_bytes < 0.7 * fp32.peak_bytes
    # Flushed without a scaler, and not damaged.
    unscaled, scaled = (result.of(r.name)[0] for r in (AMP_FP16_UNSCALED, AMP_FP16))
    assert unscaled.last("share_flushed") > 0.01 > 100 * scaled.last("share_flushed")
    assert result.of(NAIVE_FP16.name)[0].diverged_at_step == 2


@pytest.mark.lesson08
def test_naive_fp16_trains_with_sgd():
    """The failure is Adam's eps, not FP16's alone."""
    sgd = lambda weights: torch.optim.SGD(weights, lr=0.05)  # noqa: E731
    result = run_training(recipes=(FP32, NAIVE_FP16), optimizer=sgd, quick=True)
    fp32, naive = result.runs
    assert naive.diverged_at_step is None
    assert abs(naive.last("loss") - fp32.last("loss")) < 0.05


@pytest.mark.lesson08
def test_adams_eps_of_1e_4_lets_naive_fp16_train():
    result = run_training(recipes=(NAIVE_FP16,), optimizer=adam(eps=1e-4), quick=True)
    assert result.runs[0].diverged_at_step is None and result.runs[0].last("accuracy") > 0.6


@pytest.mark.lesson08
def test_fp16_without_a_scaler_loses_the_kl_term_of_a_vae():
    recipes = (FP32, AMP_FP16, AMP_FP16_UNSCALED, FP16_MASTER, FP16_MASTER_SCALED)
    with_kl = run_vae(recipes=recipes, quick=True)
    without_kl = run_vae(recipes=(FP32,), kl_weight=0.0, quick=True)
    kl = {run.recipe: run.last("kl") for run in with_kl.runs}
    kl_if_removed = without_kl.runs[0].last("kl")
    assert kl_if_removed > 1.25 * kl["FP32"]
    for repaired in ("AMP FP16", "FP16 + master + scaler"):
        assert kl[repaired] == pytest.approx(kl["FP32"], rel=0.03)
    for broken in ("AMP FP16 without scaler", "FP16 + master"):
        assert kl[broken] == pytest.approx(kl_if_removed, rel=0.08)
    # And nothing else shows it.
    reconstructions = [run.last("reconstruction") for run in with_kl.runs]
    assert max(reconstructions) < 1.05 * min(reconstructions)
    assert all(run.diverged_at_step is None for run in with_kl.runs)


@pytest.mark.lesson08
def test_pure_bf16_stalls_in_fine_tuning_and_a_master_copy_repairs_it():
    result = run_fine_tuning(quick=True)
    accuracy = {run.recipe: run.last("accuracy") for run in result.runs}
    moved = {run.recipe: run.share_moved for run in result.runs}
    assert accuracy["FP32"] - accuracy["pure BF16"] > 0.06
    assert accuracy["BF16 + master"] == pytest.approx(accuracy["FP32"], abs=0.02)
    assert moved["pure BF16"] < 0.5 < 0.9 < moved["BF16 + master"]


@pytest.mark.lesson08
def test_a_deep_sigmoid_net_starts_dead_without_a_scaler():
    result = run_deep_sigmoid(quick=True)
    loss = {run.recipe: run.last("loss") for run in result.runs}
    assert loss["AMP FP16 without scaler"] > math.log(10) - 0.01
    assert loss["FP32"] < 2.0
    assert loss["AMP FP16"] == pytest.approx(loss["FP32"], abs=0.1)


def test_the_command_prints_tables_and_writes_json(capsys, tmp_path):
    file = tmp_path / "results.json"
    assert main(["vae-without-kl", "--seeds", "1", "--json", str(file)]) == 0
    assert "VAE, KL weight 0 on fashion-mnist-5k" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["vea"])
    assert "allowed are parity, vae" in capsys.readouterr().err


def test_a_run_without_epochs_has_no_last_value():
    run = Run("FP32", 0, (), (), None, False, None, None, None)
    assert run.last("loss") is None and run.skips == 0


@pytest.mark.gpu
def test_training_by_every_recipe_on_a_gpu():
    result = run_training(recipes=list(RECIPES.values()), quick=True, device="cuda")
    fp32 = result.of("FP32")[0]
    for run in result.runs:
        if run.recipe != NAIVE_FP16.name:
            assert abs(run.last("loss") - fp32.last("loss")) < 0.05
        assert run.step_ms > 0 and run.peak_bytes > 0
