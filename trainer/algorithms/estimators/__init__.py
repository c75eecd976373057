"""Advantage estimators: pure functions from the table of a step to one number per sampled token.

Their names stand in :data:`trainer.config.parts.ESTIMATORS`. Looking one up loads no torch.
"""

from trainer.algorithms.estimators.types import Estimate, Estimator, estimate_advantages, normalized, whitened

__all__ = ["Estimate", "Estimator", "estimate_advantages", "normalized", "whitened"]
