"""Where the weights of a Hugging Face model are among those of a Megatron-Core ``GPTModel``, both ways.

Each Hugging Face weight is a view of one Megatron-Core weight (of one for each expert), whole or cut over the ranks of
tensor parallelism, so that a weight is read and written in place, alone and in any order. Nothing here imports
Megatron-Core. Names on its side count layers over the whole model, whatever pipeline stage has them.

A part's ``full`` shape is (groups, heads of each, width of a head, width) for queries, keys and values; (experts, 2,
inner width, width) for the gated layers of all experts; and the Hugging Face weight's own for all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from roll_envs.errors import ConfigError
from trainer.learner.megatron_families import Family, family_of, width_of_heads

EMBEDDING, HEAD = "embedding.word_embeddings.weight", "output_layer.weight"


class Part(NamedTuple):
    """A Hugging Face weight as a part of Megatron-Core's."""

    name: str
    cores: tuple[str, ...]
    """Megatron-Core's names: one, or one for each expert (stacked on a first dimension)."""
    full: tuple[int, ...]
    """Shape of the whole weight in which it is cut; has as many numbers as the Hugging Face weight."""
    cut: int | None = None
    """Dimension of ``full`` that is cut over tensor-parallel ranks; None: each of them has all of it."""
    view: Callable[[torch.Tensor], torch.Tensor] = lambda core: core
    """Megatron-Core's weight of one rank -> the view of it that holds this rank's share."""
    layer: int | None = None
    """Decoder layer; None: before the first of them, or behind the last."""


def parts_of(config: Any) -> list[Part]:
    """The weights of a model of this Hugging Face configuration, in the order of its parameters.

    Raises :class:`ConfigError` as :func:`family_of` does.
    """
    family, width, vocabulary = family_of(config), config.hidden_size, config.vocab_size
    parts = [Part("model.embed_tokens.weight", (EMBEDDING,), (vocabulary, width), 0)]
    for layer in range(config.num_hidden_layers):
        parts += _layer(config, family, layer)
    parts.append(Part("model.norm.weight", ("decoder.final_layernorm.weight",), (width,)))
    if not config.tie_word_embeddings:
        parts.append(Part("lm_head.weight", (HEAD,), (vocabulary, width), 0))
    if family.names is not None:
        by_core: dict[str, list[str]] = {}
        for part in parts:
            by_core.setdefault(part.cores[0], []).append(part.name)
        for name, own in by_core.items():
            if (known := list(family.names(name))) != own:
                raise ConfigError(
                    f"learner.backend 'megatron' makes {name} of a {config.model_type} model of {' and '.join(own)}; "
                    f"Megatron-Bridge of {' and '.join(known) or 'something else'}. Use another backend"
                )
    return parts


