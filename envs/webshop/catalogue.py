"""The catalogue: products, prices, search index and goals in one immutable object, shared by a whole process.

A process holds each catalogue once, however many environments and threads use it; it grows only by a bounded memory
of recent searches.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from envs.webshop.disk import is_index, open_index
from envs.webshop.goals import draw_price, human_goals, shuffled, synthetic_goals
from envs.webshop.nouns import nouns_of
from envs.webshop.original import Listing, join, read_listings
from envs.webshop.search import MemoryIndex, document_text, listed_under
from envs.webshop.shipped import SHIPPED_COUNT, Shipped, generate
from envs.webshop.types import Goal, Product, ProductStore, SearchIndex
from roll_envs.errors import ConfigError

__all__ = [
    "DATA_VARIABLE",
    "MOST_HITS",
    "Catalogue",
    "build_catalogue",
    "load_catalogue",
    "memory_catalogue",
    "shipped_listings",
]

DATA_VARIABLE = "ROLL_WEBSHOP_DATA"
"""Environment variable that names the default data folder or index."""

# As many as the original asks its search engine for.
MOST_HITS = 50
_REMEMBERED_SEARCHES = 4_096


class MemoryStore:
    """A :class:`ProductStore` in memory."""

    def __init__(self, products: Sequence[Product], prices: Sequence[float]) -> None:
        self._products, self._prices = tuple(products), tuple(prices)
        self._docs = {product.asin: doc for doc, product in enumerate(self._products)}

    def __len__(self) -> int:
        return len(self._products)

    def __getitem__(self, doc: int) -> Product:
        return self._products[doc]

    def find(self, asin: str) -> int | None:
        return self._docs.get(asin)

    def price(self, doc: int) -> float:
        return self._prices[doc]


@dataclass(frozen=True, kw_only=True, slots=True)
class Catalogue:
    """Everything a shop session reads."""

    name: str
    store: ProductStore
    index: SearchIndex
    goals: Sequence[Goal]
    """In the order by which they are numbered."""
    nouns: Callable[[str], Sequence[str]]
    """Nouns of a title."""
    listed: Callable[[str, str], Sequence[int]]
    """The products of an operator (``<c>``, ``<q>``, ``<a>``) and what it asks for, in the order of the catalogue."""
    _found: Callable[[str], tuple[int, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        remember = lru_cache(maxsize=_REMEMBERED_SEARCHES)
        # The class is frozen; a cache on the method would be shared by all catalogues and keep them alive.
        object.__setattr__(self, "_found", remember(self._look_up))

    def search(self, query: str) -> tuple[int, ...]:
        """Document numbers of the best 50 products at most, best first.

        A query that begins with ``<c>``, ``<q>`` or ``<a>`` lists all products of that department, kind or attribute,
        and ``<r>`` a fixed random choice of 50, as in the original.
        """
        head, _, rest = query.partition(" ")
        if head in ("<c>", "<q>", "<a>"):
            # Not remembered: such a list can hold much of the catalogue.
            return tuple(self.listed(head, rest.strip()))
        return self._found(query)

    def _look_up(self, query: str) -> tuple[int, ...]:
        if query.partition(" ")[0] == "<r>":
            count = len(self.store)
            return tuple(random.Random(0).sample(range(count), min(MOST_HITS, count)))
        return tuple(self.index.search(query, MOST_HITS))


def build_catalogue(name: str, found: Iterable[Listing], *, human: bool, seed: int = 0) -> Catalogue:
    """A catalogue in memory; prices and price caps follow from ``seed`` alone. Raises :class:`ConfigError`."""
    kept = list(found)
    if not kept:
        raise ConfigError(f"the catalogue {name} has no products")
    rng = random.Random(seed)
    # All prices are drawn before the first price cap (see goals).
    prices = [draw_price(listing.product.pricing, rng) for listing in kept]
    goals = list(human_goals(kept, prices, rng)) if human else synthetic_goals(kept, prices, rng)
    _check_goals(f"the catalogue {name}", goals, human)
    known = {listing.product.title: listing.nouns for listing in kept if listing.nouns is not None}
    return memory_catalogue(name, [listing.product for listing in kept], prices, shuffled(goals), known)


def memory_catalogue(
    name: str,
    products: Sequence[Product],
    prices: Sequence[float],
    goals: Sequence[Goal],
    known: Mapping[str, tuple[str, ...]],
) -> Catalogue:
    """A catalogue of these products, each at its price; ``known`` holds the nouns of titles where they are known."""
    listed: dict[str, list[int]] = {}
    for doc, product in enumerate(products):
        for key in listed_under(product):
            listed.setdefault(key, []).append(doc)
    return Catalogue(
        name=name,
        store=MemoryStore(products, prices),
        index=MemoryIndex.build(map(document_text, products), [product.asin for product in products]),
        goals=goals,
        nouns=_nouns(known.get),
        listed=lambda operator, wanted: listed.get(f"{operator} {wanted}", ()),
    )


def _check_goals(catalogue: str, goals: Sequence[Goal], human: bool) -> None:
    if not len(goals):
        kind, other = ("human", "human_goals=False") if human else ("synthetic", "human_goals=True")
        raise ConfigError(f"{catalogue} has no {kind} goals; try {other}")


def _nouns(known: Callable[[str], tuple[str, ...] | None]) -> Callable[[str], Sequence[str]]:
    """Nouns of titles: those that are known, else by rule; remembered."""

    @lru_cache(maxsize=65_536)
    def look_up(title: str) -> tuple[str, ...]:
        found = known(title)
        return tuple(nouns_of(title)) if found is None else found

    return look_up


def shipped_listings(made: Iterable[Shipped]) -> Iterable[Listing]:
    """The generated products as listings."""
    for one in made:
        rating = one.record["average_rating"] or "N.A."
        yield join(
            one.record,
            attributes=one.ins,
            human_instructions=one.human,
            reviews={"reviews": one.reviews, "average_rating": rating},
            title_nouns={"name": one.nouns},
            where="the shipped catalogue",
        )


_loading = threading.Lock()
_loaded: dict[tuple[str, int | None, bool, int], Catalogue] = {}


def load_catalogue(
    data_dir: str | os.PathLike[str] | None = None,
    *,
    num_products: int | None = None,
    human: bool = True,
    seed: int = 0,
) -> Catalogue:
    """The catalogue of a folder in the original's format, of a built index, or the shipped one; loaded once a process.

    ``data_dir=None`` means the folder named by ``ROLL_WEBSHOP_DATA``, and the shipped catalogue where that is not
    set. Raises :class:`ConfigError` for missing, truncated or malformed files.
    """
    # An empty variable counts as not set.
    chosen = data_dir if data_dir is not None else os.environ.get(DATA_VARIABLE) or None
    place = "" if chosen is None else str(Path(chosen).expanduser().resolve())
    key = (place, num_products, human, seed)
    # A second thread waits for the first instead of loading the same catalogue.
    with _loading:
        if key not in _loaded:
            _loaded[key] = _load(place, num_products, human, seed)
        return _loaded[key]


def _load(place: str, num_products: int | None, human: bool, seed: int) -> Catalogue:
    if not place:
        made = generate(num_products or SHIPPED_COUNT)
        return build_catalogue("shipped", shipped_listings(made), human=human, seed=seed)
    if is_index(place):
        return _opened(place, num_products, human, seed)
    return build_catalogue(place, read_listings(Path(place), num_products), human=human, seed=seed)


def _opened(place: str, num_products: int | None, human: bool, seed: int) -> Catalogue:
    """A built index; what was fixed when it was built cannot be asked for otherwise."""
    found = open_index(place)
    if seed != found.manifest.seed:
        raise ConfigError(
            f"the index {place} was built with seed {found.manifest.seed}, not {seed}; pass "
            f"seed={found.manifest.seed}, or build another one (roll-envs webshop build-index --seed)"
        )
    if num_products not in (None, len(found.store)):
        raise ConfigError(
            f"the index {place} has {len(found.store)} products and is used whole: num_products cannot be "
            f"{num_products}"
        )
    goals = found.goals(human=human)
    _check_goals(f"the index {place}", goals, human)
    return Catalogue(
        name=place,
        store=found.store,
        index=found.index,
        goals=goals,
        nouns=_nouns(found.nouns),
        listed=found.listed,
    )
