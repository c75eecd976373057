"""The plain PyTorch learner: micro-batches in, one optimiser step out. Blind to algorithms and to environments.

It knows ids, masks, advantages and log-probabilities only. Losses are divided by denominators of the whole step, so the
update does not depend on how rows were cut into micro-batches.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch

from roll_envs.errors import CheckpointError, RollError
from roll_envs.types import Metrics
from trainer.backends.torch_critic import TorchCritic
from trainer.batching import Batch, Denominators, attention_mask
from trainer.config import CorrectionConfig, CriticConfig, LossConfig, OptimizerConfig
from trainer.losses import entropy, label_logprobs, policy_loss
from trainer.model import LanguageModel
from trainer.optimizers import OPTIMIZERS

__all__ = ["TorchLearner", "TorchScorer"]


class _Part(NamedTuple):
    """What one micro-batch adds to a step."""

    gradients: tuple[torch.Tensor, ...]
    logp: torch.Tensor
    loss: float
    metrics: dict[str, torch.Tensor]


def _forward(network: Any, batch: Batch, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of the labels [B, T] (0 where masked) and logits [n, V] at the n positions that have one."""
    hidden = network.base_model(
        input_ids=batch.ids,
        attention_mask=attention_mask(batch.segments),
        position_ids=batch.positions,
        use_cache=False,
    ).last_hidden_state
    logits = network.lm_head(hidden[batch.label_mask])
    chosen = label_logprobs(logits, batch.labels[batch.label_mask], temperature)
    blank = torch.zeros(batch.ids.shape, dtype=chosen.dtype, device=chosen.device)
    return blank.masked_scatter(batch.label_mask, chosen), logits


class TorchScorer:
    """A frozen policy: the reference of KL terms."""

    def __init__(self, network: Any, temperature: float) -> None:
        """``network`` is copied."""
        self._network = copy.deepcopy(network).requires_grad_(False)
        self._temperature = temperature

    def score(self, batches: Sequence[Batch]) -> list[torch.Tensor]:
        """Log-probs of the labels at the sampling temperature, [B, T] per batch."""
        with torch.inference_mode():
            return [_forward(self._network, batch, self._temperature)[0] for batch in batches]

    def weights(self) -> dict[str, torch.Tensor]:
        """The weights, by the names of the network's state dict (views, not copies)."""
        return dict(self._network.state_dict())

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Take other weights. Raises :class:`CheckpointError` when they do not fit."""
        try:
            self._network.load_state_dict(dict(weights))
        except RuntimeError as error:
            raise CheckpointError(f"the checkpoint's reference does not fit the configured model: {error}") from error


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
        threads: int = 1,
    ) -> None:
        """``threads`` micro-batches are run side by side, each on one core; their gradients are added in order, so
        that the number of threads changes nothing. On small models this beats threads inside each operation."""
        self._network = model.network.train()
        self._loss, self._temperature = loss, temperature
        self._correction = correction or CorrectionConfig()
        self._max_grad_norm = optimizer.max_grad_norm
        self._parameters = [p for p in self._network.parameters() if p.requires_grad]
        self._pool = (
            ThreadPoolExecutor(threads, "learner", initializer=torch.set_num_threads, initargs=(1,))
            if threads > 1
            else None
        )
        self._optimizers = OPTIMIZERS[optimizer.name](self._network, optimizer)

    def score(self, batches: Sequence[Batch]) -> list[torch.Tensor]:
        """Log-probs of the labels under the current weights at the sampling temperature, [B, T] per batch."""
        with torch.inference_mode():
            return [_forward(self._network, batch, self._temperature)[0] for batch in batches]

    def step(
        self, batches: Sequence[Batch], denominators: Denominators, *, lr: float, on_policy: bool = False
    ) -> tuple[Metrics, list[torch.Tensor]]:
        """One optimiser step over all of ``batches``; returns metrics and the log-probs before the step.

        ``on_policy`` takes the ratio to the current policy itself (exactly 1): right when the rows were sampled by
        these very weights and this is the only step on them. Raises :class:`RollError` when the gradient is not finite;
        the weights are then as before.
        """
        self._network.zero_grad(set_to_none=True)
        sums: dict[str, torch.Tensor] = {}
        before: list[torch.Tensor] = []
        total, seen = 0.0, 0
        for batch, part in zip(batches, self._parts(batches, denominators, on_policy), strict=True):
            for parameter, gradient in zip(self._parameters, part.gradients, strict=True):
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
            before.append(part.logp)
            total += part.loss
            seen += int(batch.label_mask.sum())
            for name, value in part.metrics.items():
                sums[name] = sums.get(name, torch.zeros(())) + value
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self._max_grad_norm))
        if not math.isfinite(norm):
            raise RollError(
                f"the gradient norm is {norm}; the step was not taken. "
                "Lower optimizer.lr (or warm_start.lr) in the config.yaml of the run's folder and resume"
            )
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
        # Means over the tokens that were run; rows left out by the caller have no numbers.
        result = {name: float(value) / max(seen, 1) for name, value in sums.items()}
        return {**result, "loss/total": total, "learner/grad_norm": norm, "learner/lr": lr}, before

    def _parts(self, batches: Sequence[Batch], denominators: Denominators, on_policy: bool) -> Iterator[_Part]:
        """The share of every micro-batch, in order; on several threads when there are some."""
        if self._pool is None:
            yield from (self._part(batch, denominators, on_policy) for batch in batches)
        else:
            yield from self._pool.map(lambda batch: self._part(batch, denominators, on_policy), batches)

    def _part(self, batch: Batch, denominators: Denominators, on_policy: bool) -> _Part:
        logp, logits = _forward(self._network, batch, self._temperature)
        with torch.set_grad_enabled(self._loss.entropy_coef != 0):
            spread = entropy(logits, self._temperature)
            entropies = torch.zeros_like(logp).masked_scatter(batch.label_mask, spread)
        used = batch.with_old_logprobs(logp.detach()) if on_policy else batch
        loss, metrics = policy_loss(self._loss, used, logp, denominators, entropies, correction=self._correction)
        gradients = torch.autograd.grad(loss, self._parameters)
        return _Part(gradients=gradients, logp=logp.detach(), loss=float(loss.detach()), metrics=metrics)

    def weights(self) -> dict[str, torch.Tensor]:
        """The current weights, by the names of the network's state dict (views, not copies)."""
        return {name: value.detach() for name, value in self._network.state_dict().items()}

    def optimizer_state(self) -> dict[str, Any]:
        """State of the optimiser, for a checkpoint."""
        return {"parts": [part.state_dict() for part in self._optimizers]}

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """Put the optimiser back to a saved state."""
        for part, saved in zip(self._optimizers, state["parts"], strict=True):
            part.load_state_dict(saved)

    def reference(self) -> TorchScorer:
        """A frozen copy of the current policy."""
        return TorchScorer(self._network, self._temperature)

    def critic(self, config: CriticConfig) -> TorchCritic:
        """A critic whose body begins as a copy of the current policy's."""
        return TorchCritic(self._network, config)
