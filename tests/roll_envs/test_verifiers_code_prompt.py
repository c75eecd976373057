"""Rows whose prompt is code, as of LeetCode and HumanEval: what it gives to answer and tests, and its objects."""

from __future__ import annotations

import json
import textwrap
from typing import Any

import pytest

from roll_envs.sandbox import Sandbox
from roll_envs.verifiers import make_verifier

IMPORTS = """
import datetime
import random
from bisect import *
from collections import *
from functools import *
from itertools import *
from math import *
from operator import *
from string import *
from typing import *

inf = float('inf')
"""
NODES = f"""{IMPORTS}
class ListNode:
    def __init__(self, val=0, next=None):
        self.val, self.next = val, next

class TreeNode:
    def __init__(self, val=0, left=None, right=None):
        self.val, self.left, self.right = val, left, right

def list_node(values):
    head = None
    for value in reversed(values):
        head = ListNode(value, head)
    return head

def is_same_list(p, q):
    while p and q and p.val == q.val:
        p, q = p.next, q.next
    return p is None and q is None

def is_same_tree(p, q):
    if not p or not q:
        return p is q
    return p.val == q.val and is_same_tree(p.left, q.left) and is_same_tree(p.right, q.right)
"""


def value(box: Sandbox, prompt: str, test: str, body: str, more: str = "") -> Any:
    """The score of an answer that begins with ``more``."""
    indented = textwrap.indent(body, " " * 8)
    answer = f"{more}\nclass Solution:\n    def f(self, x: Optional[ListNode], p=None, q=None):\n{indented}"
    check = f"def check(candidate):\n{textwrap.indent(test, ' ' * 4)}"
    row = {"prompt": prompt, "entry_point": "Solution().f", "test": check}
    return make_verifier("code", sandbox=box, time_s=4.0)(answer, row).value  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "body",
    [
        "return reduce(xor, x)", "return len(list(pairwise(x))) - 2", "return isqrt(0)", "return bisect(x, 0)",
        "return datetime.date(2000, 1, 1).day - 1", "return len(digits) - 10", "return 0 if inf else 1",
    ],
)  # fmt: skip
def test_names_of_the_prompt_are_there_for_the_answer(box: Sandbox, body: str) -> None:
    assert value(box, IMPORTS, "assert candidate(x=[1, 2, 3]) == 0", body) == 1


NEXT = "assert is_same_list(candidate(x=list_node([1, 2, 3])), list_node([2, 3]))"


@pytest.mark.parametrize(
    "prompt",
    [
        NODES,
        f'"""Of a row."""\n{NODES}',
        f"{NODES}\nMOST: int = 10",
        f"{NODES}\ntry:\n    import numpy\nexcept ImportError:\n    pass",
        f"{NODES}\nif __name__ == '__main__':\n    pass",
        f"{NODES}\nclass Node:\n    def __init__(self, x): self.x = x",
        f"{NODES}\nclass Solution:\n    def f(self, x):\n        pass",
        f"{NODES}\nclass Solution:\n    def f(self, x):\n",
    ],
)
def test_helpers_of_the_prompt_are_the_tests_own(box: Sandbox, prompt: str) -> None:
    assert value(box, prompt, NEXT, "return x.next") == 1
    assert value(box, prompt, NEXT, "return x") == 0
    assert value(box, prompt, NEXT, "return x", "is_same_list = lambda *_: True\nlist_node = lambda *_: None") == 0


@pytest.mark.parametrize(
    "row",
    [
        {"import_prefix": NODES, "test_code": f"def check(candidate):\n    {NEXT}", "entry_point": "Solution().f"},
        {
            "extra_info": {"prefix": NODES, "index": 0},
            "reward_model": {
                "ground_truth": json.dumps(
                    {"functional": f"def check(candidate):\n    {NEXT}\ncheck(Solution().f)"},
                )
            },
        },
    ],
    ids=["Skywork", "Code-R1"],
)
def test_other_columns_give_what_a_prompt_gives(box: Sandbox, row: dict[str, Any]) -> None:
    judge = make_verifier("code", sandbox=box, time_s=4.0)
    cheat = "\nis_same_list = lambda *_: True\nlist_node = lambda *_: None"
    for body, wanted in (("x.next", 1), ("x", 0), (f"x{cheat}", 0)):
        answer = f"class Solution:\n    def f(self, x: Optional[ListNode]): return {body}"
        assert judge(answer, row).value == wanted  # type: ignore[union-attr]


