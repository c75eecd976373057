"""Environment workers that are processes of this machine, each started afresh: nothing of the trainer is in them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing import Pipe

_MAIN = (
    "import sys; first, second, *sys.path = sys.argv[1:]; "
    "from roll_envs.managers.host import serve; serve(int(first), int(second))"
)


class ProcessLink:
    """Starts a worker process; a :class:`~roll_envs.managers.workers.Link` to it.

    It has the environment variables, the working folder, stderr and ``sys.path`` of this process, and a session of its
    own, so that Ctrl-C does not reach it, and what its environments have started ends with it. What they print goes to
    stderr: stdout belongs to the command.
    """

    def __init__(self, cpus: Sequence[int] = ()) -> None:
        """It runs on the processors ``cpus``; none: on any."""
        self._connection, theirs = Pipe()
        watched, self._lifeline = os.pipe()
        self._reaping, self._heard = threading.Lock(), False
        fds = (theirs.fileno(), watched)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _MAIN, *map(str, fds), *sys.path],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=2,  # stderr
                start_new_session=True,
            )
            if cpus:  # before it starts threads, which inherit it
                os.sched_setaffinity(self._process.pid, cpus)
        except BaseException:
            self._connection.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(watched)

    def send(self, frame: bytes) -> None:
        self._connection.send_bytes(frame)

    def receive(self) -> bytes:
        try:
            frame = self._connection.recv_bytes()
        except OSError as error:
            raise EOFError from error
        self._heard = True
        return frame

    def ended(self) -> str:
        code, hint = self._reap(1.0), "" if self._heard else " (what it wrote to stderr says why)"
        return f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}{hint}"

    def end(self, wait_s: float) -> None:
        if wait_s > 0:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as pipe:
                pipe.shutdown(socket.SHUT_WR)  # it closes its environments then
        self._reap(wait_s)

    def _reap(self, wait_s: float) -> int:
        """Exit code of the process, which is killed after ``wait_s``; all of its session ends with it."""
        until = time.monotonic() + wait_s
        with self._reaping:
            if self._process.returncode is None:
                while not self._has_ended() and time.monotonic() < until:
                    time.sleep(0.005)
                with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody of its session is left
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
                os.close(self._lifeline)
            return self._process.returncode

    def _has_ended(self) -> bool:
        """Whether it has; it stays a zombie, so that nobody else can have its number while its session is killed."""
        if not hasattr(os, "waitid"):  # macOS before Python 3.13, where it stays none
            return self._process.poll() is not None
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
