"""Packing loses nothing, and the update does not depend on how it is cut (promise 8)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from episode_builders import batches_of, counted, row, scattered, trajectory, turn
from episode_builders import rows as some_rows
from hypothesis import given
from hypothesis import strategies as st
from loss_inputs import entropy, label_logprobs
from torch import nn

from trainer.algorithms.losses.objective import make_objective, policy_loss
from trainer.config import LossConfig
from trainer.data.batches import Denominators, pack, padding_share, split_minibatches
from trainer.data.table import TokenSequence, to_sequences, tokens_of


def attention_mask(segments: torch.Tensor) -> torch.Tensor:
    """Block-diagonal causal mask for SDPA: bool [B, 1, T, T], True where position q (dim 2) may look at k (dim 3).

    A row sees itself only. Padding sees earlier padding and itself, so that no softmax is over nothing.
    """
    same = segments[:, None, :, None] == segments[:, None, None, :]
    return same.tril()


def credit_of(rows: Sequence[TokenSequence]) -> list[np.ndarray]:
    """An advantage for every id, in the mask or not, that depends on the row and the place."""
    return [np.sin(np.arange(len(r.ids)) + 3 * r.member) for r in rows]


def test_pack_by_hand() -> None:
    lengths = np.array([5, 4, 3, 2])
    assert pack(lengths, 7) == [[0, 3], [1, 2]]
    assert pack(lengths, 4) == [[0], [1], [2], [3]]
    assert pack(lengths, 14) == [[0, 1, 2, 3]]


@given(some_rows(max_rows=25), st.integers(1, 40))
def test_pack_is_first_fit_decreasing(rows: list[TokenSequence], pack_tokens: int) -> None:
    bins: list[list[int]] = []  # the definition, word for word
    for index in sorted(range(len(rows)), key=lambda i: -len(rows[i].ids)):
        for members in bins:
            if sum(len(rows[i].ids) for i in members) + len(rows[index].ids) <= pack_tokens:
                members.append(index)
                break
        else:
            bins.append([index])
    assert pack(np.array([len(r.ids) for r in rows]), pack_tokens) == bins


def test_a_batch_by_hand() -> None:
    rows = [row((5, 6, 7), (0, 1, 1)), row((8, 9), (0, 1), member=1), row((3,), (1,), member=2)]
    (batch,) = batches_of(
        rows,
        [np.array([9.0, 1.0, 2.0]), np.array([9.0, 3.0]), np.array([9.0])],
        pack_tokens=5,
        tokens_per_microbatch=64,
    )
    assert batch.ids.tolist() == [[5, 6, 7, 8, 9], [3, 0, 0, 0, 0]]
    assert batch.positions.tolist() == [[0, 1, 2, 0, 1], [0, 0, 0, 0, 0]]
    assert batch.segments.tolist() == [[0, 0, 0, 1, 1], [0, -1, -1, -1, -1]]
    assert batch.sequence.tolist() == [[0, 0, 0, 1, 1], [2, -1, -1, -1, -1]]
    assert batch.labels.tolist() == [[6, 7, 0, 9, 0], [0, 0, 0, 0, 0]]
    assert batch.label_mask.int().tolist() == [[1, 1, 0, 1, 0], [0, 0, 0, 0, 0]]
    assert batch.advantages.tolist() == [[1, 2, 0, 3, 0], [0, 0, 0, 0, 0]]
    expected = torch.tensor([[-0.06, -0.07, 0, -0.09, 0], [0, 0, 0, 0, 0]])
    assert torch.equal(batch.sampler_logp, expected)
    assert torch.equal(batch.old_logp, expected)
    assert {f.name: str(getattr(batch, f.name).dtype) for f in fields(batch) if getattr(batch, f.name) is not None} == {
        **dict.fromkeys(("ids", "positions", "segments", "labels", "sequence", "turn", "token"), "torch.int64"),
        **dict.fromkeys(("advantages", "sampler_logp", "old_logp"), "torch.float32"),
        "label_mask": "torch.bool",
    }
    assert batch.turn.tolist() == [[0, 0, -1, 0, -1], [-1] * 5]
    assert batch.token.tolist() == [[0, 1, -1, 2, -1], [-1] * 5]  # the fourth token is not predicted
    assert padding_share([batch]) == pytest.approx(0.4)
    counts = counted(rows)
    assert (counts.tokens, counts.sequences, counts.sequence_tokens.tolist()) == (3, 2, [2, 1, 0])


def test_the_limit_of_a_microbatch_counts_padding() -> None:
    rows = [row(range(n), [1] * n) for n in (6, 6, 5, 3, 3, 9)]
    shapes = [tuple(b.ids.shape) for b in batches_of(rows, pack_tokens=1, tokens_per_microbatch=12)]
    assert shapes == [(1, 9), (2, 6), (2, 5), (1, 3)]
    assert [tuple(b.ids.shape) for b in batches_of(rows, pack_tokens=1, tokens_per_microbatch=4)] == [
        (1, 9), (1, 6), (1, 6), (1, 5), (1, 3), (1, 3),
    ]  # fmt: skip


def test_no_rows_no_batches() -> None:
    assert batches_of([], [], pack_tokens=8, tokens_per_microbatch=8) == []
    assert scattered([], [], []) == []
    assert split_minibatches([], 2, np.random.default_rng(0)) == []


@pytest.mark.parametrize("column", [np.zeros(0), np.zeros(3)])
def test_a_column_of_another_length_is_refused(column: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"column 'advantage' has . numbers for 1 sampled tokens"):
        tokens_of([row((1, 2), (0, 1))]).with_columns(advantage=column)


@given(some_rows(), st.integers(1, 40), st.integers(1, 80))
def test_pack_and_scatter_back_lose_nothing(rows: list[TokenSequence], pack_tokens: int, limit: int) -> None:
    credit = credit_of(rows)
    old = [c - 1 for c in credit]
    batches = batches_of(rows, credit, pack_tokens=pack_tokens, tokens_per_microbatch=limit, proximal_logp=old)
    predicted = [np.array([False, *r.mask[1:]]) for r in rows]
    for field, values in (
        ("labels", [r.ids for r in rows]),
        ("sampler_logp", [r.logprobs for r in rows]),
        ("advantages", credit),
        ("old_logp", old),
    ):
        back = scattered(rows, batches, [getattr(b, field) for b in batches])
        assert len(back) == len(rows)
        for got, value, keep in zip(back, values, predicted, strict=True):
            np.testing.assert_array_equal(got, np.where(keep, np.asarray(value, dtype=np.float32), 0.0))
    seen: dict[tuple[int, int], int] = {}
    for b in batches:
        assert b.ids.numel() <= limit or b.ids.shape[0] == 1
        used = b.sequence >= 0
        assert torch.equal(used, b.segments >= 0)
        for r, p, i in zip(b.sequence[used].tolist(), b.positions[used].tolist(), b.ids[used].tolist(), strict=True):
            assert seen.setdefault((r, p), i) == i
        assert int(used.sum()) == len({(r, p) for r, p in zip(b.sequence[used], b.positions[used], strict=True)})
    assert seen == {(r, p): i for r, member in enumerate(rows) for p, i in enumerate(member.ids)}
    assert sum(int(b.label_mask.sum()) for b in batches) == counted(rows).tokens


@given(some_rows(max_rows=20), st.integers(1, 6), st.integers(0, 99))
def test_minibatches_hold_whole_groups_evenly(rows: list[TokenSequence], n: int, seed: int) -> None:
    dealt = split_minibatches(rows, n, np.random.default_rng(seed))
    assert sorted(i for part in dealt for i in part) == list(range(len(rows)))
    assert dealt == split_minibatches(rows, n, np.random.default_rng(seed))
    group_sets = [{rows[i].group for i in part} for part in dealt]
    assert sum(len(s) for s in group_sets) == len({r.group for r in rows})
    assert len(dealt) == min(n, len({r.group for r in rows}))
    largest = max(sum(r.group == g for r in rows) for g in {r.group for r in rows})
    sizes = [len(part) for part in dealt]
    assert max(sizes) - min(sizes) <= largest


def test_minibatches_change_with_the_generator() -> None:
    rows = [row((1, 2), (0, 1), group=g) for g in range(40)]
    rng = np.random.default_rng(0)
    assert split_minibatches(rows, 2, rng) != split_minibatches(rows, 2, rng)


def test_the_time_grows_as_the_number_of_sequences_and_little_is_padding() -> None:
    """Trying every bin for every sequence would take hundred times as long for ten times as many."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(20, 60, 2000).tolist()
    rows = [row(rng.integers(0, 99, n).tolist(), (rng.random(n) < 0.5).tolist()) for n in lengths]

    def seconds(count: int) -> float:
        taken = []
        for _ in range(7):
            start = time.process_time()
            batches = batches_of(rows[:count], pack_tokens=512, tokens_per_microbatch=8192)
            taken.append(time.process_time() - start)
        assert count < 2000 or padding_share(batches) < 0.05
        return min(taken)

    assert seconds(2000) < 40 * seconds(200)


