"""Line drawings that stand for products: the pages load no pictures from other hosts."""

from __future__ import annotations

from envs.webshop.types import Product

__all__ = ["TINTS", "drawing", "tint"]

TINTS = 6
"""Number of the background colours in style.css."""

_BAG = "M11 16h26l-2 22H13zM18 16v-2a6 6 0 0 1 12 0v2"
_SHIRT = "M18 9 8 14l4 9 4-2v18h16V21l4 2 4-9-10-5a6 6 0 0 1-12 0z"
_LAPTOP = "M12 13h24v17H12zM12 30l-5 5h34l-5-5"
_BOTTLE = (
    "M20 8h8v7h-8zM17 15h14v4H17zM18 19h12a4 4 0 0 1 4 4v13a4 4 0 0 1-4 4H18a4 4 0 0 1-4-4V23a4 4 0 0 1 4-4zM19 30h10"
)
_BLOCKS = "M8 26h14v14H8zM26 26h14v14H26zM17 9h14v14H17z"
_SOFA = "M12 25v-8a6 6 0 0 1 6-6h12a6 6 0 0 1 6 6v8M8 25a4 4 0 0 1 8 0v4h16v-4a4 4 0 0 1 8 0v11H8zM12 36v4M36 36v4"
_APPLE = "M24 15c-7-5-15 0-14 10 1 8 6 15 10 15 2 0 2-1 4-1s2 1 4 1c4 0 9-7 10-15 1-10-7-15-14-10zM24 15c0-4 2-7 6-8"
_HEADPHONES = (
    "M10 27v-4a14 14 0 0 1 28 0v4M7 29a3 3 0 0 1 3-3h2a3 3 0 0 1 3 3v7a3 3 0 0 1-3 3h-2a3 3 0 0 1-3-3z"
    "M33 29a3 3 0 0 1 3-3h2a3 3 0 0 1 3 3v7a3 3 0 0 1-3 3h-2a3 3 0 0 1-3-3z"
)
_BED = "M7 38v-4M41 38v-4M7 34v-9a4 4 0 0 1 4-4h26a4 4 0 0 1 4 4v9zM11 21v-5a3 3 0 0 1 3-3h20a3 3 0 0 1 3 3v5M7 29h34"
_PLANT = "M17 29h14l-2 11H19zM24 29V17M24 21c-7 0-9-4-9-9 6 0 9 3 9 9zM24 25c6 0 8-3 8-8-5 0-8 3-8 8z"
_PAW = (
    "M24 24c-5 0-9 5-9 9 0 3 2 4 4 4s3-1 5-1 3 1 5 1 4-1 4-4c0-4-4-9-9-9zM12 18a3 3.6 0 1 0 .01 0z"
    "M19.5 10a3 3.6 0 1 0 .01 0zM28.5 10a3 3.6 0 1 0 .01 0zM36 18a3 3.6 0 1 0 .01 0z"
)
_SUITCASE = (
    "M12 16h24a3 3 0 0 1 3 3v17a3 3 0 0 1-3 3H12a3 3 0 0 1-3-3V19a3 3 0 0 1 3-3z"
    "M18 16v-4a2 2 0 0 1 2-2h8a2 2 0 0 1 2 2v4M17 16v23M31 16v23"
)
_CUP = "M11 17h22v14a8 8 0 0 1-8 8h-6a8 8 0 0 1-8-8zM33 20h3a4 4 0 0 1 4 4v1a4 4 0 0 1-4 4h-3M18 8v4M25 8v4"
_POT = "M11 20h26v14a5 5 0 0 1-5 5H16a5 5 0 0 1-5-5zM7 25h4M37 25h4M9 20h30M24 16v4M21 14h6"

_DRAWINGS: tuple[tuple[str, str], ...] = (
    ("shoe", "M7 33v-9l4 0 5-8 3 2c2 6 9 8 17 9 4 1 5 3 5 6zM7 37h34M22 22l3-3"),
    ("fashion", _SHIRT),
    ("cloth", _SHIRT),
    ("beauty", _BOTTLE),
    ("drink", _CUP),
    ("grocery", _APPLE),
    ("food", _APPLE),
    ("kitchen", _POT),
    ("sport", "M12 15v18M7 19v10M36 15v18M41 19v10M12 24h24"),
    ("light", "M17 9h14l6 14H11zM24 23v15M16 39h16"),
    ("bed", _BED),
    ("furniture", _SOFA),
    ("audio", _HEADPHONES),
    ("electronic", _LAPTOP),
    ("pet", _PAW),
    ("luggage", _SUITCASE),
    ("office", "M11 37l2-8 18-18 6 6-18 18zM27 15l6 6"),
    ("toy", _BLOCKS),
    ("kid", _BLOCKS),
    ("patio", _PLANT),
    ("garden", _SOFA),
    ("home", _SOFA),
)
"""The first word that occurs in a product's department gives its drawing."""


def drawing(product: Product) -> str:
    """The path of a drawing in a square of 48 by 48."""
    department = product.category.lower()
    return next((path for word, path in _DRAWINGS if word in department), _BAG)


def tint(product: Product) -> int:
    """The background of a product: a number below ``TINTS`` that is always the same for it."""
    return sum(product.asin.encode("utf-8", "replace")) % TINTS
