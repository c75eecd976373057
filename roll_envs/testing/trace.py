"""What rules of ``check_env`` work with: the environment under test, the two ways to end early, and traces.

Traces are episodes written down as plain JSON-able data, so that two of them can be compared to the letter.

Run as a module (``python -m roll_envs.testing.trace``) it plays in a process of its own: it reads a pickled request on
stdin and writes the traces as JSON on stdout.
"""

from __future__ import annotations

import contextlib
import copy
import decimal
import functools
import gc
import itertools
import json
import locale
import logging
import math
import os
import random
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from roll_envs.env import AnyEnv, EnvironmentCard, TextEnv
from roll_envs.errors import ConfigError
from roll_envs.parsing import FreeFormat

MakeEnv = Callable[[], AnyEnv]
Answer = Callable[[AnyEnv], Any]
"""Gives the next answer for an environment that was reset."""
Trace = list[Any]
"""First the reset's ``[observation, info]``, then ``[answer, observation, reward, terminated, truncated, info]``."""

GARBAGE = ("", "left-ish", "<answer>no such thing</answer>", "\x00\x07", "؟" * 3)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, signal.SIGHUP, signal.SIGUSR1)
LONGEST = 200
"""Turns after which an environment without ``max_turns`` is no longer followed."""
_followed: int | None = None
"""Turns after which random players stop in this process; None: they play to the end."""


# -- playing -----------------------------------------------------------------------------------------------------------


def turn_limit(env: AnyEnv) -> int:
    """How many turns to follow an episode: twice ``max_turns``, since an environment may forgive invalid answers."""
    limit = getattr(env, "max_turns", None)
    return 2 * limit if isinstance(limit, int) and 0 < limit <= 10_000 else LONGEST


def follow(turns: int | None) -> None:
    """From now on random players stop after so many turns: an environment can be too slow for whole episodes."""
    global _followed
    _followed = turns


def followed() -> int | None:
    """What :func:`follow` was told last."""
    return _followed


def is_cut(answer: Answer, turns: int) -> bool:
    """Whether this player has stopped after ``turns``, so that the episode need not be over."""
    return turns >= getattr(answer, "turns", math.inf)


def takes_text(env: AnyEnv) -> bool:
    """Whether answers are texts; a checked environment may have any action space."""
    return isinstance(env.action_space.sample(), str)


def mixed(seed: int, garbage: float = 0.2) -> Answer:
    """A random player with its own generator: legal answers, and garbage with the given probability."""
    draw = random.Random(seed)

    def answer(env: AnyEnv) -> Any:
        if draw.random() < garbage and takes_text(env):
            return draw.choice(GARBAGE)
        form = getattr(env, "action_format", None)
        if isinstance(form, FreeFormat) and isinstance(env, TextEnv) and (legal := env.legal_answers()):
            return draw.choice(legal)
        if form is not None and hasattr(form, "actions") and hasattr(form, "format"):
            count = draw.randint(1, getattr(form, "max_actions", 1))
            return form.format([draw.randrange(len(form.actions)) for _ in range(count)])
        # A space samples from a generator of its own, and instances may share one: this player has a copy.
        space = copy.deepcopy(env.action_space)
        space.seed(draw.randrange(2**31))
        return space.sample()

    if _followed is not None:
        answer.turns = _followed  # type: ignore[attr-defined]
    return answer


def script(answers: Iterable[str] = ()) -> Answer:
    """A player that gives these answers, and empty ones after them."""
    left = iter(answers)
    return lambda env: next(left, "")


def begin(env: AnyEnv, **how: Any) -> tuple[Any, Any]:
    """What ``reset`` returns, if it returns the two values that it must."""
    found: tuple[Any, Any] = _whole(env.reset(**how), "reset", "observation, info")
    return found


def _whole(result: Any, call: str, values: str) -> Any:
    count = values.count(",") + 1
    shown = f"a tuple of {len(result)}" if isinstance(result, tuple) else f"a {type(result).__name__}"
    need(isinstance(result, tuple) and len(result) == count, f"{call} gives {shown}; return ({values})")
    return result


def steps(env: AnyEnv, answer: Answer, most: int | None = None) -> Iterator[tuple[Any, Any]]:
    """Each answer and what ``step`` returned for it, from where the episode stands to its end or ``most`` turns."""
    for turn in range(turn_limit(env) if most is None else most):
        if is_cut(answer, turn):
            return
        said = answer(env)
        result = _whole(env.step(said), "step", "observation, reward, terminated, truncated, info")
        yield said, result
        if result[2] or result[3]:
            return


def episode(env: AnyEnv, seed: int, answer: Answer, turns: int | None = None) -> Iterator[Any]:
    """The entries of an episode's trace (or of its first ``turns``), each as soon as its call was made."""
    yield plain(list(begin(env, seed=seed)))
    for said, result in steps(env, answer, turns):
        yield plain([said, *result])


