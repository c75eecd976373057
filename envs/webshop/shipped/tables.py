"""The word tables of the shipped catalogue (``data/*.json``) as dataclasses: departments, kinds, options, attributes.

Values of one option are far enough apart for the reward's fuzzy comparison to tell them apart (``6 oz`` and ``8 oz``,
where ``6 ounce`` and ``8 ounce`` would count as equal); clothes in letters are the exception, as in the original.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "ATTRIBUTES",
    "BULLETS",
    "DEPARTMENTS",
    "OPTIONS",
    "TEXTS",
    "Attribute",
    "Department",
    "Kind",
    "Option",
    "OptionPhrases",
    "title_case",
    "with_article",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class OptionPhrases:
    """How a goal names a value of an option; every string holds one ``%s``."""

    before: tuple[str, ...]
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
    goal_phrase: str
    """The form after the noun in a goal (``for dry skin``, ``made of solid wood``)."""
    title: str
    predicative: bool
    """Whether a thing can *be* it (``that is machine washable``, but hardly ``that is long sleeve``)."""
    stated: tuple[str, ...]
    """All sentences that may state it, its own more likely than those that fit every attribute of its role."""
    heads: tuple[tuple[str, ...], ...]
    """Headings of a bullet point that states it, in the styles of :data:`BULLETS`."""


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


def _read(name: str) -> Any:
    """A table, its lists as tuples: what is shared by all products cannot be changed."""
    path = Path(__file__).parent / "data" / f"{name}.json"
    return _fixed(json.loads(path.read_text(encoding="utf-8")))


def _fixed(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_fixed, value))
    return {name: _fixed(held) for name, held in value.items()} if isinstance(value, dict) else value


def _options() -> dict[str, Option]:
    tables = _read("options")
    phrases = {name: OptionPhrases(**forms) for name, forms in tables["phrases"].items()}
    return {
        name: Option(**{**fields, "phrases": phrases[fields["phrases"]]}) for name, fields in tables["options"].items()
    }


OPTIONS = _options()
"""By the names that ``departments.json`` uses."""


def _department(fields: dict[str, Any]) -> Department:
    kinds = [Kind(**{**kind, "options": tuple(OPTIONS[name] for name in kind["options"])}) for kind in fields["kinds"]]
    return Department(**{**fields, "kinds": tuple(kinds)})


DEPARTMENTS = tuple(map(_department, _read("departments")))
TEXTS: dict[str, Any] = _read("texts")
"""Parts of invented brands, names of product lines, sentences that fit any kind of product, words that are no nouns.

``openers`` begin a description (``{use}`` and ``{other}`` are two uses of the kind); ``requests`` ask for ``%s``, the
product with all its properties; ``requests_with_clause`` name one option in a clause of its own; ``reviews`` are pairs
of title and text by how the writer felt."""
_ATTRIBUTES: dict[str, Any] = _read("attributes")


def with_article(phrase: str) -> str:
    """``phrase`` behind ``a`` or ``an``, by its first sound (``a usb port``, ``an 8 oz jar``)."""
    # 8, 11, 18 and LED, read aloud, begin with a vowel; usb and uv do not.
    vowel = phrase.startswith((*"aeiou8", "led ", "11 ", "11x", "18 ", "18x")) and not phrase.startswith(
        ("us", "uv", "eau")
    )
    return ("an " if vowel else "a ") + phrase


_ABBREVIATIONS = {w.lower(): w for w in ("USB", "BPA", "LED", "UV", "PVC", "PFOA", "GMO", "A5", "T-Shirt", "T-Shirts")}
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


BULLETS = ("%s: ", "%s - ", "【%s】", "")
"""Forms of the heading of a bullet point; in the first it is upper case, the last has none."""


def _attribute(phrase: str, role: str, head: str, *own: str) -> Attribute:
    """A role of ``with`` or ``in`` takes ``a``, unless it ends in s or is uncounted; others take the article listed."""
    articles = _ATTRIBUTES["articles"]
    bare = role not in ("with", "in") or phrase.endswith("s") or phrase in _ATTRIBUTES["uncounted"]
    named = f"{articles[phrase]} {phrase}" if phrase in articles else phrase if bare else with_article(phrase)
    # By its last word.
    predicative = phrase.split()[-1] in _ATTRIBUTES["predicates"]
    frames = _ATTRIBUTES["frames"][role]
    if role == "adj" and not predicative:
        # "Long sleeve by design.", never "It is ..."
        frames = () if head == "care" else frames[:1]
    general = [frame % named for frame in frames]
    quiet = _ATTRIBUTES["heads"][head]
    loud = tuple(text.upper() for text in quiet)
    return Attribute(
        phrase=phrase,
        role=role,
        named=named,
        goal_phrase={"of": "made of ", "for": "for ", "in": "in "}.get(role, "") + named,
        title=title_case(phrase),
        predicative=predicative,
        stated=own * (6 // len(own)) + tuple(text[0].upper() + text[1:] for text in general),
        heads=tuple(
            tuple(form % text for text in (quiet if n else loud)) if form else ("",) for n, form in enumerate(BULLETS)
        ),
    )


ATTRIBUTES = {phrase: _attribute(phrase, *row) for phrase, row in _ATTRIBUTES["attributes"].items()}
