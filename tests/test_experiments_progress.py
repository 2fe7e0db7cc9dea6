"""What a long run tells while it runs, to whom, and what is left of it when it is interrupted."""

import json
import math
import subprocess
import sys
from functools import partial

import pytest
from torch.optim.optimizer import register_optimizer_step_post_hook

from mptutor.data import load
from mptutor.experiments import progress
from mptutor.experiments.deep_sigmoid import run_deep_sigmoid
from mptutor.experiments.fine_tuning import run_fine_tuning
from mptutor.experiments.framework_recipes import run_framework_recipes
from mptutor.experiments.gradient_accumulation import run_gradient_accumulation
from mptutor.experiments.loop_patterns import LoopPatternsResult, run_loop_patterns
from mptutor.experiments.memory_sweep import run_memory_sweep
from mptutor.experiments.optimizer_states import run_optimizer_states
from mptutor.experiments.progress import Stage, do_in_turn, shown, somebody_watches
from mptutor.experiments.race import race
from mptutor.experiments.recipes import AMP_FP16, FP32, NAIVE_FP16, PURE_BF16
from mptutor.experiments.scale_sweep import ScaleSweepResult, run_scale_sweep
from mptutor.experiments.scaler_traces import run_scaler_traces
from mptutor.experiments.speed_sweep import run_speed_sweep
from mptutor.experiments.tasks import adam, classify, shorten
from mptutor.experiments.training_result import TrainingResult
from mptutor.models import mlp
from mptutor.scaling import DynamicLossScaler


def interrupt_the_second(stage):
    if stage.done:
        raise KeyboardInterrupt


# -- who is told -----------------------------------------------------------------------------------


def test_a_function_is_told_and_silence_is_silent(monkeypatch):
    told = []
    with shown(told.append) as tell:
        tell(Stage("half of it", 0.5))
    assert told == [Stage("half of it", 0.5)]
    monkeypatch.setattr(progress, "somebody_watches", lambda: True)
    monkeypatch.setattr(progress, "_Line", None)  # nobody may make one
    for silent in (False, None):
        with shown(silent) as tell:
            tell(Stage("half of it", 0.5))


def test_outside_a_notebook_nobody_watches():
    assert not somebody_watches()


CELLS = {
    "shows": (
        "from mptutor.experiments import progress\n"
        "progress._FIRST_AFTER_S = progress._EVERY_S = 0\n"
        "with progress.shown(True) as tell:\n"
        "    for done in (0.25, 0.5):\n"
        "        tell(progress.Stage('<step>', done))\n"
    )
}

ASK_A_KERNEL = """
import json, sys
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel()
heard = []
client.execute_interactive(
    sys.argv[1], allow_stdin=sys.argv[2] == "yes", output_hook=lambda m: heard.append(m),
    stdin_hook=lambda m: None, timeout=120,
)
client.stop_channels()
manager.shutdown_kernel(now=True)
kinds = ("display_data", "update_display_data", "stream", "error")
print(json.dumps([m["content"].get("data", m["content"]) for m in heard if m["msg_type"] in kinds]))
"""


def heard_from_a_kernel(allow_stdin):
    pytest.importorskip("ipykernel")
    command = [sys.executable, "-c", ASK_A_KERNEL, CELLS["shows"], allow_stdin]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


def test_a_person_at_a_notebook_sees_a_line_that_goes_away():
    first, second, last = heard_from_a_kernel("yes")
    assert first["text/plain"] == "<step> (25%)"
    assert (
        '<progress value="0.500"' in second["text/html"] and "&lt;step&gt;" in second["text/html"]
    )
    assert last == {"text/html": "", "text/plain": ""}


def test_a_program_that_runs_notebooks_sees_nothing():
    assert heard_from_a_kernel("no") == []


# -- what is told ----------------------------------------------------------------------------------


def test_a_race_tells_how_much_of_it_is_done():
    data = shorten(load("fashion-mnist-5k"), 128 * 12)
    task = classify("small", data, lambda: mlp((784, 32, 10)), adam())
    turns = []
    race(task, [FP32, NAIVE_FP16], seeds=(0, 1), epochs=2, device="cpu", progress=turns.append)
    done = [turn.done for turn in turns]
    assert done == sorted(done) and done[-1] == 1.0
    # 10 of 24 steps of the first of two runs, of the first of two seeds.
    assert done[0] == pytest.approx(10 / 24 / 2 / 2)
    # Naive FP16 is over with its first turn, which ends its run.
    assert done[1] == pytest.approx((10 / 24 + 1) / 2 / 2)
    assert turns[0].said == "FP32, seed 0: step 10 of 24"


