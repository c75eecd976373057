"""What an algorithm remembers from step to step: the adaptive KL coefficient and running statistics of returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roll_envs.errors import CheckpointError

__all__ = ["AlgorithmState", "Moments"]


@dataclass(slots=True)
class Moments:
    """Count, mean and sum of squared deviations of all numbers seen so far (Chan et al. 1979)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, values: NDArray[np.float64]) -> None:
        """Take ``values`` [N] in: (1, 2) and then (6) give mean 3 and variance 7."""
        n = len(values)
        if n == 0:
            return
        total = self.count + n
        shift = float(values.mean()) - self.mean
        self.squares += float(values.var()) * n + shift * shift * self.count * n / total
        self.mean += shift * n / total
        self.count = total

    @property
    def variance(self) -> float:
        """Unbiased (ddof=1); 0 for fewer than two numbers."""
        return self.squares / (self.count - 1) if self.count > 1 else 0.0


@dataclass(slots=True)
class AlgorithmState:
    """Everything here is in the checkpoint, so that a resumed run goes on with the same numbers."""

    kl_coef: float
    """Coefficient of the KL in the reward; ``reward.kl_coef`` at the start."""
    returns: Moments = field(default_factory=Moments)
    """Of the returns of all scored episodes so far, for ``running`` normalisation."""

    def follow(self, kl: float, *, target: float, horizon: int, episodes: int) -> None:
        """Adapt the coefficient to the measured ``kl`` (Ziegler et al. 2019, arXiv:1909.08593, section 2.2).

        ``coef *= 1 + clip(kl / target - 1, -0.2, 0.2) * episodes / horizon``: a KL of twice the target over 1000 of
        10,000 episodes raises it by 2%. A step of more episodes than the horizon counts as the horizon, so that the
        coefficient stays above 0.
        """
        error = min(max(kl / target - 1.0, -0.2), 0.2)
        self.kl_coef *= 1.0 + error * min(episodes / horizon, 1.0)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        moments = self.returns
        return {"kl_coef": self.kl_coef, "returns": [moments.count, moments.mean, moments.squares]}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> AlgorithmState:
        """The state of :meth:`to_dict`. Raises :class:`CheckpointError` when it is none."""
        try:
            count, mean, squares = saved["returns"]
            return cls(float(saved["kl_coef"]), Moments(int(count), float(mean), float(squares)))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint does not hold the algorithm's state ({error!r})") from error
