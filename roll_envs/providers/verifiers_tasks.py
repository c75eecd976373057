"""Task sets of Prime Intellect's verifiers (its v1 interface): a task of the set each episode, scored by its rewards.

The set's own control flow (``Env.run``) is run as it is, with an agent whose model is the player here: what an agent's
harness would send to a model is the observation, and an answer is the model's message. Tools run in this process. Left
out: containers and other runtimes, environments of several agents, pictures, and harnesses (a task set that brings its
own is played without).
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.util
import itertools
import json
import re
import typing
import weakref
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field

from roll_envs.env import EnvironmentCard
from roll_envs.errors import ConfigError, EnvironmentFaultError
from roll_envs.providers.games import SHARES, GameEnv, Played, share_of
from roll_envs.providers.packages import folder_of, imported
from roll_envs.providers.verifiers_talk import PACKAGE, Talk, seats, unplayable
from roll_envs.settings import Settings
from roll_envs.tools.formats import find_tool_format

__all__ = ["DISTRIBUTION", "VERIFIERS", "VerifiersEnv", "card", "ids"]

DISTRIBUTION = "verifiers"
_EXTRA = "verifiers-v1"
_CLOSE_S = 5.0
T = TypeVar("T")
_VERSIONED = re.compile(r"-v\d+$")


def _card(id: str, kwargs: Mapping[str, Any], summary: str) -> EnvironmentCard:
    return EnvironmentCard(
        id=id,
        entry_point=f"{__name__}:VerifiersEnv",
        kwargs=kwargs,
        summary=summary,
        tests="Whatever the set's tasks ask for.",
        turns="A message each, max_turns of them (10) at most; calls of the set's tools are messages.",
        reward_range=(float("-inf"), float("inf")),
        rewards="game: the sum of the task's own rewards, when its conversation ends, by the limit of turns too.",
        success="The rewards are success_at (1) or more.",
        splits="Those of the set's setting split, where it has one; else train and test, nine tasks and one of ten.",
        versions={f"v{id.rpartition('-v')[2]}": "First version."},
        citation="Brown, verifiers, github.com/PrimeIntellect-ai/verifiers. MIT.",
        differences=(
            "The player is the model of a plain conversation: no harness runs, and tools run in this process.",
            "What a task's rewards draw follows from the seed and the turn.",
            "What stands before </think> in an answer is the message's reasoning_content, as servers of models do it.",
        ),
    )


VERIFIERS = _card("roll/Verifiers-v0", {}, "A task set of Prime Intellect's verifiers (taskset, config).")


def ids() -> list[str]:
    """Of installed packages that bring a task set: they require verifiers, and export a ``Taskset``."""
    return sorted(_packages())


@functools.cache
def _packages() -> Mapping[str, str]:
    """Each id here -> the task set's own."""
    if folder_of("verifiers") is None:
        return {}
    found = {}
    for each in distributions():
        name = each.name.lower().replace("_", "-")
        needs = [
            need for need in each.requires or () if re.match(r"verifiers(?![\w-])", need) and "extra ==" not in need
        ]
        if needs and _exports_tasks(name.replace("-", "_")):
            found[f"verifiers/{name if _VERSIONED.search(name) else f'{name}-v0'}"] = name
    return found


def _exports_tasks(module: str) -> bool:
    spec = importlib.util.find_spec(module)
    file = Path(spec.origin or "") if spec is not None else Path()
    return file.is_file() and "Taskset" in file.read_text(encoding="utf-8", errors="replace")


def card(id: str) -> EnvironmentCard:
    """The card of a package's task set."""
    name = _packages()[id]
    return _card(id, {"taskset": name}, f"{name}: a task set of verifiers.")


