"""Rewards before advantages are taken: clipping, scale, overlong penalty, normalisation, KL to the reference."""

from __future__ import annotations

from collections.abc import Sequence

from roll_envs.types import Metrics
from trainer.algorithm_config import RewardConfig
from trainer.algorithm_state import AlgorithmState
from trainer.estimators.types import EpisodeView, FloatArray

__all__ = ["shape_rewards"]


def shape_rewards(
    config: RewardConfig,
    episodes: Sequence[EpisodeView],
    state: AlgorithmState,
    kl: Sequence[FloatArray] | None = None,
) -> tuple[list[EpisodeView], Metrics]:
    """The episodes with the rewards that are learnt from, and statistics named ``reward/...``.

    ``kl`` is ``log pi - log reference`` of each sampled token [N] per episode, needed where ``kl_coef`` is not 0.
    ``state`` takes the step's returns (before normalisation) and, with a target, its KL in.
    """
    return list(episodes), {}
