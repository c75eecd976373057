"""What tests patch with unittest.mock, in the answer's process in another jail, and answers that misuse the mocks."""

from __future__ import annotations

from typing import Any

import pytest

from roll_envs.sandbox import Sandbox
from roll_envs.verifiers import Failed, Score, make_verifier


def verdict(box: Sandbox, code: str, tests: str) -> Any:
    return make_verifier("code", sandbox=box, time_s=4.0)(code, {"test": tests, "entry_point": "f"})


def unit(body: str) -> str:
    head = (
        "import functools, io, os, subprocess, unittest\nfrom unittest.mock import MagicMock, Mock, mock_open, patch\n"
    )
    return f"{head}class T(unittest.TestCase):\n" + "".join(f"    {line}\n" for line in body.strip().splitlines())


ROWS = {
    "files that are not there": (
        "import csv\ndef f(p):\n    with open(p) as file: rows = [*csv.reader(file)]\n"
        "    with open('out', 'w') as file: file.write(rows[0][1])\n    return rows",
        "def f(p): return [['a', 'b'], ['c', 'd']]",
        """
@patch("builtins.open", new_callable=mock_open, read_data="a,b\\nc,d\\n")
def test_read(self, file):
    self.assertEqual(f("in"), [["a", "b"], ["c", "d"]])
    file.assert_any_call("in")
    file().write.assert_called_once_with("b")
def test_after(self):
    self.assertRaises(FileNotFoundError, f, "in")
""",
    ),
    "a process that is not started": (
        "import subprocess\ndef f(c):\n    try: return subprocess.run(c, check=True).stdout.strip()\n"
        "    except subprocess.CalledProcessError as error: return error.returncode, error.cmd",
        "def f(c): return c",
        """
@patch("subprocess.run")
def test_right(self, run):
    run.return_value = MagicMock(stdout="out\\n", returncode=0)
    self.assertEqual(f(["ls"]), "out")
    run.assert_called_once_with(["ls"], check=True)
@patch("subprocess.run", side_effect=subprocess.CalledProcessError(3, "ls"))
def test_wrong(self, run):
    self.assertEqual(f(["ls"]), (3, "ls"))
""",
    ),
    "input, output and functions of libraries": (
        "import os, random, time\ndef f(p):\n    time.sleep(100)\n    print(input('? ') + input())\n"
        "    return os.path.exists(p), random.randint(1, 6), os.environ.get('AB')",
        "def f(p): return True, 7, '1'",
        """
@patch.dict("os.environ", {"AB": "1"})
@patch("builtins.input", side_effect=["x", "y"])
@patch("time.sleep")
@patch("random.randint", side_effect=lambda a, b: a + b)
def test_all(self, chance, sleep, given):
    with patch("sys.stdout", new_callable=io.StringIO) as said, patch.object(os.path, "exists", return_value=True):
        self.assertEqual(f("no"), (True, 7, "1"))
    self.assertEqual(said.getvalue(), "xy\\n")
    sleep.assert_called_once_with(100)
""",
    ),
    "a mock as argument": (
        "def f(db):\n    with db.cursor() as rows:\n        rows.execute('select', how=1)\n"
        "        return [row[0] for row in rows] + [len(db), db['k'], db.name]",
        "def f(db): return [1, 2, 7, 'v', 'n']",
        """
def test_rows(self):
    db = MagicMock()
    db.name = "n"
    db.cursor.return_value.__enter__.return_value.__iter__.return_value = [(1,), (2,)]
    db.__len__.return_value, db.__getitem__.return_value = 7, "v"
    self.assertEqual(f(db), [1, 2, 7, "v", "n"])
    db.cursor().__enter__().execute.assert_called_once_with("select", how=1)
""",
    ),
    "what a library notes on a function": (
        "import time\ndef f():\n    time.sleep.__signature__ = 'kept'\n    time.sleep(9)\n"
        "    return time.sleep.__signature__",
        "import time\ndef f():\n    time.sleep.return_value = 1\n    time.sleep(9)\n    return 'kept'",
        """
@patch("time.sleep")
def test_noted(self, sleep):
    self.assertEqual(f(), "kept")
    sleep.assert_called_once_with(9)
""",
    ),
    "what our own code uses, too": (
        "import json, os, time\ndef f(p):\n    open('out', 'w').close()\n"
        "    return json.loads(p), json.dumps(1), os.listdir('.'), time.time()",
        "def f(p): return {'a': 1}, 'D', [], 5",
        """
@patch("time.time", return_value=5)
@patch("os.scandir")
@patch("os.listdir", return_value=[])
@patch("json.dumps", return_value="D")
@patch("json.loads", return_value={"a": 1})
def test_f(self, *mocks):
    for _ in range(2):
        self.assertEqual(f("x"), ({"a": 1}, "D", [], 5))
    for mock in (*mocks[:3], mocks[4]):
        self.assertTrue(mock.called)
def test_out(self):
    self.assertEqual(f("1")[2], ["out"])
""",
    ),
    "a mock that is set, and what its files and contexts give": (
        "import os\ndef f(m, more):\n    m.count += 1; m['a'] = 1; del m['b']\n"
        "    with open('p') as file, m.lock():\n"
        "        return [next(file), *file, 'a' in m, more.index(m), m is more[1]]",
        "def f(m, more): return ['x\\n', 'y\\n', 'z', False, 1, True]",
        """
def test_f(self):
    m = MagicMock(count=1)
    with patch("builtins.open", mock_open(read_data="x\\ny\\nz")):
        self.assertEqual(f(m, [MagicMock(), m]), ["x\\n", "y\\n", "z", False, 1, True])
    self.assertEqual(m.count, 2)
    m.__setitem__.assert_called_once_with("a", 1)
    m.__delitem__.assert_called_once_with("b")
    m.lock().__enter__.assert_called_once_with()
""",
    ),
    "what is used to share files, and a method of a value": (
        "import base64, os\ndef f():\n    open('out', 'w').write(os.path.join('a', 'b'))\n"
        "    return base64.b64encode(b''), os.getenv('A')",
        "def f(): return b'Q', 1",
        """
@patch("os.path.join", return_value="J")
@patch("base64.b64encode", return_value=b"Q")
@patch("os.getenv", side_effect={"A": 1}.get)
def test_f(self, *mocks):
    open("in", "w").close()
    self.assertEqual(f(), (b"Q", 1))
    with open("out") as file:
        self.assertEqual(file.read(), "J")
""",
    ),
    "patches that are started and stopped": (
        "import os\ndef f(): return os.getpid()",
        "def f(): return 5",
        """
def setUp(self):
    self.patch = patch("os.getpid", return_value=5)
    self.patch.start()
def test_pid(self):
    self.assertEqual(f(), 5)
    self.patch.stop()
    self.assertNotEqual(f(), 5)
""",
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_what_the_tests_patch_is_patched_for_the_answer(box: Sandbox, name: str) -> None:
    right, wrong, body = ROWS[name]
    good, bad = verdict(box, right, unit(body)), verdict(box, wrong, unit(body))
    assert isinstance(good, Score), good
    assert good.passed, good.detail
    assert isinstance(bad, Score), bad
    assert bad.value == 0


@pytest.mark.parametrize(
    "cheat",
    [
        "m.return_value",
        "m.side_effect",
        "m.call_args",
        "m.method_calls",
        "m.assert_called_with",
        "m.configure_mock(return_value=5)",
        "m._mock_parent",
        "setattr(m, 'return_value', 5)",
        "setattr(m, 'await_args', 5)",
        "m.await_args",
        "ask('getattr', '__class__')",
        "ask('getattr', ['x'])",
        "ask('eval', '1')",
        "m._ask('a', 'call')",
        "m._ask(99, 'call')",
        "m._ask(m('part')._number, 'getattr', 'args')",
    ],
)
def test_mocks_are_no_way_into_the_process_of_the_tests(box: Sandbox, cheat: str) -> None:
    answer = f"""
import os
def f():
    m = os.getpid
    ask = lambda *given: m._ask(m._number, *given)
    got = {cheat}
    raise RuntimeError(str(got))
"""
    body = """
@patch("os.getpid", side_effect=lambda *given: functools.partial(print, "secret"))
def test_pid(self, pid):
    pid("secret")
    try:
        f()
    except (AttributeError, KeyError, IndexError, TypeError):
        return self.assertTrue(True)
    self.fail()
"""
    found = verdict(box, answer, unit(body))
    assert isinstance(found, Score), found
    assert found.passed, found.detail


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ("patch('os.getpid', wraps=len)", "calls a function of a library"),
        ("patch('os.getpid', side_effect=eval)", "calls a function of a library"),
        ("patch('__main__.x')", "use 'patch'"),
        ("patch('solution.os.getpid')", "use 'patch'"),
        ("patch(__name__ + '.x')", "use 'patch'"),
        ("patch.dict('sys.modules', {})", "use 'patch.dict'"),
        ("patch.object(unittest.TestCase(), 'run')", "patch a TestCase"),
        ("patch('os.getpid', io.StringIO())", "hand a StringIO"),
    ],
)
def test_patches_that_cannot_be_made_are_named(box: Sandbox, patch: str, words: str) -> None:
    found = verdict(box, "def f(): return 1", unit(f"def test_f(self):\n    with {patch}: self.assertEqual(f(), 1)"))
    assert isinstance(found, Failed)
    assert words in found.reason


def test_a_wrong_answer_after_which_a_mock_has_nothing_to_tell_is_zero(box: Sandbox) -> None:
    body = "@patch('os.getpid')\ndef test_f(self, m):\n    f()\n    self.assertEqual(m.call_args[0], ())"
    assert verdict(box, "def f(): return 1", unit(body)).value == 0
