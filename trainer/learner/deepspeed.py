"""The learner by DeepSpeed's ZeRO: the numbers of the PyTorch learner, with its memory shared out over the ranks.

Each rank runs micro-batches of its own through the whole model, whose state, gradients and (stage 3) weights stand on
all ranks together (:mod:`trainer.learner.zero`). With stage 3 a model may be given without memory (on the meta device),
and its shares filled from a stream. Adapters, and optimisers that need whole matrices, are left out.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch

from roll_envs.errors import CheckpointError, RollError
from roll_envs.types import Metrics
from trainer.algorithms.losses.objective import make_objective
from trainer.config import CorrectionConfig, CriticConfig, LossConfig, OptimizerConfig
from trainer.data.batches import Batch, Denominators
from trainer.learner import DeepSpeedSettings, Scorer, TorchSettings
from trainer.learner.critic import ValueNetwork, value_loss
from trainer.learner.gradients import DTYPES, Ranks, StepGuard, cast_weights
from trainer.learner.optimizers import saved_parts
from trainer.learner.snapshot import Keep
from trainer.learner.steps import ScoreModule, checkpointed_layers, checkpointing, microbatch_loss, step_metrics
from trainer.learner.torch import TorchScorer
from trainer.learner.zero import ShardedModule, check_optimizer, import_deepspeed
from trainer.model.forward import weights_of
from trainer.model.network import LanguageModel, choose_device


class DeepSpeedLearner:
    """A rank's part in the model being trained and in the state of its optimiser."""

    def __init__(
        self,
        model: LanguageModel,
        *,
        loss: LossConfig,
        optimizer: OptimizerConfig,
        temperature: float,
        correction: CorrectionConfig | None = None,
        settings: DeepSpeedSettings | None = None,
        threads: int = 1,
        device: str = "auto",
        ranks: Ranks | None = None,
    ) -> None:
        """With ``ranks`` the network of ``model`` is taken over and not to be used any more. Without, there is one,
        which trains a copy: ``model`` stays on the CPU, and its weights are what :meth:`load_optimizer_state` goes on
        from. Micro-batches are run one after the other, whatever ``threads`` says.

        Raises :class:`ConfigError` when ``settings`` or ``optimizer`` ask for what this model, backend or machine does
        not have.
        """
        check_optimizer(optimizer)
        self._settings = settings or DeepSpeedSettings()
        self._ranks, self._device = ranks or Ranks(), choose_device(device)
        import_deepspeed(self._ranks, self._device)
        self._objective = make_objective(loss, correction)
        self._temperature = temperature
        self._source = model.network if ranks is None else None
        # Never in training mode: dropout would make other log-probs than the sampler's.
        plain = cast_weights(model.network.eval(), DTYPES[self._settings.precision])
        network = plain if self._source is None else copy.deepcopy(plain)
        self._checkpointed = checkpointed_layers(network) if self._settings.gradient_checkpointing else []
        self._policy = self._sharded(network, optimizer)
        self._guard = StepGuard(optimizer, self._ranks)

    @property
    def _place(self) -> dict[str, Any]:
        return {"settings": self._settings, "ranks": self._ranks, "device": self._device}

    def _sharded(self, network: Any, optimizer: OptimizerConfig | None = None) -> ShardedModule:
        """``network``, trained where there is an optimiser, whose log-probs and entropies are what is run."""
        dtype = next(network.parameters()).dtype
        module = ScoreModule(network, self._temperature, self._settings, self._device, dtype)
        head = network.get_output_embeddings()
        return ShardedModule(module, network, outside=head.parameters(), optimizer=optimizer, **self._place)

    def score(self, batches: Sequence[Batch]) -> list[torch.Tensor]:
        """Log-probs of the labels under the current weights at the sampling temperature, [B, T] per batch."""
        return [logp for logp, _ in self._policy.run(batches)]

    def step(
        self, batches: Sequence[Batch], denominators: Denominators, *, lr: float, on_policy: bool = False
    ) -> tuple[Metrics, list[torch.Tensor]]:
        """One optimiser step, as :meth:`trainer.learner.torch.TorchLearner.step` takes it."""
        denominators = self._ranks.denominators(denominators)
        sums = {"total": 0.0}
        before: list[torch.Tensor] = []

        def loss(batch: Batch, scores: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            before.append(scores[0].detach())
            total, metrics = microbatch_loss(self._objective, batch, scores, denominators, on_policy=on_policy)
            for name, value in {**metrics, "total": total.detach()}.items():
                sums[name] = sums.get(name, 0.0) + float(value)
            return total

        with checkpointing(self._checkpointed):
            self._policy.add_gradients(batches, loss)
        refused, norm = self._policy.step(lr, self._guard.refuses)
        admitted = self._guard.count(refused, norm)
        seen = sum(int(batch.label_mask.sum()) for batch in batches)
        measured = step_metrics(self._ranks, sums, tokens=seen, norm=norm, lr=lr, admitted=admitted)
        return measured, before[: len(batches)]

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and current weights in Hugging Face form, put together one at a time; a collective."""
        return self._policy.weights()

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take first weights, the same on all ranks. Raises :class:`CheckpointError` when they do not fit."""
        self._policy.load_weights(weights, "the driver's stream")

    def optimizer_state(self, keep: Keep | None = None) -> dict[str, Any]:
        """The state of :class:`trainer.learner.torch.TorchLearner` at the same point, on the CPU, whatever the stage
        and the number of ranks: all on rank 0 and nothing on the others, or on the ranks that ``keep`` it. A
        collective."""
        part, masters = self._policy.optimizer_state(keep), self._policy.masters(keep)
        if keep is None and self._ranks.rank:
            return {}
        state = {"parts": [part], "skipped": self._guard.skipped_in_a_row}
        return {**state, **({"masters": masters} if masters else {})}

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """Put back a state that any backend saved, with any number of ranks: all of it on every rank.

        Raises :class:`CheckpointError` when it was saved with another precision or optimiser, or with adapters.
        """
        if "lora" in state:
            raise CheckpointError(
                "the checkpoint has LoRA adapters, which learner.backend 'deepspeed' does not know; resume with the "
                "learner.backend and learner.lora_rank it was saved with"
            )
        (part,) = saved_parts(state, 1)
        if self._source is not None:
            self._policy.load_weights(weights_of(self._source), "the model")
        self._policy.load_optimizer_state(part, state.get("masters", []))
        self._guard.skipped_in_a_row = int(state.get("skipped", 0))

    def reference(self, *, fixed: bool = True) -> Scorer:
        """A frozen policy with the current weights: whole on every rank, or with stage 3 shared out as they are."""
        if self._settings.stage == 3:
            shared = _ShardedScorer(self._sharded(self._policy.form().requires_grad_(False)))
            shared.load_weights(self.weights())
            return shared
        frozen = self._policy.whole_copy().requires_grad_(False)
        settings = TorchSettings(attention=self._settings.attention, logits_mib=self._settings.logits_mib)
        return TorchScorer(frozen.to(self._device), self._temperature, settings)

    def critic(self, config: CriticConfig) -> DeepSpeedCritic:
        """A critic whose body begins as a copy of the current policy's."""
        if self._settings.stage < 3:
            return DeepSpeedCritic(self._policy.whole_copy(), config, **self._place)
        network = self._policy.form()
        prefix, width = f"{network.base_model_prefix}.", network.config.hidden_size
        critic = DeepSpeedCritic(network, config, **self._place)
        body = ((f"body.{n.removeprefix(prefix)}", w) for n, w in self.weights() if n.startswith(prefix))
        head = {"head.weight": torch.zeros(1, width), "head.bias": torch.zeros(1)}
        critic.load_weights(chain(body, head.items()))
        return critic


class _ShardedScorer:
    """A frozen policy whose weights the ranks share."""

    def __init__(self, policy: ShardedModule) -> None:
        self._policy = policy

    def score(self, batches: Sequence[Batch]) -> list[torch.Tensor]:
        return [logp for logp, _ in self._policy.run(batches)]

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self._policy.weights()

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        self._policy.load_weights(weights, "the checkpoint's reference")


class DeepSpeedCritic:
    """A rank's part in the value network and in the state of its optimiser (AdamW)."""

    def __init__(
        self, network: Any, config: CriticConfig, *, settings: DeepSpeedSettings, ranks: Ranks, device: torch.device
    ) -> None:
        """The body of ``network``, a causal language model, is taken over, in float32; its head is not used. Where
        it has no memory, the weights are 0."""
        self._config, self._ranks = config, ranks
        adamw = OptimizerConfig(lr=config.lr, max_grad_norm=config.max_grad_norm)
        values = ValueNetwork(cast_weights(network.base_model, torch.float32))
        self._checkpointed = checkpointed_layers(values["body"]) if settings.gradient_checkpointing else []
        self._values = ShardedModule(values, values, settings=settings, ranks=ranks, device=device, optimizer=adamw)

    def score(self, batches: Sequence[Batch]) -> list[torch.Tensor]:
        """The value of the state in which each label was sampled, [B, T] per batch."""
        return self._values.run(batches)

    def step(self, batches: Sequence[Batch], denominators: Denominators, *, lr: float) -> Metrics:
        """One optimiser step, as :meth:`trainer.learner.critic.TorchCritic.step` takes it.

        Raises :class:`RollError` when the gradient is not finite; the weights are then as before.
        """
        denominators = self._ranks.denominators(denominators)
        sums: dict[str, float] = {}

        def loss(batch: Batch, values: torch.Tensor) -> torch.Tensor:
            if not bool(batch.label_mask.any()):
                return values.sum() * 0.0
            if batch.values is None or batch.returns is None or batch.return_mask is None:
                raise ValueError("the critic needs values and returns in every batch")
            losses, metrics = value_loss(values, batch.values, batch.returns, batch.return_mask, self._config.clip)
            for name, value in {**metrics, "critic/loss": losses.detach().sum()}.items():
                sums[name] = sums.get(name, 0.0) + float(value)
            return losses.sum() / max(denominators.tokens, 1)

        with checkpointing(self._checkpointed):
            self._values.add_gradients(batches, loss)
        refused, norm = self._values.step(lr, lambda norm: self._ranks.any(not math.isfinite(norm)))
        if refused:
            raise RollError(f"the critic's gradient norm is {norm}; the step was not taken. Lower critic.lr and resume")
        result = {name: value / max(denominators.tokens, 1) for name, value in self._ranks.sum(sums).items()}
        return {**result, "critic/grad_norm": norm}

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and current weights, body and head, put together one at a time; a collective."""
        return self._values.weights()

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Put saved weights back. Raises :class:`CheckpointError` when they do not fit."""
        self._values.load_weights(weights, "the checkpoint's critic")

    def optimizer_state(self, keep: Keep | None = None) -> dict[str, Any]:
        """The state of the optimiser, for a checkpoint: on rank 0, or on the ranks that ``keep`` it."""
        return self._values.optimizer_state(keep)

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """Put the optimiser back to a saved state, all of it on every rank."""
        self._values.load_optimizer_state(state)
