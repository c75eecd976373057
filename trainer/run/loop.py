"""The one training loop: warm start, evaluation before, reinforcement learning, evaluation after; and its exact resume.

All randomness follows from the configuration's seed and the identity of the step, task, episode and turn, so the state
of a run is its weights, its optimiser and two counters. What is in flight when a run is killed is simply played again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from roll_envs.errors import CheckpointError, ConfigError, RollError
from roll_envs.types import Trajectory
from trainer.algorithms.shaping import AlgorithmState
from trainer.config import RunConfig
from trainer.config.parts import ESTIMATORS
from trainer.data.metrics import rollout_metrics
from trainer.engines import check_can_train
from trainer.learner import Learner, Scorer, make_learner
from trainer.model.network import load_weights, save_model
from trainer.rollout.session import Session
from trainer.rollout.source import Collected, GroupSource, Ledger
from trainer.run.checkpoint import (
    CheckpointState,
    capture_random_states,
    clean_unfinished,
    load_checkpoint,
    restore_random_states,
    save_checkpoint,
    set_aside_after,
)
from trainer.run.evaluate import play_evaluation
from trainer.run.folder import Interrupts, RunFolder
from trainer.run.plan import make_plan
from trainer.run.plot import plot_run
from trainer.run.report import Report
from trainer.run.results import PhaseResult, summary
from trainer.run.update import StepParts, make_parts, update
from trainer.run.warm_start import warm_start_learner, warm_start_step

__all__ = ["evaluation_success", "resume", "train"]

WARM_START, TRAIN, EVALUATION = "warm_start", "train", "evaluation"
SAMPLE_EPISODES = 16


@dataclass(slots=True)
class _Counters:
    """How far a run is. ``seconds`` counts the time of every phase over all its resumes."""

    warm_steps: int = 0
    steps: int = 0
    version: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    """Which training tasks were drawn, and which are in flight."""
    evaluations: list[PhaseResult] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def spend(self, phase: str, started: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.monotonic() - started


def train(config: RunConfig, folder: RunFolder, report: Report) -> dict[str, Any]:
    """Run ``config`` into the new ``folder``; returns the summary.

    Ctrl-C saves a checkpoint at the last whole step and raises ``KeyboardInterrupt``.
    """
    with Session(config) as session, Interrupts() as interrupts:
        return _Run(session, folder, report, interrupts, _Counters()).go()


def resume(
    folder: RunFolder, report: Report, steps: int | None = None, checkpoint: Path | None = None
) -> dict[str, Any]:
    """Go on with the run in ``folder`` from its newest checkpoint, or from ``checkpoint``; ``steps`` trains further.

    Raises :class:`CheckpointError` when the checkpoint cannot be loaded.
    """
    clean_unfinished(folder.checkpoints_path)
    state = load_checkpoint(checkpoint or folder.path)
    if checkpoint is not None:
        set_aside_after(checkpoint)
    try:
        saved = dict(state.progress)
        counters = _Counters(
            warm_steps=saved["warm_steps"],
            steps=saved["steps"],
            version=state.version,
            ledger=Ledger.load(state.cursor, saved),
            evaluations=[PhaseResult(**evaluation) for evaluation in saved["evaluations"]],
            seconds=dict(saved["seconds"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint of {folder.path} does not say how far the run was ({error})") from error
    if steps is not None and counters.steps > steps:
        raise ConfigError(f"--steps {steps}: the run has done {counters.steps} steps already")
    target = max(folder.config.steps, counters.steps) if steps is None else steps
    config = folder.config.model_copy(update={"steps": target})
    folder.truncate_metrics(
        {
            WARM_START: counters.warm_steps,
            TRAIN: counters.steps,
            EVALUATION: max((p.step for p in counters.evaluations), default=-1),
        }
    )
    with Session(config) as session, Interrupts() as interrupts:
        run = _Run(session, folder, report, interrupts, counters)
        run.load(state)
        return run.go()


def evaluation_success(progress: Mapping[str, Any]) -> float | None:
    """Held-out success of a checkpoint's weights, from its ``progress``; None where it was not measured."""
    evaluations = progress["evaluations"]
    if evaluations and evaluations[-1]["step"] == progress["steps"]:
        return float(evaluations[-1]["success"])
    return None


