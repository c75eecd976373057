"""A slot: one jail with its supervisor and zygote, and the caller's side of the runs in it."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from roll_envs.errors import SandboxError

from .cgroups import remove_later
from .inside import wire
from .inside.files import open_plain
from .output import Output
from .programs import Order

__all__ = ["Ended", "NotBegunError", "Slot", "read_plain"]

_INSIDE = str(Path(__file__).parent)
# The folder of ``inside`` comes through stdin: an argument would be visible to every user in /proc. ``start`` is called
# at module level, so that no frame of the supervisor is left below the program's.
_BOOT = (
    "import sys, os; sys.path[0] = os.fsdecode(os.read(0, 4096)); os.dup2(1, 0)\n"
    "from inside import supervisor\n"
    "try:\n"
    "    supervisor.main(); start = None\n"
    "except supervisor.Untrusted as leap:\n"
    "    start = leap.start\n"
    "if start: start()\n"
)
START_S = 20.0
GRACE_S = 5.0
"""How long trusted processes may take for their own work, such as to set up a run or to kill one."""


class NotBegunError(SandboxError):
    """A slot failed before anything of the program was run, so that the run can be repeated on another."""


@dataclass(kw_only=True, slots=True)
class Ended:
    """The raw outcome of a run, from which ``results`` makes a :class:`RunResult`."""

    report: Mapping[str, Any] | None = None
    """The report of init; ``None`` when it was killed with the program."""
    killed_for: str = ""
    """The limit for which the caller killed it: ``timeout``, ``output`` or empty."""
    oom: int = 0
    peak: int | None = None
    wall_s: float = 0.0
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_dropped: int = 0
    stderr_dropped: int = 0
    folder: int | None = None
    """The open working folder, where files are to be fetched; all processes that could change them have ended."""
    files: dict[str, bytes] = field(default_factory=dict)


FETCH_BYTES = 256 << 20
"""Limit on the files fetched from one run, together."""


def read_plain(fd: int, most: int) -> bytes | None:
    """All of a plain file through an open descriptor, which is closed; ``None`` where it is too long."""
    with os.fdopen(fd, "rb") as file:
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode) or state.st_size > most:
            return None
        return file.read(state.st_size)


def _readable(channel: socket.socket, timeout_s: float) -> bool:
    """Wait for a message; with ``poll``, since the caller may have more descriptors than ``select`` can take."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    return bool(poll.poll(1000 * timeout_s))


def _fetch(folder: int, names: Sequence[str]) -> dict[str, bytes]:
    """The plain files among ``names`` below ``folder``, which is closed."""
    files: dict[str, bytes] = {}
    try:
        for name in names:
            fd = open_plain(folder, name)
            content = None if fd is None else read_plain(fd, FETCH_BYTES - sum(map(len, files.values())))
            if content is not None:
                files[name] = content
    finally:
        os.close(folder)
    return files


