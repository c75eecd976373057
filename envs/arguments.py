"""Checks of arguments that several environments share; each error says the value and what is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from roll_envs.errors import ConfigError

__all__ = ["MAX_COUNT", "check_choice", "check_int", "check_penalty", "check_symbols", "seed_words"]

T = TypeVar("T")

MAX_COUNT = 2**31 - 1
"""The largest number that compiled code takes; the same without it."""


def check_int(name: str, value: Any, lowest: int, highest: int | None = None) -> int:
    """``value`` as an int of at least ``lowest``, and at most ``highest`` where that is given."""
    # Integers of numpy are welcome too.
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < lowest:
        raise ConfigError(f"{name} must be a whole number of {lowest} or more, not {value!r}")
    if highest is not None and value > highest:
        raise ConfigError(f"{name} must be {highest} or less, not {value}")
    return int(value)


def check_choice(name: str, value: T, allowed: Sequence[T]) -> T:
    """``value`` if it is one of ``allowed``."""
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")
    return value


def check_symbols(value: Any, meanings: Sequence[str], example: str) -> tuple[str, ...]:
    """``value`` as one symbol for each of ``meanings``, all different."""
    symbols = tuple(value) if isinstance(value, (str, Sequence)) else ()
    usable = all(isinstance(s, str) and s and "\n" not in s for s in symbols)
    if len(symbols) != len(meanings) or len(set(symbols)) != len(symbols) or not usable:
        raise ConfigError(
            f"symbols must be {len(meanings)} different ones, for {', '.join(meanings)}; such as {example!r}, "
            f"not {value!r}"
        )
    return symbols


def check_penalty(value: Any) -> float:
    """``value`` as a float of 0 or less."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1e6 <= value <= 0:
        raise ConfigError(f"format_penalty is added to the reward: it must be a number of 0 or less, not {value!r}")
    return float(value)


def seed_words(seeds: Sequence[int]) -> bytes:
    """Seeds for compiled code: words of 4 bytes, the lowest first, as many for each as the largest needs."""
    size = max(max(seeds).bit_length() + 31, 32) // 32 * 4
    return b"".join([seed.to_bytes(size, "little") for seed in seeds])
