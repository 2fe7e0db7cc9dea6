"""Where a student's code runs: behind which walls.

``namespaces`` is the default: the Linux sandbox, a fresh copy of a warm parent for each submission.
``docker`` and ``podman`` start a container for each, on any system that has one of them, at the
price of importing torch every time. ``trusted`` has no walls at all and must be asked for.

None of them is a fallback for another: a grader that quietly did without walls would do so on the
day it matters.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mptutor.grading.channel import Channel, NoReply
from mptutor.grading.examine import Start, Usage
from mptutor.grading.kit import kit, view_of
from mptutor.grading.limits import Limits
from mptutor.grading.supervise import Order

NAMES = ("namespaces", "docker", "podman", "trusted")

_CHOICES = (
    "Choose where the students' code is to run: --backend docker or --backend podman puts each "
    "submission in a container without network; --trust-students runs it here with your rights."
)
_NOBODY = 65534
_CONTAINER_START_S = 120
_NO_OTHER_COPY = """
import os, sys
assert not [p for p in sys.path if p != "/kit" and os.path.exists(os.path.join(p, "mptutor"))]
del os, sys
"""
_TORCH_BYTES = 1 << 30  # what a process holds once it has imported torch, with room to spare
_PASSED_ON = ("LD_LIBRARY_PATH", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


class NoSandbox(Exception):
    """There is no sandbox to be had; the text says why and what can be done."""


@contextmanager
def open_backend(
    name: str,
    limits: Limits,
    *,
    preload: Sequence[str] = (),
    withheld: Sequence[str] = (),
    image: str = "mptutor-grading",
    container_options: Sequence[str] = (),
) -> Iterator[Start]:
    """Make a backend ready and yield what starts a student's process in it.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    limits : Limits
        What each process may use.
    preload : sequence of str
        Modules that the warm parent imports ahead, as far as they are not withheld.
    withheld : sequence of str
        Modules of this package that students' code must do without.
    image : str
        The container image, for ``docker`` and ``podman``. It holds Python and torch, and nothing
        of this package.
    container_options : sequence of str
        Further options for their ``run``, such as ``"--gpus=all"``.

    Raises
    ------
    NoSandbox
        If this machine does not have it.
    ValueError
        If there is no such backend.
    """
    if name not in NAMES:
        raise ValueError(f"backend is {name!r}; allowed are {', '.join(NAMES)}")
    _require(name)
    with kit(withheld) as folder:
        if name in ("docker", "podman"):
            engine = Engine(name, image, tuple(container_options))
            yield lambda: _ended(Container(engine, folder, limits))
            return
        view = view_of(folder)
        order = (
            Order(limits)
            if name == "trusted"
            else Order(limits, visible=view.visible, hidden=view.hidden)
        )
        parent = WarmParent(folder, order, preload)
        try:
            yield lambda: _ended(parent.start())
        finally:
            parent.close()


def _require(name: str) -> None:
    if not hasattr(os, "fork"):
        raise NoSandbox(f"Grading needs fork(). Windows has it inside WSL 2, and there: {_CHOICES}")
    if name == "namespaces" and sys.platform != "linux":
        raise NoSandbox(f"The sandbox needs Linux; this is {sys.platform}. {_CHOICES}")
    if name in ("docker", "podman") and shutil.which(name) is None:
        raise NoSandbox(f"There is no {name} on this machine.")


@contextmanager
def _ended(student: Copy | Container) -> Iterator[Copy | Container]:
    try:
        yield student
    finally:
        student.end()


class WarmParent:
    """The process that is copied for each submission (`mptutor.grading.warm`). Thread-safe."""

    def __init__(self, kit_folder: Path, order: Order, preload: Sequence[str]) -> None:
        self._folder, self._order, self._preload = kit_folder, order, preload
        self._lock = threading.Lock()
        self._launch()

    def _launch(self) -> None:
        self._control, theirs = socket.socketpair()
        descriptor = str(theirs.fileno())
        with theirs:
            program = [sys.executable, "-m", "mptutor.grading.warm"]
            self._process = subprocess.Popen(
                [*program, descriptor, self._order.to_json(), *self._preload],
                cwd=self._folder,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the controller
            )
        if self._control.recv(4) != b"warm":
            self.close()
            raise NoSandbox("The warm parent did not start; what it printed stands above.")

    def start(self) -> Copy:
        """Start a student's process."""
        with self._lock:
            if self._process.poll() is not None:
                self._launch()
            talk, their_talk = socket.socketpair()
            hold, their_hold = socket.socketpair()
            with their_talk, their_hold:
                descriptors = [their_talk.fileno(), their_hold.fileno()]
                socket.send_fds(self._control, [b"+"], descriptors)
        return Copy(talk, hold, self._order.limits)

    def close(self) -> None:
        """Hang up, and wait until the process is gone."""
        self._control.close()
        self._process.wait()


