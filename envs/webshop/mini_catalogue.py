"""The small catalogue of WebShopMini: a closed vocabulary, eight products of each kind, as listings."""

from __future__ import annotations

import random
from collections.abc import Iterator

from envs.webshop.original import Listing
from envs.webshop.types import Product

__all__ = ["COLOURS", "KINDS", "MATERIALS", "QUALITIES", "SIZES", "mini_listings", "mini_words"]

KINDS = (
    "shirt jacket scarf hat glove sock bag wallet belt towel blanket pillow curtain rug lamp mug bowl plate vase clock"
).split()
QUALITIES = "soft heavy light warm thin strong".split()
MATERIALS = "cotton wool linen leather bamboo steel".split()
COLOURS = "red blue green black white pink".split()
SIZES = "tiny small medium large huge".split()

PRODUCTS_OF_A_KIND = 8
PRICES = range(5, 90)
# Any number would do; another one makes another catalogue.
_SEED = 2207


def mini_words() -> tuple[str, ...]:
    """Every word that a page can show."""
    return (*KINDS, *QUALITIES, *MATERIALS, *COLOURS, *SIZES)


def mini_listings() -> Iterator[Listing]:
    """The products, always the same: within a kind no two share both quality and material."""
    rng = random.Random(_SEED)
    places = [(kind, number) for kind in KINDS for number in range(PRODUCTS_OF_A_KIND)]
    pairs = {kind: rng.sample([(q, m) for q in QUALITIES for m in MATERIALS], PRODUCTS_OF_A_KIND) for kind in KINDS}
    rng.shuffle(places)
    for place, (kind, number) in enumerate(places):
        yield _listing(place, kind, *pairs[kind][number], rng)


def _listing(place: int, kind: str, quality: str, material: str, rng: random.Random) -> Listing:
    offered = {"color": (COLOURS, 5), "size": (SIZES, 4)}
    options = {name: tuple(sorted(rng.sample(values, n), key=values.index)) for name, (values, n) in offered.items()}
    price = float(rng.choice(PRICES))
    product = Product(
        asin=f"MINI{place:06d}",
        title=f"{quality} {material} {kind}",
        description=f"A {kind} of {material}.",
        bullet_points=(f"It is {quality}.",),
        category=kind,
        query=kind,
        product_category=f"Shop › {kind} › {material}",
        pricing=(price,),
        price_tag=f"${price}",
        options=options,
        attributes=(quality, material),
    )
    return Listing(
        product=product,
        instruction=f"{quality} {material} {kind}",
        instruction_attributes=(quality, material),
        nouns=(kind,),
    )
