"""Weights for what another policy sampled: by hand, constant in the loss, the same however a step was cut."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from episode_builders import batches_of, group, scattered, trajectory, turn
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_inputs import LossRow, packed, random_rows
from tiny import tiny_model

from trainer.algorithms.losses.objective import correction_weights, make_objective, policy_loss
from trainer.algorithms.shaping import within_second_moment
from trainer.config import CorrectionConfig, LossConfig
from trainer.config.load import parse_config
from trainer.data.table import sequences_of
from trainer.learner.torch import TorchLearner
from trainer.run.update import make_parts, update


def moved_row(
    log_ratios: list[float], *, advantages: list[float] | None = None, turns: list[int] | None = None
) -> LossRow:
    """A row whose proximal log-probs are above the sampler's by ``log_ratios``; the policy is the proximal one."""
    n = len(log_ratios)
    sampler = np.full(n, -2.0)
    old = sampler + np.array(log_ratios)
    return LossRow(
        turns=np.array(turns if turns is not None else [0] * n),
        logp=old.copy(),
        old=old,
        sampler=sampler,
        advantages=np.array(advantages if advantages is not None else [1.0] * n),
        reference=np.zeros(n),
        selected=np.zeros(n, dtype=np.bool_),
    )


def weights_of(*rows: LossRow, **config: Any) -> tuple[list[list[float]], dict[str, float]]:
    inside = packed(rows, bins=1)
    weights, metrics = correction_weights(inside.inputs().masked(), CorrectionConfig(**config))
    assert weights is not None
    assert not weights.requires_grad
    return inside.unpacked(weights), {name: value.item() for name, value in metrics.items()}


A, B = math.exp(0.5), math.exp(-0.25)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"name": "tis", "high": 1.2}, [1.2, B]),
        ({"name": "tis", "high": 9.0}, [A, B]),
        ({"name": "tis", "level": "sequence-product", "high": 9.0}, [1.284025, 1.284025]),
        ({"name": "tis", "level": "sequence-product", "high": 1.1}, [1.1, 1.1]),
        ({"name": "tis", "level": "sequence-mean", "high": 9.0}, [1.133148, 1.133148]),
        ({"name": "mis", "low": 0.8}, [A, 0.0]),
        ({"name": "mis", "high": 1.5}, [0.0, B]),
        ({"name": "icepop", "low": 0.8, "high": 5.0}, [A, 0.0]),
        ({"name": "mis", "level": "sequence-product", "low": 1.2}, [1.284025, 1.284025]),
        ({"name": "mis", "level": "sequence-product", "low": 1.3}, [0.0, 0.0]),
        ({"name": "mis", "level": "sequence-mean", "low": 0.5, "high": 1.1}, [0.0, 0.0]),
        ({"reject": "token", "reject_low": 0.9, "reject_high": 2.0}, [1.0, 0.0]),
        ({"reject": "sequence-mean", "reject_low": 0.999, "reject_high": 1.001}, [0.0, 0.0]),
        ({"reject": "sequence-mean", "reject_low": 0.9, "reject_high": 1.2}, [1.0, 1.0]),
        ({"reject": "sequence-product", "reject_low": 0.9, "reject_high": 1.2}, [0.0, 0.0]),
        ({"name": "tis", "high": 1.2, "reject": "token", "reject_low": 0.1, "reject_high": 1.5}, [0.0, B]),
        ({"veto": 0.7}, [1.0, 1.0]),
        ({"veto": 0.8}, [0.0, 0.0]),
        ({"name": "tis", "high": 1.2, "veto": 1e-4}, [1.2, B]),
    ],
)
def test_by_hand(config: dict[str, Any], expected: list[float]) -> None:
    assert weights_of(moved_row([0.5, -0.25]), **config)[0][0] == pytest.approx(expected, abs=1e-6)


def test_by_turn() -> None:
    row = moved_row([0.5, 9.0, -0.25, 1.0], turns=[0, -1, 0, 1])
    assert weights_of(row, name="tis", level="turn-product", high=2.0)[0][0] == pytest.approx([1.284025, 1.284025, 2.0])
    rejected = weights_of(row, reject="turn-product", reject_low=0.5, reject_high=2.0)[0][0]
    assert rejected == [1.0, 1.0, 0.0]


def test_rows_are_judged_apart() -> None:
    found, metrics = weights_of(moved_row([0.0, -9.5]), moved_row([0.1]), veto=1e-4)
    assert found == [[0.0, 0.0], [1.0]]
    assert metrics["correction/vetoed_share"] == 2


