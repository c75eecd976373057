"""What a person sees: plan, progress with the time left, tables, episodes, summary and pictures."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from episode_builders import TASK, trajectory, turn
from rich.console import Console

from roll_envs.errors import MissingExtraError, RollError
from roll_envs.testing import CounterEnv
from roll_envs.types import Outcome, Trajectory
from trainer.config import EnvConfig, EvaluationConfig, ModelConfig, RolloutConfig, RunConfig, WarmStartConfig
from trainer.config.load import load_config, parse_config
from trainer.rollout.records import episode_board, episode_headline, episode_text
from trainer.run import plot, report
from trainer.run.evaluate import PhaseResult, evaluation_metrics, phase_result, summary
from trainer.run.explain import unread
from trainer.run.folder import RunFolder
from trainer.run.plot import plot_run, plot_runs, read_curve
from trainer.run.report import Report, duration_words, estimate_parameters, planned_phases

CONFIG = RunConfig(
    format=1,
    name="lake",
    seed=2,
    steps=40,
    env=EnvConfig(id="roll/FrozenLake-v0", kwargs={"size": 4}),
    warm_start=WarmStartConfig(steps=10),
    evaluation=EvaluationConfig(tasks=256, every=10),
)
BEFORE = PhaseResult(
    name="before", tasks=256, success=0.25, interval_low=0.2, interval_high=0.31, turns=6.0,
    valid_action_rate=0.9, mean_return=0.2, seconds=3.0,
)  # fmt: skip
AFTER = replace(BEFORE, name="after", success=0.875, interval_low=0.83, interval_high=0.91, step=40, failed=2)


def printer(*, terminal: bool = False, width: int = 100, interval_s: float = 10.0) -> tuple[Report, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, highlight=False, legacy_windows=False)
    return Report(console, interval_s=interval_s), out


def board(text: str, answer: str, *, reward: float = 0.0, valid: bool = True, success: bool = False) -> Trajectory:
    one = turn(anchor=text, reward=reward, info={"action_is_valid": valid, "success": success})
    return trajectory(replace(one, text=answer, observation=text[::-1]))


@pytest.mark.parametrize(
    ("rollout", "words"),
    [
        ({}, None),
        ({"redundancy": 2}, "2 groups more than needed, late ones in rounds of their own"),
        ({"mode": "overlap"}, "beside learning, with weights of at most 1 step ago"),
        ({"mode": "async", "max_staleness": 3}, "of at most 3 steps ago that change in mid-episode"),
    ],
)
def test_the_plan_says_how_episodes_are_played(rollout: dict[str, Any], words: str | None) -> None:
    shown, out = printer(width=160)
    shown.print_plan(CONFIG.model_copy(update={"rollout": RolloutConfig(**rollout)}), folder="runs/lake")
    assert words in out.getvalue() if words else "\nepisodes " not in out.getvalue()


def test_the_plan_counts_steps_and_episodes() -> None:
    assert [(p.name, p.steps, p.episodes) for p in planned_phases(CONFIG)] == [
        ("warm start", 10, 640),
        ("evaluation before", 1, 256),
        ("training", 40, 40 * 16 * 8),
        ("evaluation during", 3, 3 * 256),
        ("evaluation after", 1, 256),
    ]
    assert "plays the oracle's action" in planned_phases(CONFIG)[0].detail
    taught = CONFIG.warm_start.model_copy(update={"teacher": {"url": "http://127.0.0.1/v1", "model": "m"}})
    detail = planned_phases(CONFIG.model_copy(update={"warm_start": taught}))[0].detail
    assert detail == "64 episodes of the model m; those that succeed are learnt from"


def test_phases_of_no_steps_are_left_out() -> None:
    plain = RunConfig(format=1, name="a", steps=0, env=EnvConfig(id="x"))
    assert [p.name for p in planned_phases(plain)] == ["evaluation before"]


@pytest.mark.parametrize("heads", [{}, {"heads": 8, "head_width": 6}, {"kv_heads": 2, "head_width": 16}])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_the_estimate_is_the_number_of_parameters(architecture: str, heads: dict[str, int]) -> None:
    from trainer.model.network import build_model
    from trainer.run.report import VOCABULARY

    values = {"architecture": architecture, "hidden_size": 32, "layers": 2, "mlp_ratio": 2.0, **heads}
    model = ModelConfig.model_validate(values)
    built = build_model(model, CounterEnv(), 0)
    width = heads.get("head_width", 8)
    projections = built.network.model.layers[0].self_attn
    assert projections.q_proj.weight.shape == (heads.get("heads", 4) * width, 32)
    assert projections.k_proj.weight.shape == (heads.get("kv_heads", heads.get("heads", 4)) * width, 32)
    words = len(built.tokenizer) - VOCABULARY
    assert estimate_parameters(model, vocabulary=VOCABULARY + words) == built.parameters


def test_the_plan_is_printed_with_what_matters() -> None:
    shown, out = printer()
    shown.print_plan(CONFIG, folder="runs/lake", parameters=12345)
    text = out.getvalue()
    for words in ("roll/FrozenLake-v0 (size=4)", "12,345 parameters", "runs/lake", "40 steps", "5,120"):
        assert words in text


def test_the_plan_names_settings_that_nothing_reads() -> None:
    tree = Path(__file__).parents[2]
    for path in tree.glob("configs/**/*.yaml"):
        assert not unread(load_config(path)), path
    idle = [
        "critic.lr=1",
        "critic.backend=fsdp2",
        "reference.refresh_every=2",
        "loss.kl_estimator=k1",
        "learner.lora_alpha=3",
        "placement.learner.restarts=4",
    ]
    shown, out = printer()
    shown.print_plan(load_config(tree / "configs/frozenlake_tiny.yaml", [*idle, "warm_start.steps=0"]))
    text = " ".join(out.getvalue().split())
    for words in (
        "warm_start.lr (warm_start.steps is 0)",
        "critic.lr (advantage.name 'gigpo' needs no critic)",
        "critic.backend (advantage.name 'gigpo' needs no critic)",
        "reference.refresh_every (loss.kl_coef and reward.kl_coef are 0)",
        "loss.kl_estimator (loss.kl_coef is 0)",
        "learner.lora_alpha",
        "placement.learner.restarts",
    ):
        assert words in text


def test_the_plan_names_no_setting_of_the_recipe_and_none_that_shapes_the_optimiser() -> None:
    text = "format: 1\nname: a\nsteps: 1\nenv: {id: x}\nalgorithm: reinforce_pp_baseline\nloss: {kl_coef: 0}\n"
    assert not unread(parse_config(text, ["optimizer.weight_decay=0", "optimizer.decay_embeddings=false"]))
    assert list(unread(parse_config(text, ["loss.kl_estimator=k1"]))) == ["loss.kl_estimator"]


def test_lines_about_every_interval_when_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, out = printer(interval_s=10.0)
    now = 0.0
    monkeypatch.setattr(report.time, "monotonic", lambda: now)
    with shown.phase("training", 30) as progress:
        for step in range(30):
            now += 1.0
            progress.advance(success=step / 30, episodes=step)
    assert out.getvalue().splitlines() == [
        "training: 10/30 · 10 s, about 20 s left · success 0.3 · episodes 9",
        "training: 20/30 · 20 s, about 10 s left · success 0.633 · episodes 19",
        "training: 30/30 · 30 s · success 0.967 · episodes 29",
    ]
    assert "\x1b" not in out.getvalue()


def test_the_time_left_of_a_resumed_phase_goes_by_its_own_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, out = printer(interval_s=10.0)
    now = 0.0
    monkeypatch.setattr(report.time, "monotonic", lambda: now)
    with shown.phase("training", 30, 20) as progress:
        for _ in range(10):
            now += 5.0
            progress.advance()
    assert out.getvalue().splitlines() == [
        "training: 22/30 · 10 s, about 40 s left",
        "training: 24/30 · 20 s, about 30 s left",
        "training: 26/30 · 30 s, about 20 s left",
        "training: 28/30 · 40 s, about 10 s left",
        "training: 30/30 · 50 s",
    ]


def test_an_interrupted_phase_says_so() -> None:
    shown, out = printer()

    def interrupted() -> None:
        with shown.phase("training", 30) as progress:
            progress.advance(3)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert out.getvalue().startswith("training: 3/30")
    assert "stopped" in out.getvalue()


def test_bars_on_a_terminal() -> None:
    shown, out = printer(terminal=True, width=120)
    with shown.phase("training", 4) as progress:
        for _ in range(4):
            progress.advance(success=0.5)
    text = out.getvalue()
    assert "4/4" in text
    assert "left" in text
    assert "success 0.5" in text


def test_the_evaluation_table() -> None:
    shown, out = printer()
    shown.print_evaluation_table([BEFORE, AFTER])
    text = out.getvalue()
    for words in ("0.250", "0.875", "0.830-0.910", "0.900", "256", "6.00"):
        assert words in text
    assert "Success 0.250 -> 0.875 (the intervals do not overlap)." in text
    assert "after: 2 episodes failed for reasons of ours" in text
    shown.print_evaluation_table([BEFORE, replace(BEFORE, interval_low=0.25)])
    assert "(the intervals overlap)" in out.getvalue()


def test_evaluations_of_one_name_are_told_apart_and_long_names_are_whole() -> None:
    shown, out = printer()
    long = replace(AFTER, name="roll/FrozenLakeSlippery-v0 at step 4")
    shown.print_evaluation_table([BEFORE, replace(AFTER, step=20), replace(AFTER, step=40), long])
    cells = [line.strip().split("  ")[0] for line in out.getvalue().splitlines()]
    assert "after, step 20" in cells
    assert "after, step 40" in cells
    assert "before" in cells
    assert "roll/FrozenLakeSlippery-v0" in "".join(cells)


def test_closing_lines_say_where_and_how_to_go_on() -> None:
    shown, out = printer()
    shown.print_closing("runs/lake-seed2", finished=False)
    shown.print_closing("my runs/lake")
    text = out.getvalue()
    assert "roll-eval 'my runs/lake'\n" in text
    assert "Stopped" in text
    assert "look        roll-envs view 'my runs/lake'\n" in text
    assert "tensorboard --logdir runs/lake-seed2/tensorboard" in text
    assert "roll-train resume runs/lake-seed2\n" in text
    assert "set aside" not in text


def test_closing_lines_name_what_was_set_aside(tmp_path: Path) -> None:
    """Nothing else would: it is on the disk until somebody removes it."""
    for name in ("set-aside-step-000002", "set-aside-step-000003"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(bytes(150_000))
    shown, out = printer()
    shown.print_closing("runs/lake", set_aside=sorted(tmp_path.iterdir()))
    said = (
        "set aside   set-aside-step-000002, set-aside-step-000003 in checkpoints/: 0.3 MB; remove what you do not need"
    )
    assert said in " ".join(out.getvalue().split("\n"))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.25, "0.2 s"),
        (7.4, "7 s"),
        (59.7, "1 min 0 s"),
        (83, "1 min 23 s"),
        (3599.9, "1 h 0 min"),
        (7500, "2 h 5 min"),
    ],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration_words(seconds) == words


def test_an_episode_is_shown_with_boards_side_by_side() -> None:
    steps = [turn(anchor=f"P{i}\n_G", info={"action_is_valid": i != 1}) for i in range(3)]
    named = [replace(step, text=name) for step, name in zip(steps, ("Right", "[b]x", "Down"), strict=True)]
    shown, out = printer()
    shown.print_episode("After [red]training", trajectory(*named))
    text = out.getvalue()
    assert "After [red]training" in text
    assert "not solved in 3 turns" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["P0", "P1", "P2"] in [line[:3] for line in lines]
    assert [">", "Right", ">", "[b]x", ">", "Down"] in [line[:6] for line in lines]
    assert ["+0", "+0", "invalid", "+0"] in lines


def test_before_and_after_are_of_the_task_that_was_gained() -> None:
    lost, won = board("lost", "x"), board("won", "y", reward=1.0, success=True)
    shown, out = printer()
    shown.print_before_and_after([won, lost, lost], [won, lost, won])
    assert "Held-out task 2 before training (the first task lost before and won after)" in out.getvalue()
    assert out.getvalue().index("not solved in 1 turn") < out.getvalue().index("Held-out task 2 after training")
    shown, out = printer()
    shown.print_before_and_after([won, lost], [lost, lost])
    assert "Held-out task 0 before training (the first task)" in out.getvalue()
    shown, out = printer()
    shown.print_before_and_after([], [won, lost])  # the first evaluation was in an earlier process
    assert "An episode after training" in out.getvalue()
    shown, out = printer()
    shown.print_before_and_after([won], [])
    assert out.getvalue() == ""


def test_boards_fit_the_width_and_long_things_are_cut(cpu_at_most: Any) -> None:
    long = trajectory(*[turn(anchor="word " * 400) for _ in range(50)])
    lines = episode_board(long, width=80, max_turns=6)
    assert max(map(len, lines)) <= 80
    assert "(44 turns" in "\n".join(lines)
    assert len(lines) < 100
    assert episode_board(trajectory(), width=80) == ["(no turns)"]
    with cpu_at_most(1):  # all of it would take 10 s to wrap
        lines = episode_board(board("wide " * 10 + "\n" + "narrow\n" * 200_000, "Up"))
        assert [line.split()[0] for line in lines[1:4]] == ["wide", "wide", "narrow"]


def test_an_episode_text_shortens_nothing() -> None:
    long = "word " * 400
    text = episode_text(board(long, "a" * 500, valid=False))
    assert long in text
    assert "a" * 500 in text
    assert "not a valid action" in text


def test_what_a_model_writes_commands_no_terminal() -> None:
    hostile = board("map\x1b[2J\tkept", "\x1b]0;title\x07Up\x0e\x9b31m")
    for text in (episode_text(hostile), "\n".join(episode_board(hostile))):
        assert not {c for c in text if c < " " or "\x7f" <= c < "\xa0"} - {"\n", "\t"}
        assert "\ufffd]0;title\ufffdUp" in text


def test_a_failed_episode_says_why() -> None:
    failed = Trajectory(task=TASK, member=0, turns=(), outcome=Outcome(kind="failed", reason="env died"))
    assert "failed (env died) in 0 turns" in episode_headline(failed)


def test_a_phase_is_measured_over_scored_episodes_only() -> None:
    won = board("ab", "x", reward=1.0, success=True)
    lost = trajectory(turn(info={"action_is_valid": False}), turn(info={"action_is_valid": True}), kind="truncated")
    failed = trajectory(turn(reward=-9.0), kind="failed")
    result = phase_result("before", [won, lost, failed], seconds=1.0, step=4)
    assert (result.tasks, result.failed, result.success, result.mean_return) == (2, 1, 0.5, 0.5)
    assert (result.turns, result.valid_action_rate, result.step) == (1.5, pytest.approx(2 / 3), 4)
    assert (result.interval_low, result.interval_high) == pytest.approx((0.0945, 0.9055), abs=1e-3)
    empty = phase_result("before", [], seconds=1.0)
    assert (empty.tasks, empty.interval_low, empty.interval_high) == (0, 0.0, 1.0)
    assert evaluation_metrics(replace(result, environments=(replace(empty, name="e"),))) == {
        **evaluation_metrics(result), "env/e/tasks": 0, "env/e/failed": 0,
    }  # fmt: skip
    report, out = printer()
    report.print_evaluation_table([result, empty])
    assert out.getvalue().count("0.500") == 2, "its success and return; the other has none"
    assert "Success" not in out.getvalue().rpartition("before")[2]


def test_the_summary_is_json_with_seed_versions_and_phases() -> None:
    data = json.loads(json.dumps(summary(CONFIG, [BEFORE, AFTER], {"train": 7.5, "evaluation": 2.0}, k=1)))
    assert (data["name"], data["env"], data["seed"]) == ("lake", "roll/FrozenLake-v0", 2)
    assert data["training_seconds"] == {"train": 7.5, "evaluation": 2.0}
    assert [p["success"] for p in data["phases"]] == [0.25, 0.875]
    assert set(data["versions"]) == {"python", "torch", "transformers", "gymnasium", "roll-envs", "numpy"}
    assert data["cores"] >= 1
    assert (data["total_seconds"], data["k"]) == (9.5, 1)


def test_what_no_episode_was_measured_by_is_no_number_in_the_summary() -> None:
    nothing = phase_result("after", [], seconds=2.0, step=40)
    mixed = replace(BEFORE, environments=(replace(BEFORE, name="a"), replace(nothing, name="b")))
    first, last = json.loads(json.dumps(summary(CONFIG, [mixed, nothing], {})))["phases"]
    assert (last["tasks"], last["seconds"], last["step"], last["name"]) == (0, 2.0, 40, "after")
    assert {last[name] for name in ("success", "interval_low", "interval_high", "turns", "mean_return")} == {None}
    assert [part["success"] for part in (first, *first["environments"])] == [0.25, 0.25, None]


def finished_run(output: Path, seed: int, env_id: str = "roll/FrozenLake-v0") -> Path:
    config = CONFIG.model_copy(update={"output": str(output), "seed": seed, "env": EnvConfig(id=env_id)})
    with RunFolder.create(config) as folder:
        folder.tensorboard_path.rmdir()
        records = [
            {"phase": "train", "step": i, "time": 0.0, plot.SUCCESS: 0.2 + i / 60 + seed / 50, plot.RETURN: i / 40}
            for i in range(1, 41)
        ]
        records[3][plot.RETURN] = "nan"
        folder.metrics_path.write_text("".join(json.dumps(record) + "\n" for record in records))
        folder.save_summary(summary(config, [BEFORE, AFTER], {"train": 1.0}))
    return folder.path


def picture_size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])


def test_a_learning_curve_is_drawn(tmp_path: Path) -> None:
    run = finished_run(tmp_path, 0)
    curve = read_curve(run)
    assert curve.steps.tolist() == list(range(1, 41))
    assert np.isnan(curve.returns[3])
    assert [p.step for p in curve.evaluation] == [0, 40]
    assert plot_run(run) == run / "learning_curve.png"
    assert min(picture_size(run / "learning_curve.png")) > 500
    plain = (run / "learning_curve.png").read_bytes()
    (run / "metrics.jsonl").unlink()
    plot_run(run)
    assert (run / "learning_curve.png").read_bytes() != plain, "the curve itself must be in the picture"


def test_several_seeds_in_one_picture(tmp_path: Path) -> None:
    runs = [finished_run(tmp_path, seed) for seed in (0, 1)]
    assert min(picture_size(plot_runs(runs, tmp_path / "seeds.png"))) > 500
    with pytest.raises(RollError, match="several environments"):
        plot_runs([runs[0], finished_run(tmp_path, 0, "other")], tmp_path / "x.png")
    with pytest.raises(RollError, match="no run folders"):
        plot_runs([], tmp_path / "x.png")


def test_smoothing_by_hand() -> None:
    values = np.array([0.0, 1.0, 2.0, np.nan, 4.0, 5.0])
    assert plot._smooth(values).tolist() == [1.0, 1.0, 7 / 4, 3.0, 11 / 3, 4.5]
    assert plot._smooth(np.array([])).tolist() == []


def test_an_unfinished_or_changed_run_is_not_drawn(tmp_path: Path) -> None:
    with pytest.raises(RollError, match="the run has not finished"):
        plot_run(tmp_path)
    (tmp_path / "summary.json").write_text('{"phases": [{}]}')
    with pytest.raises(RollError, match="cannot be read"):
        plot_run(tmp_path)


def test_without_matplotlib_the_pip_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'roll-envs\[train\]'"):
        plot_run(finished_run(tmp_path, 0))


def test_a_silent_report_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    silent = Report.silent()
    silent.print_plan(CONFIG)
    with silent.phase("training", 2) as progress:
        progress.advance()
    silent.print_closing("x")
    assert capsys.readouterr() == ("", "")