class TinyModel(nn.Module):
    """Two pre-norm attention layers, float64, so that rounding is small beside any real difference."""

    def __init__(self, vocabulary: int = 16, width: int = 16, positions: int = 64) -> None:
        super().__init__()
        self.ids, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.mixes = nn.ModuleList([nn.Linear(width, 3 * width) for _ in range(2)])
        self.feeds = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
        self.head = nn.Linear(width, vocabulary)
        self.double()

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.ids(ids) + self.positions(positions)
        for mix, feed in zip(self.mixes, self.feeds, strict=True):
            query, key, value = mix(x).unsqueeze(1).chunk(3, dim=-1)
            seen = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            x = x + torch.tanh(feed(seen.squeeze(1)))
        return self.head(x)


TEMPERATURE = 0.8


@pytest.fixture(scope="module")
def model() -> TinyModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return TinyModel()


@pytest.fixture(scope="module")
def rows() -> list[TokenSequence]:
    rng = np.random.default_rng(1)
    lengths = [3, 17, 9, 9, 2, 25, 12, 6, 14, 5]
    return [
        row(rng.integers(0, 16, n).tolist(), [0, *(rng.random(n - 2) < 0.6).astype(int).tolist(), 1], member=i)
        for i, n in enumerate(lengths)
    ]


