"""What lesson 12 says about frameworks: what really ran, whose bits it has, what it lacks."""

import sys
import warnings
from functools import partial
from pathlib import Path

import nbformat
import pytest
import torch
from torch import nn

from mptutor.experiments import framework_loops, framework_recipes, framework_ways, raw_loops
from mptutor.experiments.framework_recipes import (
    FrameworkRecipesResult,
    run_framework_recipes,
    try_way,
)
from mptutor.experiments.framework_ways import WAYS, find_way
from mptutor.experiments.listings import compare, edits, listing
from mptutor.experiments.recipes import RECIPES
from mptutor.experiments.what_ran import Seen, watch
from mptutor.models import mlp
from mptutor.plots import plot_framework_costs, plot_what_ran

pytestmark = pytest.mark.lesson12

LIGHTNING = [w.name for w in WAYS if w.package == "lightning"]
ACCELERATE = [w.name for w in WAYS if w.package == "accelerate"]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """Run every way once, in a folder of its own, which must stay empty."""
    folder = tmp_path_factory.mktemp("here")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")  # what frameworks say is kept in the result
        patch.chdir(folder)
        result = run_framework_recipes(quick=True, device="cpu")
    assert list(folder.iterdir()) == []
    return result


def test_every_way_ran(result):
    assert [run.name for run in result.runs] == [way.name for way in WAYS]
    assert [run.refusal for run in result.runs if run.refusal] == []


def test_on_a_cpu_four_requests_for_fp16_are_answered_with_something_else(result):
    ran_instead = {run.name: (run.asked, run.ran) for run in result.runs if run.fell_back}
    assert ran_instead == {
        "torch.amp FP16 for cuda": ("AMP FP16", "FP32"),
        "Fabric 16-mixed": ("AMP FP16", "AMP BF16"),
        "Trainer 16-mixed": ("AMP FP16", "AMP BF16"),
        "Accelerate fp16": ("AMP FP16", "FP32"),
    }


def test_accelerate_alone_says_nothing(result):
    silent = [run.name for run in result.runs if run.fell_back and not run.warnings]
    assert silent == ["Accelerate fp16"]
    (said,) = result.of("Fabric 16-mixed").warnings
    assert "bf16-mixed" in said


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("torch.amp FP16 for cuda", "plain"),
        ("Fabric 32-true", "plain"),
        ("Fabric 16-mixed", "torch.amp BF16"),
        ("Fabric 16-mixed by plugin", "torch.amp FP16"),
        ("Fabric bf16-mixed", "torch.amp BF16"),
        ("Fabric 16-true", ".half(), FP32 loss"),
        ("Fabric bf16-true", ".bfloat16(), FP32 loss"),
        ("Trainer 32-true", "plain"),
        ("Trainer 16-mixed", "torch.amp BF16"),
        ("Trainer 16-mixed by plugin", "torch.amp FP16"),
        ("Trainer bf16-mixed", "torch.amp BF16"),
        ("Trainer 16-true", ".half()"),
        ("Trainer bf16-true", ".bfloat16()"),
        ("Accelerate no", "plain"),
        ("Accelerate fp16", "plain"),
        ("Accelerate bf16", "torch.amp BF16"),
        ("FSDP2 BF16", "torch.amp BF16"),
    ],
)
def test_a_framework_has_the_bits_of_a_raw_loop(result, name, raw):
    assert result.of(name).same_bits_as == raw


def test_the_raw_loops_differ_from_each_other(result):
    hashes = [result.of(way.name).weights_hash for way in WAYS if way.is_reference]
    assert len(set(hashes)) == len(hashes)


def test_the_output_of_a_framework_says_nothing_about_its_layers(result):
    for name in ("Fabric bf16-mixed", "Accelerate bf16"):
        assert result.of(name).seen.layers == "BF16"
        assert result.of(name).seen.output == "FP32"
    assert result.of("Trainer bf16-mixed").seen.output == "BF16"


def test_only_fp16_over_fp32_weights_is_scaled(result):
    scaled = [run.name for run in result.runs if run.seen.scaled]
    assert scaled == [run.name for run in result.runs if run.ran == "AMP FP16"]
    assert result.of("torch.amp FP16").seen.scale in {2.0**k for k in range(10, 17)}


