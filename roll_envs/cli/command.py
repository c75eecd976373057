"""Arguments of ``roll-envs``, and how its errors end: one line on stderr and exit code 2.

Six commands are built in; more come from installed packages (see :mod:`roll_envs.cli.plugins`). A name that is built
in stays so, and using it looks at no other package.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from roll_envs.cli.plugins import COMMANDS, add_arguments, run, summary
from roll_envs.errors import RollError, nearest

__all__ = ["main"]

if TYPE_CHECKING:
    _Commands = argparse._SubParsersAction["_Parser"]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def _parser(used: str) -> _Parser:
    parser = _Parser(prog="roll-envs", description="Multi-turn text environments: list, show, play, check, bench.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in _names(used):
        described = COMMANDS.find(name).__doc__ if name == used else None
        sub = _add(commands, name, summary(name), described)
        if name == used:
            add_arguments(name, sub)
    return parser


def _names(used: str) -> list[str]:
    """The commands to show: all of them, or the built-in one that is used, which needs no look at any package."""
    built_in = list(COMMANDS.built_in())
    return [used] if used in built_in else built_in + [name for name in COMMANDS.names() if name not in built_in]


def _add(commands: _Commands, name: str, summary: str, description: str | None) -> _Parser:
    safe = summary.replace("%", "%%")  # argparse formats it
    sub = commands.add_parser(name, help=safe, description=description, allow_abbrev=False)
    sub.add_argument("--json", action="store_true", help="print JSON, and nothing else, on stdout")
    return sub


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
        code = run(options.command, options)
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
