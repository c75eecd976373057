"""A host worth attacking: what hostile programs look for, and what must be the same after each of them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

__all__ = ["SECRET", "Host", "hostile_host"]

SECRET = "canary-env-7f3a"


class Host:
    """Listeners that count who came, and a look at the processes of this machine."""

    def __init__(self) -> None:
        self.visits: list[str] = []
        self.port = 0

    @staticmethod
    def processes(name: str) -> list[int]:
        """Those whose name (``comm``) is ``name``."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if (entry / "comm").read_text("utf-8").strip() == name:
                        found.append(int(entry.name))
        return found

    @staticmethod
    def memory_mb() -> float:
        """Resident memory of this process."""
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGESIZE") / (1 << 20)


@contextlib.contextmanager
def hostile_host(*, port: int = 0, abstract: str = "sbx_canary") -> Iterator[Host]:
    """A listener on the loopback interface, one on an abstract unix socket, and a secret in the environment.

    One at a time on a machine, since attacks know the addresses: tests in another process wait.
    """
    with Path(__file__).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with _listening(port, abstract) as host:
            yield host


@contextlib.contextmanager
def _listening(port: int, abstract: str) -> Iterator[Host]:
    host = Host()
    listeners = [socket.socket(socket.AF_INET), socket.socket(socket.AF_UNIX)]
    os.environ["HOST_SECRET"] = SECRET
    try:
        listeners[0].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listeners[0].bind(("127.0.0.1", port))
        listeners[1].bind("\0" + abstract)
        host.port = listeners[0].getsockname()[1]
        for listener in listeners:
            listener.listen()
            listener.settimeout(0.2)
        stop = threading.Event()
        threads = [threading.Thread(target=_count, args=(host, listener, stop)) for listener in listeners]
        for thread in threads:
            thread.start()
        try:
            yield host
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    finally:
        del os.environ["HOST_SECRET"]
        for listener in listeners:
            listener.close()


def _count(host: Host, listener: socket.socket, stop: threading.Event) -> None:
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            connection, _ = listener.accept()
            host.visits.append(str(listener.getsockname()))
            connection.close()