def test_rows_that_the_policy_has_left_are_dropped_where_they_were_bad() -> None:
    """OPSM: the mean of log sampler - log policy is 0.3 here; the proximal policy has no part in it."""
    row = moved_row([5.0, 4.0], advantages=[-1.0, 1.0])
    row = replace(row, logp=row.sampler - np.array([0.2, 0.4]))
    assert weights_of(row, sequence_delta=0.29)[0][0] == [0.0, 1.0]
    assert weights_of(row, sequence_delta=0.31)[0][0] == [1.0, 1.0]
    assert weights_of(row, sequence_delta=0.29)[1]["correction/off_policy_share"] == 1
    risen = replace(row, logp=row.sampler + 0.4)
    assert weights_of(risen, sequence_delta=0.29)[0][0] == [1.0, 1.0]


def test_metrics_by_hand() -> None:
    rows = moved_row([0.5, -0.25]), moved_row([-0.9])
    _, metrics = weights_of(*rows, name="mis", low=0.7, high=2.0, veto=0.5)
    assert metrics == pytest.approx(
        {
            "correction/cut_share": 1,
            "correction/vetoed_share": 1,
            "correction/dropped_share": 1,
            "correction/weight": A + B,
        }
    )
    _, cut = weights_of(*rows, name="tis", high=1.2)
    assert (cut["correction/cut_share"], cut["correction/dropped_share"]) == (1, 0)


def test_nothing_configured_gives_no_weights() -> None:
    inside = packed(random_rows(0))
    plain = make_objective(LossConfig())
    expected = policy_loss(plain, inside.batch, inside.logp, inside.denominators)
    for correction in (CorrectionConfig(), CorrectionConfig(second_moment=0.1)):
        assert (objective := make_objective(LossConfig(), correction)) == plain
        assert policy_loss(objective, inside.batch, inside.logp, inside.denominators) == expected
    assert not any(name.startswith("correction/") for name in expected[1])


CONFIGS: list[dict[str, Any]] = [
    {"name": "tis", "high": 1.1},
    {"name": "tis", "level": "turn-product", "high": 1.1},
    {"name": "mis", "level": "sequence-product", "low": 0.7, "high": 1.5},
    {"name": "tis", "level": "sequence-mean", "high": 1.05, "veto": 0.5},
    {"reject": "sequence-mean", "reject_low": 0.9, "reject_high": 1.1, "sequence_delta": 0.01},
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_what_is_masked_out_has_no_part_in_any_weight(config: dict[str, Any]) -> None:
    rows = random_rows(3)
    clean, junk = packed(rows), packed(rows, junk=float("nan"))
    expected, metrics = correction_weights(clean.inputs().masked(), CorrectionConfig(**config))
    found, same = correction_weights(junk.inputs().masked(), CorrectionConfig(**config))
    assert expected is not None
    assert found is not None
    assert torch.equal(found, expected)
    assert same == metrics
    assert not found[~clean.batch.label_mask].any()


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), bins=st.integers(1, 5))
def test_weights_do_not_depend_on_how_rows_are_packed(config: dict[str, Any], seed: int, bins: int) -> None:
    rows = random_rows(seed, count=6)
    together = weights_of(*rows, **config)[0]
    apart = [weights_of(row, **config)[0][0] for row in rows]
    assert together == [pytest.approx(w) for w in apart]
    spread = packed(rows, bins=bins)
    weights, _ = correction_weights(spread.inputs().masked(), CorrectionConfig(**config))
    assert weights is not None
    assert spread.unpacked(weights) == [pytest.approx(w) for w in apart]


def test_decoupled_ppo() -> None:
    """-sg(old / sampler) min(u A, clip(u) A) with u = policy / old: all three policies differ."""
    for seed in range(4):
        inside = packed(random_rows(seed))
        loss, _ = policy_loss(
            make_objective(LossConfig(clip_low=0.1, clip_high=0.2), CorrectionConfig(name="tis", high=1.3)),
            inside.batch, inside.logp, inside.denominators,
        )  # fmt: skip
        mask = inside.batch.label_mask
        u = (inside.logp - inside.batch.old_logp)[mask].exp()
        a = inside.batch.advantages[mask]
        weight = (inside.batch.old_logp - inside.batch.sampler_logp)[mask].exp().clamp(max=1.3)
        expected = -(weight * torch.minimum(u * a, u.clamp(0.9, 1.2) * a)).mean()  # over all tokens, dropped ones too
        assert loss.item() == pytest.approx(expected.item())
        found, wanted = (torch.autograd.grad(x, inside.logp, retain_graph=True)[0] for x in (loss, expected))
        assert torch.allclose(found, wanted)


def test_what_is_dropped_stays_in_the_denominators() -> None:
    rows = [moved_row([0.0]), moved_row([3.0])]
    for mode in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum"):
        inside = packed(rows, bins=1)
        config = LossConfig(aggregation=mode)  # type: ignore[arg-type]
        correction = CorrectionConfig(name="mis", high=2.0)
        loss, _ = policy_loss(make_objective(config, correction), inside.batch, inside.logp, inside.denominators)
        assert loss.item() == pytest.approx(-0.5)


