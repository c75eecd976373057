"""The trainer: drives environments of the hub with an inference engine and learns from the episodes.

from trainer import train
summary = train("configs/frozenlake_tiny.yaml", steps=20)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.config import RunConfig

__all__ = ["train"]


def train(config: RunConfig | str | os.PathLike[str], /, **overrides: Any) -> dict[str, Any]:
    """Train as a configuration, or the YAML file at a path, says; returns the run's summary.

    Keywords lay values over it: ``steps=20``, or a section of keys, ``optimizer={"lr": 1e-3}``. The summary is what
    ``summary.json`` in the run's folder holds, and that folder as ``folder``.

    Raises :class:`~roll_envs.errors.ConfigError` with all problems of the configuration, one a line, and other
    :class:`~roll_envs.errors.RollError` when the run cannot go on; ``roll-train resume`` goes on with it.
    """
    from trainer.config.load import load_config, resolve
    from trainer.run.folder import RunFolder
    from trainer.run.loop import train as run
    from trainer.run.preflight import preflight
    from trainer.run.report import Report

    resolved = resolve(load_config(config) if isinstance(config, str | os.PathLike) else config, overrides)
    report, ready = Report(), preflight(resolved)
    report.print_memory(ready.plan, ready.warnings)
    with RunFolder.create(ready.config) as folder:
        return {**run(ready.config, folder, report), "folder": str(folder.path)}
