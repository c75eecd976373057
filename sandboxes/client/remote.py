"""RemoteSandbox: runs programs on the code-reward service, or on an existing SandboxFusion server.

SandboxFusion's format carries text only, has neither arguments nor an environment, and does not tell a memory limit
from another kill; what it cannot express raises :class:`~roll_envs.errors.ConfigError` instead of being left out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from roll_envs.background import EventLoopThread
from roll_envs.errors import ConfigError, DeadlineExceededError, SandboxError
from roll_envs.sandbox import Isolation, Language, Limits, Program, RunResult, RunStatus, Sandbox, SandboxSession
from sandboxes.client.retrying import Deadline, RetryingClient, TransientError, said
from sandboxes.programs import FUSION_OF, longest_s
from sandboxes.service.wire import VERSION, decode_bytes, dump, encode_bytes, load

UNKNOWN = Isolation(tier="unknown", layers=(), missing=())
"""SandboxFusion does not report the isolation of its programs."""


def fusion_request(program: Program, limits: Limits) -> dict[str, Any]:
    """The body of ``POST /run_code``."""
    if program.arguments or program.environ:
        raise ConfigError(
            "this service speaks plain SandboxFusion, which knows no arguments and no environment of a program; "
            "use `roll-sandbox serve`, or read them from stdin or a file"
        )
    try:
        stdin = program.stdin.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            "this service speaks plain SandboxFusion, whose stdin is text in UTF-8; "
            f"use `roll-sandbox serve`, or send the bytes as a file ({error})"
        ) from error
    return {
        "code": program.source,
        "language": FUSION_OF[program.language],
        "stdin": stdin,
        "files": {path: encode_bytes(content) for path, content in program.files.items()},
        "fetch_files": list(program.fetch),
        "compile_timeout": limits.compile_s,
        "run_timeout": limits.wall_s,
        "memory_limit_MB": limits.memory_mb,
    }


def fusion_result(data: Any, limits: Limits) -> RunResult:
    """The result in an answer. Raises :class:`TransientError` for ``SandboxError`` and for an answer that contradicts
    itself."""
    status, compiled, ran = data["status"], data.get("compile_result"), data.get("run_result")
    if status == "SandboxError":
        raise TransientError(f"SandboxError: {data.get('message', '')}"[:500])
    if status not in ("Success", "Failed"):
        raise TransientError(f"unknown status {status!r:.80}")
    compiler = None if compiled is None else _fusion_part(compiled, limits)
    files = {path: decode_bytes(text, f"files[{path!r}]") for path, text in (data.get("files") or {}).items()}
    if ran is not None:
        result = replace(_fusion_part(ran, limits), files=files, compile=compiler)
    elif compiler is not None and not compiler.ok:
        result = RunResult(status="error", exit_code=None, isolation=UNKNOWN, compile=compiler)
    else:
        raise TransientError(f"{status} without a result")
    if (status == "Success") != result.ok:
        raise TransientError(f"an answer that contradicts itself: {status}, but the program ended with {result.status}")
    return result


def _fusion_part(data: Mapping[str, Any], limits: Limits) -> RunResult:
    code = data.get("return_code")
    status: RunStatus
    if data["status"] == "TimeLimitExceeded":
        status, code = "timeout", None
    elif data["status"] != "Finished" or code is None:
        raise TransientError(f"a command with status {data['status']!r:.80} and return code {code!r}")
    else:
        status = "ok" if code == 0 else "error"
    streams: dict[str, Any] = {}
    for name in ("stdout", "stderr"):
        content = (data.get(name) or "").encode("utf-8", "replace")
        streams[name] = content[: limits.output_bytes]
        # Only our own service says how much it has dropped.
        streams[f"{name}_dropped"] = len(content[limits.output_bytes :]) + int(data.get(f"{name}_dropped", 0))
    return RunResult(
        status=status,
        # A negative code is the number of a signal, as in subprocess.
        exit_code=code if code is not None and code >= 0 else None,
        signal=-code if code is not None and code < 0 else None,
        wall_s=float(data.get("execution_time") or 0.0),
        isolation=UNKNOWN,
        **streams,
    )


T = TypeVar("T")

# Clients of SandboxFusion want a URL with the route; it is taken off here.
ROUTES = ("/run_code", "/v1/run")
ANSWER_S = 5.0
"""Part of the deadline kept for the way back, so that the service's own answer arrives before the client gives up."""


