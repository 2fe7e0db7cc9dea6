"""Random loops: legal orders of calls raise no alarm, and one illegal call is never missed.

A loop is a list of words, run with real torch objects. The legal ones are built by a small
grammar of what people may do in a step; a fault is then put into one of its steps.
"""

import contextlib
import io

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import mptutor
from mptutor.audit import Watch


@pytest.fixture(autouse=True, scope="module")
def no_search_for_older_optimizers():
    """These loops make their own, so the search would only cost time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Watch, "_find_optimizers", lambda self: None)
        yield


SLOW = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class Loop:
    """Two optimizers, one scaler, and a method for each word."""

    def __init__(self, growth_interval=2000):
        torch.manual_seed(0)
        self.models = [nn.Linear(4, 2), nn.Linear(4, 2)]
        self.optimizers = [torch.optim.SGD(m.parameters(), 0.01) for m in self.models]
        self.scaler = torch.amp.GradScaler("cpu", 1024.0, growth_interval=growth_interval)

    def loss(self, i):
        with torch.autocast("cpu", torch.float16):
            out = self.models[i](torch.ones(3, 4))
        return out.float().pow(2).mean()

    def run(self, words):
        for word in words:
            name, _, which = word.partition(":")
            getattr(self, name)(*([int(which)] if which else []))

    def zero(self, i):
        self.optimizers[i].zero_grad()

    def zero_in_place(self, i):
        self.optimizers[i].zero_grad(set_to_none=False)

    def zero_by_hand(self, i):
        for p in self.models[i].parameters():
            p.grad = None

    def zero_module(self, i):
        self.models[i].zero_grad()

    def backward(self, i):
        self.scaler.scale(self.loss(i)).backward()

    def backward_half(self, i):
        (self.scaler.scale(self.loss(i)) / 2).backward()

    def backward_unscaled(self, i):
        self.loss(i).backward()

    def overflow(self, i):
        self.backward(i)
        self.models[i].weight.grad[0, 0] = float("inf")

    def unscale(self, i):
        self.scaler.unscale_(self.optimizers[i])

    def clip(self, i):
        nn.utils.clip_grad_norm_(self.models[i].parameters(), 0.1)

    def clip_value(self, i):
        nn.utils.clip_grad_value_(self.models[i].parameters(), 0.1)

    def measure(self, i):
        nn.utils.get_total_norm([p.grad for p in self.models[i].parameters()])

    def step(self, i):
        self.scaler.step(self.optimizers[i])

    def plain_step(self, i):
        self.optimizers[i].step()

    def update(self):
        self.scaler.update()

    def save(self):
        states = {"o": self.optimizers[0].state_dict(), "s": self.scaler.state_dict()}
        torch.save(states, io.BytesIO())


def alarms(words, growth_interval):
    """Run the words; return the rules that speak up, and whether the loop raised."""
    raised = None
    with contextlib.redirect_stderr(io.StringIO()):
        a = mptutor.audit(layer_steps=0, call_steps=0)
        try:
            with a:
                Loop(growth_interval).run(words)
        except (RuntimeError, AssertionError, ValueError) as error:
            raised = error
    return [f.rule for f in a.findings if f.level != "note"], raised


clears = st.sampled_from(["zero", "zero_in_place", "zero_by_hand", "zero_module"])
backwards = st.lists(
    st.sampled_from(["backward", "backward_half", "overflow"]), min_size=1, max_size=3
)
looks = st.lists(st.sampled_from(["clip", "clip_value", "measure"]), max_size=2)


@st.composite
def optimizer_words(draw, i, clear_first):
    """What one step does for one optimizer, as (before the step, the step, after it)."""
    before = [draw(clears)] if clear_first else []
    before += draw(backwards)
    if draw(st.booleans()):
        before += ["measure"] * draw(st.integers(0, 1)) + ["unscale", *draw(looks)]
    after = [] if clear_first else [draw(clears)]
    return [[f"{w}:{i}" for w in part] for part in (before, ["step"], after)]


@st.composite
def legal_step(draw, clear_first):
    """One or both optimizers; their calls may interleave, and update comes after every step."""
    which = draw(st.sampled_from([[0], [1], [0, 1], [1, 0]]))
    parts = [draw(optimizer_words(i, clear_first)) for i in which]
    together = draw(st.booleans())
    words = []
    if together:
        for stage in range(2):
            for part in parts:
                words += part[stage]
    else:
        for part in parts:
            words += part[0] + part[1]
    ending = [word for part in parts for word in part[2]]
    words += ["update", *ending] if draw(st.booleans()) else [*ending, "update"]
    return words + ["save"] * draw(st.integers(0, 1))


@st.composite
def legal_loop(draw):
    clear_first = draw(st.booleans())
    return draw(st.lists(legal_step(clear_first), min_size=1, max_size=4))


@SLOW
@given(loop=legal_loop(), growth_interval=st.sampled_from([1, 2, 2000]))
def test_no_legal_order_raises_an_alarm(loop, growth_interval):
    words = [word for step in loop for word in step]
    found, raised = alarms(words, growth_interval)
    assert raised is None
    assert found == [], " ".join(words)


#: What is done instead of the step, and the rule that should name it.
FAULTS = {
    ("clip", "step"): "clip_before_unscale",
    ("clip_value", "unscale", "step"): "clip_before_unscale",
    ("unscale", "unscale", "step"): "unscale_twice",
    ("unscale", "backward", "step"): "backward_after_unscale",
    ("plain_step",): "step_on_scaled",
    ("step", "plain_step"): "step_twice",
    ("unscale", "plain_step"): "step_past_inf_check",
    ("backward_unscaled", "step"): "loss_not_scaled",
    ("step", "clip"): "clip_after_step",
    ("zero", "step"): "cleared_before_step",
    ("zero_by_hand", "backward_unscaled", "step"): "loss_not_scaled",
}


def with_fault(words, fault, i):
    """Put a fault in the place of the step of optimizer `i`."""
    kept = [w for w in words if not w.startswith(("unscale", "clip", "measure"))]
    at = kept.index(f"step:{i}")
    return [*kept[:at], *(f"{word}:{i}" for word in fault), *kept[at + 1 :]]


@st.composite
def healthy_step(draw, i):
    """A legal step of one optimizer with gradients that do not overflow."""
    words = [
        "zero",
        *draw(st.lists(st.sampled_from(["backward", "backward_half"]), min_size=1, max_size=3)),
    ]
    if draw(st.booleans()):
        words += ["unscale", *draw(looks)]
    return [f"{w}:{i}" for w in words] + [f"step:{i}", "update"]


@SLOW
@given(
    fault=st.sampled_from(list(FAULTS)),
    i=st.sampled_from([0, 1]),
    around=st.lists(legal_step(True), max_size=2),
    data=st.data(),
    growth_interval=st.sampled_from([1, 2000]),
)
def test_no_fault_is_missed(fault, i, around, data, growth_interval):
    words = [word for step in around for word in step]
    words += with_fault(data.draw(healthy_step(i)), fault, i)
    found, _ = alarms(words, growth_interval)
    assert found[:1] == [FAULTS[fault]], " ".join(words)


@SLOW
@given(loop=st.lists(healthy_step(0), min_size=2, max_size=4), data=st.data())
def test_a_missing_update_is_not_missed(loop, data):
    where = data.draw(st.integers(0, len(loop) - 2))
    loop[where].remove("update")
    found, raised = alarms([w for step in loop for w in step], 2000)
    assert raised is not None
    assert found[:1] == ["update_missing"]


@SLOW
@given(loop=st.lists(healthy_step(0), min_size=2, max_size=4), data=st.data())
def test_a_missing_zero_grad_is_not_missed(loop, data):
    where = data.draw(st.integers(1, len(loop) - 1))
    loop[where].remove("zero:0")
    found, _ = alarms([w for step in loop for w in step], 2000)
    assert found == ["no_zero_grad"]


@SLOW
@given(step=healthy_step(0), second=healthy_step(1), growth_interval=st.sampled_from([1, 2000]))
def test_an_update_between_two_optimizers_is_not_missed(step, second, growth_interval):
    backward = [w for w in second if not w.startswith(("step", "update", "unscale", "clip"))]
    backward = [w for w in backward if not w.startswith("measure")]
    rest = [w for w in second if w not in backward]
    found, _ = alarms([*backward, *step, *rest], growth_interval)
    assert found[:1] == ["update_before_step"]


@SLOW
@given(step=healthy_step(0), after=healthy_step(0))
def test_a_batch_abandoned_after_unscale_is_not_missed(step, after):
    abandoned = [w for w in step if w.startswith(("zero", "back"))] + ["unscale:0"]
    found, _ = alarms([*abandoned, *after], 2000)
    assert found[:1] == ["batch_abandoned"]
