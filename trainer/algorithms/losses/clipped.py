"""The clipped losses of the PPO family: one ratio per token, per turn or per sequence."""

from __future__ import annotations

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
    mean_over,
    ratio_metrics,
)

if TYPE_CHECKING:
    import torch

_LOW, _HIGH = "Ratio is cut below 1 - clip_low.", "Ratio is cut above 1 + clip_high."


def clipped(
    log_r: torch.Tensor, advantages: torch.Tensor, low: float, high: float
) -> tuple[torch.Tensor, TokenMetrics]:
    """``-min(r A, clip(r, 1 - low, 1 + high) A)`` of each token, from the logarithm of r."""
    ratio = log_r.exp()
    plain = -ratio * advantages
    cut = -ratio.clamp(1.0 - low, 1.0 + high) * advantages
    return plain.maximum(cut), {"loss/clip_fraction": cut > plain, **ratio_metrics(log_r)}


class ClipSettings(RatioSettings):
    clip_low: float = Field(0.2, ge=0)
    """Ratio is cut below 1 - clip_low. Default: DAPO."""
    clip_high: float = Field(0.28, ge=0)
    """Ratio is cut above 1 + clip_high. Default: DAPO's higher 0.28."""
    dual_clip: float | None = Field(None, gt=1)
    """Bound for negative advantages, in ratios; INTELLECT-2's and TRL's delta.
    Default: off; verl's 3.0 is always on."""


def clip(inputs: LossInputs, settings: ClipSettings) -> tuple[torch.Tensor, TokenMetrics]:
    """PPO's clipped loss (Schulman et al. 2017, arXiv:1707.06347, eq. 7), asymmetric as in DAPO (arXiv:2503.14476).

    ``-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)`` with ``r = exp(logp - old_logp)``, or as ``ratio`` says; where
    A < 0 and ``dual_clip`` is c, at most ``-c A`` (Ye et al. 2020, arXiv:1912.09729; INTELLECT-2's two-sided clip and
    TRL's ``delta`` are the same). With 0.2, 0.28 and c = 3: (r 1.5, A 1) -> -1.28, (1.5, -1) -> 1.5, (0.5, 1) -> -0.5,
    (0.5, -1) -> 0.8, (5, -1) -> 3.

    Bounds are DAPO's 0.2 and 0.28 (PPO's own: 0.2 and 0.2). ``dual_clip`` is off, as in AReaL, slime and TRL; verl
    always takes 3, ROLL 1.4. ``ratio: turn-mean`` is what ROLL calls segments; its bounds need to be far smaller.
    """
    advantages = inputs.advantages
    log_r = log_ratio_at(log_ratio(inputs.logp, inputs.old_logp), inputs, settings.ratio)
    loss, metrics = clipped(log_r, advantages, settings.clip_low, settings.clip_high)
    if settings.dual_clip is not None:
        bound, negative = -settings.dual_clip * advantages, advantages < 0
        metrics["loss/dual_clip_fraction"] = negative & (loss > bound)
        loss = loss.minimum(bound).where(negative, loss)
    return loss, metrics


class RaftSettings(Settings):
    clip_high: float = Field(0.2, ge=0)
    """Ratio is cut above 1 + clip_high. Default: RAFT++'s paper."""


def raft_pp(inputs: LossInputs, settings: RaftSettings) -> tuple[torch.Tensor, TokenMetrics]:
    """RAFT++: the clipped loss on positive episodes alone (Xiong et al. 2025, arXiv:2504.11343, section 3).

    ``-min(r, 1 + clip_high) A`` where A > 0, else 0. (r 1.5, A 1) with 0.2 -> -1.2; (1.5, -1) -> 0; (0.5, 1) -> -0.5.
    A lower bound never binds where A > 0. The paper weighs every correct answer by 1: ``advantage.name: reinforce``
    with rewards of 0 and 1 and ``advantage.gamma`` 1. ROLL's recipe of this name is GRPO.
    """
    log_r = log_ratio(inputs.logp, inputs.old_logp)
    return clipped(log_r, inputs.advantages.clamp(min=0.0), 0.0, settings.clip_high)


class GspoSettings(Settings):
    clip_low: float = Field(3e-4, ge=0)
    """Ratio is cut below 1 - clip_low. Default: GSPO's paper; ROLL's and verl's 0.2 never bites."""
    clip_high: float = Field(4e-4, ge=0)
    """Ratio is cut above 1 + clip_high. Default: GSPO's paper; ROLL's and verl's 0.2 never bites."""


