"""A conversation between two jails: the answer's, and that of the tests, to which expected values are confined.

The judge hands lines from one to the other and never reads what an answer made: nothing in them is decoded, compared or
computed with in this process. Each request carries a random id that its reply must repeat, so that output written
earlier cannot pass for a reply. The answer can forge any reply, but does not know what is expected.
"""

from __future__ import annotations

import base64
import functools
import importlib.util
import json
import marshal
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

    def step(self, message: str, wall_s: float) -> tuple[str, bytes, bytes]:
        """The reply, what was printed before it, and the id. Raises :class:`JailEnded` and :class:`SandboxError`."""
        # Known only when the request arrives, so that a reply cannot be printed in advance.
        identity = secrets.token_hex(16)
        return self._run(f"{self._name}.step({identity!r}, {message!r})", identity, wall_s)

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

    def __init__(self, answers: Sandbox, tests: Sandbox, limits: Limits, *, total_s: float, most_s: float) -> None:
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
        tests = self._jail(self._tests, replace(self._limits, memory_mb=max(1024, self._limits.memory_mb)))
        try:
            kind, content = _said(self._start_tests(tests, plan))
            while kind == "ask":
                reply = self._ask(content)
                kind, content = _said(tests.step(reply, self._left()))
            found: dict[str, Any] = json.loads(content)
            return found
        finally:
            tests.close()
            if self._answer is not None:
                self._answer.close()

    def control(self, plan: dict[str, Any]) -> dict[str, Any]:
        """The same tests with an answer whose values allow everything."""
        return self._alone(self._tests, plan, "control=True")

    def beside(self, source: str, plan: dict[str, Any]) -> dict[str, Any]:
        """The same tests in the answer's jail."""
        return self._alone(self._answers, plan, f"answer={source!r}")

    def _jail(self, sandbox: Sandbox, limits: Limits) -> Jail:
        """A new jail; the wait for a free slot does not count as time of the answer."""
        started = time.monotonic()
        jail = Jail(sandbox, limits)
        self._until += time.monotonic() - started
        return jail

    def _alone(self, sandbox: Sandbox, plan: dict[str, Any], how: str) -> dict[str, Any]:
        tests = self._jail(sandbox, self._limits)
        self._until = max(self._until, time.monotonic() + self._most_s)
        try:
            found: dict[str, Any] = json.loads(_said(self._start_tests(tests, plan, how))[1])
            return found
        finally:
            tests.close()

    def _start_tests(self, tests: Jail, plan: dict[str, Any], how: str = "") -> tuple[str, bytes, bytes]:
        identity = secrets.token_hex(16)
        made = f"{tests._name}['{_PACKAGE}.tests'].Tests({tests.mark!r}, {plan!r}, {how})"
        modules = ("values", "proxies", "compare", "reading", "stand_ins", "pytest_run", "tests")
        return tests.start(modules, _stepped(tests, made, identity), identity=identity, wall_s=self._left())

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
        jail = self._answer = self._jail(self._answers, self._limits)
        identity = secrets.token_hex(16)
        made = f"{jail._name}['{_PACKAGE}.answer'].Answer({jail.mark!r}, {self._source!r}, {identity!r})"
        try:
            jail.start(("values", "answer"), made, identity=identity, wall_s=self._limits.wall_s)
        except JailEnded as ended:
            self._ended = ended
            raise


def _stepped(tests: Jail, made: str, identity: str) -> str:
    return f"{made}\n{tests._name}.step({identity!r})"


def _said(reply: tuple[str, bytes, bytes]) -> tuple[str, bytes]:
    kind, _, content = reply[1].partition(b" ")
    return kind.decode(), content
