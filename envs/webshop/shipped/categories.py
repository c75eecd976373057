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
    Option,
    stated,
    with_article,
)

__all__ = ["BRANDS", "CATEGORIES", "Category", "Trait", "title_case"]

_ABBREVIATIONS = {w.lower(): w for w in ("USB", "BPA", "LED", "UV", "PVC", "PFOA", "GMO", "A5", "T-Shirt", "T-Shirts")}
BRANDS = tuple(start + end for end in TEXTS["brand_ends"] for start in TEXTS["brand_starts"])
"""All invented."""

_SMALL_WORDS = {"of", "with", "for", "and", "in", "de", "on", "up", "a"}
_UNITS = {"oz", "ft", "lb", "mm", "mah", "pc", "gb", "inch", "liter"}


def title_case(text: str) -> str:
    """``usb port for men's jeans`` as ``USB Port for Men's Jeans``; the first letter of the last word is upper case
    whatever the word is, unless it is a unit."""
    words = text.split(" ")
    small = [
        word.rstrip(")") in _UNITS or (word in _SMALL_WORDS and n < len(words) - 1) for n, word in enumerate(words)
    ]
    return " ".join(
        _ABBREVIATIONS.get(word) or (word if keep else word[0].upper() + word[1:])
        for word, keep in zip(words, small, strict=True)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Trait:
    """An attribute in the forms that listings and goals need."""

    phrase: str
    role: str
    goal_phrase: str
    """The form after the noun in a goal (``for dry skin``, ``made of solid wood``)."""
    named: str
    predicative: bool
    title: str
    stated: tuple[str, ...]
    heads: tuple[tuple[str, ...], ...]
    """Its headings in the styles of :data:`BULLETS`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Category:
    """A kind of product with its department."""

    department: Department
    kind: Kind
    path: str
    """Path of categories in the shop (``Kitchen › Drinkware › Coffee Mugs``)."""
    brands: tuple[str, ...]
    noun: str
    title_noun: str
    start: str
    """How a goal begins (``a pair of``); empty where the article depends on the next word."""
    verb: str
    """``that is`` or ``that are``."""
    styles: tuple[str, ...]
    choices: tuple[tuple[Trait, ...], ...]
    openers: tuple[str, ...]
    """With ``\\0`` for the brand, ``\\1`` and ``\\2`` for two uses."""
    own_openers: tuple[str, ...]
    closers: tuple[str, ...]
    facts: tuple[str, ...]
    options: tuple[Option, ...]
    numbered: bool
    """Whether descriptions give a model number."""


BULLETS = ("%s: ", "%s - ", "【%s】", "")
"""Forms of the heading of a bullet point; in the first it is upper case, the last has none."""

_NUMBERED = {"electronics", "audio and camera", "furniture", "kitchen", "luggage", "office"}


def _trait(attribute: Attribute) -> Trait:
    before = {"of": "made of ", "for": "for ", "in": "in "}.get(attribute.role, "")
    said = stated(attribute)
    loud = tuple(head.upper() for head in attribute.heads)
    heads = tuple(
        tuple(form % head for head in (attribute.heads if n else loud)) if form else ("",)
        for n, form in enumerate(BULLETS)
    )
    return Trait(
        phrase=attribute.phrase,
        role=attribute.role,
        goal_phrase=before + attribute.named,
        named=attribute.named,
        predicative=attribute.predicative,
        title=title_case(attribute.phrase),
        stated=said,
        heads=heads,
    )


def _forms(kind: Kind) -> tuple[str, str]:
    """The product with an indefinite article and with *this*."""
    if kind.form == "a":
        return with_article(kind.noun), f"this {kind.noun}"
    if kind.form == "some":
        return kind.noun, f"this {kind.noun}"
    return f"a {kind.form} of {kind.noun}", f"this {kind.form} of {kind.noun}"


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]


def _category(department: Department, number: int, kind: Kind, traits: dict[str, Trait]) -> Category:
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
        noun=kind.noun,
        title_noun=title_case(kind.noun),
        start=start,
        verb=" that is " if kind.form in ("a", "some") else " that are ",
        styles=tuple(map(title_case, kind.styles)),
        choices=tuple(tuple(traits[phrase] for phrase in choice) for choice in kind.choices),
        openers=tuple(map(fill, TEXTS["openers"])),
        own_openers=tuple(map(fill, department.openers)),
        closers=department.closers,
        facts=kind.facts,
        options=kind.options,
        numbered=department.category in _NUMBERED,
    )


def _categories() -> tuple[Category, ...]:
    traits = {phrase: _trait(attribute) for phrase, attribute in ATTRIBUTES.items()}
    return tuple(
        _category(department, number, kind, traits)
        for number, department in enumerate(DEPARTMENTS)
        for kind in department.kinds
    )


CATEGORIES = _categories()
