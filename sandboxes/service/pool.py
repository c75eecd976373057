"""The pool: a bounded queue of requests in front of workers that are replaced when they break. A worker is a sandbox
with one slot, and calls on it can be abandoned.

All methods are called on one event loop; the work itself is done in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from roll_envs.errors import DeadlineExceededError, RollError, SandboxError
from roll_envs.sandbox import Isolation, Limits, Program, RunResult, Sandbox, explained
from sandboxes.programs import longest_s
from sandboxes.service.settings import Settings

T = TypeVar("T")
log = logging.getLogger("roll_sandbox.pool")

PROBE = "import importlib.util\nprint('pytest', importlib.util.find_spec('pytest') is not None)\n"
PROBE_TIMEOUT_S = 30.0


class Worker:
    """A sandbox for one job at a time. A ``broken`` worker is not used again: it is closed and replaced."""

    def __init__(self, sandbox: Sandbox, executor: Executor) -> None:
        self.sandbox = sandbox
        self.broken = False
        self._call: asyncio.Future[Any] | None = None
        """The last call; it goes on after its caller was cancelled."""
        self._executor = executor

    @property
    def busy(self) -> bool:
        return self._call is not None and not self._call.done()

    async def call(self, job: Callable[[Sandbox], T], *, timeout_s: float) -> T:
        """``job(sandbox)`` in a thread.

        When it takes longer than ``timeout_s`` the worker is broken and :class:`SandboxError` is raised: a job has
        limits of its own, so this is an infrastructure failure. When the caller is cancelled the job goes on; see
        :meth:`wait_for_abandoned_call`.
        """
        loop = asyncio.get_running_loop()
        future = self._call = loop.run_in_executor(self._executor, job, self.sandbox)
        try:
            # Shielded: a thread cannot be cancelled, and `busy` must tell when it has really ended.
            return await asyncio.wait_for(asyncio.shield(future), timeout_s)
        except Exception as error:
            if isinstance(error, RollError) and not isinstance(error, (SandboxError, DeadlineExceededError)):
                raise  # the request's own mistake
            self.broken = True
            if isinstance(error, SandboxError):
                raise
            if isinstance(error, TimeoutError) and not future.done():
                why = f"did not come back within {timeout_s:g} s and was replaced"
            else:  # a backend of others, or one whose only slot was not free although no other job uses it
                why = f"failed: {type(error).__name__}: {error}"
            raise SandboxError(f"a worker {why}") from error

    async def wait_for_abandoned_call(self, grace_s: float) -> None:
        """Wait for a call whose caller was cancelled; a call that takes longer than ``grace_s`` breaks the worker."""
        if self._call is not None and not self.broken:
            done, _ = await asyncio.wait([self._call], timeout=grace_s)
            self.broken = not done or (not self._call.cancelled() and isinstance(self._call.exception(), SandboxError))

    async def close(self) -> None:
        """Close the sandbox, which ends a call in progress; errors of closing a broken one are ignored."""
        self.broken = True
        with contextlib.suppress(Exception):
            await asyncio.get_running_loop().run_in_executor(self._executor, self.sandbox.close)


def make_tested(make: Callable[[], Sandbox]) -> tuple[Sandbox, Isolation, bool]:
    """A sandbox on which a small program has been run as a test, its isolation, and whether it has pytest. Raises
    :class:`SandboxError` and what ``make`` raises."""
    sandbox = make()
    try:
        started = time.monotonic()
        limits = Limits(wall_s=PROBE_TIMEOUT_S)
        result = explained(sandbox.run(Program(source=PROBE), limits=limits, timeout_s=PROBE_TIMEOUT_S))
        words = result.stdout.decode("ascii", "replace").split()
        if not result.ok or len(words) != 2 or words[0] != "pytest":
            raise SandboxError(
                f"a new worker failed its first program: status {result.status} after "
                f"{time.monotonic() - started:.1f} s, stdout {result.stdout[:200]!r}, stderr {result.stderr[-500:]!r}"
            )
    except BaseException:
        sandbox.close()
        raise
    return sandbox, result.isolation, words[1] == "True"


RUN_MARGIN_S = 5.0
"""Time for starting and cleaning up, beside the time of the programs themselves."""
OVERRUN_S = 15.0
"""Time that a job may take beyond all that before its worker counts as stuck."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0
"""Shortest and longest pause between attempts to make a worker."""
CLOSE_S = 30.0
WAIT_EDGES_S = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class QueueFullError(RollError):
    """The queue is full."""


