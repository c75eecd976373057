"""The learner of the Megatron-Core backend: log-probs over a vocabulary that is cut, and steps of policy and critic.

Every rank is given micro-batches of its own, as in every backend. Those of a team of ranks (``tensor_parallel`` times
``pipeline_parallel`` times ``context_parallel``) are run by all of them, one after the other.

Left out: adapters, and optimisers that need whole matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import distributed
from torch.utils.checkpoint import checkpoint

from roll_envs.errors import CheckpointError, ConfigError, RollError
from roll_envs.types import Metrics
from trainer.algorithms.losses.objective import make_objective
from trainer.config import CorrectionConfig, CriticConfig, LossConfig, OptimizerConfig
from trainer.data.batches import Batch, Denominators
from trainer.learner.critic import value_loss
from trainer.learner.gradients import Ranks, StepGuard
from trainer.learner.megatron import MegatronSettings
from trainer.learner.megatron_grid import Grid, core
from trainer.learner.megatron_mapping import HEAD, Part, parts_of
from trainer.learner.megatron_optimizer import ShardedAdamW
from trainer.learner.megatron_stage import Stage
from trainer.learner.optimizers import saved_parts
from trainer.learner.snapshot import Keep
from trainer.learner.steps import Jobs, jobs_of, microbatch_loss, step_metrics
from trainer.model.attention import choose_attention
from trainer.model.forward import (
    Head,
    head_of,
    label_scores,
    label_states,
    load_weights,
    positions_within,
    spread,
    weights_of,
)
from trainer.model.network import LanguageModel, choose_device


def sharded_logprobs(
    hidden: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor, start: int, group: Any, *, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of ``labels`` [n] and entropies [n] after ``hidden`` [n, D], where this rank has the rows ``weight``
    [v, D] of the head, from id ``start`` on; float32, and the same on all ranks of ``group``.

    Logits stay where they are: ranks tell each other the largest, and then three sums.
    """
    parallel = core().tensor_parallel
    hidden = parallel.copy_to_tensor_model_parallel_region(hidden, group)
    z = (hidden.float() / temperature) @ weight.float().T
    top = z.detach().amax(-1)
    distributed.all_reduce(top, distributed.ReduceOp.MAX, group)
    z = z - top[:, None]
    powers = z.exp()
    here = (labels >= start) & (labels < start + len(weight))
    chosen = z.gather(1, (labels - start).clamp(0, len(weight) - 1)[:, None])[:, 0]
    sums = torch.stack([powers.sum(-1), (powers * z).sum(-1), torch.where(here, chosen, 0.0)])
    total, moment, chosen = parallel.reduce_from_tensor_model_parallel_region(sums, group)
    return chosen - total.log(), total.log() - moment / total


class MegatronScorer:
    """A model cut over ranks, and how it is run over batches; by itself a frozen policy, the reference of KL terms."""

    def __init__(self, stage: Stage, temperature: float, settings: MegatronSettings) -> None:
        self._stage, self._grid = stage, stage.grid
        self._temperature, self._settings = temperature, settings
        weight = next(stage.network.parameters())
        self._attention = choose_attention(settings.attention, weight.device, weight.dtype)

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs of the labels and entropies [B, T]; on the last stage, the others give zeros."""
        stage, grid = self._stage, self._grid
        head = stage.head
        if grid.tensor.count == 1 and head is not None:
            return label_scores(
                stage,
                Head(head),
                batch,
                temperature=self._temperature,
                attention=self._attention,
                logits_mib=self._settings.logits_mib,
                context=grid.context,
            )
        states = label_states(stage, batch, self._attention, grid.context)
        hidden = states.chosen
        if head is None:
            return (torch.zeros(batch.ids.shape, device=grid.device),) * 2
        start = grid.tensor.rank * len(head)
        rows = head[: stage.config.vocab_size - start]
        chunk = positions_within(self._settings.logits_mib, len(rows))
        labels = batch.labels[states.mask]
        parts = [slice(i, i + chunk) for i in range(0, len(labels), chunk)] or [slice(0, 0)]

        def scored(hidden: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return sharded_logprobs(hidden, labels, rows, start, grid.tensor.group, temperature=self._temperature)

        again = len(parts) > 1 and torch.is_grad_enabled()
        found = [
            checkpoint(scored, hidden[p], labels[p], use_reentrant=False, preserve_rng_state=False)
            if again
            else scored(hidden[p], labels[p])
            for p in parts
        ]
        logp, entropy = (spread(torch.cat(column), states.mask, grid.context) for column in zip(*found, strict=True))
        return logp, entropy

    def score(self, batches: Sequence[Batch]) -> list[torch.Tensor]:
        """Log-probs of the labels at the sampling temperature, [B, T] per batch."""
        return scores_of(self._stage, batches, lambda batch: self.forward(batch)[0])

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and whole weights, one at a time; all ranks iterate along."""
        return self._stage.stream(self._stage.parameters)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take other weights, of which all ranks are given all. Raises :class:`CheckpointError` when they do not
        fit."""
        self._stage.load(self._stage.parameters, weights, "the checkpoint's reference")


@torch.no_grad()
def scores_of(stage: Stage, batches: Sequence[Batch], forward: Callable[[Batch], torch.Tensor]) -> list[torch.Tensor]:
    """What ``forward`` gives on the last stage for this rank's batches, [B, T] each."""
    jobs = jobs_of(stage.grid.all, stage.grid.team, batches)
    found: list[torch.Tensor] = []

    def run(i: int) -> None:
        found.append(forward(jobs.batches[i].to(stage.grid.device)))

    stage.pipeline(len(jobs.batches), run)
    return own_of(stage.grid, jobs, found)


