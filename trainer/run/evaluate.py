"""Evaluation, shared by training and roll-eval: fixed held-out tasks, played once each; and a run's results."""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from roll_envs.errors import RollError
from roll_envs.types import Trajectory
from trainer.config import EnvConfig, PlacementConfig, RunConfig
from trainer.data.metrics import wilson_interval
from trainer.model.forward import weights_of
from trainer.rollout.source import Session
from trainer.run.checkpoint import load_checkpoint, load_policy, versions
from trainer.run.folder import RunFolder
from trainer.run.preflight import check_evaluation


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseResult:
    """The held-out evaluation at one point of a run."""

    name: str
    tasks: int
    """Episodes that count; infrastructure failures are in ``failed`` and in no mean."""
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
    environments: tuple[PhaseResult, ...] = ()
    """The same of each environment of a mix, by its name."""

    def __post_init__(self) -> None:
        # JSON makes mappings of them.
        parts = (e if isinstance(e, PhaseResult) else PhaseResult(**e) for e in self.environments)
        object.__setattr__(self, "environments", tuple(parts))


def phase_result(name: str, trajectories: Iterable[Trajectory], *, seconds: float, step: int = 0) -> PhaseResult:
    """Measure evaluated episodes; those that failed or were cancelled are counted in ``failed`` and left out."""
    everything = list(trajectories)
    scored = [t for t in everything if t.scored]
    turns = [turn for t in scored for turn in t.turns]
    # An infrastructure failure is never a reward of 0: it is in no mean below.
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


def play_evaluation(
    session: Session, name: str, *, tasks: int | None, step: int, on_done: Callable[[Trajectory], None] | None = None
) -> tuple[PhaseResult, Sequence[Trajectory]]:
    """Play the held-out evaluation with the engine's current weights, once per task; ``tasks`` of each environment
    stand for as many as are configured."""
    started = time.monotonic()
    groups = session.collect(session.evaluation_tasks(tasks), 1, on_done)
    seconds, episodes = time.monotonic() - started, [group.trajectories[0] for group in groups]
    found = session.mix.by_environment(groups) if session.config.envs else {}
    # The episodes of all environments are played side by side, in the same seconds.
    parts = [
        phase_result(env, (group.trajectories[0] for group in mine), seconds=seconds, step=step)
        for env, mine in found.items()
    ]
    return replace(phase_result(name, episodes, seconds=seconds, step=step), environments=tuple(parts)), episodes


def evaluation_metrics(result: PhaseResult) -> dict[str, float]:
    """The numbers of an evaluation by name, those of the environments of a mix as ``env/NAME/...``; where no episode
    counts, how many failed and nothing that would be measured of those that count."""
    numbers = {name: value for name, value in asdict(result).items() if isinstance(value, int | float)}
    del numbers["step"]
    if not result.tasks:
        numbers = {name: numbers[name] for name in ("tasks", "seconds", "failed")}
    for part in result.environments:
        own = evaluation_metrics(part)
        numbers |= {f"env/{part.name}/{name}": value for name, value in own.items() if name != "seconds"}
    return numbers


def evaluate_run(
    path: str | os.PathLike[str],
    *,
    tasks: int | None = None,
    seed: int | None = None,
    env_id: str | None = None,
    temperature: float | None = None,
) -> PhaseResult:
    """Evaluate a checkpoint, or the last one of a run folder; arguments replace the run's own settings.

    ``temperature=0`` is greedy. Raises :class:`~roll_envs.errors.CheckpointError` when it cannot be loaded, and
    :class:`~roll_envs.errors.RollError` when every episode failed.
    """
    with RunFolder.open(path) as folder:
        config = _without_learner(_with_env(folder.config, env_id))
    check_evaluation(config)
    state = load_checkpoint(path)
    # The tokenizer belongs to the environment that the model was built for.
    with (
        Session(folder.config, temperature=temperature, seed=seed, plays=False) as built,
        Session(config, temperature=temperature, seed=seed, model=built.model) as session,
    ):
        load_policy(state, session.model)
        session.engine.update_weights(weights_of(session.model.network), state.version)
        step = int(state.progress["steps"])
        return _counting(
            *play_evaluation(session, f"{config.environment_words} at step {step}", tasks=tasks, step=step)
        )


def _without_learner(config: RunConfig) -> RunConfig:
    """No learner takes part, so that the machine need not have its GPUs, and no replica sleeps on one of them."""
    names = ("rollout", "environments", "judges", "sandboxes")
    kept = PlacementConfig().model_copy(update={name: getattr(config.placement, name) for name in names})
    on_cpu = config.learner.model_copy(update={"device": "cpu"})
    return config.model_copy(update={"cluster": "local", "placement": kept, "learner": on_cpu})


def evaluate_config(
    config: RunConfig,
    *,
    tasks: int | None = None,
    seed: int | None = None,
    env_id: str | None = None,
    temperature: float | None = None,
) -> PhaseResult:
    """Evaluate a configuration's engine as it starts, without a run: a model behind an API, or the one that training
    would begin with. Arguments as in :func:`evaluate_run`.

    Raises :class:`~roll_envs.errors.RollError` when every episode failed.
    """
    config = _without_learner(_with_env(config, env_id))
    check_evaluation(config)
    with Session(config, temperature=temperature, seed=seed) as session:
        return _counting(*play_evaluation(session, f"{config.environment_words} without training", tasks=tasks, step=0))


def _counting(result: PhaseResult, episodes: Sequence[Trajectory]) -> PhaseResult:
    if not result.tasks:
        reasons = Counter(episode.outcome.reason for episode in episodes)
        listed = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(3))
        raise RollError(f"no episode of the evaluation counts: {listed}")
    return result


def _with_env(config: RunConfig, env_id: str | None) -> RunConfig:
    if env_id is None or (config.env is not None and env_id == config.env.id):
        return config
    # The arguments of one environment mean nothing to another.
    return config.model_copy(update={"env": EnvConfig.model_validate({"id": env_id}), "envs": ()})


def summary(
    config: RunConfig, phases: Sequence[PhaseResult], seconds: Mapping[str, float], **more: Any
) -> dict[str, Any]:
    """The content of summary.json: evaluations, ``seconds`` of each phase of the run, and ``more`` plain data."""
    return {
        "format": 1,
        "name": config.name,
        "env": config.environment_words,
        "seed": config.seed,
        "phases": [_written(phase) for phase in phases],
        "training_seconds": dict(seconds),
        "total_seconds": sum(seconds.values()),
        "versions": versions(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        **more,
    }


def _written(phase: PhaseResult) -> dict[str, Any]:
    """As plain data; what is measured is ``None`` where no episode counts."""
    known = evaluation_metrics(phase)
    data = {name: known.get(name) if isinstance(value, float) else value for name, value in asdict(phase).items()}
    return data | {"environments": tuple(map(_written, phase.environments))}


def _mean(total: float, count: int) -> float:
    return total / count if count else 0.0
