"""A disk that fills up: a real one of 256 KiB where the tests may mount it, and a limit on the size of files."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


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


@contextlib.contextmanager
def full_after(byte_count: int) -> Iterator[None]:
    """No file of this process can grow beyond ``byte_count`` bytes: writing further fails as on a full disk, and cuts
    what is written at just that byte."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (byte_count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
