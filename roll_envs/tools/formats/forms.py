"""The texts of each format, as a table: patterns by which its calls are read, templates by which they are written.

Each is in the form that the parsers of vLLM and SGLang read. Marks that are special tokens must be in the text: an
engine has to decode with its special tokens kept.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Form(NamedTuple):
    """The texts of a format. ``$name`` and the like in a template are filled in."""

    form: str
    """How a call looks, as it is told to a model that wrote a malformed one."""
    call: str = ""
    """Writes one call: ``$name`` (``$quoted``: as JSON), ``$arguments`` as JSON (``$escaped``: as a text of it),
    ``$values`` by ``argument``, ``$number`` from 0 and ``$next`` from 1."""
    between: str = "\n"
    """Stands between calls."""
    around: str = "$calls"
    argument: str = ""
    """Writes one argument: ``$key`` and ``$value``, a text as it is, all else as JSON; ``$text``: if it is one."""
    result: str = ""
    """Shows one result: ``$text`` (``$json``: as JSON), ``$kind`` (``output`` or ``error``), and those of a call."""
    between_results: str = "\n"
    head: str = ""
    """Begins the system text, in which ``$tools`` are listed; ``about`` and ``tail`` follow."""
    about: str = ""
    tail: str = ""
    begin: str = ""
    """Pattern: where a call begins."""
    name: str = ""
    """Pattern: what follows that, up to the JSON or the first argument; its group ``name``, where it has one, names the
    tool."""
    end: str = ""
    """Pattern: what must follow the JSON or the last argument."""
    lists: bool = False
    """Whether the JSON may be a list of calls."""
    key: str = ""
    """Pattern: the name of an argument in a group, up to its value."""
    value_end: str = ""
    """Pattern: where a value ends; its group ``cut``, where it has one, is what shows that it does not."""
    thoughts: bool = True
    """Whether thoughts, which are left unread, stand before the calls in tags."""


_TOOLS = "These are the tools you may call:\n$tools\n\n"
_QWEN = "# Tools\n\nThese are the tools you may call:\n<tools>\n$tools\n</tools>\n\n"
_AS_IT_IS = _QWEN + "To call one, write it in this form, each value as it is, with nothing escaped:\n"
_RESPONSES = (
    "\nSeveral calls may stand one after the other. The results come within <tool_response></tool_response> tags."
)
_OBJECT = '{"name": $quoted, "arguments": $arguments}'
_QWEN_RESULT = "<tool_response>\n$text\n</tool_response>"
_LLAMA_RESULT = '{"$kind": $json}'

_TEXTS: dict[str, dict[str, Any]] = {
    "hermes": {
        "form": '<tool_call>{"name": ..., "arguments": {...}}</tool_call>',
        "call": '<tool_call>\n{"name": $quoted, "arguments": $arguments}\n</tool_call>',
        "result": _QWEN_RESULT,
        "head": _QWEN,
        "about": "To call one, write its name and arguments as a JSON object within <tool_call></tool_call> tags, in "
        'this form:\n<tool_call>\n{"name": <tool name>, "arguments": <JSON object of arguments>}\n</tool_call>',
        "tail": _RESPONSES,
        "begin": "<tool_call>",
        # A call at the very end may lack its closing tag: some engines stop on it and leave it out.
        "end": r"\s*(?:</tool_call>|\Z)",
    },
    "llama3": {
        "form": '{"name": ..., "parameters": {...}}',
        "call": '{"name": $quoted, "parameters": $arguments}',
        "between": "; ",
        "result": _LLAMA_RESULT,
        "head": _TOOLS,
        "about": 'To call one, answer with nothing but a JSON object {"name": <tool name>, "parameters": <JSON of '
        'arguments>}; several are joined by ";". Do not use variables.',
    },
    "llama3-function": {
        "form": "<function=NAME>{...}</function>",
        "call": "<function=$name>$arguments</function>",
        "result": _LLAMA_RESULT,
        "head": _TOOLS,
        "about": "To call one, write <function=tool_name>{JSON object of arguments}</function> on a line of its own, "
        'such as\n<function=example>{"argument": "value"}</function>',
        "begin": "<function=",
        "name": r"(?P<name>[^<>\n]{1,200})>",
        "end": r"\s*(?:</function>|\Z)",
    },
    "llama-pythonic": {
        "form": "[NAME(KEY=VALUE, ...)]",
        "result": _LLAMA_RESULT,
        "head": _TOOLS,
        "about": "To call some, answer with nothing but a Python list of calls with arguments by name:\n"
        "[tool_name(argument_name=value, ...), ...]",
    },
    "mistral": {
        "form": '[TOOL_CALLS][{"name": ..., "arguments": {...}}]',
        "call": _OBJECT,
        "between": ", ",
        "around": "[TOOL_CALLS][$calls]",
        "result": '[TOOL_RESULTS]{"content": $json}[/TOOL_RESULTS]',
        "about": '[AVAILABLE_TOOLS][$tools][/AVAILABLE_TOOLS]\nTo call tools, answer with [TOOL_CALLS][{"name": <tool '
        'name>, "arguments": <object of arguments>}], one object for each call.',
        "begin": r"\[TOOL_CALLS\]",
        # The newer form, with [ARGS] or without it where decoding leaves that token out; else a list of calls.
        "name": r"(?:\s*(?P<name>[\w.:-]{1,200})\s*(?:\[CALL_ID\]\w{1,40}\s*)?(?:\[ARGS\]\s*)?(?=\{))?",
        "lists": True,
    },
    "openai": {
        "form": '{"tool_calls": [{"type": "function", "function": {"name": ..., "arguments": "{...}"}}]}',
        "call": '{"id": "call_$next", "type": "function", "function": {"name": $quoted, "arguments": $escaped}}',
        "between": ", ",
        "around": '{"tool_calls": [$calls]}',
        "result": '{"role": "tool", "tool_call_id": "call_$next", "content": $json}',
        "head": _TOOLS,
        "about": "To call tools, answer with nothing but a JSON object in this form:\n$form\nwhere the arguments are a "
        "JSON object written as text. The results come as messages of the role tool.",
    },
    "qwen3-coder": {
        "form": "<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>",
        "call": "<tool_call>\n<function=$name>\n$values</function>\n</tool_call>",
        "argument": "<parameter=$key>\n$value\n</parameter>\n",
        "result": _QWEN_RESULT,
        "head": _AS_IT_IS,
        "about": "<tool_call>\n<function=tool_name>\n<parameter=argument_name>\nvalue\n</parameter>\n</function>\n"
        "</tool_call>",
        "tail": _RESPONSES,
        "begin": r"(?:<tool_call>\s*)?<function=|<tool_call>",
        "name": r"(?<=<function=)(?P<name>[^<>\n]{1,200})>\s*",
        # As in vLLM, the next argument closes a value and the end of a call its function. A value that nothing closes
        # before the end of the function is none: what is there of it, such as code, is not to be run.
        "end": "</function>|(?=</tool_call>)",
        # The template puts one newline on either side of a value.
        "key": r"<parameter=([^<>\n]{1,200})>\n?",
        "value_end": r"\n?(?:</parameter>|(?=<parameter=))|(?P<cut></function>|</tool_call>\s*+(?=<tool_call>|\Z))",
    },
    "deepseek": {
        "form": "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>",
        "call": "<｜tool▁call▁begin｜>$name<｜tool▁sep｜>$arguments<｜tool▁call▁end｜>",
        "between": "",
        "around": "<｜tool▁calls▁begin｜>$calls<｜tool▁calls▁end｜>",
        "result": "<｜tool▁output▁begin｜>$text<｜tool▁output▁end｜>",
        "between_results": "",
        "head": _TOOLS,
        "about": "To call one, write\n<｜tool▁calls▁begin｜>$form<｜tool▁calls▁end｜>",
        "begin": "<｜tool▁call▁begin｜>",
        # V3.1; V3 and R1 write "function" before the separator, and the name and a fence of JSON after it.
        "name": r"\s*(?:function<｜tool▁sep｜>)?(?P<name>[^<>{}`\n]{1,200})(?:<｜tool▁sep｜>|\n?```json)\s*",
    },
    "deepseek-v3.2": {
        "form": '<｜DSML｜invoke name="NAME"><｜DSML｜parameter name="KEY" string="true">VALUE</｜DSML｜parameter>'
        "</｜DSML｜invoke>",
        "call": '<｜DSML｜invoke name="$name">\n$values</｜DSML｜invoke>',
        "around": "<｜DSML｜function_calls>\n$calls\n</｜DSML｜function_calls>",
        "argument": '<｜DSML｜parameter name="$key" string="$text">$value</｜DSML｜parameter>\n',
        "result": "<function_results>\n<result>$text</result>\n</function_results>",
        "head": _TOOLS,
        "about": "To call one, write it in this form, texts and numbers as they are, lists and objects as JSON; string "
        'says whether a value is a text ("true") or not ("false"):\n<｜DSML｜function_calls>\n'
        '<｜DSML｜invoke name="tool_name">\n<｜DSML｜parameter name="argument_name" string="true|false">value'
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "begin": r"<｜DSML｜invoke\s",
        "name": r'\s*name="(?P<name>[^"<>\n]{1,200})"\s*>\s*',
        "end": "</｜DSML｜invoke>",
        # As in vLLM, the schema says what a value is, and not the model.
        "key": r'<｜DSML｜parameter\s+name="([^"<>\n]{1,200})"(?:\s+string="\w{1,9}")?\s*>',
        "value_end": r"</｜DSML｜parameter>|(?=<｜DSML｜parameter\s)|(?P<cut></｜DSML｜invoke>)",
    },
    "minimax": {
        "form": '<minimax:tool_call><invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>'
        "</minimax:tool_call>",
        "call": '<invoke name="$name">\n$values</invoke>',
        "around": "<minimax:tool_call>\n$calls\n</minimax:tool_call>",
        "argument": '<parameter name="$key">$value</parameter>\n',
        "result": "<response>$text</response>",
        "head": _AS_IT_IS,
        "about": '<minimax:tool_call>\n<invoke name="tool_name">\n<parameter name="argument_name">value</parameter>\n'
        "</invoke>\n</minimax:tool_call>",
        "begin": "<invoke name=",
        "name": r"""["']?(?P<name>[^"'<>\n]{1,200})["']?>\s*""",
        "end": "</invoke>",
        "key": r"""<parameter name=["']?([^"'<>\n]{1,200})["']?>""",
        "value_end": "</parameter>|(?=<parameter name=)|(?P<cut></invoke>)",
    },
    "granite": {
        "form": '<|tool_call|>[{"name": ..., "arguments": {...}}]',
        "call": _OBJECT,
        "between": ", ",
        "around": "<|tool_call|>[$calls]",
        "result": "$text",
        "head": _TOOLS,
        "about": "To call some, write <|tool_call|> and a JSON list of them:\n$form",
        # As Granite 3.0 writes it, and as 3.1 does.
        "begin": r"<\|?tool_call\|?>",
        "lists": True,
    },
    "phi4": {
        "form": 'functools[{"name": ..., "arguments": {...}}]',
        "call": _OBJECT,
        "between": ", ",
        "around": "functools[$calls]",
        "result": '{"result": $json}',
        "head": _TOOLS,
        "about": "To call some, write functools and a JSON list of them:\n$form",
        "begin": r"functools(?=\[)",
        "lists": True,
    },
    "kimi": {
        "form": "<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>",
        "call": "<|tool_call_begin|>functions.$name:$number<|tool_call_argument_begin|>$arguments<|tool_call_end|>",
        "between": "",
        "around": "<|tool_calls_section_begin|>$calls<|tool_calls_section_end|>",
        "result": "## Return of functions.$name:$number\n$text",
        "head": _TOOLS,
        "about": "To call one, write\n<|tool_calls_section_begin|>$form<|tool_calls_section_end|>",
        "begin": r"<\|tool_call_begin\|>",
        "name": r"\s*(?:functions\.)?(?P<name>[^<>{}\s]{1,200}?)(?::\d{1,9})?\s*<\|tool_call_argument_begin\|>\s*",
    },
    "harmony": {
        "form": "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>",
        "call": "<|channel|>commentary to=functions.$name <|constrain|>json<|message|>$arguments<|call|>",
        "between": "<|start|>assistant",
        "result": "<|start|>functions.$name to=assistant<|channel|>commentary<|message|>$text<|end|>",
        "between_results": "",
        "head": _TOOLS,
        "about": "To call one, write\n$form",
        # The recipient may also stand before the channel. Thoughts are messages of their own, without a recipient.
        "begin": r"(?:<\|channel\|>(?:commentary|analysis)|<\|start\|>assistant|\A(?:assistant)?)\s*to=functions\.",
        "name": r"(?P<name>[\w.:-]{1,200})(?:<\|channel\|>\w{1,20})?\s{0,9}(?:<\|constrain\|>)?\s{0,9}\w{0,20}"
        r"<\|message\|>\s*",
        "thoughts": False,
    },
    "glm": {
        "form": "<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>",
        "call": "<tool_call>$name\n$values</tool_call>",
        "argument": "<arg_key>$key</arg_key>\n<arg_value>$value</arg_value>\n",
        "result": _QWEN_RESULT,
        "head": _AS_IT_IS,
        "about": "<tool_call>tool_name\n<arg_key>argument_name</arg_key>\n<arg_value>value</arg_value>\n</tool_call>",
        "tail": _RESPONSES,
        "begin": "<tool_call>",
        "name": r"\s*(?P<name>[^\s<>{}][^<>{}\n]{0,199})\s*(?=<|\Z)",
        "end": r"</tool_call>|\Z",
        "key": r"<arg_key>([^<>]{1,200})</arg_key>\s*<arg_value>",
        "value_end": "</arg_value>",
    },
    "fenced": {
        "form": '```tool\n{"name": ..., "arguments": {...}}\n```',
        "call": '```tool\n{"name": $quoted, "arguments": $arguments}\n```',
        "result": "```result\n$text\n```",
        "head": _TOOLS,
        "about": "To call one, write a block in this form:\n$form",
    },
}
FORMS = {name: Form(**texts) for name, texts in _TEXTS.items()}
