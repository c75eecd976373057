"""WorkerPool: warm grading processes, killed when an input takes too long.

Some inputs can be graded only by code that may compute for hours, eat all memory or crash the interpreter (computer
algebra, regular expressions). A time limit inside the process does not hold: a power of large numbers or a match blocks
every thread and signal handler. So such work is done in a few processes that are started afresh (no secrets in their
environment, no inherited files), bounded by resource limits, killed at a deadline and replaced by a warm spare.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import selectors
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from roll_envs.errors import ConfigError, RollError

__all__ = ["Outcome", "PoolSettings", "WorkerPool", "close_shared_pools", "shared_pool"]

_PACKAGE = Path(__file__).resolve().parent
_PASSED_VARIABLES = ("LANG", "LC_ALL", "TZ", "SYSTEMROOT", "LD_LIBRARY_PATH")
"""Environment variables that workers inherit."""
_MIN_CPU_SHARE = 0.05
"""A task at its deadline that used less processor time than this share of it was starved by a busy machine, and gets no
verdict. The share is small: an input that computes for ever must count as wrong, not as a busy machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolSettings:
    """Settings of a pool; :func:`shared_pool` shares one pool between equal settings."""

    module: str
    """Name of the module with ``TASKS``: name -> function from JSON values to a JSON value."""
    workers: int = 2
    """Processes that work at one time; one more is kept as a spare."""
    uses: int = 1000
    """A worker is replaced after so many tasks, so that caches and leaks of libraries do not grow for ever."""
    memory_mb: int = 2048
    """Address space of a worker."""
    start_timeout_s: float = 60.0
    queue_timeout_s: float = 60.0
    """How long a task waits for a free worker."""

    def __post_init__(self) -> None:
        for name in ("workers", "uses", "memory_mb"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} must be a whole number of 1 or more, not {value!r}")
        for name in ("start_timeout_s", "queue_timeout_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ConfigError(f"{name} must be above 0, not {value!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The outcome of a task."""

    status: Literal["ok", "error", "deadline", "died", "unavailable"]
    """``error``: the task raised; ``deadline``: it was killed; ``died``: it killed two workers; these three are due
    to the input. ``unavailable``: no worker could do it, which says nothing about the input."""
    value: Any = None
    detail: str = ""


_KILL_AT = 0.97
"""Share of the deadline after which a worker is killed, so that the caller has its answer by the deadline."""


class _WorkerDied(Exception):
    """The worker process has ended or its pipe is closed."""


class _Worker:
    """One process. Making it starts it; :meth:`wait_ready` waits for its imports."""

    def __init__(self, settings: PoolSettings) -> None:
        told = {
            "path": [os.path.abspath(p) for p in sys.path],
            "packages": {"roll_envs": str(_PACKAGE.parent), "roll_envs.verifiers": str(_PACKAGE)},
            "module": settings.module,
            "memory_mb": settings.memory_mb,
        }
        self.used, self.ready = 0, False
        # A file, because a pipe that nobody reads would fill up and block the worker.
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(_PACKAGE / "worker_main.py"), json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            bufsize=0,
            close_fds=True,
            start_new_session=True,
            # No keys or passwords of the environment reach code that reads what a model wrote.
            env={name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ},
        )

    def wait_ready(self, timeout_s: float) -> None:
        """Raises :class:`RollError` with the reason when it does not come up in time."""
        if self.ready:
            return
        try:
            message = self._receive(time.monotonic() + timeout_s)
        except _WorkerDied:
            self.errors.seek(0)
            said = self.errors.read()[-400:].decode(errors="replace").strip()
            raise RollError(f"a grading worker did not start: {said or 'it ended at once'}") from None
        if message is None:
            raise RollError(f"a grading worker was not ready within {timeout_s:g} s")
        self.ready = True

    def ask(self, task: str, arguments: list[Any], deadline_s: float) -> dict[str, Any] | None:
        """The reply, or ``None`` at the deadline. Raises :class:`_WorkerDied`."""
        self.used += 1
        until = time.monotonic() + deadline_s
        body = json.dumps({"task": task, "arguments": arguments, "deadline_s": deadline_s}).encode()
        assert self.process.stdin is not None
        try:
            view = memoryview(struct.pack(">I", len(body)) + body)
            while view:  # an unbuffered pipe may take a part only
                view = view[self.process.stdin.write(view) or 0 :]
        except (OSError, ValueError) as error:
            raise _WorkerDied from error
        return self._receive(until)

    def _receive(self, until: float) -> dict[str, Any] | None:
        """The next message, or ``None`` at ``until``."""
        assert self.process.stdout is not None
        data, wanted = b"", 4
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while len(data) < wanted:
                if not selector.select(max(0.0, until - time.monotonic())):
                    return None
                try:
                    some = os.read(self.process.stdout.fileno(), 1 << 16)
                except OSError as error:
                    raise _WorkerDied from error
                if not some:
                    raise _WorkerDied
                data += some
                if len(data) >= 4:
                    wanted = 4 + int(struct.unpack(">I", data[:4])[0])
        message: dict[str, Any] = json.loads(data[4:])
        return message

    def cpu_s(self) -> float | None:
        """Processor time used so far; ``None`` where the system does not tell."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            return None

    def kill(self) -> None:
        """Kill and reap; any number of times, from any thread."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """:meth:`kill`, and close its pipes; only for the one thread that uses it."""
        self.kill()
        self.abandon()

    def abandon(self) -> None:
        """Close the pipes without touching the process (after a fork it belongs to the parent)."""
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


class WorkerPool:
    """At most ``settings.workers`` tasks at one time, from any thread. Processes start with the first task."""

    def __init__(self, settings: PoolSettings) -> None:
        self.settings = settings
        self._reset()
        _pools.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._all: set[_Worker] = set()
        self._spare: _Worker | None = None
        # Last in, first out: a warm worker is taken before a None, which stands for one that has not been started.
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(self.settings.workers):
            self._idle.put(None)
        self._closed = False

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, task: str, arguments: list[Any], *, deadline_s: float) -> Outcome:
        """Do a task. Takes at most ``deadline_s`` from the moment a worker has it; never raises for the input.

        The input is held responsible for a worker that dies only when a second worker dies too.
        """
        try:
            # One place for each worker: getting one is the permission to use a process.
            worker = self._idle.get(timeout=self.settings.queue_timeout_s)
        except queue.Empty:
            waited = f"no grading worker was free within {self.settings.queue_timeout_s:g} s"
            return Outcome(status="unavailable", detail=waited)
        try:
            until: float | None = None
            for attempt in (1, 2):
                worker = self._ready(worker)
                # The deadline starts when the first worker is ready, and is not extended for the second.
                if until is None:
                    until = time.monotonic() + _KILL_AT * deadline_s
                left = max(0.05, until - time.monotonic())
                before = worker.cpu_s()
                try:
                    reply = worker.ask(task, arguments, left)
                except _WorkerDied:
                    self._drop(worker)
                    worker = None
                    if attempt == 1 and time.monotonic() < until:
                        continue
                    return Outcome(status="died", detail="the grading process died")
                if reply is None:
                    starved = _starved(before, worker.cpu_s(), left)
                    self._drop(worker)
                    worker = None
                    return starved or Outcome(status="deadline", detail=f"not graded within {deadline_s:g} s")
                if "error" in reply:
                    return Outcome(status="error", detail=reply["error"])
                return Outcome(status="ok", value=reply["value"])
            raise AssertionError("unreachable")
        except (RollError, OSError) as error:
            worker = None
            return Outcome(status="unavailable", detail=str(error))
        except BaseException:
            # Ctrl-C, say: the reply to this task is still to come, and must not answer the next one.
            if worker is not None:
                self._drop(worker)
                worker = None
            raise
        finally:
            self._give_back(worker)

    def _ready(self, worker: _Worker | None) -> _Worker:
        """A ready worker: this one, the spare, or a new one. Starts a new spare where there is none."""
        if worker is None or worker.process.poll() is not None:
            if worker is not None:
                self._drop(worker)
            with self._lock:
                worker, self._spare = self._spare, None
            worker = worker if worker is not None and worker.process.poll() is None else self._start()
        try:
            worker.wait_ready(self.settings.start_timeout_s)
        except BaseException:
            self._drop(worker)
            raise
        with self._lock:
            wanting = self._spare is None and not self._closed
        if wanting:
            # Outside of the lock, since starting a process takes long; another thread may have been quicker.
            fresh = self._start()
            with self._lock:
                kept = self._spare is None
                if kept:
                    self._spare = fresh
            if not kept:
                self._drop(fresh)
        return worker

    def _start(self) -> _Worker:
        with self._lock:
            if self._closed:
                raise RollError("this pool of grading workers is closed")
            worker = _Worker(self.settings)
            self._all.add(worker)
        return worker

    def _drop(self, worker: _Worker) -> None:
        with self._lock:
            self._all.discard(worker)
        worker.end()

    def _give_back(self, worker: _Worker | None) -> None:
        if worker is not None and (worker.used >= self.settings.uses or self._closed):
            self._drop(worker)
            worker = None
        self._idle.put(worker)

    def close(self) -> None:
        """Kill every process, those at work too; any number of times. Later tasks are ``unavailable``."""
        with self._lock:
            self._closed = True
            workers, spare = list(self._all), self._spare
            self._all, self._spare = set(), None
        if spare is not None:
            spare.end()
        for worker in workers:
            worker.kill()  # the thread that waits for its reply sees the end of the pipe and closes its descriptors
        places = 0
        with contextlib.suppress(queue.Empty):
            while True:
                idle = self._idle.get_nowait()
                places += 1
                if idle is not None:
                    idle.end()
        for _ in range(places):
            self._idle.put(None)  # a later call finds a place, and is told that the pool is closed

    def _after_fork(self) -> None:
        """Reset the pool in a child made by ``os.fork``: the processes belong to the parent and are left alone."""
        workers, closed = list(self._all), self._closed
        self._reset()
        self._closed = closed
        for worker in workers:
            worker.abandon()


def _starved(before: float | None, after: float | None, deadline_s: float) -> Outcome | None:
    if before is None or after is None or after - before >= _MIN_CPU_SHARE * deadline_s:
        return None
    used = f"used {after - before:.1f} s of processor time in {deadline_s:.1f} s"
    return Outcome(status="unavailable", detail=f"the machine is too busy: a grading worker {used}")


_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()
_shared: dict[PoolSettings, WorkerPool] = {}
_shared_lock = threading.Lock()


def shared_pool(settings: PoolSettings) -> WorkerPool:
    """The pool of this process for ``settings``, shared by all verifiers."""
    with _shared_lock:
        pool = _shared.get(settings)
        if pool is None or pool._closed:
            pool = _shared[settings] = WorkerPool(settings)
        return pool


def close_shared_pools() -> None:
    """End all shared workers now (else they end with the process); the next task starts new ones."""
    with _shared_lock:
        pools = list(_shared.values())
        _shared.clear()
    for pool in pools:
        pool.close()


def _start_over() -> None:
    global _shared_lock
    # A lock that another thread of the parent held at the fork would stay locked for ever.
    _shared_lock = threading.Lock()
    for pool in list(_pools):
        pool._after_fork()


def _end_all() -> None:
    for pool in list(_pools):
        pool.close()


_after_fork: Callable[..., None] | None = getattr(os, "register_at_fork", None)
if _after_fork is not None:
    _after_fork(after_in_child=_start_over)
atexit.register(_end_all)
