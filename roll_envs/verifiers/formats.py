"""``tags``, ``fence``, ``json``, ``tool_calls`` and ``regex``: check the form of an answer.

All take time linear in the answer but for patterns, those of JSON schemas too: since backtracking may never end, they
are matched in a worker process.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from roll_envs.errors import ConfigError, UnknownNameError, check_whole
from roll_envs.tools.arguments import call_problem, check_schema
from roll_envs.tools.formats import find_tool_format
from roll_envs.tools.formats.reading import read_whole_json
from roll_envs.tools.types import ToolSpec
from roll_envs.verifiers.extract import after_thinking
from roll_envs.verifiers.fences import fences
from roll_envs.verifiers.types import Failed, Score, Verdict
from roll_envs.verifiers.workers import TEXT_TASKS, shared_pool

Deadline = Annotated[float, Field(gt=0, le=3600)]
Word = Annotated[str, Field(pattern=r"\S")]
_NAME = re.compile(r"[A-Za-z_][\w.:-]{0,63}")


def _score(problem: str, **parts: float) -> Score:
    return Score(value=float(not problem), passed=not problem, detail=problem, parts=parts)


@dataclass(kw_only=True, eq=False)
class TagsVerifier:
    """1.0 when the answer is ``<think>...</think><answer>...</answer>``: each tag once, in this order, with something
    in it.

    ``tags``: the names. ``outside``: whether other text may stand before, between and after them. ``opened``: the
    prompt's template has written the first opening tag already. ``blank``: names of tags that may hold nothing.
    """

    tags: Sequence[str] = ("think", "answer")
    outside: bool = False
    opened: bool = False
    blank: Sequence[str] = ()

    def __post_init__(self) -> None:
        tags, blank = self.tags, self.blank
        if not tags or isinstance(tags, str) or not all(isinstance(t, str) and _NAME.fullmatch(t) for t in tags):
            raise ConfigError(f"tags must be names such as ['think', 'answer'], not {tags!r}")
        if len(set(tags)) != len(tags):
            raise ConfigError(f"each tag may stand once in tags, not {tags!r}")
        if not set(blank) <= set(tags):
            raise ConfigError(f"blank must be names of tags ({', '.join(tags)}), not {blank!r}")
        self._pattern = re.compile("|".join(f"</?{re.escape(name)}>" for name in tags))

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        return _score(self._problem(answer))

    def _problem(self, answer: str) -> str:
        wanted = [mark for name in self.tags for mark in (f"<{name}>", f"</{name}>")]
        if self.opened:
            answer = wanted[0] + answer
        for found, expected in itertools.zip_longest(self._pattern.findall(answer), wanted):
            if found != expected:
                return f"{expected or 'no more tags'} is expected where {found or 'the end'} stands"
        texts = self._pattern.split(answer)  # by turns outside and inside of a tag
        for name, inside in zip(self.tags, texts[1::2], strict=True):
            if name not in self.blank and not inside.strip():
                return f"<{name}> holds nothing"
        outside = next((text.strip() for text in texts[::2] if text.strip()), "")
        return f"text outside of the tags: {outside[:40]!r}" if outside and not self.outside else ""


class FenceVerifier:
    """1.0 when the answer (after its thoughts) has a closed code fence, of ``language`` where one is given.

    ``only``: nothing but the fence; ``count``: exactly so many of them.
    """

    def __init__(self, *, language: Word | None = None, only: bool = False, count: PositiveInt | None = None) -> None:
        self.language, self.only, self.count = language, only, count

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        found, outside = fences(after_thinking(answer))
        closed = [fence for fence in found if fence.closed]
        named = [f for f in closed if self.language is None or f.language.lower() == self.language.lower()]
        kind = f"a fence of {self.language}" if self.language else "a fence"
        if len(closed) != len(found):
            problem = "a fence is not closed"
        elif not named:
            problem = f"{kind} is missing"
        elif self.count is not None and len(named) != self.count:
            problem = f"{len(named)} fences instead of {self.count}"
        elif self.only and (outside.strip() or len(named) != len(closed)):
            problem = "there is more than the fence"
        else:
            problem = ""
        return _score(problem, fences=float(len(named)))


@dataclass(kw_only=True, eq=False)
class JsonVerifier:
    """1.0 when the answer (after its thoughts) is one JSON value and, where there is a schema, fits it.

    ``schema``: a JSON schema (draft 2020-12 unless it names another); with ``reference_is_schema`` each row's reference
    is one, also as JSON text. ``fenced``: a fence around the value is allowed. A schema that is invalid, refers to
    another document, or does not finish within ``deadline_s`` gives :class:`Failed`.
    """

    schema: Mapping[str, Any] | bool | None = None
    reference_is_schema: bool = False
    fenced: bool = True
    max_chars: int = 200_000
    deadline_s: Deadline = 3.0

    def __post_init__(self) -> None:
        if self.schema is not None and self.reference_is_schema:
            raise ConfigError("give a schema or reference_is_schema, not both")

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        schema = _loaded(reference) if self.reference_is_schema else self.schema
        if self.reference_is_schema and not isinstance(schema, Mapping | bool):
            return Failed(reason=f"the reference must be a JSON schema, not {str(reference)[:100]!r}")
        if len(answer) > self.max_chars:
            return _score(f"{len(answer)} characters; at most {self.max_chars} are read")
        text = after_thinking(answer).strip()
        if self.fenced:
            blocks, outside = fences(text)
            text = blocks[0].body if len(blocks) == 1 and blocks[0].closed and not outside.strip() else text
        read = read_whole_json(text)
        if read.problem:
            return _score(f"no JSON: {read.problem}")
        return _score("") if schema is None else self._fit(text, schema)

    def _fit(self, text: str, schema: Any) -> Verdict:
        outcome = shared_pool(TEXT_TASKS).call("fit", [text, schema], deadline_s=self.deadline_s)
        # The words of worker_main for a RecursionError, which the depth of the answer causes.
        if outcome.status == "error" and "nested" in outcome.detail:
            return _score("it is nested too deeply")
        if outcome.status != "ok":
            return Failed(reason=f"the JSON schema gave no result: {outcome.detail}")
        if "fault" in outcome.value:
            return Failed(reason=f"the JSON schema cannot be used: {outcome.value['fault']}")
        return _score(outcome.value["problem"])


@dataclass(kw_only=True, eq=False)
class ToolCallsVerifier:
    """The share of tool calls in an answer that are valid; passed when all are, and there are enough.

    ``format``: how calls are written (a name of ``roll_envs.tools.TOOL_FORMATS``). ``tools``: what may be called, as
    :class:`~roll_envs.tools.ToolSpec` or the JSON that models are shown (``{"name", "description", "parameters"}``,
    in ``{"type": "function", "function": ...}`` or not); else ``context["tools"]`` holds them. A call is valid when
    it can be read, names one of the tools, and its arguments fit the tool's schema. ``least`` and ``most``: how many
    calls there must and may be; fewer or more are worth 0. Parts: ``calls``, ``valid_calls``.
    """

    format: str = "hermes"
    tools: Sequence[ToolSpec | Mapping[str, Any]] | None = None
    least: NonNegativeInt = 1
    most: int | None = None

    def __post_init__(self) -> None:
        self._parse = find_tool_format(self.format).parse
        self.specs = None if self.tools is None else _specs(self.tools)
        if self.most is not None:
            check_whole("most", self.most, self.least)

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        specs = self.specs
        if specs is None:
            try:
                specs = _specs((context or {}).get("tools"))
            except ConfigError as error:
                return Failed(reason=f"'tools' of the row: {error}")
        calls = self._parse(answer, specs)
        problems = [call_problem(call, specs) for call in calls]
        valid = sum(not problem for problem in problems)
        parts = {"calls": float(len(calls)), "valid_calls": float(valid)}
        if len(calls) < self.least or (self.most is not None and len(calls) > self.most):
            span = f"{self.least} or more" if self.most is None else f"{self.least} to {self.most}"
            return Score(value=0.0, passed=False, detail=f"{len(calls)} calls instead of {span}", parts=parts)
        value = valid / len(calls) if calls else 1.0
        detail = next((problem for problem in problems if problem), "")
        return Score(value=value, passed=valid == len(calls), detail=detail, parts=parts)


def _loaded(cell: Any) -> Any:
    """What a cell of a table holds as JSON; the cell itself where it is none."""
    try:
        return json.loads(cell)
    except (TypeError, ValueError, RecursionError):
        return cell


def _specs(tools: Any) -> dict[str, ToolSpec]:
    tools = _loaded(tools)
    if not isinstance(tools, Sequence) or isinstance(tools, str) or not tools:
        raise ConfigError(f"tools must be a list of tools, each with 'name' and 'parameters', not {str(tools)[:100]!r}")
    specs: dict[str, ToolSpec] = {}
    for tool in map(_spec, tools):
        if tool.name in specs:
            raise ConfigError(f"there are two tools {tool.name!r}")
        check_schema(tool.parameters, f"tool {tool.name!r}")
        specs[tool.name] = tool
    return specs


def _spec(given: Any) -> ToolSpec:
    if isinstance(given, ToolSpec):
        return given
    inner = given.get("function") if isinstance(given, Mapping) else None
    about = inner if isinstance(inner, Mapping) else given  # tables fill the field with null where tools are bare
    name = about.get("name") if isinstance(about, Mapping) else None
    if not isinstance(about, Mapping) or not isinstance(name, str) or not name:
        raise ConfigError(f"a tool is a ToolSpec or an object with 'name' and 'parameters', not {str(given)[:100]!r}")
    parameters = about.get("parameters") or {"type": "object", "properties": {}}
    return ToolSpec(name=name, description=str(about.get("description") or ""), parameters=parameters)


FLAGS = {"ignorecase": re.IGNORECASE, "multiline": re.MULTILINE, "dotall": re.DOTALL, "verbose": re.VERBOSE}


@dataclass(kw_only=True, eq=False)
class RegexVerifier:
    """1.0 when the pattern is found in the answer.

    ``pattern``: Python's syntax; without one the reference of each row is the pattern. With ``compare`` the pattern's
    first group (the whole match without groups) must also be the reference, whitespace around it aside; ``last``
    looks at the last match instead of the first. Answers beyond ``max_chars`` do not match. A match that does not
    finish within the deadline is :class:`Failed`, not a wrong answer: the pattern is at fault.
    """

    pattern: str | None = None
    mode: Literal["search", "fullmatch", "match"] = "search"
    flags: Collection[str] = ()
    compare: bool = False
    last: bool = False
    max_chars: int = 100_000
    deadline_s: Deadline = 2.0

    def __post_init__(self) -> None:
        flags = {self.flags} if isinstance(self.flags, str) else set(self.flags)
        for flag in flags:
            if flag not in FLAGS:
                raise UnknownNameError("flag of a pattern", str(flag), FLAGS)
        if self.compare and self.pattern is None:
            raise ConfigError("compare needs a pattern: the reference is then the text to find, not the pattern")
        if self.last and self.mode != "search":
            raise ConfigError(f"last looks through all matches, so it needs mode='search', not {self.mode!r}")
        self._flags = int(sum(FLAGS[flag] for flag in flags))
        if self.pattern is not None:
            try:
                # Only to report a mistake in it at once; matching is done by the workers.
                re.compile(self.pattern, self._flags)
            except (re.error, RecursionError, OverflowError) as error:
                raise ConfigError(f"the pattern {self.pattern!r} cannot be used: {error}") from error

    def __call__(self, answer: str, reference: Any = None, context: Mapping[str, Any] | None = None) -> Verdict:
        pattern = reference if self.pattern is None else self.pattern
        if not isinstance(pattern, str):
            return Failed(reason=f"the reference must be a pattern, not {str(pattern)[:100]!r}")
        if self.compare and not isinstance(reference, str | int | float):
            return Failed(
                reason=f"the reference must be a text to compare the match with, not {str(reference)[:100]!r}"
            )
        if len(answer) > self.max_chars:
            return _score(f"{len(answer)} characters; at most {self.max_chars} are read")
        arguments = [pattern, self._flags, "last" if self.last else self.mode, answer]
        outcome = shared_pool(TEXT_TASKS).call("find", arguments, deadline_s=self.deadline_s)
        if outcome.status != "ok":
            return Failed(reason=f"the pattern {pattern[:200]!r} gave no result: {outcome.detail}")
        found = outcome.value
        right = found is not None and (not self.compare or found.strip() == str(reference).strip())
        return _score("" if right else "no match" if found is None else f"found {found[:200]!r}")
