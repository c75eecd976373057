"""What a kind of product is made of: the dataclasses of the shipped catalogue and how its word tables are read."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "Attribute",
    "Department",
    "Kind",
    "Option",
    "OptionPhrases",
    "kind",
    "read_attributes",
    "split",
    "with_article",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class OptionPhrases:
    """How a goal names a value of an option; every string holds one ``%s``."""

    before: tuple[str, ...] = ()
    """In front of the noun (``black`` chair)."""
    after: tuple[str, ...]
    """Behind it (chair ``in size 9``)."""
    clause: tuple[str, ...]
    """As a clause of its own (``the size should be 9``)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """One choice on an item page: a product offers ``low`` to ``high`` of the values."""

    name: str
    values: tuple[str, ...]
    low: int
    high: int
    in_a_row: bool
    """Offered values are neighbours in ``values`` (sizes), not any of them (colours)."""
    phrases: OptionPhrases


@dataclass(frozen=True, kw_only=True, slots=True)
class Attribute:
    """A property in two words, with its place in a sentence and the sentences that state it in a listing."""

    phrase: str
    role: str
    """``adj`` (machine washable rug), or the word before it: ``with`` side pockets, ``of`` solid wood, ``for`` dry
    skin, ``in`` a glass jar."""
    named: str
    """The phrase with the article that it needs in a sentence (``a usb port``, ``the living room``)."""
    predicative: bool
    """Whether a thing can *be* it (``that is machine washable``, but hardly ``that is long sleeve``)."""
    heads: tuple[str, ...]
    """Headings of a bullet point that states it."""
    statements: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One kind of product."""

    query: str
    noun: str
    form: str
    """``a`` (countable), ``pair`` or ``set`` (a pair of), ``some`` (mass nouns), ``pack`` (plurals)."""
    group: str
    """Its part of the department."""
    low: float
    high: float
    """Usual prices in dollars."""
    styles: tuple[str, ...]
    """Words in front of the noun that are no attributes."""
    choices: tuple[tuple[str, ...], ...]
    """Attribute phrases; a product has at most one of each tuple."""
    uses: tuple[str, ...]
    facts: tuple[str, ...]
    """Sentences that hold for each product of the kind."""
    options: tuple[Option, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Department:
    """A department: its kinds, and the sentences its descriptions open and close with."""

    category: str
    kinds: tuple[Kind, ...]
    openers: tuple[str, ...]
    """With ``{a}``, ``{this}`` or ``{This}`` (the product) and ``{brand}``."""
    closers: tuple[str, ...]


def split(text: str, separator: str = ";") -> tuple[str, ...]:
    """The parts of ``text``, without whitespace around them and without empty ones."""
    return tuple(part for part in (" ".join(part.split()) for part in text.split(separator)) if part)


def kind(
    query: str,
    noun: str,
    group: str,
    price: tuple[float, float],
    *options: Option,
    form: str = "a",
    styles: str,
    attributes: str,
    uses: str,
    facts: str,
) -> Kind:
    """A kind from its table: lists are joined by ``;``, attributes of which a product has but one by ``/``."""
    return Kind(
        query=query,
        noun=noun,
        form=form,
        group=group,
        low=price[0],
        high=price[1],
        styles=split(styles),
        choices=tuple(split(choice, "/") for choice in split(attributes)),
        uses=split(uses),
        facts=split(facts),
        options=options,
    )


_PREDICATES = frozenset(
    """
    absorbent absorbing baked based boiling burning cancelling certified charging dried drying free friendly gmo ground
    included lasting made mounted painted poured powered pressed proof ready resistant safe saving sharp sided slip soft
    stitched thick tight toxic unfiltered warm washable watering wicking wrapped
    """.split()
)
"""Last words of attributes that a thing can be."""


def with_article(phrase: str) -> str:
    """``phrase`` behind ``a`` or ``an``, by its first sound (``a usb port``, ``an 8 oz jar``)."""
    # 8, 11, 18 and LED, read aloud, begin with a vowel; usb and uv do not.
    vowel = phrase.startswith((*"aeiou8", "led ", "11 ", "11x", "18 ", "18x")) and not phrase.startswith(
        ("us", "uv", "eau")
    )
    return ("an " if vowel else "a ") + phrase


def read_attributes(
    heads: dict[str, tuple[str, ...]], uncounted: frozenset[str], articles: dict[str, str], table: str
) -> dict[str, Attribute]:
    """Attributes by phrase, from lines ``phrase | role | heading | statement | further statements``.

    Those with a role of ``with`` or ``in`` get ``a`` unless they end in s or are ``uncounted``; others get the one in
    ``articles``, if any.
    """
    found: dict[str, Attribute] = {}
    for line in table.strip().splitlines():
        phrase, role, head, *statements = split(line, "|")
        bare = role not in ("with", "in") or phrase.endswith("s") or phrase in uncounted
        named = f"{articles[phrase]} {phrase}" if phrase in articles else phrase if bare else with_article(phrase)
        found[phrase] = Attribute(
            phrase=phrase,
            role=role,
            named=named,
            predicative=phrase.split()[-1] in _PREDICATES,
            heads=heads[head],
            statements=tuple(statements),
        )
    return found
