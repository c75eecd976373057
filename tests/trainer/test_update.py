"""What a training step gives its learner, critic and reference: the wiring between the table's columns and batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from episode_builders import group, scattered, trajectory, turn
from tiny import full_logits, tiny_model

from roll_envs.types import Group
from trainer.config.load import parse_config
from trainer.data.batches import Batch, make_batches, scatter_back
from trainer.data.table import sequences_of, tokens_of
from trainer.learner.torch import TorchLearner
from trainer.run.update import make_parts, update

BASE = (
    "format: 1\nname: t\nsteps: 9\nenv: {id: roll/FrozenLake-v0}\nadvantage: {name: reinforce}\n"
    "optimizer: {max_grad_norm: 1.0e+9, lr: 0.01, lr_schedule: constant}\n"
)


class Recorder:
    """A learner, critic or reference that notes its batches."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.scored: list[Sequence[Batch]] = []
        self.stepped: list[Sequence[Batch]] = []
        self.metrics: list[dict[str, float]] = []

    def score(self, batches: Any) -> Any:
        self.scored.append(batches)
        return self.inner.score(batches)

    def step(self, batches: Any, denominators: Any, **options: Any) -> Any:
        self.stepped.append(batches)
        taken = self.inner.step(batches, denominators, **options)
        self.metrics.append(taken if isinstance(taken, dict) else taken[0])
        return taken


class Run:
    """A tiny model with all its parts; the reference has other weights."""

    def __init__(self, *overrides: str) -> None:
        self.config = parse_config(BASE, overrides)
        self.model = tiny_model()
        inner = TorchLearner(
            self.model,
            loss=self.config.loss,
            optimizer=self.config.optimizer,
            temperature=self.config.sampling.temperature,
            correction=self.config.correction,
        )
        self.learner = Recorder(inner)
        self.critic = Recorder(inner.critic(self.config.critic)) if "gae" in self.config.advantage.name else None
        wanted = self.config.loss.kl_coef or self.config.reward.kl_coef
        self.reference = Recorder(inner.reference()) if wanted else None
        if self.reference is not None:
            self.reference.inner.load_weights((n, 0.8 * w) for n, w in inner.weights())
        self.parts: Any = make_parts(
            self.config,
            self.learner,  # type: ignore[arg-type]
            critic=self.critic,  # type: ignore[arg-type]
            reference=self.reference,  # type: ignore[arg-type]
        )

    def update(self, groups: Sequence[Group], step: int = 0, **options: Any) -> dict[str, float]:
        return update(self.config, self.parts, groups, step=step, version=0, **options)

    def logp(self, ids: Sequence[int], at: int) -> float:
        """Of ``ids[at]`` under the weights as they are, by one plain forward pass."""
        logits = full_logits(self.model, ids[:at])[-1].double() / self.config.sampling.temperature
        return float(logits.log_softmax(-1)[ids[at]])


def column(batches: Sequence[Batch], name: str) -> dict[int, float]:
    """A column of the batches by line of the table."""
    found = {}
    for b in batches:
        mask = b.label_mask
        found.update(zip(b.token[mask].tolist(), getattr(b, name)[mask].tolist(), strict=True))
    return dict(sorted(found.items()))


def two(*rewards: float, logprobs: Sequence[float] = (-5.0, -5.0)) -> list[Group]:
    """A group of two episodes of two tokens each."""
    first = trajectory(turn((10, 11), (12, 13), reward=rewards[0], logprobs=logprobs))
    return [group(first, trajectory(turn((10, 14), (15, 16), reward=rewards[1], logprobs=logprobs), member=1))]


def test_everything_is_scored_at_the_sampling_temperature() -> None:
    run = Run("sampling.temperature=0.5", "loss.kl_coef=0.1", "learner.minibatches=2")
    run.reference.inner = run.learner.inner.reference()  # type: ignore[union-attr]
    expected = [run.logp(ids, at) for ids in ((10, 11, 12, 13), (10, 14, 15, 16)) for at in (2, 3)]
    groups = two(1.0, 0.0)
    run.update([groups[0], groups[0]], step=0)
    for name in ("old_logp", "reference_logp"):
        found = column(run.learner.stepped[0], name)
        assert [found[n] for n in sorted(found)] == pytest.approx(expected, abs=1e-4)


