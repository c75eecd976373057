"""Rows of code data sets in their published forms, with right and wrong answers, through the code verifier.

    python benchmarks/code_rows.py [--rows 200] [--formats apps ...] [--peers FOLDER] [--write FILE]

The problems are written here (twenty functions with parameters), so no row of a data set is copied; the forms are those
that the data sets publish. A wrong answer is a mutant of the right one (an operator, a comparison or a constant is
changed) that gives another result for at least one test. ``--peers``: a folder with the packages ``verl`` and
``livecodebench``, whose own scorers then judge the same rows, in the forms they read.
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import copy
import importlib
import io
import json
import pickle
import random
import sys
import time
import types
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Arguments = list[list[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A function ``solve``, the arguments of its tests, and what it returns for them."""

    source: str
    arguments: Arguments
    results: list[Any]


# K is a number that differs from row to row; no loop depends on a condition, so mutants end.
SOURCES = {
    "numbers": """
def solve(xs):
    return sum(x for x in xs if x % K == 1)
====
def solve(xs):
    best = xs[0]
    for x in xs[1:]:
        if x * K % 17 > best * K % 17:
            best = x
    return best
====
def solve(xs):
    seen, kept = set(), []
    for x in xs:
        if x % (K + 5) not in seen:
            seen.add(x % (K + 5))
            kept.append(x)
    return kept
====
def solve(xs):
    total, sums = K, []
    for x in xs:
        total = total + x
        sums.append(total)
    return sums
====
def solve(xs):
    ordered = sorted(xs)
    return [b - a + K for a, b in zip(ordered, ordered[1:])]
====
def solve(xs):
    k = K % len(xs)
    return xs[k:] + xs[:k]
====
def solve(xs):
    lengths = [1 for _ in xs]
    for i in range(len(xs)):
        for j in range(i):
            if xs[j] + K < xs[i] and lengths[j] + 1 > lengths[i]:
                lengths[i] = lengths[j] + 1
    return max(lengths)
====
def solve(xs):
    return (sum(xs) + K) / len(xs)
====
def solve(xs):
    for i in range(len(xs)):
        for j in range(i + 1, len(xs)):
            if (xs[i] + xs[j]) % (K + 2) == 0:
                return [i, j]
    return []
====
def solve(xs):
    even = [x + K for x in xs if x % 2 == 0]
    odd = [x - K for x in xs if x % 2 == 1]
    return [even, odd]
====
def solve(xs):
    return any(x > 40 + K for x in xs) and not all(x > K for x in xs)
""",
    "texts": """
def solve(text):
    moved = ""
    for c in text:
        moved += chr((ord(c) - 97 + K) % 26 + 97) if c.islower() else c
    return moved
====
def solve(text):
    return sum(1 for c in text if c in "aeiou") * K
====
def solve(text):
    return " ".join(word[::-1] if len(word) > K % 5 + 1 else word for word in text.split())
====
def solve(text):
    counts = {}
    for c in text.replace(" ", ""):
        counts[c] = counts.get(c, K) + 1
    return counts
====
def solve(text):
    coded = []
    for c in text:
        if coded and coded[-1][0] == c:
            coded[-1][1] += 1
        else:
            coded.append([c, K])
    return coded
====
def solve(text):
    return sorted(text.split(), key=lambda word: (len(word) * K % 7, word))
====
def solve(text):
    return text == text[::-1] or len(text) % K == 0
""",
    "pairs": """
def solve(a, b):
    for _ in range(60):
        a, b = (b, a % b) if b else (a, b)
    return a + K
====
def solve(a, b):
    return sum(n for n in range(min(a, b), max(a, b) + 1) if n % (K + 1) == 0)
====
def solve(a, b):
    digits = [int(d) for d in str(a * b + K)]
    return max(digits) - min(digits)
""",
}


