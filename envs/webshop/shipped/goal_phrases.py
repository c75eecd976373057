"""Writes instructions of goals: casual sentences as people write them, and the short form of the original."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envs.webshop.shipped.categories import Category
from envs.webshop.shipped.product_families import Draw, pick, thinned
from envs.webshop.shipped.tables import TEXTS, Attribute, Option, with_article

__all__ = ["human_instructions", "synthetic_instruction"]

# Numbers of instructions, drawn uniformly from this list: one or two most often.
_HOW_MANY = (0, 0, 1, 1, 1, 2, 2, 2, 3, 3)


def synthetic_instruction(query: str, traits: Sequence[Attribute], draw: Draw) -> tuple[list[str], str]:
    """Choose two to five attributes and write the sentence ``Find me sugar free granola with real fruit for ...``."""
    chosen = thinned(draw, traits, 2 + int(draw() * 4))
    adjectives = [t.phrase for t in chosen if t.role == "adj"]
    parts = [t.phrase for t in chosen if t.role in ("with", "of", "in")]
    aims = [t.phrase for t in chosen if t.role == "for"]
    text = "Find me " + "".join([", ".join(adjectives), " "] if adjectives else []) + query
    text += " with " + ", ".join(parts) if parts else ""
    text += " for " + ", ".join(aims) if aims else ""
    return adjectives + parts + aims, text


def human_instructions(
    asin: str,
    category: Category,
    traits: Sequence[Attribute],
    offered: Sequence[tuple[Option, list[str]]],
    draw: Draw,
) -> list[dict[str, Any]]:
    """Up to three different entries of ``items_human_ins.json``."""
    found: list[dict[str, Any]] = []
    for _ in range(pick(draw, _HOW_MANY)):
        wanted = thinned(draw, traits, 1 + int(draw() * 3))
        chosen = [(option, pick(draw, values)) for option, values in offered if draw() < 0.78]
        text = _sentence(category, wanted, chosen, draw)
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


def _sentence(category: Category, wanted: Sequence[Attribute], chosen: Sequence[tuple[Option, str]], draw: Draw) -> str:
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
            behind.append(trait.goal_phrase)
    if parts:
        behind.insert(0, "with " + " and ".join(parts))
    clause = ""
    for option, value in chosen:
        phrases = option.phrases
        way = draw()
        if way < 0.25 and not clause:
            clause = pick(draw, phrases.clause) % value
        elif way < 0.55 and phrases.before:
            before.append(pick(draw, phrases.before) % value)
        else:
            behind.append(pick(draw, phrases.after) % value)
    separator = ", " if draw() < 0.6 else " "
    words = separator.join(before) + " " + category.kind.noun if before else category.kind.noun
    start = "" if category.kind.form == "some" and draw() < 0.5 else category.start
    text = " ".join([with_article(words) if category.kind.form == "a" else start + words, *behind])
    if late:
        text += category.verb + " and ".join(late)
    requests: tuple[str, ...] = TEXTS["requests_with_clause" if clause else "requests"]
    return pick(draw, requests) % ((text, clause) if clause else (text,))
