"""Episodes and their rewards in a training step, written plainly from docs/algorithms.md: a part of the oracle.

An episode's tokens are those that the policy sampled, turn after turn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import fmean as mean
from statistics import stdev
from typing import Any

Settings = dict[str, Any]
"""Every key that is read, such as "reward.scale", with its value."""


@dataclass(kw_only=True)
class Episode:
    """A scored episode of T turns and N sampled tokens."""

    group: int
    env: str
    success: bool
    rewards: list[float]
    """Reward of each turn [T]."""
    lengths: list[int]
    """Sampled tokens of each turn [T]."""
    anchors: list[str | None]
    """Observation that each turn answered [T]; None where nothing was sampled."""
    log_ratios: list[float]
    """log pi - log reference of each token [N]."""
    values: list[float]
    """The critic's [N]."""
    greedy: float | None
    token_rewards: list[float] = field(default_factory=list)
    """Minus the KL, times its coefficient [N]."""

    @property
    def turns(self) -> list[list[int]]:
        """The tokens of each turn [T], as indices."""
        ends = list(accumulate(self.lengths))
        return [list(range(end - n, end)) for end, n in zip(ends, self.lengths, strict=True)]

    @property
    def turn_rewards(self) -> list[float]:
        """With the token rewards of the turn's tokens [T]."""
        added = [sum(self.token_rewards[n] for n in tokens) for tokens in self.turns]
        return [r + a for r, a in zip(self.rewards, added, strict=True)]

    @property
    def total(self) -> float:
        return sum(self.turn_rewards)

    @property
    def rewards_on_last_tokens(self) -> list[float]:
        """The reward of a turn without tokens goes to the last token before it, or to the first token [N]."""
        result = list(self.token_rewards)
        last = 0
        for reward, tokens in zip(self.rewards, self.turns, strict=True):
            last = tokens[-1] if tokens else last
            if result:
                result[last] += reward
        return result


def same(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= 1e-9 * max(1.0, *map(abs, values))


@dataclass
class Memory:
    """What rewards remember from step to step."""

    kl_coef: float
    returns: list[float] = field(default_factory=list)


def shape_rewards(s: Settings, episodes: list[Episode], memory: Memory) -> dict[str, float]:
    """Change the rewards of ``episodes`` as the section ``reward`` says; returns what to watch."""
    plain = [r for e in episodes for r in e.rewards]
    metrics = {"reward/return_mean": mean(sum(e.rewards) for e in episodes)}
    if s["reward.clip"] is not None:
        metrics["reward/clipped_share"] = mean(float(abs(r) > s["reward.clip"]) for r in plain)
    penalties = [[_overlong(s, n) for n in e.lengths] for e in episodes]
    if s["reward.overlong_tokens"] is not None:
        metrics["reward/overlong_share"] = mean(float(p < 0) for ps in penalties for p in ps)
    for e, ps in zip(episodes, penalties, strict=True):
        bound = math.inf if s["reward.clip"] is None else s["reward.clip"]
        e.rewards = [min(max(r, -bound), bound) * s["reward.scale"] for r in e.rewards]
        e.rewards[-1] += s["reward.shift"]
        e.rewards = [r + p for r, p in zip(e.rewards, ps, strict=True)]
    returns = [sum(e.rewards) for e in episodes]
    memory.returns += returns
    if "running" in (s["reward.normalize_mean"], s["reward.normalize_std"]):
        metrics["reward/running_mean"] = mean(memory.returns)
        metrics["reward/running_std"] = stdev(memory.returns) if len(memory.returns) > 1 else 0.0
    for i, e in enumerate(episodes):
        shift, factor = _normalization(s, i, episodes, returns, memory)
        e.rewards[-1] -= shift
        e.rewards = [r * factor for r in e.rewards]
        if e.greedy is not None:
            e.greedy = (e.greedy * s["reward.scale"] + s["reward.shift"] - shift) * factor
    metrics["reward/shaped_mean"] = mean(sum(e.rewards) for e in episodes)
    return metrics | _take_kl_off(s, episodes, memory)


def _overlong(s: Settings, length: int) -> float:
    if s["reward.overlong_tokens"] is None:
        return 0.0
    excess = length - (s["reward.overlong_tokens"] - s["reward.overlong_buffer"])
    return float(-s["reward.overlong_factor"] * min(max(excess / s["reward.overlong_buffer"], 0.0), 1.0))


def _normalization(
    s: Settings, index: int, episodes: list[Episode], returns: list[float], memory: Memory
) -> tuple[float, float]:
    """What is taken off an episode's return, and the factor after that."""

    def others(scope: str) -> list[float]:
        if scope == "running":
            return memory.returns
        keys = [{"batch": 0, "group": e.group, "env": e.env}[scope] for e in episodes]
        return [r for r, key in zip(returns, keys, strict=True) if key == keys[index]]

    shift, factor = 0.0, 1.0
    if s["reward.normalize_mean"] != "none":
        shift = mean(others(s["reward.normalize_mean"]))
    if s["reward.normalize_std"] != "none":
        values = others(s["reward.normalize_std"])
        factor = 0.0 if same(values) else 1 / (stdev(values) + 1e-6)
    return shift, factor


def _take_kl_off(s: Settings, episodes: list[Episode], memory: Memory) -> dict[str, float]:
    for e in episodes:
        e.token_rewards = [0.0] * sum(e.lengths)
    if not s["reward.kl_coef"]:
        return {}
    coefficient = memory.kl_coef if s["reward.kl_target"] is not None else s["reward.kl_coef"]
    estimates = [[_kl(d, s["reward.kl_estimator"]) for d in e.log_ratios] for e in episodes]
    for e, kls in zip(episodes, estimates, strict=True):
        e.token_rewards = [-coefficient * kl for kl in kls]
    measured = mean(kl for kls in estimates for kl in kls)
    if s["reward.kl_target"] is not None:
        error = min(max(measured / s["reward.kl_target"] - 1, -0.2), 0.2)
        memory.kl_coef *= 1 + error * min(len(episodes) / s["reward.kl_horizon"], 1)
    return {"reward/kl_coef": coefficient, "reward/kl": measured}


def _kl(log_ratio: float, estimator: str) -> float:
    d = min(max(log_ratio, -20.0), 20.0)
    return {"k1": d, "k2": d * d / 2, "k3": min(math.exp(-d) - 1 + d, 10.0), "abs": abs(d)}[estimator]
