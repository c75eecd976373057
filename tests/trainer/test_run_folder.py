"""The folder of a run: complete, never clobbered, exact after a resume, and whole on a full disk."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import stat
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disks import fill, full_after, small_disk
from episode_builders import trajectory, turn
from forked import Forked
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from roll_envs.errors import ConfigError, MissingExtraError, RollError
from trainer.config import EnvConfig, RunConfig
from trainer.config.load import dump_config, load_config
from trainer.run.folder import UNFINISHED, RunFolder, read_metrics, write_atomic


def config(output: Path, **more: Any) -> RunConfig:
    return RunConfig(format=1, name="tiny", seed=3, steps=2, env=EnvConfig(id="x"), output=str(output), **more)


def events(folder: RunFolder, tag: str) -> list[tuple[int, float]]:
    found = EventAccumulator(str(folder.tensorboard_path))
    found.Reload()
    return [(e.step, round(e.value, 5)) for e in found.Scalars(tag)]


def log_many(folder: RunFolder) -> None:
    for step in range(2, 1000):
        folder.log({"loss": 1.0}, step=step)


def test_a_new_folder_never_takes_an_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda _: "20260102-030405")
    names = [RunFolder.create(config(tmp_path / "runs")).path.name for _ in range(3)]
    stem = "tiny-seed3-20260102-030405"
    assert names == [stem, f"{stem}-2", f"{stem}-3"]


def test_the_configuration_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = tmp_path / "config.yaml"
    written.write_text(dump_config(config(tmp_path)))
    made = load_config(written)
    folder = RunFolder.create(made.model_copy(update={"output": str(tmp_path / "elsewhere")}))
    assert folder.path.parent == tmp_path / "elsewhere"
    assert RunFolder.open(folder.path).config == folder.config
    assert folder.config.model_copy(update={"output": made.output}) == made
    monkeypatch.chdir(folder.checkpoints_path)
    assert RunFolder.open("step-000002").path == folder.path
    assert RunFolder.open(folder.checkpoints_path / "step-000002").path == folder.path


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run folder"):
        RunFolder.open(tmp_path / "nope")
    with pytest.raises(ConfigError, match=r"not a run folder: it has no config\.yaml"):
        RunFolder.open(tmp_path)


def test_one_at_a_time_trains_in_a_folder(tmp_path: Path) -> None:
    folder = RunFolder.create(config(tmp_path))
    again = RunFolder.open(folder.path)
    said: list[str] = []
    for _ in range(2):
        refused = pytest.raises(RollError, match=rf"process {os.getpid()} on .* trains in {folder.path}; wait")
        with folder.locked(said.append), folder.locked(said.append), refused:
            again.locked(said.append).__enter__()
        with again.locked(said.append):
            pass
    assert said == []


def lock_fork_and_die(path: Path) -> None:
    """Leaves a process behind, as an environment may have started one, until there is the file ``over``."""
    RunFolder.open(path).locked(print).__enter__()
    until = time.monotonic() + 30
    if os.fork():
        while not (path / "forked").exists() and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    (path / "forked").touch()
    while not (path / "over").exists() and time.monotonic() < until:
        time.sleep(0.01)
    (path / "ended").touch()
    os._exit(0)


def test_a_killed_process_leaves_the_folder_free_to_others_though_a_child_of_it_lives(tmp_path: Path) -> None:
    folder = RunFolder.create(config(tmp_path))
    assert Forked(lock_fork_and_die, folder.path, log=tmp_path / "log").wait() == -signal.SIGKILL
    with folder.locked(print):
        assert not (folder.path / "ended").exists()
    (folder.path / "over").touch()


def test_a_file_system_without_locks_trains_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    said: list[str] = []
    with RunFolder.create(config(tmp_path)).locked(said.append):
        pass
    assert len(said) == 1
    assert "cannot be locked (No locks available): nothing will stop a second process" in said[0]


def test_metrics_are_on_disk_at_once_and_in_tensorboard(tmp_path: Path) -> None:
    with RunFolder.create(config(tmp_path)) as folder:
        folder.log({"loss": 0.5, "episodes": 64}, step=1)
        folder.log({"loss": float("nan")}, step=2)
        folder.log({"success": 0.25}, step=0, phase="evaluation")
        lines = folder.metrics_path.read_text().splitlines()
    assert [{k: v for k, v in json.loads(line).items() if k != "time"} for line in lines] == [
        {"phase": "train", "step": 1, "loss": 0.5, "episodes": 64},
        {"phase": "train", "step": 2, "loss": "nan"},
        {"phase": "evaluation", "step": 0, "success": 0.25},
    ]
    assert events(folder, "train/loss") == [(1, 0.5)]
    assert events(folder, "evaluation/success") == [(0, 0.25)]
    assert [r["step"] for r in read_metrics(folder.path, "train")] == [1, 2]


def test_a_resume_drops_what_came_after_and_the_line_cut_off(tmp_path: Path) -> None:
    with RunFolder.create(config(tmp_path)) as folder:
        for step in range(1, 11):
            folder.log({"loss": 1.0}, step=step, phase="warm start")
        for step in range(1, 6):
            folder.log({"loss": 1 / step}, step=step)
        with folder.metrics_path.open("a") as file:
            file.write('{"phase": "train", "st')
    with RunFolder.open(folder.path) as again:
        again.rewind({"train": 3})
        assert len(again.metrics_path.read_text().splitlines()) == 10 + 3, "two steps and half a line were dropped"
        again.log({"loss": 9.0}, step=4)
        assert [r["loss"] for r in read_metrics(again.path, "train")] == [1.0, 0.5, 1 / 3, 9.0]
        assert len(read_metrics(again.path, "warm start")) == 10
    assert events(again, "train/loss") == [(1, 1.0), (2, 0.5), (3, 0.33333), (4, 9.0)]
    assert len(events(again, "warm start/loss")) == 10


def test_a_resume_drops_failed_attempts_that_are_played_again(tmp_path: Path) -> None:
    with RunFolder.create(config(tmp_path)) as folder:
        for phase, step in (("train", 1), ("evaluation", 1), ("train", 2), ("evaluation", 2)):
            folder.record_failures([trajectory(turn(anchor=phase))], step=step, phase=phase)
        with folder.failed_path.open("a") as file:
            file.write('{"phase": "train", "st')
        before = folder.failed_path.read_text().splitlines()
        folder.rewind({"train": 1, "evaluation": 1})
        assert folder.failed_path.read_text().splitlines() == before[:2]
        folder.rewind({"train": 1, "evaluation": -1})
        assert folder.failed_path.read_text().splitlines() == before[:1]


def test_a_resume_drops_what_was_learnt_of_tokens_that_are_learnt_again(tmp_path: Path) -> None:
    with RunFolder.create(config(tmp_path)) as folder:
        for step in (1, 2):
            folder.record_learnt({"advantage": np.ones(2)}, step=step, phase="train")
        before = folder.learnt_path.read_text().splitlines()
        folder.rewind({"train": 1})
        assert folder.learnt_path.read_text().splitlines() == before[:1]


def test_a_resume_does_not_hold_all_that_was_learnt_in_memory(tmp_path: Path) -> None:
    with RunFolder.create(config(tmp_path)) as folder:
        line = json.dumps({"phase": "train", "step": 1, "columns": {"advantage": "A" * 100_000}}) + "\n"
        folder.learnt_path.write_text(line * 100)
        tracemalloc.start()
        try:
            folder.rewind({"train": 1})
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert folder.learnt_path.read_text() == line * 100
        assert peak < 20 * len(line)


def test_a_resume_makes_the_folders_again_that_were_deleted(tmp_path: Path) -> None:
    with RunFolder.create(config(tmp_path)) as folder:
        folder.episodes_path.rmdir()
        folder.rewind({})
        assert folder.save_episodes("after", [trajectory(turn(anchor="P"))]).is_file()


def test_truncating_an_empty_run(tmp_path: Path) -> None:
    with RunFolder.create(config(tmp_path)) as folder:
        folder.rewind({"train": 0})
        assert read_metrics(folder.path) == []


def test_a_line_after_one_cut_off_stands_alone(tmp_path: Path) -> None:
    with RunFolder.create(config(tmp_path)) as folder:
        folder.metrics_path.write_text('{"phase": "train", "st')
        folder.log({"loss": 1.0}, step=1)
    assert [r["step"] for r in read_metrics(folder.path)] == [1]


def test_a_full_disk_leaves_the_metrics_whole(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk, RunFolder.create(config(disk)) as folder:
        folder.log({"loss": 1.0}, step=1)
        line = folder.metrics_path.read_bytes()
        fill(disk)
        with pytest.raises(RollError, match=r"the disk is full .*metrics\.jsonl.*Free some space"):
            log_many(folder)
        kept = folder.metrics_path.read_bytes()
        assert kept.startswith(line)
        assert kept.endswith(b"}\n")
        with pytest.raises(RollError, match="the disk is full"):
            folder.save_summary({"big": "x" * 8192})
        assert not folder.summary_path.exists()
        (disk / "filler").unlink()
        folder.log({"loss": 2.0}, step=2000)
        assert read_metrics(folder.path)[-1]["loss"] == 2.0


def test_a_full_disk_is_one_error_of_the_events_too_and_leaves_them_whole(tmp_path: Path) -> None:
    phase = "long" * 20  # which takes more room there than in metrics.jsonl
    with RunFolder.create(config(tmp_path)) as folder:
        with full_after(200), pytest.raises(RollError, match=r"the disk is full .* file sizes .*tensorboard"):
            folder.log(dict.fromkeys("abcdefgh", 1), step=1, phase=phase)
        [file] = folder.tensorboard_path.iterdir()
        assert not file.read_bytes()
        folder.log(dict.fromkeys("abcdefgh", 1), step=1, phase=phase)
        whole = file.read_bytes()
        assert b"brain.Event:2" in whole
        with full_after(len(whole) + 20), pytest.raises(RollError, match=r"the disk is full .*tensorboard"):
            folder.log({"a": 2}, step=2, phase=phase)
        assert file.read_bytes() == whole
        folder.log({"a": 3}, step=3, phase=phase)
    assert events(folder, f"{phase}/a") == [(1, 1.0), (3, 3.0)]


@pytest.mark.parametrize("byte_count", [0, 5])
def test_write_atomic_keeps_the_old_file_on_a_full_disk(tmp_path: Path, byte_count: int) -> None:
    path = tmp_path / "summary.json"
    write_atomic(path, "old")
    message = r"disk is full.*summary\.json.*nothing saved before was touched.*resume"
    with full_after(byte_count), pytest.raises(RollError, match=message):
        write_atomic(path, b"new and longer")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["summary.json"]


def test_write_atomic_on_a_failing_sync_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomic(path, "old")

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(RollError, match=r"could not write .*Input/output error"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_write_atomic_gives_the_usual_permissions_and_names_a_missing_folder(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_atomic(tmp_path / "file", "ä")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640
    assert (tmp_path / "file").read_bytes() == "ä".encode()
    with pytest.raises(RollError, match="Check that the folder exists"):
        write_atomic(tmp_path / "no" / "file", "x")


def test_an_output_that_is_a_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(RollError, match=r"could not write .*runs"):
        RunFolder.create(config(tmp_path / "runs"))


def test_episodes_as_text_and_records(tmp_path: Path) -> None:
    with RunFolder.create(config(tmp_path)) as folder:
        played = trajectory(
            turn(anchor="P_G", reward=1.0, info={"success": True, "parts": {"goal": float("inf")}, "raw": "\ud800"})
        )
        path = folder.save_episodes("after", [played, played])
    text = path.read_text(encoding="utf-8")
    assert "P_G" in text
    assert "solved in 1 turn · return 1" in text
    records = [json.loads(line) for line in path.with_suffix(".jsonl").read_text().splitlines()]
    assert len(records) == 2
    assert records[0]["turns"][0]["completion_ids"] == [2]
    assert records[0]["turns"][0]["info"]["parts"] == {"goal": "inf"}


def test_what_a_killed_process_left_is_cleaned_away(tmp_path: Path) -> None:
    folder = RunFolder.create(config(tmp_path))
    stale = [part / f"{UNFINISHED}1-ab-x" for part in (folder.path, folder.episodes_path)]
    for path in stale:
        path.write_text("half")
    (folder.checkpoints_path / f"{UNFINISHED}1-ab-step-000001").mkdir()
    folder.save_summary({})
    with RunFolder.open(folder.path) as again:
        # Someone who only looks, roll-eval say, must not take away what the run is writing at this moment.
        assert all(path.exists() for path in stale)
        again.rewind({})
    assert not list(folder.path.rglob(f"{UNFINISHED}*"))
    assert folder.summary_path.exists()


def test_summary(tmp_path: Path) -> None:
    folder = RunFolder.create(config(tmp_path))
    folder.save_summary({"seed": 3, "name": "ä"})
    assert json.loads(folder.summary_path.read_text(encoding="utf-8")) == {"seed": 3, "name": "ä"}


def test_without_tensorboard_the_pip_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tensorboard.compat.proto.event_pb2", None)
    folder = RunFolder.create(config(tmp_path))
    with pytest.raises(MissingExtraError, match=r"pip install 'roll-envs\[train\]'"):
        folder.log({"loss": 1.0}, step=1)
