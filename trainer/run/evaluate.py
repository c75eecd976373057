"""The one evaluation path, shared by training and roll-eval: fixed held-out tasks, played by the engine, once each."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from roll_envs.types import Trajectory
from trainer.model.network import load_weights, weights_of
from trainer.rollout.source import Session, held_out_tasks
from trainer.run.checkpoint import load_checkpoint
from trainer.run.folder import RunFolder
from trainer.run.results import PhaseResult, phase_result

__all__ = ["evaluate_run", "play_evaluation"]


def play_evaluation(
    session: Session,
    name: str,
    *,
    tasks: int,
    step: int,
    on_done: Callable[[Trajectory], None] | None = None,
) -> tuple[PhaseResult, Sequence[Trajectory]]:
    """Play the held-out evaluation with the engine's current weights, once per task."""
    started = time.monotonic()
    groups = session.collect(held_out_tasks(session.config.env, tasks), 1, on_done)
    episodes = [group.trajectories[0] for group in groups]
    return phase_result(name, episodes, seconds=time.monotonic() - started, step=step), episodes


def evaluate_run(
    path: str | os.PathLike[str],
    *,
    tasks: int | None = None,
    seed: int | None = None,
    env_id: str | None = None,
    temperature: float | None = None,
) -> PhaseResult:
    """Evaluate a checkpoint, or the last one of a run folder; arguments replace the run's own settings.

    ``temperature=0`` is greedy. Raises :class:`~roll_envs.errors.CheckpointError` when it cannot be loaded.
    """
    with RunFolder.open(path) as folder:
        config = folder.config
    if env_id is not None and env_id != config.env.id:
        config = config.model_copy(update={"env": config.env.model_copy(update={"id": env_id, "kwargs": {}})})
    state = load_checkpoint(path)
    # The tokenizer belongs to the environment that the model was built for.
    with (
        Session(folder.config, temperature=temperature, seed=seed) as built,
        Session(config, temperature=temperature, seed=seed, model=built.model) as session,
    ):
        load_weights(session.model.network, state.model())
        session.engine.update_weights(weights_of(session.model.network), state.version)
        count = tasks if tasks is not None else config.evaluation.tasks
        step = int(state.progress.get("steps", state.step))
        result, _ = play_evaluation(session, f"{config.env.id} at step {step}", tasks=count, step=step)
    return result
