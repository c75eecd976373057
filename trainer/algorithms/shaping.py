"""What is learnt from: groups are filtered before advantages are taken and rewards shaped; masks choose tokens after.

*Filters* look at scored episodes alone, by the rewards of the environment as they are, and come in this order: spread
(``zero_variance``), share of successes (``success_low``, ``success_high``), and then ``top_share`` of the groups that
are left.

*Rewards* are shaped always in this order:

1. each turn's reward is cut to ``[-clip, clip]`` and multiplied by ``scale``; ``shift`` is added to the last turn's;
2. the overlong penalty of each turn's answer is added to that turn's reward;
3. the episode's undiscounted return R becomes ``(R - mean) / (std + 1e-6)``: the mean is taken off the last turn's
   reward, the deviation divides all of them. Where the deviation's scope has no spread, all rewards become 0;
4. the KL to the reference, times its coefficient, is taken off each sampled token's reward. It is not normalised.

A greedy episode's return takes part in steps 1 and 3, as far as it can be known: clipping and the overlong penalty need
turns, which it does not have.

*Masks* leave sampled tokens out of the loss though their episodes count in all statistics of groups and advantages;
denominators count the tokens that are left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import numpy as np

from roll_envs.errors import CheckpointError
from roll_envs.types import Group, Metrics
from trainer.config.algorithm import FilterConfig, MaskConfig, RewardConfig
from trainer.data.table import NO_SPREAD, BoolArray, FloatArray, IntArray, StepTable, compare, moments, sum_by

EPSILON = 1e-6
LOG_RATIO_BOUND = 20.0
"""Log-ratios are cut to +-20, as in verl, so that the exponential stays finite."""
K3_BOUND = 10.0
"""k3 grows exponentially where the reference is the likelier, up to 5e8 at the bound of the log-ratio: one such token
would outweigh a whole step. It is cut at 10, in the reward and in the loss, as in verl and ROLL; that is where the
policy gives a token less than a twelfth of the reference's probability, which it samples in one of twelve at most."""


# -- filters of groups -------------------------------------------------------------------------------------------------


def keep_groups(config: FilterConfig, groups: Sequence[Group]) -> tuple[list[Group], Metrics]:
    """The groups that pass, in order, and counts named ``filter/...``; scored episodes alone decide.

    ``zero_variance`` leaves out groups of equal returns (DAPO, Yu et al. 2025, arXiv:2503.14476, eq. 11) and groups
    without two scored episodes, which have nothing to compare either. A group without a scored episode has no share of
    successes, so that a window of successes leaves it out. ``top_share`` keeps ``floor(share * n)`` of n groups, but at
    least one, by the standard deviation (ddof=1) of their returns (StarPO-S, Wang et al. 2025, arXiv:2504.20073); of
    equal ones the first. Of four groups with deviations 0, 0.5, 0.7, 0.5 a half is the second and the third. Without
    any filter there are no counts.
    """
    low, high = config.success_low, config.success_high
    chosen: Metrics = {}
    kept = list(groups)

    def left(name: str, passed: list[Group]) -> list[Group]:
        chosen[f"filter/{name}"] = float(len(kept) - len(passed))
        return passed

    if config.zero_variance:
        kept = left("zero_variance", [group for group in kept if _spread(group) > 0.0])
    if (low, high) != (0.0, 1.0):
        kept = left("success_window", [group for group in kept if low <= _success_share(group) <= high])
    if config.top_share < 1:
        # The small number is for shares such as 0.29 of 100 groups, a product of 28.999999999999996.
        count = min(len(kept), max(1, math.floor(config.top_share * len(kept) + 1e-9)))
        best = sorted(range(len(kept)), key=lambda i: -_spread(kept[i]))[:count]
        kept = left("top_share", [kept[i] for i in sorted(best)])
    return kept, {"filter/groups": float(len(groups)), **chosen, "filter/kept": float(len(kept))} if chosen else {}