def test_what_ran_is_named_as_the_course_names_it(result):
    assert {name for run in result.runs for name in (run.ran, run.asked)} <= set(RECIPES)


def test_everything_that_was_borrowed_is_given_back(result):
    assert not torch.distributed.is_initialized()
    assert torch.get_default_dtype() is torch.float32
    state = sys.modules["accelerate.state"].AcceleratorState
    assert state._shared_state == {}


def test_times_and_bytes_are_there_where_they_can_be_measured(result):
    assert all(run.step_ms > 0 for run in result.runs)
    without = [run.name for run in result.runs if run.peak_bytes is None]
    assert without == ["FSDP2 BF16"]
    half, fp32 = (result.of(n).peak_bytes for n in (".half()", "plain"))
    assert half < fp32
    assert set(result.import_seconds) == {"lightning", "accelerate"}


def test_it_survives_json_and_draws_itself(result):
    assert FrameworkRecipesResult.from_json(result.to_json()) == result
    assert "4 of 24" in plot_what_ran(result).get_suptitle()
    assert "Accelerate fp16: asked AMP FP16, ran FP32" in plot_what_ran(result).alt
    assert "torch.amp BF16: 1 line;" in plot_framework_costs(result).alt
    assert len(result.table()) == len(WAYS) and "bits of" in str(result)


# --- without the frameworks


@pytest.fixture
def without_frameworks(monkeypatch):
    for package in ("lightning", "accelerate"):
        for name in [n for n in sys.modules if n.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)  # importing it raises ImportError
    monkeypatch.setattr(framework_ways, "_import_seconds", {})


def test_without_them_it_says_what_is_missing_and_runs_the_rest(without_frameworks):
    names = ["plain", "torch.amp FP16", "Fabric 16-mixed", "Trainer 32-true", "Accelerate fp16"]
    result = run_framework_recipes(names, quick=True, device="cpu")
    refused = {run.name: run.refusal for run in result.runs if run.refusal}
    assert list(refused) == names[2:]
    assert "lightning is not installed" in refused["Fabric 16-mixed"]
    assert "pip install accelerate" in refused["Accelerate fp16"]
    assert result.import_seconds == {} and result.of("torch.amp FP16").ran == "AMP FP16"
    assert [row["ran"] for row in result.table()][2:] == ["not run"] * 3
    assert "1 of" not in plot_what_ran(result).get_suptitle()
    assert "not run" in str(try_way("Fabric 16-mixed", device="cpu"))


def run_lesson():
    """Run the code of lesson 12 and return its names; its asserts are the test."""
    (path,) = (Path(__file__).parent.parent / "lessons").glob("12_*.ipynb")
    namespace = {"__name__": "__main__"}
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            exec(cell.source, namespace)
    return namespace


def test_the_lesson_runs_without_them(without_frameworks, monkeypatch, capsys):
    quick = partial(run_framework_recipes, quick=True)
    monkeypatch.setattr(framework_recipes, "run_framework_recipes", quick)
    lesson = run_lesson()
    assert {run.name for run in lesson["ran"]} == {w.name for w in WAYS if not w.package}
    told = capsys.readouterr().out
    assert "Fabric 16-mixed: not run. lightning is not installed" in told
    assert "Accelerate fp16: not run. accelerate is not installed" in told


@pytest.mark.gpu
def test_the_lesson_runs_on_a_gpu():
    lesson = run_lesson()
    assert lesson["device"].type == "cuda" and lesson["fallen"] == []


