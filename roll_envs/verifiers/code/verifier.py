"""``code``: judges programs by tests, in a sandbox to which expected values are never sent.

Calls are made one by one and their results compared outside; programs with input are run as a whole and their output is
compared outside. Test files run inside only with ``tests_inside``, and such a score is marked ``can_be_cheated``.
"""

from __future__ import annotations

import atexit
import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from roll_envs.errors import ConfigError, RollError
from roll_envs.sandbox import LANGUAGES, Language, Limits, Program, Sandbox, make_sandbox
from roll_envs.verifiers.code.answers import code_of
from roll_envs.verifiers.code.cases import Call, Plan, Run, Unusable, read_plan
from roll_envs.verifiers.code.interpreter import AssertInterpreter, Check
from roll_envs.verifiers.code.outputs import same_output
from roll_envs.verifiers.code.scope import Unjudgeable
from roll_envs.verifiers.code.session import CandidateFault, CandidateSession, Usage
from roll_envs.verifiers.code.values import Opaque, literal, same_value
from roll_envs.verifiers.types import Failed, Score, Verdict

__all__ = ["CaseResult", "CodeVerifier"]

_SHOWN = 3
_MAX_SOURCE = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseResult:
    """The result of one test."""

    name: str
    passed: bool
    status: str
    """``ok``, ``wrong``, ``error`` (it raised), ``exit`` (its process ended), ``timeout``, ``memory``, ``output`` (too
    much of it), ``compile``, ``skipped`` (the time for the whole answer was over)."""
    detail: str = ""
    time_s: float = 0.0
    memory_mb: float | None = None
    inside: bool = False
    """Whether code of the candidate took part in the comparison."""


