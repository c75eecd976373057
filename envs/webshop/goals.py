"""Goals and prices: drawn from one seeded generator in the original's order, so that a seed gives one catalogue.

The original draws from the global generator and never seeds it: two loads of it agree on 2,658 of 6,910 instructions.
Here the price of every product comes first, then the price cap of every goal, then the fixed shuffle.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from envs.webshop.original import Listing
from envs.webshop.types import Goal, Product

__all__ = [
    "SHUFFLE_SEED",
    "SPLITS",
    "draw_cap",
    "draw_price",
    "human_goals",
    "shuffled",
    "split_range",
    "synthetic_goals",
]

SHUFFLE_SEED = 233
"""Of the original; goal i of the shuffled list is the same task for everyone."""

SPLITS = {"test": (0, 500), "eval": (500, 1500), "train": (1500, None), "all": (0, None)}
"""Ranges of the shuffled goals, as the original's authors use them."""

UNKNOWN_PRICE = 100.0
NO_CAP = 1_000_000.0


def draw_price(pricing: Sequence[float], rng: random.Random) -> float:
    """What a product costs in dollars: its price, a uniform draw from its range, or 100 where none is known."""
    if not pricing:
        return UNKNOWN_PRICE
    return pricing[0] if len(pricing) == 1 else rng.uniform(pricing[0], pricing[1])


def draw_cap(price: float, rng: random.Random) -> tuple[float, str]:
    """The most a goal allows to pay, and how its instruction says so: the larger of two of the next four tens."""
    # The original's possible caps end at 990.
    tens = [10.0 * i for i in range(1, 100) if 10.0 * i > price][:4]
    if len(tens) < 2:
        return NO_CAP, ""
    cap = max(rng.sample(tens, 2))
    return cap, f", and price lower than {cap:.2f} dollars"


def human_goals(listings: Iterable[Listing], prices: Iterable[float], rng: random.Random) -> Iterator[Goal]:
    """A goal for each instruction that people wrote and that names an attribute."""
    for listing, price in zip(listings, prices, strict=True):
        for written in listing.human:
            attributes = tuple(map(str, written.get("instruction_attributes") or ()))
            # Before the cap is drawn: as in the original, such an instruction takes no random number.
            if not attributes:
                continue
            cap, said = draw_cap(price, rng)
            yield _goal(
                listing.product,
                instruction=str(written.get("instruction", "")).strip(".") + said,
                attributes=attributes,
                options=tuple(map(str, written.get("instruction_options") or ())),
                cap=cap,
            )


def synthetic_goals(listings: Iterable[Listing], prices: Iterable[float], rng: random.Random) -> list[Goal]:
    """A goal for each combination of options of each product with a made instruction, weighted by rare attributes."""
    sources = [
        (listing, draw_cap(price, rng))
        for listing, price in zip(listings, prices, strict=True)
        if listing.instruction is not None and listing.instruction_attributes
    ]
    # Weights need the uses of an attribute in all goals, so the sources are gone through twice.
    uses: Counter[str] = Counter()
    for listing, _ in sources:
        count = math.prod(map(len, listing.product.options.values()))
        for attribute in listing.instruction_attributes:
            uses[attribute] += count
    goals: list[Goal] = []
    for listing, (cap, said) in sources:
        names = sorted(listing.product.options)
        attributes = listing.instruction_attributes
        for values in itertools.product(*(listing.product.options[name] for name in names)):
            options = dict(zip(names, values, strict=True))
            with_options = ", and ".join([f"{name}: {value}" for name, value in options.items()])
            goals.append(
                _goal(
                    listing.product,
                    instruction=f"{listing.instruction}{f' with {with_options}' if options else ''}{said}",
                    attributes=attributes,
                    options=options,
                    cap=cap,
                    weight=sum(1.0 / uses[a] for a in attributes) / len(attributes),
                )
            )
    return goals


def _goal(
    product: Product,
    *,
    instruction: str,
    attributes: tuple[str, ...],
    options: dict[str, str] | tuple[str, ...],
    cap: float,
    weight: float = 1.0,
) -> Goal:
    return Goal(
        asin=product.asin,
        instruction=instruction,
        query=product.query,
        product_category=product.product_category,
        title=product.title,
        attributes=attributes,
        options=options,
        price_upper=cap,
        weight=weight,
    )


def shuffled(goals: Iterable[Goal]) -> tuple[Goal, ...]:
    """The goals in the order by which they are numbered."""
    order = list(goals)
    random.Random(SHUFFLE_SEED).shuffle(order)
    return tuple(order)


def split_range(split: str, count: int) -> range:
    """Numbers of the goals of a split when there are ``count`` goals; empty when there are too few."""
    first, last = SPLITS[split]
    return range(min(first, count), count if last is None else min(last, count))
