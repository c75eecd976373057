"""Tests in a jail of their own: published rows, what test code may use, what no answer reaches, forged replies."""

from __future__ import annotations

import base64
import collections
import json
import pickle
import random
import re
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plain_sandbox import NONE, PlainSandbox

from roll_envs.sandbox import Language, Limits, RunResult, Sandbox, SandboxSession
from roll_envs.verifiers import Failed, Score, make_verifier
from roll_envs.verifiers.code import session
from roll_envs.verifiers.code.cases import Unusable, read_plan
from roll_envs.verifiers.code.inside.reading import prepared
from roll_envs.verifiers.code.inside.values import encode


def verdict(box: Sandbox, code: str, tests: Any, **kwargs: Any) -> Any:
    return make_verifier("code", sandbox=box, **{"time_s": 4.0, **kwargs})(code, tests)


def _cases(kind: str) -> dict[str, str]:
    text = (Path(__file__).parent / "code_jail_cases.txt").read_text(encoding="utf-8")
    parts = re.split(r"^==== (\w+): (.*)\n", text, flags=re.MULTILINE)[1:]
    return {name: body for group, name, body in zip(*[iter(parts)] * 3, strict=True) if group == kind}


RIGHT, WRONG = _cases("passes"), _cases("fails")


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_answer_passes(box: Sandbox, name: str) -> None:
    code, tests = RIGHT[name].split("---- tests\n")
    found = verdict(box, code, tests)
    assert isinstance(found, Score), found
    assert found.passed, found.detail
    assert "can_be_cheated" not in found.parts


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_zero_and_never_no_verdict(box: Sandbox, name: str) -> None:
    code, tests = WRONG[name].split("---- tests\n")
    found = verdict(box, code, tests)
    assert isinstance(found, Score), found
    assert (found.value, found.passed) == (0.0, False)


@pytest.mark.parametrize(
    ("tests", "words"),
    [
        ("import nonexisting_lib\nassert f(1) == 2", "nonexisting_lib"),
        ("assert f(1) == [1, 2][5]", "IndexError"),
        ("table = {}['a']\nassert f(1) == 2", "KeyError"),
        ("class T:\n    v = 3\nassert f(T()) == 3", "hand a T"),
        ("assert f(1)\nassert f([0] * 300_000) == 3", "ValueError"),
        ("assert f('a' * 5_000_000) == 3", "ValueError"),
        ("f(1)\nfor n in range(30_000):\n    assert n >= 0", "more than 20000 checks"),
        ("from unittest.mock import patch\nwith patch('solution.g'):\n    assert f(1) == 2", "patch"),
        ("import inspect\nassert list(inspect.signature(f).parameters) == ['x'] and f(1) == 2", "signature"),
        ("import io, sys\nsys.stdin = io.StringIO('1')\nassert f(1) == 2", "stdin"),
        (
            "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n"
            "        with self.assertLogs():\n            assert f(1) == 2",
            "assertLogs",
        ),
        ("def test_f(caplog):\n    assert f(1) == 2 and not caplog.text", "caplog"),
        ("import pytest\nwith pytest.warns(UserWarning):\n    assert f(1) == 2", "warns"),
    ],
)
@pytest.mark.parametrize("code", ["def f(x): return x + 1", "def f(x): return 'no'"])
def test_a_fault_of_the_tests_is_named_and_no_score(box: Sandbox, tests: str, words: str, code: str) -> None:
    found = verdict(box, code, tests)
    assert isinstance(found, Failed)
    assert words in found.reason


def test_objects_are_not_equal_where_only_one_of_them_has_attributes(box: Sandbox) -> None:
    answer = """
class Any:
    def __init__(self): self.a = 1
    def __eq__(self, other): return True
class Bare:
    __slots__ = ()
    def __eq__(self, other): return True
def f(x): return Any() if x else Bare()
"""
    assert verdict(box, answer, "assert f(1) == f(0)").value == 0


def test_code_that_is_no_text_is_refused_by_name(box: Sandbox) -> None:
    found = verdict(
        box, "def f(x): return x", "assert f(1) == 1\nexec(compile('y = f(2)', 'row', 'exec'))\nassert y == 2"
    )
    assert isinstance(found, Failed)
    assert "text that the answer may have made" in found.reason


@pytest.mark.parametrize("text", ["len('abcd')", "__judge__.checks.clear()", "4 if f else 0"])
def test_no_text_of_the_answer_is_run_beside_the_tests(box: Sandbox, text: str) -> None:
    found = verdict(box, f"def f(x): return {text!r}", "assert f(0)\nassert eval(f(2)) == 4")
    assert isinstance(found, Failed)
    assert "text that the answer may have made" in found.reason


