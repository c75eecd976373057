"""Policy losses by name: pure functions from log-probabilities to a loss per token; and a micro-batch's whole loss.

Masked positions give a loss of exactly 0 and no gradient, whatever they hold.
"""

from __future__ import annotations

from functools import cache

import torch

from roll_envs.errors import PluginError, UnknownNameError
from trainer.algorithms.losses.aggregation import aggregate
from trainer.algorithms.losses.correction import correction_weights, within_second_moment
from trainer.algorithms.losses.covariance import choose_between, choose_largest, clip_cov, kl_cov
from trainer.algorithms.losses.kl import kl_loss
from trainer.algorithms.losses.logits import entropy, label_logprobs
from trainer.algorithms.losses.ppo import clip, raft_pp, reinforce
from trainer.algorithms.losses.sequence import gmpo, gspo, gspo_token
from trainer.algorithms.losses.soft import dppo, kimi, sapo
from trainer.algorithms.losses.types import (
    LOG_RATIO_BOUND,
    LossInputs,
    LossSpec,
    PolicyLoss,
    Select,
    StepTokens,
    TensorMetrics,
    log_ratio,
    log_ratio_at,
    mean_over,
    ratio_metrics,
    sum_over,
)
from trainer.algorithms.losses.weighted import cispo, topr, vespo
from trainer.algorithms.plugins import load_plugin, plugin_names
from trainer.config.algorithm import CorrectionConfig, LossConfig
from trainer.config.read_keys import LOSS_KEYS
from trainer.data.batches import Batch, Denominators

__all__ = [
    "GROUP",
    "LOSSES",
    "LossInputs",
    "LossSpec",
    "PolicyLoss",
    "Select",
    "StepTokens",
    "TensorMetrics",
    "aggregate",
    "cispo",
    "clip",
    "clip_cov",
    "correction_weights",
    "dppo",
    "entropy",
    "find_loss",
    "gmpo",
    "gspo",
    "gspo_token",
    "kimi",
    "kl_cov",
    "kl_loss",
    "label_logprobs",
    "log_ratio",
    "log_ratio_at",
    "loss_names",
    "mean_over",
    "policy_loss",
    "raft_pp",
    "ratio_metrics",
    "register_loss",
    "reinforce",
    "sapo",
    "sum_over",
    "topr",
    "vespo",
    "within_second_moment",
]

GROUP = "roll_envs.losses"
"""The entry-point group: name = ``loss.name``, target = a :class:`LossSpec`, or a loss alone."""


def _built_in(name: str, loss: PolicyLoss, **traits: bool) -> LossSpec:
    select = {"clip_cov": choose_between, "kl_cov": choose_largest}.get(name)
    return LossSpec(loss=loss, select=select, keys=LOSS_KEYS[name], **traits)


LOSSES: dict[str, LossSpec] = {
    "cispo": _built_in("cispo", cispo, only_advantages=True, linear_on_policy=True),
    "clip": _built_in("clip", clip, only_advantages=True, linear_on_policy=True),
    "clip_cov": _built_in("clip_cov", clip_cov, only_advantages=True),
    "dppo": _built_in("dppo", dppo),
    "gmpo": _built_in("gmpo", gmpo, only_advantages=True, linear_on_policy=True),
    "gspo": _built_in("gspo", gspo, only_advantages=True, linear_on_policy=True),
    "gspo_token": _built_in("gspo_token", gspo_token, only_advantages=True, linear_on_policy=True),
    "kimi": _built_in("kimi", kimi, linear_on_policy=True),
    "kl_cov": _built_in("kl_cov", kl_cov),
    "raft_pp": _built_in("raft_pp", raft_pp, only_advantages=True),
    "reinforce": _built_in("reinforce", reinforce, only_advantages=True, linear_on_policy=True),
    "sapo": _built_in("sapo", sapo, only_advantages=True, linear_on_policy=True),
    "topr": _built_in("topr", topr, only_advantages=True),
    "vespo": _built_in("vespo", vespo, only_advantages=True),
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
    """The loss ``name``, of this package or of another.

    Raises:
        UnknownNameError: No package has one of this name.
        PluginError: The package behind the name is broken.
    """
    return LOSSES[name] if name in LOSSES else _of_another_package(name)


def loss_names() -> tuple[str, ...]:
    """Every name that :func:`find_loss` knows, in order; imports nothing."""
    return tuple(sorted({*LOSSES, *plugin_names(GROUP)}))


@cache
def _of_another_package(name: str) -> LossSpec:
    found = load_plugin(GROUP, name, "policy loss")
    if found is None:
        raise UnknownNameError("policy loss", name, loss_names())
    if isinstance(found, LossSpec):
        return found
    if not callable(found):
        raise PluginError(f"policy loss {name!r} is a {type(found).__name__}; expected a LossSpec or a function")
    return LossSpec(loss=found)


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
        sampler = torch.where(mask, inputs.sampler_logp, 0.0)
        ratio = (kept - sampler).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp() if config.kl_unbiased else None
        divergence = kl_loss(kept, reference, config.kl_estimator, ratio)
        metrics["loss/reference_kl"] = divergence.detach().sum()
        loss = loss + config.kl_coef * divergence
    elif config.kl_coef:
        raise ValueError(f"loss.kl_coef is {config.kl_coef} but no log-probs of the reference were given")
    share = aggregate(
        loss, mask, batch.row_index, config.aggregation, denominators, constant_tokens=config.constant_tokens
    )
    return share, metrics