# -- what an interrupt leaves ----------------------------------------------------------------------


def test_an_interrupted_sweep_returns_what_there_is():
    result = run_scale_sweep([1.0, 2.0], epochs=1, device="cpu", progress=interrupt_the_second)
    assert not result.finished and result.runs == () and math.isfinite(result.fp32_loss)
    assert ScaleSweepResult.from_json(result.to_json()) == result


def test_jobs_are_run_in_turn_until_one_is_interrupted():
    told = []
    jobs = [(word, word.upper) for word in ("one", "two", "three", "four")]
    assert do_in_turn(jobs, told.append) == (("ONE", "TWO", "THREE", "FOUR"), True)
    assert told[:2] == [Stage("one", 0.0), Stage("two", 0.25)]
    assert do_in_turn(jobs, interrupt_the_second) == (("ONE",), False)
    assert do_in_turn(jobs, False, stop=iter([False, False, True]).__next__) == (
        ("ONE", "TWO"),
        False,
    )
    assert do_in_turn([], False) == ((), True)


@pytest.mark.parametrize(
    "run, of_one_job",
    [
        (run_speed_sweep, lambda r: {p.size for p in r.products} == {32}),
        (run_memory_sweep, lambda r: [s.recipe for s in r.steps] == ["FP32"]),
        (
            partial(run_scaler_traces, {"a": DynamicLossScaler, "b": DynamicLossScaler}),
            lambda r: r.of("a"),
        ),
        (run_optimizer_states, lambda r: len(r.runs) == 1),
        (partial(run_framework_recipes, ["plain", ".half()"]), lambda r: len(r.runs) == 1),
        (run_gradient_accumulation, lambda r: {s.micro_batches for s in r.sums} == {1}),
        (partial(run_memory_sweep, recipes=(AMP_FP16, FP32)), lambda r: r.steps[0].peak_bytes),
    ],
)
def test_what_is_interrupted_or_stopped_returns_what_there_is(run, of_one_job):
    result = run(quick=True, device="cpu", progress=interrupt_the_second)
    assert not result.finished and of_one_job(result) and len(result.table()) >= 1
    assert type(result).from_json(result.to_json()) == result
    nothing = run(quick=True, device="cpu", stop=lambda: True)
    assert not nothing.finished and nothing.table() == []


def test_an_interrupted_trainer_of_lightning_loses_nothing():
    pytest.importorskip("lightning")

    def interrupt(optimizer, *_):
        raise KeyboardInterrupt

    hooks = []

    def hook_the_trainer(stage):
        if stage.said == "Trainer 32-true":
            hooks.append(register_optimizer_step_post_hook(interrupt))

    try:
        result = run_framework_recipes(
            ["plain", "Trainer 32-true"], quick=True, device="cpu", progress=hook_the_trainer
        )
    finally:
        for hook in hooks:
            hook.remove()
    assert hooks and not result.finished and [run.name for run in result.runs] == ["plain"]


def test_an_interrupt_between_two_rounds_keeps_the_times_of_the_first():
    def interrupt(stage):
        if stage.done >= 2 / 3:
            raise KeyboardInterrupt

    result = run_framework_recipes(["plain"], steps=10, device="cpu", progress=interrupt)
    assert not result.finished and result.runs[0].step_ms > 0


def test_interrupted_loops_return_what_there_is():
    result = run_loop_patterns(["clipping"], quick=True, progress=interrupt_the_second)
    assert not result.finished and [run.variant for run in result.runs] == ["right"]
    assert LoopPatternsResult.from_json(result.to_json()) == result


def test_stopped_loops_return_what_there_is():
    result = run_loop_patterns(["clipping"], quick=True, stop=lambda: True)
    assert not result.finished and result.runs == () and result.table() == []


def test_a_race_stopped_before_it_began_still_shows_itself():
    result = run_deep_sigmoid(quick=True, recipes=[FP32], stop=lambda: True)
    assert result.table()[0]["recipe"] == "FP32"
    nothing = TrainingResult.from_plain({**result.to_plain(), "runs": []})
    assert nothing.table() == [] and "nothing to show" in str(nothing)


# -- what is asked for is what is run --------------------------------------------------------------


@pytest.mark.parametrize("run", [run_fine_tuning, run_deep_sigmoid])
def test_recipes_that_are_named_are_run_in_the_quick_form_too(run):
    result = run(quick=True, recipes=[PURE_BF16], stop=lambda: True)
    assert result.recipes == ("pure BF16",)
    with pytest.raises(ValueError, match="got 0 recipes"):
        run(quick=True, recipes=[])
