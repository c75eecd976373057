"""What a run records of its episodes, step by step. A disk that is full costs records, never the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from roll_envs.errors import RollError
from roll_envs.types import Metrics, Trajectory
from trainer.data.table import FloatArray
from trainer.rollout.stream import StepRecord
from trainer.run.folder import RunFolder


class Recorder:
    """Writes the episodes of steps and evaluations into the folder of a run, as the key ``records`` asks for it.

    ``say`` is told of the first write that failed, and of the first attempts at episodes; all are counted.
    """

    def __init__(self, folder: RunFolder, say: Callable[[str], None]) -> None:
        self._folder, self._say = folder, say
        self._failed_writes, self._told = 0, False

    def write(self, record: StepRecord) -> Metrics:
        """Record a step; what to note of it in the step's metrics."""
        started = time.monotonic()
        if self._folder.config.records in ("all", record.phase):
            self._guarded(lambda: self._folder.record(record))
        noted = {"records/failed_writes": float(self._failed_writes)} if self._failed_writes else {}
        return {"time/records_s": time.monotonic() - started, **noted}

    def write_learnt(self, columns: Mapping[str, FloatArray], *, step: int, phase: str) -> None:
        """Keep what the learner knew of each token of a step, where the episodes of its phase are recorded."""
        if columns and self._folder.config.records in ("all", phase):
            self._guarded(lambda: self._folder.record_learnt(columns, step=step, phase=phase))

    def write_samples(self, episodes: Sequence[Trajectory], *, step: int) -> None:
        """Keep episodes of the evaluation at ``step`` for people to read."""
        self._guarded(lambda: self._folder.save_episodes(f"evaluation-step-{step:06d}", episodes))

    def write_failures(self, episodes: Iterable[Trajectory], *, step: int, phase: str) -> None:
        """List the failed attempts at ``episodes``, also at those that went well later, whatever ``records`` says."""
        attempts = (attempt for episode in episodes for attempt in (*episode.failed_attempts, episode))
        failed = [replace(each, failed_attempts=()) for each in attempts if each.outcome.kind == "failed"]
        if failed and not self._told:
            self._told = True
            self._say(
                f"{phase} step {step}: attempts at episodes failed ({len(failed)}), the first: "
                f"{failed[0].outcome.reason}. A failure is never a reward; these and all that follow are listed in "
                f"{self._folder.failed_path}."
            )
        self._guarded(lambda: self._folder.record_failures(failed, step=step, phase=phase))

    def _guarded(self, write: Callable[[], object]) -> None:
        try:
            write()
        except RollError as error:
            if not self._failed_writes:
                self._say(f"Not recorded: {error}. The run goes on; records/failed_writes counts such writes.")
            self._failed_writes += 1
