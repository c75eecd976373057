"""The commands as a user meets them: exit status, one clear message, nothing heavy loaded too early."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec

from envs.frozenlake.env import FrozenLakeEnv
from roll_envs.env import TextEnv
from roll_envs.errors import CheckpointError, RollError
from trainer.cli import main
from trainer.cli_eval import main as main_eval
from trainer.config import RunConfig
from trainer.config.load import parse_config
from trainer.run.evaluate import PhaseResult
from trainer.run.folder import RunFolder
from trainer.run.report import Report

TEXT = "format: 1\nname: tiny\nsteps: 3\nenv: {id: roll/FrozenLake-v0}\n"
RESULT = PhaseResult(
    name="evaluation", tasks=8, success=0.5, interval_low=0.2, interval_high=0.8, turns=3.0, valid_action_rate=1.0,
    mean_return=0.5, seconds=0.1,
)  # fmt: skip


@pytest.fixture
def config_path(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TEXT + f"output: {tmp_path}/runs\n")
    return path


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """Stands for trainer.run.loop and trainer.run.evaluate; ``work`` is what training does."""
    calls = types.SimpleNamespace(seen=[], work=lambda folder: None)

    def train(config: RunConfig, folder: RunFolder, report: Report) -> dict[str, Any]:
        calls.seen.append(("train", config, folder.path))
        calls.work(folder)
        return {}

    def resume(folder: RunFolder, report: Report, steps: int | None, checkpoint: Path | None = None) -> dict[str, Any]:
        calls.seen.append(("resume", folder.path, steps, checkpoint))
        calls.work(folder)
        return {}

    def evaluate_run(path: str, **options: Any) -> PhaseResult:
        calls.seen.append(("evaluate", path, options))
        calls.work(None)
        return RESULT

    module = types.ModuleType("trainer.run.loop")
    module.__dict__.update(train=train, resume=resume)
    monkeypatch.setitem(sys.modules, "trainer.run.loop", module)
    module = types.ModuleType("trainer.run.evaluate")
    module.__dict__.update(evaluate_run=evaluate_run)
    monkeypatch.setitem(sys.modules, "trainer.run.evaluate", module)
    return calls


def raising(error: BaseException) -> Callable[[RunFolder], None]:
    def work(_: RunFolder) -> None:
        raise error

    return work


def save_one(folder: RunFolder) -> None:
    (folder.checkpoints_path / "step-000001").mkdir()


def test_dry_run_prints_configuration_and_plan_and_writes_nothing(
    config_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert main([str(config_path), "--dry-run", "seed=5", "--output", str(tmp_path / "a b")]) == 0
    text = capsys.readouterr().out
    resolved, _, plan = text.partition("\ntiny · seed 5")
    config = parse_config(resolved)
    assert (config.seed, config.output, config.steps) == (5, str(tmp_path / "a b"), 3)
    assert "3 steps" in plan
    assert "nothing was started" in plan
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["placement.learner={ranks: 2, devices: [0, 1]}", "placement.rollout.devices=[7]"], "devices [0, 1]: this"),
        (["learner.backend=megatron"], "learner.backend 'megatron' needs the optional part 'megatron': pip install"),
        (["learner.backend=deepspeed"], "learner.backend 'deepspeed' needs the optional part 'deepspeed': pip install"),
        (["engine.name=vllm", "model.head_width=32", "engine.venv=nowhere"], "it is not in 'nowhere'; make its"),
    ],
)
def test_a_dry_run_finds_what_this_machine_lacks(
    config_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    overrides: list[str],
    said: str,
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("trainer.learner._importable", lambda package: package not in ("megatron.core", "deepspeed"))
    assert main([str(config_path), "--dry-run", *overrides]) == 2
    assert said in capsys.readouterr().err


LIGHT = """
import importlib, sys
module, function, *arguments = sys.argv[1:]
try:
    status = getattr(importlib.import_module(module), function)(arguments)
except SystemExit as left:
    status = left.code
