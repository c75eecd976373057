"""A session of the local sandbox: one jail for as long as it is open."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from roll_envs.errors import ConfigError, SandboxError
from roll_envs.sandbox import Isolation, Limits, RunResult, SandboxSession

from .inside import wire
from .output import Output
from .programs import check_limits, check_path
from .results import cell_result
from .slot import Slot, read_plain

__all__ = ["LocalSession"]


class LocalSession(SandboxSession):
    """Made by :meth:`LocalSandbox.session`.

    Python cells share one interpreter, which a cell that hits a limit or ends its process loses; cells of other
    languages are programs of their own. Files, and processes left in the background, stay until the end.
    """

    def __init__(
        self,
        slot: Slot,
        *,
        head: Mapping[str, Any],
        limits: Limits,
        isolation: Isolation,
        give_back: Callable[[Slot], None],
    ) -> None:
        self._slot = slot
        self._limits = limits
        self._isolation = isolation
        self._give_back = give_back
        self._lost = False
        self._cells = 0
        # Until it has begun there is nothing to close: who opens it gives the slot back when this raises.
        self._closed = True
        slot.begin()
        slot.order({"order": "session", **head, "limits": asdict(limits)})
        slot.answer()
        self._closed = False

    def run(self, source: str, *, limits: Limits | None = None) -> RunResult:
        limits = self._limits if limits is None else limits
        check_limits(limits)
        self._check_open()
        self._cells += 1
        with contextlib.closing(Output(limits.output_bytes)) as output:
            # In a memory file: a message of the channel must not be longer than 64 KB.
            payload = wire.pack({}, [source.encode("utf-8", "surrogatepass")])
            try:
                order = {"order": "cell", "serial": self._cells, "limits": asdict(limits)}
                self._slot.order(order, (payload, *output.writers))
            finally:
                os.close(payload)
            output.close_writers()
            ended = self._slot.wait_for_end(output, limits.wall_s, lambda: self._slot.order({"order": "stop"}))
        # No report: the kernel killed init with the programs, and the session with it.
        self._lost = ended.report is None
        return cell_result(ended, self._isolation)

    def upload(self, path: str, content: bytes) -> None:
        path = check_path(path, "upload")
        self._check_open()
        fd = wire.sealed(content)
        try:
            self._slot.order({"order": "write", "path": path}, (fd,))
        finally:
            os.close(fd)
        message, _ = self._slot.answer(30.0)
        if message["event"] == "refused":
            raise ConfigError(f"upload: {path!r} cannot be written ({message['text']})")

    def download(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        path = check_path(path, "download")
        self._check_open()
        self._slot.order({"order": "read", "path": path})
        message, fds = self._slot.answer()
        if message["event"] == "refused":
            raise ConfigError(f"download: {path!r}: {message['text']}")
        content = read_plain(fds[0], max_bytes)
        if content is None:
            raise ConfigError(f"download: {path!r} is longer than max_bytes={max_bytes}")
        return content

    def _check_open(self) -> None:
        if self._closed or self._slot.dead:
            raise SandboxError("the session is closed; open a new one")
        if self._lost:
            raise SandboxError("the session was ended by the memory limit; open a new one")

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if not self._slot.dead:
                self._slot.end()
            self._give_back(self._slot)

    def __del__(self) -> None:
        # At the end of the interpreter, parts of what close() uses may be gone.
        with contextlib.suppress(Exception):
            self.close()
