"""What rules of ``check_env`` work with: the environment under test, the two ways to end early, and traces.

Traces are episodes written down as plain JSON-able data, so that two of them can be compared to the letter.

Run as a module (``python -m roll_envs.testing.trace``) it plays in a process of its own: it reads a pickled request on
stdin and writes the traces as JSON on stdout.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import gymnasium
import numpy as np

from roll_envs.env import EnvironmentCard, TextEnv
from roll_envs.parsing import FreeFormat

__all__ = [
    "Answer",
    "Failure",
    "MakeEnv",
    "Rule",
    "Skip",
    "Subject",
    "Trace",
    "difference",
    "mixed",
    "need",
    "need_text_env",
    "plain",
    "play",
    "play_seeds",
    "skip",
    "steps",
    "turn_limit",
]

MakeEnv = Callable[[], gymnasium.Env[Any, Any]]
Answer = Callable[[gymnasium.Env[Any, Any]], Any]
"""Gives the next answer for an environment that was reset."""
Trace = list[Any]
"""First the reset's ``[observation, info]``, then ``[answer, observation, reward, terminated, truncated, info]``."""

GARBAGE = ("", "left-ish", "<answer>no such thing</answer>", "\x00\x07", "؟" * 3)
LONGEST = 200
"""Turns after which an environment without ``max_turns`` is no longer followed."""


def turn_limit(env: gymnasium.Env[Any, Any]) -> int:
    """How many turns to follow an episode: twice ``max_turns``, since an environment may forgive invalid answers."""
    limit = getattr(env, "max_turns", None)
    return 2 * limit if isinstance(limit, int) and 0 < limit <= 10_000 else LONGEST


def mixed(seed: int, garbage: float = 0.2) -> Answer:
    """A random player with its own generator: legal answers, and garbage with the given probability."""
    draw = random.Random(seed)

    def answer(env: gymnasium.Env[Any, Any]) -> Any:
        if draw.random() < garbage and isinstance(env.action_space.sample(), str):
            return draw.choice(GARBAGE)
        form = getattr(env, "action_format", None)
        if isinstance(form, FreeFormat) and isinstance(env, TextEnv):
            return draw.choice(env.legal_answers())
        if form is not None and hasattr(form, "actions") and hasattr(form, "format"):
            count = draw.randint(1, getattr(form, "max_actions", 1))
            return form.format([draw.randrange(len(form.actions)) for _ in range(count)])
        env.action_space.seed(draw.randrange(2**31))
        return env.action_space.sample()

    return answer


def steps(env: gymnasium.Env[Any, Any], answer: Answer, most: int | None = None) -> Iterator[tuple[Any, Any]]:
    """Each answer and what ``step`` returned for it, from where the episode stands to its end or ``most`` turns."""
    for _ in range(turn_limit(env) if most is None else most):
        said = answer(env)
        result = env.step(said)
        yield said, result
        if result[2] or result[3]:
            return


def play(
    env: gymnasium.Env[Any, Any],
    seed: int | None,
    answer: Answer,
    *,
    between: Callable[[], object] | None = None,
    turns: int | None = None,
) -> Trace:
    """Play one episode (or its first ``turns``) and write it down; ``between`` is called before every call."""
    if between is not None:
        between()
    trace: Trace = [plain(list(env.reset(seed=seed)))]

    def asked(env: gymnasium.Env[Any, Any]) -> Any:
        said = answer(env)
        if between is not None:
            between()
        return said

    return trace + [plain([said, *result]) for said, result in steps(env, asked, turns)]


def play_seeds(make: MakeEnv, seeds: Sequence[int]) -> list[Trace]:
    """The traces of one fresh environment over ``seeds``, with the random player."""
    env = make()
    traces = [play(env, seed, mixed(seed)) for seed in seeds]
    env.close()
    return traces


def plain(value: Any) -> Any:
    """``value`` as JSON-able data that compares equal only to the same value (mappings by sorted key)."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else repr(float(value))
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return ["array", plain(value.tolist())]
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in sorted(value.items(), key=lambda kv: str(kv[0]))}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return repr(value)


def difference(expected: Trace, found: Trace) -> str:
    """Where two traces part, in one line; empty when they are equal."""
    for turn, (a, b) in enumerate(zip(expected, found, strict=False)):
        if a != b:
            names = ("observation", "info") if turn == 0 else ("answer", *_STEP)
            for name, x, y in zip(names, a, b, strict=False):
                if x != y:
                    return f"{'reset' if turn == 0 else f'turn {turn}'}: {name} is {_short(y)} instead of {_short(x)}"
            return f"turn {turn} differs"
    if len(expected) != len(found):
        return f"the episode has {len(found) - 1} turns instead of {len(expected) - 1}"
    return ""


_STEP = ("observation", "reward", "terminated", "truncated", "info")


def _short(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 120 else text[:117] + "..."


class Failure(Exception):
    """A rule is broken; the message says what to mend."""


class Skip(Exception):
    """A rule cannot be applied; the message says why."""


@dataclass(slots=True, eq=False)
class Subject:
    """The environment under test."""

    name: str
    make: MakeEnv
    """A new environment at every call, with none of Gymnasium's checking wrappers around it."""
    seeds: tuple[int, ...]
    card: EnvironmentCard | None = None
    varied: bool = False
    """Made with arguments other than the card's, for which its reward range need not hold."""
    _reference: list[Trace] = field(default_factory=list)

    @property
    def reference(self) -> list[Trace]:
        """Traces of a fresh environment alone in this thread: what all others are compared with."""
        if not self._reference:
            self._reference = play_seeds(self.make, self.seeds)
        return self._reference


Rule = Callable[[Subject], str]
"""Returns what was seen; raises :class:`Failure` or :class:`Skip`."""


def need(condition: object, mend: str) -> None:
    """Raise :class:`Failure` unless ``condition``."""
    if not condition:
        raise Failure(mend)


def skip(why: str) -> NoReturn:
    raise Skip(why)


def need_text_env(env: gymnasium.Env[Any, Any], what: str) -> TextEnv:
    """``env`` as a TextEnv; skips the rule for others."""
    if not isinstance(env, TextEnv):
        skip(f"{type(env.unwrapped).__name__} is not a roll_envs.TextEnv, so it has no {what}")
    return env


def _main() -> None:
    import cloudpickle  # type: ignore[import-untyped]

    path = json.loads(sys.stdin.buffer.readline())
    sys.path[:] = path
    make, seeds = cloudpickle.loads(sys.stdin.buffer.read())
    out, sys.stdout = sys.stdout, sys.stderr  # prints of the environment must not mix with the answer
    json.dump(play_seeds(make, seeds), out)


if __name__ == "__main__":
    _main()
