"""WorkerPool: grading processes that one hostile input cannot take from the others.

Some inputs can be graded only by code that may compute for hours, eat all memory or crash the interpreter (computer
algebra, regular expressions). A time limit inside the process does not hold: a power of large numbers or a match blocks
every thread and signal handler. So such work is done in processes with resource limits that are killed at a deadline.
They are forked by a template process that has the imports done already (no secrets in its environment, no inherited
files), so that a new one takes milliseconds.

Limits count the processor time of the grading process, so that an outcome does not depend on the load of the machine:
an alarm of the system ends the process, whatever it computes.
A task has a short first pass, half of it at first where others wait. What does not finish in it is done again in a slow
lane with processes of its own, which leave the processor to others, and a bounded queue.
Whose turn it is depends on the task's *shape*, a text that tasks of one kind share: shapes that were quick go first,
shapes that were slow go last, and while others wait, none is tried that ran to its deadline before.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any, Literal

from roll_envs.background import forget_in_children
from roll_envs.errors import RollError, check_number, check_whole
from roll_envs.verifiers.worker_lanes import Lane, Shapes

_PACKAGE = Path(__file__).resolve().parent
_PASSED_VARIABLES = ("LANG", "LC_ALL", "TZ", "SYSTEMROOT", "LD_LIBRARY_PATH")
"""Environment variables that workers inherit."""
_PATIENCE = 60
"""How many times its deadline a task may take by the clock, on a machine too busy to give it the processor time."""
_STUCK_S = 300
"""How long a message may take from its first byte to its last."""
_REMEMBERED = 20_000
"""Shapes of which is known how their last task went."""
_COUNTED = ("tasks", "slow", "deadline", "hurried", "died", "unavailable")
"""Of the tasks of a pool; ``slow`` are those that went to the slow lane."""
_SLOW_NICE = 10
"""By how much the priority of slow tasks is lower: beside a busy process they get about a tenth of a processor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolSettings:
    """Settings of a pool; :func:`shared_pool` shares one pool between equal settings."""

    module: str
    """Name of the module with ``TASKS``: name -> function from JSON values to a JSON value. Its function ``prepare``,
    where it has one, is run once before workers are made."""
    workers: int = 2
    """Processes for first passes."""
    uses: int = 1000
    """A worker is replaced after so many tasks, so that caches and leaks of libraries do not grow for ever."""
    memory_mb: int = 2048
    """Address space of a worker."""
    first_s: float = 0.15
    """Processor time of the first pass."""
    queue: int = 4096
    """Tasks that may wait for their first pass; one more is ``unavailable`` at once."""
    slow_workers: int = 1
    """Processes for what did not finish in its first pass."""
    slow_queue: int = 8
    """Tasks that may wait for the slow lane; one more is given up after its first pass."""
    start_timeout_s: float = 60.0
    queue_timeout_s: float = 600.0
    """How long a task waits for its turn in a lane, which is long, since a busy machine makes the turns long."""

    def __post_init__(self) -> None:
        for name in ("workers", "uses", "memory_mb", "queue", "slow_workers", "slow_queue"):
            check_whole(name, getattr(self, name))
        for name in ("first_s", "start_timeout_s", "queue_timeout_s"):
            check_number(name, getattr(self, name), lambda s: s > 0, "above 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The outcome of a task. Only one that is ``unavailable`` or ``hurried`` depends on what else is done."""

    status: Literal["ok", "error", "deadline", "died", "unavailable"]
    """``error``: the task raised; ``deadline``: it was killed after its processor time; ``died``: it killed two
    workers; these three are due to the input. ``unavailable``: no worker could do it, which says nothing about the
    input."""
    value: Any = None
    detail: str = ""
    hurried: bool = False
    """A ``deadline`` that came after the first pass, since the slow lane was full: another time there may be more."""


TEXT_TASKS = PoolSettings(module="roll_envs.verifiers.text_tasks", memory_mb=512)
"""Apart from the workers of ``math``, which need much more memory and import SymPy."""


class _Worker:
    """One process, the parent's end of its connection, and what has forked it."""

    def __init__(self, template: _Template, connection: Connection) -> None:
        self.template, self.connection, self.pid, self.used = template, connection, 0, 0

    def ask(self, request: dict[str, Any], wait_s: float) -> dict[str, Any] | None:
        """Give it a task, and wait for the reply; ``None`` after ``wait_s``. Raises OSError or EOFError at its end."""
        self.used += 1
        self.connection.send_bytes(json.dumps(request).encode())
        if not self.connection.poll(wait_s):
            return None
        reply: dict[str, Any] = json.loads(self.connection.recv_bytes())
        return reply


class _Template:
    """The process that has the imports done and forks workers. Making it waits until it is ready.

    Raises :class:`RollError` with the reason when it does not come up in time.
    """

    def __init__(self, settings: PoolSettings) -> None:
        told = {
            "path": [os.path.abspath(p) for p in sys.path],
            "packages": {"roll_envs": str(_PACKAGE.parent), "roll_envs.verifiers": str(_PACKAGE)},
            "module": settings.module,
            "memory_mb": settings.memory_mb,
        }
        self._lock, self._timeout_s = threading.Lock(), settings.start_timeout_s
        self.control, theirs = Pipe()
        # A file, because a pipe that nobody reads would fill up and block the process.
        with tempfile.TemporaryFile() as errors, theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", str(_PACKAGE / "worker_main.py"), json.dumps(told)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=errors,
                close_fds=True,
                start_new_session=True,
                # No keys or passwords of the environment reach code that reads what a model wrote.
                env={name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ},
            )
            theirs.close()
            why = f"was not ready within {self._timeout_s:g} s"
            try:
                if self.control.poll(self._timeout_s) and self.control.recv_bytes():
                    return
            except (OSError, EOFError):
                errors.seek(0)
                said = errors.read()[-400:].decode(errors="replace").strip()
                why = f"did not start: {said or 'it ended at once'}"
            self.end()
            raise RollError(f"a grading worker {why}")

    def fork(self) -> _Worker:
        """A new worker. Raises OSError or :class:`RollError`."""
        end, theirs = socket.socketpair()
        # On our end a process that is stopped holds nobody up for ever, nor does a message half sent.
        for limit in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            end.setsockopt(socket.SOL_SOCKET, limit, struct.pack("ll", _STUCK_S, 0))
        worker = _Worker(self, Connection(end.detach()))  # which closes with its last reference
        try:
            with theirs:
                worker.pid = self._have_done(0, theirs.fileno())
        except EOFError:
            raise RollError("the process that makes grading workers has ended") from None
        if not worker.pid:
            raise RollError("no grading worker could be made: the system refuses more processes")
        return worker

    def kill(self, worker: _Worker) -> int:
        """Have a worker killed; it is the template's child, so that its number is not used again before. Returns the
        signal that has ended it, and 0 where nobody knows."""
        worker.connection.close()
        try:
            return self._have_done(worker.pid)
        except (OSError, EOFError):
            return 0

    def _have_done(self, number: int, descriptor: int | None = None) -> int:
        """What the process answers; one that does not answer in time is ended. Raises OSError or EOFError."""
        with self._lock:
            try:
                self.control.send_bytes(str(number).encode())
                if descriptor is not None:
                    send_handle(self.control, descriptor, None)
                if self.control.poll(self._timeout_s):
                    return int(self.control.recv_bytes())
                raise EOFError
            except BaseException:  # also Ctrl-C: a late answer must not be taken for that to another order
                self.process.kill()
                self.process.wait()
                self.control.close()
                raise

    def end(self) -> None:
        """Kill it and, with the connection, all its workers; any number of times."""
        with self._lock:  # whoever waits for an answer has it soon
            self.control.close()
        try:
            self.process.wait(timeout=5)  # it kills its workers when the connection ends
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class WorkerPool:
    """Does tasks for any number of threads. Processes start with the first task."""

    def __init__(self, settings: PoolSettings) -> None:
        self.settings = settings
        self._closed = False
        self.forget()
        forget_in_children(self)

    def forget(self) -> None:
        """Begin anew, also in a child made by ``os.fork``: the processes belong to the parent and are left alone. The
        connections to them close with the last reference."""
        self._lock, self._starting = threading.Lock(), threading.Lock()
        self._template: _Template | None = None
        self._idle: list[_Worker] = []
        self._shapes = Shapes(_REMEMBERED)
        self._fast = Lane(self.settings.workers, self.settings.queue, self._shapes)
        self._slow = Lane(self.settings.slow_workers, self.settings.slow_queue, self._shapes)
        self._counts = Counter[str]()

    def metrics(self) -> dict[str, float]:
        """Tasks waiting now (``queue``, ``slow_queue``); the longest wait in seconds, and tasks by outcome, so far."""
        return {
            "queue": float(self._fast.waiting),
            "queue_most": float(self._fast.most_waited),
            "queue_longest_s": self._fast.longest_s,
            "slow_queue": float(self._slow.waiting),
            "slow_queue_longest_s": self._slow.longest_s,
            **{f"{name}_total": float(self._counts[name]) for name in _COUNTED},
        }

    def call(
        self, task: str, arguments: list[Any], *, deadline_s: float, shape: str = "", costly: bool = False
    ) -> Outcome:
        """Do a task. It uses at most ``deadline_s`` of processor time in all its passes; never raises for the input.

        ``shape``: what tasks of one kind share; ``costly``: whether one of a new shape looks as if it took long.
        """
        outcome = self._call(task, arguments, deadline_s, shape, costly)
        with self._lock:
            self._counts.update(["tasks", outcome.status, *["hurried"] * outcome.hurried])
        return outcome

    def _call(self, task: str, arguments: list[Any], deadline_s: float, shape: str, costly: bool) -> Outcome:
        left_s, slow, halved = deadline_s, False, False
        while True:
            lane = self._slow if slow else self._fast
            entered = lane.enter(shape, self.settings.queue_timeout_s, costly=costly)
            if entered != "in":
                return self._not_done(entered, deadline_s, slow=slow)
            halved = not (slow or halved) and self._shapes.get(shape) in (None, "quick") and lane.waiting > 0
            pass_s = left_s if slow else min(left_s, self.settings.first_s / (1 + halved))
            try:
                # The input is held responsible only for the death of a second worker.
                for _ in range(2):
                    found = self._work(task, arguments, pass_s, deadline_s, slow=slow)
                    if found.status != "died":
                        break
            finally:
                lane.leave(shape)
            left_s -= pass_s
            if shape:
                self._learn(shape, found, slow=slow, halved=halved)
            if found.status != "deadline" or left_s <= 0:
                return found
            # Behind half a first pass, the whole one comes when those have had theirs that may be quick.
            slow, costly = not halved, True
            with self._lock:
                self._counts["slow"] += slow

    def _not_done(self, why: str, deadline_s: float, *, slow: bool) -> Outcome:
        """The outcome of a task that a lane has refused."""
        if why == "late":
            late = f"no grading worker was free within {self.settings.queue_timeout_s:g} s"
            return Outcome(status="unavailable", detail=late)
        if slow:
            detail = f"not graded within {self.settings.first_s:g} s, and too many others take as long"
        elif why == "full":
            return Outcome(status="unavailable", detail=f"{self.settings.queue} tasks wait already")
        else:
            detail = f"others like it were not graded within {deadline_s:g} s, and more tasks wait"
        return Outcome(status="deadline", detail=detail, hurried=True)

    def _learn(self, shape: str, found: Outcome, *, slow: bool, halved: bool) -> None:
        """Remember how a task of this shape went."""
        known = self._shapes.get(shape)
        if found.status != "deadline":
            if not slow:
                self._shapes.keep(shape, "quick")
        elif slow:
            self._shapes.keep(shape, "endless")
            self._fast.refuse(shape)
            self._slow.refuse(shape)
        # Half a pass says nothing against what was quick.
        elif known is None or (known != "endless" and not halved):
            self._shapes.keep(shape, "slow")

    def _work(self, task: str, arguments: list[Any], pass_s: float, deadline_s: float, *, slow: bool) -> Outcome:
        """Do a task within ``pass_s`` of processor time; ``unavailable`` where the machine does not give it that."""
        wait_s = _PATIENCE * deadline_s
        request = {"task": task, "arguments": arguments, "cpu_s": pass_s, "nice": _SLOW_NICE if slow else 0}
        reply, late = None, False
        try:
            worker = self._take()
        except (RollError, OSError) as error:
            return Outcome(status="unavailable", detail=str(error))
        try:
            reply = worker.ask(request, wait_s)
            late = reply is None
        except (OSError, EOFError):
            pass  # it has ended
        finally:
            # One that has not replied (also after Ctrl-C) must not answer the next task; a nice one stays nice.
            ended = self._give_back(worker, usable=reply is not None and not slow)
        if reply is not None:
            return Outcome(**reply)
        if self._closed:
            return Outcome(status="unavailable", detail="this pool of grading workers is closed")
        if late:
            said = f"a grading worker has not used {pass_s:g} s of processor time in {wait_s:.0f} s"
            return Outcome(status="unavailable", detail=f"the machine is too busy: {said}")
        if ended == signal.SIGPROF:
            return Outcome(status="deadline", detail=f"not graded within {deadline_s:g} s of processor time")
        return Outcome(status="died", detail="the grading process died")

    def _take(self) -> _Worker:
        """An idle worker or a new one. Raises :class:`RollError` or OSError where there is none to be had."""
        with self._lock:
            if self._closed:
                raise RollError("this pool of grading workers is closed")
            if self._idle:
                return self._idle.pop()
        with self._starting:
            template = self._template
            if template is None or template.control.closed or template.process.poll() is not None:
                template = self._template = _Template(self.settings)
                if self._closed:  # meanwhile
                    template.end()
                    raise RollError("this pool of grading workers is closed")
        try:
            return template.fork()
        except (RollError, OSError):
            template.end()  # the next task starts another
            raise

    def _give_back(self, worker: _Worker, *, usable: bool) -> int:
        """Keep a worker for the next task, or end it; the signal that has ended it, where that is known."""
        with self._lock:
            if usable and worker.used < self.settings.uses and not self._closed:
                self._idle.append(worker)
                return 0
        return worker.template.kill(worker)

    def close(self) -> None:
        """Kill every process, those at work too; any number of times. Later tasks are ``unavailable``."""
        with self._lock:
            self._closed = True
            template, self._template = self._template, None
            self._idle = []
        if template is not None:
            template.end()


_shared: dict[PoolSettings, WorkerPool] = {}


def shared_pool(settings: PoolSettings) -> WorkerPool:
    """The pool of this process for ``settings``, shared by all verifiers."""
    pool = _shared.get(settings)
    if pool is not None and pool._closed:
        _shared.pop(settings, None)
        pool = None
    # Of two threads that come first, both get the same.
    return pool or _shared.setdefault(settings, WorkerPool(settings))


def pool_metrics() -> dict[str, dict[str, float]]:
    """:meth:`WorkerPool.metrics` of the shared pools by the last part of their module's name (``grading`` is math)."""
    return {settings.module.rpartition(".")[2]: pool.metrics() for settings, pool in list(_shared.items())}


@atexit.register
def close_shared_pools() -> None:
    """End all shared workers now (else they end with the process); the next task starts new ones."""
    while _shared:
        _shared.popitem()[1].close()
