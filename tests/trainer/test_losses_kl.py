"""The KL of a loss: its values, and its gradient summed over all outcomes of a small policy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from loss_inputs import LossRow, packed, random_rows

from trainer.algorithms.losses.objective import kl_loss, make_objective, policy_loss
from trainer.algorithms.shaping import kl_estimate
from trainer.config import LossConfig

LOGITS = torch.tensor([0.3, -1.2, 0.9, 0.1], dtype=torch.float64)
REFERENCE = torch.tensor([-0.5, 0.4, 0.2, 1.0], dtype=torch.float64).log_softmax(0)
SAMPLER = torch.tensor([0.1, 0.3, -0.4, 0.2], dtype=torch.float64).log_softmax(0)


@pytest.mark.parametrize(("estimator", "value"), [("k1", 0.3), ("k2", 0.045), ("k3", 0.040818)])
def test_values_golden(estimator: str, value: float) -> None:
    logp, reference = torch.tensor([-1.0]), torch.tensor([-1.3])
    assert kl_loss(logp, reference, estimator).item() == pytest.approx(value, abs=1e-6)
    assert kl_loss(logp, reference, estimator, torch.tensor([7.0])).item() == pytest.approx(value, abs=1e-6)


def test_k3_is_bounded_in_the_loss_as_in_the_reward() -> None:
    """At d = -2.5 it is exp(2.5) - 1 - 2.5 = 8.68, at -3 it would be 16.09."""
    logp = torch.tensor([-3.5, -4.0, -21.0, 0.0], dtype=torch.float64, requires_grad=True)
    reference = torch.full((4,), -1.0, dtype=torch.float64)
    value = kl_loss(logp, reference, "k3")
    assert value.tolist() == pytest.approx([8.682494, 10.0, 10.0, 0.367879], abs=1e-6)
    assert value.tolist() == pytest.approx(kl_estimate((logp.detach() - reference).numpy(), "k3").tolist())
    (gradient,) = torch.autograd.grad(value.sum(), logp)
    assert gradient.tolist() == pytest.approx([1 - np.exp(2.5), 0.0, 0.0, 1 - np.exp(-1)])
    (unbiased,) = torch.autograd.grad(kl_loss(logp, reference, "k3", torch.ones(4)).sum(), logp)
    assert unbiased.tolist() == pytest.approx([-2.5, -3.0, -20.0, 1.0])


def true_gradient() -> torch.Tensor:
    logits = LOGITS.clone().requires_grad_()
    logp = logits.log_softmax(0)
    (gradient,) = torch.autograd.grad((logp.exp() * (logp - REFERENCE)).sum(), logits)
    return gradient


def expected_gradient(estimator: str, sampler: torch.Tensor, *, unbiased: bool) -> torch.Tensor:
    """Sum over outcomes of the sampler's probability times the gradient of the estimate, by the loss of one token."""
    config = LossConfig(kl_coef=1.0, kl_estimator=estimator, kl_unbiased=unbiased)  # type: ignore[arg-type]
    total = torch.zeros(4, dtype=torch.float64)
    for outcome in range(4):
        now, here = LOGITS.log_softmax(0).numpy(), slice(outcome, outcome + 1)
        row = LossRow(
            turns=np.zeros(1, dtype=np.int64),
            logp=now[here],
            old=now[here],
            sampler=sampler.numpy()[here],
            advantages=np.zeros(1),
            reference=REFERENCE.numpy()[here],
            selected=np.zeros(1, dtype=np.bool_),
        )
        given = packed([row], bins=1)
        logits = LOGITS.clone().requires_grad_()
        place = torch.where(given.batch.label_mask, logits.log_softmax(0)[outcome], 0.0)
        loss, _ = policy_loss(make_objective(config), given.batch, place, given.denominators)
        total += sampler[outcome].exp() * torch.autograd.grad(loss, logits)[0]
    return total


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("sampler", [LOGITS.log_softmax(0), SAMPLER], ids=["on policy", "off policy"])
def test_the_unbiased_gradient_is_that_of_the_kl(estimator: str, sampler: torch.Tensor) -> None:
    assert torch.allclose(expected_gradient(estimator, sampler, unbiased=True), true_gradient(), atol=1e-12)


def test_without_it_only_k2_is_right_and_only_on_policy() -> None:
    """What the documentation says of the plain estimators."""
    on_policy = LOGITS.log_softmax(0)
    found = {e: expected_gradient(e, on_policy, unbiased=False) for e in ("k1", "k2", "k3")}
    assert torch.allclose(found["k2"], true_gradient(), atol=1e-12)
    assert torch.allclose(found["k1"], torch.zeros(4, dtype=torch.float64), atol=1e-12)
    assert not torch.allclose(found["k3"], true_gradient(), atol=1e-3)
    # That of k3 is the gradient of the KL the other way round.
    logits = LOGITS.clone().requires_grad_()
    (reverse,) = torch.autograd.grad((REFERENCE.exp() * (REFERENCE - logits.log_softmax(0))).sum(), logits)
    assert torch.allclose(found["k3"], reverse, atol=1e-12)
    assert not torch.allclose(expected_gradient("k2", SAMPLER, unbiased=False), true_gradient(), atol=1e-3)


def test_a_kl_without_a_reference_is_told() -> None:
    given = packed(random_rows(0))
    with pytest.raises(ValueError, match=r"loss\.kl_coef is 0\.1 but no log-probs of the reference"):
        policy_loss(
            make_objective(LossConfig(kl_coef=0.1)),
            replace(given.batch, reference_logp=None),
            given.logp,
            given.denominators,
        )
