"""``POST /v1/run`` and ``/v1/sessions``: the contract of :mod:`roll_envs.sandbox` over HTTP, exact to the byte.

A limit above what the service allows is refused, not lowered: lowering it could change the result unnoticed.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from roll_envs.errors import SandboxError, check_whole
from roll_envs.sandbox import Language, Limits, Program, RunResult, SandboxSession, explained
from sandboxes.programs import check_path, check_words
from sandboxes.service.messages import Answer, Refusal, check_code, check_most, check_paths, check_sizes
from sandboxes.service.pool import CLOSE_S, OVERRUN_S, Pool, QueueFullError, Worker
from sandboxes.service.settings import Settings
from sandboxes.service.wire import decode_bytes, dump, encode_bytes, load

T = TypeVar("T")
log = logging.getLogger("roll_sandbox.sessions")

FILE_S = 30.0
LONGEST_ARGUMENTS = 64 * 1024
"""Characters of all arguments and of the environment together."""


async def run_native(pool: Pool, settings: Settings, data: dict[str, Any]) -> Answer:
    """``{program, limits?, timeout_s?}`` -> ``{result}``. Raises :class:`Refusal` and what :meth:`Pool.run` raises."""
    limits = read_limits(data.get("limits"), settings)
    if isinstance(data.get("program"), dict):
        check_sizes(data["program"])
    program: Program = load(Program, data.get("program"), "program")
    _check(program, settings)
    wait_s: float = load(float, data.get("timeout_s", settings.queue_timeout_s), "timeout_s")
    started = time.monotonic()
    result = await pool.run_program(program, limits, min(wait_s, settings.max_request_s))
    body = {"result": dump(result), "request_s": time.monotonic() - started}
    return Answer(body, outcome=result.status)


def read_limits(data: Any, settings: Settings) -> Limits:
    """The limits of a request. Raises :class:`Refusal` for malformed ones, for 0, and for those above the service's."""
    # The sandboxes keep files in memory, hence the bound of files_mb.
    most = {
        "wall_s": settings.max_run_s,
        "compile_s": settings.max_run_s,
        "memory_mb": settings.max_memory_mb,
        "processes": settings.max_processes,
        "output_bytes": settings.max_output_bytes,
        "files_mb": settings.max_memory_mb,
    }
    asked = {} if data is None else data
    limits: Limits = load(Limits, asked, "limits")
    for name, bound in most.items():
        value = getattr(limits, name)
        if name in asked and not 0 < value <= bound:
            message = f"limits.{name} must be above 0 and at most {bound:g} on this service, not {value:g}"
            raise Refusal(422, "limits", message)
    return replace(limits, **{n: min(getattr(limits, n), m) for n, m in most.items()})


def _check(program: Program, settings: Settings) -> None:
    check_code(program.source, settings, "program.source")
    check_paths(program.files, settings, "program.files")
    check_paths(program.fetch, settings, "program.fetch")
    words = [*program.arguments, *program.environ, *program.environ.values()]
    what = "program.arguments and program.environ together may have"
    check_most(what, sum(map(len, words)), LONGEST_ARGUMENTS, "characters", "too_large")
    check_words(program)


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
    """All open sessions, by random names that cannot be guessed. Each has a worker of its own, and ends when it is
    closed or has been idle too long. Methods with ``data`` answer requests."""

    def __init__(self, pool: Pool, settings: Settings) -> None:
        self._pool, self._settings = pool, settings
        self._open: dict[str, _Open] = {}
        self._opening = 0

    def __len__(self) -> int:
        return len(self._open)

    async def open(self, data: dict[str, Any]) -> Answer:
        """``{language?, limits?}`` -> ``{id, idle_s}``. Raises :class:`QueueFullError` where too many are open."""
        language: Language = load(Language, data.get("language", "python"), "language")
        limits = read_limits(data.get("limits"), self._settings)
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
        # 192 random bits: who knows the name may use the session.
        name = secrets.token_urlsafe(24)
        self._open[name] = _Open(worker, session, limits)
        return Answer({"id": name, "idle_s": self._settings.session_idle_s}, status=201, outcome="opened")

    async def run_cell(self, data: dict[str, Any], name: str) -> Answer:
        """``{source, limits?, number}`` -> ``{result}``. ``number`` counts the cells from 1: a cell that is sent again
        because its answer was lost is answered from memory, not run again."""
        source = check_code(load(str, data.get("source"), "source"), self._settings, "source")
        number = data.get("number", 0)
        check_whole("number", number)
        limits = None if data.get("limits") is None else read_limits(data["limits"], self._settings)
        opened = self._find(name)
        if number == opened.number + 1:
            wall_s = (limits or opened.limits).wall_s
            work = self._call(name, lambda session: explained(session.run(source, limits=limits)), wall_s + OVERRUN_S)
            # A task of its own, which survives a disconnect: the client will request the result again.
            opened.number, opened.cell = number, asyncio.create_task(work)
            # Otherwise asyncio logs the exception of a cell that no request waits for.
            opened.cell.add_done_callback(lambda cell: None if cell.cancelled() else cell.exception())
        if opened.cell is None or number != opened.number:
            raise Refusal(409, "order", f"the next cell of this session is number {opened.number + 1}, not {number}")
        result = await asyncio.shield(opened.cell)
        return Answer({"result": dump(result)}, outcome=result.status)

    async def move_file(self, data: dict[str, Any], name: str) -> Answer:
        """``{path, content}`` writes a file, ``{path, max_bytes?}`` reads one -> ``{content}``, in base64."""
        path = check_path(load(str, data.get("path"), "path"), "path")
        if "content" in data:
            content = decode_bytes(data["content"], "content")
            await self._call(name, lambda session: session.upload(path, content), FILE_S)
            return Answer({}, outcome="written")
        most = data.get("max_bytes", self._settings.max_body_bytes)
        check_whole("max_bytes", most)
        most = min(most, self._settings.max_body_bytes)
        found = await self._call(name, lambda session: session.download(path, max_bytes=most), FILE_S)
        return Answer({"content": encode_bytes(found)}, outcome="read")

    async def end(self, data: dict[str, Any], name: str) -> Answer:
        """Close a session; an unknown one counts as closed."""
        await self.close(name)
        return Answer({}, outcome="closed")

    async def close(self, name: str) -> None:
        """Close a session, also in the middle of a cell; unknown names are ignored."""
        opened = self._open.pop(name, None)
        if opened is not None:
            await opened.worker.close()  # and with its sandbox the session

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

    async def _call(self, name: str, job: Callable[[SandboxSession], T], timeout_s: float) -> T:
        opened = self._find(name)
        async with opened.lock:
            try:
                return await opened.worker.call(lambda _: job(opened.session), timeout_s=timeout_s)
            except SandboxError:
                await self.close(name)
                raise
            finally:
                opened.used = time.monotonic()
