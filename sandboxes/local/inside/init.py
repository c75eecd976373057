"""The first process (PID 1) of each run: sets up its file system, starts the program, reaps, and reports how it ended.

It is trusted, and the program cannot reach it: it has another user and is the first process of its namespace, so the
kernel drops signals it has no handler for. It is forked and set up before there is anything to run, carries out one
order, and exits; the kernel then ends all processes of its namespace and frees the files of the run.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from . import kernel, wire
from .cgroup import Cgroup
from .confine import RUN_USER
from .files import WORK
from .launch import STARTED, Untrusted, become, keep_only_channel
from .process_tree import kill_all, signal_all, tasks_of
from .program import Script
from .root import mount_proc, mount_run_filesystem, resize_run_filesystem
from .seccomp import PRIVATE
from .watchdog import Watchdog
from .workspace import Workspace

__all__ = ["FILES_MB", "RAN", "Child", "Init", "NotStartedError"]

RAN = 3
"""Exit code of an init that has carried out a run; after a session it is 0."""
FILES_MB = 64
"""Size of the file system that is mounted ahead of the order; a run that asks for another size remounts it."""


class NotStartedError(OSError):
    """An infrastructure failure before anything of the program was run."""


@dataclass(kw_only=True, slots=True)
class Child:
    """A process that will run untrusted code, and the trusted end of the channel to it."""

    pid: int
    channel: socket.socket

    def order(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send the order. A child that has died is noticed by :meth:`check_started`, not here."""
        with contextlib.suppress(OSError):
            wire.send(self.channel, message, fds)

    def check_started(self, status: int | None = None, *, excused: bool = False) -> list[int]:
        """Wait for :data:`STARTED`; returns the descriptors sent with it (the working folder, where that was asked
        for).

        Raises :class:`NotStartedError` when it ended (with ``status``) before the program began, unless ``excused``.
        """
        try:
            said, fds, _, _ = socket.recv_fds(self.channel, 4096, 1)
        except ConnectionResetError:  # it ended before it read the order; its error message is read by the next call
            said, fds, _, _ = socket.recv_fds(self.channel, 4096, 1)
        if said != STARTED and not excused:
            how = "it ended" if status is None else f"it ended with wait status {status}"
            raise NotStartedError(f"the program could not be started: {said.decode(errors='replace') or how}")
        return fds