@pytest.mark.parametrize("given", ["prefix", "prompt"])
def test_functions_of_the_prompt_that_tests_use_are_not_the_answers(box: Sandbox, given: str) -> None:
    prompt = 'def shift(s):\n    return s[1:] + s[:1]\n\n\ndef back(s):\n    """Undo shift."""\n'
    row = {"test": "def check(candidate):\n    assert candidate(shift('abc')) == 'abc'", "entry_point": "back"}
    right = "def back(s): return s[-1:] + s[:-1]"
    assert verdict(box, right, row | {given: prompt}).value == 1
    assert verdict(box, "def shift(s): return s\ndef back(s): return s", row | {given: prompt}).value == 0


def test_a_usual_library_that_the_jail_lacks_is_no_score_but_any_other_module_is_wrong(box: Sandbox) -> None:
    for tests in (["assert f() == 1"], {"inputs": [""], "outputs": ["1"]}):
        found = verdict(box, "import sklearn.svm\ndef f(): return 1", tests)
        assert isinstance(found, Failed)
        assert "'sklearn'" in found.reason
        assert verdict(box, "import no_such_module\ndef f(): return 1", tests).value == 0
        claimed = "raise ImportError(\"No module named 'numpy'\")"
        assert verdict(box, claimed, tests).value == 0


def test_test_functions_are_credited_one_by_one(box: Sandbox) -> None:
    tests = "import pytest\n@pytest.mark.parametrize('n', [1, 2, 3, 4])\ndef test_f(n):\n    assert f(n) == n + 1\n"
    found = verdict(box, "def f(x): return 3", {"test": tests}, credit="partial")
    assert isinstance(found, Score)
    assert found.value == 0.25