def test_a_way_that_is_refused_says_why(monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError("no such\nbackend")

    way = framework_ways.Way("refused", "FP32", refuse)
    monkeypatch.setattr(framework_ways, "WAYS", (way,))
    monkeypatch.setattr(framework_ways.Way, "edits", 0)
    assert try_way("refused", device="cpu").refusal == "RuntimeError: no such backend"


# --- the instrument


def train_a_step(dtype=None, scaler=None):
    model, loss_fn = nn.Sequential(nn.Linear(8, 4), nn.LayerNorm(4)), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
    with watch(model, loss_fn) as w:
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            loss = loss_fn(model(torch.ones(2, 8)), torch.zeros(2, 4))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return w.seen, model


@pytest.mark.parametrize("scale", [2.0, 2.0**10])
def test_a_scale_is_seen_without_asking_the_scaler(scale):
    seen, _ = train_a_step(torch.float16, torch.amp.GradScaler("cpu", init_scale=scale))
    assert seen.scale == scale and seen.recipe == "AMP FP16"


def test_a_scaler_that_is_switched_off_is_none():
    seen, _ = train_a_step(torch.float16, torch.amp.GradScaler("cpu", enabled=False))
    assert not seen.scaled and seen.recipe == "AMP FP16 without scaler"


def test_watching_leaves_no_hook_and_changes_no_bit():
    seen, model = train_a_step(torch.bfloat16)
    assert seen.recipe == "AMP BF16"
    hooks = [m._forward_hooks for m in model.modules()]
    hooks += [w._post_accumulate_grad_hooks for w in model.parameters()]
    assert not any(hooks)
    watched, bare = (mlp((784, 16, 10)) for _ in range(2))
    bare.load_state_dict(watched.state_dict())
    batches = [(torch.ones(4, 784), torch.arange(4))]
    loss_fn, device = nn.CrossEntropyLoss(), torch.device("cpu")
    with watch(watched, loss_fn):
        raw_loops.plain(watched, loss_fn, batches, device)
    raw_loops.plain(bare, loss_fn, batches, device)
    pairs = zip(watched.parameters(), bare.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    ("layers", "weights", "scale", "recipe"),
    [
        ("FP32", "FP32", 1.0, "FP32"),
        ("FP16", "FP32", 1024.0, "AMP FP16"),
        ("FP16", "FP32", None, "AMP FP16 without scaler"),
        ("BF16", "FP32", 1024.0, "AMP BF16"),
        ("FP16", "FP16", 1.0, "naive FP16"),
        ("BF16", "BF16", 1.0, "pure BF16"),
        ("FP16", "", None, "no step"),
    ],
)
def test_names_of_recipes(layers, weights, scale, recipe):
    assert Seen(layers, "FP32", weights, weights, scale).recipe == recipe


# --- listings


def test_edits_are_counted_from_the_listings():
    assert edits(raw_loops.plain) == 0
    assert edits(raw_loops.amp_bf16) == 1  # the block; its content is indented and not counted
    assert edits(raw_loops.amp_fp16) == 5  # scaler, block, scale, step, update
    assert edits(raw_loops.low_weights) == 2
    assert edits(framework_loops.trainer) > edits(framework_loops.fabric) > 2


def test_a_comparison_holds_both_listings():
    lines = compare(raw_loops.amp_fp16)
    assert [line[2:] for line in lines if line[0] in "+ "] == listing(raw_loops.amp_fp16)
    theirs = [line[2:].strip() for line in lines if line[0] in "- "]
    assert theirs == [line.strip() for line in listing(raw_loops.plain)]


def test_bad_arguments_are_named(result):
    with pytest.raises(ValueError, match=r"name: got 'Keras', allowed are plain, torch\.amp FP16"):
        find_way("Keras")
    with pytest.raises(ValueError, match="name: got 'Keras', allowed are plain"):
        result.of("Keras")
    with pytest.raises(ValueError, match="steps: got 5, allowed are 6 or more"):
        run_framework_recipes(["plain"], steps=5)


def test_it_tells_how_far_it_has_come():
    told = []
    run_framework_recipes(["plain", ".half()"], quick=True, device="cpu", progress=told.append)
    assert [stage.done for stage in told] == [0, 0.25, 0.5, 0.75]
    assert [stage.said for stage in told[1:3]] == [".half()", "plain, timed"]


def test_it_stops_when_asked():
    asked = []

    def stop():
        asked.append(True)
        return len(asked) > 2

    result = run_framework_recipes(quick=True, device="cpu", stop=stop)
    assert not result.finished and len(result.runs) == 2


@pytest.mark.gpu
def test_on_a_gpu_fp16_is_fp16_everywhere():
    result = run_framework_recipes(quick=True, device="cuda")
    assert [run.name for run in result.runs if run.fell_back] == []
    for name in ("Fabric 16-mixed", "Trainer 16-mixed", "Accelerate fp16"):
        assert result.of(name).seen.scaled
