"""A slot: one jail with its keeper and zygote, and the caller's side of a run in it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from roll_envs.errors import SandboxError

from .inside import wire

__all__ = ["Ended", "Slot"]

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
FLOOD = 64
"""A program that writes this many times ``output_bytes`` is ended, as one that only floods."""


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
    files: dict[str, bytes] = field(default_factory=dict)


class Slot:
    """Owned by one thread at a time. A :class:`SandboxError` from it means that it is dead and must be replaced."""

    def __init__(self, plan: Mapping[str, Any], cgroup: Mapping[str, str], python: str) -> None:
        self.dead = False
        self._serial = 0
        self._gone = 0
        self._watched = not cgroup
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

    def run(
        self, head: Mapping[str, Any], blobs: Sequence[bytes], *, stdin: bytes, wall_s: float, output_bytes: int
    ) -> Ended:
        """Let the waiting init run one program, and see to its end."""
        self._serial += 1
        output = _Output(output_bytes)
        mine = [output.writers[0], output.writers[1]]
        try:
            fds = [wire.pack(head, blobs)]
            mine += fds
            fds.append(wire.sealed(stdin) if stdin else os.open("/dev/null", os.O_RDONLY))
            mine.append(fds[1])
            if self._watched:
                order = {"order": "watch", "serial": self._serial, "memory_mb": head["limits"]["memory_mb"]}
                wire.send(self._control, order)
            wire.send(self._work, {"order": "run"}, [*fds, *output.writers])
        except OSError as error:
            output.close()
            self._fail(f"it takes no orders ({error.strerror})")
        finally:
            for fd in mine:
                os.close(fd)
        try:
            return self._see_to_end(output, wall_s)
        finally:
            output.close()

    def _see_to_end(self, output: _Output, wall_s: float) -> Ended:
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
                self._order_kill()
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

    def _take_report(self, ended: Ended) -> None:
        try:
            message, fds = wire.receive(self._work)
        except OSError as error:
            self._fail(f"its channel broke ({error.strerror})")
        if message is None or message["event"] == "fault":
            self._fail("it ended" if message is None else message["text"])
        ended.report = message
        ended.oom, ended.peak = message["oom"], message["peak"]
        for fd in fds:
            with os.fdopen(fd, "rb") as content:
                content.seek(0)
                for name, size in message["files"]:
                    ended.files[name] = content.read(size)

    def _take_notice(self, ended: Ended) -> None:
        try:
            message, _ = wire.receive(self._control)
        except OSError as error:
            self._fail(f"its channel broke ({error.strerror})")
        if message is None or message["event"] == "fault":
            self._fail("its first process ended" if message is None else message["text"])
        self._gone = message["serial"]
        if self._gone == self._serial and ended.report is None:
            ready, _, _ = select.select([self._work], [], [], 0)
            if ready:  # it had said all before it went
                self._take_report(ended)
            elif os.WIFEXITED(message["status"]):
                self._fail(f"init ended with {os.WEXITSTATUS(message['status'])} and no report")
            ended.oom = max(ended.oom, message.get("oom", 0))
            if ended.peak is None:
                ended.peak = message.get("peak")

    def _order_kill(self) -> None:
        with contextlib.suppress(OSError):
            wire.send(self._control, {"order": "kill", "serial": self._serial})

    def _fail(self, reason: str) -> NoReturn:
        self.close()
        raise SandboxError(f"a slot of the local sandbox failed: {reason}; the program may or may not have run")

    def close(self) -> None:
        """End the jail with all that runs in it, and wait until it is gone."""
        if self.dead:
            return
        self.dead = True
        self._control.close()
        self._work.close()
        try:
            self._keeper.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._keeper.send_signal(signal.SIGKILL)
            self._keeper.wait()


class _Output:
    """Two pipes, read until their end, kept up to a number of bytes each."""

    def __init__(self, keep: int) -> None:
        pairs = [os.pipe(), os.pipe()]
        self.readers = [pair[0] for pair in pairs]
        self.writers = [pair[1] for pair in pairs]
        for reader in self.readers:
            os.set_blocking(reader, False)
        self.kept = (bytearray(), bytearray())
        self.dropped = [0, 0]
        self._keep = keep

    @property
    def flooded(self) -> bool:
        return sum(self.dropped) > FLOOD * max(self._keep, 1 << 20)

    def read(self, fd: int) -> bool:
        """Take what is there, one part; whether more may come."""
        try:
            part = os.read(fd, 1 << 16)
        except BlockingIOError:
            return True
        index = self.readers.index(fd)
        room = self._keep - len(self.kept[index])
        self.kept[index].extend(part[:room])
        self.dropped[index] += max(0, len(part) - room)
        return bool(part)

    def drain(self) -> None:
        """All writers are dead: read what the pipes still hold."""
        for index, fd in enumerate(self.readers):
            with contextlib.suppress(BlockingIOError):
                while part := os.read(fd, 1 << 16):
                    room = self._keep - len(self.kept[index])
                    self.kept[index].extend(part[:room])
                    self.dropped[index] += max(0, len(part) - room)

    def close(self) -> None:
        for fd in self.readers:
            os.close(fd)
