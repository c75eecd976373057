"""Losses without a clip: the plain policy gradient, constant weights of it, and gates and penalties of the ratio."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pydantic import Field

from roll_envs.settings import Settings
from trainer.algorithms.losses.objective import (
    Loss,
    LossInputs,
    RatioSettings,
    TokenMetrics,
    log_ratio,
    log_ratio_at,
    ratio_metrics,
    sum_over,
)
from trainer.algorithms.shaping import LOG_RATIO_BOUND

if TYPE_CHECKING:
    import torch

_SMALLEST_LOG_WEIGHT = math.log(1e-8)


def reinforce(inputs: LossInputs, settings: Settings) -> tuple[torch.Tensor, TokenMetrics]:
    """Plain policy gradient, ``-A logp`` (Williams 1992); advantages of 1 make it supervised learning.

    (logp -0.5, A 3) -> 1.5, with gradient -3. No ratio: off policy it is biased, unless ``correction`` weighs it.
    """
    return -inputs.advantages * inputs.logp, {}


# -- constant weights of -A logp, so that no token loses its gradient to a clip ----------------------------------------


class CispoSettings(Settings):
    clip_low: float = Field(1.0, ge=0)
    """Ratio is cut below 1 - clip_low. Default: none, as in CISPO's paper."""
    clip_high: float = Field(4.0, ge=0)
    """Ratio is cut above 1 + clip_high. Default: SkyRL and TRL: a ratio of 5."""


def cispo(inputs: LossInputs, settings: CispoSettings) -> tuple[torch.Tensor, TokenMetrics]:
    """CISPO (MiniMax-M1, arXiv:2506.13585, eq. 4-5): ``-sg(clip(r, 1 - clip_low, 1 + clip_high)) A logp``.

    (r 6, A 1, logp -0.5) with an upper bound of 5 -> 2.5, gradient -5; (r 0.3, A -1, logp -2) -> -0.6, gradient 0.3.

    Bounds are 1 and 4: none below, as in the paper, and a ratio of 5 above, as in SkyRL (high 4.0) and TRL (5.0, as a
    ratio). ROLL's 0.1 and 0.1 cut nearly everything.
    """
    log_r = log_ratio(inputs.logp, inputs.old_logp).detach()
    ratio = log_r.exp()
    weight = ratio.clamp(1.0 - settings.clip_low, 1.0 + settings.clip_high)
    return -weight * inputs.advantages * inputs.logp, {"loss/clip_fraction": weight != ratio, **ratio_metrics(log_r)}


class ToprSettings(RatioSettings):
    positive_weight: float = Field(1.0, ge=0)
    """Weight of positive advantages. Default: ROLL's TOPR."""
    negative_weight: float = Field(1.0, ge=0)
    """Weight of negative advantages. Default: ROLL's TOPR."""


def topr(inputs: LossInputs, settings: ToprSettings) -> tuple[torch.Tensor, TokenMetrics]:
    """TOPR: positives as they are, negatives with a ratio of at most 1 (Le Roux et al. 2025, arXiv:2503.14286, eq. 8).

    ``-positive_weight A logp`` where A > 0, else ``-negative_weight sg(min(r, 1)) A logp``. (A 1, r 7, logp -0.5) ->
    0.5; (A -1, r 0.3, logp -2) -> -0.6; (A -1, r 7, logp -2) -> -2.

    ``ratio: sequence-product`` is the paper's ratio, of the whole answer; the default, each token's own, is ROLL's.
    """
    log_r = log_ratio_at(log_ratio(inputs.logp, inputs.old_logp).detach(), inputs, settings.ratio)
    positive, ratio = inputs.advantages > 0, log_r.exp()
    weight = settings.negative_weight * ratio.clamp(max=1.0)
    weight = weight.masked_fill(positive, settings.positive_weight)
    metrics = {"loss/clip_fraction": ~positive & (ratio > 1.0), **ratio_metrics(log_r)}
    return -weight * inputs.advantages * inputs.logp, metrics


class VespoSettings(Settings):
    power_positive: float = Field(2.0, ge=0)
    """Power of the sequence's ratio for positive advantages. Default: TRL."""
    decay_positive: float = Field(3.0, ge=0)
    """Decay with the sequence's ratio for positive advantages. Default: TRL."""
    power_negative: float = Field(3.0, ge=0)
    """Power of the sequence's ratio for negative advantages. Default: TRL."""
    decay_negative: float = Field(2.0, ge=0)
    """Decay with the sequence's ratio for negative advantages. Default: TRL."""


def vespo(inputs: LossInputs, settings: VespoSettings) -> tuple[torch.Tensor, TokenMetrics]:
    """VESPO: a smooth weight of the whole sequence's ratio (arXiv:2602.10693, as in TRL).

    ``-sg(phi(w)) A logp`` with ``phi(w) = w^k exp(decay (1 - w))``, k ``power_positive`` or ``power_negative`` by the
    sign of A, and w the product over the sequence of ``exp(logp - sampler_logp)``. phi(1) = 1; w = 2, A >= 0:
    4 exp(-3) = 0.199148; w = 2, A < 0: 8 exp(-2) = 1.082682.

    The ratio is to the sampler whatever ``proximal`` says, so that ``correction.name`` has to be ``none``.
    """
    moved = log_ratio(inputs.logp, inputs.sampler_logp).detach()
    log_w = sum_over(moved, inputs, "sequence").clamp(_SMALLEST_LOG_WEIGHT, LOG_RATIO_BOUND)
    good = inputs.advantages >= 0
    power = _by_sign(good, settings.power_positive, settings.power_negative, log_w)
    decay = _by_sign(good, settings.decay_positive, settings.decay_negative, log_w)
    weight = (power * log_w + decay * (1.0 - log_w.exp())).exp()
    return -weight * inputs.advantages * inputs.logp, {"loss/sequence_weight": weight, **ratio_metrics(moved)}


