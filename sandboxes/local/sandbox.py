"""``LocalSandbox``: a pool of slots on this machine, each with a jail."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import logging
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from roll_envs.errors import ConfigError, DeadlineExceededError, SandboxError
from roll_envs.sandbox import Isolation, Language, Limits, Program, RunResult, Sandbox, SandboxSession
from sandboxes.languages import BINARY, ROWS

from .host import View, executable, installed_languages, view_of_host
from .programs import Order, check_limits, compile_order, order, session_head
from .results import run_result
from .session import LocalSession
from .slot import Ended, NotBegunError, Slot
from .tiers import TIERS, Candidate, Tier, candidates

__all__ = ["LocalSandbox"]

_log = logging.getLogger(__name__)

_KEPT_BINARIES = 8
SESSION_WAIT_S = 60.0
"""How long :meth:`LocalSandbox.session` waits for a free slot."""


class LocalSandbox(Sandbox):
    """Runs programs in jails on this machine; see docs/sandboxes.md for what that guarantees.

    ``slots``: programs at one time (default: one per processor). ``limits``: for runs that bring none.
    ``languages``: default all that are installed. ``python_paths``: folders that programs may import from, shown
    read-only; ``preload``: modules that are imported ahead, so that programs find them ready.
    ``minimum_isolation``: the weakest tier to accept, one of ``TIERS``; where only a weaker one works the constructor
    raises :class:`SandboxError`, which says what is missing.

    Not usable after a fork of the process that made it: make a new one there.
    """

    def __init__(
        self,
        *,
        slots: int | None = None,
        limits: Limits | None = None,
        languages: Sequence[Language] | None = None,
        python_paths: Sequence[str] = (),
        preload: Sequence[str] = (),
        minimum_isolation: Tier = "full",
        weakest_tier: Tier | None = None,
    ) -> None:
        if weakest_tier is not None:  # its former name
            raise ConfigError(f"weakest_tier={weakest_tier!r}: this argument is now called minimum_isolation")
        self._count = _slots(slots)
        self._limits = limits or Limits()
        check_limits(self._limits)
        if minimum_isolation not in TIERS:
            raise ConfigError(f"minimum_isolation={minimum_isolation!r}: allowed are {', '.join(TIERS)}")
        self._view = view_of_host(installed_languages() if languages is None else languages, python_paths)
        self._pid = os.getpid()
        self._free = threading.Condition()
        self._idle: collections.deque[Slot] = collections.deque()
        self._made = 0
        self._closed = False
        self._binaries: collections.OrderedDict[bytes, RunResult] = collections.OrderedDict()
        self._slots: set[Slot] = set()
        # It gets the set of slots, not self: that reference would keep the sandbox alive for ever.
        self._finalizer = weakref.finalize(self, _close_all, self._slots, os.getpid())
        self._chosen = self._choose_isolation(minimum_isolation, preload)

    def _choose_isolation(self, minimum: Tier, preload: Sequence[str]) -> Candidate:
        """Start the first slot with the strongest tier that works here; raise if that is below the minimum."""
        failed = []
        view = self._view
        for candidate in candidates(view):
            self._chosen, self._view = candidate, candidate.view(view)
            self._plan = _plan(self._view, preload, candidate)
            try:
                if candidate.refused:
                    raise SandboxError(candidate.refused)
                # Whether a tier works is known only by trying: kernels and containers restrict namespaces in many
                # ways.
                with self._slot(time.monotonic() + 60.0, 60.0):
                    pass
            except SandboxError as error:
                failed.append(f"{candidate.tier!r}: {error}")
                continue
            if TIERS.index(candidate.tier) <= TIERS.index(minimum):
                return candidate
            self.close()
            why = "; ".join(failed)
            if candidate.tier == "no-cgroup":
                why = f"no cgroup can be made here ({candidate.lacking})"
            raise SandboxError(
                f"isolation {minimum!r} cannot be had here: {why}; what works here is {candidate.tier!r} "
                f"(without {', '.join(candidate.isolation.missing)}): allow it with "
                f"minimum_isolation={candidate.tier!r}, or see docs/sandboxes.md for what the stronger ones need"
            )
        raise SandboxError(f"no local sandbox works here: {'; '.join(failed)}")

    @property
    def isolation(self) -> Isolation:
        """The isolation tier in use, its layers, and the layers that are missing."""
        return self._chosen.isolation

    def run(self, program: Program, *, limits: Limits | None = None, timeout_s: float = 60.0) -> RunResult:
        limits = self._limits if limits is None else limits
        check_limits(limits)
        deadline = time.monotonic() + timeout_s
        asked = order(program, limits, self._view, executable())
        if not ROWS[program.language].compile:
            return self._run(asked, program.stdin, deadline, timeout_s)
        # The tests of one answer are runs of one program.
        key = hashlib.sha256(repr((program.language, program.source, sorted(program.files.items()))).encode()).digest()
        with self._free:
            known = self._binaries.get(key)
        compiled = known or self._run(compile_order(program, limits, self._view), b"", deadline, timeout_s)
        if compiled.ok:
            with self._free:
                self._binaries[key] = compiled
                while len(self._binaries) > _KEPT_BINARIES:
                    self._binaries.popitem(last=False)
        binary = compiled.files.get(BINARY)
        # The binary is passed on below; it is no file that the caller asked for.
        compiled = replace(compiled, files={})
        if not compiled.ok or binary is None:
            return replace(compiled, compile=compiled)
        head = {**asked.head, "executables": [BINARY], "files": [*asked.head["files"], BINARY]}
        asked = replace(asked, head=head, blobs=[*asked.blobs, binary])
        return replace(self._run(asked, program.stdin, deadline, timeout_s), compile=compiled)

    def _run(self, asked: Order, stdin: bytes, deadline: float, timeout_s: float) -> RunResult:
        try:
            ended, wall_s = self._run_once(asked, stdin, deadline, timeout_s)
        except NotBegunError as error:  # for example a waiting process was killed from outside: another slot can run it
            _log.warning("%s; it is given to another slot", error)
            ended, wall_s = self._run_once(asked, stdin, deadline, timeout_s)
        # Ended by the caller's deadline, not by the program's own limit: that is no verdict on the program.
        if ended.killed_for == "timeout" and wall_s < asked.limits.wall_s:
            raise DeadlineExceededError("a program in the local sandbox (its own limit is longer)", timeout_s)
        return run_result(ended, self._chosen.isolation)

    def _run_once(self, asked: Order, stdin: bytes, deadline: float, timeout_s: float) -> tuple[Ended, float]:
        """The outcome of a run, and the wall time that it was given."""
        with self._slot(deadline, timeout_s) as slot:
            wall_s = min(asked.limits.wall_s, max(0.0, deadline - time.monotonic()))
            return slot.run(asked, stdin=stdin, wall_s=wall_s), wall_s

    def session(self, *, language: Language = "python", limits: Limits | None = None) -> SandboxSession:
        limits = self._limits if limits is None else limits
        check_limits(limits)
        head = session_head(language, limits, self._view)
        try:
            return self._open_session(head, limits)
        except NotBegunError as error:
            _log.warning("%s; the session gets another slot", error)
            return self._open_session(head, limits)

    def _open_session(self, head: dict[str, Any], limits: Limits) -> LocalSession:
        slot = self._acquire(time.monotonic() + SESSION_WAIT_S, SESSION_WAIT_S)
        try:
            return LocalSession(
                slot, head=head, limits=limits, isolation=self._chosen.isolation, give_back=self._give_back
            )
        except BaseException:
            self._give_back(slot)
            raise

    def close(self) -> None:
        """Close all slots; runs and sessions in progress in other threads raise :class:`SandboxError`."""
        with self._free:
            self._closed = True
            self._free.notify_all()
        self._finalizer()

    @contextlib.contextmanager
    def _slot(self, deadline: float, timeout_s: float) -> Iterator[Slot]:
        slot = self._acquire(deadline, timeout_s)
        try:
            yield slot
        finally:
            self._give_back(slot)

    def _acquire(self, deadline: float, timeout_s: float) -> Slot:
        """A live slot for the caller alone; a new one where the last died."""
        slot = self._take(deadline, timeout_s)
        try:
            return slot or self._new_slot()
        except BaseException:
            # `_take` has already counted the slot that could not be made.
            self._give_back(None)
            raise

    def _take(self, deadline: float, timeout_s: float) -> Slot | None:
        """An idle slot, or ``None``: the caller may make a new one."""
        with self._free:
            while True:
                self._check_usable()
                if self._idle:
                    return self._idle.popleft()  # the one that has had most time to set up its next run
                if self._made < self._count:
                    self._made += 1
                    return None
                left = deadline - time.monotonic()
                if left <= 0 or not self._free.wait(left):
                    raise DeadlineExceededError("a free slot of the local sandbox", timeout_s)

    def _check_usable(self) -> None:
        if self._closed:
            raise SandboxError("the sandbox is closed; make a new one")
        if os.getpid() != self._pid:
            raise SandboxError(f"this sandbox belongs to process {self._pid}, which forked; make a new one here")

    def _new_slot(self) -> Slot:
        try:
            folders = {} if self._chosen.place is None else self._chosen.place.make()
        except OSError as error:
            raise SandboxError(f"no cgroup can be made any more: {error}") from None
        try:
            slot = Slot({**self._plan, **self._slot_plan()}, folders, executable())
            self._slots.add(slot)
            slot.wait_until_up()
        except BaseException:
            if self._chosen.place is not None:
                self._chosen.place.remove(folders)
            raise
        return slot

    def _slot_plan(self) -> dict[str, Any]:
        """The part of the plan that differs between slots: unused user ids, and the slot's folder."""
        # Two neighbouring ids in a high, normally unused range: for root of the namespace and for programs.
        first = 0x6000_0000 + 2 * int.from_bytes(os.urandom(3), "little")
        workspace = self._chosen.workspace
        if workspace is None:
            # Lines of uid_map and gid_map: id inside, id outside, how many (user_namespaces(7)).
            ids = f"0 {first} 1\n1000 {first + 1} 1\n" if os.geteuid() == 0 else None
            return {"ids": ids, "workspace": None}
        folder = tempfile.mkdtemp(prefix="roll-sandbox-")
        os.chmod(folder, 0o711)  # the program's user must be able to reach the folders inside, which it owns
        user = first if workspace["user"] else None
        return {
            "ids": None,
            "workspace": {**workspace, "user": user, "folder": folder, "filter": self._plan["seccomp"]},
        }

    def _give_back(self, slot: Slot | None) -> None:
        with self._free:
            if slot is None or slot.dead:
                self._made -= 1
                if slot is not None:
                    self._slots.discard(slot)
            elif self._closed:
                slot.close()
            else:
                self._idle.append(slot)
            self._free.notify()


