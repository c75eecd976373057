"""Rules about the interface: spaces, Gymnasium's own checker, prompt text, info, rendering, closing."""

from __future__ import annotations

import json
import math
import warnings
from typing import Any

import gymnasium
from gymnasium.utils.env_checker import check_env as gymnasium_check

from roll_envs.env import TextEnv
from roll_envs.parsing import FreeFormat
from roll_envs.testing.trace import Rule, Subject, mixed, need, need_text_env, skip, steps

__all__ = ["API_RULES"]

_BESIDE_THE_POINT = ("Not able to test alternative render modes", "No render fps was declared")
"""Warnings about specs (a function may make the environment) and frames (text has none)."""
_MOST_NAMED = 20
"""With more actions than this the instructions may describe them (\"a number from 1 to 100\")."""


def gymnasium_checker(subject: Subject) -> str:
    """Gymnasium's own ``check_env`` passes, without a warning."""
    env = subject.make()
    if getattr(env, "max_turns", None) == 1:
        skip("Gymnasium's checker takes a truncation after one turn for a mistake, and max_turns is 1")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gymnasium_check(env)
    said = [str(w.message) for w in caught if not any(s in str(w.message) for s in _BESIDE_THE_POINT)]
    need(not said, f"gymnasium.utils.env_checker.check_env warns: {'; '.join(said)[:500]}")
    return "gymnasium.utils.env_checker.check_env passes"


def spaces(subject: Subject) -> str:
    """Both spaces hold text, the observations lie in theirs, and a TextEnv takes any text."""
    env = subject.make()
    for seed in subject.seeds:
        observation, _ = env.reset(seed=seed)
        need(isinstance(observation, str), f"reset gives a {type(observation).__name__}; return text (str)")
        need(observation in env.observation_space, f"the observation of seed {seed} is not in observation_space")
        said = mixed(seed)(env)
        need(isinstance(said, str), f"action_space.sample() gives a {type(said).__name__}; use a space of text")
        observation = env.step(said)[0]
        need(isinstance(observation, str), f"step gives a {type(observation).__name__}; return text (str)")
        need(observation in env.observation_space, f"an observation after seed {seed} is not in observation_space")
    if isinstance(env, TextEnv):
        for text in ("", "é √ \u202e", "\x00", "\ud800", "a" * 10_000):
            need(text in env.action_space, f"action_space refuses {text[:9]!a}; use roll_envs.AnyText()")
            need(text in env.observation_space, f"observation_space refuses {text[:9]!a}; use roll_envs.AnyText()")
    return "text in, text out"


def prompt(subject: Subject) -> str:
    """Instructions, action format and turn limit are there, and the format reads what it writes."""
    env = need_text_env(subject.make(), "instructions")
    env.reset(seed=subject.seeds[0])
    text = env.instructions
    need(isinstance(text, str) and text.strip(), "instructions must be a non-empty text")
    env.step(mixed(1)(env))
    need(env.instructions == text, "instructions change within an episode; put what changes into the observation")
    need(
        isinstance(env.max_turns, int) and env.max_turns >= 1,
        f"max_turns must be an int of 1 or more, not {env.max_turns!r}",
    )
    form = env.action_format
    if isinstance(form, FreeFormat):
        need(env.legal_answers(), "legal_answers() is empty; list what can be done now")
        unread = [text for text in env.legal_answers() if form.read(text) is None]
        need(not unread, f"action_format does not read the legal answer {unread[:1]}; make it with action_format.write")
    else:
        for i, name in enumerate(form.actions):
            own = form.format([i])
            need(form.parse(own).actions == (i,), f"action_format does not read its own answer for {name!r}")
    if form.tag:
        need(f"<{form.tag}>" in text, f"instructions never show the tag <{form.tag}>; add action_format.instructions")
    named = form.actions if len(form.actions) <= _MOST_NAMED else ()
    missing = [name for name in named if name.lower() not in text.lower()]
    need(not missing, f"instructions never name the actions {missing}; tell the agent every action")
    return f"{len(form.actions)} actions, {env.max_turns} turns, instructions of {len(text)} characters"


