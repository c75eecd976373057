"""The trusted processes of a slot: the supervisor, outside of the jail, and the zygote, the jail's first process.

The supervisor starts the jail, waits, and removes what is left. It holds no secret (it was started with an empty
environment) and never handles a program. It exits when the jail exits, and kills the jail when the process that started
it is gone, also after a kill -9 of that process.

The zygote imports modules once, then forks a process for each run. It never reads a program: requests, outputs and
files pass between the caller and the run (``init``) directly, so that nothing of one run stays in the memory that the
next is forked from.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any

from . import kernel, wire
from .cgroup import Cgroup, remove_folders
from .files import wipe
from .jail import LocalJail, build_tree, enter_tree
from .program import Script
from .runs import GoneError, Runs, SocketLink, ending, serve_runs, serve_session
from .workspace import Workspace


def main() -> None:
    """Entry: the channel is standard input; the plan is the first message.

    Raises :class:`Untrusted` in the process of a run.
    """
    work = socket.socket(fileno=os.dup(0))
    os.dup2(2, 0)
    _reset_signals_and_limits()
    with ending(SocketLink(work)):
        plan, _ = wire.receive(work)
        if plan is not None:
            _supervise(plan, work)


def _reset_signals_and_limits() -> None:
    """Undo the signal mask and ignored signals inherited from the calling thread, and allow enough open files.

    An inherited SIG_IGN of SIGCHLD would reap children before they are waited for, and programs would inherit the rest.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:  # which Python itself ignores
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft <= kernel.ZYGOTE_NAMESPACE_FD < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (kernel.ZYGOTE_NAMESPACE_FD + 1, hard))


def _supervise(plan: Mapping[str, Any], work: socket.socket) -> None:
    # A pidfd cannot come to mean another process; the check excludes that the id was reused before it was opened.
    owner = -1
    with contextlib.suppress(ProcessLookupError):
        owner = os.pidfd_open(plan["owner"])
    if owner < 0 or plan["owner"] != os.getppid():  # it ended before we could look
        _clean_up(plan)
        return
    kernel.subreaper()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        ours.close()
        os.close(owner)
        _become_zygote(plan, work, theirs.detach())
        return
    theirs.close()
    # ``ours`` stays open: the jail notices by its hang-up that the supervisor has ended.
    jail = child if plan["workspace"] is not None else _follow(child, plan, ours)
    if not jail:
        return  # the reason has been sent already
    work.close()
    select.select([owner, os.pidfd_open(jail)], [], [])
    with contextlib.suppress(ProcessLookupError):
        os.kill(jail, signal.SIGKILL)
    _clean_up(plan)


def _clean_up(plan: Mapping[str, Any]) -> None:
    """Remove what the owner made for the slot, when all that could use it has ended."""
    if plan["workspace"] is not None:  # without a PID namespace its processes outlive the jail's first process
        kernel.kill_all()
        with contextlib.suppress(OSError):
            wipe(plan["workspace"]["folder"])
            os.rmdir(plan["workspace"]["folder"])
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    remove_folders(plan["cgroup"].values())


def _follow(child: int, plan: Mapping[str, Any], ours: socket.socket) -> int:
    """Wait until ``child`` has forked the zygote: ``unshare(CLONE_NEWPID)`` applies to the next child only.

    Returns its process id; 0 where it could not be made.

    The process between ends at once, and the zygote becomes a child of the supervisor, which is its subreaper.
    """
    said = ours.recv(64)
    if said == b"map":
        for name, text in plan["maps"].items():
            with open(f"/proc/{child}/{name}", "w", encoding="ascii") as file:
                file.write(text)
        ours.send(b"mapped")
        said = ours.recv(64)
    os.waitpid(child, 0)
    return int(said or 0)


