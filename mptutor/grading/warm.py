"""The warm parent: a process with torch imported, copied once for each submission.

``python -m mptutor.grading.warm FD ORDER [MODULE…]`` imports what the exercises import and then
waits on a socket. Each byte there brings two sockets for a new submission, one to talk with the
student's process and one for its supervisor. It never reads what goes over them: a copy of a
process has its memory too, and what one student handed in must not be found in another's.

It must stay free of answers for the same reason, so it imports nothing of `mptutor.checks` but the
plain data and the probes. It stays single-threaded, since a copy has only the thread that made it,
and leaves CUDA alone, which does not survive a copy.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import socket
import sys
from contextlib import suppress
from typing import NoReturn

_HUGE_PAGE = 2 << 20
_MADV_COLLAPSE = 25


def main(argv: list[str]) -> int:
    """Serve copies of this process until the controller hangs up."""
    control, order, modules = socket.socket(fileno=int(argv[0])), argv[1], argv[2:]
    _import_ahead(modules)
    _fold_memory()
    control.sendall(b"warm")
    while True:
        sign, descriptors, _, _ = socket.recv_fds(control, 1, 2)
        if not sign:
            return 0
        _forget_the_finished()
        if os.fork() == 0:
            control.close()
            _become_supervisor(order, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _forget_the_finished() -> None:
    """Let go of supervisors that have ended. They have reported for themselves."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _become_supervisor(order: str, talk: int, hold: int) -> NoReturn:
    from mptutor.grading.supervise import Order, supervise

    try:
        supervise(Order.from_json(order), socket.socket(fileno=talk), socket.socket(fileno=hold))
    finally:
        os._exit(0)


def _import_ahead(modules: list[str]) -> None:
    import mptutor.grading.child
    import mptutor.grading.supervise

    if sys.platform == "linux":
        import mptutor.grading.sandbox_linux

    mptutor.grading.child.prepare()
    for module in modules:
        with suppress(ImportError):  # withheld for this assignment
            importlib.import_module(module)


def _fold_memory() -> None:
    """Make this process cheap to copy.

    A copy costs the kernel one entry for every page. Python and torch hold 70,000 pages of 4 KiB;
    folded into pages of 2 MiB they are a few hundred, and a copy takes a quarter of the time. Where
    the kernel cannot (before Linux 6.1) nothing is lost but the time.
    """
    gc.collect()
    gc.freeze()  # the collector writes into every object, and so would unshare every page
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    with open("/proc/self/maps") as maps:
        areas = [line.split() for line in maps]
    for bounds, permissions, *rest in areas:
        is_anonymous = len(rest) < 4 or rest[3] == "[heap]"
        if permissions == "rw-p" and is_anonymous:
            start, end = (int(bound, 16) for bound in bounds.split("-"))
            for page in range(-(-start // _HUGE_PAGE) * _HUGE_PAGE, end - _HUGE_PAGE, _HUGE_PAGE):
                libc.madvise(page, _HUGE_PAGE, _MADV_COLLAPSE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