def gradient(
    model: TinyModel,
    rows: Sequence[TokenSequence],
    config: LossConfig,
    *,
    pack_tokens: int = 32,
    limit: int = 128,
    denominators: Denominators | None = None,
) -> torch.Tensor:
    """The gradient of one optimiser step on ``rows``, accumulated over micro-batches, as one vector."""
    model.zero_grad()
    counts = counted(rows) if denominators is None else denominators
    for b in batches_of(rows, credit_of(rows), pack_tokens=pack_tokens, tokens_per_microbatch=limit):
        logits = model(b.ids, b.positions, attention_mask(b.segments))
        loss, _ = policy_loss(
            make_objective(config),
            b,
            label_logprobs(logits, b.labels, TEMPERATURE),
            counts,
            entropy(logits, TEMPERATURE),
        )
        loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def plain_gradient(model: TinyModel, rows: Sequence[TokenSequence], config: LossConfig) -> torch.Tensor:
    """The same with no packing, no padding and no shared code: one row at a time, token by token."""
    model.zero_grad()
    tokens = sum(sum(r.mask[1:]) for r in rows)
    for r, credit in zip(rows, credit_of(rows), strict=True):
        n = len(r.ids)
        causal = torch.ones(n, n, dtype=torch.bool).tril()
        logits = model(torch.tensor([r.ids]), torch.arange(n)[None], causal[None, None])[0] / TEMPERATURE
        total = torch.zeros((), dtype=torch.float64)
        for t in range(1, n):
            if not r.mask[t]:
                continue
            distribution = torch.distributions.Categorical(logits=logits[t - 1])
            logp = distribution.log_prob(torch.tensor(r.ids[t]))
            advantage = float(np.float32(credit[t]))
            if config.name == "reinforce":
                loss = -advantage * logp
            else:
                ratio = torch.exp(logp - float(np.float32(r.logprobs[t])))
                cut = ratio.clamp(0.8, 1.28)
                loss = -torch.minimum(ratio * advantage, cut * advantage)
            total = total + loss - config.entropy_coef * distribution.entropy()
        divisor = {
            "token-mean": tokens,
            "seq-mean-token-sum": len(rows),
            "seq-mean-token-mean": len(rows) * sum(r.mask[1:]),
        }[config.aggregation]
        (total / divisor).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


