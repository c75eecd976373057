"""What a policy loss is given and what it gives, and a micro-batch's share of a step's loss: policy loss, correction,
entropy bonus and KL term, then one aggregation.

All tensors are [B, T], aligned to the predicting position (see :mod:`trainer.data.batches`). A sequence stands whole in
one micro-batch, so that what is taken over a sequence or a turn does not depend on how a step was cut. Masked positions
give a loss of exactly 0 and no gradient, whatever they hold. torch is not imported here, nor in the modules of losses,
so that settings can be checked without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from roll_envs.errors import UnknownNameError
from roll_envs.settings import Part, Settings
from trainer.algorithms.shaping import KL_ESTIMATORS, LOG_RATIO_BOUND
from trainer.config.algorithm import CorrectionConfig, LossConfig
from trainer.config.parts import LOSSES, part_settings
from trainer.data.table import BoolArray, FloatArray

if TYPE_CHECKING:
    import torch

    from trainer.data.batches import Batch, Denominators

Level = Literal["token", "turn-mean", "turn-product", "sequence-mean", "sequence-product"]

TokenMetrics = dict[str, "torch.Tensor"]
"""Numbers of each token [B, T] (bool: counts). What is masked out is left out of the sums that are made of them."""

MetricSums = dict[str, "torch.Tensor"]
"""Sums over masked-in tokens: add them up over the micro-batches of a step, then divide by the number of tokens."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LossInputs:
    """One micro-batch as a loss sees it. Where ``mask`` is False every number is 0, so that no loss has to mask."""

    logp: torch.Tensor
    """Log-probs of the labels under the policy being trained, at the sampling temperature; has the gradient."""
    old_logp: torch.Tensor
    """Under the proximal policy, the one the ratio is taken to; constant."""
    sampler_logp: torch.Tensor
    """Under the policy and engine that sampled; constant."""
    advantages: torch.Tensor
    """Weights of the section ``mask`` included."""
    mask: torch.Tensor
    """bool; True exactly where the label was sampled and is trained on."""
    sequence: torch.Tensor
    """int64; index of the sequence within the optimiser step, -1 for padding."""
    turn: torch.Tensor
    """int64; turn of the label within its episode, -1 where none was sampled."""
    reference_logp: torch.Tensor | None = None
    """Under the reference policy; None without a KL term."""
    selected: torch.Tensor | None = None
    """bool; what :data:`Select` chose; None where the loss has none."""
    entropy: torch.Tensor | None = None
    """Of the policy being trained, where the label was sampled; constant unless :attr:`Loss.entropy_gradient`."""
    episode_return: torch.Tensor | None = None
    """Undiscounted return of the label's episode, as the environment paid it."""
    success: torch.Tensor | None = None
    """bool; of the label's episode."""
    truncated: torch.Tensor | None = None
    """bool; whether the label's episode ended at the turn limit."""
    weights: torch.Tensor | None = None
    """The weights in ``advantages``."""

    def masked(self) -> LossInputs:
        """The same with 0 (False) wherever ``mask`` is False, whatever stood there."""
        kept = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("mask", "sequence", "turn")}
        return replace(self, **{n: v.where(self.mask, v.new_zeros(())) for n, v in kept.items() if v is not None})


PolicyLoss = Callable[[LossInputs, Any], "tuple[torch.Tensor, TokenMetrics]"]
"""(inputs, settings) -> (loss of each token [B, T], metrics of each token); what it gives where masked out is not
used."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StepTokens:
    """All tokens with a loss of one optimiser step [N], for choices over the whole step."""

    old_logp: FloatArray
    advantages: FloatArray


Select = Callable[[StepTokens, Any, np.random.Generator], BoolArray]
"""(tokens, settings, generator) -> chosen tokens [N], before the step and from the proximal log-probs, so that no cut
into micro-batches matters."""


@dataclass(frozen=True, kw_only=True)
class Loss(Part):
    """A loss and what may be done with its sequences."""

    loss: PolicyLoss
    select: Select | None = None
    only_advantages: bool = False
    """Sequences whose advantages are all 0 have no gradient, so that they need not be run."""
    linear_on_policy: bool = False
    """Where the ratio is 1 the gradient is linear in the advantages, and depends on nothing else but the ids, so that
    sequences of the same ids can be run as one with the sum of their advantages."""
    entropy_gradient: bool = False
    """``LossInputs.entropy`` has a gradient."""
    anchored_at_sampler: bool = False
    """Its ratio is to the sampler, whatever ``loss.proximal`` says."""

    def problems(self, config: Any) -> list[str]:
        if self.anchored_at_sampler and config.correction.name != "none":
            return [
                f"loss {config.loss.name!r} takes its ratio to the sampler itself; correction.name "
                f"{config.correction.name!r} would weigh it twice, take 'none'"
            ]
        return []


class RatioSettings(Settings):
    ratio: Literal["token", "turn-mean", "sequence-mean", "sequence-product"] = "token"
    """The ratio of each token, the geometric mean of its turn's or sequence's, or the product of its sequence's.
    Default: PPO's and ROLL's; sequence-mean is GSPO's ratio, sequence-product TOPR's paper's."""


