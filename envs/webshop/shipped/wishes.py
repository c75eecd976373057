"""What shoppers want: instructions in casual sentences, and the short form that the original makes by rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envs.webshop.shipped.families import Draw
from envs.webshop.shipped.kinds import Option, with_article
from envs.webshop.shipped.phrases import ASKING, ASKING_WITH_CLAUSE
from envs.webshop.shipped.shelves import Shelf, Trait

__all__ = ["find_me", "wishes"]

_HOW_MANY = (0, 0, 1, 1, 1, 2, 2, 2, 3, 3)


def find_me(query: str, traits: Sequence[Trait], draw: Draw) -> tuple[list[str], str]:
    """Two to five of the attributes, and the sentence ``Find me sugar free granola with real fruit for ...``."""
    chosen = list(traits)
    size = 2 + int(draw() * 4)
    while len(chosen) > size:
        del chosen[int(draw() * len(chosen))]
    adjectives = [t.phrase for t in chosen if t.role == "adj"]
    parts = [t.phrase for t in chosen if t.role in ("with", "of", "in")]
    aims = [t.phrase for t in chosen if t.role == "for"]
    text = "Find me " + "".join([", ".join(adjectives), " "] if adjectives else []) + query
    text += " with " + ", ".join(parts) if parts else ""
    text += " for " + ", ".join(aims) if aims else ""
    return adjectives + parts + aims, text


def wishes(
    asin: str,
    shelf: Shelf,
    traits: Sequence[Trait],
    offers: Sequence[tuple[Option, list[str]]],
    draw: Draw,
) -> list[dict[str, Any]]:
    """Up to three entries of ``items_human_ins.json``, no two alike."""
    found: list[dict[str, Any]] = []
    for _ in range(_HOW_MANY[int(draw() * len(_HOW_MANY))]):
        wanted = list(traits)
        size = 1 + int(draw() * 3)
        while len(wanted) > size:
            del wanted[int(draw() * len(wanted))]
        chosen = [(option, values[int(draw() * len(values))]) for option, values in offers if draw() < 0.78]
        text = _sentence(shelf, wanted, chosen, draw)
        entry = {
            "asin": asin,
            "instruction": text,
            "attributes": [trait.phrase for trait in traits],
            "options": [f"{option.name.lower()}: {value}" for option, value in chosen],
            "instruction_attributes": [trait.phrase for trait in wanted],
            "instruction_options": [value for _, value in chosen],
        }
        if all(entry["instruction"] != other["instruction"] for other in found):
            found.append(entry)
    return found


def _sentence(shelf: Shelf, wanted: Sequence[Trait], chosen: Sequence[tuple[Option, str]], draw: Draw) -> str:
    before: list[str] = []
    parts: list[str] = []
    behind: list[str] = []
    late: list[str] = []
    for trait in wanted:
        if trait.role == "adj" or (trait.role == "of" and draw() < 0.5):
            if trait.role == "adj" and draw() < 0.2 and trait.predicative:
                late.append(trait.phrase)
            else:
                before.append(trait.phrase)
        elif trait.role == "with":
            parts.append(trait.named)
        else:
            behind.append(trait.wish)
    if parts:
        behind.insert(0, "with " + " and ".join(parts))
    clause = ""
    for option, value in chosen:
        speech = option.speech
        way = draw()
        if way < 0.25 and not clause:
            clause = speech.clause[int(draw() * len(speech.clause))] % value
        elif way < 0.55 and speech.before:
            before.append(speech.before[int(draw() * len(speech.before))] % value)
        else:
            behind.append(speech.after[int(draw() * len(speech.after))] % value)
    joint = ", " if draw() < 0.6 else " "
    words = joint.join(before) + " " + shelf.noun if before else shelf.noun
    start = "" if shelf.kind.form == "some" and draw() < 0.5 else shelf.start
    text = " ".join([with_article(words) if shelf.kind.form == "a" else start + words, *behind])
    if late:
        text += shelf.verb + " and ".join(late)
    if clause:
        return ASKING_WITH_CLAUSE[int(draw() * len(ASKING_WITH_CLAUSE))] % (text, clause)
    return ASKING[int(draw() * len(ASKING))] % text
