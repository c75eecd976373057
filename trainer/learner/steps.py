"""What backends have in common around the passes of an optimiser step: the module that is run, layers whose inside is
computed again, the loss of a micro-batch, the metrics of the step."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils.checkpoint import checkpoint

from roll_envs.errors import ConfigError
from roll_envs.types import Metrics
from trainer.algorithms.losses.objective import Objective, policy_loss
from trainer.data.batches import Batch, Denominators
from trainer.learner import ComputeSettings, TorchSettings
from trainer.learner.gradients import Ranks
from trainer.model.attention import choose_attention, use_packed_attention
from trainer.model.context import ContextRanks
from trainer.model.forward import compile_layers, head_of, label_scores, layers_of


class ScoreModule(torch.nn.Module):
    """A language model as a module that is called with a batch: all that is run between two exchanges of weights, the
    head's product included."""

    def __init__(
        self,
        network: Any,
        temperature: float,
        settings: ComputeSettings,
        device: torch.device,
        dtype: torch.dtype,
        context: ContextRanks | None = None,
    ) -> None:
        """``network`` is used as it is, run on ``device`` in ``dtype``; the ranks of ``context`` run each batch
        together. Raises :class:`ConfigError` when it has no head that is known, or no layers that could be compiled."""
        super().__init__()
        use_packed_attention(network)
        head_of(network)
        self.network, self._temperature, self._logits_mib = network, temperature, settings.logits_mib
        self._attention = choose_attention(settings.attention, device, dtype)
        self._context = context
        self._compiled = isinstance(settings, TorchSettings) and settings.compile
        if self._compiled:
            compile_layers(network)

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs of the labels and entropies [B, T]; 0 where there is no label."""
        return label_scores(
            self.network.base_model,
            head_of(self.network),  # where weights are put together for a pass, each has a tensor of its own
            batch,
            temperature=self._temperature,
            attention=self._attention,
            logits_mib=self._logits_mib,
            context=self._context,
            compiled=self._compiled,
        )


def checkpointed_layers(network: Any) -> list[Any]:
    """The layers whose inside is computed again in backward. Raises :class:`ConfigError` where there are none."""
    layers = layers_of(network)
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
def checkpointing(layers: Sequence[Any]) -> Iterator[None]:
    """Layers checkpoint in training mode only; copies of the network that score or sample have no use for it."""
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


class Jobs(NamedTuple):
    """What this rank runs: the micro-batches of all ranks of its team, and empty ones so that all run equally many."""

    batches: list[Batch]
    denominators: list[Denominators]
    """Of each: of all ranks, with the sequences of the rank that it came from. Empty where only scores are wanted."""
    own: slice
    """Those that this rank was given."""
    tokens: int
    """What the mean over the tokens of all ranks divides by: at least 1."""


def jobs_of(ranks: Ranks, team: Ranks, batches: Sequence[Batch], own: Denominators | None = None) -> Jobs:
    """The jobs of a pass over the ``batches`` of this rank, ``own`` being the denominators of its sequences."""
    shared = team.gather((list(batches), torch.empty(0) if own is None else own.sequence_tokens))
    everything = [batch for given, _ in shared for batch in given]
    before = sum(len(given) for given, _ in shared[: team.rank])
    empty = ranks.empty_batches(len(everything))
    denominators, tokens = [], 1
    if own is not None:
        total = ranks.denominators(own)
        denominators = [replace(total, sequence_tokens=lengths) for given, lengths in shared for _ in given]
        denominators += [total] * len(empty)
        tokens = max(total.tokens, 1)
    return Jobs(everything + empty, denominators, slice(before, before + len(batches)), tokens)


def microbatch_loss(
    objective: Objective,
    batch: Batch,
    scores: tuple[torch.Tensor, torch.Tensor],
    denominators: Denominators,
    *,
    on_policy: bool,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss of a micro-batch with these log-probs and entropies, and sums of metrics. The batch is on their device,
    or on the CPU. ``on_policy`` takes the ratio to the current policy itself."""
    logp, entropies = scores
    if not bool(batch.label_mask.any()):  # backward all the same: all ranks exchange weights and gradients in it
        return (logp.sum() + entropies.sum()) * 0.0, {}
    batch = batch.to(logp.device)
    used = replace(batch, old_logp=logp.detach()) if on_policy else batch
    return policy_loss(objective, used, logp, denominators, entropies)


def step_metrics(
    ranks: Ranks, sums: Mapping[str, float], *, tokens: int, norm: float, lr: float, admitted: bool
) -> Metrics:
    """The metrics of an optimiser step from this rank's ``sums``, the loss as ``total`` among them, over ``tokens``
    labels. Means are over the tokens that were run; sequences left out by the caller have no numbers."""
    counted = ranks.sum({"tokens": tokens, **sums})
    seen, loss = max(counted.pop("tokens"), 1.0), counted.pop("total")
    result = {name: value / seen for name, value in counted.items()}
    result |= {"loss/total": loss, "learner/grad_norm": norm, "learner/lr": lr}
    if not admitted:  # numbers that are not finite would spoil the means of a training step
        result = {name: value for name, value in result.items() if math.isfinite(value)}
    return {**result, "learner/skipped_steps": float(not admitted)}


def skeleton_of(network: Any) -> Any:
    """A copy of ``network``, with its buffers and ties, whose weights are on the meta device."""
    empty: dict[int, Any] = {
        id(p): torch.nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=p.requires_grad)
        for p in network.parameters()
    }
    return copy.deepcopy(network, memo=empty)