def gspo(inputs: LossInputs, settings: GspoSettings) -> tuple[torch.Tensor, TokenMetrics]:
    """GSPO: the clipped loss with one ratio per sequence (Zheng et al. 2025, arXiv:2507.18071, eq. 5-7).

    ``-min(s A, clip(s, 1 - clip_low, 1 + clip_high) A)`` with ``s = exp(mean over the sequence of (logp - old_logp))``,
    whose gradient reaches every token of the sequence through the mean. Log-ratios 0.1, -0.2, 0.3: s = 1.068939; A = 1
    without a clip: each token's loss is -1.068939, and the sequence's mean has the gradient -0.356313 in each of the
    three.

    Bounds are the paper's 3e-4 and 4e-4; ROLL's and verl's 0.2 would never bite. Aggregate with
    ``seq-mean-token-mean``; with ``seq-mean-token-sum`` it is LUSPO (arXiv:2602.05261), which weighs sequences by their
    length.
    """
    log_s = log_ratio_at(log_ratio(inputs.logp, inputs.old_logp), inputs, "sequence-mean")
    return clipped(log_s, inputs.advantages, settings.clip_low, settings.clip_high)


def gspo_token(inputs: LossInputs, settings: GspoSettings) -> tuple[torch.Tensor, TokenMetrics]:
    """GSPO-token: GSPO's ratio, with a gradient for each token of its own (arXiv:2507.18071, eq. 13-14).

    The ratio ``s_t = sg(s) exp(logp - sg(logp))`` has GSPO's value everywhere, and d s_t / d logp = s at its own token
    alone. Where all advantages of a sequence are equal, its value and gradient are GSPO's; where they differ by token
    or turn, each moves its own tokens. What verl calls ``gspo`` is this.
    """
    log_s = log_ratio_at(log_ratio(inputs.logp, inputs.old_logp), inputs, "sequence-mean").detach()
    own = inputs.logp - inputs.logp.detach()
    return clipped(log_s + own, inputs.advantages, settings.clip_low, settings.clip_high)


class GmpoSettings(Settings):
    clip_low: float = Field(0.4, ge=0)
    """Log-ratio is cut below -clip_low. Default: GMPO's paper."""
    clip_high: float = Field(0.4, ge=0)
    """Log-ratio is cut above clip_high. Default: GMPO's paper."""


def gmpo(inputs: LossInputs, settings: GmpoSettings) -> tuple[torch.Tensor, TokenMetrics]:
    """GMPO: the geometric mean of a sequence's clipped ratios (Zhao et al. 2025, arXiv:2507.20673, eq. 4).

    ``-A exp(mean over the sequence of l)`` with ``l = min(logp - old_logp, clip_high)`` where A > 0 and
    ``max(logp - old_logp, -clip_low)`` where A < 0. Log-ratios 0.1, -0.2, 0.9 with 0.4 and A = 1: l = 0.1, -0.2, 0.4,
    loss -exp(0.1) = -1.105171; with A = -1: exp(0.8 / 3) = 1.305605.

    Bounds are of the log-ratio; 0.4 and 0.4 are the paper's. Tokens without advantage are not clipped.
    """
    advantages, log_r = inputs.advantages, log_ratio(inputs.logp, inputs.old_logp)
    held = log_r.clamp(max=settings.clip_high).where(advantages > 0, log_r)
    held = log_r.clamp(min=-settings.clip_low).where(advantages < 0, held)
    metrics = {"loss/clip_fraction": held != log_r, **ratio_metrics(log_r)}
    return -advantages * mean_over(held, inputs, "sequence").exp(), metrics


CLIP = Loss(loss=clip, settings=ClipSettings, only_advantages=True, linear_on_policy=True)
RAFT_PP = Loss(loss=raft_pp, settings=RaftSettings, only_advantages=True)
GSPO = Loss(loss=gspo, settings=GspoSettings, only_advantages=True, linear_on_policy=True)
GSPO_TOKEN = Loss(loss=gspo_token, settings=GspoSettings, only_advantages=True, linear_on_policy=True)
GMPO = Loss(loss=gmpo, settings=GmpoSettings, only_advantages=True, linear_on_policy=True)
