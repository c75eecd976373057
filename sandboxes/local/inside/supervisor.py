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
from .process_tree import kill_all
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
            wire.send(control, {"event": "fault", "text": wire.describe(error)})
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
    # Never written to: the jail notices by its hang-up that the supervisor has ended.
    alive_read, alive_write = os.pipe()
    jail = _start_jail(plan, control, work, alive_read, (alive_write, owner))
    control.close()
    work.close()
    os.close(alive_read)
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
        kill_all()
        Workspace(plan["workspace"]).remove()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    remove_folders(plan["cgroup"].values())


def _start_jail(
    plan: Mapping[str, Any], control: socket.socket, work: socket.socket, alive: int, private: tuple[int, ...]
) -> int:
    """Fork twice: ``unshare(CLONE_NEWPID)`` applies to the next child only, and that child must be the zygote.

    The process between ends at once, and the zygote becomes a child of the supervisor, which is its subreaper.
    """
    if plan["workspace"] is not None:
        return _start_without_namespaces(plan, control, work, alive, private)
    said_read, said_write = os.pipe()
    mapped_read, mapped_write = os.pipe()
    between = os.fork()
    if between == 0:
        for fd in (*private, said_read, mapped_write):
            os.close(fd)
        zygote = Zygote(plan, control, work, alive)
        try:
            zygote.unshare(lambda: _ask_for_ids(said_write, mapped_read))
            child = os.fork()
            if child == 0:
                zygote.serve()
            os.write(said_write, b"%d\n" % child)
        except Untrusted:
            raise
        except BaseException as error:
            wire.send(control, {"event": "fault", "text": wire.describe(error)})
            os._exit(71)
        os._exit(0)
    os.close(said_write)
    os.close(mapped_read)
    said = os.fdopen(said_read)
    # The process between sends "map" when it waits for its id maps, then the zygote's process id.
    line = said.readline()
    if line == "map\n":
        _write_ids(between, plan["ids"])
        os.write(mapped_write, b"1")
        line = said.readline()
    jail = int(line or 0)
    said.close()
    os.close(mapped_write)
    os.waitpid(between, 0)
    if not jail:
        raise SystemExit(71)  # the reason has been sent already
    return jail


def _start_without_namespaces(
    plan: Mapping[str, Any], control: socket.socket, work: socket.socket, alive: int, private: tuple[int, ...]
) -> int:
    """Start the zygote where there are no namespaces: one fork is enough."""
    child = os.fork()
    if child == 0:
        for fd in private:
            os.close(fd)
        try:
            zygote = Zygote(plan, control, work, alive)
        except BaseException as error:
            wire.send(control, {"event": "fault", "text": wire.describe(error)})
            os._exit(71)
        zygote.serve()
    return child


def _ask_for_ids(said: int, mapped: int) -> None:
    """Ask the supervisor for the id maps: only a process outside the user namespace may map several ids."""
    os.write(said, b"map\n")
    if os.read(mapped, 1) != b"1":
        raise OSError("the users of the namespace could not be mapped")


def _write_ids(pid: int, ids: str) -> None:
    for name in ("uid_map", "gid_map"):
        fd = os.open(f"/proc/{pid}/{name}", os.O_WRONLY)
        try:
            os.write(fd, ids.encode())
        finally:
            os.close(fd)
