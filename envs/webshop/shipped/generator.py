"""Generates products: product ``i`` of a seed does not depend on which or how many others are generated."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envs.arguments import check_int
from envs.webshop.shipped.goal_phrases import human_instructions, synthetic_instruction
from envs.webshop.shipped.listing import bullets_of, description_of, price_of, reviews_of, title_of
from envs.webshop.shipped.product_families import (
    BLOCK,
    Draw,
    ProductFamily,
    block,
    drawing,
    member_traits,
    pick,
    thinned,
)
from envs.webshop.shipped.tables import TEXTS, Option, title_case

__all__ = ["ASIN_STEPS", "SHIPPED_COUNT", "Shipped", "asin_of", "generate", "nouns_of_title", "product"]

SHIPPED_COUNT = 2_400
"""Size of the catalogue that ships with WebShop."""

_LETTERS = "0123456789BCDFGHJKLMNPQRSTVWXZ"
_ASINS = len(_LETTERS) ** 8
ASIN_STEPS = (188_760_743_281, 241_987_654_321)
"""Factors of the two steps from an index to a product number; neither shares a factor with 30."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shipped:
    """A generated product in the formats of the original's files."""

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


def generate(count: int, seed: int = 0) -> Iterator[Shipped]:
    """The first ``count`` products of ``seed``, one at a time. Raises :class:`ConfigError` for a number below 0."""
    return _generate(check_int("count", count, 0), check_int("seed", seed, 0))


def _generate(count: int, seed: int) -> Iterator[Shipped]:
    for start in range(0, count, BLOCK):
        families = block(seed, start // BLOCK)
        for index in range(start, min(start + BLOCK, count)):
            yield _write(seed, index, families[index - start])


def product(index: int, seed: int = 0) -> Shipped:
    """Product number ``index`` of ``seed`` alone. Raises :class:`ConfigError` for a number below 0."""
    check_int("seed", seed, 0)
    check_int("index", index, 0)
    return _write(seed, index, block(seed, index // BLOCK)[index % BLOCK])


def asin_of(index: int, seed: int = 0) -> str:
    """The product number: ten characters, different for each ``index`` below 30**8.

    Two steps of ``x -> a x + c`` modulo 30**8 with the digits reversed in between; each step is a bijection, so no two
    are equal.
    """
    number = (index * ASIN_STEPS[0] + 97_000_000_033 * (seed + 1)) % _ASINS
    digits = []
    for _ in range(8):
        number, digit = divmod(number, 30)
        digits.append(digit)
    for digit in digits:
        number = number * 30 + digit
    number = (number * ASIN_STEPS[1] + 12_345_678_911) % _ASINS
    letters = []
    for _ in range(8):
        number, digit = divmod(number, 30)
        letters.append(_LETTERS[digit])
    return "B0" + "".join(letters)


_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_NOT_NOUNS = frozenset(TEXTS["not_nouns"])


def nouns_of_title(record: Mapping[str, Any]) -> list[str]:
    """The nouns of a shipped product's title in lower case, in order: its words are known, the others are listed."""
    return [word for word in _WORD.findall(record["name"].lower()) if word not in _NOT_NOUNS]


def _offered_options(options: Sequence[Option], draw: Draw) -> tuple[list[tuple[Option, list[str]]], str]:
    """The options that a product offers with their values, and a value for the title of an option without a choice."""
    offered: list[tuple[Option, list[str]]] = []
    fixed = ""
    for option in options:
        values = option.values
        if draw() < 0.12:
            fixed = fixed or title_case(
                option.phrases.before[0] % pick(draw, values) if option.phrases.before else pick(draw, values)
            )
            continue
        # int(draw() * n) and not randrange, whose use of random bits may change with Python's version.
        size = option.low + int(draw() * (option.high - option.low + 1))
        if option.in_a_row:
            at = int(draw() * (len(values) - size + 1))
            offered.append((option, list(values[at : at + size])))
            continue
        offered.append((option, thinned(draw, values, size)))
    return offered, fixed


_PRICE_FACTORS = (1.0, 1.0, 1.0, 1.0, 0.8, 1.3, 1.7, 2.2)


def _write(seed: int, index: int, family: ProductFamily) -> Shipped:
    # The order of the draws below is part of the catalogue: another one changes every product.
    draw = drawing(seed, 2, index)
    category, kind = family.category, family.category.kind
    brand = family.brand if draw() < 0.65 else pick(draw, category.brands)
    traits = member_traits(family, draw)
    offered, fixed = _offered_options(kind.options, draw)
    price = min(family.price * pick(draw, _PRICE_FACTORS) * (0.95 + 0.1 * draw()), 1.6 * kind.high)
    asin = asin_of(index, seed)
    title, untold = title_of(family, brand, traits, fixed, draw)
    description, unsaid = description_of(family, brand, untold, draw)
    reviews, rating = reviews_of(category, draw)
    phrases = [trait.phrase for trait in traits]
    wanted, text = synthetic_instruction(kind.query, traits, draw)
    record = {
        "name": title,
        "full_description": description,
        "pricing": price_of(price, draw),
        "images": [""],  # no pictures; the original takes the first of the list
        "product_category": category.path,
        "average_rating": rating,
        "small_description": bullets_of(category, unsaid, traits, draw),
        "customization_options": {
            option.name: [{"value": value, "image": None} for value in values] for option, values in offered
        }
        or "",
        "asin": asin,
        "category": category.department.category,
        "query": kind.query,
    }
    return Shipped(
        record=record,
        ins={"attributes": phrases, "instruction": text, "instruction_attributes": wanted},
        human=human_instructions(asin, category, traits, offered, draw),
        reviews=reviews,
    )
