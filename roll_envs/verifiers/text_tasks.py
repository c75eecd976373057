"""Tasks of the workers of ``json`` and ``regex``: matching a pattern may never end. Nothing is fetched."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import jsonschema  # type: ignore[import-untyped,unused-ignore]
import referencing
from referencing.exceptions import Unresolvable

_FLAT = 50
"""An answer with so few objects and lists is not what makes a validation recurse too deep."""


def fit(text: str, schema: Any) -> dict[str, str]:
    """Validate a JSON text; returns ``problem`` (first violation, or empty) or ``fault`` (error of the schema)."""
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        return {"fault": error.message[:300]}
    # An empty registry: a reference to another document is not fetched.
    validator = kind(schema, registry=referencing.Registry())
    try:
        found = next(validator.iter_errors(json.loads(text)), None)
    except Unresolvable as error:
        return {"fault": f"it refers to {str(error)[:200]}"}
    except RecursionError:
        if text.count("{") + text.count("[") > _FLAT:
            raise
        return {"fault": "it refers to itself without end"}
    return {"problem": "" if found is None else f"{found.json_path[:100]}: {found.message[:200]}"}


def find(pattern: str, flags: int, mode: str, text: str) -> str | None:
    """The first group of the match (the match itself without groups), or ``None``."""
    compiled = re.compile(pattern, flags)
    if mode == "last":
        # Keeps one match at a time in memory.
        match = functools.reduce(lambda _, later: later, compiled.finditer(text), None)
    else:
        match = getattr(compiled, mode)(text)
    if match is None:
        return None
    return (match[1] or "") if compiled.groups else match[0]


TASKS: dict[str, Any] = {"fit": fit, "find": find}
