"""Talking to a process that may lie, stall, shout or die.

A request is one line of JSON and so is the reply. The other side belongs to a student's code, so a
reply is bounded in length and in time, and is data at best.

Several requests may be sent before the first reply is read. On a busy machine that is what counts:
every time two processes wait for each other, both wait for their turn on the processor as well.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from typing import Any

_MAX_PARTS = 500_000


class NoReply(Exception):
    """No answer came. ``why`` is ``"time"``, ``"ended"``, ``"output"`` or ``"garbled"``."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(why)


class Channel:
    """A line of questions and answers over a socket. Replies may have ``reply_bytes`` each."""

    def __init__(self, line: socket.socket, reply_bytes: int) -> None:
        self._socket, self._reply_bytes = line, reply_bytes
        self._received = bytearray()

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send one request and wait for its reply."""
        self.send([request], seconds)
        return self.receive(seconds)

    def send(self, requests: Sequence[dict[str, Any]], seconds: float) -> None:
        """Send requests, each of which gets a reply.

        Raises
        ------
        NoReply
            If the other side does not take them.
        """
        self._socket.settimeout(seconds)
        lines = b"".join(json.dumps(request).encode() + b"\n" for request in requests)
        try:
            self._socket.sendall(lines)
        except TimeoutError:
            raise NoReply("time") from None
        except OSError:
            raise NoReply("ended") from None

    def receive(self, seconds: float) -> dict[str, Any]:
        """Wait for the next reply.

        Raises
        ------
        NoReply
            If none comes that can be read. The process is of no use any more.
        """
        line = self._line(time.monotonic() + seconds)
        # An empty list is two characters, and fifty bytes of memory once it is read.
        if line.count(b"[") + line.count(b"{") > _MAX_PARTS:
            raise NoReply("output")
        try:
            reply = json.loads(line)
        except (ValueError, RecursionError):
            raise NoReply("garbled") from None
        if type(reply) is not dict:
            raise NoReply("garbled")
        return reply

    def _line(self, deadline: float) -> bytes:
        searched = 0
        while (end := self._received.find(b"\n", searched)) < 0 and searched <= self._reply_bytes:
            searched = len(self._received)
            self._received += self._more(deadline)
        if not 0 <= end <= self._reply_bytes:
            raise NoReply("output")
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line

    def _more(self, deadline: float) -> bytes:
        seconds = deadline - time.monotonic()
        if seconds <= 0:
            raise NoReply("time")
        self._socket.settimeout(seconds)
        try:
            received = self._socket.recv(1 << 16)
        except TimeoutError:
            raise NoReply("time") from None
        except OSError:
            raise NoReply("ended") from None
        if not received:
            raise NoReply("ended")
        return received
