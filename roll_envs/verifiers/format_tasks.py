"""Tasks of the workers of ``json``: apply a JSON schema, whose patterns may never finish, without network access."""

from __future__ import annotations

import importlib
import json
from typing import Any


def fit(text: str, schema: Any) -> dict[str, str]:
    """Validate a JSON text; returns ``problem`` (first violation, or empty) or ``fault`` (error of the schema)."""
    jsonschema, referencing = importlib.import_module("jsonschema"), importlib.import_module("referencing")
    missing = importlib.import_module("referencing.exceptions").Unresolvable
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        return {"fault": error.message[:300]}
    # An empty registry: a reference to another document is not fetched.
    validator = kind(schema, registry=referencing.Registry())
    try:
        found = next(validator.iter_errors(json.loads(text)), None)
    except missing as error:
        return {"fault": f"it refers to {str(error)[:200]}"}
    return {"problem": "" if found is None else f"{found.json_path[:100]}: {found.message[:200]}"}


TASKS: dict[str, Any] = {"fit": fit}
