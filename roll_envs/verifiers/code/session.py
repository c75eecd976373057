"""A conversation between two jails: the answer's, and that of the tests, to which expected values are confined.

The judge hands lines from one to the other and never reads what an answer made: nothing in them is decoded, compared or
computed with in this process. Each request carries a random id that its reply must repeat, so that output written
earlier cannot pass for a reply. The answer can forge any reply, but does not know what is expected.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import functools
import importlib.util
import json
import marshal
import os
import secrets
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roll_envs.errors import SandboxError
from roll_envs.sandbox import Limits, RunResult, Sandbox, SandboxSession, explained

_PACKAGE = "roll_envs.verifiers.code.inside"
_PRINTED = 1 << 16
"""Bytes of what a call printed that are shown to the tests."""
GRACE_S = 0.8
"""For the tests to note, after the time for all of them, which ones it left out."""
_TESTS_MB, _LOAD_S = 1024, 20.0
REPLY_BYTES = 4 << 20
SEPARATOR = b"\x1e"
"""Between the requests of a batch, as in ``inside.tests``."""


class JailEnded(Exception):
    """The process went over a limit or ended; ``status`` says which, as in the result of a test."""

    def __init__(self, status: str, text: str, time_s: float = 0.0, memory_mb: float = 0.0) -> None:
        super().__init__(text)
        self.status, self.time_s, self.memory_mb = status, time_s, memory_mb


class Jail:
    """A session in which an object of ``inside`` takes messages."""

    def __init__(self, sandbox: Sandbox, limits: Limits) -> None:
        # Replies share stdout with what the program prints.
        self.limits = replace(limits, output_bytes=max(limits.output_bytes, REPLY_BYTES))
        self._session: SandboxSession | None = sandbox.session(language="python", limits=self.limits)
        self._name, self.mark = f"_judge_{secrets.token_hex(8)}", secrets.token_hex(8)
        self.wall_s, self.memory_mb = 0.0, 0.0

    def start(self, made: str, *given: tuple[str, ...], modules: tuple[str, ...], wall_s: float) -> None:
        """Load the modules and make the object: ``made`` of the last one, of the mark, ``given`` and an identity."""
        identity = secrets.token_hex(16)
        source = f"{self._name}['{_PACKAGE}.{modules[-1]}'].{made}{(self.mark, *given, identity)!r}"
        loader = _LOADER.format(name=self._name, modules=_sources(modules), magic=_MAGIC, made=source)
        self._run(loader, identity, wall_s)

    def step(self, given: str, wall_s: float, *, method: str = "step") -> tuple[bytes, bytes]:
        """Call the method of the object; ``given``: the source of its arguments. The reply, and what was printed before
        it. Raises :class:`JailEnded` and :class:`SandboxError`."""
        # Known only when the request arrives, so that a reply cannot be printed in advance.
        identity = secrets.token_hex(16)
        return self._run(f"{self._name}.{method}({identity!r}, {given})", identity, wall_s)

    def _run(self, cell: str, identity: str, wall_s: float) -> tuple[bytes, bytes]:
        if self._session is None:
            raise SandboxError("the jail has ended already")
        result = explained(self._session.run(cell, limits=replace(self.limits, wall_s=max(0.01, wall_s))))
        self.wall_s, self.memory_mb = result.wall_s, result.memory_peak_mb or 0.0
        mark = b"\n" + (self.mark + identity).encode()
        start = result.stdout.rfind(mark)
        end = result.stdout.find(b"\n", start + 1)
        if result.status not in ("ok", "error") or start < 0 or end < 0:
            self.close()
            raise JailEnded(*_ending(result), self.wall_s, self.memory_mb)
        return result.stdout[start + len(mark) : end], result.stdout[max(0, start - _PRINTED) : start]

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
    limits = {"timeout": "time", "memory": "memory", "output": "output"}
    status = "output" if result.stdout_dropped and result.status not in limits else result.status
    if status in limits:
        return status, f"over the limit of {limits[status]}"
    return "exit", "the code ended its process instead of answering"


@dataclass(kw_only=True, eq=False)
class Testing:
    """One run of the tests of a row against one answer."""

    sources: tuple[str, ...]
    """The answer's code, alone and behind what a prompt gives; the first that compiles counts."""
    plan: dict[str, Any]
    answers: Sandbox
    tests: Sandbox
    limits: Limits
    total_s: float
    keep: bool
    """Whether ``tests`` is the one sandbox whose jails are used for one answer after another."""

    def __post_init__(self) -> None:
        self._until = time.monotonic() + self.total_s
        self._most_s = max(2.0, self.limits.wall_s)
        self._answer: Jail | None = None
        self.asked = 0
        self._ended: JailEnded | None = None

    def run(self) -> dict[str, Any]:
        """What ``inside.tests`` found. Raises :class:`JailEnded` where the jail of the tests has ended."""
        try:
            return self._converse(self.tests)
        finally:
            self._drop_answer()

    def _drop_answer(self) -> None:
        if self._answer is not None:
            self._answer.close()
        self._answer = None

    def control(self) -> list[str] | None:
        """Errors of the same tests with an answer whose values allow everything; ``None`` where their jail ends."""
        try:
            return list(self._again(self.tests, ", control=True")["doubts"])
        except JailEnded:
            return None

    def beside(self) -> dict[str, Any]:
        """The same tests in the answer's jail."""
        return self._again(self.answers, f", answer={self.sources!r}")

    def _again(self, sandbox: Sandbox, how: str) -> dict[str, Any]:
        self._until = max(self._until, time.monotonic() + self._most_s)
        return self._converse(sandbox, how)

    def _converse(self, sandbox: Sandbox, how: str = "") -> dict[str, Any]:
        keep = self.keep and sandbox is self.tests
        # As JSON in a text: a literal of as many values would take its jail seconds to compile.
        given = f"{json.dumps(self.plan)!r}{how}"
        waiting: Jail | None = None
        with contextlib.suppress(IndexError):
            waiting = _idle[os.getpid()].pop() if keep else None
        tests = waiting or self._tests_jail(sandbox)

        def said(method: str, given: str) -> tuple[bytes, bytes]:
            kind, _, content = tests.step(given, self._left(), method=method)[0].partition(b" ")
            return kind, content

        try:
            try:
                kind, content = said("start", given)
            except SandboxError:
                if waiting is None:
                    raise
                tests.close()  # it was lost while it waited
                tests = self._tests_jail(sandbox)
                kind, content = said("start", given)
            while kind != b"done":
                if kind == b"ask":
                    kind, content = said("step", repr(self._ask(content)))
                elif kind == b"batch":
                    kind, content = said("finish", repr(self._batch(content)))
                else:  # the collected calls were not those of the tests: all again, one by one, with the answer as new
                    self._drop_answer()
                    self.asked = 0
                    kind, content = said("start", f"{given}, live=True")
            found: dict[str, Any] = json.loads(content)
        except BaseException:
            tests.close()
            raise
        if keep and not found["spent"] and not how:
            _idle[os.getpid()].append(tests)
        else:
            tests.close()
        return found

    def _tests_jail(self, sandbox: Sandbox) -> Jail:
        limits = self.limits if sandbox is self.answers else replace(self.limits, memory_mb=_TESTS_MB)
        started = time.monotonic()
        tests = Jail(sandbox, limits)
        modules = tuple("frames values reading patches shared proxies compare stand_ins pytest_run tests".split())
        tests.start("Template", modules=modules, wall_s=_LOAD_S)
        self._until += time.monotonic() - started
        return tests

    def _left(self) -> float:
        return min(self._most_s, self._until + GRACE_S - time.monotonic())

    def _batch(self, requests: bytes) -> list[str]:
        """Replies to requests that are made one after the other; fewer where they are too long together."""
        replies, size = [], 0
        for request in requests.split(SEPARATOR):
            replies.append(self._ask(request))
            size += len(replies[-1])
            if size > REPLY_BYTES:
                break
        return replies

    def _ask(self, request: bytes) -> str:
        """The head of a reply, which the judge writes, and the reply as the answer wrote it."""
        head = {"status": "", "text": "", "printed": "", "time_s": 0.0, "memory_mb": 0.0}
        line = b""
        try:
            if self.asked and self._until - time.monotonic() <= 0:
                raise JailEnded("skipped", "the time for all tests was over")
            if self._answer is None:
                self._answer = self._load()
            if not self.asked:
                self._until = time.monotonic() + self.total_s
            self.asked += 1
            line, printed = self._answer.step(repr(request.decode()), self.limits.wall_s)
            head["printed"] = printed.decode(errors="replace")
            head |= {"time_s": self._answer.wall_s, "memory_mb": self._answer.memory_mb}
        except JailEnded as ended:
            head |= {"status": ended.status, "text": str(ended), "time_s": ended.time_s, "memory_mb": ended.memory_mb}
            self._answer = self._answer if ended.status == "skipped" else None
        return json.dumps(head) + "\n" + line.decode("ascii", "replace")

    def _load(self) -> Jail:
        if self._ended is not None:  # it ends with each try
            raise self._ended
        started = time.monotonic()
        jail = Jail(self.answers, self.limits)
        # The wait for a free slot is not time of the answer.
        self._until += time.monotonic() - started
        modules = ("frames", "values", "patches", "shared", "preamble", "answer")
        try:
            jail.start("Answer", self.sources, modules=modules, wall_s=self.limits.wall_s)
        except BaseException as error:
            jail.close()
            self._ended = error if isinstance(error, JailEnded) else None
            raise
        return jail


_idle: dict[int, list[Jail]] = collections.defaultdict(list)
"""Jails of tests that wait for the next answer, by the process that they belong to."""


def close_idle() -> None:
    """Close the jails that are kept for the next answer."""
    for jail in _idle.pop(os.getpid(), []):
        jail.close()
