"""Attention over rows that stand end to end, each seeing itself only: no padding and no [T, T] mask.

The learner hands the model one long run of tokens, [1, N], that holds no padding at all; everything but attention
treats tokens alone. Attention is registered with transformers under :data:`NAME` and is told where rows start by the
keyword ``rows``, which the model passes through; a call without it (the engine's, with its own mask) is plain SDPA.

Rows that begin alike share what they have in common: the state of a token depends on the ids up to it alone, so it is
computed once, and no number changes. The rows of a group share their first prompt, the turns of one state their whole
prompt. Sorted by their ids, rows form a tree: each shares its beginning with the row before it, and is new from there
on. Then a row has queries for its own tokens only, and keys and values for all.

Shapes: N tokens that are computed, H heads, E width of a head, P places of the padded buckets, Q those that ask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from roll_envs.errors import ConfigError, RollError

__all__ = [
    "LEAST_SHARED",
    "NAME",
    "Kind",
    "Rows",
    "SharedRows",
    "choose_attention",
    "rows_of_positions",
    "rows_of_tree",
    "share_prefixes",
    "use_row_attention",
]

NAME = "rows"
"""The name of this attention in transformers."""

Kind = Literal["sdpa", "flash", "flex"]
"""sdpa: rows of about one length together, everywhere; flash, flex: one kernel for all rows, CUDA only."""

_SLACK = 16
"""Rows that are shorter by less than this, or by less than an eighth, share a bucket."""
LEAST_SHARED = 4
"""Rows that share fewer tokens than this are run apart: a tree costs more than it saves."""


class QueryBlock(NamedTuple):
    """The queries of a bucket whose rows share tokens with others."""

    width: int
    """Tokens with which each row asks; shorter rows repeat their last one."""
    mask: torch.Tensor
    """bool [rows, 1, width, tokens]; what each sees: the row's tokens up to itself."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rows:
    """Where the rows of a run of tokens stand, and how attention goes over them."""

    kind: Kind
    starts: torch.Tensor
    """int32 [R + 1]; where each row starts, then N."""
    longest: int
    """Tokens of the longest row."""
    buckets: tuple[tuple[int, int], ...] = ()
    """(rows, tokens of each) of the buckets, one after the other in P (sdpa)."""
    places: torch.Tensor | None = None
    """int64 [P]; the token at each place, a row's last one where it is over. None: places are the tokens (sdpa)."""
    place_of_token: torch.Tensor | None = None
    """int64 [N]; the place of each token, among those that ask (sdpa)."""
    query_blocks: tuple[QueryBlock, ...] = ()
    """For each bucket what its rows ask with, where rows share tokens; empty where they ask with all of them (sdpa)."""
    query_tokens: torch.Tensor | None = None
    """int64 [Q]; the token at each place that asks, where rows share tokens (sdpa)."""
    block_mask: Any = None
    """A ``BlockMask`` (flex)."""


def rows_of_positions(positions: torch.Tensor, kind: Kind = "sdpa") -> Rows:
    """The rows of a run of tokens from its ``positions`` [N], which are 0 where a row starts.

    Positions 0 1 2 0 1 2 0 1 2 make one bucket of 3 rows of 3, in place.
    """
    starts = torch.nonzero(positions == 0)[:, 0]
    ends = torch.cat([starts[1:], starts.new_tensor([len(positions)])])
    lengths = ends - starts
    offsets = torch.cat([starts, ends[-1:]]).int()
    rows = Rows(kind=kind, starts=offsets, longest=int(lengths.max()))
    if kind == "flash":
        return rows
    if kind == "flex":
        return _with_block_mask(rows, lengths)
    return _with_buckets(rows, starts, lengths)


