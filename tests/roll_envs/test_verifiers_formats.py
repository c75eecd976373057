"""Forms of answers: tags, fences, JSON and its schemas, tool calls."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll_envs.errors import ConfigError, UnknownNameError
from roll_envs.tools import TOOL_FORMATS, ToolCall, ToolSpec
from roll_envs.verifiers import Failed, Score, make_verifier
from roll_envs.verifiers.formats import FenceVerifier, JsonVerifier, TagsVerifier, ToolCallsVerifier


def scored(verdict: Any) -> Score:
    assert isinstance(verdict, Score), verdict
    assert verdict.passed is (verdict.value == 1.0)
    assert bool(verdict.detail) is not verdict.passed
    return verdict


# -- tags --------------------------------------------------------------------------------------------------------------

GOOD = "<think>so\nmuch</think>\n<answer> 4 </answer>\n"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (GOOD, ""),
        ("<think>a < b</think><answer>x<y</answer>", ""),
        ("<answer>4</answer><think>x</think>", "<think> is expected where <answer> stands"),
        ("<think>x</think>", "<answer> is expected where the end stands"),
        ("<think>x<answer>4</answer>", "</think> is expected where <answer> stands"),
        (GOOD + "<answer>5</answer>", "no more tags is expected where <answer> stands"),
        ("<think> </think><answer>4</answer>", "<think> holds nothing"),
        ("Hi " + GOOD, "text outside of the tags: 'Hi'"),
        ("<think>x</think> so <answer>4</answer>", "text outside of the tags: 'so'"),
        (GOOD + "Bye", "text outside of the tags: 'Bye'"),
        ("", "<think> is expected where the end stands"),
        ("<Think>x</Think><answer>4</answer>", "<think> is expected where <answer> stands"),
    ],
)
def test_tags(answer: str, problem: str) -> None:
    assert scored(TagsVerifier()(answer)).detail == problem


def test_tags_with_options() -> None:
    assert TagsVerifier(outside=True)("Hi " + GOOD + " bye").passed  # type: ignore[union-attr]
    assert TagsVerifier(opened=True)(GOOD.removeprefix("<think>")).passed  # type: ignore[union-attr]
    assert not TagsVerifier(opened=True)(GOOD).passed  # type: ignore[union-attr]
    assert TagsVerifier(blank=["think"])("<think></think><answer>4</answer>").passed  # type: ignore[union-attr]
    assert TagsVerifier(tags=["plan", "act", "done"])("<plan>a</plan><act>b</act><done>c</done>").passed  # type: ignore[union-attr]
    wrong: list[dict[str, Any]] = [
        {"tags": "think"},
        {"tags": []},
        {"tags": ["a", "a"]},
        {"tags": ["a b"]},
        {"blank": ["x"]},
    ]
    for options in wrong:
        with pytest.raises(ConfigError):
            make_verifier("tags", **options)
    for tags in ("think", [1]):
        with pytest.raises(ConfigError, match="tags must be names"):
            TagsVerifier(tags=tags)  # type: ignore[arg-type]


# -- fences ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "answer", "passed"),
    [
        ({}, "```\nx\n```", True),
        ({}, "no fence", False),
        ({"language": "python"}, "Look:\n```Python\nx = 1\n```\nDone", True),
        ({"language": "python"}, "```js\nx\n```", False),
        ({"language": "python"}, "```python\nx", False),
        ({"language": "python"}, "``` python title=a\nx\n```", True),
        ({"language": "python"}, "<think>```python\nx\n```</think>none", False),
        ({}, "````\n```\nx\n```\n````", True),
        ({}, "````\n```\n", False),
        ({}, "~~~text\n```\n~~~", True),
        ({"only": True}, "```\nx\n```\n", True),
        ({"only": True}, "Look:\n```\nx\n```", False),
        ({"language": "python", "only": True}, "```python\nx\n```\n```sh\ny\n```", False),
        ({"count": 2}, "```\nx\n```\n```\ny\n```", True),
        ({"count": 2}, "```\nx\n```", False),
        ({}, "inline ```x``` only", False),
    ],
)
def test_fences(options: dict[str, Any], answer: str, passed: bool) -> None:
    assert scored(FenceVerifier(**options)(answer)).passed is passed


def test_fences_with_wrong_options() -> None:
    for options in ({"language": ""}, {"count": 0}, {"count": True}):
        with pytest.raises(ConfigError):
            make_verifier("fence", **options)


# -- JSON --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "passed"),
    [
        ('{"a": [1, 2.5, null]}', True),
        (' "text" ', True),
        ('<think>{</think>{"a": 1}', True),
        ('```json\n{"a": 1}\n```', True),
        ("~~~\n[]\n~~~\n", True),
        ("```json\n{}", False),
        ("```json\n{}\n`````", True),  # a longer fence closes, too
        ('Here: {"a": 1}', False),
        ('{"a": 1} and more', False),
        ("{'a': 1}", False),
        ("[NaN]", False),
        ("[1e999]", False),
        ("9" * 5000, False),
        ("", False),
        ("[" * 100_000, False),
        ("[" * 100_000 + "]" * 100_000, False),
    ],
)
def test_json(answer: str, passed: bool) -> None:
    assert scored(JsonVerifier()(answer)).passed is passed


def test_json_without_a_fence_or_too_long() -> None:
    assert not JsonVerifier(fenced=False)("```json\n{}\n```").passed  # type: ignore[union-attr]
    assert "at most 10" in scored(JsonVerifier(max_chars=10)(json.dumps("x" * 20))).detail


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[a-z]+$"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}


def test_json_that_fits_a_schema() -> None:
    verifier = JsonVerifier(schema=SCHEMA)
    assert scored(verifier('{"name": "ada", "age": 36}')).passed
    assert scored(verifier("[]")).detail == "$: [] is not of type 'object'"
    assert "'name' is a required property" in scored(verifier("{}")).detail
    assert "$.age" in scored(verifier('{"name": "ada", "age": -1}')).detail
    assert "does not match" in scored(verifier('{"name": "Ada"}')).detail
    assert "no JSON" in scored(verifier('{"name": ')).detail
    assert scored(JsonVerifier(schema=True)("1")).passed
    assert not scored(JsonVerifier(schema=False)("1")).passed


def test_schemas_of_rows_and_faults_of_schemas() -> None:
    verifier = make_verifier("json", reference_is_schema=True, deadline_s=1.0)
    assert scored(verifier("3", {"type": "integer"})).passed
    assert not scored(verifier('"3"', {"type": "integer"})).passed
    assert scored(verifier("3", '{"type": "integer"}')).passed
    assert not scored(verifier('"3"', '{"type": "integer"}')).passed
    for schema, reason in (
        (None, "must be a JSON schema"),
        ("integer", "must be a JSON schema"),
        ({"type": "intger"}, "cannot be used: 'intger'"),
        ({"$ref": "https://example.com/other.json"}, "refers to"),
        ({"allOf": [{"$ref": "#"}]}, "refers to itself without end"),
        ({"pattern": "^(a+)+$"}, "gave no result: not graded within 1 s"),
    ):
        verdict = verifier(json.dumps("a" * 40 + "b"), schema)
        assert isinstance(verdict, Failed)
        assert reason in verdict.reason


def test_schemas_that_refer_to_themselves_bear_deep_answers() -> None:
    tree = {"type": "array", "items": {"$ref": "#"}}
    verifier = JsonVerifier(schema=tree)
    assert scored(verifier("[[[], [[]]]]")).passed
    assert scored(verifier("[" * 500 + "]" * 500)).detail in ("", "it is nested too deeply")


def test_json_with_wrong_options() -> None:
    for options in ({"schema": "x"}, {"schema": {}, "reference_is_schema": True}, {"deadline_s": 0}):
        with pytest.raises(ConfigError):
            make_verifier("json", **options)


# -- tool calls --------------------------------------------------------------------------------------------------------

SEARCH = {
    "name": "search",
    "description": "Find pages.",
    "parameters": {
        "type": "object",
        "properties": {"query": {"type": "string"}, "k": {"type": "integer", "minimum": 1}},
        "required": ["query"],
    },
}
GOOD_CALL, BAD_CALL = (
    ToolCall(name="search", arguments={"query": "x", "k": 2}),
    ToolCall(name="search", arguments={"k": 2}),
)


@pytest.mark.parametrize("name", sorted(TOOL_FORMATS))
def test_calls_in_every_format(name: str) -> None:
    verifier = ToolCallsVerifier(format=name, tools=[{"type": "function", "function": SEARCH}])
    good = scored(verifier(TOOL_FORMATS[name].render([GOOD_CALL])))
    assert (good.passed, good.parts) == (True, {"calls": 1.0, "valid_calls": 1.0})
    bad = scored(verifier(TOOL_FORMATS[name].render([BAD_CALL])))
    assert "argument 'query' is missing" in bad.detail


def test_tools_of_a_table_that_fills_missing_fields() -> None:
    """With ``null``, as Arrow has it where some rows have bare tools and others have not."""
    bare = {"type": None, "function": None, **SEARCH}
    verifier = ToolCallsVerifier(tools=[bare])
    assert scored(verifier(TOOL_FORMATS["hermes"].render([GOOD_CALL]))).passed


def test_shares_and_numbers_of_calls() -> None:
    def text(*calls: ToolCall) -> str:
        return TOOL_FORMATS["hermes"].render(calls)

    unknown = ToolCall(name="serch", arguments={"query": "x"})
    verifier = ToolCallsVerifier(tools=[ToolSpec(**SEARCH)])  # type: ignore[arg-type]
    found = verifier(text(GOOD_CALL, unknown, BAD_CALL, GOOD_CALL))
    assert isinstance(found, Score)
    assert (found.value, found.passed) == (0.5, False)
    assert found.detail == "there is no tool 'serch'; did you mean 'search'?; tools: search"
    assert scored(verifier("no call")).detail == "0 calls instead of 1 or more"
    assert scored(verifier('<tool_call>{"name": "search"')).value == 0.0
    only = ToolCallsVerifier(tools=[SEARCH], most=1)
    assert scored(only(text(GOOD_CALL, GOOD_CALL))).detail == "2 calls instead of 1 to 1"
    assert scored(ToolCallsVerifier(tools=[SEARCH], least=0)("no call")).passed


def test_tools_of_rows() -> None:
    verifier = make_verifier("tool_calls", format="openai")
    answer = TOOL_FORMATS["openai"].render([GOOD_CALL])
    assert scored(verifier(answer, None, {"tools": [SEARCH]})).passed
    assert scored(verifier(answer, None, {"tools": json.dumps([SEARCH])})).passed
    for tools in (None, [], "{", [3], [{}], [SEARCH, SEARCH], [{"name": "a", "parameters": {"type": "array"}}]):
        assert isinstance(verifier(answer, None, {"tools": tools}), Failed)


def test_tool_calls_with_wrong_options() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'hermes'"):
        ToolCallsVerifier(format="hermess")
    for options in ({"tools": []}, {"least": -1}, {"least": 2, "most": 1}):
        with pytest.raises(ConfigError):
            make_verifier("tool_calls", **options)


# -- all of them -------------------------------------------------------------------------------------------------------

ALL: list[Any] = [TagsVerifier(), TagsVerifier(outside=True), FenceVerifier(), JsonVerifier()]
ALL += [ToolCallsVerifier(format=name, tools=[SEARCH]) for name in sorted(TOOL_FORMATS)]


@given(st.text(alphabet=st.sampled_from('<>/think answer`~{}[]"\n:1,'), max_size=60))
def test_no_answer_breaks_them(answer: str) -> None:
    for verifier in ALL:
        assert isinstance(verifier(answer), Score)


@pytest.mark.parametrize(
    "unit", ["<think>", "</answer>", "```\n", "`", "~~~", "{", '{"a":', "<tool_call>", " ", "\n", '["']
)
def test_time_is_linear(unit: str) -> None:
    started = time.monotonic()
    for verifier in ALL:
        verifier(unit * (190_000 // len(unit)))
    assert time.monotonic() - started < 20
