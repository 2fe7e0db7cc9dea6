"""Failures reported by others, reproduced in cases/: the audit names the cause of each, first."""

import runpy
import warnings
from pathlib import Path

import pytest
import torch

import mptutor

CASES = Path(__file__).parent / "cases"

#: Case -> the rule that names its cause. None: no bug in the torch this was written with, so
#: there's nothing to find.
CAUSES = {
    "01_t5_forward_overflow": "forward_overflow",
    "02_clip_before_unscale": "clip_before_unscale",
    "03_no_inf_checks": "no_gradients",
    "04_unscale_twice_accumulation": "unscale_twice",
    "06_unscale_fp16_grads": "half_parameters_with_scaler",
    "07_scale_collapses_to_zero_then_nan_weights": "scale_collapsed",
    "08_mask_fill_minus_1e9": "constant_overflows",
    "10_adam_eps_fp16": "adam_eps_vanishes",
    "11_log_eps_underflow": "constant_vanishes",
    "13_bce_unsafe_to_autocast": "unsafe_loss",
    "14_custom_function_dtype": "custom_function_dtype",
    "15_autocast_cache_no_grad": None,
    "16_stale_weight_cache": "stale_weight_cache",
    "17_accumulation_scale_changes": "scale_changed_in_accumulation",
    "19_lr_scheduler_warning": "scheduler_after_skip",
    "20_scaler_state_not_saved": "scaler_not_restored",
    "22_amp_not_faster": "layers_too_small",
    "23_amp_more_memory": "casts_outweigh_savings",
    "25_bf16_weights_stall": "average_stalls",
    "27_attention_logits_overflow": "logits_overflow",
    "28_loss_sum_overflow": "sum_overflow",
    "30_cpu_op_list_is_not_cuda_op_list": "cpu_policy_differs",
    "31_cuda_autocast_on_cpu_tensors": "amp_off",
    "33_rope_positions_bf16": "positions_rounded",
    "35_batchnorm_not_autocast": "forward_overflow",
    "36_autocast_is_thread_local": "autocast_in_another_thread",
    "37_extra_optimizer_step": "step_on_scaled",
    "38_fused_optimizer_unscale": None,
    "39_eval_without_autocast": "dtype_mismatch",
    "40_checkpoint_and_autocast": None,
    "41_gradient_penalty": "penalty_on_scaled_gradients",
    "44_fp16_without_scaler_underflow": "fp16_without_scaler",
    "45_first_steps_inf_is_normal": "first_steps_skipped",
    "47_rms_norm_policy_changed": "policy_depends_on_version",
}


def look_at(case):
    before = {device: torch.get_autocast_dtype(device) for device in ("cpu", "cuda")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with mptutor.audit() as a:
            runpy.run_path(str(CASES / f"{case}.py"), run_name="__main__")
    # A script may set a default and leave it: its process would end here.
    for device, dtype in before.items():
        torch.set_autocast_dtype(device, dtype)
    return a


def test_no_case_is_left_out():
    assert {path.stem for path in CASES.glob("*.py")} == set(CAUSES)


@pytest.mark.parametrize("case", CAUSES)
def test_the_cause_comes_first(case):
    a = look_at(case)
    if CAUSES[case] is None:
        assert not [f for f in a.findings if f.level != "note"]
        return
    assert a.findings, a.trace.unseen
    assert a.findings[0].rule == CAUSES[case], [f.rule for f in a.findings]
    assert a.findings[0].site.file.endswith(f"{case}.py"), "the line is the case's own"


def test_the_batchnorm_that_spreads_the_inf_is_named():
    seen = look_at("35_batchnorm_not_autocast").findings[0].seen
    assert "BatchNorm1d" in seen


def test_both_ways_past_the_scaler_are_named():
    rules = [f.rule for f in look_at("37_extra_optimizer_step").findings]
    assert {"step_on_scaled", "step_twice"} <= set(rules)


def test_the_collapse_is_followed_to_its_end():
    rules = [f.rule for f in look_at("07_scale_collapses_to_zero_then_nan_weights").findings]
    assert {"scale_is_zero", "weights_not_finite"} <= set(rules)
