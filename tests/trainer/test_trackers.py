"""A run in experiment trackers: each one's own files hold the numbers and episodes, once, whatever came between."""

from __future__ import annotations

import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from episode_builders import trajectory, turn

from roll_envs.errors import ConfigError, MissingExtraError, RollError
from trainer import cli
from trainer.config import EnvConfig, RunConfig
from trainer.run import trackers
from trainer.run.folder import RunFolder
from trainer.run.trackers import TRACKERS, Home, send

Points = list[tuple[int, float]]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    config = RunConfig(format=1, name="tiny", seed=3, steps=2, env=EnvConfig(id="x"), output=str(tmp_path / "runs"))
    with RunFolder.create(config) as folder:
        folder.log({"success_rate": 0.25}, step=0, phase="evaluation")
        for step in (1, 2):
            folder.log({"loss/policy": step / 4, "loss/kl": float("nan")}, step=step)
        played = replace(turn(reward=0.5), text="Left", observation="the end")
        folder.save_episodes("evaluation-step-000000", [trajectory(played)])
        yield folder


class Notes:
    """A tracker that remembers, and fails when told to."""

    def __init__(self) -> None:
        self.homes: list[Home] = []
        self.logged: list[tuple[str, int, dict[str, float]]] = []
        self.tables: dict[str, list[dict[str, Any]]] = {}
        self.closed = 0
        self.fails_at = -1
        self.id = "chosen"

    def __call__(self, home: Home) -> Notes:
        self.homes.append(home)
        return self

    def log(self, phase: str, step: int, values: Mapping[str, float], at: float) -> None:
        if step == self.fails_at:
            raise ValueError("402: the account is over its limit")
        self.logged.append((phase, step, dict(values)))

    def episodes(self, name: str, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self.tables[name] = [dict(row) for row in rows]

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    made = Notes()
    monkeypatch.setitem(TRACKERS, "mlflow", made)
    monkeypatch.setattr(trackers, "_FOLLOW_S", 0.02)
    return made


def test_numbers_and_episodes_are_sent(run: RunFolder, notes: Notes) -> None:
    said: list[str] = []
    send(run.path, "mlflow", offline=True, say=said.append)
    assert notes.logged == [
        ("evaluation", 0, {"evaluation/success_rate": 0.25}),
        ("train", 1, {"train/loss/policy": 0.25}),
        ("train", 2, {"train/loss/policy": 0.5}),
    ]
    (row,) = notes.tables["evaluation-step-000000"]
    assert (row["step"], row["outcome"], row["return"], row["turns"]) == (0, "completed", 0.5, 1)
    assert row["episode"] == "start\n> Left\n\nthe end"
    (home,) = notes.homes
    assert (home.project, home.name, home.id) == ("roll", run.path.name, "")
    assert home.config["env"]["id"] == "x"
    assert home.folder == run.path / "trackers" / "mlflow"
    assert notes.closed == 1
    assert said == [f"mlflow: 4 records of {run.path.name} sent to roll"]


def test_again_sends_what_is_new_to_the_same_run(run: RunFolder, notes: Notes) -> None:
    send(run.path, "mlflow", project="mine")
    notes.logged.clear()
    notes.tables.clear()
    run.rewind({"train": 1})  # as a resume does, which then learns the same steps again
    run.log({"loss/policy": 0.5}, step=2)
    run.log({"loss/policy": 0.75}, step=3)
    send(run.path, "mlflow")
    assert [(step, values) for _, step, values in notes.logged] == [(3, {"train/loss/policy": 0.75})]
    assert notes.tables == {}
    assert (notes.homes[1].id, notes.homes[1].project, notes.homes[1].folder) == ("chosen", "mine", None)


def test_a_tracker_that_fails_goes_on_where_it_stopped(run: RunFolder, notes: Notes) -> None:
    notes.fails_at = 2
    with pytest.raises(RollError, match="mlflow: 402: the account is over its limit"):
        send(run.path, "mlflow")
    assert notes.closed == 1
    notes.fails_at = -1
    send(run.path, "mlflow")
    assert [step for _, step, _ in notes.logged] == [0, 1, 2]


def test_offline_and_online_are_counted_apart(run: RunFolder, notes: Notes) -> None:
    send(run.path, "mlflow", offline=True)
    send(run.path, "mlflow")
    assert [step for _, step, _ in notes.logged] == [0, 1, 2, 0, 1, 2]


def test_following_ends_with_the_run(run: RunFolder, notes: Notes) -> None:
    following = threading.Thread(target=send, args=(run.path, "mlflow"), kwargs={"follow": True}, daemon=True)
    following.start()
    until(lambda: len(notes.logged) == 3)
    run.log({"loss/policy": 0.75}, step=3)
    until(lambda: len(notes.logged) == 4)
    assert following.is_alive()
    run.log({"loss/policy": 1.0}, step=4)
    run.save_summary({})
    following.join(20)
    assert not following.is_alive()
    assert [step for _, step, _ in notes.logged] == [0, 1, 2, 3, 4]


def test_following_a_run_that_was_resumed_waits_for_its_new_end(run: RunFolder, notes: Notes) -> None:
    run.save_summary({})
    os.utime(run.summary_path, ns=(1, 1))
    following = threading.Thread(target=send, args=(run.path, "mlflow"), kwargs={"follow": True}, daemon=True)
    following.start()
    until(lambda: len(notes.logged) == 3)
    assert following.is_alive()
    run.log({"loss/policy": 0.75}, step=3)
    run.save_summary({})
    following.join(20)
    assert notes.logged[-1][1] == 3


def test_following_ends_where_both_files_are_equally_old(run: RunFolder, notes: Notes) -> None:
    """As on a disk whose clock ticks every few milliseconds."""
    run.save_summary({})
    for path in (run.metrics_path, run.summary_path):
        os.utime(path, ns=(10**18, 10**18))
    following = threading.Thread(target=send, args=(run.path, "mlflow"), kwargs={"follow": True}, daemon=True)
    following.start()
    following.join(20)
    assert not following.is_alive()


def until(holds: Any) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_bad_input_says_what_to_do(run: RunFolder, notes: Notes, tmp_path: Path) -> None:
    with pytest.raises(RollError, match=r"no tracker 'wandbb'; there are mlflow, swanlab, trackio, wandb"):
        send(run.path, "wandbb")
    with pytest.raises(ConfigError, match="no run folder"):
        send(tmp_path / "nope", "mlflow")
    send(run.path, "mlflow", project="mine")
    noted = run.path / "trackers" / "mlflow.json"
    with pytest.raises(RollError, match=r"sent to the project 'mine'; remove .*mlflow\.json to send it anew"):
        send(run.path, "mlflow", project="yours")
    noted.write_text("{")
    with pytest.raises(RollError, match=r"mlflow\.json cannot be read"):
        send(run.path, "mlflow")


def test_a_package_that_is_missing_is_named(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match=r"wandb .*roll-envs\[trackers\]"):
        send(run.path, "wandb", offline=True)


def test_the_command_knows_every_tracker(run: RunFolder, notes: Notes, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["track", str(run.path), "--to", "mlflow", "--project", "mine"]) == 0
    assert capsys.readouterr().out == f"mlflow: 4 records of {run.path.name} sent to mine\n"
    with pytest.raises(SystemExit):
        cli.main(["track", str(run.path), "--to", "nothing"])
    offered = capsys.readouterr().err.rpartition("choose from")[2]
    assert all(name in offered for name in TRACKERS)


def test_what_the_command_is_told_is_what_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr("trainer.run.trackers.send", lambda *_, say, **given: told.append(given))
    for options in ([], ["--offline"], ["--follow"]):
        assert cli.main(["track", "runs/x", "--to", "mlflow", *options]) == 0
    assert [(each["offline"], each["follow"]) for each in told] == [(False, False), (True, False), (False, True)]


# Below, the trackers themselves, which write without the network and whose own files are read.


@pytest.mark.parametrize("name", TRACKERS)
def test_a_real_tracker_holds_what_was_logged(name: str, run: RunFolder, tmp_path: Path) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed; make test-trackers does it")
    command(run, name)
    run.log({"loss/policy": 0.75}, step=3)
    command(run, name)
    points, texts = READERS[name](run.path / "trackers" / name)
    assert points == {
        "evaluation/success_rate": [(0, 0.25)],
        "train/loss/policy": [(1, 0.25), (2, 0.5), (3, 0.75)],
    }
    assert [text.rstrip() for text in texts] == ["start\n> Left\n\nthe end"]


def command(run: RunFolder, name: str) -> None:
    """In a process of its own: trackers keep threads, handlers and folders for as long as theirs lives."""
    words = [sys.executable, "-c", "import sys; from trainer.cli import main; sys.exit(main())"]
    done = subprocess.run(
        [*words, "track", str(run.path), "--to", name, "--offline"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{name}: ")


def read_wandb(folder: Path) -> tuple[dict[str, Points], list[str]]:
    from swanlab.converter.wb.wbdatastore import WBDataStoreReader
    from wandb.proto.wandb_internal_pb2 import Record

    found: dict[str, Points] = {}
    texts, own = [], []
    for file in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        with WBDataStoreReader() as reader:
            reader.open(file)
            while (data := reader.scan()) is not None:
                record = Record.FromString(data)
                values = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
                own += [values["_step"]] if values else []
                for key, value in values.items():
                    if isinstance(value, float) and not key.startswith("_"):
                        found.setdefault(key, []).append((values[f"{key.partition('/')[0]}/step"], value))
                    elif key.endswith("/path"):
                        table = json.loads((file.parent / "files" / value).read_text())
                        texts += [row[table["columns"].index("episode")] for row in table["data"]]
    assert own == list(range(5))  # also over the second file, which has to follow the first when both are synced
    return found, texts


def read_swanlab(folder: Path) -> tuple[dict[str, Points], list[str]]:
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    found: dict[str, Points] = {}
    texts = []
    for file in sorted(folder.glob("run-*/*.swanlab")):
        reader = DataStoreReader()
        reader.open(file)
        for data in reader:
            record = Record.FromString(data)
            if record.HasField("scalar"):
                point = (record.scalar.step, record.scalar.value.number)
                found.setdefault(record.scalar.key, []).append(point)
            if record.HasField("media"):
                names = [item.filename for item in record.media.value.items]
                texts += [path.read_text() for name in names for path in file.parent.rglob(name)]
        reader.close()
    return found, texts


def read_mlflow(folder: Path) -> tuple[dict[str, Points], list[str]]:
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    from mlflow import MlflowClient

    client = MlflowClient(folder.as_uri())
    (experiment,) = (each for each in client.search_experiments() if each.name == "roll")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.params["env.id"] == "x"
    found = {
        key: [(p.step, p.value) for p in client.get_metric_history(run.info.run_id, key)] for key in run.data.metrics
    }
    table = json.loads(next(folder.rglob("evaluation-step-000000.json")).read_text())
    return found, [row[table["columns"].index("episode")] for row in table["data"]]


def read_trackio(folder: Path) -> tuple[dict[str, Points], list[str]]:
    found: dict[str, Points] = {}
    texts = []
    with sqlite3.connect(folder / "roll.db") as database:
        rows = database.execute("select step, metrics from metrics order by id").fetchall()
    for step, values in rows:
        for key, value in json.loads(values).items():
            if isinstance(value, float):
                found.setdefault(key, []).append((step, value))
            else:
                texts += [row["episode"] for row in value["_value"]]
    return found, texts


READERS = {"wandb": read_wandb, "swanlab": read_swanlab, "mlflow": read_mlflow, "trackio": read_trackio}
