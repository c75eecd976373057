"""Fixed text parts of calls and results, which the tokenizer of a small model keeps as one token each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roll_envs.tools.formats import ToolFormat
from roll_envs.tools.types import ToolCall, ToolResult, ToolSpec

__all__ = ["words_of_calls"]

_MARK = "\u241f"
"""Stands for whatever a model fills in; a symbol that no tool has in its own texts."""


def words_of_calls(form: ToolFormat, specs: Mapping[str, ToolSpec]) -> tuple[str, ...]:
    """What stands around the arguments in a call of each tool, and around a result.

    Required arguments that are texts are left open; all others are left out.
    """
    words: list[str] = []
    for spec in specs.values():
        call = ToolCall(name=spec.name, arguments=_blanks(spec))
        words += form.render([call]).split(_MARK)
        words += form.show([(call, ToolResult(text=_MARK))]).split(_MARK)
    return tuple(dict.fromkeys(word for word in words if len(word) > 1))


def _blanks(spec: ToolSpec) -> dict[str, Any]:
    required = spec.parameters.get("required", [])
    kinds = {name: part.get("type") for name, part in spec.parameters.get("properties", {}).items()}
    return {name: _MARK for name, kind in kinds.items() if kind == "string" and name in required}