def _spread(group: Group) -> float:
    """Deviation of the returns that an estimator would see, exactly 0 without two that differ; infinite for a return
    that is not finite, which is then refused rather than lost."""
    returns = np.array([t.total_reward for t in group.trajectories if t.scored and t.turns], dtype=np.float64)
    return math.sqrt(moments(returns)[1]) if np.isfinite(returns).all() else math.inf


def _success_share(group: Group) -> float:
    """NaN, which is in no window, for a group without a scored episode."""
    successes = [t.success for t in group.trajectories if t.scored and t.turns]
    return sum(successes) / len(successes) if successes else math.nan


# -- rewards -----------------------------------------------------------------------------------------------------------


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
        return {"kl_coef": self.kl_coef, "returns": list(astuple(self.returns))}

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
    # Sorted, so that the running numbers have the same bits whatever order the groups came in.
    state.returns.add(np.sort(returns))
    mean, _ = _normalization(config.normalize_mean, table, returns, state)
    _, factor = _normalization(config.normalize_std, table, returns, state)
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


KL_ESTIMATORS: dict[str, Callable[[Any, Callable[[Any], Any]], Any]] = {
    "k1": lambda d, exp: d,
    "k2": lambda d, exp: d * d / 2,
    "k3": lambda d, exp: (exp(-d) - 1.0 + d).clip(max=K3_BOUND),
    "abs": lambda d, exp: abs(d),
}
"""Estimates of the KL of a token (Schulman 2020) from ``d = log pi - log reference``, an array or a tensor, and the
exponential for it. 0.3 gives k1 and abs 0.3, k2 0.045, k3 0.040818."""