def test_sequences_of_the_same_ids_but_another_mask_are_scored_apart() -> None:
    """What one episode was asked, another said itself: each has its own log-probs, and neither loses a token."""
    said = trajectory(turn((10, 11), (12, 13, 14), reward=1.0, logprobs=(-5.0,) * 3))
    asked = trajectory(turn((10, 11, 12), (13, 14), reward=0.5, logprobs=(-5.0,) * 2), member=1)
    run = Run("learner.epochs=2", "optimizer.lr=0.0")
    ids = (10, 11, 12, 13, 14)
    expected = [run.logp(ids, at) for at in (2, 3, 4, 3, 4)]
    run.update([group(said, asked)])
    assert list(column(run.learner.stepped[0], "old_logp").values()) == pytest.approx(expected, abs=1e-4)
    twice = Run("learner.epochs=2", "optimizer.lr=0.0")
    twice.update([group(said, replace(said, member=1))])
    assert sum(int(b.label_mask.sum()) for b in twice.learner.scored[0]) == 3  # the same ids are scored once
    assert list(column(twice.learner.stepped[0], "old_logp").values()) == pytest.approx(expected[:3] * 2, abs=1e-4)


@pytest.mark.parametrize("minibatches", [1, 2])
def test_weights_of_the_section_mask_multiply_the_advantages(minibatches: int) -> None:
    solved = {"info": {"success": True}}
    groups = [
        group(trajectory(turn((20 + g, 11), (12, 13), reward=1.0 + g, logprobs=(-5.0,) * 2, **(solved if g else {}))))
        for g in range(2)
    ]
    run = Run("mask.difficulty_weight=1.0", f"learner.minibatches={minibatches}")
    run.update(groups)
    found: dict[int, float] = {}
    for stepped in run.learner.stepped:
        found.update(column(stepped, "advantages"))
        for line, weight in column(stepped, "weights").items():
            assert weight == pytest.approx(4 / 3 if line < 2 else 2 / 3)
    assert [found[n] for n in range(4)] == pytest.approx([4 / 3, 4 / 3, 4 / 3, 4 / 3])  # 1 * 4/3 and 2 * 2/3


def test_minibatches_are_shuffled_by_seed_and_step() -> None:
    groups = [group(trajectory(turn((20 + g, 11), (12,), reward=1.0, logprobs=(-5.0,)))) for g in range(8)]

    def dealt(step: int, *overrides: str) -> list[list[int]]:
        run = Run("learner.minibatches=2", "learner.epochs=2", *overrides)
        run.update(groups, step=step)
        return [sorted(column(stepped, "advantages")) for stepped in run.learner.stepped]

    first = dealt(0)
    assert [sorted(first[0] + first[1]), sorted(first[2] + first[3])] == [list(range(8))] * 2
    assert first == dealt(0)
    assert first[:2] != first[2:]  # another pass, another order
    assert len({str(dealt(step)) for step in range(3)}) == 3
    assert first != dealt(0, "seed=1")


def test_with_several_minibatches_the_ratio_is_to_the_policy_before_the_step() -> None:
    run = Run("learner.epochs=2", "optimizer.lr=0.05", "loss.clip_low=0.01", "loss.clip_high=0.01")
    run.update(two(1.0, -1.0))
    first, second = run.learner.metrics
    assert first["loss/ratio"] == pytest.approx(1.0, abs=1e-5)
    assert first["loss/clip_fraction"] == 0.0
    assert abs(second["loss/ratio"] - 1.0) > 0.01
    assert second["loss/clip_fraction"] > 0.0
    assert column(run.learner.stepped[0], "old_logp") == column(run.learner.stepped[1], "old_logp")
    single = Run()
    assert single.update(two(1.0, -1.0))["loss/ratio"] == 1.0


def test_the_kl_in_the_reward_is_taken_off_where_the_policy_is_likelier_than_the_reference() -> None:
    run = Run("advantage.name=reinforce_token", "reward.kl_coef=0.5", "advantage.token_gamma=0.0")
    groups = two(1.0, 0.0)
    sequences = sequences_of(groups)
    tokens = tokens_of(sequences)
    batches = make_batches(sequences, tokens, (0, 1), pack_tokens=9, tokens_per_microbatch=99)
    own, reference = (
        scatter_back(batches, scorer.inner.score(batches), tokens)
        for scorer in (run.learner, run.reference)  # type: ignore[union-attr]
    )
    metrics = run.update(groups)
    expected = np.array([0.0, 1.0, 0.0, 0.0]) - 0.5 * (own - reference)
    found = column(run.learner.stepped[0], "advantages")
    assert [found[n] for n in range(4)] == pytest.approx(expected.tolist(), abs=1e-4)
    assert metrics["reward/kl"] == pytest.approx(float((own - reference).mean()), abs=1e-4)
    assert np.abs(own - reference).max() > 0.01


