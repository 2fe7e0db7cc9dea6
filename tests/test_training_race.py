"""The training race without a browser: its buttons, its thread, and what it keeps."""

import re
import threading
from xml.etree import ElementTree

import pytest

from mptutor.data import load
from mptutor.experiments.race import Turn, race
from mptutor.experiments.recipes import AMP_FP16, FP32, NAIVE_FP16, RECIPES
from mptutor.experiments.tasks import adam, classify, shorten
from mptutor.experiments.training_result import EpochRecord
from mptutor.models import mlp
from mptutor.widgets import TrainingRace
from mptutor.widgets.race_picture import Lane, curves, standings

LIMIT_S = 60


@pytest.fixture(scope="module")
def task():
    """Twelve steps an epoch, of a millisecond each."""
    data = shorten(load("fashion-mnist-5k"), 128 * 12)
    return classify("small", data, lambda: mlp((784, 32, 10)), adam())


@pytest.fixture
def run(task):
    def run_small(*, recipes=(FP32, NAIVE_FP16, AMP_FP16), seeds=(0,), epochs=2, **options):
        return race(task, recipes, seeds=seeds, epochs=epochs, device="cpu", **options)

    return run_small


@pytest.fixture
def held(run):
    """A run that waits after its first turn until it is let go, and the events of both."""
    began, go = threading.Event(), threading.Event()

    def run_held(*, progress, **options):
        def tell(turn):
            progress(turn)
            began.set()
            assert go.wait(LIMIT_S)

        return run(progress=tell, **options)

    yield run_held, began, go
    go.set()


def pressable(figure):
    return {b.description: not b.disabled for b in (figure._start_button, figure._stop_button)}


# -- a cell, nobody clicks -------------------------------------------------------------------------


def test_a_result_that_is_asked_for_is_run(run):
    figure = TrainingRace(run)
    assert figure.state == "ready" and pressable(figure) == {"Start": True, "Stop": False}
    result = figure.result
    assert result.finished and result.recipes == ("FP32", "naive FP16", "AMP FP16")
    assert figure.state == "finished" and figure._bar.value == 1.0
    assert pressable(figure) == {"Start again": True, "Stop": False}
    assert figure.result is result and figure.complete() is result


def test_it_is_the_race_that_it_would_be_without_a_widget(run):
    mine, plain = TrainingRace(run).result, run(progress=None)
    assert [r.losses for r in mine.of("AMP FP16")] == [r.losses for r in plain.of("AMP FP16")]
    assert [r.epochs for r in mine.of("FP32")] == [r.epochs for r in plain.of("FP32")]


def test_options_are_passed_on(run):
    assert TrainingRace(run, recipes=[FP32], seeds=(1, 2), epochs=1).result.recipes == ("FP32",)


# -- buttons ---------------------------------------------------------------------------------------


def test_start_returns_at_once_and_stop_keeps_what_there_is(held):
    slow, began, go = held
    figure = TrainingRace(slow)
    figure._start_button.click()
    assert figure.state == "running" and pressable(figure) == {"Start": False, "Stop": True}
    figure._start_button.click()  # a second one changes nothing
    assert began.wait(LIMIT_S)
    figure._stop_button.click()
    assert figure._stop_button.disabled
    go.set()
    result = figure.result
    assert figure.state == "stopped" and not result.finished
    assert [len(run.losses) for run in result.runs] == [10, 0, 0]
    assert 0 < figure._bar.value < 1
    assert "is kept" in figure._status.value and figure.result is result


def test_a_stopped_race_can_be_run_whole(held):
    slow, began, go = held
    figure = TrainingRace(slow)
    figure.start()
    assert began.wait(LIMIT_S)
    figure.stop()
    go.set()
    stopped = figure.result
    whole = figure.complete()
    assert whole.finished and not stopped.finished and figure.result is whole
    assert figure.state == "finished"


def test_start_again_forgets_the_curves_of_before(run):
    figure = TrainingRace(run)
    first = figure.result
    figure._start_button.click()
    second = figure.result
    assert second is not first and len(figure._lanes) == 3
    assert [len(lane.losses) for lane in figure._lanes] == [24, 10, 24]


