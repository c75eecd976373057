"""roll-envs replay: recorded episodes are played again to the letter; where they part from their record is shown."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import roll_envs
from roll_envs.cli import main
from roll_envs.testing import COUNTER_CARD, CounterEnv


class Grumpy(CounterEnv):
    """Raises at one answer and hangs at another."""

    open = 0
    begun: list[Any]
    """Arguments and options of each episode."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._given = kwargs
        Grumpy.open += 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        Grumpy.begun.append((self._given, options))
        return super().reset(seed=seed)

    def close(self) -> None:
        Grumpy.open -= 1

    def step(self, action: str) -> Any:
        if action == "raise":
            raise RuntimeError("out of order")
        if action == "hang":
            time.sleep(5)
        return super().step(action)


CARD = replace(COUNTER_CARD, id="test/Grumpy-v0", entry_point=f"{__name__}:Grumpy")


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    roll_envs.register(CARD)
    Grumpy.open, Grumpy.begun = 0, []
    yield
    roll_envs.unregister(CARD.id)


def recorded(
    tmp_path: Path, *, seed: int = 3, answers: tuple[str, ...] = ("More", "Less", "More"), **changes: Any
) -> Path:
    """The trainer's line of an episode with these actions."""
    env = Grumpy()
    shown, _ = env.reset(seed=seed)
    turns: list[dict[str, Any]] = []
    for name in answers:
        text = f"<answer>{name}</answer>"
        turns.append({"prompt_observation": shown, "text": text})
        shown, reward, terminated, truncated, _ = env.step(text)
        ends = {"terminated": terminated, "truncated": truncated}
        turns[-1] |= {"observation": shown, "reward": reward, **ends}
        if terminated or truncated:
            break
    task = {"env_id": CARD.id, "split": "train", "index": 0, "seed": seed, "kwargs": {}}
    entry = {"task": task, "outcome": "completed", "reason": "", "answer": None, "turns": turns, **changes}
    path = tmp_path / "episodes.jsonl"
    with path.open("a") as file:
        file.write(json.dumps(entry) + "\n")
    return path


def replayed(path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, list[dict[str, Any]]]:
    code = main(["replay", str(path), "--json", *more])
    return code, json.loads(capsys.readouterr().out)


def test_an_episode_goes_the_same_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(tmp_path)
    recorded(tmp_path, seed=5, answers=("More",) * 9)
    code, found = replayed(path, capsys)
    assert code == 0
    assert [(f["index"], f["seed"], f["difference"]) for f in found] == [(0, 3, ""), (1, 5, "")]
    assert found[0]["turns"] == 3
    assert Grumpy.open == 2, "those that recorded; what replay makes it closes"
    assert found[0]["total"] == pytest.approx(-0.3)
    assert main(["replay", str(path)]) == 0
    assert "same     0  test/Grumpy-v0 seed 3: 3 of 3 turns, return -0.3" in capsys.readouterr().out


def test_an_episode_begins_with_the_arguments_the_options_and_the_split_of_its_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recorded(tmp_path)
    entry = json.loads(path.read_text())
    entry["task"] |= {"split": "held-out", "kwargs": {"highest": 9}, "options": {"level": 2}}
    path.write_text(json.dumps(entry))
    replayed(path, capsys)
    assert Grumpy.begun[-1] == ({"highest": 9}, {"level": 2, "split": "test"})


def test_what_play_prints_is_played_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Up\nLeft\nDown\nDown\nq\n"))
    assert main(["play", "roll/SimpleSokoban-v0", "--seed", "7", "--json"]) == 0
    (tmp_path / "a.json").write_text(capsys.readouterr().out)
    code, found = replayed(tmp_path / "a.json", capsys)
    assert (code, found[0]["difference"]) == (0, "")
    assert found[0]["turns"] > 3


@pytest.mark.parametrize(
    ("turn", "change", "said"),
    [
        (0, {"prompt_observation": "counter 0, target 9"}, "reset: another observation\n    -counter "),
        (1, {"observation": "counter 7, target 9"}, "turn 2: another observation\n    -counter "),
        (1, {"reward": 0.5}, "turn 2: reward -0.1, recorded 0.5"),
        (2, {"truncated": True}, "turn 3: the episode goes on, but ended"),
        (2, {"text": "raise"}, "after 2 turns: RuntimeError: out of order"),
        (2, {"text": "hang"}, "after 2 turns: gave up waiting for turn 3 after 0.5 s"),
    ],
)
def test_the_first_difference_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], turn: int, change: dict[str, Any], said: str
) -> None:
    path = recorded(tmp_path)
    entry = json.loads(path.read_text())
    entry["turns"][turn] |= change
    path.write_text(json.dumps(entry))
    code, found = replayed(path, capsys, "--timeout", "0.5")
    assert code == 1
    assert found[0]["difference"].startswith(said)
    assert found[0]["turns"] == (0 if "reset" in said else turn)


def test_answers_after_the_end_are_a_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(tmp_path, answers=("Less",) * 6)
    entry = json.loads(path.read_text())
    entry["turns"] += entry["turns"][-1:]
    path.write_text(json.dumps(entry))
    code, found = replayed(path, capsys)
    assert (code, found[0]["difference"]) == (1, "turn 7: the episode is over, and 1 recorded answers are left")


@pytest.mark.parametrize(
    ("answer", "code", "fault", "difference"),
    [
        ("raise", 0, "RuntimeError: out of order", ""),
        ("hang", 0, "gave up waiting for the answer that was being played after 0.5 s", ""),
        ("<answer>More</answer>", 1, "", "it does not fail again; it was: step raised"),
    ],
)
def test_a_failed_episode_fails_again_or_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: str, code: int, fault: str, difference: str
) -> None:
    path = recorded(tmp_path, outcome="failed", reason="step raised", answer=answer)
    found = replayed(path, capsys, "--timeout", "0.5")
    assert (found[0], found[1][0]["fault"], found[1][0]["difference"]) == (code, fault, difference)


def test_the_seed_of_another_task_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(tmp_path)
    entry = json.loads(path.read_text())
    entry["task"]["seed"] = 4
    path.write_text(json.dumps(entry))
    assert replayed(path, capsys)[0] == 1


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(tmp_path)
    for arguments, said in (
        ([str(path), "--index", "1"], "--index must be between 0 and 0, not 1"),
        ([str(path), "--timeout", "0"], "--timeout must be above 0"),
        ([str(tmp_path / "none.json")], "cannot be read"),
    ):
        assert main(["replay", *arguments]) == 2
        assert said in capsys.readouterr().err
    path.write_text('{"id": "test/Nothing-v0", "seed": 1, "turns": []}')
    assert main(["replay", str(path)]) == 1
    assert "no environment 'test/Nothing-v0'" in capsys.readouterr().out