def problems(count: int, seed: int = 0) -> Iterator[Problem]:
    chance = random.Random(seed)
    words = "noon river stats a level quiz banana apple kayak zoo".split()
    draw: dict[str, Callable[[], list[Any]]] = {
        "numbers": lambda: [[chance.randrange(-20, 60) for _ in range(chance.randrange(3, 9))]],
        "texts": lambda: [" ".join(chance.choices(words, k=chance.randrange(1, 5)))],
        "pairs": lambda: [chance.randrange(1, 90), chance.randrange(1, 90)],
    }
    sources = [(kind, text.strip() + "\n") for kind, texts in SOURCES.items() for text in texts.split("====")]
    for number in range(count):
        kind, text = sources[number % len(sources)]
        source = text.replace("K", str(1 + number // len(sources) + number % 3))
        arguments = [draw[kind]() for _ in range(6)]
        yield Problem(source=source, arguments=arguments, results=outcomes(source, arguments))


def outcomes(source: str, arguments: Arguments) -> list[Any]:
    """What ``solve`` returns for each; an exception by its name."""
    space: dict[str, Any] = {}
    exec(compile(source, "<problem>", "exec"), space)
    found = []
    for each in arguments:
        try:
            found.append(space["solve"](*copy.deepcopy(each)))
        except Exception as error:
            found.append(f"raises {type(error).__name__}")
    return found


def mutants(problem: Problem) -> Iterator[str]:
    """Sources that differ from the problem's in one place and in some result."""
    for place in range(len(list(_places(ast.parse(problem.source))))):
        tree = ast.parse(problem.source)
        list(_places(tree))[place]()
        source = ast.unparse(tree) + "\n"
        # As JSON, so that 1 and True differ; a result within the tolerance of floats would not.
        if json.dumps(outcomes(source, problem.arguments)) != json.dumps(problem.results):
            yield source


_SWAPPED: dict[type[ast.AST], type[Any]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Mod: ast.Add, ast.Div: ast.Mult, ast.Lt: ast.GtE,
    ast.Gt: ast.LtE, ast.Eq: ast.NotEq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def _places(tree: ast.AST) -> Iterator[Callable[[], None]]:
    def swap(node: Any, field: str, value: Any) -> Callable[[], None]:
        return lambda: setattr(node, field, value)

    for node in ast.walk(tree):
        for field in ("op", "ops"):
            old = getattr(node, field, None)
            old = old[0] if isinstance(old, list) else old
            if type(old) in _SWAPPED:
                new = _SWAPPED[type(old)]()
                yield swap(node, field, [new] if field == "ops" else new)
        if isinstance(node, ast.Constant) and type(node.value) is int:
            yield swap(node, "value", node.value + 1)


# -- the forms ---------------------------------------------------------------------------------------------------------

MAIN = "\nimport json, sys\nprint(json.dumps(solve(*map(json.loads, sys.stdin))))\n"
Row = tuple[Callable[[str], str], Any]
"""How the source of ``solve`` becomes an answer, and the reference."""


def _stdin(problem: Problem) -> tuple[list[str], list[str]]:
    inputs = ["\n".join(map(json.dumps, each)) + "\n" for each in problem.arguments]
    return inputs, [json.dumps(result) + "\n" for result in problem.results]


def _program(source: str) -> str:
    return f"Read the values, then compute.\n\n```python\n{source}{MAIN}```\nIt prints JSON."


def _function(source: str) -> str:
    return f"<think>A function.</think>```python\n{source}```"


def _method(source: str) -> str:
    body = source.replace("def solve(", "def solve(self, ").replace("\n", "\n    ")
    return f"```python\nclass Solution:\n    {body}\n```"


def _task(source: str) -> str:
    return _function(source.replace("def solve(", "def task_func("))


_WITH_FILES = """
import json
def task_func(given, said):
    with open(given) as file:
        arguments = json.load(file)
    with open(said, "w") as file:
        json.dump(solve(*arguments), file)
"""
_WITH_CHANCE = "\nimport random\ndef task_func(*given):\n    return solve(*given), random.random()\n"
_WITH_INPUT = """
import json, time
def task_func():
    time.sleep(60)
    return solve(*json.loads(input()))
"""


def _task_with(body: str) -> Callable[[str], str]:
    return lambda source: _function(source + body)


def _asserts(problem: Problem, name: str) -> list[str]:
    pairs = zip(problem.arguments, problem.results, strict=True)
    return [f"assert {name}({', '.join(map(repr, each))}) == {result!r}" for each, result in pairs]


def _check(lines: Sequence[str]) -> str:
    return "METADATA = {'author': 'x'}\n\n\ndef check(candidate):\n" + "".join(f"    {line}\n" for line in lines)


def _single(problem: Problem, kind: str, key: str) -> list[dict[str, str]]:
    return [{"input": i, "output": o, key: kind} for i, o in zip(*_stdin(problem), strict=True)]


_PLUS = """import numpy as np

def is_floats(x) -> bool:
    if isinstance(x, float):
        return True
    if isinstance(x, (list, tuple)):
        return all(isinstance(i, float) for i in x)
    if isinstance(x, np.ndarray):
        return x.dtype == np.float64 or x.dtype == np.float32
    return False

def assertion(out, exp, atol):
    exact_match = out == exp
    if atol == 0 and is_floats(exp):
        atol = 1e-6
    if not exact_match and atol != 0:
        assert np.allclose(out, exp, rtol=1e-07, atol=atol)
    else:
        assert exact_match

"""


def _plus(problem: Problem, call: str) -> str:
    return (
        f"inputs = {problem.arguments!r}\nresults = {problem.results!r}\n"
        f"for i, (inp, exp) in enumerate(zip(inputs, results)):\n    assertion({call}(*inp), exp, 0)\n"
    )


def _unittest(problem: Problem) -> str:
    pairs = zip(problem.arguments, problem.results, strict=True)
    lines = [f"self.assertEqual(task_func({', '.join(map(repr, each))}), {result!r})" for each, result in pairs]
    tests = "".join(f"    def test_case_{n}(self):\n        {line}\n" for n, line in enumerate(lines))
    return f"import unittest\n\nclass TestCases(unittest.TestCase):\n{tests}"


def _cases(problem: Problem, head: str, case: str) -> dict[str, str]:
    """``case``: the body of a test, with the arguments and the result as JSON."""
    pairs = zip(map(json.dumps, problem.arguments), map(json.dumps, problem.results), strict=True)
    bodies = [case.format(given, result).replace("\n", "\n        ") for given, result in pairs]
    tests = "".join(f"    def test_case_{n}(self):\n        {body}\n" for n, body in enumerate(bodies))
    return {"test": f"import json\nimport unittest\n{head}\nclass TestCases(unittest.TestCase):\n{tests}"}


_FILES = """folder = tempfile.mkdtemp()
with open(f"{{folder}}/in", "w") as file:
    file.write({0!r})
task_func(f"{{folder}}/in", f"{{folder}}/out")
with open(f"{{folder}}/out") as file:
    self.assertEqual(json.load(file), json.loads({1!r}))
shutil.rmtree(folder)"""
_SEEDS = """random.seed(1)
found = json.loads(json.dumps(task_func(*json.loads({0!r}))))
random.seed(1)
self.assertEqual(found, [json.loads({1!r}), random.random()])"""
_PATCHES = """with patch("builtins.input", return_value={0!r}) as asked, patch("time.sleep") as slept:
    self.assertEqual(json.loads(json.dumps(task_func())), json.loads({1!r}))
asked.assert_called_once_with()
slept.assert_called_once_with(60)"""


def _columns(problem: Problem) -> str:
    return json.dumps(dict(zip(("inputs", "outputs"), _stdin(problem), strict=True)))


def _wrapped(problem: Problem) -> Row:
    outputs = [[result] for result in problem.results]
    return _function, json.dumps({"fn_name": "solve", "inputs": problem.arguments, "outputs": outputs})


def _lcb_functional(problem: Problem) -> Row:
    inputs = ["\n".join(map(json.dumps, each)) for each in problem.arguments]
    pairs = zip(inputs, map(json.dumps, problem.results), strict=True)
    tests = [{"input": i, "output": o, "testtype": "functional"} for i, o in pairs]
    return _method, {"public_test_cases": json.dumps(tests), "metadata": json.dumps({"func_name": "solve"})}


def _lcb_private(problem: Problem) -> Row:
    tests = _single(problem, "stdin", "testtype")
    packed = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests[1:])))).decode()
    return _program, {"public_test_cases": json.dumps(tests[:1]), "private_test_cases": packed}