class VerifiersSettings(Settings):
    """Arguments of environments over verifiers' task sets."""

    taskset: str
    """The set, as ``vf-eval`` names it: a module that can be imported, or one of the package's own."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Settings of the set, as it names them."""
    env: dict[str, Any] = Field(default_factory=dict)
    """Settings of the set's own ``Env``, where it has one; ``id`` pairs the set with another."""
    tasks: int = Field(1000, ge=1)
    """How many tasks are taken from a set that never ends."""
    max_turns: int = Field(10, ge=1)
    success_at: float = 1.0
    """Rewards, in sum, from which on an episode is a success."""
    oracle_field: str = "answer"
    """The field of a task's data with an answer that solves it, if it has one that does."""
    tool_format: str = "hermes"
    """How calls of the set's tools are written (docs/tools.md)."""
    action_format: Literal["answer", "think-answer", "action", "boxed", "word"] = "word"
    """By default the whole answer is the message: the set's own prompt says how to write it."""
    format_penalty: float = 0.0
    timeout_s: float = Field(60.0, gt=0)
    """For what the set does between two answers, its rewards included; what does not await is not broken off."""


class VerifiersEnv(GameEnv):
    """Tasks of a set, one each episode."""

    plays_unread = True

    def __init__(self, settings: VerifiersSettings) -> None:
        """Raises :class:`ConfigError` for a set, or settings of it, that cannot be had or played here, and
        :class:`MissingExtraError` without the package."""
        self._settings = settings
        for package in (DISTRIBUTION, PACKAGE):
            imported(package, settings.taskset, _EXTRA)
        self._format = find_tool_format(settings.tool_format)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._talk: Talk | None = None
        try:
            self._given = json.dumps([settings.config, settings.env], sort_keys=True)
        except TypeError as error:
            raise ConfigError(
                f"config and env must be made of texts, numbers, lists and dicts, as JSON is: {error}"
            ) from error
        self._env = _environment(settings.taskset, self._given, None)
        own = _own_splits(self._env.config.taskset)
        self._own = bool(own)
        self.splits = own or SHARES  # type: ignore[misc]
        super().__init__(
            action_format=settings.action_format,
            max_turns=settings.max_turns,
            format_penalty=settings.format_penalty,
            example="your answer",
            moves=("42", "I do not know."),
        )

    @property
    def instructions(self) -> str:
        talk = self._talk
        form = self.action_format.instructions if self.action_format.tag else ""
        parts = [talk.system if talk else "", self._format.describe(talk.specs) if talk and talk.specs else "", form]
        return "\n\n".join(filter(None, parts)) or "Answer the question or solve the task."

    def legal_answers(self) -> list[str]:
        """Any text is allowed; this is one."""
        return [] if self._over else [self.action_format.write("I do not know.")]

    def oracle(self) -> list[str] | None:
        """The answer in the task's data, where its rewards take it for one, before the first turn."""
        if self._over or self._turns or self._talk is None:
            return None
        known = getattr(self._talk.task.data, self._settings.oracle_field, None)
        if isinstance(known, bool) or not isinstance(known, str | int | float) or not str(known).strip():
            return None
        answer = self.action_format.write(str(known))
        trial = Talk(self._env_of(self._split), self._talk.task, self._format, self._settings.timeout_s)
        with self._apart(self._seed, 1):
            try:
                self._run(trial.begin())
                self._run(trial.answer(self.action_format.read(answer) or "", last=False))
                solved = trial.over and trial.paid() >= self._settings.success_at
            finally:
                self._run(trial.close())
        return [answer] if solved else None

    def close(self) -> None:
        if getattr(self, "_loop", None) is not None:
            self._end()
            self._closing()
            self._loop = None

    def _end(self) -> None:
        talk, self._talk = self._talk, None
        if talk is not None:
            self._run(talk.close())

    def _begin(self, seed: int) -> str:
        self._end()
        env = self._env_of(self._split)
        self._talk = Talk(env, self._task(env, seed), self._format, self._settings.timeout_s)
        return self._run(self._talk.begin())

    def _play(self, move: str) -> Played:
        talk = self._talk
        assert talk is not None
        shown = self._run(talk.answer(_clean(move), last=self._turns >= self.max_turns))
        ended = talk.over or self._turns >= self.max_turns
        paid = talk.paid() if ended else 0.0
        told = {"scores": talk.scores("rewards"), "metrics": talk.scores("metrics")} if ended else {}
        return Played(shown, paid, talk.over, bool(move), ended and paid >= self._settings.success_at, told=told)

    def _env_of(self, split: str) -> Any:
        return _environment(self._settings.taskset, self._given, split if self._own else None)

    def _task(self, env: Any, seed: int) -> Any:
        tasks = _tasks(env.taskset)
        if env.taskset.bounded:
            count = tasks.count()
            if not count:
                raise ConfigError(f"the task set {self._settings.taskset!r} has no task in its split {self._split!r}")
        else:
            count = self._settings.tasks
        numbers = range(count) if self._own else share_of(count, self._split)
        task = tasks[numbers[seed % len(numbers)]].with_data()
        reason = unplayable(task)
        if reason:
            raise ConfigError(f"the task set {self._settings.taskset!r} cannot be played here: {reason}")
        return task

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do asynchronous work of the package, on this environment's own loop."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._closing = weakref.finalize(self, _ended, self._loop)
        return _run_on(self._loop, work)


