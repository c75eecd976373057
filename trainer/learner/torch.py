"""The plain PyTorch learner: micro-batches in, one optimiser step out. Blind to algorithms and to environments.

It knows ids, masks, advantages and log-probabilities only. Losses are divided by denominators of the whole step, so the
update does not depend on how sequences were cut into micro-batches, or dealt to ranks.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch

from roll_envs.errors import CheckpointError
from roll_envs.types import Metrics
from trainer.algorithms.losses.objective import make_objective
from trainer.config import CorrectionConfig, CriticConfig, LossConfig, OptimizerConfig
from trainer.data.batches import Batch, Denominators
from trainer.learner import Critic, NetworkSettings, Scorer, TorchSettings
from trainer.learner.adapters import AdaptedNetwork
from trainer.learner.critic import TorchCritic
from trainer.learner.device_memory import DeviceMemory
from trainer.learner.gradients import DTYPES, MasterWeights, Ranks, StepGuard, cast_weights, replica_of
from trainer.learner.optimizers import make_optimizers, saved_parts, take_step, trained_weights
from trainer.learner.snapshot import Keep, kept_state, own_copy
from trainer.learner.steps import (
    ScoreModule,
    checkpointed_layers,
    checkpointing,
    jobs_of,
    microbatch_loss,
    step_metrics,
)
from trainer.model.forward import load_weights, weights_of
from trainer.model.network import LanguageModel, choose_device


class TorchScorer:
    """A network and how it is run over batches; by itself a frozen policy, the reference of KL terms."""

    def __init__(self, network: Any, temperature: float, settings: NetworkSettings) -> None:
        """``network`` is used as it is, not copied. Raises :class:`ConfigError` when it has no head that is known."""
        first = next(network.parameters())
        self._network, self._temperature, self._settings = network, temperature, settings
        self._memory = DeviceMemory(first.device, [network])
        self._module = ScoreModule(network, temperature, settings, first.device, first.dtype)

    @property
    def device(self) -> torch.device:
        """Where it is run."""
        return self._memory.device

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs of the labels and entropies [B, T], on this device; 0 where there is no label. A batch on the CPU
        lets a GPU go on with what it has to do."""
        logp, entropies = self._module(batch)
        return logp, entropies

    def score(self, batches: Sequence[Batch]) -> list[torch.Tensor]:
        """Log-probs of the labels at the sampling temperature, [B, T] per batch."""
        with torch.inference_mode():
            return [self.forward(batch)[0] for batch in batches]

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and weights (views, not copies)."""
        return weights_of(self._network)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take other weights. Raises :class:`CheckpointError` when they do not fit."""
        load_weights(self._network, weights, "the checkpoint's reference")

    def offload(self) -> None:
        """Leave the device until :meth:`reload`."""
        self._memory.offload()

    def reload(self) -> None:
        """Be on the device again."""
        self._memory.reload()

    def move(self, device: str) -> None:
        """Be on another device from now on."""
        self._memory.move(choose_device(device))
        dtype = next(self._network.parameters()).dtype
        self._module = ScoreModule(self._network, self._temperature, self._settings, self.device, dtype)


class BaseModel:
    """The policy with its adapters switched off: a fixed reference without weights of its own, in memory or saved."""

    def __init__(self, adapted: AdaptedNetwork, policy: Scorer) -> None:
        self._adapted, self._policy = adapted, policy

    def score(self, batches: Sequence[Batch]) -> list[torch.Tensor]:
        with self._adapted.switched_off():
            return self._policy.score(batches)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """None: the base model is put back with the policy and the adapters' state."""
        return iter(())

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Check those of a checkpoint that has some: earlier releases saved the base model here."""
        found = {name: value.shape for name, value in weights}
        if found and found != {name: value.shape for name, value in self._adapted.weights()}:
            raise CheckpointError("the checkpoint's reference does not fit the configured model")

    def offload(self) -> None:
        """Nothing: it is the policy's memory."""

    def reload(self) -> None:
        """Nothing, as :meth:`offload`."""


class _Result(NamedTuple):
    """What one micro-batch adds to a step."""

    gradients: list[torch.Tensor | None]
    logp: torch.Tensor
    loss: torch.Tensor
    metrics: dict[str, torch.Tensor]


