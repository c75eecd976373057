"""From logits to what losses need: log-probabilities of labels and entropies, at the sampling temperature."""

from __future__ import annotations

import torch

__all__ = ["entropy", "label_logprobs"]


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
