"""Rules about the game: strange answers, the floor, the oracle, the range of rewards and the end of an episode."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import gymnasium

from roll_envs.env import TextEnv
from roll_envs.testing.trace import Answer, Failure, Rule, Subject, mixed, need, need_text_env, skip, steps, turn_limit

__all__ = ["PLAY_RULES", "STRANGE_ANSWERS"]

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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Played:
    """An episode in four numbers."""

    total: float
    penalties: float
    success: bool
    turns: int


def _play(env: gymnasium.Env[Any, Any], seed: int, answer: Answer) -> _Played:
    env.reset(seed=seed)
    total = penalties = 0.0
    success, turns = False, 0
    for _, (_, reward, _, _, info) in steps(env, answer):
        total, turns = total + float(reward), turns + 1
        penalties += float(info.get("format_penalty", 0.0))
        success = bool(info.get("success", False))
    return _Played(total=total, penalties=penalties, success=success, turns=turns)


def strange_answers(subject: Subject) -> str:
    """Empty, garbage, huge and non-text-like answers neither crash nor pay, nor take long."""
    env = subject.make()
    if not isinstance(env.action_space.sample(), str):
        skip("the action space holds no text")
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
        need(isinstance(observation, str), f"after the answer {name!r} the observation is no text")
        observation.encode("utf-8", "surrogatepass")
    return f"{len(STRANGE_ANSWERS)} answers"


def floor(subject: Subject) -> str:
    """A policy that does nothing never succeeds and is never paid."""
    env = subject.make()
    if not isinstance(env.action_space.sample(), str):
        skip("the action space holds no text")
    for seed in subject.seeds:
        played = _play(env, seed, _idle)
        need(not played.success, f"seed {seed} is solved by empty answers; such a task says nothing about an agent")
        need(played.total <= 0, f"empty answers earn {played.total} in seed {seed}; reward progress only")
    return "empty answers earn nothing"


def ends(subject: Subject) -> str:
    """Every episode ends within the turn limit, by exactly one of terminated and truncated."""
    env = subject.make()
    limit = getattr(env, "max_turns", None)
    for seed in subject.seeds:
        for player, answer in (("random", mixed(seed, garbage=0)), ("mixed", mixed(seed)), ("idle", _idle)):
            if player == "idle" and not isinstance(env.action_space.sample(), str):
                continue
            last, turns = _follow(env, seed, answer)
            if isinstance(env, TextEnv) and isinstance(limit, int):
                need(last, f"a {player} player is still going after {turns} turns, but max_turns is {limit}; truncate")
                most = limit if player == "random" else 2 * limit
                need(turns <= most, f"a {player} player may take {turns} turns, but max_turns is {limit}")
    if isinstance(env, TextEnv):
        _win_at_the_limit(subject, env)
    return f"within {limit} turns" if isinstance(limit, int) else "no episode ended in both ways"


def _script(answers: Iterable[str]) -> Answer:
    """A player that gives these answers, and empty ones after them."""
    left = iter(answers)
    return lambda env: next(left, "")


def _idle(env: gymnasium.Env[Any, Any]) -> str:
    return ""


def _follow(env: gymnasium.Env[Any, Any], seed: int, answer: Answer) -> tuple[bool, int]:
    env.reset(seed=seed)
    for turn, (_, result) in enumerate(steps(env, answer), start=1):
        _need_one_end(result, f"turn {turn} of seed {seed}")
        if result[2] or result[3]:
            return True, turn
    return False, turn_limit(env)


def _need_one_end(result: Any, when: str) -> None:
    need(
        not (result[2] and result[3]),
        f"{when} ends terminated and truncated both; truncated only when the rules did not end the episode",
    )


def _win_at_the_limit(subject: Subject, env: TextEnv) -> None:
    """Waste turns until the oracle's way just fits, so that the win and the turn limit fall on the same turn."""
    for seed in subject.seeds:
        env.reset(seed=seed)
        for turn in range(1, turn_limit(env) + 1):
            way = env.oracle()
            if not way:
                break
            result = env.step(way[0] if env.max_turns - turn < len(way) else "")
            _need_one_end(result, f"a win on the last turn (turn {turn} of seed {seed})")
            if result[2] or result[3]:
                break


def oracle(subject: Subject) -> str:
    """The oracle solves the episode with a return that no random player beats."""
    env = need_text_env(subject.make(), "oracle()")
    solved, best = 0, float("-inf")
    for seed in subject.seeds:
        env.reset(seed=seed)
        way = env.oracle()
        if way is None:
            continue
        need(way, f"oracle() gives no answers for seed {seed}, which is not solved yet; return None if it has none")
        need(
            len(way) <= env.max_turns, f"oracle() needs {len(way)} turns for seed {seed}; max_turns is {env.max_turns}"
        )
        played = _play(env, seed, _script(way))
        need(
            played.turns <= len(way),
            f"after the {len(way)} answers of oracle() the episode of seed {seed} has not ended",
        )
        need(played.success, f"the oracle's answers do not solve seed {seed} (success is False at the end)")
        need(played.turns == len(way), f"seed {seed} ends after {played.turns} of the oracle's {len(way)} answers")
        solved, best = solved + 1, max(best, played.total)
        for attempt in range(5):
            lucky = _random_player(env, seed, attempt)
            need(
                lucky.total <= played.total + _TOLERANCE,
                f"a random player earns {lucky.total:g} in seed {seed}, the oracle {played.total:g}; "
                "oracle() must give the highest total reward",
            )
    if not solved:
        skip("oracle() gives None for every seed")
    return f"solves {solved} of {len(subject.seeds)} seeds, best return {best:g}"


def _random_player(env: gymnasium.Env[Any, Any], seed: int, attempt: int) -> _Played:
    return _play(env, seed, mixed(1000 * attempt + seed, garbage=0))


def reward_range(subject: Subject) -> str:
    """No episode leaves the reward range of the card, and the oracle comes near its top."""
    if subject.card is None:
        skip("the environment has no card; pass card=, or check a registered id")
    if subject.varied:
        skip("the card's reward_range holds for its own arguments, and others were given")
    low, high = subject.card.reward_range
    need(low < high, f"the card's reward_range is {(low, high)}; the lowest return must be below the highest")
    env = subject.make()
    totals: list[float] = []
    for seed in subject.seeds:
        played = [_random_player(env, seed, attempt) for attempt in range(5)]
        if isinstance(env.action_space.sample(), str):
            played.append(_play(env, seed, _idle))
        if isinstance(env, TextEnv):
            env.reset(seed=seed)
            played.append(_play(env, seed, _script(env.oracle() or ())))
        totals += [p.total - p.penalties for p in played]
    need(
        min(totals) >= low - _TOLERANCE and max(totals) <= high + _TOLERANCE,
        f"returns from {min(totals):g} to {max(totals):g} were seen, the card's reward_range is {(low, high)}; mend it",
    )
    return f"returns from {min(totals):g} to {max(totals):g} within {(low, high)}"


PLAY_RULES: dict[str, Rule] = {
    "strange_answers": strange_answers,
    "floor": floor,
    "ends": ends,
    "oracle": oracle,
    "reward_range": reward_range,
}
