"""A network and what was run through it: keys and values of the sequences, and the logits that came after them.

With the same weights the same ids have the same next-token distribution. So a sequence that was run before costs
nothing, and one that begins like another pays for what is new in it: the next turn of an episode, a state that another
episode met, the same rules. What was run with older weights is forgotten.
"""

# Shapes: S slots, N sequences of this pass, H key-value heads, T new tokens, C capacity, D head width, V vocabulary.

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache
from transformers.masking_utils import sdpa_mask

__all__ = ["CachedNetwork", "KeyValueSlots", "OpenSequence", "PrefixIndex"]

_LEAST_SHARED = 8
"""A common prefix of fewer tokens than this is run again rather than copied."""
_PASS_TOKENS = 2**14
"""More new tokens than this are run in several passes, to bound the memory of one."""
_LOGITS_BYTES = 64 * 2**20
_KEPT_LOGITS = 2**15
"""Memory, and at most how many of them, for logits that are kept for sequences that come again."""


class Prefix:
    """A sequence of ids under the present weights: its logits, where its keys and values lie, and what follows it."""

    __slots__ = ("container", "key", "next", "row", "slot", "slot_use")

    def __init__(self, container: dict[Any, Prefix], key: Any) -> None:
        self.container, self.key = container, key
        """Where it is found: among all prompts by its ids, or in ``next`` of the prefix before it by its last id."""
        self.row = -1
        """Its row in the table of logits; -1 when it has none (any more)."""
        self.slot, self.slot_use = -1, -1
        """The slot that holds its keys and values, as long as the slot is in the same use as then."""
        self.next: dict[int, Prefix] = {}


class OpenSequence:
    """A sequence that grows while it is sampled, and what it has in a :class:`CachedNetwork`."""

    __slots__ = ("before", "held", "ids", "prefix", "slot")

    prefix: Prefix
    """Of all its ids, once it is open."""

    def __init__(self, ids: tuple[int, ...]) -> None:
        self.ids = list(ids)
        self.before: Prefix | None = None
        """Of all but the last id, when that was sampled here."""
        self.slot = -1
        self.held = 0
        """How many of its first ids ``slot`` holds keys and values of."""


class PrefixIndex:
    """Which token ids the slots hold: at most one sequence a slot.

    The sequences are sorted. The one that shares the longest prefix with a prompt then stands next to where the prompt
    would stand, so that finding it is a binary search.
    """

    def __init__(self) -> None:
        self._ordered: list[tuple[tuple[int, ...], int]] = []
        self._ids: dict[int, tuple[int, ...]] = {}

    def __contains__(self, slot: int) -> bool:
        return slot in self._ids

    def ids(self, slot: int) -> tuple[int, ...]:
        """The sequence in ``slot``; empty when there is none."""
        return self._ids.get(slot, ())

    def put(self, slot: int, ids: tuple[int, ...]) -> None:
        """Note that ``slot`` holds ``ids``, instead of what it held."""
        self.drop(slot)
        self._ids[slot] = ids
        insort(self._ordered, (ids, slot))

    def drop(self, slot: int) -> None:
        """Note that ``slot`` holds nothing that may be used."""
        ids = self._ids.pop(slot, None)
        if ids is not None:
            del self._ordered[bisect_left(self._ordered, (ids, slot))]

    def clear(self) -> None:
        """Forget all slots."""
        self._ordered.clear()
        self._ids.clear()

    def has(self, ids: tuple[int, ...]) -> bool:
        """Whether a slot holds exactly ``ids``."""
        at = bisect_left(self._ordered, (ids, -1))
        return at < len(self._ordered) and self._ordered[at][0] == ids

    def longest(self, prompt: tuple[int, ...]) -> tuple[int, int]:
        """The slot that shares the longest prefix with ``prompt``, and its length; (-1, 0) when none shares any.

        Slots with 1 2 3 and 1 2 9 and the prompt 1 2 3 4: the first, 3.
        """
        at = bisect_left(self._ordered, (prompt, -1))
        best, length = -1, 0
        for ids, slot in self._ordered[max(at - 1, 0) : at + 1]:
            shared = _shared(ids, prompt)
            if shared > length:
                best, length = slot, shared
        return best, length


