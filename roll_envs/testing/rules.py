"""Rules about the interface: spaces, what every call returns, Gymnasium's own checker, prompt text, info, rendering,
closing."""

from __future__ import annotations

import json
import math
import numbers
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.utils.env_checker import check_env as gymnasium_check

from roll_envs.env import AnyEnv, TextEnv
from roll_envs.parsing import ActionFormat, FreeFormat, tag_marks
from roll_envs.testing import trace
from roll_envs.testing.trace import Failure, Rule, Skip, Subject, mixed, need, play, script, steps

_BESIDE_THE_POINT = ("Not able to test alternative render modes", "No render fps was declared")
"""Warnings about specs (a function may make the environment) and frames (text has none)."""
_MOST_CHARS = 1_000_000
"""Of an observation, and of an info as JSON."""
_MOST_NAMED = 20
"""With more actions than this the instructions may describe them (\"a number from 1 to 100\")."""
_LEAST_MOVES = 10
"""Other observations of valid answers from which on at least one of them must have changed the state."""


def gymnasium_checker(subject: Subject) -> str:
    """Gymnasium's own ``check_env`` passes, without a warning."""
    env = subject.make()
    if getattr(env, "max_turns", None) == 1:
        raise Skip("Gymnasium's checker takes a truncation after one turn for a mistake, and max_turns is 1")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gymnasium_check(env)
    said = [str(w.message) for w in caught if not any(s in str(w.message) for s in _BESIDE_THE_POINT)]
    need(not said, f"gymnasium.utils.env_checker.check_env warns: {'; '.join(said)[:500]}")
    return "gymnasium.utils.env_checker.check_env passes"


def values(subject: Subject) -> str:
    """Every call returns as many values as it must; rewards are finite numbers, flags bools, infos dicts of names."""
    env = subject.make()
    # Gymnasium's own environments give numpy's flags here and there.
    flag = bool if isinstance(env, TextEnv) else bool | np.bool_
    for seed, answer in subject.games():
        _need_dict(trace.begin(env, seed=seed)[1], "reset")
        for _, (_, reward, terminated, truncated, found) in steps(env, answer):
            number = isinstance(reward, numbers.Real | np.number) and not isinstance(reward, bool)
            need(number and math.isfinite(reward), f"the reward is {reward!r}; it must be a finite number")
            for name, value in (("terminated", terminated), ("truncated", truncated)):
                need(isinstance(value, flag), f"{name} is a {type(value).__name__}; return bool(...)")
            _need_dict(found, "step")
    return "observation, reward, terminated, truncated, info"


def _need_dict(found: Any, call: str) -> None:
    need(isinstance(found, dict), f"{call} gives an info of type {type(found).__name__}, not dict")
    odd = [key for key in found if not isinstance(key, str)]
    need(not odd, f"the info of {call} has the key {odd[:1]}, which is not a str")


def spaces(subject: Subject) -> str:
    """Both spaces hold text, the observations lie in theirs, and a TextEnv takes any text."""
    env = subject.make()
    for seed, answer in subject.games():
        _need_text(env, trace.begin(env, seed=seed)[0], f"reset(seed={seed})")
        said = env.action_space.sample()
        need(isinstance(said, str), f"action_space.sample() gives a {type(said).__name__}; use a space of text")
        for _, result in steps(env, answer):
            _need_text(env, result[0], f"step after reset(seed={seed})")
    if isinstance(env, TextEnv):
        for text in ("", "é √ \u202e", "\x00", "\ud800", "a" * 10_000):
            need(text in env.action_space, f"action_space refuses {text[:9]!a}; use roll_envs.AnyText()")
            need(text in env.observation_space, f"observation_space refuses {text[:9]!a}; use roll_envs.AnyText()")
        _need_readable_examples(env)
    return "text in, text out"


