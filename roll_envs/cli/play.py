"""Play an environment yourself: single keys in a terminal, typed lines otherwise (or with --typed).

Lines may come from a pipe: printf 'Left\\nUp\\n' | roll-envs play roll/SimpleSokoban-v0 --seed 3. Where the environment
lists what can be done, type the number of an action, or the first letter of a form and the words to fill in.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import os
import re
import select
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence

try:
    import termios
    import tty
except ImportError:  # not a Unix terminal: answers are typed as lines
    HAVE_KEYS = False
else:
    HAVE_KEYS = True

from roll_envs.cli.common import add_kwargs, coloured, make_env, paint, parse_kwargs, print_json
from roll_envs.cli.session import Session

__all__ = ["SUMMARY", "action_keys", "add_arguments", "draw", "legend", "run"]

SUMMARY = "play an environment yourself"

_CLEAR, _HIDE_CURSOR, _SHOW_CURSOR = "\x1b[H\x1b[2J", "\x1b[?25l", "\x1b[?25h"
_ENTER, _LEAVE = "\x1b[?1049h" + _HIDE_CURSOR, _SHOW_CURSOR + "\x1b[?1049l"
_COMMANDS = "u undo, h hint, r new episode, ? rules, q quit"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``ID [--seed N] [--options ...] [--typed] [--kwargs ...]``."""
    parser.add_argument("id", metavar="ID")
    parser.add_argument("--seed", type=int, help="seed of the first episode (default: a random one, which is shown)")
    parser.add_argument(
        "--options", nargs="+", default=[], metavar="KEY=VALUE", help="options of the first reset, such as session=5"
    )
    parser.add_argument("--typed", action="store_true", help="type answers instead of pressing keys")
    add_kwargs(parser)


def run(options: argparse.Namespace) -> int:
    """Play until q or the end of the input; with --json the last episode is printed as JSON."""
    reset_options = parse_kwargs(options.options, "--options")
    env = make_env(options.id, options.kwargs)
    try:
        session = Session(env, options.seed, reset_options)
        keys = action_keys(session.format.actions) if session.format is not None else {}
        terminal = sys.stdin.isatty() and sys.stdout.isatty()
        if terminal and HAVE_KEYS and keys and not options.typed and not options.json:
            _play_keys(session, keys)
        else:
            _play_lines(session, quiet=options.json)
        if options.json:
            print_json(session.record())
        return 0
    finally:
        env.close()


def _play_lines(session: Session, *, quiet: bool) -> None:
    meanings, colours = legend(session.instructions), coloured()

    def show(*texts: str) -> None:
        if not quiet:
            print(*texts, sep="\n", flush=True)

    width = max(30, shutil.get_terminal_size().columns - 2)

    def head() -> str:
        limit = f" of {session.max_turns}" if session.max_turns is not None else ""
        place = f"turn {len(session.turns)}{limit} · " if session.lists_actions else ""
        return paint(place + session.message, "dim", on=colours)

    def board() -> str:
        if session.lists_actions:
            return session.choices.view(session.observation, width=width, on=colours)
        drawn = draw(session.observation, meanings, wide=False, on=colours)
        return _wrapped(drawn, width) if drawn == session.observation and interactive else drawn

    def view() -> tuple[str, str]:
        # A page may be long: what happened stands below it, beside the prompt.
        return (board(), head()) if session.lists_actions else (head(), board())

    interactive = sys.stdin.isatty() and not quiet
    if interactive:
        how = f"Type {session.choices.usage() or 'an action'}." if session.choices else "Type an action."
        show(_wrapped(session.instructions, width), "", f"{how} Also: {_COMMANDS}.", "")
    show(*view())
    while True:
        try:
            typed = input("> " if interactive else "").strip("\r\n")
        except EOFError:
            break
        if typed.strip() == "q":
            break
        _line(session, typed)
        if typed.strip() == "?":
            show(_wrapped(session.instructions, width) if interactive else session.instructions)
        else:
            show(*view())
    if session.turns and not session.over:
        show(f"stopped after {len(session.turns)} turns, return {session.total:+g}")


def _wrapped(text: str, width: int) -> str:
    """Lines that are too long broken at spaces; short ones, boards above all, as they are."""
    lines = [
        part for line in text.split("\n") for part in ([line] if len(line) <= width else textwrap.wrap(line, width))
    ]
    return "\n".join(lines)


def _command(session: Session, word: str) -> bool:
    """Do what a command's letter says; ``False`` for any other word."""
    commands = {"u": session.undo, "h": session.hint, "o": session.hint, "r": session.start}
    if word not in commands:
        return word == "?"
    commands[word]()
    return True


def _line(session: Session, typed: str) -> None:
    """Do what a typed line says: a command, ``=any text``, or an action."""
    word = typed.strip()
    if typed.startswith("="):
        session.answer(typed[1:])
    elif session.format is not None and session.format.parse(word).valid:
        session.act(typed)  # an action that is called like a command wins
    elif not _command(session, word):
        session.act(typed)


def _play_keys(session: Session, keys: dict[str, str]) -> None:
    sys.stdout.write(_ENTER)
    try:
        with raw_keys() as ask:
            while True:
                _draw_screen(session, keys, rules=False)
                key = read_key()
                if key == "?":
                    _draw_screen(session, keys, rules=True)
                    key = read_key() and "esc"
                if key in ("", "q", "Q"):
                    break
                if key in keys:
                    session.act(keys[key])
                elif key == "\n" and session.over:
                    session.start()
                elif key == "t":
                    _type_answer(session, ask)
                elif not _command(session, key) and key not in ("esc", "\n"):
                    session.message = f"{key!r} does nothing here"
    except KeyboardInterrupt:
        pass
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
    state = "solved" if session.success else "over" if session.over else "unfinished"
    said = f"{state} after {len(session.turns)} turns, return {session.total:+g}"
    print(f"{session.record()['id']} seed {session.seed}: {said}")


