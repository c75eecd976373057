"""Rewards before advantages are taken: clipping, scale, overlong penalty, normalisation, KL to the reference.

Always in this order:

1. each turn's reward is cut to ``[-clip, clip]`` and multiplied by ``scale``; ``shift`` is added to the last turn's;
2. the overlong penalty of each turn's answer is added to that turn's reward;
3. the episode's undiscounted return R becomes ``(R - mean) / (std + 1e-6)``: the mean is taken off the last turn's
   reward, the deviation divides all of them. Where the deviation's scope has no spread, all rewards become 0;
4. the KL to the reference, times its coefficient, is taken off each sampled token's reward. It is not normalised.

A greedy episode's return takes part in steps 1 and 3, as far as it can be known: clipping and the overlong penalty need
turns, which it does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from roll_envs.errors import CheckpointError
from roll_envs.types import Metrics
from trainer.config.algorithm import RewardConfig
from trainer.data.table import NO_SPREAD, FloatArray, IntArray, StepTable, compare, sum_by

__all__ = [
    "K3_BOUND",
    "LOG_RATIO_BOUND",
    "AlgorithmState",
    "Moments",
    "kl_estimate",
    "overlong_penalty",
    "shape_rewards",
]

EPSILON = 1e-6
LOG_RATIO_BOUND = 20.0
"""Log-ratios are cut to +-20, as in verl, so that the exponential stays finite."""
K3_BOUND = 10.0
"""k3 grows exponentially where the reference is the likelier, up to 5e8 at the bound of the log-ratio: one such token
would outweigh a whole step. It is cut at 10, in the reward and in the loss, as in verl and ROLL; that is where the
policy gives a token less than a twelfth of the reference's probability, which it samples in one of twelve at most."""


