"""A game in progress: what ``play`` does to the environment, and the actions it lists, without any terminal."""

from __future__ import annotations

import random
import re
import textwrap
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from roll_envs.cli.common import paint
from roll_envs.env import AnyEnv, TextEnv
from roll_envs.errors import ConfigError
from roll_envs.parsing import ActionFormat, FreeFormat

COMMAND_LETTERS = frozenset("uhorq?t")
"""What a single letter means in ``play``; no action goes by one of these."""

_MOST_UNDO = 200
"""Older turns cannot be taken back, so that a long game does not grow."""

_PLACEHOLDER = re.compile(r"<[^<>]*>")
_LEADING_WORD = re.compile(r"\w+")
_BRACKETED = re.compile(r"\w+\[(.*)\]", re.DOTALL)
_SEPARATOR = " [SEP] "
"""What text forms of web pages put between their parts; shown as line breaks."""

_BUTTON = re.compile(r"\[(clicked )?button\] (.*) \[\1?button_\]")
"""How they mark buttons; shown by the number, and the clicked ones in words."""


def available_actions(info: Mapping[str, Any]) -> tuple[str, ...]:
    """The texts in ``info["available_actions"]``; empty where an environment lists none."""
    found = info.get("available_actions", ())
    if isinstance(found, str) or not isinstance(found, Sequence):
        return ()
    return tuple(action for action in found if isinstance(action, str) and action.strip())


class Choices:
    """The actions of one turn: ``fixed`` ones by number from 1, and ``forms``, which have a ``<placeholder>`` to fill
    in, by the word they begin with.

    >>> choices = Choices(["search[<words>]", "click[red]", "click[buy now]"])
    >>> choices.read("s blue shoes"), choices.read("2"), choices.read("CLICK[red]"), choices.read("buy")
    ('search[blue shoes]', 'click[buy now]', 'click[red]', None)
    """

    def __init__(self, available: Sequence[str], taken: Collection[str] = ()) -> None:
        """``taken`` are letters that mean something else already; a form is then named by its whole word."""
        unique = list(dict.fromkeys(available))
        self.fixed = tuple(action for action in unique if not _PLACEHOLDER.search(action))
        self.forms: dict[str, str] = {}
        """Short name -> form, ``{"s": "search[<words>]"}``."""
        for form in unique:
            word = _LEADING_WORD.match(form)
            if form not in self.fixed and word is not None:
                letter = word.group()[0].lower()
                short = letter if letter not in taken and letter not in self.forms else word.group().lower()
                self.forms.setdefault(short, form)

    def __bool__(self) -> bool:
        return bool(self.fixed or self.forms)

    def read(self, typed: str) -> str | None:
        """The action that ``typed`` stands for: a number, a form's name and words, or the action itself."""
        text = typed.strip()
        known = {action.lower(): action for action in self.fixed}
        known.update((str(number), action) for number, action in enumerate(self.fixed, start=1))
        if text.lower() in known:
            return known[text.lower()]
        name, _, words = text.partition(" ")
        for short, form in self.forms.items():
            before, after = _PLACEHOLDER.split(form, maxsplit=1)
            long = _LEADING_WORD.match(form)
            if words.strip() and long is not None and name.lower() in (short, long.group().lower()):
                return f"{before}{words.strip()}{after}"
            inner = text[len(before) : len(text) - len(after)]
            if text.lower().startswith(before.lower()) and text.endswith(after) and inner.strip():
                return text
        return None

    def usage(self) -> str:
        """One line that says what can be typed."""
        numbers = f"a number from 1 to {len(self.fixed)}" if len(self.fixed) > 1 else "1" if self.fixed else ""
        words = [f"{short} and words for {form}" for short, form in self.forms.items()]
        return ", ".join([part for part in (numbers, *words) if part])

    def view(self, observation: str, *, width: int) -> str:
        """The observation, wrapped, with each choice's number where its text stands; the other choices below."""
        numbers: dict[str, int] = {}
        for number, action in enumerate(self.fixed, start=1):
            inner = _BRACKETED.fullmatch(action)
            numbers.setdefault(_flat(inner.group(1) if inner else action), number)
        lines, shown = [], set()
        for line in observation.replace(_SEPARATOR, "\n").splitlines():
            # A line is marked when its text, or that of the button in it, is what a choice would click.
            button = _BUTTON.fullmatch(line.strip())
            number = numbers.get(_flat(button.group(2) if button else line), 0)
            if button:
                line = f"{button.group(2)}{' (clicked)' if button.group(1) else ''}"
            mark = f"[{number}]" if number else ""
            shown.add(number)
            wrapped = textwrap.wrap(line, max(20, width - 6), break_on_hyphens=False) or [""]
            gap = " " * (5 - len(mark))
            lines.append(f"{gap}{paint(mark, 'cyan', 'bold')} {wrapped[0]}".rstrip())
            lines += [f"      {more}" for more in wrapped[1:]]
        rest = [f"[{n}] {' '.join(a.split())}" for n, a in enumerate(self.fixed, start=1) if n not in shown]
        rest += [f"[{short} ...] {form}" for short, form in self.forms.items()]
        for entry in rest:
            lines += textwrap.wrap(entry, width, initial_indent="  ", subsequent_indent="      ")
        return "\n".join(lines)


