"""Rows in the forms that data sets publish: the right answer passes, a mutant of it is 0."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path
from typing import Any

import pytest

from roll_envs.errors import ConfigError
from roll_envs.sandbox import Language, Limits, Program, Sandbox
from roll_envs.verifiers import Score, make_verifier
from sandboxes.local.host import installed_languages


def _benchmark() -> Any:
    path = Path(__file__).parents[2] / "benchmarks" / "code_rows.py"
    spec = importlib.util.spec_from_file_location("code_rows", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["code_rows"] = module  # its dataclasses look for it
    spec.loader.exec_module(module)
    return module


rows = _benchmark()


def judged(box: Sandbox, answer: str, reference: Any, **options: Any) -> float:
    found = make_verifier("code", sandbox=box, **{"time_s": 10.0, **options})(answer, reference)
    assert isinstance(found, Score), found
    assert "can_be_cheated" not in found.parts
    return found.value


@pytest.mark.parametrize("form", rows.FORMATS)
def test_a_right_answer_passes_and_a_mutant_does_not(box: Sandbox, form: str) -> None:
    number = list(rows.FORMATS).index(form)
    problem = next(itertools.islice(rows.problems(number + 1), number, None))
    write, reference = rows.FORMATS[form](problem)
    assert judged(box, write(problem.source), reference) == 1.0
    assert judged(box, write(next(rows.mutants(problem))), reference) == 0.0


TWICE: dict[Language, str] = {
    "cpp": "#include <bits/stdc++.h>\nint main() { int n; std::cin >> n; std::cout << n * 2; }",
    "javascript": "console.log(+require('fs').readFileSync(0) * 2)",
    "bash": "read n; echo $((n * 2))",
    "java": "import java.util.*;\nclass Main { public static void main(String[] a) {"
    " System.out.println(2 * new Scanner(System.in).nextInt()); } }",
    "go": 'package main\nimport "fmt"\nfunc main() { var n int; fmt.Scan(&n); fmt.Println(2 * n) }',
    "rust": "use std::io;\nfn main() { let mut s = String::new(); io::stdin().read_line(&mut s).unwrap();"
    ' println!("{}", 2 * s.trim().parse::<i64>().unwrap()); }',
    "typescript": "import { readFileSync } from 'fs';\nconst n: number = +readFileSync(0);\nconsole.log(n * 2);",
}


@pytest.mark.parametrize("language", TWICE)
def test_other_languages_are_judged_by_input_and_output(box: Sandbox, language: Language) -> None:
    if language not in installed_languages():
        pytest.skip(f"nothing here compiles or runs {language}")
    answer = f"```{language}\n{TWICE[language]}\n```"
    options = {"language": language, "compile_s": 60.0, "credit": "partial"}
    assert judged(box, answer, {"inputs": ["3", "4"], "outputs": ["6", "8"]}, **options) == 1.0
    assert judged(box, answer, {"inputs": ["3", "4"], "outputs": ["6", "7"]}, **options) == 0.5


def test_the_language_is_that_of_the_tests_unless_one_is_chosen(box: Sandbox) -> None:
    tests = {"language": "javascript", "test_cases": [{"type": "stdin_stdout", "input": "3", "output": "6"}]}
    row = {"prompt": "Double it.", "language": "en", "verification_info": repr(tests)}
    javascript, python = f"```javascript\n{TWICE['javascript']}\n```", "```python\nprint(2 * int(input()))\n```"
    assert judged(box, python, row, language="python") == 1.0
    # That of a whole row may be its solution's.
    assert judged(box, python, {"prompt": "Double it.", "solution": "6", **tests}) == 1.0
    assert judged(box, python, {**tests, "language": "natural"}) == 1.0
    if "javascript" in installed_languages():
        assert judged(box, javascript, row) == 1.0
        assert judged(box, javascript.replace("* 2", "* 3"), row) == 0.0
        assert judged(box, python, row) == 0.0
        row = {"prompt": "?", "language": "javascript", "official_tests": tests["test_cases"], "input_mode": "stdio"}
        assert judged(box, javascript, row) == 1.0


def test_a_program_is_compiled_once_and_its_compiler_has_a_limit(box: Sandbox) -> None:
    if "cpp" not in installed_languages():
        pytest.skip("no C++ compiler here")
    program = Program(source="#include <string>\nint main() { }", language="cpp")
    first, second = (box.run(program, limits=Limits(compile_s=60.0)).compile for _ in range(2))
    assert first is not None
    assert first == second  # with the time that it took
    tests = {"inputs": ["3"], "outputs": ["6"]}
    assert judged(box, f"{TWICE['cpp']} // slow", tests, language="cpp", compile_s=0.01) == 0.0
    with pytest.raises(ConfigError, match="compile_s"):
        make_verifier("code", compile_s=0)
