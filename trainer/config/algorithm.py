"""The sections of a run's configuration that say what is learnt: rewards, filters, advantages, losses, critic.

Part of the tree in :mod:`trainer.config`. Numbers that belong to one method alone name it in their description.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from trainer.config.read_keys import ANCHORED_AT_SAMPLER, CLIP_DEFAULTS, ESTIMATOR_KEYS, LOSS_KEYS, unread_keys

__all__ = [
    "AdvantageConfig",
    "CorrectionConfig",
    "Count",
    "CriticConfig",
    "FilterConfig",
    "LossConfig",
    "MaskConfig",
    "Positive",
    "ReferenceConfig",
    "RewardConfig",
    "Section",
    "Share",
    "correction_problems",
]

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]
AboveZero = Annotated[float, Field(gt=0)]
Scope = Literal["none", "batch", "group", "env", "running"]


class Section(BaseModel):
    """A section of the configuration: frozen, strict, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _changed(section: Section, keys: Iterable[str]) -> dict[str, Any]:
    """The defaults of those of ``keys`` that have another value, in order."""
    fields = type(section).model_fields
    defaults = {k: fields[k].get_default(call_default_factory=True) for k in sorted(keys)}
    return {k: default for k, default in defaults.items() if getattr(section, k) != default}


def _special(table: Mapping[str, frozenset[str]]) -> set[str]:
    """Keys that not everything in ``table`` reads."""
    return {"kwargs"}.union(*table.values())


class RewardConfig(Section):
    """Rewards of the environment, before advantages are taken: shaping, normalisation, KL."""

    clip: AboveZero | None = Field(None, description="Each turn's reward is cut to [-clip, clip], first of all.")
    scale: float = Field(1.0, description="Factor on each turn's reward.")
    shift: float = Field(0.0, description="Added to each episode's last turn, after the factor.")
    normalize_mean: Scope = Field("none", description="Whose mean is taken off each episode's return.")
    normalize_std: Scope = Field("none", description="Whose standard deviation rewards are divided by.")
    overlong_tokens: Positive | None = Field(
        None, description="DAPO's soft overlong penalty: longest answer of a turn, in tokens; null leaves it out."
    )
    overlong_buffer: Positive = Field(4096, description="The penalty grows over so many tokens before the longest.")
    overlong_factor: NonNegative = Field(1.0, description="The penalty of the longest answer.")
    kl_coef: NonNegative = Field(0.0, description="KL to the reference taken off the reward of each token.")
    kl_estimator: Literal["k1", "k2", "k3", "abs"] = Field("k1", description="Estimator of that KL.")
    kl_target: AboveZero | None = Field(None, description="Target of an adaptive coefficient; null: a fixed one.")
    kl_horizon: Positive = Field(10_000, description="Episodes over which the adaptive coefficient follows the target.")

    @model_validator(mode="after")
    def _overlong_fits(self) -> Self:
        if self.overlong_tokens is not None and self.overlong_buffer >= self.overlong_tokens:
            raise ValueError(
                f"reward.overlong_buffer {self.overlong_buffer} must be less than reward.overlong_tokens "
                f"{self.overlong_tokens}"
            )
        if self.kl_target is not None and not self.kl_coef:
            raise ValueError("reward.kl_target needs a first reward.kl_coef above 0")
        return self


class FilterConfig(Section):
    """Which groups of episodes are learnt from."""

    zero_variance: bool = Field(False, description="Leave out groups whose returns are all equal (DAPO).")
    top_share: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="Keep this share of the groups, those with the most spread of returns (StarPO-S)."
    )
    success_low: Share = Field(0.0, description="Leave out groups whose share of successes is below this.")
    success_high: Share = Field(1.0, description="Leave out groups whose share of successes is above this.")
    refill_rounds: Count = Field(0, description="Rounds of further tasks to make up for groups left out (DAPO: 10).")

    @model_validator(mode="after")
    def _window_fits(self) -> Self:
        if self.success_low > self.success_high:
            raise ValueError(
                f"filter.success_low {self.success_low:g} is above filter.success_high {self.success_high:g}"
            )
        if self.refill_rounds and self.top_share < 1:
            raise ValueError(
                f"filter.top_share {self.top_share:g} always leaves groups out, which filter.refill_rounds "
                f"{self.refill_rounds} would make up for; allowed: one of the two"
            )
        return self


