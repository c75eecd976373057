"""A conversation between two jails: the answer's, and that of the tests, to which expected values are confined.

The judge hands lines from one to the other and never reads what an answer made: nothing in them is decoded, compared or
computed with in this process. Each request carries a random id that its reply must repeat, so that output written
earlier cannot pass for a reply. The answer can forge any reply, but does not know what is expected.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import importlib.util
import json
import marshal
import os
import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from roll_envs.errors import SandboxError
from roll_envs.sandbox import Limits, RunResult, Sandbox, SandboxSession

__all__ = ["Jail", "JailEnded", "Testing"]

_PACKAGE = "roll_envs.verifiers.code.inside"
_PRINTED = 1 << 16
"""Bytes of what a call printed that are shown to the tests."""
GRACE_S = 0.8
"""For the tests to note, after the time for all of them, which ones it left out."""
_TESTS_MB, _LOAD_S = 1024, 20.0
REPLY_BYTES = 4 << 20


class JailEnded(Exception):
    """The process went over a limit or ended; ``status`` says which, as in the result of a test."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


class Jail:
    """A session in which an object of ``inside`` takes messages."""

    def __init__(self, sandbox: Sandbox, limits: Limits) -> None:
        # Replies share stdout with what the program prints.
        self.limits = replace(limits, output_bytes=max(limits.output_bytes, REPLY_BYTES))
        self._session: SandboxSession | None = sandbox.session(language="python", limits=self.limits)
        self._name, self.mark = f"_judge_{secrets.token_hex(8)}", secrets.token_hex(8)
        self.wall_s, self.memory_mb = 0.0, 0.0

    def start(self, modules: tuple[str, ...], made: str, *, identity: str, wall_s: float) -> tuple[str, bytes, bytes]:
        """Load the modules and make the object, whose source text may use ``mark`` and ``identity``."""
        return self._run(
            _LOADER.format(name=self._name, modules=_sources(modules), magic=_MAGIC, made=made), identity, wall_s
        )

    def step(
        self, message: str, wall_s: float, *, method: str = "step", literal: bool = False
    ) -> tuple[str, bytes, bytes]:
        """The reply, what was printed before it, and the id. Raises :class:`JailEnded` and :class:`SandboxError`."""
        # Known only when the request arrives, so that a reply cannot be printed in advance.
        identity = secrets.token_hex(16)
        given = message if literal else repr(message)
        return self._run(f"{self._name}.{method}({identity!r}, {given})", identity, wall_s)

    def _run(self, cell: str, identity: str, wall_s: float) -> tuple[str, bytes, bytes]:
        if self._session is None:
            raise SandboxError("the jail has ended already")
        result = self._session.run(cell, limits=replace(self.limits, wall_s=max(0.01, wall_s)))
        self.wall_s, self.memory_mb = result.wall_s, result.memory_peak_mb or 0.0
        mark = b"\n" + (self.mark + identity).encode()
        start = result.stdout.rfind(mark)
        end = result.stdout.find(b"\n", start + 1)
        if result.status not in ("ok", "error") or start < 0 or end < 0:
            self.close()
            raise JailEnded(*_ending(result))
        return identity, result.stdout[start + len(mark) : end], result.stdout[max(0, start - _PRINTED) : start]

    @property
    def usable(self) -> bool:
        """Whether it has not ended, as far as is known."""
        return self._session is not None

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


_MAGIC = importlib.util.MAGIC_NUMBER
# Compiled here once, for a Python of the same version there.
_LOADER = """
def {name}():
    import base64, sys, types
    import importlib.util, marshal
    for key, text, code in {modules}:
        sys.modules[key] = module = types.ModuleType(key)
        if importlib.util.MAGIC_NUMBER == {magic}:
            code = marshal.loads(base64.b64decode(code))
        else:
            code = compile(base64.b64decode(text), key, "exec", dont_inherit=True)
        exec(code, module.__dict__)
    return sys.modules
{name} = {name}()
{name} = {made}
"""


@functools.cache
def _sources(modules: tuple[str, ...]) -> str:
    folder = Path(__file__).parent / "inside"
    found = []
    for name in modules:
        key, text = f"{_PACKAGE}.{name}", (folder / f"{name}.py").read_bytes()
        code = marshal.dumps(compile(text, key, "exec", dont_inherit=True))
        found.append((key, base64.b64encode(text).decode(), base64.b64encode(code).decode()))
    return repr(found)


def _ending(result: RunResult) -> tuple[str, str]:
    if result.status in ("timeout", "memory", "output"):
        limit = {"timeout": "time", "memory": "memory"}.get(result.status, "output")
        return result.status, f"over the limit of {limit}"
    if result.stdout_dropped:
        return "output", "over the limit of output"
    return "exit", "the code ended its process instead of answering"


