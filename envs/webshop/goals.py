"""Goals and prices: drawn from one seeded generator in the original's order, so that a seed gives one catalogue.

The original draws from the global generator and never seeds it: two loads of it agree on 2,658 of 6,910 instructions.
Here the price of every product comes first, then the price cap of every goal, then the fixed shuffle.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from envs.arguments import check_choice
from envs.webshop.original import Listing
from envs.webshop.types import Goal, Product
from roll_envs.errors import ConfigError

__all__ = [
    "SHUFFLE_SEED",
    "SPLITS",
    "chosen_goal",
    "draw_cap",
    "draw_price",
    "goal_of",
    "human_goal",
    "human_goals",
    "shuffled",
    "split_of",
    "split_range",
    "synthetic_goal",
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
    cap = max(rng.sample(tens, 2)) if len(tens) >= 2 else NO_CAP
    return cap, _said(cap)


def _said(cap: float) -> str:
    return "" if cap == NO_CAP else f", and price lower than {cap:.2f} dollars"


def human_goals(listings: Iterable[Listing], prices: Iterable[float], rng: random.Random) -> Iterator[Goal]:
    """A goal for each instruction that people wrote and that names an attribute."""
    for listing, price in zip(listings, prices, strict=True):
        for written in listing.human:
            # Before the cap is drawn: as in the original, such an instruction takes no random number.
            if written.get("instruction_attributes"):
                yield human_goal(listing.product, written, draw_cap(price, rng)[0])


def human_goal(product: Product, written: Mapping[str, Any], cap: float) -> Goal:
    """The goal of an instruction that people wrote, at the price cap that was drawn for it."""
    return goal_of(
        product,
        instruction=str(written.get("instruction", "")).strip(".") + _said(cap),
        attributes=tuple(map(str, written["instruction_attributes"])),
        options=tuple(map(str, written.get("instruction_options") or ())),
        price_upper=cap,
    )


def synthetic_goals(listings: Iterable[Listing], prices: Iterable[float], rng: random.Random) -> list[Goal]:
    """A goal for each combination of options of each product with a made instruction, weighted by rare attributes."""
    sources = [
        (listing, draw_cap(price, rng)[0])
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
    for listing, cap in sources:
        names = sorted(listing.product.options)
        attributes = listing.instruction_attributes
        for values in itertools.product(*(listing.product.options[name] for name in names)):
            options = dict(zip(names, values, strict=True))
            weight = sum(1.0 / uses[a] for a in attributes) / len(attributes)
            goals.append(synthetic_goal(listing.product, listing.instruction, attributes, options, cap, weight))
    return goals


def synthetic_goal(
    product: Product,
    instruction: str | None,
    attributes: tuple[str, ...],
    options: Mapping[str, str],
    cap: float,
    weight: float,
) -> Goal:
    """The goal of a made instruction for one combination of options, at the price cap that was drawn for it."""
    with_options = ", and ".join([f"{name}: {value}" for name, value in options.items()])
    return goal_of(
        product,
        instruction=f"{instruction}{f' with {with_options}' if options else ''}{_said(cap)}",
        attributes=attributes,
        options=options,
        price_upper=cap,
        weight=weight,
    )


def goal_of(product: Product, **wanted: Any) -> Goal:
    """A goal written for ``product``; ``wanted`` holds the fields that are not the product's."""
    return Goal(
        asin=product.asin,
        query=product.query,
        product_category=product.product_category,
        title=product.title,
        **wanted,
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


def split_of(number: int) -> str:
    """The split that goal ``number`` belongs to (other than ``all``)."""
    return next(name for name, (first, last) in SPLITS.items() if number >= first and (last is None or number < last))


def chosen_goal(seed: int, options: Mapping[str, Any] | None, *, split: str, count: int, name: str) -> int:
    """The number of the goal that ``reset(seed, options)`` starts, of ``count`` goals of the catalogue ``name``.

    ``options``: ``{"split": name}`` instead of ``split``, or ``{"session": i}`` for goal ``i`` of all. Raises
    :class:`ConfigError` for other options, a split without goals and a session that does not exist.
    """
    given = {} if options is None else options
    if not isinstance(given, Mapping) or not set(given) <= {"split", "session"}:
        raise ConfigError(
            f"the options of reset() are 'split' and 'session', such as {{'split': 'test'}}, not {given!r}"
        )
    session = given.get("session")
    if session is not None:
        if isinstance(session, bool) or not hasattr(session, "__index__") or not 0 <= int(session) < count:
            raise ConfigError(f"session must be the number of a goal, 0 to {count - 1}, not {session!r}")
        return int(session)
    split = check_choice("split", given.get("split", split), tuple(SPLITS))
    numbers = split_range(split, count)
    if not numbers:
        raise ConfigError(
            f"the split {split!r} of catalogue {name} is empty: it begins at goal {SPLITS[split][0]} of {count}; "
            "choose split='all', or a catalogue with more goals"
        )
    return numbers[seed % len(numbers)]
