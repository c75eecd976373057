"""Messages between the caller and the jail: JSON in one packet with file descriptors; long contents in memory files;
and the output of a program, which comes through pipes."""

from __future__ import annotations

import array
import fcntl
import json
import os
import select
import socket
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

# A longer packet would be cut off by the kernel; long contents go into memory files.
MAX_MESSAGE = 65536
_SEALS = 0x1 | 0x2 | 0x4 | 0x8  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE
_ADD_SEALS = 1033


def sealed(parts: Iterable[bytes | memoryview]) -> int:
    """A sealed memory file with these bytes, which no process can change, at offset 0."""
    fd = os.memfd_create("input", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        for part in parts:
            write_all(fd, part)
    except BaseException:
        os.close(fd)
        raise
    fcntl.fcntl(fd, _ADD_SEALS, _SEALS)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def write_all(fd: int, content: bytes | memoryview) -> None:
    """Write all bytes, however many writes that takes."""
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def unpack(fd: int) -> tuple[dict[str, Any], Iterator[bytes]]:
    """Head and blobs of a payload (see ``sandboxes.programs``), blob by blob; the offset of ``fd`` does not move."""
    length = int.from_bytes(os.pread(fd, 8, 0), "little")
    head: dict[str, Any] = json.loads(os.pread(fd, length, 8))

    def blobs() -> Iterator[bytes]:
        start = 8 + length
        for size in head["lengths"]:
            yield os.pread(fd, size, start)
            start += size

    return head, blobs()


def send(channel: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    """Send one message; ``fds`` are duplicated into the receiver, and closed here in any case."""
    control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    try:
        channel.sendmsg([json.dumps(message).encode()], control, socket.MSG_NOSIGNAL)
    finally:
        close_all(fds)


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)


def receive(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """One message with its descriptors; ``None`` when the other side is gone."""
    # Room for eight descriptors of four bytes.
    space = socket.CMSG_SPACE(8 * 4)
    data, control, _, _ = channel.recvmsg(MAX_MESSAGE, space, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, content in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    if not data:
        return None, list(fds)
    return json.loads(data), list(fds)


def describe(error: BaseException) -> str:
    """An exception and the last three places of its traceback, in one line."""
    trace = traceback.walk_tb(error.__traceback__)
    places = [f"{os.path.basename(frame.f_code.co_filename)}:{line}" for frame, line in trace]
    return f"{type(error).__name__}: {error} ({' '.join(places[-3:])})"


FLOOD = 64
"""A program that writes more than this many times ``output_bytes`` (taken as 1 MiB at least) is killed."""


class Output:
    """The two pipes of a program. The first ``keep`` bytes of each are passed to ``take``, with the number of the pipe
    (0 or 1), in parts of ``buffer``; what comes after is counted."""

    def __init__(self, keep: int, take: Callable[[int, memoryview], object], buffer: memoryview) -> None:
        pairs = [os.pipe(), os.pipe()]
        self.readers = [reader for reader, _ in pairs]
        self._writers = [writer for _, writer in pairs]
        for reader in self.readers:
            os.set_blocking(reader, False)  # who reads must never wait for a program
        self.open = set(self.readers)
        """Those that have not come to their end."""
        self.dropped = [0, 0]
        self._room, self._most = [keep, keep], FLOOD * max(keep, 1 << 20)
        self._take, self._buffer = take, buffer

    @property
    def flooded(self) -> bool:
        return sum(self.dropped) > self._most

    def hand_over(self) -> list[int]:
        """The write ends, which are the caller's from now on."""
        writers, self._writers = self._writers, []
        return writers

    def wait(self, fds: Sequence[int], timeout_ms: float | None) -> list[int]:
        """Wait until one of the pipes or of ``fds`` can be read, and read from the pipes; returns those of ``fds``."""
        poll = select.poll()
        for fd in (*self.open, *fds):
            poll.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(timeout_ms)}
        for fd in self.open & ready:
            self._read(fd)
        return [fd for fd in fds if fd in ready]

    def _read(self, fd: int) -> bool:
        """Read one chunk; false where there is none now, or will be none any more."""
        try:
            got = os.readv(fd, [self._buffer])
        except BlockingIOError:
            return False
        if not got:
            self.open.discard(fd)
            return False
        index = self.readers.index(fd)
        kept = min(got, self._room[index])
        if kept:
            self._take(index, self._buffer[:kept])
        self._room[index] -= kept
        self.dropped[index] += got - kept
        return True

    def drain(self) -> None:
        """Read what the pipes still hold after the program has ended."""
        for fd in self.readers:
            # In a session, processes left in the background may still write: the flood limit ends the loop.
            while not self.flooded and self._read(fd):
                pass

    def close(self) -> None:
        close_all((*self.readers, *self._writers))
