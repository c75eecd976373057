"""The files of a catalogue on disk: their names and element types, how they are checked and opened.

A catalogue is a folder of plain little-endian arrays (:data:`ARRAYS`), a SQLite database (:data:`DATABASE`) and
``manifest.json``, which holds the size and checksum of each. The folder gets its final name when all of it is there;
until then it is built in a folder that carries :data:`UNFINISHED` in its name.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import weakref
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.webshop.types import Product, Review
from roll_envs.errors import RollError

__all__ = [
    "ARRAYS",
    "DATABASE",
    "MANIFEST",
    "UNFINISHED",
    "VERSION",
    "WORK",
    "CatalogueError",
    "CatalogueFiles",
    "Manifest",
    "check_files",
    "dump_json",
    "encode",
    "pack_product",
    "read_manifest",
    "reading",
    "unfinished_name",
    "unpack_product",
    "write_manifest",
]

VERSION = 4
UNFINISHED = ".unfinished"
MANIFEST = "manifest.json"
DATABASE = "catalogue.db"
WORK = "work.db"
"""In the folder of an unfinished catalogue."""
ARRAYS = {
    "prices": "<f8",
    "ranks": "<u4",
    "postings.docs": "<u4",
    "postings.saturations": "<f4",
    "human.order": "<u4",
    "synthetic.order": "<u4",
}
"""Prices of products; their places in the order of product numbers; the documents of all terms, with what each adds to
a score; the numbers of goals in catalogue order, shuffled."""
FILES = (*ARRAYS, DATABASE)

_ENTRY = (("num_bytes", int), ("sha256", str))

_FIELDS = tuple(field.name for field in fields(Product))


class CatalogueError(RollError):
    """A product file or a catalogue on disk that is missing, unfinished, damaged or of another format."""


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn what goes wrong while reading damaged bytes into a :class:`CatalogueError` that begins with ``what``."""
    try:
        yield
    except (LookupError, ValueError, TypeError, AttributeError, OverflowError, zlib.error, sqlite3.Error) as error:
        raise CatalogueError(
            f"{what} is damaged ({error}); `roll-envs webshop info --verify` names the file; build the catalogue again"
        ) from None


def encode(text: str) -> bytes:
    """UTF-8 that also takes the lone surrogates which JSON can hold."""
    return text.encode("utf-8", "surrogatepass")


def dump_json(value: Any) -> bytes:
    """Compact JSON; dataclasses become lists of the values of their fields."""
    return encode(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_field_values))


def _field_values(value: Any) -> list[Any]:
    return [getattr(value, field.name) for field in fields(value)]


def pack_product(product: Product) -> bytes:
    """A product as compressed JSON: its fields in the order of :class:`Product`, reviews as lists of theirs."""
    return zlib.compress(dump_json(product), 6)


def unpack_product(packed: bytes) -> Product:
    text = zlib.decompress(packed).decode("utf-8", "surrogatepass")  # quicker than to let the parser find out
    found: dict[str, Any] = dict(zip(_FIELDS, json.loads(text), strict=True))
    for name in ("bullet_points", "pricing", "attributes"):
        found[name] = tuple(found[name])
    found["options"] = {name: tuple(held) for name, held in found["options"].items()}
    found["reviews"] = tuple([Review(title=title, score=score, body=body) for title, score, body in found["reviews"]])
    return Product(**found)


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a catalogue holds and what it was made from."""

    counts: Mapping[str, int]
    seed: int
    """Of the prices and the goals' price caps."""
    sources: Mapping[str, str]
    """``products``, ``attributes``, ``human_instructions`` -> name and size of the file, for people."""
    files: Mapping[str, Mapping[str, Any]]
    """``num_bytes`` and ``sha256`` of each."""


