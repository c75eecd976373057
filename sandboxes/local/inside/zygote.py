"""The zygote: first process of a slot's jail. It imports once, then forks one run after the other.

It never sees a program: requests, outputs and files pass between the caller and the run (``init``) directly, so that
nothing of one run stays in the memory that the next is forked from.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any

from . import kernel, wire
from .cgroup import Cgroup
from .confine import RUN_USER
from .family import kill_all
from .ground import Ground
from .init import RAN, Init
from .program import Script
from .root import build_tree, enter_tree
from .runs import Runs
from .seccomp import ZYGOTE_NAMESPACE_FD
from .session import serve_session
from .untrusted import Untrusted

__all__ = ["Zygote"]

_NAMESPACES = (
    kernel.NEWUSER | kernel.NEWPID | kernel.NEWNS | kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS | kernel.NEWCGROUP
)


class Zygote:
    """State of the process; ``unshare`` is called in its parent, ``serve`` in itself."""

    def __init__(self, plan: Mapping[str, Any], control: socket.socket, work: socket.socket, alive: int) -> None:
        self._plan = plan
        self._control = control
        self._work = work
        self._alive = alive
        self._many_users = plan["ids"] is not None or (
            plan["ground"] is not None and plan["ground"]["user"] is not None
        )
        self._cgroup = Cgroup(plan["cgroup"]) if plan["cgroup"] else None
        self._ground = Ground(plan["ground"]) if plan["ground"] else None
        self._serial = 0
        self._last_pid: int | None = None

    def unshare(self, ask_for_ids: Callable[[], None]) -> None:
        """New namespaces for the next child, all owned by a user namespace, in which we may do what we like.

        As root the tree of the jail is built before: it may show folders that only root can reach.
        """
        user, group = os.geteuid(), os.getegid()
        os.umask(0o022)
        if self._many_users:
            kernel.unshare(kernel.NEWNS)
            build_tree(self._plan)
        kernel.unshare(_NAMESPACES)
        if self._many_users:
            ask_for_ids()
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
            os.setgroups([])
            return
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{RUN_USER} {user} 1"),
            ("gid_map", f"{RUN_USER} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w", encoding="utf-8") as file:
                file.write(text)

    def serve(self) -> None:
        """Enter the jail and fork runs until the caller or the keeper is gone. Raises :class:`Untrusted` in a run."""
        code = 71
        try:
            self._enter() if self._ground is None else self._settle()
            wire.send(self._control, {"event": "up"})
            self._loop()
            code = 0
        except Untrusted:
            raise
        except BaseException as error:
            with contextlib.suppress(OSError):
                wire.send(self._control, {"event": "fault", "text": wire.describe(error)})
        os._exit(code)

    def _settle(self) -> None:
        """Without namespaces: all we do is to be the one to whom what programs leave behind comes back."""
        kernel.subreaper()
        os.setpgid(0, 0)
        self._become_zygote()

    def _enter(self) -> None:
        _loopback_up()
        socket.sethostname("sandbox")
        if not self._many_users:
            build_tree(self._plan)
        with contextlib.suppress(OSError):  # a kernel without it: programs are no longer process 2 each time then
            self._last_pid = os.open("/proc/sys/kernel/ns_last_pid", os.O_WRONLY)
        enter_tree(self._plan["base"], hidden=self._many_users)
        self._become_zygote()

    def _become_zygote(self) -> None:
        kernel.dumpable(False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        kernel.drop_bounding_set()
        self._close_others()
        sys.path[:] = [path for path in sys.path[1:] if os.path.isdir(path)] + list(self._plan["python_paths"])
        for name in self._plan["preload"]:
            importlib.import_module(name)
        _pipes_for_streams()

    def _close_others(self) -> None:
        """Keep the channels, the keeper's sign of life and the cgroup; nothing else was meant for the jail."""
        keep = {0, 1, 2, self._control.fileno(), self._work.fileno(), self._alive}
        if self._cgroup is not None:
            keep |= self._cgroup.descriptors
        if self._last_pid is not None:
            keep.add(self._last_pid)
        if self._ground is not None:
            keep.add(self._ground.rules)
        for name in os.listdir("/proc/self/fd"):
            if int(name) not in keep:
                with contextlib.suppress(OSError):
                    os.close(int(name))

    def _loop(self) -> None:
        script = Script()
        kernel.no_new_privileges()
        if self._ground is None:
            here = os.open("/proc/self/ns/pid", os.O_RDONLY)
            os.dup2(here, ZYGOTE_NAMESPACE_FD, inheritable=False)
            os.close(here)
            kernel.set_seccomp(bytes.fromhex(self._plan["seccomp"]))
        gc.collect()
        gc.freeze()
        if self._many_users and self._cgroup is not None and self._ground is None:
            self._serve_here(script, self._cgroup)
        else:
            self._serve_apart(script)

    def _serve_here(self, script: Script, cgroup: Cgroup) -> None:
        """Runs in our own process namespace, sessions in one of their own."""
        os.setpgid(0, 0)  # a program's signals to "my group" stay in the jail
        runs = Runs(script, self._control, self._work, self._alive, cgroup, self._last_pid)
        while (order := runs.next_order()) is not None:
            self._serial = runs.serial
            status = self._watch(self._fork_init(script, order))
            while status == 0 or (status is not None and os.WIFSIGNALED(status)):
                # Sessions come one after another: a place for either waits next, until a run takes it.
                self._serial += 1
                status = self._watch(self._fork_init(script))
            if status is None:
                return
            runs.serial = self._serial
            kernel.setns(ZYGOTE_NAMESPACE_FD, kernel.NEWPID)

    def _serve_apart(self, script: Script) -> None:
        """Each run or session in a process namespace of its own, whose first process waits for the order."""
        going_on = True
        while going_on:
            self._serial += 1
            going_on = self._watch(self._fork_init(script)) is not None

    def _fork_init(self, script: Script, order: dict[str, Any] | None = None) -> int:
        """The first process of a new namespace, for a run or a session."""
        if self._ground is None:
            kernel.setns(ZYGOTE_NAMESPACE_FD, kernel.NEWPID)  # only from one's own place may one ask for another
            kernel.unshare(kernel.NEWPID)
        if self._cgroup is not None:
            self._cgroup.begin()
        run = os.fork()
        if run == 0:
            if self._ground is None:
                os.close(ZYGOTE_NAMESPACE_FD)
            self._control.close()
            os.close(self._alive)
            init = Init(script, self._work, self._cgroup, self._ground, many_users=self._many_users)
            init.serve(serve_session, order)
        return run

    def _watch(self, run: int) -> int | None:
        """Wait for the end of a run and say so; its wait status, or ``None`` when there are to be no more runs."""
        going_on = True
        ended = os.pidfd_open(run)
        poll = select.poll()
        for fd in (ended, self._control.fileno(), self._alive):
            poll.register(fd, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if ended in ready:
                break
            message = None
            if self._control.fileno() in ready:
                message, _ = wire.receive(self._control)
            if self._alive in ready or (message is None and self._control.fileno() in ready):
                going_on = False
                os.kill(run, signal.SIGKILL)
                break
            if message is not None and message["serial"] == self._serial:
                os.kill(run, signal.SIGKILL)
        os.close(ended)
        status = os.waitpid(run, 0)[1]
        if self._ground is not None:
            kill_all()  # what the run's first process could not end, because it was killed itself
        report: dict[str, Any] = {"event": "gone", "serial": self._serial, "status": status}
        if self._cgroup is not None:
            report |= {"oom": self._cgroup.oom_kills(), "peak": self._cgroup.peak_bytes()}
        with contextlib.suppress(OSError):
            wire.send(self._control, report)
        good = os.WIFSIGNALED(status) or os.WEXITSTATUS(status) in (0, RAN)
        return status if going_on and good else None


def _pipes_for_streams() -> None:
    """What the streams of programs are made over; each program's own files take their places."""
    reader, writer = os.pipe()
    for place, fd in ((0, reader), (1, writer), (2, writer)):
        os.dup2(fd, place)
    os.close(reader)
    os.close(writer)


def _loopback_up() -> None:
    """Programs may talk to themselves over 127.0.0.1; closed connections shall leave no trace for the next run."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))
    with contextlib.suppress(OSError), open("/proc/sys/net/ipv4/tcp_max_tw_buckets", "w", encoding="utf-8") as file:
        file.write("0")
