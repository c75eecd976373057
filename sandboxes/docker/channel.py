"""Frames to and from PID 1 over a container's attached streams, with a deadline on every wait."""

from __future__ import annotations

import contextlib
import json
import select
import struct
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sandboxes.docker.pid1 import ANSWER

CHUNK = 1 << 18
LAST_WORDS_S = 1.0


class Reply(NamedTuple):
    """The reply to a request."""

    answer: dict[str, Any]
    parts: dict[int, bytes]
    """Output and files by the numbers of their frames (see ``pid1``)."""


class Channel:
    """The two directions of an attached connection; used by one thread at a time.

    What comes from the container is wrapped twice: by the engine, which marks stdout and stderr, and, on stdout, by
    PID 1 (see ``pid1``). Every wait ends at a deadline.
    """

    def __init__(self, stream: Any, before: bytes = b"") -> None:
        """``before`` is sent ahead of the first request."""
        self._before = before
        self._socket = getattr(stream, "_sock", stream)  # the SDK wraps unix and tcp sockets in a file
        self._engine_bytes = bytearray()
        self._bytes = bytearray()
        self._stderr = bytearray()

    @property
    def idle(self) -> bool:
        """Whether the connection is open and no unexpected bytes have arrived."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not self._bytes and not self._engine_bytes and not poll.poll(0)

    def request(self, header: Mapping[str, Any], body: Sequence[bytes], *, deadline: float) -> Reply:
        """Send a request and read its reply; ``deadline`` is of ``time.monotonic``.

        Raises ``TimeoutError`` at the deadline, and ``ConnectionError``, with the last output on stderr, where the
        container or the connection to it is gone. PID 1 writes nothing before it has read the whole request, so the two
        never wait for each other.
        """
        text = json.dumps(header).encode()
        parts = defaultdict[int, bytearray](bytearray)
        try:
            self._allow_until(deadline)
            # One write, so that each process on the way is woken once.
            self._socket.sendall(b"".join([self._before, struct.pack("!I", len(text)), text, *body]))
            self._before = b""
            while ANSWER not in parts:
                number, length = struct.unpack("!II", self._read(8, deadline))
                if number >> 24:
                    raise ConnectionError(f"not a frame: number {number:#x} and {bytes(self._bytes[:40])!r}")
                parts[number] += self._read(length, deadline)
        except TimeoutError:
            raise
        except OSError as error:
            until = min(deadline, time.monotonic() + LAST_WORDS_S)
            with contextlib.suppress(OSError):  # the reason may be on stderr
                while time.monotonic() < until:
                    self._receive(until)
            said = self._stderr.decode("utf-8", "replace").strip()
            raise ConnectionError(said or str(error)) from error
        answer = json.loads(parts.pop(ANSWER))
        if answer.get("id") != header["id"]:
            raise ConnectionError(f"an answer to another request ({answer.get('id')!r})")
        return Reply(answer, {number: bytes(content) for number, content in parts.items()})

    def _read(self, count: int, deadline: float) -> bytes:
        """From standard output of the container."""
        while len(self._bytes) < count:
            self._receive(deadline)
        content = bytes(self._bytes[:count])
        del self._bytes[:count]
        return content

    def _receive(self, deadline: float) -> None:
        """Wait for bytes and remove the engine's framing. Raises ``OSError`` at the end of the connection."""
        self._allow_until(deadline)
        piece = self._socket.recv(CHUNK)
        if not piece:
            raise ConnectionError
        buffer = self._engine_bytes
        buffer += piece
        while len(buffer) >= 8:
            # Stream number (1 stdout, 2 stderr), three zero bytes, length, content.
            kind, length = struct.unpack_from("!BxxxI", buffer)
            if len(buffer) < 8 + length:
                break
            content = buffer[8 : 8 + length]
            del buffer[: 8 + length]
            if kind == 1:
                self._bytes += content
            else:
                self._stderr = (self._stderr + content)[-4000:]

    def _allow_until(self, deadline: float) -> None:
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
