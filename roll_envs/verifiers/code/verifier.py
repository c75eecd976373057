"""``code``: judges programs by tests, in a sandbox to which expected values are never sent.

Tests run in a jail of their own and call the answer's functions in its jail one by one; programs with input are run as
a whole, side by side, and their output is compared by the row's checker or in this process. Tests that the answer could
cheat are accepted only with ``tests_inside``, and such a score is marked ``can_be_cheated``.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import inspect
import re
import sysconfig
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from roll_envs.errors import RollError
from roll_envs.sandbox import COMPILED, Language, Limits, Program, RunResult, Sandbox, explained, make_sandbox
from roll_envs.settings import Seconds
from roll_envs.verifiers.code.cases import ASSERTS, Plan, Run, Unusable, read_plan
from roll_envs.verifiers.code.inside import preamble
from roll_envs.verifiers.code.inside.values import encode
from roll_envs.verifiers.code.outputs import accepts, same_output
from roll_envs.verifiers.code.session import JailEnded, Testing, close_idle
from roll_envs.verifiers.fences import code_of
from roll_envs.verifiers.types import Failed, Score, Verdict

_RunSeconds = Annotated[Seconds, Field(le=1e6)]
_SHOWN = 3
_SIDE_BY_SIDE = 4
_LACKS = re.compile(
    rb"NameError: name '([A-Za-z]\w*)' is not defined|RecursionError: maximum|ValueError: Exceeds the limit"
    rb"|(?:from|module) '(?:collections|fractions|time)'"
)
"""How a program ends that takes names for granted, or limits or modules as public judges have them."""
_TESTS = re.compile(
    r"(?:\s*(?:import|from|@|#).*\n)*+"
    r"\s*(?:(?:\[\s*)?\{|(?:\[\s*[\"'])?assert\b|(?:async )?def test_|def check\(candidate|class Test)"
)
"""How a text of tests begins: like JSON of tests, or with a check behind imports. A solution may make some, too."""
_YES_NO = re.compile(r"(?i)\b(?:yes|no)\b")
_FUTURE = re.compile(r"^from __future__ import .*$", re.MULTILINE)
_MISSING = re.compile(r"No module named '(\w+)")
_LIBRARIES = frozenset(
    "numpy scipy pandas sklearn sympy networkx matplotlib sortedcontainers requests numba PIL seaborn statsmodels "
    "torch tensorflow keras nltk gensim bs4 lxml yaml cv2 librosa openpyxl docx xlwt xmltodict psutil pytz dateutil "
    "regex django flask werkzeug cryptography Crypto rsa faker geopy folium prettytable chardet".split()
)
"""What programs may take for installed: one that lacks another module is wrong."""
_REFUSED = ", which it could cheat or could not do in a jail of its own: pass tests_inside=True to accept that"
_MAX_SOURCE = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseResult:
    """The result of one test."""

    name: str
    status: str
    """``ok``, ``wrong``, ``error`` (it raised), ``exit`` (its process ended), ``timeout``, ``memory``, ``output`` (too
    much of it), ``compile``, ``skipped`` (the time for the whole answer was over)."""
    detail: str = ""
    time_s: float = 0.0
    memory_mb: float | None = None
    inside: bool = False
    """Whether code of the candidate took part in the comparison."""

    @property
    def passed(self) -> bool:
        return self.status == "ok"


@dataclass(kw_only=True, eq=False)
class CodeVerifier:
    """Judges the code in an answer by the tests of the reference (see :mod:`roll_envs.verifiers.code.cases`).

    ``credit``: ``all`` (1.0 when every test passes, else 0.0) or ``partial`` (the share that passes); passed means all
    in both. ``time_s`` and ``memory_mb`` bound each test, ``compile_s`` the compiler, ``total_s`` all tests of an
    answer: those left over then are not passed. ``language``: of the programs; by default what the tests say, else
    Python. ``comparison`` of printed output: ``tolerant`` (whitespace, rounding)
    or ``exact``; ``tolerance`` for floats in it (1e-5) and in returned values (1e-9 in rows of JSON, else 0).
    ``sandbox``: a sandbox, which its owner closes, or the name of a backend whose one instance all verifiers share
    until the process ends. ``tests_sandbox``: where tests and checkers run, with at least as many slots as answers that
    are judged at a time; by default a local one that shows the packages installed here. ``tests_inside`` accepts tests
    that the program could cheat: they run beside it, or compare by its own classes; such a score says
    ``can_be_cheated``.
    """

    sandbox: Sandbox | str = "local"
    sandbox_kwargs: Mapping[str, Any] | None = None
    language: Language | None = None
    tests_sandbox: Sandbox | str | None = None
    credit: Literal["all", "partial"] = "all"
    comparison: Literal["tolerant", "exact"] = "tolerant"
    tolerance: Annotated[float, Field(ge=0, lt=1)] | None = None
    tests_inside: bool = False
    time_s: _RunSeconds = 5.0
    memory_mb: Annotated[int, Field(gt=0, le=1_000_000)] = 512
    compile_s: _RunSeconds = 30.0
    total_s: _RunSeconds = 60.0
    wait_s: _RunSeconds = 60.0

    def __post_init__(self) -> None:
        self.limits = Limits(wall_s=self.time_s, memory_mb=self.memory_mb, compile_s=self.compile_s)

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        try:
            plan = _plan(reference, context)
            cases = self.cases(code_of(answer, self.language or plan.language, defines=not plan.runs), plan)
        except Unusable as error:
            return Failed(reason=f"the tests cannot be used: {error}")
        except RollError as error:  # infrastructure failures of the sandbox, not errors of the program
            return Failed(reason=f"{type(error).__name__}: {error}")
        return self._score(cases)

    def cases(self, source: str, plan: Plan) -> list[CaseResult]:
        """The result of each test of a program. Raises :class:`Unusable` for tests that are at fault or that only their
        own jail beside the program could run, and what the sandbox raises."""
        sources = [source]
        if plan.prompt and not plan.runs:  # that of a program is of prose
            # It may go on from the prompt; blanks before an answer are often taken off.
            sources += [plan.prompt + source, f"{plan.prompt}    {source}"]
        sources = [_behind(plan.prefix, text) for text in sources] if plan.prefix else sources
        source, length = sources[0], max(map(len, sources))
        if length > _MAX_SOURCE:
            detail = f"the code has {length} characters; at most {_MAX_SOURCE} are judged"
            return [CaseResult(name="test 1", status="compile", detail=detail)]
        plan = replace(plan, language=self.language or plan.language)
        if plan.language != "python" and not plan.runs:
            raise Unusable(f"calls and asserts are for python; give stdin tests for {plan.language}")
        found = self._runs(source, plan) if plan.runs else self._tests(sources, plan)
        if plan.language == "python":
            self._check_libraries(source, found)
        return found

    def _check_libraries(self, source: str, cases: Sequence[CaseResult]) -> None:
        """Raises :class:`Unusable` where the program failed for a usual library that its sandbox does not have."""
        said = "\n".join(case.detail for case in cases if not case.passed)
        for name in sorted(_LIBRARIES.intersection(_MISSING.findall(said))):
            look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is not None)"
            # The program can say so of any module: one that it does not import, or that is there, is not missing.
            imported = re.search(rf"^[ \t]*(import|from)[ \t]+{name}\b", source, re.MULTILINE)
            sandbox = _made(self.sandbox, self.sandbox_kwargs)
            if imported and sandbox.run(Program(source=look), timeout_s=self.wait_s).ok:
                raise Unusable(f"module {name!r}, which the program imports, is missing in its sandbox")

    # -- programs with input -------------------------------------------------------------------------------------------

    def _runs(self, source: str, plan: Plan) -> list[CaseResult]:
        until = time.monotonic() + self.total_s
        made = _made(self.sandbox, self.sandbox_kwargs)

        def judge(numbered: tuple[int, Run]) -> CaseResult:
            number, test = numbered
            # Looked at between tests only: a test that has begun ends by its own limit.
            if time.monotonic() > until:
                detail = f"the {self.total_s:g} s for all tests were over"
                return CaseResult(name=f"test {number}", status="skipped", detail=detail)
            return self._run(made, source, test, f"test {number}", plan)

        numbered = list(enumerate(plan.runs, start=1))
        # A program is compiled once, by its first test; a single test needs no thread.
        first = [judge(numbered[0])] if len(numbered) == 1 or plan.language in COMPILED else []
        if first and first[0].status == "compile":
            return [replace(first[0], name=f"test {number}") for number, _ in numbered]
        with ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="judge") as pool:
            return [*first, *pool.map(judge, numbered[len(first) :])]

    def _run(self, sandbox: Sandbox, source: str, test: Run, name: str, plan: Plan) -> CaseResult:
        stdin = test.stdin.encode("utf-8", "surrogatepass")
        # wait_s is for a free slot of the sandbox, before the program's own time begins.
        timeout_s = self.wait_s + self.limits.wall_s + self.limits.compile_s
        sizes = (len(output.encode("utf-8", "surrogatepass")) for output in test.outputs)
        most = max(self.limits.output_bytes, 2 * max(sizes))
        limits = replace(self.limits, output_bytes=most)

        def run(source: str) -> RunResult:
            program = Program(source=source, language=plan.language, stdin=stdin)
            return explained(sandbox.run(program, limits=limits, timeout_s=timeout_s))

        result = run(source)
        lacks = _LACKS.search(result.stderr)
        if lacks and plan.language == "python" and hasattr(preamble, (lacks[1] or b"raise_limits").decode()):
            result = run(_behind(inspect.getsource(preamble) + "\nraise_limits()\n", source))
        if result.compile is not None and not result.compile.ok:
            said = result.compile.stderr[-300:].decode(errors="replace")
            ended = result.compile.status
            said = said if ended == "error" else f"the compiler went over its limit ({ended}) {said}".strip()
            return CaseResult(name=name, status="compile", detail=said)
        status, detail = str(result.status), ""
        # Output of which a part is missing cannot be compared.
        if status == "ok" and result.stdout_dropped:
            status = "output"
        elif status == "ok" and not any(self._accepts(plan, stdin, output, result.stdout) for output in test.outputs):
            said = result.stdout[:800].decode(errors="replace")[:200]
            status, detail = "wrong", f"printed {said!r}"
        elif status == "error":
            detail = result.stderr[-300:].decode(errors="replace").strip() or f"ended with code {result.exit_code}"
        return CaseResult(
            name=name, status=status, detail=detail, time_s=result.wall_s, memory_mb=result.memory_peak_mb
        )

    def _accepts(self, plan: Plan, stdin: bytes, wanted: str, printed: bytes) -> bool:
        if plan.checker:
            tests, limits = self._tests_made(), self.limits
            return accepts(tests, plan.checker, stdin, wanted, printed, limits=limits, wait_s=self.wait_s)
        tolerance = 1e-5 if self.tolerance is None else self.tolerance
        exact, said = self.comparison == "exact", printed.decode(errors="replace")
        if plan.any_case and not exact:
            said, wanted = (_YES_NO.sub(lambda match: match[0].upper(), text) for text in (said, wanted))
        return same_output(said, wanted, exact=exact, tolerance=tolerance)

    # -- calls and test code -------------------------------------------------------------------------------------------

    def _tests_made(self) -> Sandbox:
        return _made(self.tests_sandbox) if self.tests_sandbox is not None else _tests_jail()

    def _tests(self, sources: Sequence[str], plan: Plan) -> list[CaseResult]:
        # The jail of the tests is taken first, and none who holds one of the answer's waits for it.
        testing = Testing(
            sources=tuple(sources), plan=_orders(plan, self.tolerance), limits=self.limits, total_s=self.total_s,
            answers=_made(self.sandbox, self.sandbox_kwargs), tests=self._tests_made(), keep=self.tests_sandbox is None,
        )  # fmt: skip
        beside = False
        try:
            found = testing.run()
            if found["refused"] and self.tests_inside:
                found, beside = testing.beside(), True
        except JailEnded as ended:
            # Was it a value of the answer, or would the tests end the jail with any value?
            if not testing.asked or testing.control() is None:
                raise Unusable(f"the tests end their own jail with any answer ({ended.status}: {ended})") from None
            said = f"a value of the answer ended the tests: {ended}"
            return [CaseResult(name="tests", status=ended.status, detail=said)]
        if found["fault"]:
            raise Unusable(f"{found['fault']}{_REFUSED if found['refused'] else ''}")
        control = testing.control() if found["doubts"] and not beside else None
        for doubt in found["doubts"]:
            if doubt in (control or ()):
                raise Unusable(f"{doubt} with any answer")
        cases = [CaseResult(**{**check, "inside": beside or check["inside"]}) for check in found["checks"]]
        if any(case.inside for case in cases) and not self.tests_inside and all(case.passed for case in cases):
            raise Unusable(f"they compare objects by the program's own classes{_REFUSED}")
        return cases

    def _score(self, cases: Sequence[CaseResult]) -> Score:
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
        if inside:
            lines.append(f"{inside} tests ran beside the program or by its own classes, which could have cheated them")
            parts["can_be_cheated"] = 1.0
        value = share if self.credit == "partial" else float(passed)
        return Score(value=value, passed=passed, detail="\n".join(lines), parts=parts)


def _plan(reference: Any, context: Mapping[str, Any] | None) -> Plan:
    """The tests of the reference, or of its row where there is no reference, or one that may be a solution: a text of
    its column of answers that does not begin as tests do. Raises :class:`Unusable`."""
    row = (context or {}).get("row", context)
    row = row if isinstance(row, Mapping) else {}
    if reference is None and row:
        return read_plan(row)
    answers = [row.get(name) for name in ("solution", "answer", "output", "ground_truth")]
    if isinstance(reference, str) and any(reference is text for text in answers) and not _TESTS.match(reference):
        with contextlib.suppress(Unusable):
            plan = read_plan(row)
            if plan.runs or plan.calls or any(map(ASSERTS.search, plan.asserts)):
                return plan
    return read_plan(reference, row=row)


def _behind(before: str, source: str) -> str:
    """``source`` behind other code, but for its imports of the future, which must be first."""
    return "\n".join([*_FUTURE.findall(source), before, _FUTURE.sub("", source)])


def _orders(plan: Plan, tolerance: float | None) -> dict[str, Any]:
    """What the jail of the tests is told. Raises :class:`Unusable`."""
    if plan.asserts and not any(map(ASSERTS.search, plan.asserts)):
        raise Unusable(f"the tests check nothing: {plan.asserts[0][:100]!r}")

    def refuse(value: Any) -> Any:
        raise Unusable(f"a {type(value).__name__} cannot be sent into the sandbox")

    try:
        calls = [
            {
                "function": call.function,
                "args": encode(list(call.args), refuse),
                "kwargs": encode(dict(call.kwargs), refuse),
                "expected": [encode(value, refuse) for value in call.expected],
                "loose": call.from_json,
            }
            for call in plan.calls
        ]
    except ValueError as error:
        raise Unusable(str(error)) from None
    code = {name: getattr(plan, name) for name in ("asserts", "entry_point", "helpers")}
    return code | {"calls": calls, "tolerance": tolerance}


_sandboxes: dict[str, Sandbox] = {}
_sandboxes_lock = threading.Lock()


def _made(sandbox: Sandbox | str, given: Mapping[str, Any] | None = None) -> Sandbox:
    """The sandbox itself, or the one of this process for a name and its arguments."""
    if isinstance(sandbox, Sandbox):
        return sandbox
    # Arguments may be lists or mappings, which cannot be keys themselves.
    kwargs = given or {}
    key = f"{sandbox}|{sorted(kwargs.items())!r}"
    with _sandboxes_lock:
        if key not in _sandboxes:
            _sandboxes[key] = make_sandbox(sandbox, **kwargs)
        return _sandboxes[key]


def _tests_jail() -> Sandbox:
    """Where tests run by default: their code comes from the data set, so any tier that bounds time and memory does."""
    libraries = [name for name in ("numpy", "pytest") if importlib.util.find_spec(name)]
    preload = ("asyncio", "multiprocessing.connection", "symtable", "unittest", "unittest.mock", *libraries)
    # Slots are made when they are needed; while an answer's program runs its tests only wait.
    settings = {"slots": 64, "languages": ("python",), "minimum_isolation": "landlock", "preload": preload}
    return _made("local", settings | {"python_paths": (sysconfig.get_paths()["purelib"],)})


@atexit.register
def _close_sandboxes() -> None:
    close_idle()
    with _sandboxes_lock:
        while _sandboxes:
            _sandboxes.popitem()[1].close()
