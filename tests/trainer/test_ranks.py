"""Two processes that train together take the step that one process takes, however sequences are dealt to them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from episode_builders import batches_of, counted
from forked import Forked
from test_learner import some_rows
from tiny import tiny_model
from torch import distributed

from trainer.config import CriticConfig, LossConfig, OptimizerConfig
from trainer.data.batches import Denominators
from trainer.learner.gradients import Ranks
from trainer.learner.torch import TorchLearner

DEALT = ([0, 3, 8], [1, 2, 4, 5, 6, 7])
SCENES: dict[str, tuple[Sequence[Sequence[int]], Sequence[int]]] = {
    "uneven": (DEALT, ()),
    "empty": (([*range(9)], []), ()),
    "broken": (DEALT, (5,)),
}
"""Sequences of each rank, and those whose advantages are not numbers."""


def a_step(ranks: Ranks, mine: Sequence[int], *, spoil: Sequence[int] = ()) -> dict[str, Any]:
    """Gradients, metrics and new weights of a step of policy and critic on the sequences ``mine``."""
    rows, advantages = some_rows()
    rows = [rows[i] for i in mine]
    advantages = [np.full_like(advantages[i], np.nan) if i in spoil else advantages[i] for i in mine]
    model = tiny_model()
    learner = TorchLearner(
        model,
        loss=LossConfig(entropy_coef=0.01),
        optimizer=OptimizerConfig(lr=1e-3, max_grad_norm=0.5),
        temperature=0.7,
        ranks=ranks,
    )
    batches = batches_of(rows, advantages, pack_tokens=20, tokens_per_microbatch=40)
    own = counted(rows)
    critic = learner.critic(CriticConfig(lr=1e-3))
    with torch.no_grad():
        critic._network["head"].weight.fill_(0.1)  # so that its body has a gradient
    targets = batches_of(
        rows,
        pack_tokens=20,
        tokens_per_microbatch=20,
        value=[np.zeros(len(r.ids)) for r in rows],
        returns=[np.linspace(0, 1, len(r.ids)) for r in rows],
    )
    critic_metrics = critic.step(targets, own, lr=1e-3)
    metrics, logprobs = learner.step(batches, own, lr=1e-3)
    assert len(logprobs) == len(batches)
    named = [*model.network.named_parameters(), *critic._network.named_parameters()]
    return {
        "batches": len(batches),
        "metrics": {**metrics, **critic_metrics},
        "gradients": {name: p.grad for name, p in named},
        "weights": {name: p.detach() for name, p in named},
    }


def rank_process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    ranks = Ranks(distributed.group.WORLD)
    found = {name: a_step(ranks, dealt[rank], spoil=spoil) for name, (dealt, spoil) in SCENES.items()}
    torch.save(found, Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes found, by scene."""
    folder = tmp_path_factory.mktemp("ranks")
    processes = [Forked(rank_process, rank, str(folder), log=folder / f"log-{rank}") for rank in range(2)]
    assert [process.wait() for process in processes] == [0, 0], (folder / "log-0").read_text()
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("scene", ["uneven", "empty"])
def test_two_ranks_take_the_step_of_one(together: list[dict[str, Any]], scene: str) -> None:
    alone = a_step(Ranks(), range(9))
    found = [rank[scene] for rank in together]
    assert len({one["batches"] for one in found}) == 2  # so that one rank ran empty micro-batches
    for one in found:
        assert one["metrics"].keys() == alone["metrics"].keys()
        for name, value in alone["metrics"].items():
            assert one["metrics"][name] == pytest.approx(value, rel=1e-6, abs=1e-9), name
        for name, gradient in alone["gradients"].items():
            assert float((one["gradients"][name] - gradient).norm()) < 1e-6 * float(gradient.norm()), name
        for kind in ("gradients", "weights"):
            assert all(torch.equal(tensor, found[0][kind][name]) for name, tensor in one[kind].items())
    assert alone["metrics"]["learner/skipped_steps"] == 0.0


def test_a_step_that_one_rank_cannot_take_is_skipped_by_all(together: list[dict[str, Any]]) -> None:
    """The advantages of a sequence of rank 1 are not numbers."""
    before = {name: p.detach() for name, p in tiny_model().network.named_parameters()}
    for rank in together:
        assert rank["broken"]["metrics"]["learner/skipped_steps"] == 1.0
        policy = {name: weight for name, weight in rank["broken"]["weights"].items() if name in before}
        assert policy.keys() == before.keys()
        assert all(torch.equal(policy[name], weight) for name, weight in before.items())


class TwoRanks(Ranks):
    """Rank 0 of two, the other of which says what it is given."""

    def __init__(self, other: Any) -> None:
        super().__init__()
        self.count, self._other = 2, other

    def gather(self, value: Any) -> list[Any]:
        return [value, self._other]


def test_sums_by_hand() -> None:
    assert TwoRanks({"a": 2.0, "c": 5.0}).sum({"a": 1.0, "b": 0.5}) == {"a": 3.0, "b": 0.5, "c": 5.0}
    assert Ranks().sum({"a": 1.0}) == {"a": 1.0}
    own = Denominators(tokens=7, sequences=2, sequence_tokens=torch.tensor([3, 4]))
    total = TwoRanks({"tokens": 5, "sequences": 1}).denominators(own)
    assert (total.tokens, total.sequences, total.sequence_tokens.tolist()) == (12, 3, [3, 4])


def test_decisions_are_taken_together() -> None:
    assert TwoRanks(True).any(False)
    assert TwoRanks(False).any(True)
    assert not TwoRanks(False).any(False)


def test_a_rank_skips_what_another_cannot_take() -> None:
    """Its own gradient is fine."""

    class OtherRefuses(Ranks):
        def any(self, flag: bool) -> bool:
            assert not flag
            return True

    rows, advantages = some_rows(3)
    model = tiny_model()
    learner = TorchLearner(model, loss=LossConfig(), optimizer=OptimizerConfig(), temperature=0.7, ranks=OtherRefuses())
    batches = batches_of(rows, advantages, pack_tokens=40, tokens_per_microbatch=80)
    metrics, _ = learner.step(batches, counted(rows), lr=1e-2)
    assert metrics["learner/skipped_steps"] == 1.0
    assert all(torch.equal(w, tiny_model().network.state_dict()[n]) for n, w in learner.weights())


def test_a_rank_with_fewer_micro_batches_runs_empty_ones() -> None:
    assert [len(TwoRanks([3]).empty_batches(own)) for own in (0, 2, 3, 5)] == [3, 1, 0, 0]
    assert TwoRanks([3, 1]).most([2, 4]) == [3, 4]
    (empty,) = TwoRanks([1]).empty_batches(0)
    assert not empty.label_mask.any()


def test_empty_micro_batches_add_exactly_nothing() -> None:
    one = a_step(Ranks(), range(9))

    class WithEmpty(Ranks):
        def empty_batches(self, own: int) -> Any:
            return TwoRanks([own + 2]).empty_batches(own)

    other = a_step(WithEmpty(), range(9))
    assert one["metrics"] == other["metrics"]
    assert all(torch.equal(g, other["gradients"][n]) for n, g in one["gradients"].items())
