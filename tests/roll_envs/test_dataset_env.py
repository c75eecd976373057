"""DatasetEnv: rows to tasks, splits, verifiers by row, attempts, and what a failed verdict becomes."""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll_envs import make
from roll_envs.datasets.tasks import read_rows, split_of
from roll_envs.errors import ConfigError, EnvironmentFaultError, MissingExtraError
from roll_envs.testing import RULES, check_env
from roll_envs.verifiers import Failed, Score, Verdict
from roll_envs.verifiers.registry import VERIFIERS

DatasetEnv: Any = functools.partial(make, "roll/Dataset-v0")
ROWS = [{"question": f"What is {n} + {n}?", "answer": 2 * n, "domain": "sum"} for n in range(10)]


def test_the_validator_passes() -> None:
    report = check_env("roll/Dataset-v0")
    assert report.ok, str(report)
    assert {r.rule for r in report.results if r.status == "skip"} <= {
        "gymnasium_checker",
        "oracle_midway",
        "seeds_differ",
    }


@pytest.mark.parametrize(
    "kwargs",
    [
        {"max_attempts": 3, "action_format": "answer", "format_penalty": -0.1},
        {"rows": ROWS, "verifier": "exact", "action_format": "think-answer", "split": "all"},
    ],
)
def test_the_validator_passes_with_other_arguments(kwargs: dict[str, Any]) -> None:
    rules = [rule for rule in RULES if rule not in ("processes", "memory")]
    report = check_env("roll/Dataset-v0", kwargs=kwargs, rules=rules)
    assert report.ok, str(report)


@pytest.mark.parametrize(
    "row",
    [
        {"question": "?", "starter_code": "", "input_output": '{"inputs": ["3\\n"], "outputs": ["6\\n"]}'},
        {"question": "?", "solution": "0", "test": "import solution\ndef test():\n    assert 6 == solution.f(3)"},
        {
            "question": "?",
            "solution": "def f(x):\n    assert x\n    return 2 * x",
            "test": "from solution import f\ndef test(): assert 6 == f(3)",
        },
        {
            "question": "?",
            "answer": "```python\ndef f(x): return 2 * x\nassert f(3) == 6\n```",
            "test_list": ["assert f(3) == 6"],
        },
        {
            "question": "?",
            "tests": '[{"input": "3", "output": "6", "testtype": "functional"}]',
            "metadata": {"func_name": "f"},
        },
        {
            "question": "?",
            "answer": "n = int(input())\nassert n\ndef check(x):\n    return 6\nprint(check(n))",
            "info": '{"tests": {"inputs": ["3"], "outputs": ["6"], "fn_name": null}}',
        },
        {"question": "?", "ground_truth": '["6"]', "test_cases": '[{"stdin": "3", "expected_stdout": "6"}]'},
        {"question": "?", "task_id": 2, "code": "def f(x): return 2 * x", "test_list": ["assert f(3) == 6"]},
        {
            "question": "?",
            "solution": "import sys\n\ndef check(x):\n    return 2 * x\nprint(check(int(input())))",
            "input_output": '{"inputs": ["3"], "outputs": ["6"]}',
        },
        # Columns that in other rows hold tests, or code for them.
        {"question": "?", "testcases": 1, "unit_test": "It raises.", "inputs": ["3"], "outputs": ["6"]},
        {"question": "?", "test": "It raises nothing.", "inputs": ["3"], "outputs": ["6"]},
        {"question": "?", "test": 1, "testcase": '{"a": 1}', "input_output": {"inputs": ["3"], "outputs": ["6"]}},
        {"question": "?", "setup": "A man walks in.", "import_prefix": 1, "test_list": ["assert f(3) == 6"]},
        {
            "prompt": "def helper(): return 6\n\ndef f(x):\n",
            "canonical_solution": "    return helper()",
            "test": "def check(candidate):\n    assert candidate(3) == helper()",
            "entry_point": "f",
        },
    ],
)  # fmt: skip
def test_rows_of_code_are_read_without_a_reference_field(row: dict[str, Any]) -> None:
    env = DatasetEnv(
        rows=[row], verifier="code", prompt="Do this: {question}" if "question" in row else "Go on: {prompt}"
    )
    for x, reward in ((2, 1.0), (3, 0.0)):
        env.reset(seed=0)
        answer = (
            f"```python\ndef f(x):\n    return {x} * x\nif __name__ == '__main__':\n    print(f(int(input())))\n```"
        )
        assert env.step(answer)[1] == reward
    env.close()


