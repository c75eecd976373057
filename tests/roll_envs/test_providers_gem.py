"""GEM's games, where the package is installed, and the adapter on a small game of our own where it is not."""

from __future__ import annotations

import importlib.util
import random
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import roll_envs
from roll_envs import ConfigError, EnvironmentFaultError, MissingExtraError
from roll_envs.providers import gem, words
from roll_envs.providers.gem import GEMEnv
from roll_envs.testing import check_env

# -- the adapter -------------------------------------------------------------------------------------------------------


class Game:
    """Say the number that was drawn, in two halves of the reward; as GEM's games are."""

    def __init__(self, high: int = 9, max_turns: int | None = 3) -> None:
        self.high, self.max_turns, self._is_random = high, max_turns, max_turns is None

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        random.seed(seed)
        self.secret, self.turns = random.randint(1, self.high), 0
        return "Guess.\n", {"prefix": "Hello.", "suffix": f"1 to {self.high}"}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turns += 1
        said = action.removeprefix("\\boxed{").removesuffix("}")
        if said == "crash":
            raise KeyError(said)
        if not said.isdigit():
            return "not a number", -0.1, True, self.turns == 3, {"suffix": "again"}
        if int(said) == self.secret:
            return "found", 0.5, True, False, {"suffix": "again"}
        if self.turns == 3:
            return "the end", 0.0, True, True, {"suffix": "again"}
        return f"no {random.random()}", 0.5 if self.turns == 1 else 0.0, False, False, {"suffix": "again"}

    def sample_random_action(self) -> str:
        return "\\boxed{7}"


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    fake = types.SimpleNamespace(make=lambda game, **config: Game(**config))
    monkeypatch.setitem(sys.modules, "gem", fake)
    return fake


@pytest.mark.usefixtures("package")
def test_an_episode() -> None:
    env, other = GEMEnv(game="game:Guess-v0"), GEMEnv(game="game:Guess-v0")
    assert env.max_turns == 3
    assert env.action_space.examples == (r"\boxed{7}",) * 4
    assert env.reset(seed=3)[0] == "Hello.\nGuess.\n1 to 9"
    secret = env._game.secret
    before = random.getstate()
    wrong = rf"\boxed{{{secret + 10}}}"
    shown, reward, terminated, truncated, info = env.step(wrong)
    assert random.getstate() == before
    assert (reward, terminated, truncated, info["success"]) == (0.5, False, False, False)
    assert shown.endswith("\nagain")
    other.reset(seed=3)
    assert other.step(wrong)[0] == shown  # what is drawn follows from seed and turn
    shown, reward, terminated, truncated, info = env.step(rf"I think \boxed{{{secret}}}")
    assert (shown, reward, terminated, truncated, info["success"]) == ("found", 0.5, True, False, True)


@pytest.mark.usefixtures("package")
def test_half_of_the_reward_is_no_success() -> None:
    env = GEMEnv(game="game:Guess-v0")
    for _ in range(2):  # nor is what an earlier episode was paid counted
        env.reset(seed=3)
        _, reward, terminated, _, info = env.step(rf"\boxed{{{env._game.secret}}}")
        assert (reward, terminated, info["success"]) == (0.5, True, False)


@pytest.mark.usefixtures("package")
def test_the_last_turn_is_the_end_of_the_game() -> None:
    env = GEMEnv(game="game:Guess-v0")
    env.reset(seed=3)
    results = [env.step(r"\boxed{99}") for _ in range(3)]
    assert [result[2:4] for result in results] == [(False, False), (False, False), (True, False)]


@pytest.mark.usefixtures("package")
def test_an_answer_without_a_box_ends_the_game_as_in_gem() -> None:
    env = GEMEnv(game="game:Guess-v0", format_penalty=-0.5)
    env.reset(seed=3)
    _, reward, terminated, truncated, info = env.step("seven")
    assert (reward, terminated, truncated, info["action_is_valid"]) == (-0.6, True, False, False)
    assert info["reward_parts"] == {"game": -0.1, "format": -0.5}
    env.reset(seed=3)
    assert env.step(r"\boxed{seven}")[4]["action_is_valid"] is False


