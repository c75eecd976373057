"""Code judged in a sandbox: no cheat passes, honest code does, and nothing that is expected enters the sandbox."""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_sandbox import NONE, PlainSandbox

from roll_envs.errors import ConfigError, RollError
from roll_envs.sandbox import Language, Limits, Program, RunResult, Sandbox, SandboxSession, make_sandbox
from roll_envs.verifiers import Failed, Score, make_verifier
from roll_envs.verifiers.code import session as session_module
from roll_envs.verifiers.code import verifier as verifier_module
from roll_envs.verifiers.code.inside.compare import same_value
from roll_envs.verifiers.code.inside.values import decode, encode
from roll_envs.verifiers.code.outputs import same_output
from roll_envs.verifiers.fences import code_of

SECRET = 918273


@pytest.fixture(scope="module")
def plain() -> PlainSandbox:
    return PlainSandbox()


@pytest.fixture(scope="module")
def real() -> Any:
    try:
        sandbox = make_sandbox("local")
    except (RollError, ImportError) as error:
        pytest.skip(f"the local sandbox cannot be had here: {error}")
    yield sandbox
    sandbox.close()


def judged(sandbox: Sandbox, code: str, tests: Any, **kwargs: Any) -> Score:
    verdict = make_verifier("code", sandbox=sandbox, **{"time_s": 2.0, **kwargs})(code, tests)
    assert isinstance(verdict, Score), verdict
    return verdict


# -- cheats ------------------------------------------------------------------------------------------------------------

ADD = "assert add(2, 3) == 5\nassert add(-1, 1) == 0\nassert add(10, 20) == 30"


def _cases(kind: str) -> dict[str, str]:
    """Programs by name, from the file beside this one."""
    text = (Path(__file__).parent / "code_cases.txt").read_text(encoding="utf-8")
    parts = re.split(r"^==== (\w+): (.*)\n", text, flags=re.MULTILINE)[1:]
    found = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    return {name: program for group, name, program in found if group == kind}


CHEATS, HONEST, OTHER = _cases("cheat"), _cases("honest"), _cases("other")


@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_passes(plain: PlainSandbox, name: str) -> None:
    verdict = judged(plain, CHEATS[name], ADD + "\nassert abs(add(1, 1) - 2) < 1e-6\nassert add(1, 1) in (2, 3)")
    assert not verdict.passed
    assert verdict.value == 0


def test_recorded_cheats_fail_and_the_controls_behave(real: Sandbox, shared_dir: Path) -> None:
    found = {}
    for path in sorted((shared_dir / "attacks").glob("cheat_*.py")):
        found[path.stem] = judged(real, path.read_text(), ADD).passed
    assert {name for name, passed in found.items() if passed} == {"cheat_honest"}
    assert len(found) > 5
    marker = (shared_dir / "attacks" / "fake_result_marker.py").read_text()
    for program in (marker, ""):
        assert not judged(real, program, {"stdin": [{"output": "EXPECTED_OK"}]}).passed
    assert not judged(real, marker, ADD).passed


@pytest.mark.parametrize(
    "tests",
    [
        f"assert f(1) == {SECRET}\nassert f(2) != {SECRET}",
        f"want = {SECRET}\nfor x, y in [(1, want), (2, {SECRET})]:\n    assert f(x) == y\nassert f(3) in [{SECRET}]",
        f"def check(candidate):\n    y = {SECRET}\n    assert abs(candidate(1) - y) < {SECRET}\ncheck(f)",
        {"calls": [{"function": "f", "args": [1], "expected": SECRET}]},
        {"stdin": [{"input": "1", "output": str(SECRET)}]},
        {"inputs": ["1"], "outputs": [str(SECRET)], "fn_name": "f"},
    ],
)
def test_what_is_expected_never_enters_the_jail(tests: Any) -> None:
    sandbox = PlainSandbox()
    judged(sandbox, "def f(x): return x", tests)
    assert sandbox.sent
    assert not [text for text in sandbox.sent if str(SECRET) in text]
    assert sandbox.open_sessions == 0


def test_every_request_has_its_own_random_id() -> None:
    sandbox = PlainSandbox()
    judged(sandbox, "def f(x): return x", "assert f(1) == 1\nassert f(1) == 1")
    ids = [re.search(r"\.step\('([0-9a-f]{32})'", text) for text in sandbox.sent[1:]]
    assert len({match[1] for match in ids if match}) == len(ids) == 3


