"""What runs record, and what can be done with it: every step, nothing lost to a full disk, replays equal to the bit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from disks import fill, small_disk
from loop_runs import configured, run, the_run, write_config
from word_env import CARD, fault_of

import roll_envs
import trainer.run.loop
from roll_envs.errors import CheckpointError, ConfigError, RollError
from roll_envs.types import Completion, Group, Outcome, Task, Trajectory, Turn
from trainer.cli import main
from trainer.cli_eval import main as main_eval
from trainer.config import RunConfig
from trainer.rollout.source import Session, draw_tasks
from trainer.rollout.stream import RecordReader, StepRecord
from trainer.run.checkpoint import load_checkpoint
from trainer.run.evaluate import evaluate_run
from trainer.run.folder import RunFolder, read_metrics
from trainer.run.loop import resume, train
from trainer.run.replay import replay, rescore
from trainer.run.report import Report
from trainer.run.saving import load_parts
from trainer.run.update import begin_phase

pytestmark = pytest.mark.usefixtures("no_pictures")

CRITIC: dict[str, Any] = {
    "algorithm": "ppo",
    "env": {"id": "roll/FrozenLake-v0", "kwargs": {"action_format": "word", "max_turns": 4, "format_penalty": -0.1}},
    "warm_start": {"steps": 25, "episodes_per_step": 12},
    "rollout": {"groups_per_step": 3, "group_size": 4},
    "reward": {"kl_coef": 0.05, "kl_target": 0.01, "kl_horizon": 100},
    "filter": {"zero_variance": True, "refill_rounds": 1},
    "loss": {"kl_coef": 0.02},
    "critic": {"lr": 1e-2, "minibatches": 2, "epochs": 2},
    "reference": {"refresh_every": 2},
    "evaluation": {"tasks": 3, "every": 2},
    "checkpoint": {"every": 1, "keep": 20},
}
GREEDY: dict[str, Any] = {
    "advantage": {"name": "remax"},
    "steps": 3,
    "evaluation": {"tasks": 2, "every": 0},
    "checkpoint": {"every": 0, "keep": 1},
}


def stream(path: Path) -> RecordReader:
    return RecordReader(path / "episodes" / "stream.jsonl.gz")


def places(path: Path) -> list[tuple[str, int]]:
    return [(member.phase, member.step) for member in stream(path).members]


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[Any]]]:
    """Two runs, and the groups and greedy returns that each step's update was given."""
    real, found = trainer.run.loop.update, {}
    for name, changes in {"critic": CRITIC, "greedy": GREEDY}.items():
        seen: list[Any] = []

        def update(config: RunConfig, parts: Any, groups: Sequence[Group], *, seen: Any = seen, **more: Any) -> Any:
            seen.append((tuple(groups), more["version"], more["greedy"]))
            return real(config, parts, groups, **more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trainer.run.loop, "update", update)
            patch.setattr(trainer.run.loop, "plot_run", lambda folder: None)
            found[name] = run(tmp_path_factory.mktemp(name), **changes)[0], seen
    return found


@pytest.fixture
def word() -> Iterator[str]:
    roll_envs.register(CARD)
    yield CARD.id
    roll_envs.unregister(CARD.id)


# -- recording ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["critic", "greedy"])
def test_every_step_and_evaluation_is_recorded_as_it_was_learnt(
    learnt: dict[str, tuple[Path, list[Any]]], name: str
) -> None:
    path, seen = learnt[name]
    logged = [(line["phase"], line["step"]) for line in read_metrics(path) if line["phase"] != "warm_start"]
    assert places(path) == logged
    reader = stream(path)
    config = RunFolder.open(path).config
    for number, (groups, version, greedy) in enumerate(seen, start=1):
        record = reader.find("train", number)
        assert (record.kept, record.version, record.greedy_returns) == (groups, version, greedy)
        line = read_metrics(path, "train")[number - 1]
        assert sum(len(g.trajectories) for g in record.groups) == line["rollout/episodes"]
        assert len(record.groups) == line.get("filter/groups", len(record.groups))
        assert line["time/records_s"] > 0
    assert seen[0][1] == config.warm_start.steps, "the version is that of the weights before the step"
    assert (seen[0][2] == ()) == (name == "critic")
    indices = [g.task.index for member in range(len(seen)) for g in reader.find("train", member + 1).groups]
    assert indices == list(range(len(indices))), "dropped groups are there too"
    assert len(reader.find("evaluation", 0).episodes) == config.evaluation.tasks