class Worker(NamedTuple):
    """A network, or a replica of it, that one thread runs forward and backward."""

    policy: Any
    """Has ``forward``, ``score`` and ``device`` as :class:`TorchScorer`."""
    parameters: list[torch.nn.Parameter]
    checkpointed: list[Any]
    """Layers whose inside is computed again in backward."""


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
        settings: NetworkSettings | None = None,
        threads: int = 1,
        device: str = "auto",
        ranks: Ranks | None = None,
    ) -> None:
        """``threads`` micro-batches are run side by side, each on one core and on a replica of the network that shares
        its weights; their gradients are added in order, so that the number of threads changes nothing. On small models
        this beats threads inside each operation. Not with ``settings.compile``: which kernels torch makes depends on
        the order of calls, and bits on the kernels. ``model`` is moved to ``device``.

        Raises :class:`ConfigError` when ``settings`` ask for what this model or machine does not have.
        """
        settings = settings or TorchSettings()
        compiled = isinstance(settings, TorchSettings) and settings.compile
        self._objective = make_objective(loss, correction)
        self._temperature, self._settings = temperature, settings
        self._ranks = ranks or Ranks()
        # Never in training mode: dropout would make other log-probs than the sampler's.
        self._network, self._adapted = self._place(model.network.eval(), home := choose_device(device))
        own = self._worker(self._network)  # used for scoring, and for training unless there are threads
        self._policy = own.policy
        self._masters = self._master_weights(own.parameters)
        self._guard = StepGuard(optimizer, self._ranks)
        self._optimizers = make_optimizers(optimizer, trained_weights(self._network, self._masters.values))
        # The network with adapters shares the weights of the plain one.
        self._memory = DeviceMemory(home, [self._plain, self._network], self._masters.values, self._optimizers)
        self._workers: SimpleQueue[Worker] = SimpleQueue()
        self._pool: ThreadPoolExecutor | None = None
        if threads > 1 and not compiled:
            for _ in range(threads):
                self._workers.put(self._worker(replica_of(self._network)))
            self._pool = ThreadPoolExecutor(threads, "learner", initializer=torch.set_num_threads, initargs=(1,))
        else:
            self._workers.put(own)

    def _place(self, network: Any, device: torch.device) -> tuple[Any, AdaptedNetwork | None]:
        """The network that is trained, on its device, and the adapters in it if there are some."""
        self._plain = cast_weights(network.to(device), DTYPES[self._settings.precision])
        adapted = self._with_adapters(self._plain)
        return (self._plain if adapted is None else adapted.network), adapted

    def _with_adapters(self, plain: Any, *, in_place: bool = False) -> AdaptedNetwork | None:
        s = self._settings
        if not s.lora_rank:
            return None
        return AdaptedNetwork(plain, rank=s.lora_rank, alpha=s.lora_alpha, targets=s.lora_targets, in_place=in_place)

    def _master_weights(self, parameters: list[torch.nn.Parameter]) -> MasterWeights:
        return MasterWeights(parameters)

    def _worker(self, network: Any) -> Worker:
        policy = TorchScorer(network, self._temperature, self._settings)
        parameters = [p for p in network.parameters() if p.requires_grad]
        layers = checkpointed_layers(network) if self._settings.gradient_checkpointing else []
        return Worker(policy, parameters, layers)

    def score(self, batches: Sequence[Batch]) -> list[torch.Tensor]:
        """Log-probs of the labels under the current weights at the sampling temperature, [B, T] per batch."""
        found: list[torch.Tensor] = self._policy.score(batches)
        return found

    def step(
        self, batches: Sequence[Batch], denominators: Denominators, *, lr: float, on_policy: bool = False
    ) -> tuple[Metrics, list[torch.Tensor]]:
        """One optimiser step over the ``batches`` of all ranks; returns metrics (of all ranks, the same on each) and
        the log-probs of this rank's batches before the step. ``denominators`` are those of this rank's sequences.

        ``on_policy`` takes the ratio to the current policy itself (exactly 1): right for the first step since the
        proximal log-probs were, or would have been, computed. A step whose gradient is not finite or too large is
        skipped and leaves everything as it was, ``learner/skipped_steps`` is then 1; raises :class:`RollError` after
        too many of them.
        """
        team = self._ranks.team
        jobs = jobs_of(self._ranks, team, batches, denominators)
        self._masters.clear_gradients()
        sums: dict[str, torch.Tensor] = {}
        before: list[torch.Tensor] = []
        losses: list[torch.Tensor] = []
        # Results come in the order of the batches, so that sums have the same bits with any number of threads.
        run = partial(self._microbatch, on_policy=on_policy)
        for found in (map if self._pool is None else self._pool.map)(run, jobs.batches, jobs.denominators):
            self._masters.add_gradients(found.gradients)
            before.append(found.logp)
            losses.append(found.loss)
            for name, value in found.metrics.items():
                sums[name] = sums.get(name, torch.zeros((), device=value.device)) + value
        self._ranks.add_gradients(self._masters.values)
        admitted, norm = self._guard.admits(self._masters.values)
        if admitted:
            take_step(self._optimizers, lr)
            self._masters.write_back()
        seen = sum(int(batch.label_mask.sum()) for batch in batches)
        total = sum(float(loss) for loss in losses)  # here, and not before: a GPU would be waited for each time
        known = {"total": total, **{name: float(value) for name, value in sums.items()}} if team.rank == 0 else {}
        measured = step_metrics(self._ranks, known, tokens=seen, norm=norm, lr=lr, admitted=admitted)
        return measured, before[jobs.own]

    def _microbatch(self, batch: Batch, denominators: Denominators, *, on_policy: bool) -> _Result:
        """Forward and backward; the loss and gradient of a micro-batch without labels are 0."""
        worker = self._workers.get()  # there are as many as threads
        try:
            with checkpointing(worker.checkpointed):
                scores = worker.policy.forward(batch)
                loss, metrics = microbatch_loss(self._objective, batch, scores, denominators, on_policy=on_policy)
                torch.autograd.backward(loss)
            gradients = self._masters.take_gradients(worker.parameters)
        finally:
            self._workers.put(worker)
        return _Result(gradients=gradients, logp=scores[0].detach(), loss=loss.detach(), metrics=metrics)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and current weights in Hugging Face form, one at a time: views, or a layer merged with its adapter;
        with adapters an :class:`~trainer.learner.adapters.AdaptedWeights`."""
        return weights_of(self._network) if self._adapted is None else self._adapted.weights()

    def optimizer_state(self, keep: Keep | None = None) -> dict[str, Any]:
        """State of the optimiser, of adapters and of float32 copies, for a checkpoint."""
        state = {
            "parts": [part.state_dict() for part in self._optimizers],
            "skipped": self._guard.skipped_in_a_row,
            **self._masters.state(),
            **({} if self._adapted is None else {"lora": self._adapted.state()}),
        }
        return state if keep is None else kept_state(state, keep)

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """Put the optimiser, adapters and float32 copies back; the model's weights are loaded before.

        Raises :class:`CheckpointError` when the state was saved with another precision or optimiser, or other adapters.
        """
        parts = saved_parts(state, len(self._optimizers))
        if self._adapted is not None:
            self._adapted.load(state.get("lora", {}))
        elif "lora" in state:
            raise CheckpointError(
                "the checkpoint has LoRA adapters; resume with the learner.lora_rank it was saved with"
            )
        self._masters.load(state)
        for part, saved in zip(self._optimizers, parts, strict=True):
            part.load_state_dict(own_copy(saved))
        self._guard.skipped_in_a_row = int(state.get("skipped", 0))

    def offload(self) -> None:
        """Leave the device until :meth:`reload`: weights, float32 copies, the optimiser's state."""
        self._memory.offload()

    def reload(self) -> None:
        """Be on the device again."""
        self._memory.reload()

    def reference(self, *, fixed: bool = True) -> Scorer:
        """A frozen policy with the current weights; with adapters and ``fixed``, the base model without a copy."""
        if fixed and self._adapted is not None:
            return BaseModel(self._adapted, self._policy)
        frozen = copy.deepcopy(self._plain).requires_grad_(False)
        scorer = TorchScorer(frozen, self._temperature, self._settings)
        scorer.load_weights(self.weights())
        return scorer

    def critic(self, config: CriticConfig) -> Critic:
        """A critic whose body begins as a copy of the current policy's."""
        again = self._settings.gradient_checkpointing
        return TorchCritic(self._plain, config, ranks=self._ranks, gradient_checkpointing=again)
