"""Watches one run: copies its input and output and enforces its limits.

Nothing here parses a program's data. It passes from pipe to pipe through two buffers that are zeroed after each run,
so that a later program, whose process is a fork of this one, finds nothing of an earlier one.
"""

from __future__ import annotations

import os
import select
import struct
import time
from dataclasses import dataclass, field

from sandboxes.docker.inside.processes import Child

SIZE = 1 << 16
ZEROS = bytes(SIZE)
READY = b"ready "
"""Followed by the time of ``time.monotonic`` at which the program began: PID 1 may be scheduled later."""
SETUP_S = 10.0
INPUT, OUTPUT = bytearray(SIZE), bytearray(SIZE)
INPUT_VIEW, OUTPUT_VIEW = memoryview(INPUT), memoryview(OUTPUT)


@dataclass
class Stream:
    """One of the two outputs: how many more bytes are passed on, and how many were dropped."""

    kind: bytes
    room: int
    dropped: int = 0


@dataclass
class Watch:
    """The state of one run."""

    child: Child
    streams: dict[int, Stream]
    body_left: int
    """Bytes of the request that the host has still to send; all are read, whatever happens."""
    wall_s: float
    flood: int
    """More dropped bytes than this end the run."""
    prepared: bool = True
    """Whether the program runs; until its process sends :data:`READY` it is being set up."""
    started: float = field(default_factory=time.monotonic)
    done: bytes | None = None
    """For a cell: the start of the line in ``note`` that ends it; the process lives on."""
    pending: int = 0
    offset: int = 0
    limit: str | None = None
    ended: bool = False
    note: bytearray = field(default_factory=bytearray)


def write_frame(kind: bytes, content: memoryview | bytes) -> None:
    """Send a frame to the host; blocks while it does not read (it always reads, or ends this container)."""
    head = struct.pack("!cI", kind, len(content))
    written = os.writev(1, [head, content]) - len(head)
    if written < 0:  # writes of a few bytes to a pipe are atomic
        raise BrokenPipeError(f"a frame was cut off after {written + len(head)} bytes")
    view = memoryview(content)[written:]
    while view:
        view = view[os.write(1, view) :]


def observe(watch: Watch) -> None:
    """Copy bytes until the process has ended, its cell is done, or a limit is reached."""
    child, poll = watch.child, select.poll()
    for fd in (child.pidfd, child.note, *watch.streams):
        poll.register(fd, select.POLLIN)
    while watch.limit is None and not watch.ended:
        # Read more of the request only when the last chunk has been written. A hang-up of the host is reported in any
        # case.
        poll.register(0, select.POLLIN if watch.body_left and not watch.pending else 0)
        if watch.pending:
            poll.register(child.body, select.POLLOUT)
        left_s = watch.started + (watch.wall_s if watch.prepared else SETUP_S) - time.monotonic()
        if left_s <= 0:
            watch.limit = "timeout" if watch.prepared else "setup"
            return
        for fd, event in poll.poll(left_s * 1000 + 1):
            if fd == child.pidfd:
                watch.ended = True
            elif fd in watch.streams:
                if not _pass_output(fd, watch):
                    poll.unregister(fd)
            elif fd == child.note:
                if not _read_note(watch):
                    poll.unregister(fd)
            elif fd == child.body:
                _write_body(watch)
                if not watch.pending:
                    poll.unregister(fd)
            elif event & select.POLLIN:
                _read_body(watch)
                _write_body(watch)
            else:
                os._exit(0)  # the host is gone, and with PID 1 goes the container


def finish(watch: Watch) -> None:
    """After the end of all processes (or of a cell): read what is left, of the outputs and of the request."""
    for fd in watch.streams:
        while _pass_output(fd, watch, waiting=False):
            pass
    _read_note(watch)
    while watch.body_left:
        _read_body(watch)
    watch.pending = watch.offset = 0
    INPUT[:] = OUTPUT[:] = ZEROS


def cell_exit_code(watch: Watch) -> int | None:
    """The exit code in the line that ends a cell; ``None`` where there is no such line (yet)."""
    for line in watch.note.split(b"\n")[:-1]:
        name, _, code = bytes(line).partition(b" ")
        if name == watch.done and code.isdigit():
            # A program may write any number of digits, and int() refuses thousands of them.
            return int(code[:9]) & 0xFF
    return None


def _read_body(watch: Watch) -> None:
    got = os.readv(0, [INPUT_VIEW[: min(SIZE, watch.body_left)]])
    if got == 0:
        os._exit(0)
    watch.body_left -= got
    watch.pending, watch.offset = got, 0


def _write_body(watch: Watch) -> None:
    try:
        while watch.offset < watch.pending:
            watch.offset += os.write(watch.child.body, INPUT_VIEW[watch.offset : watch.pending])
    except BlockingIOError:
        return
    except BrokenPipeError:  # the process has ended or is ending; what it did not read is dropped
        pass
    watch.pending = watch.offset = 0


def _pass_output(fd: int, watch: Watch, *, waiting: bool = True) -> bool:
    """Pass on available output; false at its end, or, unless ``waiting``, when none is available now."""
    stream = watch.streams[fd]
    try:
        got = os.readv(fd, [OUTPUT_VIEW])
    except BlockingIOError:
        return waiting
    kept = min(got, stream.room)
    if kept:
        write_frame(stream.kind, OUTPUT_VIEW[:kept])
    stream.room -= kept
    stream.dropped += got - kept
    if stream.dropped > watch.flood:
        watch.limit = watch.limit or "output"
    return got > 0


def _read_note(watch: Watch) -> bool:
    try:
        piece = os.read(watch.child.note, 4096)
    except BlockingIOError:
        return True
    watch.note += piece[: SIZE - len(watch.note)]
    if not watch.prepared and watch.note.startswith(READY) and watch.note.endswith(b"\n"):
        watch.prepared, watch.started = True, float(watch.note[len(READY) :])
    if watch.done is not None and cell_exit_code(watch) is not None:
        watch.ended = True
    return bool(piece)
