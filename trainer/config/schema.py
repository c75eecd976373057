"""The configuration of a run: one frozen tree of models, each field with its default and one sentence.

Checks raise and never rewrite. Reading YAML, overrides and error messages live in :mod:`trainer.config.load`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from trainer.config.algorithm import (
    AdvantageConfig,
    CorrectionConfig,
    Count,
    CriticConfig,
    FilterConfig,
    LossConfig,
    MaskConfig,
    Positive,
    ReferenceConfig,
    RewardConfig,
    Section,
    Share,
    correction_problems,
)

__all__ = [
    "FORMAT",
    "AdvantageConfig",
    "CheckpointConfig",
    "ContextConfig",
    "CorrectionConfig",
    "CriticConfig",
    "EngineConfig",
    "EnvConfig",
    "EvaluationConfig",
    "FilterConfig",
    "LearnerConfig",
    "LossConfig",
    "MaskConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ReferenceConfig",
    "RewardConfig",
    "RolloutConfig",
    "RunConfig",
    "SamplingConfig",
    "WarmStartConfig",
]

FORMAT = 1
"""Version of this schema; a YAML file of another version is refused with what to do."""

Seconds = Annotated[float, Field(gt=0)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"


class EnvConfig(Section):
    """Which environment is played."""

    id: str = Field(description="Registered environment id, e.g. roll/FrozenLake-v0.")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the environment.")


class ModelConfig(Section):
    """The policy model: built here from a seed, or loaded from a folder."""

    path: str | None = Field(None, description="Folder of a Hugging Face model and tokenizer; null builds a small one.")
    architecture: Literal["llama", "qwen2"] = Field("llama", description="Family of the small model.")
    hidden_size: Positive = Field(96, description="Width of the small model.")
    layers: Positive = Field(3, description="Number of layers of the small model.")
    heads: Positive = Field(4, description="Attention heads of the small model.")
    mlp_ratio: Annotated[float, Field(gt=0)] = Field(3.0, description="Width of the MLP over the width of the model.")
    rope_theta: Annotated[float, Field(gt=0)] = Field(
        30.0, description="Base of the rotary positions of the small model; small, since its sequences are short."
    )
    init_std: Annotated[float, Field(gt=0)] = Field(
        0.1, description="Standard deviation of the small model's first weights."
    )
    max_positions: Positive = Field(1024, description="Longest sequence in tokens.")

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.hidden_size % self.heads:
            raise ValueError(
                f"model.hidden_size {self.hidden_size} is not a multiple of model.heads {self.heads}; "
                f"allowed: a multiple, such as {self.heads * max(1, round(self.hidden_size / self.heads))}"
            )
        if (self.hidden_size // self.heads) % 2:
            raise ValueError(
                f"model.hidden_size {self.hidden_size} over model.heads {self.heads} gives heads of odd width "
                f"{self.hidden_size // self.heads}; rotary positions need an even width per head"
            )
        return self


class ContextConfig(Section):
    """What the next prompt shows of the episode so far."""

    kind: Literal["everything", "last", "function"] = Field("everything", description="All turns, the last k, or code.")
    turns: Count = Field(1, description="k of kind 'last': how many past turns are shown beside the observation.")
    function: str | None = Field(None, description="module:name of a context function, for kind 'function'.")
    system_prompt: str | None = Field(None, description="Replaces the environment's instructions; '' leaves them out.")
    observation_template: str | None = Field(
        None, description="Text of each user message, with {observation} in it; null is the observation alone."
    )
    template: dict[str, Any] = Field(
        default_factory=dict, description="Variables of the chat template, e.g. {enable_thinking: false}."
    )

    @field_validator("observation_template")
    @classmethod
    def _template_shows_the_observation(cls, value: str | None) -> str | None:
        if value is not None and "{observation}" not in value:
            raise ValueError(f"context.observation_template is {value!r}; it must have {{observation}} in it")
        return value

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

    temperature: Annotated[float, Field(gt=0)] = Field(1.0, description="Sampling temperature.")
    max_new_tokens: Positive = Field(16, description="Longest answer of one turn, in tokens.")


class EngineConfig(Section):
    """The inference engine."""

    name: str = Field("hf", description="Registered engine; 'hf' is the built-in one.")
    max_running: Positive = Field(128, description="Requests that share one forward pass.")
    max_tokens: Positive = Field(1024, description="Longest prompt + answer a request may have, in tokens.")


class WarmStartConfig(Section):
    """Supervised learning on demonstrations of a poor teacher, before reinforcement learning."""

    steps: Count = Field(0, description="Optimiser steps; 0 leaves the phase out.")
    episodes_per_step: Positive = Field(64, description="Demonstration episodes per optimiser step.")
    oracle_share: Share = Field(0.3, description="How often the teacher plays the oracle's action; else a random one.")
    lr: Annotated[float, Field(ge=0)] = Field(1e-3, description="Peak learning rate.")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field("cosine", description="Decay after the warm-up.")
    lr_warmup_steps: Count = Field(20, description="Steps of linear warm-up.")


class RolloutConfig(Section):
    """Collecting episodes."""

    groups_per_step: Positive = Field(16, description="Tasks per training step.")
    group_size: Positive = Field(8, description="Episodes per task, all from the same start.")
    max_running: Positive = Field(128, description="Episodes that run at the same time.")
    attempts: Positive = Field(3, description="Starts of an episode before a failure of ours is final.")
    turn_timeout_s: Seconds = Field(120.0, description="Longest wait for one answer of the engine.")
    env_timeout_s: Seconds = Field(60.0, description="Longest reset or step of an environment.")
    episode_timeout_s: Seconds = Field(600.0, description="Longest episode.")
    max_failed_share: Share = Field(0.5, description="A step with more failed episodes than this stops the run.")


class OptimizerConfig(Section):
    """The optimiser of both phases, and its schedule in the reinforcement-learning phase."""

    name: Literal["adamw", "muon"] = Field(
        "adamw", description="muon orthogonalises the updates of inner matrices; AdamW does the rest."
    )
    lr: Annotated[float, Field(ge=0)] = Field(1e-4, description="Peak learning rate; 0 leaves the model as it is.")
    lr_schedule: Literal["constant", "linear", "cosine", "wsd"] = Field(
        "constant", description="Decay after the warm-up; wsd is stable until the last lr_decay_share of the steps."
    )
    lr_warmup_steps: Count = Field(0, description="Steps of linear warm-up.")
    lr_min_share: Share = Field(0.05, description="Share of the peak at which a decaying schedule ends.")
    lr_decay_share: Share = Field(0.2, description="Share of the steps after the warm-up in which wsd decays.")
    betas: tuple[Share, Share] = Field((0.9, 0.95), description="AdamW betas.")
    weight_decay: Annotated[float, Field(ge=0)] = Field(
        0.0, description="Weight decay of matrices; biases and norms have none."
    )
    decay_embeddings: bool = Field(True, description="Weight decay of the embedding and the head too.")
    max_grad_norm: Annotated[float, Field(gt=0)] = Field(1.0, description="Gradient clipping.")
    skip_norm: Annotated[float, Field(gt=0)] | None = Field(
        None, description="A step whose gradient norm is above this, or not finite, is skipped; null: only the latter."
    )
    max_skipped: Count = Field(5, description="Skipped steps in a row before the next one stops the run.")


class LearnerConfig(Section):
    """How rows become optimiser steps."""

    backend: str = Field("torch", description="Registered learner backend.")
    minibatches: Positive = Field(1, description="Optimiser steps per training step (rows are dealt out evenly).")
    epochs: Positive = Field(1, description="Passes over the rows of a training step.")
    pack_tokens: Positive = Field(512, description="Length of a packed row; a longer row stands alone.")
    tokens_per_microbatch: Positive = Field(8192, description="Tokens per forward and backward pass.")
    threads: Count = Field(
        0, description="Micro-batches side by side, and torch threads of the engine; 0 chooses by size."
    )
    attention: Literal["auto", "sdpa", "flash", "flex"] = Field(
        "auto", description="Kernel for packed rows; flash and flex need CUDA, auto is flash where it runs, else sdpa."
    )
    logits_mib: Annotated[float, Field(gt=0)] = Field(
        256.0, description="Memory for logits per micro-batch, in MiB; more are computed in pieces, and twice."
    )
    gradient_checkpointing: bool = Field(
        False, description="Keep only the inputs of layers and compute the rest twice: less memory, more time."
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="Of weights and activations; bfloat16 has float32 master copies in the optimiser."
    )
    lora_rank: Count = Field(
        0, description="Rank of the adapters that are trained instead of the weights; 0 trains the weights."
    )
    lora_alpha: Annotated[float, Field(gt=0)] = Field(
        32.0, description="Adapters are scaled by lora_alpha / lora_rank."
    )
    lora_targets: tuple[str, ...] = Field(
        (), description="Adapted layers by the ends of their names, e.g. q_proj; none: all linear layers but the head."
    )


class EvaluationConfig(Section):
    """The held-out panel: the same tasks at every evaluation, sampled at the training temperature."""

    tasks: Positive = Field(256, description="Number of held-out tasks.")
    every: Count = Field(0, description="Also evaluate every so many training steps; 0: before and after only.")


class CheckpointConfig(Section):
    """Saving for resume."""

    every: Count = Field(10, description="Save every so many training steps (and at the end); 0: at the end only.")
    keep: Positive = Field(2, description="Newest checkpoints that are kept.")
    keep_best: Count = Field(
        0, description="Also keep so many of the checkpoints with the highest held-out success (saved at each panel)."
    )


class RunConfig(Section):
    """One run, complete by itself."""

    format: Literal[1] = Field(description="Version of the configuration schema.")
    name: Annotated[str, Field(pattern=NAME_PATTERN)] = Field(description="Name of the run, part of its folder's name.")
    seed: Seed = Field(0, description="Seed of everything: weights, tasks, sampling, batches.")
    steps: Count = Field(description="Training steps of the reinforcement-learning phase.")
    algorithm: str | None = Field(
        None, description="A published recipe whose settings stand where this file says nothing; docs/algorithms.md."
    )
    output: str = Field("runs", description="Folder in which the run's own folder is made.")
    cluster: Literal["local"] = Field("local", description="Where the parts run: all in this process.")
    env: EnvConfig
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
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)

    @model_validator(mode="after")
    def _sections_fit(self) -> Self:
        problems = []
        if self.model.path is None and self.engine.max_tokens > self.model.max_positions:
            problems.append(
                f"engine.max_tokens {self.engine.max_tokens} is more than model.max_positions "
                f"{self.model.max_positions}; the model has no position for the last tokens"
            )
        if self.sampling.max_new_tokens >= self.engine.max_tokens:
            problems.append(
                f"sampling.max_new_tokens {self.sampling.max_new_tokens} leaves no room for a prompt in "
                f"engine.max_tokens {self.engine.max_tokens}"
            )
        problems += correction_problems(self.loss, self.correction)
        if problems:
            raise ValueError("\n".join(problems))
        return self