def play(
    env: AnyEnv, seed: int, answer: Answer, *, after_each: Callable[[], object] = lambda: None, turns: int | None = None
) -> Trace:
    """Play one episode (or its first ``turns``) and write it down; ``after_each`` is called after every call."""
    trace = []
    for entry in episode(env, seed, answer, turns):
        trace.append(entry)
        after_each()
    return trace


def play_seeds(make: MakeEnv, seeds: Sequence[int]) -> list[Trace]:
    """The traces of one fresh environment over ``seeds``, with the random player."""
    env = make()
    traces = [play(env, seed, mixed(seed)) for seed in seeds]
    env.close()
    return traces


def split_starts(make: MakeEnv, seeds: Sequence[int]) -> list[Any]:
    """How the episodes of each split begin, of those that have tasks."""
    env, found = make(), []
    for name, seed in itertools.product(getattr(env, "splits", ()), seeds):
        with contextlib.suppress(ConfigError):
            found.append(plain([name, seed, *begin(env, seed=seed, options={"split": name})]))
    env.close()
    return found


# -- comparing ---------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """``value`` as JSON-able data that compares equal only to the same value (mappings by sorted key)."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)  # nan is not equal to itself
    if value is None or isinstance(value, int | str):
        return value
    if isinstance(value, np.ndarray):
        return ["array", plain(value.tolist())]
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in sorted(value.items(), key=lambda kv: str(kv[0]))}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return repr(value)


_STEP = ("answer", "observation", "reward", "terminated", "truncated", "info")


def difference(expected: Trace, found: Trace) -> str:
    """Where two traces part, in one line; empty when they are equal."""
    for turn, (a, b) in enumerate(zip(expected, found, strict=False)):
        where, names = (f"turn {turn}", _STEP) if turn else ("reset", ("observation", "info"))
        for name, x, y in zip(names, a, b, strict=False):
            if x != y:
                return f"{where}: {name} is {_short(y)} instead of {_short(x)}"
        if a != b:
            return f"{where} differs"
    if len(expected) != len(found):
        return f"the episode has {len(found) - 1} turns instead of {len(expected) - 1}"
    return ""


