"""The one training loop: warm start, evaluation before, reinforcement learning, evaluation after; and its exact resume.

All randomness follows from the configuration's seed and the identity of the step, task, episode and turn, so the state
of a run is its weights, its optimiser and two counters. What is in flight when a run is killed is simply played again.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from roll_envs.errors import CheckpointError, ConfigError, RollError
from roll_envs.types import Group, Metrics, Trajectory
from roll_envs.verifiers.workers import pool_metrics
from trainer.cluster.crew import RankError
from trainer.cluster.learner_ranks import LearnerRanks
from trainer.cluster.ray_cluster import head_watched
from trainer.config import RunConfig
from trainer.data.metrics import rollout_metrics
from trainer.data.table import FloatArray
from trainer.engines import check_can_train
from trainer.model.forward import load_weights
from trainer.model.network import save_model
from trainer.rollout.scheduler import Collected, GroupSource, check_mode
from trainer.rollout.source import Session
from trainer.rollout.stream import StepRecord, episodes_of
from trainer.run.advice import Adviser
from trainer.run.checkpoint import (
    CheckpointState,
    latest_good,
    load_checkpoint,
    load_newest,
    load_policy,
    set_aside_after,
    vocabulary_of,
)
from trainer.run.counters import Counters
from trainer.run.evaluate import evaluation_metrics, play_evaluation, summary
from trainer.run.folder import RunFolder, read_metrics
from trainer.run.interrupts import Interrupts
from trainer.run.plot import plot_run
from trainer.run.recorder import Recorder
from trainer.run.report import Report
from trainer.run.saving import Saver, load_parts, noting
from trainer.run.update import StepParts, begin_phase, refresh_reference, update, warm_start_step

WARM_START, TRAIN, EVALUATION = "warm_start", "train", "evaluation"
SAMPLE_EPISODES = 16


def train(config: RunConfig, folder: RunFolder, report: Report) -> dict[str, Any]:
    """Run ``config`` into the new ``folder``; returns the summary.

    Ctrl-C saves a checkpoint at the last whole step and raises ``KeyboardInterrupt``.
    """
    with (
        folder.locked(report.say),
        Session(config) as session,
        LearnerRanks(config) as ranks,
        Interrupts() as interrupts,
    ):
        return _finished(lambda: _Run(session, folder, report, interrupts, Counters(), ranks), folder, report, ranks)


def resume(
    folder: RunFolder, report: Report, steps: int | None = None, checkpoint: Path | None = None
) -> dict[str, Any]:
    """Go on with the run in ``folder`` from its newest checkpoint, or from ``checkpoint``; ``steps`` trains further.

    A newest one that is damaged is set aside, and the newest whole one before it takes its place. Raises
    :class:`CheckpointError` when none is whole or ``checkpoint`` cannot be loaded, and :class:`RollError` when another
    process trains in the folder.
    """
    with folder.locked(report.say):
        return _resume(folder, report, steps, checkpoint)


def _resume(folder: RunFolder, report: Report, steps: int | None, checkpoint: Path | None) -> dict[str, Any]:
    state, damaged = load_newest(folder.path) if checkpoint is None else (load_checkpoint(checkpoint), {})
    counters = Counters.load(state, folder.path)
    if steps is not None and counters.steps > steps:
        raise ConfigError(f"--steps {steps}: the run has done {counters.steps} steps already")
    warm_steps = folder.config.warm_start.steps
    if counters.steps and counters.warm_steps < warm_steps:
        raise ConfigError(
            f"warm_start.steps {warm_steps}: the run was trained for {counters.steps} steps after a warm start of "
            f"{counters.warm_steps}; set it back to that, or start a new run"
        )
    # A run that was trained on beyond its configuration is finished where it is, not behind itself.
    target = max(folder.config.steps, counters.steps) if steps is None else steps
    config = folder.config.model_copy(update={"steps": target})
    with Session(config) as session, LearnerRanks(config) as ranks, Interrupts() as interrupts:
        try:
            load_policy(state, session.model)
        except CheckpointError as error:
            raise CheckpointError(
                f"{error}; the sections model and env of {folder.path / 'config.yaml'} must be what the run began with"
            ) from error

        def begin() -> _Run:
            run = _Run(session, folder, report, interrupts, counters, ranks)
            run.load(state)
            # Only now, when nothing can refuse the checkpoint any more, is the folder changed.
            moved = [] if checkpoint is None else set_aside_after(checkpoint)
            if moved:
                report.say(f"Going on from {checkpoint}. Set aside: {', '.join(map(str, moved))}")
            run.set_aside(damaged, state)
            run.rewind_folder()
            return run

        return _finished(begin, folder, report, ranks)


def _finished(begin: Callable[[], _Run], folder: RunFolder, report: Report, ranks: LearnerRanks) -> dict[str, Any]:
    """The summary of the run that ``begin`` gives, gone through to its end. Where ranks of its learner are lost, also
    while it begins, it goes on from the last checkpoint with new ones, as often as ``placement.learner.restarts``
    says."""
    left = folder.config.placement.learner.restarts
    while True:
        try:
            run = begin()
            begin = run.again
            return run.go()
        except RankError as error:
            stuck = _nothing_to_go_on_from(folder.path)
            if stuck or not left:
                again = f"it goes on from the last checkpoint: roll-train resume {shlex.quote(str(folder.path))}"
                error.add_note(stuck or again)
                raise
            left -= 1
            report.say(
                f"{error}\nStarting the ranks again from the last checkpoint; this may happen {left} times more."
            )
            ranks.end()


def _nothing_to_go_on_from(folder: Path) -> str:
    """Why the run in ``folder`` has no checkpoint to go on from; nothing where it has one."""
    if latest_good(folder) is not None:
        return ""
    try:
        load_newest(folder)
    except CheckpointError as error:
        return str(error)
    return ""


class _Run:
    """One process's part of a run."""

    def __init__(
        self,
        session: Session,
        folder: RunFolder,
        report: Report,
        interrupts: Interrupts,
        counters: Counters,
        ranks: LearnerRanks,
    ) -> None:
        self.session, self.folder, self.report, self.ranks = session, folder, report, ranks
        self.config, self.interrupts, self.counters = session.config, interrupts, counters
        self.source = GroupSource(session, counters.ledger, self._update_engine)
        self.recorder = Recorder(folder, report.say)
        self.saver = Saver(folder.checkpoints_path, session.config.checkpoint, ranks)
        self.parts = self._begin_phase()
        self._vocabulary, self._engine_version = vocabulary_of(session.model.tokenizer), -1
        self._saved_at: tuple[int, int, int] | None = None
        self.damaged = 0
        """Checkpoints that were, in place of which an earlier one was loaded."""
        self._before: Sequence[Trajectory] = ()
        self._adviser = Adviser(session.config)

    def go(self) -> dict[str, Any]:
        """Everything that is still to do."""
        config, counters = self.config, self.counters
        check_can_train(config.engine.name, self.session.engine)
        check_mode(self.session)
        self.report.print_plan(config, folder=str(self.folder.path), parameters=self.session.model.parameters)
        if self.session.rewrites_history and config.context.kind == "everything":
            self.report.say(
                "This model's chat template rewrites earlier turns (it drops thoughts, say), so that turns begin "
                "sequences of their own; rollout/sequences_per_episode and rollout/history_rewrites count them."
            )
        held_out = len(self.session.evaluation_tasks())
        if held_out < config.evaluation_episodes:
            self.report.say(
                f"An evaluation plays {held_out} held-out tasks: those of a fixed list are not played twice."
            )
        with self.saver, head_watched(self.interrupts.interrupt):
            try:
                self._save()  # from here on the run can be resumed
                self._warm_start()
                if counters.steps == 0:
                    self._before = self._evaluate("after warm start" if config.warm_start.steps else "before training")
                    self._save()
                self._train()
                last = self._evaluate("after training")
                self._save()
            except KeyboardInterrupt:
                # After a second Ctrl-C in the middle of a step the last checkpoint stands.
                if not self.interrupts.interrupted_midway:
                    self._save()
                raise
        return self._finish(last)

    def again(self) -> _Run:
        """This run from its last checkpoint, with new ranks; engine and environments stay as they are."""
        self.source.cancel()
        state, damaged = load_newest(self.folder.path)
        load_weights(self.session.model.network, state.model())
        counters = Counters.load(state, self.folder.path)
        run = _Run(self.session, self.folder, self.report, self.interrupts, counters, self.ranks)
        run.load(state)
        run.damaged = self.damaged
        run.set_aside(damaged, state)
        run.rewind_folder()
        run._before = self._before
        return run

    # -- phases ------------------------------------------------------------------------------------------------------

    def _warm_start(self) -> None:
        counters, total = self.counters, self.config.warm_start.steps
        if counters.warm_steps >= total:
            return
        with self._learning(), self.report.phase("warm start", total, counters.warm_steps) as progress:
            while counters.warm_steps < total:
                started = time.monotonic()
                # A demonstration takes no model, so that playing them here holds an interrupt up for a moment only.
                with self.interrupts.whole():
                    metrics = warm_start_step(self.session, self.parts.learner, counters.warm_steps)
                    counters.warm_steps += 1
                    counters.version += 1
                    if counters.warm_steps == total:
                        self._take_weights()
                        self.parts = self._begin_phase()
                    counters.spend(WARM_START, time.monotonic() - started)
                    self.folder.log(metrics, step=counters.warm_steps, phase=WARM_START)
                progress.advance(loss=metrics["loss/total"])

    def _train(self) -> None:
        config, counters = self.config, self.counters
        if counters.steps >= config.steps:
            return
        recent: list[float] = []
        with self.report.phase("training", config.steps, counters.steps) as progress:
            while counters.steps < config.steps:
                # What is due is read from the state, so that a run stopped before an evaluation plays it later.
                if self._due(config.evaluation.every):
                    self._evaluate(f"step {counters.steps}")
                    if config.checkpoint.keep_best:
                        self._save()
                if self._due(config.checkpoint.every):
                    self._save()
                found, metrics = self._collect()
                # Weights, counters and the record change together, or none of them does.
                with self.interrupts.whole():
                    record = StepRecord(
                        phase=TRAIN,
                        step=counters.steps + 1,
                        version=counters.version,
                        groups=found.played,
                        kept=found.kept,
                        greedy=found.greedy,
                        cancelled=found.cancelled,
                        planned_steps=config.steps,
                    )
                    # Before the update, which can then be looked into where it fails.
                    metrics = {**metrics, **self.recorder.write(record)}
                    metrics = self._learn(found, metrics)
                    self.folder.log(metrics, step=counters.steps, phase=TRAIN)
                for advice in self._adviser.after(metrics):
                    self.report.say(advice)
                # A step whose episodes all failed has no rate.
                if "rollout/success_rate" in metrics:
                    recent = [*recent[-9:], metrics["rollout/success_rate"]]
                progress.advance(success=sum(recent) / max(1, len(recent)), seconds=metrics["time/step_s"])
        self._save()

    def _due(self, every: int) -> bool:
        return bool(every and self.counters.steps and self.counters.steps % every == 0)

    def _collect(self) -> tuple[Collected, Metrics]:
        """The episodes of the next training step, and what to watch of them."""
        started = time.monotonic()
        # Failed episodes, greedy ones too, are in no statistic; too many of them stop the run. The tasks are in flight
        # then, so that a resume plays them again.
        with self._saving():
            found = self.source.next_step(self.counters.steps)
            seconds = time.monotonic() - started
            episodes = [*episodes_of(found.played), *found.greedy]
            everything = (*episodes, *episodes_of(found.cancelled))
            self.recorder.write_failures(everything, step=self.counters.steps + 1, phase=TRAIN)
            failed = self.session.failed_share(episodes, f"training, step {self.counters.steps + 1}")
        measured = {"rollout/failed_share": failed, "time/rollout_s": seconds}
        per_environment = self.session.mix.metrics(found.played)
        graders = {
            f"time/graders/{pool}/{name}": n for pool, kept in pool_metrics().items() for name, n in kept.items()
        }
        return found, {**rollout_metrics(found.played), **per_environment, **found.metrics, **measured, **graders}

    def _learn(self, found: Collected, metrics: Metrics) -> Metrics:
        """The update of a training step and what counts on with it; ``metrics`` with those of the update."""
        config, counters, parts = self.config, self.counters, self.parts
        started = time.monotonic()
        version, greedy = counters.version, found.greedy_returns
        of_tokens: dict[str, FloatArray] = {}
        with self._learning():
            learnt = update(
                config, parts, found.kept, step=counters.steps, version=version, greedy=greedy, learnt=of_tokens
            )
            counters.steps += 1
            counters.version += 1
            counters.ledger.settle(found.indices)
            self.session.mix.settle(found.played)
            refresh_reference(config, parts, counters.steps)
        self.recorder.write_learnt(of_tokens, step=counters.steps, phase=TRAIN)
        seconds = time.monotonic() - started
        times = {"time/learn_s": seconds, "time/step_s": metrics["time/rollout_s"] + seconds}
        times["time/checkpoint_s"] = self.saver.take_seconds()
        counters.spend(TRAIN, times["time/step_s"])
        noted = {"checkpoint/damaged": float(self.damaged)} if self.damaged else {}
        return {**metrics, **learnt, **times, **noted}

    def _evaluate(self, name: str) -> Sequence[Trajectory]:
        """Play the held-out evaluation, record it, keep sample episodes; nothing where the weights were evaluated."""
        counters = self.counters
        if counters.evaluated is not None:
            return ()
        started = time.monotonic()
        with self._saving():
            self.source.update()
            with self.report.phase(f"evaluation {name}", len(self.session.evaluation_tasks())) as progress:
                result, episodes = play_evaluation(
                    self.session, name, tasks=None, step=counters.steps, on_done=lambda _: progress.advance()
                )
            self.recorder.write_failures(episodes, step=counters.steps, phase=EVALUATION)
            self.session.failed_share(episodes, f"evaluation {name}")
        groups = tuple(Group(task=episode.task, trajectories=(episode,)) for episode in episodes)
        with self.interrupts.whole():
            counters.evaluations.append(result)
            counters.spend(EVALUATION, time.monotonic() - started)
            record = StepRecord(phase=EVALUATION, step=counters.steps, version=counters.version, groups=groups)
            numbers = {**evaluation_metrics(result), **self.recorder.write(record)}
            self.folder.log(numbers, step=counters.steps, phase=EVALUATION)
            self.recorder.write_samples(episodes[:SAMPLE_EPISODES], step=counters.steps)
        return episodes

    # -- state -------------------------------------------------------------------------------------------------------

    def _update_engine(self) -> None:
        version = self.counters.version
        if self._engine_version != version:
            # Whole, since what is left of a tensor in a rank's pipe would be read as its next answer.
            with self.interrupts.whole():
                self.session.engine.update_weights(self.parts.learner.weights(), version)
                self._engine_version = version

    @contextlib.contextmanager
    def _saving(self) -> Iterator[None]:
        """Save the steps that were done before an error outside of learning ends the run: a dead engine, too many
        failures."""
        try:
            yield
        except RollError as error:
            with noting(error):
                self._save()
            raise

    def _save(self) -> None:
        """Save a checkpoint of this moment, unless there is one."""
        counters = self.counters
        if self._saved_at == counters.place:
            return
        state = CheckpointState(
            step=counters.warm_steps + counters.steps,
            version=counters.version,
            model=self.parts.learner.weights,
            optimizer={},
            cursor=counters.ledger.cursor,
            success=counters.evaluated.success if counters.evaluated and counters.evaluated.tasks else None,
            others={name: part.weights for name, part in self.parts.others.items()},
            progress={
                **{name: getattr(counters, name) for name in ("warm_steps", "steps", "seconds")},
                "evaluations": [asdict(evaluation) for evaluation in counters.evaluations],
                **counters.ledger.save(),
                "mix": self.session.mix.save(),
                "algorithm": self.parts.state.to_dict(),
                "vocabulary": self._vocabulary,
            },
        )
        with self.interrupts.whole():
            self.saver.save(state, self.parts.optimized)
        self._saved_at = counters.place

    def load(self, state: CheckpointState) -> None:
        """Put weights, optimisers, random states and what the algorithm remembers back."""
        self.parts = load_parts(self.parts, state, self.ranks)
        self.session.mix.load(state.progress.get("mix", {}))
        self._saved_at = self.counters.place

    def set_aside(self, damaged: Mapping[Path, str], state: CheckpointState) -> None:
        """Rename checkpoints in place of which ``state`` was loaded, and say what is lost by it."""
        if not damaged:
            return
        assert state.files is not None
        self.damaged += len(damaged)
        lost = [record["step"] for record in read_metrics(self.folder.path, TRAIN)]
        lost = [step for step in lost if step > self.counters.steps]
        words = f"training steps {lost[0]} to {lost[-1]} are" if lost else "what came after it is"
        moved = ", ".join(str(path) for path in set_aside_after(state.files.folder))
        self.report.say(
            "\n".join(f"DAMAGED: {reason}" for reason in damaged.values())
            + f"\nGoing on from {state.files.folder}, the newest one that is whole: {words} played and learnt again. "
            f"Set aside: {moved}"
        )

    def rewind_folder(self) -> None:
        """Take out of the folder's records what is played and learnt again."""
        counters = self.counters
        evaluated = max((evaluation.step for evaluation in counters.evaluations), default=-1)
        self.folder.rewind({WARM_START: counters.warm_steps, TRAIN: counters.steps, EVALUATION: evaluated})

    def _begin_phase(self) -> StepParts:
        warm_start = self.counters.warm_steps < self.config.warm_start.steps
        parts = begin_phase(self.session, warm_start=warm_start, ranks=self.ranks)
        for part in parts.offloading:
            part.offload()
        return parts

    @contextlib.contextmanager
    def _learning(self) -> Iterator[None]:
        """The devices that learner and engine share are the learner's for this time; new weights wake the engine.

        After an error nothing is offloaded: these parts learn no more, and lost ranks would hide the error.
        """
        if self.session.engine.capabilities.sleep:
            with self._saving():
                self.session.engine.sleep()
        for part in self.parts.offloading:
            part.reload()
        yield
        for part in self.parts.offloading:
            part.offload()

    def _take_weights(self) -> None:
        """Bring the learner's weights to the session's model, which a learner of ranks does not train in place."""
        load_weights(self.session.model.network, self.parts.learner.weights())

    def _finish(self, last: Sequence[Trajectory]) -> dict[str, Any]:
        counters, model = self.counters, self.session.model
        result = summary(
            self.config, counters.evaluations, counters.seconds, steps=counters.steps, parameters=model.parameters
        )
        # Only redundancy leaves tasks for rounds that do not come any more.
        result["tasks_never_learnt_from"] = waiting = len(counters.ledger.in_flight)
        if waiting:
            self.report.say(
                f"Never learnt from: {waiting} tasks, begun beyond what their steps needed (rollout.redundancy) and "
                "left for later ones; `roll-train resume RUN --steps N` plays them first."
            )
        self.folder.save_summary(result)
        self._take_weights()  # merged, where a copy with adapters was trained
        save_model(model, self.folder.path / "model")
        if counters.steps:
            plot_run(self.folder.path)
        self.report.print_evaluation_table(counters.evaluations)
        self.report.print_before_and_after(self._before, last)
        return result