def test_the_calls_of_simple_tests_take_two_exchanges_with_their_jail(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, methods = session.Jail.step, collections.Counter[str]()

    def step(self: session.Jail, given: str, wall_s: float, *, method: str = "step") -> tuple[bytes, bytes]:
        methods[method] += 1
        return real(self, given, wall_s, method=method)

    monkeypatch.setattr(session.Jail, "step", step)
    row = {
        "test": "def check(candidate):\n    for n in range(9):\n        assert candidate(n) == n + 1",
        "entry_point": "f",
    }
    assert verdict(box, "def f(x): return x + 1", row).passed
    assert methods == {"start": 1, "finish": 1, "step": 10}  # of the answer: names, and nine calls
    methods.clear()
    calls = {"fn_name": "f", "inputs": [[n] for n in range(9)], "outputs": [n + 1 for n in range(9)]}
    assert verdict(box, "def f(x): return x if x == 4 else x + 1", calls, credit="partial").value == pytest.approx(
        8 / 9
    )
    assert methods == {"start": 1, "finish": 1, "step": 9}


def test_checks_that_are_left_out_take_no_exchange(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    real, methods = session.Jail.step, collections.Counter[str]()

    def step(self: session.Jail, given: str, wall_s: float, *, method: str = "step") -> tuple[bytes, bytes]:
        methods[method] += 1
        return real(self, given, wall_s, method=method)

    monkeypatch.setattr(session.Jail, "step", step)
    tests = "class T: pass\nfor n in range(2_000):\n    assert f(n) == n"
    found = verdict(box, "import time\ndef f(x):\n    time.sleep(0.1)\n    return x", tests, total_s=0.5)
    assert found.parts["cases"] == 2_000
    assert found.parts["cases_skipped"] > 1_900
    assert methods["step"] < 100


def test_an_answer_sees_no_call_before_it_has_replied_to_the_last(box: Sandbox) -> None:
    peeks = """
import gc, sys
def f(text):
    seen = [o for o in gc.get_objects() if type(o) in (dict, list, tuple)]
    frame = sys._getframe()
    while frame:
        seen.append(frame.f_locals)
        frame = frame.f_back
    seen = repr(seen)
    wanted = text[:-1] + chr(50)
    return wanted if wanted in seen else text
"""
    found = verdict(
        box, peeks, "assert f('needle-1') == 'needle-2'\nassert f('needle-2') == 'needle-2'", credit="partial"
    )
    assert found.value == 0.5


LISTS = {"fn_name": "f", "inputs": [[[3, 1]]], "outputs": [[[1, 3]]]}
STDIN = [{"input": "3\n", "output": "6\n", "testtype": "stdin"}]
DOUBLE = "print(2 * int(input()))"
EXAMPLES = json.dumps({"inputs": ["n = 2\narr[] = {5,10}"], "outputs": ["15"]})
MANY = list(range(10**6, 10**6 + 200_000))
BESIDE = {"fn_name": "f", "inputs": [["3 5"]], "outputs": ["15"]}
FIRST = {
    "prompt": 'def first(x):\n    """The first above 1."""\n',
    "test": "def check(candidate):\n    assert candidate([1, 2]) == 2",
    "entry_point": "first",
}
ROWS: dict[str, tuple[str, str, Any]] = {
    "lists in lists": ("def f(a): return sorted(a)", "def f(a): return a", LISTS),
    "integer keys": (
        "def f(d): return {k + 1: v for k, v in d.items()}",
        "def f(d): return {1: 2}",
        json.dumps({"fn_name": "f", "inputs": [[{"1": 5}]], "outputs": [{"2": 5}]}),
    ),
    "a text or its JSON beside values": ("def f(s): return '15'", "def f(s): return '51'", BESIDE),
    "a number as text beside values": ("def f(s): return 15", "def f(s): return 51", BESIDE),
    "a method of Solution": (
        "class Solution:\n    def f(self, a: List[int], t: int) -> int: return a.index(t)",
        "class Solution:\n    def f(self, a, t): return 0",
        {"fn_name": "f", "inputs": ["[2, 7, 11]\n11"], "outputs": ["2"]},
    ),
    "linked lists": (
        "class Solution:\n    def f(self, head: Optional[ListNode]): return head.next",
        "class Solution:\n    def f(self, head: Optional[ListNode]): return head",
        {"fn_name": "f", "inputs": ["[1,2,3]"], "outputs": ["[2,3]"]},
    ),
    "nodes that are made of a value alone": (
        "class ListNode:\n    def __init__(self, x): self.val, self.next = x, None\n"
        "class Solution:\n    def f(self, head: ListNode): return head.next",
        "class Solution:\n    def f(self, head: ListNode): return head",
        {"fn_name": "f", "inputs": ["[1,2,3]"], "outputs": ["[2,3]"]},
    ),
    "nodes that need the next one": (
        "class ListNode:\n    def __init__(self, val, next): self.val, self.next = val, next\n"
        "class Solution:\n    def f(self, head: ListNode): return head.next",
        "class Solution:\n    def f(self, head: ListNode): return head",
        {"fn_name": "f", "inputs": ["[1,2,3]"], "outputs": ["[2,3]"]},
    ),
    "nodes that are frozen": (
        "class ListNode(NamedTuple):\n    val: int\n    next: Any\n"
        "class Solution:\n    def f(self, head: ListNode): return head.next",
        "class Solution:\n    def f(self, head: ListNode): return head",
        {"fn_name": "f", "inputs": ["[1,2,3]"], "outputs": ["[2,3]"]},
    ),
    "trees that need what is below": (
        "import dataclasses\n@dataclasses.dataclass(frozen=True)\n"
        "class TreeNode:\n    val: int\n    left: Any\n    right: Any\n"
        "class Solution:\n    def f(self, root: TreeNode): return root.right",
        "class Solution:\n    def f(self, root: TreeNode): return root.left",
        {"fn_name": "f", "inputs": ["[1,null,3,4,5,null,6]"], "outputs": ["[3,4,5,null,6]"]},
    ),
    "trees that are made of a value alone": (
        "class TreeNode:\n    def __init__(self, x): self.val, self.left, self.right = x, None, None\n"
        "class Solution:\n    def f(self, root: TreeNode): return root.right",
        "class Solution:\n    def f(self, root: TreeNode): return root.left",
        {"fn_name": "f", "inputs": ["[1,2,3,null,null,4]"], "outputs": ["[3,4]"]},
    ),
    "lists of many values": (
        "class Solution:\n    def f(self, a: List[int]) -> List[int]: return sorted(a)",
        "class Solution:\n    def f(self, a: List[int]) -> List[int]: return a",
        {"fn_name": "f", "inputs": [json.dumps(MANY[::-1])], "outputs": [json.dumps(MANY)]},
    ),
    "an output of megabytes": (
        "print('1234567\\n' * int(input()))",
        "print('1234567\\n' * int(input()) + '1')",
        {"inputs": ["200000"], "outputs": ["1234567\n" * 200_000]},
    ),
    "no nodes": (
        "class Solution:\n    def f(self, head: Optional[ListNode]) -> Optional[ListNode]: return head",
        "class Solution:\n    def f(self, head: Optional[ListNode]) -> Optional[ListNode]: return ListNode(1)",
        {"fn_name": "f", "inputs": ["[]"], "outputs": ["[]"]},
    ),
    "a list of linked lists": (
        "class Solution:\n    def f(self, a: List[Optional[ListNode]]): return [n.val for n in a if n]",
        "class Solution:\n    def f(self, a: List[Optional[ListNode]]): return [n.val for n in a]",
        {"fn_name": "f", "inputs": ["[[1,2],[3]]", "[]", "[[]]"], "outputs": ["[1,3]", "[]", "[]"]},
    ),
    "trees": (
        "class Solution:\n    def f(self, root: TreeNode): root.left, root.right = root.right, root.left; return root",
        "class Solution:\n    def f(self, root: TreeNode): return root",
        {"fn_name": "f", "inputs": ["[1,2,null,4]"], "outputs": ["[1,null,2,4]"]},
    ),
    "names without imports": (
        "class Solution:\n    def f(self, a: List[int]) -> int:\n        insort(a, isqrt(9)); b = bisect.bisect(a, 3)\n"
        "        return pow(b, sum(map(mul, a, islice(count(1), 3))), len(digits))",
        "class Solution:\n    def f(self, a): return 2",
        {"fn_name": "f", "inputs": ["[1,5]"], "outputs": [str(pow(2, 1 + 6 + 15, 10))]},
    ),
    "names without imports in a program": (
        "a = [9]; insort(a, isqrt(int(input()) ** 2)); print(2 * a[0])",
        "print(7)",
        STDIN,
    ),
    "public tests": (DOUBLE, "print(7)", json.dumps(STDIN)),
    "private tests": (
        DOUBLE,
        "print(7)",
        base64.b64encode(zlib.compress(pickle.dumps(json.dumps(STDIN)))).decode(),
    ),
    "both": (DOUBLE, "print(7)", {"public_test_cases": json.dumps(STDIN), "private_test_cases": json.dumps(STDIN)}),
    "columns": (DOUBLE, "print(7)", {"public_tests": {"input": ["3"], "output": ["6"]}, "private_tests": None}),
    "compressed in a mapping, as of SandboxFusion": (
        DOUBLE,
        "print(7)",
        base64.b64encode(zlib.compress(pickle.dumps({"input_output": '{"inputs": ["3"], "outputs": ["6"]}'}))).decode(),
    ),
    "streams of SandboxFusion, in any case": (
        "print('Yes', input())",
        "print('Yes', 4)",
        {"id": 3, "labels": "{}", "test": '[{"input": {"stdin": "3"}, "output": {"stdout": "YES 3"}}]'},
    ),
    "code of SandboxFusion": (
        "def f(x): return x + 1",
        "def f(x): return x",
        {"test": {"code": "#<INSERT>\ndef check():\n    assert f(1) == 2\ncheck()", "asset": None}},
    ),
    "streams of ROLL": (
        DOUBLE,
        "print(7)",
        {"ground_truth": '["print(6)"]', "test_cases": '[{"stdin": "3", "expected_stdout": "6"}]'},
    ),
    "code of ROLL": (
        "def f(x): return x + 1",
        "def f(x): return x",
        {
            "ground_truth": '["def f(x): ..."]',
            "test_cases": '[{"assert_code": "def test_f():\\n    assert f(1) == 2"}]',
        },
    ),
    "the name of no function": (DOUBLE, "print(7)", {"fn_name": "none", "tests": '{"input": ["3"], "output": ["6"]}'}),
    "a name in JSON of the test": (
        "def f(x): return x + 1",
        "def f(x): return x",
        [{"input": "1", "output": "2", "testtype": "functional", "metadata": '{"func_name": "f"}'}],
    ),
    "tests within info": (DOUBLE, "print(7)", {"info": json.dumps({"tests": '{"inputs": ["3"], "outputs": ["6"]}'})}),
    "lines within the texts of JSON": (
        "print(sum(map(int, open(0))))",
        "print(3)",
        '{"inputs": ["3\n4"], "outputs": ["7"]}',
    ),
    "a file of pytest": (
        "def f(x): return x + 1",
        "def f(x): return x",
        {
            "reward_model": {
                "ground_truth": '{"pytest": "from solution import f\\ndef test_f():\\n    assert f(1) == 2"}'
            }
        },
    ),
    "test_cases": (DOUBLE, "print(7)", {"language": "python", "test_cases": STDIN}),
    "calls by type": (
        "def f(a, b): return a + b",
        "def f(a, b): return a",
        [{"fn_name": "f", "type": "function_call", "input": [1, 2], "output": [3]}],
    ),
    "assert_case": (
        "def f(x): return x + 1",
        "def f(x): return 1",
        {"inputs": [], "outputs": [], "fn_name": "f", "assert_case": ["assert f(1) == 2"]},
    ),
    "the function of rStar": (
        "def f(x): return x + 1",
        "def f(x): return x",
        {"inputs": json.dumps([[1]]), "outputs": json.dumps([2]), "func_name": "f"},
    ),
    "literals of Python": (
        "def f(x): return x is None",
        "def f(x): return x",
        {"fn_name": "f", "inputs": ["None"], "outputs": ["True"]},
    ),
    "a row as Python writes it": (DOUBLE, "print(7)", {"verification_info": repr({"test_cases": STDIN, "more": None})}),
    "named arguments": (
        "class Solution:\n    def f(self, a, t): return a.index(t)",
        "class Solution:\n    def f(self, a, t): return 0",
        {"entry_point": "Solution().f", "input_output": [{"input": "a = [3, 20], t = 20", "output": "1"}]},
    ),
    "the tests that MBPP+ adds": (
        "def f(x): return x + 1",
        "def f(x): return 2",
        {"test_list": ["assert f(1) == 2"], "test": "for i, o in zip([[1], [5]], [2, 6]):\n    assert f(*i) == o"},
    ),
    "official tests": (
        DOUBLE,
        "print(7)",
        {"official_tests": STDIN, "generated_tests": 12, "input_mode": "stdio", "generated_checker": None},
    ),
    "arrays of pandas": (
        "def f(x): return x + 1",
        "def f(x): return x",
        {"test_list": np.array(["assert f(1) == 2", "assert f(2) == 3"], dtype=object), "test_imports": np.array([])},
    ),
    "columns that are arrays of pandas": (
        DOUBLE,
        "print(7)",
        {"public_tests": {"input": np.array(["3"], dtype=object), "output": np.array(["6"], dtype=object)}},
    ),
    "no input": ("print(6)", "print(7)", {"stdin": [{"input": None, "output": "6"}]}),
    "the rest of a prompt": (
        "    return reduce(max, x)",
        "    return x[0]",
        {
            "prompt": 'from functools import reduce\n\ndef f(x):\n    """The largest."""\n',
            "test": "def check(candidate):\n    assert candidate([1, 2]) == 2",
            "entry_point": "f",
        },
    ),
    "the rest of a prompt, whose function the tests name": (
        "    return [x]",
        "    return x",
        {
            "prompt": 'from typing import List\n\ndef f(x: int) -> List[int]:\n    """A list."""\n',
            "test": "def check(candidate):\n    assert candidate(1) == [1]\ncheck(f)",
        },
    ),
    "the rest of a complete_prompt": (
        "    return random.choice([x])",
        "    return 0",
        {
            "complete_prompt": 'import random\ndef task_func(x):\n    """The same."""\n',
            "test": "import unittest\nclass TestCases(unittest.TestCase):\n"
            "    def test_one(self):\n        self.assertEqual(task_func(5), 5)",
            "entry_point": "task_func",
        },
    ),
    "a prompt in a column within a column": (
        "def f(x): return double(x)",
        "def f(x): return x",
        {
            "prompt": [{"role": "user", "content": "Write f."}],
            "reward_model": {
                "ground_truth": {
                    "prompt": "def double(x):\n    return 2 * x\ndef f(x):\n",
                    "test": "def check(candidate):\n    assert candidate(3) == double(3)",
                    "entry_point": "f",
                }
            },
        },
    ),
    "integers of many digits": (
        "def f(x): return 10**x",
        "def f(x): return 10**x + 1",
        f'{{"fn_name": "f", "inputs": [[5000]], "outputs": [1{"0" * 5000}]}}',
    ),
    "integers of many digits as text": (
        "def f(x): return str(10**x)",
        "def f(x): return str(9**x)",
        {"test_list": ["assert f(5000) == str(10**5000)"]},
    ),
    "integers of many digits in a program": (
        "print(10**int(input()))",
        "print(9**int(input()))",
        {"inputs": ["5000"], "outputs": [f"1{'0' * 5000}"]},
    ),
    "a result within a list, as a text": (
        "def f(x): return 3 * x",
        "def f(x): return x",
        {"reward_model": {"ground_truth": json.dumps({"fn_name": "f", "inputs": [[7]], "outputs": [["21"]]})}},
    ),
    "1 for true, and another rounding": (
        "def f(x): return [x % 2, x / 10]",
        "def f(x): return [x % 2, x / 10 + 1e-6]",
        {"fn_name": "f", "inputs": [[3]], "outputs": [[True, 0.30000000000000004]]},
    ),
    "keys that look like integers": (
        "def f(x): return '-'.join(x)",
        "def f(x): return list(x)",
        {"fn_name": "f", "inputs": [[{"1": 2, "3": 4}]], "outputs": ["1-3"]},
    ),
    "any case and five digits, as CodeContests counts": (
        "print('Yes', '%.5f' % (2 / 3))",
        "print('Yes', '%.4f' % (2 / 3))",
        {"public_tests": {"input": [""], "output": ["YES 0.666666667"]}, "private_tests": {"input": [], "output": []}},
    ),
    "capital letters that are the task": (
        "print(input().title())",
        "print(input())",
        {"public_tests": {"input": ["hello"], "output": ["Hello"]}, "private_tests": {"input": [], "output": []}},
    ),
    "nothing where nothing may come out": (
        "def f(x): return None",
        "pass",
        {
            "prompt": "def f(x):\n    'Nothing.'\n",
            "test": "def check(candidate):\n    assert candidate(1) is None",
            "entry_point": "f",
        },
    ),
    "a number of another kind": (
        "def f(x): return 5",
        "def f(x): return 5j",
        {"fn_name": "f", "inputs": [[1]], "outputs": [5]},
    ),
    "None as a text": (
        "def f(x): return 'None'",
        "def f(x): pass",
        {"fn_name": "f", "inputs": [[1]], "outputs": [["None"]]},
    ),
    "several outputs of xCodeEval": (
        "print(3, 1)",
        "print(1, 3)\nprint(3, 1)",
        {"hidden_unit_tests": "[{'input': '', 'output': ['1 3', '3 1']}]"},
    ),
    "asserts of MBPP+ as released": (
        "def f(x): return x + 1",
        "def f(x): return x",
        {"assertion": "assert f(1) == 2", "base_input": [[1]], "entry_point": "f"},
    ),
    "asserts beside the inputs that they were made of": (
        "def f(x, y): return x + y",
        "def f(x, y): return x",
        {
            "test": 'def check(candidate):\n    for each in ["1, 2"]:\n        assert candidate(*eval(each)) == 3',
            "entry_point": "f",
            "inputs": ["1, 2"],
            "outputs": [3],
        },
    ),
    "test code and inputs without outputs": (
        "def f(x): return x + 1",
        "def f(x): return x",
        {"test": "def check(candidate):\n    assert candidate(1) == 2", "entry_point": "f", "inputs": ["1"]},
    ),
    "a setup that imports the answer as code": (
        "def f(x): return x + x",
        "def f(x): return x",
        {
            "test_setup": "from code import f\nfrom collections import Counter",
            "test_list": ["assert Counter(f('a'))['a'] == 2"],
        },
    ),
    "asserts of OpenCoder": (
        "def f(x): return x + 1",
        "def f(x): return x",
        {
            "instruction": "Add 1.",
            "output": "def f(x): return x + 1",
            "entry_point": "f",
            "testcase": ["assert f(1) == 2"],
        },
    ),
    "tests of prime-rl": (DOUBLE, "print(7)", {"answer": "", "info": json.dumps({"test_cases": STDIN})}),
    "tests within metadata": (DOUBLE, "print(7)", {"verifier_metadata": {"unit_tests": STDIN}}),
    "names with a line that are taken for granted": (
        "@lru_cache(None)\ndef f(x): return bisect_left([1, 3], x) + 5\nprint(f(int(input())))",
        "print(bisect_left([1, 3], int(input())))",
        {"inputs": ["3"], "outputs": ["6"]},
    ),
    "what Python had": (
        "from fractions import gcd\nimport collections\nprint(gcd(12, int(input())), collections.Mapping.__name__)",
        "from fractions import gdc\nprint(3, 'Mapping')",
        {"inputs": ["9"], "outputs": ["3 Mapping"]},
    ),
    "what Python had, in a function": (
        "import fractions, time\ndef f(x): return fractions.gcd(12, x) + 0 * int(time.clock())",
        "def f(x): return x",
        {"fn_name": "f", "inputs": [[9]], "outputs": [3]},
    ),
    "the rest of a prompt, stripped": (
        "for each in x:\n        if each > 1:\n            return each",
        "return x[0]",
        FIRST,
    ),
    "the rest of a prompt, stripped, that begins with a function": (
        "def above(each):\n        return each > 1\n    return next(filter(above, x))",
        "def above(each):\n        return each < 2\n    return next(filter(above, x))",
        FIRST,
    ),
    "the rest of a prompt, stripped, with more behind it": (
        "return x[1]\n\n\ndef main():\n    print(first([1, 2]))\n\nif __name__ == '__main__':\n    main()",
        "return x[0]\n\n\ndef main():\n    print(first([1, 2]))",
        FIRST,
    ),
    "an answer that could be the rest of a prompt": ("first = lambda x: x[1]", "return first(x)", FIRST),
    "deep calls": (
        "def f(x): return x and 1 + f(x - 1)",
        "def f(x): return f(x)",
        {"fn_name": "f", "inputs": [[5000]], "outputs": [5000]},
    ),
    "deep calls in a program": (
        "def f(x): return x and 1 + f(x - 1)\nprint(f(int(input())))",
        "def f(x): return f(x)\nprint(f(int(input())))",
        {"inputs": ["5000"], "outputs": ["5000"]},
    ),
    "calls deeper than the usual stack": (
        "import functools, sys\nsys.setrecursionlimit(10**6)\n"
        "@functools.cache\ndef f(x): return x and 1 + f(x - 1)\nprint(f(int(input())))",
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(x): return max(f(x), 1)\nprint(f(int(input())))",
        {"inputs": ["30000"], "outputs": ["30000"]},
    ),
    "checker": (
        "print('1 2')",
        "print('1 3')",
        {
            "inputs": [""],
            "outputs": ["2 1"],
            "checker": "import sys\na, b = (sorted(open(n).read().split()) for n in sys.argv[2:])\nprint(int(a == b))",
        },
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_as_published(box: Sandbox, name: str) -> None:
    right, wrong, row = ROWS[name]
    good, bad = verdict(box, right, row), verdict(box, wrong, row)
    assert isinstance(good, Score), good
    assert good.passed, good.detail
    assert isinstance(bad, Score), bad
    assert bad.value == 0


def test_a_pickle_with_code_is_refused() -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (exec, ("raise SystemExit",))

    for held in (Evil(), ["a"], 3, {"a": "b"}, {"input_output": 3}, {"input_output": Evil()}):
        with pytest.raises(Unusable, match="only text is read"):
            read_plan(base64.b64encode(zlib.compress(pickle.dumps(held))).decode())


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_compressed_tests_are_read_from_every_kind_of_pickle(protocol: int) -> None:
    for size in (1, 300, 100_000):
        rows = json.dumps([{"input": "é" * size, "output": "x", "testtype": "stdin"}], ensure_ascii=False)
        packed = base64.b64encode(zlib.compress(pickle.dumps(rows, protocol))).decode()
        assert read_plan(packed).runs[0].stdin == "é" * size
        assert read_plan({"private_test_cases": packed}).runs[0].stdin == "é" * size


def test_a_reference_without_tests_is_described() -> None:
    with pytest.raises(Unusable, match="it is a list with nothing to run; "):
        read_plan([])
    with pytest.raises(Unusable, match="it is a mapping of tsets, title; "):
        read_plan({"tsets": ["assert f(1)"], "title": ""})
    with pytest.raises(Unusable, match="it is a mapping of tsets; "):
        read_plan({"reward_model": {"ground_truth": json.dumps({"tsets": ["assert f(1)"]})}})


@pytest.mark.parametrize("text", ["[" * 900_000, "[" + "1," * 450_000 + "x]", f"[{'9,' * 9}{'9' * 1_000_000}]"])
def test_a_row_that_is_costly_to_read_holds_up_nobody(text: str, cpu_at_most: Any) -> None:
    with cpu_at_most(0.5):  # a literal of this length took 3 s and 700 MB
        for row in ({"asserts": text}, {"asserts": "assert f(1)", "prompt": text, "entry_point": "f"}):
            read_plan(row)


def test_tests_with_long_literals_are_read_quickly() -> None:
    pairs = [[n, -n] for n in range(50_000)]
    text = f"inputs = {pairs}\nfor a, b in inputs:\n    assert f(a) == b"
    started = time.process_time()
    compile(text, "tests", "exec")
    once_s = time.process_time() - started
    assert prepared((text,), "").wanted == {"f"}
    assert time.process_time() - started < 8 * once_s  # it was 20 times


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"inputs": ["1"], "outputs": [None]}, "the output of a run must be a text or a list of lines, not 'None'"),
        ({"inputs": [{"stdin": "1", "file": "2"}], "outputs": ["1"]}, "the input of a run must be"),
        ({"test": {"code": "assert f(open('a').read())", "asset": {"a": "MQ=="}}}, "files, which they have in 'asset'"),
        ({"inputs": [b"1"], "outputs": ["1"]}, "the input of a run must be"),
        ({"hidden_unit_tests": "[{'input': '', 'output': []}]"}, "a list of outputs of which any is right, and it is"),
        ({"public_tests": {"input": ["1"], "output": ["1"]}, "input_file": "input.txt"}, "'input_file' is 'input.txt'"),
        ({"official_tests": STDIN, "input_mode": "file"}, "'input_mode' is 'file'"),
        ({"official_tests": STDIN, "interaction_format": "Print ?"}, "'interaction_format' is 'Print"),
        ({"fn_name": "f", "inputs": ["root = [1, null]"], "outputs": ["1"]}, "the arguments 'root = "),
        (
            {"starter_code": "#User function Template for python3\nclass Solution:", "input_output": EXAMPLES},
            "'starter_code' asks for a function",
        ),
        ({"inputs": ["1"], "outputs": ["1"], "checker": '#include "testlib.h"\nint main(){}'}, "a program in Python"),
    ],
)
def test_what_cannot_be_read_is_named(row: Any, words: str) -> None:
    with pytest.raises(Unusable, match=re.escape(words)):
        read_plan(row)


