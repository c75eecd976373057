"""Losses that keep the policy near by other means than a clip of the ratio: a gate, a penalty, a mask of divergence."""

from __future__ import annotations

import torch

from trainer.algorithms.losses.types import LOG_RATIO_BOUND, LossInputs, TensorMetrics, log_ratio, ratio_metrics
from trainer.config.algorithm import LossConfig

__all__ = ["dppo", "kimi", "sapo"]


def sapo(inputs: LossInputs, config: LossConfig) -> tuple[torch.Tensor, TensorMetrics]:
    """SAPO: a soft gate in the place of the clip (Gao et al. 2025, arXiv:2511.20347).

    ``-sigmoid(tau (r - 1)) 4 / tau A``, tau ``tau_positive`` where A > 0, else ``tau_negative``; at r = 1 its gradient
    is -A, and it fades on both sides. (r 2, A 1), tau 1: -4 sigmoid(1) = -2.924234; (r 1, A -1), tau 1.05: 2 / 1.05 =
    1.904762.

    1.0 and 1.05 are the paper's.
    """
    mask = inputs.mask
    advantages = torch.where(mask, inputs.advantages, 0.0)
    log_r = log_ratio(inputs)
    tau = torch.where(advantages > 0, log_r.new_tensor(config.tau_positive), log_r.new_tensor(config.tau_negative))
    return -torch.sigmoid(tau * (log_r.exp() - 1.0)) * (4.0 / tau) * advantages, ratio_metrics(log_r, mask)


def kimi(inputs: LossInputs, config: LossConfig) -> tuple[torch.Tensor, TensorMetrics]:
    """Kimi k1.5's mirror descent (arXiv:2501.12599, eq. 3): ``-A logp + proximal_coef / 2 (logp - old_logp)^2``.

    (logp -0.5, old -0.8, A 2) with 0.1: 1 + 0.05 * 0.09 = 1.0045, gradient -2 + 0.1 * 0.3 = -1.97.

    The square is of each token, as in ROLL (whose tau is also 0.1); the paper squares that of the whole answer.
    """
    log_r = log_ratio(inputs)
    advantages = torch.where(inputs.mask, inputs.advantages, 0.0)
    plain = -advantages * torch.where(inputs.mask, inputs.logp, 0.0)
    return plain + 0.5 * config.proximal_coef * log_r.square(), ratio_metrics(log_r, inputs.mask)


def dppo(inputs: LossInputs, config: LossConfig) -> tuple[torch.Tensor, TensorMetrics]:
    """DPPO: no gradient where a token's probability moved too far (arXiv:2602.04879, total variation; as in prime-rl).

    ``-A r + divergence_coef (log r)^2`` with ``r = p / mu``, p the policy's and mu the sampler's probability of the
    token; the first term is left out where A > 0 and ``p - mu > divergence_high``, or A < 0 and
    ``mu - p > divergence_low``. (mu 0.5, p 0.6, A 1): -1.2 + 1e-3 * 0.033241 = -1.199967; (mu 0.5, p 0.75, A 1) keeps
    the second term alone, 0.000164.

    0.2, 0.2 and 1e-3 are prime-rl's. The ratio is to the sampler whatever ``proximal`` says, so that
    ``correction.name`` has to be ``none``.
    """
    mask = inputs.mask
    logp, sampler = torch.where(mask, inputs.logp, 0.0), torch.where(mask, inputs.sampler_logp, 0.0)
    advantages = torch.where(mask, inputs.advantages, 0.0)
    log_r = (logp - sampler).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    with torch.no_grad():
        risen = logp.exp() - sampler.exp()
        stopped = ((advantages > 0) & (risen > config.divergence_high)) | (
            (advantages < 0) & (-risen > config.divergence_low)
        )
        metrics = {"loss/clip_fraction": stopped.sum(), **ratio_metrics(log_r, mask)}
    pushed = torch.where(stopped, 0.0, -advantages * log_r.exp())
    return pushed + config.divergence_coef * log_r.square(), metrics
