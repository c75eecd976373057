"""Parses units of measurement, so that equal and convertible ones can be compared.

A unit is a product of powers of base units times an exact factor; words that are no unit (``apples``) are kept as
words. ``units`` and ``square units`` count as no unit.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """``factor`` times the product of ``powers`` (base unit, exponent); ``words`` where it is no known unit."""

    factor: Fraction = Fraction(1)
    powers: tuple[tuple[str, int], ...] = ()
    words: str = ""


def _table() -> dict[str, tuple[Fraction, dict[str, int]]]:
    table: dict[str, tuple[Fraction, dict[str, int]]] = {}

    def add(names: str, factor: str | int, **powers: int) -> None:
        for name in names.split():
            table[name] = (Fraction(factor), powers)

    for prefix, long, power in (
        ("n", "nano", -9), ("µ", "micro", -6), ("m", "milli", -3), ("c", "centi", -2), ("d", "deci", -1), ("", "", 0),
        ("k", "kilo", 3), ("M", "mega", 6), ("G", "giga", 9),
    ):  # fmt: skip
        scale = str(Fraction(10) ** power)
        add(f"{prefix}m {long}meter {long}meters {long}metre {long}metres", scale, m=1)
        add(f"{prefix}g {long}gram {long}grams {long}gramme {long}grammes", scale, g=1)
        add(f"{prefix}s {long}second {long}seconds", scale, s=1)
        add(
            f"{prefix}L {prefix}l {long}liter {long}liters {long}litre {long}litres",
            str(Fraction(10) ** (power - 3)),
            m=3,
        )
        for letter, word in (
            ("N", "newton"), ("J", "joule"), ("W", "watt"), ("V", "volt"), ("A", "ampere"), ("Pa", "pascal"),
            ("Hz", "hertz"), ("Ω", "ohm"), ("mol", "mole"), ("eV", "electronvolt"), ("cal", "calorie"), ("F", "farad"),
        ):  # fmt: skip
            add(f"{prefix}{letter} {long}{word} {long}{word}s", scale, **{word: 1})
    add("in inch inches", "0.0254", m=1)
    add("ft foot feet", "0.3048", m=1)
    add("yd yds yard yards", "0.9144", m=1)
    add("mi mile miles", "1609.344", m=1)
    add("mph", Fraction("1609.344") / 3600, m=1, s=-1)  # type: ignore[arg-type]
    add("kph kmh", Fraction(1000, 3600), m=1, s=-1)  # type: ignore[arg-type]
    add("sec secs", 1, s=1)
    add("min mins minute minutes", 60, s=1)
    add("h hr hrs hour hours", 3600, s=1)
    add("d day days", 86400, s=1)
    add("week weeks wk wks", 604800, s=1)
    # Months and days have no fixed ratio, so months and years are a dimension of their own.
    add("month months", 1, month=1)
    add("year years yr yrs", 12, month=1)
    add("ton tons tonne tonnes", 1000000, g=1)
    add("lb lbs", 1, lb=1)
    add("oz ounce ounces", "1/16", lb=1)
    add("hectare hectares ha", 10000, m=2)
    add("acre acres", 1, acre=1)
    add("gal gallon gallons", 1, gallon=1)
    add("dollar dollars usd USD ¤", 1, usd=1)
    add("cent cents ¢", "1/100", usd=1)
    add("euro euros EUR €", 1, eur=1)
    add("£ GBP", 1, gbp=1)
    add("yen JPY ¥", 1, jpy=1)
    add("rupee rupees Rs INR ₹", 1, inr=1)
    add("° deg degree degrees", 1, degree=1)
    add("rad radian radians", 1, radian=1)
    add("°C Celsius celsius", 1, celsius=1)
    add("°F Fahrenheit fahrenheit", 1, fahrenheit=1)
    add("K kelvin Kelvin", 1, kelvin=1)
    add("unit units", 1)
    return table


_TABLE = _table()
_WORD = re.compile(r"°[CF]|[A-Za-zµΩ°¢€£¥₹¤]+|\^\s*\{?\s*([+-]?\d)\s*\}?|[/*]|\\cdot|\\times|[()]")
_ORDER = {"square": 2, "squared": 2, "sq": 2, "cubic": 3, "cubed": 3, "cu": 3}


def is_unit_word(word: str) -> bool:
    """Whether a word by itself names a unit (single letters do, too)."""
    # Case tells short names apart (mW and MW), so only longer ones are looked up without it.
    return word in _TABLE or (word.lower() in _TABLE and len(word) > 2) or word.lower() in _ORDER


def read_unit(text: str) -> Unit:
    """``read_unit("square centimeters")`` is ``Unit(factor=1/10000, powers=(("m", 2),))``."""
    text = " ".join(text.replace(".", " ").split())
    factor, powers = Fraction(1), Counter[str]()
    sign, order, at = 1, 1, 0
    last: tuple[Fraction, dict[str, int]] | None = None
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        match = _WORD.match(text, at)
        if match is None:
            return _words(text)
        token, at = match.group(), match.end()
        if match[1] is not None or token in ("squared", "cubed"):
            exponent = int(match[1]) if match[1] is not None else _ORDER[token]
            if last is None or abs(exponent) > 9:
                return _words(text)
            factor, last = _times(factor, powers, last, sign * (exponent - 1)), None
        elif token in _ORDER:
            order = _ORDER[token]
        elif token in ("/", "per"):
            # Holds for all that follows: "J/kg K" is J/(kg K).
            sign = -1
        elif token not in ("*", "\\cdot", "\\times", "(", ")", "a", "an", "of"):
            last = _TABLE.get(token) or (_TABLE.get(token.lower()) if len(token) > 2 else None)
            if last is None:
                return _words(text)
            factor = _times(factor, powers, last, sign * order)
            order = 1
    return Unit(factor=factor, powers=tuple(sorted((name, n) for name, n in powers.items() if n)))


def _times(factor: Fraction, powers: Counter[str], unit: tuple[Fraction, dict[str, int]], exponent: int) -> Fraction:
    for name, power in unit[1].items():
        powers[name] += power * exponent
    return factor * unit[0] ** exponent


def _words(text: str) -> Unit:
    """Words in lower case without the plural."""
    words = re.findall(r"[^\W\d_]+", text.casefold())
    return Unit(words=" ".join(word[:-1] if len(word) > 3 and word.endswith("s") else word for word in words))
