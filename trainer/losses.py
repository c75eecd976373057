"""Policy losses: pure functions from log-probabilities to a loss per token, and the one function that aggregates them.

All tensors are [B, T], aligned to the predicting position (see :mod:`trainer.batching`). Masked positions give a loss
of exactly 0 and no gradient, whatever they hold. Metrics of a loss are *sums* over masked-in tokens: add them up over
the micro-batches of an optimiser step, then divide by ``Denominators.tokens``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from roll_envs.errors import UnknownNameError
from trainer.batching import Batch, Denominators
from trainer.config import LossConfig

__all__ = [
    "LOSSES",
    "PolicyLoss",
    "TensorMetrics",
    "aggregate",
    "clip",
    "entropy",
    "label_logprobs",
    "policy_loss",
    "register_loss",
    "reinforce",
]

TensorMetrics = dict[str, torch.Tensor]

PolicyLoss = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, LossConfig],
    tuple[torch.Tensor, TensorMetrics],
]
"""(logp, old_logp, sampler_logp, advantages, mask, config) -> (loss per token, sums of metrics)."""

LOG_RATIO_BOUND = 20.0
"""Log-ratios are cut to +-20, as in verl, so that the exponential stays finite."""


def clip(
    logp: torch.Tensor,
    old_logp: torch.Tensor,
    sampler_logp: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    config: LossConfig,
) -> tuple[torch.Tensor, TensorMetrics]:
    """PPO's clipped loss (Schulman et al. 2017, arXiv:1707.06347, eq. 7), asymmetric as in DAPO (arXiv:2503.14476).

    ``-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)`` with ``r = exp(logp - old_logp)``; where A < 0 and
    ``dual_clip`` is c, at most ``-c A`` (Ye et al. 2020, arXiv:1912.09729). With 0.2, 0.28 and c = 3: (r 1.5, A 1) ->
    -1.28, (1.5, -1) -> 1.5, (0.5, 1) -> -0.5, (0.5, -1) -> 0.8, (5, -1) -> 3.
    """
    log_ratio = torch.where(mask, logp - old_logp, 0.0).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    advantages = torch.where(mask, advantages, 0.0)
    ratio = log_ratio.exp()
    plain = -ratio * advantages
    cut = -ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high) * advantages
    loss = torch.maximum(plain, cut)
    with torch.no_grad():
        metrics = {
            "loss/clip_fraction": (cut > plain).sum(),
            "loss/ratio": torch.where(mask, ratio, 0.0).sum(),
            "loss/old_kl": (ratio - 1.0 - log_ratio).sum(),
        }
    if config.dual_clip is not None:
        bound = -config.dual_clip * advantages
        with torch.no_grad():
            metrics["loss/dual_clip_fraction"] = ((advantages < 0) & (loss > bound)).sum()
        loss = torch.where(advantages < 0, torch.minimum(loss, bound), loss)
    return loss, metrics


def reinforce(
    logp: torch.Tensor,
    old_logp: torch.Tensor,
    sampler_logp: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    config: LossConfig,
) -> tuple[torch.Tensor, TensorMetrics]:
    """Plain policy gradient, ``-A logp`` (Williams 1992); advantages of 1 make it supervised learning."""
    return -torch.where(mask, advantages, 0.0) * torch.where(mask, logp, 0.0), {}


LOSSES: dict[str, PolicyLoss] = {"clip": clip, "reinforce": reinforce}
"""Losses by the name that ``loss.name`` uses."""


def register_loss(name: str, loss: PolicyLoss) -> None:
    """Make a loss available as ``loss.name``.

    Raises:
        ValueError: The name is taken by another loss.
    """
    if LOSSES.setdefault(name, loss) is not loss:
        raise ValueError(f"loss {name!r} is already registered; choose another name")


def aggregate(
    loss: torch.Tensor, mask: torch.Tensor, rows: torch.Tensor, mode: str, denominators: Denominators
) -> torch.Tensor:
    """Losses of the tokens of one micro-batch [B, T] as its share of the step's scalar loss.

    The shares of all micro-batches of a step add up to the loss of the step, however it was cut. ``rows`` is
    ``Batch.row_index``. Losses 2, 2 in one row and 1, 1, 1, 1 in another: token-mean 1.3333,
    seq-mean-token-mean 1.5, seq-mean-token-sum 4.

    Raises:
        UnknownNameError: ``mode`` is none of these three.
    """
    kept = torch.where(mask, loss, 0.0)
    if mode == "token-mean":
        return kept.sum() / max(denominators.tokens, 1)
    if mode == "seq-mean-token-sum":
        return kept.sum() / max(denominators.rows, 1)
    if mode == "seq-mean-token-mean":
        counts = denominators.row_tokens.to(loss.device)[rows.clamp(min=0)].clamp(min=1)
        return (kept / counts).sum() / max(denominators.rows, 1)
    known = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum")
    raise UnknownNameError("loss aggregation", mode, known)


def _fine(logits: torch.Tensor) -> torch.Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def label_logprobs(logits: torch.Tensor, labels: torch.Tensor, temperature: float) -> torch.Tensor:
    """Log-probabilities of ``labels`` [B, T] at the sampling temperature from logits [B, T, V], at least float32."""
    scaled = _fine(logits) / temperature
    return scaled.gather(-1, labels.unsqueeze(-1)).squeeze(-1) - scaled.logsumexp(-1)


def entropy(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Entropy in nats of the sampling distribution at each position [B, T], from logits [B, T, V]."""
    logp = torch.log_softmax(_fine(logits) / temperature, dim=-1)
    return -(logp.exp() * logp).sum(-1)


def policy_loss(
    config: LossConfig,
    batch: Batch,
    logp: torch.Tensor,
    denominators: Denominators,
    entropies: torch.Tensor | None = None,
) -> tuple[torch.Tensor, TensorMetrics]:
    """One micro-batch's share of the step's loss, to call ``backward`` on; and sums of metrics (see above).

    ``entropies`` [B, T] from :func:`entropy` are logged and, unless ``entropy_coef`` is 0, rewarded; needed then.

    Raises:
        UnknownNameError: No loss has the configured name.
        ValueError: An entropy bonus is configured and no entropies are given.
    """
    if config.name not in LOSSES:
        raise UnknownNameError("policy loss", config.name, LOSSES)
    mask = batch.label_mask
    loss, metrics = LOSSES[config.name](
        logp, batch.old_logprobs, batch.sampler_logprobs, batch.advantages, mask, config
    )
    metrics = {**metrics, "loss/policy": torch.where(mask, loss, 0.0).detach().sum()}
    if entropies is not None:
        metrics["loss/entropy"] = torch.where(mask, entropies, 0.0).detach().sum()
    if config.entropy_coef:
        if entropies is None:
            raise ValueError(f"loss.entropy_coef is {config.entropy_coef} but no entropies were given")
        loss = loss - config.entropy_coef * entropies
    return aggregate(loss, mask, batch.row_index, config.aggregation, denominators), metrics