def test_tests_that_the_user_names_are_those_that_count() -> None:
    row = {"question": "?", "answer": ["assert f(1) == 2"], "test": ["assert f(0) == 0"], "row": 7}
    env = DatasetEnv(rows=[row], verifier="code", reference_field="answer")
    env.reset(seed=0)
    assert env.step("```python\ndef f(x): return 0\n```")[1] == 0
    env.close()
    for named, more in (("test", {"entry_point": "f"}), ("test_list", {"test_setup_code": "two = f(1)"})):
        checks = {"test": "def check(candidate):\n    assert candidate(1) == 2", "test_list": ["assert two == 2"]}[
            named
        ]
        env = DatasetEnv(
            rows=[{"prompt": "def f(x):\n", named: checks, **more}], verifier="code", reference_field=named
        )
        env.reset(seed=0)
        assert env.step("    return x + 1")[1] == 1
        env.close()
    broken = {"question": "?", "tests": {"inputs": [1, 2], "outputs": [1]}, "test_list": ["assert True"]}
    env = DatasetEnv(rows=[broken], verifier="code", reference_field="tests")
    env.reset(seed=0)
    with pytest.raises(EnvironmentFaultError, match="must be lists of the same length"):
        env.step("```python\ndef f(x): return 0\n```")
    env.close()
    env = DatasetEnv(rows=[{"question": "?", "input_file": "a.in", "test_list": ["assert 1"]}], verifier="code")
    env.reset(seed=0)
    with pytest.raises(EnvironmentFaultError, match="only stdin and stdout are judged"):
        env.step("1")
    env.close()


@pytest.mark.parametrize(
    "beside",
    [
        {"test_list": ["assert f(0) == 0"]},
        {"functional": 1, "test_imports": 2, "setup_code": ["x"], "entry_point": 3},
        {"prefix": "A conversation between two.", "setup": "A man walks in.", "info": "asserts"},
    ],
)
def test_columns_beside_tests_that_the_user_names_may_hold_anything(beside: dict[str, Any]) -> None:
    checks = "import math\nfrom solution import f\n\ndef test_f():\n    assert f(1) == 2"
    env = DatasetEnv(
        rows=[{"question": "?", "ground_truth": checks, **beside}], verifier="code", reference_field="ground_truth"
    )
    for value in (2, 0):
        env.reset(seed=0)
        assert env.step(f"```python\ndef f(x): return {value}\n```")[1] == value / 2
    env.close()


def test_gymnasium_makes_it() -> None:
    env = gymnasium.make("roll/Dataset-v0")
    observation, info = env.reset(seed=0)
    assert observation == "What is 11 + 7?"
    assert info == {"success": False, "row": 0, "split": info["split"]}
    _, reward, terminated, truncated, info = env.step("18")
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    env.close()


def test_a_seed_is_a_row_of_the_split_counted_round() -> None:
    rows = [{"question": str(n), "answer": n, "part": ("train", "val", "Test")[n % 3]} for n in range(9)]
    env = DatasetEnv(rows=rows, verifier="exact", split_field="part")

    def shown(seed: int, **options: Any) -> str:
        return env.reset(seed=seed, options=options)[0]

    assert [shown(s) for s in (0, 8, 9)] == ["0", "8", "0"]
    assert [shown(s, split="train") for s in (0, 1, 2, 3)] == ["0", "3", "6", "0"]
    assert [shown(s, split="validation") for s in (0, 4)] == ["1", "4"]
    assert [shown(s, split="test") for s in (0, 1)] == ["2", "5"]
    assert shown(3, row=7) == "7"
    for options in ({"split": "tset"}, {"splt": "test"}, {"row": 9}, {"row": True}):
        with pytest.raises(ConfigError):
            env.reset(seed=0, options=options)