def log_ratio(logp: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``logp - other``, cut to +-20."""
    return (logp - other).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def log_ratio_at(log_ratios: torch.Tensor, inputs: LossInputs, level: Level) -> torch.Tensor:
    """The logarithm of each token's ratio [B, T] at a level, from the logarithms of the tokens' own.

    ``token``: its own; ``turn-mean`` and ``sequence-mean``: the geometric mean over the masked-in tokens of its turn or
    sequence; ``turn-product`` and ``sequence-product``: their product, its logarithm cut to +-20. Logarithms 0.1, -0.2
    and 0.3 in one sequence: sequence-mean 0.0667, sequence-product 0.2.
    """
    over, _, kind = level.partition("-")
    if over == "token":
        return log_ratios
    if kind == "mean":
        return mean_over(log_ratios, inputs, over)
    return sum_over(log_ratios, inputs, over).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def ratio_metrics(log_r: torch.Tensor) -> TokenMetrics:
    """``loss/ratio`` and ``loss/old_kl`` (k3 of the ratio) from the logarithms of ratios."""
    log_r = log_r.detach()
    ratio = log_r.exp()
    return {"loss/ratio": ratio, "loss/old_kl": ratio - 1.0 - log_r}


def sum_over(values: torch.Tensor, inputs: LossInputs, over: str) -> torch.Tensor:
    """Sum of ``values`` [B, T] over the masked-in tokens of each token's "sequence" or "turn" [B, T].

    0 where masked out. Turns of one sequence are told apart by their number.
    """
    zero = values.new_zeros(())
    keys = inputs.sequence.flatten() + 1
    if over == "turn":
        turns = inputs.turn.flatten() + 1
        keys = keys * (turns.max() + 1) + turns  # another number for every pair of sequence and turn
    kept = values.where(inputs.mask, zero).flatten()
    sums = values.new_zeros(int(keys.max()) + 1).index_add(0, keys, kept)
    return sums[keys].view(values.shape).where(inputs.mask, zero)


def mean_over(values: torch.Tensor, inputs: LossInputs, over: str) -> torch.Tensor:
    """Mean of ``values`` over the masked-in tokens of each token's sequence or turn, as :func:`sum_over`."""
    counts = sum_over(values.new_ones(values.shape), inputs, over)
    return sum_over(values, inputs, over) / counts.clamp(min=1.0)


# -- from the losses of tokens to a share of the step's ----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    """What a run minimises, resolved once: no step looks up a name or checks settings."""

    config: LossConfig
    part: Loss
    settings: Any
    """Of ``part``."""
    correction: CorrectionConfig | None = None
    """None where it weighs no policy loss."""


def make_objective(config: LossConfig, correction: CorrectionConfig | None = None) -> Objective:
    """The configured loss with its settings. Raises :class:`UnknownNameError` where no loss has the configured name."""
    part: Loss = LOSSES.find(config.name)
    weighs = correction is not None and correction.weighs
    settings = part_settings(config, part)
    return Objective(config=config, part=part, settings=settings, correction=correction if weighs else None)


def policy_loss(
    objective: Objective,
    batch: Batch,
    logp: torch.Tensor,
    denominators: Denominators,
    entropies: torch.Tensor | None = None,
) -> tuple[torch.Tensor, MetricSums]:
    """One micro-batch's share of the step's loss, to call ``backward`` on; and sums of metrics over its tokens.

    ``policy * correction weight - entropy_coef * entropy + kl_coef * KL`` per token, then aggregated. ``entropies``
    [B, T] are logged and, unless ``entropy_coef`` is 0, rewarded; needed then.

    Raises:
        ValueError: An entropy bonus is configured and no entropies are given, or a KL term and no reference.
    """
    config = objective.config
    if entropies is not None and not config.entropy_coef and not objective.part.entropy_gradient:
        entropies = entropies.detach()
    found: dict[str, Any] = {f.name: getattr(batch, f.name, None) for f in fields(LossInputs)}
    inputs = LossInputs(**found | {"logp": logp, "mask": batch.label_mask, "entropy": entropies}).masked()
    loss, metrics = token_losses(objective.part, inputs, objective.settings)
    if objective.correction is not None:
        weights, corrected = correction_weights(inputs, objective.correction)
        loss, metrics = loss * weights, {**metrics, **corrected}
    metrics["loss/policy"] = loss.detach().sum()
    if inputs.entropy is not None:
        metrics["loss/entropy"] = inputs.entropy.detach().sum()
    if config.entropy_coef:
        if inputs.entropy is None:
            raise ValueError(f"loss.entropy_coef is {config.entropy_coef} but no entropies were given")
        loss = loss - config.entropy_coef * inputs.entropy
    if inputs.reference_logp is not None:
        ratio = log_ratio(inputs.logp, inputs.sampler_logp).exp() if config.kl_unbiased else None
        divergence = kl_loss(inputs.logp, inputs.reference_logp, config.kl_estimator, ratio)
        metrics["loss/reference_kl"] = divergence.detach().sum()
        loss = loss + config.kl_coef * divergence
    elif config.kl_coef:
        raise ValueError(f"loss.kl_coef is {config.kl_coef} but no log-probs of the reference were given")
    tokens = config.constant_tokens
    share = aggregate(loss, inputs.mask, inputs.sequence, config.aggregation, denominators, constant_tokens=tokens)
    return share, metrics


def token_losses(part: Loss, inputs: LossInputs, settings: object) -> tuple[torch.Tensor, MetricSums]:
    """The loss of each token [B, T], 0 where masked out, and sums of its metrics; ``inputs`` are masked already."""
    loss, metrics = part.loss(inputs, settings)
    sums = {name: value.detach().masked_fill(~inputs.mask, 0).sum() for name, value in metrics.items()}
    return loss.where(inputs.mask, loss.new_zeros(())), sums


def aggregate(
    loss: torch.Tensor,
    mask: torch.Tensor,
    sequence: torch.Tensor,
    mode: str,
    denominators: Denominators,
    *,
    constant_tokens: int = 1,
) -> torch.Tensor:
    """Reduce the losses of the tokens of one micro-batch [B, T] to its share of the step's scalar loss.

    The shares of all micro-batches of a step add up to the loss of the step, however it was cut. ``sequence`` is
    ``Batch.sequence``. Losses 2, 2 in one sequence and 1, 1, 1, 1 in another: token-mean 1.3333,
    seq-mean-token-mean 1.5, seq-mean-token-sum 4, constant (Dr. GRPO) with 4 tokens 1.0.

    Raises:
        UnknownNameError: ``mode`` is none of these.
    """
    sequences = max(denominators.sequences, 1)
    divisors = {
        "token-mean": max(denominators.tokens, 1),
        "seq-mean-token-mean": sequences,
        "seq-mean-token-sum": sequences,
        "constant": sequences * constant_tokens,
    }
    if mode not in divisors:
        raise UnknownNameError("loss aggregation", mode, divisors)
    if mode == "seq-mean-token-mean":
        counts = denominators.sequence_tokens.to(loss.device)[sequence.clamp(min=0)]
        loss = loss / counts.clamp(min=1)
    return loss.where(mask, loss.new_zeros(())).sum() / divisors[mode]


def kl_loss(
    logp: torch.Tensor, reference_logp: torch.Tensor, estimator: str, ratio: torch.Tensor | None = None
) -> torch.Tensor:
    """KL of each token from log-probs of sampled tokens (Schulman 2020), with ``d = logp - reference_logp`` (0.3: k1
    0.3, k2 0.045, k3 0.040818).

    k3 is cut at 10 as in the reward (:data:`trainer.algorithms.shaping.K3_BOUND`); beyond it has no gradient, while k2
    and ``ratio`` have. As a loss the gradient of k1 is 0 in expectation and that of k3 is another divergence's. With
    ``ratio``, the policy's over the sampler's probability, the value is the estimator's and the gradient is k2's times
    that ratio, held constant: unbiased on and off policy. It equals the gradient of k3 times the ratio (DeepSeek-V3.2,
    arXiv:2512.02556; TRL).
    """
    d = log_ratio(logp, reference_logp)
    value: torch.Tensor = KL_ESTIMATORS[estimator](d, lambda x: x.exp())
    if ratio is None:
        return value
    # The first two cancel in value and the last has no gradient: the value of one estimator, the gradient of another.
    right = ratio.detach() * d.square() / 2
    return right - right.detach() + value.detach()


# -- correction for tokens that another policy or engine sampled than the proximal one ---------------------------------


def correction_weights(inputs: LossInputs, config: CorrectionConfig) -> tuple[torch.Tensor, MetricSums]:
    """The weight of each token's policy loss [B, T], a constant; and sums of metrics.

    With ``w = exp(old_logp - sampler_logp)``, learner over sampler, at ``level``: a token's own, the product over its
    turn or sequence, or the geometric mean over its sequence.

    - ``tis`` (Yao et al. 2025, truncated importance sampling): ``min(w, high)``.
    - ``mis``, ``icepop`` (per token: arXiv:2510.18855): w where ``low <= w <= high``, else 0.

    Each of these then makes the weight 0 on its own: ``reject``, the same ratio at a level of its own outside
    ``[reject_low, reject_high]`` (verl's rejection looks at the sampler over the learner: its bounds [a, b] are
    [1 / b, 1 / a] here); ``veto``, a sequence with any token's ratio below it; ``sequence_delta`` (OPSM, DeepSeek-V3.2,
    arXiv:2512.02556), a token of negative advantage in a sequence where the mean of ``sampler_logp - logp`` is above
    it. A weight of 0 takes a token's policy loss out; it still counts in every denominator, so that nothing depends on
    how a step was cut. Entropy bonus and KL term are not weighed.

    Log-ratios 0.5, -0.25 in one sequence: token weights 1.648721, 0.778801; sequence-product 1.284025; sequence-mean
    1.133148; tis with high 1.2: 1.2, 0.778801; mis in [0.8, 2]: 1.648721, 0.
    """
    mask = inputs.mask
    log_w = log_ratio(inputs.old_logp, inputs.sampler_logp)
    weights = mask.to(log_w.dtype)
    metrics: MetricSums = {}
    if config.name != "none":
        ratio = log_ratio_at(log_w, inputs, config.level).exp()
        outside = ratio > config.high
        if config.name != "tis":
            outside |= ratio < config.low
        held = ratio.clamp(max=config.high) if config.name == "tis" else ratio.masked_fill(outside, 0.0)
        weights = held * weights
        metrics["correction/cut_share"] = (mask & outside).sum()
    for name, dropped in _dropped(inputs, log_w, config):
        metrics[f"correction/{name}_share"] = (mask & dropped).sum()
        weights = weights.masked_fill(dropped, 0.0)
    metrics["correction/weight"] = weights.sum()
    metrics["correction/dropped_share"] = (mask & (weights == 0)).sum()
    return weights, metrics


def _dropped(inputs: LossInputs, log_w: torch.Tensor, config: CorrectionConfig) -> list[tuple[str, torch.Tensor]]:
    """What is taken out whatever its weight, under the name of its metric."""
    found = []
    if config.reject != "none" and config.reject_low is not None and config.reject_high is not None:
        ratio = log_ratio_at(log_w, inputs, config.reject).exp()
        found.append(("rejected", (ratio < config.reject_low) | (ratio > config.reject_high)))
    if config.veto:
        tiny = (log_w.exp() < config.veto).to(log_w.dtype)
        found.append(("vetoed", sum_over(tiny, inputs, "sequence") > 0))
    if config.sequence_delta is not None:
        fallen = mean_over(inputs.sampler_logp - inputs.logp.detach(), inputs, "sequence")
        found.append(("off_policy", (inputs.advantages < 0) & (fallen > config.sequence_delta)))
    return found
