"""Parses a tidied text into the kind of answer it is: number with unit, words, list, set, interval, equation, matrix.

No algebra is done here; expressions stay texts. An ambiguous text gives both readings (``1,234`` is one number or two).
Time grows with the length of the text times its nesting depth, and both are limited.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from roll_envs.verifiers.mathematics.plain_numbers import grouped, plain_number
from roll_envs.verifiers.mathematics.tidy import MONEY
from roll_envs.verifiers.mathematics.units import Unit, compound, is_unit_word, read_unit

MAX_ITEMS = 200
MAX_DEPTH = 12


class Unreadable(Exception):
    """A text that is nested too deeply or has too many items."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expression:
    """An expression, perhaps with a unit or as a percentage."""

    text: str
    unit: Unit | None = None
    percent: bool = False
    maybe_variable: bool = False
    """The unit is a single letter that may be a variable, so this reading only equals an answer with a unit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Words:
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Several answers: a point or an interval such as ``(1, 2]``, a set in braces, or a list without brackets."""

    brackets: str
    """``"(]"``, ``"{}"``, ... or nothing; ``"::"`` of a ratio."""
    items: tuple[Node, ...]
    either: bool = False
    """They are joined by "or"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """Sets joined by ∪, ∩, ∖, or inequalities joined by and/or; ``operators[i]`` joins pieces i and i + 1."""

    kind: Literal["sets", "inequalities"]
    pieces: tuple[str, ...]
    operators: tuple[str, ...]
    variable: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Equation:
    """``sides[0] = sides[1] = ...``; ``right`` is the last side, parsed."""

    sides: tuple[str, ...]
    right: Node


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    rows: tuple[tuple[Node, ...], ...]

    @property
    def items(self) -> tuple[Node, ...]:
        """The entries, row by row."""
        return tuple(cell for row in self.rows for cell in row)


Node = Expression | Words | Group | Region | Equation | Matrix

_OPEN, _CLOSE = "([{⦃", ")]}⦄"
_MATRIX = re.compile(
    r"[\[(]?\s*\\begin\{(?:[pbB]?matrix|smallmatrix|array|d?cases)\*?\}(?:\{[lcr|]*\})?(.*)\\end\{[A-Za-z]*\*?\}\s*[\])]?",
    re.DOTALL,
)
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_JOIN = re.compile(r"\\text\s*\{\s*(?:,\s*)?(or|and)\s*\}|(?<![A-Za-z\\])(or|and)(?![A-Za-z])")
_COMPARISON = re.compile(r"[<>≤≥≠]")
# What stands in {x ∈ ℝ | x > 3}.
_BUILT = re.compile(r"(?s)\s*([A-Za-z]|\\[a-z]+)\s*(?:∈([^|:]*))?[|:](.*[<>≤≥≠].*)")
_MEMBER = re.compile(r"([A-Za-z]\w*|\([a-z, ]+\)|\\[a-z]+)(?:\([a-z\d]\))?\s*∈\s*")
_COUNTS = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_NO_UNIT = frozenset(
    "or and plus minus divided percent over half halves third thirds quarter quarters squared cubed root mod modulo to "
    "not negative factorial below above power choose fifths sixths sevenths eighths ninths tenths hundredths "
    "thousandths millionths billionths".split()
)
"""Words after a number that change its value and so are no unit."""
_YES_NO = frozenset("yes no true false none odd even both neither red blue dne".split())
_ALL_REALS = re.compile(r"(?i)(?:all |the )?real(?:s| numbers)")
_NOTHING = re.compile(r"(?i)(?:there (?:is|are) )?no (?:real )?solutions?|(?:the )?empty set|none")
_FUNCTION_WORDS = frozenset("sin cos tan cot sec csc log ln exp sqrt frac pi max min gcd lcm mod".split())
_WORDS = re.compile(r"[A-Za-z][A-Za-z'-]*(?:[\s,]+[A-Za-z][A-Za-z'-]*)*", re.ASCII)
# Not e, i, or a vector in roman or bold type: those letters name no unit.
_TAIL_TEXT = re.compile(
    r"\\text\s*\{(?!\s*[abcefi-knpqrt-z]\s*\})([^{}]*)\}(\s*\^\s*(?:\{\s*[+-]?\d\s*\}|[+-]?\d))?\s*$"
)
_TAIL_WORD = re.compile(
    r"(°[CF]?|(?<![^\W\d_])(?<![\\°])[^\W\d_]+|[¢€£¥₹¤])\.?(\s*\^\s*(?:\{\s*[+-]?\d\s*\}|[+-]?\d))?\s*$"
)
_TAIL_OPERATOR = re.compile(r"(/|\\cdot|\*|\b(?:per|of))\s*$")
_TIME = re.compile(
    r"(\d{1,2})(?=:|[^:]*[ap]\.?\s?m)(?::(\d\d))?(?:\s*(?:\\text\s*\{)?\s*([ap])\.?\s?m\.?\s*\}?)?", re.IGNORECASE
)
NUMBERS = r"(?:\\mathbb|\\text)?[\s{]*+([ZNQℤℕℚ])[\s}]*+(?:[\^_][\s{]*+([+*])\}?)?"
"""The name of a set of numbers: its letter and its sign."""
_INTEGER_CONDITION = re.compile(rf"[A-Za-z]\s*∈\s*+{NUMBERS}")
_CONDITIONS = (
    # "f(x) = x for all x" says no more than "f(x) = x".
    (r"(?<==)(.*?)[\s,;(]*(?:\\text\s*\{[\s,(]*for (?:all|every|any|each)\b|\\forall(?![a-z])).*", r"\1"),
    (r"(?<![\s,;(])[\s,;(]*+(?:\\text\s*\{[\s,(]*|\b)(?:where|for|with)\b[^=<>≤≥]*\bconstants?\b[^=<>≤≥]*$", ""),
    (r"^(?:\\text\s*\{\s*)?(?:for )?all(?: (?:real|positive|numbers|integers))*[\s}]*(?=[A-Za-z]\s*[<>≤≥≠∈])", ""),
    # "(k ∈ ℤ)", "where k ∈ ℤ" and "where k is an integer" become ", k ∈ ℤ".
    (r"(?<=[^\s,;])[\s,;]*\(\s*([A-Za-z]\s*[∈<>≤≥≠][^()]*)\)$", r", \1"),
    (r"[\s,;]*\\text\s*\{[\s,]*(?:where|for|with)[a-z ]*\}\s*(?=[A-Za-z]\s*∈)", ", "),
    (
        r"[\s,;]*\\text\s*\{[\s,]*(?:where|for|with)[a-z ]*\}\s*([A-Za-z])\s*\\text\s*\{[a-z ]*integers?\s*\}$",
        r", \1 ∈ Z",
    ),
    # Pieces of a function have one form, and are read as a matrix of values and conditions.
    (r"^[^=]*=\s*(?=⦃?\s*\\begin\{(?:d?cases|array)\})", ""),
    (r"⦃\s*\\begin\{array\}\{[lcr ]*\}((?s:.*))\\end\{array\}", r"\\begin{cases}\1\\end{cases}"),
    (r"&\s*,?\s*(?:\\text\s*\{\s*(?:if|for|when)\s*\}|(?:if|for|when)\b)", "&"),
    # The French notation ]0, 1[ of an open interval.
    (r"^\]([^\[\](),;]+[,;][^\[\](),;]+[\[\])])$", r"(\1"),
    (r"^([\[(][^\[\](),;]+[,;][^\[\](),;]+)\[$", r"\1)"),
    # "x = y = z = 1" is a point.
    (r"^([a-z])\s*=\s*([a-z])\s*=\s*([a-z])\s*=\s*([^=]+)$", r"(\1,\2,\3)=(\4,\4,\4)"),
    # One congruence for each of two residues.
    (
        r"^([A-Za-z])\s*\\equiv\s*(-?\d+)\s*(?:,|\\text\s*\{\s*(?:or|and)\s*\})\s*(-?\d+)\s*(\(?\s*(?:\\text\{)?\\?b?mod.*)$",
        r"\1\\equiv \2\4, \1\\equiv \3\4",
    ),
    # In a function, "x ∈ ℝ" says no more; nor does "n ≥ 1" in a sequence.
    (
        r"^(.*[(_]\{?([a-z])[)}]?\s*=[^,;]*?)(?:[\s,;]*\2\s*(?:≥\s*1|∈\s*(?:ℝ|[\\a-z{\s]*[ZNQℤℕℚ][\s{}^_+*]*)))+$",
        r"\1",
    ),
    # A point with its name, "P(2, 3)", and a column, "(2, 3)^T". C(5, 2), N(0, 1) and F(x, y) are no points.
    (r"^([ABDEMOPQ]|[A-Z]_\{?\d\}?)\s*(\([^()=]*,[^()=]*\))$", r"\1=\2"),
    (r"^([\[(][^\[\](),]*,[^\[\]()]*[\])])\s*\^\s*\{?\s*(?:T|\\top)\s*\}?$", r"\1"),
)
"""Patterns of conditions and of other notations, and how the readers below find them, in order."""
_RESIDUE = re.compile(
    r"(?:\s*[A-Za-z]\w*\s*(?:\\equiv|=)|[^A-Za-z]*\\equiv)?\s*(-?\d{1,99})"
    r"\s*\(?\s*(?:\\text\s*\{\s*)?\\?b?mod\s*\}?\s*\{?\s*(\d{1,99})\s*\}?\s*\)?"
)
_OF_ANGLE = re.compile(r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])[^°]*°$")
_MONEY = "¤€£¥₹"


def read(text: str, depth: int = 0) -> list[Node]:
    """The readings of a tidied text, the most likely first; none for an empty text. Raises :class:`Unreadable`."""
    if depth > MAX_DEPTH:
        raise Unreadable("it is nested too deeply")
    for pattern, written in _CONDITIONS:
        text = re.sub(pattern, written, text.strip())
    if not text:
        return []
    if time := _TIME.fullmatch(text):
        # A time of day, or a ratio; 5:00 may be written 5.
        ratio = Expression(text=text.removesuffix(":00"))
        return [*_times(time), *([] if time[3] or time[2] == "00" == time[1] else [ratio])]
    if whole := compound(_TEXT.sub(r" \1 ", text)):
        return [Expression(text=rf"\frac{{{whole[0].numerator}}}{{{whole[0].denominator}}}", unit=whole[1])]
    words = _as_words(text)
    if words is not None:
        inner = _TEXT.fullmatch(text)
        if inner is not None and re.match(r"[-+]?[\d.¤]", inner[1].strip()):
            return [*read(inner[1], depth + 1), words]
        said = " ".join(words.text.split())
        sign = "ℝ" if _ALL_REALS.fullmatch(said) else "∅" if _NOTHING.fullmatch(said) else ""
        if sign:
            return [words, Region(kind="sets", pieces=(sign,), operators=())]
        return [words, *(_several(inner[1].strip(), depth) if inner is not None else [])]
    # The order matters: a matrix holds commas, a region holds commas and signs of equations.
    for reader in (_matrix, _single_group, _residue, _region, _several, _brackets, _equation, _ratio):
        found = reader(text, depth)
        if found:
            return found
    return _expressions(text)


def _times(time: re.Match[str]) -> list[Words]:
    """The times on a clock of 24 hours: two where neither the hour nor am or pm tells morning from evening."""
    hour, minutes, half = int(time[1]), time[2] or "00", (time[3] or "").lower()
    hours = [hour % 12 + 12 * (half == "p")] if half else [hour, hour + 12] if 0 < hour < 12 else [hour % 24]
    return [Words(text=f"time {hour}:{minutes}") for hour in hours]


def first(text: str, depth: int) -> Node:
    found = read(text, depth + 1)
    if not found:
        raise Unreadable("a part of it is empty")
    return found[0]


def _depths(text: str) -> list[int]:
    """How many brackets are open behind each letter. Any kind closes any, as in ``[0, 1)``."""
    return [*itertools.accumulate((letter in _OPEN) - (letter in _CLOSE) for letter in text)]


def _in_brackets(text: str, kinds: str) -> bool:
    """Whether one pair of brackets, which opens with one of ``kinds``, stands around the whole text."""
    *within, behind = _depths(text)
    return text[0] in kinds and all(within) and not behind


def cut(text: str, separators: str) -> tuple[list[str], tuple[str, ...]]:
    """The parts of a text between separators that are not inside brackets, stripped, and those separators."""
    parts, found, start = [], [], 0
    for i, (letter, depth) in enumerate(zip(text, _depths(text), strict=True)):
        if letter in separators and depth == 0:
            parts.append(text[start:i].strip())
            found.append(letter)
            start = i + 1
    if len(parts) >= MAX_ITEMS:
        raise Unreadable(f"more than {MAX_ITEMS} parts")
    return [*parts, text[start:].strip()], tuple(found)


def split(text: str, separators: str = ",;") -> list[str]:
    """The parts of a text between separators that are not inside brackets. Raises :class:`Unreadable` for too many."""
    return cut(text, separators)[0]


def _filled(text: str) -> list[str]:
    """The parts of a list that are not empty."""
    return [part for part in split(text) if part]


def _each(parts: Sequence[str], depth: int) -> tuple[Node, ...]:
    return tuple(first(part, depth) for part in parts)


def _as_words(text: str) -> Words | None:
    """The text as words, if it is not mathematics."""
    inner = _TEXT.fullmatch(text)
    if inner is not None:
        text = inner[1].strip().strip("()").strip().rstrip(".")
        return Words(text=text) if re.search(r"[^\W\d_]", text) and plain_number(text) is None else None
    if not _WORDS.fullmatch(text):
        return None
    words = re.findall(r"[A-Za-z'-]+", text.casefold())
    if _FUNCTION_WORDS & set(words) or _JOIN.search(text):
        return None
    return Words(text=text) if any(len(word) > 3 or word in _YES_NO for word in words) else None


def _residue(text: str, depth: int) -> list[Node]:
    """``x \\equiv 3 \\pmod 4``: a number with its modulus as the unit."""
    match = _RESIDUE.fullmatch(text)
    if match is None or not int(match[2]):
        return []
    return [Expression(text=str(int(match[1]) % int(match[2])), unit=Unit(words=f"mod {int(match[2])}"))]


def _matrix(text: str, depth: int) -> list[Node]:
    match = _MATRIX.fullmatch(text)
    if match is None or "\\begin" in match[1]:
        return []
    rows = [row.strip(" ,;.") for row in match[1].replace("\\hline", "").split("\\\\")]
    if "cases}" in text and "&" not in text:  # a system of equations
        return read(", ".join(filter(None, rows)), depth + 1)
    cells = [[cell.strip(" ,;.") for cell in row.split("&")] for row in rows if row]
    if sum(map(len, cells)) > MAX_ITEMS:
        raise Unreadable(f"a matrix of more than {MAX_ITEMS} entries")
    return [Matrix(rows=tuple(_each(row, depth) for row in cells))]


def _single_group(text: str, depth: int) -> list[Node]:
    """The content of brackets around the whole text, such as ``{x}`` or ``(x+1)``; sets, also with several elements."""
    if not _in_brackets(text, "{([⦃"):
        return []
    inner = text[1:-1].strip()
    several = len(split(inner)) > 1
    if text[0] == "⦃" or (text[0] == "{" and (several or _BUILT.fullmatch(inner))):
        return _set(inner, depth)
    return [] if several else read(inner, depth + 1)


def _set(inner: str, depth: int) -> list[Node]:
    if built := _BUILT.fullmatch(inner):
        name, domain, condition = built.groups()
        if domain and domain.strip() != "ℝ":
            condition += f" and {name} ∈ {domain}"
        return [node for node in read(condition, depth + 1) if isinstance(node, Region)]
    return [Group(brackets="{}", items=_flat(_each(_filled(inner), depth)).items)]


def _region(text: str, depth: int) -> list[Node]:
    member = _MEMBER.match(text)
    variable = member[1] if member else ""
    body = text[member.end() :] if member else text
    # "M = {x | x > 1}" and "A ∩ B = {1}" are equations.
    if _COMPARISON.search(body):
        return _inequalities(text) if member or not re.search(r"=\s*⦃", body) else []
    pieces, operators = cut(body, "∪∩∖")
    if member and body[:1] == "⦃" and len(pieces) == 1:
        return read(body, depth + 1)
    if not member and (len(split(body, "=")) > 1 or (len(pieces) == 1 and body.strip() not in ("ℝ", "∅"))):
        return []
    return [Region(kind="sets", pieces=tuple(pieces), operators=operators, variable=variable)]


def _inequalities(text: str) -> list[Node]:
    # A value of a function, as in 0 < f(x) < 1.
    calls = set(re.findall(r"(?<![A-Za-z\\])[A-Za-z]\([a-z\d]\)", text))
    text = text.replace(call := calls.pop(), call[0]) if len(calls) == 1 else text
    marked = _JOIN.sub(lambda m: "∨" if (m[1] or m[2]) == "or" else "∧", text)
    pieces, joints = cut(marked, "∨∧,;∪")
    operators = tuple({"∪": "∨", ";": ","}.get(joint, joint) for joint in joints)
    return [Region(kind="inequalities", pieces=tuple(pieces), operators=operators)] if all(pieces) else []


def _several(text: str, depth: int) -> list[Node]:
    """A list without brackets: ``1, 2``, ``x=1 or x=2``, ``1 ± 2``."""
    joined = _JOIN.sub(",", text)
    parts = _filled(joined)
    kept = [part for part in parts if not _INTEGER_CONDITION.fullmatch(part)]
    if kept and len(kept) < len(parts):  # "k π, k ∈ ℤ", whatever the name of the integer
        name = next(part[0] for part in parts if part not in kept)
        return read(re.sub(rf"(?<![A-Za-z\\]){name}(?![A-Za-z])", "k", ", ".join(kept)), depth + 1)
    if len(parts) < 2:
        return _both_signs(text, depth) if "±" in text else []
    bare = text.lstrip("+-" + _MONEY).strip()
    number = re.split(r"[^\d,. ]", bare, maxsplit=1)[0].strip()
    # "1,234" is one number; where nothing follows it, it may be a list of two as well.
    if grouped(number) and len(split(joined.replace(number, "0", 1))) == 1:
        spaced = [Group(brackets="", items=_each(parts, depth))] if number == bare and "." not in number else []
        return [*_expressions(text.replace(number, re.sub("[, ]", "", number), 1)), *spaced]
    if any(part in ("...", r"\ldots", r"\dots", r"\cdots") for part in parts):
        return _expressions(text)
    rows = [split(row, ",") for row in split(_JOIN.sub(lambda m: ";" if "or" in m.groups() else ",", text), ";")]
    if len(rows) > 1 and {*map(len, rows)} == {len(parts) // len(rows)} != {1} and all("=" in part for part in parts):
        return [Group(brackets="", items=tuple(Group(brackets="()", items=_each(row, depth)) for row in rows))]
    joints = [match[1] or match[2] for match in _JOIN.finditer(text)]
    either = joints == ["or"] * (len(parts) - 1)
    several = _flat((node for part in parts for node in read(part, depth + 1)[:1]), either)
    options = re.sub(r"\\text|[\s{}(),;]", "", joined)
    # "A, C, and D" chooses what "ACD" does.
    chosen = re.fullmatch("[A-H]{2,}|[①-⑨]{2,}", options) and "or" not in joints
    return [several, *([Expression(text=options)] if chosen else [])]


def _flat(nodes: Iterable[Node], either: bool = False) -> Group:
    """A list, with the items of the lists in it."""
    inner = (node.items if isinstance(node, Group) and not node.brackets else (node,) for node in nodes)
    items = tuple(node for each in inner for node in each)
    if len(items) > MAX_ITEMS:
        raise Unreadable(f"a list of more than {MAX_ITEMS} items")
    return Group(brackets="", items=items, either=either)


def _both_signs(text: str, depth: int) -> list[Node]:
    if text.count("±") > 3:
        raise Unreadable("too many ±")
    plus = re.sub(r"(^|=)\s*\+", r"\1", text.replace("±", "+", 1))
    return [_flat(_each([plus, text.replace("±", "-", 1)], depth))]


def _brackets(text: str, depth: int) -> list[Node]:
    if not _in_brackets(text, "(["):
        return []
    items = _each(_filled(text[1:-1]), depth)
    rows = [item.items for item in items if isinstance(item, Group) and item.brackets == "[]"]
    if len(rows) == len(items) > 1 and text[0] == "[":
        return [Matrix(rows=tuple(rows))]  # [[1, 2], [3, 4]]
    return [Group(brackets=text[0] + text[-1], items=items)] if items else []


def _equation(text: str, depth: int) -> list[Node]:
    sides = split(text.replace(r"\equiv", "="), "=")
    if not 2 <= len(sides) <= 20 or not all(sides):
        return []
    # "x = 5 cm" has the unit on its right, and "(x, y) = (1, 2)" a point.
    return [Equation(sides=tuple(sides), right=right) for right in read(sides[-1], depth + 1)]


def _ratio(text: str, depth: int) -> list[Node]:
    """``3:4:5`` as the other parts divided by the first; two parts are parsed as a fraction elsewhere."""
    parts = split(text, ":")
    if len(parts) < 3 or not all(parts):
        return []
    shares = [Expression(text=rf"\frac{{{part}}}{{{parts[0]}}}") for part in parts[1:]]
    return [Group(brackets="::", items=tuple(shares))]


def _expressions(text: str) -> list[Node]:
    """The expression, with what follows it as its unit; where a letter may be unit or variable, both readings."""
    if share := re.fullmatch(r"(?s)(.*\S)\s*(?:%|\\text\s*\{\s*percent\s*\}|\bpercent)\s*", text):
        return [Expression(text=share[1], percent=True)]
    if money := re.fullmatch(rf"(?s)([+-]?)([{_MONEY}])\s*(.*)", text):
        head, unit, _ = _cut_unit(money[3])
        return [Expression(text=money[1] + head, unit=unit if unit and unit.words else read_unit(money[2]))]
    head, unit, weak = _cut_unit(text)
    found = Expression(text=head, unit=unit, maybe_variable=weak)
    return [Expression(text=text), found] if weak else [found]


def _cut_unit(text: str) -> tuple[str, Unit | None, bool]:
    """Split off the unit at the end: the rest, the unit, and whether the unit might be a variable."""
    rest, weak = text.rstrip(), False
    pieces: list[str] = []
    # In sin 30° the degrees belong to the angle.
    while rest and len(pieces) < 12 and not _OF_ANGLE.search(rest):
        if match := _TAIL_TEXT.search(rest):
            if _NO_UNIT & set(re.findall(r"[a-z]+", match[1].casefold())) - {"squared", "cubed"}:
                break
        elif match := _TAIL_OPERATOR.search(rest):
            if not pieces:
                break
        elif match := _TAIL_WORD.search(rest):
            word = match[1]
            # A single letter may be a variable; an unknown word of three letters or more, set apart, counts as a unit
            # (5 apples).
            known = is_unit_word(word)
            apart = match.start() > 0 and ((rest[match.start() - 1].isspace() and len(word) > 2) or word[0] > "⺀")
            if not (known or apart) or word.casefold() in _FUNCTION_WORDS - {"min"} | _NO_UNIT:
                break
            weak = weak or re.fullmatch("[A-Za-z]", word) is not None
        else:
            break
        pieces.insert(0, "".join(filter(None, match.groups())))
        rest = rest[: match.start()].rstrip()
    if not pieces or not rest or not re.search(r"[\w}\])°]$", rest) or pieces[0] in ("/", "*", "\\cdot"):
        return text, None, False
    weak = weak and "/" not in pieces  # "m/s"
    words = " ".join(pieces).replace(MONEY, " dollars").split()
    rest = rest.removesuffix("\\cdot").rstrip()
    while words and words[0].casefold() in _COUNTS:
        rest = rf"({rest})\cdot {_COUNTS[words.pop(0).casefold()]}"  # 5 million dollars
    return rest, read_unit(" ".join(words)), weak
