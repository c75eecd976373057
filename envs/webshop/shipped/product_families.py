"""Product families: near-duplicates of one kind, brand and line that differ in attributes, options or price.

Products come in blocks of six, and a block holds two or three families. Everything is drawn from
``random.Random.random()``, whose sequence for a given integer Python promises to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from random import Random
from typing import TypeVar

from envs.webshop.shipped.categories import CATEGORIES, Category
from envs.webshop.shipped.tables import TEXTS, Attribute

__all__ = ["BLOCK", "Draw", "ProductFamily", "block", "drawing", "member_traits", "pick", "thinned"]

BLOCK = 6
_FAMILIES = ((0, 0, 0, 0, 1, 1), (0, 0, 0, 1, 1, 1), (0, 0, 1, 1, 2, 2), (0, 0, 0, 1, 1, 2), (0, 0, 0, 0, 0, 1))
"""ProductFamily of each product in a block, by the form of the block."""

_STEP = next(step for step in range(41, 41 + len(CATEGORIES)) if gcd(step, len(CATEGORIES)) == 1)
"""Index distance between the kinds of consecutive blocks; coprime to their number, so that all occur equally often."""
_JUMP = 53
"""Index distance between the kinds of consecutive families in a block."""

T = TypeVar("T")
Draw = Callable[[], float]
"""Returns the next random number of [0, 1)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductFamily:
    """The properties that the products of a family share."""

    category: Category
    brand: str
    line: str
    style: str
    form: int
    uses: tuple[str, str]
    traits: tuple[Attribute, ...]
    """One of each of some choices of the kind."""
    price: float


def drawing(seed: int, tag: int, number: int) -> Draw:
    """An independent random source for each triple; ``tag`` is below 256, ``number`` below 2**64."""
    return Random((seed << 72) | (tag << 64) | number).random


def pick(draw: Draw, values: Sequence[T]) -> T:
    """One of ``values``."""
    return values[int(draw() * len(values))]


def thinned(draw: Draw, values: Sequence[T], size: int) -> list[T]:
    """``values`` without some of them, so that no more than ``size`` are left."""
    kept = list(values)
    while len(kept) > size:
        del kept[int(draw() * len(kept))]
    return kept


def block(seed: int, number: int) -> list[ProductFamily]:
    """Families of the six products of a block."""
    draw = drawing(seed, 1, number)
    pattern = pick(draw, _FAMILIES)
    first = number * _STEP + seed
    # The last number of a pattern is the highest.
    families = [_family(CATEGORIES[(first + n * _JUMP) % len(CATEGORIES)], draw) for n in range(pattern[-1] + 1)]
    return [families[n] for n in pattern]


def _family(category: Category, draw: Draw) -> ProductFamily:
    kind = category.kind
    groups = thinned(draw, category.choices, 3 + int(draw() * 5))
    uses = kind.uses
    at, level = int(draw() * len(uses)), draw()
    return ProductFamily(
        category=category,
        brand=pick(draw, category.brands),
        line=pick(draw, TEXTS["lines"]),
        style=pick(draw, category.styles),
        form=int(draw() * 4),
        uses=(uses[at], uses[(at + 1 + int(draw() * (len(uses) - 1))) % len(uses)]),
        traits=tuple(pick(draw, group) for group in groups),
        # Squared, so that low prices are more frequent.
        price=kind.low + (kind.high - kind.low) * level * level,
    )


def member_traits(family: ProductFamily, draw: Draw) -> list[Attribute]:
    """The traits of the family, sometimes with one removed, replaced or added; never two of one choice."""
    traits = list(family.traits)
    change = draw()
    if change < 0.45 and len(traits) > 2:
        del traits[int(draw() * len(traits))]
    if change > 0.3:
        group = pick(draw, family.category.choices)
        new = pick(draw, group)
        held = [n for n, trait in enumerate(traits) if trait in group]
        if held:
            traits[held[0]] = new
        elif len(traits) < 8:
            traits.insert(int(draw() * (len(traits) + 1)), new)
    return traits