def test_an_earlier_reply_passes_for_no_later_one(plain: PlainSandbox) -> None:
    verdict = judged(plain, OTHER["replays its last reply"], "assert add(2, 3) == 5\nassert add(1, 4) == 5")
    assert verdict.parts["cases_passed"] == 1
    assert verdict.parts["cases_exit"] == 1


# -- honest code -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HONEST)
def test_honest_code_passes(plain: PlainSandbox, name: str) -> None:
    code, tests = HONEST[name].split("---- tests\n")
    verdict = judged(plain, code, tests)
    assert verdict.passed, verdict.detail
    assert verdict.value == 1.0
    assert "can_be_cheated" not in verdict.parts


def test_forms_of_references(plain: PlainSandbox) -> None:
    human_eval = OTHER["check of a candidate"]
    double = "def double(x):\n    return 2 * x"
    forms: list[Any] = [
        {"test": human_eval, "entry_point": "double"},
        human_eval + "\ncheck(double)",
        {"test_list": ["assert double(1) == 2", "assert double(2) == 4"], "test_setup_code": "import math"},
        ["assert double(1) == 2"],
        json.dumps({"inputs": [[1], [2]], "outputs": [2, [4]], "fn_name": "double"}),
        {"inputs": ["1\n", "[2]"], "outputs": ["2", "[2, 2]"], "fn_name": "double"},
        {"calls": [{"function": "double", "args": [(1,)], "expected": (1, 1)}]},
        {"inputs": [], "outputs": [], "test_cases": ["assert double(1) == 2"]},
    ]
    own = judged(plain, f"import builtins\n__builtins__ = builtins\n{double}", forms[0])
    assert own.passed, own.detail
    for form in forms:
        verdict = judged(plain, f"Here it is:\n```python\n{double}\n```", form)
        assert verdict.passed, (form, verdict.detail)
    solution = "class Solution:\n    def double(self, x): return 2 * x"
    assert judged(plain, solution, {"calls": [{"function": "Solution.double", "args": [1], "expected": 2}]}).passed
    assert judged(
        plain, "def g(): return helper()", {"asserts": "assert g() == 1", "prefix": "def helper(): return 1"}
    ).passed


def test_partial_credit_and_what_a_score_says(plain: PlainSandbox) -> None:
    code = OTHER["slow and wrong"]
    tests = "\n".join(f"assert f({n}) == {n}" for n in range(6))
    verdict = judged(plain, code, tests, credit="partial", time_s=0.5)
    assert verdict.value == pytest.approx(2 / 6)
    assert not verdict.passed
    assert {name: n for name, n in verdict.parts.items() if name.startswith("cases")} == {
        "cases": 6, "cases_passed": 2, "cases_timeout": 1, "cases_error": 1, "cases_wrong": 2,
    }  # fmt: skip
    assert verdict.parts["slowest_s"] >= 0.5
    assert "2 of 6 tests passed" in verdict.detail
    assert "KeyError: 'no'" in verdict.detail
    assert judged(plain, code, tests, time_s=0.5).value == 0.0


def test_an_error_of_the_code_itself_is_told(plain: PlainSandbox) -> None:
    assert "SyntaxError" in judged(plain, "def f(: pass", "assert f() == 1").detail
    assert "ZeroDivisionError" in judged(plain, "1 / 0\ndef f(): return 1", "assert f() == 1").detail


def test_the_time_for_all_tests_is_bounded(plain: PlainSandbox) -> None:
    tests = "\n".join("assert f() == 1" for _ in range(50))
    verdict = judged(plain, "import time\ndef f():\n    time.sleep(0.2)\n    return 1", tests, total_s=0.6)
    assert verdict.parts["cases"] == 50
    assert 1 <= verdict.parts["cases_passed"] <= 4
    assert verdict.parts["cases_skipped"] >= 46


def test_programs_with_input(plain: PlainSandbox) -> None:
    third = "print(int(input()) / 3)"
    assert judged(plain, third, {"inputs": ["3\n", "4\n"], "outputs": ["1.0\n", "1.33333333"]}).passed
    assert not judged(plain, third, {"stdin": [{"input": "4", "output": "1.3333"}]}).passed
    assert not judged(plain, third, {"stdin": [{"input": "4", "output": "1.33333333\n"}]}, comparison="exact").passed
    assert judged(plain, "print(1,  2)", {"stdin": [{"output": "1 2"}]}).passed
    assert "cases_timeout" in judged(plain, "while True: pass", {"stdin": [{"output": ""}]}, time_s=0.3).parts
    crash = judged(plain, "print(1)\nraise ValueError('late')", {"stdin": [{"output": "1"}]})
    assert not crash.passed
    assert "late" in crash.detail


