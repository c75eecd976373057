"""Formats of tool calls: read, written, malformed, hostile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll_envs.errors import ConfigError, UnknownNameError
from roll_envs.tools import TOOL_FORMATS, BadCall, ToolCall, ToolResult, ToolSpec, find_tool_format
from roll_envs.tools.formats.reading import MAX_CALLS
from roll_envs.verifiers.extract import after_thinking

ADD = ToolSpec(
    name="add",
    description="Adds.",
    parameters={"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "number"}}},
)
ECHO = ToolSpec(
    name="echo",
    description="Repeats.",
    parameters={"type": "object", "properties": {"text": {"type": "string"}, "tags": {"type": "array"}}},
)
SPECS = {"add": ADD, "echo": ECHO}
CALL = ToolCall(name="add", arguments={"a": 1, "b": 2.5})

READ = [
    ("hermes", 'Let me see.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2.5}}\n</tool_call>'),
    ("hermes", '<tool_call>{"name": "add", "parameters": {"a": 1, "b": 2.5}}</tool_call>'),
    ("hermes", '<think>call <tool_call>{} ?</think><tool_call>{"name": "add", "arguments": {"a": 1, "b": 2.5}}'),
    ("hermes", '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2.5}"}</tool_call>'),
    ("llama3", '{"name": "add", "parameters": {"a": 1, "b": 2.5}}'),
    ("llama3", '<|python_tag|>{"type": "function", "name": "add", "parameters": {"a": 1, "b": 2.5}}<|eom_id|>'),
    ("llama3", 'I will.\n<function=add>{"a": 1, "b": 2.5}</function>'),
    ("llama3-function", '<function=add>{"a": 1, "b": 2.5}</function><|eot_id|>'),
    ("mistral", '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1, "b": 2.5}, "id": "abcdefghi"}]'),
    ("mistral", '[TOOL_CALLS]add[ARGS]{"a": 1, "b": 2.5}'),
    ("mistral", 'Sure. [TOOL_CALLS]add{"a": 1, "b": 2.5}'),
    ("mistral", ' [{"name": "add", "arguments": {"a": 1, "b": 2.5}}]'),
    (
        "openai",
        '{"role": "assistant", "content": null, "tool_calls": [{"id": "call_9", "type": "function", "function": '
        '{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2.5}"}}]}',
    ),
    ("openai", '{"tool_calls": [{"function": {"name": "add", "arguments": {"a": 1, "b": 2.5}}}]}'),
    (
        "qwen3-coder",
        "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2.5\n</parameter>\n</function>\n"
        "</tool_call>",
    ),
    ("qwen3-coder", "<function=add><parameter=a>1</parameter><parameter=b> 2.5 </parameter></function>"),
    ("qwen3-coder", "<tool_call><function=add><parameter=a>1<parameter=b>2.5</parameter></function></tool_call>"),
    ("qwen3-coder", "<tool_call><function=add><parameter=a>1</parameter><parameter=b>2.5</parameter></tool_call>"),
    ("fenced", 'First:\n```tool\n{"name": "add", "arguments": {"a": 1, "b": 2.5}}\n```\nThen more.'),
    ("fenced", '```tool  \r\n{"name": "add", "arguments": {"a": 1, "b": 2.5}}'),
]
RECORDED = [
    json.loads(line) for line in (Path(__file__).parent / "tool_calls.jsonl").read_text(encoding="utf-8").splitlines()
]


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: f"{case['format']}: {case['what']}")
def test_calls_as_models_write_them(case: dict[str, Any]) -> None:
    found = TOOL_FORMATS[case["format"]].parse(case["text"], SPECS)
    calls = [{"name": c.name, "arguments": c.arguments} if isinstance(c, ToolCall) else "bad" for c in found]
    assert calls == case["calls"]


@pytest.mark.parametrize(("name", "text"), READ)
def test_a_call_is_read(name: str, text: str) -> None:
    assert TOOL_FORMATS[name].parse(text, SPECS) == (CALL,)


TWICE = [
    ("hermes", '<tool_call>{"name": "a"}</tool_call> and <tool_call>{"name": "b"}</tool_call>'),
    ("llama3", '{"name": "a", "parameters": {}}; {"name": "b", "parameters": {}}'),
    ("llama3", '<|python_tag|>{"name": "a", "parameters": {}}\n{"name": "b", "parameters": {}}<|eot_id|>'),
    ("llama3-function", "<function=a>{}</function>\n<function=b>{}</function>"),
    ("mistral", '[TOOL_CALLS][{"name": "a"}, {"name": "b"}]'),
    ("mistral", "[TOOL_CALLS]a[ARGS]{}[TOOL_CALLS]b[ARGS]{}"),
    ("openai", '{"tool_calls": [{"function": {"name": "a"}}, {"function": {"name": "b", "arguments": ""}}]}'),
    ("llama3", '{"name": "a", "arguments": ""}; {"name": "b", "parameters": null}'),
    ("qwen3-coder", "<tool_call><function=a></function></tool_call><tool_call><function=b></function></tool_call>"),
    ("qwen3-coder", "<tool_call><function=a></tool_call><tool_call><function=b></function></tool_call>"),
    (
        "kimi",
        "<|tool_call_begin|>functions.a:0<|tool_call_argument_begin|><|tool_call_end|>\n"
        "<|tool_call_begin|>functions.b:1<|tool_call_argument_begin|>{}<|tool_call_end|>",
    ),
    ("deepseek", "<｜tool▁call▁begin｜>a<｜tool▁sep｜><｜tool▁call▁end｜><｜tool▁call▁begin｜>b<｜tool▁sep｜>{}"),
    (
        "harmony",
        "<|channel|>commentary to=functions.a <|constrain|>json<|message|><|call|><|start|>assistant"
        "<|channel|>commentary to=functions.b<|message|>{}<|call|>",
    ),
    ("fenced", '```tool\n{"name": "a"}\n{"name": "b"}\n```'),
    ("fenced", '```tool\n{"name": "a"}\n```\n```tool\n{"name": "b"}\n```'),
]


@pytest.mark.parametrize(("name", "text"), TWICE)
def test_several_calls_are_read_in_order(name: str, text: str) -> None:
    assert TOOL_FORMATS[name].parse(text, SPECS) == (ToolCall(name="a"), ToolCall(name="b"))


MALFORMED = [
    (
        "hermes",
        '<tool_call>{"name": "add", "arguments": {"a": 1}</tool_call>',
        "',' delimiter at character 37 of the JSON",
    ),
    ("hermes", "<tool_call>", "there is no JSON"),
    ("hermes", '<tool_call>{"arguments": {}}</tool_call>', "'name' is missing"),
    ("hermes", '<tool_call>{"name": 3}</tool_call>', "'name' is a number"),
    ("hermes", '<tool_call>["add"]</tool_call>', "a call is a JSON object, not a list"),
    ("hermes", '<tool_call>{"name": "add", "arguments": [1]}</tool_call>', "must be a JSON object, not a list"),
    ("hermes", '<tool_call>{"name": "add", "arguments": "a=1"}</tool_call>', "a text that is no JSON object"),
    ("hermes", '<tool_call>{"name": "add"} {"name": "add"}</tool_call>', 'not closed: \'{"name": "add"}'),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>', "nan is no json number"),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1e999}}</tool_call>', "too large"),
    ("hermes", "<tool_call>" + "[" * 100_000, "nested too deep"),
    ("hermes", '<tool_call>{"name": "a", "arguments": {"n": ' + "9" * 5000 + "}}</tool_call>", "limit (4300 digits)"),
    ("llama3", '{"name": "add", "parameters": {"a": 1}', "the call is malformed"),
    ("llama3", '{"name": "add", "parameters": {}} or so', "only another call may follow a call, not 'or so'"),
    ("llama3", "<|python_tag|>  ", "nothing stands after"),
    ("llama3", "<function=add>{a}</function>", "the arguments of 'add' are malformed"),
    ("llama3", "<function=add>{} done", "not closed: 'done' follows"),
    ("llama3-function", "<function=>{}</function>", "a name is expected"),
    ("kimi", "<|tool_call_begin|>functions.add:0<|tool_call_argument_begin|><a>1</a><|tool_call_end|>", "malformed"),
    ("mistral", "[TOOL_CALLS] I would", "expecting value"),
    ("mistral", "[TOOL_CALLS][]", "the list of calls is empty"),
    ("mistral", '[{"name": "add", "arguments": {}', "the list of calls is malformed"),
    ("openai", '{"tool_calls": [{"function": {"name": "add"', "the message is malformed"),
    ("openai", '{"tool_calls": {"name": "add"}}', "must be a list"),
    ("openai", '{"tool_calls": []} and', "nothing may follow"),
    ("qwen3-coder", "<tool_call>add</tool_call>", "a name is expected, not 'add</tool_call>'"),
    ("qwen3-coder", "<function=add><parameter=a>1", "the argument 'a' of 'add' is not closed"),
    ("qwen3-coder", "<function=add><parameter=a>1</function>", "the argument 'a' of 'add' is not closed"),
    (
        "qwen3-coder",
        "<tool_call><function=add><parameter=a>1</tool_call>\n<tool_call><function=add></function></tool_call>",
        "the argument 'a' of 'add' is not closed",
    ),
    ("qwen3-coder", "<tool_call><function=add><parameter=a>1</parameter>", "'' stands where 'add' goes on"),
    (
        "qwen3-coder",
        "<function=add><parameter=a>1</parameter>2</function>",
        "'2</function>' stands where 'add' goes on",
    ),
    ("fenced", "```tool\n```", "the block is empty"),
    ("fenced", "```tool\nadd(1)\n```", "the block is malformed: expecting value at character 0"),
    ("fenced", '```tool\n{"name": "add"}, 5\n```', "follows a call; write\n```tool\n"),
]


@pytest.mark.parametrize(("name", "text", "reason"), MALFORMED)
def test_a_malformed_call_says_what_is_wrong(name: str, text: str, reason: str) -> None:
    found = TOOL_FORMATS[name].parse(text, SPECS)
    bad = [call for call in found if isinstance(call, BadCall)]
    assert len(bad) == 1, found
    assert reason in bad[0].reason
    assert len(bad[0].reason) < 400


def test_a_call_with_text_behind_it_in_its_block_is_not_run() -> None:
    text = '```tool\n{"name": "add"}\n{"name": "add"} and so on\n```'
    assert [type(call) for call in TOOL_FORMATS["fenced"].parse(text, SPECS)] == [ToolCall, BadCall]


NO_CALLS = [
    "",
    "<answer>Left</answer>",
    "The answer is 42.",
    "<think>I could write <tool_call>{}</tool_call> [TOOL_CALLS] <function=a>{}</function>",
    '<think>{"tool_calls": []}</think>no',
    '{"answer": 42}',
    "[1, 2, 3]",
    "{not json",
    "```python\nprint(1)\n```",
    'zxcv 1234 !!! <<>> {"a": [}]',
]


@pytest.mark.parametrize("name", TOOL_FORMATS)
@pytest.mark.parametrize("text", NO_CALLS)
def test_an_answer_is_no_call(name: str, text: str) -> None:
    assert TOOL_FORMATS[name].parse(text, SPECS) == ()


@pytest.mark.parametrize("name", ["llama3", "mistral", "openai", "hermes"])
@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Ada", "born": 1815}',
        '[{"name": "Ada"}, {"name": "Grace", "parameters": 3}]',
        '{"name": "Ada", "born": 1815} is the answer',
        '{"name": "Ada", "born": 1815',
        '[{"name": "Ada", "born": ',
    ],
)
def test_an_answer_in_json_that_has_a_name_is_no_call(name: str, text: str) -> None:
    assert TOOL_FORMATS[name].parse(text, SPECS) == ()


def test_the_call_after_a_bad_one_is_still_read() -> None:
    text = '<tool_call>{"name": </tool_call><tool_call>{"name": "add", "arguments": {"a": 1, "b": 2.5}}</tool_call>'
    found = TOOL_FORMATS["hermes"].parse(text, SPECS)
    assert isinstance(found[0], BadCall)
    assert found[1:] == (CALL,)
    coder = "<function=a><parameter=x>1</function><function=add><parameter=a>1</parameter></function>"
    assert TOOL_FORMATS["qwen3-coder"].parse(coder, SPECS)[1:] == (ToolCall(name="add", arguments={"a": 1}),)


def test_llama_code_after_the_tag_is_a_python_call() -> None:
    code = "x = {'a': 1}\nprint(x)"
    found = TOOL_FORMATS["llama3"].parse(f"<|python_tag|>{code}<|eom_id|>", SPECS)
    assert found == (ToolCall(name="python", arguments={"code": code}),)
    literal = TOOL_FORMATS["llama3"].parse('<|python_tag|>{"a": 1}["a"]', SPECS)
    assert literal == (ToolCall(name="python", arguments={"code": '{"a": 1}["a"]'}),)


def test_qwen_coder_reads_values_by_the_schema() -> None:
    text = (
        "<function=echo><parameter=text>\n12\n</parameter><parameter=tags>[1, 2]</parameter>"
        "<parameter=other>7</parameter></function>"
    )
    (found,) = TOOL_FORMATS["qwen3-coder"].parse(text, SPECS)
    assert found == ToolCall(name="echo", arguments={"text": "12", "tags": [1, 2], "other": "7"})
    (odd,) = TOOL_FORMATS["qwen3-coder"].parse("<function=add><parameter=a>one</parameter></function>", SPECS)
    assert odd == ToolCall(name="add", arguments={"a": "one"})  # the check of arguments says that a number is wanted


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, 5),
        ({"$ref": "#/$defs/count"}, 5),
        ({"enum": [5, 6]}, 5),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "5"),
        ({"anyOf": [{"type": "string"}, {"type": "number"}]}, 5),
        ({"type": ["string", "number"]}, 5),
        ({"enum": ["5", "6"]}, "5"),
        ({"description": "Any."}, "5"),
    ],
)
def test_qwen_coder_reads_values_by_a_schema_without_a_type_of_its_own(schema: dict[str, Any], value: Any) -> None:
    defined = {"count": {"type": "integer"}}
    parameters = {"type": "object", "properties": {"n": schema}, "required": ["n", "m"], "$defs": defined}
    specs = {"f": ToolSpec(name="f", description="", parameters=parameters)}
    (found,) = TOOL_FORMATS["qwen3-coder"].parse("<function=f><parameter=n>5</parameter></function>", specs)
    assert found == ToolCall(name="f", arguments={"n": value})


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": ["string", "null"]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, '"a"', '"a"'),
        ({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}, '["a"]', ["a"]),
        ({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}, "[1]", "[1]"),
        ({"type": "string"}, "null", "null"),
    ],
)
@pytest.mark.parametrize("name", ["qwen3-coder", "glm", "minimax", "deepseek-v3.2"])
def test_json_that_fits_goes_before_text_where_both_are_allowed(
    schema: dict[str, Any], text: str, value: Any, name: str
) -> None:
    specs = {"f": ToolSpec(name="f", description="", parameters={"properties": {"n": schema}})}
    written = TOOL_FORMATS[name].render([ToolCall(name="f", arguments={"n": text})])
    assert TOOL_FORMATS[name].parse(written, specs) == (ToolCall(name="f", arguments={"n": value}),)


def test_an_argument_that_is_said_again_is_read_once(cpu_at_most: Any) -> None:
    schema = {"type": "string", "pattern": "^a+$"}
    parameters = {"properties": {"n": {"anyOf": [schema, {"type": "integer"}]}}}
    specs = {"f": ToolSpec(name="f", description="", parameters=parameters)}
    with cpu_at_most(1.0):
        (found,) = TOOL_FORMATS["glm"].parse(
            "<tool_call>f" + "<arg_key>n</arg_key><arg_value>5</arg_value>" * 20_000 + "</tool_call>", specs
        )
        assert found == ToolCall(name="f", arguments={"n": 5})


def test_a_closing_tag_in_a_value() -> None:
    call = ToolCall(name="echo", arguments={"text": "print('</tool_call>')"})
    for name in ("hermes", "qwen3-coder"):
        assert TOOL_FORMATS[name].parse(TOOL_FORMATS[name].render([call]), SPECS) == (call,)
    for text in ("print('</parameter>')", "print('</function>')", "print('<parameter=a>')"):
        with pytest.raises(ConfigError, match="holds a tag"):
            TOOL_FORMATS["qwen3-coder"].render([ToolCall(name="echo", arguments={"text": text})])
    # Nothing of it is run.
    cut = "<function=echo><parameter=text>print('</function>')</parameter></function>"
    assert not any(isinstance(found, ToolCall) for found in TOOL_FORMATS["qwen3-coder"].parse(cut, SPECS))
    whole = ToolCall(name="echo", arguments={"text": '<tool_call>{"name": "add"}</tool_call>'})
    assert TOOL_FORMATS["hermes"].parse(TOOL_FORMATS["hermes"].render([whole, call]), SPECS) == (whole, call)


def test_no_more_than_so_many_calls_are_read() -> None:
    for name, one in (
        ("hermes", "<tool_call>{}</tool_call>"),
        ("fenced", "```tool\nx\n```\n"),
        ("qwen3-coder", "<tool_call>"),
    ):
        found = TOOL_FORMATS[name].parse(one * 1000, SPECS)
        assert len(found) == MAX_CALLS + 1
        assert isinstance(found[-1], BadCall)
        assert f"first {MAX_CALLS}" in found[-1].reason


def test_thoughts_are_left_out() -> None:
    assert after_thinking("<think>a</think>b", first=True) == "b"
    assert after_thinking("a</think>b", first=True) == "b"  # the template opened it in the prompt
    assert after_thinking(" <think>a", first=True) == ""
    assert after_thinking("a <think> b", first=True) == "a <think> b"


# -- the inverse -------------------------------------------------------------------------------------------------------

RAW = ("qwen3-coder", "glm", "minimax", "deepseek-v3.2")
"""Formats whose values stand as they are."""
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,20}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
CALLS = st.lists(
    st.builds(lambda n, a: ToolCall(name=n, arguments=a), NAMES, st.dictionaries(TEXTS, JSON, max_size=4)),
    min_size=1,
    max_size=4,
)


@settings(deadline=None)  # other work shares the processor
@given(calls=CALLS)
def test_what_is_rendered_is_read_back(calls: list[ToolCall]) -> None:
    """In every format that carries any name and text: drawing the calls takes longer than writing and reading them."""
    for name in (n for n in TOOL_FORMATS if n not in (*RAW, "llama-pythonic")):
        form = TOOL_FORMATS[name]
        text = form.render(calls)
        if (
            "</think>" in text
            or "<|python_tag|>" in text
            or ("<function=" in text and name == "llama3")
            or "[TOOL_CALLS]" in text[12:]
        ):
            continue  # these marks have a meaning of their own wherever they stand
        assert form.parse(text, {}) == tuple(calls), name
        assert form.parse(text + "\n", {}) == tuple(calls), name


@settings(deadline=None)  # other work shares the processor
@given(values=st.dictionaries(NAMES, TEXTS.filter(lambda t: "</" not in t), max_size=4), number=st.integers())
def test_raw_texts_are_rendered_as_they_are(values: dict[str, str], number: int) -> None:
    call = ToolCall(name="tool", arguments={**values, "number": number})
    spec = ToolSpec(name="tool", description="", parameters={"properties": {"number": {"type": "integer"}}})
    for form in map(TOOL_FORMATS.get, RAW):
        assert form is not None
        assert form.parse(form.render([call, call]), {"tool": spec}) == (call, call)


@settings(deadline=None)  # other work shares the processor
@given(values=st.dictionaries(st.from_regex(r"[a-z]{2}_[0-9]", fullmatch=True), JSON, max_size=4))
def test_python_calls_are_rendered_as_literals(values: dict[str, Any]) -> None:
    form = TOOL_FORMATS["llama-pythonic"]
    call = ToolCall(name="a.tool", arguments=values)
    if "</think>" not in (text := form.render([call, call])):
        assert form.parse(text, {}) == (call, call)
    for wrong in (ToolCall(name="a-b"), ToolCall(name="a", arguments={"x y": 1}), ToolCall(name="class")):
        with pytest.raises(ConfigError, match="use 'hermes'"):
            form.render([wrong])


def test_what_is_no_json_is_not_rendered() -> None:
    with pytest.raises(ConfigError, match="plain JSON"):
        TOOL_FORMATS["hermes"].render([ToolCall(name="a", arguments={"x": float("nan")})])


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_results_and_tools_are_described(name: str) -> None:
    form = TOOL_FORMATS[name]
    results = [(CALL, ToolResult(text="3.5")), (BadCall(reason="x"), ToolResult(text="Error: x", ok=False))]
    shown = form.show(results)
    assert shown.index("3.5") < shown.index("Error: x")
    about = form.describe([ADD, ECHO])
    assert "add" in about
    assert "Repeats." in about
    assert form.parse(shown, {}) == ()


def test_a_result_in_each_format() -> None:
    shown = {name: form.show([(CALL, ToolResult(text='a "b"'))]) for name, form in TOOL_FORMATS.items()}
    assert shown == {
        "hermes": '<tool_response>\na "b"\n</tool_response>',
        "llama3": '{"output": "a \\"b\\""}',
        "llama3-function": '{"output": "a \\"b\\""}',
        "llama-pythonic": '{"output": "a \\"b\\""}',
        "mistral": '[TOOL_RESULTS]{"content": "a \\"b\\""}[/TOOL_RESULTS]',
        "openai": '{"role": "tool", "tool_call_id": "call_1", "content": "a \\"b\\""}',
        "qwen3-coder": '<tool_response>\na "b"\n</tool_response>',
        "deepseek": '<｜tool▁output▁begin｜>a "b"<｜tool▁output▁end｜>',
        "deepseek-v3.2": '<function_results>\n<result>a "b"</result>\n</function_results>',
        "minimax": '<response>a "b"</response>',
        "granite": 'a "b"',
        "phi4": '{"result": "a \\"b\\""}',
        "kimi": '## Return of functions.add:0\na "b"',
        "harmony": '<|start|>functions.add to=assistant<|channel|>commentary<|message|>a "b"<|end|>',
        "glm": '<tool_response>\na "b"\n</tool_response>',
        "fenced": '```result\na "b"\n```',
    }


def test_an_unknown_format_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'hermes'"):
        find_tool_format("hermess")


# -- any text ----------------------------------------------------------------------------------------------------------

PIECES = (
    "<tool_call>", "</tool_call>", "<function=", "<function=a>", "</function>", "<parameter=b>", "</parameter>",
    "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
    "<|start|>assistant", "<|channel|>commentary", " to=functions.a", "<|message|>", "<arg_key>", "</arg_key>",
    "<arg_value>", "</arg_value>", "[a(b=", "<invoke name=", '"a">', '<parameter name="b">', "</invoke>", "functools[",
    '<｜DSML｜invoke name="', '<｜DSML｜parameter name="', 'string="true"', "</｜DSML｜parameter>", "<|tool_call|>",
    "<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "```tool\n", "```", "{", "}", "[", "]",
    '"', '{"name": "a"',
    '"arguments": {', '"tool_calls"', ":", ",", ";", "\\", "\n", " ", "1", "é", "\ud800", "\x00",
)  # fmt: skip


@settings(deadline=None, max_examples=200)  # other work shares the processor
@given(text=st.lists(st.sampled_from(PIECES), max_size=40).map("".join) | st.text())
def test_any_text_is_read_without_an_exception(text: str) -> None:
    for form in TOOL_FORMATS.values():
        for call in form.parse(text, SPECS):
            assert isinstance(call, ToolCall | BadCall)
            if isinstance(call, ToolCall):
                json.dumps(dict(call.arguments), allow_nan=False)


HOSTILE: dict[str, Any] = {piece.strip() or repr(piece): piece for piece in PIECES}
HOSTILE |= {
    "open strings": '<tool_call>"',
    "open calls": '<tool_call>{"name": "',
    "open lists": "<tool_call>[1,",
    "escapes": '<tool_call>"\\"',
    "parameters": "<function=a><parameter=b>",
    "closed parameters": "<parameter=b></parameter>",
    "half tags": "<function=a",
    "invocations": '<invoke name="a"><parameter name="b">',
    "DSML": '<｜DSML｜invoke name="a"><｜DSML｜parameter name="b">',
    "newlines of values": "<function=a><parameter=b>\n\n",
    "mistral names": "[TOOL_CALLS]a",
    "mistral lists": '[TOOL_CALLS][{"name": ',
    "fences": "\n```tool\n{",
    "objects": '{"name": "a", "parameters": {}};',
    "spaces": "<tool_call> \n \n",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_text_is_read_in_time(what: str, cpu_at_most: Any) -> None:
    piece = HOSTILE[what]
    endings = ("", "<tool_call>{}</tool_call>")
    for start in (
        "",
        "<tool_call>",
        "<function=a><parameter=b>",
        "[TOOL_CALLS]",
        "<|python_tag|>",
        "```tool\n",
        '{"tool_calls":',
    ):
        text = start + piece * (250_000 // len(piece)) + endings[len(start) % 2]
        for form in TOOL_FORMATS.values():
            with cpu_at_most(0.25):
                form.parse(text, SPECS)