@dataclass(slots=True)
class Moments:
    """Count, mean and sum of squared deviations of all numbers seen so far (Chan et al. 1979)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, values: FloatArray) -> None:
        """Take ``values`` [N] in: (1, 2) and then (6) give mean 3 and variance 7."""
        n = len(values)
        if n == 0:
            return
        total = self.count + n
        shift = float(values.mean()) - self.mean
        self.squares += float(values.var()) * n + shift * shift * self.count * n / total
        self.mean += shift * n / total
        self.count = total

    @property
    def variance(self) -> float:
        """Unbiased (ddof=1); 0 for fewer than two numbers."""
        return self.squares / (self.count - 1) if self.count > 1 else 0.0


@dataclass(slots=True)
class AlgorithmState:
    """Everything here is in the checkpoint, so that a resumed run goes on with the same numbers."""

    kl_coef: float
    """Coefficient of the KL in the reward; ``reward.kl_coef`` at the start."""
    returns: Moments = field(default_factory=Moments)
    """Of the returns of all scored episodes so far, for ``running`` normalisation."""

    def follow(self, kl: float, *, target: float, horizon: int, episodes: int) -> None:
        """Adapt the coefficient to the measured ``kl`` (Ziegler et al. 2019, arXiv:1909.08593, section 2.2).

        ``coef *= 1 + clip(kl / target - 1, -0.2, 0.2) * episodes / horizon``: a KL of twice the target over 1000 of
        10,000 episodes raises it by 2%. A step of more episodes than the horizon counts as the horizon, so that the
        coefficient stays above 0.
        """
        error = min(max(kl / target - 1.0, -0.2), 0.2)
        self.kl_coef *= 1.0 + error * min(episodes / horizon, 1.0)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        moments = self.returns
        return {"kl_coef": self.kl_coef, "returns": [moments.count, moments.mean, moments.squares]}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> AlgorithmState:
        """The state of :meth:`to_dict`. Raises :class:`CheckpointError` when it is none."""
        try:
            count, mean, squares = saved["returns"]
            return cls(float(saved["kl_coef"]), Moments(int(count), float(mean), float(squares)))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint does not hold the algorithm's state ({error!r})") from error


def shape_rewards(config: RewardConfig, table: StepTable, state: AlgorithmState) -> tuple[StepTable, Metrics]:
    """The step with the rewards that are learnt from, and statistics named ``reward/...``.

    Where ``kl_coef`` is not 0 the log-probs of the proximal and the reference policy are needed. ``state`` takes the
    step's returns (before normalisation) and, with a target, its KL in: the returns before they are normalised by the
    running numbers, the KL after the coefficient was used.

    Raises:
        ValueError: ``kl_coef`` is not 0 and log-probs are missing.
    """
    turns, episodes = table.turns, table.episodes
    if not len(episodes.group):
        return table, {}
    last = np.cumsum(np.bincount(turns.episode)) - 1
    penalty = overlong_penalty(turns.tokens, config)
    rewards = turns.reward if config.clip is None else np.clip(turns.reward, -config.clip, config.clip)
    rewards = rewards * config.scale
    rewards[last] += config.shift
    rewards += penalty
    returns = sum_by(turns.episode, rewards, len(episodes.group))
    state.returns.add(np.sort(returns))
    mean = _means(config.normalize_mean, table, returns, state)
    factor = _factors(config.normalize_std, table, returns, state)
    rewards[last] -= mean
    rewards *= factor[turns.episode]
    metrics = {
        "reward/return_mean": float(episodes.environment_return.mean()),
        "reward/shaped_mean": float(sum_by(turns.episode, rewards, len(returns)).mean()),
    }
    if config.clip is not None:
        metrics["reward/clipped_share"] = float(np.mean(np.abs(turns.reward) > config.clip))
    if config.overlong_tokens is not None:
        metrics["reward/overlong_share"] = float(np.mean(penalty < 0))
    if "running" in (config.normalize_mean, config.normalize_std):
        metrics["reward/running_mean"] = state.returns.mean
        metrics["reward/running_std"] = float(np.sqrt(state.returns.variance))
    greedy = (episodes.greedy_return * config.scale + config.shift - mean) * factor
    table = replace(table, turns=replace(turns, reward=rewards), episodes=replace(episodes, greedy_return=greedy))
    if not config.kl_coef:
        return table, metrics
    table, measured = _with_kl(config, table, state)
    return table, {**metrics, **measured}


def overlong_penalty(lengths: IntArray, config: RewardConfig) -> FloatArray:
    """DAPO's soft overlong punishment (Yu et al. 2025, arXiv:2503.14476, eq. 13), 0 or less; ``lengths`` in tokens.

    ``-factor * (length - (longest - buffer)) / buffer`` between ``longest - buffer`` and ``longest``, and ``-factor``
    above. With 20480, 4096 and 1: 16000 gives 0, 18432 gives -0.5, 20480 and more give -1.
    """
    if config.overlong_tokens is None:
        return np.zeros(len(lengths))
    exceeding = lengths - (config.overlong_tokens - config.overlong_buffer)
    return np.asarray(-config.overlong_factor * np.clip(exceeding / config.overlong_buffer, 0.0, 1.0))


def kl_estimate(log_ratio: FloatArray, estimator: str) -> FloatArray:
    """KL of each token from ``d = log pi - log reference``; 0.3 gives k1 and abs 0.3, k2 0.045, k3 0.040818."""
    d = np.clip(log_ratio, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    value = d
    if estimator == "k2":
        value = np.square(d) / 2
    elif estimator == "k3":
        value = np.minimum(np.exp(-d) - 1.0 + d, K3_BOUND)
    elif estimator == "abs":
        value = np.abs(d)
    return value


def _scope(scope: str, table: StepTable) -> IntArray:
    """A label for each episode: the same where episodes are normalised together."""
    if scope == "group":
        return table.episodes.group
    if scope == "env":
        return np.unique(table.episodes.env, return_inverse=True)[1]
    return np.zeros(len(table.episodes.group), dtype=np.int64)


def _means(scope: str, table: StepTable, returns: FloatArray, state: AlgorithmState) -> FloatArray:
    if scope == "none":
        return np.zeros(len(returns))
    if scope == "running":
        return np.full(len(returns), state.returns.mean)
    return compare(returns, _scope(scope, table)).mean


def _factors(scope: str, table: StepTable, returns: FloatArray, state: AlgorithmState) -> FloatArray:
    """1 / (standard deviation (ddof=1) + epsilon); 0 where there is one return only, or equal ones."""
    if scope == "none":
        return np.ones(len(returns))
    if scope == "running":
        deviation = float(np.sqrt(state.returns.variance))
        return np.full(len(returns), 1.0 / (deviation + EPSILON) if deviation > NO_SPREAD else 0.0)
    found = compare(returns, _scope(scope, table))
    return np.where(found.differs, 1.0 / (found.std + EPSILON), 0.0)


def _with_kl(config: RewardConfig, table: StepTable, state: AlgorithmState) -> tuple[StepTable, Metrics]:
    """Step 4; the coefficient then follows the target."""
    tokens = table.tokens
    if tokens.proximal_logp is None or tokens.reference_logp is None:
        raise ValueError(f"reward.kl_coef is {config.kl_coef:g}, but no log-probs of the reference were given")
    coefficient = state.kl_coef if config.kl_target is not None else config.kl_coef
    log_ratio = np.where(tokens.predicted, tokens.proximal_logp - tokens.reference_logp, 0.0)
    estimates = kl_estimate(log_ratio, config.kl_estimator)
    metrics: Metrics = {"reward/kl_coef": coefficient}
    if len(estimates):
        metrics["reward/kl"] = float(estimates.mean())
        if config.kl_target is not None:
            episodes = len(table.episodes.group)
            state.follow(metrics["reward/kl"], target=config.kl_target, horizon=config.kl_horizon, episodes=episodes)
    return table.with_tokens(reward=tokens.reward - coefficient * estimates), metrics
