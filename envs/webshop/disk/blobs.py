"""Sequences of byte strings in two files, and maps from short keys to byte strings in one (SQLite)."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.webshop.disk.format import ArrayWriter, CatalogueError, FileEntry, Manifest, map_array, map_file, reading

__all__ = ["BlobWriter", "Blobs", "Map", "dump_json", "encode", "find_blob", "load_json", "write_map"]

OFFSETS = ".offsets"


def encode(text: str) -> bytes:
    """UTF-8 that also takes the lone surrogates which JSON can hold."""
    return text.encode("utf-8", "surrogatepass")


def dump_json(value: Any) -> bytes:
    """Compact JSON."""
    return encode(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def load_json(held: bytes) -> Any:
    """What :func:`dump_json` was given."""
    return json.loads(held.decode("utf-8", "surrogatepass"))


class BlobWriter:
    """Writes byte strings one after another: ``name`` holds the bytes, ``name.offsets`` where each begins and ends."""

    def __init__(self, folder: Path, name: str, held: ExitStack) -> None:
        self.bytes = ArrayWriter(folder, name, "|u1", held)
        self.offsets = ArrayWriter(folder, name + OFFSETS, "<u8", held)
        self.end = 0
        self._pending = [0]

    def append(self, blob: bytes) -> None:
        """Add one byte string."""
        self.bytes.write(blob)
        self.end += len(blob)
        self._pending.append(self.end)
        if len(self._pending) >= 1 << 16:
            self._flush()

    def extend(self, blobs: Blobs) -> None:
        """Add all of a sequence, a few megabytes at a time."""
        self._flush()
        for start in range(0, len(blobs.bytes), 4 << 20):
            self.bytes.write(blobs.bytes[start : start + (4 << 20)])
        self.offsets.write(blobs.offsets[1:] + np.uint64(self.end))
        self.end += len(blobs.bytes)

    def _flush(self) -> None:
        self.offsets.write(np.array(self._pending, "<u8"))
        self._pending = []

    def close(self) -> dict[str, FileEntry]:
        """Flush to the disk; the entries of both files."""
        self._flush()
        return {self.bytes.name: self.bytes.close(), self.offsets.name: self.offsets.close()}


class Blobs:
    """The byte strings that a :class:`BlobWriter` wrote, mapped."""

    def __init__(self, data: NDArray[Any], offsets: NDArray[Any], where: str) -> None:
        self.bytes, self.offsets, self.where = data, offsets, where
        self._view = memoryview(data.data)
        if len(offsets) == 0 or int(offsets[-1]) != len(data):
            raise CatalogueError(f"{where} and its offsets do not fit together: one is damaged; build it again")

    @classmethod
    def of_manifest(cls, folder: Path, name: str, manifest: Manifest) -> Blobs:
        """Those of a finished catalogue."""
        offsets = map_array(folder, name + OFFSETS, manifest)
        return cls(map_array(folder, name, manifest), offsets, str(folder / name))

    @classmethod
    def of_files(cls, folder: Path, name: str) -> Blobs:
        """Those of a catalogue that is being built."""
        offsets = map_file(folder / (name + OFFSETS), "<u8")
        return cls(map_file(folder / name, "|u1"), offsets, str(folder / name))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> bytes:
        start, end = self.offsets[number], self.offsets[number + 1]
        if not start <= end <= len(self._view):
            raise CatalogueError(f"the offsets of {self.where} are damaged; build the catalogue again")
        return bytes(self._view[start:end])


def write_map(path: Path, entries: Iterable[tuple[bytes, bytes]]) -> None:
    """Write a map to ``path``, which appears when it is whole; of equal keys the last counts, as in JSON."""
    draft = path.with_name(path.name + ".draft")
    draft.unlink(missing_ok=True)
    with closing(sqlite3.connect(draft)) as database:
        # A draft that was cut off is thrown away: a journal would gain nothing.
        database.execute("PRAGMA journal_mode = OFF")
        database.execute("PRAGMA synchronous = OFF")
        database.execute("CREATE TABLE entries (key BLOB, value BLOB)")
        database.executemany("INSERT INTO entries VALUES (?, ?)", entries)
        # Afterwards, since sorting once is quicker than keeping an order.
        database.execute("CREATE INDEX by_key ON entries (key)")
        database.commit()
    draft.rename(path)


class Map:
    """A map that :func:`write_map` wrote, read from the disk each time; any thread may use it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Nothing writes to it any more, so that it needs no locks, which would not survive a fork.
        self._database = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Map, (self.path,)

    def __len__(self) -> int:
        return int(self._database.execute("SELECT count(DISTINCT key) FROM entries").fetchone()[0])

    def get(self, key: str) -> bytes | None:
        """The value of ``key``."""
        with reading(f"the map {str(self.path)!r}"):
            chosen = "SELECT value FROM entries WHERE key = ? ORDER BY rowid DESC LIMIT 1"
            found = self._database.execute(chosen, (encode(key),)).fetchone()
            return None if found is None else bytes(found[0])

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys with their values, in the order of the keys."""
        return iter(self._database.execute("SELECT key, value FROM entries ORDER BY key"))


def find_blob(sorted_blobs: Blobs, wanted: bytes) -> int | None:
    """The place of ``wanted`` in a sorted sequence without repetitions."""
    low, high = 0, len(sorted_blobs)
    while low < high:
        middle = (low + high) // 2
        if sorted_blobs[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low if low < len(sorted_blobs) and sorted_blobs[low] == wanted else None
