"""Two real processes over gloo: the claims of lesson 13."""

import math
from pathlib import Path

import nbformat
import pytest
import torch

from mptutor.experiments import distributed
from mptutor.experiments.distributed import DistributedResult, run_distributed
from mptutor.experiments.two_processes import ProcessError
from mptutor.formats import BF16, FP16

pytestmark = pytest.mark.lesson13


@pytest.fixture(scope="module")
def two():
    result = run_distributed(timeout_s=450)
    assert result.problem == ""
    return result


def error(result, setting, loss_scale):
    (found,) = (a for a in result.averaged if (a.setting, a.loss_scale) == (setting, loss_scale))
    return found.relative_error


def test_a_sum_overflows_before_it_is_divided_and_a_quotient_flushes_before_it_is_added(two):
    large, small = 40_000.0, 2.0**-24
    for way in ("sum, then divide", "ReduceOp.AVG"):
        assert two.means.of("FP16", way) == {large: math.inf, small: small}
    assert two.means.of("FP16", "divide, then sum") == {large: large, small: 0.0}
    for way in ("sum, then divide", "ReduceOp.AVG", "divide, then sum"):
        assert two.means.of("FP32", way) == {large: large, small: small}
        bf16 = torch.tensor(large).bfloat16().item()
        assert two.means.of("BF16", way) == {large: bf16, small: small}


def test_the_mean_of_the_ranks_is_the_gradient_of_the_batch(two):
    for scale in (2.0**-12, 1.0, 2.0**16, 2.0**22):
        assert error(two.gradients.by("DDP"), "no hook", scale) < 1e-6
    assert error(two.gradients.by("FSDP2"), "param_dtype=None, reduce_dtype=None", 1.0) < 1e-6


def test_a_hook_rounds_once_and_has_the_range_of_its_format(two):
    ddp = two.gradients.by("DDP")
    fp16 = {s: error(ddp, "fp16_compress_hook", s) for s in (2.0**-12, 1.0, 2.0**16, 2.0**22)}
    bf16 = {s: error(ddp, "bf16_compress_hook", s) for s in fp16}
    assert FP16.eps / 8 < fp16[2.0**16] < FP16.eps
    assert BF16.eps / 8 < bf16[2.0**16] < BF16.eps
    assert len(set(bf16.values())) == 1
    assert fp16[2.0**-12] > 100 * fp16[2.0**16]
    assert not math.isfinite(fp16[2.0**22])


def test_hooks_and_policies_halve_the_bytes_and_leave_the_weights_fp32(two):
    for averaged in two.gradients.averaged:
        assert averaged.wire_bytes == 118_282 * (4 if averaged.wire == "FP32" else 2)
        assert averaged.weights == "float32"


def test_reduce_dtype_is_param_dtype_unless_given(two):
    wires = {a.setting: a.wire for a in two.gradients.by("FSDP2").averaged}
    assert wires["param_dtype=bfloat16, reduce_dtype=None"] == "BF16"
    assert wires["param_dtype=bfloat16, reduce_dtype=float32"] == "FP32"


def test_fp16_on_the_wire_overflows_where_fp32_and_bf16_do_not(two):
    fsdp = two.gradients.by("FSDP2")
    at_2_20 = {a.setting: a.finite for a in fsdp.averaged if a.loss_scale == 2.0**20}
    assert not at_2_20["param_dtype=None, reduce_dtype=float16"]
    assert at_2_20["param_dtype=None, reduce_dtype=bfloat16"]
    assert at_2_20["param_dtype=None, reduce_dtype=None"]
    assert not at_2_20["param_dtype=float16, reduce_dtype=float32"], "FP16 in the backward pass"


def test_the_ranks_skip_together_unless_each_looks_for_itself(two):
    for skip in two.skips.skips:
        assert skip.together == (skip.loop != "FSDP2, each looks at its own part")
    torn = two.skips.of("FSDP2, each looks at its own part")
    assert torn.stepped == (True, False)
    assert torn.scales == (2.0**16, 2.0**15)
    assert two.skips.of("FSDP2, GradScaler").scales == (2.0**15, 2.0**15)


def test_it_survives_json_and_shows_itself(two):
    assert DistributedResult.from_json(two.to_json()) == two
    assert two.headline == "2 processes, over gloo"
    for part in (two, two.means, two.gradients, two.skips):
        assert "<table>" in part._repr_html_()


def test_where_processes_cannot_be_started_it_says_so_and_is_empty(monkeypatch):
    def refuse(*_, **__):
        raise ProcessError("No process can be started here: too bad.")

    monkeypatch.setattr(distributed, "launch", refuse)
    none = run_distributed()
    assert none.headline == none.problem == "No process can be started here: too bad."
    assert none.means.table() == none.gradients.table() == none.skips.table() == []
    assert DistributedResult.from_json(none.to_json()) == none


def test_an_interrupt_and_a_stop_are_said_too():
    def interrupt(stage):
        raise KeyboardInterrupt

    assert "interrupted before they were done" in run_distributed(progress=interrupt).problem
    assert "stopped before they were done" in run_distributed(stop=lambda: True).problem


def test_the_lesson_goes_on_without_processes():
    (path,) = (Path(__file__).resolve().parent.parent / "lessons").glob("13_*.ipynb")
    cells = [c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    named = [cell for cell in cells if "two." in cell]
    assert len(named) >= 5
    for cell in named:
        exec(cell, {"two": DistributedResult(problem="No process can be started here.")})
