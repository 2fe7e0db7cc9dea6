"""No process is left behind, however the run ends."""

import os
import signal
import subprocess
import sys
import time

import pytest

from mptutor.experiments import two_processes
from mptutor.experiments.two_processes import ProcessError, launch

pytestmark = [
    pytest.mark.lesson13,
    pytest.mark.skipif(os.name != "posix", reason="looks for processes with ps"),
]

WORKERS = "tests.two_process_workers"


def running(function):
    """Return launchers and workers of a function that are alive; a zombie is not."""
    listing = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,stat=,args="], capture_output=True, text=True, check=True
    ).stdout
    lines = [line for line in listing.splitlines() if f"{WORKERS}:{function} " in line]
    return [int(line.split()[0]) for line in lines if not line.split()[1].startswith("Z")]


def wait_for(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.2)


def wait_until_workers_run(function):
    wait_for(lambda: len(running(function)) >= 3, seconds=90)  # a launcher and two


def wait_until_none_is_left(function):
    wait_for(lambda: not running(function), seconds=10)


def test_rank_0_answers_and_all_end():
    assert launch(f"{WORKERS}:names_itself") == "rank 0 of 2"
    wait_until_none_is_left("names_itself")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("one_fails", "A process failed: ValueError: rank 1 has no luck"),
        ("one_fails_and_is_missed", "A process failed: ValueError: rank 1 has no luck"),
        ("one_is_killed", "status"),
    ],
)
def test_one_fails_and_the_other_does_not_wait_for_it(function, said):
    with pytest.raises(ProcessError, match=said):
        launch(f"{WORKERS}:{function}")
    wait_until_none_is_left(function)


def test_time_is_over():
    function = "sleeps_soundly"
    with pytest.raises(ProcessError, match=r"not done after 15 s and were ended"):
        launch(f"{WORKERS}:{function}", timeout_s=15)
    wait_until_none_is_left(function)


def test_it_is_stopped_when_asked():
    function = "sleeps_soundly"
    with pytest.raises(ProcessError, match="stopped before they were done"):
        launch(f"{WORKERS}:{function}", stop=lambda: len(running(function)) >= 3)
    wait_until_none_is_left(function)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupt_or_the_death_of_the_starter_ends_all(sent):
    function = "sleeps_soundly"
    # What was started in the background, as tests may be, ignores interrupts from birth.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += f"from {launch.__module__} import launch\n"
    code += f"launch('{WORKERS}' ':{function}')"  # in two parts, or it would itself be counted
    starter = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    try:
        wait_until_workers_run(function)
        starter.send_signal(sent)
        _, said = starter.communicate(timeout=30)
        assert ("KeyboardInterrupt" in said) == (sent == signal.SIGINT)
        wait_until_none_is_left(function)
    finally:
        starter.kill()


def test_the_death_of_the_launcher_ends_the_workers():
    function = "sleeps_soundly"

    def kill_launcher():
        alive = running(function)
        if len(alive) < 3:
            return False
        os.kill(min(alive), signal.SIGKILL)
        return True

    with pytest.raises(ProcessError, match=r"stopped|ended"):
        launch(f"{WORKERS}:{function}", stop=kill_launcher)
    wait_until_none_is_left(function)


def test_where_no_process_can_be_started_it_says_so(monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(two_processes.subprocess, "Popen", refuse)
    with pytest.raises(ProcessError, match=r"No process can be started here: .*denied"):
        launch(f"{WORKERS}:names_itself")
