"""TextEnv: the contract of a multi-turn text environment; its card, and the space that admits any text.

A TextEnv is a ``gymnasium.Env[str, str]``. It knows its rules and how an answer must look (``instructions``,
``action_format``) but nothing of any model, tokenizer or chat template.
"""

from __future__ import annotations

import abc
import copy
import functools
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector.utils.shared_memory import create_shared_memory, read_from_shared_memory, write_to_shared_memory
from numpy.random import Generator

from roll_envs.parsing import ActionFormat, FreeFormat

AnyEnv = gymnasium.Env[Any, Any]
"""An environment of any kind, for code that has not looked at its spaces yet."""


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
        return isinstance(other, AnyText)  # the same texts, whatever the examples

    def __hash__(self) -> int:
        return hash(AnyText)


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
    _generator: np.random.Generator | None = None
    _begun: Mapping[str, Any] | None = None
    """Seed, options and generator of the episode, where it is noted for the default of :meth:`snapshot`."""
    _answers: list[str]
    _shown: str = ""
    _noting = False

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

    def snapshot(self) -> Mapping[str, Any]:
        """The whole episode state (generators included) as plain JSON-able data, for :meth:`restore`.

        By default how the episode began and its answers so far: an environment whose state is small, or whose steps are
        slow, says it better by methods of its own, always both of them.
        """
        if self._begun is None:
            raise gymnasium.error.ResetNeeded("there is nothing to take a snapshot of before reset()")
        return {**self._begun, "answers": list(self._answers)}

    def restore(self, snapshot: Mapping[str, Any]) -> str:
        """Put the episode back to ``snapshot`` (from this or another instance with the same arguments); returns
        the observation there. By default it is played again."""
        if snapshot["generator"] is not None:
            self.np_random.bit_generator.state = snapshot["generator"]
        shown, _ = self.reset(seed=snapshot["seed"], options=snapshot["options"])
        for answer in snapshot["answers"]:
            shown, *_ = self.step(answer)
        return shown

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        defaults = {name for name in ("snapshot", "restore") if getattr(cls, name) is getattr(TextEnv, name)}
        if len(defaults) == 1:
            raise TypeError(f"{cls.__name__} has the {defaults.pop()}() of TextEnv, which plays the episode again; "
                            "write both snapshot() and restore(), or neither")  # fmt: skip
        if defaults:
            for name, noted in (("reset", _noted_reset), ("step", _noted_step)):
                if name in vars(cls):
                    setattr(cls, name, noted(vars(cls)[name]))

    def legal_answers(self) -> list[str]:
        """Answers in form that are allowed now: one for each named action, or those that the environment lists; none
        where it cannot say. The examples of ``action_space`` are tried then."""
        form = self.action_format
        return [form.format([i]) for i in range(len(form.actions))] if isinstance(form, ActionFormat) else []

    def oracle(self) -> list[str] | None:
        """Answers that solve the episode from the current state with the highest total reward within the turn limit;
        ``None`` where there is no solver or no solution."""
        return None

    def split_size(self, split: str) -> int | None:
        """How many tasks a split has, where tasks are a fixed list; ``None`` where they are seeds, or not counted.

        Raises :class:`ConfigError` for a split without tasks.
        """
        return None

    def render(self) -> str:
        """The current observation as text."""
        if self._begun is None:
            raise gymnasium.error.Error(f"{type(self).__name__} has nothing to render before reset()")
        return self._shown

    def episode_seed(self, seed: int | None) -> int:
        """The seed of the episode to start: ``seed`` itself, or the next draw of the environment's own generator.

        Call it first in ``reset``; it also does what ``gymnasium.Env.reset`` does.
        """
        if type(seed) is int and seed >= 0:  # a generator takes longer to make than most episodes to begin
            self._generator, self._np_random_seed = None, seed
            return seed
        super().reset(seed=seed)
        return int(self.np_random.integers(np.iinfo(np.int32).max)) if seed is None else int(seed)

    @property
    def _np_random(self) -> np.random.Generator | None:
        """Where gymnasium keeps the environment's own generator; made of the last seed when it is first asked for."""
        if self._generator is None and self._np_random_seed is not None:
            self._generator, _ = seeding.np_random(self._np_random_seed)
        return self._generator

    @_np_random.setter
    def _np_random(self, value: np.random.Generator | None) -> None:
        self._generator = value