@pytest.mark.usefixtures("package")
def test_a_game_that_draws_its_limit_has_ours() -> None:
    assert GEMEnv(game="game:Guess-v0", config={"max_turns": None}).max_turns == 100


@pytest.mark.usefixtures("package")
def test_a_game_that_fails_pays_nothing() -> None:
    env = GEMEnv(game="game:Guess-v0")
    env.reset(seed=0)
    with pytest.raises(EnvironmentFaultError, match="GEM's game:Guess-v0 failed at the move 'crash': KeyError"):
        env.step(r"\boxed{crash}")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (LookupError("a page of words"), r"pip install 'roll-envs\[words\]'"),
        (TypeError("unexpected keyword"), r"refuses the config {'high': 2}: unexpected keyword"),
    ],
)
def test_what_cannot_be_made_says_why(
    package: types.SimpleNamespace, error: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "_PACKAGES", ("no_such_package_of_words",))

    def make(game: str, **config: Any) -> Any:
        raise error

    package.make = make
    with pytest.raises(ConfigError, match=said):
        GEMEnv(game="game:Guess-v0", config={"high": 2})


def test_a_game_whose_own_settings_fail_says_so(package: types.SimpleNamespace) -> None:
    package.make = lambda game: 1 + game
    with pytest.raises(ConfigError, match=r"GEM's game:Guess-v0 cannot be made with settings of its own: unsupported"):
        GEMEnv(game="game:Guess-v0")


def test_the_ids_are_those_of_its_games(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gem"
    (folder / "envs").mkdir(parents=True)
    (folder / "envs" / "__init__.py").write_text(
        'register(\n    "game:Guess-v0-hard",\n    "gem.x:Y",\n)\nregister("game:Guess-v1")\nregister("math:GSM8K")\n'
    )
    spec = types.SimpleNamespace(origin=str(folder / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    gem._games.cache_clear()
    try:
        assert gem.ids() == ["gem/Guess-hard-v0", "gem/Guess-v1"]
        card = gem.card("gem/Guess-hard-v0")
        assert (card.kwargs["game"], list(card.versions)) == ("game:Guess-v0-hard", ["v0"])
        (folder / "envs" / "__init__.py").unlink()  # another package of the name
        gem._games.cache_clear()
        assert gem.ids() == []
    finally:
        gem._games.cache_clear()


def test_nothing_is_brought_in_where_the_package_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    gem._games.cache_clear()
    assert gem.ids() == []
    gem._games.cache_clear()
    monkeypatch.setitem(sys.modules, "gem", None)
    with pytest.raises((MissingExtraError, ModuleNotFoundError)):
        GEMEnv(game="game:Sudoku-v0-easy")


# -- the package -------------------------------------------------------------------------------------------------------


def needs_gem(test: Callable[..., None]) -> Any:
    """Slow, since ``make test-slow`` installs it."""
    absent = importlib.util.find_spec("gem") is None
    return pytest.mark.slow(pytest.mark.skipif(absent, reason="needs gem-llm: make .venv/providers.stamp")(test))


@needs_gem
def test_every_game_of_the_package_has_an_id() -> None:
    from gem.envs.registration import ENV_REGISTRY

    assert set(gem._games().values()) == {id for id in ENV_REGISTRY if id.startswith("game:")} - gem._BROKEN
    assert len(gem.ids()) >= 35


@needs_gem
def test_a_game_is_won_by_hand() -> None:
    env = roll_envs.make("gem/TowerofHanoi-easy-v0")
    env.reset(seed=0)
    for move in ("A C", "A B", "C B", "A C", "B A", "B C"):
        assert env.step(rf"\boxed{{{move}}}")[4]["action_is_valid"], move
    _, reward, terminated, _, info = env.step(r"\boxed{A C}")
    assert (reward, terminated, info["success"]) == (1.0, True, True)


@needs_gem
@pytest.mark.parametrize("name", ["GuessTheNumber-random", "Sudoku-easy", "Minesweeper-hard", "Crosswords-easy"])
def test_games_pass_the_check(name: str) -> None:
    report = check_env(f"gem/{name}-v0", seeds=(0, 1, 2))
    assert report.ok, str(report)