def _short(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 120 else text[:117] + "..."


# -- rules -------------------------------------------------------------------------------------------------------------


class Failure(Exception):
    """A rule is broken; the message says what to mend."""


class Skip(Exception):
    """A rule cannot be applied; the message says why."""


def need(condition: object, mend: str) -> None:
    """Raise :class:`Failure` unless ``condition``."""
    if not condition:
        raise Failure(mend)


def json_text(value: Any, what: str) -> str:
    """``value`` as JSON; a :class:`Failure` where it is no plain data."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise Failure(
            f"{what} is not plain JSON-able data ({error}); use str, int, float, bool, list and dict only"
        ) from error


def surroundings() -> dict[str, Any]:
    """What playing an environment leaves alone."""
    return {
        "working directory": os.getcwd(),
        "environment variables": dict(os.environ),
        "files of the working directory": set(os.listdir()),
        "import path": list(sys.path),
        "recursion limit": sys.getrecursionlimit(),
        "signal handlers": {s.name: repr(signal.getsignal(s)) for s in _SIGNALS},
        "handlers of the root logger": [repr(handler) for handler in logging.getLogger().handlers],
        "level of the root logger": (logging.getLogger().level, logging.root.manager.disable),
        "printing of numbers by numpy": dict(np.get_printoptions()),
        "errors of numpy": dict(np.geterr()),
        "precision of decimal": decimal.getcontext().prec,
        "locale": locale.setlocale(locale.LC_ALL),
        "garbage collection": (gc.isenabled(), gc.get_threshold()),
        "mask of new files": _file_mask(),
        "limit of digits": sys.get_int_max_str_digits(),
        "switching of threads": sys.getswitchinterval(),
        "tracing of calls": [repr(hook) for hook in (sys.gettrace(), sys.getprofile())],
        "default timeout of sockets": socket.getdefaulttimeout(),
        "hook for uncaught errors": repr(sys.excepthook),
        "timer of signals": signal.getitimer(signal.ITIMER_REAL)[0] > 0,
        "standard streams": [repr(stream) for stream in (sys.stdin, sys.stderr)],
    }


def _file_mask() -> str:
    """From Linux's own account: the system's call for it sets it, too."""
    with contextlib.suppress(OSError):
        found = re.search(r"^Umask:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)
        return found[1] if found else ""
    return ""


@dataclass(eq=False)
class Subject:
    """The environment under test."""

    name: str
    make: MakeEnv
    """A new environment at every call, with none of Gymnasium's checking wrappers around it."""
    all_seeds: tuple[int, ...]
    """Those that were asked for."""
    card: EnvironmentCard | None = None
    varied: bool = False
    """Made with arguments other than the card's, for which its reward range need not hold."""
    timeout_s: float = 120.0
    """How long a rule may take, which ends processes that it started too."""
    before: dict[str, Any] = field(default_factory=surroundings)
    """The process before the first instance was made."""

    @functools.cached_property
    def seeds(self) -> Sequence[int]:
        """Those that are played: fewer of an environment that is slow, of which random players also :func:`follow`
        fewer turns."""
        follow(None)
        found: Sequence[int] = self.all_seeds
        turns = None
        with contextlib.suppress(Exception, SystemExit):  # which rules will meet, too
            found, turns = _kept_pace(self)
        follow(turns)
        return found

    @property
    def pace(self) -> str:
        """What was played of an environment that is too slow for all of it, in words; empty where all of it was."""
        count = len(self.seeds)
        turns = f", {_followed} turns of a random player" if _followed is not None else ""
        return f"{count} of {len(self.all_seeds)} seeds{turns}" if turns or count < len(self.all_seeds) else ""

    @property
    def first_seeds(self) -> range:
        """Seeds from 0 on, for rules that compare tasks with each other: six at least, unless it is slow."""
        return range(len(self.seeds) if self.pace else max(len(self.seeds), 6))

    @functools.cached_property
    def reference(self) -> list[Trace]:
        """Traces of a fresh environment alone in this thread: what all others are compared with."""
        return play_seeds(self.make, self.seeds)

    @functools.cached_property
    def ways(self) -> dict[int, list[str]]:
        """The oracle's answers for each seed, where there are any."""
        found = {}
        env = self.make()
        for seed in self.seeds:
            if not isinstance(env, TextEnv):
                break
            with contextlib.suppress(Exception, SystemExit):  # which rules about the oracle will meet, too
                env.reset(seed=seed)
                found[seed] = list(env.oracle() or ())
        env.close()
        return found

    def games(self, most: int | None = None, garbage: float = 0.2) -> Iterator[tuple[int, Answer]]:
        """The seeds (or the first ``most``), each with a random player, and with the oracle's answers where there are
        any: their episodes end in different ways."""
        for seed in self.seeds[:most]:
            yield seed, mixed(seed, garbage)
            if way := self.ways.get(seed):
                yield seed, script(way)

    def compare(self, found: list[Trace], where: str, mend: str) -> None:
        """Raise :class:`Failure` where traces of the seeds are not those of :attr:`reference`."""
        for seed, expected, trace in zip(self.seeds, self.reference, found, strict=True):
            apart = difference(expected, trace)
            need(not apart, f"seed {seed} {where} is another episode ({apart}); {mend}")

    def text_env(self, what: str) -> TextEnv:
        """A new environment, which is a TextEnv; for any other the rule is skipped, since it has no ``what``."""
        env = self.make()
        if not isinstance(env, TextEnv):
            raise Skip(f"{type(env.unwrapped).__name__} is not a roll_envs.TextEnv, so it has no {what}")
        return env

    def text_taker(self) -> AnyEnv:
        """A new environment whose answers are texts; for any other the rule is skipped."""
        env = self.make()
        if not takes_text(env):
            raise Skip("the action space holds no text")
        return env


_LEAST_SEEDS, _LEAST_TURNS = 2, 10
"""What is played of the slowest."""
_PASSES = 12
"""A rule that plays much plays all seeds about so many times."""
_LOOK_S = 2.0
"""How long is looked how slow an environment is."""


def _kept_pace(subject: Subject) -> tuple[Sequence[int], int | None]:
    """The seeds, and the turns of a random player, that leave time for every rule: fewer of a slow environment."""
    env, turns, spent_s = subject.make(), 0, 0.0
    deadline = time.monotonic() + _LOOK_S
    for seed in subject.all_seeds:
        begin(env, seed=seed)
        began = time.monotonic()
        for _ in steps(env, mixed(seed, garbage=0)):  # what garbage does, the rules find
            turns += 1
            if time.monotonic() > deadline:
                break
        spent_s += time.monotonic() - began
        if time.monotonic() > deadline:
            break
    else:
        env.close()
        return subject.all_seeds, None
    each = spent_s / max(1, turns)
    began = time.monotonic()
    env.reset(seed=subject.all_seeds[0])  # what was made once, a game say, may be there now
    again = time.monotonic() - began
    env.close()
    bound, whole = subject.timeout_s / _PASSES, turn_limit(env)
    fitting = (n for n in range(len(subject.all_seeds), _LEAST_SEEDS, -1) if n * (again + each * whole) <= bound)
    count = next(fitting, _LEAST_SEEDS)
    most = max(_LEAST_TURNS, int((bound / count - again) / max(each, 1e-9)))
    return subject.all_seeds[:count], most if most < whole else None


Rule = Callable[[Subject], str]
"""Returns what was seen; raises :class:`Failure` or :class:`Skip`."""


def _main() -> None:
    import cloudpickle  # type: ignore[import-untyped]

    sys.path[:] = json.loads(sys.stdin.buffer.readline())
    make, seeds, turns = cloudpickle.loads(sys.stdin.buffer.read())
    follow(turns)
    out, sys.stdout = sys.stdout, sys.stderr  # prints of the environment must not mix with the answer
    json.dump([play_seeds(make, seeds), split_starts(make, seeds)], out)


if __name__ == "__main__":
    _main()
