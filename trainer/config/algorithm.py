"""The sections of a run's configuration that say what is learnt: rewards, filters, advantages, losses, critic.

Part of the tree in :mod:`trainer.config`. Numbers that belong to one method alone name it in their description.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from roll_envs.settings import Settings

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]
AboveZero = Annotated[float, Field(gt=0)]
Scope = Literal["none", "batch", "group", "env", "running"]


Section = Settings
"""A section of the configuration: frozen, strict, without unknown keys."""


class PartSection(Section):
    """A section that chooses a part by name. Beside the keys below, which every part of the kind has, it holds those
    that the chosen part declares beside its own code; :func:`trainer.config.parts.part_settings` gives them, checked.
    """

    model_config = ConfigDict(extra="allow")


def changed(section: Section, keys: Iterable[str]) -> dict[str, Any]:
    """The defaults of those of ``keys`` that have another value, in order."""
    fields = type(section).model_fields
    defaults = {k: fields[k].get_default(call_default_factory=True) for k in sorted(keys)}
    return {k: default for k, default in defaults.items() if getattr(section, k) != default}


class RewardConfig(Section):
    """Rewards of the environment, before advantages are taken: shaping, normalisation, KL."""

    clip: AboveZero | None = None
    """Each turn's reward is cut to [-clip, clip], first of all. Default: off."""
    scale: float = 1.0
    """Factor on each turn's reward. Default: as the environment pays."""
    shift: float = 0.0
    """Added to each episode's last turn, after the factor. Default: as the environment pays."""
    normalize_mean: Scope = "none"
    """Whose mean is taken off each episode's return. Default: off; as ROLL."""
    normalize_std: Scope = "none"
    """Whose standard deviation rewards are divided by. Default: off; as ROLL."""
    overlong_tokens: Positive | None = None
    """DAPO's soft overlong penalty: longest answer of a turn, in tokens; null leaves it out. Default: off."""
    overlong_buffer: Positive = 4096
    """The penalty grows over so many tokens before the longest. Default: DAPO's paper, for answers of 20480 tokens."""
    overlong_factor: NonNegative = 1.0
    """The penalty of the longest answer. Default: DAPO's paper."""
    kl_coef: NonNegative = 0.0
    """KL to the reference taken off the reward of each token.
    Default: off; ROLL's 0.2 turns a reference on in silence."""
    kl_estimator: Literal["k1", "k2", "k3", "abs"] = "k1"
    """Estimator of that KL. Default: k1, the one that is unbiased in a reward."""
    kl_target: AboveZero | None = None
    """Target of an adaptive coefficient; null: a fixed one. Default: off: a fixed coefficient."""
    kl_horizon: Positive = 10_000
    """Episodes over which the adaptive coefficient follows the target. Default: Ziegler et al. 2019, ROLL, verl."""

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

    zero_variance: bool = False
    """Leave out groups whose returns are all equal (DAPO). Default: off; such groups have no gradient in any case."""
    top_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Keep this share of the groups, those with the most spread of returns (StarPO-S). Default: off."""
    success_low: Share = 0.0
    """Leave out groups whose share of successes is below this. Default: off."""
    success_high: Share = 1.0
    """Leave out groups whose share of successes is above this. Default: off."""
    refill_rounds: Count = 0
    """Rounds of further tasks to make up for groups left out (DAPO: 10).
    Default: off; DAPO's and verl's 10 belong to algorithm: dapo."""

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

    truncated_answers: bool = False
    """Leave out turns whose answer was cut at the longest length. Default: off."""
    truncated_episodes: bool = False
    """Leave out episodes that ended at their turn limit. Default: off."""
    error_max_tokens: Positive | None = None
    """Leave out unsuccessful episodes with more sampled tokens than this. Default: off."""
    difficulty_weight: NonNegative = 0.0
    """Weight of episodes grows by this much from tasks always solved to tasks never solved. Default: off."""
    length_weight: NonNegative = 0.0
    """Weight of episodes grows by this much from the longest of the step to the shortest. Default: off."""


class AdvantageConfig(PartSection):
    """The advantage estimator; its own settings stand in this section too."""

    name: str = "grpo"
    """Registered estimator; docs/algorithms.md lists them. Default: GRPO, the common one that needs no critic."""
    whiten: bool = False
    """Advantages of all tokens of the step get mean 0 and deviation 1. Default: off; PPO's recipes turn it on."""
    clip: AboveZero | None = None
    """Advantages are cut to [-clip, clip], last of all. Default: off."""