def _become_zygote(plan: Mapping[str, Any], work: socket.socket, supervisor: int) -> None:
    """Say to the supervisor "map" when this process waits for its id maps, then the process id of the zygote."""
    zygote = Zygote(plan, work, supervisor)
    if plan["workspace"] is None:
        zygote.unshare()
        child = os.fork()
        if child:
            os.write(supervisor, b"%d" % child)
            return
    zygote.serve()


_RAN = 3
"""Exit code of an init that has carried out a run; after a session it is 0."""


class Zygote:
    """State of the zygote process; ``unshare`` is called in its parent, ``serve`` in the process itself."""

    def __init__(self, plan: Mapping[str, Any], work: socket.socket, alive: int) -> None:
        self._plan = plan
        # ``alive`` is a socket whose other end only the supervisor holds: it hangs up when the supervisor ends.
        self._link = SocketLink(work, alive)
        self._serial = 1
        """Number of the run or session that an init carries out or waits for."""
        self._cgroup = Cgroup(plan["cgroup"]) if plan["cgroup"] else None
        self._calls = bytes.fromhex(plan["seccomp"])
        self._workspace = Workspace(plan["workspace"], self._calls) if plan["workspace"] else None
        self._many_users: bool = plan["many_users"]
        self._last_pid: int | None = None

    def unshare(self) -> None:
        """Create new namespaces for the next child, owned by a new user namespace, in which this process has all
        capabilities.

        As root the file tree of the jail is built before: it may show folders that only root can reach.
        """
        os.umask(0o022)
        if self._many_users:
            # A mount namespace of its own first: the bind mounts of the tree must not appear on the host.
            kernel.unshare(kernel.NEWNS)
            build_tree(self._plan)
        kernel.unshare(kernel.NAMESPACES)
        os.write(self._link.alive, b"map")  # only a process outside the user namespace may map several
        if os.read(self._link.alive, 64) != b"mapped":
            raise OSError("the users of the namespace could not be mapped")
        if self._many_users:
            # Until the maps are written all ids are 65534; afterwards 0 of this namespace is an unused id outside.
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
            os.setgroups([])

    def serve(self) -> None:
        """Enter the jail and fork runs until the caller or the supervisor is gone."""
        if self._workspace is None:
            self._enter_namespaces()
        else:
            kernel.subreaper()  # orphans of programs become children of this process
            os.setpgid(0, 0)
        kernel.dumpable(False)  # programs of the same user may not trace it or read its /proc entries
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        kernel.drop_bounding_set()
        # The first entry is the folder of the trusted code (see slot), which programs must not import from.
        sys.path[:] = [path for path in sys.path[1:] if os.path.isdir(path)] + list(self._plan["packages"])
        for name in self._plan["preload"]:
            importlib.import_module(name)
        _pipes_for_streams()
        wire.send(self._link.work, {"event": "up"})
        self._loop()

    def _enter_namespaces(self) -> None:
        socket.sethostname("sandbox")
        if not self._many_users:
            build_tree(self._plan)
        with contextlib.suppress(OSError):  # not on every kernel; process ids of programs then count up from run to run
            self._last_pid = os.open("/proc/sys/kernel/ns_last_pid", os.O_WRONLY)
        enter_tree(hidden=self._many_users)

    def _loop(self) -> None:
        script = Script()
        kernel.no_new_privileges()
        if self._workspace is None:
            here = os.open("/proc/self/ns/pid", os.O_RDONLY)
            os.dup2(here, kernel.ZYGOTE_NAMESPACE_FD, inheritable=False)
            os.close(here)
            kernel.set_seccomp(self._calls)
        # Objects made up to here are never collected: the collector would write to pages that forks share.
        gc.collect()
        gc.freeze()
        if self._many_users and self._cgroup is not None and self._workspace is None:
            self._serve_here(script)
        else:  # each run or session gets a PID namespace of its own, whose first process waits for the order
            while self._watch(self._fork_init(script)) is not None:
                pass

    def _serve_here(self, script: Script) -> None:
        """Runs share the zygote's PID namespace; each session gets one of its own."""
        os.setpgid(0, 0)  # kill(0) of a program reaches the jail only
        jail = LocalJail(self._cgroup, None, many_users=True, shared=True, last_pid=self._last_pid)
        runs = Runs(script, self._link, jail)
        while (order := serve_runs(runs, self._link)) is not None:
            self._serial = order["init"]
            status = self._watch(self._fork_init(script, order))
            while status == 0 or (status is not None and os.WIFSIGNALED(status)):
                # After a session another often follows, so an init that can serve either is set up, until a run
                # takes it.
                status = self._watch(self._fork_init(script))
            if status is None:
                return
            kernel.setns(kernel.ZYGOTE_NAMESPACE_FD, kernel.NEWPID)

    def _fork_init(self, script: Script, order: dict[str, Any] | None = None) -> int:
        """The first process of a new namespace, for a run or a session."""
        if self._workspace is None:
            # unshare(NEWPID) fails unless the caller is in its own namespace.
            kernel.setns(kernel.ZYGOTE_NAMESPACE_FD, kernel.NEWPID)
            kernel.unshare(kernel.NEWPID)
        if self._cgroup is not None:
            self._cgroup.begin()
        run = os.fork()
        if run == 0:
            if self._workspace is None:
                os.close(kernel.ZYGOTE_NAMESPACE_FD)
            os.close(self._link.alive)
            self._serve_one(script, order)
        return run

    def _serve_one(self, script: Script, order: dict[str, Any] | None) -> None:
        """An init: set up the place, wait for the order (unless given), carry it out, and exit."""
        jail = LocalJail(self._cgroup, self._workspace, many_users=self._many_users)
        runs = Runs(script, SocketLink(self._link.work), jail)
        with ending(runs.link, runs):
            jail.prepare()
            runs.make()
            message, fds = (order, []) if order else runs.link.receive()
            # Meant for the last init, which was killed before it read it: the notice of that was its answer.
            while message is not None and (
                message["order"] not in ("run", "session") or message["init"] != self._serial
            ):
                wire.close_all(fds)
                message, fds = runs.link.receive()
            if message is None:
                return
            if message["order"] == "session":
                serve_session(runs, message)
                return
            shown = runs.run(message, fds)
            if shown and jail.workspace is not None:
                # "fetched", or the caller is gone: only then may the next init clear the folder. A "stop" that came
                # when the run had ended may stand before it.
                while message is not None and message["order"] != "fetched":
                    message, _ = wire.receive(self._link.work)
            os._exit(_RAN)

    def _watch(self, init: int) -> int | None:
        """Wait for the end of an init and report it; returns its wait status, or ``None`` where it failed."""
        ended = os.pidfd_open(init)
        ready, _, _ = select.select([ended, self._link.alive], [], [])
        os.close(ended)
        os.kill(init, signal.SIGKILL)  # changes nothing where it has ended; its id is its own until it is reaped
        status = os.waitpid(init, 0)[1]
        if self._workspace is not None:
            kernel.kill_all()  # init was killed, perhaps before it could kill these
        if self._link.alive in ready:
            raise GoneError
        report: dict[str, Any] = {"event": "gone", "serial": self._serial, "status": status}
        if self._cgroup is not None:
            report |= {"oom": self._cgroup.oom_kills(), "peak": self._cgroup.peak_bytes()}
        wire.send(self._link.work, report)  # raises, which ends this process too, where the caller is gone
        self._serial += 1
        return status if os.WIFSIGNALED(status) or os.WEXITSTATUS(status) in (0, _RAN) else None


def _pipes_for_streams() -> None:
    """Open 0, 1 and 2, so that stream objects can be made before the fork; each program replaces the descriptors."""
    reader, writer = os.pipe()
    for place, fd in ((0, reader), (1, writer), (2, writer)):
        os.dup2(fd, place)
    os.close(reader)
    os.close(writer)
