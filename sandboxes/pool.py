"""A slot, which is a place for one program at a time, and a pool of a fixed number of them, each made or not yet.

Slots are made in threads of the pool, never in the thread that waits, so that a slow engine cannot make it miss
its deadline.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from roll_envs.errors import ConfigError, DeadlineExceededError, RollError, SandboxError
from roll_envs.sandbox import Isolation, RunResult, RunStatus
from sandboxes.programs import Order


class NotBegunError(SandboxError):
    """A slot failed before anything of the program was run, so that the run can be repeated on another."""


@dataclass(kw_only=True, slots=True)
class Ended:
    """The raw outcome of a run or a cell."""

    report: Mapping[str, Any] | None = None
    """``status`` as of ``wait`` (``None`` for a cell that a limit ended), and ``wall_s``; ``None`` when nobody was left
    to report."""
    killed_for: str = ""
    """The limit for which it was killed from outside: ``timeout``, ``output`` or empty."""
    oom: int = 0
    peak: int | None = None
    wall_s: float = 0.0
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_dropped: int = 0
    stderr_dropped: int = 0
    files: dict[str, bytes] = field(default_factory=dict)

    def result(self, isolation: Isolation) -> RunResult:
        """A limit that ended the program takes precedence over its exit status."""
        report = self.report or {}
        raw = report.get("status")
        code = os.WEXITSTATUS(raw) if raw is not None and os.WIFEXITED(raw) else None
        by = os.WTERMSIG(raw) if raw is not None and os.WIFSIGNALED(raw) else None
        status: RunStatus = "ok" if code == 0 else "error"
        # Any out-of-memory kill counts, also of a child of a program that then went on.
        if self.oom:
            status = "memory"
        # A program that ended by itself while the kill was on its way keeps its own status.
        elif self.killed_for and code is None and by in (None, signal.SIGKILL):
            status = "output" if self.killed_for == "output" else "timeout"
        # From RLIMIT_CPU, which follows from the wall limit (see inside.launch).
        elif by == signal.SIGXCPU:
            status = "timeout"
        # Nobody was left to report its status, since all were killed together.
        if status in ("memory", "output", "timeout") and code is None and by is None:
            by = int(signal.SIGKILL)
        return RunResult(
            status=status,
            exit_code=code,
            signal=by,
            stdout=self.stdout,
            stderr=self.stderr,
            stdout_dropped=self.stdout_dropped,
            stderr_dropped=self.stderr_dropped,
            # By the clock that ended it, which began before the one inside did.
            wall_s=self.wall_s if self.killed_for else report.get("wall_s", self.wall_s),
            memory_peak_mb=None if self.peak is None else self.peak / (1 << 20),
            isolation=isolation,
            files=self.files,
        )


class Slot(Protocol):
    """A place for one program at a time, owned by one thread at a time.

    A :class:`SandboxError` from it means that it can be used no more; :class:`NotBegunError`, that nothing was run.
    """

    isolation: Isolation

    @property
    def shape(self) -> Hashable: ...
    @property
    def alive(self) -> bool: ...
    def run(self, order: Order, wall_s: float) -> Ended:
        """Run a program, or a cell of the session, to its end; ``wall_s`` may be less than the limit of the order."""

    def ask(self, message: Mapping[str, Any], content: bytes | None = None) -> tuple[dict[str, Any], bytes]:
        """Begin a session, write a file in it (``content``), or read one: the answer, and the file.

        The answer has a ``text`` where that cannot be done, and the ``size`` of a file, which is left out where it is
        more than ``max_bytes`` of the message.
        """

    def end(self) -> None:
        """End the session; closes the slot if that fails."""

    def close(self) -> None: ...


class Pool:
    """Hands out slots, one to a caller; thread-safe. ``make`` is called from several threads at once."""

    def __init__(self, make: Callable[[Hashable], Slot], slots: int) -> None:
        self._make = make
        self._slots = slots
        self._changed = threading.Condition()
        self._idle: list[Slot] = []
        self._busy: set[Slot] = set()
        self._making = 0
        self._begun = 0
        self._failure: BaseException | None = None
        self._failed = 0
        """Number of the attempt that ended with ``_failure``."""
        self._closed = False
        self._threads: list[threading.Thread] = []
        """Those that make and close slots, which may be slow; only :meth:`close` waits for them."""

    def acquire(self, shape: Hashable, timeout_s: float, ahead: int = 0) -> Slot:
        """A slot of that shape, for this caller alone; :meth:`release` it.

        One that has died, or has another shape, is replaced; ``ahead`` more are made meanwhile. Raises what making one
        raised, and :class:`DeadlineExceededError` when none was free in time.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            begun = self._begun
            for _ in range(ahead):
                self._start_making(shape)
            while True:
                if self._closed:
                    raise SandboxError("the sandbox is closed; make a new one")
                # A failure of an attempt that began before this call says nothing about the engine now.
                failed = self._failed > begun
                slot = self._take(shape, may_make=not failed)
                if slot is not None:
                    self._busy.add(slot)
                    return slot
                if failed and self._failure is not None:
                    raise _copy_of(self._failure) from self._failure
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not self._changed.wait(left_s):
                    raise DeadlineExceededError(f"a free slot: one of {self._slots} sandbox slots", timeout_s)

    def release(self, slot: Slot) -> None:
        """Return a slot; a dead one is discarded, and a new one is made for the next caller."""
        alive = slot.alive
        with self._changed:
            self._busy.discard(slot)
            if self._closed:  # by close(); and the interpreter may be ending, which starts no thread any more
                return
            if alive:
                self._idle.append(slot)
            else:
                self._in_thread(slot.close)
                self._start_making(slot.shape)
            self._changed.notify_all()

    def close(self, timeout_s: float = 30.0) -> None:
        """Close all; callers whose slot is busy get :class:`SandboxError`."""
        with self._changed:
            self._closed = True
            slots = [*self._idle, *self._busy]
            self._idle.clear()
            threads = list(self._threads)
            self._changed.notify_all()
        for slot in slots:
            slot.close()
        deadline = time.monotonic() + timeout_s
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    # The rest is called with the lock held, but for _make_one.

    def _take(self, shape: Hashable, *, may_make: bool) -> Slot | None:
        """An idle slot of this shape; else ``None``, and one may be made if a slot is free or of another shape."""
        other: Slot | None = None
        for slot in list(self._idle):  # the first has had most time to set up its next run
            if not slot.alive:
                self._idle.remove(slot)
                self._in_thread(slot.close)
            elif slot.shape == shape:
                self._idle.remove(slot)
                return slot
            else:
                other = slot
        if not may_make:
            return None
        if len(self._idle) + len(self._busy) + self._making < self._slots:
            self._start_making(shape)
        # This is called at every change: without the second condition each call would give up another idle slot.
        elif other is not None and not self._making:
            self._idle.remove(other)
            self._start_making(shape, instead_of=other)
        return None

    def _start_making(self, shape: Hashable, instead_of: Slot | None = None) -> None:
        self._making += 1
        self._begun += 1
        self._in_thread(self._make_one, self._begun, shape, instead_of)

    def _in_thread(self, work: Callable[..., None], *arguments: Any) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self._threads[-1].start()

    def _make_one(self, attempt: int, shape: Hashable, instead_of: Slot | None) -> None:
        slot: Slot | None = None
        failure: BaseException | None = None
        try:
            if instead_of is not None:
                instead_of.close()
            slot = self._make(shape)
        except BaseException as error:  # goes to the callers who wait
            failure = error
        with self._changed:
            self._making -= 1
            if slot is None:
                self._failure, self._failed = failure, attempt
            elif not self._closed:
                self._idle.append(slot)
                slot = None
            self._changed.notify_all()
        if slot is not None:
            slot.close()


def _copy_of(failure: BaseException) -> RollError:
    """A new exception for each caller: one that is raised twice would gather the tracebacks of both."""
    if type(failure) in (ConfigError, SandboxError):
        return type(failure)(*failure.args)  # type: ignore[return-value]
    return SandboxError(f"a slot could not be made: {type(failure).__name__}: {failure}")
