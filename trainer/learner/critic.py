"""The critic in plain PyTorch: a network of its own with one number per position, trained by regression on returns."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from roll_envs.errors import RollError
from roll_envs.types import Metrics
from trainer.config import CriticConfig, OptimizerConfig
from trainer.data.batches import Batch, Denominators
from trainer.learner.device_memory import DeviceMemory
from trainer.learner.gradients import Ranks, cast_weights
from trainer.learner.optimizers import make_optimizers, take_step, trained_weights
from trainer.learner.snapshot import Keep, kept_state, own_copy
from trainer.learner.steps import checkpointed_layers, checkpointing, jobs_of
from trainer.model.attention import use_packed_attention
from trainer.model.context import ContextRanks
from trainer.model.forward import label_states, load_weights, spread, weights_of
from trainer.model.network import choose_device


class ValueNetwork(torch.nn.ModuleDict):
    """The body of a language model, and a head that begins at 0, so that the first values are 0 everywhere."""

    def __init__(self, body: Any, context: ContextRanks | None = None) -> None:
        """``body`` is used as it is; the head has its device and precision. The ranks of ``context`` run each batch
        together."""
        use_packed_attention(body)
        first = next(body.parameters())
        head = torch.nn.Linear(int(body.config.hidden_size), 1, dtype=first.dtype, device=first.device)
        torch.nn.init.zeros_(head.weight)
        torch.nn.init.zeros_(head.bias)
        super().__init__({"body": body, "head": head})
        self._context = context

    def forward(self, batch: Batch) -> torch.Tensor:
        """Values [B, T] at the positions that have a label, 0 elsewhere."""
        states = label_states(self["body"], batch, context=self._context)
        return spread(self["head"](states.chosen).squeeze(-1).float(), states.mask, self._context)


class TorchCritic:
    """Holds the value network and the state of its optimiser (AdamW)."""

    def __init__(
        self, network: Any, config: CriticConfig, *, ranks: Ranks | None = None, gradient_checkpointing: bool = False
    ) -> None:
        """``network`` is a causal language model whose body is copied, in float32, and whose head is not used; or a
        :class:`ValueNetwork`, which is used as it is. With ``gradient_checkpointing`` the inside of its layers is
        computed again in backward."""
        self._config, self._ranks = config, ranks or Ranks()
        if not isinstance(network, ValueNetwork):
            network = ValueNetwork(cast_weights(copy.deepcopy(network.base_model), torch.float32))
        self._network = network.eval()
        self._checkpointed = checkpointed_layers(network["body"]) if gradient_checkpointing else []
        self._device = next(network.parameters()).device
        self._parameters = [p for p in self._network.parameters() if p.requires_grad]
        adamw = OptimizerConfig(lr=config.lr, max_grad_norm=config.max_grad_norm)
        self._optimizers = make_optimizers(adamw, trained_weights(self._network))
        self._memory = DeviceMemory(self._device, [self._network], (), self._optimizers)

    def score(self, batches: Sequence[Batch]) -> list[torch.Tensor]:
        """The value of the state in which each label was sampled, [B, T] per batch."""
        with torch.inference_mode():
            return [self._network(batch.to(self._device)) for batch in batches]

    def step(self, batches: Sequence[Batch], denominators: Denominators, *, lr: float) -> Metrics:
        """One optimiser step; the mean is over the tokens of the whole step, however it was cut.

        Raises :class:`RollError` when the gradient is not finite; the weights are then as before.
        """
        if any(batch.values is None or batch.returns is None for batch in batches):
            raise ValueError("the critic needs values and returns in every batch")
        team = self._ranks.team
        # Ranks with fewer micro-batches run empty ones, since backends that share weights exchange them in each; how
        # many, they agree on before the first.
        jobs = jobs_of(self._ranks, team, batches, denominators)
        self._network.zero_grad(set_to_none=True)
        sums: dict[str, float] = {}
        with checkpointing(self._checkpointed):
            for batch in (b.to(self._device) for b in jobs.batches):
                if batch.values is None or batch.returns is None or batch.return_mask is None:  # an empty one
                    torch.autograd.backward(self._network(batch).sum() * 0.0)
                    continue
                losses, metrics = value_loss(
                    self._network(batch), batch.values, batch.returns, batch.return_mask, self._config.clip
                )
                total = losses.sum() / jobs.tokens
                torch.autograd.backward(total)
                for name, value in {**metrics, "critic/loss": losses.detach().sum()}.items():
                    sums[name] = sums.get(name, 0.0) + float(value)
        self._ranks.add_gradients(self._parameters)
        norm = self._ranks.clip_gradients(self._parameters, self._config.max_grad_norm)
        if self._ranks.any(not math.isfinite(norm)):
            raise RollError(f"the critic's gradient norm is {norm}; the step was not taken. Lower critic.lr and resume")
        take_step(self._optimizers, lr)
        counted = self._ranks.sum(sums if team.rank == 0 else {})
        result = {name: value / jobs.tokens for name, value in counted.items()}
        return {**result, "critic/grad_norm": norm}

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and current weights (views, not copies), body and head."""
        return weights_of(self._network)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Put saved weights back. Raises :class:`CheckpointError` when they do not fit."""
        load_weights(self._network, weights, "the checkpoint's critic")

    def optimizer_state(self, keep: Keep | None = None) -> dict[str, Any]:
        """State of the optimiser, for a checkpoint."""
        state = self._optimizers[0].state_dict()
        return state if keep is None else kept_state(state, keep)

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """Put the optimiser back to a saved state."""
        self._optimizers[0].load_state_dict(own_copy(state))

    def offload(self) -> None:
        """Leave the device until :meth:`reload`."""
        self._memory.offload()

    def reload(self) -> None:
        """Be on the device again."""
        self._memory.reload()

    def move(self, device: str) -> None:
        """Be on another device from now on."""
        self._device = choose_device(device)
        self._memory.move(self._device)


def value_loss(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor, clip: float | None
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Loss of each return [..., B, T], 0 where masked out; and sums of metrics. ``returns`` and ``mask`` may have
    leading dimensions that ``values`` [B, T] lack: several returns of one state.

    ``0.5 * max((V - G)^2, (clip(V, V_old - c, V_old + c) - G)^2)`` (Schulman et al. 2017; without the second term where
    ``clip`` is None). V 1, V_old 0, G 2, c 0.2: 0.5 * max(1, 3.24) = 1.62.
    """
    values, old_values, returns = (torch.where(mask, v, 0.0) for v in (values, old_values, returns))
    error = (values - returns).square()
    metrics = {"critic/value": values.detach().sum(), "critic/return": returns.sum()}
    if clip is not None:
        near = torch.maximum(torch.minimum(values, old_values + clip), old_values - clip)
        bounded = (near - returns).square()
        metrics["critic/clip_fraction"] = (bounded > error).sum()
        error = torch.maximum(error, bounded)
    metrics["critic/squared_error"] = (values.detach() - returns).square().sum()
    return 0.5 * error, metrics
