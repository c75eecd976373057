"""The rules of ``check_env`` in a process of their own, which a hanging or crashing environment cannot take along.

Run as a module it is that process: it reads a pickled request on stdin and writes one line of JSON for each event to
the descriptor it is told. A watchdog ends it when a rule is not done in time, after it has written where it stands.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker

from roll_envs import env_registry as registry
from roll_envs.env import AnyEnv, EnvironmentCard
from roll_envs.errors import RollError, UnknownNameError
from roll_envs.managers.host import pickled_error, unpickled_error
from roll_envs.registry import IN_PROCESS
from roll_envs.testing.table import CheckResult, apply, found_in
from roll_envs.testing.trace import MakeEnv, Subject

MAKING = "load"
"""The name under which a hang or crash before the first rule is reported."""
_GRACE_S = 5.0
"""How much longer than its own watchdog the process is waited for."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to check: ``target`` and ``card`` are those of ``check_env``, ``known`` is what only this process knows of
    an id (its card, or Gymnasium's spec), and ``rules`` are names."""

    target: str | MakeEnv
    kwargs: Mapping[str, Any]
    card: EnvironmentCard | None
    known: EnvironmentCard | EnvSpec | None
    seeds: tuple[int, ...]
    rules: Sequence[str]
    timeout_s: float

    @property
    def name(self) -> str:
        return self.target if isinstance(self.target, str) else getattr(self.target, "__name__", repr(self.target))

    def subject(self) -> Subject:
        """The environment under test. Raises what making it raises: a :class:`RollError` is the caller's mistake."""
        # A partial of a module's function, unlike a closure, can be pickled for another process.
        make = functools.partial(_bare, self.target, dict(self.kwargs), self.known)
        found = self.card
        if found is None and isinstance(self.target, str):
            _know(self.known)
            with contextlib.suppress(UnknownNameError):  # known to Gymnasium alone, or to nobody: making it will tell
                found = registry.card(self.target)
        varied = self.card is None and bool(self.kwargs)
        subject = Subject(
            name=self.name, make=make, all_seeds=self.seeds, card=found, varied=varied, timeout_s=self.timeout_s
        )
        make().close()
        return subject


def known_here(target: str | MakeEnv) -> EnvironmentCard | EnvSpec | None:
    """What another process would not know of an id: its card or spec, where it was registered in this one."""
    if not isinstance(target, str):
        return None
    name = target.rpartition(":")[2]
    if name not in registry.ENVIRONMENTS:
        return gymnasium.registry.get(name)
    return registry.card(name) if registry.ENVIRONMENTS.source(name) == IN_PROCESS else None


def _know(known: EnvironmentCard | EnvSpec | None) -> None:
    if isinstance(known, EnvironmentCard):
        if known.id not in registry.ENVIRONMENTS:
            registry.register(known)
    elif known is not None:
        gymnasium.registry.setdefault(known.id, known)


def _bare(target: str | MakeEnv, kwargs: Mapping[str, Any], known: EnvironmentCard | EnvSpec | None) -> AnyEnv:
    """A new environment without Gymnasium's checking wrappers; also called in other processes."""
    if callable(target):
        env = target(**kwargs)
    else:
        _know(known)
        env = registry.build(target, kwargs)
    while isinstance(env, PassiveEnvChecker | OrderEnforcing):
        env = env.env
    return env


# -- the side of the caller --------------------------------------------------------------------------------------------


def results(request: Request) -> Iterator[CheckResult]:
    """The result of each rule as it comes.

    Raises :class:`RollError` where the environment cannot be made by the caller's mistake. What cannot be sent to
    another process (a function that holds a lock, say) is checked in this one, where nothing bounds it.
    """
    left = list(request.rules)
    while left:
        request = replace(request, rules=tuple(left))
        payload = _pickled(request)
        if payload is None:
            yield from _applied(request, lambda _, do: do())
            return
        with _child(payload) as child:
            running = MAKING
            for event in child.events(request.timeout_s + _GRACE_S):
                if "refused" in event:
                    raise unpickled_error(bytes.fromhex(event["refused"]))
                if "began" in event:
                    running = event["began"]
                    continue
                with contextlib.suppress(ValueError):  # the making is none of the rules
                    left.remove(event["rule"])
                yield CheckResult(**event)
            if not left:
                return
            hung, detail = child.ended(request.timeout_s)
        yield CheckResult(rule=running, status="fail", detail=detail)
        if running in left:
            left.remove(running)
        if hung or running == MAKING:
            yield from _skipped(left, running)
            return


def _skipped(rules: Sequence[str], after: str) -> Iterator[CheckResult]:
    for rule in rules:
        yield CheckResult(rule=rule, status="skip", detail=f"not applied, since {after!r} failed as it did")


def _applied(request: Request, bounded: Callable[[str, Callable[[], Any]], Any]) -> Iterator[CheckResult]:
    """Each rule's result; ``bounded`` is what each call of code of others goes through, with its name."""
    try:
        subject: Subject = bounded(MAKING, request.subject)
    except RollError:
        raise
    except (Exception, SystemExit) as error:  # code of others
        yield CheckResult(rule=MAKING, status="fail", detail=f"it cannot be made: {found_in(error)}")
        yield from _skipped(request.rules, MAKING)
        return
    for rule in request.rules:
        yield bounded(rule, functools.partial(apply, rule, subject))


def _pickled(request: Request) -> bytes | None:
    import cloudpickle  # type: ignore[import-untyped]

    try:
        found: bytes = cloudpickle.dumps(request)
    except Exception:  # the user's own function may hold anything
        return None
    return found


@contextlib.contextmanager
def _child(payload: bytes) -> Iterator[_Child]:
    """A process for the request, of which nothing is left behind in the end."""
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as given:
        # A file, not a pipe: a child that never reads cannot make the writer wait.
        given.write(json.dumps([p or os.getcwd() for p in sys.path]).encode() + b"\n" + payload)
        given.seek(0)
        reader, writer = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", __spec__.name, str(writer)],
                stdin=given,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=(writer,),
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )
        finally:
            os.close(writer)
        child = _Child(process, reader, errors)
        try:
            yield child
        finally:
            child.kill()
            os.close(reader)


