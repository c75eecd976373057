"""The command ``roll-envs``: its commands, its arguments, and how its errors end: one line on stderr and exit code 2.

Six commands are built in; more are entry points of the group ``roll_envs.commands``. The name of an entry point is the
command, its target a module with ``SUMMARY`` (one line of text), ``add_arguments(parser)`` and ``run(options) -> int``.
Listing commands reads metadata and the text of their files; code runs only when its command is used. A broken one is a
:class:`~roll_envs.errors.PluginError` of its own command and touches no other. A name that is built in stays so, and
using it looks at no other package.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol, cast

from roll_envs.errors import PluginError, RollError, nearest
from roll_envs.registry import Declared, Registry, error_and_place, located

__all__ = ["COMMANDS", "CommandModule", "main"]


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
    },
    name_pattern=r"[a-z][a-z0-9-]*",
)


def summary(name: str) -> str:
    """The ``SUMMARY`` of a command where the file can be read without running it, else which package it is of."""
    declared = COMMANDS.declared(name)
    if declared is None:
        return COMMANDS.find(name).SUMMARY
    if broken := COMMANDS.unusable(name):
        return f"broken: {broken}"
    return _summary_in_file(declared) or f"a command of {COMMANDS.source(name)}"


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


def _summary_in_file(declared: Declared) -> str:
    """The text assigned to ``SUMMARY`` in a module's file, which is not imported; empty when it is not found."""
    found = located(declared.point.module, [declared.root])
    try:
        for node in ast.parse(found[1].read_bytes() if found else "").body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and re.match(r"SUMMARY\b", ast.unparse(node)):
                return " ".join(str(ast.literal_eval(node.value or node)).split())
    except Exception:  # files of others; the caller has another line to show
        return ""
    return ""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def _parser(used: str) -> _Parser:
    parser = _Parser(prog="roll-envs", description="Multi-turn text environments: list, show, play, check, bench.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in _names(used):
        safe = summary(name).replace("%", "%%")  # argparse formats it
        description = COMMANDS.find(name).__doc__ if name == used else None
        sub = commands.add_parser(name, help=safe, description=description, allow_abbrev=False)
        sub.add_argument("--json", action="store_true", help="print JSON, and nothing else, on stdout")
        if name == used:
            with _blamed(name, lambda error: COMMANDS.broken(used, f"its arguments: {error_and_place(error)}")):
                COMMANDS.find(name).add_arguments(sub)
    return parser


def _run(name: str, options: argparse.Namespace) -> int:
    with _blamed(name, lambda error: f"command {name!r} of {COMMANDS.source(name)} failed: {error_and_place(error)}"):
        code: Any = COMMANDS.find(name).run(options)
    if not isinstance(code, int):
        raise PluginError(COMMANDS.broken(name, f"run returned {code!r}, not an exit code"))
    return code


def _names(used: str) -> list[str]:
    """The commands to show: all of them, or the built-in one that is used, which needs no look at any package."""
    built_in = list(COMMANDS.built_in())
    return [used] if used in built_in else built_in + [name for name in COMMANDS.names() if name not in built_in]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code (0 done, 1 a check failed, 2 an error, 130 interrupted)."""
    given = list(sys.argv[1:] if argv is None else argv)
    used = given[0] if given else ""
    if used and not used.startswith("-") and used not in COMMANDS:
        known = _names(used)
        near = nearest(used, known)
        advice = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known)}"
        return _fail(f"no command {used!r}; {advice}")
    try:
        options = _parser(used).parse_args(given)
        code = _run(options.command, options)
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


def _fail(message: str) -> int:
    print(f"roll-envs: error: {' '.join(message.split())}", file=sys.stderr)
    return 2
