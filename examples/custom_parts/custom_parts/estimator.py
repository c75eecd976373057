"""An advantage estimator: the rank of each episode's return within its group."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from roll_envs.settings import Settings
from trainer.algorithms.estimators import Estimate, Estimator
from trainer.data.table import StepTable


class RankSettings(Settings):
    """Keys of the section ``advantage`` that this estimator reads."""

    spread: float = Field(1.0, gt=0)
    """Advantage of the best episode of a group; the worst has minus that."""


def ranks(table: StepTable, settings: RankSettings) -> Estimate:
    """From ``spread`` for the best return of a group down to ``-spread`` for the worst, evenly; equal returns share the
    mean of their ranks. Returns 3, 1, 2 give 1, -1, 0."""
    group, returns = table.episodes.group, table.returns
    result = np.zeros(len(returns))
    for g in np.unique(group):
        mine = returns[group == g]
        below, above = (np.array([op(mine, r).sum() for r in mine]) for op in (np.less, np.greater))
        result[group == g] = settings.spread * (below - above) / max(len(mine) - 1, 1)
    return Estimate(result[table.episode_of_token], {"advantage/rank_spread": float(np.ptp(result))})


RANKS = Estimator(estimate=ranks, settings=RankSettings, needs_group=True)
