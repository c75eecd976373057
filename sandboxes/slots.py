"""What the local and the Docker sandbox have in common: programs and sessions on a pool of slots, and their results."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from pydantic import Field

from roll_envs.errors import ConfigError, DeadlineExceededError, RollError, SandboxError
from roll_envs.recent import Recent
from roll_envs.sandbox import SANDBOX_CPUS, Language, Limits, Program, RunResult, Sandbox, SandboxSession
from sandboxes.pool import NotBegunError, Pool, Slot
from sandboxes.programs import BINARY, ROWS, Order, Place, check_limits, check_path, compile_order, opening, order

Slots = Annotated[int, Field(ge=1, le=1024)]
T = TypeVar("T")
_log = logging.getLogger("sandboxes")

_KEPT_BINARIES = 8
SESSION_WAIT_S = 60.0
"""How long :meth:`SlotSandbox.session` waits for a free slot."""
FETCH_BYTES = 256 << 20
"""Limit on the files fetched from one run, together."""


def chosen_cpus() -> tuple[int, ...]:
    """The processors that :data:`SANDBOX_CPUS` lists. Raises :class:`ConfigError` for what is none of them."""
    text = os.environ.get(SANDBOX_CPUS, "")
    there = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    try:
        numbers = tuple(int(number) for number in text.split(",")) if text else ()
    except ValueError:
        numbers = (-1,)
    if not there.issuperset(numbers):
        allowed = ",".join(map(str, sorted(there)))
        raise ConfigError(f"{SANDBOX_CPUS} is {text!r}; allowed: numbers of {allowed}, with commas between them")
    return numbers


class SlotSandbox(Sandbox):
    """Programs and sessions on a pool of slots. A subclass sets :attr:`_place` and calls :meth:`_begin`.

    Not usable after a fork of the process that made it: make a new one there.
    """

    _place: Place

    def __init__(self, slots: int | None, limits: Limits | None) -> None:
        self._count = os.cpu_count() or 1 if slots is None else slots
        self._limits = check_limits(limits or Limits())
        self._pid = os.getpid()
        self._binaries: Recent[bytes, RunResult] = Recent(_KEPT_BINARIES)

    def _begin(self, make: Callable[[Any], Slot], count: int, timeout_s: float) -> Slot:
        """The first of ``count`` slots that are made. ``make`` must not hold the sandbox, or it would live for ever."""
        self._pool: Pool = Pool(make, self._count)
        self._finalizer = weakref.finalize(self, _close, self._pool, os.getpid())
        try:
            slot = self._pool.acquire(self._shape(self._limits), timeout_s, ahead=count - 1)
        except BaseException:
            self._finalizer()
            raise
        self._pool.release(slot)
        return slot

    def _shape(self, limits: Limits) -> Hashable:
        """What a slot is made for and cannot change later; slots of another shape are replaced."""
        return None

    def run(self, program: Program, *, limits: Limits | None = None, timeout_s: float = 60.0) -> RunResult:
        limits = check_limits(limits or self._limits)
        deadline = time.monotonic() + timeout_s
        shape = self._shape(limits)
        asked = order(program, limits, self._place)

        def run(what: Order) -> RunResult:
            return self._run(shape, what, deadline, timeout_s)

        if not ROWS[program.language].compile:
            return run(asked)
        # The tests of one answer are runs of one program.
        key = hashlib.sha256(repr((program.language, program.source, sorted(program.files.items()))).encode()).digest()
        compiled = self._binaries.get(key) or run(compile_order(program, limits, self._place))
        if compiled.ok:
            self._binaries.keep(key, compiled)
        binary = compiled.files.get(BINARY)
        # The binary is passed on below; it is no file that the caller asked for.
        compiled = replace(compiled, files={})
        if not compiled.ok or binary is None:
            return replace(compiled, compile=compiled)
        return replace(run(order(program, limits, self._place, binary)), compile=compiled)

    def _run(self, shape: Hashable, asked: Order, deadline: float, timeout_s: float) -> RunResult:
        def attempt(slot: Slot) -> RunResult:
            wall_s = min(asked.limits.wall_s, max(0.0, deadline - time.monotonic()))
            ended = slot.run(asked, wall_s)
            # Ended by the caller's deadline, not by the program's own limit: that is no verdict on the program.
            if ended.killed_for == "timeout" and wall_s < asked.limits.wall_s:
                self._pool.release(slot)
                raise DeadlineExceededError("a program in the sandbox (its own limit is longer)", timeout_s)
            return ended.result(slot.isolation)

        slot, result = self._on_a_slot(shape, deadline, attempt)
        self._pool.release(slot)
        if result.signal == signal.SIGKILL and result.status == "error":
            # By itself, or from outside (an administrator, the machine's own lack of memory)? The kernel does not say,
            # so only a program that ends like this twice has done it itself.
            _log.info("a program was ended by SIGKILL; it is run once more")
            slot, result = self._on_a_slot(shape, deadline, attempt)
            self._pool.release(slot)
        return result

    def _on_a_slot(self, shape: Hashable, deadline: float, do: Callable[[Slot], T]) -> tuple[Slot, T]:
        """``do`` on a free slot, or on a second one when the first failed before the program began."""
        for last in (False, True):
            self._check_process()
            slot = self._pool.acquire(shape, round(max(0.0, deadline - time.monotonic()), 3))
            try:
                return slot, do(slot)
            except DeadlineExceededError:
                raise
            except BaseException as error:
                slot.close()  # after an interruption, too, its state is unknown
                self._pool.release(slot)
                if last or not isinstance(error, NotBegunError):
                    raise
                _log.warning("%s; it is given to another slot", error)
        raise AssertionError("unreachable")

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise SandboxError(f"this sandbox belongs to process {self._pid}, which forked; make a new one here")

    def session(self, *, language: Language = "python", limits: Limits | None = None) -> SlotSession:
        limits = check_limits(limits or self._limits)
        message = opening(language, limits, self._place)
        deadline = time.monotonic() + SESSION_WAIT_S
        slot, _ = self._on_a_slot(self._shape(limits), deadline, lambda slot: slot.ask(message))
        return SlotSession(self, slot, limits)

    def close(self) -> None:
        """Close all slots; runs and sessions in progress in other threads raise :class:`SandboxError`."""
        self._finalizer()


def _close(pool: Pool, owner: int) -> None:
    # In a fork of the process that made them the slots still belong to that process.
    if os.getpid() == owner:
        pool.close()


class SlotSession(SandboxSession):
    """Holds a slot until it is closed, and keeps the sandbox alive.

    Python cells share one interpreter, which a cell that hits a limit or ends its process loses; cells of other
    languages are programs of their own. Files, and processes left in the background, stay until the end.
    """

    def __init__(self, sandbox: SlotSandbox, slot: Slot, limits: Limits) -> None:
        self._sandbox, self._slot, self._limits = sandbox, slot, limits
        self._lost = self._closed = False
        self._cells = 0
        self._in_use = threading.Lock()

    def run(self, source: str, *, limits: Limits | None = None) -> RunResult:
        limits = check_limits(limits or self._limits)
        with self._open() as slot:
            if self._sandbox._shape(replace(limits, memory_mb=self._limits.memory_mb)) != slot.shape:
                raise ConfigError(
                    f"limits: processes={limits.processes} and files_mb={limits.files_mb} differ from the session's "
                    f"({self._limits.processes}, {self._limits.files_mb}), which are fixed when it is opened"
                )
            self._cells += 1
            message, parts = {"order": "cell", "serial": self._cells}, [[source.encode("utf-8", "surrogatepass")]]
            ended = slot.run(Order(message=message, parts=parts, limits=limits), limits.wall_s)
            # No report: the kernel killed what answers with the programs, and the session with it.
            self._lost = ended.report is None
            return ended.result(slot.isolation)

    def upload(self, path: str, content: bytes) -> None:
        with self._open() as slot:
            answer, _ = slot.ask({"order": "write", "path": check_path(path, "upload")}, content)
        if "text" in answer:
            raise ConfigError(f"upload: {path!r} cannot be written ({answer['text']})")

    def download(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        with self._open() as slot:
            message = {"order": "read", "path": check_path(path, "download"), "max_bytes": max_bytes}
            answer, content = slot.ask(message)
        if answer.get("size", 0) > max_bytes:
            answer["text"] = f"it is longer than max_bytes={max_bytes}"
        if "text" in answer:
            raise ConfigError(f"download: {path!r} cannot be read ({answer['text']})")
        return content

    @contextlib.contextmanager
    def _open(self) -> Iterator[Slot]:
        if not self._in_use.acquire(blocking=False):
            raise ConfigError("another thread uses this session at this moment; open a session for each thread")
        try:
            self._sandbox._check_process()
            if self._lost:
                raise SandboxError("the session was ended by the memory limit; open a new one")
            if self._closed or not self._slot.alive:
                raise SandboxError("the session is closed, or its slot was lost, and its files with it; open another")
            yield self._slot
        except RollError:
            raise
        except BaseException as error:
            self._slot.close()  # after an interruption, the answer to its order would be taken for that to the next
            if self._closed and isinstance(error, OSError | ValueError):  # of the slot's sockets
                raise SandboxError("another thread closed the session while it was used") from error
            raise
        finally:
            self._in_use.release()

    def close(self) -> None:
        # In a fork the session still belongs to the process that opened it.
        if not self._closed and os.getpid() == self._sandbox._pid:
            self._closed = True
            if self._in_use.locked():
                self._slot.close()  # the thread that uses it gets a SandboxError
            elif self._slot.alive:
                self._slot.end()
            self._sandbox._pool.release(self._slot)

    def __del__(self) -> None:
        # At the end of the interpreter, parts of what close() uses may be gone.
        with contextlib.suppress(Exception):
            self.close()
