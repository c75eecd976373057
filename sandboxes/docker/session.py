"""A session of the Docker backend: one container, kept from call to call."""

from __future__ import annotations

import contextlib
import itertools
import json
import secrets
import struct
import time
from collections.abc import Callable

from roll_envs.errors import ConfigError, SandboxError
from roll_envs.sandbox import Language, Limits, RunResult, SandboxSession
from sandboxes.docker.runs import (
    ask,
    bounds,
    clear,
    copy_in,
    copy_out,
    environment,
    out_of_memory,
    run_cell_process,
    to_result,
)
from sandboxes.docker.worker import OutOfMemoryError, Worker
from sandboxes.local.programs import check_limits, check_path

__all__ = ["DockerSession"]


class DockerSession(SandboxSession):
    """Holds a worker of the pool until it is closed.

    Background processes live on; a limit that is hit kills them all.
    """

    def __init__(self, worker: Worker, give_back: Callable[[Worker], None], language: Language, limits: Limits) -> None:
        self._worker: Worker | None = worker
        self._give_back = give_back
        self._language = language
        self._limits = limits
        self._numbers = itertools.count(1)

    def run(self, source: str, *, limits: Limits | None = None) -> RunResult:
        worker = self._open()
        limits = self._limits if limits is None else limits
        check_limits(limits)
        if limits.processes != self._limits.processes or limits.files_mb != self._limits.files_mb:
            raise ConfigError(
                f"limits: processes={limits.processes} and files_mb={limits.files_mb} differ from the session's "
                f"({self._limits.processes}, {self._limits.files_mb}), which are fixed when it is opened"
            )
        started = time.monotonic()
        try:
            worker.set_memory(limits.memory_mb)
            if self._language == "python":
                return self._cell(worker, source, limits)
            return run_cell_process(worker, source, self._language, limits)
        except OutOfMemoryError:
            self._lose()
            return out_of_memory(worker, time.monotonic() - started)
        except SandboxError:
            self._lose()
            raise

    def _cell(self, worker: Worker, source: str, limits: Limits) -> RunResult:
        text = source.encode("utf-8", "surrogatepass")
        # Not the number: a cell could guess that and report its end beforehand.
        name = secrets.token_hex(8)
        head = {"name": name, "number": next(self._numbers), "source": len(text), "environ": environment(worker, {})}
        packed = json.dumps(head).encode()
        header = {"do": "cell", "name": name, **bounds(limits.wall_s, limits.output_bytes)}
        reply = ask(worker, header, [struct.pack("!I", len(packed)), packed, text])
        return to_result(reply, worker)

    def upload(self, path: str, content: bytes) -> None:
        copy_in(self._open(), check_path(path, "path"), content)

    def download(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        (found,) = copy_out(self._open(), [check_path(path, "path")], max_bytes)
        if found is None:
            raise ConfigError(f"{path!r} is not a plain file below the working folder (links are not followed)")
        if isinstance(found, int):
            raise ConfigError(f"{path!r} has {found} bytes, more than max_bytes={max_bytes}")
        return found

    def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            with contextlib.suppress(SandboxError, OutOfMemoryError):  # the pool notices a dead worker
                clear(worker)
            self._give_back(worker)

    def _open(self) -> Worker:
        if self._worker is None:
            raise SandboxError("the session is closed, or its container was lost, and its files with it; open another")
        return self._worker

    def _lose(self) -> None:
        """Give up the container, which cannot be used any more."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.retire()
            self._give_back(worker)