def _run_on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return loop.run_until_complete(work)
    with ThreadPoolExecutor(1) as beside:  # the caller's thread runs a loop, as in a notebook
        return beside.submit(loop.run_until_complete, work).result()


def _ended(loop: asyncio.AbstractEventLoop) -> None:
    """Close a loop, after the episode of an environment that nobody closed."""
    if left := asyncio.all_tasks(loop):
        for each in left:
            each.cancel()
        _run_on(loop, asyncio.wait(left, timeout=_CLOSE_S))
    loop.close()


class _TaskList:
    """The tasks of a set, loaded as far as they are asked for; :class:`EnvironmentFaultError` where that fails."""

    def __init__(self, taskset: Any) -> None:
        self._taskset = taskset
        self._known: list[Any] = []
        self._more: Iterator[Any] | None = None

    def __getitem__(self, number: int) -> Any:
        self._load(max(0, number + 1 - len(self._known)))
        if number >= len(self._known):
            raise ConfigError(
                f"the task set {self._taskset.config.id!r} should never end, but has {len(self._known)} tasks; set "
                "tasks to this number"
            )
        return self._known[number]

    def count(self) -> int:
        self._load(None)
        return len(self._known)

    def _load(self, most: int | None) -> None:
        try:
            if self._more is None:
                self._more = iter(self._taskset)
            self._known += itertools.islice(self._more, most)
        except Exception as error:
            # Begin anew: an iterator that has failed has no more, and its part would pass for the whole.
            self._known, self._more = [], None
            raise EnvironmentFaultError(
                f"the task set {self._taskset.config.id!r} cannot load its tasks: {type(error).__name__}: {error}"
            ) from error


@functools.lru_cache(maxsize=64)
def _tasks(taskset: Any) -> _TaskList:
    return _TaskList(taskset)


@functools.lru_cache(maxsize=64)
def _environment(taskset: str, given: str, split: str | None) -> Any:
    """The set's ``Env``. Raises :class:`ConfigError` where it cannot be had with these settings, or not played here."""
    config, settings = json.loads(given)
    if split is not None:
        config = {**config, "split": split}
    vf = importlib.import_module(PACKAGE)
    whole = {**settings, "taskset": {**config, "id": taskset}}
    try:
        env = vf.load_environment(vf.resolve_env_config(whole))
    except ModuleNotFoundError as error:
        raise ConfigError(f"the task set {taskset!r} cannot be imported: {error}") from error
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"the task set {taskset!r} refuses these settings ({whole}): {error}") from error
    agents = seats(env.config)
    if len(agents) != 1:
        raise ConfigError(
            f"the task set {taskset!r} has {len(agents)} agents ({', '.join(agents)}); one is played here"
        )
    return env


def _own_splits(config: Any) -> tuple[str, ...]:
    """The names that a set's setting ``split`` takes, where it is a choice of names; ``config`` has the first."""
    field = type(config).model_fields.get("split")
    names = () if field is None else typing.get_args(field.annotation)
    if not names or not all(isinstance(name, str) for name in names):
        return ()
    return (config.split, *(name for name in names if name != config.split))


def _clean(text: str) -> str:
    """Without halves of surrogate pairs, which the package's messages do not take."""
    return text.encode("utf-8", "replace").decode()