def _by_sign(good: torch.Tensor, positive: float, negative: float, like: torch.Tensor) -> torch.Tensor:
    """``positive`` where ``good``, else ``negative``."""
    return like.new_full(good.shape, negative).masked_fill(good, positive)


# -- a gate, a penalty, a mask of divergence ---------------------------------------------------------------------------


class SapoSettings(Settings):
    tau_positive: float = Field(1.0, gt=0)
    """Temperature of the gate for positive advantages. Default: SAPO's paper."""
    tau_negative: float = Field(1.05, gt=0)
    """Temperature of the gate for negative advantages. Default: SAPO's paper."""


def sapo(inputs: LossInputs, settings: SapoSettings) -> tuple[torch.Tensor, TokenMetrics]:
    """SAPO: a soft gate in the place of the clip (Gao et al. 2025, arXiv:2511.20347).

    ``-sigmoid(tau (r - 1)) 4 / tau A``, tau ``tau_positive`` where A > 0, else ``tau_negative``; at r = 1 its gradient
    is -A, and it fades on both sides. (r 2, A 1), tau 1: -4 sigmoid(1) = -2.924234; (r 1, A -1), tau 1.05: 2 / 1.05 =
    1.904762.

    1.0 and 1.05 are the paper's.
    """
    log_r = log_ratio(inputs.logp, inputs.old_logp)
    tau = _by_sign(inputs.advantages > 0, settings.tau_positive, settings.tau_negative, log_r)
    gate = (tau * (log_r.exp() - 1.0)).sigmoid() * (4.0 / tau)
    return -gate * inputs.advantages, ratio_metrics(log_r)


class KimiSettings(Settings):
    proximal_coef: float = Field(0.1, ge=0)
    """Weight of half the squared log-ratio, tau. Default: ROLL's kimi15_tau."""


def kimi(inputs: LossInputs, settings: KimiSettings) -> tuple[torch.Tensor, TokenMetrics]:
    """Kimi k1.5's mirror descent (arXiv:2501.12599, eq. 3): ``-A logp + proximal_coef / 2 (logp - old_logp)^2``.

    (logp -0.5, old -0.8, A 2) with 0.1: 1 + 0.05 * 0.09 = 1.0045, gradient -2 + 0.1 * 0.3 = -1.97.

    The square is of each token, as in ROLL (whose tau is also 0.1); the paper squares that of the whole answer. Without
    advantages nothing pushes before the policy has moved: with ``proximal: recompute`` the ratio of the first optimiser
    step is exactly 1, so that rounding is not taken for a move. Where all advantages of that step are 0 its gradient is
    exactly 0, and the step is taken all the same: momentum and weight decay alone move the weights.
    """
    log_r = log_ratio(inputs.logp, inputs.old_logp)
    plain = -inputs.advantages * inputs.logp
    return plain + 0.5 * settings.proximal_coef * log_r.square(), ratio_metrics(log_r)


class DppoSettings(Settings):
    divergence_low: float = Field(0.2, ge=0)
    """Most that a probability may have fallen. Default: prime-rl."""
    divergence_high: float = Field(0.2, ge=0)
    """Most that a probability may have risen. Default: prime-rl."""
    divergence_coef: float = Field(1e-3, ge=0)
    """Weight of the squared log-ratio. Default: prime-rl."""


def dppo(inputs: LossInputs, settings: DppoSettings) -> tuple[torch.Tensor, TokenMetrics]:
    """DPPO: no gradient where a token's probability moved too far (arXiv:2602.04879, total variation; as in prime-rl).

    ``-A r + divergence_coef (log r)^2`` with ``r = p / mu``, p the policy's and mu the sampler's probability of the
    token; the first term is left out where A > 0 and ``p - mu > divergence_high``, or A < 0 and
    ``mu - p > divergence_low``. (mu 0.5, p 0.6, A 1): -1.2 + 1e-3 * 0.033241 = -1.199967; (mu 0.5, p 0.75, A 1) keeps
    the second term alone, 0.000164.

    0.2, 0.2 and 1e-3 are prime-rl's. The ratio is to the sampler whatever ``proximal`` says, so that
    ``correction.name`` has to be ``none``.
    """
    advantages, log_r = inputs.advantages, log_ratio(inputs.logp, inputs.sampler_logp)
    risen = inputs.logp.detach().exp() - inputs.sampler_logp.exp()
    stopped = (advantages > 0) & (risen > settings.divergence_high)
    stopped |= (advantages < 0) & (-risen > settings.divergence_low)
    pushed = (-advantages * log_r.exp()).masked_fill(stopped, 0.0)
    metrics = {"loss/clip_fraction": stopped, **ratio_metrics(log_r)}
    return pushed + settings.divergence_coef * log_r.square(), metrics


REINFORCE = Loss(loss=reinforce, only_advantages=True, linear_on_policy=True)
CISPO = Loss(loss=cispo, settings=CispoSettings, only_advantages=True, linear_on_policy=True)
TOPR = Loss(loss=topr, settings=ToprSettings, only_advantages=True)
VESPO = Loss(loss=vespo, settings=VespoSettings, only_advantages=True, anchored_at_sampler=True)
SAPO = Loss(loss=sapo, settings=SapoSettings, only_advantages=True, linear_on_policy=True)
KIMI = Loss(loss=kimi, settings=KimiSettings, linear_on_policy=True)
DPPO = Loss(loss=dppo, settings=DppoSettings, anchored_at_sampler=True)
