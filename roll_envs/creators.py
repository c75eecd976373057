"""What Gymnasium's registry points to: ``roll_envs.creators:<id>`` is the creator of that environment.

A string keeps the ``EnvSpec`` serialisable and nothing of the environment's package imported until it is made, also in
the worker processes of ``gymnasium.make_vec``.
"""

from __future__ import annotations

from typing import Any

import gymnasium

from roll_envs import env_registry as registry

__all__ = ["Creator"]


class Creator:
    """Builds one environment; shows Gymnasium the class's ``metadata`` as the class itself would."""

    def __init__(self, id: str) -> None:
        self.id = id

    def __call__(self, **kwargs: Any) -> gymnasium.Env[Any, Any]:
        return registry.build(self.id, kwargs)

    @property
    def metadata(self) -> dict[str, Any]:
        return dict(registry.environment_class(self.id).metadata)

    def __repr__(self) -> str:
        return f"Creator({self.id!r})"


def __getattr__(name: str) -> Creator:
    if "/" not in name:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return Creator(name)
