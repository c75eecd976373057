"""Rules about the interface (spaces, Gymnasium's own checker, prompt text, info, rendering, closing) and about the game
(strange answers, the floor, the oracle, the range of rewards and the end of an episode)."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

from gymnasium.utils.env_checker import check_env as gymnasium_check

from roll_envs.env import AnyEnv, TextEnv
from roll_envs.parsing import ActionFormat, FreeFormat, tag_marks
from roll_envs.testing import trace
from roll_envs.testing.trace import Answer, Failure, Rule, Skip, Subject, mixed, need, steps

_BESIDE_THE_POINT = ("Not able to test alternative render modes", "No render fps was declared")
"""Warnings about specs (a function may make the environment) and frames (text has none)."""
_MOST_NAMED = 20
"""With more actions than this the instructions may describe them (\"a number from 1 to 100\")."""


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


def spaces(subject: Subject) -> str:
    """Both spaces hold text, the observations lie in theirs, and a TextEnv takes any text."""
    env = subject.make()
    for seed in subject.seeds:
        _need_text(env, env.reset(seed=seed)[0], f"reset(seed={seed})")
        said = env.action_space.sample()
        need(isinstance(said, str), f"action_space.sample() gives a {type(said).__name__}; use a space of text")
        for _, result in steps(env, mixed(seed)):
            _need_text(env, result[0], f"step after reset(seed={seed})")
    if isinstance(env, TextEnv):
        for text in ("", "é √ \u202e", "\x00", "\ud800", "a" * 10_000):
            need(text in env.action_space, f"action_space refuses {text[:9]!a}; use roll_envs.AnyText()")
            need(text in env.observation_space, f"observation_space refuses {text[:9]!a}; use roll_envs.AnyText()")
    return "text in, text out"


def _need_text(env: AnyEnv, observation: Any, call: str) -> None:
    need(isinstance(observation, str), f"{call} gives a {type(observation).__name__}; return text (str)")
    need(observation in env.observation_space, f"the observation of {call} is not in observation_space")


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
        need(env.legal_answers(), "legal_answers() is empty; list what can be done now")
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
    """Every step's info has the agreed keys with their types, is plain data, and flags are Python bools."""
    env = subject.text_env("agreed info keys")
    for seed in subject.seeds:
        _need_plain(env.reset(seed=seed)[1], "reset")
        for _, (_, reward, terminated, truncated, found) in steps(env, mixed(seed)):
            need(math.isfinite(float(reward)), f"the reward is {reward!r}; it must be a finite number")
            for name, flag in (("terminated", terminated), ("truncated", truncated)):
                need(isinstance(flag, bool), f"{name} is a {type(flag).__name__}; return bool(...)")
            for key, kind in _INFO.items():
                need(key in found, f"info lacks {key!r} ({kind.__name__})")
                said = type(found[key]).__name__
                need(isinstance(found[key], kind), f"info[{key!r}] is a {said}, not {kind.__name__}")
            need(found["format_penalty"] <= 0, f"info['format_penalty'] is {found['format_penalty']}; it must be <= 0")
            _need_plain(found, "step")
    return ", ".join(_INFO)


def _need_plain(found: Any, call: str) -> None:
    need(isinstance(found, dict), f"{call} gives an info of type {type(found).__name__}, not dict")
    trace.json_text(found, f"info of {call}")


def reward_parts(subject: Subject) -> str:
    """The named parts sum to the reward at every step."""
    env = subject.text_env("reward parts")
    names: set[str] = set()
    for seed in subject.seeds:
        env.reset(seed=seed)
        for _, (_, reward, _, _, found) in steps(env, mixed(seed)):
            parts = found.get("reward_parts", {})
            names |= set(parts)
            total = sum(parts.values())
            same = math.isclose(total, float(reward), abs_tol=1e-9)
            need(same, f"reward_parts {parts} sum to {total}, but the reward is {reward}")
    return ", ".join(sorted(names))


def render(subject: Subject) -> str:
    """``render()`` gives the current observation and changes nothing."""
    env = subject.text_env("text to render")
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
    if not isinstance(env, TextEnv):
        raise Skip(f"{type(env).__name__} is not a roll_envs.TextEnv, and Gymnasium leaves open what step does then")
    said = mixed(0, garbage=0)(env)
    _must_raise(env, said, "before reset()")
    env.reset(seed=subject.seeds[0])
    for _, result in steps(env, lambda env: said):
        if result[2] or result[3]:
            _must_raise(env, said, "after the end of the episode")
            env.reset(seed=subject.seeds[0])
            return "step raises before reset() and after the end"
    return "step raises before reset(); no end was reached"


def _must_raise(env: AnyEnv, said: Any, when: str) -> None:
    try:
        env.step(said)
    except Exception:  # any error will do; gymnasium.error.ResetNeeded is the best
        return
    raise Failure(f"step {when} does not raise; raise gymnasium.error.ResetNeeded")


# -- rules about the game ----------------------------------------------------------------------------------------------

_SLOWEST_ANSWER_S = 2.0
_TOLERANCE = 1e-9

STRANGE_ANSWERS: dict[str, str] = {
    "empty": "",
    "blank": " \t\r\n" * 10,
    "garbage": 'zxcv 1234 !!! <<>> {"a": [}]',
    "empty tag": "<answer></answer>",
    "unclosed tag": "<answer>",
    "control characters": "<answer>\x00\x07\x1b[2J\x7f</answer>",
    "lone surrogates": "<answer>\ud800\udfff</answer>",
    "right to left": "<answer>\u202e\u0627\u0644\u0633\u0644\u0627\u0645\u200f</answer>",
    "combining marks": "<answer>e" + "\u0301" * 500 + "</answer>",
    "format string": "<answer>{0!r} %s %(a)d ${HOME} {success}</answer>",
    "huge": "a" * 1_000_000,
    "huge tagged": "<answer>" + "b" * 1_000_000 + "</answer>",
    "many open tags": "<answer>" * 125_000,
    "many numbers": "<answer>" + "9" * 100_000 + "</answer>",
}
"""Answers that no environment should pay for; none of them names an action."""


class _Played(NamedTuple):
    """An episode in four numbers."""

    total: float
    penalties: float
    success: bool
    turns: int


def _play(env: AnyEnv, seed: int, answer: Answer) -> _Played:
    env.reset(seed=seed)
    results = [result for _, result in steps(env, answer)]
    return _Played(
        total=sum(float(reward) for _, reward, *_ in results),
        penalties=sum(float(found.get("format_penalty", 0.0)) for *_, found in results),
        success=bool(results and results[-1][4].get("success")),
        turns=len(results),
    )


def _script(answers: Iterable[str] = ()) -> Answer:
    """A player that gives these answers, and empty ones after them."""
    left = iter(answers)
    return lambda env: next(left, "")


def _random_episodes(env: AnyEnv, seed: int) -> list[_Played]:
    return [_play(env, seed, mixed(1000 * attempt + seed, garbage=0)) for attempt in range(5)]


def strange_answers(subject: Subject) -> str:
    """Empty, garbage, huge and non-text-like answers neither crash nor pay, nor take long."""
    env = subject.text_taker()
    named = isinstance(getattr(env, "action_format", None), ActionFormat)
    for name, text in STRANGE_ANSWERS.items():
        env.reset(seed=subject.seeds[0])
        started = time.perf_counter()
        try:
            observation, reward, _, _, info = env.step(text)
        except Exception as error:  # what is tested
            raise Failure(
                f"the answer {name!r} ({text[:30]!a}...) raises {type(error).__name__}: {str(error)[:150]}; "
                "step must take any text a model may write"
            ) from error
        took = time.perf_counter() - started
        need(took < _SLOWEST_ANSWER_S, f"the answer {name!r} takes {took:.1f} s; cut long answers before reading them")
        need(float(reward) <= 0, f"the answer {name!r} is paid {reward}; only what the rules ask for may pay")
        need(not info.get("success", False), f"the answer {name!r} counts as success")
        if named:
            need(not info.get("action_is_valid"), f"the answer {name!r} names no action, and action_is_valid is True")
        need(isinstance(observation, str), f"after the answer {name!r} the observation is no text")
    return f"{len(STRANGE_ANSWERS)} answers"


def floor(subject: Subject) -> str:
    """A policy that does nothing never succeeds and is never paid."""
    env = subject.text_taker()
    for seed in subject.seeds:
        played = _play(env, seed, _script())
        need(not played.success, f"seed {seed} is solved by empty answers; such a task says nothing about an agent")
        need(played.total <= 0, f"empty answers earn {played.total} in seed {seed}; reward progress only")
    return "empty answers earn nothing"


def ends(subject: Subject) -> str:
    """Every episode ends within the turn limit, by exactly one of terminated and truncated."""
    env = subject.make()
    limit = getattr(env, "max_turns", None)
    for seed in subject.seeds:
        players = {"random": mixed(seed, garbage=0), "mixed": mixed(seed)}
        if trace.takes_text(env):
            players["idle"] = _script()
        for player, answer in players.items():
            env.reset(seed=seed)
            last, turns = False, 0
            for _, result in steps(env, answer):
                last, turns = result[2] or result[3], turns + 1
                _need_one_end(result, f"turn {turns} of seed {seed}")
            if isinstance(env, TextEnv) and isinstance(limit, int):
                need(last, f"a {player} player is still going after {turns} turns, but max_turns is {limit}; truncate")
                # Only invalid answers may be forgiven, and the random player gives none.
                most = limit if player == "random" else 2 * limit
                need(turns <= most, f"a {player} player may take {turns} turns, but max_turns is {limit}")
    if isinstance(env, TextEnv):
        _win_at_the_limit(subject, env)
    return f"within {limit} turns" if isinstance(limit, int) else "no episode ended in both ways"


def _need_one_end(result: Any, when: str) -> None:
    both = result[2] and result[3]
    need(not both, f"{when} ends terminated and truncated both; truncated only when the rules did not end the episode")


def _win_at_the_limit(subject: Subject, env: TextEnv) -> None:
    """Waste turns until the oracle's way just fits, so that the win and the turn limit fall on the same turn."""
    for seed in subject.seeds:
        env.reset(seed=seed)
        for turn in range(1, trace.turn_limit(env) + 1):
            # An empty answer may change where the solver stands, so that its way is asked for again.
            way = env.oracle()
            if not way:
                break
            result = env.step(way[0] if env.max_turns - turn < len(way) else "")
            _need_one_end(result, f"a win on the last turn (turn {turn} of seed {seed})")
            if result[2] or result[3]:
                break


def oracle(subject: Subject) -> str:
    """The oracle solves the episode with a return that no random player beats."""
    env = subject.text_env("oracle()")
    returns = []
    for seed in subject.seeds:
        env.reset(seed=seed)
        way = env.oracle()
        if way is None:
            continue
        count, limit = len(way), env.max_turns
        need(way, f"oracle() gives no answers for seed {seed}, which is not solved yet; return None if it has none")
        need(count <= limit, f"oracle() needs {count} turns for seed {seed}; max_turns is {limit}")
        played = _play(env, seed, _script(way))
        need(played.turns <= count, f"after the {count} answers of oracle() the episode of seed {seed} has not ended")
        need(played.success, f"the oracle's answers do not solve seed {seed} (success is False at the end)")
        need(played.turns == count, f"seed {seed} ends after {played.turns} of the oracle's {count} answers")
        returns.append(played.total)
        # An oracle that wins with less than the best return would be a wrong yardstick for agents.
        lucky = max(each.total for each in _random_episodes(env, seed))
        need(
            lucky <= played.total + _TOLERANCE,
            f"a random player earns {lucky:g} in seed {seed}, the oracle {played.total:g}; "
            "oracle() must give the highest total reward",
        )
    if not returns:
        raise Skip("oracle() gives None for every seed")
    return f"solves {len(returns)} of {len(subject.seeds)} seeds, best return {max(returns):g}"


def oracle_midway(subject: Subject) -> str:
    """Asked after a random answer, the oracle solves the rest or says that it cannot (None)."""
    env = subject.text_env("oracle()")
    asked = 0
    for seed in subject.seeds:
        env.reset(seed=seed)
        result = env.step(mixed(seed, garbage=0)(env))
        way = None if result[2] or result[3] else env.oracle()
        if way is None:
            continue
        last = [result for _, result in steps(env, _script(way), len(way))][-1:]
        solved = bool(last and last[0][4].get("success"))
        need(solved, f"after a random answer in seed {seed} the oracle's {len(way)} answers do not solve the episode; "
                     "find the way from where the episode stands, or return None")  # fmt: skip
        asked += 1
    if not asked:
        raise Skip("oracle() gives None after a random answer in every seed")
    return f"solves {asked} of {len(subject.seeds)} seeds"


def reward_range(subject: Subject) -> str:
    """No episode leaves the reward range of the card."""
    if subject.card is None:
        raise Skip("the environment has no card; pass card=, or check a registered id")
    if subject.varied:
        raise Skip("the card's reward_range holds for its own arguments, and others were given")
    low, high = subject.card.reward_range
    need(low < high, f"the card's reward_range is {(low, high)}; the lowest return must be below the highest")
    env = subject.make()
    played = []
    for seed in subject.seeds:
        played += _random_episodes(env, seed)
        if trace.takes_text(env):
            played.append(_play(env, seed, _script()))
        if isinstance(env, TextEnv):
            env.reset(seed=seed)
            played.append(_play(env, seed, _script(env.oracle() or ())))
    # The card's range is without penalties for the form of answers, which are an argument of most environments.
    totals = [each.total - each.penalties for each in played]
    seen = f"returns from {min(totals):g} to {max(totals):g}"
    inside = min(totals) >= low - _TOLERANCE and max(totals) <= high + _TOLERANCE
    need(inside, f"{seen} were seen, the card's reward_range is {(low, high)}; mend it")
    return f"{seen} within {(low, high)}"


INTERFACE_RULES: tuple[Rule, ...] = (
    gymnasium_checker,
    spaces,
    prompt,
    info,
    reward_parts,
    render,
    close_twice,
    step_outside_an_episode,
)
GAME_RULES: tuple[Rule, ...] = (strange_answers, floor, ends, oracle, oracle_midway, reward_range)
