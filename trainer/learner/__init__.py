"""Learner backends by name: what turns batches into new weights, and the critic and reference beside it.

Looking a name up loads nothing; making a learner loads what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from roll_envs.errors import UnknownNameError
from roll_envs.types import Metrics
from trainer.config import CorrectionConfig, CriticConfig, LearnerConfig, LossConfig, OptimizerConfig

if TYPE_CHECKING:
    import torch

    from trainer.data.batches import Batch, Denominators
    from trainer.model.network import LanguageModel

__all__ = ["BACKENDS", "Critic", "Learner", "Scorer", "make_learner"]


class Scorer(Protocol):
    """Scores rows under weights that may be replaced but do not learn."""

    def score(self, batches: Sequence[Batch]) -> list[torch.Tensor]: ...

    def weights(self) -> dict[str, torch.Tensor]: ...

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None: ...


class Critic(Scorer, Protocol):
    """Predicts the return of the state in which each label was sampled; ``score`` gives its values."""

    def step(self, batches: Sequence[Batch], denominators: Denominators, *, lr: float) -> Metrics: ...

    def optimizer_state(self) -> dict[str, Any]: ...

    def load_optimizer_state(self, state: dict[str, Any]) -> None: ...


class Learner(Protocol):
    """Scores rows, takes optimiser steps, gives weights; knows nothing of algorithms or environments."""

    def score(self, batches: Sequence[Batch]) -> list[torch.Tensor]: ...

    def step(
        self, batches: Sequence[Batch], denominators: Denominators, *, lr: float, on_policy: bool = False
    ) -> tuple[Metrics, list[torch.Tensor]]: ...

    def weights(self) -> dict[str, torch.Tensor]: ...

    def optimizer_state(self) -> dict[str, Any]: ...

    def load_optimizer_state(self, state: dict[str, Any]) -> None: ...

    def reference(self) -> Scorer:
        """A scorer that holds a copy of the current weights."""
        ...

    def critic(self, config: CriticConfig) -> Critic:
        """A critic that begins with a copy of the current weights and a head of its own."""
        ...


def _torch(*arguments: Any, **keywords: Any) -> Learner:
    from trainer.learner.torch import TorchLearner

    return TorchLearner(*arguments, **keywords)


BACKENDS: dict[str, Callable[..., Learner]] = {"torch": _torch}
"""Backends by the name that ``learner.backend`` uses."""


def make_learner(
    name: str,
    model: LanguageModel,
    *,
    loss: LossConfig,
    optimizer: OptimizerConfig,
    temperature: float,
    correction: CorrectionConfig | None = None,
    settings: LearnerConfig | None = None,
    threads: int = 1,
) -> Learner:
    """The learner ``name``. Raises :class:`UnknownNameError` for a name that is not registered."""
    if name not in BACKENDS:
        raise UnknownNameError("learner backend", name, BACKENDS)
    return BACKENDS[name](
        model,
        loss=loss,
        optimizer=optimizer,
        temperature=temperature,
        correction=correction,
        settings=settings,
        threads=threads,
    )
