"""The catalogue that ships with WebShop: products generated from word tables of this package, not from real listings.

Brands are invented; every product, goal and review follows from ``(seed, number)``.
"""

from __future__ import annotations

from envs.webshop.shipped.generator import SHIPPED_COUNT, Shipped, generate, product
from envs.webshop.shipped.nouns import nouns_of_title
from envs.webshop.shipped.vocabulary import vocabulary

__all__ = ["SHIPPED_COUNT", "Shipped", "generate", "nouns_of_title", "product", "vocabulary"]
