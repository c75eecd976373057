"""What the commands have in common: exit statuses, messages for mistakes, overrides and numbers among their arguments.

A user's mistake is one message on stderr and exit status 2; Ctrl-C exits with 130.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence

from roll_envs.errors import MissingExtraError, RollError, UnknownNameError, nearest

__all__ = ["INTERRUPTED", "MISTAKE", "OK", "add_overrides", "check_command", "guarded", "number"]

OK, MISTAKE, INTERRUPTED = 0, 2, 130
_EXTRA_MODULES = ("yaml", "rich", "torch", "transformers", "tokenizers", "safetensors", "matplotlib", "tensorboard")


def guarded(command: str, work: Callable[[], int]) -> int:
    """The exit status of ``work``, with an error that a user can mend as one message that begins with ``command``."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    status = _status(command, work)
    try:
        sys.stdout.flush()
    except OSError:
        # The disk is full, or the reader (head, less) went away; nothing that follows can be shown.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return status or 1
    return status


def _status(command: str, work: Callable[[], int]) -> int:
    try:
        return work()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA_MODULES:
            raise
        return _complain(command, str(MissingExtraError(f"{command} ({error.name})", "train")))
    except RollError as error:
        return _complain(command, str(error))
    except KeyboardInterrupt:
        print(f"{command}: stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        return 1


def _complain(command: str, message: str) -> int:
    lines = message.splitlines()
    text = f"{command}: {message}" if len(lines) == 1 else f"{command}:\n" + "\n".join(f"  {line}" for line in lines)
    print(text, file=sys.stderr)
    return MISTAKE


def check_command(arguments: Sequence[str], commands: Iterable[str], kind: str) -> None:
    """Raise :class:`UnknownNameError` where the first argument is almost a command, and no file or folder either.
    ``kind`` says what may stand there."""
    word = arguments[0] if arguments else ""
    if word.isalpha() and not os.path.exists(word) and nearest(word, commands):
        raise UnknownNameError(kind, word, commands)


def add_overrides(parser: argparse.ArgumentParser, laid_over: str = "keys laid over the file") -> None:
    """Add the argument ``overrides``, any number of ``key=value``; ``laid_over`` is what its help says."""
    parser.add_argument("overrides", metavar="key=value", nargs="*", default=[], help=laid_over)


def number(
    kind: type[int] | type[float], least: int, *, above: bool = False, most: int | None = None
) -> Callable[[str], float]:
    """A reader of numbers for argparse: of at least so much, or above it, and at most so much."""

    def read(text: str) -> float:
        with contextlib.suppress(ValueError):
            value = kind(text)
            if least <= value < float("inf") and not (above and value == least) and (most is None or value <= most):
                return value
        whole = "whole number" if kind is int else "number"
        bounds = (f"above {least}" if above else f"of {least} or more") + ("" if most is None else f", at most {most}")
        raise argparse.ArgumentTypeError(f"{text!r} is not a {whole} {bounds}")

    return read
