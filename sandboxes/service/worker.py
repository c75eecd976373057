"""One worker: a sandbox with one slot, and calls on it that can be abandoned."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from roll_envs.errors import DeadlineExceededError, RollError, SandboxError
from roll_envs.sandbox import Isolation, Limits, Program, Sandbox, explained

T = TypeVar("T")

PROBE = "import importlib.util\nprint('pytest', importlib.util.find_spec('pytest') is not None)\n"
PROBE_TIMEOUT_S = 30.0


class Worker:
    """A sandbox for one job at a time. A ``broken`` worker is not used again: it is closed and replaced."""

    def __init__(self, sandbox: Sandbox, isolation: Isolation, *, has_pytest: bool, executor: Executor) -> None:
        self.sandbox = sandbox
        self.isolation = isolation
        self.has_pytest = has_pytest
        self.broken = False
        self.busy: asyncio.Future[Any] | None = None
        """The call in progress, also after its caller was cancelled."""
        self._executor = executor

    async def call(self, job: Callable[[Sandbox], T], *, timeout_s: float) -> T:
        """``job(sandbox)`` in a thread.

        When it takes longer than ``timeout_s`` the worker is broken and :class:`SandboxError` is raised: a job has
        limits of its own, so this is an infrastructure failure. When the caller is cancelled the job goes on; see
        :meth:`wait_for_abandoned_call`.
        """
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._executor, functools.partial(job, self.sandbox))
        self.busy = future
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
            elif isinstance(error, DeadlineExceededError):  # its only slot was not free although no other job uses it
                why = f"was stuck: {error}"
            else:  # a backend of others
                why = f"failed: {type(error).__name__}: {error}"
            raise SandboxError(f"a worker {why}") from error

    async def wait_for_abandoned_call(self, grace_s: float) -> None:
        """Wait for a call whose caller was cancelled; a call that takes longer than ``grace_s`` breaks the worker."""
        if self.busy is not None and not self.busy.done() and not self.broken:
            await asyncio.wait([self.busy], timeout=grace_s)
            self.broken = self.broken or not self.busy.done()
        if self.busy is not None and self.busy.done() and not self.busy.cancelled():
            self.broken = self.broken or isinstance(self.busy.exception(), SandboxError)

    async def close(self) -> None:
        """Close the sandbox, which ends a call in progress; errors of closing a broken one are ignored."""
        self.broken = True
        with contextlib.suppress(Exception):
            await asyncio.get_running_loop().run_in_executor(self._executor, self.sandbox.close)


def make_worker(make: Callable[[], Sandbox], executor: Executor) -> Worker:
    """Make a worker and run a small program on it as a test. Raises :class:`SandboxError` and what ``make`` raises."""
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
    return Worker(sandbox, result.isolation, has_pytest=words[1] == "True", executor=executor)
