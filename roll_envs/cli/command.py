"""Arguments of ``roll-envs``, and how its errors end: one line on stderr and exit code 2."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from roll_envs.cli import bench, checking, listing, play, show
from roll_envs.errors import RollError, nearest

__all__ = ["main"]

_COMMANDS = {
    "list": (listing, "known environments and their state"),
    "show": (show, "the card of an environment, its arguments and an example"),
    "play": (play, "play an environment yourself"),
    "check": (checking, "validate environments; exit code 1 when a rule fails"),
    "bench": (bench, "resets and steps per second"),
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def _parser() -> _Parser:
    parser = _Parser(prog="roll-envs", description="Multi-turn text environments: list, show, play, check, bench.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, summary) in _COMMANDS.items():
        sub = commands.add_parser(name, help=summary, description=module.__doc__, allow_abbrev=False)
        sub.add_argument("--json", action="store_true", help="print JSON, and nothing else, on stdout")
        module.add_arguments(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code (0 done, 1 a check failed, 2 an error, 130 interrupted)."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given and not given[0].startswith("-") and given[0] not in _COMMANDS:
        near = nearest(given[0], _COMMANDS)
        advice = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(_COMMANDS)}"
        return _fail(f"no command {given[0]!r}; {advice}")
    try:
        options = _parser().parse_args(given)
        code: int = _COMMANDS[options.command][0].run(options)
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
