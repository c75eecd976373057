"""The sample data sets: every row's right answers pass its verifier, and its wrong ones do not."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from plugins import run_python

from roll_envs.errors import UnknownNameError
from roll_envs.verifiers import Score, Verifier, judge, make_verifier, samples, verifier_names
from roll_envs.verifiers.instructions import INSTRUCTIONS

GRADED = ("choice", "instructions", "math")


def passed(verifier: Verifier, answer: str, row: dict[str, Any]) -> bool:
    verdict = judge(verifier, answer, row["reference"], row)
    assert isinstance(verdict, Score), (row["id"], verdict)
    return verdict.passed


@pytest.mark.parametrize("name", [*GRADED, "code"])
def test_rows_are_whole(name: str) -> None:
    rows = samples.load(name)
    assert 30 <= len(rows) <= 60
    assert [row["id"] for row in rows] == [f"{name}-{number}" for number in range(1, len(rows) + 1)]
    assert len({row["prompt"] for row in rows}) == len(rows)
    assert all(row["right"] and row["wrong"] for row in rows)


@pytest.mark.parametrize("name", GRADED)
def test_right_answers_pass_and_wrong_ones_do_not(name: str) -> None:
    if name == "math" and importlib.util.find_spec("math_verify") is None:
        pytest.skip("needs the optional part 'verifiers'")
    verifier = make_verifier(name)
    for row in samples.load(name):
        for answer in row["right"]:
            assert passed(verifier, answer, row), (row["id"], answer)
        for answer in row["wrong"]:
            assert not passed(verifier, answer, row), (row["id"], answer)


def test_choices_name_their_options() -> None:
    for row in samples.load("choice"):
        assert len(row["options"]) == 4
        assert all(f"{letter}. {text}" in row["prompt"] for letter, text in zip("ABCD", row["options"], strict=True))


def test_instructions_of_every_kind() -> None:
    public = {name for row in samples.load("instructions") for name in row["reference"]["instruction_id_list"]}
    assert len(public) == 25
    assert public <= set(INSTRUCTIONS)


@pytest.mark.slow
def test_programs_pass_their_tests_in_a_sandbox() -> None:
    if "code" not in verifier_names():
        pytest.skip("there is no verifier 'code'")
    verifier = make_verifier("code")
    try:
        for row in samples.load("code"):
            assert passed(verifier, row["right"][0], row), row["id"]
            assert not passed(verifier, row["wrong"][0], row), row["id"]
    finally:
        getattr(verifier, "close", lambda: None)()


def test_programs_pass_their_tests() -> None:
    program = (
        "import json, pathlib\n"
        f"for line in pathlib.Path({str(samples.path('code'))!r}).read_text(encoding='utf-8').splitlines():\n"
        "    row = json.loads(line)\n"
        "    for answer, right in ((row['right'][0], True), (row['wrong'][0], False)):\n"
        "        space, fine = {}, 0\n"
        "        exec(answer.removeprefix('```python\\n').removesuffix('```'), space)\n"
        "        for test in row['reference']:\n"
        "            try: exec(test, space); fine += 1\n"
        "            except Exception: pass\n"
        "        if (fine == len(row['reference'])) is not right: print(row['id'], right)\n"
        "print('done')\n"
    )
    assert run_python(program).split() == ["done"]


@pytest.mark.parametrize(("name", "labels"), [("judge", {"right", "wrong"}), ("pairs", {"better", "worse", "tie"})])
def test_labelled_answers(name: str, labels: set[str]) -> None:
    rows = samples.load(name)
    assert {row["label"] for row in rows} == labels
    assert len(rows) >= 20
    assert all(row["reference"] and row["prompt"] for row in rows)
    assert len({(row["prompt"], row["answer"], row["reference"]) for row in rows}) == len(rows)


def test_an_unknown_name() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'math'"):
        samples.path("maths")
    assert all(samples.path(name).is_file() for name in samples.NAMES)
