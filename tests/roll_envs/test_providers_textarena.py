"""TextArena's games, where it is installed, and its adapter on a small game of our own where it is not."""

from __future__ import annotations

import importlib.util
import random
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import roll_envs
from roll_envs import ConfigError, EnvironmentFaultError, MissingExtraError
from roll_envs.providers import textarena, words
from roll_envs.providers.textarena import TextArenaEnv
from roll_envs.testing import check_env

# -- the adapter -------------------------------------------------------------------------------------------------------


class Game:
    """Say the number that was drawn; as TextArena's games are, with one invalid move forgiven."""

    max_turns = 3

    def __init__(self, high: int = 9) -> None:
        if high < 1:
            raise ValueError("high is too low")
        self.high = high

    def reset(self, num_players: int, seed: int) -> None:
        assert num_players == 1
        random.seed(seed)
        self.secret = random.randint(0, self.high)
        self.state = types.SimpleNamespace(
            rewards=None, made_invalid_move=False, game_info={0: {"invalid_move": False}}
        )
        self.news = [(-1, f"0 to {self.high}?", KIND.PROMPT)]

    def get_observation(self) -> tuple[int, list[Any]]:
        news, self.news = self.news, []
        return 0, news

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        print("a line of the game's own")
        self.news.append((0, action, KIND.PLAYER_ACTION))
        said = action.strip("[]")
        if said == "crash":
            raise KeyError(said)
        if said in ("swap", "mix"):
            reason = "Invalid Move: 0.5" if said == "swap" else "Invalid Move: None"
            self.state.rewards, self.state.game_info[0]["reason"] = {0: "a reason"}, reason
            return True, {}
        self.state.made_invalid_move = not said.isdigit()
        if said == str(self.secret):
            self.state.rewards, self.state.game_info[0]["reason"] = {0: 1}, "found"
            return True, {}
        self.news.append((-1, f"no, and a draw says {random.random()}", KIND.GAME_MESSAGE))
        return False, {}


KIND = types.SimpleNamespace(**{n: types.SimpleNamespace(name=n) for n in ("PROMPT", "PLAYER_ACTION", "GAME_MESSAGE")})


class Wrapper:
    def __init__(self, env: Any) -> None:
        self.env = env


class ActionFormattingWrapper(Wrapper):
    pass


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    fake = types.SimpleNamespace(Wrapper=Wrapper, make=lambda game, **config: ActionFormattingWrapper(Game(**config)))
    monkeypatch.setitem(__import__("sys").modules, "textarena", fake)
    return fake


@pytest.mark.usefixtures("package")
def test_an_episode(capsys: pytest.CaptureFixture[str]) -> None:
    env, other = TextArenaEnv(game="Guess-v0", format_penalty=-0.5), TextArenaEnv(game="Guess-v0")
    assert env.max_turns == 6
    assert env.reset(seed=3)[0] == "0 to 9?"
    secret = env._game.secret
    before = random.getstate()
    shown, reward, terminated, truncated, info = env.step("<answer>ten</answer>")
    assert random.getstate() == before
    assert "no, and" in shown
    assert "[ten]" not in shown
    assert (reward, terminated, truncated, info["action_is_valid"], info["success"]) == (
        0.0,
        False,
        False,
        False,
        False,
    )
    other.reset(seed=3)
    assert other.step("<answer>ten</answer>")[0] == shown
    again, reward, *_, info = env.step("no tag")
    assert (again, reward, info["action_is_valid"], info["format_penalty"]) == (shown, -0.5, False, -0.5)
    _, reward, terminated, truncated, info = env.step(f"<answer>[{secret}]</answer>")
    assert (reward, terminated, truncated, info["success"], info["reason"]) == (1.0, True, False, True, "found")
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("package")
def test_what_a_game_draws_follows_from_the_seed_and_the_turn() -> None:
    env = TextArenaEnv(game="Guess-v0")
    said, secrets = [], set()
    for seed in range(8):
        env.reset(seed=seed)
        secrets.add(env._game.secret)
        said += [env.step("<answer>x</answer>")[0] for _ in range(3)]
    assert len(secrets) > 1
    assert len(set(said)) == len(said)


@pytest.mark.usefixtures("package")
def test_brackets_where_the_game_wants_them_and_a_last_turn() -> None:
    env = TextArenaEnv(game="Guess-v0", max_turns=2)
    env.reset(seed=0)
    moves: list[str] = []
    step = env._game.step
    env._game.step = lambda move: moves.append(move) or step(move)
    assert env.step("<answer>x</answer>")[2:4] == (False, False)
    assert env.step("<answer>I say [y z]</answer>")[2:4] == (False, True)
    assert moves == ["[x]", "I say [y z]"]


