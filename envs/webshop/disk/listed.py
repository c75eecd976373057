"""The products of every department, kind and attribute, which the shop lists without a search.

Looking through a million products for them would take half a minute; so they are noted when the catalogue is built.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.webshop.disk.blobs import Blobs, BlobWriter, encode, find_blob
from envs.webshop.disk.format import FileEntry, Manifest, reading
from envs.webshop.search import listed_under
from envs.webshop.types import Product

__all__ = ["Listed", "ListedWriter", "merge_listed"]


class ListedWriter:
    """Collects the products of each key."""

    def __init__(self) -> None:
        self.found: dict[str, array[int]] = {}

    def add(self, product: Product, doc: int) -> None:
        """Note a product; documents come in order."""
        for key in listed_under(product):
            self.found.setdefault(key, array("I")).append(doc)

    def write(self, folder: Path) -> None:
        """Write all keys in order."""
        _write(folder, sorted((encode(key), np.array(docs, "<u4")) for key, docs in self.found.items()))


def _write(folder: Path, entries: Iterable[tuple[bytes, NDArray[Any]]]) -> dict[str, FileEntry]:
    with ExitStack() as held:
        keys, docs = BlobWriter(folder, "listed", held), BlobWriter(folder, "listed.docs", held)
        for key, found in entries:
            keys.append(key)
            docs.append(found.astype("<u4").tobytes())
        return {**keys.close(), **docs.close()}


def merge_listed(parts: Iterable[tuple[Path, int]], out: Path) -> dict[str, FileEntry]:
    """Write the products of all parts; a part is a folder and its first document. The entries of the files."""
    streams = [_read(folder, first_doc) for folder, first_doc in parts]
    # heapq.merge is stable: of equal keys, those of earlier parts come first.
    merged = groupby(heapq.merge(*streams, key=itemgetter(0)), key=itemgetter(0))
    return _write(out, ((key, np.concatenate([docs for _, docs in same])) for key, same in merged))


def _read(folder: Path, first_doc: int) -> Iterator[tuple[bytes, NDArray[Any]]]:
    keys, docs = Blobs.of_files(folder, "listed"), Blobs.of_files(folder, "listed.docs")
    for number in range(len(keys)):
        yield keys[number], np.frombuffer(docs[number], "<u4") + first_doc


class Listed:
    """The products of a department (``<c>``), kind (``<q>``) or attribute (``<a>``)."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._reopen = (folder, manifest)
        self._keys = Blobs.of_manifest(folder, "listed", manifest)
        self._docs = Blobs.of_manifest(folder, "listed.docs", manifest)

    def __reduce__(self) -> tuple[Any, ...]:
        return Listed, self._reopen

    def get(self, operator: str, wanted: str) -> tuple[int, ...]:
        """Document numbers in order; ``get("<c>", "garden")``."""
        with reading(f"the list of departments, kinds and attributes in {self._keys.where}"):
            found = find_blob(self._keys, encode(f"{operator} {wanted}"))
            return () if found is None else tuple(np.frombuffer(self._docs[found], "<u4").tolist())
