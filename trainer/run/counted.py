"""What the memory plan counts of a model as the learner will hold it, with the learner's own classes: the network
has no storage (torch's device "meta").
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from trainer.config import OptimizerConfig, RunConfig
from trainer.config.parts import BACKENDS, part_settings
from trainer.learner.adapters import AdaptedNetwork
from trainer.learner.gradients import DTYPES, MasterWeights, cast_weights
from trainer.learner.optimizers import make_optimizers, trained_weights
from trainer.model.attention import Layout, check_call, use_packed_attention
from trainer.model.forward import head_of

_COUNTED_TOKENS = 16
"""Tokens of the pass on "meta"; what it keeps is proportional to them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """What follows from the architecture, the precision and the optimiser; all in bytes unless it says otherwise."""

    numbers: int
    """P, tied weights once; a count."""
    weights: int
    """Of the network that is trained, and of the plain one that has adapters beside it; without what has masters and is
    held as these alone."""
    masters: int
    """float32 copies of trained weights in half precision."""
    trained: int
    """How many numbers are trained; a count."""
    optimizer: int
    kept: float
    """What a forward pass keeps for backward, per token, in all layers."""
    kept_once: float
    """Of it that which does not grow with tokens."""
    critic_kept: float
    """As ``kept``, of a critic of this model: all of its body is trained, in float32; 0 where the run needs none."""
    critic_kept_once: float
    head: int
    """V x D; a count."""
    body: int
    """Of all but the head; with the head where that is the embedding, too. A count."""
    outer: int
    """Of the embedding and the head, which may be one; a count."""
    experts: int
    """In experts; a count."""
    matrices: int
    """In the layers, which servers can quantise; a count."""
    width: int
    layers: int
    vocabulary: int
    inner: int
    """Width of the MLP."""
    key_values: int
    """Numbers that a cache holds for each token."""


class _NoScores(torch.autograd.Function):
    """Attention that keeps what kernels without a score matrix keep: queries, keys, values and the result."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        result = torch.empty_like(query)
        ctx.save_for_backward(query, key, value, result)
        return result.transpose(1, 2)


def _attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, layout: Any = None, **how: Any
) -> tuple[torch.Tensor, None]:
    check_call(module, layout, query, value, how)
    return _NoScores.apply(query, key, value), None  # type: ignore[no-untyped-call]


ALL_ATTENTION_FUNCTIONS.register("counted", _attention)


def _storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Bytes of the distinct storages behind ``tensors``, which the caller keeps alive."""
    return {s._cdata: s.nbytes() for s in (tensor.untyped_storage() for tensor in tensors)}


def kept_for_backward(network: Any, tokens: int, longest: int = 0) -> float:
    """Bytes that a forward pass of ``network``'s body over ``tokens`` ids keeps, weights left out. Raises
    :class:`ConfigError` for a model whose attention the learner could not run, with sequences of ``longest`` tokens."""
    network.set_attn_implementation("counted")
    device = next(network.parameters()).device
    kept: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        ids = torch.zeros(1, tokens, dtype=torch.int64, device=device)
        result = network.base_model(
            input_ids=ids,
            position_ids=ids,
            attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device),
            layout=Layout(kind="sdpa", starts=ids, longest=longest),
            use_cache=False,
        ).last_hidden_state
    own = _storages(network.parameters())
    return float(sum(size for key, size in _storages([*kept, result]).items() if key not in own))


def _kept(network: Any, longest: int) -> tuple[float, float]:
    """Bytes that a pass keeps for each token, and of them those that do not grow with tokens."""
    # On "meta" torch multiplies matrices of experts in bfloat16 alone, in which all that is kept is half as large.
    halved = network.dtype is torch.float32 and any(".experts." in name for name, _ in network.named_parameters())
    seen = copy.deepcopy(network).to(torch.bfloat16) if halved else network
    few, many = ((1 + halved) * kept_for_backward(seen, n * _COUNTED_TOKENS, longest) for n in (1, 2))
    return (many - few) / _COUNTED_TOKENS, max(0.0, 2 * few - many)


