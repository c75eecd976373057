"""Kinds made ready for writing products: what does not depend on the product is put together once."""

from __future__ import annotations

from dataclasses import dataclass

from envs.webshop.shipped.attributes import ATTRIBUTES, stated
from envs.webshop.shipped.brands import BRANDS
from envs.webshop.shipped.departments import DEPARTMENTS
from envs.webshop.shipped.kinds import Attribute, Department, Kind, Option, with_article
from envs.webshop.shipped.phrases import OPENERS

__all__ = ["SHELVES", "Shelf", "Trait", "title_case"]

_ABBREVIATIONS = {w.lower(): w for w in ("USB", "BPA", "LED", "UV", "PVC", "PFOA", "GMO", "A5", "HD")}
_SMALL_WORDS = {"of", "with", "for", "and", "in", "de", "oz", "ft", "lb", "mm", "mah", "pc", "inch", "on", "up"}


def title_case(text: str) -> str:
    """``usb port for men's jeans`` as ``USB Port for Men's Jeans``."""
    return " ".join(
        _ABBREVIATIONS.get(w) or (w if w in _SMALL_WORDS or not w[0].isalpha() else w[0].upper() + w[1:])
        for w in text.split(" ")
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Trait:
    """An attribute in the forms that listings and wishes need."""

    phrase: str
    role: str
    wish: str
    """Behind the noun (``with a usb port``, ``made of solid wood``); for ``adj`` the phrase itself."""
    title: str
    tail: str
    """At the end of a title (``with USB Port``)."""
    stated: tuple[str, ...]
    bullets: tuple[tuple[str, ...], ...]
    """The same statements as bullet points in the styles of :data:`BULLETS`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shelf:
    """A kind with its department, ready for use."""

    department: Department
    kind: Kind
    path: str
    """The way to it through the shop (``Kitchen › Drinkware › Coffee Mugs``)."""
    brands: tuple[str, ...]
    noun: str
    title_noun: str
    core: tuple[str, str]
    """What comes before and behind the words in front of the noun in a wish; the article of ``a`` is left open."""
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


BULLETS = ("%s: %s", "%s - %s", "【%s】%s", "")
"""Forms of a bullet point with heading and statement; the empty one is the statement alone."""

_NUMBERED = {"electronics", "audio and camera", "furniture", "kitchen", "luggage", "decor and lighting", "office"}


def _trait(attribute: Attribute) -> Trait:
    before = {"adj": "", "of": "made of ", "with": "with ", "for": "for ", "in": "in "}[attribute.role]
    said = stated(attribute)
    tail = {"with": "with ", "for": "for "}.get(attribute.role, "")
    bullets = tuple(
        tuple(
            (form % (head.upper() if n == 0 else head, text)) if form else text
            for text in said
            for head in attribute.heads
        )
        for n, form in enumerate(BULLETS)
    )
    return Trait(
        phrase=attribute.phrase,
        role=attribute.role,
        wish=before + attribute.named,
        title=title_case(attribute.phrase),
        tail=tail + title_case(attribute.phrase),
        stated=said,
        bullets=bullets,
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


def _shelf(department: Department, number: int, kind: Kind, traits: dict[str, Trait]) -> Shelf:
    a, this = _forms(kind)

    def fill(text: str) -> str:
        return text.format(
            A=_upper(a), a=a, This=_upper(this), this=this, noun=kind.noun, brand="\0", use="\1", other="\2"
        )

    start = {"a": "", "some": "some ", "pack": "some "}.get(kind.form, f"a {kind.form} of ")
    return Shelf(
        department=department,
        kind=kind,
        path=" › ".join((title_case(department.category), kind.group, title_case(kind.query))),
        brands=BRANDS[number :: len(DEPARTMENTS)],
        noun=kind.noun,
        title_noun=title_case(kind.noun),
        core=(start, kind.noun),
        styles=tuple(map(title_case, kind.styles)),
        choices=tuple(tuple(traits[phrase] for phrase in choice) for choice in kind.choices),
        openers=tuple(map(fill, OPENERS)),
        own_openers=tuple(map(fill, department.openers)),
        closers=department.closers,
        facts=kind.facts,
        options=kind.options,
        numbered=department.category in _NUMBERED,
    )


def _shelves() -> tuple[Shelf, ...]:
    traits = {phrase: _trait(attribute) for phrase, attribute in ATTRIBUTES.items()}
    return tuple(
        _shelf(department, number, kind, traits)
        for number, department in enumerate(DEPARTMENTS)
        for kind in department.kinds
    )


SHELVES = _shelves()
