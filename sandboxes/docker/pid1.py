"""PID 1 of a sandbox container: the jail that the container is, what the kernel reports in it (its isolation, its
memory cgroup, the languages of the image), and the link to the host over its streams.

Runs and sessions are carried out by the code of the local sandbox (``sandboxes.local.inside``). A request is four bytes
of length, a JSON order, then the bytes of its parts (``order["parts"]``: their sizes), which go into memory files. The
reply is any number of frames (number, length, bytes): parts of stdout, of stderr and of the files that the order asks
for, in its order, from :data:`FIRST_FILE` on, and the JSON answer, which ends it.

Bytes of programs pass through one buffer that is zeroed after each request and are never parsed here, so that the next
program, which is a fork of this process, finds nothing of an earlier one.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import json
import os
import platform
import resource
import shutil
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sandboxes.local.inside import kernel, wire
from sandboxes.local.inside.cgroup import numbers, path_of
from sandboxes.local.inside.files import plain_files, wipe
from sandboxes.local.inside.launch import Jail
from sandboxes.local.inside.program import Script
from sandboxes.local.inside.runs import Runs, ending, serve_session

ANSWER, STDOUT, STDERR, FIRST_FILE = range(4)
_NOT_OF_THE_IMAGE = ("HOSTNAME", "HOME", "PWD", "OLDPWD", "SHLVL", "_")
_CGROUPS = ({"unified": "/sys/fs/cgroup"}, {"memory": "/sys/fs/cgroup/memory"})


def gather(tools: Iterable[str]) -> dict[str, Any]:
    """Facts as the kernel reports them, and where these tools are; the host decides what they mean."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    with open("/proc/net/dev", encoding="ascii") as file:
        networks = [line.split(":")[0].strip() for line in file if ":" in line]
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "uid": os.getuid(),
        "pid": os.getpid(),
        "capabilities": int(status["CapEff"], 16) | int(status["CapBnd"], 16),
        "no_new_privileges": status.get("NoNewPrivs") == "1",
        # Counted since Linux 5.9; earlier kernels tell only whether there is one (mode 2).
        "seccomp_filters": int(status.get("Seccomp_filters", "1" if status.get("Seccomp") == "2" else "0")),
        "networks": networks,
        "read_only": bool(os.statvfs("/").f_flag & os.ST_RDONLY),
        "environ": {k: v for k, v in os.environ.items() if k not in _NOT_OF_THE_IMAGE},
        "tools": {name: path for name in tools if (path := shutil.which(name))},
    }


def memory_peak() -> int:
    """Peak memory of the container since it started, in bytes."""
    return int(_kept("peak") or 0)


def oom_kills() -> int:
    """Out-of-memory kills since the container started."""
    return numbers(_kept("events")).get("oom_kill", 0)


def memory_held() -> int:
    """Bytes of processes and of files in memory; without what the kernel can drop."""
    stat = numbers(_kept("stat"))
    # Version 2, then version 1, whose "rss" is without shared memory.
    return stat.get("anon", stat.get("rss", 0)) + stat.get("shmem", 0)


def _kept(purpose: str) -> str:
    """What the kernel keeps in a file of the container's cgroup; empty where there is none."""
    for folders in _CGROUPS:
        with contextlib.suppress(OSError), open(path_of(folders, purpose), encoding="ascii") as file:
            return file.read()
    return ""


PLACES = ("/tmp", "/dev/shm")
"""All folders that a program can write to."""
FOLDER = "/tmp/work"
"""The working folder of programs. Below ``/tmp``, so that one tmpfs with one size limit holds all that they write."""
START = "/.roll"
"""Where an image keeps what the working folder begins with, if it has any."""
MOST_RESIDUE, SETTLE_S = 8 << 20, 1.0
_NICENESS = 10
"""Lower priority than PID 1, which must be scheduled however many processes a program starts."""
_SIZE = 1 << 16
_BUFFER = bytearray(_SIZE)
_VIEW = memoryview(_BUFFER)


class ContainerJail(Jail):
    """The container, which the engine has made and bounded."""

    def __init__(self) -> None:
        self.user = os.getuid()
        # Containers share a user, so RLIMIT_NPROC would count their processes too; the cgroup counts those of this one.
        self.others = 1 << 20
        self._before = (0, 0)
        self._empty = 0

    def prepare(self) -> None:
        """Remove all files; fresh folders for the next program."""
        for place in PLACES:
            wipe(place)
        os.mkdir(FOLDER, 0o700)
        if os.path.isdir(START):
            for name in os.listdir(START):
                shutil.copytree(f"{START}/{name}", f"{FOLDER}/{name}", symlinks=True)
        os.chdir(FOLDER)

    def residue(self) -> int:
        """Bytes that are held though every program has ended and every file is removed; the kernel may take a moment
        to free the last."""
        self._empty = self._empty or memory_held()
        deadline = time.monotonic() + SETTLE_S
        while (more := memory_held() - self._empty) > MOST_RESIDUE and time.monotonic() < deadline:
            time.sleep(0.01)
        return max(0, more)

    def enter(self, keep: int) -> None:
        nothing = os.open("/dev/null", os.O_RDWR)
        for stream in range(3):  # those of PID 1 lead to the host
            os.dup2(nothing, stream)
        os.setsid()
        os.closerange(3, keep)
        os.closerange(keep + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1])

    def give_up_rights(self) -> None:
        os.nice(_NICENESS)
        kernel.dumpable(True)
        # The kernel's first choice when memory runs out must be a program, not PID 1.
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")

    def limit(self, limits: Mapping[str, Any]) -> None:
        if limits.get("held"):  # the engine refused the limit
            raise OSError(errno.EBUSY, "more memory is held than the new limit allows")
        # Both count from the start of the container, so only what a run adds to them is its own.
        self._before = (oom_kills(), memory_peak())

    def usage(self) -> dict[str, Any]:
        peak = memory_peak()
        return {"oom": oom_kills() - self._before[0], "peak": peak if peak > self._before[1] else None}


