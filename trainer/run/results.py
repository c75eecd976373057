"""Results of a run as numbers: one phase of evaluation, and the summary of all phases. No torch, no files."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

from roll_envs.types import Trajectory
from trainer.data.metrics import wilson_interval

__all__ = ["PhaseResult", "phase_result", "summary", "versions"]

_PACKAGES = ("torch", "transformers", "gymnasium", "roll-envs", "numpy")


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseResult:
    """The held-out evaluation at one point of a run."""

    name: str
    tasks: int
    """Episodes that count; failures of ours are in ``failed`` and in no mean."""
    success: float
    interval_low: float
    interval_high: float
    """95% Wilson score interval of ``success``."""
    turns: float
    """Mean turns per episode."""
    valid_action_rate: float
    """Share of turns whose answer could be parsed and was allowed."""
    mean_return: float
    seconds: float
    failed: int = 0
    step: int = 0
    """Training steps done when it was measured."""


def phase_result(name: str, trajectories: Iterable[Trajectory], *, seconds: float, step: int = 0) -> PhaseResult:
    """Measure evaluated episodes; those that failed or were cancelled are counted in ``failed`` and left out."""
    everything = list(trajectories)
    scored = [t for t in everything if t.scored]
    turns = [turn for t in scored for turn in t.turns]
    successes = sum(t.success for t in scored)
    low, high = wilson_interval(successes, len(scored))
    return PhaseResult(
        name=name,
        tasks=len(scored),
        success=_mean(successes, len(scored)),
        interval_low=low,
        interval_high=high,
        turns=_mean(len(turns), len(scored)),
        valid_action_rate=_mean(sum(bool(t.info.get("action_is_valid", False)) for t in turns), len(turns)),
        mean_return=_mean(sum(t.total_reward for t in scored), len(scored)),
        seconds=seconds,
        failed=len(everything) - len(scored),
        step=step,
    )


def versions() -> dict[str, str]:
    """Versions of Python and the packages that decide a result; a package that is missing is ``not installed``."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def summary(
    *,
    name: str,
    env_id: str,
    seed: int,
    phases: Sequence[PhaseResult],
    total_seconds: float,
    phase_seconds: Mapping[str, float] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The content of summary.json. ``phase_seconds`` are the training phases; ``extra`` adds plain data at the top."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "format": 1,
        "name": name,
        "env": env_id,
        "seed": seed,
        "phases": [asdict(phase) for phase in phases],
        "training_seconds": dict(phase_seconds or {}),
        "total_seconds": total_seconds,
        "versions": versions(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": cores,
        **(extra or {}),
    }


def _mean(total: float, count: int) -> float:
    return total / count if count else 0.0
