"""What lesson 09's checks rest on: bytes that the meter confirms, and a device that is fair."""

import pytest
import torch

from mptutor.checks import find_task
from mptutor.checks.probes_speed import QueueDevice, drive_quick_loop, time_steps
from mptutor.checks.task import same
from mptutor.hardware import MemoryMeter
from mptutor.models import mlp

pytestmark = pytest.mark.lesson09


def measured(widths, batch, amp):
    net = mlp(widths)
    with MemoryMeter(net) as meter, torch.autocast("cpu", torch.bfloat16, enabled=amp):
        logits = net(torch.zeros(batch, widths[0]))
    del logits
    return meter.saved_bytes


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_expected_bytes_are_those_that_autograd_saves(seed):
    task = find_task("09.1")
    for case in task.cases(seed):
        assert task.reference(*case.inputs) == measured(*case.inputs), case.label


def test_no_two_beliefs_about_bytes_are_the_same():
    task = find_task("09.1")
    answers = [
        [belief.believes(*case.inputs) for case in task.cases(0)]
        for belief in task.misunderstandings
    ]
    for i, one in enumerate(answers):
        assert not any(same(one, other) for other in answers[:i])
        assert any(
            got != task.reference(*case.inputs)
            for got, case in zip(one, task.cases(0), strict=True)
        )


def a_device(**options):
    usual = {"work_ms": 10.0, "launch_ms": 0.1, "first_ms": [500.0], "disturbed": 3, "every": 8}
    return QueueDevice(**{**usual, "seed": 0, **options})


def test_the_device_queues_and_answers_when_it_is_done():
    device = a_device()
    device.step()
    assert device.now() == pytest.approx(0.1)
    device.wait()
    assert device.now() == pytest.approx(500.1)
    assert [busy for _, busy, _ in device.readings] == [True, False]


def test_one_step_in_eight_is_disturbed():
    device = a_device()
    laps = []
    for _ in range(24):
        start = device.now()
        device.step()
        device.wait()
        laps.append(device.now() - start)
    assert laps[0] == pytest.approx(500.1)
    assert [i for i, ms in enumerate(laps) if 50 < ms < 200] == [3, 11, 19]


def test_code_that_runs_in_circles_is_stopped():
    def forever(step, wait, now):
        while True:
            now()

    options = {"work_ms": 1.0, "launch_ms": 0.1, "first_ms": [], "disturbed": 0, "every": 8}
    with pytest.raises(RuntimeError, match="more than 100000 steps and readings"):
        time_steps(forever, [{**options, "seed": 0}])


def test_every_single_step_is_disturbed_on_one_of_the_devices():
    cases = find_task("09.2").cases(5)
    assert {case.inputs[0]["disturbed"] for case in cases} == set(range(8))


def test_reading_after_the_last_step_is_no_wait():
    def late(p):
        losses = []
        for x, y in p.batches:
            loss = torch.nn.functional.cross_entropy(
                p.model["head"](p.model["widen"](x)).mean(1), y
            )
            p.scaler.scale(loss).backward()
            p.scaler.step(p.optimizer)
            p.scaler.update()
            losses.append(loss.detach())
        return [loss.item() for loss in losses]

    told = drive_quick_loop(late, ["reader", {"steps": 3}])
    assert told["values read back"] == told["questions asked"] == 0
    assert told["casts of weights"] == 0 and told["layers in"] == ["float32"]
    assert len(told["losses"]) == told["steps with the scaler"] == 3
