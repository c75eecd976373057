"""The problems: five kinds of story in a closed vocabulary, each with the expression that solves it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from numpy.random import Generator

__all__ = ["KINDS", "Problem", "draw_problem", "vocabulary"]

NAMES = ("Ada", "Ben", "Eva", "Ivo", "Lea", "Max")
THINGS = ("pens", "nuts", "cards", "beads")


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One problem, its numbers in the order of the text, and what to compute."""

    kind: str
    text: str
    numbers: tuple[int, ...]
    expression: str
    answer: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A story with blanks, and its solution from the numbers a, b, c."""

    story: str
    expression: str
    solve: Callable[[int, int, int], int]


KINDS: dict[str, Kind] = {
    "boxes": Kind(
        story="{name} has {a} boxes with {b} {things} in each . How many {things} is that ?",
        expression="{a}*{b}",
        solve=lambda a, b, c: a * b,
    ),
    "gift": Kind(
        story="{name} has {a} boxes with {b} {things} in each and gives away {c} . How many {things} are left ?",
        expression="{a}*{b}-{c}",
        solve=lambda a, b, c: a * b - c,
    ),
    "more": Kind(
        story="{name} has {c} {things} and buys {a} boxes with {b} in each . How many {things} is that ?",
        expression="{c}+{a}*{b}",
        solve=lambda a, b, c: c + a * b,
    ),
    "two": Kind(
        story="{name} has {a} {things} , {other} has {b} times as many . How many {things} do they have ?",
        expression="{a}+{a}*{b}",
        solve=lambda a, b, c: a + a * b,
    ),
    "rest": Kind(
        story="{name} packs {c} {things} into boxes of {a} . How many {things} are left ?",
        expression="{c}%{a}",
        solve=lambda a, b, c: c % a,
    ),
}


def draw_problem(draw: Generator, digits: int) -> Problem:
    """A problem whose factors a and b have ``digits`` digits and whose third number c has one more."""
    kind_name = tuple(KINDS)[int(draw.integers(len(KINDS)))]
    kind = KINDS[kind_name]
    name, other = (NAMES[int(i)] for i in draw.choice(len(NAMES), size=2, replace=False))
    low = 10 ** (digits - 1)
    a, b = (int(draw.integers(low, 10 * low)) for _ in range(2))
    # No product of two factors is below 10 * c, so that nothing is ever given away that is not there.
    c = int(draw.integers(low * 10, min(a * b, 100 * low)))
    blanks = {"a": a, "b": b, "c": c, "name": name, "other": other, "things": THINGS[int(draw.integers(len(THINGS)))]}
    numbers = tuple(int(blanks[blank]) for blank in re.findall(r"\{([abc])\}", kind.story))
    text = kind.story.format(**blanks)
    return Problem(
        kind=kind_name,
        text=text,
        numbers=numbers,
        expression=kind.expression.format(a=a, b=b, c=c),
        answer=kind.solve(a, b, c),
    )


def vocabulary() -> tuple[str, ...]:
    """Every word of every story, with the space before it, for a small model's tokenizer."""
    words = {w for kind in KINDS.values() for w in kind.story.split() if "{" not in w}
    return tuple(f" {word}" for word in sorted({*words, *NAMES, *THINGS})) + NAMES