@dataclass(eq=False)
class _Child:
    """The process, what it tells and what it wrote to stderr."""

    process: subprocess.Popen[bytes]
    reader: int
    errors: IO[bytes]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)  # what it started too
        self.process.wait()

    def events(self, longest_s: float) -> Iterator[dict[str, Any]]:
        """What it tells, until it has ended or says nothing for ``longest_s``."""
        poll = select.poll()
        poll.register(self.reader, select.POLLIN)
        gathered = b""
        deadline = time.monotonic() + longest_s
        while (left_s := deadline - time.monotonic()) > 0:
            # A process that it left behind may hold the other end: its own end counts too.
            if not poll.poll(min(left_s, 0.5) * 1000):
                if self.process.poll() is not None:
                    return
                continue
            read = os.read(self.reader, 1 << 16)
            if not read:
                return
            *lines, gathered = (gathered + read).split(b"\n")
            for line in lines:
                deadline = time.monotonic() + longest_s
                yield json.loads(line)

    def ended(self, timeout_s: float) -> tuple[bool, str]:
        """Whether it hung, and what to say of its end before the rules were done."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)
        code = self.process.poll()
        self.kill()
        self.errors.seek(0)
        said = self.errors.read().decode(errors="replace")
        where = _where(said)
        if code is None or "Timeout (" in said:
            return True, f"not done within {timeout_s:g} s{where}; nothing that an agent writes may stop an environment"
        if code < 0:
            return False, f"the interpreter ends by {signal.Signals(-code).name}{where}"
        last = said.strip().splitlines()[-1:] or [""]
        return False, f"the process ends with exit code {code}{where or ': ' + last[0][:200]}"


_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


def _where(said: str) -> str:
    """The environment's own call in what faulthandler wrote, and the innermost one: " in step (game.py:7)"."""
    blocks = re.split(r"^(?:Current thread|Thread) 0x.*$", said, flags=re.MULTILINE)[1:]
    if not blocks:
        return ""
    # The thread of the rules is the oldest, unless another one is named as the cause.
    frames = _FRAME.findall(blocks[0] if "Current thread" in said else blocks[-1])
    ours = str(Path(__file__).parent)
    own = []
    for frame in frames:
        if frame[0].startswith(ours):
            break
        own.append(frame)
    named = [
        f"{function} ({Path(file).name}:{line})" for file, line, function in (own[-1:] + own[:1] if own else frames[:1])
    ]
    return f" in {', there in '.join(dict.fromkeys(named))}" if named else ""


# -- the side of the process -------------------------------------------------------------------------------------------


def _main() -> None:
    import cloudpickle

    sys.path[:] = json.loads(sys.stdin.buffer.readline())
    out = os.fdopen(int(sys.argv[1]), "w")
    os.set_inheritable(out.fileno(), False)
    _end_with_the_caller()
    faulthandler.enable()
    request: Request = cloudpickle.loads(sys.stdin.buffer.read())
    _serve(request, out)
    os._exit(0)  # threads that the environment left behind are not waited for


def _end_with_the_caller() -> None:
    """On Linux, where the kernel does so, even if the caller is killed and this process hangs."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _serve(request: Request, out: IO[str]) -> None:
    def tell(event: Mapping[str, str]) -> None:
        out.write(json.dumps(event) + "\n")
        out.flush()

    def bounded(what: str, do: Callable[[], Any]) -> Any:
        tell({"began": what})
        faulthandler.dump_traceback_later(request.timeout_s, exit=True)
        try:
            return do()
        finally:
            faulthandler.cancel_dump_traceback_later()

    try:
        for found in _applied(request, bounded):
            tell(asdict(found))
    except RollError as error:
        tell({"refused": pickled_error(error).hex()})


if __name__ == "__main__":
    _main()
