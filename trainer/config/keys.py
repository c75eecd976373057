"""What a configuration may say, in words: key paths, types, ranges, defaults, origins; nearest keys; refused keys.

Derived from the models of the sections and from the settings that parts declare; read by error messages, the reference
and ``roll-train explain``.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias, get_args

from pydantic import BaseModel

from roll_envs.settings import Part, description_and_origin
from trainer.config.parts import PART_SECTIONS, readers
from trainer.config.schema import RunConfig


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
    origin: str
    """Where the default is from; empty where nothing was said."""


SECTION_WORDS = "a section (keys and values)"

KeyTable: TypeAlias = Mapping[tuple[str, ...], Key]


def section_keys() -> KeyTable:
    """The keys that every configuration has, by path, in the order of the models; sections stand before their keys."""
    return keys_of(RunConfig)


def part_keys(section: str, part: Part) -> KeyTable:
    """The keys that ``part`` adds to the section that chose it."""
    return keys_of(part.settings, section)


@cache
def built_in_keys() -> KeyTable:
    """The keys of the sections and of all built-in parts; where parts share a key, that of the first."""
    found = dict(section_keys())
    for section, kind in PART_SECTIONS.items():
        for name in kind.registry.built_in():
            found = {**part_keys(section, kind.registry.find(name)), **found}
    return found


@cache
def keys_of(model: type[BaseModel], *prefix: str) -> KeyTable:
    """The keys of a model, whose own path is ``prefix``."""
    schema = model.model_json_schema()
    found: dict[tuple[str, ...], Key] = {}

    def walk(model: type[BaseModel], properties: Mapping[str, Any], prefix: tuple[str, ...]) -> None:
        for name, info in model.model_fields.items():
            path = (*prefix, name)
            # A section may be left out (Model | None), or stand in a list (tuple[Model, ...]).
            types = [t for t in get_args(info.annotation) or (info.annotation,) if isinstance(t, type)]
            inner = next((t for t in types if issubclass(t, BaseModel)), None)
            listed = properties[name].get("type") == "array"
            description, origin = description_and_origin(info)
            found[path] = Key(
                path=path,
                section=inner is not None,
                open=properties[name].get("type") == "object",
                required=info.is_required(),
                default=None if info.is_required() or inner else info.get_default(call_default_factory=True),
                allowed=("a list of sections" if listed else SECTION_WORDS)
                if inner
                else allowed_words(properties[name]),
                description=_summary(inner) if inner else description,
                origin=origin,
            )
            if inner is not None:
                walk(inner, schema["$defs"][inner.__name__]["properties"], path)

    walk(model, schema.get("properties", {}), prefix)
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


def _range_words(schema: Mapping[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f" from {low:g} to {high if isinstance(high, int) else format(high, 'g')}"
    words = []
    for name, sign in (("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<="), ("exclusiveMaximum", "<")):
        if name in schema:
            words.append(f"{sign} {schema[name]:g}")
    return (" " + " and ".join(words)) if words else ""


def _summary(model: type[BaseModel]) -> str:
    return (model.__doc__ or "").strip().partition("\n")[0]


# -- keys that are not there -------------------------------------------------------------------------------------------


def unread_advice(section: str, key: str, name: str) -> str | None:
    """What to say of ``key``, which the part ``name`` does not read but others of its kind do; None for no such key."""
    others = readers(section, key)
    if not others:
        return None
    kind = PART_SECTIONS[section]
    return (
        f"{section}.{key} is set, but {kind.noun} {name!r} does not read it; it is read by: {', '.join(others)}; "
        "leave it out"
    )


def nearest_keys(path: tuple[str, ...], known: KeyTable, count: int = 3) -> list[str]:
    """Dotted names of the ``known`` keys closest to the unknown ``path``, best first, without those far behind.

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

    scored = sorted(((likeness(key), ".".join(key)) for key in known), key=lambda pair: -pair[0])
    best = scored[0][0]
    return [name for score, name in scored[:count] if score >= max(0.6, best - 0.05)]


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


_TRUNCATION = (
    "it cuts ids off the sampler's distribution that the learner's log-probs still count, so that ratios and KL would "
    "be biased; answers are sampled from the whole distribution at sampling.temperature: leave it out"
)
_PENALTY = (
    "it changes the sampler's probabilities by what was written before, which the learner's log-probs do not know, so "
    "that ratios and KL would be biased; answers are sampled from the model's own distribution at "
    "sampling.temperature: leave it out, and put what you want into the reward (verifier 'repetition')"
)
_REFUSED: dict[str, str] = {
    **dict.fromkeys(("top_p", "top_k", "min_p", "top_a", "typical_p", "epsilon_cutoff", "eta_cutoff"), _TRUNCATION),
    **dict.fromkeys(
        ("repetition_penalty", "frequency_penalty", "presence_penalty", "no_repeat_ngram_size", "logit_bias"), _PENALTY
    ),
}
"""Settings of other systems that are left out here on purpose, and why."""

_RENAMED_KEYS: dict[tuple[str, ...], str] = {
    ("correction", "row_delta"): "it is called correction.sequence_delta now",
    ("advantage", "kwargs"): "an estimator declares its settings by name now; write them straight into 'advantage'",
    ("loss", "kwargs"): "a loss declares its settings by name now; write them straight into 'loss'",
}
_RENAMED_VALUES: dict[tuple[str, ...], dict[str, str]] = {
    ("loss", "ratio"): {"turn": "turn-mean", "row": "sequence-mean", "row-product": "sequence-product"},
    **{
        ("correction", key): {"turn": "turn-product", "row": "sequence-product", "geometric": "sequence-mean"}
        for key in ("level", "reject")
    },
}


def refusal(path: tuple[str, ...]) -> str | None:
    """Why there is no key of this name, and what to do; None for names that nothing is known of."""
    return _RENAMED_KEYS.get(path[:2]) or _REFUSED.get(path[-1].lower().replace("-", "_"))


def renamed_value(path: tuple[str | int, ...], value: object) -> str | None:
    """The present name of a ``value`` that an earlier release knew; None for others."""
    names = _RENAMED_VALUES.get(tuple(str(part) for part in path), {})
    return names.get(value) if isinstance(value, str) else None