class _Held(NamedTuple):
    """What decides how a learner holds a model."""

    precision: str
    lora_rank: int
    lora_targets: tuple[str, ...]
    rounds: bool
    """Trained weights are rounded copies of their masters."""
    optimizer: OptimizerConfig
    longest: int
    critic: bool


_known: dict[tuple[str, str], Counted] = {}
"""What was counted, by the model and how it is held: a pass on "meta" takes a second, and plans are made in rows."""


def count(config: RunConfig, model: Any) -> Counted:
    """Count a model of Hugging Face configuration ``model`` as the learner of ``config`` will hold it. Raises
    :class:`ConfigError` for one that learner and built-in engine cannot run: no weight is loaded yet."""
    settings, backend = config.learner, BACKENDS.find(config.learner.backend)
    held = _Held(
        precision=getattr(settings, "precision", "float32"),
        lora_rank=int(getattr(settings, "lora_rank", 0)),
        lora_targets=tuple(getattr(settings, "lora_targets", ())),
        rounds=backend.shares(part_settings(settings, backend), config.placement.learner.ranks).rounds,
        optimizer=config.optimizer,
        longest=config.engine.max_tokens,
        critic=not config.without("critic"),
    )
    key = repr(held), f"{type(model)} {model.to_json_string(use_diff=False)}"
    if key not in _known:
        _known[key] = _count(held, model)
    return _known[key]


def _count(how: _Held, model: Any) -> Counted:
    with torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(model)
    use_packed_attention(plain)
    head_of(plain)
    critic = copy.deepcopy(plain).eval() if how.critic else None
    plain = cast_weights(plain.eval(), DTYPES[how.precision])
    network = plain
    if how.lora_rank:
        network = AdaptedNetwork(plain, rank=how.lora_rank, alpha=1.0, targets=how.lora_targets).network
    trained = [p for p in network.parameters() if p.requires_grad]
    masters = MasterWeights(trained)
    held = [*plain.parameters(), *network.parameters()]
    if how.rounds:
        rounded = {id(p) for p, v in zip(trained, masters.values, strict=True) if p is not v}
        held = [p for p in network.parameters() if id(p) not in rounded]
    optimizers = make_optimizers(how.optimizer, trained_weights(network, masters.values))
    for value in masters.values:
        value.grad = torch.empty_like(value)
    state = 0
    for optimizer in optimizers:
        optimizer.step()
        state += sum(x.nbytes for of in optimizer.state.values() for x in of.values() if torch.is_tensor(x))
    experts = sum(p.numel() for name, p in plain.named_parameters() if ".experts." in name)
    kept, kept_once = _kept(network, how.longest)
    critic_kept, critic_kept_once = (0.0, 0.0) if critic is None else _kept(critic, how.longest)
    width = getattr(model, "head_dim", None) or model.hidden_size // model.num_attention_heads
    heads = getattr(model, "num_key_value_heads", None) or model.num_attention_heads
    head = plain.get_output_embeddings().weight
    outside = {id(p): p for p in (head, plain.get_input_embeddings().weight)}
    return Counted(
        numbers=sum(p.numel() for p in plain.parameters()),
        weights=sum(_storages(held).values()),
        masters=sum(v.nbytes for p, v in zip(trained, masters.values, strict=True) if p is not v),
        trained=sum(p.numel() for p in trained),
        optimizer=state,
        kept=kept,
        kept_once=kept_once,
        critic_kept=critic_kept,
        critic_kept_once=critic_kept_once,
        head=head.numel(),
        body=sum(p.numel() for p in plain.base_model.parameters()),
        outer=sum(p.numel() for p in outside.values()),
        experts=experts,
        matrices=sum(p.numel() for p in plain.parameters() if p.dim() > 1 and id(p) not in outside),
        width=model.hidden_size,
        layers=model.num_hidden_layers,
        vocabulary=head.shape[0],
        inner=getattr(model, "intermediate_size", 4 * model.hidden_size),
        key_values=2 * model.num_hidden_layers * heads * width,
    )
