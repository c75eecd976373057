"""How far a run is: what a checkpoint says beside weights, optimisers and random states."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from roll_envs.errors import CheckpointError
from trainer.rollout.source import Ledger
from trainer.run.checkpoint import CheckpointState
from trainer.run.evaluate import PhaseResult


@dataclass(slots=True)
class Counters:
    """How far a run is."""

    warm_steps: int = 0
    steps: int = 0
    version: int = 0
    """Of the weights: optimiser phases done."""
    ledger: Ledger = field(default_factory=Ledger)
    """Which training tasks were drawn, and which are in flight."""
    evaluations: list[PhaseResult] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    """Time of every phase over all resumes."""

    @classmethod
    def load(cls, state: CheckpointState, path: Path) -> Counters:
        """Those of a checkpoint of the run in ``path``. Raises :class:`CheckpointError`."""
        try:
            saved = dict(state.progress)
            return cls(
                **{name: saved[name] for name in ("warm_steps", "steps", "seconds")},
                version=state.version,
                ledger=Ledger.load(state.cursor, saved),
                evaluations=[PhaseResult(**evaluation) for evaluation in saved["evaluations"]],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint of {path} does not say how far the run was ({error})") from error

    def spend(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    @property
    def place(self) -> tuple[int, int, int]:
        """Differs between any two moments at which a checkpoint may be saved."""
        return self.warm_steps, self.steps, len(self.evaluations)

    @property
    def evaluated(self) -> PhaseResult | None:
        """The evaluation of the present weights, if they were evaluated."""
        return next((evaluation for evaluation in self.evaluations if evaluation.step == self.steps), None)
