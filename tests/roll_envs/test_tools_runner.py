"""The runner and the registry: mistakes are answered, faults raise, budgets hold and say so."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tool_fakes import CountTool, OddTool

from roll_envs.errors import (
    ConfigError,
    DeadlineExceededError,
    EnvironmentFaultError,
    PluginError,
    SandboxError,
    UnknownNameError,
)
from roll_envs.testing import CounterEnv
from roll_envs.tools import (
    BadCall,
    Tool,
    ToolBudget,
    ToolCall,
    ToolEnv,
    ToolResult,
    ToolRunner,
    make_tools,
    register_tool,
)
from roll_envs.tools import registry as tool_registry
from roll_envs.tools.arguments import check_arguments, check_schema, describe_parameters


def _runner(*tools: Tool, **budget: Any) -> ToolRunner:
    runner = ToolRunner(tools, ToolBudget(**budget))
    runner.open()
    return runner


def _odd(n: Any = 1, **more: Any) -> ToolCall:
    return ToolCall(name="odd", arguments={"n": n, **more})


COUNT = ToolCall(name="count")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (ToolCall(name="cuont"), "there is no tool 'cuont'; did you mean 'count'?; tools: odd, count"),
        (ToolCall(name="x" * 1000), "tools: odd, count"),
        (BadCall(reason="it is malformed"), "it is malformed"),
        (ToolCall(name="odd"), "argument 'n' is missing; arguments: n (integer), s (optional)"),
        (_odd("1"), "argument 'n' must be of type integer, not string \"1\""),
        (_odd(True), "argument 'n' must be of type integer, not boolean true"),
        (_odd(0), "argument 'n' must be 1 or more, not 0"),
        (_odd(10), "argument 'n' must be 9 or less, not 10"),
        (_odd(1, s="c"), 'argument \'s\' must be one of "a", "b", not "c"'),
        (_odd(1, t=1), 'there is no argument "t"'),
        (ToolCall(name="count", arguments={"a": 1}), "arguments: none"),
    ],
)
def test_mistakes_of_use_are_answered_with_what_is_allowed(call: Any, says: str) -> None:
    runner = _runner(OddTool(how="text"), CountTool())
    bad, good = runner.run([call, COUNT])
    assert not bad.ok
    assert not bad.ran
    assert says in bad.text
    assert len(bad.text) < 300
    assert good.text == "count 1"


def test_whole_numbers_written_as_floats_are_integers() -> None:
    assert _runner(OddTool(how="text")).run([_odd(2.0)])[0].ok


@pytest.mark.parametrize(
    ("how", "error", "says"),
    [
        ("raise", EnvironmentFaultError, "tool 'odd' raised ValueError: broken inside"),
        ("sandbox", SandboxError, "the worker died"),
        ("other", EnvironmentFaultError, "returned a str, not a ToolResult"),
    ],
)
def test_faults_of_tools_raise(how: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        _runner(OddTool(how=how)).run([_odd()])


def test_a_tool_that_hangs_is_left_behind() -> None:
    tool = OddTool(how="hang")
    runner = _runner(tool, call_seconds=0.05)
    started = time.monotonic()
    with pytest.raises(DeadlineExceededError, match="the tool 'odd'"):
        runner.run([_odd()])
    assert time.monotonic() - started < 3  # the grace is that of the tool
    with pytest.raises(EnvironmentFaultError, match="hangs in an earlier call"):
        runner.open()
    tool.let_go.set()


@pytest.mark.parametrize("end", ["close", "dispose"])
def test_a_tool_that_cannot_be_closed_leaves_no_other_open(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tools, ended = (OddTool(how="text"), CountTool()), []
    monkeypatch.setattr(tools[0], end, lambda: 1 / 0)
    monkeypatch.setattr(tools[1], end, lambda: ended.append("count"))
    with pytest.raises(ZeroDivisionError):
        getattr(_runner(*tools), end)()
    assert ended == ["count"]


def test_an_interrupt_during_a_quick_tool_is_the_users() -> None:
    class Interrupted(CountTool):
        def call(self, arguments: Any, *, deadline_s: float) -> ToolResult:
            raise KeyboardInterrupt

    tool = Interrupted()
    tool.quick = False  # in a thread of its own, to which no signal comes
    with pytest.raises(EnvironmentFaultError, match="the tool 'count' raised KeyboardInterrupt"):
        _runner(tool).run([COUNT])
    tool.quick = True
    with pytest.raises(KeyboardInterrupt):
        _runner(tool).run([COUNT])


def test_a_result_may_not_be_empty() -> None:
    with pytest.raises(ValueError, match="needs a text"):
        ToolResult(text=" \n")


# -- budgets -----------------------------------------------------------------------------------------------------------


def test_calls_of_an_episode() -> None:
    runner = _runner(CountTool(), calls=3, calls_per_turn=2)
    first = runner.run([COUNT] * 5)
    assert [r.text for r in first] == ["count 1", "count 2", "Error: 3 more calls were not run: one answer may have 2"]
    (last,) = runner.run([COUNT])
    assert last.text == "Error: no call is left: an episode may have 3; answer without a tool"
    runner.open()
    assert runner.run([COUNT])[0].text == "count 1"


def test_malformed_calls_count() -> None:
    runner = _runner(CountTool(), calls=2)
    runner.run([BadCall(reason="x"), BadCall(reason="y")])
    assert "no call is left" in runner.run([COUNT])[0].text


def test_seconds_of_an_episode() -> None:
    times = iter([0.0, 2.0, 2.0, 5.5, 6.0, 7.0])
    tool = OddTool(how="text")
    runner = ToolRunner([tool], ToolBudget(seconds=5, call_seconds=4), clock=lambda: next(times))
    runner.open()
    made = runner.run([_odd(), _odd(), _odd()])
    assert tool.deadlines == [4, 3]
    assert [r.seconds for r in made] == [2.0, 3.5, 0.0]
    assert made[2].text == "Error: no time is left: all calls of an episode may take 5 s; answer without a tool"


def test_a_long_result_is_cut_and_says_so() -> None:
    runner = _runner(OddTool(how="text", length=998), call_chars=100)
    (made,) = runner.run([_odd()])
    assert made.text == "<" + "x" * 74 + "\n[... 900 of 1000 characters are cut ...]\n" + "x" * 24 + ">"
    assert made.ok


def test_output_of_an_episode() -> None:
    runner = _runner(OddTool(how="text", length=58), call_chars=100, output_chars=100)
    first, second, third = runner.run([_odd(), _odd(), _odd()])
    assert len(first.text) == 60
    assert "20 of 60 characters are cut" in second.text
    assert "they are used up" in third.text
    assert not third.ran


@settings(deadline=None)  # other work shares the processor
@given(st.integers(1, 50), st.integers(1, 80), st.lists(st.integers(0, 120), max_size=8))
def test_what_is_shown_stays_within_the_budget(call: int, whole: int, lengths: list[int]) -> None:
    tool = OddTool(how="text")
    runner = _runner(tool, call_chars=call, output_chars=whole)
    shown = 0
    for length in lengths:
        tool.length = length
        (made,) = runner.run([_odd()])
        if made.ran:
            # None of these three is in the sentence about the cut.
            kept = made.text.count("x") + made.text.count("<") + made.text.count(">")
            shown += kept
            assert kept <= call
    assert shown <= whole


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        ({"calls": 0}, "budget: calls should be greater than 0, not 0"),
        ({"seconds": -1}, "budget: seconds should be greater than 0, not -1"),
    ],
)
def test_a_bad_budget_is_told(budget: dict[str, Any], says: str) -> None:
    for asked in (budget, ToolBudget(**budget)):
        with pytest.raises(ConfigError, match=says):
            ToolEnv(env=CounterEnv(), tools=[CountTool()], budget=asked)


# -- arguments ---------------------------------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 3},
        "many": {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 2},
        "deep": {"type": "object", "properties": {"x": {"type": ["integer", "null"]}}, "required": ["x"]},
        "one": {"const": 1},
        "free": {},
    },
}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"name": "a"}, "2 or more characters, not 1"),
        ({"name": "abcd"}, "3 or fewer characters, not 4"),
        ({"many": []}, "1 or more items"),
        ({"many": [1, 2, 3]}, "2 or fewer items"),
        ({"many": [1, "2"]}, "argument 'many[1]' must be of type number, not string"),
        ({"deep": {}}, "argument 'deep' lacks 'x'"),
        ({"deep": {"x": 1.5}}, "argument 'deep.x' must be of type integer or null, not number 1.5"),
        ({"one": 2}, "must be 1, not 2"),
        ({"name": "ab", "many": [1, 2.5], "deep": {"x": None}, "one": 1, "free": [{}]}, ""),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], says: str) -> None:
    found = check_arguments(arguments, SCHEMA)
    assert says in found if says else found == ""


def test_other_names_are_allowed_unless_the_schema_forbids_them() -> None:
    closed = {"properties": {"abc": {}}, "additionalProperties": False}
    found = check_arguments({"abd": 1}, closed)
    assert found == "there is no argument \"abd\"; did you mean 'abc'?; arguments: abc (optional)"
    for schema in ({"type": "object"}, {"properties": {"a": {}}}, {"additionalProperties": True}):
        assert check_arguments({"z": 1}, schema) == ""
    inner = {"properties": {"a": {"type": "object"}}}
    assert check_arguments({"a": {"z": 1}}, inner) == ""
    assert describe_parameters({}) == "none"


MEANING: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"additionalProperties": {"type": "integer"}}, {"x": "s"}, "'x' must be of type integer, not string"),
    (
        {"properties": {"a": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}},
        {"a": "s"},
        "argument 'a' does not fit",
    ),
    ({"properties": {"a": {"oneOf": [{"minimum": 1}, {"maximum": 5}]}}}, {"a": 3}, "argument 'a' does not fit"),
    ({"properties": {"a": {"$ref": "#/$defs/P"}}, "$defs": {"P": {"required": ["z"]}}}, {"a": {}}, "'a' lacks 'z'"),
    ({"properties": {"a": {"multipleOf": 5}}}, {"a": 7}, "7 is not a multiple of 5"),
    ({"properties": {"a": {"exclusiveMinimum": 0}}}, {"a": 0}, "argument 'a' does not fit"),
    ({"properties": {"a": {"uniqueItems": True}}}, {"a": [1, 1]}, "argument 'a' does not fit"),
    ({"properties": {"a": {"prefixItems": [{"type": "string"}]}}}, {"a": [1]}, "'a[0]' must be of type string"),
    ({"properties": {"a": {"enum": [1, "b"]}}}, {"a": True}, 'must be one of 1, "b", not true'),
    ({"properties": {"a": {"not": {"const": 1}}}}, {"a": 1}, "argument 'a' does not fit"),
    ({"minProperties": 1}, {}, "the call does not fit"),
    ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, "the call does not fit"),
    ({"properties": {"a": {"pattern": "^x$"}}}, {"a": "y"}, "'y' does not match '^x$'"),
    ({"patternProperties": {"^n": {"type": "number"}}}, {"n1": "y"}, "'y' is not of type 'number'"),
    ({"properties": {"a": {"type": "integer"}}}, {"a": 3.0}, ""),
    ({"properties": {"a": {"$ref": "#"}}}, {"a": {"a": {"a": {}}}}, ""),
    ({"properties": {"a": {"type": "array"}}}, {"a": (1, 2)}, ""),
]


@pytest.mark.parametrize(("schema", "arguments", "says"), MEANING)
def test_the_meaning_is_that_of_json_schema(schema: dict[str, Any], arguments: dict[str, Any], says: str) -> None:
    check_schema(schema, "a tool")
    found = check_arguments(arguments, schema)
    assert says in found if says else found == ""


def test_a_pattern_that_never_ends_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roll_envs.tools.arguments._PATTERN_S", 0.5)
    schema = {"properties": {"a": {"pattern": "^(x+x+)+y$"}}}
    started = time.monotonic()
    assert "could not be checked" in check_arguments({"a": "x" * 60}, schema)
    assert time.monotonic() - started < 100


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "array"}, "type 'object'"),
        ({"properties": {"a": {"type": "text"}}}, "no valid JSON schema"),
        ({"required": "a"}, "no valid JSON schema"),
        ({"properties": {"a": {"$ref": "#/$defs/P"}}}, "which it does not hold"),
        ({"properties": {"a": {"$ref": "https://example.com/s.json"}}}, "which it does not hold"),
        ({"properties": {"a": {"minimum": float("nan")}}}, "cannot be read as JSON"),
    ],
)
def test_a_schema_that_cannot_be_used_is_told_before(schema: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        check_schema(schema, "a tool")


def test_arguments_of_any_depth_are_answered() -> None:
    value: Any = 1
    for _ in range(100_000):
        value = [value]
    assert "too deep" in check_arguments({"a": value}, {"properties": {"a": {"type": "array"}}})


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def registered() -> Iterator[None]:
    before = dict(tool_registry.TOOLS._registered)
    yield
    tool_registry.TOOLS._registered.clear()
    tool_registry.TOOLS._registered.update(before)


def test_tools_by_name() -> None:
    assert {"python", "search", "calculator", "mcp"} <= set(tool_registry.tool_names())
    with pytest.raises(UnknownNameError, match="did you mean 'calculator'"):
        make_tools("calculater")
    with pytest.raises(UnknownNameError, match="no setting of tool 'calculator': 'digits'; known: none"):
        make_tools({"tool": "calculator", "digits": 3})
    with pytest.raises(ConfigError, match="a tool is a name"):
        make_tools({"name": "calculator"})


@pytest.mark.usefixtures("registered")
def test_a_tool_is_registered_in_this_process() -> None:
    register_tool("count", CountTool)
    (tool,) = make_tools({"tool": "count", "name": "other"})
    assert tool.spec.name == "other"
    with pytest.raises(ConfigError, match="exists already"):
        register_tool("count", lambda: CountTool())
    register_tool("count", CountTool)  # the same again is no mistake
    with pytest.raises(ConfigError, match="exists already"):
        register_tool("calculator", CountTool)
    with pytest.raises(ConfigError, match="does not fit; allowed: "):
        register_tool("a b", CountTool)
    register_tool("count", lambda: "no tool", replace=True)  # type: ignore[arg-type, return-value]
    with pytest.raises(PluginError, match="made a str, not a"):
        make_tools("count")
    register_tool("none", lambda: ())
    with pytest.raises(ConfigError, match="offers no tool"):
        make_tools("none")
    register_tool("spaced", lambda: CountTool(name="a b"))
    with pytest.raises(PluginError, match="has the name 'a b'"):
        make_tools("spaced")


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two tools have the name 'count'"):
        ToolRunner([CountTool(), CountTool()], ToolBudget())
