"""Sequences that begin alike are run once where they are alike, and nothing shows it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from episode_builders import batches_of
from hypothesis import given, settings
from hypothesis import strategies as st
from test_attention import SHAPE
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from trainer.data.table import TokenSequence
from trainer.model.attention import LEAST_SHARED, share_prefixes, use_packed_attention
from trainer.model.forward import label_states


def tree_of(rows: list[list[int]]) -> Any:
    positions = torch.cat([torch.arange(len(row)) for row in rows])
    return share_prefixes(torch.tensor([i for row in rows for i in row]), positions)


def test_by_hand() -> None:
    tree = tree_of([[1, 2, 3, 4, 5], [1, 2, 3, 4, 6]])
    assert tree.kept.tolist() == [0, 1, 2, 3, 4, 9]
    assert tree.place_of_token.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 5]
    assert (tree.lengths.tolist(), tree.shared.tolist()) == ([5, 5], [0, 4])


def test_nothing_is_shared_by_hand() -> None:
    assert tree_of([[1, 2, 3, 4, 5]]) is None
    assert tree_of([[1, 2, 3, 9, 5], [1, 2, 3, 4, 6]]) is None  # 3 tokens are too few
    assert tree_of([[1, 2, 3, 4, 5], [2, 2, 3, 4, 5]]) is None


def test_a_sequence_may_be_the_beginning_of_another_or_the_same() -> None:
    tree = tree_of([[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]])
    assert len(tree.kept) == 6
    assert sorted(tree.shared.tolist()) == [0, 5, 5]
    longest, second, third = tree.place_of_token.split([6, 5, 5])
    assert torch.equal(longest[:5], second)
    assert torch.equal(second, third)


NETWORK = LlamaForCausalLM(LlamaConfig(**SHAPE)).double().eval()
use_packed_attention(NETWORK)


def row(ids: list[int], sampled: int, number: int) -> TokenSequence:
    mask = (False, *(i >= len(ids) - sampled for i in range(1, len(ids))))
    at = tuple(0 if sampled_here else -1 for sampled_here in mask)
    logprobs = tuple(-1.0 if sampled_here else 0.0 for sampled_here in mask)
    return TokenSequence(ids=tuple(ids), mask=mask, logprobs=logprobs, turns=at, versions=at, group=0, member=number)


@st.composite
def families(draw: st.DrawFn) -> list[TokenSequence]:
    """Sequences cut from a few stems, with tails of their own; some twice."""
    stems = draw(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=40), min_size=1, max_size=3))
    rows = []
    for number in range(draw(st.integers(1, 8))):
        stem = draw(st.sampled_from(stems))
        ids = stem[: draw(st.integers(1, len(stem)))] + draw(st.lists(st.integers(0, 3), min_size=1, max_size=25))
        rows.append(row(ids, draw(st.integers(1, len(ids))), number))
    return rows + rows[: draw(st.integers(0, 2))]


def states(rows: list[TokenSequence], pack_tokens: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """States at all labels, ordered by sequence, and the gradient of a sum that weighs each of them differently."""
    NETWORK.zero_grad(set_to_none=True)
    found = {}
    for batch in batches_of(rows, pack_tokens=pack_tokens, tokens_per_microbatch=10_000):
        hidden = label_states(NETWORK.base_model, batch).chosen
        keys = list(
            zip(batch.sequence[batch.label_mask].tolist(), batch.positions[batch.label_mask].tolist(), strict=True)
        )
        found.update(zip(keys, hidden, strict=True))
    joined = torch.stack([found[key] for key in sorted(found)])
    weights = torch.linspace(-1, 1, joined.numel(), dtype=torch.float64).view_as(joined)
    (joined * weights).sum().backward()
    return joined.detach(), [p.grad.clone() for p in NETWORK.base_model.parameters() if p.grad is not None]


@settings(max_examples=60, deadline=None)
@given(families(), st.sampled_from([1, 60, 1000]))
def test_states_and_gradients_are_those_of_rows_apart(rows: list[TokenSequence], pack_tokens: int) -> None:
    rows = [r for r in rows if any(r.mask)]
    if not rows:
        return
    with pytest.MonkeyPatch.context() as patch:
        shared, gradients = states(rows, pack_tokens)
        patch.setattr("trainer.model.forward.share_prefixes", lambda ids, positions: None)
        apart, expected = states(rows, pack_tokens)
    # The norms of transformers compute in float32, whatever the model is in.
    scale = max(float(g.abs().max()) for g in expected)
    assert torch.allclose(shared, apart, atol=1e-5)
    assert all(torch.allclose(a, b, atol=1e-5 * scale) for a, b in zip(gradients, expected, strict=True))


def test_the_prompt_of_a_group_is_run_once() -> None:
    prompt = list(range(40))
    rows = [[*prompt, 41 + i, 42] for i in range(8)]
    assert len(tree_of(rows).kept) == 40 + 8 * 2


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), min_size=1, max_size=10))
def test_a_token_stands_for_those_with_the_same_past_only(rows: list[list[int]]) -> None:
    tree = tree_of(rows)
    if tree is None:
        return
    pasts = [tuple(r[: i + 1]) for r in rows for i in range(len(r))]
    kept = tree.kept.tolist()
    assert all(pasts[kept[home]] == past for home, past in zip(tree.place_of_token.tolist(), pasts, strict=True))
    assert [tree.place_of_token.tolist()[k] for k in kept] == list(range(len(kept)))
    distinct = {past for past in pasts if len(past) > LEAST_SHARED}
    assert sum(len(pasts[k]) > LEAST_SHARED for k in kept) == len(distinct)
