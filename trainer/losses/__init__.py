"""Policy losses by name: pure functions from log-probabilities to a loss per token; and a micro-batch's whole loss.

Masked positions give a loss of exactly 0 and no gradient, whatever they hold.
"""

from __future__ import annotations

import torch

from roll_envs.errors import UnknownNameError
from trainer.algorithm_config import CorrectionConfig, LossConfig
from trainer.batching import Batch, Denominators
from trainer.losses.aggregation import aggregate
from trainer.losses.correction import correction_weights
from trainer.losses.kl import kl_loss
from trainer.losses.logits import entropy, label_logprobs
from trainer.losses.ppo import clip, reinforce
from trainer.losses.types import LossInputs, LossSpec, PolicyLoss, Select, StepTokens, TensorMetrics, log_ratio

__all__ = [
    "LOSSES",
    "LossInputs",
    "LossSpec",
    "PolicyLoss",
    "StepTokens",
    "TensorMetrics",
    "aggregate",
    "clip",
    "entropy",
    "find_loss",
    "label_logprobs",
    "policy_loss",
    "register_loss",
    "reinforce",
]

LOSSES: dict[str, LossSpec] = {
    "clip": LossSpec(loss=clip, linear_on_policy=True),
    "reinforce": LossSpec(loss=reinforce, linear_on_policy=True),
}
"""Losses by the name that ``loss.name`` uses."""


def register_loss(
    name: str,
    loss: PolicyLoss,
    *,
    select: Select | None = None,
    only_advantages: bool = False,
    linear_on_policy: bool = False,
) -> None:
    """Make a loss available as ``loss.name``; what may be done with its rows is as in :class:`LossSpec`.

    Raises:
        ValueError: The name is taken by another loss.
    """
    spec = LossSpec(loss=loss, select=select, only_advantages=only_advantages, linear_on_policy=linear_on_policy)
    if LOSSES.setdefault(name, spec).loss is not loss:
        raise ValueError(f"loss {name!r} is already registered; choose another name")


def find_loss(name: str) -> LossSpec:
    """The loss ``name``. Raises :class:`UnknownNameError` for a name that is not registered."""
    if name not in LOSSES:
        raise UnknownNameError("policy loss", name, LOSSES)
    return LOSSES[name]


def policy_loss(
    config: LossConfig,
    batch: Batch,
    logp: torch.Tensor,
    denominators: Denominators,
    entropies: torch.Tensor | None = None,
    *,
    correction: CorrectionConfig | None = None,
) -> tuple[torch.Tensor, TensorMetrics]:
    """One micro-batch's share of the step's loss, to call ``backward`` on; and sums of metrics over its tokens.

    ``policy * correction weight - entropy_coef * entropy + kl_coef * KL`` per token, then aggregated. ``entropies``
    [B, T] are logged and, unless ``entropy_coef`` is 0, rewarded; needed then.

    Raises:
        UnknownNameError: No loss has the configured name.
        ValueError: An entropy bonus is configured and no entropies are given, or a KL term and no reference.
    """
    mask = batch.label_mask
    inputs = LossInputs(
        logp=logp,
        old_logp=batch.old_logprobs,
        sampler_logp=batch.sampler_logprobs,
        advantages=batch.advantages,
        mask=mask,
        rows=batch.row_index,
        turns=batch.turns,
        reference_logp=batch.reference_logprobs,
        selected=batch.selected,
    )
    loss, metrics = find_loss(config.name).loss(inputs, config)
    weights, corrected = correction_weights(inputs, correction or CorrectionConfig())
    if weights is not None:
        loss = loss * weights
    metrics = {**metrics, **corrected, "loss/policy": torch.where(mask, loss, 0.0).detach().sum()}
    if entropies is not None:
        metrics["loss/entropy"] = torch.where(mask, entropies, 0.0).detach().sum()
    if config.entropy_coef:
        if entropies is None:
            raise ValueError(f"loss.entropy_coef is {config.entropy_coef} but no entropies were given")
        loss = loss - config.entropy_coef * entropies
    if inputs.reference_logp is not None:
        kept, reference = torch.where(mask, logp, 0.0), torch.where(mask, inputs.reference_logp, 0.0)
        ratio = log_ratio(inputs).exp() if config.kl_unbiased else None
        divergence = kl_loss(kept, reference, config.kl_estimator, ratio)
        metrics["loss/reference_kl"] = divergence.detach().sum()
        loss = loss + config.kl_coef * divergence
    elif config.kl_coef:
        raise ValueError(f"loss.kl_coef is {config.kl_coef} but no log-probs of the reference were given")
    share = aggregate(
        loss, mask, batch.row_index, config.aggregation, denominators, constant_tokens=config.constant_tokens
    )
    return share, metrics
