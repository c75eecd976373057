"""A policy loss: simple policy optimisation, a quadratic penalty on the ratio in the place of PPO's clip."""

from __future__ import annotations

import torch
from pydantic import Field

from roll_envs.settings import Settings
from trainer.algorithms.losses import Loss, LossInputs, TokenMetrics, log_ratio


class SpoSettings(Settings):
    """Keys of the section ``loss`` that this loss reads."""

    width: float = Field(0.2, gt=0)
    """Distance of the ratio from 1 at which the gradient is 0."""


def spo(inputs: LossInputs, settings: SpoSettings) -> tuple[torch.Tensor, TokenMetrics]:
    """SPO (Xie et al. 2024, arXiv:2401.16025): ``-(r A - |A| (r - 1)^2 / (2 width))`` of each token."""
    ratio = log_ratio(inputs.logp, inputs.old_logp).exp()
    far = (ratio - 1.0).square() / (2.0 * settings.width)
    return inputs.advantages.abs() * far - ratio * inputs.advantages, {"loss/ratio": ratio.detach()}


SPO = Loss(loss=spo, settings=SpoSettings, only_advantages=True)
