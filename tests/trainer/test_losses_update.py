"""Losses and corrections inside a whole training step with a real, tiny model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from episode_builders import batches_of, counted, group, scattered, trajectory, turn
from tiny import tiny_model

from trainer.config import CorrectionConfig, LossConfig, OptimizerConfig
from trainer.config.load import parse_config
from trainer.data.table import sequences_of
from trainer.learner.torch import TorchLearner
from trainer.run.update import make_parts, update

BASE = (
    "format: 1\nname: t\nsteps: 1\nenv: {id: roll/FrozenLake-v0}\nadvantage: {name: reinforce}\n"
    "optimizer: {max_grad_norm: 1.0e+9}\n"
)


class Recorder:
    """A learner that notes its batches."""

    def __init__(self, inner: TorchLearner) -> None:
        self.inner, self.batches = inner, []  # type: ignore[var-annotated]

    def score(self, batches: Any) -> Any:
        return self.inner.score(batches)

    def step(self, batches: Any, denominators: Any, *, lr: float, on_policy: bool = False) -> Any:
        self.batches.append(batches)
        return self.inner.step(batches, denominators, lr=lr, on_policy=on_policy)


def stepped(groups: list[Any], *overrides: str) -> tuple[Recorder, dict[str, float], dict[str, torch.Tensor]]:
    """One update on ``groups``: what the learner was given, the metrics, and the gradients."""
    config = parse_config(BASE, overrides)
    model = tiny_model()
    inner = TorchLearner(
        model, loss=config.loss, optimizer=config.optimizer, temperature=1.0, correction=config.correction
    )
    recorder = Recorder(inner)
    parts = make_parts(config, recorder)  # type: ignore[arg-type]
    metrics = update(config, parts, groups, step=0, version=0)
    found = {n: p.grad.clone() for n, p in model.network.named_parameters() if p.grad is not None}
    return recorder, metrics, found


def rows_run(recorder: Recorder) -> int:
    return sum(int(((b.positions == 0) & (b.segments >= 0)).sum()) for part in recorder.batches for b in part)


def close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    scale = max(float(g.abs().max()) for g in one.values())
    assert scale > 1e-3
    return all(torch.allclose(one[n], other[n], rtol=1e-4, atol=1e-5 * scale) for n in one)


def test_in_a_single_step_weights_are_the_policys_over_the_samplers() -> None:
    """No log-probs are recomputed for it: the ratio is exactly 1, and the weight is that of the policy as it is."""
    rows = sequences_of([group(trajectory(turn((10, 11), (12, 13, 14), logprobs=(-4.0, -6.0, -5.0))))])
    correction = CorrectionConfig(name="tis", high=1.5)
    optimizer = OptimizerConfig(max_grad_norm=1e9)

    def learner() -> tuple[TorchLearner, Any]:
        model = tiny_model()
        return TorchLearner(
            model, loss=LossConfig(), optimizer=optimizer, temperature=1.0, correction=correction
        ), model

    (scored,) = scattered(
        rows,
        (batches := batches_of(rows, [np.ones(5)], pack_tokens=9, tokens_per_microbatch=9)),
        learner()[0].score(batches),
    )
    found = []
    for on_policy in (True, False):
        one, model = learner()
        old = batches_of(rows, [np.ones(5)], pack_tokens=9, tokens_per_microbatch=9, proximal_logp=[scored])
        metrics, _ = one.step(batches if on_policy else old, counted(rows), lr=0.0, on_policy=on_policy)
        found.append({n: p.grad.clone() for n, p in model.network.named_parameters() if p.grad is not None})
        weights = np.minimum(np.exp(scored[2:] - np.array([-4.0, -6.0, -5.0])), 1.5)
        assert metrics["correction/weight"] == pytest.approx(float(weights.mean()), rel=1e-4)
        assert metrics["loss/ratio"] == 1.0
    assert close(*found)


def test_rows_of_the_same_ids_are_run_as_one_only_if_they_are_cut_into_the_same_turns() -> None:
    whole = trajectory(turn((10, 11), (12, 13), reward=1.0))
    cut = trajectory(turn((10, 11), (12,)), turn((10, 11, 12), (13,), reward=0.25), member=1)
    groups = [group(whole, cut)]
    assert len({(r.ids, r.mask) for r in sequences_of(groups)}) == 1
    by_token, _, _ = stepped(groups)
    by_turn, _, apart = stepped(groups, "loss.ratio=turn-mean")
    assert (rows_run(by_token), rows_run(by_turn)) == (1, 2)
    _, _, everything = stepped(groups, "loss.ratio=turn-mean", "loss.entropy_coef=1e-30")
    assert close(apart, everything)


@pytest.mark.parametrize(
    "override", ["correction.name=tis", "correction.veto=1e-4", "correction.sequence_delta=0.1", "loss.name=vespo"]
)
def test_rows_of_the_same_ids_are_run_apart_where_each_has_a_weight_of_its_own(override: str) -> None:
    groups = [
        group(
            trajectory(turn((10, 11), (12,), reward=1.0, logprobs=(-5.0,))),
            trajectory(turn((10, 11), (12,), reward=0.5, logprobs=(-6.0,)), member=1),
        )
    ]
    assert rows_run(stepped(groups)[0]) == 1
    assert rows_run(stepped(groups, override)[0]) == 2


@pytest.mark.parametrize(
    "overrides",
    [
        ["loss.name=clip_cov", "loss.covariance_low=-0.5", "loss.covariance_share=0.4"],
        ["loss.name=kl_cov", "loss.covariance_share=0.4", "learner.minibatches=2", "optimizer.lr=0.0"],
        ["loss.name=gspo", "correction.name=mis", "correction.level=sequence-product", "correction.low=1e-3"],
        ["loss.name=vespo", "loss.aggregation=constant", "loss.constant_tokens=9"],
        [
            "loss.ratio=turn-mean",
            "correction.name=tis",
            "correction.level=turn-product",
            "correction.sequence_delta=0.5",
        ],
        ["loss.name=dppo", "correction.second_moment=0.5"],
    ],
    ids=lambda overrides: overrides[0].removeprefix("loss."),
)
def test_no_cut_into_micro_batches_changes_a_step(overrides: list[str]) -> None:
    rng = np.random.default_rng(0)
    groups = []
    for g in range(4):
        members = []
        for m in range(3):
            turns, ids = [], ()
            for t in range(2):
                prompt = (*ids, *rng.integers(5, 250, 2 + g).tolist())
                sampled = rng.integers(5, 250, int(rng.integers(1, 5))).tolist()
                logprobs = rng.uniform(-6.5, -4.5, len(sampled)).tolist()
                turns.append(turn(prompt, sampled, logprobs=logprobs, reward=float(rng.normal()) if t else 0.0))
                ids = (*prompt, *sampled)
            members.append(trajectory(*turns, member=m))
        groups.append(group(*members))
    whole = stepped(groups, *overrides, "learner.pack_tokens=4096", "learner.tokens_per_microbatch=65536")
    for size in (1, 40):
        other = stepped(groups, *overrides, f"learner.pack_tokens={size}", f"learner.tokens_per_microbatch={size}")
        assert len(other[0].batches[0]) > len(whole[0].batches[0])
        assert close(whole[2], other[2])
        for name in whole[1]:
            if name.startswith(("loss/", "correction/")):
                assert other[1][name] == pytest.approx(whole[1][name], rel=1e-3, abs=1e-5), name