def _noted_reset(reset: Callable[..., Any]) -> Callable[..., Any]:
    """``reset``, which also notes how the episode began; not when another reset calls it."""

    @functools.wraps(reset)
    def noted(self: TextEnv, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self._noting:
            return reset(self, seed=seed, options=options)
        generator = copy.deepcopy(self.np_random.bit_generator.state) if seed is None else None
        begun = {"seed": seed, "options": copy.deepcopy(options), "generator": generator}
        self._noting, self._begun = True, None
        try:
            found = reset(self, seed=seed, options=options)
        finally:
            self._noting = False
        self._begun, self._answers, self._shown = begun, [], found[0]
        return found

    return noted


def _noted_step(step: Callable[..., Any]) -> Callable[..., Any]:
    """``step``, which also notes the answer where it was played; not when another step calls it."""

    @functools.wraps(step)
    def noted(self: TextEnv, action: str) -> Any:
        if self._noting or self._begun is None:
            return step(self, action)
        self._noting = True
        try:
            found = step(self, action)
        finally:
            self._noting = False
        self._answers.append(action)
        self._shown = found[0]
        return found

    return noted


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentCard:
    """One registered environment: how to build it, and what a user must know to read its results.

    An entry point of the group ``roll_envs`` has the environment's id as its name and a card as its target, such as
    ``roll/SimpleSokoban-v0 = envs.sokoban:SIMPLE_SOKOBAN``. Nothing of the package is imported until that id is made
    or shown.
    """

    id: str
    """``namespace/Name-vN``."""
    entry_point: str
    """``module:Class``, imported only when the environment is made."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Default keyword arguments; those given to ``make`` win."""
    summary: str
    """One line."""
    tests: str
    """What ability it tests."""
    turns: str
    """Turn limit and what counts as a turn."""
    reward_range: tuple[float, float]
    """Lowest and highest total reward of an episode without format penalties."""
    rewards: str
    """What is rewarded, part by part."""
    success: str
    """What ``info["success"]`` means."""
    splits: str = "Tasks are seeds; the trainer draws train and held-out seeds from disjoint ranges."
    versions: Mapping[str, str] = field(default_factory=dict)
    """Version suffix -> what changed."""
    citation: str = ""
    differences: tuple[str, ...] = ()
    """Deliberate differences from the original, each with its reason."""
    drawing: str = ""
    """``module:function`` that draws observations for people: ``(observation, arguments) -> HTML``, or ``None`` where
    the text stays. No script runs in it; the function escapes what the observation says."""


# -- text in shared memory, so that gymnasium.make_vec(id, vectorization_mode="async") works with its defaults ---
# Gymnasium asks a space for three functions. Each environment gets a fixed buffer of MAX_BYTES; a longer observation
# raises and names the option that lifts the limit.

MAX_BYTES = 1 << 16
"""Longest observation in bytes (UTF-8, lone surrogates kept)."""
_BUFFER = np.dtype(f"S{MAX_BYTES + 1}")
_END = b"."
"""Stands after each text in its buffer, since NumPy takes zero bytes at the end of one for padding."""


class SharedTexts(Sequence[str]):
    """A live view of the current texts; copying it (Gymnasium's ``copy=True``, the default) gives a plain tuple."""

    def __init__(self, memory: Any) -> None:
        self._buffers = np.frombuffer(memory.get_obj(), _BUFFER)

    def __len__(self) -> int:
        return len(self._buffers)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self)[index]
        return self._buffers[index].removesuffix(_END).decode("utf-8", "surrogatepass")

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[str, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        return f"SharedTexts({list(self)!r})"


@create_shared_memory.register(AnyText)
def _create(space: AnyText, n: int = 1, ctx: Any = multiprocessing) -> Any:
    return ctx.Array("B", n * _BUFFER.itemsize)


@read_from_shared_memory.register(AnyText)
def _read(space: AnyText, shared_memory: Any, n: int = 1) -> SharedTexts:
    return SharedTexts(shared_memory)


@write_to_shared_memory.register(AnyText)
def _write(space: AnyText, index: int, value: str, shared_memory: Any) -> None:
    raw = value.encode("utf-8", "surrogatepass")
    if len(raw) > MAX_BYTES:
        raise ValueError(
            f"an observation of {len(raw)} bytes is longer than the {MAX_BYTES} of shared memory; "
            "pass vector_kwargs={'shared_memory': False} to gymnasium.make_vec"
        )
    np.frombuffer(shared_memory.get_obj(), _BUFFER)[index] = raw + _END
