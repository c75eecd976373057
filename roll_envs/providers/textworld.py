"""TextWorld's challenges (arXiv:1806.11532): text adventures that are generated from the seed, a command each turn."""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from roll_envs.env import EnvironmentCard
from roll_envs.errors import ConfigError
from roll_envs.providers.games import GameEnv, Played
from roll_envs.providers.isolation import isolated
from roll_envs.providers.packages import folder_of, imported
from roll_envs.providers.textworld_quickly import quickly

__all__ = ["TextWorldEnv", "card", "ids"]

_PACKAGE = "textworld"
_TURNS = 100
_KEPT = 64
"""Games that are kept to be played again: making one takes a second or more."""
_TRIES = 20
"""Seeds that are tried for a game: with some, the package finds none."""
_BANNER = re.compile(r"^[\s$\\/_|>-]*$")
"""A line of the title that each game shows first, which is drawn with these."""
_STATUS = re.compile(r"\n*>[^\n]*\s*$")
"""The prompt and the status line behind it."""
_LONGEST = 150
"""Characters of a command: the interpreter cuts longer ones, and may never end over strange ones."""
_ONE_COMMAND = re.compile(r"[.\n]|\bthen\b", re.IGNORECASE)
_NO_MOVES = frozenset({"save", "restore", "restart", "quit", "q", "undo", "script", "transcript", "again", "g"})
"""Words to the interpreter, not to the game."""
_COOKING: Mapping[str, Any] = {
    "recipe": 1,
    "take": 0,
    "go": 1,
    "open": False,
    "cook": False,
    "cut": False,
    "drop": False,
    "recipe_seed": 0,
    "split": None,
}
"""What the package's own command line takes where nothing is said."""
_SPLITS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "tw-cooking": {"all": {}, "train": {"split": "train"}, "valid": {"split": "valid"}, "test": {"split": "test"}},
    "tw-simple": {"train": {}, "test": {"test": True}},
}
"""Of challenges that have some, by name: the settings that make them."""


