"""A slot: one jail with its supervisor and zygote, and the caller's side of the runs in it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from roll_envs.errors import SandboxError
from roll_envs.sandbox import Isolation
from sandboxes.pool import Ended, NotBegunError
from sandboxes.programs import Order
from sandboxes.slots import FETCH_BYTES, chosen_cpus

from .cgroups import remove_later
from .host import executable
from .inside import wire
from .inside.files import plain_files, wipe

_INSIDE = str(Path(__file__).parent)
# Started in the folder of ``inside``, of which no argument tells, since every user sees those in /proc. ``start`` is
# called at module level, so that no frame of the supervisor is left below the program's.
_BOOT = (
    "import os; from inside import launch, supervisor; os.chdir('/')\n"
    "try:\n"
    "    supervisor.main()\n"
    "except launch.Untrusted as leap:\n"
    "    start = leap.start\n"
    "start()\n"
)
START_S = 20.0
PIPE_BYTES = 1 << 16
"""The usual capacity of a pipe on Linux."""
GRACE_S = 5.0
"""How long trusted processes may take for their own work, such as to set up a run or to kill one."""


def _readable(timeout_s: float, channel: socket.socket) -> bool:
    """Wait for a message; with ``poll``, since the caller may have more descriptors than ``select`` can take."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    return bool(poll.poll(1000 * max(0.0, timeout_s)))


def _fetch(folder: int, names: Sequence[str]) -> dict[str, bytes]:
    """The plain files among ``names`` below ``folder``, which is closed."""
    try:
        return {name: file.read(size) for name, file, size in plain_files(folder, names, FETCH_BYTES)}
    finally:
        os.close(folder)


