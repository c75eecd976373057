"""Parses units of measurement, so that equal and convertible ones can be compared.

A unit is a product of powers of base units times an exact factor; words that are no unit (``apples``) are kept as
words. ``units`` and ``square units`` count as no unit.
"""

from __future__ import annotations

import itertools
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


# Names, the factor to the base units, and their powers. Months and days have no fixed ratio, so months and years are a
# dimension of their own.
_UNITS: tuple[tuple[str, str, dict[str, int]], ...] = (
    ("in inch inches", "0.0254", {"m": 1}),
    ("ft foot feet", "0.3048", {"m": 1}),
    ("yd yds yard yards", "0.9144", {"m": 1}),
    ("mi mile miles", "1609.344", {"m": 1}),
    ("mph", "0.44704", {"m": 1, "s": -1}),
    ("kph kmh", "5/18", {"m": 1, "s": -1}),
    ("sec secs", "1", {"s": 1}),
    ("min mins minute minutes", "60", {"s": 1}),
    ("h hr hrs hour hours", "3600", {"s": 1}),
    ("d day days", "86400", {"s": 1}),
    ("week weeks wk wks", "604800", {"s": 1}),
    ("month months", "1", {"month": 1}),
    ("year years yr yrs", "12", {"month": 1}),
    ("ton tons tonne tonnes", "1000000", {"g": 1}),
    ("lb lbs", "1", {"lb": 1}),
    ("oz ounce ounces", "1/16", {"lb": 1}),
    ("hectare hectares ha", "10000", {"m": 2}),
    ("acre acres", "1", {"acre": 1}),
    ("gal gallon gallons", "1", {"gallon": 1}),
    ("dollar dollars usd USD ¤", "1", {"usd": 1}),
    ("cent cents ¢", "1/100", {"usd": 1}),
    ("euro euros EUR €", "1", {"eur": 1}),
    ("£ GBP", "1", {"gbp": 1}),
    ("yen JPY ¥ 円 元", "1", {"jpy": 1}),
    ("rupee rupees Rs INR ₹", "1", {"inr": 1}),
    ("° deg degree degrees", "1", {"degree": 1}),
    ("rad radian radians", "1", {"radian": 1}),
    ("°C Celsius celsius", "1", {"celsius": 1}),
    ("°F Fahrenheit fahrenheit", "1", {"fahrenheit": 1}),
    ("K kelvin Kelvin", "1", {"kelvin": 1}),
    ("unit units", "1", {}),
)
# Units that take prefixes, with the prefix for short and for long names.
_PREFIXED = (
    ("{p}m {l}meter {l}meters {l}metre {l}metres", 0, {"m": 1}),
    ("{p}g {l}gram {l}grams {l}gramme {l}grammes", 0, {"g": 1}),
    ("{p}s {l}second {l}seconds", 0, {"s": 1}),
    ("{p}L {p}l {l}liter {l}liters {l}litre {l}litres", -3, {"m": 3}),
    ("{p}N {l}newton {l}newtons", 0, {"newton": 1}),
    ("{p}J {l}joule {l}joules", 0, {"joule": 1}),
    ("{p}W {l}watt {l}watts", 0, {"watt": 1}),
    ("{p}V {l}volt {l}volts", 0, {"volt": 1}),
    ("{p}A {l}ampere {l}amperes", 0, {"ampere": 1}),
    ("{p}Pa {l}pascal {l}pascals", 0, {"pascal": 1}),
    ("{p}Hz {l}hertz {l}hertzs", 0, {"hertz": 1}),
    ("{p}Ω {l}ohm {l}ohms", 0, {"ohm": 1}),
    ("{p}mol {l}mole {l}moles", 0, {"mole": 1}),
    ("{p}eV {l}electronvolt {l}electronvolts", 0, {"electronvolt": 1}),
    ("{p}cal {l}calorie {l}calories", 0, {"calorie": 1}),
    ("{p}F {l}farad {l}farads", 0, {"farad": 1}),
)
_PREFIXES = (
    ("p", "pico", -12), ("n", "nano", -9), ("µ", "micro", -6), ("m", "milli", -3), ("c", "centi", -2),
    ("d", "deci", -1), ("", "", 0), ("k", "kilo", 3), ("M", "mega", 6), ("G", "giga", 9),
)  # fmt: skip


def _table() -> dict[str, tuple[Fraction, dict[str, int]]]:
    table: dict[str, tuple[Fraction, dict[str, int]]] = {}
    for short, long, power in _PREFIXES:
        for names, more, powers in _PREFIXED:
            known = (Fraction(10) ** (power + more), powers)
            table |= dict.fromkeys(names.format(p=short, l=long).split(), known)
    for names, factor, powers in _UNITS:
        table |= dict.fromkeys(names.split(), (Fraction(factor), powers))
    return table


_TABLE = _table()
_WORD = re.compile(r"°[CF]|[A-Za-zµΩ°¢€£¥₹¤]+|\^\s*\{?\s*([+-]?\d)\s*\}?|[/*()]|\\cdot|\\times|(\S)")
_PART = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([A-Za-z]{1,12})")
_COMPOUND = re.compile(rf"(?:\s*{_PART.pattern}\b\.?(?:,|\s+and\b)?){{2,4}}\s*")
_ORDER = {"square": 2, "squared": 2, "sq": 2, "cubic": 3, "cubed": 3, "cu": 3}


def is_unit_word(word: str) -> bool:
    """Whether a word by itself names a unit (single letters do, too)."""
    # Case tells short names apart (mW and MW), so only longer ones are looked up without it.
    return word in _TABLE or (word.lower() in _TABLE and len(word) > 2) or word.lower() in _ORDER


def read_unit(text: str) -> Unit:
    """``read_unit("square centimeters")`` is ``Unit(factor=1/10000, powers=(("m", 2),))``."""
    factor, powers = Fraction(1), Counter[str]()
    sign = order = 1
    last: tuple[Fraction, dict[str, int]] | None = None
    for match in _WORD.finditer(text.replace(".", " ")):
        token = match.group()
        if match[2]:
            return _words(text)
        if match[1] or token in ("squared", "cubed"):
            if last is None:
                return _words(text)
            factor, last = _times(factor, powers, last, sign * (int(match[1] or _ORDER[token]) - 1)), None
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


def compound(text: str) -> tuple[Fraction, Unit] | None:
    """``2 hours 30 minutes`` as 150 minutes: parts in smaller and smaller units of one kind, in the last of them."""
    whole = _COMPOUND.fullmatch(text)
    parts = [(Fraction(number), read_unit(word)) for number, word in _PART.findall(text)] if whole else []
    units = [unit for _, unit in parts]
    falling = all(a.factor > b.factor and a.powers == b.powers for a, b in itertools.pairwise(units))
    if not parts or not falling or any(unit.words for unit in units):
        return None
    return sum((number * unit.factor for number, unit in parts), Fraction(0)) / units[-1].factor, units[-1]


def _times(factor: Fraction, powers: Counter[str], unit: tuple[Fraction, dict[str, int]], exponent: int) -> Fraction:
    for name, power in unit[1].items():
        powers[name] += power * exponent
    return factor * unit[0] ** exponent


def _words(text: str) -> Unit:
    """Words in lower case without the plural."""
    words = re.findall(r"[^\W\d_]+", text.casefold())
    return Unit(words=" ".join(word[:-1] if len(word) > 3 and word.endswith("s") else word for word in words))
