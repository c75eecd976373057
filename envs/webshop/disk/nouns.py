"""Nouns of titles that come with the data, found by a hash of the title."""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.webshop.disk.blobs import Blobs, encode
from envs.webshop.disk.format import Manifest, map_array, reading

__all__ = ["KnownNouns", "order_titles"]


def _hash(title: str) -> int:
    return int.from_bytes(blake2b(encode(title), digest_size=8).digest(), "little")


def _read(entries: Blobs, number: int) -> tuple[str, list[str]]:
    title, nouns = json.loads(entries[number].decode("utf-8", "surrogatepass"))
    return title, nouns


def order_titles(entries: Blobs) -> tuple[NDArray[Any], NDArray[Any]]:
    """Places of the entries by the hash of their title, and the hashes in that order."""
    hashes = np.fromiter((_hash(_read(entries, n)[0]) for n in range(len(entries))), np.uint64, len(entries))
    order = np.argsort(hashes, kind="stable")
    return order, hashes[order]


class KnownNouns:
    """The nouns of titles that came with the data (``title_nouns.json``)."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._reopen = (folder, manifest)
        self._entries = Blobs.of_manifest(folder, "nouns", manifest)
        self._order = map_array(folder, "nouns.order", manifest)
        self._hashes = map_array(folder, "nouns.hashes", manifest)

    def __reduce__(self) -> tuple[Any, ...]:
        return KnownNouns, self._reopen

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, title: str) -> tuple[str, ...] | None:
        """Nouns of a title, ``None`` where they are not known; of equal titles the last counts."""
        wanted = np.uint64(_hash(title))
        low, high = np.searchsorted(self._hashes, wanted), np.searchsorted(self._hashes, wanted, side="right")
        with reading(f"the list of nouns in {self._entries.where}"):
            for place in self._order[low:high][::-1].tolist():
                found, nouns = _read(self._entries, place)
                if found == title:
                    return tuple(nouns)
        return None