def test_programs_may_take_usual_names_and_futures_for_granted(plain: PlainSandbox) -> None:
    tests: dict[str, Any] = {"inputs": ["1 2\n"], "outputs": ["3\n"]}
    program = "def f(xs: List[int]) -> int: return reduce(plus, xs)\nprint(f(list(map(int, input().split()))))"
    assert judged(plain, "plus = lambda a, b: a + b\n" + program, tests).passed
    assert "NameError" in judged(plain, program, tests).detail
    future = "from __future__ import annotations\nprint(add(*map(int, input().split())))"
    assert judged(plain, future, tests | {"prefix": "def add(a, b): return a + b"}).passed


@pytest.mark.parametrize("answer", ["```" + " " * 75_000 + "`", "~" * 75_000 + "`", "```\n```\n" * 25_000])
def test_fences_do_not_hold_up_the_judge(answer: str, cpu_at_most: Any) -> None:
    with cpu_at_most(1.25):  # spaces took many seconds
        code_of(answer)


def test_lines_without_end_do_not_hold_up_the_judge(plain: PlainSandbox, cpu_at_most: Any) -> None:
    code = "\n" * 500_000 + "raise ImportError(\"No module named 'scipy'\")"
    with cpu_at_most(5):
        assert judged(plain, code, "assert f() == 1").value == 0


@pytest.mark.parametrize(
    ("compiled", "said"),
    [
        (RunResult(status="error", exit_code=1, stderr=b"expected ';'", isolation=NONE), "expected ';'"),
        (
            RunResult(status="timeout", exit_code=None, signal=9, isolation=NONE),
            "the compiler went over its limit (timeout)",
        ),
    ],
)
def test_a_program_that_cannot_be_compiled_is_wrong_and_says_why(
    monkeypatch: pytest.MonkeyPatch, compiled: RunResult, said: str
) -> None:
    sandbox = PlainSandbox()
    runs: list[Program] = []

    def run(program: Program, **_: object) -> RunResult:
        runs.append(program)
        return replace(compiled, compile=compiled)

    monkeypatch.setattr(sandbox, "run", run)
    verifier = make_verifier("code", sandbox=sandbox, language="cpp")
    found = verifier("```cpp\nint main() {}\n```", {"inputs": ["1", "2"], "outputs": ["2", "4"]})
    assert isinstance(found, Score)
    assert (found.value, found.parts["cases_compile"], len(runs)) == (0.0, 2.0, 1)
    assert f"test 2: compile ({said})" in found.detail


def test_a_run_that_nobody_can_explain_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = PlainSandbox()
    lost = RunResult(status="error", exit_code=None, isolation=NONE)
    monkeypatch.setattr(sandbox, "run", lambda program, **_: lost)
    found = make_verifier("code", sandbox=sandbox)("print(1)", {"inputs": [""], "outputs": ["1"]})
    assert isinstance(found, Failed)
    assert "died in the middle of a run" in found.reason


def test_a_compilation_that_nobody_can_explain_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = PlainSandbox()
    lost = RunResult(status="error", exit_code=None, isolation=NONE)
    monkeypatch.setattr(sandbox, "run", lambda program, **_: replace(lost, compile=lost))
    found = make_verifier("code", sandbox=sandbox, language="cpp")("int main() {}", {"inputs": [""], "outputs": ["1"]})
    assert isinstance(found, Failed)
    assert "died in the middle of a run" in found.reason


@pytest.mark.parametrize("lost_in", ["answer", "tests"])
def test_a_cell_that_nobody_can_explain_is_no_verdict(monkeypatch: pytest.MonkeyPatch, lost_in: str) -> None:
    """Calls and asserts run in sessions: one of the answer, and one of the tests."""
    boxes = {"answer": PlainSandbox(), "tests": PlainSandbox()}
    session = boxes[lost_in].session()
    lost = RunResult(status="error", exit_code=None, isolation=NONE)
    monkeypatch.setattr(session, "run", lambda source, **_: lost)
    monkeypatch.setattr(boxes[lost_in], "session", lambda **_: session)
    verifier = make_verifier("code", sandbox=boxes["answer"], tests_sandbox=boxes["tests"])
    found = verifier("def f():\n    return 1", "assert f() == 1")
    assert isinstance(found, Failed)
    assert "died in the middle of a run" in found.reason