class Slot:
    """Owned by one thread at a time. A :class:`SandboxError` from it means that it is dead and must be replaced."""

    def __init__(self, plan: Mapping[str, Any], cgroup: Mapping[str, str], python: str) -> None:
        self.dead = False
        self._folders = list(cgroup.values())
        self._workspace: str = plan["workspace"]["folder"] if plan["workspace"] else ""
        self._serial = 0
        self._gone = 0
        # SEQPACKET keeps messages apart, as datagrams do, and reports the end of the other side, as streams do.
        control, theirs_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        work, theirs_work = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control, self._work = control, work
        fds = (theirs_control.fileno(), theirs_work.fileno())
        self._supervisor = subprocess.Popen(
            [python, "-S", "-c", _BOOT, *map(str, fds)],  # -S: no site module, so no packages of the host
            env={"LANG": "C.UTF-8"},
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=fds,
            start_new_session=True,
        )
        theirs_control.close()
        theirs_work.close()
        assert self._supervisor.stdin is not None
        # If the process has ended already, the first message below fails too and is reported.
        with contextlib.suppress(OSError), self._supervisor.stdin as stdin:
            stdin.write(os.fsencode(_INSIDE))
        try:
            wire.send(control, {**plan, "cgroup": dict(cgroup), "owner": os.getpid()})
        except OSError:
            self.close()
            raise SandboxError(f"the sandbox's own process ended at once ({python} -S -c ...)") from None

    def wait_until_up(self, timeout_s: float = START_S) -> None:
        """Raises :class:`SandboxError` with the reason where the jail could not be made."""
        self._control.settimeout(timeout_s)
        try:
            message, _ = wire.receive(self._control)
        except TimeoutError:
            message = {"event": "fault", "text": f"no sign of life within {timeout_s:g} s"}
        self._control.settimeout(None)
        if message is None or message["event"] != "up":
            reason = "it ended" if message is None else message["text"]
            self.close()
            raise SandboxError(f"the jail could not be made: {reason}")

    def run(self, order: Order, *, stdin: bytes, wall_s: float) -> Ended:
        """Run one program and wait for its end; ``wall_s`` may be less than the limit of the order."""
        self.begin()
        with contextlib.closing(Output(order.limits.output_bytes)) as output:
            with contextlib.ExitStack() as ours:
                fds = [wire.pack(order.head, order.blobs)]
                ours.callback(os.close, fds[0])
                fds.append(wire.sealed(stdin) if stdin else os.open("/dev/null", os.O_RDONLY))
                ours.callback(os.close, fds[1])
                message = {"order": "run", "limits": asdict(order.limits), "show_work": bool(order.fetch)}
                self.order(message, [*fds, *output.writers])
            output.close_writers()
            ended = self.wait_for_end(output, wall_s, self.kill)
        if ended.folder is not None:
            try:
                ended.files = _fetch(ended.folder, order.fetch)
            finally:
                if self._workspace:
                    self._confirm_fetched()
        return ended

    def _confirm_fetched(self) -> None:
        """Tell init that the files have been read: without namespaces the next run clears the folder of this one."""
        with contextlib.suppress(OSError):  # init is gone: the next order finds that out
            wire.send(self._work, {"order": "fetched"})

    def begin(self) -> None:
        """Count a new run or session; from now on the waiting init serves it."""
        self._serial += 1

    def order(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send an order to init."""
        try:
            wire.send(self._work, message, fds)
        except OSError as error:
            self._fail(f"it takes no orders ({error.strerror})", begun=False)

    def answer(self, timeout_s: float = GRACE_S) -> tuple[dict[str, Any], list[int]]:
        """The answer of init to an order that involves no program."""
        if not _readable(self._work, timeout_s):
            self._fail(f"no answer within {timeout_s:g} s")
        message, fds = wire.receive(self._work)
        if message is None or message["event"] == "fault":
            self._fail_with(message)
        return message, fds

    def wait_for_end(self, output: Output, wall_s: float, stop: Callable[[], None]) -> Ended:
        """Read the output until init reports or has ended; ``stop`` is called when a limit is reached before."""
        started = time.monotonic()
        ended = Ended()
        poll = select.poll()
        for fd in (*output.readers, self._work.fileno(), self._control.fileno()):
            poll.register(fd, select.POLLIN)
        deadline = started + wall_s
        while ended.report is None and self._gone < self._serial:
            left = deadline - time.monotonic()
            if left <= 0 or (output.flooded and not ended.killed_for):
                if ended.killed_for:
                    self._fail("its programs could not be killed")
                ended.killed_for = "output" if output.flooded else "timeout"
                # From now on only the notice that all has been killed is waited for.
                deadline = time.monotonic() + GRACE_S
                stop()
                continue
            # A millisecond more than is left, so that the loop does not spin just before the deadline.
            for fd, _ in poll.poll(left * 1000 + 1):
                if fd in output.readers:
                    if not output.read(fd):
                        poll.unregister(fd)
                elif fd == self._work.fileno():
                    self._read_report(ended)
                else:
                    self._read_control(ended)
        ended.wall_s = time.monotonic() - started
        output.drain()
        ended.stdout, ended.stderr = (bytes(part) for part in output.kept)
        ended.stdout_dropped, ended.stderr_dropped = output.dropped
        return ended

    def kill(self) -> None:
        """Kill init, and with it all its processes."""
        with contextlib.suppress(OSError):
            wire.send(self._control, {"order": "kill", "serial": self._serial})

    def end(self) -> None:
        """End the session that uses the slot and wait until its init has ended; closes the slot if that fails."""
        self.kill()
        deadline = time.monotonic() + GRACE_S
        while not self.dead and self._gone < self._serial:
            try:
                heard = _readable(self._control, max(0.0, deadline - time.monotonic()))
                message = wire.receive(self._control)[0] if heard else None
            except OSError:
                message = None
            if message is None or message["event"] != "gone":
                self.close()
            else:
                self._gone = message["serial"]
        while not self.dead and _readable(self._work, 0.0):
            _, fds = wire.receive(self._work)  # late messages that no caller waits for
            for fd in fds:
                os.close(fd)

    def _read_report(self, ended: Ended) -> None:
        try:
            message, fds = wire.receive(self._work)
        except OSError as error:
            self._fail(f"its channel broke ({error.strerror})")
        if message is None or message["event"] == "fault":
            self._fail_with(message)
        ended.report = message
        ended.folder = fds[0] if fds else None
        ended.oom, ended.peak = message["oom"], message["peak"]

    def _read_control(self, ended: Ended) -> None:
        try:
            message, _ = wire.receive(self._control)
        except OSError as error:
            self._fail(f"its channel broke ({error.strerror})")
        if message is None or message["event"] == "fault":
            self._fail("its first process ended" if message is None else message["text"])
        self._gone = message["serial"]
        if self._gone == self._serial and ended.report is None:
            while ended.report is None and _readable(self._work, 0.0):
                self._read_report(ended)  # its report may have arrived before the notice of its end
            ended.oom = max(ended.oom, message.get("oom", 0))
            if ended.peak is None:
                ended.peak = message.get("peak")
            if ended.report is None and not ended.killed_for and not ended.oom:
                self._fail(f"init ended unasked (status {message['status']})")

    def _fail_with(self, message: Mapping[str, Any] | None) -> NoReturn:
        """Fail with the last message of init; ``None``: it ended without one."""
        if message is None:
            self._fail("it ended")
        self._fail(message["text"], begun=message["begun"])

    def _fail(self, reason: str, *, begun: bool = True) -> NoReturn:
        self.close()
        if begun:
            raise SandboxError(f"a slot of the local sandbox failed: {reason}; the program may or may not have run")
        raise NotBegunError(f"a slot of the local sandbox failed: {reason}; the program was not run")

    def close(self) -> None:
        """Kill the jail with all that runs in it, and wait until it is gone."""
        if self.dead:
            return
        self.dead = True
        for channel in (self._control, self._work):
            with contextlib.suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)  # wakes another thread that waits on it; close alone would not
            channel.close()
        try:
            self._supervisor.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._supervisor.send_signal(signal.SIGKILL)  # the jail ends with it
            self._supervisor.wait()
        if self._workspace:
            shutil.rmtree(self._workspace, ignore_errors=True)
        remove_later(self._folders)  # usually the supervisor has already done it