@pytest.mark.parametrize("warmup", [0, 1, 2])
def test_the_critic_learns_alone_for_as_many_steps_as_it_is_told(warmup: int) -> None:
    run = Run("advantage.name=gae", f"critic.warmup_steps={warmup}")
    for step in range(3):
        run.update(two(1.0, 0.0), step=step)
        assert len(run.learner.stepped) == max(0, step + 1 - warmup)
        assert run.critic is not None
        assert len(run.critic.stepped) == step + 1


def test_the_critic_learns_the_return_of_each_of_several_episodes_with_the_same_ids() -> None:
    first = trajectory(turn((10, 11), (12, 13), reward=1.0, logprobs=(-5.0,) * 2))
    groups = [group(first, replace(first, member=1, turns=(replace(first.turns[0], reward=3.0),)))]
    run = Run("advantage.name=gae", "advantage.lam=1.0")
    run.update(groups)
    assert run.critic is not None
    ((batch,),) = run.critic.stepped
    assert batch.returns is not None
    assert batch.return_mask is not None
    assert batch.returns[batch.return_mask].tolist() == [1.0, 1.0, 3.0, 3.0]
    assert int(batch.label_mask.sum()) == 2


def test_the_greedy_return_is_that_of_the_episodes_own_group() -> None:
    groups = [group(trajectory(turn((20 + g, 11), (12,), reward=float(g), logprobs=(-5.0,)))) for g in range(3)]
    run = Run("advantage.name=remax")
    metrics = run.update(groups, greedy=(0.5, None, 0.25))
    found = column(run.learner.stepped[0], "advantages")
    assert found == pytest.approx({0: -0.5, 2: 1.75})  # without a baseline there is no advantage, and no run
    assert metrics["advantage/without_greedy"] == 1.0


def test_truncated_and_long_answers_have_no_label_and_count_in_no_denominator() -> None:
    cut = turn((1, 2), (12, 13), reward=1.0, logprobs=(-5.0,) * 2)
    cut = replace(cut, completion=replace(cut.completion, finish="length"))
    whole = turn((1, 2, 12, 13, 3), (14,), reward=1.0, logprobs=(-5.0,))
    run = Run("mask.truncated_answers=true")
    metrics = run.update([group(trajectory(cut, whole))])
    assert column(run.learner.stepped[0], "advantages") == {2: 1.0}
    assert metrics["mask/tokens_share"] == pytest.approx(2 / 3)
    assert metrics["learner/sequences"] == 1.0


def test_an_empty_step_says_so_and_changes_nothing() -> None:
    run = Run()
    assert run.update([group(trajectory(turn(), kind="failed"))]) == {"learner/sequences": 0.0}
    assert run.learner.stepped == []


@pytest.mark.parametrize("steps", [1, 2])
def test_sequences_that_begin_alike_meet_in_a_micro_batch(steps: int) -> None:
    """Four sequences of two beginnings, in turn: each beginning is in one micro-batch, also where they are scored."""
    begins = ((10, 11, 12, 13), (20, 21, 22, 23))
    members = [trajectory(turn(begins[n % 2], (30 + n,), reward=1.0 + n, logprobs=(-5.0,)), member=n) for n in range(4)]
    run = Run(
        f"learner.epochs={steps}", "optimizer.lr=0.0", "learner.pack_tokens=5", "learner.tokens_per_microbatch=10"
    )
    run.update([group(*members)])
    for batches in (*run.learner.scored, *run.learner.stepped):
        assert sorted({tuple(ids[:4]) for ids in b.ids.tolist()} for b in batches) == [{begins[0]}, {begins[1]}]
    expected = {n: run.logp((*begins[n % 2], 30 + n), 4) for n in range(4)}
    learnt: dict[str, Any] = {}
    run.update([group(*members)], learnt=learnt)
    assert learnt["policy_logp"].tolist() == pytest.approx(list(expected.values()), abs=1e-4)
    assert column(run.learner.stepped[-1], "advantages") == {n: 1.0 + n for n in range(4)}


def test_scores_go_back_to_the_tokens_they_are_of() -> None:
    groups = two(1.0, 0.0)
    sequences = sequences_of(groups)
    run = Run()
    tokens = tokens_of(sequences)
    batches = make_batches(sequences, tokens, (1, 0), pack_tokens=9, tokens_per_microbatch=99)
    found = scattered(sequences, batches, run.learner.inner.score(batches))
    for s, logp in zip(sequences, found, strict=True):
        expected = [run.logp(s.ids, at) if sampled else 0.0 for at, sampled in enumerate(s.mask)]
        assert logp.tolist() == pytest.approx(expected, abs=1e-4)
    assert all(math.isfinite(x) for logp in found for x in logp)
    assert torch.equal(batches[0].token[0], torch.tensor([-1, 2, 3, -1, -1, 0, 1, -1]))
