"""The Docker backend: programs in warm containers, one for each slot."""

from __future__ import annotations

import functools
import os
import time
import weakref

from roll_envs.errors import ConfigError
from roll_envs.sandbox import Language, Limits, Program, RunResult, Sandbox
from sandboxes.docker.engine import HOST_IMAGE, Engine, Shape
from sandboxes.docker.pool import Pool
from sandboxes.docker.runs import out_of_memory, run_program, tool
from sandboxes.docker.session import DockerSession
from sandboxes.docker.worker import OutOfMemoryError, Plan, Worker
from sandboxes.local.programs import check_limits

__all__ = ["DockerSandbox"]

START_S = 120.0
SESSION_WAIT_S = 60.0


class DockerSandbox(Sandbox):
    """Programs in containers of a Docker engine that are kept warm, one for each slot.

    ``image`` must have Python 3.11 or newer; by default it is the one that ``build_host_image`` makes. It is never
    pulled. ``engine`` is a URL as in ``DOCKER_HOST``. ``cpus`` is what the processes of one slot may use together.
    ``runtime`` names another runtime of the engine, such as gVisor's ``runsc``. ``unsafe`` allows an engine on which
    isolation layers are missing; the result's ``isolation`` names them.

    A run's files and ``/dev/shm`` are kept in memory and count for ``memory_mb``, of which files get at most half.

    Raises :class:`MissingExtraError` without the SDK, :class:`SandboxError` without an engine, :class:`ConfigError`
    without the image. Not usable after a fork of the process that made it: make a new one there.
    """

    def __init__(
        self,
        *,
        image: str | None = None,
        slots: int | None = None,
        limits: Limits | None = None,
        engine: str | None = None,
        cpus: float = 1.0,
        runtime: str | None = None,
        unsafe: bool = False,
    ) -> None:
        slots = os.cpu_count() or 1 if slots is None else slots
        if not 1 <= slots <= 1024:
            raise ConfigError(f"slots={slots}: a number from 1 to 1024 is needed")
        if not 0.01 <= cpus <= 1024:
            raise ConfigError(f"cpus={cpus}: a number from 0.01 to 1024 is needed")
        self._limits = limits or Limits()
        check_limits(self._limits)
        self._engine = Engine(engine)
        image = HOST_IMAGE if image is None else image
        self._engine.check_image(image)
        self._plan = Plan(image=image, cpus=min(cpus, self._engine.info["NCPU"]), runtime=runtime, unsafe=unsafe)
        self._engine.remove_orphans()
        make = functools.partial(Worker, self._engine, self._plan, memory_mb=self._limits.memory_mb)
        self._pool = Pool(make, slots)
        # It gets the pool, not self: that reference would keep the sandbox alive for ever.
        self._finalizer = weakref.finalize(self, _close, self._pool, os.getpid())
        try:
            self._pool.start(_shape(self._limits), START_S)
        except BaseException:
            self._finalizer()
            raise

    def run(self, program: Program, *, limits: Limits | None = None, timeout_s: float = 60.0) -> RunResult:
        limits = self._checked(limits)
        deadline = time.monotonic() + timeout_s
        worker = self._pool.acquire(_shape(limits), timeout_s)
        started = time.monotonic()
        try:
            return run_program(worker, program, limits, deadline=deadline, timeout_s=timeout_s)
        except OutOfMemoryError:
            return out_of_memory(worker, time.monotonic() - started)
        except ConfigError:
            raise  # nothing has been sent yet
        except BaseException:
            worker.retire()  # its state is unknown
            raise
        finally:
            self._pool.release(worker)

    def session(self, *, language: Language = "python", limits: Limits | None = None) -> DockerSession:
        limits = self._checked(limits)
        worker = self._pool.acquire(_shape(limits), SESSION_WAIT_S)
        try:
            tool(language, worker)
            return DockerSession(worker, self._take_back, language, limits)
        except BaseException:
            self._pool.release(worker)
            raise

    def _take_back(self, worker: Worker) -> None:
        """Called by a session; its reference to this method keeps the sandbox alive while the session is open."""
        self._pool.release(worker)

    def close(self) -> None:
        self._finalizer()

    def _checked(self, limits: Limits | None) -> Limits:
        if limits is None:
            return self._limits
        check_limits(limits)
        return limits


def _close(pool: Pool, owner: int) -> None:
    # In a fork of the process that made them the containers still belong to that process.
    if os.getpid() == owner:
        pool.close()


def _shape(limits: Limits) -> Shape:
    """Limit files to half the memory: killing a program does not free its tmpfs files, so PID 1 would be killed too."""
    return Shape(processes=limits.processes, files_mb=min(limits.files_mb, max(1, limits.memory_mb // 2)))