def test_a_comparison_by_the_programs_own_classes_is_refused_or_told(plain: PlainSandbox) -> None:
    code, tests = OTHER["own class"], "assert f(2) == P(2)"
    refused = make_verifier("code", sandbox=plain)(code, tests)
    assert isinstance(refused, Failed)
    assert "tests_inside=True" in refused.reason
    assert judged(plain, code, "assert f(2) == P(3)").value == 0
    verdict = judged(plain, code, tests, tests_inside=True)
    assert verdict.passed
    assert verdict.parts["can_be_cheated"] == 1.0
    assert "could have cheated" in verdict.detail


def test_tests_that_share_state_run_inside_only_on_request(plain: PlainSandbox) -> None:
    tests = {"test_file": "import inspect\nassert not inspect.signature(f).parameters\nassert f() == 1"}
    refused = make_verifier("code", sandbox=plain)("def f(): return 1", tests)
    assert isinstance(refused, Failed)
    assert "tests_inside=True" in refused.reason
    accepted = judged(plain, "def f(): return 1", tests, tests_inside=True)
    assert accepted.passed
    assert accepted.parts["can_be_cheated"] == 1.0
    assert "could have cheated" in accepted.detail
    assert not judged(plain, "def f(): return 2", tests, tests_inside=True).passed


# -- what reaches the sandbox ------------------------------------------------------------------------------------------


class Noting(PlainSandbox):
    """Notes the limits of each run and session, and how long a run may wait."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[Limits | None, float]] = []

    def run(self, program: Program, *, limits: Limits | None = None, timeout_s: float = 60.0) -> RunResult:
        self.asked.append((limits, timeout_s))
        return super().run(program, limits=limits, timeout_s=timeout_s)

    def session(self, *, language: Language = "python", limits: Limits | None = None) -> SandboxSession:
        self.asked.append((limits, 0.0))
        return super().session(language=language, limits=limits)


ASKED: dict[str, Any] = {"time_s": 3.0, "memory_mb": 300, "compile_s": 7.0, "wait_s": 11.0}


def test_limits_reach_the_sandbox_of_a_program_and_that_of_its_checker() -> None:
    box, tests_box = Noting(), Noting()
    tests: dict[str, Any] = {"inputs": [""], "outputs": ["1"]}
    judged(box, "print(1)", tests | {"checker": "print(1)"}, tests_sandbox=tests_box, **ASKED)
    limits = Limits(wall_s=3.0, memory_mb=300, compile_s=7.0)
    assert box.asked == [(limits, 11.0 + 3.0 + 7.0)]
    assert tests_box.asked == [(limits, 11.0 + 3.0)]
    size = 3 << 20  # more than a program may print by default
    judged(box, "print(1)", {"inputs": [""], "outputs": ["1" * size]}, **ASKED)
    assert box.asked[-1][0] == replace(limits, output_bytes=2 * size)


def test_limits_reach_the_jail_of_an_answer_and_not_that_of_the_tests() -> None:
    box, tests_box = Noting(), Noting()
    assert judged(box, "def f(): return 1", "assert f() == 1", tests_sandbox=tests_box, **ASKED).passed
    for sandbox, memory_mb in ((box, 300), (tests_box, 1024)):
        ((limits, _),) = sandbox.asked
        assert limits is not None
        assert (limits.wall_s, limits.memory_mb, sandbox.open_sessions) == (3.0, memory_mb, 0)


class Clock:
    """Goes ahead of the real one."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s


class Slow(PlainSandbox):
    """By its clock, a session is had after ``wait_s``, and its first cell takes ``load_s``."""

    def __init__(self, clock: Clock, wait_s: float, load_s: float) -> None:
        super().__init__()
        self._clock, self._wait_s, self._load_s = clock, wait_s, load_s
        self.walls_s: list[float] = []

    def session(self, *, language: Language = "python", limits: Limits | None = None) -> SandboxSession:
        self._clock.ahead_s += self._wait_s
        made = super().session(language=language, limits=limits)
        run, takes_s = made.run, [self._load_s]

        def timed(source: str, *, limits: Limits | None = None) -> RunResult:
            self.walls_s.append((limits or Limits()).wall_s)
            self._clock.ahead_s += takes_s.pop() if takes_s else 0.0
            return run(source, limits=limits)

        made.run = timed  # type: ignore[method-assign]
        return made


