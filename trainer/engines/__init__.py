"""Inference engines by name. An engine is a :class:`roll_envs.policy.Policy` that also takes new weights.

Looking a name up loads nothing; making an engine loads what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from roll_envs.errors import UnknownNameError
from roll_envs.policy import Policy
from trainer.config import EngineConfig

if TYPE_CHECKING:
    import torch

    from trainer.model.network import LanguageModel

__all__ = ["ENGINES", "Engine", "make_engine", "register_engine"]


class Engine(Policy, Protocol):
    """A policy with weights that can be replaced, paused, aborted and closed."""

    def update_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def abort(self) -> None: ...

    def health(self) -> None: ...

    def close(self) -> None: ...


def _hf(model: LanguageModel, config: EngineConfig) -> Engine:
    from trainer.engines.hf import HFEngine

    return HFEngine(model, max_running=config.max_running, max_tokens=config.max_tokens)


ENGINES: dict[str, Callable[[LanguageModel, EngineConfig], Engine]] = {"hf": _hf}
"""Engines by the name that ``engine.name`` uses."""


def register_engine(name: str, make: Callable[[LanguageModel, EngineConfig], Engine]) -> None:
    """Make an engine available as ``engine.name``. Raises ValueError when the name is taken by another one."""
    if ENGINES.setdefault(name, make) is not make:
        raise ValueError(f"engine {name!r} is already registered; choose another name")


def make_engine(model: LanguageModel, config: EngineConfig) -> Engine:
    """The engine ``config.name``. Raises :class:`UnknownNameError` for a name that is not registered."""
    if config.name not in ENGINES:
        raise UnknownNameError("engine", config.name, ENGINES)
    return ENGINES[config.name](model, config)
