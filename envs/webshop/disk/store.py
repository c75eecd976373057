"""Products and goals on disk, made anew each time they are asked for.

A full catalogue has millions of synthetic goals, one per combination of options of a product. Kept are, per product
with an instruction, the drawn price cap, and the shuffled order; a goal is then made from its own product alone.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, overload

from envs.webshop.disk.format import CatalogueFiles, dump_json, encode, reading
from envs.webshop.goals import human_goal, synthetic_goal
from envs.webshop.types import Goal, Product, Review

__all__ = ["DiskGoals", "DiskStore", "pack_product"]

_FIELDS = tuple(field.name for field in fields(Product))
_COMPRESSION = 6


def pack_product(product: Product) -> bytes:
    """A product as compressed JSON: its fields in the order of :class:`Product`, reviews as lists of theirs."""
    return zlib.compress(dump_json(product), _COMPRESSION)


def _unpack_product(packed: bytes) -> Product:
    found: dict[str, Any] = dict(zip(_FIELDS, json.loads(zlib.decompress(packed)), strict=True))
    for name in ("bullet_points", "pricing", "attributes"):
        found[name] = tuple(found[name])
    found["options"] = {name: tuple(held) for name, held in found["options"].items()}
    found["reviews"] = tuple([Review(title=title, score=score, body=body) for title, score, body in found["reviews"]])
    return Product(**found)


class DiskStore:
    """A :class:`ProductStore` over the files of a catalogue."""

    def __init__(self, files: CatalogueFiles) -> None:
        self._files = files

    def __len__(self) -> int:
        return self._files.manifest.counts["products"]

    def __getitem__(self, doc: int) -> Product:
        self._check(doc)
        with reading(f"product {doc} of the products in {str(self._files.folder)!r}"):
            start, end = self._files.arrays["products.offsets"][doc : doc + 2].tolist()
            return _unpack_product(self._files.arrays["products"][start:end].tobytes())

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

    def __init__(self, files: CatalogueFiles, kind: str, store: DiskStore) -> None:
        self._files, self._kind, self._store = files, kind, store

    def __len__(self) -> int:
        return len(self._files.arrays[f"{self._kind}.order"])

    @overload
    def __getitem__(self, number: int) -> Goal: ...
    @overload
    def __getitem__(self, number: slice) -> tuple[Goal, ...]: ...
    def __getitem__(self, number: int | slice) -> Goal | tuple[Goal, ...]:
        if isinstance(number, slice):
            return tuple(self[n] for n in range(*number.indices(len(self))))
        if not -len(self) <= number < len(self):
            raise IndexError(f"goal {number} is not in 0..{len(self) - 1}")
        with reading(f"goal {number} in {str(self._files.folder)!r}"):
            return self._make(int(self._files.arrays[f"{self._kind}.order"][number]))

    def _make(self, place: int) -> Goal:
        """The goal at a place in catalogue order; of the combinations of options, the last changes fastest."""
        first, doc, cap, weight, said = self._files.row(
            "SELECT first, doc, cap, weight, said FROM goals WHERE kind = ? AND first <= ? ORDER BY first DESC LIMIT 1",
            self._kind,
            place,
        )
        product, rest = self._store[doc], place - first
        if self._kind == "human":
            return human_goal(product, json.loads(said), cap)
        instruction, attributes = json.loads(said)
        chosen = {}
        for name in sorted(product.options, reverse=True):
            rest, number = divmod(rest, len(product.options[name]))
            chosen[name] = product.options[name][number]
        options = {name: chosen[name] for name in sorted(chosen)}
        return synthetic_goal(product, instruction, tuple(attributes), options, cap, weight)