def test_no_brackets_where_it_does_not(package: types.SimpleNamespace) -> None:
    package.make = lambda game, **config: Wrapper(Game())
    env = TextArenaEnv(game="Guess-v0")
    env.reset(seed=0)
    moves: list[str] = []
    env._game.step = lambda move: moves.append(move) or (False, {})
    env.step("<answer>x</answer>")
    assert moves == ["x"]


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(("move", "said"), [("crash", "failed at .*crash.*: KeyError"), ("mix", "paid 'a reason'")])
def test_a_game_that_fails_pays_nothing(move: str, said: str) -> None:
    env = TextArenaEnv(game="Guess-v0")
    env.reset(seed=0)
    with pytest.raises(EnvironmentFaultError, match=f"TextArena's Guess-v0 {said}"):
        env.step(f"<answer>{move}</answer>")


@pytest.mark.usefixtures("package")
def test_a_reward_and_its_reason_the_other_way_round_are_put_right() -> None:
    env = TextArenaEnv(game="Guess-v0")
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step("<answer>swap</answer>")
    assert (reward, terminated, info["success"]) == (0.5, True, False)
    assert info["reason"] == "Invalid Move: a reason"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (LookupError("a page of words"), r"pip install 'roll-envs\[words\]'"),
        (SyntaxError("invalid"), "is written for a newer Python"),
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
        TextArenaEnv(game="Guess-v0", config={"high": 2})


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(("wrong", "said"), [({"max_turns": 0}, "max_turns is 0"), ({"format_penalty": 1}, "is 1")])
def test_wrong_settings(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TextArenaEnv(game="Guess-v0", **wrong)


def test_the_ids_are_those_of_games_for_one_player(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "textarena"
    (folder / "envs").mkdir(parents=True)
    lines = []
    for name, source in (
        ("Solo", "SinglePlayerState("),
        ("Duel", "TwoPlayerState("),
        ("Quiz", "SinglePlayerState(OpenRouter"),
    ):
        (folder / "envs" / f"{name}.py").write_text(source)
        lines += [
            f'register_with_versions(id="{name}-v1{v}", entry_point="textarena.envs.{name}:Env")' for v in ("", "-hard")
        ]
    lines.append('register(id="Lost-v0", entry_point="textarena.envs.Lost:Env")')
    (folder / "envs" / "__init__.py").write_text("\n".join(lines))
    spec = types.SimpleNamespace(origin=str(folder / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    textarena._games.cache_clear()
    try:
        assert textarena.ids() == ["textarena/Solo-hard-v1", "textarena/Solo-v1"]
        card = textarena.card("textarena/Solo-hard-v1")
        assert (card.kwargs["game"], list(card.versions)) == ("Solo-v1-hard", ["v1"])
    finally:
        textarena._games.cache_clear()


def test_nothing_is_brought_in_where_the_package_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    textarena._games.cache_clear()
    assert textarena.ids() == []
    textarena._games.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "textarena", None)
    with pytest.raises((MissingExtraError, ModuleNotFoundError)):
        TextArenaEnv(game="Sudoku-v0")


# -- the package -------------------------------------------------------------------------------------------------------


def needs_textarena(test: Callable[..., None]) -> Any:
    """Slow, since ``make test-slow`` installs it."""
    absent = importlib.util.find_spec("textarena") is None
    return pytest.mark.slow(pytest.mark.skipif(absent, reason="needs textarena: make .venv/providers.stamp")(test))


@needs_textarena
def test_every_game_for_one_player_has_an_id() -> None:
    from textarena.envs.registration import ENV_REGISTRY

    games = set(textarena._games().values())
    assert games <= set(ENV_REGISTRY)
    assert len(games) >= 68
    assert {"textarena/Sudoku-v0", "textarena/2048-easy-v0", "textarena/Wordle-hardcore-v0"} <= set(textarena.ids())


@needs_textarena
def test_a_game_is_won_by_hand() -> None:
    env = roll_envs.make("textarena/TowerOfHanoi-v0")
    env.reset(seed=0)
    for move in ("A C", "A B", "C B", "A C", "B A", "B C"):
        assert env.step(f"<answer>{move}</answer>")[4]["action_is_valid"], move
    _, reward, terminated, _, info = env.step("<answer>[A C]</answer>")
    assert (reward, terminated, info["success"]) == (1.0, True, True)


@needs_textarena
@pytest.mark.parametrize(
    "name", ["Sudoku-very-easy", "2048-easy", "GuessTheNumber", "Minesweeper", "FrozenLake-random"]
)
def test_games_pass_the_check(name: str) -> None:
    report = check_env(f"textarena/{name}-v0", seeds=(0, 1, 2))
    assert report.ok, str(report)
