"""Play an environment yourself: single keys in a terminal, typed lines otherwise (or with --typed).

Lines may come from a pipe: printf 'Left\\nUp\\n' | roll-envs play roll/SimpleSokoban-v0 --seed 3. Where the environment
lists what can be done, type the number of an action, or the first letter of a form and the words to fill in.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from roll_envs.cli.common import add_kwargs, make_env, paint, parse_kwargs, print_json, seed_number, silent
from roll_envs.cli.session import Session
from roll_envs.errors import ConfigError

SUMMARY = "play an environment yourself"

_COMMANDS = {"u": Session.undo, "h": Session.hint, "o": Session.hint, "r": Session.start}
_COMMANDS_SAID = "u undo, h hint, r new episode, ? rules, q quit"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``ID [--seed N] [--options ...] [--typed] [--kwargs ...]``."""
    parser.add_argument("id", metavar="ID")
    parser.add_argument(
        "--seed", type=seed_number, help="seed of the first episode (default: a random one, which is shown)"
    )
    parser.add_argument(
        "--options", nargs="+", default=[], metavar="KEY=VALUE", help="options of the first reset, such as session=5"
    )
    parser.add_argument("--typed", action="store_true", help="type answers instead of pressing keys")
    add_kwargs(parser)


def run(options: argparse.Namespace) -> int:
    """Play until q or the end of the input; with --json the last episode is printed as JSON, and a person at a terminal
    sees the game on stderr."""
    reset_options, asked = parse_kwargs(options.options, "--options"), sys.stdin.isatty()
    shown = contextlib.redirect_stdout(sys.stderr) if options.json and asked else silent(options.json)
    with contextlib.closing(make_env(options.id, options.kwargs)) as env, shown:
        if not isinstance(env.action_space.sample(), str):
            raise ConfigError(
                f"{options.id} is not played with text, but with actions of {env.action_space}; roll_envs.adapt makes "
                "a text environment of it"
            )
        session = Session(env, options.seed, reset_options)
        keys = action_keys(session.format.actions) if session.format is not None else {}
        # On systems without Unix terminals answers are typed as lines.
        terminal = asked and sys.stdout.isatty() and os.name == "posix"
        if terminal and keys and not options.typed:
            _play_keys(session, keys)
        else:
            _play_lines(session, asked=asked)
    if options.json:
        print_json(session.record())
    return 0


def _width() -> int:
    return max(30, shutil.get_terminal_size().columns - 2)


# -- typed lines -------------------------------------------------------------------------------------------------------


def _play_lines(session: Session, *, asked: bool) -> None:
    """``asked``: a person types, who is told what can be typed and gets long lines wrapped."""
    rules = _wrapped(session.instructions) if asked else session.instructions
    if asked:
        how = f"Type {session.choices.usage() or 'an action'}." if session.choices else "Type an action."
        print(rules, "", f"{how} Also: {_COMMANDS_SAID}.", "", sep="\n")
    typed = ""
    while True:
        print(rules if typed.strip() == "?" else _shown(session, wrap=asked), flush=True)
        try:
            typed = input("> " if asked else "").strip("\r\n")
        except EOFError:
            break
        if typed.strip() == "q":
            break
        _play_line(session, typed)
    if session.turns and not session.over:
        print(f"stopped after {len(session.turns)} turns, return {session.total:+g}")


def _play_line(session: Session, typed: str) -> None:
    """Do what a typed line says: a command, ``=any text``, or an action; one that is called like a command wins."""
    word = typed.strip()
    if typed.startswith("="):
        session.answer(typed[1:])
    elif word not in (*_COMMANDS, "?") or (session.format is not None and session.format.parse(word).valid):
        session.act(typed)
    elif word in _COMMANDS:
        _COMMANDS[word](session)


def _shown(session: Session, *, wrap: bool) -> str:
    if session.lists_actions:
        # A page may be long: what happened stands below it, beside the prompt.
        page = session.choices.view(session.observation, width=_width())
        return f"{page}\n{paint(f'{session.progress} · {session.message}', 'dim')}"
    board = draw(session.observation, legend(session.instructions), gap="")
    shown = _wrapped(board) if wrap and board == session.observation else board
    return f"{paint(session.message, 'dim')}\n{shown}"


def _wrapped(text: str) -> str:
    """Lines that are too long broken at spaces; short ones, boards above all, as they are."""
    width = _width()
    return "\n".join(line if len(line) <= width else textwrap.fill(line, width) for line in text.split("\n"))


# -- single keys of a terminal -----------------------------------------------------------------------------------------

_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
_ENTER, _CLEAR, _LEAVE = "\x1b[?1049h" + _HIDE_CURSOR, "\x1b[H\x1b[2J", _SHOW_CURSOR + "\x1b[?1049l"
_ARROWS = {"A": "up", "B": "down", "C": "right", "D": "left"}
_WASD = {"w": "up", "s": "down", "d": "right", "a": "left"}
_KEY = re.compile(r"\x1b(?:[\[O][\d;]*([A-Za-z~]))?|.", re.DOTALL)


