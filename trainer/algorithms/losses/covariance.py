"""Losses that hold back the few tokens which make entropy fall (Cui et al. 2025, arXiv:2505.22617).

Those are tokens of high covariance, ``(A - mean A) (logp - mean logp)``, with means over all tokens of the optimiser
step and the log-probs from before the training step. verl takes both from the micro-batch and the log-probs from the
policy as it is being trained, so that its choice depends on how the step is cut; the two agree on the first optimiser
step if it is one micro-batch.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.algorithms.losses.ppo import clipped
from trainer.algorithms.losses.types import LossInputs, StepTokens, TensorMetrics, log_ratio, ratio_metrics
from trainer.config.algorithm import LossConfig

__all__ = ["choose_between", "choose_largest", "clip_cov", "kl_cov"]


def clip_cov(inputs: LossInputs, config: LossConfig) -> tuple[torch.Tensor, TensorMetrics]:
    """Clip-Cov: the clipped loss, without the chosen tokens (arXiv:2505.22617, eq. 11).

    Of the tokens whose covariance lies between ``covariance_low`` and ``covariance_high``, ``covariance_share`` of all
    tokens of the step (at least one) are drawn at random, and give no loss and no gradient; they count in the
    denominators. The others: ``-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)``.

    2e-4, 1 and 5 are the authors'. verl does not draw tokens that the clip holds already (those have no gradient).
    """
    advantages = torch.where(inputs.mask & ~_selected(inputs), inputs.advantages, 0.0)
    loss, metrics = clipped(log_ratio(inputs), advantages, inputs.mask, *config.bounds())
    return loss, {**metrics, "loss/selected_fraction": (_selected(inputs) & inputs.mask).sum()}


def kl_cov(inputs: LossInputs, config: LossConfig) -> tuple[torch.Tensor, TensorMetrics]:
    """KL-Cov: a penalty on the chosen tokens (arXiv:2505.22617, eq. 12): ``-r A``, and + ``covariance_coef |log r|``.

    The ``covariance_share`` of all tokens of the step with the largest covariance (at least one) are chosen. (r 1.5,
    A 1): -1.5; chosen, with 1: -1.5 + 0.405465 = -1.094535.

    2e-4 and 1 are the authors'. In a single on-policy step the penalty has no gradient, and this is ``reinforce``.
    """
    log_r = log_ratio(inputs)
    chosen = _selected(inputs) & inputs.mask
    advantages = torch.where(inputs.mask, inputs.advantages, 0.0)
    loss = -log_r.exp() * advantages + config.covariance_coef * torch.where(chosen, log_r.abs(), 0.0)
    return loss, {"loss/selected_fraction": chosen.sum(), **ratio_metrics(log_r, inputs.mask)}


def choose_between(tokens: StepTokens, config: LossConfig, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Clip-Cov's choice [N].

    log-probs -1, -3 and advantages 1, -1: both covariances are 1 * 1 = 1, which bounds of 1 and 5 leave out (the bounds
    themselves do not count) and bounds of 0.5 and 5 let in; one of the two is drawn.
    """
    covariance = _covariance(tokens)
    eligible = np.flatnonzero((covariance > config.covariance_low) & (covariance < config.covariance_high))
    drawn = rng.permutation(eligible)[: _count(tokens, config)]
    return _marked(tokens, drawn)


def choose_largest(tokens: StepTokens, config: LossConfig, rng: np.random.Generator) -> NDArray[np.bool_]:
    """KL-Cov's choice [N]; ties go to the earlier token."""
    largest = np.argsort(-_covariance(tokens), kind="stable")[: _count(tokens, config)]
    return _marked(tokens, largest)


def _covariance(tokens: StepTokens) -> NDArray[np.float64]:
    if not tokens.old_logp.size:
        return np.zeros(0)
    centred = (tokens.advantages - tokens.advantages.mean()) * (tokens.old_logp - tokens.old_logp.mean())
    return np.asarray(centred, dtype=np.float64)


def _count(tokens: StepTokens, config: LossConfig) -> int:
    return max(1, int(config.covariance_share * tokens.old_logp.size)) if config.covariance_share else 0


def _marked(tokens: StepTokens, places: NDArray[np.int64]) -> NDArray[np.bool_]:
    marks = np.zeros(tokens.old_logp.size, dtype=np.bool_)
    marks[places] = True
    return marks


def _selected(inputs: LossInputs) -> torch.Tensor:
    if inputs.selected is None:
        raise ValueError("this loss needs LossInputs.selected, what LossSpec.select chose for the step")
    return inputs.selected