class LocalSlot:
    """One jail; see :class:`sandboxes.pool.Slot`. Raises :class:`SandboxError` where it could not be made."""

    shape = None

    def __init__(self, plan: Mapping[str, Any], isolation: Isolation) -> None:
        cpus = chosen_cpus()
        self.isolation = isolation
        self.alive = True
        self._folders = list(plan["cgroup"].values())
        self._workspace: str = plan["workspace"]["folder"] if plan["workspace"] else ""
        self._serial = 0
        self._gone = 0
        self._folder: int | None = None
        """The open working folder of a run, to fetch files from; all processes that could change them have ended."""
        # SEQPACKET keeps messages apart, as datagrams do, and reports the end of the other side, as streams do.
        self._work, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        python = executable()
        self._supervisor = subprocess.Popen(
            [python, "-S", "-c", _BOOT],  # -S: no site module, so no packages of the host
            env={"LANG": "C.UTF-8"},
            cwd=_INSIDE,
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        try:
            if cpus:  # before it is told to begin; what it starts inherits it
                os.sched_setaffinity(self._supervisor.pid, cpus)
            wire.send(self._work, {**plan, "owner": os.getpid()})
            reason = f"no sign of life within {START_S:g} s"
            if _readable(START_S, self._work):
                message, _ = wire.receive(self._work)
                reason = "it ended" if message is None else message.get("text", "")
        except OSError:
            reason = f"the sandbox's own process ended at once ({python} -S -c ...)"
        if reason:
            self.close()
            raise SandboxError(f"the jail could not be made: {reason}")

    def run(self, order: Order, wall_s: float) -> Ended:
        if order.message["order"] == "run":
            return self._run(order, wall_s)
        with self._at_work():
            return self._run(order, wall_s)

    def _run(self, order: Order, wall_s: float) -> Ended:
        kept, buffer = (bytearray(), bytearray()), memoryview(bytearray(PIPE_BYTES))
        output = wire.Output(order.limits.output_bytes, lambda index, part: kept[index].extend(part), buffer)
        with contextlib.closing(output):
            # In memory files: a message of the channel must not be longer than 64 KB.
            fds = [wire.sealed(part) if any(part) else os.open("/dev/null", os.O_RDONLY) for part in order.parts]
            self._order({**order.message, "limits": asdict(order.limits)}, [*fds, *output.hand_over()])
            ended = self._wait_for_end(output, wall_s)
        ended.stdout, ended.stderr = (bytes(part) for part in kept)
        if self._folder is not None:
            ended.files = _fetch(self._folder, order.fetch)
            # Without namespaces the next run clears the folder of this one, so init waits until it has been read.
            with contextlib.suppress(OSError):  # init is gone: the next order finds that out
                if self._workspace:
                    wire.send(self._work, {"order": "fetched"})
        return ended

    def ask(self, message: Mapping[str, Any], content: bytes | None = None) -> tuple[dict[str, Any], bytes]:
        with self._at_work():
            self._order(message, [] if content is None else [wire.sealed([content])])
            answer, fds = self._answer(GRACE_S if content is None else 30.0)
        if answer["event"] == "gone":
            self._fail("the session has ended, because its first process was killed", begun=False)
        found = b""
        for fd in fds:
            with open(fd, "rb") as file:
                found = file.read(answer["size"]) if answer["size"] <= message["max_bytes"] else b""
        return answer, found

    def _weigh(self, *, active: bool) -> None:
        """Share of the processor of a session: as one ordinary process, or, between orders, next to nothing, so that
        what it left running takes no time that others want."""
        for folder in self._folders:
            for name, usual in (("cpu.weight", 100), ("cpu.shares", 1024)):
                with contextlib.suppress(OSError), open(f"{folder}/{name}", "r+", encoding="ascii") as file:
                    file.write(str(usual if active else 2))

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        self._weigh(active=True)  # before the order: what answers it has the same share
        try:
            yield
        finally:
            if self.alive:
                self._weigh(active=False)

    def _order(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send an order, which begins a run or a session or belongs to the last, with descriptors, which are closed."""
        self._serial += message["order"] in ("run", "session")
        try:
            wire.send(self._work, {"init": self._serial, **message}, fds)
        except OSError as error:
            self._fail(f"it takes no orders ({error.strerror})", begun=False)

    def _answer(self, timeout_s: float = GRACE_S) -> tuple[dict[str, Any], list[int]]:
        """The answer to an order that involves no program, or the notice that the session has ended."""
        deadline = time.monotonic() + timeout_s
        while True:
            if not _readable(deadline - time.monotonic(), self._work):
                self._fail(f"no answer within {timeout_s:g} s")
            message, fds = self._receive()
            if message["event"] != "gone" or self._gone == self._serial:
                return message, fds

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        """The next message; fails where none can come, or where it says that the jail failed."""
        try:
            message, fds = wire.receive(self._work)
        except OSError as error:
            self._fail(f"its channel broke ({error.strerror})")
        if message is None:
            self._fail("it ended")
        if message["event"] == "fault":
            self._fail(message["text"], begun=message.get("begun", True))
        if message["event"] == "gone":  # the init of this order, or still of the last
            self._gone = message["serial"]
        return message, fds

    def _wait_for_end(self, output: wire.Output, wall_s: float) -> Ended:
        """Read the output until init reports or has ended; it is told to stop when a limit is reached before."""
        started = time.monotonic()
        ended, self._folder = Ended(), None
        deadline = started + wall_s
        while ended.report is None and self._gone < self._serial:
            left = deadline - time.monotonic()
            if left <= 0 or (output.flooded and not ended.killed_for):
                if ended.killed_for:
                    self._fail("its programs could not be killed")
                ended.killed_for = "output" if output.flooded else "timeout"
                # From now on only the notice that all has been killed is waited for.
                deadline = time.monotonic() + GRACE_S
                with contextlib.suppress(OSError):  # it has ended, as will be read below
                    wire.send(self._work, {"order": "stop"})
                continue
            # A millisecond more than is left, so that the loop does not spin just before the deadline.
            if output.wait([self._work.fileno()], left * 1000 + 1):
                self._read_report(ended)
        ended.wall_s = time.monotonic() - started
        output.drain()
        ended.stdout_dropped, ended.stderr_dropped = output.dropped
        return ended

    def end(self) -> None:
        """End the session that uses the slot; closes the slot if that fails."""
        self._weigh(active=True)  # also where its init is gone: the next run is to have its share
        if self._gone < self._serial:
            with contextlib.suppress(SandboxError):  # which has closed the slot
                self._order({"order": "end"})
                self._answer()

    def _read_report(self, ended: Ended) -> None:
        """The report of init, or, where it was killed, of the zygote, which comes after it."""
        message, fds = self._receive()
        if message["event"] != "gone":
            ended.report = message
            self._folder = fds[0] if fds else None
        elif self._gone < self._serial:
            return
        ended.oom, ended.peak = message.get("oom", 0), message.get("peak")
        if ended.report is None and not ended.killed_for and not ended.oom:
            self._fail(f"init ended unasked (status {message['status']})")

    def _fail(self, reason: str, *, begun: bool = True) -> NoReturn:
        self.close()
        if begun:
            raise SandboxError(f"a slot of the local sandbox failed: {reason}; the program may or may not have run")
        raise NotBegunError(f"a slot of the local sandbox failed: {reason}; the program was not run")

    def close(self) -> None:
        """Kill the jail with all that runs in it, and wait until it is gone."""
        if not self.alive:
            return
        self.alive = False
        self._weigh(active=True)  # init, which ends all, has the share of what it ends
        with contextlib.suppress(OSError):
            self._work.shutdown(socket.SHUT_RDWR)  # wakes another thread that waits on it; close alone would not
        self._work.close()
        try:
            self._supervisor.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._supervisor.send_signal(signal.SIGKILL)  # the jail ends with it
            self._supervisor.wait()
        if self._workspace:
            with contextlib.suppress(OSError):
                wipe(self._workspace)
                os.rmdir(self._workspace)
        remove_later(self._folders)  # usually the supervisor has already done it
