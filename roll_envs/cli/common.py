"""What the subcommands share: reading key=value arguments, making the environment, tables, colours and JSON."""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from roll_envs import env_registry as registry
from roll_envs.env import AnyEnv
from roll_envs.errors import ConfigError, RollError

_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36}
_PAINTED = re.compile(r"\x1b\[[\d;]*m")


def add_kwargs(parser: argparse.ArgumentParser) -> None:
    """Add ``--kwargs key=value ...``."""
    said = "arguments of the environment, such as size=[8,8] max_turns=20 (values as JSON, else as text)"
    parser.add_argument("--kwargs", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help=said)


def parse_kwargs(pairs: Iterable[str], flag: str = "--kwargs") -> dict[str, Any]:
    """``["a=1", "b=[2,3]", "c=word"]`` as ``{"a": 1, "b": [2, 3], "c": "word"}``."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(f"{flag}: {pair!r} is not of the form key=value")
        if name in found:
            raise ConfigError(f"{flag}: {name!r} is given twice")
        found[name] = _value(text)
    return found


def _value(text: str) -> Any:
    for read in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError):
            return read(text)
    return text


def seed_number(text: str) -> int:
    """The ``type`` of an argument that is a seed."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no seed; give a whole number of 0 or more")
    return int(text)


def make_env(id: str, pairs: Iterable[str]) -> AnyEnv:
    """The bare environment; whatever is wrong with the id, the package or the arguments is a RollError."""
    kwargs = parse_kwargs(pairs)
    try:
        return registry.build(id, kwargs)
    except RollError:
        raise
    except (Exception, SystemExit) as error:  # the constructor is code of others
        said = f"{type(error).__name__}: {error}"
        raise ConfigError(f"environment {id!r} with {kwargs} cannot be made: {said}") from error


def coloured() -> bool:
    """Whether to use colours: a terminal, and no ``NO_COLOR`` (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, *styles: str) -> str:
    """``text`` in the given styles (``bold``, ``red``...) where colours are used."""
    if not text or not coloured():
        return text
    return f"\x1b[{';'.join(str(_CODES[s]) for s in styles)}m{text}\x1b[0m"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as aligned columns; cells may be painted."""

    def size(cell: str) -> int:
        return len(_PAINTED.sub("", cell))

    widths = [max(map(size, column)) for column in zip(*rows, strict=True)]
    padded = ([cell + " " * (width - size(cell)) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return "\n".join("  ".join(row).rstrip() for row in padded)


def silent(on: bool) -> AbstractContextManager[object]:
    """A block whose prints go nowhere when ``on``: with ``--json``, stdout holds nothing else."""
    return contextlib.redirect_stdout(io.StringIO()) if on else contextlib.nullcontext()


def print_json(value: Any) -> None:
    """Write ``value`` as JSON on stdout (ASCII, so that any text survives any terminal)."""
    json.dump(value, sys.stdout, indent=2, default=lambda v: dict(v) if isinstance(v, Mapping) else str(v))
    sys.stdout.write("\n")
