"""The first products of every department, kind and attribute, which the shop lists without a search.

Looking through a million products for them would take half a minute; so they are noted when the catalogue is built.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from envs.webshop.disk.blobs import Blobs, BlobWriter, encode, find_blob
from envs.webshop.disk.format import FileEntry, Manifest
from envs.webshop.types import Product

__all__ = ["MOST_LISTED", "Listed", "ListedWriter", "merge_listed"]

MOST_LISTED = 50
"""Products noted for each department, kind and attribute: as many as a search finds."""


def _keys(product: Product) -> set[str]:
    return {f"<c> {product.category}", f"<q> {product.query}", *(f"<a> {name}" for name in product.attributes)}


class ListedWriter:
    """Collects the first products of each key."""

    def __init__(self) -> None:
        self.found: dict[str, list[int]] = {}

    def add(self, product: Product, doc: int) -> None:
        """Note a product; documents come in order."""
        for key in _keys(product):
            docs = self.found.setdefault(key, [])
            if len(docs) < MOST_LISTED:
                docs.append(doc)

    def write(self, folder: Path) -> None:
        """Write all keys in order."""
        _write(folder, sorted((encode(key), docs) for key, docs in self.found.items()))


def _write(folder: Path, entries: Iterable[tuple[bytes, Sequence[int]]]) -> dict[str, FileEntry]:
    with ExitStack() as held:
        keys, docs = BlobWriter(folder, "listed", held), BlobWriter(folder, "listed.docs", held)
        for key, found in entries:
            keys.append(key)
            docs.append(np.array(found, "<u4").tobytes())
        return {**keys.close(), **docs.close()}


def merge_listed(parts: Iterable[tuple[Path, int]], out: Path) -> dict[str, FileEntry]:
    """Write the first products of all parts; a part is a folder and its first document. The entries of the files."""
    streams = [_read(folder, first_doc) for folder, first_doc in parts]
    # heapq.merge is stable: of equal keys, those of earlier parts come first.
    merged = groupby(heapq.merge(*streams, key=itemgetter(0)), key=itemgetter(0))
    return _write(out, ((key, [doc for _, docs in same for doc in docs][:MOST_LISTED]) for key, same in merged))


def _read(folder: Path, first_doc: int) -> Iterator[tuple[bytes, list[int]]]:
    keys, docs = Blobs.of_files(folder, "listed"), Blobs.of_files(folder, "listed.docs")
    for number in range(len(keys)):
        yield keys[number], [first_doc + doc for doc in np.frombuffer(docs[number], "<u4").tolist()]


class Listed:
    """The first products of a department (``<c>``), kind (``<q>``) or attribute (``<a>``)."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._reopen = (folder, manifest)
        self._keys = Blobs.of_manifest(folder, "listed", manifest)
        self._docs = Blobs.of_manifest(folder, "listed.docs", manifest)

    def __reduce__(self) -> tuple[Any, ...]:
        return Listed, self._reopen

    def get(self, operator: str, wanted: str) -> tuple[int, ...]:
        """Document numbers of at most :data:`MOST_LISTED` products, in order; ``get("<c>", "garden")``."""
        found = find_blob(self._keys, encode(f"{operator} {wanted}"))
        return () if found is None else tuple(np.frombuffer(self._docs[found], "<u4").tolist())