class Init:
    """Carries out one run or one session."""

    def __init__(
        self,
        script: Script,
        work: socket.socket,
        cgroup: Cgroup | None,
        workspace: Workspace | None,
        *,
        many_users: bool,
    ) -> None:
        self.work = work
        self._script = script
        self._cgroup = cgroup
        self._workspace = workspace
        # Where there are two users, the top of the run's file system belongs to init, so that programs cannot rename
        # or remove its folders.
        self._owner = 0 if many_users else RUN_USER
        self.user = RUN_USER if workspace is None else workspace.user
        self._many_users = many_users
        self._watchdog: Watchdog | None = None
        self._files_mb = FILES_MB
        self._ready: Child | None = None
        self._begun = False
        self._others = 0

    def serve(self, sessions: Callable[[Init, dict[str, Any]], None], order: dict[str, Any] | None = None) -> NoReturn:
        """Set up the file system, wait for the order (unless given), carry it out.

        Raises :class:`Untrusted` in the program's process.
        """
        try:
            self._prepare()
            message, fds = (order, []) if order else wire.receive(self.work)
            # "fetched" is left in the channel where the init that it was meant for was killed before it read it.
            while message is not None and message["order"] == "fetched":
                message, fds = wire.receive(self.work)
            if message is None:
                os._exit(0)
            if message["order"] == "session":
                sessions(self, message)
                os._exit(0)
            self._run(message, fds)
            os._exit(RAN)
        except Untrusted:
            raise
        except BaseException as error:
            begun = self._begun and not isinstance(error, NotStartedError)
            with contextlib.suppress(OSError):
                fault = {"event": "fault", "text": wire.describe(error), "begun": begun}
                wire.send(self.work, fault)
            os._exit(71)

    def _prepare(self) -> None:
        kernel.parent_death_signal(signal.SIGKILL)
        os.setpgid(0, 0)  # a program's signals to "my group" stay in the jail; init has handlers for none
        if self._cgroup is not None:
            self._cgroup.join()
        if self._workspace is None:
            kernel.unshare(PRIVATE)
            mount_run_filesystem(FILES_MB, self._owner, RUN_USER)
            mount_proc("/proc")
            os.chdir(WORK)
        else:
            kernel.subreaper()  # no process of the run gets away by losing its parent
            self._workspace.make_folders()
            if not self._workspace.own_user and os.getuid() != 0:  # the kernel does not enforce RLIMIT_NPROC for root
                self._others = tasks_of(os.getuid())
        self._ready = self._fork()

    def limit(self, limits: Mapping[str, Any]) -> None:
        """Set the limits of all processes together; usage is counted from now on."""
        memory = limits["memory_mb"] << 20
        if self._cgroup is not None:
            self._cgroup.limit(memory, limits["processes"] + 1)  # init itself is in the cgroup too
        if self._cgroup is None or self._workspace is not None:
            self._watchdog = Watchdog(limits, self._workspace, memory=self._cgroup is None)
        if self._workspace is None and limits["files_mb"] != self._files_mb:
            resize_run_filesystem(limits["files_mb"], self._owner)
            self._files_mb = limits["files_mb"]

    def usage(self) -> dict[str, Any]:
        """Processes ended for want of memory, and the most memory held, since :meth:`limit`."""
        if self._cgroup is not None:
            return {"oom": self._cgroup.oom_kills(), "peak": self._cgroup.peak_bytes()}
        assert self._watchdog is not None
        return {"oom": int(self._watchdog.fired), "peak": self._watchdog.peak or None}

    @property
    def tick_ms(self) -> int | None:
        """How long one may wait before :meth:`over_limit` is asked again."""
        return None if self._watchdog is None else self._watchdog.interval_ms

    def others(self) -> int:
        """Processes and threads that count as the program's user's and are not the program's."""
        if self._workspace is None:
            return 0 if self._many_users else 3  # trusted processes of the same user, such as the zygote
        return self._others

    def over_limit(self) -> bool:
        """Look whether too much is held, where the kernel does not see to that."""
        return self._watchdog is not None and self._watchdog.exceeded()

    def _run(self, message: dict[str, Any], fds: list[int]) -> None:
        self.limit(message["limits"])
        started = time.monotonic()
        child = self.take_ready()
        child.order({**message, "order": "program", "others": self.others()}, fds)
        for fd in fds:
            os.close(fd)
        # No time limit here: the caller enforces it and has this process killed.
        status, resident = self._wait_for(child.pid)
        wall_s = time.monotonic() - started
        # Background processes end with the run: before the report, so that files no longer change when it arrives.
        kill_all()
        usage = self.usage()
        child.check_started(status, excused=bool(usage["oom"]))
        if self._cgroup is None or usage["peak"] is None:
            usage["peak"] = max(usage["peak"] or 0, resident)  # a short run ends between two polls
        shown = [os.open(".", os.O_RDONLY | os.O_DIRECTORY)] if message["show_work"] else []
        wire.send(self.work, {"event": "done", "status": status, "wall_s": wall_s, **usage}, shown)
        if shown and self._workspace is not None:
            wire.receive(self.work)  # "fetched", or the caller is gone: only then may the next init clear the folder

    def take_ready(self) -> Child:
        """The child that waits for an order; forked now if none waits."""
        child = self._ready or self._fork()
        self._ready = None
        self._begun = True
        return child

    def _fork(self) -> Child:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            if self._workspace is not None:
                os.setsid()  # signals to "my group" and "my session" stay there
            keep_only_channel(theirs, self._workspace)
            script, workspace, many_users = self._script, self._workspace, self._many_users
            raise Untrusted(lambda: become(script, workspace, many_users=many_users))
        theirs.close()
        return Child(pid=pid, channel=ours)

    def _wait_for(self, child: int) -> tuple[int, int]:
        """Reap until ``child`` has ended; its status and peak memory in bytes."""
        poll = select.poll()
        if self._watchdog is not None:
            poll.register(os.pidfd_open(child), select.POLLIN)
        while True:
            if self._watchdog is not None and not poll.poll(self.tick_ms) and self.over_limit():
                signal_all(signal.SIGKILL)
            while True:
                # Without a watchdog there is nothing to poll for, so this may block.
                pid, status, usage = os.wait4(-1, 0 if self._watchdog is None else os.WNOHANG)
                if pid == child:
                    return status, usage.ru_maxrss << 10
                if pid == 0:
                    break