@pytest.mark.parametrize(
    ("slow", "wait_s", "load_s"), [("sandbox", 100.0, 0.0), ("sandbox", 0.0, 100.0), ("tests_sandbox", 100.0, 100.0)]
)
def test_neither_waiting_for_a_jail_nor_its_loading_is_time_of_the_tests(
    monkeypatch: pytest.MonkeyPatch, slow: str, wait_s: float, load_s: float
) -> None:
    clock = Clock()
    monkeypatch.setattr(session_module, "time", clock)
    box = Slow(clock, wait_s, load_s)
    boxes = {"sandbox": PlainSandbox(), "tests_sandbox": PlainSandbox(), slow: box}
    tests = ["assert f(1) == 1", "assert f(2) == 2"]
    if not load_s:  # a jail that ended is replaced, which is waited for again
        tests.insert(0, "assert f(0) == 0")
    code = "import os\ndef f(x):\n    return x or os._exit(1)"
    verdict = make_verifier("code", time_s=5.0, total_s=50.0, **boxes)(code, tests)
    assert isinstance(verdict, Score), verdict
    assert (verdict.parts["cases_passed"], "cases_skipped" in verdict.parts) == (2.0, False)
    assert min(box.walls_s) > 1.0


def test_the_tolerance_counts_for_what_is_printed_and_what_is_returned(plain: PlainSandbox) -> None:
    printed = {"inputs": [""], "outputs": ["1.0"]}
    returned = {"calls": [{"function": "f", "args": [], "expected": 1.0}]}
    for code, tests in (("print(1.001)", printed), ("def f(): return 1.001", returned)):
        assert not judged(plain, code, tests).passed
        assert judged(plain, code, tests, tolerance=0.01).passed


def test_verifiers_share_a_sandbox_of_one_name_where_its_arguments_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[str, Any]] = []

    def make(name: str, **kwargs: Any) -> Sandbox:
        made.append((name, kwargs))
        return PlainSandbox()

    monkeypatch.setattr(verifier_module, "make_sandbox", make)
    monkeypatch.setattr(verifier_module, "_sandboxes", {})
    tests_box = PlainSandbox()
    for kwargs in ({"slots": 2}, {"slots": 3}, {"slots": 2}, None):
        judge = make_verifier("code", sandbox="there", sandbox_kwargs=kwargs, tests_sandbox=tests_box)
        # A program, one that may lack a library, and a call each ask for the sandbox.
        judge("print(1)", {"inputs": [""], "outputs": ["1"]})
        judge("import librosa", {"inputs": [""], "outputs": ["1"]})
        judge("def f(): return 1", "assert f() == 1")
    assert made == [("there", {"slots": 2}), ("there", {"slots": 3}), ("there", {})]


# -- faults of ours ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_a_fault_of_the_sandbox_is_a_failure(after: int) -> None:
    sandbox = PlainSandbox(fails_after=after)
    verdict = make_verifier("code", sandbox=sandbox)("def f(x): return x", "assert f(1) == 1\nassert f(2) == 2")
    assert verdict == Failed(reason="SandboxError: the host is out of order")
    assert sandbox.open_sessions == 0


@pytest.mark.parametrize(
    "reference",
    [
        None,
        5,
        {},
        [],
        {"asserts": ""},
        {"asserts": "x = 1"},
        {"asserts": "assert f( =="},
        {"asserts": "class A: pass"},
        {"asserts": "def f(x): return x\nassert f(1) == 1"},
        {"asserts": "def check(candidate):\n    assert candidate(1) == 1"},
        {"asserts": "assert f(1) == 2 ** 10 ** 10"},
        {"asserts": "while True: pass"},
        {"asserts": "assert f(1) == [0] * 10 ** 9"},
        {"calls": [{"function": "f"}]},
        {"calls": [{"function": "f", "args": [object()], "expected": 1}]},
        {"inputs": ["1"], "outputs": []},
        {"stdin": [5]},
        {"stdin": [{"input": "", "output": "1"}], "inputs": ["1"], "outputs": []},
        {"calls": [{"function": "f", "args": [1], "expected": 1}], "input": ["1"]},
        {"public_tests": "assert f(1) == 1", "inputs": "1", "outputs": "1"},
    ],
)
def test_tests_that_cannot_be_used_are_a_failure(plain: PlainSandbox, reference: Any) -> None:
    verdict = make_verifier("code", sandbox=plain)("def f(x): return x", reference)
    assert isinstance(verdict, Failed)


