"""The command ``roll-envs``: its commands, its arguments, and how its errors end: one line on stderr and exit code 2.

Nine are built in; more are entry points of the group ``roll_envs.commands``. The name of an entry point is the
command, its target a module with ``SUMMARY`` (one line of text), ``add_arguments(parser)`` and ``run(options) -> int``.
Listing commands reads metadata and the text of their files; code runs only when its command is used. A broken one is a
:class:`~roll_envs.errors.PluginError` of its own command and touches no other. A name that is built in stays so, and
using it looks at no other package.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, Protocol, cast

from roll_envs.cli.common import table
from roll_envs.errors import ConfigError, PluginError, RollError
from roll_envs.registry import Registry, error_and_place, located


class CommandModule(Protocol):
    """What the module of a command has."""

    SUMMARY: str
    """One line for ``roll-envs --help``."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's own arguments; ``--json`` is there already."""

    def run(self, options: argparse.Namespace) -> int:
        """Do it; the exit code. A :class:`~roll_envs.errors.RollError` ends as one line and exit code 2."""


def _accept(name: str, found: object) -> CommandModule:
    missing = [needed for needed in ("SUMMARY", "add_arguments", "run") if not hasattr(found, needed)]
    if missing:
        raise TypeError(f"it lacks {', '.join(missing)}")
    return cast(CommandModule, found)


COMMANDS = Registry(
    "command",
    "roll_envs.commands",
    _accept,
    built_in={
        "list": "roll_envs.cli.listing",
        "show": "roll_envs.cli.show",
        "parts": "roll_envs.cli.parts",
        "play": "roll_envs.cli.play",
        "check": "roll_envs.cli.checking",
        "bench": "roll_envs.cli.bench",
        "replay": "roll_envs.cli.replay",
        "data": "roll_envs.cli.data",
        "init": "roll_envs.cli.init",
    },
    name_pattern=r"[a-z][a-z0-9-]*",
)


def summary(name: str) -> str:
    """The ``SUMMARY`` of a command as it stands in its file, which is not run; else which package it is of."""
    declared = COMMANDS.declared(name)
    if declared is None:
        return COMMANDS.find(name).SUMMARY
    if broken := COMMANDS.unusable(name):
        return f"broken: {broken}"
    module = declared.point.module
    try:
        # The finder of an editable installation knows a folder that is not on the path; no package is imported for it.
        spec = importlib.util.find_spec(module.partition(".")[0])
        edited = [Path(folder).parent for folder in (spec and spec.submodule_search_locations) or ()]
        found = located(module, [declared.root, *edited])
        for node in ast.parse(found[1].read_bytes() if found else "").body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and re.match(r"SUMMARY\b", ast.unparse(node)):
                return " ".join(str(ast.literal_eval(node.value or node)).split())
    except Exception:  # a file of others that cannot be read or parsed, or a summary that is computed
        pass
    return f"a command of {declared.source}"


@contextmanager
def _blamed(name: str, message: Callable[[BaseException], str]) -> Iterator[None]:
    """Errors of another package's command become a :class:`PluginError`; those of built-in ones are left alone.

    The message names the package and the line where the error was raised; a ``RollError`` is for users as it is.
    """
    try:
        yield
    except (RollError, BrokenPipeError):
        raise
    except (Exception, SystemExit) as error:
        if COMMANDS.declared(name) is None:
            raise
        raise PluginError(message(error)) from error


class _Parser(argparse.ArgumentParser):
    """Keeps the lines of descriptions, which hold examples; a mistake is one line that names the help."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **settings)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code (0 done, 1 a check failed, 2 an error, 130 interrupted)."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # what the terminal's encoding has not is no error
    name, *given = (sys.argv[1:] if argv is None else argv) or [""]
    try:
        code = _help() if name in ("-h", "--help") else _run(name, given)
        sys.stdout.flush()
        return code
    except RollError as error:
        return _fail(str(error))
    except BrokenPipeError:  # the reader of our output has gone (roll-envs list | head -1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:  # argparse: --help, or an error it has printed
        return end.code if isinstance(end.code, int) else 2


def _help() -> int:
    names = sorted(COMMANDS.names(), key=lambda name: name not in COMMANDS.built_in())  # ours first
    listed = table([(f"  {name}", summary(name)) for name in names])
    print(f"usage: roll-envs COMMAND [...]\n\nMulti-turn text environments.\n\n{listed}\n")
    print("roll-envs COMMAND --help tells the arguments of a command.")
    return 0


def _run(name: str, given: Sequence[str]) -> int:
    if not name or name.startswith("-"):
        raise ConfigError(f"a COMMAND comes first{name and f', not {name!r}'} (see roll-envs --help)")
    command = COMMANDS.find(name)
    parser = _Parser(prog=f"roll-envs {name}", description=command.__doc__, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else, on stdout")
    with _blamed(name, lambda error: COMMANDS.broken(name, f"its arguments: {error_and_place(error)}")):
        command.add_arguments(parser)
    try:  # positional arguments may stand between options
        options = parser.parse_intermixed_args(given)
    except TypeError:  # not for a command with commands of its own
        options = parser.parse_args(given)
    with _blamed(name, lambda error: f"command {name!r} of {COMMANDS.source(name)} failed: {error_and_place(error)}"):
        code: Any = command.run(options)
    if not isinstance(code, int):
        raise PluginError(COMMANDS.broken(name, f"run returned {code!r}, not an exit code"))
    return code


def _fail(message: str) -> int:
    print(f"roll-envs: error: {' '.join(message.split())}", file=sys.stderr)
    return 2
