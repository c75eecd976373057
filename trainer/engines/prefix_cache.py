"""A network and what was run through it: a tree of tokens, with the keys, values and logits of each.

With the same weights the same ids have the same next-token distribution. So a sequence that was run before costs
nothing, and one that begins like another pays for what is new in it: the next turn of an episode, a state that another
episode met, the same rules. What was run with older weights is forgotten.

A token of the tree has a place, which is also where its keys and values lie, so that sequences share them without a
copy. A place is held by the tokens behind it and by the open sequences that end there. Places that nobody holds are
kept for sequences to come, and are given away when there is no other place left, the one let go first coming first.
"""

# Shapes: N sequences of a pass, T new tokens, P places, H key-value heads, D head width, V vocabulary.

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache

from trainer.model.attention import bucket_layout, use_packed_attention
from trainer.model.forward import head_of

PASS_TOKENS = 2**14
"""More new tokens than this are run in several passes, to bound the memory of one."""
LOGITS_BYTES = 64 * 2**20
KEPT_LOGITS = 2**15
"""Memory, and at most how many of them, for logits that are kept for sequences that come again."""
FIRST_PLACES = 64
"""Places for each sequence that may be open, to begin with."""
_ROOT = 0
"""The place before every first token."""


class KeyValuePool(Cache):  # type: ignore[misc]
    """Keys and values [layers][P, H, D], one place for each token of the tree."""

    def __init__(self, config: Any, places: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(layers=[])
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        # Attention in bfloat16 is slow on a CPU and therefore done in float32.
        kind = torch.float32 if dtype == torch.bfloat16 and device.type == "cpu" else dtype
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        shape = (config.num_hidden_layers, places, heads, width)
        self.keys, self.values = (torch.empty(shape, dtype=kind, device=device) for _ in range(2))
        self.written = torch.empty(0, dtype=torch.long, device=device)
        """Where the T tokens of the next forward pass are written, [T]."""

    def grow(self, places: int) -> None:
        """Have room for ``places`` tokens."""
        extra = (0, 0, 0, 0, 0, places - self.keys.shape[1])
        self.keys, self.values = (torch.nn.functional.pad(x, extra) for x in (self.keys, self.values))

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [1, H, T, D]; returns all that there is of this layer, [1, H, P, D]."""
        pools = (self.keys[layer_idx], self.values[layer_idx])
        for pool, states in zip(pools, (key_states, value_states), strict=True):
            pool.index_copy_(0, self.written, states[0].transpose(0, 1).to(pool.dtype))
        keys, values = (pool.transpose(0, 1)[None] for pool in pools)
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


class OpenSequence:
    """A sequence that grows while it is sampled, and where it is in the tree of a :class:`CachedNetwork`."""

    __slots__ = ("ids", "place", "slot")

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = list(ids)
        self.place = -1
        """Of its last id, while it is open."""
        self.slot = -1
        """The row of the table of places that lists those of all its ids."""


class CachedNetwork:
    """Logits after growing sequences, each distinct sequence run once.

    ``slots`` sequences may be open at a time. :attr:`passes` and :attr:`tokens_computed` count what the network ran.
    """

    def __init__(self, network: Any, slots: int) -> None:
        """Raises :class:`ConfigError` for a model whose attention or head is not known here."""
        self.network = network
        use_packed_attention(network)
        self._head, self._softcap = network.get_output_embeddings(), head_of(network).softcap
        weight = next(network.parameters())
        self.device = weight.device
        self.vocabulary = int(network.get_input_embeddings().num_embeddings)
        self.passes = 0
        self.tokens_computed = 0
        self.free_slots = list(range(slots))
        self._places_of = np.zeros((slots, FIRST_PLACES), dtype=np.int64)
        # The tree, by place. Plain lists: most of what is asked is one number at a time.
        count = slots * FIRST_PLACES + 1
        self.keys_values = KeyValuePool(network.config, count, weight.dtype, weight.device)
        self._following: dict[int, int] = {}  # from place * vocabulary + id to the place of that id behind it
        self._edge = [-1] * count  # the key in _following that leads here
        self._before = [_ROOT] * count
        self._holders = [1] * count  # tokens behind it, and open sequences that end there; the root is its own
        self._was_run = [True] * count
        self._row = [-1] * count  # of the logits after it; -1 when they are not kept
        # Places that are kept for sequences to come, by when they were let go. Ordered, since the first key of a plain
        # dict is found by going over all that were deleted before it.
        self._unheld: OrderedDict[int, None] = OrderedDict()
        self.free_places = list(range(1, count))
        # Logits that are kept are overwritten in turn.
        self._logits: torch.Tensor | None = None
        self._place_of_row = [-1] * max(1, min(KEPT_LOGITS, LOGITS_BYTES // (4 * self.vocabulary)))
        self._next_row = 0

    # -- sequences ---------------------------------------------------------------------------------------------------

    def open(self, sequence: OpenSequence) -> None:
        """Begin with a sequence; :meth:`close` ends it. No more than there are slots may be open."""
        sequence.slot = self.free_slots.pop()
        following, vocabulary = self._following, self.vocabulary
        places = [_ROOT]
        for token in sequence.ids:
            place = following.get(places[-1] * vocabulary + token)
            if place is None:
                break
            places.append(place)
        self._hold(places[-1])
        for token in sequence.ids[len(places) - 1 :]:
            places.append(self._step(places[-1], token))
        sequence.place = places[-1]
        self._list(sequence.slot, 0, places[1:])

    def extend(self, sequence: OpenSequence) -> None:
        """Go on with a sequence after an id was appended to it."""
        sequence.place = self._step(sequence.place, sequence.ids[-1])
        self._list(sequence.slot, len(sequence.ids) - 1, [sequence.place])

    def close(self, sequence: OpenSequence) -> None:
        """End a sequence. What was run for it is kept for others that begin like it."""
        if sequence.slot < 0:
            return
        self.free_slots.append(sequence.slot)
        self._let_go(sequence.place)
        sequence.slot = sequence.place = -1

    def forget(self, running: Sequence[OpenSequence] = ()) -> None:
        """Drop everything that was run, because the weights changed. The sequences that are open, ``running``, keep
        their keys and values, but no sequence to come gets to read them; their ids so far are not run again."""
        self._following.clear()
        self._row = [-1] * len(self._row)
        self._place_of_row = [-1] * len(self._place_of_row)
        while self._unheld:
            self._give_back(next(iter(self._unheld)))
        for sequence in running:
            # What comes after it is to be computed anew: at a place of its own, as others may look at the old one.
            if self._was_run[sequence.place]:
                self._hold(self._before[sequence.place])
                fresh = self._new(self._before[sequence.place], -1)
                self._let_go(sequence.place)
                sequence.place = fresh
                self._list(sequence.slot, len(sequence.ids) - 1, [fresh])

    # -- the tree ----------------------------------------------------------------------------------------------------

    def _step(self, place: int, token: int) -> int:
        """From ``place``, which the caller holds, to ``token`` behind it, which it holds instead."""
        edge = place * self.vocabulary + token
        following = self._following.get(edge)
        if following is None:
            following = self._following[edge] = self._new(place, edge)
        else:
            self._hold(following)
            self._let_go(place)
        return following

    def _new(self, before: int, edge: int) -> int:
        """A place behind ``before``, held by the caller, whose hold on ``before`` passes to it."""
        if not self.free_places:
            self._find_places()
        place = self.free_places.pop()
        self._edge[place], self._before[place] = edge, before
        self._holders[place], self._was_run[place], self._row[place] = 1, False, -1
        return place

    def _hold(self, place: int) -> None:
        if not self._holders[place]:
            del self._unheld[place]
        self._holders[place] += 1

    def _let_go(self, place: int) -> None:
        self._holders[place] -= 1
        if not self._holders[place]:
            self._unheld[place] = None

    def _find_places(self) -> None:
        """Have more places, or give away one that nobody holds once there are enough for all slots to share nothing."""
        count = len(self._edge)
        if self._unheld and count > self._places_of.size:
            self._give_back(next(iter(self._unheld)))
            return
        for numbers in (self._edge, self._before, self._holders, self._was_run, self._row):
            numbers += numbers[:1] * count  # each is set when its place is taken
        self.free_places += range(count, 2 * count)
        self.keys_values.grow(2 * count)

    def _give_back(self, place: int) -> None:
        """Drop a token that nobody holds, and those before it that only it held."""
        del self._unheld[place]
        if self._row[place] >= 0:
            self._place_of_row[self._row[place]] = -1
        self._following.pop(self._edge[place], None)
        self.free_places.append(place)
        self._let_go(self._before[place])

    def _list(self, slot: int, start: int, places: Sequence[int]) -> None:
        """Note the places of a sequence's ids from ``start`` on."""
        width = own = self._places_of.shape[1]
        while width < start + len(places):  # doubled, so that it follows from the longest sequence alone
            width *= 2
        if width > own:
            self._places_of = np.pad(self._places_of, ((0, 0), (0, width - own)))
        self._places_of[slot, start : start + len(places)] = places

    # -- logits ------------------------------------------------------------------------------------------------------

    def logits(self, sequences: Sequence[OpenSequence]) -> tuple[torch.Tensor, np.ndarray]:
        """Logits [U, V] after the distinct sequences among ``sequences``, and which of them is each one's, int [N]."""
        kept, fresh = dict[int, int](), dict[int, OpenSequence]()
        for sequence in sequences:
            row = self._row[sequence.place]
            if row >= 0:
                kept[sequence.place] = row
            else:
                fresh.setdefault(sequence.place, sequence)
        parts = []
        if kept:
            assert self._logits is not None
            parts.append(self._logits.index_select(0, self._tensor(list(kept.values()))))
        if fresh:
            # The shortest first: a sequence that another one begins with is not run a second time for its logits.
            fresh = dict(sorted(fresh.items(), key=lambda entry: len(entry[1].ids)))
            parts.append(torch.cat([self._forward(part) for part in self._passes(list(fresh.values()))]))
            self._keep(list(fresh), parts[-1])
        order = {place: number for number, place in enumerate(itertools.chain(kept, fresh))}
        return torch.cat(parts), np.array([order[sequence.place] for sequence in sequences])

    def _keep(self, places: Sequence[int], logits: torch.Tensor) -> None:
        """Store ``logits``, in place of those that were stored first."""
        size = len(self._place_of_row)
        if self._logits is None:
            self._logits = torch.empty(size, self.vocabulary, dtype=logits.dtype, device=self.device)
        rows = [(self._next_row + i) % size for i in range(min(size, len(places)))]
        self._next_row = (rows[-1] + 1) % size
        for row, place in zip(rows, places, strict=False):
            if self._place_of_row[row] >= 0:
                self._row[self._place_of_row[row]] = -1
            self._place_of_row[row], self._row[place] = place, row
        self._logits.index_copy_(0, self._tensor(rows), logits[: len(rows)])

    def _passes(self, sequences: Sequence[OpenSequence]) -> list[list[tuple[OpenSequence, list[int]]]]:
        """Sequences with the places of their new tokens, cut so that no pass has too many of those. What several are
        yet to run the first of them runs: the others look at it in the same pass, layer by layer, or in a later one."""
        passes: list[list[tuple[OpenSequence, list[int]]]] = [[]]
        room = PASS_TOKENS
        for sequence in sequences:
            new, place = [sequence.place], self._before[sequence.place]  # the last one has to be run for its logits
            while not self._was_run[place]:
                self._was_run[place] = True
                new.append(place)
                place = self._before[place]
            self._was_run[sequence.place] = True
            room -= len(new)
            if room < 0 and passes[-1]:
                passes.append([])
                room = PASS_TOKENS - len(new)
            passes[-1].append((sequence, new[::-1]))
        return passes

    def _forward(self, part: Sequence[tuple[OpenSequence, list[int]]]) -> torch.Tensor:
        """Logits [N, V] after sequences whose other tokens were run before. The new ones are run end to end; only
        attention looks at one sequence at a time."""
        lengths = np.array([len(sequence.ids) for sequence, _ in part])
        own = np.array([len(new) for _, new in part])
        slots = np.array([sequence.slot for sequence, _ in part])
        ends = own.cumsum()
        ids = list(itertools.chain.from_iterable(sequence.ids[-len(new) :] for sequence, new in part))
        seen = self._places_of[slots[:, None], np.minimum(np.arange(lengths.max()), lengths[:, None] - 1)]
        self.keys_values.written = self._tensor(list(itertools.chain.from_iterable(new for _, new in part)))
        hidden = self.network.base_model(
            input_ids=self._tensor(ids)[None],
            position_ids=self._tensor(np.arange(len(ids)) + (lengths - ends).repeat(own))[None],
            # Not read: where there is a mask of four dimensions, the model makes none of its own.
            attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=self.device),
            past_key_values=self.keys_values,
            use_cache=True,
            layout=bucket_layout(lengths, own, seen, self.device),
        ).last_hidden_state[0]
        self.passes += 1
        self.tokens_computed += len(ids)
        logits: torch.Tensor = self._head(hidden.index_select(0, self._tensor(ends - 1)))
        return logits if self._softcap is None else self._softcap * (logits / self._softcap).tanh()

    def _tensor(self, values: Sequence[int] | np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.asarray(values)).to(self.device)
