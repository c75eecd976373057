"""A YAML file and dotted overrides to a :class:`~trainer.config.RunConfig`, and back.

Every problem of a file is reported at once, one a line, each with its place, the value, what is allowed and what to do.
The models themselves, their defaults and their checks are in :mod:`trainer.config`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, ValidationError, create_model

from roll_envs.errors import ConfigError, RollError, UnknownNameError
from roll_envs.settings import Part
from trainer.config.keys import (
    SECTION_WORDS,
    KeyTable,
    built_in_keys,
    keys_of,
    nearest_keys,
    refusal,
    renamed_value,
    section_keys,
    unread_advice,
)
from trainer.config.parts import PART_SECTIONS, readers
from trainer.config.recipes import find_preset
from trainer.config.schema import FORMAT, ContextConfig, PlacementConfig, RayConfig, RunConfig
from trainer.config.yaml_text import KeyPath, dotted, dump_yaml, parse_value, read_yaml


class Resolved(NamedTuple):
    """A configuration, and where each key that is not at its default was said."""

    config: RunConfig
    places: Mapping[KeyPath, str]
    """``file.yaml:12``, ``override 'seed=1'`` or ``algorithm 'dapo'``."""


def load_config(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration of the file at ``path`` with ``overrides`` such as ``optimizer.lr=1e-3`` laid over it.

    The value of an override is read as YAML (a number, text, list or mapping; nothing after ``=`` is null). A later
    override wins. Raises ConfigError with all problems, one a line.
    """
    return load_resolved(path, overrides).config


