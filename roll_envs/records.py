"""Recorded episodes, read from files and played again: the JSON of ``roll-envs play --json`` and of training runs.

A record holds what was answered and, where the file has it, what was seen and paid.
"""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from roll_envs.env import AnyEnv
from roll_envs.env_registry import within
from roll_envs.errors import ConfigError, RollError
from roll_envs.managers.episode import SPLITS

_FORMS = "the JSON of `roll-envs play --json`, or episodes/*.jsonl of a training run"


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedTurn:
    """One answer, and what followed it when that was recorded."""

    answer: str
    observation: str | None
    reward: float | None
    over: bool | None
    """Whether the episode ended with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One episode of a file."""

    source: str
    """File name, and the place in the file when it holds several."""
    env_id: str
    seed: int
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of ``reset``."""
    first_observation: str | None = None
    turns: tuple[RecordedTurn, ...] = ()
    fault: str = ""
    """Why it failed; empty for an episode that came to its end."""
    pending: str | None = None
    """The answer that the environment was playing when it failed."""

    @property
    def total(self) -> float | None:
        """Sum of the recorded rewards; ``None`` when one is missing."""
        rewards = [turn.reward for turn in self.turns if turn.reward is not None]
        return float(sum(rewards)) if len(rewards) == len(self.turns) else None


def read_records(path: Path) -> list[Record]:
    """The episodes of a file. Raises :class:`ConfigError` that names the file, the entry and what is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    entries = list(_entries(path, text))
    if not entries:
        raise ConfigError(f"{path}: holds no episode; it should be {_FORMS}")
    several = len(entries) > 1
    return [
        _record(entry, path.name + (f" · {n}" if several else ""), f"{path}: entry {n}")
        for n, entry in enumerate(entries, start=1)
    ]


def _entries(path: Path, text: str) -> Iterator[Any]:
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        whole = None
    if whole is not None:
        yield from whole if isinstance(whole, list) else [whole]
        return
    # Not splitlines(): a text in JSON may hold other line separators, such as U+2028.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"{path}: line {number} is not JSON ({error}); it should be {_FORMS}") from error


def _record(entry: Any, source: str, where: str) -> Record:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where} is {_kind(entry)}, not an object; the file should be {_FORMS}")
    task = _field(entry, "task", Mapping, where) if "task" in entry else entry
    options = dict(_field(task, "options", Mapping, where, {}))
    if "split" in task:  # as the trainer's episodes are started
        split = _field(task, "split", str, where)
        options.setdefault("split", SPLITS.get(split, split))
    turns = [_turn(turn, f"{where}, turn {n}") for n, turn in enumerate(_field(entry, "turns", list, where), start=1)]
    env_id = _field(task, "env_id" if "env_id" in task else "id", str, where)
    seed = _field(task, "seed", int, where)
    first = entry["turns"][0].get("prompt_observation") if turns else None
    return Record(
        source=source,
        env_id=env_id,
        seed=seed,
        kwargs=dict(_field(task, "kwargs", Mapping, where, {})),
        options=options,
        first_observation=first if isinstance(first, str) else None,
        turns=tuple(turns),
        fault=str(entry.get("reason") or "failed") if entry.get("outcome") == "failed" else "",
        pending=entry["answer"] if isinstance(entry.get("answer"), str) else None,
    )


def _turn(turn: Any, where: str) -> RecordedTurn:
    if not isinstance(turn, Mapping):
        raise ConfigError(f"{where} is {_kind(turn)}, not an object; the file should be {_FORMS}")
    observation, reward = turn.get("observation"), turn.get("reward")
    ends = [turn.get(name) for name in ("terminated", "truncated")]
    return RecordedTurn(
        answer=_field(turn, "text" if "text" in turn else "answer", str, where),
        observation=observation if isinstance(observation, str) else None,
        reward=float(reward) if isinstance(reward, int | float) else None,
        over=any(ends) if all(isinstance(end, bool) for end in ends) else None,
    )