def test_entropy_and_kl_are_not_weighed() -> None:
    inside = packed([moved_row([3.0])], bins=1)
    config = LossConfig(entropy_coef=0.5, kl_coef=0.25, kl_estimator="k1")
    loss, _ = policy_loss(
        make_objective(config, CorrectionConfig(name="mis", high=2.0)),
        inside.batch, inside.logp, inside.denominators, torch.full_like(inside.logp, 2.0),
    )  # fmt: skip
    assert loss.item() == pytest.approx(-0.5 * 2.0 + 0.25 * (1.0 - 0.0))


# -- M2PO --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log_ratios", "limit", "kept"),
    [
        ([1.0, 0.1, -0.2], 0.04, [False, True, True]),
        ([1.0, 0.1, -0.2], 0.024, [False, True, False]),
        ([1.0, 0.1, -0.2], 9.0, [True, True, True]),
        ([1.0, -1.0], 0.5, [False, False]),
        ([0.5, -0.5, 0.0], 0.125, [False, True, True]),  # of equals the earlier goes: (0.25 + 0) / 2
        ([], 0.04, []),
    ],
)
def test_second_moment_by_hand(log_ratios: list[float], limit: float, kept: list[bool]) -> None:
    assert within_second_moment(np.array(log_ratios), limit).tolist() == kept


@given(st.lists(st.floats(-3, 3), max_size=30), st.floats(0.001, 4))
def test_second_moment_keeps_as_many_as_it_can(log_ratios: list[float], limit: float) -> None:
    moved = np.array(log_ratios)
    kept = within_second_moment(moved, limit)
    squares = np.square(moved)
    assert not kept.any() or squares[kept].mean() <= limit * (1 + 1e-9)
    assert kept.all() or not kept.any() or squares[~kept].min() >= squares[kept].max()
    if not kept.all():  # one more would be too many
        back = np.sort(squares[~kept])[0]
        assert np.append(squares[kept], back).mean() > limit * (1 - 1e-9)


class Recorder:
    """A learner that notes the advantage it is given for each token, in the order of the table."""

    def __init__(self, inner: TorchLearner) -> None:
        self.inner, self.advantages = inner, []  # type: ignore[var-annotated]

    def score(self, batches: Any) -> Any:
        return self.inner.score(batches)

    def step(self, batches: Any, denominators: Any, *, lr: float, on_policy: bool = False) -> Any:
        of_token = [pair for b in batches for pair in zip(b.token.flatten(), b.advantages.flatten(), strict=True)]
        self.advantages.append([float(a) for token, a in sorted(of_token, key=lambda pair: int(pair[0])) if token >= 0])
        self.tokens = denominators.tokens
        return self.inner.step(batches, denominators, lr=lr, on_policy=on_policy)


@pytest.mark.parametrize("cut", [1, 4096])
def test_an_update_leaves_out_the_tokens_that_moved_most(cut: int) -> None:
    config = parse_config(
        "format: 1\nname: t\nsteps: 1\nenv: {id: roll/FrozenLake-v0}\nadvantage: {name: reinforce}\n"
        f"correction: {{second_moment: 0.04}}\nlearner: {{pack_tokens: {cut}, tokens_per_microbatch: {cut}}}\n"
    )
    learner = TorchLearner(tiny_model(), loss=config.loss, optimizer=config.optimizer, temperature=1.0)
    ids = ((10, 11), (12, 13, 14)), ((20,), (21, 22))

    def played(shifts: Any) -> Any:
        made = []
        for m, ((prompt, sampled), shift) in enumerate(zip(ids, shifts, strict=True)):
            (row,) = sequences_of([group(trajectory(turn(prompt, sampled, logprobs=[0.0] * len(sampled))))])
            batches = batches_of([row], pack_tokens=64, tokens_per_microbatch=64)
            (known,) = scattered([row], batches, learner.score(batches))
            logprobs = known[len(prompt) :] - np.array(shift)
            made.append(trajectory(turn(prompt, sampled, logprobs=logprobs, reward=1.0), member=m))
        return [group(*made)]

    recorder = Recorder(learner)
    parts = make_parts(config, recorder)  # type: ignore[arg-type]
    groups = played(([0.1, 1.0, 0.2], [-0.2, 0.0]))
    metrics = update(config, parts, groups, step=0, version=0)
    (found,) = recorder.advantages
    assert found == [1.0, 0.0, 1.0, 1.0, 1.0]
    assert recorder.tokens == 5  # the token that was left out is still counted
    assert metrics["correction/second_moment"] == pytest.approx((0.01 + 1 + 0.04 + 0.04) / 5, abs=1e-4)
    assert metrics["correction/second_moment_share"] == pytest.approx(0.2)
