"""The critic's loss and how much of the returns it explains."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.metrics import explained_variance
from trainer.learner.critic import value_loss


def lone(value: float, old: float, target: float, clip: float | None) -> tuple[float, float, dict[str, float]]:
    values = torch.tensor([[value]], dtype=torch.float64, requires_grad=True)
    mask = torch.ones(1, 1, dtype=torch.bool)
    loss, metrics = value_loss(
        values, torch.full_like(values, old).detach(), torch.full_like(values, target).detach(), mask, clip
    )
    (gradient,) = torch.autograd.grad(loss.sum(), values)
    return loss.item(), gradient.item(), {k: v.item() for k, v in metrics.items()}


@pytest.mark.parametrize(
    ("case", "loss", "gradient"),
    [
        ((1.0, 0.0, 2.0, 0.2), 1.62, 0.0),  # golden: too far towards the return already
        ((1.0, 0.0, 2.0, None), 0.5, -1.0),
        ((0.1, 0.0, 2.0, 0.2), 1.805, -1.9),
        ((1.0, 0.0, 0.0, 0.2), 0.5, 1.0),  # back towards the return is free
        ((-1.0, 0.0, 0.3, 0.2), 0.845, -1.3),
    ],
)
def test_by_hand(case: tuple[float, float, float, float | None], loss: float, gradient: float) -> None:
    assert lone(*case)[:2] == pytest.approx((loss, gradient))


def test_metrics_by_hand() -> None:
    metrics = lone(1.0, 0.0, 2.0, 0.2)[2]
    assert metrics == pytest.approx(
        {"critic/value": 1.0, "critic/return": 2.0, "critic/clip_fraction": 1.0, "critic/squared_error": 1.0}
    )
    assert "critic/clip_fraction" not in lone(1.0, 0.0, 2.0, None)[2]


def test_what_is_masked_out_has_no_part() -> None:
    values = torch.tensor([[1.0, float("nan")]], requires_grad=True)
    other = torch.tensor([[0.0, float("inf")]])
    mask = torch.tensor([[True, False]])
    loss, metrics = value_loss(values, other, torch.tensor([[2.0, float("nan")]]), mask, 0.2)
    assert loss.tolist() == [[pytest.approx(1.62), 0.0]]
    (gradient,) = torch.autograd.grad(loss.sum(), values)
    assert gradient.tolist() == [[0.0, 0.0]]
    assert all(np.isfinite(v.item()) for v in metrics.values())


def test_explained_variance_by_hand() -> None:
    found = explained_variance(np.array([0.0, 1.0]), np.array([0.0, 2.0]))
    assert found == {"critic/explained_variance": 0.75}
    assert explained_variance(np.array([0.0, 2.0]), np.array([0.0, 2.0]))["critic/explained_variance"] == 1.0
    assert explained_variance(np.array([7.0, 7.0]), np.array([0.0, 2.0]))["critic/explained_variance"] == 0.0
    assert explained_variance(np.array([2.0, 0.0]), np.array([0.0, 2.0]))["critic/explained_variance"] == -3.0
    assert explained_variance(np.array([1.0, 2.0]), np.array([3.0, 3.0])) == {}
    assert explained_variance(np.empty(0), np.empty(0)) == {}


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=20), st.floats(-3, 3))
def test_a_critic_that_is_off_by_a_constant_explains_everything(returns: list[float], offset: float) -> None:
    target = np.array(returns)
    if np.var(target) > 1e-3:
        assert explained_variance(target + offset, target)["critic/explained_variance"] == pytest.approx(1.0)
