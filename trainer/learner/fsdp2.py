"""The FSDP2 learner: weights, gradients and the state of the optimiser are cut into one shard for each rank.

A layer's weights are gathered when it is run, forward and backward, and dropped behind it; gradients are summed and
sharded in backward (``torch.distributed.fsdp.fully_shard``; Zhao et al. 2023, arXiv:2304.11277). Every number is the
plain learner's: it takes the same steps on shards. With ``context_parallel``, neighbouring ranks run each other's
micro-batches together (:mod:`trainer.model.context`); the shards are over all ranks. Left out: shards over only some of
the ranks, and tensor parallelism.

A model may be given without memory (on the meta device); its shards are then cut of a stream of weights, so that no
rank ever holds the whole.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import distributed
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.utils._pytree import tree_map_only
from transformers.modeling_layers import GradientCheckpointingLayer

from roll_envs.errors import ConfigError
from trainer.config import CriticConfig
from trainer.data.batches import Batch
from trainer.learner import Critic, FSDP2Settings, NetworkSettings, Scorer
from trainer.learner.adapters import AdaptedNetwork, AdaptedWeights
from trainer.learner.critic import TorchCritic, ValueNetwork
from trainer.learner.gradients import DTYPES, MasterWeights, Ranks, cast_weights, clipped, squares_of
from trainer.learner.snapshot import Keep, kept
from trainer.learner.steps import ScoreModule, checkpointed_layers, jobs_of, skeleton_of
from trainer.learner.torch import BaseModel, TorchLearner, Worker
from trainer.model.context import ContextRanks, check_heads
from trainer.model.forward import fitting, weights_of
from trainer.model.network import LanguageModel, choose_device


def check_offload(device: torch.device) -> None:
    """Raise :class:`ConfigError` where ``learner.cpu_offload`` has nothing to offload from."""
    if device.type != "cuda":
        raise ConfigError("learner.cpu_offload needs CUDA, and the model is on the CPU; set it to false")


class ShardedRanks(Ranks):
    """Ranks with a shard of each weight; how tensors are cut into shards and put together again.

    Gradients are summed over the ranks in each backward pass.
    """

    def __init__(
        self, ranks: Ranks | None, device: torch.device, *, cpu_offload: bool = False, context_parallel: int = 1
    ) -> None:
        """Without ``ranks``, or with one alone, a group of this process is made. Raises :class:`ConfigError` where
        ``cpu_offload`` has nothing to offload from, or ``context_parallel`` does not divide the ranks."""
        if cpu_offload:
            check_offload(device)
        group = None if ranks is None else ranks.group
        super().__init__(group)
        backend = "nccl" if device.type == "cuda" else "gloo"
        if not distributed.is_initialized():
            distributed.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
        if group is None or device.type == "cuda":  # numbers may be exchanged over gloo, shards of CUDA may not
            members = [distributed.get_rank()] if group is None else distributed.get_process_group_ranks(group)
            group = distributed.new_group(members, backend=backend, use_local_synchronization=True)
        self._mesh = DeviceMesh.from_group(group, device.type)
        self.context = self._context(context_parallel, device)
        """Those that run each micro-batch together, where there are any."""
        self.device = device
        self._home = torch.device("cpu") if cpu_offload else device
        self._offload = CPUOffloadPolicy() if cpu_offload else OffloadPolicy()

    def _context(self, count: int, device: torch.device) -> ContextRanks | None:
        if self.count % count:
            raise ConfigError(
                f"learner.context_parallel {count} does not divide the number of ranks, {self.count}; choose one that "
                "does"
            )
        if count == 1 or self.group is None:
            return None
        first = self.rank // count * count
        members = distributed.get_process_group_ranks(self.group)[first : first + count]
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        return ContextRanks(distributed.new_group(members, backend=backend, use_local_synchronization=True))

    @property
    def team(self) -> Ranks:
        return Ranks() if self.context is None else Ranks(self.context.group)

    def add_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """They are sums over the ranks already; one that no rank has counts as 0, as elsewhere."""
        for parameter in parameters:
            if parameter.grad is None and self.count > 1:
                parameter.grad = torch.zeros_like(parameter)

    def clip_gradients(self, parameters: Sequence[torch.nn.Parameter], limit: float) -> float:
        local = [p.grad.to_local() for p in parameters if isinstance(p.grad, DTensor)]
        return clipped(local, self.sum({"": squares_of(local)})[""], limit)

    def shard(self, root: torch.nn.Module, compute: torch.dtype) -> None:
        """Cut the weights of ``root`` into shards, in place; layers are run in ``compute``. Weights without memory (on
        the meta device) become shards of 0."""
        layers = [m for m in root.modules() if isinstance(m, GradientCheckpointingLayer)]
        if not layers:
            raise ConfigError(
                f"learner.backend fsdp2: {type(root).__name__} has no layers that can be cut into shards one by one; "
                "use learner.backend: torch"
            )
        policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32, cast_forward_inputs=False)
        for module in (*layers, root):
            sharded: Any = fully_shard(module, mesh=self._mesh, mp_policy=policy, offload_policy=self._offload)
            sharded.set_gradient_divide_factor(1.0)  # summed, not averaged
            sharded.set_force_sum_reduction_for_comms(True)
        shared: dict[int, torch.nn.Parameter] = {}  # tied weights have one shard
        for module in root.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.is_meta:
                    if id(parameter) not in shared:
                        zeros = torch.zeros_like(parameter, device=self._home)
                        shared[id(parameter)] = torch.nn.Parameter(zeros, requires_grad=parameter.requires_grad)
                    module._parameters[name] = shared[id(parameter)]

    def whole(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The whole of a sharded tensor, on every rank; other tensors as they are. All ranks must ask."""
        if not isinstance(tensor, DTensor):
            return tensor
        placed: Any = tensor.detach().to(device=self.device, dtype=dtype or tensor.dtype)
        full: torch.Tensor = placed.full_tensor()
        return full

    def whole_state(self, state: dict[str, Any], keep: Keep | None = None) -> dict[str, Any]:
        """A state whose sharded tensors are whole, on the CPU of the ranks that ``keep`` them. Without, all are on rank
        0 and the others have nothing. All must ask."""
        wanted = keep or (lambda _: self.rank == 0)
        found: dict[str, Any] = tree_map_only(torch.Tensor, lambda one: kept(self.whole(one), wanted), state)
        return found if keep or self.rank == 0 else {}

    def sharded_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """The opposite of :meth:`whole_state`: of the state of rank 0, each rank's shards. All must ask."""
        sent = [tree_map_only(torch.Tensor, lambda t: t.to("meta") if t.ndim else t.cpu().clone(), state)]
        if self.group is not None:
            first = distributed.get_global_rank(self.group, 0)
            distributed.broadcast_object_list(sent, src=first, group=self.group)
        own = iter(_tensors(state))

        def cut(described: torch.Tensor) -> torch.Tensor:
            whole = next(own) if self.rank == 0 else None
            if not described.ndim:
                return described
            if whole is None:
                whole = torch.empty(described.shape, dtype=described.dtype)
            return distribute_tensor(whole.to(self.device), self._mesh, [Shard(0)])

        found: dict[str, Any] = tree_map_only(torch.Tensor, cut, sent[0])
        return found

    @torch.no_grad()
    def load(
        self,
        network: Any,
        weights: Iterable[tuple[str, torch.Tensor]],
        source: str,
        into: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """Copy this rank's shards of a stream of whole weights, which all ranks are given alike, to those of
        ``network``; or ``into`` others of these names.

        Raises :class:`CheckpointError` where they do not fit.
        """
        own = into or network.state_dict(keep_vars=True)
        for name, value in fitting(network, weights, source):
            target = own[name]
            if isinstance(target, DTensor):
                start = -(-target.shape[0] // self.count) * self.rank  # torch.chunk's: all but the last equally long
                target.to_local().copy_(value[start : start + target.to_local().shape[0]])
            else:
                target.copy_(value)


def _tensors(tree: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    tree_map_only(torch.Tensor, found.append, tree)
    return found


class ShardedScorer:
    """A network in shards and how it is run over batches."""

    def __init__(self, network: Any, temperature: float, settings: NetworkSettings, ranks: ShardedRanks) -> None:
        """Cuts ``network`` into shards. Raises :class:`ConfigError` when it has no head that is known."""
        self._network, self._ranks, self.device = network, ranks, ranks.device
        self._dtype = DTYPES[settings.precision]
        if ranks.context is not None:
            check_heads(network.config, ranks.context.count)
        # The root of the shards: in its forward pass embedding, head and last norm are whole.
        module = ScoreModule(network, temperature, settings, ranks.device, self._dtype, ranks.context)
        self._root: Any = module.eval()
        ranks.shard(self._root, self._dtype)

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs of the labels and entropies [B, T]; 0 where there is no label."""
        logp, entropies = self._root(batch)
        return logp, entropies

    @torch.no_grad()  # not in inference mode: backward uses what the first pass of all allocates
    def score(self, batches: Sequence[Batch]) -> list[torch.Tensor]:
        """Log-probs of the labels of this rank's batches at the sampling temperature, [B, T] per batch."""
        jobs = jobs_of(self._ranks, self._ranks.team, batches)
        found = [self.forward(batch.to(self.device))[0] for batch in jobs.batches]
        self._root.reshard()
        return found[jobs.own]

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and whole weights, gathered one at a time: all ranks must iterate to the end."""
        for name, value in weights_of(self._network):
            yield name, self._ranks.whole(value, self._dtype)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take other weights, the same on all ranks. Raises :class:`CheckpointError` when they do not fit."""
        self._ranks.load(self._network, weights, "the checkpoint's reference")


class _ShardedMasters(MasterWeights):
    """Float32 shards that are run in half precision: each is its own master, and a checkpoint has them as such."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], *, half: bool) -> None:
        super().__init__(parameters)
        self._pairs = [(p, p) for p in self.values] if half else []

    def write_back(self) -> None:
        """Nothing: layers round their weights when they are gathered."""


class ShardedCritic(TorchCritic):
    """The critic in shards, in float32."""

    _ranks: ShardedRanks

    def __init__(
        self, network: ValueNetwork, config: CriticConfig, ranks: ShardedRanks, *, gradient_checkpointing: bool
    ) -> None:
        ranks.shard(network, torch.float32)
        super().__init__(network, config, ranks=ranks, gradient_checkpointing=gradient_checkpointing)
        self._device = ranks.device  # where it is run: shards may lie elsewhere

    @torch.no_grad()
    def score(self, batches: Sequence[Batch]) -> list[torch.Tensor]:
        jobs = jobs_of(self._ranks, self._ranks.team, batches)
        found = [self._network(batch.to(self._device)) for batch in jobs.batches]
        self._network.reshard()
        return found[jobs.own]

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and whole weights, gathered one at a time: all ranks must iterate to the end."""
        return ((name, self._ranks.whole(value)) for name, value in super().weights())

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Put saved weights back, the same on all ranks. Raises :class:`CheckpointError` when they do not fit."""
        self._ranks.load(self._network, weights, "the checkpoint's critic")

    def optimizer_state(self, keep: Keep | None = None) -> dict[str, Any]:
        """State of the optimiser as :class:`TorchCritic` has it, on rank 0 or dealt; all ranks must ask."""
        return self._ranks.whole_state(super().optimizer_state(), keep)

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """Put the optimiser back to the state that rank 0 is given."""
        super().load_optimizer_state(self._ranks.sharded_state(state))


class ShardedLearner(TorchLearner):
    """A learner of which each rank holds a share. On ``ranks`` ``model`` is cut into shards in place, and not to be
    used apart; one process alone cuts a copy, since its engine has use for the model."""

    _settings: FSDP2Settings
    _ranks: ShardedRanks

    def __init__(
        self,
        model: LanguageModel,
        *,
        settings: FSDP2Settings | None = None,
        threads: int = 1,
        device: str = "auto",
        ranks: Ranks | None = None,
        **arguments: Any,
    ) -> None:
        """``threads`` is read by other backends: shards are exchanged in one order."""
        settings = settings or FSDP2Settings()
        if ranks is None:
            model = replace(model, network=copy.deepcopy(model.network))
        sharded = ShardedRanks(
            ranks,
            choose_device(device),
            cpu_offload=settings.cpu_offload,
            context_parallel=settings.context_parallel,
        )
        super().__init__(model, settings=settings, device=device, ranks=sharded, **arguments)

    def _place(self, network: Any, device: torch.device) -> tuple[Any, AdaptedNetwork | None]:
        # The shards of trained weights are float32, of frozen ones in the precision that is run; at first they are
        # equal, as elsewhere.
        network = cast_weights(network, DTYPES[self._settings.precision])
        self._plain = skeleton_of(network)
        adapted = self._with_adapters(network, in_place=True)
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
        return network, adapted

    def _worker(self, network: Any) -> Worker:
        policy = ShardedScorer(network, self._temperature, self._settings, self._ranks)
        layers = checkpointed_layers(network) if self._settings.gradient_checkpointing else []
        return Worker(policy, [p for p in network.parameters() if p.requires_grad], layers)

    def _master_weights(self, parameters: list[torch.nn.Parameter]) -> MasterWeights:
        return _ShardedMasters(parameters, half=self._settings.precision != "float32")

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and whole weights in Hugging Face form, gathered one at a time: all ranks must iterate to the end."""
        dtype = DTYPES[self._settings.precision]
        found = super().weights()
        if not isinstance(found, AdaptedWeights):
            return self._whole(found, dtype)
        return AdaptedWeights(
            found.key(),
            self._whole(found, dtype),
            lambda: self._whole(found.bases(), dtype),
            lambda: self._whole(found.adapters()),
        )

    def _whole(
        self, weights: Iterable[tuple[str, torch.Tensor]], dtype: torch.dtype | None = None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, self._ranks.whole(value, dtype)) for name, value in weights)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take first weights, the same on all ranks, in the precision that is run; adapters stay.

        Raises :class:`CheckpointError` when they do not fit.
        """
        dtype = DTYPES[self._settings.precision]
        own = self._network.state_dict(keep_vars=True)
        if self._adapted is not None:
            own = self._adapted.bases()
            self._adapted.renew_key()
        rounded = ((name, value.to(dtype)) for name, value in weights)
        self._ranks.load(self._plain, rounded, "the driver's stream", own)

    def optimizer_state(self, keep: Keep | None = None) -> dict[str, Any]:
        """The state as :class:`TorchLearner` has it, whatever the number of ranks: whole tensors on the CPU of rank 0
        and nothing on the others, or on the ranks that ``keep`` them. All ranks must ask."""
        return self._ranks.whole_state(super().optimizer_state(), keep)

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """Put the state that rank 0 is given back, whichever backend saved it; the others' is not read.

        Raises :class:`CheckpointError` as :class:`TorchLearner` does, on all ranks.
        """
        super().load_optimizer_state(self._ranks.sharded_state(state))

    def reference(self, *, fixed: bool = True) -> Scorer:
        """A frozen policy in shards with the current weights; with adapters and ``fixed``, the base model."""
        if fixed and self._adapted is not None:
            return BaseModel(self._adapted, self._policy)
        frozen = copy.deepcopy(self._plain).requires_grad_(False)
        scorer = ShardedScorer(frozen, self._temperature, self._settings, self._ranks)
        scorer.load_weights(self.weights())
        return scorer

    def critic(self, config: CriticConfig) -> Critic:
        """A critic in shards whose body begins as a copy of the current policy's."""
        network = ValueNetwork(cast_weights(copy.deepcopy(self._plain.base_model), torch.float32), self._ranks.context)
        again = self._settings.gradient_checkpointing
        critic = ShardedCritic(network, config, self._ranks, gradient_checkpointing=again)
        prefix = f"{self._plain.base_model_prefix}."
        body = ((name.removeprefix(prefix), w) for name, w in self.weights() if name.startswith(prefix))
        self._ranks.load(network["body"], body, "the policy")
        return critic