def _play_keys(session: Session, keys: Mapping[str, str]) -> None:
    sys.stdout.write(_ENTER)
    pressed, rules = pressed_keys(), False
    try:
        while True:
            print(_CLEAR + _screen(session, keys, rules=rules), flush=True)
            key = next(pressed, "q")
            if rules or key == "?":
                rules = not rules
            elif key in ("q", "Q"):
                break
            elif key in keys:
                session.act(keys[key])
            elif key == "\n" and session.over:
                session.start()
            elif key == "t":
                with contextlib.suppress(EOFError):
                    if typed := input(f"{_SHOW_CURSOR}  answer> "):
                        _play_line(session, typed)
                sys.stdout.write(_HIDE_CURSOR)
            elif key in _COMMANDS:
                _COMMANDS[key](session)
            elif key not in ("esc", "\n"):
                session.message = f"{key!r} does nothing here"
    except KeyboardInterrupt:
        pass
    finally:
        print(_LEAVE, end="", flush=True)
    state = "solved" if session.success else "over" if session.over else "unfinished"
    said = f"{state} after {len(session.turns)} turns, return {session.total:+g}"
    print(f"{session.record()['id']} seed {session.seed}: {said}")


def pressed_keys() -> Iterator[str]:
    """The keys of the terminal as they are pressed: characters, ``up``/``down``/``left``/``right``, ``esc`` for others.

    Between two keys the terminal is as it was, so that a line can be asked for; Ctrl-C interrupts at any time.
    """
    import termios  # here, because only Unix has them
    import tty

    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    while True:
        try:
            tty.setcbreak(handle, termios.TCSADRAIN)  # keeps what was pressed meanwhile
            read = os.read(handle, 64).decode(errors="replace")
        finally:
            termios.tcsetattr(handle, termios.TCSADRAIN, before)
        if not read:
            return
        for found in _KEY.finditer(read):
            yield _ARROWS.get(found[1], "esc") if found[0].startswith("\x1b") else found[0]


def action_keys(actions: Sequence[str]) -> dict[str, str]:
    """Key -> action name: arrows and wasd where the actions are directions, digits 1 to 9 for the others.

    ``action_keys(["Up", "Jump"])`` is ``{"up": "Up", "w": "Up", "1": "Jump"}``.
    """
    directions = {name.lower(): name for name in actions if name.lower() in _ARROWS.values()}
    letters = {key: directions[way] for key, way in _WASD.items() if way in directions}
    others = [name for name in actions if name.lower() not in directions]
    digits = {str(i): name for i, name in enumerate(others, start=1)} if len(others) <= 9 else {}
    return {**directions, **letters, **digits}


def _screen(session: Session, keys: Mapping[str, str], *, rules: bool) -> str:
    def wrapped(text: str) -> str:
        return textwrap.fill(text, _width(), initial_indent="  ", subsequent_indent="  ")

    head = f"  {paint(str(session.record()['id']), 'bold')}   seed {session.seed}\n"
    head += f"  {session.progress}   return {session.total:+g}\n\n"
    if rules:
        return "\n".join(
            [head, *map(wrapped, session.instructions.splitlines()), "", paint("  any key goes back", "dim")]
        )
    meanings = legend(session.instructions)
    status = ("green", "bold") if session.success else ("red",) if session.over else ("bold",)
    symbols = "   ".join(f"{symbol} {meaning}" for symbol, meaning in meanings.items())
    board = textwrap.indent(draw(session.observation, meanings, gap=" "), "    ")
    below = [paint(wrapped(text), "dim") for text in (symbols, _help(keys, over=session.over)) if text]
    return "\n".join([f"{head}{board}\n", paint(wrapped(session.message), *status), "", *below])


def _help(keys: Mapping[str, str], *, over: bool) -> str:
    if over:
        return "Enter or r new episode   u take the last turn back   q quit"
    moves = "arrows or wasd move   " if "w" in keys or "up" in keys else ""
    digits = "".join(f"{key} {name}   " for key, name in keys.items() if key.isdigit())
    return f"{moves}{digits}u undo   h hint   r new episode   t type an answer   ? rules   q quit"


# -- colours for observations that are boards of symbols ---------------------------------------------------------------

_MEANING = re.compile(r"(?:^|[\s,])(\S): ([a-z][a-z ]*)", re.MULTILINE)
_STYLES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("on target", ("green", "bold")),
    ("on goal", ("green", "bold")),
    ("hole", ("red",)),
    ("player", ("cyan", "bold")),
    ("wall", ("dim",)),
    ("box", ("yellow", "bold")),
    ("target", ("magenta", "bold")),
    ("goal", ("magenta", "bold")),
    ("empty", ("dim",)),
    ("floor", ("dim",)),
    ("frozen", ("blue",)),
)
"""The first word found in a symbol's meaning gives its style."""


def legend(instructions: str) -> dict[str, str]:
    """Symbols and their meanings, as far as the instructions list them in the form ``#: wall, _: empty``."""
    return dict(_MEANING.findall(instructions))


def draw(observation: str, meanings: Mapping[str, str], *, gap: str) -> str:
    """The board in colours, with ``gap`` between symbols where they stand side by side; other text unchanged."""
    symbols = set(observation) - set(" \t\n")
    if "\n" not in observation or not symbols or not symbols <= set(meanings):
        return observation
    styles = {s: next((style for word, style in _STYLES if word in meanings[s]), ("bold",)) for s in symbols}
    gap = "" if set(observation) & set(" \t") else gap
    lines = observation.split("\n")
    return "\n".join(gap.join(paint(c, *styles[c]) if c in styles else c for c in line) for line in lines)
