"""The data that the parts of the shop hand to each other: products, goals, and what stores and finds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["Goal", "Product", "ProductStore", "Review", "SearchIndex"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Review:
    """One review of a product."""

    title: str
    score: str
    body: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """One product, as the pages show it."""

    asin: str
    title: str
    description: str
    bullet_points: tuple[str, ...]
    category: str
    """One of a handful of departments (``beauty``, ``fashion``, ...)."""
    query: str
    """The kind of product in a few words, lower case (``console tables``)."""
    product_category: str
    """Path of categories joined by ``›``."""
    pricing: tuple[float, ...]
    """Dollars: empty (unknown), one price, or the two ends of a range."""
    price_tag: str
    options: Mapping[str, tuple[str, ...]]
    """Option name -> its values, all lower case, in the order they are shown."""
    attributes: tuple[str, ...]
    image: str = ""
    rating: str = "N.A."
    reviews: tuple[Review, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """What to buy. The reward compares a purchase with these fields only."""

    asin: str
    """The product the goal was written for."""
    instruction: str
    query: str
    product_category: str
    title: str
    attributes: tuple[str, ...]
    options: Mapping[str, str] | tuple[str, ...] = field(default_factory=dict)
    """Synthetic goals name each option; those written by people list the values only."""
    price_upper: float = 1_000_000.0
    """Dollars."""
    weight: float = 1.0


class ProductStore(Protocol):
    """Products by document number (their place in the catalogue). Immutable; safe to read from any thread."""

    def __len__(self) -> int: ...

    def __getitem__(self, doc: int) -> Product: ...

    def find(self, asin: str) -> int | None:
        """Document number of a product, ``None`` when there is none."""

    def price(self, doc: int) -> float:
        """The price charged, in dollars: fixed for the catalogue, drawn once where the listing gives a range."""


class SearchIndex(Protocol):
    """Finds products. Immutable; safe to use from any thread."""

    def search(self, query: str, k: int) -> Sequence[int]:
        """Document numbers of the best ``k`` matches, best first; equal scores in order of product number (asin)."""
