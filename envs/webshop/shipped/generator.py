"""Writes products: product ``i`` of a seed is the same whatever is written before it, and however many.

Products come in blocks of six, and a block holds one to four families: products of one kind, brand and line that differ
in an attribute, in the options on offer or in price. Everything is drawn from ``random.Random.random()``, whose
sequence for a given integer Python promises to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from random import Random
from typing import Any, TypeVar

from envs.webshop.shipped.brands import LINES
from envs.webshop.shipped.kinds import Option
from envs.webshop.shipped.listing import bullets_of, description_of, price_of, reviews_of, title_of
from envs.webshop.shipped.nouns import nouns_of_title
from envs.webshop.shipped.shelves import SHELVES, Shelf, Trait, title_case
from envs.webshop.shipped.wishes import find_me, wishes
from roll_envs.errors import ConfigError

__all__ = ["SHIPPED_COUNT", "Shipped", "asin_of", "generate", "product"]

SHIPPED_COUNT = 2_400
"""Size of the catalogue that ships with WebShop."""

BLOCK = 6
_FAMILIES = ((0, 0, 0, 0, 1, 1), (0, 0, 0, 1, 1, 1), (0, 0, 1, 1, 2, 2), (0, 0, 0, 1, 1, 2), (0, 0, 0, 0, 0, 1))
"""Family of each product in a block, by the form of the block."""
_MOST_FAMILIES = 3

_STEP = next(step for step in range(41, 41 + len(SHELVES)) if gcd(step, len(SHELVES)) == 1)

_LETTERS = "0123456789BCDFGHJKLMNPQRSTVWXZ"
_ASINS = len(_LETTERS) ** 8

T = TypeVar("T")
Draw = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Shipped:
    """A product in the formats of the original's files, and what was known when it was written."""

    record: dict[str, Any]
    """As in ``items_shuffle.json``."""
    ins: dict[str, Any]
    """As in ``items_ins_v2.json``."""
    human: list[dict[str, Any]]
    """As in ``items_human_ins.json``."""
    reviews: list[dict[str, str]]
    """``title``, ``score``, ``review``, as in the original's ``reviews.json``."""

    @property
    def nouns(self) -> list[str]:
        """Nouns of the title in lower case, in order."""
        return nouns_of_title(self.record)


@dataclass(frozen=True, slots=True)
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