def test_wrong_arguments(plain: PlainSandbox) -> None:
    for kwargs in (
        {"credit": "half"},
        {"language": "cobol"},
        {"time_s": 0},
        {"tolerance": 2},
        {"sandbox": 5},
        {"comparison": ""},
    ):
        with pytest.raises(ConfigError):
            make_verifier("code", **kwargs)
    other = make_verifier("code", sandbox=plain, language="cpp")
    assert isinstance(other("int f();", "assert f() == 1"), Failed)


EVASIONS = _cases("evasion")


@pytest.mark.parametrize("name", EVASIONS)
def test_no_value_turns_a_wrong_answer_into_no_verdict(plain: PlainSandbox, name: str) -> None:
    tests = (
        "assert f(1) == 5\nassert list(f(1)) == [5]\nassert f(1)[0].strip() == 'a'\nassert f(1) * 10 == 50\n"
        "assert 2 ** f(1) == 32\nassert sum(x for x in f(1)) == 5\nassert 1 << f(1) == 32\n"
        "assert len(str(f(1))) == 1\nassert f(f(1)[0]) == 5\nassert sorted(f(1)) == [5]\nassert f'{f(1)}' == '5'\n"
        "assert abs(f(1) - 5.0) < 1e-6\nassert bytes(f(1)) == b'5'\nassert set(range(f(1))) == {5}"
    )
    assert judged(plain, EVASIONS[name], tests, tolerance=1e-6).value == 0
    calls = {"calls": [{"function": "f", "args": [1], "expected": expected} for expected in (5, 5.5, "5", [5])]}
    assert judged(plain, EVASIONS[name], calls, tolerance=1e-6).value == 0


def test_code_without_end_is_wrong(plain: PlainSandbox) -> None:
    assert judged(plain, "x = 1\n" * 200_000, "assert f() == 1").value == 0
    for code in ("x = '\ud800'", "\x00", "\ud800"):
        assert judged(plain, code, "assert f() == 1").value == 0


# -- parts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("x = 1", "x = 1"),
        ("text\n```python\nx = 1\n```\nmore", "x = 1\n"),
        ("```python\nx = 1\n```\nbetter:\n```py\nx = 2\n```", "x = 2\n"),
        ("```python\nx = 1\n```\noutput:\n```\n1\n```", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("~~~python\nx = '```'\n~~~", "x = '```'\n"),
        ("```python\nx = 1", "x = 1"),
        ("<think>```python\nx = 1\n```</think>```python\nx = 2\n```", "x = 2\n"),
        ("```cpp\nint x;\n```", "```cpp\nint x;\n```"),
        ("1. Code:\n   ```python\n   if x:\n       y = 1\n   ```", "if x:\n    y = 1\n"),
        ("```python\ndef f():\n    '''\n    ```\n    '''\n```", "def f():\n    '''\n    ```\n    '''\n"),
        ("Code: ```python\nx = 1\n```", "x = 1\n"),
        ("<answer>```python\nx = 1\n```</answer>", "x = 1\n"),
        ("```python\nx = 1```", "x = 1\n"),
        ("```python\nx = 1\n```<|im_end|>", "x = 1\n"),
        ("```python\n'''\n```inner```\n'''\n```", "'''\n```inner```\n'''\n"),
        ("```python\n# strip ```\nx = 1\n```", "# strip ```\nx = 1\n"),
        ("# opens with ```\nx = 1", "# opens with ```\nx = 1"),
        ("It is between ```\n\n```python\nx = 1\n```", "x = 1\n"),
        ("It is in ```python\n\n```python\nx = 1\n```", "x = 1\n"),
        ("Code: ```python\nx = 1\n```\nCode: ```python\nx = 2\n```", "x = 2\n"),
        ("```python\nx = 1```\nbetter:\n```python\nx = 2\n```", "x = 2\n"),
        ("Code: ```python\nx = 1```\nbetter:\n```python\nx = 2\n```", "x = 2\n"),
        ("Code: ```python\nx = 1\n```\nbetter:\n```python\nx = 2", "x = 2"),
        ("Code: ```python\nx = 1", "x = 1"),
        ("Code: ```python\nx = 1\n    ```\nIt works.", "x = 1\n"),
        ("```python\nif x:\n    y = 1\n    ```\nIt works.", "if x:\n    y = 1\n"),
        ("```python\nx = 1\n    ```\nbetter:\n```python\nx = 2\n```", "x = 2\n"),
        ("  ```python\nif x:\n  y = 1\n  ```", "if x:\n  y = 1\n"),
        ("1. Code:\n\n    ```python\nif x:\n    y = 1\n    ```", "if x:\n    y = 1\n"),
    ],
)
def test_code_in_an_answer(answer: str, code: str) -> None:
    assert code_of(answer) == code


