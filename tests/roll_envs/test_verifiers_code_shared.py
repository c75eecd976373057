"""Files, seeds, environment and folder that tests share with the answer in another jail, and answers that misuse it."""

from __future__ import annotations

from typing import Any

import pytest

from roll_envs.sandbox import Sandbox
from roll_envs.verifiers import Failed, Score, make_verifier


def verdict(box: Sandbox, code: str, tests: str, **kwargs: Any) -> Any:
    return make_verifier("code", sandbox=box, time_s=4.0, **kwargs)(code, {"test": tests, "entry_point": "f"})


def unit(*lines: str, before: str = "") -> str:
    body = "".join(f"        {line}\n" for line in lines)
    return f"import os, unittest\n{before}class T(unittest.TestCase):\n    def test_f(self):\n{body}"


WRITES = "def f(p):\n    with open(p, 'w') as file: file.write('hi')\n    return p"
READS = "def f(p): return open(p).read()"
NOTHING = "def f(p): return p"
ROWS: dict[str, tuple[str, str, str]] = {
    "a file that the answer writes": (
        WRITES,
        NOTHING,
        unit("with open(f('out.txt')) as file:", "    self.assertEqual(file.read(), 'hi')"),
    ),
    "files that the tests write": (
        READS,
        "def f(p): return ''",
        unit(
            "folder = tempfile.mkdtemp()",
            "for text in ('one', 'two', 'one'):",
            "    with open(f'{folder}/a', 'w') as file: file.write(text)",
            "    self.assertEqual(f(f'{folder}/a'), text)",
            "shutil.rmtree(folder)",
            "self.assertRaises(OSError, f, f'{folder}/a')",
            before="import shutil, tempfile\n",
        ),
    ),
    "a tree that is moved": (
        "import os, shutil\ndef f(d):\n    for n in os.listdir(d):\n"
        "        e = os.path.join(d, n.rpartition('.')[2] + '_')\n"
        "        os.makedirs(e, exist_ok=True); shutil.move(os.path.join(d, n), e)",
        NOTHING,
        unit(
            "os.mkdir('d')",
            "for n in ('a.x', 'b.x', 'c.y'): open(f'd/{n}', 'w').close()",
            "f('d')",
            "self.assertEqual(sorted(os.listdir('d')), ['x_', 'y_'])",
            "self.assertEqual(sorted(os.listdir('d/x_'))[1], 'b.x')",
        ),
    ),
    "an open file, a mode, a time, odd names": (
        "import os\ndef f(p):\n    open(p, 'a').write('more'); os.chmod(p, 0o755); os.utime(p, (7, 7))\n"
        "    open('a\\nb', 'w').close(); open(b'\\xff', 'w').close()",
        WRITES,
        unit(
            "with tempfile.NamedTemporaryFile('w+') as file:",
            "    file.write('some'); file.flush(); f(file.name); file.seek(0)",
            "    self.assertEqual(file.read(), 'somemore')",
            "    self.assertEqual((os.stat(file.name).st_mode & 0o777, os.path.getmtime(file.name)), (0o755, 7))",
            "self.assertEqual(set(os.listdir(b'.')), {b'a\\nb', b'\\xff'})",
            before="import tempfile\n",
        ),
    ),
    "paths as values": (
        "from pathlib import Path\ndef f(d): return [Path(n) / 'b' for n in sorted(d.iterdir())]",
        "def f(d): return [d]",
        "from pathlib import Path\ndef test_f(tmp_path):\n    (tmp_path / 'a').mkdir()\n"
        "    assert f(tmp_path) == [tmp_path / 'a' / 'b'] and not f(tmp_path)[0].exists()\n"
        "    assert f(Path('.')) == []",
    ),
    "a file of a simple test": (
        "def f(p): return open(p).read()",
        NOTHING,
        "def test_f(tmp_path, tmp_path_factory):\n    for folder in (tmp_path, tmp_path_factory.mktemp('b')):\n"
        "        file = folder / 'a'\n        file.write_text('some')\n        assert f(str(file)) == 'some'\n",
    ),
    "a folder in place of a file": (
        "import os\ndef f(p):\n    os.remove(p); os.mkdir(p); open(p + '/a', 'w').close()",
        NOTHING,
        unit("open('p', 'w').close()", "f('p')", "self.assertEqual(os.listdir('p'), ['a'])"),
    ),
    "seeds": (
        "import random\nimport numpy as np\ndef f(n): return [random.random(), *np.random.rand(n)]",
        "def f(n): return [0] * n",
        unit(
            "for _ in range(2):",
            "    random.seed(3); np.random.seed(3)",
            "    first, second = f(2), f(2)",
            "    random.seed(3); np.random.seed(3)",
            "    self.assertEqual(first, [random.random(), *np.random.rand(2)])",
            "    self.assertEqual(second, [random.random(), *np.random.rand(2)])",
            before="import random\nimport numpy as np\n",
        ),
    ),
    "environment and folder": (
        "import os\ndef f(n): return os.environ.get(n), os.path.basename(os.getcwd())",
        "def f(n): return n, n",
        "import os\ndef test_set(monkeypatch, tmp_path):\n"
        "    monkeypatch.setenv('A', '1')\n    monkeypatch.chdir(tmp_path)\n"
        "    assert f('A') == ('1', tmp_path.name)\ndef test_left():\n    assert f('A') == (None, 'work')\n",
    ),
    "a jail that ended between": (
        "import os, time\ndef f(p):\n    if p == 'wait': time.sleep(60)\n    return open(p).read() + os.environ['A']",
        NOTHING,
        unit("os.environ['A'] = 'x'", "open('a', 'w').write('1')", "self.assertEqual(f('a'), '1x')")
        + "    def test_a(self):\n        os.environ['A'] = 'y'\n        open('b', 'w').write('2')\n"
        "        try: f('wait')\n        except BaseException: pass\n        self.assertEqual(f('b'), '2y')\n",
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_state_of_the_tests_is_there_for_the_answer(box: Sandbox, name: str) -> None:
    right, wrong, tests = ROWS[name]
    good, bad = verdict(box, right, tests), verdict(box, wrong, tests)
    assert isinstance(good, Score), good
    assert good.passed, good.detail
    assert "can_be_cheated" not in good.parts
    assert isinstance(bad, Score), bad
    assert bad.value == 0


def test_nothing_of_one_answer_is_there_for_the_next(box: Sandbox) -> None:
    tests = unit("self.assertFalse(os.path.exists('left') or f(1))", "open('left', 'w').close()", "f(2)")
    for _ in range(3):
        assert verdict(box, "import os\ndef f(x): return os.path.exists('left') and x == 1", tests).passed


FORGE = (
    "import gc\njudge = next(o for o in gc.get_objects() if type(o).__name__ == 'Answer')\n"
    "def f(p):\n    judge._files.changes = lambda: {}\n    return p"
)
CHEATS = {
    "a path that leads out": "{'folders': ['../evil'], 'files': [], 'gone': []}",
    "a file beside the folder": "{'folders': [], 'files': [['work/../../../wave', 420, 0, 'eD0x']], 'gone': []}",
    "a whole path": "{'folders': [], 'files': [['/dev/shm/wave', 420, 0, 'eD0x']], 'gone': []}",
    "a name that is none": "{'folders': [], 'files': [['work/\\ud800', 420, 0, 'eD0x']], 'gone': []}",
    "a time that is none": "{'folders': [], 'files': [['work/out', 420, 10**40, 'eD0x']], 'gone': []}",
    "a file in place of a folder": "{'folders': [], 'files': [['work', 420, 0, 'eD0x']], 'gone': []}",
    "no folders": "{'folders': [], 'files': [], 'gone': ['work', 'tmp']}",
    "a list": "[]",
    "nothing": "None",
    "many": "{'folders': [f'work/{i}' for i in range(50_000)], 'files': [], 'gone': []}",
    "deep": "{'folders': ['work' + '/a' * i for i in range(1000)], 'files': [], 'gone': []}",
}


@pytest.mark.parametrize("name", CHEATS)
def test_forged_changes_of_files_are_a_wrong_answer(box: Sandbox, name: str) -> None:
    tests = unit("f(1)", "f(1)", "with open('out') as file:", "    self.assertEqual(file.read(), 'no such')")
    found = verdict(box, FORGE.format(CHEATS[name]), tests)
    assert isinstance(found, Score), found
    assert found.value == 0


@pytest.mark.parametrize(
    "body",
    [
        "open('out', 'wb').truncate(5 << 20)",
        "os.mkfifo('out')",
        "os.symlink('/etc/passwd', 'out')",
        "os.symlink('/', 'out')",
        "[open(f'a{i}', 'w').close() for i in range(2500)]",
        "[(os.mkdir('a' * 50), os.chdir('a' * 50)) for _ in range(20)]",
        "shutil.rmtree(os.getcwd())",
        "os.chmod('.', 0)",
    ],
)
def test_what_is_no_plain_file_or_too_much_is_not_shared(box: Sandbox, body: str) -> None:
    tests = unit("f(1)", "self.assertTrue(os.path.lexists('out'))", "open('out')")
    found = verdict(box, f"import os, shutil\ndef f(x): {body}", tests)
    assert isinstance(found, Score), found
    assert found.value == 0


PLANTS = """
import os
code = "import unittest; unittest.TestCase.assertEqual = lambda *given: None"
def f(x):
    for folder in (".", os.environ["TMPDIR"]):
        for name in ("wave", "colorsys", "conftest", "tests_of_row"):
            open(f"{folder}/{name}.py", "w").write(code)
        open(f"{folder}/matplotlibrc", "w").write("backend: module://wave")
    return 1
"""


def test_no_file_of_the_answer_is_imported_or_read_as_settings(box: Sandbox) -> None:
    early = "import sys, tempfile\nsys.path[:0] = ['', os.getcwd(), tempfile.gettempdir()]\nf(1)\n"
    tests = unit("import wave", "assert os.path.exists('wave.py')", "self.assertEqual(f(1), 2)", before=early)
    assert verdict(box, PLANTS, tests).value == 0
    by_pytest = f"import os\n{early}def test_f(tmp_path):\n    assert f(1) == 2\n"
    assert verdict(box, PLANTS, by_pytest).value == 0
    assert verdict(box, PLANTS, unit("f(1)", "self.assertFalse(os.path.exists('matplotlibrc'))")).passed


def test_links_that_an_archive_of_the_answer_makes_lead_nowhere(box: Sandbox) -> None:
    answer = """
import gc, io, os, tarfile
def f(path):
    with tarfile.open(path, "w") as file:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, os.environ["HOME"]
        file.addfile(link)
    return path
def g():
    judge = next(o for o in gc.get_objects() if type(o).__name__ == "Answer")
    judge._files.changes = lambda: {"folders": [], "files": [["work/link/colorsys.py", 420, 0, "eD0x"]], "gone": []}
"""
    lines = (
        "with tarfile.open(f('a.tar')) as file:",
        "    file.extractall()",
        "try: g()",
        "except BaseException: pass",
    )
    last = "self.assertFalse(os.path.exists(os.environ['HOME'] + '/colorsys.py'))"
    tests = unit(*lines, last, before="import tarfile\n")
    assert verdict(box, answer, tests).passed


def test_what_is_expected_is_unseen_until_the_next_call(box: Sandbox) -> None:
    answer = "import os\ndef f(x): return [*os.listdir('.'), *os.listdir(os.environ['TMPDIR'])]"
    tests = unit("got = f(1)", "open('want', 'w').write('x')", "self.assertEqual(got, ['want'])")
    assert verdict(box, answer, tests).value == 0
    named = (
        "import pytest\n@pytest.mark.parametrize('n', [98765])\n"
        "def test_f(tmp_path, n):\n    assert '98765' not in str(f(1)) + str(tmp_path)"
    )
    look = "import os\ndef f(x): return [str(os.environ), os.getcwd(), *os.walk(os.environ['TMPDIR'])]"
    assert verdict(box, look, named).passed


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("import pickle\nassert pickle.loads(f(1)) == 2", "loads"),
        ("from pickle import load as read\nassert read(open(f(1))) == 2", "read"),
        ("import numpy as np\nassert np.load(f(1), allow_pickle=True) == 2", "allow_pickle"),
        ("import pandas as pd\nassert pd.read_pickle(f(1)) == 2", "read_pickle"),
        ("import yaml\nassert yaml.load(f(1)) == 2", "load"),
        ("import os\nassert os.system(f(1)) == 2", "system"),
        ("import importlib.util\nassert importlib.util.spec_from_file_location('a', f(1))", "spec_from_file_location"),
        ("import os\nos.symlink('/', 'a')\nassert f(1) == 2", "symlink"),
        ("def test_f(tmp_path):\n    (tmp_path / 'a').symlink_to('/')\n    assert f(1) == 2", "symlink_to"),
        ("import sys\nf('/a')\nassert '/a' in sys.path", "sys.path"),
        ("import sys\nsys.modules['a'] = 1\nassert f(1) == 2", "sys.modules"),
        ("import builtins\nbuiltins.input = lambda: 'x'\nassert f(1) == 2", "builtins.input"),
        ("import sys\nsys.argv = ['a', 'b']\nassert f(1) == 2", "sys.argv"),
        ("import os\nf('A')\nassert os.environ['A'] == 'x'", "environ"),
        ("import os\nf('A')\nassert os.getenv('A') == 'x'", "getenv"),
        ("import os\nf('a')\nassert os.path.islink('a')", "islink"),
        ("import warnings\nwith warnings.catch_warnings(record=True) as w:\n    assert f(1) and w", "catch_warnings"),
        ("import matplotlib.pyplot as plt\nf(1)\nassert plt.gcf().axes", "gcf"),
        ("from faker import Faker\nFaker.seed(1)\nassert f(1) == 2", "seed"),
        ("def test_f(monkeypatch):\n    monkeypatch.setattr('os.sep', '')\n    assert f(1) == 2", "monkeypatch"),
        ("with open('/tmp/a', 'w') as file: file.write('1')\nassert f(1) == 2", "/tmp/a"),
    ],
)
def test_what_could_run_code_of_the_answer_or_is_not_shared_is_refused(box: Sandbox, lines: str, words: str) -> None:
    found = verdict(box, NOTHING, lines)
    assert isinstance(found, Failed)
    assert f"the tests use {words!r}" in found.reason


