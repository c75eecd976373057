"""Reading, writing and emptying the folders where a program has run: no symbolic link is ever followed."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from . import kernel

WORK = "/work"
"""The working folder of a run that has a file system of its own."""


def write_new(name: str, content: bytes, *, executable: bool = False) -> None:
    """Write a file into the current folder, a fresh working folder in which no program has run yet."""
    folder = os.path.dirname(name)
    if folder:
        os.makedirs(folder, exist_ok=True)
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o755 if executable else 0o644)
    with open(fd, "wb") as file:
        file.write(content)


def open_plain(folder: int, name: str) -> int | None:
    """Open a regular file below ``folder`` for reading, through no link; ``None`` where it is not one."""
    try:
        # O_NONBLOCK: a named pipe would wait for a writer. O_NOCTTY: a terminal would become that of this process.
        fd = kernel.open_beneath(folder, name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None


def plain_files(folder: int, names: Iterable[str], most: int) -> Iterator[tuple[str, BinaryIO, int]]:
    """Each plain file among ``names`` below ``folder`` with its size; of all together up to ``most`` bytes."""
    for name in names:
        fd = open_plain(folder, name)
        if fd is not None:
            with open(fd, "rb") as file:
                size = os.fstat(fd).st_size
                if size <= most:
                    most -= size
                    yield name, file, size


def replace_file(folder: int, name: str, content: int, owner: int) -> None:
    """Put a new file of ``owner`` at ``name`` below ``folder``; what stood there is replaced, never written through.

    ``content`` is an open file: its bytes are copied by the kernel and never enter the memory of this process.

    Raises ``OSError`` where a folder on the way is a link or a file, and where ``name`` is a folder.
    """
    *parents, last = name.split("/")
    here = os.dup(folder)
    try:
        for part in parents:
            inner = _enter(here, part, owner)
            os.close(here)
            here = inner
        place = f".upload-{os.urandom(8).hex()}"
        fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=here)
        try:
            if owner != os.geteuid():
                os.fchown(fd, owner, owner)
            done, size = 0, os.fstat(content).st_size
            while done < size:
                done += os.sendfile(fd, content, done, size - done)
            # rename() replaces a link itself, not what it points to.
            os.rename(place, last, src_dir_fd=here, dst_dir_fd=here)
        except BaseException:
            os.unlink(place, dir_fd=here)
            raise
        finally:
            os.close(fd)
    finally:
        os.close(here)


def _enter(folder: int, part: str, owner: int) -> int:
    """The folder ``part`` in ``folder``, made where it is missing."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(part, 0o755, dir_fd=folder)
        if owner != os.geteuid():
            # A program may put a link in its place at any time: it is not followed here, and refused below.
            os.chown(part, owner, owner, dir_fd=folder, follow_symlinks=False)
    return kernel.open_beneath(folder, part, os.O_RDONLY | os.O_DIRECTORY)


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