@pytest.mark.parametrize("records", ["none", "train", "evaluation"])
def test_what_is_recorded_is_a_setting(tmp_path: Path, records: str) -> None:
    path, _ = run(tmp_path, records=records, steps=1, warm_start={"steps": 1}, evaluation={"tasks": 2, "every": 0})
    assert {phase for phase, _ in places(path)} == {records} - {"none"}
    assert (path / "episodes" / "learnt.jsonl").exists() == (records == "train")


def test_failed_attempts_are_listed_with_what_they_did(tmp_path: Path, word: str) -> None:
    share = 0.3
    path, _ = run(
        tmp_path,
        env={"id": word, "kwargs": {"fail_share": share}},
        advantage={"name": "grpo"},
        warm_start={"steps": 0},
        evaluation={"tasks": 12, "every": 0},
        rollout={"groups_per_step": 6, "group_size": 2, "attempts": 2},
        steps=2,
    )
    lines = [json.loads(line) for line in (path / "episodes" / "failed.jsonl").read_text().splitlines()]
    tasks = draw_tasks(RunFolder.open(path).config.env, seed=0, indices=range(12))
    failing = [task.seed for task in tasks if fault_of(task.seed, share)]
    assert 0 < len(failing) < 12
    trained = [line for line in lines if line["phase"] == "train"]
    assert sorted(line["task"]["seed"] for line in trained) == sorted(failing * 2 * 2), "2 members, 2 attempts each"
    for line in lines:
        assert "the planted fault" in line["reason"]
        assert 'raise OSError("the planted fault")' in line["traceback"]
        assert isinstance(line["answer"], str)
        assert (line["turns"], line["failed_attempts"]) == ([], [])
        assert line["step"] in ({1, 2} if line["phase"] == "train" else {0, 2})
    assert {line["attempts"] for line in trained} == {1, 2}
    (kept,) = [e for e in stream(path).find("train", 1).episodes if e.outcome.kind == "failed"][:1]
    assert "the planted fault" in kept.outcome.traceback
    assert len(kept.failed_attempts) == 1