class CodeVerifier:
    """Judges the code in an answer by the tests of the reference (see :mod:`roll_envs.verifiers.code.cases`).

    ``credit``: ``all`` (1.0 when every test passes, else 0.0) or ``partial`` (the share that passes); passed means all
    in both. ``time_s`` and ``memory_mb`` bound each test, ``total_s`` all tests of an answer: those left over then are
    not passed. ``comparison`` of printed output: ``tolerant`` (whitespace, rounding) or ``exact``; ``tolerance`` for
    floats in it and, when given, in returned values, which are else compared exactly. ``sandbox``: a sandbox, or the
    name of a backend whose one instance for this process all verifiers share.
    """

    def __init__(
        self,
        *,
        sandbox: Sandbox | str = "local",
        sandbox_kwargs: Mapping[str, Any] | None = None,
        language: Language = "python",
        credit: Literal["all", "partial"] = "all",
        comparison: Literal["tolerant", "exact"] = "tolerant",
        tolerance: float | None = None,
        tests_inside: bool = False,
        time_s: float = 5.0,
        memory_mb: int = 512,
        total_s: float = 60.0,
        wait_s: float = 60.0,
    ) -> None:
        _check_one_of("language", language, LANGUAGES)
        _check_one_of("credit", credit, ("all", "partial"))
        _check_one_of("comparison", comparison, ("tolerant", "exact"))
        for name, value in (("time_s", time_s), ("memory_mb", memory_mb), ("total_s", total_s), ("wait_s", wait_s)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1e6:
                raise ConfigError(f"{name} must be a number above 0, not {value!r}")
        if tolerance is not None and (isinstance(tolerance, bool) or not 0 <= tolerance < 1):
            raise ConfigError(f"tolerance must be at least 0 and below 1, not {tolerance!r}")
        if not isinstance(sandbox, Sandbox | str):
            raise ConfigError(f"sandbox must be a Sandbox or the name of a backend, not {sandbox!r}")
        self._sandbox, self._sandbox_kwargs = sandbox, dict(sandbox_kwargs or {})
        self.language, self.credit, self.comparison, self.tolerance = language, credit, comparison, tolerance
        self.tests_inside, self.total_s, self.wait_s = bool(tests_inside), float(total_s), float(wait_s)
        self.limits = Limits(wall_s=float(time_s), memory_mb=int(memory_mb))

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        try:
            plan = read_plan(reference)
            cases = self.cases(answer, plan)
        except (Unusable, Unjudgeable) as error:
            return Failed(reason=f"the tests cannot be used: {error}")
        except RollError as error:  # infrastructure failures of the sandbox, not errors of the program
            return Failed(reason=f"{type(error).__name__}: {error}")
        if not cases:
            return Failed(reason="the tests check nothing")
        return self._score(cases, can_be_cheated=bool(plan.test_file))

    def cases(self, answer: str, plan: Plan) -> list[CaseResult]:
        """The result of each test. Raises :class:`Unjudgeable` for tests, and what the sandbox raises."""
        source = code_of(answer, self.language)
        source = f"{plan.prefix}\n{source}" if plan.prefix else source
        if len(source) > _MAX_SOURCE:
            detail = f"the code has {len(source)} characters; at most {_MAX_SOURCE} are judged"
            return [CaseResult(name="test 1", passed=False, status="compile", detail=detail)]
        if plan.test_file:
            if not self.tests_inside:
                raise Unjudgeable(
                    "a test file runs inside, where the program can cheat it; pass tests_inside=True to accept that, "
                    "or give asserts, calls or stdin"
                )
            return self._run_file(source, plan)
        if plan.runs:
            return self._each(plan.runs, functools.partial(self._run_case, source))
        if self.language != "python":
            raise Unjudgeable(f"calls and asserts are for python; give stdin tests for {self.language}")
        with CandidateSession(self._made(), source, self.limits) as session:
            if plan.calls:
                found = self._each(plan.calls, functools.partial(self._call_case, session))
            else:
                found = self._asserts(session, plan)
        return _explained(found, session.load_fault)

    def close(self) -> None:
        """Closes nothing: a given sandbox belongs to the caller, a named one is shared until the process ends."""

    def _made(self) -> Sandbox:
        if isinstance(self._sandbox, Sandbox):
            return self._sandbox
        return _shared_sandbox(self._sandbox, self._sandbox_kwargs)

    # -- kinds of tests ------------------------------------------------------------------------------------------------

    def _each(self, tests: Sequence[Any], judge: Callable[[Any, str], CaseResult]) -> list[CaseResult]:
        until = time.monotonic() + self.total_s
        results = []
        for number, test in enumerate(tests, start=1):
            # Looked at between tests only: a test that has begun ends by its own limit.
            if time.monotonic() > until:
                results.append(CaseResult(name=f"test {number}", passed=False, status="skipped", detail=self._over()))
            else:
                results.append(judge(test, f"test {number}"))
        return results

    def _over(self) -> str:
        return f"the {self.total_s:g} s for all tests were over"

    def _run_case(self, source: str, test: Run, name: str) -> CaseResult:
        stdin = test.stdin.encode("utf-8", "surrogatepass")
        program = Program(source=source, language=self.language, stdin=stdin)
        # wait_s is for a free slot of the sandbox, before the program's own time begins.
        result = self._made().run(program, limits=self.limits, timeout_s=self.wait_s + self.limits.wall_s)
        if result.compile is not None and not result.compile.ok:
            said = result.compile.stderr[-300:].decode(errors="replace")
            return CaseResult(name=name, passed=False, status="compile", detail=said)
        status, detail = result.status, ""
        # Output of which a part is missing cannot be compared.
        if status == "ok" and result.stdout_dropped:
            status = "output"
        elif status == "ok":
            said = result.stdout.decode(errors="replace")
            tolerance = 1e-6 if self.tolerance is None else self.tolerance
            if not same_output(said, test.output, exact=self.comparison == "exact", tolerance=tolerance):
                return _case(name, "wrong", f"printed {said[:200]!r}", result.wall_s, result.memory_peak_mb)
        elif status == "error":
            detail = result.stderr[-200:].decode(errors="replace").strip() or f"ended with code {result.exit_code}"
        return _case(name, status, detail, result.wall_s, result.memory_peak_mb)

    def _call_case(self, session: CandidateSession, test: Call, name: str) -> CaseResult:
        try:
            arguments = [literal(value) for value in test.args]
            arguments += [f"{key}={literal(value)}" for key, value in test.kwargs.items()]
        except TypeError as error:
            raise Unjudgeable(str(error)) from None
        status, detail = "ok", ""
        try:
            _, said = session.evaluate(f"{_callable(test.function)}({', '.join(arguments)})")
        except CandidateFault as fault:
            status, detail = fault.status, str(fault)
        else:
            tolerance = self.tolerance or 0.0
            if not _expected(said, test.expected, tolerance, test.from_json):
                status, detail = "wrong", f"returned {_shown(said)}"
        usage = session.take_usage()
        return _case(name, status, detail, usage.wall_s, usage.memory_mb)

    def _asserts(self, session: CandidateSession, plan: Plan) -> list[CaseResult]:
        names = {"candidate": plan.entry_point} if plan.entry_point else {}
        interpreter = AssertInterpreter(
            session, tolerance=self.tolerance or 0.0, names=names, until=time.monotonic() + self.total_s
        )
        for text in plan.asserts:
            interpreter.run(text)
        # HumanEval defines check(candidate) and leaves its call to the program that judges.
        if plan.entry_point and interpreter.defines("check") and not interpreter.checks:
            interpreter.run(f"check({plan.entry_point})")
        return [_checked(f"test {n}", check) for n, check in enumerate(interpreter.checks, start=1)]

    def _run_file(self, source: str, plan: Plan) -> list[CaseResult]:
        program = Program(source=f"{source}\n\n{plan.test_file}\n", language=self.language)
        limits = Limits(wall_s=self.total_s, memory_mb=self.limits.memory_mb)
        result = self._made().run(program, limits=limits, timeout_s=self.wait_s + self.total_s)
        detail = "" if result.ok else result.stderr[-300:].decode(errors="replace").strip()
        return [_case("test file", result.status, detail, result.wall_s, result.memory_peak_mb)]

    def _score(self, cases: Sequence[CaseResult], *, can_be_cheated: bool) -> Score:
        good = sum(case.passed for case in cases)
        share, passed = good / len(cases), good == len(cases)
        parts = {"cases": float(len(cases)), "cases_passed": float(good), "pass_rate": share}
        parts["slowest_s"] = max(case.time_s for case in cases)
        memory = [case.memory_mb for case in cases if case.memory_mb is not None]
        if memory:
            parts["memory_mb"] = max(memory)
        for status in {case.status for case in cases} - {"ok"}:
            parts[f"cases_{status}"] = float(sum(case.status == status for case in cases))
        lines = [f"{good} of {len(cases)} tests passed"]
        bad = [case for case in cases if not case.passed]
        lines += [f"{c.name}: {c.status}{f' ({c.detail})' if c.detail else ''}" for c in bad[:_SHOWN]]
        if len(bad) > _SHOWN:
            lines.append(f"and {len(bad) - _SHOWN} more")
        inside = sum(case.inside for case in cases)
        if can_be_cheated:
            lines.append("the tests ran beside the program, which could have cheated them")
        elif inside:
            lines.append(f"{inside} comparisons were made by the program's own classes, which could have cheated them")
        if can_be_cheated or inside:
            parts["can_be_cheated"] = 1.0
        value = share if self.credit == "partial" else float(passed)
        return Score(value=value, passed=passed, detail="\n".join(lines), parts=parts)


def _case(name: str, status: str, detail: str, time_s: float, memory_mb: float | None) -> CaseResult:
    return CaseResult(
        name=name, passed=status == "ok", status=status, detail=detail, time_s=time_s, memory_mb=memory_mb
    )


def _explained(cases: list[CaseResult], fault: CandidateFault | None) -> list[CaseResult]:
    """Add the error that the candidate's code raised while it was loaded to the first failed test."""
    for i, case in enumerate(cases if fault is not None else ()):
        if not case.passed and str(fault) not in case.detail:
            detail = f"{case.detail}; the code itself: {fault}"
            return [*cases[:i], replace(case, detail=detail), *cases[i + 1 :]]
    return cases


def _checked(name: str, check: Check) -> CaseResult:
    usage: Usage = check.usage
    return CaseResult(
        name=f"{name}, {check.source}",
        passed=check.passed,
        status=check.status,
        detail=check.detail,
        time_s=usage.wall_s,
        memory_mb=usage.memory_mb,
        inside=check.inside,
    )


def _shown(value: Any) -> str:
    """A value for people; a number of many thousand digits has no text in Python."""
    try:
        return (value.kind if isinstance(value, Opaque) else repr(value))[:200]
    except ValueError:
        return f"a {type(value).__name__} too large to show"


def _callable(function: str) -> str:
    """``Solution.f`` means a method of a new object."""
    owner, dot, method = function.rpartition(".")
    return f"{owner}().{method}" if dot and not owner.endswith(")") else function


def _expected(said: Any, wanted: Any, tolerance: float, from_json: bool) -> bool:
    if same_value(said, wanted, tolerance=tolerance, sequences_alike=from_json):
        return True
    # Data sets of this form wrap some results in a list of one.
    wrapped = from_json and isinstance(wanted, list) and len(wanted) == 1 and not isinstance(said, list | tuple)
    return wrapped and same_value(said, wanted[0], tolerance=tolerance, sequences_alike=True)


def _check_one_of(name: str, value: Any, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")


_sandboxes: dict[str, Sandbox] = {}
_sandboxes_lock = threading.Lock()


def _shared_sandbox(name: str, kwargs: Mapping[str, Any]) -> Sandbox:
    """The one sandbox of this process for a name and its arguments."""
    # Arguments may be lists or mappings, which cannot be keys themselves.
    key = f"{name}|{sorted(kwargs.items())!r}"
    with _sandboxes_lock:
        if key not in _sandboxes:
            _sandboxes[key] = make_sandbox(name, **kwargs)
        return _sandboxes[key]


@atexit.register
def _close_sandboxes() -> None:
    with _sandboxes_lock:
        while _sandboxes:
            _sandboxes.popitem()[1].close()
