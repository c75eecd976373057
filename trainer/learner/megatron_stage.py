"""A rank's share of a model in Megatron-Core: its layers, run in a pipeline, and the stream of whole weights.

The layers are Megatron-Core's own, built from its local specification; what goes over tokens alone is theirs. Attention
is that of :mod:`trainer.model.attention`, since Megatron-Core's own takes packed sequences with Transformer Engine
only; with it, sequences are run end to end as in every other backend, and context parallelism is theirs too. Rotary
angles are the Hugging Face model's.

Left out: sequence parallelism, interleaved stages.

Shapes: N tokens of a micro-batch, D width of the model, E width of a head.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed
from torch.utils.checkpoint import checkpoint
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from trainer.learner.gradients import DTYPES, cast_weights
from trainer.learner.megatron import MegatronSettings, check_cut
from trainer.learner.megatron_experts import TokenDispatcher
from trainer.learner.megatron_families import family_of, layers_of
from trainer.learner.megatron_grid import Grid, core, silently
from trainer.learner.megatron_mapping import EMBEDDING, HEAD, Part, join, read, shape_of, write
from trainer.model.attention import NAME
from trainer.model.forward import fitting


class _PackedAttention(torch.nn.Module):
    """Attention between the projections; ``attention_mask`` is the :class:`trainer.model.attention.Layout`."""

    is_causal = True

    def __init__(self, config: Any, **unused: Any) -> None:
        super().__init__()
        self._scaling = config.kv_channels**-0.5

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **unused: Any
    ) -> torch.Tensor:
        """[N, 1, heads, E] each; gives [N, 1, heads * E]."""
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        out, _ = ALL_ATTENTION_FUNCTIONS[NAME](self, q, k, v, None, layout=attention_mask, scaling=self._scaling)
        return out.flatten(2).transpose(0, 1)  # type: ignore[no-any-return]


def build_network(config: Any, settings: MegatronSettings, grid: Grid) -> Any:
    """A ``GPTModel`` for this rank, its weights not yet set. Raises :class:`ConfigError` when it cannot be cut."""
    family, tensor = family_of(config), grid.tensor.count
    check_cut(config, settings)
    experts = config.num_experts if family.experts else None
    half = settings.precision == "bfloat16"
    with silently():
        transformer = core().TransformerConfig(
            **layers_of(config, family),
            tensor_model_parallel_size=tensor,
            pipeline_model_parallel_size=grid.pipeline.count,
            expert_model_parallel_size=grid.expert.count,
            pipeline_dtype=DTYPES[settings.precision],
            params_dtype=DTYPES[settings.precision],
            bf16=half,
            use_cpu_initialization=grid.device.type == "cpu",
            perform_initialization=False,
            # Plain operations, which have the numbers of the Hugging Face model.
            bias_activation_fusion=False,
            masked_softmax_fusion=False,
            bias_dropout_fusion=False,
            apply_rope_fusion=False,
            gradient_accumulation_fusion=False,
            persist_layer_norm=False,
            **({} if experts is None else _routing(config)),
        )
        spec = core().spec(
            num_experts=experts, moe_grouped_gemm=False, qk_layernorm=family.qk_norm, normalization="RMSNorm"
        )
        spec.submodules.self_attention.submodules.core_attention = _PackedAttention
        network = core().GPTModel(
            transformer,
            spec,
            vocab_size=-(-config.vocab_size // tensor) * tensor,
            max_sequence_length=config.max_position_embeddings,
            pre_process=grid.first,
            post_process=grid.last,
            position_embedding_type="none",  # given to the layers here
            # Over several stages the two copies are kept equal by the optimiser here.
            share_embeddings_and_output_weights=bool(config.tie_word_embeddings) and grid.pipeline.count == 1,
        )
    if grid.expert.count > 1:
        for layer in network.decoder.layers:
            layer.mlp.token_dispatcher = TokenDispatcher(grid.expert.group)
    return cast_weights(network.to(grid.device), DTYPES[settings.precision]).eval()  # norms too


def _routing(config: Any) -> dict[str, Any]:
    return {
        "num_moe_experts": config.num_experts,
        "moe_router_topk": config.num_experts_per_tok,
        "moe_ffn_hidden_size": config.moe_intermediate_size,
        "moe_router_load_balancing_type": "none",
        "moe_router_dtype": "fp32",
        "moe_token_dispatcher_type": "allgather",
    }


class Stage:
    """This rank's layers, called as the body of a Hugging Face model is; and its share of the weights."""

    def __init__(
        self, config: Any, rotary: Any, settings: MegatronSettings, grid: Grid, *, parts: Sequence[Part], value: bool
    ) -> None:
        """``config`` and ``rotary`` are the Hugging Face model's; ``parts`` its weights that are wanted. ``value``: a
        head of one number per position instead of one per id."""
        self.config, self.grid, self.parts = config, grid, list(parts)
        self.network = build_network(config, settings, grid)
        self._frequencies = rotary.inv_freq.to(grid.device, torch.float32)
        self._checkpointing = settings.gradient_checkpointing
        self._passed: tuple[torch.Tensor | None, torch.Tensor] | None = None
        self._sending: deque[tuple[Any, torch.Tensor]] = deque()
        if value and grid.last:
            self.network.output_layer = None
            self.network.value_head = torch.nn.Linear(config.hidden_size, 1, device=grid.device)
        layers = self.network.decoder.layers
        self.parameters: dict[str, torch.nn.Parameter] = {}
        """By Megatron-Core's names, with layers and experts counted over the whole model."""
        for name, parameter in self.network.named_parameters():
            place = name.split(".")
            if name.startswith("decoder.layers."):
                place[2] = str(layers[int(place[2])].layer_number - 1)
            if "local_experts" in place:
                first = grid.expert.rank * config.num_experts // grid.expert.count
                place[6] = str(first + int(place[6]))
            self.parameters[".".join(place)] = parameter
        self.tied = EMBEDDING if grid.first else HEAD
        """This rank's copy of the weights that first and last stage share, where they do."""
        self.shares_embedding = (
            bool(config.tie_word_embeddings) and not value and grid.pipeline.count > 1 and (grid.first or grid.last)
        )
        self._cut = {name: part.cut is not None for part in self.parts for name in part.cores}
        self._expected = SimpleNamespace(
            state_dict=lambda keep_vars: {p.name: torch.empty(shape_of(p), device="meta") for p in self.parts}
        )

    # -- forward and backward ----------------------------------------------------------------------------------------

    def __call__(
        self, *, input_ids: torch.Tensor, position_ids: torch.Tensor, layout: Any, **unused: Any
    ) -> SimpleNamespace:
        """Run [1, N] ids, or what the stage before makes of them; the next stage is sent the result.

        The ``last_hidden_state`` [1, N, D] means something on the last stage only.
        """
        entered = None
        if self.grid.first:
            hidden = self.network.embedding(input_ids, position_ids)
            if self.config.pad_token_id is not None:  # its row is not trained by being read, as in torch's Embedding
                hidden = torch.where((input_ids == self.config.pad_token_id).T[..., None], hidden.detach(), hidden)
        else:
            shape = (input_ids.shape[1], 1, self.config.hidden_size)
            dtype = next(self.network.parameters()).dtype
            entered = hidden = torch.empty(shape, dtype=dtype, device=self.grid.device)
            distributed.recv(hidden, group=self.grid.pipeline.group, group_src=self.grid.pipeline.rank - 1)
            hidden.requires_grad_(torch.is_grad_enabled())
        angles = position_ids[0, :, None].float() * self._frequencies
        angles = torch.cat([angles, angles], -1)[:, None, None]
        again = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
        for layer in self.network.decoder.layers:
            run = partial(again, layer) if self._checkpointing and torch.is_grad_enabled() else layer
            hidden, _ = run(hidden, attention_mask=layout, rotary_pos_emb=angles)
        if self.grid.last:
            hidden = self.network.decoder.final_layernorm(hidden)
        else:
            self._send(hidden.detach(), self.grid.pipeline.group, self.grid.pipeline.rank + 1)
        self._passed = entered, hidden
        return SimpleNamespace(last_hidden_state=hidden.transpose(0, 1))

    def _send(self, tensor: torch.Tensor, group: Any, to: int) -> None:
        tensor = tensor.contiguous()  # kept until it is sent
        self._sending.append((distributed.isend(tensor, group=group, group_dst=to), tensor))
        while len(self._sending) > 2 * self.grid.pipeline.count:
            self._sending.popleft()[0].wait()

    def pipeline(
        self, count: int, forward: Callable[[int], torch.Tensor | None], learnt: Callable[[], None] | None = None
    ) -> None:
        """Run ``count`` micro-batches, each by ``forward(i)``, which calls this stage once and gives the loss on the
        last one. With ``learnt``, backward too, after each of which it is called.

        A stage is as many micro-batches ahead of its backward passes as there are stages behind it (1F1B, Narayanan et
        al. 2021, arXiv:2104.04473).
        """
        ahead = self.grid.pipeline.count - 1 - self.grid.pipeline.rank if learnt else 0
        flying: deque[tuple[torch.Tensor | None, torch.Tensor, torch.Tensor | None]] = deque()
        for i in range(count + ahead):
            if i < count:
                loss = forward(i)
                assert self._passed is not None
                if learnt:
                    flying.append((*self._passed, loss))
                self._passed = None
            if learnt and i >= ahead:
                self._backward(*flying.popleft())
                learnt()
        while self._sending:
            self._sending.popleft()[0].wait()

    def _backward(self, entered: torch.Tensor | None, left: torch.Tensor, loss: torch.Tensor | None) -> None:
        place = self.grid.pipeline.rank
        if self.grid.last:
            assert loss is not None
            torch.autograd.backward(loss)
        else:
            gradient = torch.empty_like(left)
            distributed.recv(gradient, group=self.grid.backward, group_src=place + 1)
            torch.autograd.backward(left, gradient)
        if entered is not None:
            assert entered.grad is not None
            self._send(entered.grad, self.grid.backward, place - 1)

    @property
    def head(self) -> torch.Tensor | None:
        """This rank's rows of the head, padding included; on the last stage only."""
        if not self.grid.last:
            return None
        return self.parameters[EMBEDDING if self.config.tie_word_embeddings and self.grid.first else HEAD]

    # -- weights -----------------------------------------------------------------------------------------------------

    def counted(self, name: str) -> bool:
        """Whether this rank's numbers of a weight are in norms: each number of the model is counted on one rank."""
        if self.shares_embedding and name == HEAD:
            return False
        experts = "local_experts" in name or self.grid.expert.rank == 0
        return experts and (self._cut[name] or self.grid.tensor.rank == 0)

    @torch.no_grad()
    def stream(self, values: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """Whole tensors, one at a time, under Hugging Face names, from ``values`` by the names of :attr:`parameters`:
        the weights themselves, or what an optimiser keeps for each. All ranks iterate along, and all get them."""
        tensor, pipeline = self.grid.tensor, self.grid.pipeline
        dtype = next(iter(values.values())).dtype
        for part in self.parts:
            owner = self._owner(part)
            if owner == pipeline.rank:
                cores = [values[name] for name in part.cores if name in values]
                share = read(part, cores)
                if len(cores) < len(part.cores):  # experts of other ranks
                    dealt = [torch.empty_like(share) for _ in range(self.grid.expert.count)]
                    distributed.all_gather(dealt, share, group=self.grid.expert.group)
                    share = torch.cat(dealt)
                shares = [share]
                if part.cut is not None and tensor.count > 1:
                    shares = [torch.empty_like(share) for _ in range(tensor.count)]
                    distributed.all_gather(shares, share, group=tensor.group)
                whole = join(part, shares)
            else:
                whole = torch.empty(shape_of(part), dtype=dtype, device=self.grid.device)
            if pipeline.count > 1:
                whole = whole.contiguous()
                distributed.broadcast(whole, group=pipeline.group, group_src=owner)
            yield part.name, whole.detach()

    def _owner(self, part: Part) -> int:
        """The stage that has it."""
        if part.layer is None:
            return 0 if part.cores == (EMBEDDING,) else self.grid.pipeline.count - 1
        return part.layer * self.grid.pipeline.count // int(self.config.num_hidden_layers)

    def load(
        self, values: Mapping[str, torch.Tensor], weights: Iterable[tuple[str, torch.Tensor]], source: str
    ) -> None:
        """Put this rank's shares of a whole stream into ``values``. Raises :class:`CheckpointError` when it does not
        fit."""
        by_name = {part.name: part for part in self.parts}
        for name, weight in fitting(self._expected, weights, source):
            self.put(values, by_name[name], weight)

    def put(self, values: Mapping[str, torch.Tensor], part: Part, weight: torch.Tensor) -> None:
        """Put this rank's share of one whole weight into ``values``, if it has one."""
        rank, ranks = self.grid.tensor.rank, self.grid.tensor.count
        copies = [part.cores]
        if self.shares_embedding and part.cores == (EMBEDDING,):
            copies = [(self.tied,)]
        for names in copies:
            own = [i for i, name in enumerate(names) if name in values]
            if len(own) < len(part.cores):  # of the experts, this rank's
                weight = weight.reshape(part.full)[own]
                part = part._replace(full=tuple(weight.shape))
            if own:
                write(part, [values[names[i]] for i in own], weight, rank=rank, ranks=ranks)