class MaskConfig(Section):
    """Which episodes are left out of the loss, though they count in the statistics; and what others weigh."""

    truncated_answers: bool = Field(False, description="Leave out turns whose answer was cut at the longest length.")
    truncated_episodes: bool = Field(False, description="Leave out episodes that ended at their turn limit.")
    error_max_tokens: Positive | None = Field(
        None, description="Leave out unsuccessful episodes with more sampled tokens than this."
    )
    difficulty_weight: NonNegative = Field(
        0.0, description="Weight of episodes grows by this much from tasks always solved to tasks never solved."
    )
    length_weight: NonNegative = Field(
        0.0, description="Weight of episodes grows by this much from the longest of the step to the shortest."
    )


class AdvantageConfig(Section):
    """The advantage estimator."""

    name: str = Field("grpo", description="Registered estimator; docs/algorithms.md lists them.")
    gamma: Share = Field(1.0, description="Discount per turn (reinforce, step_reinforce, gigpo, hgpo).")
    token_gamma: Share = Field(
        1.0, description="Discount per sampled token (reinforce_token, reinforce_pp, gae, bi_level_gae)."
    )
    lam: Share = Field(0.95, description="Lambda per token (gae, bi_level_gae).")
    high_gamma: Share = Field(0.95, description="Discount per turn of the upper level (bi_level_gae).")
    high_lam: Share = Field(1.0, description="Lambda per turn of the upper level (bi_level_gae).")
    normalize: Literal["mean", "mean_std"] = Field(
        "mean_std", description="What is normalised by (grpo, pass_at_k, gigpo, hgpo, step_reinforce)."
    )
    across_steps: bool = Field(
        False, description="An episode counts once per turn in its group's mean and deviation (grpo, gigpo, hgpo)."
    )
    step_weight: NonNegative = Field(1.0, description="Weight of the step advantage (gigpo).")
    similarity: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="Anchor observations this alike are one state (gigpo); 1: only identical ones."
    )
    history: Positive = Field(2, description="Longest history that states are compared by (hgpo).")
    history_power: NonNegative = Field(1.0, description="Longer histories weigh (k + 1) to this power (hgpo).")
    base_weight: NonNegative = Field(0.0, description="Weight of the episode advantage beside the histories (hgpo).")
    epsilon: AboveZero = Field(1e-6, description="Added to standard deviations.")
    whiten: bool = Field(False, description="Advantages of all tokens of the step get mean 0 and deviation 1.")
    clip: AboveZero | None = Field(None, description="Advantages are cut to [-clip, clip], last of all.")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Settings of an estimator of another package.")

    @model_validator(mode="after")
    def _every_key_is_read(self) -> Self:
        problems = unread_keys("advantage", self.name, ESTIMATOR_KEYS, _changed(self, _special(ESTIMATOR_KEYS)))
        if problems:
            raise ValueError("\n".join(problems))
        return self


