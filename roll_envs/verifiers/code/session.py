"""Runs a candidate's code in a session of a sandbox and evaluates expressions there, one request at a time.

Each request carries a random id that its reply must repeat, so that output written earlier cannot pass for a reply. The
candidate's process can forge any reply, but expected values are never sent to it, so it cannot know what to reply.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, replace
from typing import Any, Literal

from roll_envs.sandbox import Limits, Sandbox, SandboxSession
from roll_envs.verifiers.code.values import ENCODER, Opaque, decode

__all__ = ["CandidateFault", "CandidateSession", "Usage"]

# Defines the functions of the protocol under random names and runs the candidate's code in a module of its own, so that
# the code cannot replace them by chance. Every reply is one line: mark, id of the request, JSON.
# A reply begins with a newline, since the candidate may have printed a line without an end. Braces are doubled where
# the text goes through str.format.
_PRELUDE = (
    """
def {name}_start(source):
    import json, os, sys, types
"""
    + "".join(f"    {line}\n" for line in ENCODER.splitlines())
    + """
    module = types.ModuleType("answer")
    sys.modules["answer"] = module
    space = module.__dict__
    space["__builtins__"] = __builtins__
    def reply(identity, content):
        for stream in (sys.stdout, sys.stderr):
            try: stream.flush()
            except Exception: pass
        data = ("\\n{mark}" + identity + json.dumps(content) + "\\n").encode()
        while data: data = data[os.write(1, data):]
    def fault(error):
        names = [kind.__name__ for kind in type(error).__mro__]
        try: text = str(error)
        except BaseException: text = ""
        return {{"names": names, "text": text[:300]}}
    def ask(identity, source, store, statement):
        try:
            if statement:
                exec(compile(source, "<test>", "exec"), space)
                content = {{"value": ["n"]}}
            else:
                value = eval(compile(source, "<test>", "eval"), space)
                space[store] = value
                try: content = {{"value": encode(value)}}
                except ValueError: content = {{"value": ["o", type(value).__name__]}}
        except BaseException as error:
            content = {{"fault": fault(error)}}
        reply(identity, content)
    globals()["{name}_ask"] = ask
    identity = "{identity}"
    try:
        exec(compile(source, "<answer>", "exec"), space)
        content = {{"value": ["n"]}}
    except BaseException as error:
        content = {{"fault": fault(error)}}
    reply(identity, content)
{name}_start({source!r})
"""
)

Status = Literal["error", "timeout", "memory", "output", "exit", "skipped"]


class CandidateFault(Exception):
    """The candidate's code raised, ended its process or went over a limit; ``names`` are those of the exception's
    classes."""

    def __init__(self, status: Status, text: str, names: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.status, self.names = status, names


@dataclass(slots=True)
class Usage:
    """Time and memory of the requests since the last :meth:`CandidateSession.take_usage`."""

    wall_s: float = 0.0
    memory_mb: float | None = None


class CandidateSession:
    """The code of one candidate.

    The session is opened with the first request, and again after its process has ended.
    """

    def __init__(self, sandbox: Sandbox, source: str, limits: Limits) -> None:
        self._sandbox, self._source = sandbox, source
        # Replies share stdout with what the candidate prints.
        self._limits = replace(limits, output_bytes=max(limits.output_bytes, 4 << 20))
        self._session: SandboxSession | None = None
        self._name = ""
        self._stored = 0
        self._usage = Usage()
        self.load_fault: CandidateFault | None = None

    def __enter__(self) -> CandidateSession:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def evaluate(self, expression: str) -> tuple[str, Any]:
        """Evaluate an expression; returns a name under which the result is stored in the sandbox, and its value."""
        self._stored += 1
        store = f"_kept_{self._stored}"
        return store, self._ask(expression, store, statement=False)

    def execute(self, statements: str) -> None:
        """Run statements in the candidate's module."""
        self._ask(statements, "", statement=True)

    def take_usage(self) -> Usage:
        """Time and peak memory of the requests since the last call."""
        taken, self._usage = self._usage, Usage()
        return taken

    def _ask(self, source: str, store: str, *, statement: bool) -> Any:
        if self._session is None:
            self._load()
        # Known to the candidate only when the request arrives, so that it cannot print a reply in advance.
        identity = secrets.token_hex(16)
        return self._send(f"{self._name}_ask({identity!r}, {source!r}, {store!r}, {statement})", identity)

    def _load(self) -> None:
        self._session = self._sandbox.session(language="python", limits=self._limits)
        self._name, identity = f"_judge_{secrets.token_hex(8)}", secrets.token_hex(16)
        program = _PRELUDE.format(name=self._name, mark=_mark(self._name), identity=identity, source=self._source)
        try:
            self._send(program, identity)
        except CandidateFault as fault:
            # Functions defined before the error can still be called, unless the process has ended.
            self.load_fault = fault
            if self._session is None:
                raise

    def _send(self, cell: str, identity: str) -> Any:
        assert self._session is not None
        result = self._session.run(cell, limits=self._limits)
        self._usage.wall_s += result.wall_s
        if result.memory_peak_mb is not None:
            self._usage.memory_mb = max(self._usage.memory_mb or 0.0, result.memory_peak_mb)
        if result.status in ("timeout", "memory", "output"):
            self._end()
            raise CandidateFault(result.status, f"over the limit of {_limit(result.status)}")
        content = _find_reply(result.stdout, (_mark(self._name) + identity).encode())
        if content is None:
            self._end()
            if result.stdout_dropped:
                # The reply was among what was dropped.
                raise CandidateFault("output", "over the limit of output")
            raise CandidateFault("exit", "the code ended its process instead of answering")
        if "fault" in content:
            names, text = _read_fault(content["fault"])
            raise CandidateFault("error", f"{names[0] if names else 'error'}: {text}", names)
        try:
            return decode(content.get("value"))
        except (ValueError, TypeError, IndexError, KeyError, OverflowError):
            return Opaque(kind="reply that is no value")

    def _end(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


def _mark(name: str) -> str:
    return f"{name}:"


def _limit(status: str) -> str:
    return {"timeout": "time", "memory": "memory"}.get(status, "output")


def _find_reply(stdout: bytes, mark: bytes) -> dict[str, Any] | None:
    """The reply in the last line that begins with the id; ``None`` where there is none."""
    for line in reversed(stdout.split(b"\n")):
        if line.startswith(mark):
            try:
                content = json.loads(line[len(mark) :])
            except (ValueError, RecursionError):
                return None
            return content if isinstance(content, dict) else None
    return None


def _read_fault(fault: Any) -> tuple[tuple[str, ...], str]:
    if not isinstance(fault, dict) or not isinstance(fault.get("names"), list):
        return (), "an error in no known form"
    return tuple(str(name)[:100] for name in fault["names"][:20]), str(fault.get("text", ""))[:300]
