"""Sequences of byte strings in two files, and maps from short keys to JSON values over them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.webshop.disk.format import ArrayWriter, CatalogueError, FileEntry, Manifest, map_array, map_file, write_array

__all__ = ["BlobWriter", "Blobs", "JsonMap", "encode", "write_json_map"]

OFFSETS = ".offsets"


def encode(text: str) -> bytes:
    """UTF-8 that also takes the lone surrogates which JSON can hold."""
    return text.encode("utf-8", "surrogatepass")


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


def write_json_map(entries: Iterable[tuple[str, Any]], folder: Path) -> None:
    """Write a map to ``folder``, which appears when it is whole; of equal keys the last counts, as in JSON."""
    draft = folder.with_name(folder.name + ".draft")
    if draft.exists():
        shutil.rmtree(draft)
    draft.mkdir(parents=True)
    numbers: dict[bytes, int] = {}
    with ExitStack() as held:
        values = BlobWriter(draft, "values", held)
        for number, (key, value) in enumerate(entries):
            values.append(encode(json.dumps(value, ensure_ascii=False, separators=(",", ":"))))
            numbers[encode(key)] = number
        values.close()
        keys = BlobWriter(draft, "keys", held)
        # In order of their bytes, for `find_blob`.
        ordered = sorted(numbers.items())
        for encoded, _ in ordered:
            keys.append(encoded)
        keys.close()
    write_array(draft, "places", "<u4", np.array([number for _, number in ordered], "<u4"))
    draft.rename(folder)


class JsonMap:
    """A map that :func:`write_json_map` wrote: ``get`` as of a dict, read from the disk each time."""

    def __init__(self, folder: Path) -> None:
        self._keys = Blobs.of_files(folder, "keys")
        self._values = Blobs.of_files(folder, "values")
        self._places = map_file(folder / "places", "<u4")

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of ``key``."""
        found = find_blob(self._keys, encode(key))
        return (
            default if found is None else json.loads(self._values[self._places[found]].decode("utf-8", "surrogatepass"))
        )


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
