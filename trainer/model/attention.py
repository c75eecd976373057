"""Attention over sequences that stand end to end, each seeing itself only: no padding and no [T, T] mask.

Learner and engine hand the model one long run of tokens, [1, N], that holds no padding at all; everything but attention
treats tokens alone. Attention is registered with transformers under :data:`NAME` and is told where sequences start by
the keyword ``layout``, which the model passes through; a call without it is plain SDPA.

Sequences that begin alike share what they have in common: the state of a token depends on the ids up to it alone, so it
is computed once, and no number changes. Then a sequence has queries for its own tokens only, and keys and values for
all. The learner finds what its sequences share by sorting their ids: each shares its beginning with the one before it.
The engine has a tree of all that it ran (:mod:`trainer.engines.prefix_cache`).

Shapes: S sequences, N tokens that are computed, H heads, E width of a head; of the padded buckets Q places that ask and
P that are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from inspect import signature
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from roll_envs.errors import ConfigError
from trainer.model.context import TokenSlice

NAME = "packed"
"""The name of this attention in transformers."""

Kind = Literal["sdpa", "flash", "flex"]
"""sdpa: sequences of about one length together, everywhere; flash, flex: one kernel for all, CUDA only."""

_SLACK = 16
"""Sequences that are shorter by less than this, or by less than an eighth, share a bucket."""
LEAST_SHARED = 4
"""Sequences that share fewer tokens than this are run apart: a tree costs more than it saves."""


class Bucket(NamedTuple):
    """Sequences of about one length, which attend together."""

    sequences: int
    """How many they are."""
    keys: int
    """Tokens that each looks at; shorter sequences repeat their last one."""
    queries: int
    """Tokens with which each asks; those with fewer repeat their last one."""
    mask: torch.Tensor | None = None
    """bool [sequences, 1, queries, keys]; each token sees its sequence up to itself. None: a plain causal one."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Layout:
    """Where the sequences of a run of tokens stand, and how attention goes over them."""

    kind: Kind
    starts: torch.Tensor
    """int32 [S + 1]; where each sequence starts, then N."""
    longest: int
    """Tokens of the longest sequence."""
    buckets: tuple[Bucket, ...] = ()
    """One after the other in Q and in P (sdpa)."""
    query_tokens: torch.Tensor | None = None
    """int64 [Q]; the token at each place that asks. None: places are the tokens (sdpa)."""
    key_tokens: torch.Tensor | None = None
    """int64 [P]; the token at each place that is looked at, where that is not Q (sdpa)."""
    place_of_token: torch.Tensor | None = None
    """int64 [N]; the place in Q of each token (sdpa)."""
    block_mask: Any = None
    """A ``BlockMask`` (flex)."""
    token_slice: TokenSlice | None = None
    """Which of the tokens this rank has, where several run them together."""


def layout_of_positions(positions: torch.Tensor, kind: Kind = "sdpa", device: torch.device | None = None) -> Layout:
    """The sequences of a run of tokens from its ``positions`` [N], which are 0 where a sequence starts; for attention
    on ``device``, by default theirs.

    Positions 0 1 2 0 1 2 0 1 2 make one bucket of 3 sequences of 3, in place.
    """
    lengths, device = _lengths(positions.numpy(force=True)), device or positions.device
    if kind == "sdpa":
        return bucket_layout(lengths, lengths, None, device)
    block_mask = _block_mask(_on(device, lengths)) if kind == "flex" else None
    return Layout(kind=kind, starts=_starts(lengths, device), longest=int(max(lengths)), block_mask=block_mask)


def layout_of_tree(tree: SharedPrefixes, device: torch.device | None = None) -> Layout:
    """The sequences of the tokens that ``tree`` keeps, for SDPA on ``device``, by default the tree's; one with no token
    of its own asks nothing."""
    ends = tree.lengths.cumsum()
    steps = np.minimum(np.arange(tree.lengths.max()), tree.lengths[:, None] - 1)
    seen = tree.place_of_token.numpy(force=True)[(ends - tree.lengths)[:, None] + steps]
    return bucket_layout(tree.lengths, tree.lengths - tree.shared, seen, device or tree.kept.device)


