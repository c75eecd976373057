"""Runs in the zygote's own PID namespace: one fork for each, by the zygote itself, which reaps and reports.

This is the fast path, used where programs have a user of their own and a cgroup limits them: then no program can reach
the zygote (another user, another cgroup, the first process of the namespace, hidden in /proc), and nothing is left in
the namespace once all its processes are reaped. Each run has fresh mount, System V IPC, host name and cgroup
namespaces. The zygote sees limits and statuses; never sources, input, files or output.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from typing import Any

from . import kernel, wire
from .cgroup import Cgroup
from .confine import RUN_USER
from .files import WORK
from .init import FILES_MB, Child, NotStartedError
from .launch import Untrusted, become, keep_only_channel
from .process_tree import kill_all
from .program import Script
from .root import mount_run_filesystem
from .seccomp import PRIVATE

__all__ = ["Runs"]

REAP_MS = 20
"""How often orphans of a program are reaped while it runs."""
# Waiting processes lost one after the other before the slot gives up: then something outside kills each of them.
_MAX_LOST = 3


class Runs:
    """Carries out one run after the other; the process of the next run is set up before its order comes."""

    def __init__(
        self,
        script: Script,
        control: socket.socket,
        work: socket.socket,
        alive: int,
        cgroup: Cgroup,
        last_pid: int | None,
    ) -> None:
        self._script = script
        self._control = control
        self._work = work
        self._alive = alive
        self._cgroup = cgroup
        self._last_pid = last_pid
        self._files_mb = FILES_MB
        self._ready: Child | None = None
        self.serial = 0

    def next_order(self) -> dict[str, Any] | None:
        """Carry out runs until another order comes, which is returned; ``None`` when the other side is gone."""
        lost = 0
        while True:
            child = self._ready = self._ready or self._make()
            ended = os.pidfd_open(child.pid)
            ready = self._wait(ended, self._work.fileno())
            os.close(ended)
            if self._alive in ready or (self._control.fileno() in ready and not self._kill_requested(0)):
                return None
            if ended in ready:  # killed while waiting, from outside the sandbox
                lost += 1
                self._reap_lost(child, lost)
            elif self._work.fileno() in ready:
                message, fds = wire.receive(self._work)
                if message is None:
                    return None
                self.serial += 1
                if message["order"] != "run":
                    self.clear()
                    return message
                self._run(message, fds)
                lost = 0

    def clear(self) -> None:
        """Kill the process that waits for an order."""
        kill_all()
        if self._ready is not None:
            self._ready.channel.close()
            self._ready = None

    def _reap_lost(self, child: Child, lost: int) -> None:
        said = child.channel.recv(4096, socket.MSG_DONTWAIT)
        self.clear()
        if said or lost == _MAX_LOST:
            raise OSError(f"no process can be set up for a program: {said.decode(errors='replace') or 'it is killed'}")

    def _make(self) -> Child:
        """Fork the process of the next program; it mounts its file system, drops its privileges, and waits."""
        self._cgroup.reset_memory_limit()
        if self._last_pid is not None:
            # Each program gets process id 2, which tells nothing about runs before it.
            os.pwrite(self._last_pid, b"1", 0)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid:
            theirs.close()
            return Child(pid=pid, channel=ours)
        try:
            for channel in (ours, self._control, self._work):
                # keep_only_channel closes the numbers; objects freed later must not close what reuses them.
                channel.detach()
            # Before the cgroup namespace is made below, whose root is the group that the process is in then.
            self._cgroup.join()
            kernel.unshare(PRIVATE)
            mount_run_filesystem(self._files_mb, 0, RUN_USER)
            os.chdir(WORK)
        except BaseException as error:
            theirs.send(wire.describe(error).encode()[:4096])
            os._exit(71)
        keep_only_channel(theirs)
        script = self._script
        raise Untrusted(lambda: become(script, None, many_users=True))

    def _run(self, message: dict[str, Any], fds: list[int]) -> None:
        limits = message["limits"]
        if limits["files_mb"] != self._files_mb:  # the next run probably has the same limits
            self._files_mb = limits["files_mb"]
            self.clear()
        child = self._ready or self._make()
        self._ready = None
        self._cgroup.limit(limits["memory_mb"] << 20, limits["processes"])
        started = time.monotonic()
        child.order({**message, "order": "program", "others": 0}, fds)
        for fd in fds:
            os.close(fd)
        status, resident = self._wait_for(child.pid)
        wall_s = time.monotonic() - started
        kill_all()
        usage: dict[str, Any] = {"oom": self._cgroup.oom_kills(), "peak": self._cgroup.peak_bytes()}
        if status is None:
            child.channel.close()
            wire.send(self._control, {"event": "gone", "serial": self.serial, "status": int(signal.SIGKILL), **usage})
            return
        if usage["peak"] is None:
            usage["peak"] = resident
        try:
            folder = child.check_started(status, excused=bool(usage["oom"]))
        except NotStartedError as error:
            wire.send(self._work, {"event": "fault", "text": wire.describe(error), "begun": False})
            return
        wire.send(self._work, {"event": "done", "status": status, "wall_s": wall_s, **usage}, folder)
        for fd in folder:
            os.close(fd)
        child.channel.close()

    def _wait_for(self, child: int) -> tuple[int | None, int]:
        """Reap until ``child`` has ended; its status (``None``: kill was ordered) and peak memory in bytes."""
        ended = os.pidfd_open(child)
        try:
            while True:
                ready = self._wait(ended, timeout_ms=REAP_MS)
                if self._alive in ready:
                    os._exit(0)
                if self._control.fileno() in ready and self._kill_requested(self.serial):
                    return None, 0
                while True:
                    pid, status, usage = os.wait4(-1, os.WNOHANG)
                    if pid == child:
                        return status, usage.ru_maxrss << 10
                    if pid == 0:
                        break
        finally:
            os.close(ended)

    def _wait(self, *fds: int, timeout_ms: int | None = None) -> list[int]:
        poll = select.poll()
        for fd in (*fds, self._control.fileno(), self._alive):
            poll.register(fd, select.POLLIN)
        return [fd for fd, _ in poll.poll(timeout_ms)]

    def _kill_requested(self, serial: int) -> bool:
        """Whether the caller wants run ``serial`` to be killed. With 0: whether the caller is still there."""
        message, _ = wire.receive(self._control)
        if message is None:
            if serial:
                os._exit(0)
            return False
        return serial in (0, message["serial"])
