"""Every loss, in every aggregation, against its formula in numpy: the value, and the gradient by finite differences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from loss_formulas import FORMULAS
from loss_inputs import LossRow, Numbers, packed, random_rows

from trainer.algorithms.losses.objective import make_objective, policy_loss
from trainer.config import LossConfig
from trainer.config.parts import LOSSES, part_settings

MODES = get_args(LossConfig.model_fields["aggregation"].annotation)

CASES: list[dict[str, Any]] = [
    {"name": "cispo"},
    {"name": "cispo", "clip_low": 0.2, "clip_high": 0.1},
    {"name": "clip"},
    {"name": "clip", "clip_low": 0.1, "clip_high": 0.3, "dual_clip": 1.2},
    {"name": "clip", "ratio": "turn-mean", "clip_low": 0.1, "clip_high": 0.1},
    {"name": "clip", "ratio": "sequence-mean", "dual_clip": 1.3},
    {"name": "clip", "ratio": "sequence-product", "clip_low": 0.3, "clip_high": 0.5},
    {"name": "clip_cov"},
    {"name": "dppo", "divergence_low": 0.05, "divergence_high": 0.1, "divergence_coef": 0.3},
    {"name": "gmpo"},
    {"name": "gmpo", "clip_low": 0.1, "clip_high": 0.2},
    {"name": "gspo"},
    {"name": "gspo", "clip_low": 0.1, "clip_high": 0.2},
    {"name": "gspo_token", "clip_low": 0.1, "clip_high": 0.2},
    {"name": "kimi", "proximal_coef": 0.7},
    {"name": "kl_cov", "covariance_coef": 0.5},
    {"name": "raft_pp"},
    {"name": "reinforce"},
    {"name": "sapo"},
    {"name": "sapo", "tau_positive": 0.5, "tau_negative": 3.0},
    {"name": "topr"},
    {"name": "topr", "ratio": "sequence-product", "positive_weight": 0.5, "negative_weight": 2.0},
    {"name": "vespo"},
    {"name": "vespo", "power_positive": 1.0, "decay_positive": 0.5, "power_negative": 0.0, "decay_negative": 4.0},
]


def test_every_loss_has_a_formula() -> None:
    assert {case["name"] for case in CASES} == FORMULAS.keys() == set(LOSSES.built_in())


def formula(x: list[Numbers], fixed: list[Numbers], rows: list[LossRow], config: LossConfig) -> float:
    """The step's loss, from each row's losses, as the mode says in words."""
    settings = part_settings(config, LOSSES.find(config.name))
    losses = [
        FORMULAS[config.name](a, b, row, settings) if len(a) else np.zeros(0)
        for a, b, row in zip(x, fixed, rows, strict=True)
    ]
    filled = [loss for loss in losses if len(loss)]
    if config.aggregation == "token-mean":
        return float(np.concatenate(filled).mean())
    if config.aggregation == "seq-mean-token-mean":
        return float(np.mean([loss.mean() for loss in filled]))
    scale = config.constant_tokens if config.aggregation == "constant" else 1
    return float(np.mean([loss.sum() / scale for loss in filled]))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_value_and_gradient(case: dict[str, Any], mode: str) -> None:
    config = LossConfig(**case, aggregation=mode, constant_tokens=7 if mode == "constant" else 1024)
    for seed in range(3):
        rows = random_rows(seed)
        given = packed(rows)
        loss, _ = policy_loss(make_objective(config), given.batch, given.logp, given.denominators)
        (gradient,) = torch.autograd.grad(loss, given.logp)
        x = [row.logp[row.mask] for row in rows]
        assert loss.item() == pytest.approx(formula(x, x, rows, config), rel=1e-10, abs=1e-12)
        found = given.unpacked(gradient)
        assert not gradient[~given.batch.label_mask].any()
        for r, own in enumerate(x):
            for t in range(len(own)):
                sides = []
                for step in (1e-6, -1e-6):
                    moved = [a.copy() for a in x]
                    moved[r][t] += step
                    sides.append(formula(moved, x, rows, config))
                assert found[r][t] == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-5, abs=1e-8), (seed, r, t)


@pytest.mark.parametrize("name", sorted(set(LOSSES.built_in()) - {"cispo", "topr", "vespo", "gspo_token"}))
def test_gradcheck_where_no_gradient_is_stopped(name: str) -> None:
    """With the KL and the entropy bonus, through the function that the learner calls."""
    config = LossConfig(name=name, kl_coef=0.3, kl_estimator="k2", entropy_coef=0.1)
    given = packed(random_rows(5))

    def total(logp: torch.Tensor) -> torch.Tensor:
        loss, _ = policy_loss(
            make_objective(config), given.batch, logp, given.denominators, entropies=-logp.exp() * logp
        )
        return loss

    assert torch.autograd.gradcheck(total, (given.logp,))


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
@pytest.mark.parametrize("mode", MODES)
def test_shares_of_micro_batches_add_up(case: dict[str, Any], mode: str) -> None:
    """Rows in one micro-batch, or each in its own: the same value and the same gradients."""
    config = LossConfig(**case, aggregation=mode)
    for seed in range(3):  # one for each number of bins
        rows = random_rows(seed, count=6)
        whole = packed(rows, bins=1 + seed % 3)
        loss, metrics = policy_loss(make_objective(config), whole.batch, whole.logp, whole.denominators)
        (gradient,) = torch.autograd.grad(loss, whole.logp)
        total, sums = 0.0, dict.fromkeys(metrics, 0.0)
        expected = whole.unpacked(gradient)
        for place, row in enumerate(rows):
            alone = packed([row], bins=1)
            share, found = policy_loss(make_objective(config), _at(alone.batch, place), alone.logp, whole.denominators)
            (own,) = torch.autograd.grad(share, alone.logp)
            assert own[alone.batch.label_mask].tolist() == pytest.approx(expected[place], rel=1e-9, abs=1e-12)
            total += share.item()
            for name, value in found.items():
                sums[name] += value.item()
        assert total == pytest.approx(loss.item(), rel=1e-9, abs=1e-12)
        assert sums == pytest.approx({name: value.item() for name, value in metrics.items()}, rel=1e-9)


def _at(batch: Any, place: int) -> Any:
    """The batch of a single row as the row ``place`` of its step."""
    return replace(batch, sequence=torch.where(batch.sequence >= 0, place, -1))
