"""Frames to and from PID 1 over a container's attached streams, with a deadline on every wait."""

from __future__ import annotations

import json
import select
import ssl
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

CHUNK = 1 << 18
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class ChannelClosedError(Exception):
    """The container or the connection to it is gone; the message is the last output on stderr."""


class ChannelTimeoutError(Exception):
    """PID 1 did not answer in time."""


@dataclass(kw_only=True, slots=True)
class Reply:
    """The result and the output of one request."""

    result: dict[str, Any] = field(default_factory=dict)
    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)
    files: dict[str, bytearray] = field(default_factory=dict)
    content: bytearray = field(default_factory=bytearray)
    """Of the file that arrives now."""


class Channel:
    """The two directions of an attached connection; used by one thread at a time.

    What comes from the container is wrapped twice: by the engine, which marks stdout and stderr, and, on stdout, by
    PID 1 (see ``inside.pid1``).
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._socket = getattr(stream, "_sock", stream)  # the SDK wraps unix and tcp sockets in a file
        self._socket.setblocking(False)
        self._engine_bytes = bytearray()
        self._bytes = bytearray()
        self._stderr = bytearray()

    @property
    def idle(self) -> bool:
        """Whether the connection is open and no unexpected bytes have arrived."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not self._bytes and not self._engine_bytes and not poll.poll(0)

    def request(
        self, header: Mapping[str, Any], body: Sequence[bytes], *, deadline: float, before: Sequence[bytes] = ()
    ) -> Reply:
        """Send a request and read its reply; ``deadline`` is of ``time.monotonic``, ``before`` is sent first.

        Sends and receives at the same time: if both sides only wrote, full buffers would block them for ever.
        """
        text = json.dumps(header).encode()
        parts = [*before, struct.pack("!I", len(text)), text, *body]
        if sum(map(len, parts)) < CHUNK:
            parts = [b"".join(parts)]  # one write, so that each process on the way is woken once
        waiting = [memoryview(part) for part in parts if part]
        waiting.reverse()
        reply = Reply()
        poll = select.poll()
        while not reply.result:
            poll.register(self._socket, select.POLLIN | (select.POLLOUT if waiting else 0))
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not (events := poll.poll(left_s * 1000 + 1)):
                raise ChannelTimeoutError
            if events[0][1] & select.POLLOUT:
                self._send(waiting)
            # Also hang-ups and errors, which poll reports unasked; recv then says what it is.
            if events[0][1] & ~select.POLLOUT:
                closed = self._receive()
                self._take_frames(reply)
                if closed and not reply.result:
                    raise ChannelClosedError(self._last_stderr())
        if reply.result.get("id") != header["id"]:
            raise ChannelClosedError(f"an answer to another request ({reply.result.get('id')!r})")
        return reply

    def close(self) -> None:
        self._stream.close()

    def _send(self, waiting: list[memoryview]) -> None:
        try:
            sent = self._socket.send(waiting[-1][:CHUNK])
        except _WOULD_BLOCK:
            return
        except OSError as error:
            self._receive()  # the reason may be on stderr
            raise ChannelClosedError(self._last_stderr() or str(error)) from error
        waiting[-1] = waiting[-1][sent:]
        if not waiting[-1]:
            waiting.pop()

    def _receive(self) -> bool:
        """Read all available bytes and remove the engine's framing; true at the end of the connection."""
        closed = False
        while True:
            try:
                piece = self._socket.recv(CHUNK)
            except _WOULD_BLOCK:
                break
            except OSError:
                piece = b""
            if not piece:
                closed = True
                break
            self._engine_bytes += piece
            # TLS may hold decrypted bytes that poll does not see, so there all is read until it would block.
            if len(piece) < CHUNK and not isinstance(self._socket, ssl.SSLSocket):
                break
        # The engine's frames: stream number (1 stdout, 2 stderr), three zero bytes, length, content.
        start, buffer = 0, self._engine_bytes
        while len(buffer) >= start + 8:
            kind, length = struct.unpack_from("!BxxxI", buffer, start)
            if len(buffer) < start + 8 + length:
                break
            content = buffer[start + 8 : start + 8 + length]
            if kind == 1:
                self._bytes += content
            else:
                self._stderr = (self._stderr + content)[-4000:]
            start += 8 + length
        del buffer[:start]
        return closed

    def _take_frames(self, reply: Reply) -> None:
        start, buffer = 0, self._bytes
        while len(buffer) >= start + 5 and not reply.result:
            kind, length = struct.unpack_from("!cI", buffer, start)
            if len(buffer) < start + 5 + length:
                break
            content = buffer[start + 5 : start + 5 + length]
            if kind == b"o":
                reply.out += content
            elif kind == b"e":
                reply.err += content
            elif kind == b"n":
                reply.content = reply.files[content.decode()] = bytearray()
            elif kind == b"f":
                reply.content += content
            elif kind == b"r":
                reply.result = json.loads(content)
            else:
                raise ChannelClosedError(f"not a frame: {bytes(buffer[start : start + 40])!r}")
            start += 5 + length
        del buffer[:start]

    def _last_stderr(self) -> str:
        return self._stderr.decode("utf-8", "replace").strip()
