"""What can be done with the recorded episodes of a run, without an engine: learn from them again, judge them again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import roll_envs
from roll_envs.datasets.env import DatasetEnv
from roll_envs.errors import ConfigError
from roll_envs.tools.env import ToolEnv
from roll_envs.types import Metrics, Task, Trajectory
from roll_envs.verifiers import Score, Verdict, Verifier, as_verifier, close_verifier, judge
from trainer.config.load import load_config
from trainer.rollout.source import Session
from trainer.rollout.stream import RecordReader
from trainer.run.checkpoint import latest_before, load_checkpoint, load_policy
from trainer.run.folder import RunFolder, read_metrics
from trainer.run.loop import TRAIN
from trainer.run.saving import load_parts
from trainer.run.update import begin_phase, refresh_reference, update

# -- learning again ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayedStep:
    """A training step that was learnt again from its recorded episodes."""

    step: int
    metrics: Metrics
    """Of the update."""
    recorded: Mapping[str, Any]
    """The line of the step in metrics.jsonl; empty where there is none."""

    @property
    def differing(self) -> tuple[str, ...]:
        """Numbers of both that are not the same to the bit."""
        both = {name: value for name, value in self.metrics.items() if name in self.recorded}
        # As text, in which a number that is not finite equals itself.
        return tuple(name for name, value in both.items() if str(float(value)) != str(float(self.recorded[name])))


def replay(path: str | os.PathLike[str], step: int, overrides: Sequence[str] = ()) -> Iterator[ReplayedStep]:
    """Learn training step ``step`` of the run at ``path`` again, from the newest checkpoint before it.

    Steps between the two are learnt again first, so that without ``overrides`` of the configuration the numbers are
    those of the run. Nothing is written. Raises RollError where the checkpoint or a record is missing.
    """
    with RunFolder.open(path) as folder:
        config = load_config(folder.config_path, overrides)
    state = load_checkpoint(latest_before(folder.path, step))
    reader = RecordReader(folder.stream_path)
    recorded = {line["step"]: line for line in read_metrics(folder.path, TRAIN)}
    with Session(config, plays=False) as session:
        load_policy(state, session.model)
        parts = load_parts(begin_phase(session, warm_start=False), state)
        for number in range(int(state.progress["steps"]) + 1, step + 1):
            record = reader.find(TRAIN, number)
            # A resume may have trained for more steps than the configuration says.
            planned = None if config.steps != folder.config.steps else record.planned_steps
            config_then = config.model_copy(update={"steps": planned or config.steps})
            greedy = record.greedy_returns
            metrics = update(config_then, parts, record.kept, step=number - 1, version=record.version, greedy=greedy)
            refresh_reference(config, parts, number)
            yield ReplayedStep(step=number, metrics=metrics, recorded=recorded.get(number, {}))


# -- judging again -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Rescored:
    """The last answer of a recorded episode, and what two verifiers say of it."""

    phase: str
    step: int
    row: int
    answer: str
    before: float
    passed_before: bool
    verdict: Verdict
    """Of the other verifier."""

    @property
    def changed(self) -> bool:
        """Whether it passes now and did not, or the other way round."""
        return isinstance(self.verdict, Score) and self.verdict.passed != self.passed_before


def rescore(path: str | os.PathLike[str], verifier: Mapping[str, Any], step: int | None = None) -> Iterator[Rescored]:
    """Judge the recorded answers of a run on data sets (with or without tools) by ``verifier``, a mapping with its
    ``name`` and settings; those of one ``step``, or of all.

    Episodes that failed, or ended before an answer to the task, are left out. Raises ConfigError where an environment
    is no data set, or asks something else in a row now.
    """
    with RunFolder.open(path) as folder:
        reader = RecordReader(folder.stream_path)
    judging, envs = as_verifier(verifier), dict[str, DatasetEnv]()
    with contextlib.ExitStack() as opened:
        opened.callback(close_verifier, judging)
        for member in reader.members:
            for episode in reader.read(member).episodes if step in (None, member.step) else ():
                if episode.scored and episode.turns and "row" in episode.turns[-1].info:
                    key = f"{episode.task.env_id}|{sorted(episode.task.kwargs.items())!r}"
                    if key not in envs:
                        envs[key] = _data_set(episode.task, opened)
                    yield _rescored(member.phase, member.step, episode, judging, envs[key])


def _data_set(task: Task, opened: contextlib.ExitStack) -> DatasetEnv:
    """The environment of a recorded task, for its rows and the form of its answers."""
    made = roll_envs.make(task.env_id, **task.kwargs)
    opened.callback(made.close)
    inner: Any = made.unwrapped
    while isinstance(inner, ToolEnv):
        inner = inner.env.unwrapped
    if not isinstance(inner, DatasetEnv):
        raise ConfigError(f"{task.env_id} is no data set: its episodes are not judged by a verifier")
    return inner


def _rescored(phase: str, step: int, episode: Trajectory, verifier: Verifier, env: DatasetEnv) -> Rescored:
    last = episode.turns[-1]
    row, answer = int(last.info["row"]), env.action_format.read(last.text)
    task = env.tasks[row] if row < len(env.tasks) else None
    if task is None or task.prompt != episode.turns[0].prompt_observation:
        raise ConfigError(f"row {row} of {episode.task.env_id} is not what it was at {phase} step {step}")
    verdict: Verdict = Score(value=0.0, passed=False, detail="it could not be read")
    if answer is not None:
        verdict = judge(verifier, answer, task.reference, {**task.row, "prompt": task.prompt})
    return Rescored(
        phase=phase,
        step=step,
        row=row,
        answer=last.text,
        before=float(last.info["reward_parts"]["score"]),
        passed_before=bool(last.info["success"]),
        verdict=verdict,
    )