class Testing:
    """One run of the tests of a row against one answer."""

    def __init__(
        self, answers: Sandbox, tests: Sandbox, limits: Limits, *, total_s: float, most_s: float, keep: bool = False
    ) -> None:
        """``keep``: whether ``tests`` is the one sandbox whose jails are used for one answer after another."""
        self._keep = keep
        self._answers, self._tests, self._limits = answers, tests, limits
        self._total_s, self._most_s = total_s, most_s
        self._until = time.monotonic() + total_s
        self._answer: Jail | None = None
        self._source = ""
        self.asked = 0
        self._ended: JailEnded | None = None

    def run(self, source: str, plan: dict[str, Any]) -> dict[str, Any]:
        """What ``inside.tests`` found. Raises :class:`JailEnded` where the jail of the tests has ended."""
        self._source = source
        try:
            return self._converse(self._tests, plan, "")
        finally:
            if self._answer is not None:
                self._answer.close()

    def control(self, plan: dict[str, Any]) -> dict[str, Any]:
        """The same tests with an answer whose values allow everything."""
        self._until = max(self._until, time.monotonic() + self._most_s)
        return self._converse(self._tests, plan, ", control=True")

    def beside(self, source: str, plan: dict[str, Any]) -> dict[str, Any]:
        """The same tests in the answer's jail."""
        self._until = max(self._until, time.monotonic() + self._most_s)
        return self._converse(self._answers, plan, f", answer={source!r}")

    def _converse(self, sandbox: Sandbox, plan: dict[str, Any], how: str) -> dict[str, Any]:
        keep = self._keep and sandbox is self._tests
        tests = _take_idle() if keep else None
        try:
            given = f"{plan!r}{how}"
            said = None
            if tests is not None:
                with contextlib.suppress(SandboxError):  # it may have been lost while it waited
                    said = tests.step(given, self._left(), method="start", literal=True)
            if tests is None or said is None:
                tests = self._tests_jail(sandbox)
                said = tests.step(given, self._left(), method="start", literal=True)
            kind, content = _said(said)
            while kind == "ask":
                reply = self._ask(content)
                kind, content = _said(tests.step(reply, self._left()))
            found: dict[str, Any] = json.loads(content)
        except BaseException:
            if tests is not None:
                tests.close()
            raise
        if keep:
            _idle.append((os.getpid(), tests))
        else:
            tests.close()
        return found

    def _tests_jail(self, sandbox: Sandbox) -> Jail:
        limits = self._limits if sandbox is self._answers else replace(self._limits, memory_mb=_TESTS_MB)
        started = time.monotonic()
        tests = Jail(sandbox, limits)
        identity = secrets.token_hex(16)
        ready = f"__import__('os').write(1, {_mark(tests, identity)!r})"
        made = f"{tests._name}['{_PACKAGE}.tests'].Template({tests.mark!r})\n{ready}"
        modules = ("values", "proxies", "compare", "reading", "stand_ins", "pytest_run", "tests")
        tests.start(modules, made, identity=identity, wall_s=_LOAD_S)
        self._until += time.monotonic() - started
        return tests

    def _left(self) -> float:
        return min(self._most_s, self._until + GRACE_S - time.monotonic())

    def _ask(self, request: bytes) -> str:
        """The head of a reply, which the judge writes, and the reply as the answer wrote it."""
        if not self.asked:
            self._until = time.monotonic() + self._total_s
        self.asked += 1
        head = {"status": "", "text": "", "printed": "", "time_s": 0.0, "memory_mb": 0.0}
        line = b""
        if self._until - time.monotonic() <= 0:
            head |= {"status": "skipped", "text": "the time for all tests was over"}
        else:
            try:
                if self._answer is None:
                    self._load()
                assert self._answer is not None
                _, line, printed = self._answer.step(request.decode(), self._limits.wall_s)
                head["printed"] = printed.decode(errors="replace")
            except JailEnded as ended:
                head |= {"status": ended.status, "text": str(ended)}
            if self._answer is not None:
                head |= {"time_s": self._answer.wall_s, "memory_mb": self._answer.memory_mb}
            if head["status"]:
                self._answer = None
        return json.dumps(head) + "\n" + line.decode("ascii", "replace")

    def _load(self) -> None:
        if self._ended is not None:  # it ends with each try
            raise self._ended
        started = time.monotonic()
        jail = self._answer = Jail(self._answers, self._limits)
        # The wait for a free slot is not time of the answer.
        self._until += time.monotonic() - started
        identity = secrets.token_hex(16)
        made = f"{jail._name}['{_PACKAGE}.answer'].Answer({jail.mark!r}, {self._source!r}, {identity!r})"
        try:
            jail.start(("values", "preamble", "answer"), made, identity=identity, wall_s=self._limits.wall_s)
        except JailEnded as ended:
            self._ended = ended
            raise


def _mark(jail: Jail, identity: str) -> bytes:
    return f"\n{jail.mark}{identity}ready\n".encode()


_idle: list[tuple[int, Jail]] = []
"""Jails of tests that wait for the next answer, with the process that they belong to."""


def _take_idle() -> Jail | None:
    while _idle:
        owner, jail = _idle.pop()
        if owner == os.getpid() and jail.usable:
            return jail
    return None


def close_idle() -> None:
    """Close the jails that are kept for the next answer."""
    while (jail := _take_idle()) is not None:
        jail.close()


def _said(reply: tuple[str, bytes, bytes]) -> tuple[str, bytes]:
    kind, _, content = reply[1].partition(b" ")
    return kind.decode(), content
