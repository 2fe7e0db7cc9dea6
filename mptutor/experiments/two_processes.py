"""Run a function in two processes that can talk to each other, and leave none of them behind.

``torch.distributed.run`` (alias ``torchrun``) starts the processes and tells each its rank. It is
started as a command, on a module: a function that was written in a notebook exists in that notebook
alone, and a new process could not import it. The function returns a text, and the one that rank 0
returned comes back.

Whoever starts processes must be sure that they end: when all is well, when one fails and the others
wait for it forever, when time is over, when the learner interrupts the cell, when the notebook's
kernel is killed. So each process holds a *lifeline*, its standard input, whose other end only the
starter has. The lifeline is cut when the starter lets go of it or dies, by whatever cause, and then
the process ends at once, wherever it is. It ends by itself when its time is over, too.

The launcher gives every process a session of its own, so a signal to the launcher's group does not
reach them; the lifeline does.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import BinaryIO

from mptutor.experiments.progress import Progress, Stage, shown

#: How long the launcher may take to end once it was asked to, before it is killed.
_GRACE_S = 5.0


class ProcessError(RuntimeError):
    """The processes could not be started, failed, or were ended. The message says which and why."""


def launch(
    function: str,
    *,
    processes: int = 2,
    timeout_s: float = 180.0,
    progress: Progress = False,
    stop: Callable[[], bool] | None = None,
) -> str:
    """Run a function in each of some processes and return the text that rank 0's returned.

    Parameters
    ----------
    function
        ``"module:name"``. It takes nothing; `torch.distributed.init_process_group` is its own
        business, and what it needs for that is in the environment.
    processes
        How many.
    timeout_s
        When to give up, in seconds, imports included.
    progress
        Told a `Stage` five times a second, by the share of `timeout_s` that is over.
    stop
        Asked five times a second; once it says True, all is ended.

    Raises
    ------
    ProcessError
        If no text came back. No process is left when it is raised, nor after an interrupt.
    """
    with tempfile.TemporaryDirectory(prefix="mptutor-") as name:
        folder = Path(name)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(processes), "--module", __name__]
        command += [function, str(folder / "text"), str(folder / "failure"), str(timeout_s)]
        with (folder / "log").open("wb") as log:
            process = _start(command, log)
            try:
                with shown(progress) as tell:
                    _wait(process, timeout_s, tell, stop)
            finally:
                _end(process)
        return _read(folder, process.returncode)


def _start(command: list[str], log: BinaryIO) -> subprocess.Popen[bytes]:
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    if loopback := _loopback():
        environment.setdefault("GLOO_SOCKET_IFNAME", loopback)  # no talk leaves this machine
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # an interrupt meant for the notebook does not reach it
        )
    except OSError as error:
        raise ProcessError(f"No process can be started here: {error}.") from error


def _loopback() -> str | None:
    try:
        names = {name for _, name in socket.if_nameindex()}
    except (AttributeError, OSError):  # an older Windows has no such function
        names = set()
    return next((name for name in ("lo", "lo0") if name in names), None)


def _wait(
    process: subprocess.Popen[bytes],
    timeout_s: float,
    tell: Callable[[Stage], None],
    stop: Callable[[], bool] | None,
) -> None:
    start = time.monotonic()
    while True:
        try:
            process.wait(timeout=0.2)
            return
        except subprocess.TimeoutExpired:
            taken_s = time.monotonic() - start
            tell(Stage(f"{taken_s:.0f} s of {timeout_s:g} s at most", min(taken_s / timeout_s, 1)))
            if taken_s > timeout_s:
                raise ProcessError(
                    f"The processes were not done after {timeout_s:g} s and were ended. On a busy "
                    f"machine, allow more time: timeout_s={4 * timeout_s:g}."
                ) from None
            if stop is not None and stop():
                raise ProcessError("The processes were stopped before they were done.") from None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Cut the lifeline and see the launcher end, however it takes it."""
    try:
        process.stdin.close()
        if process.poll() is None:
            process.terminate()
            process.wait(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        if process.poll() is None:
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.wait()


def _read(folder: Path, returncode: int) -> str:
    if (folder / "failure").exists():
        raise ProcessError(f"A process failed: {(folder / 'failure').read_text('utf-8')}")
    if not (folder / "text").exists():
        lines = (folder / "log").read_text("utf-8", errors="replace").split("\n")
        said = next(
            (line.strip() for line in reversed(lines) if "Error" in line), "it said nothing"
        )
        raise ProcessError(f"The launcher ended with status {returncode}: {said}.")
    return (folder / "text").read_text("utf-8")


# -- what runs in each of the processes ----------------------------------------------------------


def main(function: str, text: str, failure: str, timeout_s: str) -> None:
    """Call a function, and leave what it returned, or raised, in a file."""
    threading.Thread(target=_hold_the_lifeline, daemon=True).start()
    timer = threading.Timer(float(timeout_s), os._exit, (1,))
    timer.daemon = True
    timer.start()
    module, _, name = function.partition(":")
    try:
        returned = getattr(import_module(module), name)()
    except Exception as error:
        _leave(Path(failure), error)
        raise
    if os.environ["RANK"] == "0":
        Path(text).write_text(returned, "utf-8")


def _leave(failure: Path, error: Exception) -> None:
    """Write down the first failure; processes that miss the one that failed fail later."""
    first_line = str(error).partition("\n")[0]
    with suppress(FileExistsError), failure.open("x", encoding="utf-8") as file:
        file.write(f"{type(error).__name__}: {first_line}")


def _hold_the_lifeline() -> None:
    """Wait for the end of standard input and end the process then.

    `sys.stdin` would be locked while it waits, and keep the process from ending in good order.
    """
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