def test_a_checker_that_crashes_is_a_fault_of_the_row_only_on_the_right_output(box: Sandbox) -> None:
    row = {"inputs": [""], "outputs": ["2"], "checker": "import sys\nprint(int(int(open(sys.argv[3]).read()) == 2))"}
    assert verdict(box, "print('x')", row).value == 0
    assert isinstance(verdict(box, "print('x')", row | {"checker": "1 / 0"}), Failed)


# -- forged replies ----------------------------------------------------------------------------------------------------


class Forger(PlainSandbox):
    """Sessions whose every reply is made by ``forge``."""

    def __init__(self, forge: Any) -> None:
        super().__init__()
        self.forge = forge

    def session(self, *, language: Language = "python", limits: Limits | None = None) -> SandboxSession:
        outer = self

        class Forged(SandboxSession):
            mark = ""

            def run(self, source: str, *, limits: Limits | None = None) -> RunResult:
                if ".step(" not in source:
                    found = re.findall(r"\.Answer\('(\w+)', .*'(\w+)'\)", source)
                    self.mark, identity = found[-1]
                    content = '{"value": ["n"]}'
                else:
                    match = re.search(r"\.step\('(\w+)'", source)
                    assert match
                    identity = match[1]
                    names = '"do": "names"' in source
                    content = '{"names": {"f": ["o", 0, {"calls": true}]}}' if names else outer.forge()
                stdout = f"\n{self.mark}{identity}{content}\n".encode(errors="replace")
                return RunResult(status="ok", exit_code=0, stdout=stdout, isolation=NONE)

            def upload(self, path: str, content: bytes) -> None:
                raise AssertionError

            def download(self, path: str, *, max_bytes: int = 0) -> bytes:
                raise AssertionError

            def close(self) -> None:
                return

        return Forged()


