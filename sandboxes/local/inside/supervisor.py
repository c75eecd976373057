"""The supervisor: parent process of a slot's jail, outside of it. It starts the jail, waits, and removes what is left.

It holds no secret (it was started with an empty environment) and never handles a program. It exits when the jail exits,
and kills the jail when the process that started it is gone, also after a kill -9 of that process.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any

from . import kernel, wire
from .cgroup import remove_folders
from .launch import Untrusted
from .workspace import Workspace
from .zygote import Zygote


def main() -> None:
    """Entry: descriptors of both channels are arguments 1 and 2; the plan is the first message."""
    control, work = (_at_low_number(int(number)) for number in sys.argv[1:3])
    _reset_signals_and_limits()
    plan, _ = wire.receive(control)
    if plan is None:
        return
    try:
        _supervise(plan, control, work)
    except (Untrusted, SystemExit):
        raise
    except BaseException as error:
        with contextlib.suppress(OSError):
            wire.send(work, {"event": "fault", "text": wire.describe(error)})
        # 70 and 71 are EX_SOFTWARE and EX_OSERR of sysexits.h; the caller reads the message, not the code.
        raise SystemExit(70) from None


def _at_low_number(fd: int) -> socket.socket:
    """Move a channel to a low descriptor number: the inherited one may be a number that the jail uses."""
    low = os.dup(fd)
    os.close(fd)
    return socket.socket(fileno=low)


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


def _supervise(plan: Mapping[str, Any], control: socket.socket, work: socket.socket) -> None:
    # A pidfd cannot come to mean another process; the check excludes that the id was reused before it was opened.
    owner = -1
    with contextlib.suppress(ProcessLookupError):
        owner = os.pidfd_open(plan["owner"])
    if owner < 0 or plan["owner"] != os.getppid():  # it ended before we could look
        _clean_up(plan)
        raise SystemExit(0)
    kernel.subreaper()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        ours.close()
        os.close(owner)
        _become_zygote(plan, control, work, theirs.detach())
    theirs.close()
    # ``ours`` stays open: the jail notices by its hang-up that the supervisor has ended.
    jail = child if plan["workspace"] is not None else _follow(child, plan, ours)
    control.close()
    work.close()
    jail_fd = os.pidfd_open(jail)
    poll = select.poll()
    for fd in (owner, jail_fd):
        poll.register(fd, select.POLLIN)
    poll.poll()
    with contextlib.suppress(ProcessLookupError):
        os.kill(jail, signal.SIGKILL)
    _clean_up(plan)


def _clean_up(plan: Mapping[str, Any]) -> None:
    """Remove what the owner made for the slot, when all that could use it has ended."""
    if plan["workspace"] is not None:  # without a PID namespace its processes outlive the jail's first process
        kernel.kill_all()
        Workspace(plan["workspace"]).remove()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    remove_folders(plan["cgroup"].values())


def _follow(child: int, plan: Mapping[str, Any], ours: socket.socket) -> int:
    """Wait until ``child`` has forked the zygote: ``unshare(CLONE_NEWPID)`` applies to the next child only.

    The process between ends at once, and the zygote becomes a child of the supervisor, which is its subreaper.
    """
    said = ours.recv(64)
    if said == b"map":
        _write_ids(child, plan["ids"])
        ours.send(b"mapped")
        said = ours.recv(64)
    os.waitpid(child, 0)
    if not said:
        raise SystemExit(71)  # the reason has been sent already
    return int(said)


def _become_zygote(plan: Mapping[str, Any], control: socket.socket, work: socket.socket, supervisor: int) -> None:
    """Say to the supervisor "map" when this process waits for its id maps, then the process id of the zygote."""

    def ask_for_ids() -> None:  # only a process outside the user namespace may map several
        os.write(supervisor, b"map")
        if os.read(supervisor, 64) != b"mapped":
            raise OSError("the users of the namespace could not be mapped")

    try:
        zygote = Zygote(plan, control, work, supervisor)
        if plan["workspace"] is None:
            zygote.unshare(ask_for_ids)
            child = os.fork()
            if child:
                os.write(supervisor, b"%d" % child)
                os._exit(0)
    except BaseException as error:
        wire.send(work, {"event": "fault", "text": wire.describe(error)})
        os._exit(71)
    zygote.serve()


def _write_ids(pid: int, ids: str) -> None:
    for name in ("uid_map", "gid_map"):
        fd = os.open(f"/proc/{pid}/{name}", os.O_WRONLY)
        try:
            os.write(fd, ids.encode())
        finally:
            os.close(fd)
