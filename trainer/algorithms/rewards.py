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

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from roll_envs.types import Metrics
from trainer.algorithms.estimators.types import NO_SPREAD, EpisodeView, FloatArray, equal
from trainer.algorithms.state import AlgorithmState
from trainer.config.algorithm import RewardConfig

__all__ = ["kl_estimate", "overlong_penalty", "shape_rewards"]

EPSILON = 1e-6
LOG_RATIO_BOUND = 20.0
"""Log-ratios are cut to +-20, as in the losses."""
K3_BOUND = 10.0
"""k3 grows exponentially; it is cut at 10, as in verl."""


def shape_rewards(
    config: RewardConfig,
    episodes: Sequence[EpisodeView],
    state: AlgorithmState,
    kl: Sequence[FloatArray] | None = None,
) -> tuple[list[EpisodeView], Metrics]:
    """The episodes with the rewards that are learnt from, and statistics named ``reward/...``.

    ``kl`` is ``log pi - log reference`` of each sampled token [N] per episode, needed where ``kl_coef`` is not 0.
    ``state`` takes the step's returns (before normalisation) and, with a target, its KL in: the returns before they are
    normalised by the running numbers, the KL after the coefficient was used.

    Raises:
        ValueError: ``kl_coef`` is not 0 and ``kl`` is missing, or has another shape.
    """
    if not episodes:
        return [], {}
    rewards = [_shaped(config, e) for e in episodes]
    returns = np.array([r.sum() for r in rewards])
    state.returns.add(np.sort(returns))
    means = _means(config.normalize_mean, episodes, returns, state)
    factors = _factors(config.normalize_std, episodes, returns, state)
    views = [_normalized(config, *each) for each in zip(episodes, rewards, means, factors, strict=True)]
    metrics = {
        "reward/return_mean": float(np.mean([e.total for e in episodes])),
        "reward/shaped_mean": float(np.mean([v.total for v in views])),
        **_turn_shares(config, episodes),
    }
    if "running" in (config.normalize_mean, config.normalize_std):
        metrics["reward/running_mean"] = state.returns.mean
        metrics["reward/running_std"] = float(np.sqrt(state.returns.variance))
    if config.kl_coef:
        views, measured = _with_kl(config, views, state, kl)
        metrics.update(measured)
    return views, metrics


def overlong_penalty(length: int, config: RewardConfig) -> float:
    """DAPO's soft overlong punishment (Yu et al. 2025, arXiv:2503.14476, eq. 13), 0 or less; ``length`` in tokens.

    ``-factor * (length - (longest - buffer)) / buffer`` between ``longest - buffer`` and ``longest``, and ``-factor``
    above. With 20480, 4096 and 1: 16000 gives 0, 18432 gives -0.5, 20480 and more give -1.
    """
    if config.overlong_tokens is None:
        return 0.0
    exceeding = length - (config.overlong_tokens - config.overlong_buffer)
    return -config.overlong_factor * min(max(exceeding / config.overlong_buffer, 0.0), 1.0)


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


def _shaped(config: RewardConfig, episode: EpisodeView) -> FloatArray:
    """Steps 1 and 2."""
    rewards = episode.rewards.astype(np.float64, copy=True)
    if config.clip is not None:
        np.clip(rewards, -config.clip, config.clip, out=rewards)
    rewards *= config.scale
    rewards[-1] += config.shift
    rewards += [overlong_penalty(n, config) for n in episode.lengths]
    return rewards


def _normalized(
    config: RewardConfig, episode: EpisodeView, rewards: FloatArray, mean: float, factor: float
) -> EpisodeView:
    """Step 3 for the episode and the greedy one beside it."""
    rewards[-1] -= mean
    greedy = episode.greedy_return
    if greedy is not None:
        greedy = float((greedy * config.scale + config.shift - mean) * factor)
    return replace(episode, rewards=rewards * factor, greedy_return=greedy)


def _parts(scope: str, episodes: Sequence[EpisodeView]) -> list[list[int]]:
    """Indices of the episodes that are normalised together."""
    parts: dict[object, list[int]] = defaultdict(list)
    for i, episode in enumerate(episodes):
        parts[{"batch": None, "group": episode.group, "env": episode.env}[scope]].append(i)
    return list(parts.values())


def _means(scope: str, episodes: Sequence[EpisodeView], returns: FloatArray, state: AlgorithmState) -> FloatArray:
    result = np.zeros(len(returns))
    if scope == "running":
        result[:] = state.returns.mean
    elif scope != "none":
        for part in _parts(scope, episodes):
            result[part] = returns[part].mean()
    return result


def _factors(scope: str, episodes: Sequence[EpisodeView], returns: FloatArray, state: AlgorithmState) -> FloatArray:
    """1 / (standard deviation (ddof=1) + epsilon); 0 where there is one return only, or equal ones."""
    if scope == "none":
        return np.ones(len(returns))
    result = np.zeros(len(returns))
    if scope == "running":
        deviation = float(np.sqrt(state.returns.variance))
        result[:] = 1.0 / (deviation + EPSILON) if deviation > NO_SPREAD else 0.0
        return result
    for part in _parts(scope, episodes):
        if not equal(returns[part]):
            result[part] = 1.0 / (returns[part].std(ddof=1) + EPSILON)
    return result


def _turn_shares(config: RewardConfig, episodes: Sequence[EpisodeView]) -> Metrics:
    metrics: Metrics = {}
    if config.clip is not None:
        metrics["reward/clipped_share"] = float(
            np.mean(np.abs(np.concatenate([e.rewards for e in episodes])) > config.clip)
        )
    if config.overlong_tokens is not None:
        metrics["reward/overlong_share"] = float(
            np.mean([overlong_penalty(n, config) < 0 for e in episodes for n in e.lengths])
        )
    return metrics


def _with_kl(
    config: RewardConfig, views: Sequence[EpisodeView], state: AlgorithmState, kl: Sequence[FloatArray] | None
) -> tuple[list[EpisodeView], Metrics]:
    """Step 4; the coefficient then follows the target."""
    if kl is None:
        raise ValueError(f"reward.kl_coef is {config.kl_coef:g}, but no log-probs of the reference were given")
    if [len(k) for k in kl] != [sum(view.lengths) for view in views]:
        raise ValueError("the KL of the reward must be one number per sampled token of each episode")
    coefficient = state.kl_coef if config.kl_target is not None else config.kl_coef
    estimates = [kl_estimate(k, config.kl_estimator) for k in kl]
    metrics: Metrics = {"reward/kl_coef": coefficient}
    tokens = np.concatenate(estimates)
    if len(tokens):
        metrics["reward/kl"] = float(tokens.mean())
        if config.kl_target is not None:
            state.follow(metrics["reward/kl"], target=config.kl_target, horizon=config.kl_horizon, episodes=len(views))
    return [_less_kl(v, coefficient * e) for v, e in zip(views, estimates, strict=True)], metrics


def _less_kl(view: EpisodeView, penalty: FloatArray) -> EpisodeView:
    return replace(view, token_rewards=-penalty if view.token_rewards is None else view.token_rewards - penalty)