def _shared(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Length of the longest common prefix, by bisection: comparing slices is quicker than comparing ids one by one."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class KeyValueSlots(Cache):  # type: ignore[misc]
    """Keys and values [layers][S, H, C, D]; ``C`` doubles when a sequence needs more."""

    def __init__(self, config: Any, slots: int, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(layers=[])
        heads = config.num_key_value_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, slots, heads, capacity, width)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self._slots = self._places = torch.zeros(0, dtype=torch.long, device=device)

    def begin(self, slots: torch.Tensor, places: torch.Tensor, visible: int) -> None:
        """Say where the next forward pass writes: its T tokens go to ``slots`` [T] at ``places`` [T], all below
        ``visible``."""
        self._slots, self._places = slots, places
        capacity = self.keys.shape[3]
        if visible > capacity:
            extra = max(visible, 2 * capacity) - capacity
            self.keys = torch.nn.functional.pad(self.keys, (0, 0, 0, extra))
            self.values = torch.nn.functional.pad(self.values, (0, 0, 0, extra))

    def copy(self, pairs: Sequence[tuple[int, int]], places: int) -> None:
        """Give slot ``b`` the first ``places`` places of slot ``a``, for every pair (a, b). All are read before any is
        written: a slot may be on both sides."""
        sources, targets = (torch.tensor(slots, device=self.keys.device) for slots in zip(*pairs, strict=True))
        self.keys[:, targets, :, :places] = self.keys[:, sources, :, :places]
        self.values[:, targets, :, :places] = self.values[:, sources, :, :places]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [1, H, T, D]; returns all that the slots hold of this layer, [S, H, C, D]."""
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        keys[self._slots, :, self._places] = key_states[0].transpose(0, 1)
        values[self._slots, :, self._places] = value_states[0].transpose(0, 1)
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


class _Group(NamedTuple):
    """Sequences of a pass with about as many new tokens, which attend to their slots together."""

    slots: torch.Tensor
    """int64 [N]."""
    tokens: torch.Tensor
    """int64 [N, Q]; which tokens of the pass are each sequence's new ones."""
    mask: torch.Tensor
    """bool [N, 1, Q, visible]; each token sees the places up to its own."""


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    groups: Sequence[_Group],
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of the tokens of a pass, [1, T, H, D], to what their slots hold."""
    queries = query[0].transpose(0, 1)
    found = torch.empty_like(queries)
    for group in groups:
        visible = group.mask.shape[-1]
        seen = scaled_dot_product_attention(
            queries[group.tokens].transpose(1, 2),
            key[group.slots, :, :visible],
            value[group.slots, :, :visible],
            attn_mask=group.mask,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        found[group.tokens] = seen.transpose(1, 2)
    return found[None], None


ATTENTION = "slots"
"""The name of this attention in transformers."""
AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


class CachedNetwork:
    """Logits after growing sequences, each distinct sequence run once.

    ``slots`` sequences may be open at a time. :attr:`passes` and :attr:`tokens_computed` count what the network ran.
    """

    def __init__(self, network: Any, slots: int) -> None:
        self.network = network
        network.set_attn_implementation(ATTENTION)
        weight = next(network.parameters())
        self.device = weight.device
        self.vocabulary = int(network.get_input_embeddings().num_embeddings)
        self.passes = 0
        self.tokens_computed = 0
        self.keys_values = KeyValueSlots(network.config, slots, 64, weight.dtype, weight.device)
        self.empty = dict.fromkeys(range(slots))
        """Free slots that hold nothing of use."""
        self.left = dict[int, None]()
        """Free slots that hold a sequence which ended, the one that was left first coming first."""
        self._uses = [0] * slots  # counts up whenever a slot is taken for another sequence
        self._index = PrefixIndex()
        self._table: torch.Tensor | None = None
        self._owners: list[Prefix | None] = [None] * max(1, min(_KEPT_LOGITS, _LOGITS_BYTES // (4 * self.vocabulary)))
        self._next_row = 0
        self._prompts: dict[tuple[int, ...], Prefix] = {}

    # -- sequences ---------------------------------------------------------------------------------------------------

    def open(self, sequence: OpenSequence) -> None:
        """Begin with a sequence; :meth:`close` ends it. No more than there are slots may be open."""
        ids = tuple(sequence.ids)
        prefix = self._prompts.get(ids)
        if prefix is None:
            prefix = self._prompts[ids] = Prefix(self._prompts, ids)
        sequence.prefix = prefix

    @staticmethod
    def extend(sequence: OpenSequence) -> None:
        """Go on with a sequence after an id was appended to it."""
        token, before = sequence.ids[-1], sequence.prefix
        sequence.before, following = before, before.next.get(token)
        if following is None:
            following = before.next[token] = Prefix(before.next, token)
        sequence.prefix = following

    def close(self, sequence: OpenSequence, *, keep: bool) -> None:
        """End a sequence; ``keep`` its keys and values for others that begin like it."""
        slot = sequence.slot
        if slot < 0:
            return
        sequence.slot = -1
        ids = tuple(sequence.ids[: sequence.held])
        self._index.drop(slot)
        if keep and not self._index.has(ids):
            self._index.put(slot, ids)
            self.left[slot] = None
        else:
            self.empty[slot] = None

    def forget(self) -> None:
        """Drop everything that was run, because the weights changed. Open sequences keep their keys and values, but
        nobody else gets to read them; their ids so far are not run again."""
        self._index.clear()
        self.empty.update(self.left)
        self.left.clear()
        self._uses = [use + 1 for use in self._uses]
        self._prompts = {}
        self._owners = [None] * len(self._owners)

    def renew(self, sequence: OpenSequence) -> None:
        """Take an open sequence along past :meth:`forget`: no other one shares its logits any more."""
        sequence.before, sequence.prefix = None, Prefix({}, None)

    # -- logits ------------------------------------------------------------------------------------------------------

    def logits(self, sequences: Sequence[OpenSequence]) -> tuple[torch.Tensor, np.ndarray]:
        """Logits [U, V] after the distinct sequences among ``sequences``, and which of them is each one's, int [N]."""
        order: dict[Prefix, int] = {}
        known: list[Prefix] = []
        leaders: dict[Prefix, OpenSequence] = {}
        for sequence in sequences:
            prefix = sequence.prefix
            if prefix.row >= 0:
                if prefix not in order:
                    order[prefix] = len(known)
                    known.append(prefix)
            else:
                other = leaders.get(prefix)
                if other is None or other.slot < 0 <= sequence.slot:
                    leaders[prefix] = sequence
        parts = []
        if known:
            assert self._table is not None
            parts.append(self._table[torch.tensor([prefix.row for prefix in known], device=self.device)])
        if leaders:
            order.update({prefix: len(known) + i for i, prefix in enumerate(leaders)})
            parts.append(self._run(list(leaders.values())))
            self._keep(list(leaders), parts[-1])
        which = np.fromiter((order[sequence.prefix] for sequence in sequences), dtype=np.int64, count=len(sequences))
        return torch.cat(parts) if len(parts) > 1 else parts[0], which

    def _keep(self, prefixes: Sequence[Prefix], logits: torch.Tensor) -> None:
        """Store ``logits`` in the table, in place of those that were stored first."""
        size = len(self._owners)
        if self._table is None:
            self._table = torch.empty(size, self.vocabulary, dtype=logits.dtype, device=self.device)
        rows = []
        for prefix in prefixes[:size]:
            row = self._next_row
            self._next_row = (row + 1) % size
            self._drop(self._owners[row])
            self._owners[row] = prefix
            prefix.row = row
            rows.append(row)
        for prefix in prefixes[size:]:
            self._drop(prefix)
        self._table[torch.tensor(rows, device=self.device)] = logits[: len(rows)]

    @staticmethod
    def _drop(prefix: Prefix | None) -> None:
        if prefix is not None:
            prefix.row = -1
            if prefix.container.get(prefix.key) is prefix:
                del prefix.container[prefix.key]

    def _run(self, sequences: Sequence[OpenSequence]) -> torch.Tensor:
        """Run what is new in ``sequences``; logits [N, V] after them."""
        new = [sequence for sequence in sequences if sequence.slot < 0]
        sources = [self._take_slot(sequence) for sequence in new]
        copies = [(source, sequence) for source, sequence in zip(sources, new, strict=True) if source >= 0]
        if copies:
            self.keys_values.copy([(source, a.slot) for source, a in copies], max(a.held for _, a in copies))
        parts: list[list[OpenSequence]] = [[]]
        room = _PASS_TOKENS
        for sequence in sequences:
            room -= len(sequence.ids) - sequence.held
            if room < 0 and parts[-1]:
                parts.append([])
                room = _PASS_TOKENS - (len(sequence.ids) - sequence.held)
            parts[-1].append(sequence)
        logits = torch.cat([self._forward(part) for part in parts])
        for sequence in sequences:
            sequence.held = len(sequence.ids)
            sequence.prefix.slot, sequence.prefix.slot_use = sequence.slot, self._uses[sequence.slot]
        for sequence in new:
            self._index.put(sequence.slot, tuple(sequence.ids))
        return logits

    def _take_slot(self, sequence: OpenSequence) -> int:
        """Give ``sequence`` a free slot. Sets ``held`` to what may be reused of that slot, or of the slot that is
        returned (-1 when nothing is to be copied)."""
        before, last = sequence.before, len(sequence.ids) - 1  # at least one token must be run, to have logits
        if before is not None and before.slot >= 0 and self._uses[before.slot] == before.slot_use:
            source, shared = before.slot, last
        else:
            source, shared = self._index.longest(tuple(sequence.ids))
            if shared < _LEAST_SHARED:
                source, shared = -1, 0
        sequence.held = min(shared, last)
        if source in self.left and shared == len(self._index.ids(source)):
            del self.left[source]  # it goes on where the other one ended
            sequence.slot = source
            return -1
        sequence.slot = slot = next(iter(self.empty or self.left))
        (self.empty or self.left).pop(slot)
        self._index.drop(slot)
        self._uses[slot] += 1
        return -1 if source == slot else source

    def _forward(self, sequences: Sequence[OpenSequence]) -> torch.Tensor:
        """Logits [N, V] after ``sequences``, whose slots hold all but their new tokens. Those are run end to end; only
        attention looks at one sequence at a time."""
        tokens = [sequence.ids[sequence.held :] for sequence in sequences]
        counts = np.fromiter((len(t) for t in tokens), dtype=np.int64, count=len(tokens))
        held = np.fromiter((sequence.held for sequence in sequences), dtype=np.int64, count=len(sequences))
        slots = np.fromiter((sequence.slot for sequence in sequences), dtype=np.int64, count=len(sequences))
        ends = counts.cumsum()
        places = np.arange(ends[-1]) + (held + counts - ends).repeat(counts)
        ids = np.fromiter(itertools.chain.from_iterable(tokens), dtype=np.int64, count=int(ends[-1]))
        self.keys_values.begin(self._tensor(slots.repeat(counts)), self._tensor(places), int(places.max()) + 1)
        hidden = self.network.base_model(
            input_ids=self._tensor(ids)[None],
            position_ids=self._tensor(places)[None],
            # Not read: where there is a mask of four dimensions, the model makes none of its own.
            attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=self.device),
            past_key_values=self.keys_values,
            use_cache=True,
            groups=self._groups(slots, held, counts, ends),
        ).last_hidden_state[0]
        self.passes += 1
        self.tokens_computed += int(ends[-1])
        return self.network.lm_head(hidden[self._tensor(ends - 1)])  # type: ignore[no-any-return]

    def _groups(self, slots: np.ndarray, held: np.ndarray, counts: np.ndarray, ends: np.ndarray) -> list[_Group]:
        """Sequences by their number of new tokens: 1, to 4, to 16, to 64 and so on."""
        classes = np.ceil(np.log2(counts) / 2).astype(np.int64)
        groups = []
        for size in np.unique(classes):
            members = (classes == size).nonzero()[0]
            # A sequence that is over repeats its last token, which gives the same answer once more.
            steps = np.minimum(np.arange(counts[members].max()), counts[members, None] - 1)
            places = self._tensor(held[members, None] + steps)
            visible = int((held + counts)[members].max())
            groups.append(
                _Group(
                    slots=self._tensor(slots[members]),
                    tokens=self._tensor((ends - counts)[members, None] + steps),
                    mask=torch.arange(visible, device=self.device) <= places[:, None, :, None],
                )
            )
        return groups

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self.device)
