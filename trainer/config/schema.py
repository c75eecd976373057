"""The configuration of a run: one frozen tree of models, each field with its default and one sentence.

Checks raise and never rewrite. Reading YAML, overrides and error messages live in :mod:`trainer.config.load`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from roll_envs.errors import RollError
from roll_envs.settings import Seconds
from trainer.config.algorithm import (
    AdvantageConfig,
    CorrectionConfig,
    Count,
    CriticConfig,
    FilterConfig,
    LossConfig,
    MaskConfig,
    PartSection,
    Positive,
    ReferenceConfig,
    RewardConfig,
    Section,
    Share,
    correction_problems,
)
from trainer.config.environments import (
    NAME_PATTERN,
    CurriculumConfig,
    EnvConfig,
    FilterOverrides,
    MixedEnvConfig,
    check_environments,
    checked_template,
)
from trainer.config.judges import JudgeConfig, JudgeName
from trainer.config.parts import BACKENDS, ESTIMATORS, OPTIMIZERS
from trainer.config.placement import ROLES, LearnerPlacement, PlacementConfig, RoleName, placement_problems

__all__ = [
    "FORMAT",
    "ROLES",
    "AdvantageConfig",
    "CheckpointConfig",
    "ContextConfig",
    "CorrectionConfig",
    "CriticConfig",
    "CurriculumConfig",
    "EngineConfig",
    "EnvConfig",
    "EvaluationConfig",
    "FilterConfig",
    "FilterOverrides",
    "JudgeConfig",
    "LearnerConfig",
    "LearnerPlacement",
    "LossConfig",
    "MaskConfig",
    "MixedEnvConfig",
    "ModelConfig",
    "OptimizerConfig",
    "PlacementConfig",
    "RayConfig",
    "ReferenceConfig",
    "RewardConfig",
    "RoleName",
    "RolloutConfig",
    "RunConfig",
    "SamplingConfig",
    "WarmStartConfig",
]

FORMAT = 1
"""Version of this schema; a YAML file of another version is refused with what to do."""

Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]


class ModelConfig(Section):
    """The policy model: built here from a seed, or loaded."""

    path: str | None = None
    """Folder of a Hugging Face model and tokenizer, or a name of the hub (Qwen/Qwen2.5-0.5B-Instruct); null builds a
    small one."""
    revision: str | None = None
    """Branch, tag or commit of a model of the hub; a run writes the commit it found into its config.yaml."""
    architecture: Literal["llama", "qwen2"] = "llama"
    """Family of the small model."""
    hidden_size: Positive = 96
    """Width of the small model."""
    layers: Positive = 3
    """Number of layers of the small model."""
    heads: Positive = 4
    """Attention heads of the small model."""
    kv_heads: Positive | None = None
    """Heads of keys and values, each shared by a group of attention heads; null is one for each."""
    head_width: Positive | None = None
    """Width of each head; null is hidden_size / heads."""
    mlp_ratio: Annotated[float, Field(gt=0)] = 3.0
    """Width of the MLP over the width of the model."""
    rope_theta: Annotated[float, Field(gt=0)] = 30.0
    """Base of the rotary positions of the small model; small, since its sequences are short."""
    init_std: Annotated[float, Field(gt=0)] = 0.1
    """Standard deviation of the small model's first weights."""
    max_positions: Positive = 1024
    """Longest sequence in tokens."""

    @model_validator(mode="after")
    def _revision_has_a_path(self) -> Self:
        if self.revision is not None and self.path is None:
            raise ValueError(
                f"model.revision is {self.revision!r}, but model.path is null; give the hub's name of the model, or "
                "leave model.revision out"
            )
        return self

    @property
    def width_of_heads(self) -> int:
        return self.head_width or self.hidden_size // self.heads

    @property
    def shared_heads(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.head_width is None and self.hidden_size % self.heads:
            raise ValueError(
                f"model.hidden_size {self.hidden_size} is not a multiple of model.heads {self.heads}; "
                f"allowed: a multiple, such as {self.heads * max(1, round(self.hidden_size / self.heads))}, "
                "or a model.head_width"
            )
        if self.width_of_heads % 2:
            raise ValueError(
                f"model.hidden_size {self.hidden_size} over model.heads {self.heads} gives heads of odd width "
                f"{self.width_of_heads}; rotary positions need an even width per head"
                if self.head_width is None
                else f"model.head_width {self.head_width} is odd; rotary positions need an even width per head"
            )
        if self.heads % self.shared_heads:
            raise ValueError(
                f"model.heads {self.heads} is not a multiple of model.kv_heads {self.kv_heads}; allowed: a divisor, "
                "such as 1"
            )
        return self


class ContextConfig(Section):
    """What the next prompt shows of the episode so far."""

    kind: Literal["everything", "last", "function"] = "everything"
    """All turns, the last k, or code."""
    turns: Count = 1
    """k of kind 'last': how many past turns are shown beside the observation."""
    function: str | None = None
    """module:name of a context function, for kind 'function'."""
    system_prompt: str | None = None
    """Replaces the environment's instructions; '' leaves them out."""
    observation_template: str | None = None
    """Text of each user message, with {observation} in it; null is the observation alone."""
    template: dict[str, Any] = Field(default_factory=dict)
    """Variables of the chat template, e.g. {enable_thinking: false}."""

    @field_validator("observation_template")
    @classmethod
    def _template_shows_the_observation(cls, value: str | None) -> str | None:
        return checked_template("context.observation_template", value)

    @model_validator(mode="after")
    def _function_fits_kind(self) -> Self:
        if self.kind == "function" and self.observation_template is not None:
            raise ValueError(
                "context.observation_template has no effect when context.kind is 'function': the function writes the "
                "messages (it may use history.shown); leave one of them out"
            )
        if self.kind == "function" and self.function is None:
            raise ValueError("context.kind is 'function', but context.function is null; give it as module:name")
        if self.kind != "function" and self.function is not None:
            raise ValueError(
                f"context.function is {self.function!r}, but context.kind is {self.kind!r}; "
                "set context.kind to 'function' or leave context.function out"
            )
        if self.function is not None and not all(self.function.partition(":")):
            raise ValueError(f"context.function is {self.function!r}; allowed: module:name")
        return self


class SamplingConfig(Section):
    """How the engine samples, in training and in evaluation alike."""

    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Sampling temperature."""
    max_new_tokens: Positive = 16
    """Longest answer of one turn, in tokens."""


class EngineConfig(PartSection):
    """The inference engine; its own settings stand in this section too."""

    name: str = "hf"
    """Registered engine; 'hf' is the built-in one."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the engine computes, if it does here; auto is a GPU where there is one."""
    max_tokens: Positive = 1024
    """Longest prompt + answer a request may have, in tokens."""

    @property
    def counts_tokens(self) -> bool:
        """Whether ``max_tokens`` holds; settings of an engine that leaves it to a server say otherwise."""
        return True


class WarmStartConfig(Section):
    """Supervised learning on demonstrations of a poor teacher, before reinforcement learning."""

    steps: Count = 0
    """Optimiser steps; 0 leaves the phase out."""
    episodes_per_step: Positive = 64
    """Demonstration episodes per optimiser step."""
    oracle_share: Share = 0.3
    """How often the teacher plays the oracle's action; else a random one."""
    learn_random: bool = True
    """Whether its random actions are learnt too. If not, they only lead into states off the oracle's way, as in DAgger
    (Ross et al. 2011, arXiv:1011.0686): what is learnt is right, and much of it is how to get back."""
    teacher: dict[str, Any] | None = None
    """An engine that plays the demonstrations instead (keys as in the section engine, e.g. {name: openai, url: ...,
    model: ...}); it is shown the rules and the whole dialogue, and its successful episodes are learnt from."""
    optimizer: str | None = None
    """Registered optimiser of this phase, with the settings of the section optimizer; null: that of training."""
    lr: Annotated[float, Field(ge=0)] = 1e-3
    """Peak learning rate."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """Decay after the warm-up."""
    lr_warmup_steps: Count = 20
    """Steps of linear warm-up."""


class RayConfig(Section):
    """Environment workers on a Ray cluster, for rollout.manager 'ray'."""

    address: str | None = None
    """Address of a cluster (host:port, or auto); null starts one here for as long as the run lasts."""
    num_cpus: Annotated[float, Field(gt=0)] = 1.0
    """Processors that each worker reserves."""
    resources: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """What else each worker reserves, by the cluster's names, e.g. {env_node: 0.5}."""
    runtime_env: dict[str, Any] = Field(default_factory=dict)
    """What workers need to make the environment, as Ray has it, e.g. {pip: [my-envs]}."""


class RolloutConfig(Section):
    """Collecting episodes."""

    groups_per_step: Positive = 16
    """Tasks per training step."""
    group_size: Positive = 8
    """Episodes per task, all from the same start."""
    max_running: Positive = 128
    """Episodes that run at the same time."""
    mode: Literal["sync", "overlap", "async"] = "sync"
    """sync: a step plays its groups with the newest weights, then learns. overlap: the next groups are played while a
    step learns, and weights change between episodes. async: weights change in mid-episode."""
    max_staleness: Positive = 1
    """Most training steps between the beginning of a group and the step that learns from it; not in mode sync."""
    redundancy: Count = 0
    """Groups that a step begins beyond those it needs; the last to end are cancelled, and their tasks played in rounds
    of their own. Mode sync only."""
    attempts: Positive = 3
    """Starts of an episode before an infrastructure failure is final."""
    turn_timeout_s: Seconds = 120.0
    """Longest wait for one answer of the engine."""
    env_timeout_s: Seconds = 60.0
    """Longest call of an environment, and of a context function."""
    make_timeout_s: Seconds | None = None
    """Longest making of an environment; null: env_timeout_s."""
    reset_timeout_s: Seconds | None = None
    """Longest reset of an environment; null: env_timeout_s."""
    step_timeout_s: Seconds | None = None
    """Longest step of an environment; null: env_timeout_s."""
    close_timeout_s: Seconds | None = None
    """Longest closing of an environment; null: env_timeout_s."""
    episode_timeout_s: Seconds = 600.0
    """Longest episode."""
    episode_tokens: Positive | None = None
    """Most tokens sampled in one episode, which is truncated then; null: as many as its turns may have."""
    recycle_after: Count = 0
    """Episodes after which an environment is closed and made anew; 0: never."""
    max_failed_share: Share = 0.5
    """A step with more failed episodes than this stops the run."""
    manager: Literal["thread", "process", "ray"] = "thread"
    """Where environments live: in the trainer's process, in worker processes, or in actors of a Ray cluster."""
    workers: Count = 0
    """Workers of manager 'process' or 'ray', each with many environments; 0 is one per processor that ranks of the
    learner on the same Ray cluster leave."""
    ray: RayConfig = Field(default_factory=RayConfig)

    @property
    def longest_make_s(self) -> float:
        """Longest making of an environment."""
        return self.env_timeout_s if self.make_timeout_s is None else self.make_timeout_s

    @model_validator(mode="after")
    def _workers_fit_manager(self) -> Self:
        if self.manager == "thread" and self.workers:
            raise ValueError(
                f"rollout.workers is {self.workers}, but rollout.manager 'thread' has no workers; set rollout.manager "
                "to 'process' or 'ray', or leave rollout.workers out"
            )
        if self.manager != "ray" and self.ray != RayConfig():
            raise ValueError(
                f"rollout.ray is set, but rollout.manager is {self.manager!r}; set rollout.manager to 'ray' or leave "
                "rollout.ray out"
            )
        return self

    @model_validator(mode="after")
    def _mode_fits(self) -> Self:
        if self.mode == "sync" and self.max_staleness != 1:
            raise ValueError(
                f"rollout.max_staleness is {self.max_staleness}, but in rollout.mode sync a step learns from what it "
                "has just played; set rollout.mode to 'overlap' or 'async', or leave rollout.max_staleness out"
            )
        if self.redundancy and self.mode != "sync":
            raise ValueError(
                f"rollout.redundancy {self.redundancy} is for rollout.mode sync; in mode {self.mode} late groups go "
                "on, and rollout.max_staleness says how long"
            )
        return self


class OptimizerConfig(PartSection):
    """The optimiser of both phases, and its schedule in the reinforcement-learning phase; its own settings too."""

    name: str = "adamw"
    """Registered optimiser. Default: as every trainer."""
    lr: Annotated[float, Field(ge=0)] = 1e-4
    """Peak learning rate; 0 leaves the model as it is.
    Default: ours, for the small model; 1e-6 is usual for large ones."""
    lr_schedule: Literal["constant", "linear", "cosine", "wsd"] = "constant"
    """Decay after the warm-up; wsd is stable until the last lr_decay_share of the steps. Default: verl."""
    lr_warmup_steps: Count = 0
    """Steps of linear warm-up. Default: verl."""
    lr_min_share: Share = 0.05
    """Share of the peak at which a decaying schedule ends. Default: ours."""
    lr_decay_share: Share = 0.2
    """Share of the steps after the warm-up in which wsd decays.
    Default: Hu et al. 2024 (MiniCPM) decay the last tenth to fifth."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Gradient clipping. Default: as every trainer."""
    skip_norm: Annotated[float, Field(gt=0)] | None = None
    """A step whose gradient norm is above this, or not finite, is skipped; null: only the latter.
    Default: only steps that are not finite."""
    max_skipped: Count = 5
    """Skipped steps in a row before the next one stops the run. Default: ours."""


class LearnerConfig(PartSection):
    """How sequences become optimiser steps; the backend's own settings stand in this section too."""

    backend: str = "torch"
    """Registered learner backend. Default: the only one that needs nothing else."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the learner computes; auto is a GPU where there is one. Default: where it is quickest."""
    minibatches: Positive = 1
    """Optimiser steps per training step (sequences are dealt out evenly). Default: on policy."""
    epochs: Positive = 1
    """Passes over the sequences of a training step. Default: on policy."""
    pack_tokens: Positive = 512
    """Tokens that sequences are packed into; a longer sequence stands alone.
    Default: memory and speed alone; changes nothing else."""
    tokens_per_microbatch: Positive = 8192
    """Tokens per forward and backward pass. Default: memory and speed alone; changes nothing else."""


class EvaluationConfig(Section):
    """Held-out tasks: the same at every evaluation, sampled at the training temperature."""

    tasks: Positive = 256
    """Number of held-out tasks."""
    every: Count = 0
    """Also evaluate every so many training steps; 0: before and after only."""


class CheckpointConfig(Section):
    """Saving for resume."""

    every: Count = 10
    """Save every so many training steps (and at the end); 0: at the end only."""
    asynchronous: bool = False
    """Training goes on while a checkpoint is written: it waits only until weights and optimiser are copied in memory
    (time/checkpoint_s), which is then needed twice. With several ranks each has its share of the copy."""
    keep: Positive = 2
    """Checkpoints that are kept: the last one of each of so many newest steps."""
    keep_best: Count = 0
    """Also keep so many of the checkpoints with the highest held-out success (saved at each evaluation)."""


class RunConfig(Section):
    """One run, complete by itself."""

    format: Literal[1]
    """Version of the configuration schema."""
    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Name of the run, part of its folder's name."""
    seed: Seed = 0
    """Seed of everything: weights, tasks, sampling, batches."""
    steps: Count
    """Training steps of the reinforcement-learning phase."""
    algorithm: str | None = None
    """A published recipe whose settings stand where this file says nothing; docs/algorithms.md."""
    output: str = "runs"
    """Folder in which the run's own folder is made."""
    cluster: Literal["local", "ray"] = "local"
    """Where the learner's ranks run: on this machine, or as actors of a Ray cluster. rollout.manager says it of the
    environments."""
    records: Literal["all", "train", "evaluation", "none"] = "all"
    """Whose episodes are recorded in full, in episodes/stream.jsonl.gz; docs/read_a_run.md."""
    env: EnvConfig | None = None
    envs: tuple[MixedEnvConfig, ...] = Field(default=(), validate_default=True)
    curriculum: CurriculumConfig = Field(default_factory=CurriculumConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    context: ContextConfig = Field(default_factory=ContextConfig)
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    engine: EngineConfig = Field(default_factory=EngineConfig)
    warm_start: WarmStartConfig = Field(default_factory=WarmStartConfig)
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    reward: RewardConfig = Field(default_factory=RewardConfig)
    filter: FilterConfig = Field(default_factory=FilterConfig)
    mask: MaskConfig = Field(default_factory=MaskConfig)
    advantage: AdvantageConfig = Field(default_factory=AdvantageConfig)
    loss: LossConfig = Field(default_factory=LossConfig)
    correction: CorrectionConfig = Field(default_factory=CorrectionConfig)
    critic: CriticConfig = Field(default_factory=CriticConfig)
    reference: ReferenceConfig = Field(default_factory=ReferenceConfig)
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    learner: LearnerConfig = Field(default_factory=LearnerConfig)
    judges: dict[JudgeName, JudgeConfig] = Field(default_factory=dict)
    """Language models that this run serves for its verifiers, by name; docs/verifiers.md."""
    placement: PlacementConfig = Field(default_factory=PlacementConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)

    @property
    def environments(self) -> tuple[MixedEnvConfig, ...]:
        """The environments of the run; one that stands alone is a mix of itself."""
        return self.envs if self.env is None else (MixedEnvConfig(**dict(self.env)),)

    @property
    def environment_words(self) -> str:
        """What is played, in a word: the id, or the names of a mix."""
        return " + ".join(env.short_name for env in self.envs) if self.env is None else self.env.id

    @property
    def evaluation_episodes(self) -> int:
        """Held-out tasks of all environments together."""
        return sum(env.evaluation_tasks or self.evaluation.tasks for env in self.environments)

    def filter_of(self, env: MixedEnvConfig) -> FilterConfig:
        """The section filter as it is for ``env``. Raises pydantic's ValidationError where the two do not fit."""
        changed = {key: value for key, value in env.filter.model_dump().items() if value is not None}
        return FilterConfig(**{**self.filter.model_dump(), **changed})

    @field_validator("envs")
    @classmethod
    def _one_environment_or_a_mix(
        cls, envs: tuple[MixedEnvConfig, ...], info: ValidationInfo
    ) -> tuple[MixedEnvConfig, ...]:
        check_environments(info.data.get("env", ...), envs)
        return envs

    @model_validator(mode="after")
    def _sections_fit(self) -> Self:
        problems = []
        counts = self.engine.counts_tokens
        if counts and self.model.path is None and self.engine.max_tokens > self.model.max_positions:
            problems.append(
                f"engine.max_tokens {self.engine.max_tokens} is more than model.max_positions "
                f"{self.model.max_positions}; the model has no position for the last tokens"
            )
        if counts and self.sampling.max_new_tokens >= self.engine.max_tokens:
            problems.append(
                f"sampling.max_new_tokens {self.sampling.max_new_tokens} leaves no room for a prompt in "
                f"engine.max_tokens {self.engine.max_tokens}"
            )
        problems += correction_problems(self.loss, self.correction)
        problems += self._problems_of_the_mix()
        if self.warm_start.optimizer is not None:
            try:
                OPTIMIZERS.find(self.warm_start.optimizer)
            except RollError as error:
                problems.append(f"warm_start.optimizer: {error}")
        roles = {name: self.backend_of(name) for name in ROLES}
        problems += placement_problems(self.cluster, self.placement, manager=self.rollout.manager, backends=roles)
        problems += self._problems_of_roles(roles)
        if self.cluster == self.rollout.manager == "ray" and self.placement.address != self.rollout.ray.address:
            problems.append(
                f"placement.address is {self.placement.address!r} and rollout.ray.address "
                f"{self.rollout.ray.address!r}; a run is on one Ray cluster: give both the same"
            )
        if problems:
            raise ValueError("\n".join(problems))
        return self

    @property
    def warm_optimizer(self) -> OptimizerConfig:
        """The optimiser of the warm start."""
        name = self.warm_start.optimizer
        return self.optimizer if name is None else self.optimizer.model_copy(update={"name": name})

    def without(self, role: RoleName) -> str:
        """Why training has no reference, or no critic; "" where it has one."""
        if role == "reference":
            return "" if self.reward.kl_coef or self.loss.kl_coef else "loss.kl_coef and reward.kl_coef are 0"
        name = self.advantage.name
        return "" if ESTIMATORS.find(name).needs_values else f"advantage.name {name!r} needs no critic"

    def backend_of(self, role: RoleName) -> str:
        """The learner backend that the reference or the critic is in."""
        return getattr(self, role).backend or self.learner.backend

    def _problems_of_roles(self, roles: Mapping[RoleName, str]) -> list[str]:
        problems = []
        offloads = getattr(self.learner, "offload", "never") == "between_steps"  # a setting that some backends have
        for name, backend in roles.items():
            if backend == self.learner.backend:
                continue
            try:
                BACKENDS.find(backend)
            except RollError as error:
                problems.append(f"{name}.backend: {error}")
                continue
            if offloads:
                problems.append(
                    f"{name}.backend is {backend!r}, whose networks do not leave the device with learner.offload "
                    "'between_steps'; leave one of the two out"
                )
        return problems

    def _problems_of_the_mix(self) -> list[str]:
        problems = []
        if self.curriculum.by != "none" and len(self.environments) < 2:
            problems.append(
                f"curriculum.by is {self.curriculum.by!r}, but there is one environment; list several in envs"
            )
        for i, env in enumerate(self.envs):
            if self.engine.counts_tokens and (env.max_new_tokens or 0) >= self.engine.max_tokens:
                problems.append(
                    f"envs[{i}].max_new_tokens {env.max_new_tokens} leaves no room for a prompt in "
                    f"engine.max_tokens {self.engine.max_tokens}"
                )
            if env.observation_template is not None and self.context.kind == "function":
                problems.append(f"envs[{i}].observation_template has no effect when context.kind is 'function'")
            try:
                self.filter_of(env)
            except ValidationError as error:
                problems += [f"envs[{i}] with its filter: {each['ctx']['error']}" for each in error.errors()]
        return problems
