"""An opened catalogue: products, search and goals, mapped read-only and shared by all processes that open it.

A full catalogue has millions of synthetic goals, one per combination of options of a product. Kept are, per product
with an instruction, the drawn price cap, and the shuffled order; a goal is then made from its own product alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from envs.webshop.disk import format as files_of
from envs.webshop.disk.format import CatalogueFiles, Manifest, encode, reading, unpack_product
from envs.webshop.disk.index import DiskIndex
from envs.webshop.goals import human_goal, synthetic_goal
from envs.webshop.types import Goal, Product


class DiskStore:
    """A :class:`ProductStore` over the files of a catalogue."""

    def __init__(self, files: CatalogueFiles) -> None:
        self._files = files

    def __len__(self) -> int:
        return self._files.manifest.counts["products"]

    def __getitem__(self, doc: int) -> Product:
        self._check(doc)
        with reading(f"product {doc} of the products in {str(self._files.folder)!r}"):
            [packed] = self._files.row("SELECT packed FROM products WHERE doc = ?", doc)
            return unpack_product(packed)

    def _check(self, doc: int) -> None:
        if not 0 <= doc < len(self):
            raise IndexError(f"document {doc} is not in 0..{len(self) - 1}")

    def find(self, asin: str) -> int | None:
        """Document number of a product, ``None`` when there is none."""
        with reading(f"the list of product numbers in {str(self._files.folder)!r}"):
            found = self._files.row("SELECT doc FROM products WHERE asin = ?", encode(asin))
            return None if found is None else range(len(self))[found[0]]

    def price(self, doc: int) -> float:
        """The price charged, in dollars."""
        self._check(doc)
        return float(self._files.arrays["prices"][doc])


class DiskGoals(Sequence[Goal]):
    """The ``human`` or the ``synthetic`` goals of a catalogue in the order by which they are numbered."""

    def __init__(self, files: CatalogueFiles, kind: str) -> None:
        self._files, self._kind = files, kind

    def __len__(self) -> int:
        return len(self._files.arrays[f"{self._kind}.order"])

    def __getitem__(self, number: Any) -> Any:
        """A goal by number, or by a slice a tuple of goals. Raises :class:`IndexError` for a number that is none."""
        if not isinstance(number, slice) and not -len(self) <= number < len(self):
            raise IndexError(f"goal {number} is not in 0..{len(self) - 1}")
        places = self._files.arrays[f"{self._kind}.order"][number]
        with reading(f"goal {number} in {str(self._files.folder)!r}"):
            return tuple(map(self._make, places.tolist())) if isinstance(number, slice) else self._make(int(places))

    def _make(self, place: int) -> Goal:
        """The goal at a place in catalogue order; of the combinations of options, the last changes fastest."""
        columns = "SELECT first, cap, weight, said, packed FROM goals JOIN products USING (doc)"
        last_before = "WHERE kind = ? AND first <= ? ORDER BY first DESC LIMIT 1"
        first, cap, weight, said, packed = self._files.row(f"{columns} {last_before}", self._kind, place)
        product, written = unpack_product(packed), json.loads(said)
        if self._kind == "human":
            return human_goal(product, written, cap)
        names = sorted(product.options)
        places = np.unravel_index(place - first, [len(product.options[name]) for name in names])
        options = {name: product.options[name][place] for name, place in zip(names, places, strict=True)}
        attributes = tuple(written["instruction_attributes"])
        return synthetic_goal(product, written["instruction"], attributes, options, cap, weight)


class DiskCatalogue:
    """What :func:`open_index` gives. Pickled (whole or in parts) it takes its path along and is opened again there."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest
        self._files = CatalogueFiles(path, manifest)
        self.store, self.index = DiskStore(self._files), DiskIndex(self._files)

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
        return DiskGoals(self._files, "human" if human else "synthetic")


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
    manifest = files_of.read_manifest(folder)
    small = sum(entry["num_bytes"] for entry in manifest.files.values()) <= VERIFIED_BYTES
    with reading(f"the catalogue {str(folder)!r}"):
        files_of.check_files(folder, manifest, checksums=small if verify is None else verify)
        return DiskCatalogue(folder, manifest)


def is_index(path: str | os.PathLike[str]) -> bool:
    """Whether a path names a catalogue on disk, finished or not, rather than a folder of product files."""
    folder = Path(path)
    begun = not folder.exists() and files_of.unfinished_name(folder).is_dir()
    return begun or (folder / files_of.MANIFEST).is_file() or (folder / files_of.WORK).is_file()
