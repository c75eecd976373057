"""What engines in servers share: the process of a server, and asking it over HTTP from many threads at once.

A server's process ends with this one, however that ends. Which routes there are, and what is sent to them, is the
engine's own affair.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import threading
import urllib.parse
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeVar

import aiohttp

from roll_envs.chat_api import RETRY_STATUSES, retry_after_s
from roll_envs.errors import EngineError

T = TypeVar("T")

ROUTE_TIMEOUT_S = 300.0
"""Longest wait for a route that does not sample."""

_BUSY = frozenset({425, 429, 503, 529})
"""Statuses of requests that were not begun with; after another failure it may be half done."""
_CANCELS = 4
"""So many times, a second apart, what runs is cancelled when a client is closed."""


class ServerFaultError(EngineError):
    """A request went wrong at the server or on the way; it says nothing about the request, which may be asked again."""

    pause_s = 0.0
    """How long the server asks to wait before that."""


class ServerBusyError(ServerFaultError):
    """A server refused a request for the moment, and did nothing of what was asked."""


class ServerRefusalError(EngineError):
    """A server refused what was asked, and would refuse it again."""

    status = 0
    """The HTTP status."""


class Server:
    """A server that is started by a command, and can be started again; without a command, one that others run."""

    def __init__(
        self,
        url: str,
        command: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        log: str | None = None,
        folder: TemporaryDirectory[str] | None = None,
        cpus: Sequence[int] = (),
    ) -> None:
        """The command must end its process group when its standard input ends. ``log`` takes all that it prints; None
        keeps it in ``folder``, which is removed in the end. It runs on the processors ``cpus``; none: on any."""
        self.url, self._command, self._environment, self._folder = url, command, environment, folder
        self._cpus = cpus
        self._log = log or (f"{folder.name}/log" if folder else os.devnull)
        self._process: subprocess.Popen[bytes] | None = None
        self._claim: socket.socket | None = None

    @property
    def can_answer(self) -> bool:
        """Whether it may still come to answer."""
        return not self._command or (self._process is not None and self._process.poll() is None)

    def asked_through(self, client: ServerClient) -> Callable[..., Awaitable[Any]]:
        """What asks it: :meth:`ServerClient.ask` without the address."""
        return partial(client.ask, self.url)

    def start(self) -> None:
        """Start it, or end what is left of the last one and start it again. Raises :class:`EngineError`."""
        self.stop()
        if not self._command:
            return
        try:
            self._claim_port()
            with open(self._log, "ab") as log:
                # The pipe closes when this process ends, however it ends. A process group of its own: Ctrl-C is ours
                # to handle, and all that the server starts is ended with it.
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._environment,
                    process_group=0,
                )
            if self._cpus:  # before it starts threads, which inherit it
                os.sched_setaffinity(self._process.pid, self._cpus)
        except OSError as error:
            self.stop()
            raise EngineError(f"the server cannot be started: {error}") from error

    def _claim_port(self) -> None:
        """Keep other trainers of this machine off the port, from now to :meth:`close`: a server binds it only when it
        has loaded, and whose server answers there cannot be told."""
        port = urllib.parse.urlsplit(self.url).port
        if port is None or self._claim is not None:
            return
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0roll-server-{port}")  # a name without a file, which ends with this process
        except OSError as error:
            claim.close()
            if error.errno != errno.EADDRINUSE:
                raise
            raise EngineError(
                f"port {port} is taken by a server that another run starts; choose another engine.port, or 0 for a "
                "free one"
            ) from None
        self._claim = claim

    @property
    def shares_port(self) -> bool:
        """Whether something else listens at the port of a server of ours, and gets some of its requests or all: servers
        allow it (SO_REUSEPORT, which vLLM sets)."""
        port = urllib.parse.urlsplit(self.url).port
        if not self._command or port is None:
            return False
        return not _listening_at(port) <= (_sockets(self._process.pid) if self._process else set())

    def stop(self) -> bool:
        """End the server and all that it started; whether there was one of ours."""
        if self._process is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process = None
        return True

    def close(self) -> None:
        """:meth:`stop`, for good."""
        self.stop()
        if self._claim is not None:
            self._claim.close()
            self._claim = None
        if self._folder is not None:
            self._folder.cleanup()

    def last_words(self) -> str:
        """How it ended, and the last lines that it printed."""
        if self._process is None:
            return "It was not started from here: start it, or check engine.url."
        ended = ""
        with contextlib.suppress(subprocess.TimeoutExpired):  # its connections may end a moment before it does
            ended = f"It ended with status {self._process.wait(timeout=0.5)}. "
        with open(self._log, encoding="utf-8", errors="replace") as log:
            lines = collections.deque(log, maxlen=20)
        return f"{ended}The last lines of its output (engine.log_file keeps it all):\n{''.join(lines)}"


class ServerClient:
    """JSON over HTTP, from an event loop in a thread of its own: a request that waits costs no thread."""

    def __init__(self, *, proxies: bool = False) -> None:
        """``proxies``: take those of HTTP_PROXY, HTTPS_PROXY and NO_PROXY."""
        self._proxies = proxies
        self._ended, self._lock = False, threading.Lock()
        self._running: set[Future[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine-client", daemon=True)
        self._thread.start()
        self._http = self.run(self._open())

    async def _open(self) -> aiohttp.ClientSession:
        # No limit: engines bound how many ask at once. Idle connections are closed before the server
        # closes them (uvicorn after 5 s), so that none ends just as a request is sent.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3)
        return aiohttp.ClientSession(connector=connector, trust_env=self._proxies)

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run ``work`` on the loop. Cancelling the future cancels it. Raises :class:`EngineError` once it is closed."""
        with self._lock:
            if not self._ended:
                future = asyncio.run_coroutine_threadsafe(work, self._loop)
                self._running.add(future)
                future.add_done_callback(self._running.discard)
                return future
        work.close()
        raise EngineError("the engine is closed")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """:meth:`start`, and wait. Raises :class:`EngineError` when it is closed meanwhile."""
        try:
            return self.start(work).result()
        except CancelledError:
            raise EngineError("the engine is closed") from None

    async def ask(
        self,
        url: str,
        path: str,
        body: Any = None,
        *,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        limit_s: float | None = None,
        patient: bool = False,
        form: Literal["json", "text"] = "json",
    ) -> Any:
        """The answer of a route in ``form``: within ``limit_s`` seconds, or however long it takes when ``patient``.

        Raises :class:`ServerFaultError` when the server cannot be reached, fails, takes too long, wants fewer requests
        or answers no JSON, and :class:`ServerRefusalError` when it refuses what was asked.
        """
        seconds = None if patient else limit_s or ROUTE_TIMEOUT_S
        limit = aiohttp.ClientTimeout(total=seconds)
        try:
            async with self._http.request(
                method, url + path, json=body, headers=headers, timeout=limit, allow_redirects=False
            ) as reply:
                if reply.status >= 300:
                    moved = reply.headers.get("Location") if reply.status < 400 else None
                    told = f"it is at {moved}" if moved else await reply.text(errors="replace")
                    raise _failure(reply.status, path, reply.headers.get("Retry-After", ""), told)
                text = await reply.text()
                return _from_json(text, path, reply.content_type) if form == "json" else text
        except TimeoutError as error:
            raise ServerFaultError(f"gave up waiting for {path} after {seconds:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError, RecursionError) as error:
            raise ServerFaultError(f"{path}: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Cancel all that runs, and end the thread. Nobody waits for what it ran after that."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(timeout=10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        for future in tuple(self._running):
            with contextlib.suppress(InvalidStateError):
                future.set_exception(EngineError("the engine is closed"))
        if not self._thread.is_alive():
            self._loop.close()

    async def _end(self) -> None:
        # What is cancelled may say so to its server first; it is cancelled again where that hangs.
        for _ in range(_CANCELS):
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            if others:
                await asyncio.wait(others, timeout=1)
        await self._http.close()


def _from_json(text: str, path: str, kind: str) -> Any:
    """What ``text``, of content type ``kind``, says in JSON; None where it is empty, as answers of some routes are."""
    try:
        return json.loads(text) if text.strip() else None
    except ValueError:
        streams = "; it streams, which it was not asked to" if kind == "text/event-stream" else ""
        raise ServerFaultError(f"{path} answered no JSON but {kind}{streams}: {text[:100]!r}") from None


def _failure(status: int, path: str, retry_after: str, told: str) -> EngineError:
    """The error for an answer that is none."""
    if status >= 500 or status in RETRY_STATUSES:
        fault = (ServerBusyError if status in _BUSY else ServerFaultError)(f"{path} answered {status}: {told[:300]}")
        fault.pause_s = retry_after_s(retry_after)
        return fault
    refusal = ServerRefusalError(f"the server refused {path} with {status}: {told[:300]}")
    refusal.status = status
    return refusal


def said(reply: Any, name: str, path: str) -> Any:
    """What the answer of a route says by ``name``. Raises :class:`ServerFaultError` where it does not."""
    try:
        return reply[name]
    except (KeyError, IndexError, TypeError):
        raise ServerFaultError(f"{path} answered without {name!r}: {str(reply)[:200]}") from None


def free_port(port: int = 0) -> int:
    """``port`` of the loopback interface if nobody uses it, or any free one for 0. Raises OSError for one in use, and
    OverflowError for one that there cannot be."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do, so that a past one does not count
        probe.bind(("127.0.0.1", port))
        return int(probe.getsockname()[1])


def _listening_at(port: int) -> set[str]:
    """The inodes of the sockets that listen at ``port`` of the loopback interface."""
    here = {"0100007F", "00000000", 32 * "0"}  # 127.0.0.1, 0.0.0.0 and [::]
    found = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/net/{table}", encoding="ascii") as lines:
            for _, local, _, state, *rest in map(str.split, lines):
                if state == "0A" and local.rpartition(":")[0] in here and int(local.rpartition(":")[2], 16) == port:
                    found.add(rest[5])
    return found


def _sockets(group: int) -> set[str]:
    """The inodes of the sockets that the processes of a group have open."""
    found = set()
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it ended, or is somebody else's
            if os.getpgid(int(process)) == group:
                for number in os.listdir(f"/proc/{process}/fd"):
                    with contextlib.suppress(OSError):
                        found.add(os.readlink(f"/proc/{process}/fd/{number}").removeprefix("socket:[").rstrip("]"))
    return found
