"""How tool calls are written: one :class:`ToolFormat` by name, each four functions.

``parse(text, specs)`` gives the calls of an answer, the malformed ones included (``()``: the answer is no call);
``render`` is its inverse; ``show`` writes results as an observation; ``describe`` writes the list of tools as system
text. Reading takes time linear in the text and never raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from roll_envs.errors import UnknownNameError
from roll_envs.tools.formats.fenced import describe_fenced, parse_fenced, render_fenced, show_fenced
from roll_envs.tools.formats.glm import describe_glm, parse_glm, render_glm
from roll_envs.tools.formats.hermes import describe_hermes, parse_hermes, render_hermes, show_hermes
from roll_envs.tools.formats.llama import (
    describe_llama,
    describe_llama_function,
    parse_llama,
    render_llama,
    render_llama_function,
    show_llama,
)
from roll_envs.tools.formats.marked import (
    describe_deepseek,
    describe_harmony,
    describe_kimi,
    parse_deepseek,
    parse_harmony,
    parse_kimi,
    render_deepseek,
    render_harmony,
    render_kimi,
    show_deepseek,
    show_harmony,
    show_kimi,
)
from roll_envs.tools.formats.mistral import describe_mistral, parse_mistral, render_mistral, show_mistral
from roll_envs.tools.formats.openai import describe_openai, parse_openai, render_openai, show_openai
from roll_envs.tools.formats.pythonic import describe_pythonic, parse_pythonic, render_pythonic
from roll_envs.tools.formats.qwen_coder import (
    describe_qwen_coder,
    parse_qwen_coder,
    render_qwen_coder,
    show_qwen_coder,
)
from roll_envs.tools.formats.reading import Call, Results
from roll_envs.tools.types import ToolCall, ToolSpec

__all__ = ["TOOL_FORMATS", "Call", "Results", "ToolFormat", "find_tool_format"]


class ToolFormat(NamedTuple):
    """One way to write calls and results."""

    parse: Callable[[str, Mapping[str, ToolSpec]], tuple[Call, ...]]
    render: Callable[[Sequence[ToolCall]], str]
    show: Callable[[Results], str]
    describe: Callable[[Sequence[ToolSpec]], str]


TOOL_FORMATS: dict[str, ToolFormat] = {
    "hermes": ToolFormat(parse_hermes, render_hermes, show_hermes, describe_hermes),
    "llama3": ToolFormat(parse_llama, render_llama, show_llama, describe_llama),
    "llama3-function": ToolFormat(parse_llama, render_llama_function, show_llama, describe_llama_function),
    "llama-pythonic": ToolFormat(parse_pythonic, render_pythonic, show_llama, describe_pythonic),
    "mistral": ToolFormat(parse_mistral, render_mistral, show_mistral, describe_mistral),
    "openai": ToolFormat(parse_openai, render_openai, show_openai, describe_openai),
    "qwen3-coder": ToolFormat(parse_qwen_coder, render_qwen_coder, show_qwen_coder, describe_qwen_coder),
    "deepseek": ToolFormat(parse_deepseek, render_deepseek, show_deepseek, describe_deepseek),
    "kimi": ToolFormat(parse_kimi, render_kimi, show_kimi, describe_kimi),
    "harmony": ToolFormat(parse_harmony, render_harmony, show_harmony, describe_harmony),
    "glm": ToolFormat(parse_glm, render_glm, show_hermes, describe_glm),
    "fenced": ToolFormat(parse_fenced, render_fenced, show_fenced, describe_fenced),
}
"""Every format by name; a program may add its own."""


def find_tool_format(name: str) -> ToolFormat:
    """The format of that name. Raises :class:`UnknownNameError`."""
    if name not in TOOL_FORMATS:
        raise UnknownNameError("tool format", name, TOOL_FORMATS)
    return TOOL_FORMATS[name]
