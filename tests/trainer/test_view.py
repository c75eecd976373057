"""What the page of a run is told: rows of all episodes, groups in full, tokens as sampler and learner saw them."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from episode_builders import TASK, group, trajectory, turn
from loop_runs import run

from roll_envs.cli import main
from roll_envs.errors import ConfigError, RollError
from roll_envs.types import Group, Outcome
from trainer.data.table import sequences_of
from trainer.rollout.stream import RecordReader, RecordWriter, StepRecord
from trainer.run.folder import RunFolder, read_learnt
from trainer.view.episodes import COLUMNS, Episodes, as_json, decoder
from trainer.view.server import Viewer, export, make_server, page


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, _ = run(tmp_path_factory.mktemp("view"), steps=3)
    return folder


def named(row: list[Any]) -> dict[str, Any]:
    return dict(zip(COLUMNS, row, strict=True))


def all_rows(episodes: Episodes) -> list[dict[str, Any]]:
    return [named(row) for row in episodes.rows(0, 0, seconds=60)["rows"]]


def record(step: int, *groups: Group, phase: str = "train", **others: Any) -> StepRecord:
    return StepRecord(phase=phase, step=step, version=step, groups=groups, kept=groups, **others)


def write(path: Path, *records: StepRecord) -> RecordWriter:
    writer = RecordWriter(path)
    for each in records:
        writer.write(each)
    return writer


def test_every_recorded_episode_is_a_row(tiny: Path) -> None:
    rows = all_rows(Episodes(tiny))
    reader = RecordReader(tiny / "episodes" / "stream.jsonl.gz")
    records = [reader.read(member) for member in reader.members]
    found = [(r["phase"], r["step"], r["seed"], r["attempt"], r["return"], r["success"], r["turns"]) for r in rows]
    expected = [
        (each.phase, each.step, e.task.seed, e.member, e.total_reward, e.success, len(e.turns))
        for each in records
        for e in each.episodes
    ]
    assert found == expected
    assert {row["role"] for row in rows if row["phase"] == "train"} == {"trained"}


def test_a_group_is_told_in_full_with_what_was_learnt_of_its_tokens(tiny: Path) -> None:
    episodes = Episodes(tiny)
    member = next(i for i, m in enumerate(RecordReader(episodes.stream).members) if (m.phase, m.step) == ("train", 2))
    trained = RecordReader(episodes.stream).find("train", 2)
    learnt = read_learnt(tiny, 2)
    assert set(learnt) == {"advantage", "policy_logp"}
    decode = decoder(tiny)
    assert decode is not None
    advantages, sampled, own = [], [], []
    for number, expected in enumerate(trained.kept):
        found = episodes.group(member, number, decode)["episodes"]
        assert [e["member"] for e in found] == [e.member for e in expected.trajectories]
        for told, episode in zip(found, expected.trajectories, strict=True):
            for shown, played in zip(told["turns"], episode.turns, strict=True):
                assert tuple(t["id"] for t in shown["tokens"]) == played.completion.ids
                assert tuple(t["logprob"] for t in shown["tokens"]) == played.completion.logprobs
                assert [t["text"] for t in shown["tokens"]] == [decode([i]) for i in played.completion.ids]
                assert shown["prompt"] == decode(played.prompt_ids)
                advantages += [t["advantage"] for t in shown["tokens"]]
                own += [t["policy_logp"] for t in shown["tokens"]]
                sampled += [t["logprob"] for t in shown["tokens"]]
    # In the order of the step's table, which is that of its sequences.
    assert sum(sum(s.mask) for s in sequences_of(trained.kept)) == len(advantages) == len(learnt["advantage"])
    assert advantages == learnt["advantage"].tolist()
    assert any(a != 0 for a in advantages)
    run_again = [(a, b) for a, b in zip(own, sampled, strict=True) if a != "nan"]
    assert len(run_again) > len(own) / 2
    assert all(abs(a - b) < 1e-3 for a, b in run_again), "the learner's own log-prob of each token beside the sampler's"


def test_an_evaluation_has_tokens_of_the_sampler_alone(tiny: Path) -> None:
    shown = Episodes(tiny).group(0, 0, None)["episodes"][0]["turns"][0]
    assert set(shown["tokens"][0]) == {"id", "text", "logprob", "version"}
    assert (shown["prompt"], shown["tokens"][0]["text"]) == (None, None)


def test_observations_are_drawn_by_their_environment(tiny: Path) -> None:
    episode = Episodes(tiny).group(0, 0, None)["episodes"][0]
    drawn = [(each["drawing"], each["prompt_observation"]) for each in episode["turns"]]
    for shown, text in [*drawn, (episode["drawing"], episode["turns"][-1]["observation"])]:
        assert shown.startswith("<svg")
        assert shown.count("<title>") == len(text.replace("\n", ""))


def test_what_cannot_be_drawn_stays_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = replace(trajectory(member=1), outcome=Outcome(kind="failed", reason="reset raised"))
    whole = record(1, group(trajectory(turn()), failed))
    write(tmp_path / "s.jsonl.gz", replace(whole, kept=(group(whole.groups[0].trajectories[0]),)))
    episodes = Episodes(tmp_path / "s.jsonl.gz")
    played, unplayed = episodes.group(0, 0, None)["episodes"]
    assert (played["drawing"], played["turns"][0]["drawing"]) == (None, None)  # its environment is not installed
    assert (unplayed["drawing"], unplayed["turns"]) == (None, [])

    def broken(observation: str) -> str:
        raise ValueError(observation)

    monkeypatch.setattr("roll_envs.env_registry.drawing", lambda id, kwargs: broken)
    played, _ = episodes.group(0, 0, None)["episodes"]
    assert (played["drawing"], played["turns"][0]["drawing"]) == (None, None)


def test_rows_come_as_the_file_grows(tmp_path: Path) -> None:
    path = tmp_path / "stream.jsonl.gz"
    writer = write(path, record(1, group(trajectory(turn(reward=1.0)))))
    episodes = Episodes(path)
    first = episodes.rows(0, 0)
    assert [named(row)["return"] for row in first["rows"]] == [1.0]
    writer.write(record(2, group(trajectory(turn(reward=2.0)), trajectory(turn(reward=3.0), member=1))))
    later = episodes.rows(1, first["generation"])
    assert [named(row)["return"] for row in later["rows"]] == [2.0, 3.0]
    assert (later["read"], later["members"]) == (2, 2)


def test_a_run_that_was_taken_up_again_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "stream.jsonl.gz"
    writer = write(path, *(record(n, group(trajectory(turn(reward=n)))) for n in (1, 2, 3)))
    episodes = Episodes(path)
    before = episodes.rows(0, 0)["generation"]
    writer.rewind({"train": 1})
    writer.write(record(2, group(trajectory(turn(reward=7.0)))))
    after = episodes.rows(3, before)
    assert after["generation"] != before
    assert [named(row)["return"] for row in after["rows"]] == [1.0, 7.0]


def test_what_is_in_no_statistic_is_shown_too(tmp_path: Path) -> None:
    fault = Outcome(kind="failed", reason="step raised", traceback="Traceback", answer="Up")
    failed = replace(trajectory(turn(info={"action_is_valid": False}), member=1), outcome=fault)
    greedy = (trajectory(turn(reward=5.0)),)
    cancelled = (group(trajectory(kind="cancelled")),)
    played = group(trajectory(turn()), failed)
    kept = (Group(task=TASK, trajectories=played.trajectories[:1]),)
    whole = replace(record(1, played, greedy=greedy, cancelled=cancelled), kept=kept)
    write(tmp_path / "s.jsonl.gz", whole)
    episodes = Episodes(tmp_path / "s.jsonl.gz")
    rows = all_rows(episodes)
    assert [(r["role"], r["group"], r["outcome"], r["invalid"], r["reason"]) for r in rows] == [
        ("trained", 0, "completed", 0, ""),
        ("played", 0, "failed", 1, "step raised"),
        ("greedy", 1, "completed", 0, ""),
        ("cancelled", 2, "cancelled", 0, ""),
    ]
    shown = episodes.group(0, 0, None)["episodes"]
    assert [(e["place"], e["answer"], e["traceback"]) for e in shown] == [(0, None, ""), (1, "Up", "Traceback")]
    assert [e["role"] for e in episodes.group(0, 2, None)["episodes"]] == ["cancelled"]


def test_a_damaged_record_is_named_and_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl.gz"
    members = write(path, *(record(n, group(trajectory(turn(reward=n)))) for n in (1, 2))).members
    data = bytearray(path.read_bytes())
    data[members[0].offset + 30] ^= 0xFF
    path.write_bytes(bytes(data))
    found = Episodes(path).rows(0, 0)
    assert [named(row)["return"] for row in found["rows"]] == [2.0]
    assert "step 1" in found["damaged"][0]


def test_bad_questions_are_named(tmp_path: Path, tiny: Path) -> None:
    with pytest.raises(ConfigError, match="no run folder or stream of records"):
        Episodes(tmp_path / "nothing")
    with pytest.raises(ConfigError, match=r"not a run folder: it has no config.yaml"):
        Episodes(tmp_path)
    for member, number, said in ((99, 0, "there is no record 99"), (0, 9999, "has no group 9999")):
        with pytest.raises(RollError, match=said):
            Episodes(tiny).group(member, number, None)


def test_numbers_that_json_has_not_are_texts() -> None:
    assert json.loads(as_json({"a": [float("nan"), float("inf"), 1.5], "b": "\ud800"})) == {
        "a": ["nan", "inf", 1.5],
        "b": "\ud800",
    }


# -- the server and the exported page ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def url(tiny: Path) -> Iterator[str]:
    with make_server(Viewer(Episodes(tiny)), 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join(10)


def test_the_server_answers_the_page(url: str, tiny: Path) -> None:
    assert "<title>Episodes</title>" in httpx.get(url).text
    about = httpx.get(f"{url}/api/run").json()
    assert about["name"] == tiny.name
    assert {row["phase"] for row in about["metrics"]} >= {"train", "evaluation"}
    assert len(httpx.get(f"{url}/api/rows?first=0&generation=0").json()["rows"]) == len(all_rows(Episodes(tiny)))
    assert httpx.get(f"{url}/api/group?member=0&group=0").json()["episodes"][0]["turns"]


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/api/group?member=99&group=0", 409, "there is no record 99"),
        ("/api/group?member=0", 404, "nothing is at"),
        ("/api/group?member=x&group=0", 404, "nothing is at"),
        ("/../../etc/passwd", 404, "nothing is at"),
        ("/api/rows", 404, "nothing is at"),
    ],
)
def test_questions_that_are_none(url: str, path: str, status: int, said: str) -> None:
    answer = httpx.get(url + path)
    assert answer.status_code == status
    assert said in answer.json()["error"]


def test_pages_of_other_origins_learn_nothing(url: str) -> None:
    assert httpx.get(f"{url}/api/rows?first=0&generation=0", headers={"Host": "evil.example:80"}).status_code == 403


def embedded(text: str) -> dict[str, Any]:
    found = re.search(r"^const EMBEDDED = (.*);$", text, re.MULTILINE)
    assert found
    told: dict[str, Any] = json.loads(found[1])
    return told


def test_the_exported_page_holds_whole_groups_of_the_last_episodes(tiny: Path, tmp_path: Path) -> None:
    file, rows = tmp_path / "page.html", all_rows(Episodes(tiny))
    count = export(Episodes(tiny), file, most=10)
    told = embedded(file.read_text())
    kept = [named(row) for row in told["/api/rows"]["rows"]]
    assert kept == rows[-count:]
    assert 1 <= count <= 10
    for row in kept:
        shown = told[f"/api/group?member={row['member']}&group={row['group']}"]["episodes"]
        assert row["place"] in [e["place"] for e in shown]
    assert list(tmp_path.iterdir()) == [file]
    assert export(Episodes(tiny), file, most=10_000) == len(rows)


def test_what_a_model_writes_does_not_leave_its_place_in_the_page() -> None:
    hostile = "</script><script>alert(1)</script><!--"
    text = page({"/api/run": {"name": hostile}})
    assert hostile not in text
    assert embedded(text) == {"/api/run": {"name": hostile}}


def test_a_page_that_cannot_be_written_is_named(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(RollError, match="cannot write"):
        export(Episodes(tiny), tmp_path / "nowhere" / "page.html", most=10)


def test_the_command(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(tiny), "--export", str(tmp_path / "a.html"), "--most", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] <= 5
    assert main(["view", str(tiny), "--most", "0"]) == 2
    assert main(["view", str(tmp_path / "none")]) == 2
    assert "check the path" in capsys.readouterr().err
    with make_server(Viewer(Episodes(tiny)), 0) as server:
        assert main(["view", str(tiny), "--port", str(server.server_address[1])]) == 2
    assert "another --port" in capsys.readouterr().err


# -- the trainer's side ------------------------------------------------------------------------------------------------


def test_what_was_learnt_is_rewound_with_its_steps(tiny: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(tiny, copy)
    with RunFolder.open(copy) as folder:
        folder.rewind({"train": 2})
    assert read_learnt(copy, 2)
    assert not read_learnt(copy, 3)
    assert not read_learnt(tmp_path, 1)


def test_a_run_without_records_notes_nothing_of_tokens(tmp_path: Path) -> None:
    folder, _ = run(tmp_path, steps=1, records="none")
    assert not (folder / "episodes" / "learnt.jsonl").exists()
