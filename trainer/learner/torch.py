"""The plain PyTorch learner: micro-batches in, one optimiser step out. Blind to algorithms and to environments.

It knows ids, masks, advantages and log-probabilities only. Losses are divided by denominators of the whole step, so the
update does not depend on how rows were cut into micro-batches.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from roll_envs.errors import CheckpointError, ConfigError
from roll_envs.types import Metrics
from trainer.algorithms.losses.objective import policy_loss
from trainer.config import CorrectionConfig, CriticConfig, LearnerConfig, LossConfig, OptimizerConfig
from trainer.data.batches import Batch, Denominators
from trainer.learner.adapters import AdaptedNetwork
from trainer.learner.critic import TorchCritic
from trainer.learner.optimizers import OPTIMIZERS, trained_weights
from trainer.learner.precision import DTYPES, MasterWeights, cast_weights
from trainer.learner.step_guard import StepGuard
from trainer.model.attention import Kind, choose_attention, use_row_attention
from trainer.model.forward import label_scores
from trainer.model.logprobs import head_of
from trainer.model.network import LanguageModel

__all__ = ["TorchLearner", "TorchScorer"]


class _Part(NamedTuple):
    """What one micro-batch adds to a step."""

    gradients: tuple[torch.Tensor, ...]
    logp: torch.Tensor
    loss: float
    metrics: dict[str, torch.Tensor]


class TorchScorer:
    """A frozen policy: the reference of KL terms."""

    def __init__(self, network: Any, temperature: float, settings: LearnerConfig | None = None) -> None:
        """``network`` is copied."""
        self._network = copy.deepcopy(network).requires_grad_(False)
        self._run = _Run(self._network, temperature, settings or LearnerConfig())

    def score(self, batches: Sequence[Batch]) -> list[torch.Tensor]:
        """Log-probs of the labels at the sampling temperature, [B, T] per batch."""
        return self._run.score(batches)

    def weights(self) -> dict[str, torch.Tensor]:
        """The weights, by the names of the network's state dict (views, not copies)."""
        return dict(self._network.state_dict())

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Take other weights. Raises :class:`CheckpointError` when they do not fit."""
        try:
            self._network.load_state_dict(dict(weights))
        except RuntimeError as error:
            raise CheckpointError(f"the checkpoint's reference does not fit the configured model: {error}") from error


class _Run:
    """A network and how it is run over batches."""

    def __init__(self, network: Any, temperature: float, settings: LearnerConfig) -> None:
        use_row_attention(network)
        try:
            self._head = head_of(network)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        self._network, self._temperature, self._logits_mib = network, temperature, settings.logits_mib
        first = next(network.parameters())
        self.device = first.device
        self.attention: Kind = choose_attention(settings.attention, first.device, first.dtype)

    def __call__(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs of the labels and entropies [B, T]; 0 where there is no label."""
        return label_scores(
            self._network.base_model,
            self._head,
            batch,
            temperature=self._temperature,
            attention=self.attention,
            logits_mib=self._logits_mib,
        )

    def score(self, batches: Sequence[Batch]) -> list[torch.Tensor]:
        with torch.inference_mode():
            return [self(batch.to(self.device))[0] for batch in batches]