def _type_answer(session: Session, ask: Callable[[str], str]) -> None:
    sys.stdout.write(_SHOW_CURSOR)
    typed = ask("  answer> ")
    sys.stdout.write(_HIDE_CURSOR)
    if typed:
        _line(session, typed)


def _draw_screen(session: Session, keys: dict[str, str], *, rules: bool) -> None:
    on, width = coloured(), max(30, shutil.get_terminal_size().columns - 2)

    def wrapped(text: str) -> str:
        return textwrap.fill(text, width, initial_indent="  ", subsequent_indent="  ")

    limit = f" of {session.max_turns}" if session.max_turns is not None else ""
    lines = [
        f"  {paint(str(session.record()['id']), 'bold', on=on)}   seed {session.seed}",
        f"  turn {len(session.turns)}{limit}   return {session.total:+g}",
        "",
    ]
    if rules:
        lines += [*map(wrapped, session.instructions.splitlines()), "", paint("  any key goes back", "dim", on=on)]
    else:
        meanings = legend(session.instructions)
        status = ("green", "bold") if session.success else ("red",) if session.over else ("bold",)
        symbols = "   ".join(f"{symbol} {meaning}" for symbol, meaning in meanings.items())
        lines += [
            textwrap.indent(draw(session.observation, meanings, wide=True, on=on), "    "),
            "",
            paint(wrapped(session.message), *status, on=on),
            "",
            *([paint(wrapped(symbols), "dim", on=on)] if symbols else []),
            paint(wrapped(_help(keys, over=session.over)), "dim", on=on),
        ]
    sys.stdout.write(_CLEAR + "\n".join(lines) + "\n")
    sys.stdout.flush()


def _help(keys: dict[str, str], *, over: bool) -> str:
    if over:
        return "Enter or r new episode   u take the last turn back   q quit"
    moves = "arrows or wasd move   " if "w" in keys or "up" in keys else ""
    digits = "".join(f"{key} {name}   " for key, name in keys.items() if key.isdigit())
    return f"{moves}{digits}u undo   h hint   r new episode   t type an answer   ? rules   q quit"


# -- single keys of a terminal -----------------------------------------------------------------------------------------

_ARROWS = {"A": "up", "B": "down", "C": "right", "D": "left"}
_WASD = {"w": "up", "s": "down", "d": "right", "a": "left"}


def action_keys(actions: Sequence[str]) -> dict[str, str]:
    """Key -> action name: arrows and wasd where the actions are directions, digits 1 to 9 for the others.

    ``action_keys(["Up", "Jump"])`` is ``{"up": "Up", "w": "Up", "1": "Jump"}``.
    """
    directions = {name.lower(): name for name in actions if name.lower() in _ARROWS.values()}
    keys = dict(directions)
    keys.update({key: directions[way] for key, way in _WASD.items() if way in directions})
    others = [name for name in actions if name.lower() not in directions]
    if len(others) <= 9:
        keys.update({str(i): name for i, name in enumerate(others, start=1)})
    return keys


@contextlib.contextmanager
def raw_keys() -> Iterator[Callable[[str], str]]:
    """The terminal gives every key at once and shows none, until the end of the block; Ctrl-C still interrupts.

    Yields a function that asks for a whole line in between, shown and edited as usual.
    """
    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)

    def ask(prompt: str) -> str:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)
        try:
            return input(prompt)
        except EOFError:
            return ""
        finally:
            tty.setcbreak(handle)

    tty.setcbreak(handle)
    try:
        yield ask
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


def read_key() -> str:
    """The next key: a character, ``up``/``down``/``left``/``right``, or empty at the end of the input."""
    handle = sys.stdin.fileno()
    first = os.read(handle, 1)
    if first != b"\x1b":
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        while not (key := decoder.decode(first, final=not first)) and first:
            first = os.read(handle, 1)
        return key
    # An arrow is ESC [ A or ESC O A; a lone ESC is followed by nothing.
    rest = b""
    while len(rest) < 6 and select.select([handle], [], [], 0.03)[0]:
        rest += os.read(handle, 1)
        if len(rest) > 1 and rest[-1:].isalpha():
            break
    return _ARROWS.get(rest[-1:].decode(errors="replace"), "esc") if rest[:1] in (b"[", b"O") else "esc"


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


def draw(observation: str, meanings: dict[str, str], *, wide: bool, on: bool) -> str:
    """The board in colours, with a space between symbols when ``wide``; other text unchanged."""
    lines = observation.split("\n")
    symbols = {c for line in lines for c in line if not c.isspace()}
    if len(lines) < 2 or not symbols or not symbols <= set(meanings):
        return observation
    styles = {symbol: _style(meanings[symbol]) for symbol in symbols}
    spaced = wide and not any(c.isspace() for line in lines for c in line)
    gap = " " if spaced else ""
    return "\n".join(gap.join(paint(c, *styles[c], on=on) if c in styles else c for c in line) for line in lines)


def _style(meaning: str) -> tuple[str, ...]:
    return next((style for word, style in _STYLES if word in meaning), ("bold",))