def _field(entry: Mapping[str, Any], name: str, kind: type, where: str, default: Any = None) -> Any:
    value = entry.get(name, default)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        found = f"is {_kind(value)}" if name in entry else "is missing"
        raise ConfigError(f"{where}: {name!r} {found}; the file should be {_FORMS}")
    return value


def _kind(value: Any) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "a text",
        int: "a number",
        float: "a number",
        bool: "true or false",
    }
    return names.get(type(value), "null")


# -- playing again -----------------------------------------------------------------------------------------------------

_SAME_REWARD = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """What playing a record again showed."""

    turns: int
    """Answers that were played as they were recorded."""
    total: float
    """Sum of their rewards."""
    difference: str = ""
    """The first thing that is not as it was recorded, with its turn; empty where all is."""
    fault: str = ""
    """How a recorded failure happened again; empty where it did not."""


def differences(turn: RecordedTurn, observation: str, reward: float, over: bool) -> list[str]:
    """What of a step is not as it was recorded, in words."""
    found = []
    if turn.observation not in (None, observation):
        found.append("another observation")
    # Written so that nan is a difference.
    if turn.reward is not None and not abs(turn.reward - reward) <= _SAME_REWARD:
        found.append(f"reward {reward:g}, recorded {turn.reward:g}")
    if turn.over not in (None, over):
        found.append("the episode ends here, but went on" if over else "the episode goes on, but ended")
    return found


def play_again(record: Record, make: Callable[[], AnyEnv], timeout_s: float) -> Replayed:
    """Play the answers of a record until something is not as it was recorded; each call has ``timeout_s``.

    What the environment raises is a difference, or the recorded failure again; nothing is raised.
    """
    turns, total, over = 0, 0.0, False
    env: AnyEnv | None = None
    try:
        env = within(timeout_s, "the making of the environment", make)
        options = dict(record.options) or None
        shown, _ = within(timeout_s, "reset", partial(env.reset, seed=record.seed, options=options))
        if record.first_observation not in (None, shown):
            lines = _unlike(record.first_observation, shown)
            return Replayed(turns=0, total=0.0, difference="\n".join(["reset: another observation", *lines]))
        for turn in record.turns:
            where = f"turn {turns + 1}"
            if over:
                left = len(record.turns) - turns
                told = f"{where}: the episode is over, and {left} recorded answers are left"
                return Replayed(turns=turns, total=total, difference=told)
            shown, reward, terminated, truncated, _ = within(timeout_s, where, partial(env.step, turn.answer))
            over, total = bool(terminated or truncated), total + float(reward)
            found = differences(turn, shown, float(reward), over)
            if found:
                lines = [] if turn.observation in (None, shown) else _unlike(turn.observation, shown)
                return Replayed(
                    turns=turns, total=total, difference="\n".join([f"{where}: {', '.join(found)}", *lines])
                )
            turns += 1
        if record.fault and record.pending is not None:
            within(timeout_s, "the answer that was being played", partial(env.step, record.pending))
    except (Exception, SystemExit) as error:  # of others; the record may hold anything
        said = str(error) if isinstance(error, RollError) else f"{type(error).__name__}: {error}"
        if record.fault and turns == len(record.turns):
            return Replayed(turns=turns, total=total, fault=said)
        return Replayed(turns=turns, total=total, difference=f"after {turns} turns: {said}")
    finally:
        if env is not None:
            with contextlib.suppress(Exception):  # what is wrong with closing says nothing about the episode
                within(timeout_s, "close", env.close)
    if record.fault:
        return Replayed(turns=turns, total=total, difference=f"it does not fail again; it was: {record.fault}")
    return Replayed(turns=turns, total=total)


def _unlike(recorded: str | None, now: str) -> list[str]:
    """The lines that differ: those of the record with a minus, those of now with a plus."""
    lines = difflib.unified_diff(str(recorded).splitlines(), now.splitlines(), lineterm="", n=1)
    return [f"    {line}" for line in list(lines)[3:]]
