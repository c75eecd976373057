"""Sandboxes: the contract for running untrusted programs, and ``make_sandbox``.

A sandbox runs whole programs (:meth:`Sandbox.run`) and holds sessions whose files, and for Python the interpreter's
state, stay from one call to the next (:meth:`Sandbox.session`). What a program does is always a :class:`RunResult`;
what *we* fail to do raises :class:`~roll_envs.errors.SandboxError`, which is never a verdict about the program.

Backends are found by entry points of the group ``roll_envs.sandboxes`` (name -> class or function that makes one).
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

from roll_envs.errors import ConfigError, PluginError, SandboxError
from roll_envs.registry import MakerRegistry

Language = Literal["python", "bash", "cpp", "javascript", "java", "go", "rust", "typescript"]
LANGUAGES: tuple[Language, ...] = get_args(Language)
COMPILED: frozenset[Language] = frozenset({"cpp", "java", "go", "rust", "typescript"})
"""Languages in which a program is compiled before it is run; within a moment the same program is compiled once."""

SANDBOX_CPUS = "ROLL_SANDBOX_CPUS"
"""Environment variable with the processors that sandboxes run on, such as ``2,3``; without it, on any."""

RunStatus = Literal["ok", "error", "timeout", "memory", "output"]
"""``ok``: exit code 0; ``error``: any other end of its own; the rest: the limit that ended it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a program may use. Going over one ends it; the result's status says which."""

    wall_s: float = 10.0
    memory_mb: int = 512
    """Of all its processes together."""
    processes: int = 64
    """Processes and threads at one time."""
    output_bytes: int = 1 << 20
    """Kept of stdout and of stderr each; what comes after is read and dropped, and the result says so."""
    files_mb: int = 64
    """Of everything it writes to disk."""
    compile_s: float = 10.0
    """For languages that are compiled first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """Source text with what it reads. Raises :class:`ConfigError` for input or a file that is text, not bytes."""

    source: str
    language: Language = "python"
    stdin: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Relative path -> content, written to the working folder before the start."""
    fetch: tuple[str, ...] = ()
    """Relative paths to bring back afterwards, where they exist and are plain files below the working folder."""
    arguments: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    """Added to a small fixed environment; nothing of the host's is visible."""

    def __post_init__(self) -> None:
        for name, content in (("stdin", self.stdin), *((f"files[{path!r}]", c) for path, c in self.files.items())):
            if not isinstance(content, bytes):
                raise ConfigError(f"{name} must be bytes, such as b'1 2', not {content!r:.40}; text has .encode()")


@dataclass(frozen=True, kw_only=True, slots=True)
class Isolation:
    """What stood between a program and the host."""

    tier: str
    """Name of the whole: for the local backend ``full``, or a weaker one that the caller had to allow."""
    layers: tuple[str, ...]
    """What was active, such as ``user-namespace``, ``pid-namespace``, ``seccomp``, ``cgroup-memory``."""
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """How a program ended."""

    status: RunStatus
    exit_code: int | None
    """``None`` when a signal or a limit ended it; see ``signal``."""
    signal: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_dropped: int = 0
    """Bytes beyond ``Limits.output_bytes``."""
    stderr_dropped: int = 0
    wall_s: float = 0.0
    memory_peak_mb: float | None = None
    """``None`` where the backend cannot tell."""
    isolation: Isolation
    files: Mapping[str, bytes] = field(default_factory=dict)
    """What ``Program.fetch`` asked for and could be had."""
    compile: RunResult | None = None
    """Of the compiler, for languages that have one; the program did not run where its status is not ``ok``."""

    @property
    def ok(self) -> bool:
        """Ended by itself with exit code 0."""
        return self.status == "ok"


def explained(result: RunResult) -> RunResult:
    """``result``. Raises :class:`SandboxError` where its program, or the compiler, failed with neither exit code nor
    signal: then a part of the sandbox died around it, and nothing is known about the program."""
    last = result if result.compile is None or result.compile.ok else result.compile
    if last.status == "error" and last.exit_code is None and last.signal is None:
        raise SandboxError("a part of the sandbox died in the middle of a run")
    return result


class _Held(abc.ABC):
    """Something that is held open, and closed at the end of a ``with`` block."""

    @abc.abstractmethod
    def close(self) -> None:
        """End all programs and processes, and remove files; any number of times."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SandboxSession(_Held):
    """A working folder, and for Python an interpreter, that live from call to call. Not for several threads at once."""

    @abc.abstractmethod
    def run(self, source: str, *, limits: Limits | None = None) -> RunResult:
        """Run a cell: for Python in one namespace, as in a notebook (the value of a last expression is printed).

        A cell that hits a limit loses the interpreter's state, not the files; ``exit_code`` is 1 after an exception.
        """

    @abc.abstractmethod
    def upload(self, path: str, content: bytes) -> None:
        """Write a file below the working folder. Raises :class:`ConfigError` for a path that leads out of it."""

    @abc.abstractmethod
    def download(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        """Read a plain file below the working folder; no link is followed. Raises :class:`ConfigError` for others."""

    async def arun(self, source: str, *, limits: Limits | None = None) -> RunResult:
        """:meth:`run` for asynchronous callers."""
        import asyncio  # here, because importing the hub must stay light

        return await asyncio.to_thread(self.run, source, limits=limits)


class Sandbox(_Held):
    """Runs untrusted programs. Safe to use from many threads; ``slots`` programs run at one time.

    Every method raises :class:`~roll_envs.errors.SandboxError` for an infrastructure failure, and
    :class:`~roll_envs.errors.DeadlineExceededError` when no slot was free in time; neither says anything about the
    program.
    """

    @abc.abstractmethod
    def run(self, program: Program, *, limits: Limits | None = None, timeout_s: float = 60.0) -> RunResult:
        """Run a whole program in a fresh place. ``timeout_s`` bounds the whole call, the wait for a slot included."""

    @abc.abstractmethod
    def session(self, *, language: Language = "python", limits: Limits | None = None) -> SandboxSession:
        """Open a session. It holds a slot until it is closed."""

    async def arun(self, program: Program, *, limits: Limits | None = None, timeout_s: float = 60.0) -> RunResult:
        """:meth:`run` for asynchronous callers."""
        import asyncio  # here, because importing the hub must stay light

        return await asyncio.to_thread(self.run, program, limits=limits, timeout_s=timeout_s)


SANDBOXES: MakerRegistry[Sandbox] = MakerRegistry("sandbox", "roll_envs.sandboxes")


def make_sandbox(name: str, **settings: Any) -> Sandbox:
    """Make a backend by name: ``local``, ``docker``, ``remote``, or that of another installed package.

    Raises :class:`UnknownNameError` for a name nobody registers or a setting that does not exist,
    :class:`PluginError` when its package is broken, and what the backend raises (:class:`ConfigError`,
    :class:`MissingExtraError`, :class:`SandboxError`).
    """
    made = SANDBOXES.make(name, settings)
    if not isinstance(made, Sandbox):
        raise PluginError(f"sandbox {name!r} made a {type(made).__name__}, not a Sandbox")
    return made
