"""What the memory plan counts of a model as the learner will hold it, with the learner's own classes: the network
has no storage (torch's device "meta").
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from roll_envs.errors import ConfigError, RollError
from trainer.config import RunConfig
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


@contextmanager
def _of_others() -> Iterator[None]:
    """Building and running a network of a library, by a ``config.json`` that may not make sense."""
    try:
        yield
    except RollError:
        raise
    except Exception as error:  # of many kinds: sizes of 0, widths that do not fit, a function that is not known
        raise ConfigError(
            f"model.path: no network can be built and run as the model's config.json says ({type(error).__name__}: "
            f"{error}); download the model again, or correct its config.json"
        ) from error


def _build(model: Any) -> Any:
    with _of_others(), torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(model)
        if min(model.num_hidden_layers, model.vocab_size) < 1:
            raise ValueError(f"it has {model.num_hidden_layers} layers and {model.vocab_size} ids")
    return plain


def _kind(layer: torch.nn.Module) -> str:
    """What tells a layer from others: the classes, settings and shapes of its parts."""
    return repr(
        [
            (
                name,
                type(part),
                {k: v for k, v in vars(part).items() if isinstance(v, int | float | str | tuple) and k != "layer_idx"},
                [(own, value.shape) for own, value in part.named_parameters(recurse=False)],
            )
            for name, part in layer.named_modules()
        ]
    )


def _alike(network: Any, model: Any) -> bool:
    """Whether all layers of ``network`` are of one kind, so that each adds the same to what is counted."""
    lists = [part for part in network.modules() if isinstance(part, torch.nn.ModuleList)]
    layers = [part for part in lists if len(part) == model.num_hidden_layers]
    types = set(getattr(model, "layer_types", None) or ())
    return len(layers) == 1 and len({_kind(layer) for layer in layers[0]}) == 1 and len(types) <= 1


def _first_layers(model: Any, layers: int) -> Any:
    """The configuration of the first ``layers`` layers of ``model``."""
    shorter = copy.deepcopy(model)
    if getattr(model, "layer_types", None):
        shorter.layer_types = model.layer_types[:layers]
    shorter.num_hidden_layers = layers
    return shorter


def count(config: RunConfig, model: Any) -> Counted:
    """Count a model of Hugging Face configuration ``model`` as the learner of ``config`` will hold it. Raises
    :class:`ConfigError` for one that learner and built-in engine cannot run: no weight is loaded yet.

    Where all layers are alike, two models of one and two layers are counted instead, which tell what each layer adds: a
    pass on "meta" takes as long as one with numbers for a small model, 8 s for 48 layers of experts with a critic.
    """
    whole = _build(model)
    more = model.num_hidden_layers - 2
    if more > 1 and _alike(whole, model):
        one, two = (
            _count_all(config, part, _build(part)) for part in (_first_layers(model, 1), _first_layers(model, 2))
        )
        sizes = {
            f.name: getattr(two, f.name) + more * (getattr(two, f.name) - getattr(one, f.name)) for f in fields(two)
        }
        if sizes["numbers"] == sum(p.numel() for p in whole.parameters()):
            return Counted(**sizes)
    return _count_all(config, model, whole)


def _count_all(config: RunConfig, model: Any, plain: Any) -> Counted:
    settings = config.learner
    dtype = DTYPES[getattr(settings, "precision", "float32")]
    use_packed_attention(plain)
    head_of(plain)
    critic = None if config.without("critic") else copy.deepcopy(plain).eval()
    plain = cast_weights(plain.eval(), dtype)
    network, rank = plain, int(getattr(settings, "lora_rank", 0))
    if rank:
        targets = getattr(settings, "lora_targets", ())
        network = AdaptedNetwork(plain, rank=rank, alpha=1.0, targets=targets).network
    trained = [p for p in network.parameters() if p.requires_grad]
    masters = MasterWeights(trained)
    held, backend = [*plain.parameters(), *network.parameters()], BACKENDS.find(settings.backend)
    if backend.shares(part_settings(settings, backend), config.placement.learner.ranks).rounds:
        rounded = {id(p) for p, v in zip(trained, masters.values, strict=True) if p is not v}
        held = [p for p in network.parameters() if id(p) not in rounded]
    optimizers = make_optimizers(config.optimizer, trained_weights(network, masters.values))
    for value in masters.values:
        value.grad = torch.empty_like(value)
    state = 0
    for optimizer in optimizers:
        # It would look at the stream of a GPU, and so make a context there in a process that may not need one.
        vars(optimizer)["_accelerator_graph_capture_health_check"] = lambda: None
        optimizer.step()
        state += sum(x.nbytes for of in optimizer.state.values() for x in of.values() if torch.is_tensor(x))
    experts = sum(p.numel() for name, p in plain.named_parameters() if ".experts." in name)
    with _of_others():
        kept, kept_once = _kept(network, config.engine.max_tokens)
        critic_kept, critic_kept_once = (0.0, 0.0) if critic is None else _kept(critic, config.engine.max_tokens)
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