def bucket_layout(lengths: np.ndarray, own: np.ndarray, seen: np.ndarray | None, device: torch.device) -> Layout:
    """Sequences of ``lengths`` [S] tokens, of which each one's last ``own`` [S] are among the N tokens that are run.

    ``seen`` [S, longest] says for each token of a sequence which of the keys is its. Behind the sequence's end it may
    say any that is finite. None: each sequence is all its own, and the keys are the tokens that are run.
    """
    first = own.cumsum() - own
    buckets, query_tokens, key_tokens = [], [], []
    place_of_token = np.empty(own.sum(), dtype=np.int64)
    used = 0
    for members in _alike(lengths, own, by_own=seen is not None):
        keys, queries = int(lengths[members].max()), int(own[members].max())
        steps, ends = np.arange(queries), own[members, None]
        # Behind its end a sequence repeats its last token, which the sequence's own tokens do not see.
        asking = first[members, None] + np.minimum(steps, ends - 1)
        query_tokens.append(asking.ravel())
        place_of_token[asking[steps < ends]] = used + np.flatnonzero(steps < ends)
        used += asking.size
        mask = None
        if seen is not None:
            key_tokens.append(seen[members, :keys].ravel())
            place = np.minimum(steps, ends - 1) + lengths[members, None] - ends
            mask = _on(device, np.arange(keys) <= place[:, None, :, None])
        buckets.append(Bucket(len(members), keys, queries, mask))
    places = np.concatenate(query_tokens)
    in_place = np.array_equal(places, np.arange(len(place_of_token)))
    return Layout(
        kind="sdpa",
        starts=_starts(lengths, device),
        longest=int(lengths.max()),
        buckets=tuple(buckets),
        query_tokens=None if in_place else _on(device, places),
        key_tokens=_on(device, np.concatenate(key_tokens)) if key_tokens else None,
        place_of_token=None if in_place else _on(device, place_of_token),
    )


