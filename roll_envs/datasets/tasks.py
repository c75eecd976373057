"""Rows of a data set, and the tasks that they are: prompt, reference, split, verifier.

Rows come from JSON lines, JSON, CSV, Parquet, Arrow, or Python; each file is read once in a process. All rows
are checked at once, so that no run dies on row 5000.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import hashlib
import json
import math
import os
import re
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import field_validator

from roll_envs.chat_api import conversation, said_in
from roll_envs.errors import ConfigError, MissingExtraError
from roll_envs.settings import Settings

Rows = Sequence[Mapping[str, Any]]

T = TypeVar("T")

_KEPT = 16
"""So many data sets, and so many lists of tasks, are kept for the environments that are made later."""

_read: dict[Any, Rows] = {}
_given: dict[Any, tuple[Any, Rows]] = {}
_made: dict[Any, tuple[Rows, Sequence[DataTask]]] = {}
_lock = threading.Lock()


def _kept(cache: dict[Any, T], key: Any, make: Callable[[], T]) -> T:
    """What ``make`` gave the first time, for as long as ``key`` is one of the last that were asked for."""
    with _lock:  # so that of several threads one reads a file, and all get the same object
        if key not in cache:
            found = make()
            if len(cache) >= _KEPT:
                cache.pop(next(iter(cache)))
            cache[key] = found
        return cache[key]


# -- rows --------------------------------------------------------------------------------------------------------------


def read_rows(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Rows:
    """The rows of a file or of several, in order. Raises :class:`ConfigError` that names file and line.

    Parquet raises :class:`MissingExtraError` without pyarrow. The same unchanged files give the same object.
    """
    paths = [Path(path)] if isinstance(path, str | os.PathLike) else [Path(p) for p in path]
    if not paths:
        raise ConfigError("path names no file")
    # A file that was written again has another time or size, and is read again.
    rows = _kept(_read, tuple(map(_identity, paths)), lambda: [row for p in paths for row in _rows_of(p)])
    if not rows:
        raise ConfigError(f"there is no row in {', '.join(map(str, paths))}")
    return rows


def _identity(path: Path) -> tuple[str, int, int]:
    try:
        found = path.stat()
    except OSError as error:
        hub = "; one of the Hugging Face hub is given in rows, as datasets.load_dataset returns it" * (not path.suffix)
        raise ConfigError(f"the data set {str(path)!r} cannot be read: {error.strerror}{hub}") from error
    return str(path.resolve()), found.st_mtime_ns, found.st_size


def _rows_of(path: Path) -> Iterator[Mapping[str, Any]]:
    name = path.name.lower()
    kind = Path(name.removesuffix(".gz")).suffix
    if kind not in _READERS or (kind in _BINARY and name.endswith(".gz")):
        raise ConfigError(f"{str(path)!r} is of no known kind; known are {', '.join(_READERS)}, and text packed as .gz")
    try:
        yield from _READERS[kind](path)
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ConfigError(
            f"{path} cannot be read as UTF-8{', packed by gzip' * name.endswith('.gz')}: {error}"
        ) from None


def _open(path: Path) -> Any:
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    return opened(path, "rt", encoding="utf-8-sig")  # with a byte order mark or without


def _json_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    with _open(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _row(_parsed(line, path, f":{number}"), f"{path}:{number}")


def _json(path: Path) -> Iterator[Mapping[str, Any]]:
    with _open(path) as file:
        text = file.read()
    if text.startswith("{") and "\n{" in text:  # many files of this name hold lines
        yield from _json_lines(path)
        return
    found = _parsed(text, path, "")
    if not isinstance(found, list):
        raise ConfigError(f"{path} must hold a list of rows, not a {type(found).__name__}")
    for number, row in enumerate(found):
        yield _row(row, f"{path}, row {number}")


def _parsed(text: str, path: Path, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}{where} is no JSON: {error}") from None


def _table(path: Path) -> Iterator[Mapping[str, Any]]:
    """The rows of a Parquet or Arrow file."""
    try:
        import pyarrow  # type: ignore[import-untyped,import-not-found,unused-ignore]
        from pyarrow import ipc, parquet
    except ImportError as error:
        raise MissingExtraError(f"reading {path.name}", "data") from error
    kind = path.suffix[1:].capitalize()
    try:
        if kind == "Parquet":
            table = parquet.read_table(path)
        else:
            with open(path, "rb") as file:
                begun = file.read(6)
            # The form of files, or that of streams, which Hugging Face's datasets write.
            reader = (ipc.open_file if begun == b"ARROW1" else ipc.open_stream)(pyarrow.memory_map(str(path)))
            table = reader.read_all()
        yield from table.to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's errors derive from these
        raise ConfigError(f"{path} is no {kind} file: {error}") from error


def _csv(path: Path) -> Iterator[Mapping[str, Any]]:
    with _open(path) as file:
        csv.field_size_limit(2**31 - 1)  # a trace of thoughts may be longer than the 131,072 characters before
        reader = csv.DictReader(file, strict=True, delimiter="\t" if ".tsv" in path.suffixes else ",")
        try:
            for row in reader:
                if None in row or None in row.values():
                    names = len(reader.fieldnames or ())
                    raise ConfigError(f"{path}:{reader.line_num} has not the {names} columns of the first line")
                yield row
        except csv.Error as error:
            raise ConfigError(f"{path}:{reader.line_num} is no CSV: {error}") from error


_READERS = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".tsv": _csv,
    ".parquet": _table,
    ".arrow": _table,
}
_BINARY = (".parquet", ".arrow")


def given_rows(rows: Iterable[Mapping[str, Any]]) -> Rows:
    """Rows given in Python; a sequence stays the object it is, any other (a data set of Hugging Face, a generator) is
    read once for all environments of the process. Raises :class:`ConfigError`."""
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise ConfigError(f"rows must be a list of mappings, not {str(rows)[:100]!r}")
    if isinstance(rows, Sequence):
        kept: Rows = rows
    else:
        # The fingerprint stands for the contents of a datasets.Dataset, also of a copy. Any other object is kept beside
        # its rows: while it is, no other has its id.
        key = getattr(rows, "_fingerprint", None) or id(rows)
        length = len(rows) if isinstance(rows, Sized) else -1
        kept = _kept(_given, (key, length), lambda: (rows, _listed(rows)))[1]
    if not kept:
        raise ConfigError("rows is empty")
    for number, row in enumerate(kept):
        _row(row, f"row {number}")
    return kept


def _listed(rows: Iterable[Mapping[str, Any]]) -> Rows:
    # Without a format or transformation of its own, a whole datasets.Dataset is read forty times as fast.
    plain = getattr(rows, "format", None) or {}
    if hasattr(rows, "to_list") and isinstance(plain, Mapping) and plain.get("type", "") is None:
        return list(rows.to_list())
    return list(rows)


def _row(row: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(row, Mapping) or not all(isinstance(key, str) for key in row):
        raise ConfigError(f"{where} must be a mapping from names to values, not {str(row)[:100]!r}")
    return row


SAMPLE_ROWS: Rows = tuple(
    {"question": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(11, 31) for b in range(7, 107, 10)
)
"""200 sums of two numbers, for trying things out."""


# -- tasks -------------------------------------------------------------------------------------------------------------

SPLITS = ("train", "validation", "test", "all")
_OTHER_NAMES = {
    "training": "train",
    "dev": "validation",
    "val": "validation",
    "valid": "validation",
    "eval": "test",
    "evaluation": "test",
    "testing": "test",
    "held-out": "test",
}
_PROMPTS = ("prompt", "question", "problem", "instruction", "input", "messages")
_REFERENCES = (
    "reference",
    "answer",
    "ground_truth",
    "reward_model.ground_truth",
    "final_answer",
    "expected_answer",
    "solution",
    "tests",
    "target",
    "output",
)
_PLACE = re.compile(r"\{([^{}]+)\}")


class Fields(Settings):
    """What stands where in a row; a dotted name leads into nested mappings."""

    prompt: str | None = None
    """Text with a ``{field}`` in it, at least one; the default is the first of prompt, question, problem, ..."""
    reference_field: str | None = None
    """Without one the first of reference, answer, ground_truth, reward_model.ground_truth, final_answer, ..."""
    domain_field: str | None = "domain"
    """Which of ``verifiers`` judges the row; read where these are given."""
    verifier_field: str | None = None
    """The row's own verifier."""
    split_field: str | None = None
    """The row's split; without one it follows from a hash of the prompt, or of ``id_field``."""
    id_field: str | None = None
    split_shares: Sequence[float] = (0.9, 0.05, 0.05)
    """Of train, validation and test, where the split follows from a hash."""
    split_salt: str = ""
    """Another one gives other splits."""

    @field_validator("split_shares")
    @classmethod
    def _shares(cls, shares: Sequence[float]) -> Sequence[float]:
        if len(shares) != 3 or min(shares) < 0 or not math.isclose(sum(shares), 1.0, abs_tol=1e-6):
            raise ValueError(f"should be three shares for {', '.join(SPLITS[:3])} that add up to 1")
        return shares


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


