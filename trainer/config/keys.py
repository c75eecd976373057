"""What the configuration models allow, in words: key paths, types, ranges, defaults, nearest keys.

Derived from the models of :mod:`trainer.config` alone; read by the error messages and by the reference.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel

from trainer.config import RunConfig

__all__ = ["Key", "allowed_words", "keys", "nearest_keys"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """One key of the tree: a section (a nested model) or a value."""

    path: tuple[str, ...]
    section: bool
    open: bool
    """Whether any key may stand below it (keyword arguments)."""
    required: bool
    default: Any
    allowed: str
    """The values it takes, in words; for a section, ``a section``."""
    description: str


@cache
def keys() -> Mapping[tuple[str, ...], Key]:
    """All keys by path, in the order of the models; sections stand before what they contain."""
    schema = RunConfig.model_json_schema()
    found: dict[tuple[str, ...], Key] = {}

    def walk(model: type[BaseModel], properties: Mapping[str, Any], prefix: tuple[str, ...]) -> None:
        for name, info in model.model_fields.items():
            path = (*prefix, name)
            nested = info.annotation
            section = isinstance(nested, type) and issubclass(nested, BaseModel)
            found[path] = Key(
                path=path,
                section=section,
                open=properties[name].get("type") == "object",
                required=info.is_required(),
                default=None if info.is_required() or section else info.get_default(call_default_factory=True),
                allowed="a section (keys and values)" if section else allowed_words(properties[name]),
                description=_summary(nested) if section else info.description or "",
            )
            if isinstance(nested, type) and issubclass(nested, BaseModel):
                walk(nested, schema["$defs"][nested.__name__]["properties"], path)

    walk(RunConfig, schema["properties"], ())
    return found


def allowed_words(schema: Mapping[str, Any]) -> str:
    """A JSON schema in words: ``{"type": "integer", "minimum": 1}`` -> ``an integer >= 1``."""
    if "anyOf" in schema:
        return " or ".join(allowed_words(part) for part in schema["anyOf"])
    if "const" in schema:
        return repr(schema["const"])
    if "enum" in schema:
        return "one of " + ", ".join(repr(value) for value in schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("prefixItems")
        if items:
            return f"a list of {len(items)}: " + ", ".join(allowed_words(item) for item in items)
        return "a list"
    if kind in ("integer", "number"):
        return ("an integer" if kind == "integer" else "a number") + _range_words(schema)
    if kind == "string" and "pattern" in schema:
        return "letters, digits and . _ - (the first a letter or digit, at most 100)"
    return {"string": "text", "boolean": "true or false", "null": "null", "object": "keys and values"}.get(
        str(kind), "any value"
    )


def nearest_keys(path: tuple[str, ...], count: int = 3) -> list[str]:
    """Dotted names of the valid keys closest to the unknown ``path``, best first, without those far behind the best.

    A key counts by how alike the dotted names read, how alike its name is to that of a neighbour in the same section,
    and as 0.85 when it is the same name in another place (``lr`` -> ``optimizer.lr``).
    """
    wanted = ".".join(path).lower()

    def likeness(known: tuple[str, ...]) -> float:
        scores = [_ratio(".".join(known), wanted)]
        if known[:-1] == path[:-1]:
            scores.append(_ratio(known[-1], path[-1].lower()))
        if known[-1] == path[-1].lower():
            scores.append(0.85)
        return max(scores)

    scored = sorted(((likeness(known), ".".join(known)) for known in keys()), key=lambda pair: -pair[0])
    best = scored[0][0]
    return [name for score, name in scored[:count] if score >= max(0.6, best - 0.05)]


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _range_words(schema: Mapping[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f" from {low:g} to {high if isinstance(high, int) else format(high, 'g')}"
    words = []
    for name, sign in (("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<="), ("exclusiveMaximum", "<")):
        if name in schema:
            words.append(f"{sign} {schema[name]:g}")
    return (" " + " and ".join(words)) if words else ""


def _summary(model: Any) -> str:
    return (model.__doc__ or "").strip().partition("\n")[0]