def _alike(lengths: np.ndarray, own: np.ndarray, *, by_own: bool) -> Iterator[np.ndarray]:
    """Sequences that share a bucket, in their order: the longest first, and none without a token of its own. ``by_own``
    keeps those with 1 token, to 4, to 16, to 64 and so on apart: a single new one must not be padded to a prompt."""
    kinds = np.ceil(np.log2(np.maximum(own, 1)) / 2) if by_own else np.zeros(len(own))
    order = np.lexsort((-own, -lengths, kinds))
    order = order[own[order] > 0]
    sizes = np.stack([lengths, own, kinds], axis=1)[order].tolist()
    begin, (most, asks, kind) = 0, sizes[0]
    for end, (n, q, k) in enumerate(sizes):
        if most - n >= max(_SLACK, most // 8) or abs(asks - q) >= max(_SLACK, asks // 8) or k != kind:
            yield np.sort(order[begin:end])
            begin, most, asks, kind = end, n, q, k
    yield np.sort(order[begin:])


def _lengths(positions: np.ndarray) -> np.ndarray:
    return np.diff(np.flatnonzero(positions == 0), append=len(positions))


def _starts(lengths: np.ndarray, device: torch.device) -> torch.Tensor:
    return _on(device, np.append(0, lengths.cumsum()).astype(np.int32))


def _on(device: torch.device, values: np.ndarray) -> torch.Tensor:
    """``values`` on ``device``, which is not waited for."""
    return torch.from_numpy(values).to(device, non_blocking=True)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SharedPrefixes:
    """A run of N tokens of S sequences of which M tokens are computed."""

    kept: torch.Tensor
    """int64 [M]; the tokens that are computed, in their order."""
    place_of_token: torch.Tensor
    """int64 [N]; for each token the place among ``kept`` of the one that stands for it."""
    lengths: np.ndarray
    """int64 [S]; tokens of each sequence."""
    shared: np.ndarray
    """int64 [S]; how many of them, from its start on, are computed with another sequence; the others are its own."""


def share_prefixes(ids: torch.Tensor, positions: torch.Tensor) -> SharedPrefixes | None:
    """The tree of the sequences of ``ids`` [N], ``positions`` [N] being 0 where one starts; None if nothing is shared.

    Sequences 1 2 3 4 5 and 1 2 3 4 6 keep the tokens 0 to 4 and 9; the second shares 4.
    """
    numbers, places = ids.numpy(force=True), positions.numpy(force=True)
    lengths = _lengths(places)
    starts = lengths.cumsum() - lengths
    columns = np.arange(lengths.max())
    inside = columns < lengths[:, None]
    table = np.where(inside, numbers[np.minimum(starts[:, None] + columns, len(numbers) - 1)], -1)
    keys = [row.tobytes() for row in table.astype(">i8")]  # bytes that sort as the ids do
    order = np.array(sorted(range(len(keys)), key=keys.__getitem__))
    table, inside = table[order], inside[order]
    alike = np.logical_and.accumulate((table[1:] == table[:-1]) & inside[1:], axis=1).sum(1)
    new_from = np.append(0, np.where(alike < LEAST_SHARED, 0, alike))
    if not new_from.any():
        return None
    # Where a sequence is not new, the last one before it that was new there stands for it.
    own = np.where(columns >= new_from[:, None], np.arange(len(order))[:, None], 0)
    stands_for = starts[order[np.maximum.accumulate(own, axis=0)]] + columns
    representative = np.empty_like(places)
    representative[(starts[order][:, None] + columns)[inside]] = stands_for[inside]
    stays = representative == np.arange(len(places))
    place_of_token = (stays.cumsum() - 1)[representative]
    shared = np.empty_like(lengths)
    shared[order] = new_from
    return SharedPrefixes(
        kept=torch.from_numpy(np.flatnonzero(stays)).to(ids.device),
        place_of_token=torch.from_numpy(place_of_token).to(ids.device),
        lengths=lengths,
        shared=shared,
    )


def _block_mask(lengths: torch.Tensor) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    number = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)

    def same_sequence_before(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (number[q] == number[k]) & (q >= k)

    count = len(number)
    return create_block_mask(same_sequence_before, None, None, count, count, device=str(lengths.device))


def choose_attention(name: str, device: torch.device, dtype: torch.dtype) -> Kind:
    """The kind for ``learner.attention``; 'auto' is flash where it runs, else sdpa.

    Raises :class:`ConfigError` when what is asked for does not run here.
    """
    half = dtype in (torch.bfloat16, torch.float16)
    if name == "auto":
        return "flash" if device.type == "cuda" and half and _FLASH is not None else "sdpa"
    if name != "sdpa" and device.type != "cuda":
        raise ConfigError(f"learner.attention {name!r} needs a CUDA device, and the model is on {device}; use 'sdpa'")
    if name == "flash" and not half:
        raise ConfigError(
            f"learner.attention 'flash' has no kernel for {dtype}; set learner.precision: bfloat16, or use 'sdpa'"
        )
    if name == "flash" and _FLASH is None:
        raise ConfigError(
            f"learner.attention 'flash' needs torch.nn.attention.varlen with a scale, which torch {torch.__version__} "
            "does not have; install torch 2.11 or newer, or use 'sdpa'"
        )
    return cast(Kind, name)


def use_packed_attention(network: Any) -> None:
    """Make the model's layers call this attention.

    Raises :class:`ConfigError` for models whose layers mix tokens in other ways, so that packed sequences would mix. A
    model that does not pass ``layout`` on is found when it is run, by :func:`check_call`.
    """
    kinds = set(getattr(network.config, "layer_types", None) or ["full_attention"])
    strange = sorted(kinds - {"full_attention", "sliding_attention"})
    if strange:
        raise ConfigError(
            f"{type(network).__name__} has layers of type {', '.join(strange)}; the learner packs sequences and "
            "knows full_attention and sliding_attention only. Use another model"
        )
    try:
        network.set_attn_implementation(NAME)
    except ValueError as error:
        raise ConfigError(f"{type(network).__name__} takes no attention of others ({error}); use another model") from (
            error
        )
    if network.config._attn_implementation != NAME:  # transformers only logs that it left it as it was
        raise ConfigError(
            f"{type(network).__name__} takes no attention of others, so that packed sequences would mix; use another "
            "model"
        )


def check_call(
    module: torch.nn.Module,
    layout: Layout | None,
    query: torch.Tensor,
    value: torch.Tensor,
    keywords: Mapping[str, Any],
) -> None:
    """Raise :class:`ConfigError` for a call of attention that this one cannot answer: the model, which was called with
    a ``layout``, did not pass it on, so that sequences would mix; or asks for what is not known here."""
    name = type(module).__name__
    if layout is None:
        raise ConfigError(
            f"the model does not tell its {name} where packed sequences start (its layers drop the keyword 'layout'), "
            "so that these would mix; use another model"
        )
    for key in ("softcap", "s_aux", "position_bias"):
        if keywords.get(key) is not None:
            raise ConfigError(f"{name} asks for {key}, which packed attention does not know; use another model")
    if query.shape[-1] != value.shape[-1]:
        raise ConfigError(
            f"{name} has queries {query.shape[-1]} and values {value.shape[-1]} wide, and packed attention knows one "
            "width for both; use another model"
        )
    window = keywords.get("sliding_window")
    if window is not None and layout.longest > window:
        raise ConfigError(
            f"a sequence of {layout.longest} tokens is longer than the model's sliding window of {window}, which "
            f"packed attention does not cut; lower engine.max_tokens to {window}, or use another model"
        )


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    layout: Layout | None = None,
    scaling: float | None = None,
    **keywords: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls: [1, H, N, E] in, [1, N, H, E] out, of the slice of this rank where ``layout`` has one.
    Without ``layout``, plain SDPA."""
    if layout is None:
        if attention_mask is not None and attention_mask.shape[2:] == (1, 1) and key.shape[2] > 1:
            check_call(module, None, query, value, keywords)  # the mask is the one that stands beside a layout
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **keywords)  # type: ignore[no-any-return]
    check_call(module, layout, query, value, keywords)
    run: Callable[..., torch.Tensor] = {"sdpa": _sdpa, "flash": _flash, "flex": _flex}[layout.kind]
    if (mine := layout.token_slice) is None:
        return run(query, key, value, layout, scaling), None
    query, key, value = (mine.to_heads(x, query.shape[1]) for x in (query, key, value))
    return mine.to_tokens(run(query, key, value, layout, scaling)), None


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: Layout, scale: float | None) -> torch.Tensor:
    """SDPA bucket by bucket. Tokens behind a sequence's end see it, but it does not see them."""
    if q.dtype == torch.bfloat16 and q.device.type == "cpu":  # slow on CPUs, its backward above all
        return _sdpa(q.float(), k.float(), v.float(), layout, scale).to(q.dtype)  # type: ignore[no-any-return]

    tokens = [x[0].transpose(0, 1) for x in (q, k, v)]
    if layout.query_tokens is not None:
        own = tokens if layout.key_tokens is None else tokens[:1]
        tokens[: len(own)] = [_Place.apply(x, layout.query_tokens, layout.place_of_token) for x in own]  # type: ignore[no-untyped-call]
    if layout.key_tokens is not None:
        tokens[1:] = [x.index_select(0, layout.key_tokens) for x in tokens[1:]]

    def cut(places: torch.Tensor, widths: list[int]) -> list[torch.Tensor]:
        parts = torch.split(places, [b.sequences * width for b, width in zip(layout.buckets, widths, strict=True)])
        return [p.view(-1, width, *p.shape[1:]).transpose(1, 2) for p, width in zip(parts, widths, strict=True)]

    queries, keys = [b.queries for b in layout.buckets], [b.keys for b in layout.buckets]
    results = []
    for bucket, asks, sees, gives in zip(layout.buckets, *map(cut, tokens, (queries, keys, keys)), strict=True):
        out = scaled_dot_product_attention(
            asks,
            sees,
            gives,
            attn_mask=bucket.mask,
            is_causal=bucket.mask is None,
            scale=scale,
            enable_gqa=k.shape[1] != q.shape[1],
        )
        results.append(out.transpose(1, 2).flatten(0, 1))
    joined = torch.cat(results)
    if layout.place_of_token is not None:
        joined = joined.index_select(0, layout.place_of_token)
    return joined[None]


class _Place(torch.autograd.Function):
    """Tokens [N, ...] to places [P, ...]. Only a token's own place has a gradient, so both ways are one gather."""

    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor, places: torch.Tensor, place_of_token: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(place_of_token)
        return tokens.index_select(0, places)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (place_of_token,) = ctx.saved_tensors
        return gradient.index_select(0, place_of_token), None, None


def _flash_kernel() -> partial[Any] | None:
    """Causal flash attention of torch over sequences of any length, with fewer heads of keys than of queries; None
    where torch has none."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    known = signature(varlen_attn).parameters
    if "window_size" not in known:  # torch 2.10, which takes no scale either
        return None
    # torch 2.11 takes grouped heads without being told.
    grouped: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in known else {}
    return partial(varlen_attn, window_size=(-1, 0), **grouped)


_FLASH = _flash_kernel()


def _flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: Layout, scale: float | None) -> torch.Tensor:
    assert _FLASH is not None  # choose_attention has looked
    tokens = [x[0].transpose(0, 1).contiguous() for x in (q, k, v)]
    out = _FLASH(*tokens, layout.starts, layout.starts, layout.longest, layout.longest, scale=scale)
    return out[None]  # type: ignore[no-any-return]


@cache
def _compiled_flex() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: Layout, scale: float | None) -> torch.Tensor:
    """Flex attention; compiled on CUDA, where it skips the blocks in which no sequence sees another's tokens."""
    from torch.nn.attention.flex_attention import flex_attention

    run: Any = _compiled_flex() if q.is_cuda else flex_attention
    out = run(q, k, v, block_mask=layout.block_mask, scale=scale, enable_gqa=k.shape[1] != q.shape[1])
    return out.transpose(1, 2)  # type: ignore[no-any-return]


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
