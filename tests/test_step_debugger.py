"""The step debugger's runs against loops written out with torch; its view against the model."""

import json
import math
from dataclasses import asdict
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import clip_grad_norm_

from mptutor.simulate import simulate_amp
from mptutor.widgets.step_debugger import StepDebugger
from mptutor.widgets.step_loops import LOOPS, MISTAKES, RIGHT
from mptutor.widgets.step_recording import load_recording, pack, unpack
from mptutor.widgets.step_runs import BATCHES, SCALES, _batches, make_model, run_loop
from tests.javascript import evaluate

pytestmark = pytest.mark.lesson10

SOURCE = StepDebugger._esm
SITUATIONS = list(product(BATCHES, SCALES))


def recorded(loop, batch="healthy", scale=2.0**16):
    return unpack(load_recording(), LOOPS[loop], batch, scale)


def movements(run):
    """How far each step moves the weights."""
    return [[s.weights.moved for s in run.stops if s.step == step][-1:] for step in (0, 1)]


def events(run, step):
    return [stop.event for stop in run.stops if stop.step == step]


# -- the loops -------------------------------------------------------------------------------------


def test_loops_differ_and_the_known_mistakes_are_among_them():
    assert len({loop.calls for loop in LOOPS.values()}) == len(LOOPS) > 40
    assert all(LOOPS[loop.name] is loop for loop in (RIGHT, *MISTAKES))


def test_any_call_after_the_forward_pass_can_be_moved_doubled_and_left_out():
    every = {loop.calls for loop in LOOPS.values()}
    calls = RIGHT.calls
    for i in range(4, len(calls)):
        rest = calls[:i] + calls[i + 1 :]
        assert rest in every
        assert (*calls[:i], *calls[i:][:1], *calls[i:]) in every
        assert all((*rest[:j], calls[i], *rest[j:]) in every for j in range(4, len(calls)))


# -- the recording, against torch ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "scale"), [("healthy", 2.0**16), ("overflowing", 2.0**16), ("tiny", 1.0)]
)
def test_the_recording_is_what_happens(batch, scale):
    for loop in LOOPS.values():
        fresh = run_loop(loop, batch, scale)
        fresh = unpack(pack({(loop.name, batch, scale): fresh}), loop, batch, scale)
        run = recorded(loop.name, batch, scale)
        assert run.error == fresh.error, loop.name
        for ours, theirs in zip(run.stops, fresh.stops, strict=True):
            assert same(asdict(ours), asdict(theirs)), (loop.name, ours, theirs)


def same(a, b):
    """Equal, numbers to within what another machine's order of additions may change."""
    if isinstance(a, dict) and isinstance(b, dict):
        return all(same(a[key], b[key]) for key in a)
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or a == pytest.approx(b, rel=5e-3, abs=1e-12)
    return a == b


