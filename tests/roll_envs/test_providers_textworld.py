"""TextWorld's challenges: what is shown and played of a game, and real games where the package is installed."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import roll_envs
from roll_envs import ConfigError, MissingExtraError
from roll_envs.providers import textworld, textworld_quickly
from roll_envs.providers.isolation import isolated
from roll_envs.providers.textworld import TextWorldEnv
from roll_envs.testing import check_env

# -- the adapter -------------------------------------------------------------------------------------------------------


class State(types.SimpleNamespace):
    def __init__(self, **values: Any) -> None:
        defaults = {
            "feedback": "", "facts": ["here"], "won": False, "lost": False, "score": 0, "max_score": 4,
            "admissible_commands": ["look", "take coin"], "policy_commands": ["take coin"],
        }  # fmt: skip
        super().__init__(**{**defaults, **values})


class Interpreter:
    """Two of four points for the coin, all of them for the second."""

    def __init__(self) -> None:
        self.loaded, self.said = list[str](), list[str]()
        self.unwrapped = types.SimpleNamespace(_jericho=types.SimpleNamespace(_cache={}, close=lambda: None))
        self.seeds = list[int]()

    def seed(self, seed: int) -> None:
        self.seeds.append(seed)

    def load(self, path: str) -> None:
        self.loaded.append(path)

    def reset(self) -> State:
        return State(feedback="   $$\\ __ /\n\nWelcome!\n\n\n\n-= Attic =-\nDust.\n\n>       -= Attic =-0/1")

    def step(self, command: str) -> tuple[State, int, bool]:
        self.said.append(command)
        if command == "die":
            return State(feedback="You die.", lost=True), 0, True
        score = 2 * sum(said == "take coin" for said in self.said)
        facts = ["here", *["coin"] * score]
        return State(feedback="\nTaken.\n\n> ", facts=facts, score=score, won=score == 4), score, score == 4

    def close(self) -> None:
        self.loaded.append("closed")


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> Interpreter:
    made = Interpreter()

    def start(path: str, asked: Any) -> Interpreter:
        made.load(path)
        return made

    package = types.SimpleNamespace(EnvInfos=lambda **values: values, start=start)
    monkeypatch.setattr(textworld, "imported", lambda *_: package)
    monkeypatch.setattr(textworld, "_game", lambda challenge, config, seed: {".z8": b"", ".json": b""})
    return made


def answered(text: str) -> str:
    return f"<answer>{text}</answer>"


def test_an_episode(interpreter: Interpreter) -> None:
    env = TextWorldEnv(challenge="tw-coin_collector", config={"level": 1})
    assert env.reset(seed=1)[0] == "Welcome!\n\n-= Attic =-\nDust."
    assert env.legal_answers() == [answered("look"), answered("take coin")]
    assert env.oracle() == [answered("take coin")]
    shown, reward, terminated, _, info = env.step(answered("Look"))
    assert (shown, reward, terminated) == ("Taken.", 0.0, False)
    assert (info["action_is_valid"], info["action_is_effective"]) == (True, False)
    _, reward, terminated, _, info = env.step(answered("take  coin. take coin"))
    assert (reward, terminated, info["success"], info["action_is_effective"]) == (0.5, False, False, True)
    _, reward, terminated, _, info = env.step(answered("take coin then go north"))
    assert (reward, terminated, info["success"]) == (0.5, True, True)
    assert interpreter.said == ["Look", "take coin", "take coin"]
    assert (env.legal_answers(), env.oracle()) == ([], None)
    env.reset(seed=2)
    assert interpreter.seeds == [1, 2]
    assert len(set(interpreter.loaded)) == 2  # one interpreter for both games
    assert env.step(answered("die"))[2] is True
    env.close()
    env.close()
    assert interpreter.loaded.count("closed") == 1


@pytest.mark.usefixtures("interpreter")
def test_a_way_that_is_longer_than_the_turns_left_is_none() -> None:
    env = TextWorldEnv(challenge="tw-coin_collector", config={"level": 1}, max_turns=2)
    env.reset(seed=1)
    env._state.policy_commands = ["go north", "take coin"]
    assert env.oracle() is not None
    env.step(answered("look"))
    env._state.policy_commands = ["go north", "take coin"]
    assert env.oracle() is None


@pytest.mark.usefixtures("interpreter")
def test_what_lies_somewhere_may_be_taken_without_its_place() -> None:
    env = TextWorldEnv(challenge="tw-cooking")
    env.reset(seed=1)
    env._state.admissible_commands = ["look", "examine American gate", "take red onion from counter"]
    assert env.legal_answers() == [
        *map(answered, ["look", "examine American gate", "take red onion from counter", "take red onion"])
    ]
    for command in ("Take red onion", "examine American gate"):
        env._state.admissible_commands = ["examine American gate", "take red onion from counter"]
        info = env.step(answered(command))[4]
        assert (info["action_is_valid"], info["action_is_effective"]) == (True, False)


@pytest.mark.parametrize("move", ["save", "Quit", "undo please", "...", "söze", "x" * 151, "a\0b"])
def test_what_is_no_command_does_not_reach_the_interpreter(interpreter: Interpreter, move: str) -> None:
    env = TextWorldEnv(challenge="tw-coin_collector", config={"level": 1})
    env.reset(seed=1)
    _, _, terminated, _, info = env.step(answered(move))
    assert (terminated, info["action_is_valid"], interpreter.said) == (False, False, [])


def test_ids_and_their_settings() -> None:
    found = textworld._challenges()
    assert len(found) == 101
    assert found["textworld/CoinCollector-level220-v0"] == ("tw-coin_collector", {"level": 220})
    assert textworld.card("textworld/Simple-dense-none-v0").kwargs["config"]["rewards"] == "dense"


def test_splits_are_the_package_s(interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[tuple[str, dict[str, Any]]]()

    def game(challenge: str, config: tuple[tuple[str, Any], ...], seed: int) -> dict[str, bytes]:
        made.append((challenge, dict(config)))
        return {".z8": b"", ".json": b""}

    monkeypatch.setattr(textworld, "_game", game)
    cooking = TextWorldEnv(challenge="tw-cooking", config={"recipe": 2})
    assert cooking.splits == ("all", "train", "valid", "test")
    for split in cooking.splits:
        assert cooking.reset(seed=1, options={"split": split})[1]["split"] == split
    assert [each["split"] for _, each in made] == [None, None, "train", "valid", "test"]
    assert all(each["recipe"] == 2 for _, each in made)
    made.clear()
    simple = TextWorldEnv(challenge="tw-simple", config={"rewards": "dense", "goal": "brief", "test": False})
    simple.reset(seed=1)
    simple.reset(seed=1, options={"split": "test"})
    assert [each["test"] for _, each in made] == [False, False, True]
    assert TextWorldEnv(challenge="tw-cooking", config={"split": "test"}).splits == ()
    assert TextWorldEnv(challenge="tw-coin_collector", config={"level": 1}).splits == ()
    assert "valid" in textworld.card("textworld/Cooking-v0").splits


def test_nothing_is_brought_in_where_the_package_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert textworld.ids() == []
    monkeypatch.setitem(sys.modules, "textworld", None)
    with pytest.raises((MissingExtraError, ModuleNotFoundError)):
        TextWorldEnv(challenge="tw-simple")


# -- the package -------------------------------------------------------------------------------------------------------


def needs_textworld(test: Callable[..., None]) -> Any:
    """Slow, since ``make test-slow`` installs it."""
    absent = importlib.util.find_spec("textworld") is None
    return pytest.mark.slow(pytest.mark.skipif(absent, reason="needs textworld: make .venv/providers.stamp")(test))


@needs_textworld
@pytest.mark.parametrize(
    "id", ["CoinCollector-level105", "TreasureHunter-level12", "Simple-balanced-brief", "Cooking", "Cooking-hard"]
)
def test_the_package_s_way_solves_its_games(id: str) -> None:
    env = roll_envs.make(f"textworld/{id}-v0")
    for seed in (0, 1):
        env.reset(seed=seed)
        way = env.oracle()
        assert way
        results = [env.step(answer) for answer in way]
        assert all(info["action_is_valid"] for *_, info in results)
        assert sum(reward for _, reward, *_ in results) == pytest.approx(1)
        assert results[-1][4]["success"] is True
    env.close()


@needs_textworld
@pytest.mark.parametrize(
    "name",
    ["CoinCollector-level105", "TreasureHunter-level14", "TreasureHunter-level22", "Simple-balanced-brief", "Cooking"],
)
def test_games_are_to_the_byte_those_that_the_package_makes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    challenge, settings = textworld._challenges()[f"textworld/{name}-v0"]
    config = TextWorldEnv(challenge=challenge, config=settings)._settings()
    walk, walked = textworld_quickly._walk, []
    monkeypatch.setattr(textworld_quickly, "_walk", lambda *given: walked.append(walk(*given)) or walked[-1])
    with isolated(7):
        ours = textworld._game.__wrapped__(challenge, config, 7)
    assert walked == ([] if name.startswith("TreasureHunter") else [True])
    monkeypatch.setattr(textworld, "quickly", contextlib.nullcontext)
    with isolated(7):
        assert textworld._game.__wrapped__(challenge, config, 7) == ours


@needs_textworld
def test_a_seed_without_a_quest_has_the_game_of_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made = TextWorldEnv(challenge="tw-treasure_hunter", config={"level": 10})
    made.reset(seed=8)
    assert made.oracle()
    made.close()
    make = textworld._game.__wrapped__
    with isolated(0):
        assert make("tw-treasure_hunter", (("level", 10),), 8) == make("tw-treasure_hunter", (("level", 10),), 8)
    monkeypatch.setattr(textworld_quickly, "_LONGEST_SEARCH", 3)
    with pytest.raises(ConfigError, match="found no game for the config"):
        make("tw-treasure_hunter", (("level", 10),), 8)


@needs_textworld
def test_real_splits_have_other_food() -> None:
    env: Any = roll_envs.make("textworld/Cooking-v0")
    starts = {split: env.reset(seed=2, options={"split": split})[0] for split in env.splits}
    assert env.oracle()
    assert len(set(starts.values())) == 4
    env.close()


@needs_textworld
def test_the_interpreter_keeps_one_game_only() -> None:
    env: Any = roll_envs.make("textworld/TreasureHunter-level1-v0")
    sizes = []
    for seed in range(40):
        env.reset(seed=seed % 4)
        sizes.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)
    assert len(env._env.unwrapped._jericho._cache) == 1
    assert sizes[-1] - sizes[9] < 6 * 2**20  # 24 MiB where each game stays
    env.close()


@needs_textworld
def test_a_game_passes_the_check() -> None:
    report = check_env("textworld/TreasureHunter-level3-v0", seeds=(0, 1))
    assert report.ok, str(report)


@needs_textworld
@pytest.mark.parametrize(
    ("challenge", "config", "said"),
    [
        ("tw-chess", {}, "has no challenge 'tw-chess'; it has tw-coin_collector"),
        ("tw-coin_collector", {"level": 301}, r"refuses the config {'level': 301}: ValueError\('Expected level"),
        ("tw-coin_collector", {}, "refuses the config {}: KeyError"),
    ],
)
def test_settings_that_do_not_fit(challenge: str, config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TextWorldEnv(challenge=challenge, config=config)
