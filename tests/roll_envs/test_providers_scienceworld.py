"""ScienceWorld's tasks: what is shown and played by a simulator made here, and the real one where it is installed."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import roll_envs
from roll_envs import ConfigError, EnvironmentFaultError, MissingExtraError
from roll_envs.providers import scienceworld
from roll_envs.providers.scienceworld import ScienceWorldEnv

# -- the adapter -------------------------------------------------------------------------------------------------------


class Simulator:
    """Half of the task for opening the door, the other half for the frog; touching the snake fails it."""

    WAY = ("open door", "focus on frog")

    def __init__(self, timeout_s: float) -> None:
        self.said = list[str]()
        self.way = self.WAY
        self.loaded = list[tuple[Any, ...]]()
        self.broken = self.closed = False

    def variations(self, task: str) -> dict[str, list[int]]:
        return {"train": [0, 1, 2], "dev": [3], "test": [4, 5]}

    def ask(self, method: str, *arguments: Any) -> Any:
        if self.broken:
            raise EnvironmentFaultError("gone")
        return getattr(self, method)(*arguments)

    def load(self, *arguments: Any) -> None:
        self.loaded.append(arguments)
        self.said.clear()

    def step(self, command: str) -> str:
        self.said.append(command)
        return "No known action matches that input." if command == "fly" else f"\ud800You {command}.\n"

    def getScore(self) -> float:
        return -1.0 if "touch snake" in self.said else sum(each in self.said for each in self.WAY) / 2

    def getCompleted(self) -> bool:
        return self.getScore() == 1

    def getTaskDescription(self) -> str:
        return "Find a frog."

    def getValidActionObjectCombinations(self) -> list[str]:
        return ["open door", "reset task", "look at frog", "look at frog"]

    def getGoldActionSequence(self) -> list[str]:
        return [*self.way, "wait"]

    def freeActionLook(self) -> str:
        return f"door open: {'open door' in self.said}"

    def freeActionInventory(self) -> str:
        return ""

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(scienceworld, "imported", lambda *_: None)
    monkeypatch.setattr(scienceworld, "_names", lambda: ("find-animal",))
    monkeypatch.setattr(scienceworld, "_Simulator", Simulator)
    monkeypatch.setattr(scienceworld, "_ways", {})
    monkeypatch.setattr(shutil, "which", lambda name: name)
    return ScienceWorldEnv(task="find-animal", simplifications=("openDoors",), max_turns=4)


def answered(text: str) -> str:
    return f"<answer>{text}</answer>"


def test_an_episode(env: Any) -> None:
    shown, info = env.reset(seed=4)
    assert (shown, info["split"]) == ("Find a frog.\n\n?You look around.", "train")
    assert env._simulator.loaded == [("find-animal", 1, "openDoors", False)]
    assert env.legal_answers() == [answered("look at frog"), answered("open door")]
    _, reward, _, _, info = env.step(answered("wait"))
    assert (reward, info["action_is_valid"], info["action_is_effective"]) == (0.0, True, False)
    _, reward, _, _, info = env.step(answered(" open   door "))
    assert (reward, info["action_is_effective"]) == (0.5, True)
    assert env.step(answered("fly"))[4]["action_is_valid"] is False
    _, reward, terminated, truncated, info = env.step(answered("focus on frog"))
    assert (reward, terminated, truncated, info["success"]) == (0.5, True, False, True)
    assert (env.legal_answers(), env.oracle()) == ([], None)


def test_a_wrong_choice_ends_it(env: Any) -> None:
    env.reset(seed=0)
    env.step(answered("open door"))
    _, reward, terminated, _, info = env.step(answered("touch snake"))
    assert (reward, terminated, info["success"]) == (-1.5, True, False)


def test_splits_are_the_package_s_variations(env: Any) -> None:
    for split, seeds in {"dev": (0, 1), "test": (0, 1, 2)}.items():
        for seed in seeds:
            env.reset(seed=seed, options={"split": split})
    assert [each[1] for each in env._simulator.loaded] == [3, 3, 4, 5, 4]
    with pytest.raises(ConfigError, match="split is 'validation'"):
        env.reset(seed=0, options={"split": "validation"})


def test_the_way_is_asked_for_once_and_leaves_the_episode_where_it_was(env: Any) -> None:
    env.reset(seed=0)
    env.step(answered("open door"))
    assert env.oracle() == [answered("focus on frog")]
    assert env._simulator.said == ["look around", "open door"]
    assert [gold for *_, gold in env._simulator.loaded] == [False, True, False, False]
    assert env.oracle() == [answered("focus on frog")]
    assert len(env._simulator.loaded) == 4
    assert env.step(answered("focus on frog"))[1] == 0.5
    env.reset(seed=3)  # the same variation
    assert env.oracle() == [answered("open door"), answered("focus on frog")]
    env.step(answered("wait"))
    assert env.oracle() is None
    assert sum(gold for *_, gold in env._simulator.loaded) == 1
    env.reset(seed=1)
    env.oracle()
    assert sum(gold for *_, gold in env._simulator.loaded) == 2


def test_the_way_is_in_the_words_of_the_list_of_commands(env: Any) -> None:
    env.reset(seed=0)
    env._simulator.way = ("examine frog", "drop frog", "open door", "focus on frog")
    said = ("look at frog", "put down frog", "open door", "focus on frog")
    assert env.oracle() == [answered(command) for command in said]


@pytest.mark.parametrize("way", [("open door",), ("touch snake", "open door"), ()])
def test_a_way_that_does_not_solve_the_task_is_none(env: Any, way: tuple[str, ...]) -> None:
    env.reset(seed=0)
    env._simulator.way = way
    assert env.oracle() is None


def test_what_the_first_look_earns_is_paid_with_the_first_command(env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Simulator, "WAY", ("look around", "focus on frog"))
    for asks in (False, True):
        env.reset(seed=0)
        if asks:
            env.oracle()
        assert env.step(answered("wait"))[1] == 0.5


def test_a_way_that_does_not_fit_is_none(env: Any) -> None:
    env.reset(seed=0)
    for _ in range(3):
        env.step("nothing to read")
    assert env.oracle() is None


@pytest.mark.parametrize("move", ["Reset Task", "", "söze", "x" * 201, "a\0b", "\ud800"])
def test_what_is_no_command_does_not_reach_the_simulator(env: Any, move: str) -> None:
    env.reset(seed=0)
    _, _, terminated, _, info = env.step(answered(move))
    assert (terminated, info["action_is_valid"]) == (False, False)
    assert env._simulator.said == ["look around"]


def test_a_simulator_that_fails_is_a_fault_and_is_replaced(env: Any) -> None:
    env.reset(seed=0)
    first = env._simulator
    first.broken = True
    with pytest.raises(EnvironmentFaultError, match="gone"):
        env.step(answered("open door"))
    assert first.closed
    env.reset(seed=0)
    assert env.step(answered("open door"))[1] == 0.5


def test_settings_that_do_not_fit(env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no task 'fly'; it has find-animal"):
        ScienceWorldEnv(task="fly")
    with pytest.raises(ConfigError, match=r"no simplification 'opendoors'; it has .*openDoors"):
        ScienceWorldEnv(task="find-animal", simplifications=("opendoors",))
    for timeout_s in (0, float("nan"), "long"):
        with pytest.raises(ConfigError, match=r"timeout_s is .*; give a number of seconds above 0"):
            ScienceWorldEnv(task="find-animal", timeout_s=timeout_s)  # type: ignore[arg-type]
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="needs Java"):
        ScienceWorldEnv(task="find-animal")


def test_tasks_are_listed_without_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scienceworld").mkdir()
    (tmp_path / "scienceworld/__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "scienceworld/tasks.json").write_text(json.dumps([{"task_name": "melt"}, {"task_name": "boil"}]))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "scienceworld", raising=False)
    scienceworld._names.cache_clear()
    assert scienceworld.ids() == ["scienceworld/boil-v0", "scienceworld/melt-v0"]
    assert scienceworld.card("scienceworld/boil-v0").kwargs == {"task": "boil"}
    scienceworld._names.cache_clear()


def test_nothing_is_brought_in_where_the_package_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    scienceworld._names.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert scienceworld.ids() == []
    scienceworld._names.cache_clear()
    monkeypatch.setitem(sys.modules, "scienceworld", None)
    with pytest.raises((MissingExtraError, ModuleNotFoundError)):
        ScienceWorldEnv(task="boil")


# -- the package -------------------------------------------------------------------------------------------------------


def needs_scienceworld(test: Callable[..., None]) -> Any:
    """Slow, since ``make test-slow`` installs it."""
    absent = importlib.util.find_spec("scienceworld") is None or shutil.which("java") is None
    reason = "needs scienceworld (make .venv/providers.stamp) and Java"
    return pytest.mark.slow(pytest.mark.skipif(absent, reason=reason)(test))


@needs_scienceworld
def test_the_package_s_way_solves_its_task_the_same_in_a_used_simulator() -> None:
    env: Any = roll_envs.make("scienceworld/find-living-thing-v0")
    first = env.reset(seed=3)[0]
    way = env.oracle()
    assert way
    results = [env.step(answer) for answer in way]
    assert sum(reward for _, reward, *_ in results) == pytest.approx(1)
    assert results[-1][4]["success"] is True
    process = env._simulator._process
    other: Any = roll_envs.make("scienceworld/find-living-thing-v0")
    other.reset(seed=8, options={"split": "test"})
    for again in (env, other):
        assert again.reset(seed=3)[0] == first
        assert [again.step(answer) for answer in way] == results
        again.close()
    assert process.poll() is not None


@needs_scienceworld
def test_asking_changes_neither_the_answers_nor_how_things_move() -> None:
    played = []
    for asks in (0, 2):
        env: Any = roll_envs.make("scienceworld/find-animal-v0", max_turns=12)
        env.reset(seed=1)
        seen = []
        for _ in range(10):
            assert len({tuple(env.legal_answers()) for _ in range(asks)}) <= 1
            seen.append(env.step(answered("look around")))
        played.append([seen, env.legal_answers()])
        env.close()
    assert played[0] == played[1]


@needs_scienceworld
def test_a_simulator_that_is_killed_is_a_fault() -> None:
    env: Any = roll_envs.make("scienceworld/find-living-thing-v0")
    first = env.reset(seed=0)[0]
    env._simulator._process.kill()
    with pytest.raises(EnvironmentFaultError, match="simulator failed at"):
        env.step(answered("look around"))
    assert env.reset(seed=0)[0] == first
    env.close()


@needs_scienceworld
def test_a_simulator_that_does_not_answer_at_its_start_is_a_fault() -> None:
    env: Any = roll_envs.make("scienceworld/find-living-thing-v0", timeout_s=0.0001)
    with pytest.raises(EnvironmentFaultError, match="simulator does not start"):
        env.reset(seed=0)