def test_redundant_groups_are_recorded_and_those_never_learnt_from_are_told(
    tmp_path: Path, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of five groups are left over in each of two steps; the command's lines stay free of what is printed."""
    config = write_config(
        tmp_path,
        env={"id": word, "kwargs": {"prints": "NOISE"}},
        advantage={"name": "remax"},
        warm_start={"steps": 0},
        evaluation={"tasks": 2, "every": 0},
        rollout={"groups_per_step": 3, "group_size": 2, "redundancy": 2},
        steps=2,
    )
    assert main([str(config)]) == 0
    said = capsys.readouterr()
    assert "Never learnt from: 4 tasks" in said.out
    assert "Held-out evaluation" in said.out
    assert ("NOISE" in said.out.splitlines(), "NOISE" in said.err.splitlines()) == (False, True)
    path = the_run(tmp_path)
    assert path is not None
    assert json.loads((path / "summary.json").read_text())["tasks_never_learnt_from"] == 4
    records = [stream(path).find("train", number) for number in (1, 2)]
    assert [len(record.cancelled) for record in records] == [2, 2]
    played = [group.task.index for record in records for group in (*record.groups, *record.cancelled)]
    assert sorted(played) == list(range(10))
    assert [len(record.episodes) for record in records] == [3 * 2 + 3 + 2 * 2] * 2
    counted = load_checkpoint(path).progress["episodes"]
    assert (sum(counted.values()), counted["greedy_completed"]) == (10 * 2 + 6, 6)
    assert main_eval([str(config), "--tasks", "2", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["tasks"] == 2
    assert "NOISE" in said.err


def test_a_full_disk_costs_records_and_not_the_run(tmp_path: Path) -> None:
    config = configured(tmp_path, steps=2, warm_start={"steps": 1}, evaluation={"tasks": 2, "every": 0})
    said: list[str] = []
    report = Report.silent()
    report.say = lambda text="": said.append(text)  # type: ignore[method-assign]
    with RunFolder.create(config) as folder, small_disk(folder.episodes_path):
        fill(folder.episodes_path)
        train(config, folder, report)
        assert places(folder.path) == []
        assert folder.summary_path.exists()
        counted = [line["records/failed_writes"] for line in read_metrics(folder.path) if line["phase"] != "warm_start"]
        assert counted == [1.0, 3.0, 5.0, 7.0], "two each: the record, then the samples or what was learnt"
    (warning,) = [text for text in said if "Not recorded" in text]
    assert "disk is full" in warning
    assert "stream.jsonl.gz" in warning


# -- replaying ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "step", "passed"), [("critic", 1, [1]), ("critic", 3, [3]), ("critic", 5, [5]), ("greedy", 3, [])]
)
def test_a_replay_gives_the_numbers_of_the_run(
    learnt: dict[str, tuple[Path, list[Any]]], monkeypatch: pytest.MonkeyPatch, name: str, step: int, passed: list[int]
) -> None:
    monkeypatch.setattr("trainer.rollout.source.make_engine", lambda *_: pytest.fail("an engine was started"))
    path, _ = learnt[name]
    if name == "greedy":  # one checkpoint, of the end
        with pytest.raises(CheckpointError, match=r"before training step 3 \(there are those of step 3\).*keep"):
            list(replay(path, step))
        return
    steps = list(replay(path, step))
    assert [each.step for each in steps] == passed
    assert steps[0].metrics["learner/optimizer_steps"] > 0
    assert steps[0].differing == ()
    assert set(steps[0].metrics) <= set(steps[0].recorded)


def test_a_replay_from_further_back_learns_the_steps_between(
    learnt: dict[str, tuple[Path, list[Any]]], tmp_path: Path
) -> None:
    path, _ = learnt["critic"]
    folder = tmp_path / "copy"
    (folder / "checkpoints").mkdir(parents=True)
    for name in ("config.yaml", "metrics.jsonl", "episodes"):
        (folder / name).symlink_to(path / name)
    (first,) = [p for p in (path / "checkpoints").iterdir() if p.name == "step-000026"]
    (folder / "checkpoints" / first.name).symlink_to(first)
    steps = list(replay(folder, 4))
    assert [(each.step, each.differing) for each in steps] == [(2, ()), (3, ()), (4, ())]
    changed = list(replay(folder, 3, ["optimizer.lr=0.01"]))
    assert "learner/lr" in changed[0].differing
    assert "critic/value" not in changed[0].differing, "the same episodes and weights"
    assert "mismatch/logprob_diff_max" in changed[1].differing, "other weights than the run's"
    damaged = folder / "checkpoints" / "step-000027"
    shutil.copytree(first, damaged)
    progress = json.loads((damaged / "progress.json").read_text())
    (damaged / "progress.json").write_text(json.dumps({**progress, "progress": {**progress["progress"], "steps": 2}}))
    assert [(each.step, each.differing) for each in replay(folder, 3)] == [(2, ()), (3, ())], "one that is whole"
    (folder / "checkpoints" / first.name).unlink()
    with pytest.raises(CheckpointError, match=r"step-000027: progress\.json has \d+ bytes|step-000027: .* is corrupt"):
        list(replay(folder, 3))


def test_a_replay_follows_the_learning_rate_of_a_longer_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = run(
        tmp_path,
        steps=2,
        warm_start={"steps": 0},
        evaluation={"tasks": 2, "every": 0},
        rollout={"manager": "process", "workers": 1},
        checkpoint={"every": 1, "keep": 9},
    )
    with RunFolder.open(path) as folder:
        resume(folder, Report.silent(), steps=4)
    monkeypatch.setattr("trainer.cluster.EnvWorkers", lambda *_: pytest.fail("workers were started"))
    for step in (2, 4):
        assert [(each.step, each.differing) for each in replay(path, step)] == [(step, ())]
    (changed,) = replay(path, 4, ["steps=10"])
    assert "learner/lr" in changed.differing
    opened: list[str] = []
    monkeypatch.setattr(
        "trainer.rollout.source.env_workers", lambda config, *_: (opened.append(config.manager), nullcontext())[1]
    )
    evaluate_run(path, tasks=1)
    assert opened == ["process"], "workers once: the model is built without"
    state = load_checkpoint(path)
    with Session(configured(tmp_path)) as session:
        older = replace(state, progress={k: v for k, v in state.progress.items() if k != "algorithm"})
        with pytest.raises(CheckpointError, match="does not say what the algorithm remembers"):
            load_parts(begin_phase(session, warm_start=False), older)


def test_the_replay_command_prints_both(
    learnt: dict[str, tuple[Path, list[Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = learnt["critic"]
    assert main(["replay", str(path), "--step", "2"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].endswith("numbers, 0 unlike the recorded ones")
    (lr,) = [line.split() for line in out if "learner/lr " in line]
    assert lr[1] == lr[2]
    assert main(["replay", str(path), "--step", "2", "optimizer.lr=0.5"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "learner/lr " in line and line.endswith("<-")]
    assert main(["replay", str(path), "--step", "99"]) == 2
    assert "no record of train step 6" in capsys.readouterr().err


def test_the_episodes_command_lists_and_prints(
    learnt: dict[str, tuple[Path, list[Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = learnt["critic"]
    assert main(["episodes", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    record = stream(path).find("train", 5)
    assert lines[0] == f"train step 5: {len(record.episodes)} episodes"
    assert len(lines) == 1 + len(record.episodes)
    assert f"task {record.episodes[1].task.index} " in lines[2]
    assert main(["episodes", str(path), "--evaluation", "--step", "2", "--index", "1"]) == 0
    assert "held-out task 1 " in capsys.readouterr().out
    assert main(["episodes", str(path), "--index", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["member"] == record.episodes[1].member
    assert main(["episodes", str(path), "--failed"]) == 0
    assert capsys.readouterr().out == f"train step 5: {len(record.episodes)} episodes, 0 of them failed\n"
    assert main(["episodes", str(path), "--failed", "--index", "0"]) == 2
    assert "that episode did not fail" in capsys.readouterr().err
    assert main(["episodes", str(path), "--evaluation", "--step", "3"]) == 2
    assert "no record of evaluation step 3 " in (told := capsys.readouterr().err)
    assert "steps 0, 2, 4, 5" in told
    assert main(["episodes", str(path), "--step", "0"]) == 2
    assert "no record of train step 0 " in capsys.readouterr().err
    assert main(["episodes", str(path), "--index", "500"]) == 2
    assert "the step has the episodes 0 to" in capsys.readouterr().err


# -- judging again -----------------------------------------------------------------------------------------------------

ROWS = [{"question": f"{a} + 1?", "answer": str(a + 1)} for a in range(6)]
ANSWERS = ["1", "the answer is 2", "nothing", "4", "It is 5.", "0"]
DATA = {"rows": ROWS, "verifier": "exact", "action_format": "word"}
TOOLS = {"env": "roll/Dataset-v0", "env_kwargs": DATA, "tools": ["calculator"]}


def answered(env_id: str, kwargs: dict[str, Any], answers: Sequence[str] = ANSWERS) -> list[Trajectory]:
    """Row i answered by answer i, really judged."""
    env, episodes = roll_envs.make(env_id, **kwargs), []
    for index, text in enumerate(answers):
        task = Task(env_id=env_id, split="train", index=index, seed=index, kwargs=kwargs)
        shown, _ = env.reset(seed=index)
        after, reward, terminated, truncated, info = env.step(text)
        said = Completion(ids=(7,), logprobs=(-0.5,), finish="stop", weight_version=0)
        turn = Turn(
            prompt_ids=(1,), completion=said, prompt_observation=shown, text=text, observation=after,
            reward=float(reward), terminated=terminated, truncated=truncated, info=info, timings={},
        )  # fmt: skip
        episodes.append(Trajectory(task=task, member=0, turns=(turn,), outcome=Outcome(kind="completed")))
    env.close()
    return episodes


def recorded(tmp_path: Path, episodes: Sequence[Trajectory], **changes: Any) -> Path:
    with RunFolder.create(configured(tmp_path, **changes)) as folder:
        groups = tuple(Group(task=episode.task, trajectories=(episode,)) for episode in episodes)
        folder.record(StepRecord(phase="train", step=1, version=0, groups=groups[:4]))
        folder.record(StepRecord(phase="train", step=2, version=1, groups=groups[4:]))
    return folder.path


@pytest.mark.parametrize(("env_id", "kwargs"), [("roll/Dataset-v0", DATA), ("roll/ToolEnv-v0", TOOLS)])
def test_answers_are_judged_by_another_verifier(
    tmp_path: Path, env_id: str, kwargs: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    episodes = answered(env_id, kwargs)
    failed = replace(episodes[0], outcome=Outcome(kind="failed", reason="gone"))
    path = recorded(tmp_path, [*episodes, failed])
    same = list(rescore(path, {"name": "exact"}))
    assert len(same) == 6, "the failed one is no answer"
    assert not any(each.changed for each in same)
    assert [each.before for each in same] == [1, 0, 0, 1, 0, 0]
    command = ["rescore", str(path), "--verifier", "regex", "--verifier-args", json.dumps({"pattern": "[0-9]"})]
    assert main_eval(command) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "6 answers judged again, 0 could not be"
    assert out[1] == f"mean score {2 / 6:.4f} recorded, {5 / 6:.4f} by regex"
    assert out[2] == f"3 verdicts changed ({3 / 6:.2%})"
    assert [line.split(":")[0] for line in out[3:]] == [
        "  train step 1, row 1", "  train step 2, row 4", "  train step 2, row 5",
    ]  # fmt: skip
    assert main_eval([*command, "--step", "2"]) == 0
    assert capsys.readouterr().out.startswith("2 answers")


def test_rows_that_changed_are_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.jsonl"
    kwargs = {"path": str(file), "verifier": "exact"}
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    path = recorded(tmp_path, answered("roll/Dataset-v0", kwargs))
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS[::-1]) + " " * 40)
    with pytest.raises(ConfigError, match=r"row 0 of roll/Dataset-v0 is not what it was at train step 1"):
        list(rescore(path, {"name": "exact"}))
    assert main_eval(["rescore", str(path), "--verifier", "exact", "--verifier-args", "[1]"]) == 2
    assert "is no JSON object" in capsys.readouterr().err
    with pytest.raises(RollError, match="no verifier 'exactt'; did you mean 'exact'"):
        list(rescore(path, {"name": "exactt"}))


def test_a_run_without_answers_to_judge_says_so(
    learnt: dict[str, tuple[Path, list[Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main_eval(["rescore", str(learnt["greedy"][0]), "--verifier", "exact"]) == 2
    assert "has no recorded answers of a data set" in capsys.readouterr().err
    assert main_eval(["rescore", str(learnt["greedy"][0]), "--verifier", "exact", "--step", "99"]) == 2
    assert "has no recorded answers of step 99" in capsys.readouterr().err
