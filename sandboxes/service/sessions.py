"""Open sessions: each has a worker of its own, and ends when it is closed or has been idle too long."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable
from typing import TypeVar

from roll_envs.errors import SandboxError
from roll_envs.sandbox import Language, Limits, RunResult, SandboxSession, explained
from sandboxes.service.messages import Refusal
from sandboxes.service.pool import OVERRUN_S, DrainingError, Pool, QueueFullError, Worker
from sandboxes.service.settings import Settings

T = TypeVar("T")
log = logging.getLogger("roll_sandbox.sessions")

CLOSE_S = 30.0
FILE_S = 30.0


class _Open:
    """A session, its worker, and its last cell, kept so that a repeated request does not run it twice."""

    def __init__(self, worker: Worker, session: SandboxSession, limits: Limits) -> None:
        self.worker, self.session, self.limits = worker, session, limits
        self.lock = asyncio.Lock()
        self.used = time.monotonic()
        self.number = 0
        self.cell: asyncio.Task[RunResult] | None = None

    @property
    def busy(self) -> bool:
        return self.lock.locked() or (self.cell is not None and not self.cell.done())


class Sessions:
    """All open sessions, by random names that cannot be guessed."""

    def __init__(self, pool: Pool, settings: Settings) -> None:
        self._pool, self._settings = pool, settings
        self._open: dict[str, _Open] = {}
        self._opening = 0
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    async def open(self, language: Language, limits: Limits) -> str:
        """Open a session. Raises :class:`QueueFullError` at the limit of open sessions."""
        most = self._settings.sessions
        if len(self._open) + self._opening >= most:
            raise QueueFullError(f"{most} sessions are open already; close some, or start with more --sessions")
        self._opening += 1
        try:
            worker = await self._pool.make_extra()
            try:
                session = await worker.call(
                    lambda sandbox: sandbox.session(language=language, limits=limits), timeout_s=CLOSE_S
                )
            except BaseException:
                await worker.close()
                raise
        finally:
            self._opening -= 1
        if self._closed:
            await worker.close()
            raise DrainingError("the service is stopping and opens no sessions; ask another instance")
        # 192 random bits: who knows the name may use the session.
        name = secrets.token_urlsafe(24)
        self._open[name] = _Open(worker, session, limits)
        return name

    async def run(self, name: str, source: str, limits: Limits | None, number: int) -> RunResult:
        """Run cell ``number``; if it runs or has run already, return its result."""
        opened = self._find(name)
        if opened.cell is not None and number == opened.number:
            return await asyncio.shield(opened.cell)
        if number != opened.number + 1:
            raise Refusal(409, "order", f"the next cell of this session is number {opened.number + 1}, not {number}")
        wall_s = (limits or opened.limits).wall_s

        def job(_: object) -> RunResult:
            return explained(opened.session.run(source, limits=limits))

        # A task of its own, which survives a disconnect: the client will request the result again.
        opened.number = number
        opened.cell = asyncio.get_running_loop().create_task(self._call_locked(name, opened, job, wall_s + OVERRUN_S))
        opened.cell.add_done_callback(_mark_retrieved)
        return await asyncio.shield(opened.cell)

    async def upload(self, name: str, path: str, content: bytes) -> None:
        """Write a file."""
        opened = self._find(name)
        await self._call_locked(name, opened, lambda _: opened.session.upload(path, content), FILE_S)

    async def download(self, name: str, path: str, max_bytes: int) -> bytes:
        """Read a file."""
        opened = self._find(name)
        return await self._call_locked(
            name, opened, lambda _: opened.session.download(path, max_bytes=max_bytes), FILE_S
        )

    async def close(self, name: str) -> None:
        """Close a session, also in the middle of a cell; unknown names are ignored."""
        opened = self._open.pop(name, None)
        if opened is not None:
            await self._end(opened)

    async def close_all(self) -> None:
        """Close all sessions and open no others."""
        self._closed = True
        await asyncio.gather(*(self.close(name) for name in list(self._open)))

    async def reap(self) -> None:
        """Close idle sessions, until cancelled."""
        idle_s = self._settings.session_idle_s
        while True:
            await asyncio.sleep(min(5.0, idle_s / 4))
            now = time.monotonic()
            for name, opened in list(self._open.items()):
                if not opened.busy and now - opened.used > idle_s:
                    log.info("a session that was idle for %g s is closed", idle_s)
                    await self.close(name)

    def _find(self, name: str) -> _Open:
        opened = self._open.get(name)
        if opened is None:
            idle_s = self._settings.session_idle_s
            message = f"no such session; it was closed, not used for {idle_s:g} s, lost, or is another instance's"
            raise Refusal(404, "no_session", message)
        return opened

    async def _call_locked(self, name: str, opened: _Open, job: Callable[[object], T], timeout_s: float) -> T:
        async with opened.lock:
            opened.used = time.monotonic()
            try:
                return await opened.worker.call(job, timeout_s=timeout_s)
            except SandboxError:
                await self.close(name)
                raise
            finally:
                opened.used = time.monotonic()

    async def _end(self, opened: _Open) -> None:
        if not opened.worker.broken and (opened.worker.busy is None or opened.worker.busy.done()):
            with contextlib.suppress(Exception):  # a backend of others
                await opened.worker.call(lambda _: opened.session.close(), timeout_s=CLOSE_S)
        await opened.worker.close()


def _mark_retrieved(cell: asyncio.Task[RunResult]) -> None:
    """Retrieve the exception of a cell that no request waits for; otherwise asyncio logs it."""
    if not cell.cancelled():
        cell.exception()
