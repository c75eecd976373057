"""The first process of each run: makes its place, starts the program, reaps, and reports how it ended.

It is trusted, and out of the program's reach: another user with other rights, and the first process of its namespace.
It is forked and has its place ready before there is anything to run; one request, then it ends, and with it all
processes and files of the run.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from . import kernel, wire
from .cgroup import Cgroup
from .confine import Confinement
from .program import start_program
from .root import mount_box, mount_proc, resize_box
from .untrusted import Untrusted

__all__ = ["FILES_MB", "WORK", "Init", "kill_all"]

FILES_MB = 64
"""Size of the file system made ahead; another one asked for is a change."""
WORK = "/work"
RUN_USER = 1000


@dataclass(slots=True)
class Request:
    """What came with the order to run."""

    head: dict[str, Any]
    source: bytes
    payload: int
    stdin: int
    stdout: int
    stderr: int


class Init:
    """One run."""

    def __init__(
        self, plan: Mapping[str, Any], work: socket.socket, cgroup: Cgroup | None, *, many_users: bool
    ) -> None:
        self._plan = plan
        self._work = work
        self._cgroup = cgroup
        self._owner = 0 if many_users else RUN_USER
        self._many_users = many_users

    def serve(self) -> NoReturn:
        """Make the place, wait for the request, run it. Raises :class:`Untrusted` in the program's process."""
        try:
            self._prepare()
            message, fds = wire.receive(self._work)
            if message is None:
                os._exit(0)
            self._order(message, fds)
            os._exit(0)
        except Untrusted:
            raise
        except BaseException as error:
            with contextlib.suppress(OSError):
                wire.send(self._work, {"event": "fault", "text": wire.describe(error)})
            os._exit(71)

    def _prepare(self) -> None:
        kernel.parent_death_signal(signal.SIGKILL)
        if self._cgroup is not None:
            self._cgroup.join()
        kernel.unshare(kernel.NEWNS | kernel.NEWIPC | kernel.NEWUTS | kernel.NEWCGROUP)
        mount_box(FILES_MB, self._owner, RUN_USER)
        mount_proc("/proc")
        os.chdir(WORK)

    def _order(self, message: dict[str, Any], fds: list[int]) -> None:
        payload, stdin, stdout, stderr = fds
        head, blobs = wire.unpack(payload)
        limits = head["limits"]
        if self._cgroup is not None:
            self._cgroup.limit(limits["memory_mb"] << 20, limits["processes"] + 1)
        if limits["files_mb"] != FILES_MB:
            resize_box(limits["files_mb"], self._owner)
        source = next(blobs)
        write_new(head["main"], source)
        for name, content in zip(head["files"], blobs, strict=True):
            write_new(name, content)
        request = Request(head=head, source=source, payload=payload, stdin=stdin, stdout=stdout, stderr=stderr)
        started = time.monotonic()
        child = self._fork(request)
        for fd in fds:
            os.close(fd)
        status, peak = wait_for(child)
        wall_s = time.monotonic() - started
        kill_all()
        report: dict[str, Any] = {"event": "done", "status": status, "wall_s": wall_s, "peak": peak, "oom": 0}
        if self._cgroup is not None:
            report |= {"oom": self._cgroup.oom_kills(), "peak": self._cgroup.peak_bytes() or peak}
        names, fetched = collect(head["fetch"], head["fetch_bytes"])
        report["files"] = names
        wire.send(self._work, report, () if fetched is None else (fetched,))

    def _fork(self, request: Request) -> int:
        child = os.fork()
        if child == 0:
            confinement = Confinement(
                limits=request.head["limits"], filter_hex=self._plan["seccomp"], many_users=self._many_users
            )
            os.dup2(request.stdin, 0)
            os.dup2(request.stdout, 1)
            os.dup2(request.stderr, 2)
            confinement.enter()
            raise Untrusted(lambda: start_program(request.head, request.source))
        return child


def write_new(name: str, content: bytes) -> None:
    """Write a file into the fresh working folder; nothing hostile has been there yet."""
    folder = os.path.dirname(name)
    if folder:
        made = ""
        for part in folder.split("/"):
            made += part + "/"
            with contextlib.suppress(FileExistsError):
                os.mkdir(made)
                os.chown(made, RUN_USER, RUN_USER)
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    try:
        os.fchown(fd, RUN_USER, RUN_USER)
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
    finally:
        os.close(fd)


def wait_for(child: int) -> tuple[int, int]:
    """Reap until ``child`` has ended; its status and peak memory in bytes."""
    while True:
        pid, status, usage = os.wait4(-1, 0)
        if pid == child:
            return status, usage.ru_maxrss << 10


def kill_all() -> None:
    """End and reap every other process of the namespace."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait4(-1, 0)


def collect(names: list[str], max_bytes: int) -> tuple[list[tuple[str, int]], int | None]:
    """The plain files among ``names`` that exist, one after the other in a memory file."""
    if not names:
        return [], None
    folder = os.open(WORK, os.O_RDONLY | os.O_DIRECTORY)
    content = os.memfd_create("fetched", os.MFD_CLOEXEC)
    found: list[tuple[str, int]] = []
    total = 0
    for name in names:
        fd = open_plain(folder, name)
        if fd is None:
            continue
        size = os.fstat(fd).st_size
        if total + size <= max_bytes:
            copied = _copy(fd, content, size)
            found.append((name, copied))
            total += copied
        os.close(fd)
    os.close(folder)
    return found, content


def open_plain(folder: int, name: str) -> int | None:
    """Open a plain file below ``folder`` for reading, through no link; ``None`` where it is not one."""
    try:
        fd = kernel.open_beneath(folder, name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            raise
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None


def _copy(source: int, target: int, size: int) -> int:
    copied = 0
    while copied < size:
        part = os.read(source, min(size - copied, 1 << 20))
        if not part:
            break
        view = memoryview(part)
        while view:
            view = view[os.write(target, view) :]
        copied += len(part)
    return copied
