"""Families of near-duplicates: products of one kind, brand and line that differ in attributes, options or price.

Products come in blocks of six, and a block holds two or three families. Everything is drawn from
``random.Random.random()``, whose sequence for a given integer Python promises to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from random import Random
from typing import TypeVar

from envs.webshop.shipped.brands import LINES
from envs.webshop.shipped.shelves import SHELVES, Shelf, Trait

__all__ = ["BLOCK", "Draw", "Family", "block", "drawing", "member_traits", "pick"]

BLOCK = 6
_FAMILIES = ((0, 0, 0, 0, 1, 1), (0, 0, 0, 1, 1, 1), (0, 0, 1, 1, 2, 2), (0, 0, 0, 1, 1, 2), (0, 0, 0, 0, 0, 1))
"""Family of each product in a block, by the form of the block."""

_STEP = next(step for step in range(41, 41 + len(SHELVES)) if gcd(step, len(SHELVES)) == 1)
"""From the kind of one block to that of the next, so that all kinds get their turn equally often."""
_JUMP = 53
"""From the kind of one family in a block to that of the next."""

T = TypeVar("T")
Draw = Callable[[], float]
"""Gives the next number from 0 up to but without 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """What the products of a family share."""

    shelf: Shelf
    brand: str
    line: str
    style: str
    form: int
    uses: tuple[str, str]
    traits: tuple[Trait, ...]
    """One of each of some choices of the kind."""
    price: float


def drawing(seed: int, tag: int, number: int) -> Draw:
    """A source of numbers of its own for each three numbers; ``tag`` is below 256, ``number`` below 2**64."""
    return Random((seed << 72) | (tag << 64) | number).random


def pick(draw: Draw, values: Sequence[T]) -> T:
    """One of ``values``."""
    return values[int(draw() * len(values))]


def block(seed: int, number: int) -> list[Family]:
    """Families of the six products of a block."""
    draw = drawing(seed, 1, number)
    pattern = pick(draw, _FAMILIES)
    first = number * _STEP + seed
    families = [_family(SHELVES[(first + n * _JUMP) % len(SHELVES)], draw) for n in range(pattern[-1] + 1)]
    return [families[n] for n in pattern]


def _family(shelf: Shelf, draw: Draw) -> Family:
    kind = shelf.kind
    groups = list(shelf.choices)
    keep = min(len(groups), 3 + int(draw() * 5))
    while len(groups) > keep:
        del groups[int(draw() * len(groups))]
    uses = kind.uses
    at, luck = int(draw() * len(uses)), draw()
    return Family(
        shelf=shelf,
        brand=pick(draw, shelf.brands),
        line=pick(draw, LINES),
        style=pick(draw, shelf.styles),
        form=int(draw() * 4),
        uses=(uses[at], uses[(at + 1 + int(draw() * (len(uses) - 1))) % len(uses)]),
        traits=tuple(pick(draw, group) for group in groups),
        price=kind.low + (kind.high - kind.low) * luck * luck,
    )


def member_traits(family: Family, draw: Draw) -> list[Trait]:
    """Those of the family, now and then one less, one other or one more; never two of one choice."""
    traits = list(family.traits)
    fate = draw()
    if fate < 0.45 and len(traits) > 2:
        del traits[int(draw() * len(traits))]
    if fate > 0.3:
        group = pick(draw, family.shelf.choices)
        new = pick(draw, group)
        held = [n for n, trait in enumerate(traits) if trait in group]
        if held:
            traits[held[0]] = new
        elif len(traits) < 8:
            traits.insert(int(draw() * (len(traits) + 1)), new)
    return traits
