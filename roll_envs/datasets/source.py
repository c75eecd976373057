"""Rows of a data set: from JSON lines, JSON, Parquet, or Python; each file is read once in a process."""

from __future__ import annotations

import gzip
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from roll_envs.errors import ConfigError, MissingExtraError

__all__ = ["Rows", "given_rows", "read_rows", "sample_rows"]

Rows = Sequence[Mapping[str, Any]]

_JSON_LINES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
_KEPT = 8

_read: dict[tuple[tuple[str, int, int], ...], Rows] = {}
_lock = threading.Lock()


def read_rows(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Rows:
    """The rows of a file or of several, in order. Raises :class:`ConfigError` that names file and line.

    Parquet raises :class:`MissingExtraError` without pyarrow. The same unchanged files give the same object.
    """
    paths = [Path(path)] if isinstance(path, str | os.PathLike) else [Path(p) for p in path]
    if not paths:
        raise ConfigError("path names no file")
    key = tuple(_identity(p) for p in paths)
    with _lock:
        if key not in _read:
            rows = [row for p in paths for row in _rows_of(p)]
            if not rows:
                raise ConfigError(f"there is no row in {', '.join(map(str, paths))}")
            if len(_read) >= _KEPT:
                _read.pop(next(iter(_read)))
            _read[key] = rows
        return _read[key]


def _identity(path: Path) -> tuple[str, int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise ConfigError(f"the data set {str(path)!r} cannot be read: {error.strerror}") from error
    return str(path.resolve()), found.st_mtime_ns, found.st_size


def _rows_of(path: Path) -> Iterator[Mapping[str, Any]]:
    name = path.name.lower()
    if name.endswith(_JSON_LINES):
        return _json_lines(path)
    if name.endswith((".json", ".json.gz")):
        return _json(path)
    if name.endswith(".parquet"):
        return _parquet(path)
    allowed = ", ".join((*_JSON_LINES, ".json", ".json.gz", ".parquet"))
    raise ConfigError(f"{str(path)!r} is of no known kind; known are {allowed}")


def _open(path: Path) -> Any:
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    return opened(path, "rt", encoding="utf-8")


def _json_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    with _open(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _row(_parsed(line, path, f":{number}"), f"{path}:{number}")


def _json(path: Path) -> Iterator[Mapping[str, Any]]:
    with _open(path) as file:
        found = _parsed(file.read(), path, "")
    if not isinstance(found, list):
        raise ConfigError(f"{path} must hold a list of rows, not a {type(found).__name__}")
    for number, row in enumerate(found):
        yield _row(row, f"{path}, row {number}")


def _parsed(text: str, path: Path, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}{where} is no JSON: {error}") from None


def _parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        from pyarrow import parquet  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError as error:
        raise MissingExtraError(f"reading {path.name}", "data") from error
    try:
        yield from parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's errors derive from these
        raise ConfigError(f"{path} is no Parquet file: {error}") from error


def given_rows(rows: Iterable[Mapping[str, Any]]) -> Rows:
    """Rows given in Python; a sequence stays the object it is. Raises :class:`ConfigError`."""
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise ConfigError(f"rows must be a list of mappings, not {str(rows)[:100]!r}")
    kept = rows if isinstance(rows, Sequence) else list(rows)
    if not kept:
        raise ConfigError("rows is empty")
    for number, row in enumerate(kept):
        _row(row, f"row {number}")
    return kept


def _row(row: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(row, Mapping) or not all(isinstance(key, str) for key in row):
        raise ConfigError(f"{where} must be a mapping from names to values, not {str(row)[:100]!r}")
    return row


def sample_rows() -> Rows:
    """200 sums of two numbers, for trying things out."""
    return _SAMPLE


_SAMPLE: Rows = tuple(
    {"question": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(11, 31) for b in range(7, 107, 10)
)
