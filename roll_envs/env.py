"""TextEnv: the contract of a multi-turn text environment, and the space that admits any text.

A TextEnv is a ``gymnasium.Env[str, str]``. It knows its rules and how an answer must look (``instructions``,
``action_format``) but nothing of any model, tokenizer or chat template.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, ClassVar, SupportsFloat

import gymnasium
import numpy as np
from numpy.random import Generator

from roll_envs.parsing import ActionFormat, FreeFormat

__all__ = ["AnyText", "TextEnv"]


class AnyText(gymnasium.Space[str]):
    """The space of all Unicode strings (``gymnasium.spaces.Text`` admits a fixed alphabet and length only).

    ``sample()`` draws one of ``examples``, so that generic tools get something meaningful to send.
    """

    def __init__(self, examples: tuple[str, ...] = ("",), seed: int | Generator | None = None) -> None:
        super().__init__(dtype=str, seed=seed)
        self.examples = tuple(examples)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        return self.examples[int(self.np_random.integers(len(self.examples)))]

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    def __repr__(self) -> str:
        return f"AnyText(examples={self.examples!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText) and other.examples == self.examples

    def __hash__(self) -> int:
        return hash(self.examples)


class TextEnv(gymnasium.Env[str, str], abc.ABC):
    """A multi-turn text environment.

    ``reset(seed=...)`` fixes the whole episode; ``reset()`` draws the next episode from the environment's own
    generator. ``step`` takes any text and never raises for what a *model* wrote. ``info`` carries at least

    - ``success`` (bool): the task is solved now,
    - ``action_is_valid`` (bool): the answer could be parsed and was allowed,
    - ``action_is_effective`` (bool): the state changed,
    - ``format_penalty`` (float, <= 0): the part of the reward charged for the answer's form,
    - ``reward_parts`` (dict[str, float]): named parts that sum to the reward.

    ``terminated`` means that the rules ended the episode, ``truncated`` that the turn limit did; never both.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 4}  # type: ignore[misc]
    action_format: ActionFormat | FreeFormat
    max_turns: int
    splits: ClassVar[tuple[str, ...]] = ()
    """Splits that ``reset(options={"split": name})`` draws the episode from; empty where tasks are seeds alone."""

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Words of the observations that a small model should read as one token each."""
        return ()

    @property
    @abc.abstractmethod
    def instructions(self) -> str:
        """Rules, meaning of the symbols and how to answer: the text an agent is given before the first observation."""

    @abc.abstractmethod
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode; the same ``seed`` and ``options`` give the same episode on any host."""

    @abc.abstractmethod
    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Play the answer ``action`` (any text); returns the standard five-tuple."""

    @abc.abstractmethod
    def snapshot(self) -> Mapping[str, Any]:
        """The whole episode state (generators included) as plain JSON-able data, for :meth:`restore`."""

    @abc.abstractmethod
    def restore(self, snapshot: Mapping[str, Any]) -> str:
        """Put the episode back to ``snapshot`` (from this or another instance with the same arguments); returns
        the observation there."""

    def legal_answers(self) -> list[str]:
        """Answers in form that are allowed now: one for each named action, or those that the environment lists."""
        form = self.action_format
        return [form.format([i]) for i in range(len(form.actions))] if isinstance(form, ActionFormat) else []

    def oracle(self) -> list[str] | None:
        """Answers that solve the episode from the current state with the highest total reward within the turn limit;
        ``None`` where there is no solver or no solution."""
        return None

    def render(self) -> str:
        """The current observation as text."""
        raise gymnasium.error.Error(f"{type(self).__name__} has nothing to render before reset()")

    def episode_seed(self, seed: int | None) -> int:
        """The seed of the episode to start: ``seed`` itself, or the next draw of the environment's own generator.

        Call it first in ``reset``; it also does what ``gymnasium.Env.reset`` does.
        """
        super().reset(seed=seed)
        return int(self.np_random.integers(np.iinfo(np.int32).max)) if seed is None else int(seed)
