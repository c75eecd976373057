"""Fixtures for all tests."""

from __future__ import annotations

import multiprocessing.util
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("here", deadline=None)
hypothesis.settings.load_profile("here")

# A shell starts what it puts into the background with Ctrl-C ignored, and child processes inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def temporary_folder() -> Iterator[None]:
    """Each process of ``pytest -n`` has its own, so that tests can count what is left there."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        yield
        return
    before = os.environ.get("TMPDIR")
    multiprocessing.util.get_temp_dir()  # removed at exit, when the folder below is gone: made outside of it
    folder = tempfile.mkdtemp(prefix=f"tests-{worker}-")
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    yield
    tempfile.tempdir = None
    if before is None:
        del os.environ["TMPDIR"]
    else:
        os.environ["TMPDIR"] = before
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of recorded reference data beside the repository; tests that need it are skipped without it."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip(f"the reference data are not here ({folder.name}/ beside the repository)")
    return folder
