"""Every limit, approached gently: just past it, never far."""

import pytest

from mptutor.grading.channel import NoReply
from tests.grading.exercise01 import LIMITS, sleepers

FORK = """
import os, time
children = 0
try:
    while children < 2 * {processes}:
        if os.fork() == 0:
            time.sleep(3)
            os._exit(0)
        children += 1
except BlockingIOError:
    pass
assert children < {processes}, children
"""


def test_processes(run_cell):
    assert run_cell(FORK.format(processes=LIMITS.processes)) is None


def test_memory_of_one_process_ends_in_a_memory_error(run_cell):
    size = LIMITS.memory_bytes + (64 << 20)
    assert "MemoryError" in run_cell(f"x = bytearray({size})")
    assert "RuntimeError" in run_cell(f"import torch; torch.ones({size // 4})")
    assert run_cell(f"x = bytearray({LIMITS.memory_bytes // 4})") is None


def test_memory_of_several_processes_ends_the_submission(start):
    share = LIMITS.memory_bytes // 3
    source = f"""
import os, time
for _ in range(4):
    if os.fork() == 0:
        x = bytearray(b"x") * {share}
        time.sleep(5)
        os._exit(0)
time.sleep(5)
"""
    with start() as student:
        with pytest.raises(NoReply, match="ended"):
            student.ask({"run": source, "name": "cell 1", "seconds": 4}, 4.5)
        assert student.end().end == "memory"


def test_memory_in_files_counts(run_cell):
    source = f"""
for i in range(100):
    with open(f"/tmp/{{i}}", "wb") as file:
        file.write(bytes({LIMITS.file_bytes // 2}))
"""
    assert "No space left" in run_cell(source)


def test_size_of_a_file(run_cell):
    source = f"open('/tmp/x', 'wb').write(bytes({LIMITS.file_bytes + 4096}))"
    assert "File too large" in (run_cell(source) or "File too large, cut short")
    check = f"""
file = open("/tmp/x", "wb", buffering=0)
written = sum(file.write(bytes(1 << 20)) for _ in range({LIMITS.file_bytes >> 20}))
file.write(b"x")
"""
    assert "File too large" in run_cell(check)


def test_open_files(run_cell):
    assert "Too many open files" in run_cell("files = [open('/dev/null') for _ in range(300)]")


@pytest.mark.parametrize("call", ["memfd_create('x')"])
def test_memory_that_no_limit_counts(run_cell, call):
    assert "not permitted" in run_cell(f"import os; os.{call}")


def test_time_is_a_cells_own(start):
    with start() as student:
        reply = student.ask({"run": "while True: pass", "name": "cell 1", "seconds": 0.3}, 2)
        assert reply["late"] is True
        reply = student.ask({"run": "x = 1", "name": "cell 2", "seconds": 0.3}, 2)
        assert reply == {"error": None, "late": False}


def test_time_cannot_be_argued_with(start):
    source = """
import signal
signal.signal(signal.SIGALRM, signal.SIG_IGN)
while True:
    try:
        while True: pass
    except BaseException: pass
"""
    with start() as student, pytest.raises(NoReply, match="time"):
        student.ask({"run": source, "name": "cell 1", "seconds": 0.3}, 0.8)


def test_nothing_outlives_a_submission(start):
    source = """
import subprocess, sys
sleeper = "import time; time.sleep(30 * 3.14159)"
subprocess.Popen([sys.executable, "-c", sleeper], start_new_session=True)
"""
    with start() as student:
        assert student.ask({"run": source, "name": "cell 1", "seconds": 2}, 3)["error"] is None
        assert sleepers()
    assert not sleepers()


def test_the_length_of_a_reply(start):
    source = f"""
import os
for descriptor in range(3, 30):
    try:
        os.write(descriptor, b"x" * {LIMITS.reply_bytes + 1})
    except OSError:
        pass
"""
    with start() as student, pytest.raises(NoReply, match="output"):
        student.ask({"run": source, "name": "cell 1", "seconds": 5}, 6)


def test_the_parts_of_a_reply(start):
    source = """
import os
for descriptor in range(3, 30):
    try:
        os.write(descriptor, b'{"x": [' + b"[]," * 600_000 + b"[]]}")
    except OSError:
        pass
"""
    with start() as student, pytest.raises(NoReply, match="output"):
        student.ask({"run": source, "name": "cell 1", "seconds": 5}, 6)
