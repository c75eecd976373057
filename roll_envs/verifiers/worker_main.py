"""The main program of a pool's template process: imports the tasks and forks workers, which run them one by one.

Started by path (``python -I worker_main.py``), so that nothing but the standard library is imported before the limits
are known. Standard input is a :class:`multiprocessing.connection.Connection` to the parent: ``0`` and then a file
descriptor ask for a worker that is connected to it, a process number for the death of that worker; its number, or the
signal that has ended it, is the reply. Tasks and their replies are JSON. An alarm in processor time ends a worker whose
task takes too long, also where parent and template are gone; an idle one ends when its connection closes.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from types import ModuleType
from typing import Any

_REFUSED = (
    "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.kill", "os.killpg", "os.remove",
    "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown", "os.chdir",
    "os.putenv", "subprocess.Popen", "shutil.", "socket.", "ctypes.", "ftplib.", "urllib.", "tempfile.", "pty.spawn",
)  # fmt: skip
"""Prefixes of the audit events that grading never needs."""


def main(settings_text: str) -> None:
    """Fork workers until the connection closes. ``settings_text``: JSON with path, module, packages and memory_mb."""
    settings = json.loads(settings_text)
    # The connection gets another number, so that a library that reads or prints cannot disturb it.
    control = Connection(os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # -I has left out the paths of the environment; these are the parent's.
    sys.path[:] = settings["path"]
    for name, folder in settings["packages"].items():
        # Registered without running its __init__, which imports much more than the tasks need.
        package = sys.modules[name] = ModuleType(name)
        package.__path__ = [folder]
    module = importlib.import_module(settings["module"])
    prepare = getattr(module, "prepare", None)
    if prepare is not None:
        prepare()
    # Standard error stays open up to here: the parent shows it where the imports fail.
    os.dup2(nothing, 2)
    os.close(nothing)
    logging.disable(logging.CRITICAL)  # log messages of libraries about strange input are not read, and take time
    gc.collect()
    gc.freeze()  # what is shared with the workers is not written to by their collections
    control.send_bytes(b"ready")
    workers: set[int] = set()
    try:
        while True:
            number = int(control.recv_bytes())
            if number:
                workers.remove(number)  # no other process is killed
                done = _end(number)
            else:
                done = _fork(control, recv_handle(control), module.TASKS, settings)
                workers.update(filter(None, [done]))
            control.send_bytes(str(done).encode())
    finally:
        for worker in workers:
            _end(worker)


def _fork(control: Connection, descriptor: int, tasks: dict[str, Callable[..., Any]], settings: Any) -> int:
    """The process number of a new worker; 0 where the system allows no more."""
    try:
        worker = os.fork()
    except OSError:
        worker = 0
    else:
        if worker == 0:
            try:
                control.close()
                _serve(descriptor, tasks, int(settings["memory_mb"]))
            finally:
                os._exit(1)
    os.close(descriptor)
    return worker


def _end(worker: int) -> int:
    """Kill a worker; the signal that has ended it, which may be an earlier one."""
    os.kill(worker, signal.SIGKILL)
    return -os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])


def _serve(descriptor: int, tasks: dict[str, Callable[..., Any]], memory_mb: int) -> None:
    """Run tasks until the connection closes."""
    connection = Connection(descriptor)
    _confine(memory_mb)
    while True:
        request = json.loads(connection.recv_bytes())
        os.nice(request["nice"])
        signal.setitimer(signal.ITIMER_PROF, request["cpu_s"])
        reply = json.dumps(_answer(tasks[request["task"]], request["arguments"]))
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send_bytes(reply.encode())


def _answer(task: Callable[..., Any], arguments: list[Any]) -> dict[str, Any]:
    try:
        return {"status": "ok", "value": task(*arguments)}
    except MemoryError:
        said = "it needs more memory than a worker may use"
    # JSON and the tasks recurse as deep as the input is nested.
    except RecursionError:
        said = "it is nested too deeply"
    # Libraries raise anything for strange input; it is reported as an error of the input.
    except BaseException as error:
        said = f"{type(error).__name__}: {str(error)[:200]}"
    return {"status": "error", "detail": said}


def _confine(memory_mb: int) -> None:
    # The default action kills at once; a handler in Python would have to wait for a long C call to return.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    # No core files, no written files, no further processes or threads.
    limits = {"RLIMIT_AS": memory_mb << 20, "RLIMIT_CORE": 0, "RLIMIT_FSIZE": 0, "RLIMIT_NPROC": 0}
    for name, limit in limits.items():
        with contextlib.suppress(AttributeError, OSError, ValueError):  # not on every system
            resource.setrlimit(getattr(resource, name), (limit, limit))
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Audit hook: refuse to start processes, open connections or write files."""
    if event == "open":
        # The arguments are path, mode and flags; of os.open the mode is None.
        mode = arguments[1]
        writes = isinstance(mode, str) and any(letter in mode for letter in "wax+")
        if writes or (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            raise PermissionError("a grading worker writes no file")
    elif event.startswith(_REFUSED):
        raise PermissionError(f"a grading worker does no {event}")


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        os._exit(1)