class _Run:
    """One process's part of a run."""

    def __init__(
        self, session: Session, folder: RunFolder, report: Report, interrupts: Interrupts, counters: _Counters
    ) -> None:
        self.session, self.folder, self.report = session, folder, report
        self.config = session.config
        self.interrupts, self.counters = interrupts, counters
        self.source = GroupSource(session, counters.ledger)
        self.parts: StepParts | None = None
        """Of reinforcement learning; None during the warm start."""
        self.learner: Learner
        if counters.warm_steps < self.config.warm_start.steps:
            self.learner = warm_start_learner(session)
        else:
            self._begin_learning()
        self._engine_is_current = False
        self._saved_at: tuple[int, int] | None = None
        self._before: Sequence[Trajectory] = ()

    def _begin_learning(self) -> None:
        """A fresh optimiser for the second phase; reference and critic begin with the weights of this moment."""
        config = self.config
        self.learner = make_learner(
            self.session.model,
            loss=config.loss,
            optimizer=config.optimizer,
            temperature=config.sampling.temperature,
            correction=config.correction,
            settings=config.learner,
            threads=self.session.threads,
            device=config.learner.device,
        )
        reference = None
        if config.reward.kl_coef or config.loss.kl_coef:
            reference = self.learner.reference(fixed=not config.reference.refresh_every)
        self.parts = make_parts(
            config,
            self.learner,
            critic=self.learner.critic(config.critic) if ESTIMATORS.find(config.advantage.name).needs_values else None,
            reference=reference,
        )

    def go(self) -> dict[str, Any]:
        """Everything that is still to do."""
        config = self.config
        check_can_train(config.engine.name, self.session.engine)
        plan = make_plan(config, folder=str(self.folder.path), parameters=self.session.model.parameters)
        self.report.print_plan(plan)
        if self.session.rewrites_history and config.context.kind == "everything":
            self.report.say(
                "This model's chat template rewrites earlier turns (it drops thoughts, say), so that turns begin "
                "sequences of their own; rollout/sequences_per_episode and rollout/history_rewrites count them."
            )
        try:
            if self._saved_at is None:
                self._save()
            self._warm_start()
            if self._evaluation_at(0) is None:
                self._before = self._evaluation("after warm start" if config.warm_start.steps else "before training")
                self._save()
            self._train()
            last = self._final_evaluation()
        except KeyboardInterrupt:
            if (
                not self.interrupts.interrupted_midway
            ):  # a second Ctrl-C in the middle of a step: the last checkpoint stands
                self._save()
            raise
        return self._finish(last)

    # -- phases ------------------------------------------------------------------------------------------------------

    def _warm_start(self) -> None:
        config, counters = self.config, self.counters
        total = config.warm_start.steps
        if counters.warm_steps >= total:
            return
        with self.report.phase("warm start", total) as progress:
            progress.advance(counters.warm_steps)
            while counters.warm_steps < total:
                started = time.monotonic()
                with self.interrupts.whole():
                    metrics = warm_start_step(self.session, self.learner, counters.warm_steps)
                    counters.warm_steps += 1
                    if counters.warm_steps == total:
                        self._begin_learning()
                    self._stepped(WARM_START, started)
                    self.folder.log(metrics, step=counters.warm_steps, phase=WARM_START)
                progress.advance(loss=metrics["loss/total"])

    def _train(self) -> None:
        config, counters = self.config, self.counters
        if counters.steps >= config.steps:
            return
        recent: list[float] = []
        with self.report.phase("training", config.steps) as progress:
            progress.advance(counters.steps)
            while counters.steps < config.steps:
                # What is due is read from the state, so that a run stopped before an evaluation plays it later.
                if self._due(config.evaluation.every) and self._evaluation_at(counters.steps) is None:
                    self._evaluation(f"step {counters.steps}")
                    if config.checkpoint.keep_best:
                        self._save()
                if self._due(config.checkpoint.every):
                    self._save()
                metrics = self._train_step()
                if "rollout/success_rate" in metrics:
                    recent = [*recent[-9:], metrics["rollout/success_rate"]]
                progress.advance(success=sum(recent) / max(1, len(recent)), seconds=metrics["time/step_s"])
        self._save()

    def _due(self, every: int) -> bool:
        steps = self.counters.steps
        return bool(every and steps and steps % every == 0)

    def _evaluation_at(self, step: int) -> PhaseResult | None:
        return next((evaluation for evaluation in self.counters.evaluations if evaluation.step == step), None)

    def _train_step(self) -> dict[str, float]:
        config, counters = self.config, self.counters
        assert self.parts is not None
        started = time.monotonic()
        self._sync_engine()
        version = counters.version
        found = self.source.next_step()
        collected = time.monotonic()
        metrics = {
            **rollout_metrics(found.played),
            **found.metrics,
            "rollout/failed_share": self._failed_share(found),
        }
        with self.interrupts.whole():
            metrics.update(
                update(
                    config, self.parts, found.kept, step=counters.steps, version=version, greedy=found.greedy_returns
                )
            )
            counters.steps += 1
            counters.ledger.settle(found.indices)
            refresh = config.reference.refresh_every
            if self.parts.reference is not None and refresh and counters.steps % refresh == 0:
                self.parts.reference.load_weights(self.learner.weights())
            self._stepped(TRAIN, started)
            now = time.monotonic()
            metrics |= {
                "time/rollout_s": collected - started,
                "time/learn_s": now - collected,
                "time/step_s": now - started,
            }
            self.folder.log(metrics, step=counters.steps, phase=TRAIN)
        return metrics

    def _stepped(self, phase: str, started: float) -> None:
        self.counters.version += 1
        self.counters.spend(phase, started)
        self._engine_is_current = False

    def _failed_share(self, found: Collected) -> float:
        """Failed episodes, greedy ones too, are in no statistic; too many of them stop the run, after saving."""
        episodes = [*(t for g in found.played for t in g.trajectories), *found.greedy]
        try:
            return self.session.failed_share(episodes, f"training, step {self.counters.steps + 1}")
        except RollError:
            self._save()
            raise

    def _evaluation(self, name: str) -> Sequence[Trajectory]:
        """Play the held-out evaluation, record it, keep sample episodes."""
        config, counters = self.config, self.counters
        started = time.monotonic()
        self._sync_engine()
        with self.report.phase(f"evaluation {name}", config.evaluation.tasks) as progress:
            result, episodes = play_evaluation(
                self.session,
                name,
                tasks=config.evaluation.tasks,
                step=counters.steps,
                on_done=lambda _: progress.advance(),
            )
        self.session.failed_share(episodes, f"evaluation {name}")
        with self.interrupts.whole():
            counters.evaluations.append(result)
            counters.spend(EVALUATION, started)
            numbers = {k: v for k, v in asdict(result).items() if k not in ("name", "step")}
            self.folder.log(numbers, step=counters.steps, phase=EVALUATION)
            self.folder.save_episodes(f"evaluation-step-{counters.steps:06d}", episodes[:SAMPLE_EPISODES])
        return episodes

    def _final_evaluation(self) -> Sequence[Trajectory]:
        if self._evaluation_at(self.counters.steps) is None:
            episodes = self._evaluation("after training")
            self._save()
            return episodes
        return ()

    # -- state -------------------------------------------------------------------------------------------------------

    def _sync_engine(self) -> None:
        if not self._engine_is_current:
            self.session.engine.update_weights(self.learner.weights(), self.counters.version)
            self._engine_is_current = True

    def _save(self) -> None:
        counters, parts = self.counters, self.parts
        place = (counters.warm_steps, counters.steps + len(counters.evaluations))
        if self._saved_at == place:
            return
        state = CheckpointState(
            step=counters.warm_steps + counters.steps,
            version=counters.version,
            model=self.learner.weights,
            optimizer={
                **self.learner.optimizer_state(),
                **({"critic": parts.critic.optimizer_state()} if parts and parts.critic else {}),
            },
            random=capture_random_states(),
            cursor=counters.ledger.cursor,
            others={name: part.weights for name, part in self._others().items()},
            progress={
                "warm_steps": counters.warm_steps,
                "steps": counters.steps,
                "evaluations": [asdict(p) for p in counters.evaluations],
                "seconds": counters.seconds,
                **counters.ledger.save(),
                **({"algorithm": parts.state.to_dict()} if parts else {}),
            },
        )
        with self.interrupts.whole():
            save_checkpoint(
                self.folder.checkpoints_path,
                state,
                keep=self.config.checkpoint.keep,
                keep_best=self.config.checkpoint.keep_best,
                score=evaluation_success,
            )
        self._saved_at = place

    def load(self, state: CheckpointState) -> None:
        """Put weights, optimiser, random states and what the algorithm remembers back."""
        load_weights(self.session.model.network, state.model())
        for name, part in self._others().items():
            if name not in state.others:
                raise CheckpointError(f"the checkpoint has no {name}, which {self.folder.config_path} asks for")
            part.load_weights(state.others[name]())
        if self.parts is not None:
            self.parts = replace(self.parts, state=AlgorithmState.from_dict(state.progress.get("algorithm", {})))
        try:
            self.learner.load_optimizer_state(dict(state.optimizer))
            if self.parts is not None and self.parts.critic is not None:
                self.parts.critic.load_optimizer_state(state.optimizer["critic"])
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"the checkpoint does not fit the optimiser of {self.folder.config_path}: {error}"
            ) from error
        restore_random_states(state.random)
        self._saved_at = (self.counters.warm_steps, self.counters.steps + len(self.counters.evaluations))

    def _others(self) -> dict[str, Scorer]:
        """The networks beside the policy that a checkpoint holds."""
        parts = self.parts
        found = {} if parts is None else {"critic": parts.critic, "reference": parts.reference}
        return {name: part for name, part in found.items() if part is not None}

    def _finish(self, last: Sequence[Trajectory]) -> dict[str, Any]:
        config, counters = self.config, self.counters
        result = summary(
            name=config.name,
            env_id=config.env.id,
            seed=config.seed,
            phases=counters.evaluations,
            total_seconds=sum(counters.seconds.values()),
            phase_seconds=counters.seconds,
            extra={"steps": counters.steps, "parameters": self.session.model.parameters},
        )
        self.folder.save_summary(result)
        # Merged, where a copy with adapters was trained.
        load_weights(self.session.model.network, self.learner.weights())
        save_model(self.session.model, self.folder.path / "model")
        if counters.steps:
            plot_run(self.folder.path)
        self.report.print_evaluation_table(counters.evaluations)
        self._show_episodes(last)
        return result

    def _show_episodes(self, after: Sequence[Trajectory]) -> None:
        """The same held-out task before and after: the first one lost before and won after, if there is one."""
        if not after:
            return
        if not self._before:
            self.report.print_episode("An episode after training", after[0])
            return
        gained = [i for i, (b, a) in enumerate(zip(self._before, after, strict=True)) if a.success and not b.success]
        chosen = gained[0] if gained else 0
        why = "the first task lost before and won after" if gained else "the first task"
        self.report.print_episode(f"Held-out task {chosen} before training ({why})", self._before[chosen])
        self.report.print_episode(f"Held-out task {chosen} after training", after[chosen])