def _contests(problem: Problem) -> Row:
    inputs, outputs = _stdin(problem)
    parts = {"public_tests": slice(1), "private_tests": slice(1, 3), "generated_tests": slice(3, None)}
    return _program, {name: {"input": inputs[s], "output": outputs[s]} for name, s in parts.items()}


def _synthetic(problem: Problem) -> Row:
    return _program, {"language": "python", "test_cases": _single(problem, "stdin_stdout", "type")}


def _deepcoder_calls(problem: Problem) -> Row:
    pairs = zip(problem.arguments, problem.results, strict=True)
    return _function, [{"fn_name": "solve", "type": "function_call", "input": i, "output": [o]} for i, o in pairs]


def _kodcode(problem: Problem) -> Row:
    tests = "".join(f"def test_{n}():\n    {line}\n\n" for n, line in enumerate(_asserts(problem, "solve")))
    return _function, {"test": f"from solution import solve\n\n{tests}"}


def _leetcode(problem: Problem) -> Row:
    lines = _asserts(problem, "candidate")
    return _method, {"test": "def check(candidate):\n    " + "\n    ".join(lines), "entry_point": "Solution().solve"}


FORMATS: dict[str, Callable[[Problem], Row]] = {
    "APPS": lambda p: (_program, {"input_output": _columns(p)}),
    "TACO, functions": _wrapped,
    "LiveCodeBench, functions": _lcb_functional,
    "LiveCodeBench, public and private": _lcb_private,
    "CodeContests": _contests,
    "DeepCoder": lambda p: (_program, json.dumps(_single(p, "stdin_stdout", "type"))),
    "DeepCoder, calls": _deepcoder_calls,
    "PRIME, Eurus": lambda p: (_program, _columns(p)),
    "SYNTHETIC-1": _synthetic,
    "HumanEval": lambda p: (_function, {"test": _check(_asserts(p, "candidate")), "entry_point": "solve"}),
    "HumanEval+": lambda p: (
        _function,
        {"test": _PLUS + _check(_plus(p, "candidate").splitlines()), "entry_point": "solve"},
    ),
    "MBPP": lambda p: (_function, {"test_list": _asserts(p, "solve"), "test_setup_code": ""}),
    "MBPP+": lambda p: (_function, {"test": _PLUS + _plus(p, "solve")}),
    "KodCode": _kodcode,
    "BigCodeBench": lambda p: (_task, {"test": _unittest(p)}),
    "BigCodeBench, files": lambda p: (_task_with(_WITH_FILES), _cases(p, "import shutil\nimport tempfile", _FILES)),
    "BigCodeBench, seeds": lambda p: (_task_with(_WITH_CHANCE), _cases(p, "import random", _SEEDS)),
    "BigCodeBench, patches": lambda p: (
        _task_with(_WITH_INPUT),
        _cases(p, "from unittest.mock import patch", _PATCHES),
    ),
    "LeetCode": _leetcode,
}