def own_of(grid: Grid, jobs: Jobs, found: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Of the results of all micro-batches, which the last stage has, those of this rank."""
    if grid.pipeline.count > 1:
        for tensor in found:
            distributed.broadcast(tensor, group=grid.pipeline.group, group_src=grid.pipeline.count - 1)
    return list(found[jobs.own])


class MegatronLearner:
    """Holds this rank's share of the model being trained, and of the state of its optimiser.

    With one rank the model that was given is kept up to date in place. With several it keeps its first weights, and
    :meth:`weights` is where the trained ones are; what is loaded into it before :meth:`load_optimizer_state` is taken.
    A model without memory (on the meta device) gives its form alone: :meth:`load_weights` fills the shares.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        loss: LossConfig,
        optimizer: OptimizerConfig,
        temperature: float,
        correction: CorrectionConfig | None = None,
        settings: MegatronSettings | None = None,
        threads: int = 1,
        device: str = "auto",
        ranks: Ranks | None = None,
    ) -> None:
        """``threads`` changes nothing: micro-batches are run one after the other.

        Raises :class:`ConfigError` when ``settings`` ask for what this model, these ranks or this machine lack.
        """
        self._settings, self._temperature, self._given = settings or MegatronSettings(), temperature, model.network
        self._objective = make_objective(loss, correction)
        self._ranks = ranks or Ranks()
        parts = parts_of(model.network.config)
        head = head_of(model.network)
        if head.bias is not None or head.softcap is not None:
            raise ConfigError("learner.backend 'megatron' does not know heads with a bias or a soft cap")
        self._grid = Grid(self._settings, self._ranks, choose_device(device))
        self._stage = self._new_stage(parts)
        self._policy = MegatronScorer(self._stage, temperature, self._settings)
        self._empty = next(model.network.parameters()).is_meta
        if not self._empty:
            self._stage.load(self._stage.parameters, weights_of(model.network), "the model")
        self._optimizer = ShardedAdamW(self._stage, optimizer, outer=True)
        self._guard = StepGuard(optimizer, self._ranks)
        self._versions = self._given_versions()

    def _new_stage(self, parts: Sequence[Part], *, value: bool = False) -> Stage:
        network = self._given
        settings = self._settings.model_copy(update={"precision": "float32"}) if value else self._settings
        return Stage(network.config, network.base_model.rotary_emb, settings, self._grid, parts=parts, value=value)

    def score(self, batches: Sequence[Batch]) -> list[torch.Tensor]:
        """Log-probs of the labels under the current weights at the sampling temperature, [B, T] per batch."""
        return self._policy.score(batches)

    def step(
        self, batches: Sequence[Batch], denominators: Denominators, *, lr: float, on_policy: bool = False
    ) -> tuple[Metrics, list[torch.Tensor]]:
        """One optimiser step over the ``batches`` of all ranks, as :meth:`trainer.learner.torch.TorchLearner.step`."""
        jobs = jobs_of(self._grid.all, self._grid.team, batches, denominators)
        self._optimizer.masters.clear_gradients()
        before: list[torch.Tensor] = []
        losses: list[torch.Tensor] = []
        sums: dict[str, float] = {}

        def forward(i: int) -> torch.Tensor | None:
            batch, whole = jobs.batches[i].to(self._grid.device), jobs.denominators[i]
            logp, entropies = self._policy.forward(batch)
            before.append(logp.detach())
            if not self._grid.last:
                return None
            loss, metrics = microbatch_loss(self._objective, batch, (logp, entropies), whole, on_policy=on_policy)
            losses.append(loss.detach())
            for name, value in metrics.items():
                sums[name] = sums.get(name, 0.0) + float(value)
            return loss

        self._stage.pipeline(len(jobs.batches), forward, self._optimizer.add_gradients)
        norm = self._optimizer.reduce_gradients()
        admitted, measured = self._guard.admits(self._optimizer.masters.values, norm)
        if admitted:
            self._optimizer.step(lr)
            self._write_back()
        known = {"total": float(sum(map(float, losses))), **sums} if self._grid.speaks else {}
        seen = sum(int(batch.label_mask.sum()) for batch in batches)
        metrics = step_metrics(self._ranks, known, tokens=seen, norm=measured, lr=lr, admitted=admitted)
        return metrics, own_of(self._grid, jobs, before)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and whole weights in Hugging Face form, one at a time; all ranks iterate along."""
        return self._policy.weights()

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take first weights, of which all ranks are given all, one at a time. Raises :class:`CheckpointError` when
        they do not fit."""
        self._stage.load(self._stage.parameters, weights, "the driver's stream")
        self._optimizer.masters.begin()

    def optimizer_state(self, keep: Keep | None = None) -> dict[str, Any]:
        """State of the optimiser and of float32 copies in the form of the plain PyTorch backend, which resumes from it
        as this one does from its. All ranks take part; those but the first get an empty one, or what they ``keep``."""
        parts, masters = self._optimizer.state(keep)
        return {"parts": [parts], "skipped": self._guard.skipped_in_a_row, **masters} if parts else {}

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """Put the optimiser back; weights that were loaded into the given model are taken before. All ranks take part;
        those but the first may give an empty state.

        Raises :class:`CheckpointError` when the state was saved with another precision or optimiser, or adapters.
        """
        if "lora" in state:
            raise CheckpointError("the checkpoint has LoRA adapters, which learner.backend 'megatron' does not train")
        (saved,) = saved_parts(state or {"parts": [{}]}, 1)
        changed = {name for name, version in self._given_versions().items() if self._versions[name] != version}
        for part in (p for p in self._stage.parts if p.name in changed):
            self._stage.put(self._stage.parameters, part, self._given.get_parameter(part.name).detach())
        self._optimizer.load(saved, state.get("masters", []))
        (skipped,) = self._ranks.most([float(state.get("skipped", 0))])
        self._guard.skipped_in_a_row = int(skipped)
        self._versions = self._given_versions()

    def _given_versions(self) -> dict[str, int]:
        """How often each weight of the given model was written."""
        return {name: weight._version for name, weight in self._given.named_parameters()}

    def _write_back(self) -> None:
        if self._ranks.count == 1 and not self._empty:
            load_weights(self._given, self.weights(), "the trained model")
            self._versions = self._given_versions()

    def reference(self, *, fixed: bool = True) -> MegatronScorer:
        """A frozen policy with the current weights."""
        stage = self._new_stage(self._stage.parts)
        copy_parameters(self._stage, stage)
        stage.network.requires_grad_(False)
        return MegatronScorer(stage, self._temperature, self._settings)

    def critic(self, config: CriticConfig) -> MegatronCritic:
        """A critic whose body begins as a copy of the current policy's."""
        body = [p for p in parts_of(self._given.config) if p.cores != (HEAD,)]
        width = self._given.config.hidden_size
        value = [
            Part("head.weight", ("value_head.weight",), (1, width)),
            Part("head.bias", ("value_head.bias",), (1,)),
        ]
        named = [p._replace(name=p.name.replace("model.", "body.", 1)) for p in body]
        stage = self._new_stage([*named, *value], value=True)
        copy_parameters(self._stage, stage)
        return MegatronCritic(stage, config)


