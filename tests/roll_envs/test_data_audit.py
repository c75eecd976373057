"""References are judged as answers before training; the files and rows that data sets come in."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll_envs.cli import main
from roll_envs.datasets.audit import audit, refuse_unreadable
from roll_envs.datasets.env import DatasetEnv, DatasetSettings
from roll_envs.datasets.tasks import given_rows, read_rows
from roll_envs.errors import ConfigError

ROWS: list[dict[str, Any]] = [
    {"question": "a", "answer": "48/2 = <<48/2=24>>24\n#### 72"},
    {"question": "b", "answer": "Thus the answer is $\\boxed{\\frac{1}{2}}$."},
    {"prompt": [{"role": "user", "content": "c"}], "reward_model": {"style": "rule", "ground_truth": "7"}},
    {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "The answer is 4."}]},
]
BAD = [
    "it depends on very many things which nobody of us could ever tell you",
    None,
    "",
    "\\frac{1}{0}",
]


def found_in(rows: Any, verifier: str = "math") -> list[int]:
    env = DatasetEnv(DatasetSettings(rows=rows, verifier=verifier))
    return [finding.row for finding in audit(env).findings]


@pytest.fixture(autouse=True)
def _math() -> None:
    pytest.importorskip("math_verify", reason="needs the optional part 'verifiers'")


def test_rows_of_common_data_sets_are_right_by_themselves() -> None:
    assert found_in(ROWS) == []
    env = DatasetEnv(DatasetSettings(rows=ROWS, verifier="math"))
    assert env.tasks[3].prompt == "2+2?"
    for row, answer in enumerate(("72", "1/2", "7", "4")):
        env.reset(options={"row": row})
        assert env.step(f"\\boxed{{{answer}}}")[1] == 1.0, row


NESTED: list[dict[str, Any]] = [
    {"prompt": '[{"role": "user", "content": "c"}]', "reward_model": '{"style": "rule", "ground_truth": "7"}'},
    {"messages": '[{"role": "user", "content": "c"}, {"role": "assistant", "content": "7"}]'},
    {"prompt": np.array([{"role": "user", "content": "c"}]), "answer": np.int64(7)},
    {"prompt": [{"role": "user", "content": [{"type": "text", "text": "c"}]}], "answer": np.array(["7"], dtype=object)},
    {"prompt": None, "question": "c", "answer": float("nan"), "solution": "\\boxed{7}"},
    {"question": "c", "solution": ["We count them one by one."], "final_answer": ["$7$"]},
    {"problem": "c", "generated_solution": "We count.", "expected_answer": "7"},
    {"prompt": "c", "reward_model": {"style": "rule", "ground_truth": '["7"]'}},
    {"problem": "c", "answer": [["7"], ["x=7"]]},
    {"problem": "c", "answer": "\\textbf{(B)}\\ 7"},
]


@pytest.mark.parametrize("row", NESTED)
def test_cells_of_tables_are_read(row: dict[str, Any]) -> None:
    env = DatasetEnv(DatasetSettings(rows=[row], verifier="math"))
    assert env.tasks[0].prompt == "c"
    assert found_in([row]) == []
    env.reset()
    assert env.step("\\boxed{7}")[1] == 1.0


def test_references_that_are_one_answer_in_a_box_only() -> None:
    answers = (
        "np.arcsin(10/13)",
        "$\\frac{\\pi}{6}$或$\\frac{5\\pi}{6}$",
        "$\\angle B=90$,$\\angle A=45$",
        "9 (apples)",
    )
    assert found_in([{"question": "a", "answer": answer} for answer in answers]) == []


def test_fields_that_are_not_found_are_refused_by_name() -> None:
    env = DatasetEnv(DatasetSettings(rows=[{"question": "a", "golden": "8"}], verifier="math"))
    assert "reference_field: the row has 'question', 'golden'" in audit(env).shown()
    with pytest.raises(ConfigError, match="its fields are 'ID', 'Problem'; name them in prompt"):
        DatasetEnv(DatasetSettings(rows=[{"ID": "1", "Problem": "a"}], verifier="math"))


def test_a_missing_reference_of_a_table_is_named() -> None:
    assert found_in([*ROWS, {"question": "e", "answer": float("nan")}]) == [4]


@pytest.mark.parametrize(("name", "text"), [("a.jsonl", '{"q": "a"}'), ("a.json", '[{"q": "a"}]'), ("a.csv", "q\na\n")])
def test_byte_order_marks_and_other_encodings(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8-sig")
    assert read_rows(path) == [{"q": "a"}]
    path.write_text(text.replace("a", "é"), encoding="latin-1")
    with pytest.raises(ConfigError, match=f"{name} cannot be read as UTF-8: "):
        read_rows(path)
    packed = tmp_path / f"{name}.gz"
    for content in (text.encode(), gzip.compress(text.encode())[:-12]):
        packed.write_bytes(content)
        with pytest.raises(ConfigError, match="packed by gzip"):
            read_rows(packed)


@pytest.mark.parametrize("bad", BAD)
def test_a_reference_that_cannot_be_graded_is_named(bad: Any) -> None:
    assert found_in([*ROWS, {"question": "e", "answer": bad}]) == [4]


def test_fields_by_their_names_in_braces() -> None:
    rows = [{"The Question": "2+2?", "0": {"value": "four"}, "answer": "4"}]
    env = DatasetEnv(DatasetSettings(rows=rows, verifier="math", prompt="{The Question} {0.value}: \\boxed{1}, {2 x}"))
    assert env.tasks[0].prompt == "2+2? four: \\boxed{1}, {2 x}"
    for prompt in ("answer", "{2 x}"):
        with pytest.raises(ConfigError, match="has no field in braces; row 0 has 'The Question', '0', 'answer'"):
            DatasetEnv(DatasetSettings(rows=rows, verifier="math", prompt=prompt))


def test_choices() -> None:
    rows = [{"question": "a", "answer": x} for x in ("B", "(c)", 2, [0, 1], "Z", 11)]
    assert found_in(rows, "choice") == [4, 5]


def test_verifiers_whose_references_are_no_answers_are_not_audited() -> None:
    env = DatasetEnv(
        DatasetSettings(rows=[{"question": "a", "answer": "x"}], verifier={"name": "regex", "pattern": "x"})
    )
    found = audit(env)
    assert (found.judged, found.skipped, found.share) == (0, 1, 1.0)


def test_a_run_does_not_start_below_99_of_100() -> None:
    good = [{"question": str(n), "answer": str(n)} for n in range(200)]
    refuse_unreadable("roll/Dataset-v0", {"rows": good, "verifier": "math"})
    refuse_unreadable("roll/FrozenLake-v0", {})
    good[7] = good[9] = {"question": "q", "answer": ""}
    refuse_unreadable("roll/Dataset-v0", {"rows": list(good), "verifier": "math"})
    good[11] = {"question": "q", "answer": ""}
    with pytest.raises(ConfigError, match=r"3 of 200 references(?s:.*)row 7: (?s:.*)row 11: "):
        refuse_unreadable("roll/Dataset-v0", {"rows": list(good), "verifier": "math"})
    wrapped = {"env": "roll/Dataset-v0", "env_kwargs": {"rows": list(good), "verifier": "math"}, "tools": ["python"]}
    with pytest.raises(ConfigError, match="3 of 200 references of roll/Dataset-v0"):
        refuse_unreadable("roll/ToolEnv-v0", wrapped)
    refuse_unreadable("roll/ToolEnv-v0", {"env": "roll/FrozenLake-v0", "tools": ["calculator"]})


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    assert main(["data", "check", str(path), "--verifier", "math"]) == 0
    assert "4 of 4 references" in capsys.readouterr().out
    path.write_text("\n".join(map(json.dumps, [*ROWS, {"question": "e", "answer": "\\frac{1}{0}"}])), encoding="utf-8")
    assert main(["data", "check", str(path), "--verifier", "math", "--json"]) == 1
    assert [f["row"] for f in json.loads(capsys.readouterr().out)["findings"]] == [4]
    assert main(["data", "check", str(path), "--verifier", "schema"]) == 2
    assert main(["data", "check", str(tmp_path / "rows.xlsx"), "--verifier", "math"]) == 2


def test_json_lines_under_the_name_of_json(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('{"q": {"a": 1}}\n{"q": 2}\n', encoding="utf-8")
    assert read_rows(path) == [{"q": {"a": 1}}, {"q": 2}]
    path.write_text('{\n  "q": {\n    "a": 1\n  }\n}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="must hold a list of rows, not a dict"):
        read_rows(path)


def test_the_name_of_a_data_set_of_the_hub_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'openai/gsm8k' cannot be read: No such file .* as datasets\.load_dataset"):
        read_rows("openai/gsm8k")


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('question,answer\n"1+1, say",2\nx,"#### 3"\n', encoding="utf-8")
    assert found_in(read_rows(path)) == []
    assert read_rows(path)[0] == {"question": "1+1, say", "answer": "2"}
    path.write_text(f"question,answer,trace\na,1,{'x' * 200_000}\n", encoding="utf-8")
    assert len(read_rows(path)[0]["trace"]) == 200_000
    path.write_text("question,answer\na\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"rows\.csv:2 has not the 2 columns"):
        read_rows(path)


@pytest.mark.parametrize("form", ["new_file", "new_stream"])
def test_arrow(tmp_path: Path, form: str) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the optional part 'data'")
    path = tmp_path / "rows.arrow"
    table = pyarrow.table({"question": ["a", "b"], "answer": ["1", "2"]})
    with getattr(pyarrow.ipc, form)(path, table.schema) as writer:
        writer.write_table(table)
    assert read_rows(path) == [{"question": "a", "answer": "1"}, {"question": "b", "answer": "2"}]
    path.write_bytes(b"no arrow")
    with pytest.raises(ConfigError, match="is no Arrow file"):
        read_rows(path)


class HubData:
    """As much of ``datasets.Dataset`` as is used: no Sequence, and its rows are made anew at each reading."""

    _fingerprint = "f3a1"

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[dict[str, str]]:
        return iter([{"question": str(n), "answer": str(n)} for n in range(3)])


def test_rows_of_a_data_set_of_the_hub_are_shared() -> None:
    assert given_rows(HubData()) is given_rows(HubData())  # type: ignore[arg-type]
    one, other = (DatasetEnv(DatasetSettings(rows=HubData(), verifier="math")) for _ in range(2))
    assert one.tasks is other.tasks