def _challenges() -> dict[str, tuple[str, dict[str, Any]]]:
    """Each id -> the package's challenge and its settings."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for level in [start + quest for start in (0, 100, 200) for quest in range(1, 21)]:
        found[f"CoinCollector-level{level}"] = "tw-coin_collector", {"level": level}
    for level in range(1, 31):
        found[f"TreasureHunter-level{level}"] = "tw-treasure_hunter", {"level": level}
    for rewards in ("dense", "balanced", "sparse"):
        for goal in ("detailed", "brief", "none"):
            settings = {"rewards": rewards, "goal": goal, "test": False}
            found[f"Simple-{rewards}-{goal}"] = "tw-simple", settings
    found["Cooking"] = "tw-cooking", {"recipe": 1, "take": 1}
    found["Cooking-hard"] = "tw-cooking", {"recipe": 3, "take": 3, "go": 6, "open": True, "cook": True, "cut": True}
    return {f"{_PACKAGE}/{name}-v0": challenge for name, challenge in found.items()}


def ids() -> list[str]:
    """Of its challenges, where the package is installed: coin collectors with quests of up to 20 rooms, all others."""
    return sorted(_challenges()) if folder_of(_PACKAGE) else []


def card(id: str) -> EnvironmentCard:
    """The card of a challenge."""
    challenge, settings = _challenges()[id]
    return EnvironmentCard(
        id=id,
        entry_point=f"{__name__}:TextWorldEnv",
        kwargs={"challenge": challenge, "config": settings},
        summary=f"{id.partition('/')[2].removesuffix('-v0')}: a text adventure of TextWorld.",
        tests="Exploring, remembering a map, and following instructions in a world that is described in words.",
        turns="A command each, 100 of them.",
        reward_range=(-1.0, 1.0),
        rewards="game: the points that a command earned, as a part of all that there are: 1 for the whole quest.",
        success="The quest is done.",
        splits=f"{', '.join(_SPLITS[challenge])}: the package's own, which differ in the food that there is."
        if challenge in _SPLITS
        else "Tasks are seeds; the trainer draws train and held-out seeds from disjoint ranges.",
        versions={"v0": "First version."},
        citation="Côté et al., TextWorld, arXiv:1806.11532. MIT.",
        differences=(
            "A turn is one command: what stands behind a full stop or 'then' is not played.",
            "Words to the interpreter (save, undo, restart and the like) are no commands.",
            "Points are given as a part of the game's most, so that every game pays 1 in all.",
            "The title and the line with the prompt are left out of what is shown.",
            "A seed with which the package finds no quest, or none in 500 steps of its search, has another one's game.",
        ),
    )


class TextWorldEnv(GameEnv):
    """A challenge of TextWorld. ``config``: its settings, as the package names them."""

    def __init__(
        self,
        *,
        challenge: str,
        config: Mapping[str, Any] | None = None,
        action_format: str = "answer",
        max_turns: int = _TURNS,
        format_penalty: float = 0.0,
    ) -> None:
        self._challenge = challenge
        self._config = {**(_COOKING if challenge == "tw-cooking" else {}), **(config or {})}
        chosen = self._config.get("split") or self._config.get("test")  # by the user: then there is that one
        self.splits = () if chosen else tuple(_SPLITS.get(challenge, ()))  # type: ignore[misc]
        with isolated(0):
            self._package = imported(_PACKAGE, challenge, "textworld")
            _game(challenge, self._settings(), 0)  # what is wrong with the settings is said now
        super().__init__(
            action_format=action_format,
            max_turns=max_turns,
            format_penalty=format_penalty,
            example="go north",
            moves=("look", "go north", "inventory"),
        )
        self._env: Any = None
        self._state: Any = None

    def _settings(self, split: str = "") -> tuple[tuple[str, Any], ...]:
        """Those of the games of a split."""
        chosen = _SPLITS[self._challenge][split] if split else {}
        return tuple(sorted({**self._config, **chosen}.items()))

    def _begin(self, seed: int) -> str:
        asked = self._package.EnvInfos(
            admissible_commands=True, policy_commands=True, won=True, lost=True, score=True, max_score=True, facts=True
        )
        files = _game(self._challenge, self._settings(self._split), seed % 2**32)
        with _folder() as folder:
            path = str(Path(folder, "game.z8"))
            for suffix, content in files.items():
                Path(path).with_suffix(suffix).write_bytes(content)
            if self._env is None:
                self._env = self._package.start(path, asked)
            else:  # each start loads a copy of the interpreter, which is never given back
                interpreter = self._env.unwrapped._jericho
                interpreter._cache.clear()  # it would keep every game that it has seen,
                interpreter.close()  # and the memory of the last one
                self._env.load(path)
            self._env.seed(seed % 2**31)  # else the interpreter draws from the time
            self._state = self._env.reset()
        return _shown(self._state.feedback)

    def _play(self, move: str) -> Played:
        command = _command(move)
        before = self._state
        if not command or command.split()[0].lower() in _NO_MOVES:
            return Played("That is no command.", valid=False)
        state, _, _ = self._env.step(command)
        self._state = state
        changed = set(state.facts) != set(before.facts)
        over = bool(state.won or state.lost)
        return Played(
            _shown(state.feedback),
            ((state.score or 0) - (before.score or 0)) / max(1, state.max_score or 1),
            over,
            changed or command.lower() in map(str.lower, _allowed(before)),
            bool(state.won),
            effective=changed,
        )

    def legal_answers(self) -> list[str]:
        if self._over:
            return []
        return [self.action_format.write(command) for command in _allowed(self._state)]

    def oracle(self) -> list[str] | None:
        """The game's own way to its end, where it knows one from here that fits into the turns that are left."""
        way = [] if self._over else self._state.policy_commands or []
        fits = 0 < len(way) <= self.max_turns - self._turns
        return [self.action_format.write(command) for command in way] if fits else None

    def close(self) -> None:
        if getattr(self, "_env", None) is not None:
            self._env.close()
            self._env = None


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    """A folder for a game. What the interpreter warns of meanwhile, that it knows no score, the package does itself."""
    with tempfile.TemporaryDirectory(prefix="roll-textworld-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield folder


def _allowed(state: Any) -> list[str]:
    """The commands that the game lists, and "take X" beside "take X from Y", which does the same."""
    listed: list[str] = state.admissible_commands
    taken = (command.partition(" from ") for command in listed if command.startswith("take "))
    return [*listed, *(what for what, place, _ in taken if place and what not in listed)]


def _command(move: str) -> str:
    """The first command of a move, in what the interpreter reads; empty where there is none."""
    first = " ".join(_ONE_COMMAND.split(move, maxsplit=1)[0].split())
    return first if first.isascii() and first.isprintable() and len(first) <= _LONGEST else ""


def _shown(feedback: str) -> str:
    """What the game said, without its title and its prompt."""
    lines = _STATUS.sub("", feedback).strip().splitlines()
    kept = [line.rstrip() for line in lines if not (line.strip() and _BANNER.match(line))]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip() or "Nothing happens."


@functools.lru_cache(maxsize=_KEPT)
def _game(challenge: str, config: tuple[tuple[str, Any], ...], seed: int) -> Mapping[str, bytes]:
    """The files of the game that follows from ``seed``, by suffix. Raises :class:`ConfigError` for settings that the
    challenge refuses."""
    package, generator = importlib.import_module(_PACKAGE), importlib.import_module(f"{_PACKAGE}.generator")
    challenges = importlib.import_module(f"{_PACKAGE}.challenges").CHALLENGES
    if challenge not in challenges:
        raise ConfigError(f"TextWorld has no challenge {challenge!r}; it has {', '.join(sorted(challenges))}")
    chaining = importlib.import_module(f"{_PACKAGE}.generator.chaining")
    for tried in range(_TRIES):
        drawn = int(np.random.SeedSequence([seed, tried]).generate_state(1)[0]) if tried else seed
        package.g_rng.set_seed(drawn)
        options = package.GameOptions()
        options.seeds = drawn
        with _folder() as folder, quickly():
            options.path = str(Path(folder, "game.z8"))
            try:
                made = challenges[challenge][1](dict(config), options)
            except chaining.QuestGenerationError:  # of this seed
                continue
            except (KeyError, TypeError, ValueError, AssertionError) as error:
                raise ConfigError(f"TextWorld's {challenge} refuses the config {dict(config)}: {error!r}") from error
            generator.compile_game(made, options)
            return {suffix: Path(folder, f"game{suffix}").read_bytes() for suffix in (".z8", ".json")}
    raise ConfigError(f"TextWorld's {challenge} found no game for the config {dict(config)} in {_TRIES} tries")
