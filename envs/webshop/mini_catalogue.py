"""The shops of WebShopMini: a closed vocabulary, and for each goal a small shop of its own with near-duplicates.

The shop sells :data:`ROWS` products of the wanted kind and a few of other kinds. Several have the wanted title: one is
wanted, one or two cost more than the goal allows, one or two are not offered in the wanted color, one or two not in the
size. The others are all that but for the quality or the material. What is cheap enough has prices of the same ten
dollars, and the order is random, so that neither tells which one is wanted. No listing of one split occurs in another.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple
from zlib import crc32

from envs.webshop.catalogue import Catalogue, memory_catalogue
from envs.webshop.goals import goal_of, split_of
from envs.webshop.shipped.product_families import Draw, drawing, pick, thinned
from envs.webshop.types import Product

__all__ = ["COLOURS", "KINDS", "MATERIALS", "NUM_GOALS", "QUALITIES", "SIZES", "mini_catalogue", "mini_words"]

KINDS = (
    "shirt jacket scarf hat glove sock bag wallet belt towel blanket pillow curtain rug lamp mug bowl plate vase clock"
).split()
QUALITIES = "soft heavy light warm thin strong".split()
MATERIALS = "cotton wool linen leather bamboo steel".split()
COLOURS = "red blue green black white pink".split()
SIZES = "tiny small medium large huge".split()

NUM_GOALS = 10_000_000
"""Of a seed; numbered as the splits say."""
ROWS = 12
"""Products of the wanted kind: three pages."""
OTHER_KINDS, ROWS_OF_OTHERS = 3, 4
WANTED_PRICES, PRICES = range(10, 60), range(10, 100)

# As many values for every product: longer texts would stand further down in the results.
_COLOURS = tuple(combinations(COLOURS, 4))
_SIZES = tuple(combinations(SIZES, 3))
# How many tens a cap lies above the price, rounded down: the larger of two of one to four, as in WebShop.
_TENS = (2, 3, 3, 4, 4, 4)
# Above the tags that the shipped catalogue draws with.
_TAG = 3
_DEALT = ("test", "eval", "train")


class _Draft(NamedTuple):
    """What a product is drawn from."""

    kind: str
    quality: str
    material: str
    prices: Sequence[int] = PRICES
    colours: Sequence[tuple[str, ...]] = _COLOURS
    sizes: Sequence[tuple[str, ...]] = _SIZES

    @property
    def title(self) -> str:
        return f"{self.quality} {self.material} {self.kind}"


def mini_words() -> tuple[str, ...]:
    """Every word of the products."""
    return (*KINDS, *QUALITIES, *MATERIALS, *COLOURS, *SIZES)


@lru_cache(maxsize=256)
def mini_catalogue(seed: int, number: int, order: int = 0) -> Catalogue:
    """The shop of goal ``number``, its only one; each ``order`` lists the same products in another order."""
    draw = drawing(seed, _TAG, number)
    kind, quality, material = pick(draw, KINDS), pick(draw, QUALITIES), pick(draw, MATERIALS)
    colour, size = pick(draw, COLOURS), pick(draw, SIZES)
    tens = pick(draw, WANTED_PRICES) // 10 * 10
    cap = tens + 10 * pick(draw, _TENS)
    wanted = _Draft(
        kind,
        quality,
        material,
        range(tens, tens + 10),
        [values for values in _COLOURS if colour in values],
        [values for values in _SIZES if size in values],
    )
    no_colour = wanted._replace(colours=[values for values in _COLOURS if colour not in values])
    no_size = wanted._replace(sizes=[values for values in _SIZES if size not in values])
    dear = wanted._replace(prices=range(cap + 1, min(cap + 30, 99) + 1))
    drafts = [wanted]
    for wrong in (dear, no_colour, no_size):
        drafts += [wrong] * pick(draw, (1, 2))
    while len(drafts) < ROWS:
        if draw() < 0.5:
            drafts.append(wanted._replace(material=pick(draw, _but(MATERIALS, material))))
        else:
            drafts.append(wanted._replace(quality=pick(draw, _but(QUALITIES, quality))))
    for other in thinned(draw, _but(KINDS, kind), OTHER_KINDS):
        drafts += [_Draft(other, pick(draw, QUALITIES), pick(draw, MATERIALS)) for _ in range(ROWS_OF_OTHERS)]
    # Products of equal score are listed in the order of their numbers.
    places = sorted(range(len(drafts)), key=lambda _: draw())
    if order:
        moved = drawing(order, _TAG, number)
        places.sort(key=lambda _: moved())
    split = split_of(number)
    products = [
        _product(draft, f"M{number:07d}{place:02d}", split, draw) for draft, place in zip(drafts, places, strict=True)
    ]
    goal = goal_of(
        products[0],
        instruction=f"{wanted.title} with color: {colour}, and size: {size}, and price lower than {cap}.00 dollars",
        attributes=products[0].attributes,
        options={"color": colour, "size": size},
        price_upper=float(cap),
    )
    nouns = {product.title: (product.query,) for product in products}
    return memory_catalogue(f"mini {seed}/{number}/{order}", products, [p.pricing[0] for p in products], [goal], nouns)


def _but(values: Sequence[str], one: str) -> list[str]:
    return [value for value in values if value != one]


def _product(draft: _Draft, asin: str, split: str, draw: Draw) -> Product:
    kind, quality, material = draft.kind, draft.quality, draft.material
    while True:
        price, colours, sizes = pick(draw, draft.prices), pick(draw, draft.colours), pick(draw, draft.sizes)
        # Listings are dealt out to the splits by their content, so that none occurs in two.
        content = " ".join((draft.title, str(price), *colours, *sizes))
        if _DEALT[crc32(content.encode()) % len(_DEALT)] == split:
            break
    return Product(
        asin=asin,
        title=draft.title,
        description=f"A {kind} of {material}.",
        bullet_points=(f"It is {quality}.",),
        category=kind,
        query=kind,
        product_category=f"Shop › {kind} › {material}",
        pricing=(float(price),),
        price_tag=f"${float(price)}",
        options={"color": colours, "size": sizes},
        attributes=(quality, material),
    )
