"""A disk that fills up: a real one of 256 KiB where the tests may mount it, and one made of a patched ``os.write``."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer.run import folder as run_folder


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A tmpfs of 256 KiB at ``folder``; skips the test where mounting is not allowed."""
    folder.mkdir(exist_ok=True)
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a small disk is not allowed here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)


def fill(folder: Path, *, leave: int = 0) -> None:
    """Take all free space of the disk at ``folder``, then give ``leave`` bytes back."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    os.truncate(filler, max(0, filler.stat().st_size - leave))


def full_after(monkeypatch: pytest.MonkeyPatch, byte_count: int) -> None:
    """From now on ``os.write`` of the trainer's file writing accepts ``byte_count`` bytes and then the disk is full."""
    left = byte_count
    real = os.write

    def write(handle: int, data: bytes) -> int:
        nonlocal left
        if left <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real(handle, bytes(data[:left]))
        left -= written
        return written

    monkeypatch.setattr(run_folder.os, "write", write)