class RemoteSandbox(Sandbox):
    """A sandbox over HTTP. Safe to use from many threads and event loops; it can be pickled, and used after a fork.

    ``url`` is the service's, with or without ``/run_code``. After infrastructure failures (no connection, 429, 502,
    503, 504, ``SandboxError``) a request is repeated up to ``retries`` times with growing, jittered pauses, always
    within the caller's deadline; after a verdict never. ``timeout_s`` limits calls that have no limit of their own.
    ``api``: ``native``, ``fusion``, or ``auto``, which asks the server with the first call.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_s: PositiveFloat = 60.0,
        retries: NonNegativeInt = 5,
        max_connections: PositiveInt = 64,
        api: Literal["auto", "native", "fusion"] = "auto",
    ) -> None:
        """Raises :class:`ConfigError`; connects with the first call."""
        if token is not None and (not token.isascii() or not token.isprintable()):
            raise ConfigError("token must be printable ASCII, without line ends")
        self.url = _base_of(url)
        self.timeout_s, self.retries, self.max_connections = timeout_s, retries, max_connections
        self._token, self._closed = token, False
        self._api: str | None = None if api == "auto" else api
        self._reset()

    def run(self, program: Program, *, limits: Limits | None = None, timeout_s: float = 60.0) -> RunResult:
        """Run a program on the service; ``timeout_s`` limits the call with all its retries."""
        return self.wait(self._run(program, limits or Limits(), timeout_s))

    async def arun(self, program: Program, *, limits: Limits | None = None, timeout_s: float = 60.0) -> RunResult:
        """:meth:`run` without a thread per call; cancelling it ends the program there too."""
        return await self.await_(self._run(program, limits or Limits(), timeout_s))

    def session(self, *, language: Language = "python", limits: Limits | None = None) -> RemoteSession:
        """Open a session on the service. Raises :class:`ConfigError` where the server is a plain SandboxFusion."""
        return self.wait(self._session(language, limits or Limits()))

    def close(self) -> None:
        """Close the connections; requests in progress raise :class:`SandboxError`."""
        self._closed = True
        self._background.stop()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` on the loop of the connections and wait for it. Used by sessions too."""
        self._check_open(work)
        try:
            return self._background.run(work)
        except CancelledError:
            raise self._was_closed() from None

    async def await_(self, work: Coroutine[Any, Any, T]) -> T:
        """:meth:`wait` for asynchronous callers."""
        self._check_open(work)
        try:
            return await asyncio.wrap_future(self._background.submit(work))
        except asyncio.CancelledError:
            # Cancelled by close(), unless the caller's own task has been asked to end.
            task = asyncio.current_task()
            if self._closed and (task is None or not task.cancelling()):
                raise self._was_closed() from None
            raise

    def _was_closed(self) -> SandboxError:
        return SandboxError(f"this RemoteSandbox ({self.url}) has been closed")

    def __getstate__(self) -> dict[str, Any]:
        # All that is needed to connect anew; loop and connections stay in this process.
        names = ("url", "timeout_s", "retries", "max_connections", "_token", "_api", "_closed")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def _reset(self) -> None:
        self._background = EventLoopThread("remote-sandbox", self._disconnect)
        self._loop: asyncio.AbstractEventLoop | None = None

    def _check_open(self, work: Coroutine[Any, Any, Any]) -> None:
        if self._closed:
            # A coroutine that is never awaited would be reported as a mistake.
            work.close()
            raise self._was_closed()

    async def _disconnect(self) -> None:
        if self._loop is asyncio.get_running_loop():
            await self._client.close()

    def connected(self) -> RetryingClient:
        """The connections of the running loop. Used by sessions too."""
        if self._loop is not (loop := asyncio.get_running_loop()):  # in a fork, the connections are the parent's
            headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
            self._client = RetryingClient(self.url, headers, retries=self.retries, max_connections=self.max_connections)
            self._loop = loop
        return self._client

    async def _run(self, program: Program, limits: Limits, timeout_s: float) -> RunResult:
        deadline = Deadline.after(timeout_s)
        native = await self._find_api(deadline) == "native"
        path = "/v1/run" if native else "/run_code"
        asked = {"program": dump(program), "limits": dump(limits)} if native else fusion_request(program, limits)
        work_s = longest_s(program.language, limits)

        def body(left_s: float) -> dict[str, Any]:
            # How long the service may wait for a slot: what is left after the work itself and the way back.
            wait_s = max(0.0, left_s - min(ANSWER_S, left_s / 4) - work_s)
            return {**asked, "timeout_s": wait_s} if native else asked

        def read(reply: httpx.Response) -> RunResult:
            return _result_of(reply) if native else fusion_result(_json_of(reply), limits)

        return await self.connected().request("POST", path, body, read, "the run of a program", deadline)

    async def _session(self, language: Language, limits: Limits) -> RemoteSession:
        deadline = Deadline.after(self.timeout_s)
        if await self._find_api(deadline) == "fusion":
            raise ConfigError(
                f"{self.url} speaks plain SandboxFusion, which keeps nothing from call to call; for sessions use "
                "`roll-sandbox serve`, or make_sandbox('local')"
            )
        asked = {"language": language, "limits": dump(limits)}

        def read(reply: httpx.Response) -> str:
            return str(_json_of(reply)["id"])

        what = "the opening of a session"
        name = await self.connected().request("POST", "/v1/sessions", lambda _: asked, read, what, deadline)
        return RemoteSession(self, name, limits)

    async def _find_api(self, deadline: Deadline) -> str:
        if self._api is None:

            def read(reply: httpx.Response) -> str:
                data = said(reply)
                # SandboxFusion has no such route: a 404, or JSON of its own.
                if data.get("service") != "roll-sandbox":
                    return "fusion"
                if data.get("api") != VERSION:
                    raise ConfigError(
                        f"{self.url} speaks version {data.get('api')!r} of the service's format, this client "
                        f"{VERSION}; install the same release on both sides"
                    )
                return "native"

            self._api = await self.connected().request("GET", "/v1/health", None, read, "the first answer", deadline)
        return self._api


