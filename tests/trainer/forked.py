"""Processes of their own for tests, forked from one that has loaded PyTorch.

A process that begins with nothing spends seconds on imports before its first line of ours. So there is one server per
test process, which is a copy of it from before its first test: it has loaded what these tests import, makes every
warning an error, and forks what a test asks for. A process costs its own work only.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import multiprocessing.forkserver
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, ClassVar

import pytest
import torch

__all__ = ["Forked", "RankProcess", "ServerProcess", "chosen_names", "roll_train", "start_server"]

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["trainer.cli", "trainer.run.loop", "transformers.models.llama.modeling_llama", "matplotlib.pyplot",
     "tensorboard.summary.writer.record_writer", "torch.distributed"]
)  # fmt: skip


def start_server() -> None:
    """To be called before the first test, when this process has run nothing yet that a fork would not survive."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("multiprocessing.util.spawnv_passfds", _copied)
        multiprocessing.forkserver.ensure_running()


def _copied(path: bytes, arguments: Sequence[Any], fds: Sequence[int]) -> int:
    """In place of ``python -c PROGRAM``: a copy of this process that has only these open files and runs the program."""
    if pid := os.fork():
        return pid
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for name in os.listdir("/proc/self/fd"):
            if int(name) not in (0, 1, 2, null, *fds):  # not closed: objects that hold one would write to the next
                os.dup2(null, int(name), inheritable=False)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(fd, mode, closefd=False) for fd, mode in enumerate("rww"))
        warnings.resetwarnings()
        warnings.simplefilter("error")
        exec(arguments[-1], {})
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


class Forked:
    """``function(*arguments)`` in a process of its own, where it ends with the number that it returns.

    Both are pickled: the function by its name. What is printed goes to the file ``log``. It has the environment
    variables of this process, unless others are given.
    """

    def __init__(
        self,
        function: Callable[..., int | None],
        *arguments: Any,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log = log
        given = (function, arguments, dict(os.environ if environment is None else environment), log)
        self._process = _CONTEXT.Process(target=_run, args=given, daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """The exit status, or the number of its signal below 0; None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout_s: float = 60) -> int:
        self._process.join(timeout_s)
        status = self.poll()
        if status is None:
            self._process.kill()
            raise AssertionError(f"the process ran for more than {timeout_s} s: {self.log.read_text()}")
        return status


class _Process:
    """What ``subprocess.Popen`` gives for a program, without what that would import."""

    _forked: Forked

    @property
    def pid(self) -> int:
        return self._forked.pid

    def poll(self) -> int | None:
        return self._forked.poll()

    def wait(self, timeout: float | None = None) -> int:
        self._forked._process.join(timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
        return status

    def _wait_until(self, ready: Callable[[], bool]) -> None:
        until = time.monotonic() + 60
        while self.poll() is None and not ready():
            assert time.monotonic() < until, "the fork server is stuck"
            time.sleep(0.001)


class ServerProcess(_Process):
    """The program of a fake server: it is in a process group of its own, has a standard input that ends with this
    process, and ends by signals."""

    def __init__(self, module: str, arguments: Sequence[str], environment: Mapping[str, str] | None, log: str) -> None:
        pipe = Path(f"{log}.{time.monotonic_ns()}.stdin")
        os.mkfifo(pipe)
        self.stdin: IO[bytes] = os.fdopen(os.open(pipe, os.O_RDWR | os.O_CLOEXEC), "wb", buffering=0)
        given = (module, arguments, pipe, log)
        self._forked = Forked(_serve, *given, log=Path(os.devnull), environment=environment)
        self._wait_until(lambda: not pipe.exists())


class RankProcess(_Process):
    """A rank of a learner on this machine, which has a session of its own."""

    alive: ClassVar[list[RankProcess]] = []

    def __init__(
        self, command: Sequence[str], *, pass_fds: tuple[int], env: Mapping[str, str], stdin: int, **how: Any
    ) -> None:
        assert how == {"start_new_session": True}
        _, _, main, _, rank, count, *_ = command
        assert "trainer.cluster.rank" in main
        with Connection(os.dup(pass_fds[0])) as theirs:
            given = (theirs, rank, count)
            self._forked = Forked(_rank, *given, log=Path(os.devnull), environment=env)
        self._wait_until(lambda: os.getpgid(self.pid) == self.pid)
        self.alive[:] = [other for other in self.alive if other.poll() is None] + [self]


def popen(command: Sequence[str], *, stdout: Any, env: Mapping[str, str] | None, **how: Any) -> Any:
    """``subprocess.Popen``, but for servers in environments that ``made_environment`` made."""
    program = Path(command[0]).read_text(encoding="utf-8", errors="replace")
    found = re.fullmatch(r"#!/bin/sh\nshift ?(\d?)\nexec '[^']+' '([^']+)' ?(.*?) ?\"\$@\"\n", program)
    if found is None:
        return subprocess.Popen(command, stdout=stdout, env=env, **how)
    assert how == {"stdin": subprocess.PIPE, "stderr": subprocess.STDOUT, "process_group": 0}
    arguments = [*shlex.split(found[3]), *command[1 + int(found[1] or 1) :]]
    return ServerProcess(Path(found[2]).stem, arguments, env, stdout.name)


def _rank(driver: Connection[Any, Any], rank: str, count: str) -> None:
    from trainer.cluster.rank import main

    warnings.resetwarnings()  # as the program has them: those of backends are theirs
    sys.argv = ["-c", str(driver.fileno()), rank, count]
    os.setsid()
    main()


def _serve(module: str, arguments: Sequence[str], pipe: Path, log: str) -> None:
    os.setpgid(0, 0)
    os.dup2(os.open(pipe, os.O_RDONLY), 0)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = [module, *arguments]
    with contextlib.suppress(FileNotFoundError):
        pipe.unlink()  # from here on signals find it
    importlib.import_module(module).main()


def _run(
    function: Callable[..., int | None], arguments: tuple[Any, ...], environment: dict[str, str], log: Path
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    torch.set_num_threads(1)
    torch.manual_seed(time.monotonic_ns() % 2**32)  # a process of its own would not begin like another one either
    sys.exit(function(*arguments))


def chosen_names(request: pytest.FixtureRequest, names: Iterable[str]) -> list[str]:
    """Those of ``names`` that tests of this module were chosen with (``-k``), for a fixture that all of them share."""
    items = [item for item in request.session.items if item.path == request.path and isinstance(item, pytest.Function)]
    there = {item.callspec.params.get("name") for item in items if hasattr(item, "callspec")}
    return [name for name in names if name in there]


def roll_train(*arguments: str, log: Path) -> Forked:
    """``roll-train ARGUMENTS`` in a process of its own."""
    return Forked(_main, list(arguments), log=log)


def _main(arguments: list[str]) -> int:
    from trainer.cli import main

    return main(arguments)