def test_an_example_of_its_use_is_not_the_function() -> None:
    blocks = ["def f(x): return 1", "def f(x): return 2", "f(3)"]
    answer = "Better:\n".join(f"```python\n{each}\n```\n" for each in blocks)
    assert code_of(answer) == "f(3)\n"
    assert code_of(answer, defines=True) == "def f(x): return 2\n"
    assert code_of("```python\nf = abs\n```", defines=True) == "f = abs\n"
    assert code_of("```\ndef f(): return 1\n```\n```python\nf()\n```", defines=True) == "def f(): return 1\n"


@pytest.mark.parametrize("code", ["f = lambda x: x + 1", "f: Callable = partial(add, 1)"])
@pytest.mark.parametrize("before", ["```python\ndef f(x): return x", "```\nclass of solutions: O(1)"])
def test_a_function_that_is_assigned_anew_is_no_example_of_its_use(before: str, code: str) -> None:
    assert code_of(f"{before}\n```\n```python\n{code}\n```", defines=True) == code + "\n"


TEXTS, INTS = st.text(max_size=3), st.integers()
LEAVES = st.none() | st.booleans() | INTS | st.floats() | TEXTS | st.binary(max_size=5) | st.complex_numbers()
SETS = st.frozensets(INTS, max_size=3) | st.sets(TEXTS, max_size=3)
PLAIN = st.recursive(
    LEAVES | SETS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(INTS | TEXTS, inner, max_size=3)
    ),
    max_leaves=8,
)


@given(PLAIN)
def test_values_cross_the_wall_unchanged_both_ways(value: Any) -> None:
    back = decode(json.loads(json.dumps(encode(value, refuse))), refuse)
    assert same_value(back, value)
    assert type(back) is type(value)


def refuse(value: Any) -> Any:
    raise ValueError(f"{value!r} is no plain value")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3), lambda i: st.lists(i, max_size=4), max_leaves=9
    )
)
def test_whatever_the_jail_writes_is_a_value_or_refused(data: Any) -> None:
    try:
        decode(data, refuse)
    except (ValueError, TypeError, IndexError, KeyError, OverflowError):
        return


def test_same_value() -> None:
    assert same_value(1, 1.0)
    assert not same_value(True, 1)
    assert not same_value((1, 2), [1, 2])
    assert same_value((1, [2]), [1, (2,)], as_json=True)
    assert same_value(math.nan, math.nan)
    assert not same_value(0.1 + 0.2, 0.3)
    assert same_value(0.1 + 0.2, 0.3, tolerance=1e-9)
    assert not same_value(10**20, 10**20 + 1, tolerance=1e-6)  # ints are exact
    assert not same_value(2_000_000_001, 2e9, tolerance=1e-9)
    assert same_value(5.000000000000001, 5, tolerance=1e-6)
    assert not any(same_value(said, 5, tolerance=1e-6) for said in (5j, math.inf, math.nan, 1e308, 10**400))
    assert not same_value("1", 1)
    assert same_value({1: 2.0000001}, {1: 2.0}, tolerance=1e-6)


@pytest.mark.parametrize(
    ("said", "wanted", "same"),
    [
        ("1 2\n", "1  2", True),
        ("1.0000001", "1", False),
        ("1.0000001", "1.0", True),
        ("6.0", "6", True),
        ("1000000300.0", "1000000007", False),
        ("2", "1", False),
        ("1e3", "1000.0", True),
        ("nan", "nan", True),
        ("inf", "1e400", False),
        ("1 2", "1", False),
        ("١", "1", False),
        ("a", "A", False),
    ],
)
def test_same_output(said: str, wanted: str, same: bool) -> None:
    assert same_output(said, wanted) is same
