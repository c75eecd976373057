"""Writing files so that a crash or a full disk never costs what was there before."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from roll_envs.errors import RollError

__all__ = ["TEMPORARY_SUFFIX", "disk_errors", "sync_folder", "write_atomic", "write_synced"]

TEMPORARY_SUFFIX = ".unfinished"
"""Ends the name of a file that is being written; one that stays behind is of a killed process."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextlib.contextmanager
def disk_errors(path: str | os.PathLike[str], saved_before: str = "nothing saved before was touched") -> Iterator[None]:
    """Turn an OSError while writing ``path`` into a RollError that says what, where and what to do."""
    try:
        yield
    except OSError as error:
        raise RollError(_explain(Path(path), error, saved_before)) from error


def write_atomic(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Replace the file by ``content`` in one step: whole new content or the old file, never a part.

    Text is written as UTF-8. A temporary file in the same folder is synced and renamed. Raises RollError when the disk
    is full or the folder cannot be written; the temporary file is then removed and the old file is as it was.
    """
    target = Path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")
    with disk_errors(target):
        try:
            write_synced(temporary, data)
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        sync_folder(target.parent)


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file and sync it, without a rename: for files of a folder that is itself renamed. Raises OSError."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        _write_all(handle, data)
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` durable, where the file system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def _explain(path: Path, error: OSError, saved_before: str) -> str:
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        free = ""
        with contextlib.suppress(OSError):
            free = f" ({shutil.disk_usage(path.parent).free / 1e6:.1f} MB free)"
        return (
            f"the disk is full{free}: could not write {path} ({reason}); {saved_before}. "
            "Free some space there, or choose another disk with --output DIR; "
            "a stopped run continues with: roll-train resume RUN"
        )
    if error.errno in _FORBIDDEN:
        return (
            f"may not write {path} ({reason}); {saved_before}. "
            "Change the permissions of the folder or choose another with --output DIR"
        )
    return f"could not write {path} ({reason}); {saved_before}. Check that the folder exists and can be written"
