"""An opened catalogue: products, search and goals, mapped read-only and shared by all processes that open it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from envs.webshop.disk.blobs import Map, load_json
from envs.webshop.disk.format import Manifest, describe_file, read_manifest, reading, unfinished_name, verify_checksums
from envs.webshop.disk.goals import DiskGoals
from envs.webshop.disk.index import DiskIndex
from envs.webshop.disk.store import DiskStore

__all__ = ["DiskCatalogue", "is_index", "open_index"]


class DiskCatalogue:
    """What :func:`open_index` gives. Pickled (whole or in parts) it takes its path along and is opened again there."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest
        self.store = DiskStore(path, manifest)
        self.index = DiskIndex(path, manifest)
        self._nouns, self._listed = Map(path / "nouns"), Map(path / "listed")
        self.human_goals = DiskGoals(path, manifest, "human", self.store)
        self.synthetic_goals = DiskGoals(path, manifest, "synthetic", self.store)

    def __reduce__(self) -> tuple[Any, ...]:
        return DiskCatalogue, (self.path, self.manifest)

    def nouns(self, title: str) -> tuple[str, ...] | None:
        """The nouns of a title that came with the data (``title_nouns.json``); of equal titles the last counts."""
        held = self._nouns.get(title)
        with reading(f"the nouns of {title!r} in {str(self.path)!r}"):
            return None if held is None else tuple(load_json(held))

    def listed(self, operator: str, wanted: str) -> tuple[int, ...]:
        """Documents of a department (``<c>``), kind (``<q>``) or attribute (``<a>``), in order."""
        held = self._listed.get(f"{operator} {wanted}")
        with reading(f"the list of {operator} {wanted} in {str(self.path)!r}"):
            return () if held is None else tuple(np.frombuffer(held, "<u4").tolist())

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
    with reading(f"the catalogue {str(folder)!r}"):
        sizes = [describe_file(folder, name, manifest).num_bytes for name in manifest.files]
        if verify or (verify is None and sum(sizes) <= VERIFIED_BYTES):
            verify_checksums(folder, manifest)
        return DiskCatalogue(folder, manifest)


def is_index(path: str | os.PathLike[str]) -> bool:
    """Whether a path names a catalogue on disk, finished or not, rather than a folder of product files."""
    folder = Path(path)
    begun = not folder.exists() and unfinished_name(folder).is_dir()
    return begun or (folder / "manifest.json").is_file() or (folder / "job.json").is_file()
