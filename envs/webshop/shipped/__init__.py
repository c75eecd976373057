"""The catalogue that ships with WebShop: products generated from word tables (``data/*.json``), not from real listings.

Brands are invented; every product, goal and review follows from ``(seed, number)``.
"""

from __future__ import annotations

from envs.webshop.shipped.generator import SHIPPED_COUNT, Shipped, generate, nouns_of_title, product

__all__ = ["SHIPPED_COUNT", "Shipped", "generate", "nouns_of_title", "product"]
