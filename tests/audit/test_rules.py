"""Rules on traces written by hand: what no loop on this machine can show, and the judge itself."""

import math

import pytest

from mptutor.audit import LEVELS, RULES, Trace, judge
from mptutor.audit.events import (
    Backward,
    EnterAutocast,
    Scale,
    ScalerStep,
    StepEnded,
    Unscale,
    Update,
)
from mptutor.audit.events_forward import Call, Values
from mptutor.audit.site import Site

#: Rules whose examples are here and not among the loops.
FIRING = {"policy_depends_on_version", "no_fast_units"}
SILENT = {"policy_depends_on_version", "no_fast_units"}

HERE = Site("train.py", 7, "scaler.step(optimizer)")


def rules_of(*events, **machine):
    return [f.rule for f in judge(Trace(list(events), machine))]


def rms_norm(dtype_out, name="rms_norm"):
    x, y = (Values(d, (2, 8), "cuda", -1.0, 1.0) for d in ("bfloat16", dtype_out))
    return Call(
        name=name, inputs=[x], output=y, device="cuda", autocast="bfloat16", depth=1, region=1
    )


def test_rms_norm_that_gives_fp32():
    assert rules_of(rms_norm("float32")) == ["policy_depends_on_version"]
    assert rules_of(rms_norm("bfloat16")) == []


def test_dtype_without_units():
    entered = EnterAutocast(device="cpu", dtype="float16", enabled=True, depth=1, region=1)
    assert rules_of(entered, slow={"cpu float16": "no units"}) == ["no_fast_units"]
    assert rules_of(entered, slow={"cpu bfloat16": "no units"}) == []


@pytest.mark.parametrize(("growth", "found"), [(1 << 20, ["memory_grows"]), (0, [])])
def test_memory_of_the_device(growth, found):
    steps = [StepEnded(step=i, memory_bytes=10**8 + i * growth) for i in range(30)]
    assert rules_of(*steps) == found


def test_a_healthy_step():
    s, o = "GradScaler1", "SGD1"
    assert (
        rules_of(
            Scale(scaler=s, dtypes=["float32"], init_scale=65536.0, scale=65536.0),
            Backward(dtypes=["float32"], scaler=s, scale=65536.0, fed={o: "fresh"}),
            Unscale(scaler=s, optimizer=o, within_step=True, grad_dtypes=["float32"]),
            ScalerStep(scaler=s, optimizer=o, grads=2, stepped=True),
            Update(scaler=s, given=False, before=65536.0, after=65536.0),
        )
        == []
    )


def update(before, after, step=0):
    return Update(
        scaler="GradScaler1", given=False, before=before, after=after, step=step, site=HERE
    )


def test_same_line_is_one_finding():
    found = judge(Trace([update(1.0, 0.5, step=3), update(1.0, 0.5, step=9)]))
    (collapsed,) = [f for f in found if f.rule == "scale_collapsed"]
    assert (collapsed.times, collapsed.first_step, collapsed.site) == (2, 3, HERE)


def test_worst_first_and_causes_before_consequences():
    overflow = Call(
        site=Site("model.py", 3),
        name="square",
        inputs=[Values("float16", (2,), lo=0.0, hi=300.0)],
        output=Values("float16", (2,), lo=0.0, hi=math.inf),
        device="cpu",
        autocast="float16",
        depth=1,
        region=1,
    )
    entered = EnterAutocast(device="cpu", dtype="float16", enabled=True, depth=1, region=1)
    found = rules_of(entered, update(1.0, 0.5), overflow, slow={"cpu float16": "no units"})
    assert found == ["forward_overflow", "scale_collapsed", "no_fast_units"]


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.id)
def test_what_every_rule_says(rule):
    assert rule.level in LEVELS
    assert rule.kind in ("order", "dtype", "range", "gain")
    assert 0 <= rule.lesson <= 13
    assert rule.cause.endswith(".") and rule.why.endswith(".")
    assert "maybe" not in rule.cause
    compile(rule.repair, "repair", "exec")