_INFO: dict[str, type] = {
    "success": bool,
    "action_is_valid": bool,
    "action_is_effective": bool,
    "format_penalty": float,
    "reward_parts": dict,
}


def info(subject: Subject) -> str:
    """Every step's info has the agreed keys with their types, is plain data, and flags are Python bools."""
    env = need_text_env(subject.make(), "agreed info keys")
    for seed in subject.seeds:
        _, first = env.reset(seed=seed)
        _need_json(first, "reset")
        for _, (_, reward, terminated, truncated, found) in steps(env, mixed(seed)):
            need(math.isfinite(float(reward)), f"the reward is {reward!r}; it must be a finite number")
            for name, flag in (("terminated", terminated), ("truncated", truncated)):
                need(isinstance(flag, bool), f"{name} is a {type(flag).__name__}; return bool(...)")
            for key, kind in _INFO.items():
                need(key in found, f"info lacks {key!r} ({kind.__name__})")
                need(
                    isinstance(found[key], kind), f"info[{key!r}] is a {type(found[key]).__name__}, not {kind.__name__}"
                )
            need(found["format_penalty"] <= 0, f"info['format_penalty'] is {found['format_penalty']}; it must be <= 0")
            _need_json(found, "step")
    return ", ".join(_INFO)


def _need_json(found: Any, call: str) -> None:
    need(isinstance(found, dict), f"{call} gives an info of type {type(found).__name__}, not dict")
    try:
        json.dumps(found)
    except (TypeError, ValueError) as error:
        need(False, f"info of {call} is not plain data ({error}); use str, int, float, bool, list and dict only")


def reward_parts(subject: Subject) -> str:
    """The named parts sum to the reward at every step."""
    env = need_text_env(subject.make(), "reward parts")
    names: set[str] = set()
    for seed in subject.seeds:
        env.reset(seed=seed)
        for _, (_, reward, _, _, found) in steps(env, mixed(seed)):
            parts = found.get("reward_parts", {})
            names |= set(parts)
            need(
                math.isclose(sum(parts.values()), float(reward), abs_tol=1e-9),
                f"reward_parts {parts} sum to {sum(parts.values())}, but the reward is {reward}",
            )
    return ", ".join(sorted(names))


def render(subject: Subject) -> str:
    """``render()`` gives the current observation and changes nothing."""
    env = need_text_env(subject.make(), "text to render")
    observation, _ = env.reset(seed=subject.seeds[0])
    need(env.render() == observation, "render() after reset is not the observation")
    observation = env.step(mixed(3, garbage=0)(env))[0]
    need(env.render() == observation, "render() after a step is not the observation")
    return "the current observation"


def close_twice(subject: Subject) -> str:
    """``close()`` works before a reset, in an episode, and again."""
    env = subject.make()
    env.close()
    env.close()
    env = subject.make()
    env.reset(seed=subject.seeds[0])
    env.close()
    env.close()
    return "closing again does nothing"


def step_outside_an_episode(subject: Subject) -> str:
    """``step`` before ``reset`` and after the end raises, so that a caller's mistake is not scored."""
    env = subject.make()
    said = mixed(0, garbage=0)(env)
    _must_raise(env, said, "before reset()")
    env.reset(seed=subject.seeds[0])
    for _, result in steps(env, lambda env: said):
        if result[2] or result[3]:
            _must_raise(env, said, "after the end of the episode")
            env.reset(seed=subject.seeds[0])
            return "step raises before reset() and after the end"
    return "step raises before reset(); no end was reached"


def _must_raise(env: gymnasium.Env[Any, Any], said: Any, when: str) -> None:
    try:
        env.step(said)
    except Exception:  # any error will do; gymnasium.error.ResetNeeded is the best
        return
    need(False, f"step {when} does not raise; raise gymnasium.error.ResetNeeded")


API_RULES: dict[str, Rule] = {
    "gymnasium_checker": gymnasium_checker,
    "spaces": spaces,
    "prompt": prompt,
    "info": info,
    "reward_parts": reward_parts,
    "render": render,
    "close_twice": close_twice,
    "step_outside_an_episode": step_outside_an_episode,
}
