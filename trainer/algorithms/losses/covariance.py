"""Losses that hold back the few tokens which make entropy fall (Cui et al. 2025, arXiv:2505.22617).

Those are tokens of high covariance, ``(A - mean A) (logp - mean logp)``, with means over all tokens of the optimiser
step and the log-probs from before the training step. verl takes both from the micro-batch and the log-probs from the
policy as it is being trained, so that its choice depends on how the step is cut; the two agree on the first optimiser
step if it is one micro-batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np
from pydantic import Field, model_validator

from roll_envs.settings import Settings
from trainer.algorithms.losses.clipped import clipped
from trainer.algorithms.losses.objective import Loss, LossInputs, StepTokens, TokenMetrics, log_ratio, ratio_metrics
from trainer.data.table import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    import torch


_ROUNDING = 1e-5
"""Log-ratios up to this are what rounding in float32 leaves between two computations of one log-prob, and no move."""


class CovarianceSettings(Settings):
    covariance_share: float = Field(2e-4, ge=0, le=1)
    """Share of the tokens that are chosen. Default: Cui et al. 2025, verl."""


class ClipCovSettings(CovarianceSettings):
    clip_low: float = Field(0.2, ge=0)
    """Ratio is cut below 1 - clip_low. Default: DAPO."""
    clip_high: float = Field(0.28, ge=0)
    """Ratio is cut above 1 + clip_high. Default: DAPO's higher 0.28."""
    covariance_low: float = 1.0
    """Least covariance of a chosen token. Default: Cui et al. 2025, verl."""
    covariance_high: float = 5.0
    """Greatest covariance of a chosen token. Default: Cui et al. 2025, verl."""

    @model_validator(mode="after")
    def _bounds_fit(self) -> Self:
        if self.covariance_low > self.covariance_high:
            raise ValueError(
                f"loss.covariance_low {self.covariance_low:g} is above loss.covariance_high {self.covariance_high:g}"
            )
        return self


class KlCovSettings(CovarianceSettings):
    covariance_coef: float = Field(1.0, ge=0)
    """Weight of the penalty on chosen tokens. Default: Cui et al. 2025, verl."""


def clip_cov(inputs: LossInputs, settings: ClipCovSettings) -> tuple[torch.Tensor, TokenMetrics]:
    """Clip-Cov: the clipped loss, without the chosen tokens (arXiv:2505.22617, eq. 11).

    Of the tokens whose covariance lies between ``covariance_low`` and ``covariance_high``, ``covariance_share`` of all
    tokens of the step (at least one) are drawn at random, and give no loss and no gradient; they count in the
    denominators. The others: ``-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)``.

    2e-4, 1 and 5 are the authors'. verl does not draw tokens that the clip holds already (those have no gradient).
    """
    chosen = _selected(inputs)
    advantages = inputs.advantages.masked_fill(chosen, 0.0)
    log_r = log_ratio(inputs.logp, inputs.old_logp)
    loss, metrics = clipped(log_r, advantages, settings.clip_low, settings.clip_high)
    return loss, {**metrics, "loss/selected_fraction": chosen}


def kl_cov(inputs: LossInputs, settings: KlCovSettings) -> tuple[torch.Tensor, TokenMetrics]:
    """KL-Cov: a penalty on the chosen tokens (arXiv:2505.22617, eq. 12): ``-r A``, and + ``covariance_coef |log r|``.

    The ``covariance_share`` of all tokens of the step with the largest covariance (at least one) are chosen. (r 1.5,
    A 1): -1.5; chosen, with 1: -1.5 + 0.405465 = -1.094535.

    2e-4 and 1 are the authors'. Before the policy has moved the penalty has no gradient, and this is ``reinforce``: the
    slope of ``|log r|`` is +-1 however small log r is, so that ``|log r|`` up to 1e-5 counts as 0, and no token is
    pushed by the sign of a rounding, which depends on how the step was cut into micro-batches.
    """
    log_r, chosen = log_ratio(inputs.logp, inputs.old_logp), _selected(inputs)
    pushed = chosen & (log_r.detach().abs() > _ROUNDING)
    penalty = settings.covariance_coef * log_r.abs().masked_fill(~pushed, 0.0)
    return -log_r.exp() * inputs.advantages + penalty, {"loss/selected_fraction": chosen, **ratio_metrics(log_r)}


def choose_between(tokens: StepTokens, settings: ClipCovSettings, rng: np.random.Generator) -> BoolArray:
    """Clip-Cov's choice [N].

    log-probs -1, -3 and advantages 1, -1: both covariances are 1 * 1 = 1, which bounds of 1 and 5 leave out (the bounds
    themselves do not count) and bounds of 0.5 and 5 let in; one of the two is drawn.
    """
    covariance = _covariance(tokens)
    eligible = np.flatnonzero((covariance > settings.covariance_low) & (covariance < settings.covariance_high))
    return _share(tokens, settings, rng.permutation(eligible))


def choose_largest(tokens: StepTokens, settings: KlCovSettings, rng: np.random.Generator) -> BoolArray:
    """KL-Cov's choice [N]; ties go to the earlier token."""
    return _share(tokens, settings, np.argsort(-_covariance(tokens), kind="stable"))


def _covariance(tokens: StepTokens) -> FloatArray:
    advantages, logp = tokens.advantages, tokens.old_logp
    return (advantages - advantages.mean()) * (logp - logp.mean()) if logp.size else np.zeros(0)


def _share(tokens: StepTokens, settings: CovarianceSettings, order: IntArray) -> BoolArray:
    """True for the configured share of the tokens [N], at least one, that come first in ``order``."""
    size = tokens.old_logp.size
    count = max(1, int(settings.covariance_share * size)) if settings.covariance_share else 0
    marks = np.zeros(size, dtype=np.bool_)
    marks[order[:count]] = True
    return marks


def _selected(inputs: LossInputs) -> torch.Tensor:
    if inputs.selected is None:
        raise ValueError("this loss needs LossInputs.selected, what Loss.select chose for the step")
    return inputs.selected


CLIP_COV = Loss(loss=clip_cov, settings=ClipCovSettings, select=choose_between, only_advantages=True)
KL_COV = Loss(loss=kl_cov, settings=KlCovSettings, select=choose_largest)