heavy = {"torch", "transformers", "matplotlib", "tensorboard"} & set(sys.modules)
assert not heavy, heavy
sys.exit(status)
"""


@pytest.mark.parametrize(
    ("command", "arguments", "status"),
    [
        ("trainer.cli", ["CONFIG", "--dry-run"], 0),
        ("trainer.cli", ["CONFIG", "optimiser.lr=1"], 2),
        ("trainer.cli", ["CONFIG", "--dry-run", "env.id=roll/Nope-v0"], 2),
        ("trainer.cli_eval", ["no-such-run"], 2),
        ("trainer.cli_eval", ["CONFIG", "optimiser.lr=1"], 2),
        ("roll_envs.cli", ["eval", "roll/FrozenLake-v0"], 2),
    ],
)
def test_nothing_heavy_is_loaded_before_it_is_needed(
    config_path: Path, command: str, arguments: list[str], status: int
) -> None:
    given = [str(config_path) if each == "CONFIG" else each for each in arguments]
    line = [sys.executable, "-W", "error", "-c", LIGHT, command, "main", *given]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_goes_away_is_no_traceback(config_path: Path) -> None:
    program = "from trainer.cli import main; raise SystemExit(main())"
    command = shlex.join([sys.executable, "-c", program, str(config_path), "--dry-run"])
    done = subprocess.run(f"{command} | true", shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["optimiser.lr=1"], "roll-train: override 'optimiser.lr=1': unknown key 'optimiser.lr'; did you mean 'opti"),
        (["env.id=roll/FrozenLak-v0"], "roll-train: no environment 'roll/FrozenLak-v0'; did you mean 'roll/FrozenLake"),
        (
            ["advantage.name=grp0"],
            "roll-train: override 'advantage.name=grp0': no advantage estimator 'grp0'; did you mean 'grpo'",
        ),
        (["engine.name=tgi"], "roll-train: override 'engine.name=tgi': no engine 'tgi'; known: 'hf', 'openai', "),
        (["engine.name=vllm"], "roll-train: override 'engine.name=vllm': the model has attention heads 24 wide, and"),
        (
            ["learner.backend=apex"],
            "roll-train: override 'learner.backend=apex': no learner backend 'apex'; known: 'deepspeed', 'fsdp2', ",
        ),
        (["loss.name=ppo"], "roll-train: override 'loss.name=ppo': no policy loss 'ppo'; did you mean 'dppo'"),
        (
            ["model.path=nowhere"],
            "roll-train: model.path: no Hugging Face model in 'nowhere' (config.json is missing); g",
        ),
        (["cluster=slurm"], "roll-train: override 'cluster=slurm': cluster is 'slurm'; allowed: one of 'local', 'ray'"),
        (["seed=x", "steps=y"], "roll-train:\n  override 'seed=x'"),
        (
            ["context.kind=function", "context.function=no_such_module:f"],
            "roll-train: context.function: cannot load 'no_such_module:f': ModuleNotFoundError",
        ),
        (
            ["env={id: only/Counter-v0}", "warm_start.steps=1"],
            "roll-train: warm_start.steps is 1, but only/Counter-v0 is no roll_envs.TextEnv",
        ),
    ],
)
def test_a_mistake_is_one_message_and_leaves_no_folder(
    config_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    overrides: list[str],
    expected: str,
) -> None:
    spec = EnvSpec("only/Counter-v0", entry_point="roll_envs.testing:CounterEnv", max_episode_steps=9)
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    assert main([str(config_path), *overrides]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(expected)
    assert shown.out == ""
    assert not (tmp_path / "runs").exists()


def test_a_warm_start_without_an_oracle_is_told(
    config_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FrozenLakeEnv, "oracle", TextEnv.oracle)
    assert main([str(config_path), "--dry-run", "warm_start.steps=1"]) == 0
    assert "roll/FrozenLake-v0 has no oracle: the warm start shows random actions alone." in capsys.readouterr().out
    assert main([str(config_path), "--dry-run", "warm_start={steps: 1, learn_random: false}"]) == 2
    said = "roll-train: warm_start.steps is 1, but roll/FrozenLake-v0 has no oracle, and random actions are not learnt"
    assert capsys.readouterr().err.startswith(said)
    # In a mix the others are learnt.
    both = "envs: [{name: lake, id: roll/FrozenLake-v0}, {name: box, id: roll/SimpleSokoban-v0}]"
    config_path.write_text(TEXT.replace("env: {id: roll/FrozenLake-v0}", both))
    assert main([str(config_path), "--dry-run", "warm_start={steps: 1, learn_random: false}"]) == 0
    assert "roll/FrozenLake-v0 has no oracle: the warm start shows nothing of it that is l" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "arguments", "said"),
    [
        (
            main,
            ["resum", "runs/x", "--steps", "3"],
            "roll-train: no command or configuration file 'resum'; did you mea",
        ),
        (main, ["Export"], "roll-train: no command or configuration file 'Export'; did you mean 'export'"),
        (main, ["nope"], "roll-train: no configuration file 'nope'"),
        (main_eval, ["rescor", "x"], "roll-eval: no command, run or configuration file 'rescor'; did you mean"),
    ],
)
def test_a_command_that_is_misspelt_names_the_nearest(
    command: Callable[[list[str]], int], arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(arguments) == 2
    assert capsys.readouterr().err.startswith(said)


def test_a_configuration_may_have_almost_the_name_of_a_command(
    config_path: Path, monkeypatch: pytest.MonkeyPatch, loop: types.SimpleNamespace
) -> None:
    monkeypatch.chdir(config_path.rename(config_path.with_name("resum")).parent)
    assert main(["resum"]) == 0


def test_training_gets_the_resolved_configuration_and_a_folder(
    config_path: Path, tmp_path: Path, loop: types.SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(config_path), "optimizer.lr=1e-3", "--output", str(tmp_path / "here")]) == 0
    ((_, config, folder),) = loop.seen
    assert config.optimizer.lr == 1e-3
    assert folder.parent == tmp_path / "here"
    assert RunFolder.open(folder).config == config
    assert f"roll-eval {folder}" in capsys.readouterr().out


def test_an_interrupt_says_how_to_go_on(
    config_path: Path, loop: types.SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    loop.work = raising(KeyboardInterrupt())
    assert main([str(config_path)]) == 130
    assert "Stopped before the first checkpoint" in capsys.readouterr().out

    def saved(folder: RunFolder) -> None:
        save_one(folder)
        raise KeyboardInterrupt

    loop.work = saved
    assert main([str(config_path)]) == 130
    folder = loop.seen[-1][2]
    assert f"roll-train resume {folder}" in capsys.readouterr().out


def test_an_error_while_training_names_the_folder(
    config_path: Path, loop: types.SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    loop.work = raising(RollError("the disk is full"))
    assert main([str(config_path)]) == 2
    assert capsys.readouterr().err == f"roll-train:\n  the disk is full\n  run folder: {loop.seen[0][2]}\n"


def test_a_run_goes_on_where_nothing_can_be_printed(
    config_path: Path, loop: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of the log is full, or the reader of a pipe is gone: the exit status tells, and the run is whole."""
    reader, writer = os.pipe()
    os.close(reader)
    for number in (os.open("/dev/full", os.O_WRONLY), writer):
        with monkeypatch.context() as patched, open(number, "w") as stdout:
            patched.setattr(sys, "stdout", stdout)
            assert main([str(config_path)]) == 1
    assert [name for name, *_ in loop.seen] == ["train", "train"]