def test_constants_of_the_prompt_are_the_tests_own(box: Sandbox) -> None:
    assert value(box, IMPORTS, "assert candidate(x=1) == inf", "return inf") == 1
    assert value(box, IMPORTS, "assert candidate(x=1) == inf", "return 3", "inf = 3") == 0


def test_a_prompt_that_is_no_code_gives_nothing(box: Sandbox) -> None:
    assert value(box, "Return the next node.", "assert candidate(x=1) == 1", "return 1") == 1


def test_a_program_does_not_go_on_from_a_prompt(box: Sandbox) -> None:
    row = {"prompt": "Print twice the number; def f is of no use.", "inputs": ["3"], "outputs": ["6"]}
    verdict = make_verifier("code", sandbox=box, time_s=4.0)("  \nprint(2 * int(input()))", row)
    assert verdict.value == 1  # type: ignore[union-attr]


REVERSED = "assert is_same_list(candidate(x=list_node([1, 2, 3])), list_node([3, 2, 1]))"
EQUALS = (
    NODES
    + """
class Box:
    def __init__(self, val): self.val = val
    def equals(self, other): return self.val == other.val
    @lru_cache
    def kept(self): return self.val
"""
)


@pytest.mark.parametrize(
    ("test", "body", "more", "wanted"),
    [
        (REVERSED, "while x: x.next, p, x = p, x, x.next\nreturn p", "", 1),
        (REVERSED, "while x: x.next, p, x = p, x, x.next\nreturn p", NODES, 1),
        (REVERSED, "return x", "class ListNode:\n    val, next = 3, None\n    __eq__ = lambda *_: True", 0),
        (REVERSED, "return Same()", "class Same:\n    __eq__ = lambda *_: True\n    val, next = 3, None", 0),
        (NEXT, "return x.next", "class ListNode:\n    __slots__ = ('val', 'next')", 1),
        (NEXT, "x._seen, x.more = True, [x]\nreturn x.next", "", 1),
        ("x = list_node([1])\ncandidate(x)\nassert is_same_list(x, list_node([1, 2]))", "x.next = ListNode(2)", "", 1),
        ("x = list_node([1, 2, 3])\nlast = x.next.next\ncandidate(x)\nassert last.val == 9",
         "x.next.next.val = 9", "", 1),
        ("x = list_node([1, 2])\nx.next.next = x\nassert candidate(x) is x.next", "return x.next.next.next", "", 1),
        ("x = TreeNode(3, TreeNode(5), TreeNode(1))\nassert candidate(x, x.left, x.right) == [1, 2]",
         "return [1, 2] if x.left is p and x.right is q else 0", "", 1),
        ("assert candidate(list_node(range(5000))) == 5000",
         "n = 0\nwhile x: n, x = n + 1, x.next\nreturn n", "", 1),
        ("assert len(candidate(list_node(range(1000)))) == 1000",
         "found = []\nwhile x: found, x = [*found, x], x.next\nreturn found", "", 1),
        ("n, x = 0, candidate(list_node([1, 2]))\nwhile x: n, x = n + 1, x.next\nassert n == 2",
         "x.next = x\nreturn x", "", 0),
        ("assert [each.val for each in candidate(2)] == [0, 1] and is_same_tree(candidate(2)[0], TreeNode(0))",
         "return [TreeNode(i) for i in range(x)]", "", 1),
        ("assert [each.val for each in candidate(2)] == [0, 1] and is_same_tree(candidate(2)[0], TreeNode(0))",
         "return [TreeNode(i, TreeNode(7)) for i in range(x)]", "", 0),
        ("assert candidate(Box(1)).equals(Box(1))", "return x", "", 1),
        ("assert candidate(1).head.val == 3", "return Chain()", "class Chain:\n    def __init__(self):\n"
         "        self.head = ListNode(3)", 1),
        ("assert candidate(list_node([4]), lambda node: node.val) == 4", "return p(x)", "", 1),
        ("assert candidate(Box(1)).equals(Box(2))", "x.equals = lambda other: True\nreturn x", "", 0),
        ("assert candidate(Box(1)).equals(Box(2))",
         "vars(x)['__dict__'] = {'val': 2, 'equals': lambda other: True}\nreturn x", "", 0),
        ("assert candidate(Box(1)).kept() == 2", "x.kept = lambda: 2\nreturn x", "", 0),
    ],
)  # fmt: skip
def test_objects_of_the_prompt_s_classes_are_copied(box: Sandbox, test: str, body: str, more: str, wanted: int) -> None:
    assert value(box, EQUALS, test, body, more) == wanted