class Heartbeat:
    """The longest pause of a thread that wants to run every few milliseconds."""

    def __enter__(self) -> Heartbeat:
        self._over, self.longest_s = threading.Event(), 0.0
        self._thread = threading.Thread(target=self._beat)
        self._thread.start()
        return self

    def _beat(self) -> None:
        last = time.monotonic()
        while not self._over.wait(0.005):
            self.longest_s = max(self.longest_s, time.monotonic() - last)
            last = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def _forged(seed: int) -> Any:
    chance = random.Random(seed)
    tags = "n b i f c s y Y r d C O N l t S F Q q m D DT T td sl g a a0 o k h zz".split()

    def value(depth: int = 0) -> Any:
        kind = chance.randrange(8 if depth < 4 else 5)
        if kind < 2:
            return chance.choice([None, True, -1, 10**30, 1.5, "", "ff", "0x5", "1e3000000000", "<f8", "x" * 50, {}])
        if kind == 2:
            return [chance.choice(tags)]
        if kind == 3:
            return chance.choice([encode(5, lambda v: []), encode({1: (2.5, "a")}, lambda v: [])])
        return [chance.choice(tags), *(value(depth + 1) for _ in range(chance.randrange(4)))]

    def reply() -> str:
        kind = chance.randrange(6)
        if kind == 0:
            return "".join(chance.choice('{}[]",:0e9x') for _ in range(30))
        if kind == 1:
            names = [["builtins", chance.choice(["ValueError", "KeyboardInterrupt", "UnicodeDecodeError", "type"])]]
            return json.dumps({"fault": {"kinds": names, "text": "t", "args": [value()], "state": {"x": value()}}})
        if kind == 2:
            return json.dumps({"call": value(), "args": value(), "named": value()})
        return json.dumps({"value": value(), "after": [value(), value()]})

    return reply


