"""Copies files into and out of the working folder after programs have run there, and empties the folders they wrote to.

No symbolic link is ever followed, whatever programs have put in the way.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
from collections.abc import Iterator

from sandboxes.local.inside.files import open_plain

__all__ = ["FOLDER", "MISSING", "PLAIN", "TOO_LARGE", "read_out", "wipe", "write_in"]

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
            # Fails for a link in place of a folder.
            inner = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
        # A name that no program can have taken beforehand; rename() then replaces what is at `name`, also a link.
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
        fd = open_plain(folder, path)
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


def wipe(folder: str) -> None:
    """Remove all that is below ``folder``; raises :class:`OSError` where something cannot be removed.

    Folders are moved to the top before they are emptied, so that no depth of nesting needs recursion or a long path.
    No other process can write meanwhile: all have been killed.
    """
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        taken = set(os.listdir(top))
        waiting = list(taken)
        fresh = (name for name in (f".{n}" for n in itertools.count()) if name not in taken)
        while waiting:
            name = waiting.pop()
            if not _remove_file(name, top):
                waiting += _lift(name, top, fresh)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)


def _remove_file(name: str, folder: int) -> bool:
    """False where it is a folder."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        return False
    return True


def _lift(name: str, top: int, fresh: Iterator[str]) -> list[str]:
    """Remove the files of a folder and move its folders to the top; returns their new names."""
    os.chmod(name, 0o700, dir_fd=top)
    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
    lifted = []
    try:
        for entry in os.listdir(inner):
            if _remove_file(entry, inner):
                continue
            os.chmod(entry, 0o700, dir_fd=inner)  # renaming a folder needs write permission on it
            lifted.append(next(fresh))
            os.rename(entry, lifted[-1], src_dir_fd=inner, dst_dir_fd=top)
    finally:
        os.close(inner)
    return lifted
