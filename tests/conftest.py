"""Fixtures for all tests."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing.util
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# How long an example takes says more about the machine than about the code. Each run draws others.
hypothesis.settings.register_profile("here", deadline=None, max_examples=50)
hypothesis.settings.load_profile("here")

# A shell starts what it puts into the background with Ctrl-C ignored, and child processes inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nearly all that is made meanwhile stays: modules and tests, among which garbage is looked for in vain."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


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


def yardstick_s() -> float:
    """Processor time of a fixed loop, which tells how quick this machine is at the moment."""
    started = time.process_time()
    sum(n * n % 7 for n in range(300_000))
    return time.process_time() - started


@pytest.fixture(scope="session")
def cpu_at_most() -> Callable[[float], AbstractContextManager[None]]:
    """`with cpu_at_most(0.5):` fails if what is inside takes more than half a second of a quick machine's processor.

    A machine that is slow, or whose cores others use too, gets as many times more as the loop takes longer there.
    """

    @contextlib.contextmanager
    def limit(seconds: float) -> Iterator[None]:
        before = yardstick_s()
        started = time.process_time()
        yield
        took = time.process_time() - started
        allowed = seconds * max(1.0, max(before, yardstick_s()) / 0.015)
        assert took < allowed, f"{took:.2f} s of the processor, of {allowed:.2f} s allowed"

    return limit


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of recorded reference data beside the repository; tests that need it are skipped without it."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip(f"the reference data are not here ({folder.name}/ beside the repository)")
    return folder


NO_CHROMIUM = "Chromium is not here: `make test-browser` installs it (Debian packages chromium and chromium-driver)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real Chromium without a window, for the tests of pages."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs the optional part 'browser'")
    from selenium.webdriver.chrome.service import Service

    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip(NO_CHROMIUM)
    options = webdriver.ChromeOptions()
    options.binary_location = program
    profile = tmp_path_factory.mktemp("profile")
    for flag in (
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
        "--window-size=1280,900", f"--user-data-dir={profile}",
    ):  # fmt: skip
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    started.set_page_load_timeout(30)
    yield started
    started.quit()