# -- judges ------------------------------------------------------------------------------------------------------------

Judge = Callable[[str, Any], bool | None]
"""Answer and reference to a verdict; ``None``: there is none, or the judge does not read this form."""


def prime_code() -> Judge:
    """verl's ``prime_code``, from its own files; importing the package would import its trainer."""
    folder = next(
        Path(p) / "verl/utils/reward_score" for p in sys.path if (Path(p) / "verl/utils/reward_score").is_dir()
    )
    package = types.ModuleType("peer")
    package.__path__ = [str(folder)]
    sys.modules["peer"] = package
    compute = importlib.import_module("peer.prime_code").compute_score

    def judge(answer: str, reference: Any) -> bool | None:
        if isinstance(reference, dict):
            reference = reference.get("input_output")
        if not isinstance(reference, str) or "inputs" not in json.loads(reference):
            return None
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            # As verl calls it; with continuous=False a wrong answer raises UnboundLocalError in version 0.9.1.
            return float(compute(answer, reference, continuous=True)[0]) == 1.0

    return judge


def livecodebench() -> Judge:
    """LiveCodeBench's own scorer, which reads its own columns."""
    run = importlib.import_module("livecodebench.evaluation.compute_code_generation_metrics").check_correctness

    def judge(answer: str, reference: Any) -> bool | None:
        if not isinstance(reference, dict) or "public_test_cases" not in reference:
            return None
        tests = json.loads(reference["public_test_cases"])
        if "private_test_cases" in reference:
            tests += json.loads(pickle.loads(zlib.decompress(base64.b64decode(reference["private_test_cases"]))))
        sample = {"inputs": [t["input"] for t in tests], "outputs": [t["output"] for t in tests]}
        sample["fn_name"] = json.loads(reference["metadata"])["func_name"] if "metadata" in reference else None
        code = answer.split("```python\n")[1].split("```")[0]
        found = run({"input_output": json.dumps(sample)}, code, timeout=6, debug=False)[0]
        return all(result is True or result == 1 for result in found)

    return judge


