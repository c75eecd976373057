"""PID 1 of a sandbox container: takes requests, starts programs, kills them, cleans up after them.

A request is four bytes of length, a JSON header, then ``header["body"]`` bytes for the program's process (``job``). The
reply is any number of frames (kind, length, bytes): ``o`` and ``e`` are output, ``r`` is the JSON result that ends it.
The header holds nothing of a program, and the body is never parsed here.

Programs cannot signal PID 1: inside a PID namespace the kernel drops signals that it has no handler for; it has none.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import struct
import time
from typing import Any

from sandboxes.docker.inside import facts, job
from sandboxes.docker.inside.facts import memory_peak, oom_kills
from sandboxes.docker.inside.files import FOLDER, wipe
from sandboxes.docker.inside.processes import Child, Ends, end_all, reap, start
from sandboxes.docker.inside.watch import Stream, Watch, cell_exit_code, finish, observe, write_frame
from sandboxes.local.inside import kernel

__all__ = ["serve"]

PLACES = ("/tmp", "/dev/shm")
"""All folders that a program can write to."""


class KeptProcesses:
    """Processes that live from one request to the next."""

    interpreter: Child | None = None
    """The interpreter of a Python session."""
    standby: Child | None = None
    """A process forked ahead for the next program; there is none during a session."""


def serve() -> None:
    """Answer requests until the host is gone. Returns only in forked processes, when their task is prepared."""
    _protect()
    kept = KeptProcesses()
    while True:
        # The body stays in the pipe: the operation passes it on to the program's process.
        header = json.loads(_read(struct.unpack("!I", _read(4))[0]))
        handle = OPERATIONS[header["do"]]
        result = handle(kept, header)
        if result is None:
            return
        write_frame(b"r", json.dumps({"id": header["id"], **result}).encode())
        if kept.standby is None and header.get("wipe", header["do"] in ("hello", "clear")):
            kept.standby = start(job.enter)
            if kept.standby is None:
                return


def _protect() -> None:
    kernel.dumpable(False)  # programs, of the same user, may not read this process's memory or descriptors
    # Python has set a handler for SIGINT; without one the kernel drops signals to PID 1.
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE}:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def _read(count: int) -> bytes:
    content = bytearray()
    while len(content) < count:
        piece = os.read(0, count - len(content))
        if not piece:
            os._exit(0)  # the host is gone
        content += piece
    return bytes(content)


def hello(kept: KeptProcesses, header: dict[str, Any]) -> dict[str, Any]:
    """First request: import common modules, install the filters, and report the facts about this container."""
    for name in header["preload"]:
        importlib.import_module(name)
    for code in header["filters"]:
        kernel.set_seccomp(bytes.fromhex(code))
    told = facts.gather()
    job.prepare()
    gc.collect()
    gc.freeze()  # keeps the collector from touching, and so copying, pages that forks share
    return told


def run(kept: KeptProcesses, header: dict[str, Any]) -> dict[str, Any] | None:
    """Run one process to its end, then kill all others, unless it is a session's (``stay``) and hit no limit."""
    child, kept.standby = kept.standby or start(job.enter), None
    if child is None:
        return None
    ends, watch = Ends(), _watch(child, header)
    watch.prepared = False
    # Both count from the start of the container, so only what this run adds to them is its own.
    before = (oom_kills(), memory_peak())
    observe(watch)
    wall_s = time.monotonic() - watch.started
    if header["stay"] and watch.limit is None and oom_kills() == before[0]:
        reap(ends)
    else:
        end_all(ends)
    finish(watch)
    child.close()
    if header["wipe"]:
        _wipe_all()
    return _result(watch, ends, wall_s, before)


