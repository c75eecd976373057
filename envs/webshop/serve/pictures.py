"""Line drawings that stand for products: the pages load no pictures from other hosts."""

from __future__ import annotations

import json
from pathlib import Path

from envs.webshop.types import Product

__all__ = ["TINTS", "drawing", "tint"]

TINTS = 6
"""Number of the background colours in style.css."""

_TABLES: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("drawings.json").read_text(encoding="utf-8"))


def drawing(product: Product) -> str:
    """The path of a drawing in a square of 48 by 48; the first word that occurs in the department says which."""
    department = product.category.lower()
    name = next((name for word, name in _TABLES["departments"].items() if word in department), "bag")
    return _TABLES["paths"][name]


def tint(product: Product) -> int:
    """The background of a product: a number below ``TINTS`` that is always the same for it."""
    return sum(product.asin.encode("utf-8", "replace")) % TINTS
