"""The files of a catalogue on disk: their names and element types, how they are written, checked and mapped.

A catalogue is a folder of plain little-endian arrays and ``manifest.json``, which lists for every file its element
type, number of elements and checksum. The folder gets its final name when all of it is there; until then it carries
:data:`UNFINISHED` in its name.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roll_envs.errors import RollError

__all__ = [
    "FORMAT",
    "UNFINISHED",
    "VERSION",
    "ArrayWriter",
    "CatalogueError",
    "FileEntry",
    "Manifest",
    "Source",
    "describe_file",
    "describe_written",
    "manifest_to_dict",
    "map_array",
    "map_file",
    "read_manifest",
    "reading",
    "unfinished_name",
    "verify_checksums",
    "write_array",
    "write_json",
]

FORMAT = "roll-envs webshop catalogue"
VERSION = 2
UNFINISHED = ".unfinished"


class CatalogueError(RollError):
    """A product file or a catalogue on disk that is missing, unfinished, damaged or of another format."""


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn what goes wrong while reading damaged bytes into a :class:`CatalogueError` that begins with ``what``."""
    try:
        yield
    except (
        IndexError,
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
        OverflowError,
        zlib.error,
        sqlite3.Error,
    ) as error:
        raise CatalogueError(
            f"{what} is damaged ({error}); `roll-envs webshop info --verify` names the file; build the catalogue again"
        ) from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A file that a catalogue was made from."""

    name: str
    """Without its folder."""
    num_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """One array of a catalogue."""

    dtype: str
    """As numpy writes it, byte order included (``<u4``)."""
    count: int
    sha256: str

    @property
    def num_bytes(self) -> int:
        return self.count * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a catalogue holds and what it was made from."""

    counts: Mapping[str, int]
    seed: int
    """Of the prices and the goals' price caps."""
    sources: Mapping[str, Source]
    """``products``, ``attributes``, ``human_instructions`` -> file."""
    files: Mapping[str, FileEntry]


class ArrayWriter:
    """Writes an array piece by piece and keeps its checksum; ``held`` closes the file when work breaks off."""

    def __init__(self, folder: Path, name: str, dtype: str, held: ExitStack) -> None:
        self.name, self.dtype = name, np.dtype(dtype)
        self.file = held.enter_context((folder / name).open("wb", buffering=1 << 20))
        self.digest = hashlib.sha256()
        self.num_bytes = 0

    def write(self, values: NDArray[Any] | bytes) -> None:
        """Append elements; arrays are converted to the type of the file, which must hold their values."""
        raw = values if isinstance(values, bytes) else np.ascontiguousarray(values, self.dtype).tobytes()
        self.file.write(raw)
        self.digest.update(raw)
        self.num_bytes += len(raw)

    def close(self) -> FileEntry:
        """Flush to the disk and describe the file."""
        self.file.flush()
        # Before the manifest names the file: after a power failure it must not name bytes that are missing.
        os.fsync(self.file.fileno())
        self.file.close()
        count, rest = divmod(self.num_bytes, self.dtype.itemsize)
        assert rest == 0
        return FileEntry(dtype=self.dtype.str, count=count, sha256=self.digest.hexdigest())


def write_array(folder: Path, name: str, dtype: str, values: NDArray[Any] | bytes) -> FileEntry:
    """Write a whole array."""
    with ExitStack() as held:
        writer = ArrayWriter(folder, name, dtype, held)
        writer.write(values)
        return writer.close()


def describe_written(path: Path) -> FileEntry:
    """Flush a file of bytes that something else wrote to the disk, and describe it."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256")
        return FileEntry(dtype="|u1", count=file.tell(), sha256=digest.hexdigest())


def unfinished_name(out: Path) -> Path:
    """The folder in which a catalogue is built before it gets the name ``out``."""
    return out.with_name(out.name + UNFINISHED)


def write_json(path: Path, value: Any) -> None:
    """Write a small JSON file so that it is there whole or not at all."""
    draft = path.with_name(path.name + ".draft")
    with draft.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=1, sort_keys=True, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def manifest_to_dict(manifest: Manifest) -> dict[str, Any]:
    """As it stands in ``manifest.json``."""
    return {"format": FORMAT, "version": VERSION, **asdict(manifest)}


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a finished catalogue; :class:`CatalogueError` says what else is there instead."""
    again = "run `roll-envs webshop build-index` (again) to make it"
    if folder.name.endswith(UNFINISHED) and folder.is_dir():
        raise CatalogueError(f"{str(folder)!r} is an unfinished catalogue; {again}: it goes on where it stopped")
    if not folder.exists():
        if unfinished_name(folder).is_dir():
            raise CatalogueError(f"the catalogue {str(folder)!r} is unfinished; {again}: it goes on where it stopped")
        raise CatalogueError(f"there is no catalogue {str(folder)!r}; {again}")
    path = folder / "manifest.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CatalogueError(f"{str(folder)!r} is no catalogue (it has no manifest.json); {again}") from None
    except NotADirectoryError:
        raise CatalogueError(f"{str(folder)!r} is a file, not the folder of a catalogue; {again}") from None
    except (OSError, ValueError) as error:
        raise CatalogueError(f"{str(path)!r} cannot be read ({error}); {again}") from None
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise CatalogueError(f"{str(path)!r} is not the manifest of a {FORMAT}; {again}")
    if raw.get("version") != VERSION:
        found = raw.get("version")
        raise CatalogueError(f"{str(folder)!r} has format version {found!r}, this release reads {VERSION}; {again}")
    try:
        return Manifest(
            counts={str(name): int(count) for name, count in raw["counts"].items()},
            seed=int(raw["seed"]),
            sources={name: Source(**source) for name, source in raw["sources"].items()},
            files={name: FileEntry(**entry) for name, entry in raw["files"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CatalogueError(f"{str(path)!r} is damaged ({error!r}); {again}") from None


def describe_file(folder: Path, name: str, manifest: Manifest) -> FileEntry:
    """The manifest's entry of a file, after its size on disk was compared with it."""
    entry = manifest.files.get(name)
    if entry is None:
        raise CatalogueError(f"the manifest of {str(folder)!r} lacks {name!r}; build the catalogue again")
    try:
        actual = (folder / name).stat().st_size
    except OSError:
        raise CatalogueError(f"{name!r} is missing from the catalogue {str(folder)!r}; build it again") from None
    if actual != entry.num_bytes:
        raise CatalogueError(
            f"{name!r} of the catalogue {str(folder)!r} has {actual} bytes instead of {entry.num_bytes}: it is cut "
            "short or damaged; build it again"
        )
    return entry


def map_array(folder: Path, name: str, manifest: Manifest) -> NDArray[Any]:
    """A file as a read-only array, paged in as it is used and shared by all processes."""
    entry = describe_file(folder, name, manifest)
    return map_file(folder / name, entry.dtype)


def map_file(path: Path, dtype: str) -> NDArray[Any]:
    """A whole file as a read-only array."""
    if path.stat().st_size == 0:
        # An empty file cannot be mapped.
        return np.empty(0, dtype)
    with path.open("rb") as file:
        # The mapping stays when the file is closed.
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype)


def verify_checksums(folder: Path, manifest: Manifest) -> None:
    """Read every file and compare it with its checksum (seconds per gigabyte)."""
    for name in manifest.files:
        entry = describe_file(folder, name, manifest)
        with (folder / name).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
        if digest.hexdigest() != entry.sha256:
            raise CatalogueError(
                f"{name!r} of the catalogue {str(folder)!r} does not match its checksum: it is damaged; build it again"
            )
