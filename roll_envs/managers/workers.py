"""EnvWorkers: environments in a few workers, each with many of them, over any link (processes, Ray actors).

Environments stay where they are made, and an operation on one is a future here. Operations are sent in batches: what
gathers while a message is on its way is the next message. A worker that dies, or in which an operation does not return
that nobody waits for any more, is replaced; what it held is lost, which is told by :class:`WorkerLostError` and is
nobody's failure. Deadlines are the business of who asks: it cancels the future. They are known here too, so that an
operation that is not needed any more has its time, and a closing for which nobody waits has an end.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from itertools import count
from typing import Any, Protocol

from roll_envs.errors import ConfigError, RollError, WorkerLostError
from roll_envs.managers.attempt import EpisodeLimits
from roll_envs.managers.episode import CloseRequest, ResetRequest, StepRequest
from roll_envs.managers.host import Operation, unpickled_error
from roll_envs.types import Task

_LATE_S = 1.0
"""An operation that was given up and has not returned so long after its deadline hangs."""
_RETIRE_S = 5.0
"""How long a worker in which an operation hangs lives on, for the episodes of its other environments."""
_WATCH_S = 0.1
_MAX_FAILED_STARTS = 3
"""So many workers in a row that ended before they were ready are enough."""
_LEAST_START_S = 30.0
"""How long a replacement may take to start at least."""
_CLOSE_WAIT_S = 3.0
"""How long workers have to close their environments at the end."""
_DOING = {
    "make": "the making of",
    "reset": "reset of",
    "remake": "reset of",
    "step": "step of",
    "close": "the closing of",
}


class Link(Protocol):
    """One worker and the way to it. Methods may be called from several threads."""

    def send(self, frame: bytes) -> None:
        """Hand over operations. Raises OSError when the worker has ended."""

    def receive(self) -> bytes:
        """Wait for what the worker says: where it is (its hello) first, then results. Raises EOFError at its end."""

    def ended(self) -> str:
        """How it ended, after :meth:`receive` said so: "was killed by SIGKILL"."""

    def end(self, wait_s: float) -> None:
        """End it; it has ``wait_s`` to close its environments."""


class EnvWorkers(contextlib.AbstractContextManager["EnvWorkers"]):
    """``size`` workers, over links that ``connect`` makes. Use it as a context manager, or call :meth:`close`.

    ``limits`` are those of the driver. Raises :class:`RollError` when a worker does not come up in ``start_timeout_s``.
    A replacement has less time, so that who waits for it is told that it did not start before their own deadline; one
    that is late (a cluster that has lost its room) counts as one that has ended.
    """

    def __init__(
        self, connect: Callable[[], Link], size: int, limits: EpisodeLimits, start_timeout_s: float = 60.0
    ) -> None:
        self._connect, self._limits, self._closed, self._broken = connect, limits, False, ""
        self._replacing = threading.Lock()
        self._failed_starts = 0
        self._restart_s = min(start_timeout_s, max(_LEAST_START_S, 0.8 * limits.of_env("make")))
        self._attention = threading.Event()
        """Whether an operation was given up or a worker starts or retires; the watch sleeps otherwise."""
        self._workers: list[_Worker] = []
        """Those that take new environments, by number."""
        self._retired: set[_Worker] = set()
        """Those that do not, and have not ended."""
        self._started = False
        self.moves_at_reset = limits.of_env("make") <= limits.of_env("reset")
        """Whether an environment may be made anew within the deadline of a reset."""
        try:
            for number in range(size):
                self._workers.append(self._worker(number))
            until = time.monotonic() + start_timeout_s
            for worker in self._workers:
                if not worker.settled.wait(max(0.0, until - time.monotonic())):
                    raise RollError(f"environment worker {worker.number} did not start within {start_timeout_s:g} s")
                if worker.lost:
                    raise RollError(f"{worker.lost} before it was ready")
        except BaseException:
            self.close()
            raise
        self._started = True
        threading.Thread(target=self._watch, name="env-workers-watch", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def make(self, task: Task) -> Future[WorkerEnv]:
        """Make the environment of ``task`` on the least loaded worker.

        Raises :class:`RollError` where none is left, :class:`ConfigError` for arguments that cannot be sent to it.
        """
        return WorkerEnv(self, task.env_id, _pickled_kwargs(task)).make(self.least_loaded())

    def check(self, tasks: Sequence[Task], timeout_s: float, remedy: str = "") -> None:
        """Make and close the environment of each task on every worker.

        Raises :class:`ConfigError` for one that cannot be made there; ``remedy`` says what to do.
        """
        for task in tasks:
            kwargs = _pickled_kwargs(task)
            made = [(worker, WorkerEnv(self, task.env_id, kwargs).make(worker)) for worker in list(self._workers)]
            for worker, future in made:
                try:
                    future.result(timeout_s).close()
                except TimeoutError:
                    raise ConfigError(f"{task.env_id} was not made within {timeout_s:g} s on {worker.title}") from None
                except Exception as error:
                    said = str(error) if isinstance(error, RollError) else f"{type(error).__name__}: {error}"
                    raise ConfigError(
                        f"{task.env_id} cannot be made on {worker.title}: {said}" + (f". {remedy}" if remedy else "")
                    ) from error

    def least_loaded(self) -> _Worker:
        """Where the next environment belongs: a worker that is ready, if there is one."""
        if self._closed:
            raise RollError("these environment workers are closed")
        best = min(
            self._workers, key=lambda worker: (bool(worker.lost), not worker.settled.is_set(), len(worker.slots))
        )
        if best.lost and self._broken:
            raise RollError(self._broken)
        return best

    def close(self) -> None:
        """End every worker; their environments have a short time to close. What is still asked for is lost."""
        with self._replacing:
            self._closed = True
        every = [*self._workers, *self._retired]
        enders = [threading.Thread(target=worker.link.end, args=(_CLOSE_WAIT_S,), daemon=True) for worker in every]
        for ender in enders:
            ender.start()
        for ender in enders:
            ender.join(_CLOSE_WAIT_S + 2.0)
        for worker in every:
            worker.lose("these environment workers were closed")
        self._attention.set()

    def _ended(self, worker: _Worker, reason: str, was_ready: bool) -> None:
        """Replace a worker that has ended."""
        self._retired.discard(worker)
        self._failed_starts = 0 if was_ready else self._failed_starts + 1
        if self._failed_starts >= _MAX_FAILED_STARTS:
            self._broken = f"{reason}; {_MAX_FAILED_STARTS} in a row were never ready, so that no other is started"
        self._replace(worker)

    def _replace(self, worker: _Worker) -> None:
        with self._replacing:
            wanted = self._workers[worker.number : worker.number + 1] == [worker]
            if not wanted or not self._started or self._closed or self._broken:
                return  # replaced before, or nobody wants another
            try:
                self._workers[worker.number] = self._worker(worker.number)
                self._attention.set()
            except Exception as error:  # no memory for a process, a cluster that is gone
                self._broken = f"{worker.title} could not be replaced: {type(error).__name__}: {error}"

    def _worker(self, number: int) -> _Worker:
        return _Worker(number, self._connect(), self._limits, self._ended, self._attention)

    def _watch(self) -> None:
        """Retire workers in which an operation hangs, end them when the others had their time, and give up those
        that do not start."""
        while not self._closed:
            self._attention.wait()
            time.sleep(_WATCH_S)
            now, uneasy = time.monotonic(), bool(self._retired)
            for worker in list(self._workers):
                if worker.starting:  # nothing hangs in it
                    uneasy = True
                    if now - worker.since > self._restart_s:
                        reason = f"{worker.title} did not start within {self._restart_s:g} s"
                        self._ended(worker, reason, was_ready=False)
                        worker.lose(reason)
                        worker.link.end(0.0)
                    continue
                given_up = worker.given_up()
                uneasy |= bool(given_up)
                hanging = [answer for answer in given_up if answer.hangs(now)]
                if hanging:
                    worker.retire(f"{worker.title} was replaced, since {hanging[0].doing} did not return")
                    self._retired.add(worker)
                    self._replace(worker)
            for worker in list(self._retired):
                if now - worker.retired_at > _RETIRE_S:
                    self._retired.discard(worker)
                    worker.lose(worker.reason)
                    worker.link.end(0.0)
            if not uneasy:
                self._attention.clear()
                if any(worker.starting or worker.given_up() for worker in self._workers):
                    self._attention.set()


def _pickled_kwargs(task: Task) -> bytes:
    try:
        return pickle.dumps(dict(task.kwargs))
    except Exception as error:  # of many kinds
        raise ConfigError(
            f"the arguments of {task.env_id} cannot be sent to another process ({type(error).__name__}: {error}); give "
            "plain values, or keep environments in the trainer's process (rollout.manager 'thread')"
        ) from error


class WorkerEnv:
    """An environment in a worker. One request at a time is asked of it.

    Where its worker is gone, retires or has twice as many environments as another, it is made anew at the next reset,
    unless making may take longer than a reset.
    """

    def __init__(self, workers: EnvWorkers, env_id: str, kwargs: bytes) -> None:
        self._workers, self._env_id, self._kwargs = workers, env_id, kwargs
        self._worker: _Worker
        self._slot: int
        self._answer: _Answer
        """Of the last operation."""

    def make(self, worker: _Worker) -> Future[WorkerEnv]:
        """Make it in ``worker``; the future is of itself."""
        self._place(worker)
        return self._ask("make", (self._env_id, self._kwargs), self)

    def ask(self, request: ResetRequest | StepRequest | CloseRequest) -> Future[Any]:
        """What ``perform`` returns for the request.

        The future's error is that of the environment, by the name of its class, or :class:`WorkerLostError`.
        """
        if isinstance(request, StepRequest):
            return self._ask("step", request.action)
        if isinstance(request, ResetRequest):
            start = (request.seed, request.split)
            if self._moves():
                return self._ask("remake", (self._env_id, self._kwargs, *start))
            return self._ask("reset", start)
        return self._worker.close_slot(self._slot, self._env_id)

    def close(self) -> None:
        """Close it in its worker, without waiting; one that is in an operation is closed when that returns."""
        if not self._answer.cancel():
            self._worker.close_slot(self._slot, self._env_id).cancel()

    def _moves(self) -> bool:
        """Place it anew where that is better."""
        try:
            best = self._workers.least_loaded()
        except RollError:  # closed, or none is left: asking tells
            return False
        usable = not self._worker.lost and not self._worker.retired_at
        if best is self._worker or (usable and len(self._worker.slots) <= 2 * len(best.slots) + 2):
            return False
        if not self._workers.moves_at_reset:
            return False
        self.close()
        self._place(best)
        return True

    def _place(self, worker: _Worker) -> None:
        self._worker, self._slot = worker, next(_numbers)
        worker.slots.add(self._slot)

    def _ask(self, name: str, argument: Any, made: WorkerEnv | None = None) -> Future[Any]:
        self._answer = self._worker.ask(name, self._slot, self._env_id, argument, made)
        return self._answer


_numbers = count()


class _Answer(Future[Any]):
    """What comes of an operation. Cancelling it says that nobody waits for the operation any more."""

    def __init__(
        self, worker: _Worker, name: str, slot: int, env_id: str, limit_s: float, made: WorkerEnv | None
    ) -> None:
        super().__init__()
        self._worker, self.name, self.slot, self.env_id, self.made = worker, name, slot, env_id, made
        self._due, self._given_up_at = time.monotonic() + limit_s, 0.0

    @property
    def doing(self) -> str:
        return f"{_DOING[self.name]} {self.env_id}"

    def hangs(self, now: float) -> bool:
        """Whether an operation that was given up should have returned by now."""
        return now - max(self._due, self._given_up_at) > _LATE_S

    def cancel(self) -> bool:
        self._given_up_at = self._given_up_at or time.monotonic()
        cancelled = super().cancel()
        if cancelled:
            self._worker.attention.set()
        return cancelled

    def end(self, value: Any, error: Exception | None) -> bool:
        """Tell who waits; False where nobody does."""
        try:
            if error is not None:
                self.set_exception(error)
            else:
                self.set_result(self.made or value)
        except InvalidStateError:  # it was cancelled
            return False
        return True


class _Worker:
    """One worker, as long as it lives: what was asked of it, and the two threads that send and receive."""

    def __init__(
        self,
        number: int,
        link: Link,
        limits: EpisodeLimits,
        on_end: Callable[[_Worker, str, bool], None],
        attention: threading.Event,
    ) -> None:
        self.number, self.link, self.attention, self._limits = number, link, attention, limits
        self.title, self.since = f"environment worker {number}", time.monotonic()
        self.slots: set[int] = set()
        """Of its environments."""
        self.settled = threading.Event()
        """It is ready, or has ended."""
        self.lost = ""
        """Why it takes no operations any more."""
        self.reason, self.retired_at = "", 0.0
        """Why and since when it takes no new environments."""
        self._on_end = on_end
        self._lock = threading.Lock()
        """Of ``_answers`` and ``lost``: what comes after the loss is told of it."""
        self._answers: dict[int, _Answer] = {}
        self._outbox: queue.SimpleQueue[Operation | None] = queue.SimpleQueue()
        for target in (self._send, self._receive):
            threading.Thread(target=target, name=f"env-worker-{number}", daemon=True).start()

    @property
    def starting(self) -> bool:
        """Whether it may become ready yet."""
        return not (self.settled.is_set() or self.lost)

    def ask(self, name: str, slot: int, env_id: str, argument: Any, made: WorkerEnv | None = None) -> _Answer:
        """Have an operation done."""
        limit_s = self._limits.of_env("reset" if name == "remake" else name)
        answer, number = _Answer(self, name, slot, env_id, limit_s, made), next(_numbers)
        with self._lock:
            lost = self.lost
            if not lost:
                self._answers[number] = answer
        if lost:
            answer.end(None, WorkerLostError(f"{lost}; {answer.doing} could not be done"))
        else:
            self._outbox.put((number, slot, name, argument))
        return answer

    def close_slot(self, slot: int, env_id: str) -> _Answer:
        """Have an environment closed."""
        self.slots.discard(slot)
        return self.ask("close", slot, env_id, None)

    def given_up(self) -> list[_Answer]:
        """Operations that nobody waits for, and that have not returned."""
        with self._lock:
            return [answer for answer in self._answers.values() if answer.cancelled()]

    def retire(self, reason: str) -> None:
        self.reason, self.retired_at = reason, time.monotonic()

    def lose(self, reason: str) -> None:
        """Take nothing any more, and tell everyone who waits. The first reason counts."""
        with self._lock:
            self.lost = self.lost or reason
            answers, self._answers = list(self._answers.values()), {}
        self._outbox.put(None)
        for answer in answers:
            answer.end(None, WorkerLostError(f"{self.lost} during {answer.doing}"))

    def _send(self) -> None:
        while (operation := self._outbox.get()) is not None:
            batch: list[Operation] = [operation]
            with contextlib.suppress(queue.Empty):
                while (operation := self._outbox.get_nowait()) is not None:
                    batch.append(operation)
            try:
                self.link.send(pickle.dumps(batch))
            except OSError:  # it has ended, which the receiving thread says
                return
            if operation is None:
                return

    def _receive(self) -> None:
        was_ready = False
        try:
            self.title += f" ({self.link.receive().decode()})"
            was_ready = True
            self.settled.set()
            while True:
                for number, raised, payload in pickle.loads(self.link.receive()):
                    self._settle(number, raised, payload)
        except EOFError:
            how = self.link.ended()  # also of one that retired: what it has started is ended here
            reason = self.reason or f"{self.title} {how}"
        except BaseException as error:  # a mistake of this file, or a link that breaks its contract: nobody may wait
            reason = f"{self.title} cannot be heard any more ({type(error).__name__}: {error})"
            self.link.end(0.0)
        if not self.lost:
            self._on_end(self, reason, was_ready)  # first, so that who is told finds another one
        self.lose(reason)
        self.settled.set()

    def _settle(self, number: int, raised: bool, payload: bytes) -> None:
        with self._lock:
            answer = self._answers.pop(number, None)
        if answer is None:
            return
        value, error = None, None
        try:
            if raised:
                error = unpickled_error(payload)
            else:
                value = pickle.loads(payload)
        except Exception as unreadable:  # a class that only the worker can import
            error = TypeError(f"what it returned cannot be read here ({type(unreadable).__name__}: {unreadable})")
        unknown = not answer.end(value, error) or (error is not None and answer.made is not None)
        if unknown and answer.name != "close":  # nobody knows of this environment any more
            self.close_slot(answer.slot, answer.env_id).cancel()