def kl_estimate(log_ratio: FloatArray, estimator: str) -> FloatArray:
    """KL of each token by one of :data:`KL_ESTIMATORS`, the log-ratio cut to +-20."""
    cut = np.clip(log_ratio, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return np.asarray(KL_ESTIMATORS[estimator](cut, np.exp))


def _normalization(
    scope: str, table: StepTable, returns: FloatArray, state: AlgorithmState
) -> tuple[FloatArray, FloatArray]:
    """What each episode's return [E] is centred by and multiplied with, from the episodes of its ``scope``: the mean,
    and 1 / (standard deviation (ddof=1) + epsilon), which is 0 where there is one return only, or equal ones."""
    count = len(returns)
    if scope == "none":
        return np.zeros(count), np.ones(count)
    if scope == "running":
        mean, std = np.full(count, state.returns.mean), np.full(count, math.sqrt(state.returns.variance))
        differs: BoolArray = std > NO_SPREAD
    else:
        labels = {
            "group": table.episodes.group,
            "env": np.unique(table.episodes.env, return_inverse=True)[1],
            "batch": np.zeros(count, dtype=np.int64),
        }
        mean, std, _, differs = compare(returns, labels[scope])
    return mean, np.where(differs, 1.0 / (std + EPSILON), 0.0)


def _with_kl(config: RewardConfig, table: StepTable, state: AlgorithmState) -> tuple[StepTable, Metrics]:
    """Step 4; the coefficient then follows the target."""
    tokens = table.tokens
    if tokens.proximal_logp is None or tokens.reference_logp is None:
        raise ValueError(f"reward.kl_coef is {config.kl_coef:g}, but no log-probs of the reference were given")
    coefficient = state.kl_coef if config.kl_target is not None else config.kl_coef
    log_ratio = np.where(tokens.predicted, tokens.proximal_logp - tokens.reference_logp, 0.0)
    estimates = kl_estimate(log_ratio, config.kl_estimator)
    metrics: Metrics = {"reward/kl_coef": coefficient}
    if len(estimates):  # the coefficient that was just used follows what it led to
        metrics["reward/kl"] = float(estimates.mean())
        if config.kl_target is not None:
            episodes = len(table.episodes.group)
            state.follow(metrics["reward/kl"], target=config.kl_target, horizon=config.kl_horizon, episodes=episodes)
    return table.with_tokens(reward=tokens.reward - coefficient * estimates), metrics


# -- masks and weights of tokens ---------------------------------------------------------------------------------------


def apply_masks(config: MaskConfig, table: StepTable) -> tuple[StepTable, Metrics]:
    """The step with the columns ``trained`` and ``weight`` (mean 1 over sequences), and counts named ``mask/...``.

    ``truncated_answers`` leaves out the tokens of turns whose answer was cut at the longest length (DAPO's overlong
    filtering, per turn), ``truncated_episodes`` those of episodes that ended at their turn limit, ``error_max_tokens``
    those of episodes without success that have more sampled tokens.

    A sequence weighs ``1 + difficulty_weight * (1 - s)``, with s the share of successes among the scored episodes of
    its task, times ``1 + length_weight * (longest - n) / (longest - shortest)``, with n the sampled tokens of its
    episode; all over the mean of the sequences that have tokens left. Two sequences of tasks that are always and never
    solved weigh 2/3 and 4/3 at a ``difficulty_weight`` of 1.
    """
    tokens, episodes, lengths = table.tokens, table.episodes, table.episode_tokens
    left_out = np.zeros(len(episodes.group), dtype=np.bool_)
    if config.truncated_episodes:
        left_out |= episodes.truncated
    if config.error_max_tokens is not None:
        left_out |= ~episodes.success & (lengths > config.error_max_tokens)
    trained = ~left_out[table.episode_of_token]
    if config.truncated_answers:
        trained &= ~table.turns.cut[table.turn_of_token]
    of_episode = np.ones(len(left_out))
    if config.difficulty_weight:
        solved = compare(episodes.success.astype(np.float64), episodes.group).mean
        of_episode *= 1.0 + config.difficulty_weight * (1.0 - solved)
    if config.length_weight and lengths.any():
        sampled = lengths[lengths > 0]  # an episode without a token has no sequence
        of_episode *= 1.0 + config.length_weight * (sampled.max() - lengths) / max(float(np.ptp(sampled)), 1.0)
    learnt, first = np.unique(tokens.sequence[trained], return_index=True)
    weights = of_episode[table.episode_of_token[trained][first]]  # of the sequences that have tokens left
    mean = float(weights.mean()) if len(learnt) else 1.0
    weight = of_episode[table.episode_of_token] / mean if len(learnt) else np.ones(len(trained))
    metrics: Metrics = {}
    if config.truncated_answers or config.truncated_episodes or config.error_max_tokens is not None:
        metrics["mask/tokens_share"] = float((~trained).sum() / max(len(trained), 1))
        metrics["mask/sequences"] = float(len(np.unique(tokens.sequence)) - len(learnt))
    if (config.difficulty_weight or config.length_weight) and len(learnt):
        metrics["mask/weight_min"] = float(weights.min() / mean)
        metrics["mask/weight_max"] = float(weights.max() / mean)
    return table.with_tokens(trained=trained, weight=weight), metrics


def within_second_moment(log_ratios: FloatArray, limit: float) -> BoolArray:
    """M2PO's mask over the tokens of a training step [N] (arXiv:2510.01161, as in AReaL): True on those that are kept.

    The fewest tokens with the largest squared log-ratio are left out for the mean square of the rest to be at most
    ``limit``; all, when no token alone is (AReaL keeps the last one then). 1, 0.1, -0.2 with 0.04: 1 goes, and
    (0.01 + 0.04) / 2 = 0.025 stays.
    """
    count = log_ratios.size
    squares = np.square(log_ratios)
    order = np.argsort(-squares, kind="stable")
    # means[n] is the mean square of what is left when the n largest are taken out.
    means = np.cumsum(squares[order][::-1])[::-1] / np.arange(count, 0, -1)
    fine = np.flatnonzero(means <= limit)
    kept = np.ones(count, dtype=np.bool_)
    kept[order[: fine[0] if fine.size else count]] = False
    return kept