def _slots(slots: int | None) -> int:
    count = os.cpu_count() or 1 if slots is None else slots
    if not 1 <= count <= 1024:
        raise ConfigError(f"slots={slots}: a number from 1 to 1024 is needed")
    return count


def _plan(view: View, preload: Sequence[str], candidate: Candidate) -> dict[str, Any]:
    """The part of the plan that all slots have in common."""
    return {
        "base": view.base,
        "binds": view.binds,
        "masked": view.masked,
        "links": dict(view.links),
        "texts": dict(view.texts),
        "python_paths": view.packages,
        "preload": [*PRELOADED, *preload],
        "seccomp": candidate.filter(),
    }


PRELOADED = (
    "abc array base64 bisect cmath collections collections.abc contextlib copy csv ctypes dataclasses datetime decimal "
    "enum fractions functools hashlib heapq inspect io itertools json math numbers operator os pathlib pickle queue "
    "random re shutil statistics string struct subprocess tempfile textwrap threading time traceback types typing uuid"
).split()
"""Modules of the standard library that are imported before a program starts."""


def _close_all(slots: set[Slot], owner: int) -> None:
    # In a fork of the process that made them the slots still belong to that process.
    if os.getpid() == owner:
        for slot in list(slots):
            slot.close()
        slots.clear()
