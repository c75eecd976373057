"""Products on disk: one compressed record each, found by document number or product number."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

from envs.webshop.disk.blobs import Blobs, encode, find_blob
from envs.webshop.disk.format import Manifest, map_array, reading
from envs.webshop.types import Product, Review

__all__ = ["DiskStore", "pack_product", "unpack_product"]


def pack_product(product: Product) -> bytes:
    """A product as JSON: its fields in the order of :class:`Product`."""
    fields = (
        product.asin,
        product.title,
        product.description,
        product.bullet_points,
        product.category,
        product.query,
        product.product_category,
        product.pricing,
        product.price_tag,
        dict(product.options),
        product.attributes,
        product.image,
        product.rating,
        [(review.title, review.score, review.body) for review in product.reviews],
    )
    return encode(json.dumps(fields, ensure_ascii=False, separators=(",", ":")))


def unpack_product(packed: bytes) -> Product:
    """The product that :func:`pack_product` was given."""
    (
        asin,
        title,
        description,
        bullet_points,
        category,
        query,
        product_category,
        pricing,
        price_tag,
        options,
        attributes,
        image,
        rating,
        reviews,
    ) = json.loads(packed.decode("utf-8", "surrogatepass"))
    return Product(
        asin=asin,
        title=title,
        description=description,
        bullet_points=tuple(bullet_points),
        category=category,
        query=query,
        product_category=product_category,
        pricing=tuple(pricing),
        price_tag=price_tag,
        options={name: tuple(values) for name, values in options.items()},
        attributes=tuple(attributes),
        image=image,
        rating=rating,
        reviews=tuple(Review(title=t, score=s, body=b) for t, s, b in reviews),
    )


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
