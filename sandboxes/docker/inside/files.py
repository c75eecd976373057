"""Copies files into and out of the working folder after programs have run there: no symbolic link is followed."""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from collections.abc import Iterator

from sandboxes.local.inside import kernel

__all__ = ["FOLDER", "MISSING", "PLAIN", "TOO_LARGE", "read_out", "write_in"]

FOLDER = "/tmp/work"
"""The working folder of programs. Below ``/tmp``, so that one tmpfs with one size limit holds all that they write."""

PLAIN, MISSING, TOO_LARGE = range(3)
ENTRY = struct.Struct("!BQ")


def write_in(path: str, content: bytes) -> None:
    """Write a file below the working folder in place of what is there; a link on the way is an error."""
    folder = os.open(FOLDER, os.O_RDONLY | os.O_DIRECTORY)
    try:
        *parents, name = path.split("/")
        for parent in parents:
            with contextlib.suppress(FileExistsError):
                os.mkdir(parent, dir_fd=folder)
            inner = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
        place = f".{os.urandom(8).hex()}"
        fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=folder)
        try:
            with open(fd, "wb", buffering=0) as file:
                view = memoryview(content)
                while view:
                    view = view[file.write(view) :]
            os.rename(place, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(place, dir_fd=folder)
            raise
    finally:
        os.close(folder)


def read_out(paths: list[str], max_bytes: int) -> Iterator[bytes]:
    """For each path what it is and its size, and for plain files of up to ``max_bytes`` together their bytes."""
    folder = os.open(FOLDER, os.O_RDONLY | os.O_DIRECTORY)
    left = max_bytes
    for path in paths:
        fd = _open_plain(folder, path)
        if fd is None:
            yield ENTRY.pack(MISSING, 0)
            continue
        with open(fd, "rb", buffering=0) as file:
            size = os.fstat(fd).st_size
            if size > left:
                yield ENTRY.pack(TOO_LARGE, size)
                continue
            left -= size
            yield ENTRY.pack(PLAIN, size)
            while size:
                piece = file.read(min(size, 1 << 16)) or bytes(min(size, 1 << 16))  # the file became shorter meanwhile
                size -= len(piece)
                yield piece


def _open_plain(folder: int, path: str) -> int | None:
    try:
        fd = kernel.open_beneath(folder, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None