@torch.no_grad()
def copy_parameters(source: Stage, target: Stage) -> None:
    """What both have; the head of a critic becomes 0."""
    for name, parameter in target.parameters.items():
        if name in source.parameters:
            parameter.copy_(source.parameters[name])
        else:
            parameter.zero_()


class MegatronCritic:
    """Holds this rank's share of the value network and of the state of its optimiser (AdamW); float32.

    The head begins at 0, so that the first values are 0 everywhere.
    """

    def __init__(self, stage: Stage, config: CriticConfig) -> None:
        self._stage, self._grid, self._config = stage, stage.grid, config
        adamw = OptimizerConfig(lr=config.lr, max_grad_norm=config.max_grad_norm)
        self._optimizer = ShardedAdamW(stage, adamw, outer=False)

    def _forward(self, batch: Batch) -> torch.Tensor:
        """Values [B, T] at the positions that have a label, 0 elsewhere; on the last stage, the others give zeros."""
        states = label_states(self._stage, batch, context=self._grid.context)
        if not self._grid.last:
            return torch.zeros(batch.ids.shape, device=self._grid.device)
        values = self._stage.network.value_head(states.chosen).squeeze(-1).float()
        return spread(values, states.mask, self._grid.context)

    def score(self, batches: Sequence[Batch]) -> list[torch.Tensor]:
        """The value of the state in which each label was sampled, [B, T] per batch."""
        return scores_of(self._stage, batches, self._forward)

    def step(self, batches: Sequence[Batch], denominators: Denominators, *, lr: float) -> Metrics:
        """One optimiser step; the mean is over the tokens of the whole step, however it was cut.

        Raises :class:`RollError` when the gradient is not finite; the weights are then as before.
        """
        if any(batch.values is None or batch.returns is None for batch in batches):
            raise ValueError("the critic needs values and returns in every batch")
        jobs = jobs_of(self._grid.all, self._grid.team, batches, denominators)
        self._optimizer.masters.clear_gradients()
        sums: dict[str, float] = {}

        def forward(i: int) -> torch.Tensor | None:
            batch = jobs.batches[i].to(self._grid.device)
            values = self._forward(batch)
            if not self._grid.last:
                return None
            if batch.values is None or batch.returns is None or batch.return_mask is None:  # an empty one
                return values.sum() * 0.0
            losses, metrics = value_loss(values, batch.values, batch.returns, batch.return_mask, self._config.clip)
            for name, value in {**metrics, "critic/loss": losses.detach().sum()}.items():
                sums[name] = sums.get(name, 0.0) + float(value)
            return losses.sum() / jobs.tokens

        self._stage.pipeline(len(jobs.batches), forward, self._optimizer.add_gradients)
        norm = self._optimizer.reduce_gradients()
        if self._grid.all.any(not math.isfinite(float(norm))):
            raise RollError(
                f"the critic's gradient norm is {float(norm)}; the step was not taken. Lower critic.lr and resume"
            )
        torch.nn.utils.clip_grads_with_norm_(self._optimizer.masters.values, self._config.max_grad_norm, norm)
        self._optimizer.step(lr)
        counted = self._grid.all.sum(sums if self._grid.speaks else {})
        return {**{name: value / jobs.tokens for name, value in counted.items()}, "critic/grad_norm": float(norm)}

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and whole weights, body and head; all ranks iterate along."""
        return self._stage.stream(self._stage.parameters)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Put saved weights back, of which all ranks are given all. Raises :class:`CheckpointError` when they do not
        fit."""
        self._stage.load(self._stage.parameters, weights, "the checkpoint's critic")

    def optimizer_state(self, keep: Keep | None = None) -> dict[str, Any]:
        """State of the optimiser; all ranks take part, those but the first get an empty one, or what they ``keep``."""
        return self._optimizer.state(keep)[0]

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """Put the optimiser back; all ranks take part, those but the first may give an empty state."""
        self._optimizer.load(state, [])
