"""An opened catalogue: products, search and goals, mapped read-only and shared by all processes that open it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from envs.webshop.disk.format import (
    MANIFEST,
    WORK,
    CatalogueFiles,
    Manifest,
    check_files,
    encode,
    read_manifest,
    reading,
    unfinished_name,
)
from envs.webshop.disk.index import DiskIndex
from envs.webshop.disk.store import DiskGoals, DiskStore

__all__ = ["DiskCatalogue", "is_index", "open_index"]


class DiskCatalogue:
    """What :func:`open_index` gives. Pickled (whole or in parts) it takes its path along and is opened again there."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest
        self._files = CatalogueFiles(path, manifest)
        self.store, self.index = DiskStore(self._files), DiskIndex(self._files)
        self.human_goals = DiskGoals(self._files, "human", self.store)
        self.synthetic_goals = DiskGoals(self._files, "synthetic", self.store)

    def nouns(self, title: str) -> tuple[str, ...] | None:
        """The nouns of a title that came with the data (``title_nouns.json``); of equal titles the last counts."""
        with reading(f"the nouns of {title!r} in {str(self.path)!r}"):
            held = self._files.row("SELECT nouns FROM nouns WHERE title = ?", encode(title))
            return None if held is None else tuple(json.loads(held[0]))

    def listed(self, operator: str, wanted: str) -> tuple[int, ...]:
        """Documents of a department (``<c>``), kind (``<q>``) or attribute (``<a>``), in order."""
        return self.index.documents(f"{operator} {wanted}")

    def goals(self, *, human: bool) -> DiskGoals:
        """The goals written by people, or those made from the options of products."""
        return self.human_goals if human else self.synthetic_goals


VERIFIED_BYTES = 64 << 20
"""A catalogue of so many bytes or fewer is compared with its checksums whenever it is opened: a tenth of a second."""


def open_index(path: str | os.PathLike[str], *, verify: bool | None = None) -> DiskCatalogue:
    """Open a catalogue that :func:`~envs.webshop.disk.build.build_index` made; milliseconds, whatever its size.

    The sizes of all files are compared with the manifest, and with ``verify`` their checksums too (seconds per
    gigabyte; ``None``: where there are no more than :data:`VERIFIED_BYTES`). Raises
    :class:`~envs.webshop.disk.format.CatalogueError` for a catalogue that is missing, unfinished, damaged or of another
    format version; one that is found to be damaged later raises it when that part is read.
    """
    folder = Path(path).absolute()
    manifest = read_manifest(folder)
    small = sum(entry.num_bytes for entry in manifest.files.values()) <= VERIFIED_BYTES
    with reading(f"the catalogue {str(folder)!r}"):
        check_files(folder, manifest, checksums=small if verify is None else verify)
        return DiskCatalogue(folder, manifest)


def is_index(path: str | os.PathLike[str]) -> bool:
    """Whether a path names a catalogue on disk, finished or not, rather than a folder of product files."""
    folder = Path(path)
    begun = not folder.exists() and unfinished_name(folder).is_dir()
    return begun or (folder / MANIFEST).is_file() or (folder / WORK).is_file()