class Copy(Channel):
    """A student's process copied from the warm parent, and the line to its supervisor."""

    def __init__(self, talk: socket.socket, hold: socket.socket, limits: Limits) -> None:
        super().__init__(talk, limits.reply_bytes)
        self._talk, self._hold = talk, hold
        self._report: dict[str, Any] | None = None

    def end(self) -> Usage:
        """Have the supervisor end the process, and return its report.

        Raises
        ------
        NoSandbox
            If the process never started, because the kernel refused.
        """
        if self._report is None:
            with self._talk, self._hold, self._hold.makefile("rb") as reader:
                with suppress(OSError):
                    self._hold.shutdown(socket.SHUT_WR)  # the sign the supervisor waits for
                self._report = json.loads(reader.read() or b'{"end": "lost"}')
        if "refused" in self._report:
            why = self._report["refused"]
            raise NoSandbox(f"The kernel refused a sandbox ({why}). {_CHOICES}")
        return Usage(**self._report)


@dataclass(frozen=True)
class Engine:
    """A container engine, ``docker`` or ``podman``, and what it runs."""

    program: str
    image: str
    options: tuple[str, ...] = ()

    def command(self, name: str, kit_folder: Path, limits: Limits) -> list[str]:
        """Return the command that runs a student's process, on its own standard input."""
        memory_bytes = limits.memory_bytes + _TORCH_BYTES
        environment = {**_environment(), "PYTHONPATH": "/kit"}
        del environment["PATH"]  # the image's
        return [
            *(self.program, "run", "--rm", "--interactive", f"--name={name}"),
            *("--network=none", "--read-only", "--cap-drop=ALL", f"--user={_NOBODY}:{_NOBODY}"),
            *("--security-opt=no-new-privileges", "--ipc=private"),
            *(f"--memory={memory_bytes}", f"--memory-swap={memory_bytes}"),
            *(f"--pids-limit={limits.processes}", "--cpus=1"),
            *("--ulimit=core=0:0", "--ulimit=nproc=4096:4096"),  # counted over all containers
            f"--ulimit=nofile={limits.open_files}:{limits.open_files}",
            f"--ulimit=fsize={limits.file_bytes}:{limits.file_bytes}",
            f"--tmpfs=/tmp:rw,nosuid,nodev,size={limits.disk_bytes}",
            f"--volume={kit_folder}:/kit:ro",
            *(f"--env={name}={value}" for name, value in environment.items()),
            *("--workdir=/tmp", "--entrypoint=python", *self.options, self.image),
            *("-m", "mptutor.grading.child"),
        ]


class Container(Channel):
    """A student's process in a container of its own."""

    def __init__(self, engine: Engine, kit_folder: Path, limits: Limits) -> None:
        self._engine, self._name = engine.program, f"mptutor-{uuid.uuid4().hex}"
        self._talk, theirs = socket.socketpair()
        super().__init__(self._talk, limits.reply_bytes)
        with theirs:
            self._process = subprocess.Popen(
                engine.command(self._name, kit_folder, limits),
                cwd=kit_folder,  # podman's monitor leaves a file where it stands
                stdin=theirs,
                stdout=theirs,
                stderr=subprocess.PIPE,
            )
        self._wait_until_ready()

    def end(self) -> Usage:
        """Remove the container with all that runs in it."""
        subprocess.run(
            [self._engine, "rm", "--force", self._name], capture_output=True, check=False
        )
        self._process.kill()
        self._process.wait()
        self._talk.close()
        return Usage()

    def _wait_until_ready(self) -> None:
        """Wait for torch to be imported, at nobody's expense, and look around.

        Raises
        ------
        NoSandbox
            If the engine does not run the container, or the image holds this package.
        """
        look = {"run": _NO_OTHER_COPY, "name": "a look around", "seconds": _CONTAINER_START_S}
        try:
            error = self.ask(look, _CONTAINER_START_S)["error"]
        except NoReply:
            self.end()
            said = self._process.stderr.read().decode(errors="replace").strip() or "nothing"
            raise NoSandbox(f"{self._engine} ran no container; it said: {said[-500:]}") from None
        if error:
            self.end()
            raise NoSandbox(
                "The image holds this package, so students' code could read the answers. Take one "
                "with Python and torch alone, as deploy/Containerfile makes with --target torch."
            )


def _environment() -> dict[str, str]:
    """Return the environment of a student's process. The instructor's may hold secrets."""
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"]),
        "HOME": "/tmp",
        "USER": "student",
        "LANG": "C.UTF-8",
        "MPLBACKEND": "agg",
        "MPLCONFIGDIR": "/tmp",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        **passed_on,
    }
