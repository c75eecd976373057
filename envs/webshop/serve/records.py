"""Recorded episodes, read from files: what ``roll-envs play --json`` prints, and what the trainer saves as ``.jsonl``.

A record holds what was answered and, where the file has it, what was seen and paid; :mod:`envs.webshop.serve.replay`
plays it again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envs.webshop.env import WebShopEnv
from roll_envs import env_registry as registry
from roll_envs.errors import ConfigError
from roll_envs.managers.episode import SPLITS

__all__ = ["Record", "RecordedTurn", "read_records"]

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
        raise ConfigError(f"--record {path}: cannot be read: {error}") from error
    entries = list(_entries(path, text))
    if not entries:
        raise ConfigError(f"--record {path}: holds no episode; it should be {_FORMS}")
    several = len(entries) > 1
    return [
        _record(entry, path.name + (f" · {n}" if several else ""), f"--record {path}: entry {n}")
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
                raise ConfigError(
                    f"--record {path}: line {number} is not JSON ({error}); it should be {_FORMS}"
                ) from error


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
    _must_be_a_shop(env_id, where)
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


def _must_be_a_shop(env_id: str, where: str) -> None:
    if not issubclass(registry.environment_class(env_id), WebShopEnv):
        raise ConfigError(f"{where} is an episode of {env_id!r}; only episodes of the shop can be shown here")


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
