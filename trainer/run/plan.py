"""What a run is about to do, worked out from its configuration alone: no torch, no environment, no files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainer.config import ModelConfig, RunConfig

__all__ = ["Plan", "PlannedPhase", "estimate_parameters", "make_plan"]

VOCABULARY = 261
"""Tokens of the built-in tokenizer without the words of an environment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedPhase:
    """One phase: how many steps of which kind, how many episodes in all, and how long it may take."""

    name: str
    steps: int
    unit: str
    episodes: int
    detail: str
    seconds: float | None = None
    """Estimated; None where nothing is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The plan of a run, ready to be shown."""

    name: str
    env: str
    model: str
    algorithm: str
    seed: int
    folder: str
    phases: tuple[PlannedPhase, ...]

    @property
    def seconds(self) -> float | None:
        """Estimated seconds of all phases; None when one is unknown."""
        known = [p.seconds for p in self.phases if p.seconds is not None]
        return sum(known) if known and len(known) == len(self.phases) else None


def make_plan(
    config: RunConfig,
    *,
    folder: str | None = None,
    parameters: int | None = None,
    seconds: Mapping[str, float] | None = None,
) -> Plan:
    """The plan of ``config``. ``parameters`` (counted) replaces the estimate; ``seconds`` are estimates by phase name.

    Phase names are ``warm start``, ``evaluation before``, ``training``, ``evaluation during``, ``evaluation after``.
    """
    times = seconds or {}
    phases = [
        PlannedPhase(name=name, steps=steps, unit=unit, episodes=episodes, detail=detail, seconds=times.get(name))
        for name, steps, unit, episodes, detail in _phases(config)
        if steps
    ]
    kwargs = ", ".join(f"{key}={value!r}" for key, value in config.env.kwargs.items())
    return Plan(
        name=config.name,
        env=config.env.id + (f" ({kwargs})" if kwargs else ""),
        model=_model_words(config.model, parameters),
        algorithm=_algorithm_words(config),
        seed=config.seed,
        folder=folder if folder is not None else f"{config.output}/{config.name}-seed{config.seed}-<date>-<time>",
        phases=tuple(phases),
    )


def estimate_parameters(model: ModelConfig, vocabulary: int = VOCABULARY) -> int:
    """Parameters of the small model with tied embeddings: width 96, 3 layers, ratio 3 -> 385,152."""
    width = model.hidden_size
    biases = 3 * width if model.architecture == "qwen2" else 0
    layer = 4 * width * width + 3 * width * int(width * model.mlp_ratio) + 2 * width + biases
    return vocabulary * width + model.layers * layer + width


def _phases(config: RunConfig) -> list[tuple[str, int, str, int, str]]:
    rollout, evaluation, warm = config.rollout, config.evaluation, config.warm_start
    per_step = rollout.groups_per_step * rollout.group_size
    during = (config.steps - 1) // evaluation.every if evaluation.every and config.steps else 0
    updates = config.learner.minibatches * config.learner.epochs
    return [
        (
            "warm start",
            warm.steps,
            "steps",
            warm.steps * warm.episodes_per_step,
            f"{warm.episodes_per_step} episodes of a teacher that plays the oracle's action {warm.oracle_share:.0%} "
            "of the time",
        ),
        ("evaluation before", 1, "evaluation", evaluation.tasks, f"{evaluation.tasks} held-out tasks"),
        (
            "training",
            config.steps,
            "steps",
            config.steps * per_step,
            f"{rollout.groups_per_step} tasks x {rollout.group_size} episodes, "
            f"{updates} optimiser step{'' if updates == 1 else 's'} each",
        ),
        ("evaluation during", during, "evaluations", during * evaluation.tasks, f"every {evaluation.every} steps"),
        ("evaluation after", 1 if config.steps else 0, "evaluation", evaluation.tasks, "the same tasks"),
    ]


def _model_words(model: ModelConfig, parameters: int | None) -> str:
    counted = f"{parameters:,} parameters" if parameters is not None else ""
    if model.path is not None:
        return f"{model.path}" + (f", {counted}" if counted else "")
    counted = counted or f"about {estimate_parameters(model) / 1e6:.2f} M parameters"
    return f"{model.architecture} built here, {counted} ({model.layers} layers, width {model.hidden_size})"


def _algorithm_words(config: RunConfig) -> str:
    context = {"everything": "all turns in the prompt", "last": f"last {config.context.turns} turns in the prompt"}.get(
        config.context.kind, f"prompts by {config.context.function}"
    )
    return (
        f"{config.advantage.name} advantages, {config.loss.name} loss, learning rate {config.optimizer.lr:g}, "
        f"temperature {config.sampling.temperature:g}, {context}"
    )
