"""How tool calls are written: one :class:`ToolFormat` by name, each four functions.

``parse(text, specs)`` gives the calls of an answer, the malformed ones included (``()``: the answer is no call);
``render`` is its inverse; ``show`` writes results as an observation; ``describe`` writes the list of tools as system
text. Reading takes time linear in the text and never raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from roll_envs.errors import UnknownNameError
from roll_envs.tools.arguments import describe_parameters
from roll_envs.tools.formats import alone
from roll_envs.tools.formats.marked import MARKS, marked_calls
from roll_envs.tools.formats.reading import Call, Results, after_thought, dump, limited, tool_list
from roll_envs.tools.formats.tagged import TAGS, render_tagged, tagged_calls
from roll_envs.tools.types import ToolCall, ToolResult, ToolSpec

__all__ = ["TOOL_FORMATS", "Call", "Results", "ToolFormat", "find_tool_format"]

Reader = Callable[[str, Mapping[str, ToolSpec]], Iterable[Call]]


class ToolFormat(NamedTuple):
    """One way to write calls and results."""

    parse: Callable[[str, Mapping[str, ToolSpec]], tuple[Call, ...]]
    render: Callable[[Sequence[ToolCall]], str]
    show: Callable[[Results], str]
    describe: Callable[[Sequence[ToolSpec]], str]


def _marked(name: str) -> Reader:
    return lambda text, specs: marked_calls(text, MARKS[name])


def _tagged(name: str) -> tuple[Reader, Callable[[Sequence[ToolCall]], str]]:
    return lambda text, specs: tagged_calls(text, specs, TAGS[name]), lambda calls: render_tagged(calls, TAGS[name])


def _each(call: str, *, between: str = "\n", around: str = "{}", key: str = "arguments") -> Callable[..., str]:
    """A writer of calls by templates: of one call (``$name``, ``$arguments``, ``$number``, or ``$object`` with all),
    and of the list of them."""

    def render(calls: Sequence[ToolCall]) -> str:
        written = []
        for number, one in enumerate(calls):
            parts = {"$name": one.name, "$number": str(number), "$arguments": dump(dict(one.arguments))}
            parts["$object"] = dump({"name": one.name, key: dict(one.arguments)})
            written.append(_filled(call, parts))
        return around.replace("{}", between.join(written))

    return render


def _filled(template: str, parts: Mapping[str, str]) -> str:
    # Not str.format, since the templates hold braces; part by part, so that nothing within a part is replaced.
    for name, value in parts.items():
        before, found, after = template.partition(name)
        if found:
            return f"{_filled(before, parts)}{value}{_filled(after, parts)}"
    return template


def _shown(template: str, *, between: str = "\n") -> Callable[[Results], str]:
    """A writer of results by a template: ``$text``, ``$json`` (the text as JSON), ``$kind``, ``$name``, ``$number``."""

    def show(results: Results) -> str:
        return between.join(_filled(template, _parts(n, *each)) for n, each in enumerate(results))

    return show


def _parts(number: int, call: Call, result: ToolResult) -> dict[str, str]:
    name = call.name if isinstance(call, ToolCall) else "unknown"
    kind = "output" if result.ok else "error"
    return {
        "$text": result.text, "$json": dump(result.text), "$kind": kind, "$name": name,
        "$number": str(number), "$next": str(number + 1),
    }  # fmt: skip


def _format(
    read: Reader,
    render: Callable[[Sequence[ToolCall]], str],
    show: Callable[[Results], str],
    about: str,
    *,
    thoughts: bool = True,
    listed: Callable[[Sequence[ToolSpec]], str] = tool_list,
) -> ToolFormat:
    """``about`` describes the format, with ``$tools`` in it; ``thoughts`` are left unread."""
    return ToolFormat(
        lambda text, specs: limited(read(after_thought(text) if thoughts else text, specs)),
        render,
        show,
        lambda specs: about.replace("$tools", listed(specs)),
    )


def _plain_list(specs: Sequence[ToolSpec]) -> str:
    return "\n".join(f"- {s.name}: {s.description} Arguments: {describe_parameters(s.parameters)}." for s in specs)


def _arguments_as_text(calls: Sequence[ToolCall]) -> str:
    listed = [
        {"id": f"call_{n}", "type": "function", "function": {"name": c.name, "arguments": dump(dict(c.arguments))}}
        for n, c in enumerate(calls, 1)
    ]
    return dump({"tool_calls": listed})


_TOOLS = "These are the tools you may call:\n$tools\n\n"
_QWEN = "# Tools\n\nThese are the tools you may call:\n<tools>\n$tools\n</tools>\n\n"
_RESPONSES = (
    "\nSeveral calls may stand one after the other. The results come within <tool_response></tool_response> tags."
)
_AS_IT_IS = "To call one, write it in this form, each value as it is, with nothing escaped:\n"
_SHOW_QWEN = _shown("<tool_response>\n$text\n</tool_response>")
_SHOW_LLAMA = _shown('{"$kind": $json}')

TOOL_FORMATS: dict[str, ToolFormat] = {
    "hermes": _format(
        _marked("hermes"),
        _each("<tool_call>\n$object\n</tool_call>"),
        _SHOW_QWEN,
        f"{_QWEN}To call one, write its name and arguments as a JSON object within <tool_call></tool_call> tags, in "
        'this form:\n<tool_call>\n{"name": <tool name>, "arguments": <JSON object of arguments>}\n</tool_call>'
        + _RESPONSES,
    ),
    "llama3": _format(
        alone.llama_calls,
        _each("$object", between="; ", key="parameters"),
        _SHOW_LLAMA,
        f'{_TOOLS}To call one, answer with nothing but a JSON object {{"name": <tool name>, "parameters": <JSON of '
        'arguments>}; several are joined by ";". Do not use variables.',
    ),
    "llama3-function": _format(
        alone.llama_calls,
        _each("<function=$name>$arguments</function>"),
        _SHOW_LLAMA,
        f"{_TOOLS}To call one, write <function=tool_name>{{JSON object of arguments}}</function> on a line of its own, "
        'such as\n<function=example>{"argument": "value"}</function>',
    ),
    "llama-pythonic": _format(
        alone.pythonic_calls,
        alone.render_pythonic,
        _SHOW_LLAMA,
        f"{_TOOLS}To call some, answer with nothing but a Python list of calls with arguments by name:\n"
        "[tool_name(argument_name=value, ...), ...]",
    ),
    "mistral": _format(
        alone.mistral_calls,
        _each("$object", between=", ", around="[TOOL_CALLS][{}]"),
        _shown('[TOOL_RESULTS]{"content": $json}[/TOOL_RESULTS]'),
        '[AVAILABLE_TOOLS][$tools][/AVAILABLE_TOOLS]\nTo call tools, answer with [TOOL_CALLS][{"name": <tool name>, '
        '"arguments": <object of arguments>}], one object for each call.',
        listed=lambda specs: ", ".join(tool_list([spec]) for spec in specs),
    ),
    "openai": _format(
        alone.openai_calls,
        _arguments_as_text,
        _shown('{"role": "tool", "tool_call_id": "call_$next", "content": $json}'),
        f"{_TOOLS}To call tools, answer with nothing but a JSON object in this form:\n{alone.OPENAI_FORM}\n"
        "where the arguments are a JSON object written as text. The results come as messages of the role tool.",
    ),
    "qwen3-coder": _format(
        *_tagged("qwen3-coder"),
        _SHOW_QWEN,
        f"{_QWEN}{_AS_IT_IS}<tool_call>\n<function=tool_name>\n<parameter=argument_name>\nvalue\n</parameter>\n"
        f"</function>\n</tool_call>{_RESPONSES}",
    ),
    "deepseek": _format(
        _marked("deepseek"),
        _each(
            "<｜tool▁call▁begin｜>$name<｜tool▁sep｜>$arguments<｜tool▁call▁end｜>",
            between="",
            around="<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>",
        ),
        _shown("<｜tool▁output▁begin｜>$text<｜tool▁output▁end｜>", between=""),
        f"{_TOOLS}To call one, write\n<｜tool▁calls▁begin｜>{MARKS['deepseek'].form}<｜tool▁calls▁end｜>",
    ),
    "kimi": _format(
        _marked("kimi"),
        _each(
            "<|tool_call_begin|>functions.$name:$number<|tool_call_argument_begin|>$arguments<|tool_call_end|>",
            between="",
            around="<|tool_calls_section_begin|>{}<|tool_calls_section_end|>",
        ),
        _shown("## Return of functions.$name:$number\n$text"),
        f"{_TOOLS}To call one, write\n<|tool_calls_section_begin|>{MARKS['kimi'].form}<|tool_calls_section_end|>",
    ),
    "harmony": _format(
        _marked("harmony"),
        _each(
            "<|channel|>commentary to=functions.$name <|constrain|>json<|message|>$arguments<|call|>",
            between="<|start|>assistant",
        ),
        _shown("<|start|>functions.$name to=assistant<|channel|>commentary<|message|>$text<|end|>", between=""),
        f"{_TOOLS}To call one, write\n{MARKS['harmony'].form}",
        thoughts=False,  # messages of their own, which have no recipient
    ),
    "glm": _format(
        *_tagged("glm"),
        _SHOW_QWEN,
        f"{_QWEN}{_AS_IT_IS}<tool_call>tool_name\n<arg_key>argument_name</arg_key>\n<arg_value>value</arg_value>\n"
        f"</tool_call>{_RESPONSES}",
    ),
    "fenced": _format(
        alone.fenced_calls,
        _each("```tool\n$object\n```"),
        _shown("```result\n$text\n```"),
        f"{_TOOLS}To call one, write a block in this form:\n{alone.FENCED_FORM}",
        listed=_plain_list,
    ),
}
"""Every format by name; a program may add its own."""


def find_tool_format(name: str) -> ToolFormat:
    """The format of that name. Raises :class:`UnknownNameError`."""
    if name not in TOOL_FORMATS:
        raise UnknownNameError("tool format", name, TOOL_FORMATS)
    return TOOL_FORMATS[name]