class TorchLearner:
    """Holds the model being trained and the state of its optimiser."""

    def __init__(
        self,
        model: LanguageModel,
        *,
        loss: LossConfig,
        optimizer: OptimizerConfig,
        temperature: float,
        correction: CorrectionConfig | None = None,
        settings: LearnerConfig | None = None,
        threads: int = 1,
    ) -> None:
        """``threads`` micro-batches are run side by side, each on one core; their gradients are added in order, so
        that the number of threads changes nothing. On small models this beats threads inside each operation.

        Raises :class:`ConfigError` when ``settings`` ask for what this model or machine does not have.
        """
        settings = settings or LearnerConfig()
        self._loss, self._temperature, self._settings = loss, temperature, settings
        self._correction = correction or CorrectionConfig()
        # Never in training mode: dropout would make other log-probs than the sampler's.
        self._plain = cast_weights(model.network.eval(), DTYPES[settings.precision])
        self._adapted = (
            AdaptedNetwork(
                self._plain, rank=settings.lora_rank, alpha=settings.lora_alpha, targets=settings.lora_targets
            )
            if settings.lora_rank
            else None
        )
        self._network = self._plain if self._adapted is None else self._adapted.network
        self._run = _Run(self._network, temperature, settings)
        self._checkpointed = _checkpointed_layers(self._network) if settings.gradient_checkpointing else []
        self._parameters = [p for p in self._network.parameters() if p.requires_grad]
        self._masters = MasterWeights(self._parameters)
        self._guard = StepGuard(
            max_norm=optimizer.max_grad_norm, skip_norm=optimizer.skip_norm, max_skipped=optimizer.max_skipped
        )
        self._optimizers = OPTIMIZERS[optimizer.name](trained_weights(self._network, self._masters.values), optimizer)
        self._pool = (
            ThreadPoolExecutor(threads, "learner", initializer=torch.set_num_threads, initargs=(1,))
            if threads > 1
            else None
        )

    def score(self, batches: Sequence[Batch]) -> list[torch.Tensor]:
        """Log-probs of the labels under the current weights at the sampling temperature, [B, T] per batch."""
        return self._run.score(batches)

    def step(
        self, batches: Sequence[Batch], denominators: Denominators, *, lr: float, on_policy: bool = False
    ) -> tuple[Metrics, list[torch.Tensor]]:
        """One optimiser step over all of ``batches``; returns metrics and the log-probs before the step.

        ``on_policy`` takes the ratio to the current policy itself (exactly 1): right when the rows were sampled by
        these very weights and this is the only step on them. A step whose gradient is not finite or too large is
        skipped and leaves everything as it was, ``learner/skipped_steps`` is then 1; raises :class:`RollError` after
        too many of them.
        """
        self._masters.clear_gradients()
        sums: dict[str, torch.Tensor] = {}
        before: list[torch.Tensor] = []
        total, seen = 0.0, 0
        with _checkpointing(self._checkpointed):
            for batch, part in zip(batches, self._parts(batches, denominators, on_policy), strict=True):
                self._masters.add_gradients(part.gradients)
                before.append(part.logp)
                total += part.loss
                seen += int(batch.label_mask.sum())
                for name, value in part.metrics.items():
                    sums[name] = sums.get(name, torch.zeros((), device=value.device)) + value
        admitted, norm = self._guard.admits(self._masters.values)
        if admitted:
            for optimizer in self._optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = lr
                optimizer.step()
            self._masters.write_back()
        # Means over the tokens that were run; rows left out by the caller have no numbers.
        result = {name: float(value) / max(seen, 1) for name, value in sums.items()}
        result |= {"loss/total": total, "learner/grad_norm": norm, "learner/lr": lr}
        if not admitted:  # numbers that are not finite would spoil the means of a training step
            result = {name: value for name, value in result.items() if math.isfinite(value)}
        return {**result, "learner/skipped_steps": float(not admitted)}, before

    def _parts(self, batches: Sequence[Batch], denominators: Denominators, on_policy: bool) -> Iterator[_Part]:
        """The share of every micro-batch, in order; on several threads when there are some."""
        if self._pool is None:
            yield from (self._part(batch, denominators, on_policy) for batch in batches)
        else:
            yield from self._pool.map(lambda batch: self._part(batch, denominators, on_policy), batches)

    def _part(self, batch: Batch, denominators: Denominators, on_policy: bool) -> _Part:
        batch = batch.to(self._run.device)
        logp, entropies = self._run(batch)
        used = batch.with_old_logprobs(logp.detach()) if on_policy else batch
        loss, metrics = policy_loss(self._loss, used, logp, denominators, entropies, correction=self._correction)
        gradients = torch.autograd.grad(loss, self._parameters)
        return _Part(gradients=gradients, logp=logp.detach(), loss=float(loss.detach()), metrics=metrics)

    def weights(self) -> dict[str, torch.Tensor]:
        """The current weights, by the names of the plain network's state dict (views where nothing is merged)."""
        if self._adapted is not None:
            return self._adapted.weights()
        return {name: value.detach() for name, value in self._network.state_dict().items()}

    def optimizer_state(self) -> dict[str, Any]:
        """State of the optimiser, of adapters and of float32 copies, for a checkpoint."""
        return {
            "parts": [part.state_dict() for part in self._optimizers],
            "skipped": self._guard.skipped_in_a_row,
            **self._masters.state(),
            **({} if self._adapted is None else {"lora": self._adapted.state()}),
        }

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """Put the optimiser, adapters and float32 copies back; the model's weights are loaded before.

        Raises :class:`CheckpointError` when the state was saved with another precision, or other adapters.
        """
        if self._adapted is not None:
            self._adapted.load(state.get("lora", {}))
        elif "lora" in state:
            raise CheckpointError(
                "the checkpoint has LoRA adapters; resume with the learner.lora_rank it was saved with"
            )
        self._masters.load(state)
        for part, saved in zip(self._optimizers, state["parts"], strict=True):
            part.load_state_dict(saved)
        self._guard.skipped_in_a_row = int(state.get("skipped", 0))

    def reference(self) -> TorchScorer:
        """A frozen copy of the current policy."""
        scorer = TorchScorer(self._plain, self._temperature, self._settings)
        scorer.load_weights(self.weights())
        return scorer

    def critic(self, config: CriticConfig) -> TorchCritic:
        """A critic whose body begins as a copy of the current policy's."""
        return TorchCritic(self._plain, config)


def _checkpointed_layers(network: Any) -> list[Any]:
    """The layers whose inside is computed again in backward. Raises :class:`ConfigError` where there are none."""
    layers = [m for m in network.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            f"learner.gradient_checkpointing: {type(network).__name__} has no layers that can be computed again; "
            "set it to false"
        )
    # Nothing in a layer is random, and the state of the generator is shared by all threads: leave it alone.
    again = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    for layer in layers:
        layer.gradient_checkpointing, layer._gradient_checkpointing_func = True, again
    return layers


@contextmanager
def _checkpointing(layers: Sequence[Any]) -> Iterator[None]:
    """Layers checkpoint in training mode only; copies of the network that score or sample have no use for it."""
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False