def _layer(config: Any, family: Family, layer: int) -> list[Part]:
    width = config.hidden_size
    here, there = f"model.layers.{layer}.", f"decoder.layers.{layer}."
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    each, head = heads // groups, width_of_heads(config)

    def part(name: str, core: str, full: tuple[int, ...], cut: int | None = None, **how: Any) -> Part:
        return Part(here + name, (there + core,), full, cut, layer=layer, **how)

    def qkv(place: slice) -> Callable[[torch.Tensor], torch.Tensor]:
        # Megatron-Core has one matrix: for each group its queries, its key, its value.
        return lambda core: core.view(-1, each + 2, head, *core.shape[1:])[:, place]

    places = {"q": slice(0, each), "k": slice(each, each + 1), "v": slice(each + 1, each + 2)}
    inputs = {"weight": (width,), **({"bias": ()} if family.qkv_bias else {})}
    parts = [
        part(
            f"self_attn.{n}_proj.{kind}",
            f"self_attention.linear_qkv.{kind}",
            (groups, p.stop - p.start, head, *shape),
            0,
            view=qkv(p),
        )
        for n, p in places.items()
        for kind, shape in inputs.items()
    ]
    parts.append(part("self_attn.o_proj.weight", "self_attention.linear_proj.weight", (width, heads * head), 1))
    if family.qk_norm:
        norms = {"q": "q_layernorm", "k": "k_layernorm"}
        parts += [part(f"self_attn.{n}_norm.weight", f"self_attention.{c}.weight", (head,)) for n, c in norms.items()]
    if family.experts:
        inner, experts = config.moe_intermediate_size, range(config.num_experts)
        fc1, fc2 = (tuple(f"{there}mlp.experts.local_experts.{x}.linear_fc{i}.weight" for x in experts) for i in (1, 2))
        gated = (len(experts), 2, inner, width)
        parts += [
            Part(
                f"{here}mlp.experts.gate_up_proj", fc1, gated, 2, lambda core: core.view(2, -1, core.shape[-1]), layer
            ),
            Part(f"{here}mlp.experts.down_proj", fc2, (len(experts), width, inner), 2, layer=layer),
            part("mlp.gate.weight", "mlp.router.weight", (len(experts), width)),
        ]
    else:
        inner = config.intermediate_size
        parts += [
            # One matrix on each rank: its share of the gate, then its share of the other.
            part(f"mlp.{n}_proj.weight", "mlp.linear_fc1.weight", (inner, width), 0, view=lambda c, i=i: c.chunk(2)[i])
            for i, n in enumerate(("gate", "up"))
        ]
        parts.append(part("mlp.down_proj.weight", "mlp.linear_fc2.weight", (width, inner), 1))
    return [
        *parts,
        part("input_layernorm.weight", "input_layernorm.weight", (width,)),
        part("post_attention_layernorm.weight", "pre_mlp_layernorm.weight", (width,)),
    ]


def padded(rows: int, ranks: int) -> int:
    """Rows of a vocabulary that is cut over ``ranks``: the next multiple; those behind the last id are 0."""
    return -(-rows // ranks) * ranks


def read(part: Part, cores: Sequence[torch.Tensor]) -> torch.Tensor:
    """This rank's share of the weight, contiguous, with the dimensions of ``part.full``."""
    views = [part.view(core) for core in cores]
    return torch.stack(views) if len(views) > 1 or len(part.full) > views[0].ndim else views[0].contiguous()


def join(part: Part, shares: Sequence[torch.Tensor]) -> torch.Tensor:
    """The whole Hugging Face weight from the shares of all tensor-parallel ranks, in their order."""
    whole = shares[0] if part.cut is None or len(shares) == 1 else torch.cat(list(shares), part.cut)
    if part.cut is not None:
        whole = whole.narrow(part.cut, 0, part.full[part.cut])  # without the padding of a vocabulary
    return whole.reshape(shape_of(part))


@torch.no_grad()
def write(part: Part, cores: Sequence[torch.Tensor], weight: torch.Tensor, *, rank: int, ranks: int) -> None:
    """Put rank ``rank``'s share of the Hugging Face ``weight`` into its Megatron-Core weights, in place."""
    share = weight.reshape(part.full)
    if part.cut is not None:
        size = padded(part.full[part.cut], ranks) // ranks
        there = min(size, max(0, part.full[part.cut] - rank * size))
        share = share.narrow(part.cut, min(rank * size, part.full[part.cut]), there)
        if there < size:  # the end of a vocabulary
            rest = share.new_zeros(*share.shape[: part.cut], size - there, *share.shape[part.cut + 1 :])
            share = torch.cat([share, rest], part.cut)
    views = [part.view(core) for core in cores]
    for view, own in zip(views, share if share.ndim > views[0].ndim else [share], strict=True):
        view.copy_(own)


def shape_of(part: Part) -> tuple[int, ...]:
    """The shape of the Hugging Face weight."""
    if part.cores[0].endswith(("linear_qkv.weight", "linear_qkv.bias")):
        return (part.full[0] * part.full[1] * part.full[2], *part.full[3:])
    if len(part.full) == 4:  # gate and other of all experts
        return (part.full[0], part.full[1] * part.full[2], part.full[3])
    return part.full