class LossConfig(Section):
    """The policy loss."""

    name: str = Field("clip", description="Registered loss; docs/algorithms.md lists them.")
    proximal: Literal["recompute", "sampler"] = Field(
        "recompute",
        description="The policy the ratio is taken to: the weights before the training step (decoupled PPO), or as the "
        "sampler said.",
    )
    clip_low: NonNegative | None = Field(
        None,
        description="Ratio is cut below 1 - clip_low; null: 0.2 (clip, clip_cov), 3e-4 (gspo, gspo_token), 0.4 of the "
        "log-ratio (gmpo), 1 (cispo).",
    )
    clip_high: NonNegative | None = Field(
        None,
        description="Ratio is cut above 1 + clip_high; null: 0.28 (clip, clip_cov), 4e-4 (gspo, gspo_token), 0.4 of "
        "the log-ratio (gmpo), 4 (cispo), 0.2 (raft_pp).",
    )
    dual_clip: Annotated[float, Field(gt=1)] | None = Field(
        None, description="Bound for negative advantages, in ratios (clip); INTELLECT-2's and TRL's delta."
    )
    ratio: Literal["token", "turn-mean", "sequence-mean", "sequence-product"] = Field(
        "token",
        description="The ratio of each token, the geometric mean of its turn's or its sequence's, or the product of "
        "its sequence's (clip, topr).",
    )
    aggregation: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "constant"] = Field(
        "token-mean", description="How the losses of tokens become one number; denominators are global."
    )
    constant_tokens: Positive = Field(
        1024, description="Tokens per row that 'constant' divides by, whatever the rows are (Dr. GRPO)."
    )
    entropy_coef: float = Field(0.0, description="Weight of the entropy bonus.")
    kl_coef: NonNegative = Field(0.0, description="Weight of the KL to the reference.")
    kl_estimator: Literal["k1", "k2", "k3"] = Field("k3", description="Estimator of that KL.")
    kl_unbiased: bool = Field(
        False,
        description="Give the KL its unbiased gradient (k2's, times the ratio to the sampler), at the same value.",
    )
    positive_weight: NonNegative = Field(1.0, description="Weight of positive advantages (topr).")
    negative_weight: NonNegative = Field(1.0, description="Weight of negative advantages (topr).")
    tau_positive: AboveZero = Field(1.0, description="Temperature of the gate for positive advantages (sapo).")
    tau_negative: AboveZero = Field(1.05, description="Temperature of the gate for negative advantages (sapo).")
    proximal_coef: NonNegative = Field(0.1, description="Weight of half the squared log-ratio (kimi), tau.")
    divergence_low: NonNegative = Field(0.2, description="Most that a probability may have fallen (dppo).")
    divergence_high: NonNegative = Field(0.2, description="Most that a probability may have risen (dppo).")
    divergence_coef: NonNegative = Field(1e-3, description="Weight of the squared log-ratio (dppo).")
    covariance_share: Share = Field(2e-4, description="Share of the tokens that are chosen (clip_cov, kl_cov).")
    covariance_low: float = Field(1.0, description="Least covariance of a chosen token (clip_cov).")
    covariance_high: float = Field(5.0, description="Greatest covariance of a chosen token (clip_cov).")
    covariance_coef: NonNegative = Field(1.0, description="Weight of the penalty on chosen tokens (kl_cov).")
    power_positive: NonNegative = Field(2.0, description="Power of the row's ratio for positive advantages (vespo).")
    decay_positive: NonNegative = Field(3.0, description="Decay with the row's ratio for positive advantages (vespo).")
    power_negative: NonNegative = Field(3.0, description="Power of the row's ratio for negative advantages (vespo).")
    decay_negative: NonNegative = Field(2.0, description="Decay with the row's ratio for negative advantages (vespo).")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Settings of a loss of another package.")

    def bounds(self) -> tuple[float, float]:
        """``clip_low`` and ``clip_high``, the loss's own where they are null (of ``clip``, for other packages')."""
        low, high = CLIP_DEFAULTS.get(self.name, CLIP_DEFAULTS["clip"])
        return low if self.clip_low is None else self.clip_low, high if self.clip_high is None else self.clip_high

    @model_validator(mode="after")
    def _every_key_is_read(self) -> Self:
        problems = unread_keys("loss", self.name, LOSS_KEYS, _changed(self, _special(LOSS_KEYS)))
        if self.aggregation != "constant":
            problems += [
                f"loss.constant_tokens is set, but loss.aggregation is {self.aggregation!r}; 'constant' reads it"
                for _ in _changed(self, {"constant_tokens"})
            ]
        if problems:
            raise ValueError("\n".join(problems))
        return self

    @model_validator(mode="after")
    def _covariances_fit(self) -> Self:
        if self.covariance_low > self.covariance_high:
            raise ValueError(
                f"loss.covariance_low {self.covariance_low:g} is above loss.covariance_high {self.covariance_high:g}"
            )
        return self


