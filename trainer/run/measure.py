"""Measure a model, or a player without one, on an environment's held-out tasks, and go on after a stop."""

from __future__ import annotations

import contextlib
import hashlib
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import roll_envs
from roll_envs import env_registry as registry
from roll_envs.env import TextEnv
from roll_envs.errors import ConfigError, RollError
from roll_envs.managers import EpisodeDriver, EpisodeSettings, GroupStream, load_context
from roll_envs.policy import CharRenderer
from roll_envs.types import Completion, Group, SamplingParams, Task, Trajectory
from trainer.cluster import episode_limits
from trainer.config import RunConfig
from trainer.config.load import dump_config, load_config
from trainer.data.metrics import wilson_interval
from trainer.rollout.source import Session, held_out_count, held_out_tasks, next_answer
from trainer.rollout.stream import RecordReader, StepRecord
from trainer.run.evaluate import PhaseResult, evaluation_metrics, phase_result
from trainer.run.folder import RunFolder, disk_errors, read_metrics, write_atomic

__all__ = ["Measured", "measure", "pass_at"]

_LONGEST = 1 << 16
"""Characters of an answer of a player without a model."""
_WEIGHTS = "model.sha256"
_FLAGS = {"name": "--model or --temperature", "rollout.group_size": "--samples"}
"""What sets a key of the configuration, where the key does not say so."""
_SAVE_S = 10.0
"""How often what has ended is recorded."""
_EVALUATION = "evaluation"


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What playing the tasks showed. Episodes that failed for reasons of ours are in ``result.failed`` alone."""

    folder: str
    samples: int
    """Episodes of each task."""
    result: PhaseResult
    """Of all episodes; the interval is of the share of tasks where there is one sample of each, else of its mean over
    the tasks, which vary (normal approximation)."""
    pass_at: dict[int, float]
    """k -> share of tasks that at least one of k episodes solves, estimated without bias (Chen et al. 2021, equation
    1), over the tasks of which no episode failed."""


def measure(config: RunConfig, path: Path, *, player: str | None = None, temperature: float | None = None) -> Measured:
    """Play the held-out tasks of ``config``, ``rollout.group_size`` episodes of each, and record them in the folder
    ``path``. Those that are recorded there are not played again, but for tasks of which an episode failed.

    ``player`` plays without a model: ``"oracle"`` gives the environment's own answers, ``"random"`` legal ones.
    ``temperature=0`` is greedy; None is that of the configuration.

    Raises :class:`ConfigError` where the folder is of another configuration, :class:`RollError` where nothing counts.
    """
    started, samples = time.monotonic(), config.rollout.group_size
    weights = _weights(config)
    _check_goes_on(path, config, weights)
    opened = Session(config, temperature=temperature) if player is None else _Player(config, player)
    with opened as session, _opened(path, config, weights) as folder:
        groups = _recorded(folder, samples)
        earlier = sum(float(line.get("seconds", 0.0)) for line in read_metrics(folder.path, "progress"))
        wanted = session.evaluation_tasks()
        missing = [task for task in wanted if _key(task) not in groups]
        try:
            _play(session, folder, missing, samples, groups)
        finally:
            seconds = time.monotonic() - started
            if missing:
                folder.log({"played": len(groups), "seconds": seconds}, step=_next_step(folder), phase="progress")
        found = [groups[_key(task)] for task in wanted if _key(task) in groups]
        measured = _measured(path, found, samples, earlier + seconds)
        if not measured.result.tasks:
            reasons = sorted({t.outcome.reason for group in found for t in group.trajectories})
            raise RollError(f"no episode counts: {'; '.join(reasons[:3])}; the same command tries again")
        if missing:
            folder.log(evaluation_metrics(measured.result), step=0, phase=_EVALUATION)
        folder.save_summary(asdict(measured))
    return measured


class _Player(contextlib.AbstractContextManager["_Player"]):
    """Plays as a session does, without a model: the answer comes from the environment itself."""

    def __init__(self, config: RunConfig, name: str) -> None:
        assert config.env is not None
        self._env = config.env
        env = registry.make_within(config.rollout.longest_make_s, self._env.id, self._env.kwargs)
        registry.discard(env)
        if not isinstance(env, TextEnv):
            raise ConfigError(f"{self._env.id} is no roll_envs.TextEnv and knows no answers; give a model")
        self._count = held_out_count(env, config.evaluation.tasks)
        if name == "oracle" and type(env).oracle is TextEnv.oracle:
            raise ConfigError(f"{self._env.id} has no oracle; --model random plays it without a model")
        renderer = CharRenderer()
        self._settings = EpisodeSettings(
            context=load_context("everything"),
            renderer=renderer,
            sampling=SamplingParams(temperature=1.0, max_new_tokens=_LONGEST, stop_ids=renderer.stop_ids),
            max_tokens=sys.maxsize,
            seed=config.seed,
            answerer=f"the player {name!r}",
        )
        self._driver = EpisodeDriver(
            lambda task: roll_envs.make(task.env_id, **task.kwargs), episode_limits(config.rollout)
        )

        oracle_share = 1.0 if name == "oracle" else 0.0

        def respond(env: Any, prompt_ids: tuple[int, ...], sampling: SamplingParams) -> Completion:
            ids = (*renderer.encode(next_answer(env, sampling.seed, oracle_share)[0]), renderer.STOP)
            return Completion(ids=ids, logprobs=(0.0,) * len(ids), finish="stop", weight_version=0)

        self._respond = respond

    def evaluation_tasks(self) -> list[Task]:
        return held_out_tasks(self._env, self._count)

    def start(self, tasks: Sequence[Task], group_size: int) -> GroupStream:
        return self._driver.start(tasks, group_size, lambda task: self._settings, self._respond)

    def __exit__(self, *_: object) -> None:
        self._driver.close()


def _check_goes_on(path: Path, config: RunConfig, weights: str) -> None:
    """Raise :class:`ConfigError` where ``path`` holds something that this measurement is not to be added to. One of
    which no episode was recorded (its server was not there) holds nothing."""
    folder = RunFolder(path, config)
    if not (path / _WEIGHTS).is_file():
        if path.exists() and any(path.iterdir()):
            raise ConfigError(f"{path} holds something else; give another --output")
    elif RecordReader(folder.stream_path).members:
        there = load_config(folder.config_path)
        # More tasks are the same measurement, gone on with; how many are played at once changes nothing.
        same = there.model_copy(update={"evaluation": config.evaluation, "rollout": config.rollout})
        unlike = [key for key in type(config).model_fields if getattr(same, key) != getattr(config, key)]
        unlike += ["rollout.group_size"] if there.rollout.group_size != config.rollout.group_size else []
        if unlike:
            words = ", ".join(_FLAGS.get(key, key) for key in unlike)
            raise ConfigError(f"{path} holds a measurement with another {words}; give another --output")
        if weights != (path / _WEIGHTS).read_text():
            raise ConfigError(
                f"{path} holds a measurement of other weights of {config.model.path}; give another --output"
            )


def _opened(path: Path, config: RunConfig, weights: str) -> RunFolder:
    """The folder of this measurement, made where it is not there."""
    folder = RunFolder(path, config)
    with disk_errors(path):
        for part in (path, folder.tensorboard_path, folder.episodes_path, folder.checkpoints_path):
            part.mkdir(parents=True, exist_ok=True)
    folder.rewind({})  # what a killed process left half-written
    write_atomic(path / _WEIGHTS, weights)
    write_atomic(folder.config_path, dump_config(config))
    return folder


def _weights(config: RunConfig) -> str:
    """The sha256 of a local model's files: the same path may hold other weights when a measurement goes on. Empty for a
    model that is elsewhere."""
    path, digest = Path(config.model.path or ""), hashlib.sha256()
    if config.model.path is None or not path.is_dir():
        return ""
    for file in sorted(path.iterdir()):
        if file.is_file():
            digest.update(file.name.encode() + b"\0")
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()


def _recorded(folder: RunFolder, samples: int) -> dict[tuple[Any, ...], Group]:
    """The last recorded group of each task, where all of its episodes count."""
    found: dict[tuple[Any, ...], Group] = {}
    reader = RecordReader(folder.stream_path)
    for member in reader.members:
        for group in reader.read(member).groups:
            if len(group.trajectories) == samples and all(episode.scored for episode in group.trajectories):
                found[_key(group.task)] = group
    return found


def _next_step(folder: RunFolder) -> int:
    return len(RecordReader(folder.stream_path).members)


def _key(task: Task) -> tuple[Any, ...]:
    return task.env_id, task.split, task.index, task.seed


def _play(
    session: Session | _Player,
    folder: RunFolder,
    tasks: Sequence[Task],
    samples: int,
    groups: dict[tuple[Any, ...], Group],
) -> None:
    """Play ``tasks``, put each group into ``groups`` as it ends, and record them every few seconds and at the end."""
    waiting: list[Group] = []
    saved = time.monotonic()

    def save() -> None:
        if waiting:
            folder.record(StepRecord(phase=_EVALUATION, step=_next_step(folder), version=0, groups=tuple(waiting)))
            waiting.clear()

    try:
        for group in session.start(tasks, samples) if tasks else ():
            groups[_key(group.task)] = group
            waiting.append(group)
            if time.monotonic() - saved > _SAVE_S:
                save()
                saved = time.monotonic()
                print(f"{len(groups)} tasks", file=sys.stderr, flush=True)
    finally:
        save()


def _measured(path: Path, groups: Sequence[Group], samples: int, seconds: float) -> Measured:
    episodes: list[Trajectory] = [episode for group in groups for episode in group.trajectories]
    result = phase_result("measured", episodes, seconds=seconds)
    whole = [[e.success for e in group.trajectories] for group in groups if all(e.scored for e in group.trajectories)]
    shares = [sum(each) / len(each) for each in whole]
    if samples > 1 and shares:
        low, high = _interval(shares)
        result = replace(result, interval_low=low, interval_high=high)
    ks = [k for k in (1, 2, 4, 8, 16, 32, 64, 128) if k < samples] + [samples]
    passed = {k: sum(pass_at(k, len(each), sum(each)) for each in whole) / len(whole) for k in ks} if whole else {}
    return Measured(folder=str(path), samples=samples, result=result, pass_at=passed)


def _interval(shares: Sequence[float]) -> tuple[float, float]:
    """95% of the mean of the tasks' shares; episodes of one task are no independent draws."""
    n, mean = len(shares), math.fsum(shares) / len(shares)
    if len(set(shares)) == 1 and mean in (0.0, 1.0):
        return wilson_interval(round(mean * n), n)
    half = 1.96 * math.sqrt(math.fsum((share - mean) ** 2 for share in shares) / max(1, n - 1) / n)
    return max(0.0, mean - half), min(1.0, mean + half)


def pass_at(k: int, n: int, solved: int) -> float:
    """The chance that ``k`` of ``n`` episodes hold one of the ``solved``: 1 - C(n - solved, k) / C(n, k).

    ``pass_at(2, 4, 1)`` is 0.5.
    """
    return 1.0 - math.comb(n - solved, k) / math.comb(n, k)
