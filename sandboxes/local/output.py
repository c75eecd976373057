"""Output of a program: both pipes are read continuously, and a bounded part of each is kept."""

from __future__ import annotations

import contextlib
import os

__all__ = ["FLOOD", "Output"]

FLOOD = 64
"""A program that writes more than this many times ``output_bytes`` (taken as 1 MiB at least) is killed."""


class Output:
    """The two pipes of a program; of each the first ``keep`` bytes are kept."""

    def __init__(self, keep: int) -> None:
        pairs = [os.pipe(), os.pipe()]
        self.readers = [pair[0] for pair in pairs]
        self.writers = [pair[1] for pair in pairs]
        for reader in self.readers:
            os.set_blocking(reader, False)
        self.kept = (bytearray(), bytearray())
        self.dropped = [0, 0]
        self._keep = keep

    @property
    def flooded(self) -> bool:
        return sum(self.dropped) > FLOOD * max(self._keep, 1 << 20)

    def read(self, fd: int) -> bool:
        """Read one chunk; returns whether more may come."""
        try:
            # 64 KB is the usual capacity of a pipe on Linux.
            part = os.read(fd, 1 << 16)
        except BlockingIOError:
            return True
        index = self.readers.index(fd)
        self._take(index, part)
        return bool(part)

    def drain(self) -> None:
        """Read what the pipes still hold after the program has ended."""
        for index, fd in enumerate(self.readers):
            with contextlib.suppress(BlockingIOError):
                # In a session, processes left in the background may still write: the flood limit ends the loop.
                while not self.flooded and (part := os.read(fd, 1 << 16)):
                    self._take(index, part)

    def _take(self, index: int, part: bytes) -> None:
        room = self._keep - len(self.kept[index])
        self.kept[index].extend(part[:room])
        self.dropped[index] += max(0, len(part) - room)

    def close_writers(self) -> None:
        """Close the write ends, after they have been sent to the jail."""
        for fd in self.writers:
            os.close(fd)
        self.writers.clear()

    def close(self) -> None:
        for fd in (*self.readers, *self.writers):
            os.close(fd)
