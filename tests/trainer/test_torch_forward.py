"""What the learner runs through the model: what rows share once, and nothing behind a row's last label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from episode_builders import batches_of
from test_prefixes import NETWORK

import trainer.model.forward as forward
from trainer.data.batches import Batch
from trainer.data.table import TokenSequence
from trainer.model.forward import head_of


def row(ids: Sequence[int], sampled: Sequence[int], member: int) -> TokenSequence:
    mask = tuple(i in sampled for i in range(len(ids)))
    at = tuple(0 if m else -1 for m in mask)
    return TokenSequence(
        ids=tuple(ids), mask=mask, logprobs=(0.0,) * len(ids), turns=at, versions=at, group=0, member=member
    )


class Watched:
    """The model's body, and the head's function, counting what they are asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tokens = self.labels = 0
        plain = forward.linear_logprobs

        def counted(hidden: torch.Tensor, *rest: Any, **keywords: Any) -> Any:
            self.labels += len(hidden)
            return plain(hidden, *rest, **keywords)

        monkeypatch.setattr(forward, "linear_logprobs", counted)

    def __call__(self, input_ids: torch.Tensor, **keywords: Any) -> Any:
        self.tokens += input_ids.numel()
        return NETWORK.base_model(input_ids=input_ids, **keywords)

    def scores(self, rows: Sequence[TokenSequence]) -> tuple[Batch, torch.Tensor, torch.Tensor]:
        (batch,) = batches_of(rows, pack_tokens=50, tokens_per_microbatch=10_000)
        found = forward.label_scores(self, head_of(NETWORK), batch, temperature=0.7, attention="sdpa", logits_mib=1.0)
        return batch, *found


def check(rows: Sequence[TokenSequence], batch: Batch, logp: torch.Tensor, entropy: torch.Tensor) -> None:
    for b, t in (batch.segments >= 0).nonzero().tolist():
        ids = rows[int(batch.sequence[b, t])].ids[: int(batch.positions[b, t]) + 1]
        if not batch.label_mask[b, t]:
            assert logp[b, t] == entropy[b, t] == 0
            continue
        hidden = NETWORK.base_model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
        expected = (NETWORK.lm_head(hidden) / 0.7).log_softmax(-1)
        assert torch.isclose(logp[b, t], expected[batch.labels[b, t]], atol=1e-5)
        assert torch.isclose(entropy[b, t], -(expected.exp() * expected).sum(), atol=1e-5)


@torch.no_grad()
def test_tokens_behind_the_last_label_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    rows = [row(range(10), [3, 6], 0), row([5, 1, 2], [], 1), row([7, 3, 3, 1, 2, 0], [5], 2)]
    check(rows, *watched.scores(rows))
    # What predicts the last label comes before it; a row without any is not run.
    assert watched.tokens == 6 + 5


@torch.no_grad()
def test_a_label_that_rows_have_in_the_same_place_is_scored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    prompt = list(range(12))
    rows = [row([*prompt, 3 + i % 2], [12], i) for i in range(8)] + [row([*prompt, 3, 9], [12, 13], 8)]
    check(rows, *watched.scores(rows))
    assert (watched.tokens, watched.labels) == (13, 3)


@torch.no_grad()
def test_rows_without_a_label_have_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row([5, 1, 2], [], 0), row([5, 1], [], 1)]
    check(rows, *Watched(monkeypatch).scores(rows))