def train(batch, scale, step_by_hand):
    """Two steps by a loop that is written out here; returns how far each moves the weights."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    moved = []
    with simulate_amp():
        for x, y in _batches()[batch]:
            before = [p.detach().clone() for p in model.parameters()]
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(model(x), y)
            step_by_hand(model, optimizer, scaler, loss)
            pairs = zip(model.parameters(), before, strict=True)
            moved.append(math.sqrt(sum((p - b).square().sum().item() for p, b in pairs)))
    return moved


def in_the_right_order(model, optimizer, scaler, loss):
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()


def clipping_first(model, optimizer, scaler, loss):
    scaler.scale(loss).backward()
    clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()


def updating_first(model, optimizer, scaler, loss):
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), 1.0)
    scaler.update()
    scaler.step(optimizer)


@pytest.mark.parametrize(("batch", "scale"), SITUATIONS)
@pytest.mark.parametrize(
    ("name", "loop"), [("right order", in_the_right_order), ("no unscale_", clipping_first)]
)
def test_the_weights_move_as_in_a_loop_written_by_hand(name, loop, batch, scale):
    by_hand = train(batch, scale, loop)
    for (ours,), theirs in zip(movements(recorded(name, batch, scale)), by_hand, strict=True):
        assert ours == pytest.approx(theirs, rel=5e-3, abs=1e-12)


def test_torch_raises_what_the_recording_says():
    with pytest.raises(RuntimeError) as raised:
        train("healthy", 2.0**16, updating_first)
    assert recorded("update before step").error == f"RuntimeError: {raised.value}"
    half = make_model().half()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(half(torch.ones(1, 16).half()).sum()).backward()
    with pytest.raises(ValueError, match="FP16") as refused:
        scaler.unscale_(torch.optim.SGD(half.parameters()))
    assert recorded("model.half()").error == f"ValueError: {refused.value}"


def test_in_the_right_order_the_scale_changes_nothing_but_which_steps_run():
    at = {scale: recorded("right order", "healthy", scale) for scale in SCALES}
    assert events(at[2.0**20], 0)[-3:] == ["checked", "skipped", "ran"]
    assert movements(at[2.0**10]) == movements(at[2.0**16])
    tiny = {scale: movements(recorded("right order", "tiny", scale)) for scale in SCALES}
    assert tiny[1.0] == [[0], [0]] and tiny[2.0**16][0][0] > 0


# -- what the lesson asks --------------------------------------------------------------------------


def test_the_goal_can_be_reached():
    """Silent loops that move the weights less than a ten-thousandth as far."""
    reference = movements(recorded("right order"))[0][0]
    reached = [
        name
        for name in LOOPS
        if (run := recorded(name)).error == ""
        and "skipped" not in events(run, 0)
        and 0 < movements(run)[0][0] < reference / 10_000
    ]
    assert {"clip before unscale_", "no unscale_"} <= set(reached)


def test_without_zero_grad_a_skipped_step_is_never_recovered_from():
    run = recorded("no zero_grad", "overflowing")
    assert "skipped" in events(run, 0) and "skipped" in events(run, 1)
    assert run.stops[-1].scaling.scale == 2.0**14
    right = recorded("right order", "overflowing")
    assert "skipped" in events(right, 0) and "stepped" in events(right, 1)


# -- setting the traits ----------------------------------------------------------------------------


@pytest.mark.parametrize("loop", LOOPS)
def test_every_loop_can_be_looked_at_everywhere(loop):
    figure = StepDebugger(loop)
    for figure.batch, figure.scale in ((b, f"{s:.0f}") for b, s in SITUATIONS):
        run = figure.result.run
        for figure.stop in (0, len(run.stops) - 1):
            assert figure.result.problem == ""
            assert same(asdict(figure.result.now), asdict(run.stops[figure.stop]))
        assert figure.describe().startswith(f"{loop}, {figure.batch} batch, scale {figure.scale}")
        assert (run.error in figure.describe()) and figure.picture().count("<text") > 20


@pytest.mark.parametrize("stop", [-1, 20])
def test_a_stop_that_does_not_exist_gets_a_sentence(stop):
    figure = StepDebugger(stop=stop)
    assert figure.result.problem == (
        f"There is no stop {stop}; allowed is 0 to 19. Shown is the nearest."
    )
    assert figure.describe() == figure.result.problem
    assert figure.result.stop in (0, 19) and "nearest" in figure.picture()


def test_choices_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="loop is 'any'; allowed are right order, clip before"):
        StepDebugger("any")
    with pytest.raises(ValueError, match="batch is 'b'; allowed are healthy, overflowing, tiny"):
        StepDebugger(batch="b")
    with pytest.raises(ValueError, match="scale is '2'; allowed are 1, 1024, 65536, 1048576"):
        StepDebugger(scale=2)


def test_the_state_is_small():
    assert len(json.dumps(StepDebugger().state(), allow_nan=False)) < 200_000


# -- the view shows what the model shows -----------------------------------------------------------

EVERYWHERE = [(loop, batch, scale) for loop in LOOPS for batch, scale in SITUATIONS]


def views(expression, states):
    """Evaluate an expression of ``view`` and ``state`` in every state."""
    script = f"""asked.map((position) => {{
      const state = {{ ...position, recording }};
      const view = explore(state);
      return {expression};
    }})"""
    return evaluate(SOURCE, script, asked=states, recording=StepDebugger().recording)


def state(loop="right order", batch="healthy", scale=2.0**16, stop=0):
    return {"loop": loop, "batch": batch, "scale": f"{scale:.0f}", "stop": stop}


def test_the_view_unpacks_every_run():
    shown = """[view.error, view.stops.map(({ step, line, event, gradients, weights, scaling }) =>
      [step, line, event, gradients && gradients.norm, weights.moved, scaling.scale])]"""
    seen = views(shown, [state(*where) for where in EVERYWHERE])
    for where, (error, stops) in zip(EVERYWHERE, seen, strict=True):
        run = recorded(*where)
        assert error == run.error
        for stop, (step, line, event, norm, moved, scale) in zip(run.stops, stops, strict=True):
            assert (step, line, event, scale) == (
                *(stop.step, stop.line, stop.event),
                stop.scaling.scale,
            )
            assert same(stop.weights.moved, float(moved))
            assert (norm is None) == (stop.gradients is None)
            assert norm is None or same(stop.gradients.norm, float(norm))


def test_there_is_a_sentence_for_every_stop():
    lines = "view.stops.map((_, stop) => sentence(explore({ ...state, stop })))"
    for said in views(lines, [state(*where) for where in EVERYWHERE]):
        for text in said:
            assert text.endswith(".") and "undefined" not in text and "null" not in text, text


def test_the_view_says_what_happens():
    said = views(
        "sentence(view)",
        [
            *(state(stop=stop) for stop in (3, 4, 5, 6, 8)),
            state("no unscale_", stop=6),
            state("right order", "overflowing", stop=5),
            state("right order", "overflowing", stop=8),
            state("no zero_grad", "overflowing", stop=12),
            state("optimizer.step()", "overflowing", stop=7),
            state("unscale_ twice", stop=6),
        ],
    )
    norm = recorded("right order").stops[5].gradients.norm
    assert said[1].endswith(", 2¹⁶ times too large.")
    assert said[2] == (
        f"Step 1, unscale_: divided by 2¹⁶, the gradient norm is {norm:.4g}; "
        "no inf or NaN was found."
    )
    assert said[3] == f"Step 1, clip: the norm was {norm:.4g} and is 1."
    assert said[4] == "Step 1, step: the optimizer runs. The weights move by 0.1."
    assert said[5].startswith("Step 1, step: no unscale_ since the last update, so step divides by")
    assert said[6].endswith("inf or NaN was found and noted.")
    assert said[7] == "Step 1, step: skipped. The weights stay as they are."
    assert said[8].startswith("Step 2, backward: added to the gradients that were there, ")
    assert said[9] == "Step 1, step: the optimizer runs and writes NaN into the weights."
    assert said[10] == (
        "Step 1, unscale_: RuntimeError: unscale_() has already been called on this optimizer "
        "since the last update()."
    )


def test_the_buttons_change_the_present_call():
    """Every button at every call leads to the loop with just those calls, or nowhere."""
    where = [state(stop=stop) for stop in range(10)]
    asked = "Object.keys(CHANGES).map((name) => changed(view, name, recording))"
    for position, answers in zip(where, views(asked, where), strict=True):
        line = recorded("right order").stops[position["stop"]].line
        calls = list(RIGHT.calls)
        wanted = {
            "earlier": line > 0 and swapped(calls, line - 1),
            "later": line + 1 < len(calls) and swapped(calls, line),
            "twice": [*calls[: line + 1], *calls[line:]],
            "out": [*calls[:line], *calls[line + 1 :]],
        }
        for after, answer in zip(wanted.values(), answers, strict=True):
            known = [loop for loop in LOOPS.values() if list(loop.calls) == after]
            assert (answer is None) == (not known)
            assert answer is None or answer["loop"] == known[0].name


def swapped(calls, i):
    return [*calls[:i], calls[i + 1], calls[i], *calls[i + 2 :]]


def test_moved_there_and_back_the_loop_is_right_again():
    back = "changed(view, 'later', recording)"
    (answer,) = views(back, [state("clip before unscale_", stop=5)])
    assert answer == {"loop": "right order", "stop": 6}


def test_another_loop_is_entered_at_the_same_call():
    """Where its run does not come so far, at its end."""
    to = "changedTo(state, { loop: 'no update' }).stop"
    assert views(to, [state(stop=0), state(stop=8), state(stop=16)]) == [0, 8, 14]


def test_the_view_tells_the_damage():
    told = views(
        "damage(view)",
        [
            state(),
            state("clip before unscale_"),
            state("optimizer.step(), no unscale_"),
            state("optimizer.step()", "overflowing"),
            state("no update"),
        ],
    )
    assert [row["ratio"] for row in told[0]] == [1, 1]
    assert told[1][0]["ratio"] == pytest.approx(2.0**-16, rel=1e-2)
    assert told[2][0]["ratio"] > 10_000 and told[2][0]["outcome"] == "stepped, then raises"
    assert told[2][1]["outcome"] == "never comes" and told[2][1]["scale"] is None
    assert told[3][0]["moved"] == "nan"
    assert told[4][1]["outcome"] == "raises" and told[4][1]["moved"] == 0
