"""Product categories: a kind with its department and all texts that do not depend on the product, computed once."""

from __future__ import annotations

from dataclasses import dataclass

from envs.webshop.shipped.tables import (
    ATTRIBUTES,
    DEPARTMENTS,
    TEXTS,
    Attribute,
    Department,
    Kind,
    title_case,
    with_article,
)

__all__ = ["BRANDS", "CATEGORIES", "Category"]

BRANDS = tuple(start + end for end in TEXTS["brand_ends"] for start in TEXTS["brand_starts"])
"""All invented."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Category:
    """A kind of product with its department."""

    department: Department
    kind: Kind
    path: str
    """Path of categories in the shop (``Kitchen › Drinkware › Coffee Mugs``)."""
    brands: tuple[str, ...]
    title_noun: str
    start: str
    """How a goal begins (``a pair of``); empty where the article depends on the next word."""
    verb: str
    """``that is`` or ``that are``."""
    styles: tuple[str, ...]
    choices: tuple[tuple[Attribute, ...], ...]
    openers: tuple[str, ...]
    """With ``\\0`` for the brand, ``\\1`` and ``\\2`` for two uses."""
    own_openers: tuple[str, ...]
    numbered: bool
    """Whether descriptions give a model number."""


_NUMBERED = {"electronics", "audio and camera", "furniture", "kitchen", "luggage", "office"}


def _forms(kind: Kind) -> tuple[str, str]:
    """The product with an indefinite article and with *this*."""
    if kind.form == "a":
        return with_article(kind.noun), f"this {kind.noun}"
    if kind.form == "some":
        return kind.noun, f"this {kind.noun}"
    return f"a {kind.form} of {kind.noun}", f"this {kind.form} of {kind.noun}"


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]


def _category(department: Department, number: int, kind: Kind) -> Category:
    a, this = _forms(kind)

    def fill(text: str) -> str:
        # Brand and uses are filled in for each product; until then characters stand for them that no text holds.
        return text.format(
            A=_upper(a), a=a, This=_upper(this), this=this, noun=kind.noun, brand="\0", use="\1", other="\2"
        )

    start = {"a": "", "some": "some ", "pack": "some "}.get(kind.form, f"a {kind.form} of ")
    return Category(
        department=department,
        kind=kind,
        path=" › ".join((title_case(department.category), kind.group, title_case(kind.query))),
        # No two departments share a brand.
        brands=BRANDS[number :: len(DEPARTMENTS)],
        title_noun=title_case(kind.noun),
        start=start,
        verb=" that is " if kind.form in ("a", "some") else " that are ",
        styles=tuple(map(title_case, kind.styles)),
        choices=tuple(tuple(ATTRIBUTES[phrase] for phrase in choice) for choice in kind.choices),
        openers=tuple(map(fill, TEXTS["openers"])),
        own_openers=tuple(map(fill, department.openers)),
        numbered=department.category in _NUMBERED,
    )


CATEGORIES = tuple(
    _category(department, number, kind) for number, department in enumerate(DEPARTMENTS) for kind in department.kinds
)
