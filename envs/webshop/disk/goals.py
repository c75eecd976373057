"""Goals on disk: drawn once for the whole catalogue, made one at a time when asked for.

A full catalogue has millions of synthetic goals, one per combination of options of a product. Kept are, per product
with an instruction, the drawn price cap and the number of combinations, and the shuffled order; a goal is then made by
the same functions that make all of them in memory (:mod:`envs.webshop.goals`), from its own product alone.
"""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from envs.webshop.disk.blobs import Blobs, load_json
from envs.webshop.disk.format import Manifest, map_array, reading
from envs.webshop.disk.store import DiskStore
from envs.webshop.goals import SHUFFLE_SEED, draw_cap, draw_price, human_goals, synthetic_goals
from envs.webshop.original import Listing
from envs.webshop.types import Goal, Product

__all__ = ["MAX_GOALS", "DiskGoals", "attribute_uses", "draw", "shuffled_order"]

MAX_GOALS = 500_000_000
"""More would take hours to shuffle; the full catalogue has about seven per product."""


def draw(
    pricing: NDArray[np.float64], human_docs: NDArray[Any], synthetic_docs: NDArray[Any], seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Prices, then the price caps of human and of synthetic goal sources, as they are drawn in memory.

    ``pricing`` has a row (number of prices, first, second) per product. Both kinds of goals follow directly on the
    prices: a catalogue offers one or the other.
    """
    rng = random.Random(seed)
    prices = np.empty(len(pricing), np.float64)
    for doc, (number, low, high) in enumerate(_rows(pricing)):
        prices[doc] = draw_price((low, high)[: int(number)], rng)
    state = rng.getstate()
    human = _caps(prices, human_docs, rng)
    rng.setstate(state)
    return prices, human, _caps(prices, synthetic_docs, rng)


def _rows(values: NDArray[np.float64]) -> Iterator[list[float]]:
    for start in range(0, len(values), 1 << 14):
        yield from values[start : start + (1 << 14)].tolist()


def _caps(prices: NDArray[np.float64], docs: NDArray[Any], rng: random.Random) -> NDArray[np.float64]:
    caps = np.empty(len(docs), np.float64)
    for start in range(0, len(docs), 1 << 14):
        few = prices[docs[start : start + (1 << 14)]].tolist()
        caps[start : start + len(few)] = [draw_cap(price, rng)[0] for price in few]
    return caps


def shuffled_order(count: int) -> array[int]:
    """Places of the goals in catalogue order, in the order by which goals are numbered."""
    # Four bytes a goal; a list would take some forty.
    order = array("I", range(count))
    random.Random(SHUFFLE_SEED).shuffle(order)
    return order


def attribute_uses(sources: Blobs, combinations: NDArray[Any]) -> dict[str, int]:
    """How many synthetic goals ask for each attribute."""
    uses: Counter[str] = Counter()
    for number, times in enumerate(combinations.tolist()):
        for attribute in load_json(sources[number])[1]:
            uses[str(attribute)] += times
    return dict(sorted(uses.items()))


class _Decided(random.Random):
    """Stands in for a random generator: returns the price cap that was drawn when the catalogue was built."""

    def __init__(self, cap: float) -> None:
        super().__init__(0)
        self._cap = cap

    def sample(self, population: Any, k: int, *, counts: Any = None) -> list[Any]:
        # draw_cap takes the larger of two: both are the cap that was drawn.
        return [self._cap] * k


class _Sources:
    """The sources of goals: products, price caps, and instructions."""

    def __init__(self, folder: Path, manifest: Manifest, name: str, store: DiskStore) -> None:
        self.store = store
        self.blobs = Blobs.of_manifest(folder, name, manifest)
        self.docs = map_array(folder, f"{name}.docs", manifest)
        self.caps = map_array(folder, f"{name}.caps", manifest)

    def read(self, source: int) -> tuple[Product, float, _Decided, Any]:
        doc = int(self.docs[source])
        said = load_json(self.blobs[source])
        return self.store[doc], self.store.price(doc), _Decided(float(self.caps[source])), said


class HumanGoals(_Sources):
    """Goals of instructions that people wrote: one each."""

    def make(self, number: int) -> Goal:
        """The goal at a place in catalogue order."""
        product, price, decided, written = self.read(number)
        [goal] = human_goals([Listing(product=product, human=(written,))], [price], decided)
        return goal


class SyntheticGoals(_Sources):
    """Goals of made instructions: one per combination of the options of a product."""

    def __init__(self, folder: Path, manifest: Manifest, name: str, store: DiskStore) -> None:
        super().__init__(folder, manifest, name, store)
        self.ends = map_array(folder, f"{name}.ends", manifest)
        uses = map_array(folder, f"{name}.uses", manifest).tobytes()
        self.uses: dict[str, int] = load_json(uses) if uses else {}

    def make(self, number: int) -> Goal:
        """The goal at a place in catalogue order: the last option changes fastest."""
        # Of the array's own type: another one would be reached by converting the whole array.
        source = int(np.searchsorted(self.ends, np.uint32(number), side="right"))
        product, price, decided, (instruction, attributes) = self.read(source)
        rest = number - (int(self.ends[source - 1]) if source else 0)
        chosen: dict[str, tuple[str, ...]] = {}
        for name in sorted(product.options, reverse=True):
            rest, place = divmod(rest, len(product.options[name]))
            chosen[name] = (product.options[name][place],)
        listing = Listing(
            product=replace(product, options=chosen), instruction=instruction, instruction_attributes=tuple(attributes)
        )
        [goal] = synthetic_goals([listing], [price], decided)
        return replace(goal, weight=sum(1.0 / self.uses[str(a)] for a in goal.attributes) / len(goal.attributes))


_SOURCES: dict[str, type[HumanGoals] | type[SyntheticGoals]] = {"human": HumanGoals, "synthetic": SyntheticGoals}


class DiskGoals(Sequence[Goal]):
    """The ``human`` or the ``synthetic`` goals of a catalogue in the order by which they are numbered."""

    def __init__(self, folder: Path, manifest: Manifest, name: str, store: DiskStore) -> None:
        self._reopen = (folder, manifest, name, store)
        self._order = map_array(folder, f"{name}.order", manifest)
        self._sources = _SOURCES[name](folder, manifest, name, store)

    def __reduce__(self) -> tuple[Any, ...]:
        return DiskGoals, self._reopen

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, number: int) -> Goal: ...
    @overload
    def __getitem__(self, number: slice) -> tuple[Goal, ...]: ...
    def __getitem__(self, number: int | slice) -> Goal | tuple[Goal, ...]:
        if isinstance(number, slice):
            return tuple(self[n] for n in range(*number.indices(len(self))))
        if not -len(self) <= number < len(self):
            raise IndexError(f"goal {number} is not in 0..{len(self) - 1}")
        with reading(f"goal {number} in {self._sources.blobs.where}"):
            return self._sources.make(int(self._order[number]))
