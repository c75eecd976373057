"""The texts of one listing: title, description, bullet points, price and reviews.

Attributes that the title does not name are named in the description or in a bullet point.
"""

from __future__ import annotations

from collections.abc import Sequence

from envs.webshop.shipped.categories import Category
from envs.webshop.shipped.product_families import Draw, ProductFamily, pick
from envs.webshop.shipped.tables import BULLETS, TEXTS, Attribute

__all__ = ["bullets_of", "description_of", "price_of", "reviews_of", "title_of"]

MOST_BULLETS = 6
_CODE = "BCDFGHKLMNPRSTVX"


def title_of(
    family: ProductFamily, brand: str, traits: Sequence[Attribute], fixed: str, draw: Draw
) -> tuple[str, list[Attribute]]:
    """The title, and the attributes that it does not name."""
    told = [trait for trait in traits if draw() < 0.32][:3]
    noun, style, line = family.category.title_noun, family.style, family.line
    front = [trait for trait in told if trait.role in ("adj", "of")][:2] if family.form < 3 else []
    words = " ".join([trait.title for trait in front]) + " " if front else ""
    if family.form == 0:
        title = f"{brand} {words}{style} {noun}"
    elif family.form == 1:
        title = f"{brand} {line} {words}{noun}"
    elif family.form == 2:
        title = f"{words}{style} {noun} by {brand}"
    else:
        title = f"{brand} {style} {noun}"
    parts = [trait.title for trait in told if trait.role == "with"]
    if parts:
        title += " with " + ", ".join(parts[:-1]) + (" and " if parts[1:] else "") + parts[-1]
    for trait in told:
        if trait.role != "with" and trait not in front:
            title += f" for {trait.title}" if trait.role == "for" else f", {trait.title}"
    if fixed:
        title += f", {fixed}"
    return title, [trait for trait in traits if trait not in told]


def description_of(
    family: ProductFamily, brand: str, untold: Sequence[Attribute], draw: Draw
) -> tuple[str, list[Attribute]]:
    """Two to five sentences, and the attributes that neither they nor the title name."""
    category = family.category
    text = pick(draw, category.openers)
    text = text.replace("\0", brand).replace("\1", family.uses[0]).replace("\2", family.uses[1])
    sentences = [text]
    if draw() < 0.4:
        sentences.append(pick(draw, category.own_openers).replace("\0", brand))
    unsaid: list[Attribute] = []
    for trait in untold:
        # What neither title nor description names gets a bullet point, of which there are at most six.
        if (len(sentences) < 4 and draw() < 0.34) or len(unsaid) == MOST_BULLETS:
            sentences.append(pick(draw, trait.stated))
        else:
            unsaid.append(trait)
    if len(sentences) == 1 or draw() < 0.4:
        sentences.append(pick(draw, category.department.closers))
    if category.numbered and len(sentences) < 5 and draw() < 0.6:
        # Two of 16 letters, and four digits from 1000 on.
        number = int(draw() * 256 * 9000)
        code, digits = divmod(number, 9000)
        sentences.append(f"Model {_CODE[code // 16]}{_CODE[code % 16]}-{digits + 1000}.")
    return " ".join(sentences), unsaid


def bullets_of(category: Category, unsaid: Sequence[Attribute], traits: Sequence[Attribute], draw: Draw) -> list[str]:
    """Three to six bullet points: one for each of ``unsaid``, then facts and perhaps more on ``traits``."""
    form = int(draw() * len(BULLETS))
    told = list(unsaid)
    if draw() < 0.3 and len(told) < MOST_BULLETS:
        trait = pick(draw, traits)
        if trait not in unsaid:
            told.append(trait)
    lines = []
    for trait in told:
        lines.append(pick(draw, trait.heads[form]) + pick(draw, trait.stated))
    facts = list(category.kind.facts)
    size = 3 + int(draw() * 4)
    while len(lines) < size and facts:
        fact = facts.pop(int(draw() * len(facts)))
        lines.insert(int(draw() * (len(lines) + 1)), fact)
    return lines


def price_of(price: float, draw: Draw) -> str:
    """``$12.99``, a range as ``$10.99$24.5``, or nothing for one in 25."""
    kind = draw()
    if kind < 0.04:
        return ""
    low = int(price) + (0.99, 0.95, 0.49, 0.5, 0.0, 0.79)[int(draw() * 6)]
    if kind < 0.12:
        return f"${low}${int(price * (1.2 + 0.8 * draw())) + 1.99}"
    return f"${low}"


_MOODS = ("good", "good", "good", "good", "fair", "fair", "poor")
_SCORES = {"good": ("5.0", "5.0", "4.0"), "fair": ("3.0", "4.0"), "poor": ("1.0", "2.0")}


def reviews_of(category: Category, draw: Draw) -> tuple[list[dict[str, str]], float | str]:
    """Up to four reviews and the average of their scores, ``""`` when there are none."""
    reviews: list[dict[str, str]] = []
    total = 0.0
    taken: set[str] = set()
    for _ in range(int(draw() * 5)):
        mood = pick(draw, _MOODS)
        title, text = pick(draw, TEXTS["reviews"][mood])
        score = pick(draw, _SCORES[mood])
        if title not in taken:
            taken.add(title)
            total += float(score)
            reviews.append({"title": title, "score": score, "review": text.replace("{noun}", category.kind.noun)})
    return reviews, round(total / len(reviews), 1) if reviews else ""