class CorrectionConfig(Section):
    """Correction for rows that were sampled by other weights, or another engine, than the proximal policy's."""

    name: Literal["none", "tis", "mis", "icepop"] = Field(
        "none", description="tis cuts the weight at high; mis, and icepop per token, drop what is outside [low, high]."
    )
    level: Literal["token", "turn-product", "sequence-product", "sequence-mean"] = Field(
        "token",
        description="Ratio (learner over sampler) per token, product over the turn or sequence, or geometric mean over "
        "the sequence.",
    )
    low: NonNegative = Field(0.5, description="Least ratio that is kept (mis, icepop).")
    high: AboveZero = Field(
        2.0, description="Greatest ratio that is kept, or the bound (tis; SkyRL: 5 for a sequence)."
    )
    reject: Literal["none", "token", "turn-product", "sequence-product", "sequence-mean"] = Field(
        "none", description="Also drop what has a ratio of this level outside [reject_low, reject_high]."
    )
    reject_low: NonNegative | None = Field(
        None,
        description="Least ratio that is not rejected (sequence-mean: 0.999 in verl, 0.99 in SkyRL). verl's ratio is "
        "the inverse, sampler over learner: its bounds [a, b] are [1 / b, 1 / a] here.",
    )
    reject_high: AboveZero | None = Field(
        None, description="Greatest ratio that is not rejected (sequence-mean: 1.001 in verl, 1.01 in SkyRL)."
    )
    veto: NonNegative = Field(0.0, description="A sequence with a token's ratio below this is dropped (1e-4 in slime).")
    sequence_delta: AboveZero | None = Field(
        None,
        description="Sequences with negative advantage whose mean log-ratio fell by more are dropped (OPSM: 1e-4).",
    )
    second_moment: AboveZero | None = Field(
        None, description="Drop the tokens that moved most until the mean squared log-ratio is this (M2PO: 0.04)."
    )

    @property
    def weighs(self) -> bool:
        """Whether policy losses get weights."""
        return self.name != "none" or self.reject != "none" or bool(self.veto) or self.sequence_delta is not None

    @model_validator(mode="after")
    def _bounds_fit(self) -> Self:
        problems = []
        if self.name in ("mis", "icepop") and self.low >= self.high:
            problems.append(f"correction.low {self.low:g} must be less than correction.high {self.high:g}")
        if self.name == "icepop" and self.level != "token":
            problems.append(
                f"correction.name 'icepop' is per token; for level {self.level!r} take correction.name 'mis'"
            )
        unread = {"none": {"level", "low", "high"}, "tis": {"low"}}.get(self.name, set())
        problems += [
            f"correction.{key} is set, but correction.name {self.name!r} does not read it; leave it out"
            for key in _changed(self, unread)
        ]
        low, high = self.reject_low, self.reject_high
        if self.reject == "none" and (low is not None or high is not None):
            problems.append("correction.reject_low and reject_high are read where correction.reject is not 'none'")
        if self.reject != "none" and (low is None or high is None or low >= high):
            problems.append(
                f"correction.reject {self.reject!r} needs correction.reject_low less than correction.reject_high, "
                "such as 0.999 and 1.001 for 'sequence-mean'"
            )
        if problems:
            raise ValueError("\n".join(problems))
        return self


def correction_problems(loss: LossConfig, correction: CorrectionConfig) -> list[str]:
    """What the two sections have against each other, a sentence each."""
    problems = []
    ratios = correction.name != "none" or correction.reject != "none" or bool(correction.veto)
    if loss.proximal == "sampler" and (ratios or correction.second_moment is not None):
        problems.append(
            "loss.proximal is 'sampler', so that every ratio of the section correction is 1; take loss.proximal "
            "'recompute', or leave all of correction but sequence_delta out"
        )
    if loss.name in ANCHORED_AT_SAMPLER and correction.name != "none":
        problems.append(
            f"loss {loss.name!r} takes its ratio to the sampler itself; correction.name {correction.name!r} would "
            "weigh it twice, take 'none'"
        )
    return problems


class CriticConfig(Section):
    """The critic of estimators that need values; a network of its own, begun from the policy's weights."""

    lr: NonNegative = Field(1e-4, description="Learning rate.")
    clip: AboveZero | None = Field(0.2, description="Values move at most this far per training step; null: freely.")
    warmup_steps: Count = Field(0, description="Training steps in which the critic alone learns.")
    minibatches: Positive = Field(1, description="Optimiser steps per training step.")
    epochs: Positive = Field(1, description="Passes over the rows of a training step.")
    tokens_per_microbatch: Positive = Field(8192, description="Tokens per forward and backward pass.")
    max_grad_norm: AboveZero = Field(1.0, description="Gradient clipping.")


class ReferenceConfig(Section):
    """The reference policy of KL terms: the weights at the start of reinforcement learning."""

    refresh_every: Count = Field(0, description="Take the current weights every so many training steps; 0: never.")
