"""Rows to tasks: prompt, reference, split, verifier. All are checked at once, so that no run dies on row 5000."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roll_envs.datasets.source import Rows
from roll_envs.errors import ConfigError

__all__ = ["SPLITS", "DataTask", "Fields", "make_tasks", "split_of"]

SPLITS = ("train", "validation", "test", "all")
_OTHER_NAMES = {
    "training": "train", "dev": "validation", "val": "validation", "valid": "validation", "eval": "test",
    "evaluation": "test", "testing": "test", "held-out": "test",
}  # fmt: skip
_PROMPTS = ("prompt", "question", "problem", "instruction", "input")
_REFERENCES = (
    "reference",
    "answer",
    "ground_truth",
    "reward_model.ground_truth",
    "solution",
    "tests",
    "target",
    "output",
)
_PLACE = re.compile(r"\{([A-Za-z_][\w.]*)\}")
_KEPT = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Fields:
    """Where things stand in a row; a dotted name leads into nested mappings."""

    template: str | None = None
    """Text with ``{field}`` in it; without one the first of prompt, question, problem, instruction, input."""
    reference: str | None = None
    domain: str | None = None
    verifier: str | None = None
    split: str | None = None
    id: str | None = None
    shares: tuple[float, float, float] = (0.9, 0.05, 0.05)
    salt: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataTask:
    """One row, ready to be played."""

    prompt: str
    reference: Any
    row: Mapping[str, Any]
    domain: str
    """Empty where rows have no domain."""
    verifier: Any
    """The row's own verifier (a name or a mapping), or ``None``."""
    split: str


_made: dict[tuple[int, Fields], tuple[Rows, Sequence[DataTask]]] = {}
_lock = threading.Lock()


def make_tasks(rows: Rows, fields: Fields) -> Sequence[DataTask]:
    """The tasks of rows; the same rows and fields give the same object. Raises :class:`ConfigError` with the row."""
    key = (id(rows), fields)
    with _lock:
        kept = _made.get(key)
        if kept is not None and kept[0] is rows and len(kept[1]) == len(rows):
            return kept[1]
    tasks = tuple(_task(row, number, fields) for number, row in enumerate(rows))
    with _lock:
        if len(_made) >= _KEPT:
            _made.pop(next(iter(_made)))
        _made[key] = (rows, tasks)
    return tasks


def _task(row: Mapping[str, Any], number: int, fields: Fields) -> DataTask:
    prompt = _prompt(row, number, fields.template)
    if not prompt.strip():
        raise ConfigError(f"the prompt of row {number} is empty")
    domain = "" if fields.domain is None else str(_need(row, fields.domain, number))
    return DataTask(
        prompt=prompt,
        reference=_reference(row, number, fields.reference),
        row=row,
        domain=domain,
        verifier=None if fields.verifier is None else _find(row, fields.verifier)[1],
        split=_split(row, number, prompt, fields),
    )


def _prompt(row: Mapping[str, Any], number: int, template: str | None) -> str:
    if template is not None:
        return _PLACE.sub(lambda place: _text(_need(row, place[1], number)), template)
    name = next((n for n in _PROMPTS if n in row), None)
    if name is None:
        raise ConfigError(
            f"row {number} has none of the fields {', '.join(_PROMPTS)}; name its fields in prompt, such as "
            f"prompt='{{{next(iter(row), 'question')}}}'"
        )
    return _text(row[name])


def _text(value: Any) -> str:
    """A value as text; a list of chat messages as what they say."""
    if isinstance(value, Sequence) and value and all(isinstance(m, Mapping) and "content" in m for m in value):
        return "\n\n".join(str(m["content"]) for m in value)
    return str(value)


def _reference(row: Mapping[str, Any], number: int, name: str | None) -> Any:
    if name is not None:
        return _need(row, name, number)
    for known in _REFERENCES:
        found, value = _find(row, known)
        if found:
            return value
    return None


def _split(row: Mapping[str, Any], number: int, prompt: str, fields: Fields) -> str:
    if fields.split is not None:
        name = str(_need(row, fields.split, number)).lower()
        name = _OTHER_NAMES.get(name, name)
        if name not in SPLITS[:3]:
            raise ConfigError(f"row {number} is of the split {name!r}; splits are {', '.join(SPLITS[:3])}")
        return name
    key = prompt if fields.id is None else str(_need(row, fields.id, number))
    return split_of(key, fields.shares, fields.salt)


def split_of(key: str, shares: tuple[float, float, float], salt: str = "") -> str:
    """The split of a row by a hash of its key: the same on any host, whatever other rows there are."""
    digest = hashlib.blake2b(f"{salt}|{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    point = int.from_bytes(digest, "big") / 2**64
    if point < shares[0]:
        return "train"
    return "validation" if point < shares[0] + shares[1] else "test"


def _need(row: Mapping[str, Any], name: str, number: int) -> Any:
    found, value = _find(row, name)
    if not found:
        raise ConfigError(f"row {number} has no field {name!r}; its fields are {', '.join(map(repr, row))}")
    return value


def _find(row: Mapping[str, Any], name: str) -> tuple[bool, Any]:
    if name in row:
        return True, row[name]
    value: Any = row
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return False, None
        value = value[part]
    return True, value