def _flat(text: str) -> str:
    return " ".join(text.split()).lower()


class Session:
    """One player at one environment; ``message`` says what the last call did."""

    def __init__(self, env: AnyEnv, seed: int | None, options: Mapping[str, Any] | None = None) -> None:
        """``options`` go to ``reset`` of the first episode."""
        self.env = env
        self.text_env = env.unwrapped if isinstance(env.unwrapped, TextEnv) else None
        form = getattr(env.unwrapped, "action_format", None)
        self.format = form if isinstance(form, ActionFormat) else None
        self.free = form if isinstance(form, FreeFormat) else None
        self.options: dict[str, Any] = {}
        self.observation = self.message = ""
        self.turns: list[dict[str, Any]] = []
        """One entry per turn, as ``--json`` prints it."""
        self._undo: deque[tuple[str, Mapping[str, Any]]] = deque(maxlen=_MOST_UNDO)
        self._first_info: Mapping[str, Any] = {}
        self.seed, self._counted = 0, seed is not None
        self.start(seed, options)

    @property
    def over(self) -> bool:
        """Whether the episode has ended."""
        return bool(self.turns) and (self.turns[-1]["terminated"] or self.turns[-1]["truncated"])

    @property
    def success(self) -> bool:
        """What the environment said at the last turn."""
        return bool(self.turns) and bool(self.turns[-1]["info"].get("success", False))

    @property
    def total(self) -> float:
        """Sum of the rewards so far."""
        return float(sum(t["reward"] for t in self.turns))

    @property
    def progress(self) -> str:
        """How many turns were played, and of how many where the environment has a limit."""
        limit = getattr(self.env.unwrapped, "max_turns", None)
        return f"turn {len(self.turns)}" + (f" of {limit}" if isinstance(limit, int) else "")

    @property
    def instructions(self) -> str:
        """The environment's own instructions."""
        return self.text_env.instructions if self.text_env is not None else ""

    @property
    def info(self) -> Mapping[str, Any]:
        """What the environment said beside the observation that is shown."""
        return self.turns[-1]["info"] if self.turns else self._first_info

    @property
    def choices(self) -> Choices:
        """The actions that the environment lists for this turn; none when the episode is over."""
        return Choices(() if self.over else available_actions(self.info), taken=COMMAND_LETTERS)

    def start(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        """A new episode: of ``seed``, else of the seed after a given one, else of one that is drawn and named.

        Raises :class:`ConfigError` when the environment does not take the ``options``; the episode before then goes on.
        """
        if seed is None:
            seed = self.seed + 1 if self._counted else random.SystemRandom().randrange(1_000_000)
        try:
            observation, info = self.env.reset(seed=seed, **({"options": dict(options)} if options else {}))
        except (ValueError, TypeError, KeyError) as error:  # code of others
            raise ConfigError(f"reset with seed {seed} and options {dict(options or {})} failed: {error}") from error
        self.seed, self.options = seed, dict(options or {})
        self.observation, self._first_info = str(observation), info
        self.lists_actions = bool(available_actions(info))
        self.turns = []
        self._undo.clear()
        said = "".join(f", {name} {value}" for name, value in self.options.items())
        self.message = f"new episode, seed {self.seed}{said}"

    def answer(self, text: str) -> None:
        """Play ``text`` exactly as it is."""
        if self.over:
            self.message = "the episode is over: r starts a new one, u takes the last turn back"
            return
        before = (self.observation, self.text_env.snapshot()) if self.text_env is not None else None
        observation, reward, terminated, truncated, info = self.env.step(text)
        if before is not None:  # only turns that were played can be taken back, not a step that raised
            self._undo.append(before)
        self.observation = str(observation)
        ends = {"terminated": bool(terminated), "truncated": bool(truncated)}
        turn = {"answer": text, "observation": self.observation, "reward": float(reward), **ends, "info": info}
        self.turns.append(turn)
        self.message = f"{self._named(text)}: {self._what_happened(info, float(reward))}"

    def act(self, action: str) -> None:
        """Play what a person typed: an action's name in any case, or an answer in the environment's own form.

        When it is neither, nothing is played, and the message says what would be.
        """
        said = self.read(action)
        if said is not None:
            self.answer(said)
        else:
            names = self.format.actions if self.format is not None else ()
            usage = ", ".join(names[:12]) + ", ..." * (len(names) > 12) if names else self.choices.usage()
            self.message = f"{action!r} is not an action here; type {usage} (='text' plays any text)"

    def read(self, typed: str) -> str | None:
        """The answer that ``typed`` stands for; any text where the environment names and lists no actions."""
        if self.format is None:
            return self._read_free(typed)
        if self.format.parse(typed).valid:
            return typed
        lower = {name.lower(): i for i, name in enumerate(self.format.actions)}
        parts = typed.replace(self.format.separator, " ").replace(",", " ").split()
        # "up left" are two actions, but the name of one may have a space in it.
        for names in (parts, [typed.strip()]):
            indices = [lower[name.lower()] for name in names if name.lower() in lower]
            if names and len(indices) == len(names) <= self.format.max_actions:
                return self.format.format(indices)
        return None

    def _read_free(self, typed: str) -> str | None:
        """One of the listed actions, in the environment's form; ``None`` when there are some and it is none of them."""
        choices = self.choices
        # In a form with tags a person may type the whole answer, tags and all, or the action alone.
        inner = self.free.read(typed) if self.free is not None else typed
        if not choices:
            return self.free.write(typed) if self.free is not None and inner is None else typed
        if inner is not None and inner != typed.strip() and choices.read(inner) is not None:
            return typed
        action = choices.read(typed)
        return self.free.write(action) if action is not None and self.free is not None else action

    def undo(self) -> None:
        """Take the last turn back."""
        if not self._undo or self.text_env is None:
            self.message = "nothing to undo"
            return
        observation, taken = self._undo.pop()
        self.text_env.restore(taken)
        self.observation = observation
        self.turns.pop()
        self.message = f"back at turn {len(self.turns)}"

    def hint(self) -> None:
        """Say what the solver would do."""
        way = None if self.over or self.text_env is None else self.text_env.oracle()
        if way:
            left = f" ({len(way)} turns to go)" if len(way) > 1 else " (and it is won)"
            self.message = f"hint: {self._named(way[0], most=300)}{left}"
        else:
            why = "the episode is over" if self.over else "there is no known way to win from here"
            self.message = f"no hint: {why}"

    def _named(self, text: str, most: int = 60) -> str:
        """An answer as a person would say it, at most so many characters."""
        if self.format is not None and (read := self.format.parse(text)).valid:
            return ", ".join(self.format.actions[a] for a in read.actions)
        short = text if len(text) <= most else text[: most - 3] + "..."
        return short if short.isascii() and short.isprintable() else ascii(short)

    def _what_happened(self, info: Mapping[str, Any], reward: float) -> str:
        parts = [f"{name} {value:+g}" for name, value in info.get("reward_parts", {}).items() if value]
        said = f"reward {reward:+g}" + (f" ({', '.join(parts)})" if len(parts) > 1 else "")
        if not info.get("action_is_valid", True):
            said = f"not a valid answer; {said}"
        elif not info.get("action_is_effective", True):
            said = f"nothing changed; {said}"
        if self.over:
            failed = "lost" if self.total <= 0 else "ended, not solved;"
            ending = "solved!" if self.success else "out of turns" if self.turns[-1]["truncated"] else failed
            said = f"{ending} {said}; return {self.total:+g} in {len(self.turns)} turns"
        return said

    def record(self) -> dict[str, Any]:
        """The episode so far as plain data."""
        spec = self.env.spec
        return {
            "id": spec.id if spec is not None else type(self.env.unwrapped).__name__,
            "seed": self.seed,
            "options": self.options,
            "kwargs": dict(spec.kwargs) if spec is not None else {},
            "turns": self.turns,
            "total_reward": self.total,
            "success": self.success,
            "over": self.over,
        }
