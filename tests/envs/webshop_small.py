"""A small catalogue made by hand, with texts that would break a page that does not escape them."""

from __future__ import annotations

from functools import cache

from envs.webshop.catalogue import Catalogue, build_catalogue
from envs.webshop.original import Listing
from envs.webshop.types import Product, Review

__all__ = ["HOSTILE", "LAMP", "SHOES", "small_catalogue"]

HOSTILE = "<script>alert(1)</script>"
SHOES, LAMP = "B000000001", "B000000002"


def _product(asin: str, title: str, **more: object) -> Product:
    given = {
        "description": f"About {title}.",
        "bullet_points": (),
        "category": "garden",
        "query": "lamps",
        "product_category": "Home › Lamps",
        "pricing": (20.0,),
        "price_tag": "$20.0",
        "options": {},
        "attributes": (),
    }
    return Product(asin=asin, title=title, **{**given, **more})  # type: ignore[arg-type]


def _listings() -> list[Listing]:
    shoes = _product(
        SHOES,
        "Red Running Shoes & Laces",
        category="fashion",
        query="running shoes",
        product_category="Clothing › Shoes",
        bullet_points=("Light weight", "Non slip"),
        options={"color": ("red", "dark blue"), "size": ("8", 'us "9"')},
        attributes=("light weight", "non slip"),
        rating="4.5",
        reviews=(Review(title="Good", score="5", body="Very\ngood."),),
    )
    lamp = _product(
        LAMP,
        f"{HOSTILE} Lamp",
        description=f"{HOSTILE}<img src=x onerror=alert(2)>",
        bullet_points=(f"bullet {HOSTILE}",),
        options={'"><img src=x>': ("a]b", "<i>x</i>", "search", "buy now", "[c"), "other": ("<i>x</i>", "é ü")},
        attributes=(f"attribute {HOSTILE}",),
        reviews=(Review(title=HOSTILE, score="1", body=HOSTILE),),
    )
    wants_shoes = {
        "instruction": "i need red light weight running shoes in size 8.",
        "instruction_attributes": ["light weight"],
        "instruction_options": ["red", "8"],
    }
    wants_lamp = {"instruction": f"a lamp {HOSTILE}", "instruction_attributes": ["bright"], "instruction_options": []}
    others = [_product(f"B1{n:08d}", f"Plain Lamp Number {n}", pricing=(), price_tag="") for n in range(21)]
    return [
        Listing(product=shoes, human=(wants_shoes,), nouns=("shoes", "laces")),
        Listing(product=lamp, human=(wants_lamp,), nouns=("lamp",)),
        *(Listing(product=product, nouns=("lamp", "number")) for product in others),
    ]


@cache
def small_catalogue() -> Catalogue:
    """23 products and two goals; goal numbers follow from the fixed shuffle."""
    return build_catalogue("small", _listings(), human=True)
