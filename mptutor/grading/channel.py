"""Asking a process that may lie, stall, shout or die.

A request is one line of JSON and so is the reply. The other side belongs to a student's code, so a
reply is bounded in length and in time, and is data at best. When the time is over the process is
cut off, which ends the reading with it; there is nothing that a process could do about that.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any, BinaryIO


class NoReply(Exception):
    """No answer came. ``why`` is ``"time"``, ``"ended"``, ``"output"`` or ``"garbled"``."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(why)


class Channel:
    """A line of questions and answers.

    Parameters
    ----------
    reader, writer : binary file
        The two directions.
    cut : callable
        Ends the process and closes both, whatever it is doing.
    reply_bytes : int
        The longest reply that is read.
    """

    def __init__(
        self, reader: BinaryIO, writer: BinaryIO, cut: Callable[[], None], reply_bytes: int
    ) -> None:
        self._reader, self._writer, self._cut = reader, writer, cut
        self._reply_bytes = reply_bytes

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send a request and wait for its reply.

        Raises
        ------
        NoReply
            If none came that can be read. The process is of no use any more.
        """
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self._cut()

        timer = threading.Timer(seconds, give_up)
        timer.daemon = True
        timer.start()
        try:
            line = self._exchange(json.dumps(request).encode() + b"\n")
        finally:
            timer.cancel()
        if late.is_set():
            raise NoReply("time")
        return self._read(line)

    def _exchange(self, line: bytes) -> bytes:
        try:
            self._writer.write(line)
            self._writer.flush()
            return self._reader.readline(self._reply_bytes + 1)
        except (OSError, ValueError):  # cut off, or closed by the other side
            return b""

    def _read(self, line: bytes) -> dict[str, Any]:
        if len(line) > self._reply_bytes:
            raise NoReply("output")
        if not line.endswith(b"\n"):
            raise NoReply("ended")
        try:
            reply = json.loads(line)
        except (ValueError, RecursionError):
            raise NoReply("garbled") from None
        if type(reply) is not dict:
            raise NoReply("garbled")
        return reply