class RemoteSession(SandboxSession):
    """A session on the service.

    When the answer to a cell is lost it is requested again; the cell still runs only once.
    """

    def __init__(self, sandbox: RemoteSandbox, name: str, limits: Limits) -> None:
        self._sandbox, self._limits = sandbox, limits
        self._path = f"/v1/sessions/{name}"
        self._number = 0
        self._closed = False

    def run(self, source: str, *, limits: Limits | None = None) -> RunResult:
        """Run a cell; waits ``wall_s`` and the sandbox's ``timeout_s`` for its answer."""
        return self._sandbox.wait(self._run(source, limits))

    async def arun(self, source: str, *, limits: Limits | None = None) -> RunResult:
        """:meth:`run` without a thread per call."""
        return await self._sandbox.await_(self._run(source, limits))

    def upload(self, path: str, content: bytes) -> None:
        """Write a file in the session."""
        body = {"path": path, "content": encode_bytes(content)}
        self._sandbox.wait(self._request("/files", body, lambda _: None, "the writing of a file"))

    def download(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        """Read a file of the session; the service may allow less than ``max_bytes``."""
        body = {"path": path, "max_bytes": max_bytes}
        content: bytes = self._sandbox.wait(self._request("/files", body, _content_of, "the reading of a file"))
        return content

    def close(self) -> None:
        """Close the session.

        Where the service cannot be reached it closes the session itself after its idle timeout.
        """
        if self._closed:
            return
        try:
            with contextlib.suppress(SandboxError, DeadlineExceededError):
                closing = self._request("", None, lambda _: None, "the closing of a session", method="DELETE")
                self._sandbox.wait(closing)
        finally:
            self._closed = True

    async def _run(self, source: str, limits: Limits | None) -> RunResult:
        # All attempts of one request carry the same number, by which the service knows a repeated cell.
        self._number += 1
        body = {"source": source, "number": self._number, "limits": None if limits is None else dump(limits)}
        wall_s = (limits or self._limits).wall_s
        result: RunResult = await self._request("/run", body, _result_of, "the run of a cell", wall_s)
        return result

    async def _request(
        self, route: str, body: dict[str, Any] | None, read: Any, what: str, wall_s: float = 0.0, method: str = "POST"
    ) -> Any:
        if self._closed:
            raise SandboxError("this session has been closed")

        def checked(reply: httpx.Response) -> Any:
            if reply.status_code == 404:
                told = said(reply).get("detail", "unknown there")
                raise SandboxError(f"the session at {self._sandbox.url} is lost, and what it held: {told}")
            return read(reply)

        deadline = Deadline.after(wall_s + self._sandbox.timeout_s)
        given = None if body is None else lambda _: body
        return await self._sandbox.connected().request(method, self._path + route, given, checked, what, deadline)


def _base_of(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"url must be like http://127.0.0.1:8080, not {url!r}")
    base = url.rstrip("/")
    for route in ROUTES:
        base = base.removesuffix(route)
    return base.rstrip("/")


def _json_of(reply: httpx.Response) -> Any:
    if reply.status_code == 404:
        raise ConfigError(f"{reply.url} is not there: no code-reward service and no SandboxFusion, or behind a prefix")
    return reply.json()


def _content_of(reply: httpx.Response) -> bytes:
    return decode_bytes(_json_of(reply)["content"], "content")


def _result_of(reply: httpx.Response) -> RunResult:
    result: RunResult = load(RunResult, _json_of(reply)["result"], "result")
    return result