def test_faults_of_ours_keep_their_traceback(config_path: Path, loop: types.SimpleNamespace) -> None:
    loop.work = raising(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        main([str(config_path)])
    loop.work = raising(ModuleNotFoundError("no", name="somebodys_package"))
    with pytest.raises(ModuleNotFoundError):
        main([str(config_path)])


def test_a_missing_part_names_the_pip_command(
    config_path: Path, loop: types.SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    loop.work = raising(ModuleNotFoundError("No module named 'torch'", name="torch"))
    assert main([str(config_path)]) == 2
    assert "pip install 'roll-envs[train]'" in capsys.readouterr().err


def test_resume_takes_a_run_or_a_checkpoint_of_it(
    config_path: Path, loop: types.SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    loop.work = save_one
    main([str(config_path)])
    run = loop.seen[0][2]
    loop.work = lambda folder: None
    checkpoint = run / "checkpoints" / "step-000001"
    assert main(["resume", str(run), "--steps", "9"]) == 0
    assert main(["resume", str(checkpoint)]) == 0
    assert loop.seen[1:] == [("resume", run, 9, None), ("resume", run, None, checkpoint)]
    assert main(["resume", str(run) + "x"]) == 2
    assert "no run folder" in capsys.readouterr().err


def test_evaluation_prints_a_table_or_json(
    config_path: Path, loop: types.SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(config_path.parent)
    config_path.rename(config_path.with_name("config.yaml"))
    assert main_eval([run, "--tasks", "8", "--temperature", "0", "--env", "x", "--seed", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["success"] == 0.5
    assert loop.seen == [("evaluate", run, {"tasks": 8, "seed": 4, "env_id": "x", "temperature": 0.0})]
    assert main_eval([run]) == 0
    assert "0.200-0.800" in capsys.readouterr().out
    assert loop.seen[1][2] == {"tasks": None, "seed": None, "env_id": None, "temperature": None}
    loop.work = raising(CheckpointError("no checkpoint"))
    assert main_eval([run]) == 2
    assert capsys.readouterr().err == "roll-eval: no checkpoint\n"
    loop.work = raising(KeyboardInterrupt())
    assert main_eval([run]) == 130


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (main, []),
        (main, ["a.yaml", "--nope"]),
        (main, ["resume"]),
        (main, ["resume", "run", "--steps", "-1"]),
        (main_eval, ["run", "--tasks", "0"]),
        (main_eval, ["run", "--temperature", "-1"]),
        (main_eval, ["run", "--temperature", "nan"]),
    ],
)
def test_wrong_options_exit_with_2(
    command: Callable[[list[str]], int], arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        command(arguments)
    assert caught.value.code == 2
    assert "usage: roll-" in capsys.readouterr().err


def test_what_is_missing_is_named_and_nothing_that_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().err.endswith("required: CONFIG\n")