def _with_buckets(rows: Rows, starts: torch.Tensor, lengths: torch.Tensor) -> Rows:
    ordered, order = lengths.sort(descending=True, stable=True)
    sizes = ordered.tolist()
    buckets: list[tuple[int, int]] = []
    places: list[torch.Tensor] = []
    bases = torch.empty_like(starts)  # the place where each row starts
    first, used = 0, 0
    for last in range(1, len(sizes) + 1):
        width = sizes[first]
        if last < len(sizes) and width - sizes[last] < max(_SLACK, width // 8):
            continue
        members = order[first:last]
        steps = torch.arange(width, device=starts.device)
        # Behind its end a row repeats its last token, which the row's own tokens do not see.
        places.append((starts[members, None] + torch.minimum(steps, lengths[members, None] - 1)).flatten())
        bases[members] = used + width * torch.arange(last - first, device=starts.device)
        buckets.append((last - first, width))
        first, used = last, used + len(places[-1])
    if len(buckets) == 1 and sizes[0] == sizes[-1]:
        return replace(rows, buckets=tuple(buckets))
    place_of_token = torch.arange(int(rows.starts[-1]), device=starts.device) + torch.repeat_interleave(
        bases - starts, lengths
    )
    return replace(rows, buckets=tuple(buckets), places=torch.cat(places), place_of_token=place_of_token)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SharedRows:
    """A run of N tokens of R rows of which M tokens are computed."""

    kept: torch.Tensor
    """int64 [M]; the tokens that are computed, in their order."""
    place_of_token: torch.Tensor
    """int64 [N]; for each token the place among ``kept`` of the one that stands for it."""
    lengths: torch.Tensor
    """int64 [R]; tokens of each row."""
    shared: torch.Tensor
    """int64 [R]; how many of them, from the row's start on, are computed with another row; the others are its own."""


def share_prefixes(ids: torch.Tensor, positions: torch.Tensor) -> SharedRows | None:
    """The tree of the rows of ``ids`` [N], ``positions`` [N] being 0 where a row starts; None where nothing is shared.

    Rows 1 2 3 4 5 and 1 2 3 4 6 keep the tokens 0 to 4 and 9; the second shares 4.
    """
    numbers, places = ids.numpy(force=True), positions.numpy(force=True)
    starts = np.flatnonzero(places == 0)
    lengths = np.diff(np.append(starts, len(places)))
    if len(starts) < 2:
        return None
    width = int(lengths.max())
    columns = np.arange(width)
    inside = columns < lengths[:, None]
    table = np.where(inside, numbers[np.minimum(starts[:, None] + columns, len(numbers) - 1)], -1)
    keys = [row.tobytes() for row in table.astype(">i8")]  # bytes that sort as the ids do
    order = np.array(sorted(range(len(keys)), key=keys.__getitem__))
    table, inside = table[order], inside[order]
    shared = np.zeros(len(starts), dtype=np.int64)
    alike = (table[1:] == table[:-1]) & inside[1:]
    shared[1:] = np.logical_and.accumulate(alike, axis=1).sum(1)
    shared[shared < LEAST_SHARED] = 0
    if not shared.any():
        return None
    # Where a row is not new, the last row before it that was new there stands for it.
    own = np.where(columns >= shared[:, None], np.arange(len(order))[:, None], 0)
    source = order[np.maximum.accumulate(own, axis=0)]
    stands = (starts[source] + columns)[inside]
    here = (starts[order][:, None] + columns)[inside]
    representative = np.empty(len(places), dtype=np.int64)
    representative[here] = stands
    stays = representative == np.arange(len(places))
    kept, rank = np.flatnonzero(stays), np.cumsum(stays) - 1
    in_order = np.empty_like(shared)
    in_order[order] = shared
    given = (kept, rank[representative], lengths, in_order)
    kept_t, place_of_token_t, lengths_t, shared_t = (torch.from_numpy(x).to(ids.device) for x in given)
    return SharedRows(kept=kept_t, place_of_token=place_of_token_t, lengths=lengths_t, shared=shared_t)


def rows_of_tree(tree: SharedRows) -> Rows:
    """The rows of the tokens that ``tree`` keeps, for SDPA; a row with no token of its own asks nothing."""
    device = tree.lengths.device
    starts = torch.cumsum(tree.lengths, 0) - tree.lengths  # among all tokens, shared ones counted in each row
    offsets = torch.cat([starts, starts[-1:] + tree.lengths[-1:]]).int()
    longest = int(tree.lengths.max())
    own = tree.lengths - tree.shared
    keys, queries = tree.lengths.tolist(), own.tolist()
    order = sorted((r for r in range(len(keys)) if queries[r]), key=lambda r: (-keys[r], -queries[r]))
    buckets, query_blocks = [], []
    places, query_tokens = [], []
    place_of_token = torch.empty(len(tree.kept), dtype=torch.int64, device=device)
    first, used = 0, 0
    for last in range(1, len(order) + 1):
        width, lead = keys[order[first]], queries[order[first]]
        if last < len(order) and all(
            abs(w - n) < max(_SLACK, w // 8) for w, n in ((width, keys[order[last]]), (lead, queries[order[last]]))
        ):
            continue
        members = torch.tensor(order[first:last], device=device)
        lead = max(queries[r] for r in order[first:last])
        ends = tree.lengths[members, None] - 1
        steps = torch.minimum(torch.arange(width, device=device), ends)
        places.append(tree.place_of_token[starts[members, None] + steps].flatten())
        depths = tree.shared[members, None] + torch.arange(lead, device=device)
        present = depths <= ends
        tokens = tree.place_of_token[starts[members, None] + torch.minimum(depths, ends)]
        query_tokens.append(tokens.flatten())
        place_of_token[tokens[present]] = used + torch.arange(tokens.numel(), device=device).view_as(tokens)[present]
        seen = torch.arange(width, device=device) <= torch.minimum(depths, ends)[:, :, None]
        buckets.append((last - first, width))
        query_blocks.append(QueryBlock(lead, seen[:, None]))
        first, used = last, used + tokens.numel()
    return Rows(
        kind="sdpa",
        starts=offsets,
        longest=longest,
        buckets=tuple(buckets),
        places=torch.cat(places),
        place_of_token=place_of_token,
        query_blocks=tuple(query_blocks),
        query_tokens=torch.cat(query_tokens),
    )


def _with_block_mask(rows: Rows, lengths: torch.Tensor) -> Rows:
    from torch.nn.attention.flex_attention import create_block_mask

    number = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)

    def same_row_before(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (number[q] == number[k]) & (q >= k)

    count = len(number)
    mask = create_block_mask(same_row_before, None, None, count, count, device=str(lengths.device))
    return replace(rows, block_mask=mask)


def choose_attention(name: str, device: torch.device, dtype: torch.dtype) -> Kind:
    """The kind for ``learner.attention``; 'auto' is flash where it runs, else sdpa.

    Raises :class:`ConfigError` when what is asked for does not run here.
    """
    half = dtype in (torch.bfloat16, torch.float16)
    if name == "auto":
        return "flash" if device.type == "cuda" and half and _varlen() is not None else "sdpa"
    if name == "sdpa":
        return "sdpa"
    if device.type != "cuda":
        raise ConfigError(f"learner.attention {name!r} needs a CUDA device, and the model is on {device}; use 'sdpa'")
    if name == "flex":
        return "flex"
    if not half:
        raise ConfigError(
            f"learner.attention 'flash' has no kernel for {dtype}; set learner.precision: bfloat16, or use 'sdpa'"
        )
    if _varlen() is None:
        raise ConfigError(
            f"learner.attention 'flash' needs torch.nn.attention.varlen, which torch {torch.__version__} does not "
            "have; install torch 2.10 or newer, or use 'sdpa'"
        )
    return "flash"


def use_row_attention(network: Any) -> None:
    """Make the model's layers call this attention.

    Raises :class:`ConfigError` for models whose layers mix tokens in other ways, which rows end to end would mix up.
    """
    kinds = set(getattr(network.config, "layer_types", None) or ["full_attention"])
    strange = sorted(kinds - {"full_attention", "sliding_attention"})
    if strange:
        raise ConfigError(
            f"{type(network).__name__} has layers of type {', '.join(strange)}; the learner packs rows and knows "
            "full_attention and sliding_attention only. Use another model"
        )
    try:
        network.set_attn_implementation(NAME)
    except ValueError as error:
        raise ConfigError(f"{type(network).__name__} takes no attention of others ({error}); use another model") from (
            error
        )


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    rows: Rows | None = None,
    scaling: float | None = None,
    **keywords: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls: [1, H, N, E] in, [1, N, H, E] out. Without ``rows``, plain SDPA."""
    if rows is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **keywords)  # type: ignore[no-any-return]
    for name in ("softcap", "s_aux", "position_bias"):
        if keywords.get(name) is not None:
            raise RollError(f"{type(module).__name__} asks for {name}, which attention over rows does not know")
    window = keywords.get("sliding_window")
    if window is not None and rows.longest > window:
        raise RollError(
            f"a row of {rows.longest} tokens is longer than the model's sliding window of {window}, which attention "
            "over rows does not cut; shorten the episodes (engine.max_tokens) or use another model"
        )
    run = {"sdpa": _sdpa, "flash": _flash, "flex": _flex}[rows.kind]
    return run(query, key, value, rows, scaling), None


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: Rows, scale: float | None) -> torch.Tensor:
    """Causal SDPA bucket by bucket. Tokens behind a row's end see it, but it does not see them."""
    if q.dtype == torch.bfloat16 and q.device.type == "cpu":  # slow on CPUs, its backward above all
        return _sdpa(q.float(), k.float(), v.float(), rows, scale).to(q.dtype)
    grouped = k.shape[1] != q.shape[1]
    query, key, value = (x[0].transpose(0, 1) for x in (q, k, v))
    if rows.places is not None and rows.query_tokens is not None:
        query = _Place.apply(query, rows.query_tokens, rows.place_of_token)  # type: ignore[no-untyped-call]
        key, value = key.index_select(0, rows.places), value.index_select(0, rows.places)
    elif rows.places is not None:
        query, key, value = (_Place.apply(x, rows.places, rows.place_of_token) for x in (query, key, value))  # type: ignore[no-untyped-call]

    def bucket(tokens: torch.Tensor, start: int, count: int, width: int) -> torch.Tensor:
        return tokens[start : start + count * width].view(count, width, *tokens.shape[1:]).transpose(1, 2)

    results, asks, looks = [], 0, 0
    for i, (count, width) in enumerate(rows.buckets):
        lead, mask = rows.query_blocks[i] if rows.query_blocks else (width, None)
        out = scaled_dot_product_attention(
            bucket(query, asks, count, lead),
            bucket(key, looks, count, width),
            bucket(value, looks, count, width),
            attn_mask=mask,
            is_causal=mask is None,
            scale=scale,
            enable_gqa=grouped,
        )
        results.append(out.transpose(1, 2).flatten(0, 1))
        asks, looks = asks + count * lead, looks + count * width
    joined = results[0] if len(results) == 1 else torch.cat(results)
    if rows.place_of_token is not None:
        joined = joined.index_select(0, rows.place_of_token)
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


def _varlen() -> Callable[..., Any] | None:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn


def _flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: Rows, scale: float | None) -> torch.Tensor:
    """Flash attention of torch over rows of any length."""
    varlen = _varlen()
    assert varlen is not None  # choose_attention has looked
    tokens = [x[0].transpose(0, 1).contiguous() for x in (q, k, v)]
    out = varlen(
        *tokens,
        rows.starts,
        rows.starts,
        rows.longest,
        rows.longest,
        scale=scale,
        window_size=(-1, 0),
        enable_gqa=k.shape[1] != q.shape[1],
    )
    return out[None]  # type: ignore[no-any-return]


_compiled: list[Callable[..., Any]] = []


def _flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: Rows, scale: float | None) -> torch.Tensor:
    """Flex attention; compiled on CUDA, where it skips the blocks in which no row sees another's tokens."""
    from torch.nn.attention.flex_attention import flex_attention

    run: Callable[..., Any] = flex_attention
    if q.is_cuda:
        if not _compiled:
            _compiled.append(torch.compile(flex_attention, dynamic=True))
        run = _compiled[0]
    out = run(q, k, v, block_mask=rows.block_mask, scale=scale, enable_gqa=k.shape[1] != q.shape[1])
    return out.transpose(1, 2)  # type: ignore[no-any-return]


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
