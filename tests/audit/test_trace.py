"""The trace tells the loop's story, survives JSON, and the report says what a reader needs."""

import importlib
import json
import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mptutor
from mptutor.audit import Audit, Trace, judge, story
from mptutor.audit.events_forward import Call, LayerGradient, Values
from mptutor.audit.rules_range_underflow import flushed_by_layer
from mptutor.audit.site import Site
from tests.audit.loops.pieces import BF16, amp, batches, mlp, training


def trained(order, micro_batches=1, steps=2):
    """Audit a loop that does these things in this order."""
    model, optimizer, scaler = training(mlp())
    data = iter(batches())
    x, y = next(data)

    def forward_and_backward():
        for _ in range(micro_batches):
            with amp():
                loss = F.cross_entropy(model(x), y) / micro_batches
            scaler.scale(loss).backward()

    actions = {
        "zero_grad": lambda: optimizer.zero_grad(),
        "backward": forward_and_backward,
        "unscale_": lambda: scaler.unscale_(optimizer),
        "clip": lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
        "step": lambda: scaler.step(optimizer),
        "update": lambda: scaler.update(),
    }
    with mptutor.audit() as a:
        for _ in range(steps):
            for name in order.split():
                actions[name]()
    return a


@pytest.mark.parametrize(
    ("order", "micro_batches", "told"),
    [
        (
            "zero_grad backward unscale_ clip step update",
            1,
            "zero_grad autocast scale backward unscale_ clip step update",
        ),
        (
            "zero_grad backward clip step update",
            1,
            "zero_grad autocast scale backward clip step update",
        ),
        (
            "zero_grad backward unscale_ clip step update",
            4,
            "zero_grad (autocast scale backward) x4 unscale_ clip step update",
        ),
        (
            "backward step update zero_grad",
            1,
            "autocast scale backward step update zero_grad",
        ),
    ],
)
def test_the_story_of_a_step(order, micro_batches, told):
    assert story(trained(order, micro_batches).trace)[-2:][0] == told


def test_a_backward_inside_autocast_is_told():
    model, optimizer, _ = training()
    with mptutor.audit() as a:
        for x, y in batches(n=64):
            optimizer.zero_grad()
            with amp(BF16):
                F.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert story(a.trace)[0] == "zero_grad autocast backward(in autocast) optimizer.step"


def test_a_skipped_step_is_told():
    model, optimizer, scaler = training()
    with mptutor.audit() as a:
        (scaler.scale(model(torch.ones(2, 32)).sum()) * math.inf).backward()
        scaler.step(optimizer)
        scaler.update()
    assert story(a.trace) == ["scale backward step(skipped) update"]


# -- JSON ----------------------------------------------------------------------------------------


def test_a_trace_survives_json_and_is_judged_the_same():
    a = trained("zero_grad backward clip step update")
    text = a.trace.to_json()
    again = Trace.from_json(text)
    assert again == a.trace
    assert judge(again) == a.findings
    json.loads(text, parse_constant=pytest.fail)


def test_infinite_numbers_survive_json():
    x = Values("float16", (2, 3), lo=-math.inf, hi=math.inf)
    call = Call(name="exp", inputs=[x], output=x, device="cpu", autocast=None, depth=0, region=0)
    trace = Trace([call], {"slow": {}}, ["nothing"])
    assert Trace.from_json(trace.to_json()) == trace


@pytest.mark.parametrize("text", ["[]", '{"steps": 3}', '{"events": [{"kind": "Values"}]}'])
def test_what_is_no_trace_is_refused(text):
    with pytest.raises(ValueError, match="not a trace"):
        Trace.from_json(text)


def test_flushed_gradients_are_counted_by_layer():
    """Against a count of the values themselves."""
    a = trained("zero_grad backward step update", steps=1)
    layers = {layer.name: layer for layer in flushed_by_layer(list(a.trace.of(LayerGradient)))}
    assert set(layers) == {"0", "1", "2", "3", "4", "5"}

    model, _, _ = training(mlp())
    gradients = {}

    def keep(layer, inputs, output):
        output.register_hook(lambda g: gradients.update(last=g))

    model[-1].register_forward_hook(keep)
    x, y = next(iter(batches()))
    with amp():
        loss = F.cross_entropy(model(x), y)
    (loss * 65536.0).backward()
    g = gradients["last"].float().flatten()
    assert layers["5"].total == g.numel()
    assert layers["5"].zeros == (g == 0).sum()
    assert layers["5"].subnormal == ((g != 0) & (g.abs() < 2.0**-14)).sum()
    unscaled = (g / 65536.0).half()
    assert layers["5"].flushed_without_scale == ((g != 0) & (unscaled == 0)).sum()


# -- the report ----------------------------------------------------------------------------------


def test_what_the_report_says():
    a = trained("zero_grad backward clip step update")
    text = str(a)
    assert text.startswith("audit: 2 steps")
    (wrong,) = [f for f in a.findings if f.level == "wrong"]
    for part in (wrong.cause, wrong.seen, wrong.why, "scaler.unscale_(optimizer)", "lesson  10"):
        assert part in text
    assert f"{wrong.site}" in text and wrong.site.code in text
    assert "true norm" in wrong.seen and "65536" in wrong.seen
    assert wrong.times == 2


def test_a_clean_report_says_so():
    with mptutor.audit() as a:
        pass
    assert "nothing found" in str(a)
    assert "No training was seen" in str(a)
    assert a.findings == []


def test_html_escapes_what_it_shows():
    a = trained("zero_grad backward clip step update")
    a.findings[0].site = Site("<b>.py", 1, "if a < b & c:")
    page = a._repr_html_()
    assert "<b>.py" not in page
    assert "if a &lt; b &amp; c:" in page
    assert "<script" not in page


def test_the_report_is_not_lost_with_an_exception(capsys):
    with pytest.raises(ValueError, match="of the loop"), mptutor.audit():
        raise ValueError("of the loop")
    assert "audit: 0 steps" in capsys.readouterr().err


def test_json_of_an_audit():
    report = json.loads(trained("zero_grad backward clip step update").to_json())
    assert report["findings"][0]["rule"] == "clip_before_unscale"
    assert set(report["findings"][0]["site"]) == {"file", "line", "code"}


def test_lines_of_a_notebook_are_named_by_cell(monkeypatch):
    class Shell:
        class compile:
            @staticmethod
            def format_code_name(name):
                return ("Cell", "In[2]") if name.endswith("123.py") else None

    fake = type(sys)("IPython")
    fake.get_ipython = Shell
    monkeypatch.setitem(sys.modules, "IPython", fake)
    assert str(Site("/tmp/ipykernel_1/123.py", 4)) == "Cell In[2]:4"
    assert str(Site("/home/me/train.py", 4)) == "train.py:4"


# -- the module that can be called ---------------------------------------------------------------


def test_audit_is_a_package_and_can_be_called():
    assert isinstance(mptutor.audit(), Audit)
    importlib.import_module("mptutor.audit.watch")
    assert isinstance(mptutor.audit(call_steps=0), Audit)


@pytest.mark.parametrize(
    "imports",
    [
        "import mptutor",
        "import mptutor.audit",
        "import mptutor.audit.cli, mptutor",
        "from mptutor.audit import judge; import mptutor",
    ],
)
def test_callable_however_it_was_imported(imports):
    code = f"{imports}\nwith mptutor.audit() as a: pass\nprint(a.findings)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