def _need_readable_examples(env: TextEnv) -> None:
    """Those of an AnyText, where it has any: generic tools send them."""
    form, examples = env.action_format, getattr(env.action_space, "examples", ())
    read = (form.parse(text).valid if isinstance(form, ActionFormat) else form.read(text) for text in examples)
    need(examples in ((), ("",)) or any(read), f"action_format reads none of the examples of action_space, such as "
                                               f"{examples[:1]}; make them by action_format")  # fmt: skip


def _need_text(env: AnyEnv, observation: Any, call: str) -> None:
    need(isinstance(observation, str), f"{call} gives a {type(observation).__name__}; return text (str)")
    need(observation in env.observation_space, f"the observation of {call} is not in observation_space")
    said = f"the observation of {call} has {len(observation)} characters"
    need(len(observation) <= _MOST_CHARS, f"{said}; show {_MOST_CHARS} or fewer, since each is sent and kept")


def prompt(subject: Subject) -> str:
    """Instructions, action format and turn limit are there, and the format reads what it writes."""
    env = subject.text_env("instructions")
    env.reset(seed=subject.seeds[0])
    text = env.instructions
    need(isinstance(text, str) and text.strip(), "instructions must be a non-empty text")
    limit = env.max_turns
    need(isinstance(limit, int) and limit >= 1, f"max_turns must be an int of 1 or more, not {limit!r}")
    form = env.action_format
    if isinstance(form, FreeFormat):
        unread = [text for text in env.legal_answers() if form.read(text) is None]
        need(not unread, f"action_format does not read the legal answer {unread[:1]}; make it with action_format.write")
    else:
        for i, name in enumerate(form.actions):
            own = form.format([i])
            need(form.parse(own).actions == (i,), f"action_format does not read its own answer for {name!r}")
    if form.tag:
        mark = tag_marks(form.tag)[0]
        need(mark in text, f"instructions never show {mark}; add action_format.instructions")
    # Many actions are described rather than listed ("a number from 1 to 100").
    named = form.actions if len(form.actions) <= _MOST_NAMED else ()
    missing = [name for name in named if name.lower() not in text.lower()]
    need(not missing, f"instructions never name the actions {missing}; tell the agent every action")
    env.step(mixed(1)(env))
    need(env.instructions == text, "instructions change within an episode; put what changes into the observation")
    return f"{len(form.actions)} actions, {limit} turns, instructions of {len(text)} characters"


_INFO: dict[str, type] = {
    "success": bool,
    "action_is_valid": bool,
    "action_is_effective": bool,
    "format_penalty": float,
    "reward_parts": dict,
}


def info(subject: Subject) -> str:
    """Every step's info has the agreed keys with their types and is plain data."""
    env = subject.text_env("agreed info keys")
    effective, moved = False, 0
    for seed, answer in subject.games():
        shown, before = trace.begin(env, seed=seed)
        text = _need_plain(before, "reset")
        for _, (observation, _, _, _, found) in steps(env, answer):
            need(json.dumps(before) == text, "an info changes while the episode goes on; return a new dict each time")
            for key, kind in _INFO.items():
                need(key in found, f"info lacks {key!r} ({kind.__name__})")
                said = type(found[key]).__name__
                need(isinstance(found[key], kind), f"info[{key!r}] is a {said}, not {kind.__name__}")
            penalty = found["format_penalty"]
            need(-math.inf < penalty <= 0, f"info['format_penalty'] is {penalty}; it must be <= 0")
            changed = found["action_is_effective"] and not found["action_is_valid"]
            need(not changed, "action_is_effective is True where action_is_valid is False; an answer that cannot be "
                              "read changes nothing")  # fmt: skip
            before, text = found, _need_plain(found, "step")
            effective |= found["action_is_effective"] and observation != shown
            moved += found["action_is_valid"] and observation != shown
            shown = observation
    if not effective:
        _need_effective(env, subject.seeds, moved)
    return ", ".join(_INFO)


