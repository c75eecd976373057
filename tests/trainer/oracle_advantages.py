"""Advantages of one training step, written plainly from docs/algorithms.md: a part of the oracle.

Everything is a Python loop over episodes, turns and tokens; nothing of the trainer is called.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from itertools import accumulate
from statistics import fmean as mean
from statistics import stdev, variance

from oracle_rewards import Episode, Settings, same

Numbers = list[float]
PerToken = list[Numbers]
"""Of each episode, one number per sampled token."""


def advantages_of(s: Settings, episodes: list[Episode]) -> tuple[PerToken, PerToken | None, dict[str, float]]:
    """Advantages, what the critic shall predict, and what to watch."""
    returns = None
    if s["advantage.name"] in GAE:
        found = [GAE[s["advantage.name"]](s, e) for e in episodes]
        returns = [[a + v for a, v in zip(a_e, e.values, strict=True)] for a_e, e in zip(found, episodes, strict=True)]
    else:
        found = ESTIMATORS[s["advantage.name"]](s, episodes)
    if s["advantage.whiten"]:
        found = whitened(found)
    if s["advantage.clip"] is not None:
        found = [[min(max(a, -s["advantage.clip"]), s["advantage.clip"]) for a in e] for e in found]
    groups = list(_groups(episodes).values())
    tokens = [a for e in found for a in e]
    totals = [[episodes[i].total for i in members] for members in groups]
    return (
        found,
        returns,
        {
            "advantage/groups": float(len(groups)),
            "advantage/singleton_groups": mean(float(len(t) == 1) for t in totals),
            "advantage/zero_variance_groups": mean(float(len(t) > 1 and same(t)) for t in totals),
            "advantage/mean": mean(tokens),
            "advantage/abs_mean": mean(map(abs, tokens)),
            "advantage/max": max(tokens),
            "advantage/min": min(tokens),
        },
    )


def whitened(values: PerToken) -> PerToken:
    tokens = [v for e in values for v in e]
    if len(tokens) < 2 or same(tokens):
        return [[0.0] * len(e) for e in values]
    centre, scale = mean(tokens), math.sqrt(variance(tokens) + 1e-8)
    return [[(v - centre) / scale for v in e] for e in values]


def _groups(episodes: list[Episode]) -> dict[int, list[int]]:
    members = defaultdict(list)
    for i, e in enumerate(episodes):
        members[e.group].append(i)
    return members


def _compared(episodes: list[Episode]) -> list[list[int]]:
    """The groups whose returns differ; all other episodes have advantages of 0."""
    return [members for members in _groups(episodes).values() if not same([episodes[i].total for i in members])]


def _on_tokens(values: Numbers, episodes: list[Episode]) -> PerToken:
    return [[v] * sum(e.lengths) for v, e in zip(values, episodes, strict=True)]


def _on_turns(values: PerToken, episodes: list[Episode]) -> PerToken:
    return [
        [v for v, n in zip(vs, e.lengths, strict=True) for _ in range(n)]
        for vs, e in zip(values, episodes, strict=True)
    ]


def _to_go(rewards: Numbers, gamma: float) -> Numbers:
    return [sum(gamma**k * r for k, r in enumerate(rewards[t:])) for t in range(len(rewards))]


def _standardized(s: Settings, values: Numbers, ddof: int = 1) -> Numbers:
    if len(values) < 2 or same(values):
        return [0.0] * len(values)
    centre = mean(values)
    deviation = math.sqrt(sum((v - centre) ** 2 for v in values) / (len(values) - ddof))
    scale = deviation + s["advantage.epsilon"] if s["advantage.normalize"] == "mean_std" else 1.0
    return [(v - centre) / scale for v in values]


def _group_relative(one: Callable[[Settings, list[Episode], list[float]], Numbers]) -> Callable[..., PerToken]:
    """An estimator from what it does with the episodes and returns of one group."""

    def estimate(s: Settings, episodes: list[Episode]) -> PerToken:
        result = [0.0] * len(episodes)
        for members in _compared(episodes):
            of_group = [episodes[i] for i in members]
            for i, a in zip(members, one(s, of_group, [e.total for e in of_group]), strict=True):
                result[i] = a
        return _on_tokens(result, episodes)

    return estimate


def _grpo(s: Settings, group: list[Episode], returns: Numbers) -> Numbers:
    if not s["advantage.across_steps"]:
        return _standardized(s, returns)
    counted = _standardized(s, [r for r, e in zip(returns, group, strict=True) for _ in e.lengths])
    ends = list(accumulate(len(e.lengths) for e in group))
    return [counted[end - 1] for end in ends]


def _opo(s: Settings, group: list[Episode], returns: Numbers) -> Numbers:
    lengths = [sum(e.lengths) for e in group]
    if not any(lengths):
        return [0.0] * len(group)
    baseline = sum(n * r for n, r in zip(lengths, returns, strict=True)) / sum(lengths)
    return [r - baseline for r in returns]


def _maxrl(s: Settings, group: list[Episode], returns: Numbers) -> Numbers:
    centre = mean(returns)
    return [(r - centre) / (centre + s["advantage.epsilon"]) if centre > 1e-9 else 0.0 for r in returns]


def _pass_at_k(s: Settings, group: list[Episode], returns: Numbers) -> Numbers:
    second, best = sorted(returns)[-2:]
    scale = stdev(returns) + s["advantage.epsilon"] if s["advantage.normalize"] == "mean_std" else 1.0
    winner = max(i for i, r in enumerate(returns) if r == best)
    return [(best - second) / scale if i == winner else 0.0 for i in range(len(returns))]


def _dr_grpo(s: Settings, group: list[Episode], returns: Numbers) -> Numbers:
    return [r - mean(returns) for r in returns]


def _rloo(s: Settings, group: list[Episode], returns: Numbers) -> Numbers:
    return [r - (sum(returns) - r) / (len(returns) - 1) for r in returns]


def _gpg(s: Settings, episodes: list[Episode]) -> PerToken:
    active = sum(map(len, _compared(episodes))) or 1
    return [[a * len(episodes) / active for a in e] for e in _group_relative(_dr_grpo)(s, episodes)]


def _lite_ppo(s: Settings, episodes: list[Episode]) -> PerToken:
    centred = _group_relative(_dr_grpo)(s, episodes)
    if not _compared(episodes):
        return centred
    scale = stdev([e.total for e in episodes]) + s["advantage.epsilon"]
    return [[a / scale for a in e] for e in centred]


def _reinforce_pp_baseline(s: Settings, episodes: list[Episode]) -> PerToken:
    white = whitened(_group_relative(_dr_grpo)(s, episodes))
    compared = {i for members in _compared(episodes) for i in members}
    return [[a if i in compared else 0.0 for a in e] for i, e in enumerate(white)]


def _reinforce(s: Settings, episodes: list[Episode]) -> PerToken:
    return _on_turns([_to_go(e.turn_rewards, s["advantage.gamma"]) for e in episodes], episodes)


def _reinforce_token(s: Settings, episodes: list[Episode]) -> PerToken:
    return [_to_go(e.rewards_on_last_tokens, s["advantage.token_gamma"]) for e in episodes]


def _step_reinforce(s: Settings, episodes: list[Episode]) -> PerToken:
    returns = [_to_go(e.turn_rewards, s["advantage.gamma"]) for e in episodes]
    sampled = [(i, t) for i, e in enumerate(episodes) for t, n in enumerate(e.lengths) if n]
    for (i, t), a in zip(sampled, _standardized(s, [returns[i][t] for i, t in sampled]), strict=True):
        returns[i][t] = a
    return _on_turns(returns, episodes)


def _remax(s: Settings, episodes: list[Episode]) -> PerToken:
    return _on_tokens([0.0 if e.greedy is None else e.total - e.greedy for e in episodes], episodes)


def _gigpo(s: Settings, episodes: list[Episode]) -> PerToken:
    of_episodes = _group_relative(_grpo)(s, episodes)
    returns = [_to_go(e.turn_rewards, s["advantage.gamma"]) for e in episodes]
    steps = [[0.0] * len(e.lengths) for e in episodes]
    states = defaultdict(list)
    for i, e in enumerate(episodes):
        for t, anchor in enumerate(e.anchors):
            if anchor is not None:
                states[e.group, anchor].append((i, t))
    for places in states.values():
        for (i, t), a in zip(places, _standardized(s, [returns[i][t] for i, t in places]), strict=True):
            steps[i][t] = s["advantage.step_weight"] * a
    return [
        [s["advantage.episode_weight"] * a + b for a, b in zip(*both, strict=True)]
        for both in zip(of_episodes, _on_turns(steps, episodes), strict=True)
    ]


def _hgpo(s: Settings, episodes: list[Episode]) -> PerToken:
    returns = [_to_go(e.turn_rewards, s["advantage.gamma"]) for e in episodes]
    taken: list[list[list[tuple[float, float]]]] = [[[] for _ in e.lengths] for e in episodes]  # (weight, advantage)
    for k in range(1, s["advantage.history"] + 2):
        clusters = defaultdict(list)
        for i, e in enumerate(episodes):
            met = [t for t, anchor in enumerate(e.anchors) if anchor is not None]
            for last in range(k - 1, len(met)):
                clusters[e.group, tuple(e.anchors[t] for t in met[last - k + 1 : last + 1])].append((i, met[last]))
        for places in clusters.values():
            values = [returns[i][t] for i, t in places]
            if not same(values):
                for (i, t), a in zip(places, _standardized(s, values, ddof=0), strict=True):
                    taken[i][t].append(((k + 1) ** s["advantage.history_power"], a))
    for members in _compared(episodes) if s["advantage.base_weight"] else []:
        group = [episodes[i] for i in members]
        for i, a in zip(members, _grpo(s, group, [e.total for e in group]), strict=True):
            for turn in taken[i]:
                turn.append((s["advantage.base_weight"], a))
    return _on_turns(
        [[sum(w * a for w, a in t) / sum(w for w, _ in t) if t else 0.0 for t in e] for e in taken], episodes
    )


def _gae_over(rewards: Numbers, values: Numbers, gamma: float, lam: float) -> Numbers:
    """The sum over k of (gamma lam)^k d_{t+k}."""
    deltas = [r + gamma * after - v for r, v, after in zip(rewards, values, [*values[1:], 0.0], strict=False)]
    return _to_go(deltas, gamma * lam)


def _gae(s: Settings, e: Episode) -> Numbers:
    return _gae_over(e.rewards_on_last_tokens, e.values, s["advantage.token_gamma"], s["advantage.lam"])


def _bi_level_gae(s: Settings, e: Episode) -> Numbers:
    """Turns first: a turn's reward and value are those of its last token, and the value behind it is that of the next
    turn's end with the token rewards on the way there. Then tokens, by themselves in each turn."""
    turns = [tokens for tokens in e.turns if tokens]
    rewards = e.rewards_on_last_tokens
    behind = [sum(rewards[n] for n in tokens[:-1]) + e.values[tokens[-1]] for tokens in turns[1:]] + [0.0]
    deltas = [
        rewards[tokens[-1]] + s["advantage.high_gamma"] * after - e.values[tokens[-1]]
        for tokens, after in zip(turns, behind, strict=False)
    ]
    result: Numbers = []
    for tokens, a in zip(turns, _to_go(deltas, s["advantage.high_gamma"] * s["advantage.high_lam"]), strict=True):
        inside = [rewards[n] for n in tokens[:-1]] + [a + e.values[tokens[-1]]]
        values = [e.values[n] for n in tokens]
        result += _gae_over(inside, values, s["advantage.token_gamma"], s["advantage.lam"])
    return result


GAE: dict[str, Callable[[Settings, Episode], Numbers]] = {"gae": _gae, "bi_level_gae": _bi_level_gae}

ESTIMATORS: dict[str, Callable[[Settings, list[Episode]], PerToken]] = {
    "dr_grpo": _group_relative(_dr_grpo),
    "gigpo": _gigpo,
    "gpg": _gpg,
    "grpo": _group_relative(_grpo),
    "hgpo": _hgpo,
    "lite_ppo": _lite_ppo,
    "maxrl": _group_relative(_maxrl),
    "opo": _group_relative(_opo),
    "pass_at_k": _group_relative(_pass_at_k),
    "reinforce": _reinforce,
    "reinforce_pp": lambda s, episodes: whitened(_reinforce_token(s, episodes)),
    "reinforce_pp_baseline": _reinforce_pp_baseline,
    "reinforce_token": _reinforce_token,
    "remax": _remax,
    "rloo": _group_relative(_rloo),
    "step_reinforce": _step_reinforce,
}
