"""Empties the folders that programs can write to; no symbolic link is ever followed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

FOLDER = "/tmp/work"
"""The working folder of programs. Below ``/tmp``, so that one tmpfs with one size limit holds all that they write."""
START = "/.roll"
"""Where an image keeps what the working folder begins with, if it has any."""


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