class DrainingError(RollError):
    """The service is stopping and takes no new requests."""


class Pool:
    """``slots`` workers, each with a sandbox of its own, and at most ``queue`` requests that wait for one."""

    def __init__(self, make: Callable[[], Sandbox], settings: Settings, registry: CollectorRegistry) -> None:
        self._make, self._settings = make, settings
        # A stuck call occupies its thread until its sandbox has been closed, which needs a thread too.
        threads = 4 * settings.slots + 2 * settings.sessions + 8
        self._executor = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="worker")
        self._idle: asyncio.Queue[Worker | None] = asyncio.Queue()
        """``None`` tells one who waits that the pool is closed."""
        self.waiting = 0
        """Requests in the queue."""
        self._workers: set[Worker] = set()
        self._made: weakref.WeakSet[Worker] = weakref.WeakSet()
        """Also those that are outside the pool, or broken."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stop = asyncio.Event()
        self.draining = False
        self.running = 0
        self.isolation = Isolation(tier="unknown", layers=())
        self.has_pytest = False
        self._restarts = Counter("roll_sandbox_worker_restarts", "Workers that were replaced.", registry=registry)
        text = "Time in the queue of those who got a slot."
        self._wait = Histogram("roll_sandbox_wait_seconds", text, buckets=WAIT_EDGES_S, registry=registry)
        self._shown = Info("roll_sandbox_isolation", "What stands between programs and the host.", registry=registry)
        for name, text, value in (
            ("queue_length", "Requests that wait for a slot.", lambda: self.waiting),
            ("running", "Slots in use.", lambda: self.running),
            ("slots", "Slots in all.", lambda: settings.slots),
            ("workers_alive", "Workers that can be used.", lambda: self.alive),
            ("draining", "1 while the service finishes its work before it stops.", lambda: self.draining),
        ):
            Gauge(f"roll_sandbox_{name}", text, registry=registry).set_function(value)

    @property
    def alive(self) -> int:
        """Workers that can be used."""
        return len(self._workers)

    async def start(self) -> None:
        """Make the workers. Raises what making one raises, when none could be made."""
        made = await asyncio.gather(*(self._new_worker() for _ in range(self._settings.slots)), return_exceptions=True)
        faults = [each for each in made if isinstance(each, BaseException)]
        if len(faults) == len(made):
            await self.close()
            raise faults[0]
        for _ in faults:
            self._spawn(self._replace())

    @contextlib.asynccontextmanager
    async def lease(self, timeout_s: float) -> AsyncIterator[Worker]:
        """A worker for this caller alone. Raises :class:`QueueFullError`, :class:`DrainingError`, and
        :class:`DeadlineExceededError` when none was free in time."""
        started = time.monotonic()
        worker = await self._take(timeout_s)
        self._wait.observe(time.monotonic() - started)
        self.running += 1
        try:
            yield worker
        finally:
            self.running -= 1
            # A call whose client disconnected still runs in its thread: the worker returns to the pool only after it.
            if worker.broken or worker.busy:
                self._spawn(self._take_back(worker))
            else:
                self._idle.put_nowait(worker)

    async def run(self, job: Callable[[Sandbox], T], *, wait_s: float, work_s: float) -> T:
        """Run ``job`` on some worker: waits at most ``wait_s`` for one; what ``job`` runs must end by its own limits
        within ``work_s``. After an infrastructure failure it is repeated on another worker if that can begin in time.
        Raises :class:`SandboxError` when that failed too, what ``job`` raises, and what :meth:`lease` raises."""
        last_start = time.monotonic() + wait_s
        attempt = 0
        while True:
            attempt += 1
            try:
                async with self.lease(max(0.0, last_start - time.monotonic())) as worker:
                    return await worker.call(job, timeout_s=work_s + RUN_MARGIN_S + OVERRUN_S)
            except SandboxError as error:
                again = attempt < self._settings.attempts and time.monotonic() < last_start and not self.draining
                log.warning("attempt %d failed (%s): %s", attempt, "trying again" if again else "giving up", error)
                if not again:
                    raise

    async def run_program(self, program: Program, limits: Limits, wait_s: float) -> RunResult:
        """:meth:`run` of one program."""
        work_s = longest_s(program.language, limits)
        return await self.run(
            lambda sandbox: explained(sandbox.run(program, limits=limits, timeout_s=work_s + RUN_MARGIN_S)),
            wait_s=wait_s,
            work_s=work_s,
        )

    async def make_extra(self) -> Worker:
        """An additional worker outside the pool, for a session; the caller closes it, or the end of the pool does."""
        if self.draining:
            raise DrainingError("the service is stopping and opens no sessions; ask another instance")
        making = self._spawn(self._make_worker())
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            self._spawn(_discard(making))
            raise

    def drain(self) -> None:
        """Refuse new requests; those that wait or run are finished."""
        self.draining = True

    async def close(self) -> None:
        """End everything: waiting requests get :class:`DrainingError`, running ones :class:`SandboxError`.

        Calling it again does nothing.
        """
        self.draining = True
        self._stop.set()
        for _ in range(self.waiting):
            self._idle.put_nowait(None)
        for worker in list(self._made):
            self._spawn(worker.close())
        # Workers that are being made or replaced see that the pool is closed and end; they are waited for here.
        deadline = time.monotonic() + CLOSE_S
        while self._tasks and time.monotonic() < deadline:
            await asyncio.wait(self._tasks, timeout=deadline - time.monotonic())
        self._workers.clear()
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _take(self, timeout_s: float) -> Worker:
        if self.draining:
            raise DrainingError("the service is stopping and takes no new requests; ask another instance")
        if self._idle.empty() and self.waiting >= (most := self._settings.queue):
            raise QueueFullError(f"{most} requests wait already; ask again later, or start with a longer --queue")
        self.waiting += 1
        try:
            async with asyncio.timeout(timeout_s):
                worker = await self._idle.get()
        except TimeoutError as error:
            raise DeadlineExceededError(f"one of {self._settings.slots} slots", timeout_s) from error
        finally:
            self.waiting -= 1
        if worker is None or self._stop.is_set():
            raise DrainingError("the service has stopped")
        return worker

    async def _take_back(self, worker: Worker) -> None:
        await worker.wait_for_abandoned_call(self._settings.cancel_grace_s)
        if not worker.broken:
            self._idle.put_nowait(worker)
            return
        self._workers.discard(worker)
        self._restarts.inc()
        self._spawn(worker.close())
        await self._replace()

    async def _replace(self) -> None:
        pause_s = 0.0
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), pause_s * random.uniform(0.5, 1.0))
            try:
                await self._new_worker()
                return
            except DrainingError:
                return
            except Exception as error:  # a backend of others
                log.error("no worker could be made: %s", error)
                pause_s = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * pause_s))

    async def _new_worker(self) -> None:
        worker = await self._make_worker()
        self._workers.add(worker)
        self._idle.put_nowait(worker)

    async def _make_worker(self) -> Worker:
        loop = asyncio.get_running_loop()
        sandbox, tier, self.has_pytest = await loop.run_in_executor(self._executor, make_tested, self._make)
        self.isolation = tier
        self._shown.info({"tier": tier.tier, "layers": ",".join(tier.layers), "missing": ",".join(tier.missing)})
        worker = Worker(sandbox, self._executor)
        self._made.add(worker)
        if self._stop.is_set():
            await worker.close()
            raise DrainingError("the service has stopped")
        return worker

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _discard(making: asyncio.Task[Worker]) -> None:
    """Close a worker whose request has gone, once it has been made."""
    with contextlib.suppress(Exception):  # a foreign backend may raise anything; the request that needed it has gone
        await (await making).close()