def _need_effective(env: TextEnv, seeds: Sequence[int], moved: int) -> None:
    """For an environment in which no answer was effective that showed another observation, though ``moved`` valid ones
    did: those of the oracle are."""
    never = "and action_is_effective is False at every such step; it is True where the state changed"
    need(moved < _LEAST_MOVES, f"{moved} valid answers lead to another observation, {never}")
    for seed in seeds:
        env.reset(seed=seed)
        played = [result[4] for _, result in steps(env, script(env.oracle() or ()))]
        won = bool(played) and played[-1].get("success")
        moves = any(found.get("action_is_effective") for found in played)
        need(moves or not won, f"the oracle's answers solve seed {seed}, {never}")


def _need_plain(found: Any, call: str) -> str:
    """The info as JSON."""
    _need_dict(found, call)
    text = trace.json_text(found, f"info of {call}")
    said = f"the info of {call} has {len(text)} characters as JSON"
    need(len(text) <= _MOST_CHARS, f"{said}; tell {_MOST_CHARS} or fewer, since each is sent and kept")
    return text


def reward_parts(subject: Subject) -> str:
    """The named parts sum to the reward at every step."""
    env = subject.text_env("reward parts")
    names: set[str] = set()
    for seed, answer in subject.games():
        env.reset(seed=seed)
        for _, (_, reward, _, _, found) in steps(env, answer):
            parts = found.get("reward_parts", {})
            odd = {k: v for k, v in parts.items() if isinstance(v, bool) or not isinstance(v, int | float)}
            need(not odd, f"reward_parts holds {odd}; each part is a number")
            names |= set(parts)
            total = sum(parts.values())
            same = math.isclose(total, float(reward), abs_tol=1e-9)
            need(same, f"reward_parts {parts} sum to {total}, but the reward is {reward}")
    return ", ".join(sorted(names))


def render(subject: Subject) -> str:
    """``render()`` gives the current observation, at every step."""
    env = subject.text_env("text to render")
    modes = env.metadata.get("render_modes", ())
    need("ansi" in modes, f"metadata has the render_modes {modes}; 'ansi' is that of text")
    for seed, answer in subject.games():
        observation, _ = trace.begin(env, seed=seed)
        need(env.render() == observation, "render() after reset is not the observation")
        for _, (observation, *_) in steps(env, answer):
            need(env.render() == observation, "render() after a step is not the observation")
    return "the current observation"


def close_twice(subject: Subject) -> str:
    """``close()`` works before a reset, in an episode, and again; other instances go on."""
    other, env = subject.make(), subject.make()
    env.close()
    env.close()
    env = subject.make()
    env.reset(seed=subject.seeds[0])
    env.close()
    env.close()
    play(other, subject.seeds[0], mixed(0))
    other.close()
    return "closing again does nothing"


def step_outside_an_episode(subject: Subject) -> str:
    """``step`` before ``reset`` and after the end raises, so that a caller's mistake is not scored."""
    env = subject.make()
    if not isinstance(env, TextEnv):
        raise Skip(f"{type(env).__name__} is not a roll_envs.TextEnv, and Gymnasium leaves open what step does then")
    playing = subject.make()
    playing.reset(seed=subject.seeds[0])
    said = mixed(0, garbage=0)(playing)
    _must_raise(env, said, "before reset()")
    ended = 0
    for seed, answer in subject.games(garbage=0):
        env.reset(seed=seed)
        for _, result in steps(env, answer):
            if result[2] or result[3]:
                _must_raise(env, said, f"after the end of the episode ({'terminated' if result[2] else 'truncated'})")
                ended += 1
    return f"step raises before reset() and after {ended} ends"


def _must_raise(env: AnyEnv, said: Any, when: str) -> None:
    try:
        env.step(said)
    except Exception:  # any error will do; gymnasium.error.ResetNeeded is the best
        return
    raise Failure(f"step {when} does not raise; raise gymnasium.error.ResetNeeded")


INTERFACE_RULES: tuple[Rule, ...] = (
    gymnasium_checker,
    values,
    spaces,
    prompt,
    info,
    reward_parts,
    render,
    close_twice,
    step_outside_an_episode,
)
