"""YAML text to plain data and back, remembering on which line each key stands.

The reading is stricter and safer than plain YAML 1.1: duplicate keys, merge keys and keys that are not text are
problems, ``1e-3`` is a number, ``010`` and ``12:30`` are text and dates stay text. No tags, no Python objects.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml

KeyPath: TypeAlias = tuple[str | int, ...]
"""Keys and list positions from the root: ``("optimizer", "betas", 0)``."""

_BOOL = re.compile(r"^(?:yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)$")
_INT = re.compile(r"^[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F]+)$")
_FLOAT = re.compile(
    r"^(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.[0-9]+(?:[eE][-+]?[0-9]+)?"
    r"|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN))$"
)
_NULL = re.compile(r"^(?:~|null|Null|NULL|)$")
_PLAIN = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str")}
_MAX_VALUES = 100_000


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  (of the base class)


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def short_list(self, data: Any) -> yaml.Node:
        flat = not any(isinstance(each, dict) for each in data)
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flat)

    def safe_text(self, data: str) -> yaml.Node:
        # PyYAML writes U+0085 and its like unescaped outside double quotes and then reads them as line ends.
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if data.isprintable() else '"')


_Dumper.add_representer(str, _Dumper.safe_text)
_Dumper.add_representer(list, _Dumper.short_list)
_Dumper.add_representer(tuple, _Dumper.short_list)


for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver("tag:yaml.org,2002:bool", _BOOL, list("yYnNtTfFoO"))
    _class.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
    _class.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-+0123456789"))
    _class.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile(r"^(?:<<)$"), ["<"])
    _class.add_implicit_resolver("tag:yaml.org,2002:null", _NULL, ["~", "n", "N", "\0", ""])


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """Data of a YAML text, the line (from 1) of every key path, and what is wrong with the text."""

    data: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[tuple[int, str]] = field(default_factory=list)
    """(line, sentence) pairs; the data leave out what they name."""


def dotted(path: KeyPath) -> str:
    """``("optimizer", "betas", 0)`` -> ``optimizer.betas[0]``."""
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).removeprefix(".")


def read_yaml(text: str) -> Read:
    """Read one YAML document. A text that is no YAML at all gives ``data=None`` and one problem."""
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            read = Read(data=None)
            if node is None:
                return read
            data = _Reader(loader, read).convert(node, ())
            return Read(data=data, lines=read.lines, problems=read.problems)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        words = ", ".join(part for part in (error.context, error.problem) if part)
        return Read(data=None, problems=[(mark.line + 1 if mark else 1, f"this is not YAML: {words}")])
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        shown = f"U+{error.character:04X}" if isinstance(error.character, int) else repr(error.character)
        return Read(data=None, problems=[(line, f"this is not YAML: the character {shown} is not allowed")])
    except RecursionError:
        return Read(data=None, problems=[(1, "this is nested too deeply to be a configuration")])


def parse_value(text: str) -> Any:
    """The value of one override by the same rules. Raises ValueError with one sentence when it is no YAML."""
    read = read_yaml(text)
    if read.problems:
        raise ValueError(read.problems[0][1])
    return read.data


def dump_yaml(data: Any) -> str:
    """YAML text that :func:`read_yaml` reads back to equal data; keys keep their order."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=110)


def value_text(value: object) -> str:
    """One value as a reader of a table wants it: YAML, with numbers as short as they can be."""
    return f"{value:g}" if isinstance(value, float) else dump_yaml(value).removesuffix("...\n").strip()


class _Reader:
    """Turns nodes into data; collects lines and problems in ``read``."""

    def __init__(self, loader: yaml.SafeLoader, read: Read) -> None:
        self._loader = loader
        self._read = read
        self._open: set[int] = set()
        self._values = 0

    def convert(self, node: yaml.Node, path: KeyPath) -> Any:
        self._values += 1
        line = node.start_mark.line + 1
        if self._values > _MAX_VALUES:
            raise yaml.MarkedYAMLError(problem=f"more than {_MAX_VALUES} values", problem_mark=node.start_mark)
        if id(node) in self._open:
            return self._problem(line, f"{dotted(path)} contains itself through an alias")
        self._read.lines.setdefault(path, line)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
                return [self.convert(child, (*path, i)) for i, child in enumerate(node.value)]
            if isinstance(node, yaml.ScalarNode) and node.tag in _PLAIN:
                return self._scalar(node, path)
        finally:
            self._open.discard(id(node))
        return self._problem(line, f"{dotted(path)} has the tag {node.tag}; allowed: plain values, lists and mappings")

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        try:
            return self._loader.construct_object(node)
        except ValueError as error:
            return self._problem(node.start_mark.line + 1, f"{dotted(path)} cannot be read: {error}")

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = self._key(key_node)
            if not isinstance(key, str):
                shown = "the merge key '<<'" if key_node.tag.endswith(":merge") else f"the key {key!r}"
                where = f" in {dotted(path)}" if path else ""
                self._problem(line, f"{shown}{where} is not allowed; keys are text (quote it if it is meant as text)")
            elif key in data:
                first = self._read.lines[(*path, key)]
                self._problem(line, f"duplicate key '{dotted((*path, key))}' (first on line {first}); keep one of them")
            else:
                self._read.lines[(*path, key)] = line
                data[key] = self.convert(value_node, (*path, key))
        return data

    def _key(self, node: yaml.Node) -> Hashable:
        if not isinstance(node, yaml.ScalarNode):
            return "(a list or mapping)", ""
        if node.tag not in _PLAIN:
            return None
        key: Hashable = self._loader.construct_object(node)
        return key

    def _problem(self, line: int, sentence: str) -> None:
        self._read.problems.append((line, sentence))
