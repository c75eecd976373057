"""TextArena's games for one player (arXiv:2504.11442): the package's rules, words and rewards, a move each turn."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Mapping
from typing import Any

from roll_envs.env import EnvironmentCard
from roll_envs.errors import ConfigError, EnvironmentFaultError
from roll_envs.providers.games import GameEnv, Played
from roll_envs.providers.isolation import isolated
from roll_envs.providers.packages import folder_of, imported
from roll_envs.providers.sokoban_quickly import sokoban_quickly
from roll_envs.providers.words import words_at_hand

__all__ = ["TextArenaEnv", "card", "ids"]

_PACKAGE = "textarena"
_REGISTERED = re.compile(r'^register\w*\(id="([\w.-]+?)-v(\d+)([\w.-]*)",\s*entry_point="([\w.]+):', re.MULTILINE)
_INVALID = "Invalid Move: "
_ROOMS = "textarena.envs.Sokoban.utils"
_NEED_PYTHON_3_12 = frozenset({"Klondike-v0", "UltimateTexasHoldem-v0"})
"""Their source is no Python before it (0.7.4)."""
_TURNS = 100
"""Of a game that has no limit of its own."""


def ids() -> list[str]:
    """Of the games for one player of the installed release that need no model as a partner, and no newer Python."""
    return sorted(_games())


@functools.cache
def _games() -> Mapping[str, str]:
    """Each id here -> the package's own, read from its source: importing it takes half a second."""
    root = folder_of(_PACKAGE)
    if root is None:
        return {}
    games = {}
    for base, version, variant, module in _REGISTERED.findall((root / "envs/__init__.py").read_text(encoding="utf-8")):
        file = root.parent.joinpath(*module.split(".")).with_suffix(".py")
        source = file.read_text(encoding="utf-8") if file.is_file() else ""
        if "SinglePlayerState(" in source and "OpenRouter" not in source:
            games[f"{_PACKAGE}/{base}{variant}-v{version}"] = f"{base}-v{version}{variant}"
    if sys.version_info < (3, 12):
        games = {id: game for id, game in games.items() if game not in _NEED_PYTHON_3_12}
    return games


def card(id: str) -> EnvironmentCard:
    """The card of a game."""
    game = _games()[id]
    version = f"v{id.rpartition('-v')[2]}"
    return EnvironmentCard(
        id=id,
        entry_point=f"{__name__}:TextArenaEnv",
        kwargs={"game": game},
        summary=f"{game}: a game of TextArena for one player.",
        tests="Rules, memory and planning, as the game asks for them; its settings are its own (config).",
        turns="A move each; the game's own limit.",
        reward_range=(-1.0, float("inf")),
        rewards="game: what the game pays at its end, in most games the part that was solved, 1 for all of it; an "
        "invalid move in a row with another ends most games.",
        success="The game ends with a reward of 1 or more.",
        versions={version: "TextArena's."},
        citation="Guertler et al., TextArena, arXiv:2504.11442. MIT.",
        differences=(
            "A move stands in a tag (action_format); brackets around it are added where the game wants them.",
            "An observation has what is new, without the moves that were made: the conversation has them.",
            "An answer without a tag is no move: the game does not see it, and it costs a turn.",
        ),
    )


class TextArenaEnv(GameEnv):
    """A game of TextArena. ``config``: settings of the game, as the package names them. ``max_turns``: by default twice
    the game's own limit, since most games forgive an invalid move after each valid one."""

    def __init__(
        self,
        *,
        game: str,
        config: Mapping[str, Any] | None = None,
        action_format: str = "answer",
        max_turns: int | None = None,
        format_penalty: float = 0.0,
    ) -> None:
        with isolated(0):
            self._game, self._brackets = _make(game, dict(config or {}))
        self.game = game
        super().__init__(
            action_format=action_format,
            max_turns=2 * (getattr(self._game, "max_turns", None) or _TURNS) if max_turns is None else max_turns,
            format_penalty=format_penalty,
            example="your move",
            moves=("[0 0]", "[up]"),  # any text is a move, and the game says what it takes for one
        )

    def _begin(self, seed: int) -> str:
        with sokoban_quickly(self.game, _ROOMS):
            self._game.reset(num_players=1, seed=seed)
        return self._news()

    def _play(self, move: str) -> Played:
        if self._brackets and not ("[" in move and "]" in move):
            move = f"[{move}]"
        try:
            over, _ = self._game.step(move)
        except Exception as error:
            raise EnvironmentFaultError(f"TextArena's {self.game} failed at the move {move!r}: {error!r}") from error
        state = self._game.state
        valid = not (state.made_invalid_move or state.game_info[0].get("invalid_move"))
        shown = self._news()
        paid, told = self._end() if over else (0.0, {})
        return Played(shown, paid, bool(over), valid, paid >= 1.0, told=told)

    def _end(self) -> tuple[float, dict[str, str]]:
        """The reward at the end of the game, and its reason."""
        state = self._game.state
        paid, reason = (state.rewards or {}).get(0, 0.0), state.game_info[0].get("reason")
        if isinstance(paid, str):  # four games of 0.7.4 have them the other way round where a move is invalid
            with contextlib.suppress(ValueError):
                paid, reason = float(str(reason).removeprefix(_INVALID)), f"{_INVALID}{paid}"
        if not isinstance(paid, int | float):
            raise EnvironmentFaultError(f"TextArena's {self.game} paid {paid!r}, for the reason {reason!r}")
        return float(paid), {"reason": str(reason or "")}

    def _news(self) -> str:
        """What the game said since it was last asked, without the player's own moves."""
        _, messages = self._game.get_observation()
        texts = (str(text).strip() for _, text, kind in messages if getattr(kind, "name", None) != "PLAYER_ACTION")
        return "\n".join(filter(None, texts)) or "The game says nothing."


def _make(game: str, config: Mapping[str, Any]) -> tuple[Any, bool]:
    """The bare game, and whether the package puts brackets around its moves. Raises :class:`ConfigError` for settings
    that it refuses, and for a game that cannot be had here."""
    try:
        with words_at_hand(f"TextArena's {game}"):
            package = imported(_PACKAGE, game, "textarena")
            made = package.make(game, **config)
    except SyntaxError as error:
        raise ConfigError(f"TextArena's {game} is written for a newer Python: {error}") from error
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f"TextArena's {game} refuses the config {dict(config)}: {error}") from error
    brackets = False
    while isinstance(made, package.Wrapper):
        brackets |= type(made).__name__ == "ActionFormattingWrapper"
        made = made.env
    return made, brackets