def test_files_that_are_too_large_are_the_fault_of_the_tests_only_before_the_answer_gave_them_a_value(
    box: Sandbox,
) -> None:
    found = verdict(box, NOTHING, unit("open('a', 'w').write('a' * (3 << 20))", "self.assertEqual(f(1), 2)"))
    assert isinstance(found, Failed)
    assert "too large" in found.reason
    grows = "def f(x):\n    open('b', 'w').write('b' * (1 << 20))\n    return 1"
    found = verdict(box, grows, unit("f(1)", "open('a', 'w').write(open('b').read() * 3)", "self.assertEqual(f(1), 2)"))
    assert found.value == 0
    large = "def f(x): return 'a' * (3 << 20)"
    found = verdict(box, large, unit("open('a', 'w').write(f(1))", "self.assertEqual(f(1), 2)"))
    assert found.value == 0
    called = "def f(g): g('a' * (3 << 20))"
    found = verdict(box, called, unit("f(lambda text: open('a', 'w').write(text))", "self.assertEqual(1, 2)"))
    assert found.value == 0


def test_what_is_written_after_the_last_call_is_not_there_for_the_next_tests(box: Sandbox) -> None:
    tests = unit(
        "self.assertEqual(f(1), 1)",
        "above = os.path.dirname(os.path.dirname(os.getcwd()))",
        "left = [os.path.join(above, name, 'work', 'left') for name in os.listdir(above)]",
        "self.assertFalse(any(map(os.path.exists, left)))",
        "open('left', 'w').close()",
    )
    for _ in range(3):
        assert verdict(box, "def f(x): return x", tests).passed