def test_an_empty_split_is_told() -> None:
    env = DatasetEnv(rows=[{"question": "a", "answer": "b"}], verifier="exact", split_shares=(1, 0, 0), split="test")
    with pytest.raises(ConfigError, match=r"no row is of the split 'test'; 1 rows: 1 train, 0 validation, 0 test"):
        env.reset(seed=0)


def test_splits_by_hash_are_by_prompt_and_stay_when_rows_are_added() -> None:
    shares = (0.5, 0.25, 0.25)
    few = DatasetEnv(rows=ROWS, verifier="exact", split_shares=shares).tasks
    many = DatasetEnv(rows=[*reversed(ROWS), *ROWS], verifier="exact", split_shares=shares).tasks
    of = {task.prompt: task.split for task in few}
    assert {task.prompt: task.split for task in many} == of
    assert {split_of(f"row {n}", shares) for n in range(50)} == {"train", "validation", "test"}
    other = DatasetEnv(rows=ROWS, verifier="exact", split_shares=shares, split_salt="2").tasks
    assert {task.prompt: task.split for task in other} != of


def test_rows_of_one_id_are_in_one_split() -> None:
    rows = [{"question": str(n), "answer": n, "of": {"text": n // 4}} for n in range(80)]
    env = DatasetEnv(rows=rows, verifier="exact", split_shares=(0.5, 0.25, 0.25), id_field="of.text")
    splits = [{task.split for task in env.tasks[n : n + 4]} for n in range(0, 80, 4)]
    assert {len(split) for split in splits} == {1}
    assert set.union(*splits) == {"train", "validation", "test"}


def test_every_row_is_in_one_split_and_in_all() -> None:
    env = DatasetEnv(rows=ROWS, verifier="exact", split_shares=(0.5, 0.25, 0.25))
    played: dict[str, set[int]] = {}
    for split in ("train", "validation", "test", "all"):
        with contextlib.suppress(ConfigError):  # so few rows may leave one empty
            played[split] = {env.reset(seed=seed, options={"split": split})[1]["row"] for seed in range(20)}
    rows = played.pop("all")
    assert sorted(row for split in played.values() for row in split) == sorted(rows) == list(range(10))


@given(st.text(max_size=20))
def test_shares_of_one_take_everything(key: str) -> None:
    assert split_of(key, (1.0, 0.0, 0.0)) == "train"
    assert split_of(key, (0.0, 1.0, 0.0)) == "validation"
    assert split_of(key, (0.0, 0.0, 1.0)) == "test"


# -- rows --------------------------------------------------------------------------------------------------------------


def test_files(tmp_path: Path) -> None:
    lines = "\n".join(map(json.dumps, ROWS)) + "\n\n"
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write(lines)
    for name in ("a.jsonl", "a.json", "a.jsonl.gz"):
        env = DatasetEnv(path=tmp_path / name, verifier="exact")
        assert env.reset(seed=3)[0] == "What is 3 + 3?"
        assert env.step("6")[4]["success"]
    both = DatasetEnv(path=[tmp_path / "a.jsonl", tmp_path / "a.json"], verifier="exact")
    assert len(both.tasks) == 20


def test_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the optional part 'data'")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    env = DatasetEnv(path=tmp_path / "a.parquet", verifier="exact")
    assert env.reset(seed=3)[0] == "What is 3 + 3?"
    (tmp_path / "bad.parquet").write_text("no parquet")
    with pytest.raises(ConfigError, match="no Parquet file"):
        DatasetEnv(path=tmp_path / "bad.parquet", verifier="exact")


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"roll-envs\[data\]"):
        DatasetEnv(path=tmp_path / "b.parquet", verifier="exact")


def test_a_file_is_read_once_and_anew_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(ROWS[0]))
    assert read_rows(path) is read_rows(path)
    assert DatasetEnv(path=path, verifier="exact").tasks is DatasetEnv(path=path, verifier="exact").tasks
    path.write_text(json.dumps(ROWS[1]))
    os.utime(path, (1, 1))
    assert DatasetEnv(path=path, verifier="exact").reset(seed=0)[0] == "What is 1 + 1?"
    path.write_text(json.dumps(ROWS[0]) + "\n" + json.dumps(ROWS[1]))
    assert len(DatasetEnv(path=path, verifier="exact").tasks) == 2


def test_templates_and_nested_fields() -> None:
    rows = [{"q": {"text": "2 + 2"}, "unit": "cm", "reward_model": {"ground_truth": "4"}}]
    env = DatasetEnv(rows=rows, verifier="exact", prompt="Compute {q.text} in {unit}, as \\frac{1}{2}.")
    assert env.reset(seed=0)[0] == "Compute 2 + 2 in cm, as \\frac{1}{2}."
    assert env.task.reference == "4"
    chat = [{"prompt": [{"role": "user", "content": "Hello"}, {"role": "user", "content": "2 + 2?"}], "answer": "4"}]
    assert DatasetEnv(rows=chat, verifier="exact").reset(seed=0)[0] == "Hello\n\n2 + 2?"


def test_a_conversation_says_whose_words_they_are() -> None:
    asked = {"role": "user", "content": [{"type": "text", "text": "2 + 2?"}]}
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    rows = [{"prompt": [*chat, {"role": "assistant", "content": "Hello"}, asked], "answer": "4"}]
    told = "system: Be brief.\n\nuser: Hi\n\nassistant: Hello\n\nuser: 2 + 2?"
    assert DatasetEnv(rows=rows, verifier="exact").reset(seed=0)[0] == told
    ended = [{"messages": [*chat, {"role": "assistant", "content": "Hello"}]}]
    assert DatasetEnv(rows=ended, verifier="exact").reset(seed=0)[0] == "Be brief.\n\nHi"


def test_rows_that_are_added_to_a_list_are_seen() -> None:
    rows = list(ROWS)
    first = DatasetEnv(rows=rows, verifier="exact").tasks
    assert DatasetEnv(rows=rows, verifier="exact").tasks is first
    rows.append(ROWS[0])
    assert len(DatasetEnv(rows=rows, verifier="exact").tasks) == 11
    assert DatasetEnv(rows=rows, verifier="exact", split_salt="2").tasks is not first
    by_name = {"a": ROWS[0]}
    view = by_name.values()  # which is no sequence, and is read once
    assert len(DatasetEnv(rows=view, verifier="exact").tasks) == 1
    by_name["b"] = ROWS[1]
    assert len(DatasetEnv(rows=view, verifier="exact").tasks) == 2


def test_the_render_mode_is_kept() -> None:
    assert DatasetEnv(render_mode="ansi").render_mode == "ansi"


def test_a_generator_of_rows() -> None:
    env = DatasetEnv(rows=iter(ROWS), verifier="exact")
    assert env.reset(seed=9)[0] == "What is 9 + 9?"


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"rows": []}, "empty"),
        ({"rows": "abc"}, "list of mappings"),
        ({"rows": [5]}, "row 0"),
        ({"rows": [{"x": 1}]}, "prompt='{x}'"),
        ({"rows": ROWS, "prompt": "{qestion}"}, "'qestion'"),
        ({"rows": [{"question": " ", "answer": 1}]}, "empty"),
        ({"rows": ROWS, "reference_field": "gold"}, "'gold'"),
        ({"rows": ROWS, "verifier": None}, "no verifier for row 0"),
        ({"rows": ROWS, "verifier": None, "verifiers": {"math": "exact"}}, "domain 'sum'"),
        ({"rows": ROWS, "verifier": None, "verifier_field": "judge"}, "field 'judge'"),
        ({"rows": ROWS, "path": "x.jsonl"}, "not both"),
        ({"rows": ROWS, "split": "tran"}, "'tran'"),
        ({"rows": ROWS, "split_field": "domain"}, "split 'sum'"),
        ({"rows": ROWS, "split_shares": (0.5, 0.6, 0.1)}, "add up to 1"),
        ({"rows": ROWS, "max_attempts": 0}, "max_attempts"),
        ({"rows": ROWS, "format_penalty": 1}, "format_penalty should be less than or equal to 0, not 1"),
        ({"path": "no/such/file.jsonl"}, "No such file"),
        ({"path": __file__}, "no known kind"),
        ({"path": []}, "no file"),
    ],
)
def test_wrong_arguments_are_told(kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        DatasetEnv(**{"verifier": "exact", **kwargs})


def test_broken_files_are_told_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"question": "a", "answer": 1}\n{"question": \n')
    with pytest.raises(ConfigError, match=r"a\.jsonl:2 is no JSON"):
        DatasetEnv(path=tmp_path / "a.jsonl", verifier="exact")
    (tmp_path / "b.jsonl").write_text("[1]\n")
    with pytest.raises(ConfigError, match=r"b\.jsonl:1 must be a mapping"):
        DatasetEnv(path=tmp_path / "b.jsonl", verifier="exact")
    (tmp_path / "c.json").write_text('{"a": 1}')
    with pytest.raises(ConfigError, match="must hold a list"):
        DatasetEnv(path=tmp_path / "c.json", verifier="exact")


# -- verdicts ----------------------------------------------------------------------------------------------------------


class Fixed:
    """Gives the verdicts it was made with, one after the other; notes what it was asked and its closing."""

    def __init__(self, *verdicts: Verdict) -> None:
        self.verdicts, self.asked, self.closed = list(verdicts), [], 0

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        self.asked.append((answer, reference, dict(context or {})))
        return self.verdicts.pop(0)

    def close(self) -> None:
        self.closed += 1


WRONG = Score(value=0.25, passed=False, detail="nearly", parts={"tests": 0.5})
RIGHT = Score(value=0.75, passed=True, parts={"tests": 1.0})


def test_one_attempt() -> None:
    verifier = Fixed(WRONG)
    env = DatasetEnv(rows=ROWS, verifier=verifier, action_format="answer")
    env.reset(seed=2)
    observation, reward, terminated, truncated, info = env.step("so <answer> 5 </answer>")
    assert (observation, reward, terminated, truncated) == ("What is 2 + 2?", 0.25, True, False)
    assert info["reward_parts"] == {"score": 0.25, "format": 0.0}
    assert (info["score_parts"], info["score_detail"], info["success"]) == ({"tests": 0.5}, "nearly", False)
    assert verifier.asked == [("5", 4, {"row": ROWS[2], **ROWS[2], "prompt": "What is 2 + 2?"})]
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("5")


def test_several_attempts_are_paid_for_the_last() -> None:
    env = DatasetEnv(
        rows=ROWS, verifier=Fixed(WRONG, RIGHT), max_attempts=3, format_penalty=-0.5, action_format="answer"
    )
    env.reset(seed=2)
    observation, reward, terminated, _, info = env.step("<answer>5</answer>")
    assert (observation, reward, terminated) == ("That is not right. Try again.\n\nWhat is 2 + 2?", 0.0, False)
    assert info["reward_parts"] == {"score": 0.0, "format": 0.0}
    observation, reward, terminated, _, info = env.step("5")
    assert (observation, reward, terminated) == ("The answer could not be read.\n\nWhat is 2 + 2?", -0.5, False)
    assert (info["action_is_valid"], info["format_penalty"]) == (False, -0.5)
    _, reward, terminated, truncated, info = env.step("<answer>4</answer>")
    assert (reward, terminated, truncated, info["success"]) == (0.75, True, False, True)


def test_feedback_may_show_why() -> None:
    env = DatasetEnv(rows=ROWS, verifier=Fixed(WRONG), max_attempts=2, feedback="No.", show_detail=True)
    env.reset(seed=2)
    assert env.step("5")[0] == "No.\nnearly\n\nWhat is 2 + 2?"


def test_a_failed_verdict_is_never_a_reward_and_the_answer_may_be_given_again() -> None:
    env = DatasetEnv(rows=ROWS, verifier=Fixed(Failed(reason="worker is dead"), RIGHT))
    env.reset(seed=2)
    with pytest.raises(EnvironmentFaultError, match="row 2 could not be judged: worker is dead"):
        env.step("4")
    assert env.step("4")[1] == 0.75


def test_a_verifier_that_raises_is_a_fault_too() -> None:
    env = DatasetEnv(rows=ROWS, verifier=Fixed())
    env.reset(seed=0)
    with pytest.raises(EnvironmentFaultError, match="IndexError"):
        env.step("0")


def test_verifiers_by_domain_and_by_row() -> None:
    rows: list[dict[str, Any]] = [
        {"question": "a", "answer": "Yes", "domain": "word"},
        {"question": "b", "answer": "B", "domain": "choice"},
        {"question": "c", "answer": "x", "domain": "else", "judge": {"name": "regex", "pattern": "^c+$"}},
        {"question": "d", "answer": "d", "domain": "else", "judge": None},
        {"question": "e", "answer": "e", "domain": "else", "judge": "exactly"},
    ]
    env = DatasetEnv(
        rows=rows,
        verifier="exact",
        verifiers={"word": "normalized", "choice": {"name": "choice"}},
        verifier_field="judge",
    )

    def success(row: int, answer: str) -> bool:
        env.reset(options={"row": row})
        return bool(env.step(answer)[4]["success"])

    assert success(0, "yes.")
    assert success(1, "The answer is (B)")
    assert success(2, "ccc")
    assert not success(3, "D")
    with pytest.raises(EnvironmentFaultError, match="no verifier 'exactly'; did you mean 'exact'"):
        success(4, "e")


def test_the_oracle_is_the_reference_where_that_is_an_answer() -> None:
    env = DatasetEnv(rows=ROWS, verifier="exact", action_format="answer")
    env.reset(seed=3)
    assert env.oracle() == ["<answer>6</answer>"]
    rows = [
        {"question": "a", "answer": {"tests": 1}, "good": "yes"},
        {"question": "b", "answer": ["x", "y"], "good": 5},
    ]
    env = DatasetEnv(rows=rows, verifier="f1")
    env.reset(seed=0)
    assert env.oracle() is None
    env.reset(seed=1)
    assert env.oracle() == ["x"]
    env = DatasetEnv(rows=rows[1:], verifier="exact", oracle_field="good")
    env.reset(seed=0)
    assert env.oracle() is None  # 5 is no answer that passes


def test_closing_closes_what_was_made_here_and_no_other() -> None:
    mine = Fixed()
    env = make("roll/Dataset-v0", rows=ROWS, verifier=mine)
    env.close()
    assert mine.closed == 0
    made: list[Fixed] = []
    VERIFIERS.register("noted", lambda: made.append(Fixed(RIGHT)) or made[-1])
    try:
        env = DatasetEnv(rows=ROWS, verifier="noted", verifiers={"sum": {"name": "noted"}})
        env.reset(seed=0)
        env.step("0")
        assert [each.closed for each in made] == [0, 0]
        env.close()
        assert [each.closed for each in made] == [1, 1]
    finally:
        VERIFIERS.unregister("noted")


def test_a_copy_goes_on_alike() -> None:
    env = DatasetEnv(rows=ROWS, verifier="exact", max_attempts=2)
    env.reset(seed=4)
    env.step("7")
    copy = pickle.loads(pickle.dumps(env))
    assert copy.step("8")[:2] == env.step("8")[:2]


def test_a_wrong_snapshot_is_told() -> None:
    env = DatasetEnv(rows=ROWS, verifier="exact")
    for snapshot in ({}, {"row": 10, "shown": ""}, {"row": 1}, {"row": 1, "turns": -1, "shown": ""}):
        with pytest.raises(ConfigError, match="a snapshot for this environment"):
            env.restore(snapshot)


def test_an_iterable_is_read_once_for_all_environments() -> None:
    reads = []

    class Stream:
        def __iter__(self) -> Any:
            reads.append(1)
            return iter([{"question": "a", "answer": "b"}])

    stream = Stream()
    one, other = (DatasetEnv(rows=stream, verifier="exact") for _ in range(2))
    assert one.tasks is other.tasks
    assert reads == [1]
