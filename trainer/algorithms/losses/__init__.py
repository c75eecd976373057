"""Policy losses: pure functions from log-probabilities to a loss per token, and what makes a step's loss of them.

Their names stand in :data:`trainer.config.parts.LOSSES`. Looking one up loads no torch.
"""

from trainer.algorithms.losses.objective import (
    Loss,
    LossInputs,
    StepTokens,
    TokenMetrics,
    log_ratio,
    log_ratio_at,
    ratio_metrics,
)

__all__ = ["Loss", "LossInputs", "StepTokens", "TokenMetrics", "log_ratio", "log_ratio_at", "ratio_metrics"]
