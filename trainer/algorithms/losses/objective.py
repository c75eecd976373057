"""A micro-batch's share of a step's loss: policy loss, correction, entropy bonus and KL term, then one aggregation.

Masked positions give a loss of exactly 0 and no gradient, whatever they hold.
"""

from __future__ import annotations

import numpy as np
import torch

from roll_envs.errors import UnknownNameError
from trainer.algorithms.losses.types import Loss, LossInputs, log_ratio, log_ratio_at, mean_over, sum_over
from trainer.algorithms.rewards import K3_BOUND
from trainer.config.algorithm import CorrectionConfig, LossConfig
from trainer.config.parts import LOSSES, part_settings
from trainer.data.batches import Batch, Denominators
from trainer.data.table import BoolArray, FloatArray

__all__ = [
    "MODES",
    "MetricSums",
    "aggregate",
    "correction_weights",
    "kl_loss",
    "policy_loss",
    "token_losses",
    "within_second_moment",
]

MetricSums = dict[str, torch.Tensor]
"""Sums over masked-in tokens: add them up over the micro-batches of a step, then divide by the number of tokens."""

MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "constant")


def policy_loss(
    config: LossConfig,
    batch: Batch,
    logp: torch.Tensor,
    denominators: Denominators,
    entropies: torch.Tensor | None = None,
    *,
    correction: CorrectionConfig | None = None,
) -> tuple[torch.Tensor, MetricSums]:
    """One micro-batch's share of the step's loss, to call ``backward`` on; and sums of metrics over its tokens.

    ``policy * correction weight - entropy_coef * entropy + kl_coef * KL`` per token, then aggregated. ``entropies``
    [B, T] are logged and, unless ``entropy_coef`` is 0, rewarded; needed then.

    Raises:
        UnknownNameError: No loss has the configured name.
        ValueError: An entropy bonus is configured and no entropies are given, or a KL term and no reference.
    """
    part: Loss = LOSSES.find(config.name)
    if entropies is not None and not config.entropy_coef and not part.entropy_gradient:
        entropies = entropies.detach()
    inputs = LossInputs(
        logp=logp,
        old_logp=batch.old_logprobs,
        sampler_logp=batch.sampler_logprobs,
        advantages=batch.advantages,
        mask=batch.label_mask,
        sequence=batch.sequence,
        turn=batch.turn,
        reference_logp=batch.reference_logprobs,
        selected=batch.selected,
        entropy=entropies,
        episode_return=batch.episode_return,
        success=batch.success,
        truncated=batch.truncated,
        weights=batch.weights,
    ).masked()
    loss, metrics = token_losses(part, inputs, part_settings(config, part))
    weights, corrected = correction_weights(inputs, correction or CorrectionConfig())
    if weights is not None:
        loss = loss * weights
    metrics = {**metrics, **corrected, "loss/policy": loss.detach().sum()}
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
    return torch.where(inputs.mask, loss, 0.0), sums


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
    kept = torch.where(mask, loss, 0.0)
    if mode == "token-mean":
        return kept.sum() / max(denominators.tokens, 1)
    if mode == "seq-mean-token-sum":
        return kept.sum() / max(denominators.sequences, 1)
    if mode == "seq-mean-token-mean":
        counts = denominators.sequence_tokens.to(loss.device)[sequence.clamp(min=0)].clamp(min=1)
        return (kept / counts).sum() / max(denominators.sequences, 1)
    if mode == "constant":
        return kept.sum() / (max(denominators.sequences, 1) * constant_tokens)
    raise UnknownNameError("loss aggregation", mode, MODES)


def kl_loss(
    logp: torch.Tensor, reference_logp: torch.Tensor, estimator: str, ratio: torch.Tensor | None = None
) -> torch.Tensor:
    """KL of each token from log-probs of sampled tokens (Schulman 2020), with ``d = logp - reference_logp`` (0.3: k1
    0.3, k2 0.045, k3 0.040818).

    k3 is cut at 10 as in the reward (:data:`trainer.algorithms.rewards.K3_BOUND`); beyond it has no gradient, while k2
    and ``ratio`` have. As a loss the gradient of k1 is 0 in expectation and that of k3 is another divergence's. With
    ``ratio``, the policy's over the sampler's probability, the value is the estimator's and the gradient is k2's times
    that ratio, held constant: unbiased on and off policy. It equals the gradient of k3 times the ratio (DeepSeek-V3.2,
    arXiv:2512.02556; TRL).
    """
    d = log_ratio(logp, reference_logp)
    estimators = {
        "k1": lambda: d,
        "k2": lambda: d.square() / 2,
        "k3": lambda: ((-d).exp() - 1.0 + d).clamp(max=K3_BOUND),
    }
    value = estimators[estimator]()
    if ratio is None:
        return value
    right = ratio.detach() * d.square() / 2
    return right - right.detach() + value.detach()


# -- correction for tokens that another policy or engine sampled than the proximal one ---------------------------------


@torch.no_grad()
def correction_weights(inputs: LossInputs, config: CorrectionConfig) -> tuple[torch.Tensor | None, MetricSums]:
    """The weight of each token's policy loss [B, T], or None where nothing is configured; and sums of metrics.

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
    if not config.weighs:
        return None, {}
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
        fallen = mean_over(inputs.sampler_logp - inputs.logp, inputs, "sequence")
        found.append(("off_policy", (inputs.advantages < 0) & (fallen > config.sequence_delta)))
    return found


def within_second_moment(log_ratios: FloatArray, limit: float) -> BoolArray:
    """M2PO's mask over the tokens of a training step [N] (arXiv:2510.01161, as in AReaL): True on those that are kept.

    The fewest tokens with the largest squared log-ratio are left out for the mean square of the rest to be at most
    ``limit``; all, when no token alone is (AReaL keeps the last one then). 1, 0.1, -0.2 with 0.04: 1 goes, and
    (0.01 + 0.04) / 2 = 0.025 stays.
    """
    count = log_ratios.size
    squares = np.square(log_ratios)
    order = np.argsort(-squares, kind="stable")
    means = np.cumsum(squares[order][::-1])[::-1] / np.arange(count, 0, -1)
    fine = np.flatnonzero(means <= limit)
    kept = np.ones(count, dtype=np.bool_)
    kept[order[: fine[0] if fine.size else count]] = False
    return kept
