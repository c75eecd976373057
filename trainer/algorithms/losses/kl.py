"""Estimates of the KL divergence to another policy from log-probs of sampled tokens (Schulman 2020)."""

from __future__ import annotations

import torch

from trainer.algorithms.losses.types import LOG_RATIO_BOUND

__all__ = ["kl_loss"]


def kl_loss(
    logp: torch.Tensor, reference_logp: torch.Tensor, estimator: str, ratio: torch.Tensor | None = None
) -> torch.Tensor:
    """KL of each token, with ``d = logp - reference_logp`` (0.3: k1 0.3, k2 0.045, k3 0.040818).

    As a loss the gradient of k1 is 0 in expectation and that of k3 is another divergence's. With ``ratio``, the
    policy's over the sampler's probability, the value is the estimator's and the gradient is k2's times that ratio,
    held constant: unbiased on and off policy. It equals the gradient of k3 times the ratio (DeepSeek-V3.2,
    arXiv:2512.02556; TRL).
    """
    d = (logp - reference_logp).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    value = {"k1": lambda: d, "k2": lambda: d.square() / 2, "k3": lambda: (-d).exp() - 1.0 + d}[estimator]()
    if ratio is None:
        return value
    right = ratio.detach() * d.square() / 2
    return right - right.detach() + value.detach()
