"""How tool calls are written: one :class:`ToolFormat` by name, each four functions.

``parse(text, specs)`` gives the calls of an answer, the malformed ones included (``()``: the answer is no call);
``render`` is its inverse; ``show`` writes results as an observation; ``describe`` writes the list of tools as system
text. Reading takes time linear in the text and never raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from string import Template
from typing import NamedTuple

from roll_envs.errors import ConfigError, UnknownNameError
from roll_envs.tools.arguments import describe_parameters
from roll_envs.tools.formats import calls as read_calls
from roll_envs.tools.formats.forms import FORMS, Form
from roll_envs.tools.formats.reading import Call, Results, dump, limited, tool_list
from roll_envs.tools.types import ToolCall, ToolSpec
from roll_envs.verifiers.extract import after_thinking

__all__ = ["TOOL_FORMATS", "Call", "Results", "ToolFormat", "find_tool_format"]

Reader = Callable[[str, Mapping[str, ToolSpec]], Iterable[Call]]


class ToolFormat(NamedTuple):
    """One way to write calls and results."""

    parse: Callable[[str, Mapping[str, ToolSpec]], tuple[Call, ...]]
    render: Callable[[Sequence[ToolCall]], str]
    show: Callable[[Results], str]
    describe: Callable[[Sequence[ToolSpec]], str]


def _render(form: Form, calls: Sequence[ToolCall]) -> str:
    """Calls as an answer. Raises :class:`ConfigError` for arguments that the format cannot carry."""
    written = (Template(form.call).substitute(_parts(n, call, form)) for n, call in enumerate(calls))
    return Template(form.around).substitute(calls=form.between.join(written))


def _show(form: Form, results: Results) -> str:
    shown = []
    for number, (call, result) in enumerate(results):
        parts = _parts(number, call if isinstance(call, ToolCall) else ToolCall(name="unknown"))
        parts |= {"text": result.text, "json": dump(result.text), "kind": "output" if result.ok else "error"}
        shown.append(Template(form.result).substitute(parts))
    return form.between_results.join(shown)


def _parts(number: int, call: ToolCall, form: Form | None = None) -> dict[str, str]:
    """What the templates say of a call; its arguments only where a form is given."""
    parts = {"name": call.name, "quoted": dump(call.name), "number": str(number), "next": str(number + 1)}
    if form is not None:
        arguments = dump(dict(call.arguments))
        parts |= {"arguments": arguments, "escaped": dump(arguments)}
        if form.argument:
            parts["values"] = "".join(_argument(form, key, value) for key, value in call.arguments.items())
    return parts


def _argument(form: Form, key: str, value: object) -> str:
    text = value if isinstance(value, str) else dump(value)
    if re.search(form.value_end, text) or re.search('["<>\n]', key):
        raise ConfigError(f"argument {key!r} holds a tag of this format, which it cannot carry; use 'hermes'")
    return Template(form.argument).substitute(key=key, value=text, text=dump(isinstance(value, str)))


_READERS: dict[str, Reader] = {
    "llama3": read_calls.llama_calls,
    "llama3-function": read_calls.llama_calls,
    "llama-pythonic": read_calls.pythonic_calls,
    "mistral": read_calls.mistral_calls,
    "openai": read_calls.openai_calls,
    "fenced": read_calls.fenced_calls,
}
"""Of the formats that marks alone do not tell."""
_LISTS: dict[str, Callable[[Sequence[ToolSpec]], str]] = {
    "mistral": lambda specs: tool_list(specs).replace("\n", ", "),
    "fenced": lambda specs: "\n".join(
        f"- {s.name}: {s.description} Arguments: {describe_parameters(s.parameters)}." for s in specs
    ),
}


def _format(name: str, form: Form) -> ToolFormat:
    read = _READERS.get(name, partial(read_calls.marked_calls, form=form))
    listed, about = _LISTS.get(name, tool_list), Template(form.head + form.about + form.tail)
    return ToolFormat(
        # A call that is only thought about is not made. The thought may have been opened in the prompt.
        lambda text, specs: limited(read(after_thinking(text, first=True) if form.thoughts else text, specs)),
        partial(_render, form) if form.call else read_calls.render_pythonic,
        partial(_show, form),
        lambda specs: about.substitute(tools=listed(specs), form=form.form),
    )


TOOL_FORMATS: dict[str, ToolFormat] = {name: _format(name, form) for name, form in FORMS.items()}
"""Every format by name; a program may add its own."""


def find_tool_format(name: str) -> ToolFormat:
    """The format of that name. Raises :class:`UnknownNameError`."""
    if name not in TOOL_FORMATS:
        raise UnknownNameError("tool format", name, TOOL_FORMATS)
    return TOOL_FORMATS[name]