def load_resolved(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Resolved:
    """Like :func:`load_config`, with the place of each key."""
    return parse_resolved(_read_text(Path(path)), overrides, source=os.fspath(path))


def parse_config(text: str, overrides: Sequence[str] = (), *, source: str = "configuration") -> RunConfig:
    """Like :func:`load_config`, for the text of a file; ``source`` is its name in messages."""
    return parse_resolved(text, overrides, source=source).config


def parse_resolved(text: str, overrides: Sequence[str] = (), *, source: str = "configuration") -> Resolved:
    """Like :func:`parse_config`, with the place of each key."""
    read = read_yaml(text)
    problems = [f"{source}:{line}: {sentence}" for line, sentence in read.problems]
    if read.data is None and not problems:
        raise ConfigError(f"{source}: the file is empty; a configuration starts with 'format: {FORMAT}'")
    if not isinstance(read.data, dict):
        shown = f": {source}:1: a configuration is keys and values, not {_shown(read.data)}"
        raise ConfigError("\n".join(problems) or shown.removeprefix(": "))
    data: dict[str, Any] = read.data
    places = {path: f"{source}:{line}" for path, line in read.lines.items()}
    problems += _apply_overrides(data, places, overrides)
    problems += _apply_preset(data, places, source)
    place = _Places(places, source)

    wrong_version = _check_format(data, place)
    if wrong_version:
        raise ConfigError(wrong_version)
    _drop_what_the_command_line_replaces(data, places)
    config, found = _checked(data, place)
    problems += found
    if problems or config is None:
        raise ConfigError("\n".join(sorted(problems, key=lambda problem: _line_of(problem, source))))
    return Resolved(config, places)


def resolve(config: RunConfig, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """A configuration made in code, checked as a file is and with every setting of its parts filled in.

    ``overrides`` are laid over it: values of keys, or mappings of keys for sections.

    Raises ConfigError with all problems, one a line.
    """
    data = config.model_dump(mode="json")
    places: dict[KeyPath, str] = {}
    for key, value in (overrides or {}).items():
        inside = value if isinstance(value, Mapping) and isinstance(data.get(key), dict) else None
        data[key] = value if inside is None else {**data[key], **inside}
        places.update({(key, name): f"{_OVERRIDE}{key}.{name}" for name in inside or ()})
        places[key,] = f"{_OVERRIDE}{key}"
    _drop_what_the_command_line_replaces(data, places)
    checked, problems = _checked(data, _Places(places, "configuration"))
    if problems or checked is None:
        raise ConfigError("\n".join(problems))
    return checked


def teacher_config(config: RunConfig) -> RunConfig:
    """The configuration by which the engine of ``warm_start.teacher`` plays.

    Raises ConfigError for what is wrong with its settings.
    """
    engine: Any = {"name": "openai", **(config.warm_start.teacher or {})}
    context = ContextConfig().model_dump(mode="json")
    told = {"system_prompt": None, "observation_template": None}
    sections: dict[str, Any] = {
        "engine": engine,
        "context": context,
        "envs": [{**env.model_dump(mode="json"), **told} for env in config.envs],
        "warm_start": {"teacher": None},
        "rollout": {"manager": "thread", "workers": 0, "ray": RayConfig().model_dump(mode="json")},
        "cluster": "local",
        "placement": PlacementConfig().model_dump(mode="json"),
        "judges": {},  # they are served by the run already
    }
    return resolve(config, sections)


def dump_config(config: RunConfig) -> str:
    """The complete configuration, defaults included, as YAML that loads back to an equal one."""
    return dump_yaml(config.model_dump(mode="python"))


_OVERRIDE = "override "


class _Places:
    """Where a key path stands; a key that is not written stands where its nearest written parent does."""

    def __init__(self, places: Mapping[KeyPath, str], source: str) -> None:
        self._places = places
        self._source = source

    def __call__(self, path: KeyPath) -> str:
        while path:
            if path in self._places:
                return self._places[path]
            path = path[:-1]
        return self._source


def _read_text(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        near = sorted(str(p) for p in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
        hint = f"; configurations there: {', '.join(near[:8])}" if near else "; check the path"
        raise ConfigError(f"no configuration file {str(path)!r}{hint}") from None
    except IsADirectoryError:
        raise ConfigError(
            f"{str(path)!r} is a folder, not a YAML file; to go on with a run: roll-train resume {path}"
        ) from None
    except OSError as error:
        raise ConfigError(f"could not read the configuration {str(path)!r}: {error.strerror or error}") from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}:{line}: byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8 text"
        ) from None


def _line_of(problem: str, source: str) -> tuple[int, int]:
    """Sorts the problems of a file by line; what is missing from it and overrides follow."""
    line = problem.removeprefix(f"{source}:").partition(":")[0]
    return (0, int(line)) if line.isdecimal() else (1, 0)


def _apply_overrides(data: dict[str, Any], places: dict[KeyPath, str], overrides: Sequence[str]) -> list[str]:
    problems = []
    for override in overrides:
        place = f"{_OVERRIDE}{override!r}"
        name, equals, text = override.partition("=")
        path = tuple(name.strip().split("."))
        if not equals or not all(path):
            problems.append(f"{place}: an override is written key=value, for example optimizer.lr=1e-3")
            continue
        try:
            value = parse_value(text)
        except ValueError as error:
            problems.append(f"{place}: {error}; quote the value")
            continue
        node: Any = data
        at: KeyPath = ()
        for part in path:
            if isinstance(node, list):
                if not part.isdecimal() or int(part) >= len(node):
                    allowed = f"the numbers of its entries are 0 to {len(node) - 1}" if node else "it has no entries"
                    problems.append(f"{place}: '{dotted(at)}' is a list, which has no {part!r}; {allowed}")
                    break
                key: str | int = int(part)
            elif isinstance(node, dict):
                key = part
            else:
                problems.append(f"{place}: '{dotted(at)}' is {_shown(node)}, which holds no keys")
                break
            inside, at = node, (*at, key)
            if len(at) < len(path):
                node = inside.setdefault(key, {}) if isinstance(inside, dict) else inside[key]
                places.setdefault(at, place)
        else:
            for known in [p for p in places if p[: len(at)] == at]:
                del places[known]
            inside[key] = value
            places[at] = place
    return problems


def _apply_preset(data: dict[str, Any], places: dict[KeyPath, str], source: str) -> list[str]:
    """Lay the settings of the named recipe under what the same source says: a recipe named on the command line goes
    over the file and under other overrides, and what the file says for an estimator or loss of another kind goes."""
    name = data.get("algorithm")
    if not isinstance(name, str):
        return []  # none, or a type that validation tells
    try:
        preset = find_preset(name)
    except UnknownNameError as error:
        return [f"{places.get(('algorithm',), source)}: {error}"]
    overriding = places.get(("algorithm",), "").startswith(_OVERRIDE)
    for key, value in preset.settings.items():
        section, _, last = key.partition(".")
        below = data.setdefault(section, {})
        if not isinstance(below, dict):
            continue  # which validation tells
        if last not in below or (overriding and not places.get((section, last), "").startswith(_OVERRIDE)):
            below[last] = value
            places[section, last] = f"algorithm {name!r}"
    return []


def _drop_what_the_command_line_replaces(data: dict[str, Any], places: dict[KeyPath, str]) -> None:
    """Where the command line chooses another part than the file, what the file says for that part alone goes."""
    algorithm = places.get(("algorithm",), "")
    for section, kind in PART_SECTIONS.items():
        place, values = places.get((section, kind.key), ""), data.get(section)
        chosen_there = place.startswith(_OVERRIDE) or (
            place.startswith("algorithm ") and algorithm.startswith(_OVERRIDE)
        )
        if not chosen_there or not isinstance(values, dict) or values.get(kind.key) not in kind.registry.built_in():
            continue
        read = kind.registry.find(values[kind.key]).settings.model_fields
        for key in [key for key in values if key not in read and readers(section, key)]:
            if not places.get((section, key), "").startswith(_OVERRIDE):
                del values[key]
                places.pop((section, key), None)


def _check_format(data: Mapping[str, Any], place: _Places) -> str:
    version = data.get("format")
    if "format" not in data or (type(version) is int and version == FORMAT):
        return ""
    advice = f"this release reads format {FORMAT}"
    if type(version) is int and version > FORMAT:
        advice += "; the file is of a newer release: pip install --upgrade roll-envs"
    elif type(version) is int:
        advice += f"; bring the keys up to date with docs/configuration.md and write 'format: {FORMAT}'"
    else:
        advice += f"; write 'format: {FORMAT}'"
    return f"{place(('format',))}: format is {_shown(version)}; {advice}"


def _checked(data: dict[str, Any], place: _Places) -> tuple[RunConfig | None, list[str]]:
    """The configuration that ``data`` make, with every setting of its parts; and what is wrong with them."""
    parts, problems = _chosen_parts(data, place)
    problems += [
        f"{place(path)}: {dotted(path)} is {_shown(value)}; allowed: {_RANGES[type(value)]}"
        for path, value in _too_large(data)
    ]
    model = _with_settings(tuple(parts.items()))
    while True:
        try:
            # Through JSON: strict about types, yet lists fill tuples and integers fill numbers.
            config = model.model_validate_json(json.dumps(data))
        except ValidationError as error:
            found = error.errors(include_url=False)
        else:
            break
        keys = keys_of(model)
        unknown = [tuple(each["loc"]) for each in found if each["type"] == "extra_forbidden"]
        problems += [_unknown_key(data, path, place, keys) for path in unknown]
        # Checks of a whole section or file only run when there are no unknown keys: once more without them.
        if not unknown:
            sentences = [sentence for each in found for sentence in _sentences(each, place, keys)]
            return None, problems + list(dict.fromkeys(sentences))
    if not problems:
        problems = [f"{place((s,))}: {problem}" for s, part in parts.items() for problem in part.problems(config)]
        if config.warm_start.teacher is not None:
            try:
                teacher_config(config)
            except ConfigError as error:
                where = place(("warm_start", "teacher"))
                problems += [f"{where}: warm_start.teacher: {problem}" for problem in str(error).splitlines()]
    return config, problems


_RANGES: Mapping[type, str] = {int: "whole numbers of 64 bits", float: "numbers that a float32 can hold, up to 3.4e38"}


def _too_large(node: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Numbers, and where they stand, that tensors and generators cannot hold; an environment's own may be any."""
    if isinstance(node, Mapping | list):
        for key, inside in node.items() if isinstance(node, Mapping) else enumerate(node):
            if key != "kwargs":
                yield from _too_large(inside, (*path, key))
    elif type(node) in _RANGES and (2**63 - 1 if type(node) is int else 3.4e38) < abs(node) < math.inf:
        yield path, node


@cache
def _with_settings(parts: tuple[tuple[str, Part], ...]) -> type[RunConfig]:
    """The model of a run whose sections also hold, and check, the settings of the parts that they choose."""
    sections: dict[str, Any] = {}
    for section, part in parts:
        both = _section_with(section, part)
        sections[section] = (both, Field(default_factory=both))
    return create_model("RunConfig", __base__=RunConfig, __cls_kwargs__=_DESCRIBED, **sections)


@cache
def _section_with(section: str, part: Part) -> Any:
    """The model of a section with the settings of the part that it chooses."""
    own = type(RunConfig.model_fields[section].get_default(call_default_factory=True))
    # Fields of the last come first.
    bases: Any = (own,) if issubclass(own, part.settings) else (part.settings, own)
    both: Any = create_model(own.__name__, __base__=bases, __cls_kwargs__={**_DESCRIBED, "extra": "forbid"})
    both.__doc__ = own.__doc__
    return both


_DESCRIBED = {"use_attribute_docstrings": False}
"""Fields bring their descriptions with them; pydantic need not look for docstrings of a class that has no source."""


def _chosen_parts(data: Mapping[str, Any], place: _Places) -> tuple[dict[str, Part], list[str]]:
    """The part of each section that chooses one; those that cannot be had are left out and told."""
    parts: dict[str, Part] = {}
    problems = []
    for section, kind in PART_SECTIONS.items():
        name = _name_of(data, section)
        if not isinstance(name, str):
            continue  # which validation tells
        try:
            parts[section] = kind.registry.find(name)
        except RollError as error:
            problems.append(f"{place((section, kind.key))}: {error}")
    return parts, problems


def _name_of(data: Mapping[str, Any], section: str) -> Any:
    """The part that a section names, else its default."""
    key, values = PART_SECTIONS[section].key, data.get(section, {})
    default = section_keys()[section, key].default
    return values.get(key, default) if isinstance(values, dict) else default


def _unknown_key(data: dict[str, Any], path: KeyPath, place: _Places, keys: KeyTable) -> str:
    """Take a key that nothing reads out of ``data``; what to say of it."""
    section, inside = str(path[0]), data
    for part in path[:-1]:
        inside = inside[part]  # type: ignore[index]
    value = inside.pop(str(path[-1]))
    if section in PART_SECTIONS and (told := unread_advice(section, str(path[-1]), _name_of(data, section))):
        return f"{place(path)}: {told}"
    while isinstance(value, dict) and len(value) == 1:
        (inner, value), *_ = value.items()
        path = (*path, inner)
    return f"{place(path)}: unknown key '{dotted(path)}'; {_advice(path, keys)}"


def _advice(path: KeyPath, keys: KeyTable) -> str:
    names = _without_positions(path)
    reason = refusal(names)
    if reason is not None:
        return reason
    near = nearest_keys(names, {**built_in_keys(), **keys})
    if near:
        # Those in a list are shown in the same entry of it.
        entry = next((i for i, part in enumerate(path) if isinstance(part, int)), 0)
        lists, here = f"{dotted(path[:entry])}.", f"{dotted(path[: entry + 1])}."
        shown = [here + name.removeprefix(lists) if entry and name.startswith(lists) else name for name in near]
        return "did you mean " + " or ".join(f"'{name}'" for name in shown) + "?"
    parent = names[:-1] if names[:-1] in keys else ()
    return "known here: " + ", ".join(p[-1] for p in keys if p[:-1] == parent)


def _without_positions(path: KeyPath) -> tuple[str, ...]:
    return tuple(part for part in path if isinstance(part, str))


def _sentences(found: Mapping[str, Any], place: _Places, keys: KeyTable) -> list[str]:
    path: KeyPath = tuple(found["loc"])
    if found["type"] == "value_error":
        return [f"{place(path)}: {line}" for line in str(found["ctx"]["error"]).splitlines()]
    if found["type"] == "json_invalid":
        return [f"{place(())}: the text holds characters that no file can hold ({found['msg']})"]
    names = _without_positions(path)
    key = next((keys[names[:n]] for n in range(len(names), 0, -1) if names[:n] in keys), None)
    if found["type"] == "missing" and key is not None:
        if path == ("format",):
            return [f"{place(())}: format is missing; write 'format: {FORMAT}', the version of the schema it follows"]
        if key.section:
            inner = ", ".join(dotted(k.path) for k in keys.values() if k.path[:-1] == key.path and k.required)
            return [f"{place(())}: the section '{dotted(path)}' is missing; it needs {inner}"]
        if isinstance(path[-1], str):
            return [f"{place(path[:-1])}: the key '{dotted(path)}' is missing; allowed: {key.allowed}"]
    allowed = key.allowed if key is not None else found["msg"]
    if key is not None and key.section and isinstance(path[-1], int):
        allowed = SECTION_WORDS  # an entry of a list of sections
    renamed = renamed_value(path, found["input"])
    hint = f"; {found['input']!r} is called {renamed!r} now" if renamed else ""
    if found["type"] == "string_type" and isinstance(found["input"], int | float):
        quoted = f'"{_shown(found["input"])}"'
        hint = f"; in quotes it is text: {quoted} (in a shell '{quoted}')"
    if key is not None and key.section:
        hint = "; leave it out or write keys below it"
    return [f"{place(path)}: {dotted(path)} is {_shown(found['input'])}; allowed: {allowed}{hint}"]


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