def generate(count: int, seed: int = 0) -> Iterator[Shipped]:
    """The first ``count`` products of ``seed``, one at a time. Raises :class:`ConfigError` for a number below 0."""
    for name, value in (("count", count), ("seed", seed)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConfigError(f"{name} must be an integer from 0 up, not {value!r}")
    return _generate(count, seed)


def _generate(count: int, seed: int) -> Iterator[Shipped]:
    for start in range(0, count, BLOCK):
        families = _block(seed, start // BLOCK)
        for index in range(start, min(start + BLOCK, count)):
            yield _write(seed, index, families[index - start])


def product(index: int, seed: int = 0) -> Shipped:
    """Product number ``index`` of ``seed`` alone."""
    return _write(seed, index, _block(seed, index // BLOCK)[index % BLOCK])


def asin_of(index: int, seed: int = 0) -> str:
    """The product number: ten characters, different for each ``index`` below 30**8.

    Two steps of ``x -> a x + c`` modulo 30**8 with the digits turned round in between; both are one to one.
    """
    number = (index * 188_760_743_281 + 97_000_000_033 * (seed + 1)) % _ASINS
    digits = []
    for _ in range(8):
        number, digit = divmod(number, 30)
        digits.append(digit)
    for digit in digits:
        number = number * 30 + digit
    number = (number * 241_987_654_321 + 12_345_678_911) % _ASINS
    letters = []
    for _ in range(8):
        number, digit = divmod(number, 30)
        letters.append(_LETTERS[digit])
    return "B0" + "".join(letters)


def _key(seed: int, tag: int, number: int) -> int:
    return (seed << 72) | (tag << 64) | number


def _pick(draw: Draw, values: Sequence[T]) -> T:
    return values[int(draw() * len(values))]


def _block(seed: int, number: int) -> list[Family]:
    """Families of the six products of a block."""
    draw = Random(_key(seed, 1, number)).random
    pattern = _pick(draw, _FAMILIES)
    first = (number * _MOST_FAMILIES + seed) * _STEP
    families = [_family(SHELVES[(first + n * _STEP) % len(SHELVES)], draw) for n in range(pattern[-1] + 1)]
    return [families[n] for n in pattern]


def _family(shelf: Shelf, draw: Draw) -> Family:
    kind = shelf.kind
    groups = list(shelf.choices)
    keep = min(len(groups), 3 + int(draw() * 5))
    while len(groups) > keep:
        del groups[int(draw() * len(groups))]
    uses = kind.uses
    at = int(draw() * len(uses))
    return Family(
        shelf=shelf,
        brand=_pick(draw, shelf.brands),
        line=_pick(draw, LINES),
        style=_pick(draw, shelf.styles),
        form=int(draw() * 4),
        uses=(uses[at], uses[(at + 1 + int(draw() * (len(uses) - 1))) % len(uses)]),
        traits=tuple(_pick(draw, group) for group in groups),
        price=kind.low * (kind.high / kind.low) ** draw(),
    )


def _member_traits(family: Family, draw: Draw) -> list[Trait]:
    """Those of the family, now and then one less, one other or one more; never two of one choice."""
    traits = list(family.traits)
    fate = draw()
    if fate < 0.45 and len(traits) > 2:
        del traits[int(draw() * len(traits))]
    if fate > 0.3:
        group = _pick(draw, family.shelf.choices)
        new = _pick(draw, group)
        held = [n for n, trait in enumerate(traits) if trait in group]
        if held:
            traits[held[0]] = new
        elif len(traits) < 8:
            traits.insert(int(draw() * (len(traits) + 1)), new)
    return traits


def _offers(options: Sequence[Option], draw: Draw) -> tuple[list[tuple[Option, list[str]]], str]:
    """Options on offer with their values; and a value that stands in the title because there is no choice of it."""
    offers: list[tuple[Option, list[str]]] = []
    fixed = ""
    for option in options:
        values = option.values
        if draw() < 0.12:
            fixed = fixed or title_case(
                option.speech.before[0] % _pick(draw, values) if option.speech.before else _pick(draw, values)
            )
            continue
        size = option.low + int(draw() * (option.high - option.low + 1))
        if option.in_a_row:
            at = int(draw() * (len(values) - size + 1))
            offers.append((option, list(values[at : at + size])))
            continue
        chosen = list(values)
        while len(chosen) > size:
            del chosen[int(draw() * len(chosen))]
        offers.append((option, chosen))
    return offers, fixed


_PRICE_FACTORS = (1.0, 1.0, 1.0, 1.0, 0.8, 1.3, 1.7, 2.2)


def _write(seed: int, index: int, family: Family) -> Shipped:
    draw = Random(_key(seed, 2, index)).random
    shelf, kind = family.shelf, family.shelf.kind
    brand = family.brand if draw() < 0.65 else _pick(draw, shelf.brands)
    traits = _member_traits(family, draw)
    offers, fixed = _offers(shelf.options, draw)
    price = min(family.price * _pick(draw, _PRICE_FACTORS) * (0.95 + 0.1 * draw()), 1.6 * kind.high)
    asin = asin_of(index, seed)
    title, untold = title_of(family, brand, traits, fixed, draw)
    description, unsaid = description_of(family, brand, untold, draw)
    reviews, rating = reviews_of(shelf, draw)
    phrases = [trait.phrase for trait in traits]
    wanted, text = find_me(kind.query, traits, draw)
    record = {
        "name": title,
        "full_description": description,
        "pricing": price_of(price, draw),
        "images": [""],
        "product_category": shelf.path,
        "average_rating": rating,
        "small_description": bullets_of(shelf, unsaid, traits, draw),
        "customization_options": {
            option.name: [{"value": value, "image": None} for value in values] for option, values in offers
        }
        or "",
        "asin": asin,
        "category": shelf.department.category,
        "query": kind.query,
    }
    return Shipped(
        record=record,
        ins={"attributes": phrases, "instruction": text, "instruction_attributes": wanted},
        human=wishes(asin, shelf, traits, offers, draw),
        reviews=reviews,
    )
