"""Environments that other packages bring in: what providers are asked, and what keeps packages to themselves."""

from __future__ import annotations

import decimal
import io
import logging
import random
import sys
import threading
import types
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import roll_envs
from roll_envs import EnvironmentCard, providers
from roll_envs.env_registry import ENVIRONMENTS
from roll_envs.providers.games import GameEnv, Played
from roll_envs.providers.isolation import isolated
from roll_envs.providers.packages import folder_of, imported
from roll_envs.testing import CounterEnv


@pytest.fixture
def provide(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Puts modules in the place of the installed providers."""

    def use(**modules: Any) -> None:
        points = {name: EntryPoint(name, f"nowhere_{name}", "roll_envs.providers") for name in modules}
        monkeypatch.setattr(providers, "declared_in", lambda group: points)
        monkeypatch.setattr(providers, "_module", modules.__getitem__)
        clear()

    def clear() -> None:
        providers.provided.cache_clear()
        providers._problems.clear()

    yield use
    monkeypatch.undo()
    clear()
    for id in [id for id in gymnasium.registry if id.startswith("far/")]:
        gymnasium.registry.pop(id)


def card(id: str) -> EnvironmentCard:
    return EnvironmentCard(
        id=id, entry_point="roll_envs.testing:CounterEnv", summary="from far away", tests="-", turns="-",
        reward_range=(-1.0, 1.0), rewards="-", success="-",
    )  # fmt: skip


def test_ids_of_a_provider_are_known_everywhere(provide: Any) -> None:
    provide(far=types.SimpleNamespace(ids=lambda: ["far/A-v0", "far/B-v1"], card=card))
    roll_envs.discover(provided=True)
    assert {"far/A-v0", "far/B-v1"} <= {found.id for found in roll_envs.environments()}
    assert isinstance(gymnasium.make("far/A-v0").unwrapped, CounterEnv)
    assert isinstance(roll_envs.make("far/B-v1", highest=2), CounterEnv)
    assert roll_envs.card("far/B-v1").summary == "from far away"
    assert ENVIRONMENTS.source("far/A-v0") == "far"
    with pytest.raises(roll_envs.UnknownNameError, match="did you mean 'far/A-v0'"):
        roll_envs.make("far/AA-v0")


def test_a_provider_that_fails_is_listed_and_stops_nobody(provide: Any) -> None:
    def ids() -> list[str]:
        raise OSError("no such disk")

    provide(
        bad=types.SimpleNamespace(ids=ids, card=card), far=types.SimpleNamespace(ids=lambda: ["far/A-v0"], card=card)
    )
    listed = {found.id: found for found in roll_envs.environments(load=True)}
    assert listed["far/A-v0"].state == "ready"
    assert (listed["bad/..."].state, "no such disk" in listed["bad/..."].reason) == ("broken", True)


def test_an_id_of_a_package_goes_before_that_of_a_provider(provide: Any) -> None:
    provide(far=types.SimpleNamespace(ids=lambda: ["roll/FrozenLake-v0"], card=card))
    assert roll_envs.card("roll/FrozenLake-v0").summary != "from far away"


def test_packages_keep_their_generators_and_their_prints_to_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    def draws(*seed: int) -> tuple[float, float]:
        with isolated(*seed):
            print("puzzle made")
            other = threading.Thread(target=print, args=("of another thread",))
            other.start()
            other.join()
            return random.random(), float(np.random.random())

    random.seed(1)
    np.random.seed(1)
    expected = random.random(), float(np.random.random())
    random.seed(1)
    np.random.seed(1)
    first = draws(5, 2)
    assert first == draws(5, 2) != draws(5, 3)
    assert (random.random(), float(np.random.random())) == expected
    assert capsys.readouterr().out == "of another thread\n" * 3


def test_settings_of_decimal_numbers_stay_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decimal.getcontext(), "prec", 20)
    for _ in range(2):
        with isolated(0):
            assert decimal.getcontext().prec == decimal.DefaultContext.prec
            decimal.getcontext().prec = 12
        assert decimal.getcontext().prec == 20


def test_a_package_is_imported_without_its_handlers_and_missed_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "chatty_games.py").write_text("import logging\nlogging.basicConfig(level=1, force=True)\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = logging.root.handlers[:], logging.root.level
    assert folder_of("chatty_games") == tmp_path
    assert imported("chatty_games", "Chess-v0", "games").__name__ == "chatty_games"
    assert (logging.root.handlers, logging.root.level) == before
    assert folder_of("silent_games") is None
    with pytest.raises(roll_envs.MissingExtraError, match=r"silent_games/Chess-v0.*\[games\]"):
        imported("silent_games", "Chess-v0", "games")
    (tmp_path / "broken_games.py").write_text("import silent_games\n")
    with pytest.raises(ModuleNotFoundError, match="silent_games"):
        imported("broken_games", "Chess-v0", "games")


def test_a_stdout_that_another_thread_has_put_there_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a run ends, and takes back its own, while an abandoned step is still in a package."""
    monkeypatch.setattr(sys, "stdout", io.StringIO())  # which is put back in the end
    own = io.StringIO()
    with isolated(1):
        sys.stdout = own
    assert sys.stdout is own


def test_a_number_that_python_does_not_read_is_no_move_of_a_game() -> None:
    class Guess(GameEnv):
        def _begin(self, seed: int) -> str:
            return "a number?"

        def _play(self, move: str) -> Played:
            return Played(f"you said {int(move) % 10}", 1.0)

    env = Guess(action_format="answer", max_turns=3, format_penalty=-0.5, example="1", moves=("1",))
    env.reset(seed=0)
    shown, reward, *_, info = env.step(f"<answer>{'9' * 4301}</answer>")
    assert (shown, reward, info["action_is_valid"]) == ("a number?", -0.5, False)
    shown, reward, *_, info = env.step(f"<answer>{'9' * 4300}</answer>")
    assert (shown, reward, info["action_is_valid"]) == ("you said 9", 1.0, True)
