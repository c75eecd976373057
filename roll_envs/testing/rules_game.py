"""Rules about the game: the floor, the end of an episode, the oracle and the range of rewards."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from roll_envs.env import AnyEnv, TextEnv
from roll_envs.testing import trace
from roll_envs.testing.trace import Answer, Failure, Rule, Skip, Subject, mixed, need, script, steps

_TOLERANCE = 1e-9
_LEAST_STILL = 5
"""Valid answers without effect that tell whether the observation changes by itself."""
_SEARCH_S = 5.0
"""After which no more ways are tried, and the oracle is asked at no more turns of an episode than the first."""


class _Played(NamedTuple):
    """An episode in five numbers."""

    total: float
    last: float
    """The reward of the last turn."""
    penalties: float
    success: bool
    turns: int


def _play(env: AnyEnv, seed: int, answer: Answer, most: int | None = None) -> _Played:
    env.reset(seed=seed)
    results = [result for _, result in steps(env, answer, most)]
    return _Played(
        total=sum(float(reward) for _, reward, *_ in results),
        last=float(results[-1][1]) if results else 0.0,
        penalties=sum(float(found.get("format_penalty", 0.0)) for *_, found in results),
        success=bool(results and results[-1][4].get("success")),
        turns=len(results),
    )


@functools.lru_cache(maxsize=1)
def _random_episodes(subject: Subject) -> Mapping[int, Sequence[_Played]]:
    """Five of each seed, played once for all rules."""
    env = subject.make()
    return {
        seed: [_play(env, seed, mixed(1000 * attempt + seed, garbage=0)) for attempt in range(5)]
        for seed in subject.seeds
    }


def floor(subject: Subject) -> str:
    """A policy that does nothing never succeeds and is never paid."""
    env = subject.text_taker()
    for seed in subject.seeds:
        played = _play(env, seed, script())
        need(not played.success, f"seed {seed} is solved by empty answers; such a task says nothing about an agent")
        need(played.total <= 0, f"empty answers earn {played.total} in seed {seed}; reward progress only")
        for each in _random_episodes(subject)[seed]:
            unpaid = each.success and each.total <= played.total and each.last <= played.last
            need(not unpaid, f"an episode of seed {seed} counts as success and earns {each.total:g}, no more than "
                             "empty answers; success is True only where the task is solved")  # fmt: skip
    _need_still(subject, env)
    return "empty answers earn nothing"


def _need_still(subject: Subject, env: AnyEnv) -> None:
    """Where valid answers without effect show what was shown before, one that cannot be read does not lead where valid
    ones do."""
    seen: dict[int, set[Any]] = {seed: set() for seed in subject.seeds}
    still = []
    for seed, answer in subject.games(garbage=0):
        shown, _ = trace.begin(env, seed=seed)
        seen[seed].add(shown)
        for _, (observation, *_, info) in steps(env, answer):
            if info.get("action_is_effective") is False:
                still.append(observation == shown)
            shown = observation
            seen[seed].add(shown)
    for seed in subject.seeds if all(still) and len(still) >= _LEAST_STILL else ():
        shown, _ = trace.begin(env, seed=seed)
        for said, (observation, *_, info) in steps(env, mixed(seed, garbage=0.5)):
            moved = info.get("action_is_valid") is False and observation != shown and observation in seen[seed]
            need(not moved, f"the answer {said[:40]!a} cannot be read and plays a move; it must change nothing")
            shown = observation


def ends(subject: Subject) -> str:
    """Every episode ends within the turn limit, by exactly one of terminated and truncated."""
    env = subject.make()
    limit = getattr(env, "max_turns", None)
    for seed in subject.seeds:
        players = {"random": mixed(seed, garbage=0), "mixed": mixed(seed)}
        if trace.takes_text(env):
            players["idle"] = script()
        for player, answer in players.items():
            env.reset(seed=seed)
            last, turns = False, 0
            for _, result in steps(env, answer):
                last, turns = result[2] or result[3], turns + 1
                _need_one_end(result, f"turn {turns} of seed {seed}")
                early = isinstance(env, TextEnv) and result[3] and turns == env.max_turns - 1
                need(not early, f"seed {seed} is truncated after {turns} turns, but max_turns is {limit}")
            if isinstance(env, TextEnv) and isinstance(limit, int) and (last or not trace.is_cut(answer, turns)):
                need(
                    last, f"the {player} player is still going after {turns} turns, but max_turns is {limit}; truncate"
                )
                # Only invalid answers may be forgiven, and the random player gives none.
                most = limit if player == "random" else 2 * limit
                need(turns <= most, f"the {player} player may take {turns} turns, but max_turns is {limit}")
    if isinstance(env, TextEnv):
        _win_at_the_limit(subject, env)
        _need_no_terminated_limit(subject, env)
    return f"within {limit} turns" if isinstance(limit, int) else "no episode ended in both ways"


def _need_no_terminated_limit(subject: Subject, env: TextEnv) -> None:
    """Rules of the game end an idle episode at the same turn where the turn limit is another; where the limit is no
    argument, it may be one of the rules (so many guesses)."""
    if "max_turns" not in inspect.signature(type(env)).parameters:
        return
    limit, seed = env.max_turns, subject.seeds[0]
    for most in (limit, limit + 2):
        with contextlib.suppress(AttributeError):  # it cannot be set
            env.max_turns = most
        env.reset(seed=seed)
        played = [result for _, result in steps(env, script(), 2 * most)]
        if limit == 1 or len(played) != most or not played[-1][2]:
            return
    raise Failure(f"the turn limit ends seed {seed} by terminated; return truncated, and terminated only for an end by "
                  "the rules")  # fmt: skip


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
    returns, until = [], time.monotonic() + _SEARCH_S
    for seed in subject.seeds:
        env.reset(seed=seed)
        way = env.oracle()
        if way is None:
            continue
        count, limit = len(way), env.max_turns
        need(way, f"oracle() gives no answers for seed {seed}, which is not solved yet; return None if it has none")
        need(count <= limit, f"oracle() needs {count} turns for seed {seed}; max_turns is {limit}")
        played = _play(env, seed, script(way))
        need(played.turns <= count, f"after the {count} answers of oracle() the episode of seed {seed} has not ended")
        need(played.success, f"the oracle's answers do not solve seed {seed} (success is False at the end)")
        need(played.turns == count, f"seed {seed} ends after {played.turns} of the oracle's {count} answers")
        returns.append(played.total)
        # An oracle that wins with less than the best return would be a wrong yardstick for agents.
        lucky = max(each.total for each in _random_episodes(subject)[seed])
        need(
            lucky <= played.total + _TOLERANCE,
            f"a random player earns {lucky:g} in seed {seed}, the oracle {played.total:g}; "
            "oracle() must give the highest total reward",
        )
        for at, width in itertools.product(range(count), (1, 2)):
            if time.monotonic() > until:
                break
            rest = way[:at] + way[at + width :]
            less = _play(env, seed, script(rest), len(rest)).total
            best = less <= played.total + _TOLERANCE
            need(best, f"the oracle's way of seed {seed} earns more without {width} of its answers from turn {at + 1} "
                       "on; give the best one")  # fmt: skip
    if not returns:
        raise Skip("oracle() gives None for every seed")
    return f"solves {len(returns)} of {len(subject.seeds)} seeds, best return {max(returns):g}"


def oracle_midway(subject: Subject) -> str:
    """Asked after random answers, the oracle solves the rest or says that it cannot (None)."""
    env = subject.text_env("oracle()")
    asked, until = 0, time.monotonic() + _SEARCH_S
    for seed in subject.seeds:
        env.reset(seed=seed)
        for turn, (_, result) in enumerate(steps(env, mixed(seed, garbage=0)), 1):
            way = None if result[2] or result[3] else env.oracle()
            if way is not None:
                here = env.snapshot()
                last = [result for _, result in steps(env, script(way), len(way))][-1:]
                solved = bool(last and last[0][4].get("success"))
                need(solved, f"after {turn} random answers in seed {seed} the oracle's {len(way)} answers do not solve "
                             "the episode; find the way from where it stands, or return None")  # fmt: skip
                asked += 1
                env.restore(here)
            if time.monotonic() > until:  # the next seeds are asked once each
                break
    if not asked:
        raise Skip("oracle() gives None after random answers in every seed")
    return f"solves {asked} positions of {len(subject.seeds)} seeds"


def reward_range(subject: Subject) -> str:
    """No episode leaves the reward range of the card."""
    if subject.card is None:
        raise Skip("the environment has no card; pass card=, or check a registered id")
    if subject.varied:
        raise Skip("the card's reward_range holds for its own arguments, and others were given")
    low, high = subject.card.reward_range
    need(low < high, f"the card's reward_range is {(low, high)}; the lowest return must be below the highest")
    env = subject.make()
    played: list[_Played] = []
    for seed in subject.seeds:
        played += _random_episodes(subject)[seed]
        if trace.takes_text(env):
            played.append(_play(env, seed, script()))
        if isinstance(env, TextEnv):
            env.reset(seed=seed)
            played.append(_play(env, seed, script(env.oracle() or ())))
    # The card's range is without penalties for the form of answers, which are an argument of most environments.
    totals = [each.total - each.penalties for each in played]
    seen = f"returns from {min(totals):g} to {max(totals):g}"
    inside = min(totals) >= low - _TOLERANCE and max(totals) <= high + _TOLERANCE
    need(inside, f"{seen} were seen, the card's reward_range is {(low, high)}; mend it")
    return f"{seen} within {(low, high)}"


GAME_RULES: tuple[Rule, ...] = (floor, ends, oracle, oracle_midway, reward_range)