def cell(kept: KeptProcesses, header: dict[str, Any]) -> dict[str, Any] | None:
    """Run a cell in the interpreter of the session, which lives on unless the cell hits a limit or kills it."""
    _kill_standby(kept)
    if kept.interpreter is None:
        kept.interpreter = start(job.enter_session)
        if kept.interpreter is None:
            return None
    child = kept.interpreter
    ends, watch = Ends(), _watch(child, header)
    # The name is random and new for each cell, so that a cell cannot report its end beforehand.
    watch.done = header["name"].encode()
    before = (oom_kills(), memory_peak())
    observe(watch)
    wall_s = time.monotonic() - watch.started
    reap(ends)
    code = cell_exit_code(watch)
    alive = watch.limit is None and code is not None and child.pid not in ends.statuses and oom_kills() == before[0]
    if not alive:
        end_all(ends)
    finish(watch)
    result = _result(watch, ends, wall_s, before)
    if alive:
        result |= {"status": code, "note": ""}
    else:
        child.close()
        kept.interpreter = None
    return result


def copy(kept: KeptProcesses, header: dict[str, Any]) -> dict[str, Any] | None:
    """Run a file helper in a session; the session's processes are stopped meanwhile, so that they cannot interfere."""
    _kill_standby(kept)
    _signal_all(signal.SIGSTOP)  # stopped processes cannot replace folders by links while files are copied
    child = start(job.enter)
    if child is None:
        return None
    ends, watch = Ends(), _watch(child, header)
    before = (oom_kills(), memory_peak())
    observe(watch)
    if not watch.ended:
        os.kill(child.pid, signal.SIGKILL)
    _, status, _ = os.wait4(child.pid, 0)
    ends.add(child.pid, status, 0)
    finish(watch)
    child.close()
    _signal_all(signal.SIGCONT)
    return _result(watch, ends, 0.0, before)


def clear(kept: KeptProcesses, header: dict[str, Any]) -> dict[str, Any]:
    """Kill all processes and empty all folders: the end of a session, or of a run whose files were fetched."""
    end_all(Ends())
    for child in (kept.interpreter, kept.standby):
        if child is not None:
            child.close()
    kept.interpreter = kept.standby = None
    _wipe_all()
    return {}


OPERATIONS = {"hello": hello, "run": run, "cell": cell, "copy": copy, "clear": clear}


def _watch(child: Child, header: dict[str, Any]) -> Watch:
    return Watch(
        child=child,
        streams={child.out: Stream(b"o", header["out"]), child.err: Stream(b"e", header["err"])},
        body_left=header["body"],
        wall_s=header["wall_s"],
        flood=header["flood"],
    )


def _result(watch: Watch, ends: Ends, wall_s: float, before: tuple[int, float]) -> dict[str, Any]:
    dropped = {stream.kind.decode(): stream.dropped for stream in watch.streams.values()}
    status = ends.statuses.get(watch.child.pid)
    peak = memory_peak()
    return {
        "status": None if status is None else os.waitstatus_to_exitcode(status),
        "limit": watch.limit,
        "oom": oom_kills() - before[0],
        "dropped": [dropped["o"], dropped["e"]],
        "wall_s": wall_s,
        # The cgroup's peak is since the container started; if this run did not raise it, use that of its largest
        # process.
        "peak_mb": peak if peak > before[1] else ends.peak_kb / 1024 or None,
        "note": watch.note.decode("utf-8", "replace"),
    }


def _kill_standby(kept: KeptProcesses) -> None:
    if kept.standby is not None:
        os.kill(kept.standby.pid, signal.SIGKILL)
        os.wait4(kept.standby.pid, 0)
        kept.standby.close()
        kept.standby = None


def _signal_all(number: int) -> None:
    try:
        os.kill(-1, number)
    except ProcessLookupError:
        return  # there is no other process


def _wipe_all() -> None:
    for place in PLACES:
        wipe(place)
    os.mkdir(FOLDER, 0o700)


def main() -> None:
    """Serve requests; in a forked process, do its task. Tracebacks go to stderr, which the host reads."""
    os.mkdir(FOLDER, 0o700)
    serve()
    job.work()