def make_tasks(rows: Rows, fields: Fields) -> Sequence[DataTask]:
    """The tasks of rows; the same rows and fields give the same object. Raises :class:`ConfigError` with the row."""
    # The rows are kept beside their tasks: while they are, no other object has their id.
    key = (id(rows), len(rows), repr([getattr(fields, name) for name in Fields.model_fields]))
    return _kept(_made, key, lambda: (rows, tuple(_task(row, n, fields) for n, row in enumerate(rows))))[1]


def _task(row: Mapping[str, Any], number: int, fields: Fields) -> DataTask:
    if any(_plain(value) is not value for value in row.values()):
        row = {name: _plain(value) for name, value in row.items()}
    prompt = _prompt(row, number, fields.prompt)
    if not prompt.strip():
        raise ConfigError(f"the prompt of row {number} is empty")
    return DataTask(
        prompt=prompt,
        reference=_reference(row, number, fields.reference_field),
        row=row,
        domain="" if fields.domain_field is None else str(_need(row, fields.domain_field, number)),
        verifier=None if fields.verifier_field is None else _find(row, fields.verifier_field)[1],
        split=_split(row, number, prompt, fields),
    )


def _plain(value: Any) -> Any:
    """A cell as plain Python has it: NumPy's values are those of tables, where not-a-number stands for none."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return None if isinstance(value, float) and math.isnan(value) else value


def _nested(value: Any) -> Any:
    """What a cell holds that is the JSON text of a mapping or of chat messages, as in CSV files; else the cell."""
    if isinstance(value, str) and value.lstrip().startswith(("{", "[{")):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def _prompt(row: Mapping[str, Any], number: int, template: str | None) -> str:
    if template is not None:
        # What is no name, and none of a field, is a text in braces: \\boxed{1}.
        names = [n for n in _PLACE.findall(template) if re.fullmatch(r"[A-Za-z_][\w.]*", n) or _find(row, n)[0]]
        if not names:
            raise ConfigError(
                f"prompt={template!r} has no field in braces; row {number} has {', '.join(map(repr, row))}"
            )
        texts = {name: _text(_need(row, name, number)) for name in names}
        return _PLACE.sub(lambda place: texts.get(place[1], place[0]), template)
    name = next((n for n in _PROMPTS if row.get(n) is not None), None)
    if name is None:
        raise ConfigError(
            f"row {number} has none of the fields {', '.join(_PROMPTS)}; its fields are {', '.join(map(repr, row))}; "
            f"name them in prompt, such as prompt='{{{next(iter(row), 'question')}}}'"
        )
    return _text(_asked(_nested(row[name])) if name == "messages" else row[name])


def _asked(messages: Any) -> Any:
    """Chat messages without the reply of the assistant that ends them."""
    return messages[:-1] if _last_reply(messages) is not None and len(messages) > 1 else messages


def _last_reply(messages: Any) -> Any:
    last = messages[-1] if isinstance(messages, Sequence) and not isinstance(messages, str) and messages else None
    return said_in(last.get("content")) if isinstance(last, Mapping) and last.get("role") == "assistant" else None


def _text(value: Any) -> str:
    """A value as text; a list of chat messages, also as JSON text, as what they say."""
    found = _nested(value)
    if isinstance(found, Sequence) and found and all(isinstance(m, Mapping) and "content" in m for m in found):
        return conversation(found)
    return str(value)


def _reference(row: Mapping[str, Any], number: int, name: str | None) -> Any:
    if name is not None:
        return _need(row, name, number)
    known = next((value for value in (_find(row, known)[1] for known in _REFERENCES) if value is not None), None)
    return _last_reply(_nested(row.get("messages"))) if known is None else known


def _split(row: Mapping[str, Any], number: int, prompt: str, fields: Fields) -> str:
    if fields.split_field is not None:
        name = str(_need(row, fields.split_field, number)).lower()
        name = _OTHER_NAMES.get(name, name)
        if name not in SPLITS[:3]:
            raise ConfigError(f"row {number} is of the split {name!r}; splits are {', '.join(SPLITS[:3])}")
        return name
    key = prompt if fields.id_field is None else str(_need(row, fields.id_field, number))
    return split_of(key, fields.split_shares, fields.split_salt)


def split_of(key: str, shares: Sequence[float], salt: str = "") -> str:
    """The split of a row by a hash of its key: the same on any host, whatever other rows there are."""
    digest = hashlib.blake2b(f"{salt}|{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    # A number from 0 to 1 that depends on nothing but salt and key.
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
        value = _nested(value)
        if not isinstance(value, Mapping) or part not in value:
            return False, None
        value = value[part]
    return True, value