def unfinished_name(out: Path) -> Path:
    """The folder in which a catalogue is built before it gets the name ``out``."""
    return out.with_name(out.name + UNFINISHED)


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path, counts: Mapping[str, int], seed: int, sources: Mapping[str, str]) -> None:
    """Flush the files of a new catalogue to the disk, then describe them."""
    entries = {
        name: {"num_bytes": (folder / name).stat().st_size, "sha256": _checksum(folder / name)} for name in FILES
    }
    manifest = asdict(Manifest(counts=counts, seed=seed, sources=sources, files=entries))
    described = json.dumps({"version": VERSION, **manifest}, indent=1, sort_keys=True)
    (folder / MANIFEST).write_text(described, encoding="utf-8")
    # Before the folder gets its name: after a power failure it must not name bytes that are missing.
    for name in (*FILES, MANIFEST):
        with (folder / name).open("rb") as file:
            os.fsync(file.fileno())


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a finished catalogue; :class:`CatalogueError` says what else is there instead."""
    path, again = folder / MANIFEST, "run `roll-envs webshop build-index` (again) to make it"
    draft = folder if folder.name.endswith(UNFINISHED) else unfinished_name(folder)
    if draft.is_dir() and not path.exists():
        raise CatalogueError(f"the catalogue {str(folder)!r} is unfinished; {again}: it goes on where it stopped")
    try:
        raw = json.loads(path.read_bytes())
        if raw["version"] == VERSION:
            return Manifest(
                counts={str(name): int(count) for name, count in raw["counts"].items()},
                seed=int(raw["seed"]),
                sources=dict(raw["sources"]),
                files={name: {key: read(raw["files"][name][key]) for key, read in _ENTRY} for name in FILES},
            )
    except (FileNotFoundError, NotADirectoryError):
        raise CatalogueError(f"there is no catalogue {str(folder)!r}, a folder with a {MANIFEST}; {again}") from None
    except (OSError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise CatalogueError(f"{str(path)!r} is damaged ({error!r}); {again}") from None
    raise CatalogueError(
        f"{str(folder)!r} has format version {raw['version']!r}, this release reads {VERSION}; {again}"
    )


def check_files(folder: Path, manifest: Manifest, *, checksums: bool) -> None:
    """Compare the sizes of all files with the manifest, and their checksums too where asked (seconds per gigabyte)."""
    for name, entry in manifest.files.items():
        what = f"{name!r} of the catalogue {str(folder)!r}"
        if not (folder / name).is_file():
            raise CatalogueError(f"{what} is missing; build it again")
        actual = (folder / name).stat().st_size
        if actual != entry["num_bytes"]:
            raise CatalogueError(
                f"{what} has {actual} bytes instead of {entry['num_bytes']}: it is cut short or damaged; build it again"
            )
        if checksums and _checksum(folder / name) != entry["sha256"]:
            raise CatalogueError(f"{what} does not match its checksum: it is damaged; build it again")


class CatalogueFiles:
    """The open files of a catalogue, paged in as they are used; pickled, they are opened again by their path.

    Any thread may read, and so may a fork: nothing writes to the database any more, so that it is opened without locks.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self.arrays = {name: _map_array(folder / name, dtype) for name, dtype in ARRAYS.items()}
        uri = f"{(folder / DATABASE).as_uri()}?mode=ro&immutable=1"
        # No statement is kept: threads of Python 3.12 and newer would share it, and read each other's rows.
        self._database = sqlite3.connect(uri, uri=True, check_same_thread=False, cached_statements=0)
        weakref.finalize(self, self._database.close).atexit = False  # threads may still read then
        # Mapped, its first 2 GiB.
        self._database.execute(f"PRAGMA mmap_size = {2**31}")

    def __reduce__(self) -> tuple[Any, ...]:
        return CatalogueFiles, (self.folder, self.manifest)

    def row(self, query: str, *values: object) -> Any:
        """The first row that a query of the database finds."""
        return self._database.execute(query, values).fetchone()


def _map_array(path: Path, dtype: str) -> NDArray[Any]:
    # An empty file cannot be mapped; as plain arrays, slices are quicker than those of np.memmap.
    return np.asarray(np.memmap(path, dtype, "r")) if path.stat().st_size else np.empty(0, dtype)
