"""One submission's process, watched from outside of its sandbox.

The supervisor starts the student's process, waits to be told to end it, and ends it earlier if its
memory runs over. It learns that the controller is gone in the same way as that it is done: its end
of the socket falls silent. Ending is simple, since the student's process is number 1 of its
process namespace: when it goes, the kernel takes along all that it started, detached or not.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from mptutor.grading.child import serve, silence
from mptutor.grading.limits import Limits

if TYPE_CHECKING:
    from mptutor.grading.sandbox_linux import Trees, View

_LOOK_EVERY_S = 0.1


@dataclass(frozen=True)
class Order:
    """What a supervisor needs to know. ``visible`` is ``None`` for a trusted student."""

    limits: Limits
    visible: tuple[str, ...] | None = None
    hidden: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the order as text that `from_json` reads."""
        order = {"limits": vars(self.limits), "visible": self.visible, "hidden": self.hidden}
        return json.dumps(order)

    @classmethod
    def from_json(cls, text: str) -> Order:
        """Read what `to_json` wrote."""
        order = json.loads(text)
        visible = order["visible"]
        return cls(
            Limits(**order["limits"]),
            None if visible is None else tuple(visible),
            tuple(order["hidden"]),
        )


def supervise(order: Order, talk: socket.socket, hold: socket.socket) -> None:
    """Start a student's process on ``talk``, end it at the first sign from ``hold``, and report.

    The report is one line of JSON on ``hold``: ``{"refused": TEXT}`` if there is no sandbox to be
    had, else what the process used and how it ended.
    """
    os.setsid()
    try:
        child = _start(order, talk, hold)
    except OSError as error:
        hold.sendall(json.dumps({"refused": error.strerror or str(error)}).encode())
        return
    talk.close()
    over = _watch(order, hold)
    _kill(child, sandboxed=order.visible is not None)
    _, status, usage = os.wait4(child, 0)
    report = {
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 3),
        "peak_bytes": _peak_bytes(usage),
        "end": "memory" if over else _end(status),
    }
    hold.sendall(json.dumps(report).encode())


def _start(order: Order, talk: socket.socket, hold: socket.socket) -> int:
    """Fork the student's process and wait until it is locked in.

    Raises
    ------
    OSError
        If it could not be.
    """
    if order.visible is None:
        child = os.fork()
        return child or _be_trusted_student(order, talk, hold)

    from mptutor.grading.sandbox_linux import View, enter

    view = View(order.visible, order.hidden)
    trees = enter(view)
    outcome, say = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(outcome)
        hold.close()
        _be_student(order, view, trees, talk, say)
    os.close(say)
    for tree in trees.values():
        os.close(tree)
    with os.fdopen(outcome, "rb") as pipe:
        complaint = pipe.read()
    if complaint != b"locked":
        os.waitpid(child, 0)
        raise OSError(0, complaint.decode() or "the process ended before it was locked in")
    return child


def _be_student(order: Order, view: View, trees: Trees, talk: socket.socket, say: int) -> NoReturn:
    from mptutor.grading.sandbox_linux import lock

    # A signal to a process group crosses namespaces: out of the supervisor's.
    os.setsid()
    try:
        lock(view, trees, order.limits)
    except BaseException as error:
        os.write(say, str(error).encode())
        os._exit(1)
    os.write(say, b"locked")
    os.close(say)
    _answer_on(talk)


def _be_trusted_student(order: Order, talk: socket.socket, hold: socket.socket) -> NoReturn:
    hold.close()
    os.setsid()
    order.limits.apply(count_processes=False)
    _answer_on(talk)


def _answer_on(talk: socket.socket) -> NoReturn:
    silence()
    try:
        with talk.makefile("rb") as requests, talk.makefile("wb") as replies:
            serve(requests, replies)
    finally:
        os._exit(0)


def _watch(order: Order, hold: socket.socket) -> bool:
    """Wait for a sign on ``hold``; return True if the memory ran over before one came."""
    while True:
        ready, _, _ = select.select([hold], [], [], _LOOK_EVERY_S)
        if ready:
            return False
        if order.visible is not None and _memory_bytes() > order.limits.memory_bytes:
            return True


def _memory_bytes() -> int:
    """Return what all processes of the sandbox hold, whose ``/proc`` is this process's too.

    Resident size is quick to read and counts what processes share once for each. Only if that
    comes close is the proportional size asked for, which takes the kernel longer to find.
    """
    resident = sum(int(_read(pid, "statm").split()[1]) for pid in _processes())
    if resident * resource.getpagesize() < 768 << 20:
        return 0
    return sum(_private_kib(_read(pid, "smaps_rollup")) for pid in _processes()) * 1024


def _processes() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()]


def _read(pid: str, name: str) -> str:
    try:
        return Path("/proc", pid, name).read_text()
    except OSError:  # it has ended meanwhile
        return "0 0"


def _private_kib(rollup: str) -> int:
    """Return the proportional size without what is mapped from files."""
    kib = {line.split()[0]: int(line.split()[1]) for line in rollup.splitlines()[1:]}
    return kib.get("Pss_Anon:", 0) + kib.get("Pss_Shmem:", 0)


def _kill(child: int, sandboxed: bool) -> None:
    os.kill(child, signal.SIGKILL)
    if not sandboxed:
        # What the student started in its own session goes too, what detached itself does not.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)


def _peak_bytes(usage: resource.struct_rusage) -> int:
    """Return the largest resident size, less what it was born with."""
    unit = 1 if sys.platform == "darwin" else 1024
    born_with = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return max(0, usage.ru_maxrss - born_with) * unit


def _end(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit {os.WEXITSTATUS(status)}"