class StreamLink:
    """A link through the standard streams of PID 1, which enforces the limits of time and output itself."""

    sockets: tuple[socket.socket, ...] = ()

    def __init__(self, jail: ContainerJail) -> None:
        self._jail = jail
        self._order: dict[str, Any] = {}
        self._output: wire.Output | None = None
        self._deadline = 0.0
        self._limit = ""
        self.stopped = False

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        self._order = order = json.loads(_read(struct.unpack("!I", _read(4))[0]))
        fds = [wire.sealed(_incoming(size)) for size in order["parts"]]
        self.stopped, self._limit, self._deadline = False, "", time.monotonic() + order["wall_s"]
        if order["order"] in ("run", "cell"):
            self._output = wire.Output(
                order["limits"]["output_bytes"], lambda pipe, part: _write_frame(STDOUT + pipe, part), _VIEW
            )
            fds += self._output.hand_over()
        return order, fds

    def wait(self, fds: list[int], timeout_ms: int | None) -> list[int]:
        assert self._output is not None
        left_ms = max(0.0, 1000 * (self._deadline - time.monotonic()) + 1)
        ready = self._output.wait([0, *fds], left_ms if timeout_ms is None else min(left_ms, timeout_ms))
        if 0 in ready:  # the host, which sends nothing meanwhile, has hung up
            os._exit(0)  # with PID 1 goes the container
        if not self._limit and self._output.flooded:
            self._limit = "output"
        if not self._limit and time.monotonic() > self._deadline:
            self._limit = "timeout"
        self.stopped = bool(self._limit)
        return ready

    def send(self, message: Mapping[str, Any], fds: list[int]) -> None:
        dropped = [0, 0]
        if self._output is not None:
            self._output.drain()
            self._output.close()
            dropped, self._output = self._output.dropped, None
        for fd in fds:
            most = self._order["max_bytes"]
            if message["event"] != "file":
                places = {name: n for n, name in enumerate(self._order["fetch"])}
                for name, file, size in plain_files(fd, places, most):
                    _send_file(places[name], file.fileno(), size)
            elif message["size"] <= most:
                _send_file(0, fd, message["size"])
            os.close(fd)
        _BUFFER[:] = bytes(_SIZE)
        if message["event"] in ("done", "ended"):
            os.chdir("/")
            self._jail.prepare()  # before the answer: the memory of these files must not count for the next program
            message = {**message, "residue": self._jail.residue()}
        answer = {"id": self._order["id"], **message, "killed_for": self._limit, "dropped": dropped}
        _write_frame(ANSWER, json.dumps(answer).encode())


def _read(count: int) -> bytes:
    return b"".join(map(bytes, _incoming(count)))


def _incoming(size: int) -> Iterator[memoryview]:
    """Bytes from the host, part by part, each in the one buffer."""
    while size:
        got = os.readv(0, [_VIEW[: min(size, _SIZE)]])
        if not got:
            os._exit(0)  # the host is gone
        size -= got
        yield _VIEW[:got]


def _send_file(index: int, fd: int, left: int) -> None:
    _write_frame(FIRST_FILE + index, b"")  # an empty one is there too
    while left > 0 and (got := os.readv(fd, [_VIEW[: min(left, _SIZE)]])):
        _write_frame(FIRST_FILE + index, _VIEW[:got])
        left -= got


def _write_frame(number: int, content: memoryview | bytes) -> None:
    """Send a frame to the host; blocks while it does not read (it always reads, or ends this container)."""
    head = struct.pack("!II", number, len(content))
    written = os.writev(1, [head, content]) - len(head)
    if written < 0:  # writes of a few bytes to a pipe are atomic
        raise BrokenPipeError(f"a frame was cut off after {written + len(head)} bytes")
    wire.write_all(1, memoryview(content)[written:])


def _protect() -> None:
    kernel.dumpable(False)  # programs, of the same user, may not read this process's memory or descriptors
    # Python has set a handler for SIGINT; without one the kernel drops signals to PID 1.
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE}:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def main() -> None:
    """Answer orders until the host is gone. Raises :class:`Untrusted` in forked processes.

    The first order is ``hello``: import common modules, install the filter, report the facts about this container and
    where its tools are.
    """
    _protect()
    jail = ContainerJail()
    link = StreamLink(jail)
    hello, _ = link.receive()
    for name in hello["preload"]:
        importlib.import_module(name)
    kernel.set_seccomp(bytes.fromhex(hello["filter"]))
    told = gather(hello["tools"])
    runs = Runs(Script(), link, jail)
    gc.collect()
    gc.freeze()  # keeps the collector from touching, and so copying, pages that forks share
    jail.prepare()
    jail.residue()  # what PID 1 itself holds
    link.send({"event": "up", **told}, [])
    with ending(link, runs):
        while True:
            runs.make()
            order, fds = link.receive()
            if order["order"] == "session":
                serve_session(runs, order)
            else:
                runs.run(order, fds)