def _fuzz(replies: int, seed: int) -> None:
    """Many calls in one test, each answered by a forged reply; none is right by chance."""
    tests = f"assert f(1) == 'no such value'\nfor n in range({replies}):\n    assert f([n], n) == ['no such value']"
    started = time.monotonic()
    with Heartbeat() as heart:
        found = verdict(Forger(_forged(seed)), "", tests, time_s=5.0, total_s=60.0)
    assert isinstance(found, Score), found
    assert found.value == 0
    assert time.monotonic() - started < 70
    assert heart.longest_s < 2  # on a busy machine; what the judge itself does takes a few milliseconds


def test_forged_replies_are_wrong_answers() -> None:
    for seed in range(3):
        _fuzz(60, seed)


@pytest.mark.slow
def test_ten_thousand_forged_replies() -> None:
    for seed in range(20):
        _fuzz(500, 100 + seed)


@pytest.mark.parametrize(
    "content",
    [
        '{"value": ["m", "1e3000000000"]}',
        '{"value": ["q", "0x1", "0x0"]}',
        '{"value": ["i", "0x' + "f" * 3_000_000 + '"]}',
        '{"value": ["td", 1e308, 1, 1]}',
        '{"value": ["r", "0x0", "0x' + "f" * 30 + '", "0x1"]}',
        '{"value": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"value": ["l", [' + ",".join(['["n"]'] * 300_000) + "]]}",
        "\x00" * 1_000_000,
    ],
    ids=["exponent", "division", "digits", "time", "range", "depth", "length", "zeros"],
)
def test_a_reply_that_is_costly_to_read_costs_its_answer_only(content: str) -> None:
    tests = "assert f(1) == 4\nassert int(f(1)) == 4\nassert list(f(1)) == [4]\nassert str(f(1)) == '4'"
    started = time.monotonic()
    with Heartbeat() as heart:
        found = verdict(Forger(lambda: content), "", tests, time_s=2.0, total_s=5.0)
    assert isinstance(found, Score), found
    assert found.value == 0
    assert time.monotonic() - started < 15  # with the start of jails, on a busy machine
    assert heart.longest_s < 2
