"""GEM's games (arXiv:2510.01051): the package's rules, texts and rewards, a move in ``\\boxed{}`` each turn."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Mapping
from typing import Any

from roll_envs.env import EnvironmentCard
from roll_envs.errors import ConfigError, EnvironmentFaultError
from roll_envs.providers.games import GameEnv, Played
from roll_envs.providers.isolation import isolated
from roll_envs.providers.packages import folder_of, imported
from roll_envs.providers.sokoban_quickly import sokoban_quickly
from roll_envs.providers.words import words_at_hand

__all__ = ["DISTRIBUTION", "GEMEnv", "card", "ids"]

DISTRIBUTION = "gem-llm"
_PACKAGE = "gem"
_REGISTERED = re.compile(r'register\(\s*"game:([\w.]+)-v(\d+)(-[\w-]+)?"')
_ROOMS = "gem.envs.game_env.sokoban.utils"
_BROKEN = frozenset({"game:Crosswords-v0-random", "game:FifteenPuzzle-v0-random"})
"""Games that the package registers with settings that it cannot make them with (0.1.0)."""
_TURNS = 100
"""Of a game that draws its limit anew for each episode: more than any draws."""
_SOLVED = 1 - 1e-6
"""A whole game pays 1, in parts that are rounded."""


def ids() -> list[str]:
    """Of the installed release's games. Its other tasks are those of reasoning-gym, which a provider of its own brings
    in, and data sets, which ``roll/Dataset-v0`` reads."""
    return sorted(_games())


@functools.cache
def _games() -> Mapping[str, str]:
    """Each id here -> the package's own, read from its source: importing it takes seconds."""
    folder = folder_of(_PACKAGE)
    file = None if folder is None else folder / "envs" / "__init__.py"
    # Another package may have the name.
    source = file.read_text(encoding="utf-8") if file is not None and file.is_file() else ""
    registered = {
        f"{_PACKAGE}/{name}{variant}-v{version}": f"game:{name}-v{version}{variant}"
        for name, version, variant in _REGISTERED.findall(source)
    }
    return {id: game for id, game in registered.items() if game not in _BROKEN}


def card(id: str) -> EnvironmentCard:
    """The card of a game."""
    game = _games()[id]
    return EnvironmentCard(
        id=id,
        entry_point=f"{__name__}:GEMEnv",
        kwargs={"game": game},
        summary=f"{game.removeprefix('game:')}: a game of GEM.",
        tests="Rules, memory and planning, as the game asks for them; its settings are its own (config).",
        turns="A move each; the game's own limit.",
        reward_range=(-0.1, 1.0),
        rewards="game: what the game pays for a move, 1 in all for most games that are solved; -0.1 for an answer that "
        "it cannot read, which ends it.",
        success="The game ends, and has paid 1 in all.",
        versions={f"v{id.rpartition('-v')[2]}": "GEM's."},
        citation="Liu et al., GEM: A Gym for Agentic LLMs, arXiv:2510.01051. Apache-2.0.",
        differences=(
            "What GEM's wrappers append to each observation, such as the board, is part of it.",
            "The last turn of a game is its end, not a cut: the player knows of the limit, and is paid for it.",
            "What a game draws follows from the seed and the turn.",
        ),
    )


class GEMEnv(GameEnv):
    """A game of GEM. ``config``: settings of the game, as the package names them."""

    plays_unread = True

    def __init__(
        self,
        *,
        game: str,
        config: Mapping[str, Any] | None = None,
        action_format: str = "boxed",
        format_penalty: float = 0.0,
    ) -> None:
        self.game, self._config, self._paid = game, dict(config or {}), 0.0
        with isolated(0):
            self._game = _make(game, self._config)
            draws = bool(getattr(self._game, "_is_random", False))
            moves = _examples(self._game)
        super().__init__(
            action_format=action_format,
            max_turns=_TURNS if draws else self._game.max_turns,
            format_penalty=format_penalty,
            example="your move",
            moves=moves,
        )

    def _begin(self, seed: int) -> str:
        self._paid = 0.0
        with words_at_hand(f"GEM's {self.game}"), sokoban_quickly(self.game, _ROOMS):
            shown, info = self._game.reset(seed % 2**32)
        return _whole(shown, info)

    def _play(self, move: str) -> Played:
        try:
            shown, paid, over, _, info = self._game.step(f"\\boxed{{{move}}}")
        except Exception as error:
            raise EnvironmentFaultError(f"GEM's {self.game} failed at the move {move!r}: {error!r}") from error
        self._paid += float(paid)
        shown = str(shown) if over else _whole(shown, info)
        return Played(shown, float(paid), bool(over), paid >= 0, bool(over) and self._paid >= _SOLVED)


def _examples(game: Any) -> list[str]:
    """Some moves, from the game where it gives any."""
    with contextlib.suppress(NotImplementedError):
        said = [game.sample_random_action() for _ in range(4)]
        return [re.sub(r"^\\boxed\{(.*)\}$", r"\1", move) for move in said]
    return ["A C", "1 1 1"]


def _whole(shown: str, info: Mapping[str, Any]) -> str:
    """An observation with what belongs before and behind it, as GEM's ObservationWrapper writes it."""
    parts = (str(part).strip("\n") for part in (info.get("prefix", ""), shown, info.get("suffix", "")))
    return "\n".join(filter(None, parts))


def _make(game: str, config: Mapping[str, Any]) -> Any:
    """The bare game. Raises :class:`ConfigError` for settings that it refuses, and where it cannot be had here."""
    try:
        with words_at_hand(f"GEM's {game}"):
            package = imported(_PACKAGE, game, "gem")
            with sokoban_quickly(game, _ROOMS):  # making a game begins one
                return package.make(game, **config)
    except (TypeError, ValueError, AssertionError) as error:
        what = f"refuses the config {dict(config)}" if config else "cannot be made with settings of its own"
        raise ConfigError(f"GEM's {game} {what}: {error}") from error