def test_an_interrupt_stops_the_race_and_returns_what_there_is(held, monkeypatch):
    slow, _, go = held
    figure = TrainingRace(slow)
    figure.start()
    wait = figure._ended.wait
    interrupts = iter([KeyboardInterrupt])

    def interrupted(timeout):
        go.set()
        for interrupt in interrupts:
            raise interrupt
        return wait(timeout)

    monkeypatch.setattr(figure._ended, "wait", interrupted)
    assert not figure.result.finished and figure.state == "stopped"


def test_what_the_run_raises_is_raised_where_the_result_is_asked_for():
    def fail(**options):
        raise ValueError("no such <data>")

    figure = TrainingRace(fail)
    with pytest.raises(ValueError, match="no such <data>"):
        _ = figure.result
    assert figure.state == "failed" and "ValueError: no such &lt;data&gt;" in figure._status.value
    assert pressable(figure)["Start again"]


# -- what is seen ----------------------------------------------------------------------------------


def test_the_curves_are_those_of_the_result(run):
    figure = TrainingRace(run, seeds=(0, 1))
    result = figure.result
    assert [(lane.recipe, lane.seed) for lane in figure._lanes] == [
        (r.recipe, r.seed) for r in result.runs
    ]
    for lane, one in zip(figure._lanes, result.runs, strict=True):
        assert lane.diverged_at_step == one.diverged_at_step
        assert lane.accuracy == one.last("accuracy")
        assert len(lane.losses) == len(one.losses)
    assert figure._figure.value.count('class="mpt-lane"') == 6 + 2 + 3  # crosses, keys
    assert "NaN at step 2" in figure._figure.value


def lane_of(recipe, losses, **turn):
    lane = Lane(recipe, 0)
    epoch = EpochRecord(1.0, {}, 0.8125, 2.0**16, 3, 0.0)
    told = {"step": len(losses), "steps": 40, "scale": 2.0**16, "skips": 3, "epoch": epoch}
    lane.take(Turn(recipe=recipe, seed=0, losses=tuple(losses), **{**told, **turn}))
    return lane


def cells(html):
    return [re.sub(r"<.*?>", "", cell).strip() for cell in re.findall(r"<td>(.*?)</td>", html)]


def test_the_standings_say_where_each_recipe_is():
    lanes = [
        lane_of("AMP FP16", [2.3, 1.5]),
        lane_of("naive FP16", [2.3, float("nan")], scale=1.0, skips=0, epoch=None),
        Lane("FP32", 0),
    ]
    html = standings(lanes)
    assert cells(html) == [
        *("0", "2 of 40", "1.5", "0.8125", "216", "3"),
        *("0", "2 of 40", "NaN at step 2", "–", "–", "–"),
        *("0", "–", "–", "–", "–", "–"),
    ]


@pytest.mark.parametrize("losses", [[], [float("inf")], [0.0], [1e-9, 2e5], [2.3] * 40])
def test_any_losses_can_be_drawn(losses):
    lanes = [lane_of(recipe, losses) for recipe in (*RECIPES, "a recipe <of mine>")]
    picture = ElementTree.fromstring(curves(lanes, 40))
    assert picture.attrib["role"] == "img" and "aria-label" in picture.attrib
    for path in picture.iter("path"):
        numbers = [float(n) for n in re.findall(r"-?\d+\.?\d*", path.attrib["d"])]
        assert all(-10 <= n <= 650 for n in numbers)
    ElementTree.fromstring(standings(lanes))


def test_a_lower_loss_lies_lower():
    picture = ElementTree.fromstring(curves([lane_of("FP32", [2.0, 1.0])], 2))
    (line,) = (path for path in picture.iter("path") if path.attrib["class"] == "mpt-lane")
    (_, first), (_, second) = (p.split() for p in line.attrib["d"][1:].split("L"))
    assert float(second) > float(first)


def test_what_a_page_without_a_kernel_shows(run):
    figure = TrainingRace(run)
    bundle = figure._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    assert "application/vnd.jupyter.widget-view+json" in data
    assert "press Start there" in data["text/html"] and "<svg" not in data["text/html"]
    _ = figure.result
    bundle = figure._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    assert "<svg" in data["text/html"] and "100% run, finished" in data["text/plain"]
