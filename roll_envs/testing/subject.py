"""What a rule is given and how it answers: the environment under test, and the two ways to end early."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import gymnasium

from roll_envs.card import EnvironmentCard
from roll_envs.env import TextEnv
from roll_envs.testing.trace import MakeEnv, Trace, play_seeds

__all__ = ["Failure", "Rule", "Skip", "Subject", "need", "need_text_env", "skip"]


class Failure(Exception):
    """A rule is broken; the message says what to mend."""


class Skip(Exception):
    """A rule cannot be applied; the message says why."""


@dataclass(slots=True, eq=False)
class Subject:
    """The environment under test."""

    name: str
    make: MakeEnv
    """A new environment at every call, with none of Gymnasium's checking wrappers around it."""
    seeds: tuple[int, ...]
    card: EnvironmentCard | None = None
    varied: bool = False
    """Made with arguments other than the card's, for which its reward range need not hold."""
    _reference: list[Trace] = field(default_factory=list)

    @property
    def reference(self) -> list[Trace]:
        """Traces of a fresh environment alone in this thread: what all others are compared with."""
        if not self._reference:
            self._reference = play_seeds(self.make, self.seeds)
        return self._reference


Rule = Callable[[Subject], str]
"""Returns what was seen; raises :class:`Failure` or :class:`Skip`."""


def need(condition: object, mend: str) -> None:
    """Raise :class:`Failure` unless ``condition``."""
    if not condition:
        raise Failure(mend)


def skip(why: str) -> NoReturn:
    raise Skip(why)


def need_text_env(env: gymnasium.Env[Any, Any], what: str) -> TextEnv:
    """``env`` as a TextEnv; skips the rule for others."""
    if not isinstance(env, TextEnv):
        skip(f"{type(env.unwrapped).__name__} is not a roll_envs.TextEnv, so it has no {what}")
    return env