class LossConfig(PartSection):
    """The policy loss; its own settings stand in this section too."""

    name: str = "clip"
    """Registered loss; docs/algorithms.md lists them. Default: PPO's."""
    proximal: Literal["recompute", "sampler"] = "recompute"
    """The policy the ratio is taken to: the weights before the training step (decoupled PPO), or as the sampler said.
    Default: AReaL: the sampler is not exactly the policy."""
    aggregation: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "constant"] = "token-mean"
    """How the losses of tokens become one number; denominators are global.
    Default: DAPO: every token weighs the same."""
    constant_tokens: Positive = 1024
    """Tokens per sequence that 'constant' divides by, whatever the sequences are (Dr. GRPO).
    Default: ours; set it to the longest sequence."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus. Default: off."""
    kl_coef: NonNegative = 0.0
    """Weight of the KL to the reference. Default: off; as DAPO and most recent recipes."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of that KL. Default: k3 as DeepSeekMath."""
    kl_unbiased: bool = False
    """Give the KL its unbiased gradient (k2's, times the ratio to the sampler), at the same value.
    Default: off as DeepSeekMath; DeepSeek-V3.2 corrects it."""

    @model_validator(mode="after")
    def _constant_is_read(self) -> Self:
        if self.aggregation != "constant" and changed(self, {"constant_tokens"}):
            raise ValueError(
                f"loss.constant_tokens is set, but loss.aggregation is {self.aggregation!r}; 'constant' reads it"
            )
        return self


class CorrectionConfig(Section):
    """Correction for sequences that were sampled by other weights, or another engine, than the proximal policy's."""

    name: Literal["none", "tis", "mis", "icepop"] = "none"
    """tis cuts the weight at high; mis, and icepop per token, drop what is outside [low, high].
    Default: off; the mismatch is always measured."""
    level: Literal["token", "turn-product", "sequence-product", "sequence-mean"] = "token"
    """Ratio (learner over sampler) per token, product over the turn or sequence, or geometric mean over the sequence.
    Default: the token's, as verl, SkyRL and slime."""
    low: NonNegative = 0.5
    """Least ratio that is kept (mis, icepop). Default: slime's example."""
    high: AboveZero = 2.0
    """Greatest ratio that is kept, or the bound (tis; SkyRL: 5 for a sequence).
    Default: verl, slime and SkyRL for tokens."""
    reject: Literal["none", "token", "turn-product", "sequence-product", "sequence-mean"] = "none"
    """Also drop what has a ratio of this level outside [reject_low, reject_high]. Default: off."""
    reject_low: NonNegative | None = None
    """Least ratio that is not rejected (sequence-mean: 0.999 in verl, 0.99 in SkyRL). verl's ratio is the inverse,
    sampler over learner: its bounds [a, b] are [1 / b, 1 / a] here.
    Default: off."""
    reject_high: AboveZero | None = None
    """Greatest ratio that is not rejected (sequence-mean: 1.001 in verl, 1.01 in SkyRL). Default: off."""
    veto: NonNegative = 0.0
    """A sequence with a token's ratio below this is dropped (1e-4 in slime). Default: off; slime's example 1e-4."""
    sequence_delta: AboveZero | None = None
    """Sequences with negative advantage whose mean log-ratio fell by more are dropped (OPSM: 1e-4).
    Default: off; slime's OPSM 1e-4."""
    second_moment: AboveZero | None = None
    """Drop the tokens that moved most until the mean squared log-ratio is this (M2PO: 0.04). Default: off."""

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
            for key in changed(self, unread)
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
    return problems


class CriticConfig(Section):
    """The critic of estimators that need values; a network of its own, begun from the policy's weights."""

    backend: str | None = None
    """Registered learner backend that trains it; null: learner.backend. Another one has the settings of the section
    learner that all backends share, and its defaults. Default: as the policy."""
    lr: NonNegative = 1e-4
    """Learning rate. Default: ours, for the small model; 1e-5 is usual for large ones."""
    clip: AboveZero | None = 0.2
    """Values move at most this far per training step; null: freely.
    Default: SkyRL and slime; verl's and AReaL's 0.5 is looser."""
    warmup_steps: Count = 0
    """Training steps in which the critic alone learns. Default: ROLL."""
    minibatches: Positive = 1
    """Optimiser steps per training step. Default: ours: one step for one step of the policy."""
    epochs: Positive = 1
    """Passes over the sequences of a training step. Default: ours: one step for one step of the policy."""
    tokens_per_microbatch: Positive = 8192
    """Tokens per forward and backward pass. Default: memory alone; changes nothing else."""
    max_grad_norm: AboveZero = 1.0
    """Gradient clipping. Default: as every trainer."""


class ReferenceConfig(Section):
    """The reference policy of KL terms: the weights at the start of reinforcement learning."""

    backend: str | None = None
    """Registered learner backend that holds it; null: learner.backend. Another one has the settings of the section
    learner that all backends share, and its defaults. Default: as the policy."""
    refresh_every: Count = 0
    """Take the current weights every so many training steps; 0: never. Default: DeepSeekMath's first policy."""
