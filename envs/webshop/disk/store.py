"""Products on disk: one compressed record each, found by document number or product number."""

from __future__ import annotations

import json
import zlib
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

from envs.webshop.disk.blobs import Blobs, encode, find_blob, load_json
from envs.webshop.disk.format import Manifest, map_array, reading
from envs.webshop.types import Product, Review

__all__ = ["DiskStore", "pack_product", "unpack_product"]


_FIELDS = tuple(field.name for field in fields(Product))


def pack_product(product: Product) -> bytes:
    """A product as JSON: its fields in the order of :class:`Product`, reviews as lists of theirs."""
    values = [getattr(product, name) for name in _FIELDS]
    return encode(json.dumps(values, ensure_ascii=False, separators=(",", ":"), default=_plain))


def _plain(value: Any) -> Any:
    return astuple(value) if isinstance(value, Review) else dict(value)


def unpack_product(packed: bytes) -> Product:
    """The product that :func:`pack_product` was given."""
    values = load_json(packed)
    found: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in zip(_FIELDS, values, strict=True)
    }
    found["options"] = {name: tuple(held) for name, held in found["options"].items()}
    found["reviews"] = tuple(Review(title=title, score=score, body=body) for title, score, body in found["reviews"])
    return Product(**found)


class DiskStore:
    """A :class:`ProductStore` over the files of a catalogue; reads a product anew each time it is asked for."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._reopen = (folder, manifest)
        self._products = Blobs.of_manifest(folder, "products", manifest)
        self._asins = Blobs.of_manifest(folder, "asins", manifest)
        self._asin_docs = map_array(folder, "asins.docs", manifest)
        self._prices = map_array(folder, "prices", manifest)

    def __reduce__(self) -> tuple[Any, ...]:
        return DiskStore, self._reopen

    def __len__(self) -> int:
        return len(self._products)

    def __getitem__(self, doc: int) -> Product:
        if not 0 <= doc < len(self):
            raise IndexError(f"document {doc} is not in 0..{len(self) - 1}")
        with reading(f"product {doc} in {self._products.where}"):
            return unpack_product(zlib.decompress(self._products[doc]))

    def find(self, asin: str) -> int | None:
        """Document number of a product, ``None`` when there is none."""
        with reading(f"the list of product numbers in {self._asins.where}"):
            found = find_blob(self._asins, encode(asin))
            return None if found is None else range(len(self))[self._asin_docs[found]]

    def price(self, doc: int) -> float:
        """The price charged, in dollars."""
        if not 0 <= doc < len(self):
            raise IndexError(f"document {doc} is not in 0..{len(self) - 1}")
        return float(self._prices[doc])