CONFIGS = [
    LossConfig(name=name, aggregation=mode, entropy_coef=0.01)  # type: ignore[arg-type]
    for name in ("clip", "reinforce")
    for mode in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum")
]


def same(got: torch.Tensor, expected: torch.Tensor) -> bool:
    assert expected.abs().max() > 1e-3
    return torch.allclose(got, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.name}-{c.aggregation}")
@pytest.mark.parametrize(
    ("pack_tokens", "limit"), [(1, 1), (1, 40), (32, 32), (32, 70), (512, 1), (512, 8192)], ids=str
)
def test_the_gradient_does_not_depend_on_the_cut(
    model: TinyModel, rows: list[TokenSequence], config: LossConfig, pack_tokens: int, limit: int
) -> None:
    expected = plain_gradient(model, rows, config)
    assert same(gradient(model, rows, config, pack_tokens=pack_tokens, limit=limit), expected)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.name}-{c.aggregation}")
def test_the_gradient_does_not_depend_on_the_order_or_the_rank(
    model: TinyModel, rows: list[TokenSequence], config: LossConfig
) -> None:
    expected = gradient(model, rows, config)
    assert same(gradient(model, [rows[i] for i in (3, 1, 4, 0, 5, 9, 2, 6, 8, 7)], config), expected)
    whole = counted(rows)
    ranks = [
        gradient(
            model, part, config, denominators=replace(counted(part), tokens=whole.tokens, sequences=whole.sequences)
        )
        for part in (rows[:3], rows[3:])
    ]
    assert same(ranks[0] + ranks[1], expected)


def test_the_gradient_does_not_depend_on_the_number_of_turns_in_a_row(model: TinyModel) -> None:
    turns = (turn((1, 2), (3, 4)), turn((1, 2, 3, 4, 5), (6,)), turn((1, 2, 3, 4, 5, 6, 7), (8, 9)))
    joined = to_sequences(trajectory(*turns), group=0)
    apart = [r for t in turns for r in to_sequences(trajectory(t), group=0)]
    assert (len(joined), len(apart)) == (1, 3)
    config = LossConfig()
    assert same(gradient(model, apart, config), gradient(model, joined, config))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.name}-{c.aggregation}")
def test_observation_text_and_masked_numbers_leave_the_gradient_bit_identical(
    model: TinyModel, config: LossConfig
) -> None:
    turns = (turn((1, 2), (3, 4)), turn((1, 2, 3, 4, 5), (6,)))
    renamed = tuple(replace(t, observation="a wall", prompt_observation="a door", text="north") for t in turns)
    before = to_sequences(trajectory(*turns), group=0)
    after = to_sequences(trajectory(*renamed), group=0)
    noisy = [
        replace(r, logprobs=tuple(p if m else -7.0 for p, m in zip(r.logprobs, r.mask, strict=True))) for r in after
    ]
    assert torch.equal(gradient(model, noisy, config), gradient(model, before, config))


def test_recomputed_logprobs_do_not_depend_on_the_cut(model: TinyModel, rows: list[TokenSequence]) -> None:
    results = []
    for pack_tokens, limit in ((1, 1), (40, 160)):
        batches = batches_of(rows, pack_tokens=pack_tokens, tokens_per_microbatch=limit)
        logits = [model(b.ids, b.positions, attention_mask(b.segments)) for b in batches]
        values = [label_logprobs(x, b.labels, TEMPERATURE) for x, b in zip(logits, batches, strict=True)]
        results.append(scattered(rows, batches, values))
    for a, b, r in zip(*results, rows, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)
        assert (a != 0).tolist() == list(r.mask)
