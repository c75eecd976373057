"""A slot: one jail with its keeper and zygote, and the caller's side of a run in it."""

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

from .cgroups import remove_folders
from .inside import wire
from .inside.files import open_plain
from .output import Output
from .programs import Order

__all__ = ["Ended", "NotBegunError", "Slot", "read_plain"]

_INSIDE = str(Path(__file__).parent)
_BOOT = (
    "import sys, os; sys.path[0] = os.fsdecode(os.read(0, 4096)); os.dup2(1, 0)\n"
    "from inside import keeper\n"
    "try:\n"
    "    keeper.main(); start = None\n"
    "except keeper.Untrusted as leap:\n"
    "    start = leap.start\n"
    "if start: start()\n"
)
START_S = 20.0
GRACE_S = 5.0
"""How long ours may take for what is nobody else's: to make a place ready, or to kill."""


class NotBegunError(SandboxError):
    """A slot failed before anything of the program was run, so that another may be asked."""


@dataclass(kw_only=True, slots=True)
class Ended:
    """What became of a run, before it is a verdict."""

    report: Mapping[str, Any] | None = None
    """Of init; ``None`` when it was killed with the program."""
    cut: str = ""
    """Why *we* ended it: ``timeout``, ``output`` or nothing."""
    oom: int = 0
    peak: int | None = None
    wall_s: float = 0.0
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_dropped: int = 0
    stderr_dropped: int = 0
    folder: int | None = None
    """What was the working folder, open, when its files are to be fetched; nobody else can change them any more."""
    files: dict[str, bytes] = field(default_factory=dict)


FETCH_BYTES = 256 << 20
"""Most that is brought back of one run's files."""


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
        self._ground: str = plan["ground"]["folder"] if plan["ground"] else ""
        self._serial = 0
        self._gone = 0
        control, theirs_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        work, theirs_work = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control, self._work = control, work
        fds = (theirs_control.fileno(), theirs_work.fileno())
        self._keeper = subprocess.Popen(
            [python, "-S", "-c", _BOOT, *map(str, fds)],
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
        assert self._keeper.stdin is not None
        with contextlib.suppress(OSError), self._keeper.stdin as stdin:
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
        """Let the waiting init run one program, and see to its end; ``wall_s`` may be less than its limit."""
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
            ended = self.see_to_end(output, wall_s, self.kill)
        if ended.folder is not None:
            try:
                ended.files = _fetch(ended.folder, order.fetch)
            finally:
                if self._ground:
                    self._say_fetched()
        return ended

    def _say_fetched(self) -> None:
        """To init, which waits for it where the next run would clear the folder of this one."""
        with contextlib.suppress(OSError):  # init is gone: the next order finds that out
            wire.send(self._work, {"order": "fetched"})

    def begin(self) -> None:
        """From now on the init that waits is ours."""
        self._serial += 1

    def order(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Tell init."""
        try:
            wire.send(self._work, message, fds)
        except OSError as error:
            self._fail(f"it takes no orders ({error.strerror})", begun=False)

    def answer(self, timeout_s: float = GRACE_S) -> tuple[dict[str, Any], list[int]]:
        """Of init, to an order that no program has a part in."""
        if not _readable(self._work, timeout_s):
            self._fail(f"no answer within {timeout_s:g} s")
        message, fds = wire.receive(self._work)
        if message is None or message["event"] == "fault":
            self._fail_with(message)
        return message, fds

    def see_to_end(self, output: Output, wall_s: float, stop: Callable[[], None]) -> Ended:
        """Drain the output until init reports or is gone; ``stop`` is called when a limit is reached before."""
        started = time.monotonic()
        ended = Ended()
        poll = select.poll()
        for fd in (*output.readers, self._work.fileno(), self._control.fileno()):
            poll.register(fd, select.POLLIN)
        deadline = started + wall_s
        while ended.report is None and self._gone < self._serial:
            left = deadline - time.monotonic()
            if left <= 0 or (output.flooded and not ended.cut):
                if ended.cut:
                    self._fail("its programs could not be killed")
                ended.cut = "output" if output.flooded else "timeout"
                deadline = time.monotonic() + GRACE_S
                stop()
                continue
            for fd, _ in poll.poll(left * 1000 + 1):
                if fd in output.readers:
                    if not output.read(fd):
                        poll.unregister(fd)
                elif fd == self._work.fileno():
                    self._take_report(ended)
                else:
                    self._take_notice(ended)
        ended.wall_s = time.monotonic() - started
        output.drain()
        ended.stdout, ended.stderr = (bytes(part) for part in output.kept)
        ended.stdout_dropped, ended.stderr_dropped = output.dropped
        return ended

    def kill(self) -> None:
        """End init, and all its processes with it."""
        with contextlib.suppress(OSError):
            wire.send(self._control, {"order": "kill", "serial": self._serial})

    def end(self) -> None:
        """End what holds the slot, and wait until its init reads no orders any more; or the slot dies."""
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
            _, fds = wire.receive(self._work)  # what it said last and nobody waits for
            for fd in fds:
                os.close(fd)

    def _take_report(self, ended: Ended) -> None:
        try:
            message, fds = wire.receive(self._work)
        except OSError as error:
            self._fail(f"its channel broke ({error.strerror})")
        if message is None or message["event"] == "fault":
            self._fail_with(message)
        ended.report = message
        ended.folder = fds[0] if fds else None
        ended.oom, ended.peak = message["oom"], message["peak"]

    def _take_notice(self, ended: Ended) -> None:
        try:
            message, _ = wire.receive(self._control)
        except OSError as error:
            self._fail(f"its channel broke ({error.strerror})")
        if message is None or message["event"] == "fault":
            self._fail("its first process ended" if message is None else message["text"])
        self._gone = message["serial"]
        if self._gone == self._serial and ended.report is None:
            while ended.report is None and _readable(self._work, 0.0):
                self._take_report(ended)  # it had said all before it went
            ended.oom = max(ended.oom, message.get("oom", 0))
            if ended.peak is None:
                ended.peak = message.get("peak")
            if ended.report is None and not ended.cut and not ended.oom:
                self._fail(f"init ended unasked (status {message['status']})")

    def _fail_with(self, message: Mapping[str, Any] | None) -> NoReturn:
        """What init said last; ``None`` where it said nothing."""
        if message is None:
            self._fail("it ended")
        self._fail(message["text"], begun=message["begun"])

    def _fail(self, reason: str, *, begun: bool = True) -> NoReturn:
        self.close()
        if begun:
            raise SandboxError(f"a slot of the local sandbox failed: {reason}; the program may or may not have run")
        raise NotBegunError(f"a slot of the local sandbox failed: {reason}; the program was not run")

    def close(self) -> None:
        """End the jail with all that runs in it, and wait until it is gone."""
        if self.dead:
            return
        self.dead = True
        for channel in (self._control, self._work):
            with contextlib.suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)  # another thread may be waiting for it, and keep it open thereby
            channel.close()
        try:
            self._keeper.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._keeper.send_signal(signal.SIGKILL)  # the jail ends with it
            self._keeper.wait()
        if self._ground:
            shutil.rmtree(self._ground, ignore_errors=True)
        remove_folders(self._folders)  # mostly a look that the keeper has done it
