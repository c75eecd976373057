"""The first process of each run: makes its place, starts the program, reaps, and reports how it ended.

It is trusted, and out of the program's reach: another user with other rights, and the first process of its namespace.
It is forked and has its place ready before there is anything to run; one order, then it ends, and with it all
processes and files of the run.
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
from .family import kill_all, signal_all, tasks_of
from .files import WORK
from .ground import Ground
from .program import Script
from .ready import STARTED, become, keep_channel
from .root import mount_box, mount_proc, resize_box
from .seccomp import PRIVATE
from .untrusted import Untrusted
from .watchdog import Watchdog

__all__ = ["FILES_MB", "RAN", "Child", "Init", "NotStartedError"]

RAN = 3
"""Exit code of an init that has carried out a run, and not a session."""
FILES_MB = 64
"""Size of the file system made ahead; another one asked for is a change."""


class NotStartedError(OSError):
    """Our fault, and nothing of the program was run."""


@dataclass(kw_only=True, slots=True)
class Child:
    """A process that is or will be untrusted, and our end of the channel to it."""

    pid: int
    channel: socket.socket

    def order(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Say what to become; whether it was still there to hear it, :meth:`check_started` tells."""
        with contextlib.suppress(OSError):
            wire.send(self.channel, message, fds)

    def check_started(self, status: int | None = None, *, excused: bool = False) -> list[int]:
        """What it passed on with the word that all is ready: the working folder, where it was asked to show that.

        Raises :class:`NotStartedError` when it ended (with ``status``) before the program began, unless ``excused``.
        """
        try:
            said, fds, _, _ = socket.recv_fds(self.channel, 4096, 1)
        except ConnectionResetError:  # it ended before it took the order; what it said comes next
            said, fds, _, _ = socket.recv_fds(self.channel, 4096, 1)
        if said != STARTED and not excused:
            how = "it ended" if status is None else f"it ended with wait status {status}"
            raise NotStartedError(f"the program could not be started: {said.decode(errors='replace') or how}")
        return fds


class Init:
    """One run, or one session."""

    def __init__(
        self,
        script: Script,
        work: socket.socket,
        cgroup: Cgroup | None,
        ground: Ground | None,
        *,
        many_users: bool,
    ) -> None:
        self.work = work
        self._script = script
        self._cgroup = cgroup
        self._ground = ground
        self._owner = 0 if many_users else RUN_USER
        self.user = RUN_USER if ground is None else ground.user
        self._many_users = many_users
        self._watchdog: Watchdog | None = None
        self._files_mb = FILES_MB
        self._ready: Child | None = None
        self._begun = False
        self._others = 0

    def serve(self, sessions: Callable[[Init, dict[str, Any]], None], order: dict[str, Any] | None = None) -> NoReturn:
        """Make the place, wait for the order (where it is not there yet), carry it out.

        Raises :class:`Untrusted` in the program's process.
        """
        try:
            self._prepare()
            message, fds = (order, []) if order else wire.receive(self.work)
            while message is not None and message["order"] == "fetched":  # meant for an init that was ended meanwhile
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
        if self._ground is None:
            kernel.unshare(PRIVATE)
            mount_box(FILES_MB, self._owner, RUN_USER)
            mount_proc("/proc")
            os.chdir(WORK)
        else:
            kernel.subreaper()  # no process of the run gets away by losing its parent
            self._ground.make_place()
            if not self._ground.own_user and os.getuid() != 0:  # root's are not counted by the kernel
                self._others = tasks_of(os.getuid())
        self._ready = self._fork()

    def limit(self, limits: Mapping[str, Any]) -> None:
        """Bounds for all processes together, counted from now on."""
        memory = limits["memory_mb"] << 20
        if self._cgroup is not None:
            self._cgroup.limit(memory, limits["processes"] + 1)
        if self._cgroup is None or self._ground is not None:
            self._watchdog = Watchdog(limits, self._ground, memory=self._cgroup is None)
        if self._ground is None and limits["files_mb"] != self._files_mb:
            resize_box(limits["files_mb"], self._owner)
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
        if self._ground is None:
            return 0 if self._many_users else 3  # the zygote and its kind
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
        status, resident = self._wait_for(child.pid)
        wall_s = time.monotonic() - started
        kill_all()
        usage = self.usage()
        child.check_started(status, excused=bool(usage["oom"]))
        if self._cgroup is None or usage["peak"] is None:
            usage["peak"] = max(usage["peak"] or 0, resident)  # a short run ends between two looks
        shown = [os.open(".", os.O_RDONLY | os.O_DIRECTORY)] if message["show_work"] else []
        wire.send(self.work, {"event": "done", "status": status, "wall_s": wall_s, **usage}, shown)
        if shown and self._ground is not None:
            wire.receive(self.work)  # "fetched", or the caller is gone: only then may the next init clear the ground

    def take_ready(self) -> Child:
        """A process that waits for its order; usually it has been waiting for a while."""
        child = self._ready or self._fork()
        self._ready = None
        self._begun = True
        return child

    def _fork(self) -> Child:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            if self._ground is not None:
                os.setsid()  # signals to "my group" and "my session" stay there
            keep_channel(theirs, self._ground)
            script, ground, many_users = self._script, self._ground, self._many_users
            raise Untrusted(lambda: become(script, ground, many_users=many_users))
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
                pid, status, usage = os.wait4(-1, 0 if self._watchdog is None else os.WNOHANG)
                if pid == child:
                    return status, usage.ru_maxrss << 10
                if pid == 0:
                    break