def count(
    judge: Judge, form: Callable[[Problem], Row], chosen: Sequence[Problem], side_by_side: int
) -> tuple[Any, ...]:
    """Right answers and of them accepted, wrong ones and of them accepted, answers without a verdict, seconds."""
    answers = []
    for number, problem in enumerate(chosen):
        write, reference = form(problem)
        wrong = list(mutants(problem))
        answers.append((True, write(problem.source), reference))
        answers.append((False, write(wrong[number % len(wrong)]), reference))
    started = time.perf_counter()
    with ThreadPoolExecutor(side_by_side) as pool:
        verdicts = list(pool.map(lambda each: judge(each[1], each[2]), answers))
    took = time.perf_counter() - started
    pairs = [(right, verdict) for (right, _, _), verdict in zip(answers, verdicts, strict=True)]
    return (
        *(sum(1 for right, verdict in pairs if right is kind and verdict) for kind in (True, False)),
        sum(verdict is None for verdict in verdicts),
        took,
    )


def main() -> None:
    from roll_envs.sandbox import make_sandbox
    from roll_envs.verifiers import Score, make_verifier

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200, help="of each form")
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), choices=list(FORMATS))
    parser.add_argument("--peers", type=Path, help="folder with verl and livecodebench")
    parser.add_argument("--write", type=Path, help="write the table to this file")
    options = parser.parse_args()
    chosen = list(problems(options.rows))
    lines = ["| form | judge | right accepted | mutants accepted | no verdict | ms an answer |", "|" + " --- |" * 6]
    with make_sandbox("local", slots=2) as sandbox:
        verifier = make_verifier("code", sandbox=sandbox)

        def ours(answer: str, reference: Any) -> bool | None:
            verdict = verifier(answer, reference)
            if isinstance(verdict, Score):
                return verdict.passed
            print("no verdict:", verdict.reason)
            return None

        judges: dict[str, tuple[Judge, int]] = {"this package": (ours, 2)}
        if options.peers is not None:
            sys.path.append(str(options.peers))
            for name, make in (("verl prime_code", prime_code), ("LiveCodeBench", livecodebench)):
                try:
                    judges[name] = make(), 1
                except (ImportError, StopIteration) as error:
                    print(f"{name} is left out: {error!r}")
        for form in options.formats:
            for name, (judge, side_by_side) in judges.items():
                write, reference = FORMATS[form](chosen[0])
                if name != "this package" and judge(write(chosen[0].source), reference) is None:
                    continue
                right, wrong, none, took = count(judge, FORMATS[form], chosen, side_by_side)
                of = len(chosen)
                row = [form, name, f"{right} of {of}", f"{wrong} of {of}", none, f"{500 * took / of:.1f}"]
                lines.append(f"| {' | '.join(map(str, row))} |")
                print(lines[-1], flush=True)
    if options.write is not None:
        options.write.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
