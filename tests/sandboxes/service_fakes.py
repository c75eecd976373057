"""A sandbox for tests of the service and its client, and a service in a thread that uses it.

Programs are run by a plain subprocess, without any local_sandbox, so these tests hold no hostile ones. A first line
``#word`` makes the sandbox itself do something: ``#echo`` (stdin and files come back, no process), ``#sleep S``,
``#fault``, ``#fault-once``, ``#bug``, ``#stuck``, ``#refuse``, ``#status timeout``, ``#half-dead``, ``#compile-error``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest

from roll_envs.errors import ConfigError, SandboxError
from roll_envs.sandbox import (
    Isolation,
    Language,
    Limits,
    Program,
    RunResult,
    Sandbox,
    SandboxSession,
    make_sandbox,
)
from sandboxes.service.app import make_app
from sandboxes.service.server import ReportingServer, make_server
from sandboxes.service.settings import Settings

NONE = Isolation(tier="fake", layers=(), missing=("everything",))


class FakeSandbox(Sandbox):
    """See above. ``made`` and ``closed`` count all of them; ``faults`` are those that ``#fault-once`` has had;
    ``limits`` are those of programs, sessions and cells, in order."""

    made = 0
    closed = 0
    slow_s = 0.0
    ran: list[str]
    limits: list[Limits]
    faults: set[str]
    lock = threading.Lock()

    def __init__(self, *, slots: int = 1) -> None:
        time.sleep(FakeSandbox.slow_s)
        with FakeSandbox.lock:
            FakeSandbox.made += 1
        self._over = threading.Event()

    @classmethod
    def reset(cls) -> None:
        cls.made = cls.closed = 0
        cls.slow_s = 0.0
        cls.ran, cls.limits, cls.faults = [], [], set()

    def run(self, program: Program, *, limits: Limits | None = None, timeout_s: float = 60.0) -> RunResult:
        limits = limits or Limits()
        if self._over.is_set():
            raise SandboxError("closed")
        FakeSandbox.ran.append(program.source)
        FakeSandbox.limits.append(limits)
        first, _, _ = program.source.partition("\n")
        word, _, rest = first.partition(" ")
        if word == "#echo":
            files = {path: program.files[path] for path in program.fetch if path in program.files}
            return _result(limits, stdout=program.stdin, stderr=repr(program.arguments).encode(), files=files)
        if word == "#status":
            return RunResult(status=rest, exit_code=None, signal=9, isolation=NONE)  # type: ignore[arg-type]
        if word == "#half-dead":
            return RunResult(status="error", exit_code=None, stdout=b"so far", isolation=NONE)
        if word == "#compile-error":
            failed = RunResult(status="error", exit_code=1, stderr=b"expected ';'", isolation=NONE)
            return RunResult(status="error", exit_code=None, isolation=NONE, compile=failed)
        self._act(word, rest)
        return _subprocess(program, limits)

    def _act(self, word: str, rest: str) -> None:
        if word == "#fault" or (word == "#fault-once" and rest not in FakeSandbox.faults):
            FakeSandbox.faults.add(rest)
            raise SandboxError("the worker died")
        if word == "#bug":
            raise RuntimeError("a bug of the backend")
        if word == "#refuse":
            raise ConfigError("no compiler is installed")
        if word == "#sleep" and self._over.wait(float(rest)):
            raise SandboxError("closed while it ran")
        if word == "#stuck":
            time.sleep(float(rest))

    def session(self, *, language: Language = "python", limits: Limits | None = None) -> SandboxSession:
        if self._over.is_set():
            raise SandboxError("closed")
        FakeSandbox.limits.append(limits or Limits())
        return FakeSession(self, limits or Limits())

    def close(self) -> None:
        if not self._over.is_set():
            self._over.set()
            with FakeSandbox.lock:
                FakeSandbox.closed += 1


class FakeSession(SandboxSession):
    """Runs cells in this process; good for a few trusted lines."""

    def __init__(self, sandbox: FakeSandbox, limits: Limits) -> None:
        self._sandbox, self._limits = sandbox, limits
        self._names: dict[str, Any] = {}
        self._files: dict[str, bytes] = {}

    def run(self, source: str, *, limits: Limits | None = None) -> RunResult:
        word, _, rest = source.partition("\n")[0].partition(" ")
        if word == "#status":
            return RunResult(status=rest, exit_code=None, signal=9, isolation=NONE)  # type: ignore[arg-type]
        if word == "#half-dead":
            return RunResult(status="error", exit_code=None, isolation=NONE)
        if "notebook_displays" in source:  # what the service runs beside the cells would change this process
            return _result(limits or self._limits, stdout=b"[]")
        FakeSandbox.limits.append(limits or self._limits)
        self._sandbox._act(word, rest)
        shown: list[str] = []
        self._names["print"] = lambda *words: shown.append(" ".join(map(str, words)) + "\n")
        self._names["files"] = self._files
        FakeSandbox.ran.append(source)
        try:
            exec(source, self._names)
        except Exception as error:
            told = f"Traceback (most recent call last):\n  ...\n{type(error).__name__}: {error}\n"
            return RunResult(
                status="error", exit_code=1, stdout="".join(shown).encode(), stderr=told.encode(), isolation=NONE
            )
        return _result(limits or self._limits, stdout="".join(shown).encode())

    def upload(self, path: str, content: bytes) -> None:
        self._files[path] = content

    def download(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        if path not in self._files:
            raise ConfigError(f"no file {path!r}")
        if len(self._files[path]) > max_bytes:
            raise ConfigError(f"{path!r} has more than {max_bytes} bytes")
        return self._files[path]

    def close(self) -> None:
        self._names.clear()


def _result(
    limits: Limits, *, stdout: bytes, stderr: bytes = b"", files: Mapping[str, bytes] | None = None
) -> RunResult:
    kept = stdout[: limits.output_bytes]
    dropped = len(stdout) - len(kept)
    return RunResult(
        status="ok", exit_code=0, stdout=kept, stdout_dropped=dropped, stderr=stderr, isolation=NONE, files=files or {}
    )


def _subprocess(program: Program, limits: Limits) -> RunResult:
    commands = {"python": [sys.executable, "-I"], "bash": ["bash"]}
    with TemporaryDirectory() as folder:
        for path, content in {**program.files, "main": program.source.encode()}.items():
            target = Path(folder, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        command = [*commands[program.language], "main", *program.arguments]
        environ = {"PATH": os.environ["PATH"], **program.environ}
        try:
            done = subprocess.run(
                command,
                input=program.stdin,
                capture_output=True,
                cwd=folder,
                env=environ,
                timeout=limits.wall_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return RunResult(status="timeout", exit_code=None, signal=9, isolation=NONE)
        files = {path: Path(folder, path).read_bytes() for path in program.fetch if Path(folder, path).is_file()}
    code = done.returncode
    ran = _result(limits, stdout=done.stdout, stderr=done.stderr, files=files)
    if code == 0:
        return ran
    return RunResult(
        status="error",
        exit_code=code if code > 0 else None,
        signal=-code if code < 0 else None,
        stdout=ran.stdout,
        stderr=ran.stderr,
        isolation=NONE,
    )


def local_or_skip() -> Callable[[], Sandbox]:
    """Makes a sandbox with the real local sandbox; skips the test where it cannot work."""
    make = partial(make_sandbox, "local", slots=1)
    try:
        make().close()
    except SandboxError as error:
        pytest.skip(f"the local sandbox cannot work on this machine: {error}")
    return make


class Running:
    """A service that runs in a thread."""

    def __init__(self, server: ReportingServer, stop: Callable[[], None]) -> None:
        self.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        self.service, self.stop = server.service, stop
        self.connections = server.server_state.connections
        self._loop = server.loop
        parts = httpx.URL(self.url)
        self.address = (parts.host, parts.port)

    def post(
        self, path: str, body: Any, *, headers: Mapping[str, str] | None = None, timeout: float = 20
    ) -> httpx.Response:
        return httpx.post(self.url + path, json=body, headers=headers, timeout=timeout, verify=False)

    def get(self, path: str, *, headers: Mapping[str, str] | None = None) -> httpx.Response:
        return httpx.get(self.url + path, headers=headers, timeout=20, verify=False)

    def count(self, name: str, **labels: str) -> float:
        """A metric of the service, 0 where it has not been counted yet."""
        return self.service.registry.get_sample_value(f"roll_sandbox_{name}", labels) or 0

    def send(self, raw: bytes, *, timeout: float = 10) -> bytes:
        """Everything that comes back for raw bytes, until the server closes."""
        with socket.create_connection(self.address, timeout=timeout) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(raw)
            parts = []
            with contextlib.suppress(ConnectionError):
                while part := connection.recv(65536):
                    parts.append(part)
        return b"".join(parts)

    def close_sessions(self) -> None:
        """End all sessions, as their idle time would."""
        assert self._loop is not None
        sessions = self.service.sessions

        async def close() -> None:
            for name in list(sessions._open):
                await sessions.close(name)

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(timeout=10)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Wait for something that happens in the service."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.01)


@contextlib.contextmanager
def running(make: Callable[[], Sandbox] = FakeSandbox, **settings: Any) -> Iterator[Running]:
    """A service on a free port; ``settings`` as of :class:`Settings`."""
    if make is FakeSandbox:
        FakeSandbox.reset()
    chosen = Settings(**{"port": 0, "slots": 2, "drain_timeout_s": 5.0, **settings})
    server = make_server(make_app(make, chosen), chosen)
    failed: list[BaseException] = []

    def serve() -> None:
        try:
            asyncio.run(server.serve())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()

    def stop() -> None:
        server.should_exit = True
        thread.join(timeout=20)
        assert not thread.is_alive(), "the service did not stop"

    try:
        while not server.started:
            if not thread.is_alive():
                raise AssertionError(f"the service did not start: {failed}")
            time.sleep(0.005)
        yield Running(server, stop)
    finally:
        stop()


def request_bytes(path: str, body: Any, *, length: int | None = None, kind: str = "application/json") -> bytes:
    """A request as raw bytes that asks for the connection to be closed."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(content) if length is None else length}\r\n\r\n".encode() + content
