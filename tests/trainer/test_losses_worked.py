"""Losses by hand: the numbers of their docstrings, and what only one of them does."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from loss_inputs import LossRow, losses_of, packed

from trainer.algorithms.losses import StepTokens
from trainer.algorithms.losses.covariance import ClipCovSettings, KlCovSettings, choose_between, choose_largest


def lone_row(
    logp: list[float], old: list[float], advantages: list[float], *, turns: list[int] | None = None, **more: Any
) -> LossRow:
    """One row, sampled by the old policy, without reference."""
    given = {name: np.array(values) for name, values in {"logp": logp, "old": old, "advantages": advantages}.items()}
    zeros = np.zeros(len(logp))
    return LossRow(
        turns=np.array(turns if turns is not None else [0] * len(logp)),
        sampler=np.array(more.get("sampler", old)),
        reference=zeros,
        selected=np.array(more.get("selected", zeros), dtype=np.bool_),
        **given,
    )


def worked(row: LossRow, **config: Any) -> tuple[list[float], list[float], dict[str, float]]:
    """Losses of the tokens, the gradient of their mean times their number, and metrics."""
    given = packed([row], bins=1)
    loss, metrics = losses_of(config.pop("name"), given.inputs(), **config)
    (gradient,) = torch.autograd.grad(loss.sum(), given.logp)
    numbers = {name: value.item() for name, value in metrics.items()}
    return given.unpacked(loss)[0], given.unpacked(gradient)[0], numbers


LOG = math.log


@pytest.mark.parametrize(
    ("config", "token", "loss", "gradient"),
    [
        # token: logp, old, A
        ({"name": "raft_pp"}, (LOG(1.5), 0.0, 1.0), -1.2, 0.0),
        ({"name": "raft_pp"}, (LOG(1.5), 0.0, -1.0), 0.0, 0.0),
        ({"name": "raft_pp"}, (LOG(0.5), 0.0, 1.0), -0.5, -0.5),
        ({"name": "raft_pp"}, (-1.0, -1.0, 2.0), -2.0, -2.0),
        ({"name": "gspo"}, (-1.0, -1.0, 2.0), -2.0, -2.0),
        ({"name": "gspo_token"}, (-1.0, -1.0, 2.0), -2.0, -2.0),
        ({"name": "gmpo"}, (-1.0, -1.0, 2.0), -2.0, -2.0),
        ({"name": "cispo"}, (-0.5, -0.5 - LOG(6), 1.0), 2.5, -5.0),
        ({"name": "cispo"}, (-2.0, -2.0 - LOG(0.3), -1.0), -0.6, 0.3),
        ({"name": "topr"}, (-0.5, -0.5 - LOG(7), 1.0), 0.5, -1.0),
        ({"name": "topr"}, (-2.0, -2.0 - LOG(0.3), -1.0), -0.6, 0.3),
        ({"name": "topr"}, (-2.0, -2.0 - LOG(7), -1.0), -2.0, 1.0),
        ({"name": "topr", "positive_weight": 3.0}, (-0.5, -0.5, 1.0), 1.5, -3.0),
        ({"name": "topr", "negative_weight": 0.5}, (-0.5, -0.5, -1.0), -0.25, 0.5),
        ({"name": "vespo"}, (-1.0, -1.0, 1.0), 1.0, -1.0),
        ({"name": "vespo"}, (-1.0, -1.0 - LOG(2), 1.0), 0.199148, -0.199148),
        ({"name": "vespo"}, (-1.0, -1.0 - LOG(2), -1.0), -1.082682, 1.082682),
        ({"name": "sapo"}, (LOG(2), 0.0, 1.0), -2.924234, -1.572895),
        ({"name": "sapo"}, (-1.0, -1.0, -1.0), 1.904762, 1.0),
        ({"name": "kimi"}, (-0.5, -0.8, 2.0), 1.0045, -1.97),
        ({"name": "dppo"}, (LOG(0.6), LOG(0.5), 1.0), -1.199967, -1.199635),
        ({"name": "dppo"}, (LOG(0.75), LOG(0.5), 1.0), 0.000164, 0.000811),
        ({"name": "dppo", "divergence_coef": 0.0}, (LOG(0.2), LOG(0.5), -1.0), 0.0, 0.0),
        ({"name": "dppo", "divergence_coef": 0.0}, (LOG(0.2), LOG(0.5), 1.0), -0.4, -0.4),
        ({"name": "clip_cov"}, (LOG(1.5), 0.0, 1.0), -1.28, 0.0),
        ({"name": "kl_cov"}, (LOG(1.5), 0.0, 1.0), -1.5, -1.5),
    ],
)
def test_one_token(config: dict[str, Any], token: tuple[float, float, float], loss: float, gradient: float) -> None:
    logp, old, advantage = token
    found = worked(lone_row([logp], [old], [advantage]), **config)
    assert (found[0][0], found[1][0]) == pytest.approx((loss, gradient), abs=1e-6)


def test_gspo_golden() -> None:
    logp = [0.1, -0.2, 0.3]
    bounds = {"clip_low": 0.5, "clip_high": 0.5}
    losses, gradient, metrics = worked(lone_row(logp, [0.0] * 3, [1.0] * 3), name="gspo", **bounds)
    assert losses == pytest.approx([-1.068939] * 3, abs=1e-6)
    assert gradient == pytest.approx([-1.068939] * 3, abs=1e-6)  # of the sum of three; of the row's mean -0.356313
    assert metrics["loss/ratio"] / 3 == pytest.approx(1.068939, abs=1e-6)
    assert worked(lone_row(logp, [0.0] * 3, [1.0] * 3), name="gspo_token", **bounds)[:2] == (
        pytest.approx(losses),
        pytest.approx(gradient),
    )


def test_gspo_has_the_papers_bounds() -> None:
    losses, gradient, metrics = worked(lone_row([0.1, -0.2, 0.3], [0.0] * 3, [1.0] * 3), name="gspo")
    assert losses == pytest.approx([-1.0004] * 3)
    assert gradient == [0.0] * 3
    assert metrics["loss/clip_fraction"] == 3
    assert worked(lone_row([-0.1] * 3, [0.0] * 3, [-1.0] * 3), name="gspo")[0] == pytest.approx([0.9997] * 3)


def test_gspo_and_gspo_token_part_where_advantages_of_a_row_differ() -> None:
    row = lone_row([0.1, -0.2, 0.3], [0.0] * 3, [3.0, 0.0, 0.0])
    bounds = {"clip_low": 0.5, "clip_high": 0.5}
    together, own = worked(row, name="gspo", **bounds), worked(row, name="gspo_token", **bounds)
    assert together[0] == pytest.approx(own[0])
    assert together[1] == pytest.approx([-1.068939] * 3, abs=1e-6)  # 3 s / 3 in each
    assert own[1] == pytest.approx([-3.206818, 0.0, 0.0], abs=1e-6)


def test_gmpo_by_hand() -> None:
    up = worked(lone_row([0.1, -0.2, 0.9], [0.0] * 3, [1.0] * 3), name="gmpo")
    assert up[0] == pytest.approx([-1.105171] * 3, abs=1e-6)
    assert up[1] == pytest.approx([-1.105171, -1.105171, 0.0], abs=1e-6)
    assert up[2]["loss/clip_fraction"] == 1
    down = worked(lone_row([0.1, -0.2, 0.9], [0.0] * 3, [-1.0] * 3), name="gmpo")
    assert down[0] == pytest.approx([1.305605] * 3, abs=1e-6)
    mixed = worked(lone_row([0.9, 0.9, 0.0], [0.0] * 3, [1.0, 0.0, 0.0]), name="gmpo")
    assert mixed[0] == pytest.approx([-math.exp((0.4 + 0.9) / 3), 0.0, 0.0])  # without advantage nothing is cut


def test_a_ratio_by_turn_is_the_geometric_mean_of_each() -> None:
    row = lone_row([0.1, -0.2, 0.3, 9.9, 0.0], [0.0] * 5, [1.0] * 5, turns=[0, 0, 1, -1, 1])
    losses, gradient, _ = worked(row, name="clip", ratio="turn-mean", clip_low=0.9, clip_high=0.9)
    a, b = math.exp(-0.05), math.exp(0.15)
    assert losses == pytest.approx([-a, -a, -b, -b])
    assert gradient == pytest.approx([-a, -a, -b, -b])
    product = worked(row, name="clip", ratio="sequence-product", clip_low=0.9, clip_high=0.9)
    assert product[0] == pytest.approx([-math.exp(0.2)] * 4)


def test_topr_over_the_whole_row() -> None:
    row = lone_row([-1.0, -1.0], [-1.0 - LOG(0.5), -1.0 - LOG(0.8)], [-1.0, -1.0])
    assert worked(row, name="topr", ratio="sequence-product")[1] == pytest.approx([0.4, 0.4])
    assert worked(row, name="topr")[1] == pytest.approx([0.5, 0.8])


@pytest.mark.parametrize("name", ["dppo", "vespo"])
def test_some_ratios_are_to_the_sampler(name: str) -> None:
    row = lone_row([-1.0, -0.9], [-1.0, -0.9], [1.0, -1.0], sampler=[-1.2, -0.8])
    moved = replace(row, old=np.array([-5.0, -0.1]))
    assert worked(row, name=name) == worked(moved, name=name)
    assert worked(row, name=name)[0] != worked(replace(row, sampler=row.logp), name=name)[0]


def test_clip_cov_leaves_the_chosen_out() -> None:
    row = lone_row([-1.0, -2.0], [-1.0, -2.0], [2.0, 3.0], selected=[False, True])
    losses, gradient, metrics = worked(row, name="clip_cov")
    assert (losses, gradient) == ([-2.0, 0.0], [-2.0, 0.0])
    assert metrics["loss/selected_fraction"] == 1


def test_kl_cov_holds_the_chosen_back() -> None:
    row = lone_row([LOG(1.5), LOG(1.5)], [0.0, 0.0], [1.0, 1.0], selected=[False, True])
    losses, gradient, metrics = worked(row, name="kl_cov")
    assert losses == pytest.approx([-1.5, -1.094535], abs=1e-6)
    assert gradient == pytest.approx([-1.5, -0.5])
    assert metrics["loss/selected_fraction"] == 1
    same = worked(replace(row, logp=row.old), name="kl_cov")
    assert (same[0], same[1]) == ([-1.0, -1.0], [-1.0, -1.0])


def test_kl_cov_pushes_nothing_by_the_sign_of_a_rounding() -> None:
    """Two computations of a log-prob differ by up to 1e-6 in float32; a move by 1e-4 has the whole slope."""
    row = lone_row([1e-6, -1e-6, 1e-4, -1e-4], [0.0] * 4, [0.0] * 4, selected=[True] * 4)
    losses, gradient, _ = worked(row, name="kl_cov")
    assert losses == pytest.approx([0.0, 0.0, 1e-4, 1e-4])
    assert gradient == pytest.approx([0.0, 0.0, 1.0, -1.0])


def tokens(logp: list[float], advantages: list[float]) -> StepTokens:
    return StepTokens(old_logp=np.array(logp), advantages=np.array(advantages))


def test_choices_by_hand() -> None:
    rng = np.random.default_rng(0)
    two = tokens([-1.0, -3.0], [1.0, -1.0])  # covariances 1 and 1
    config = ClipCovSettings()
    assert choose_between(two, config, rng).tolist() == [False, False]  # the bounds 1 and 5 do not count
    wide = ClipCovSettings(covariance_low=0.5)
    drawn = {tuple(choose_between(two, wide, rng).tolist()) for _ in range(40)}
    assert drawn == {(True, False), (False, True)}
    both = ClipCovSettings(covariance_low=0.5, covariance_share=1.0)
    assert choose_between(two, both, rng).tolist() == [True, True]
    # means -2 and 0: covariances -1, 0, 0, 4
    four = tokens([-1.0, -2.0, -2.0, -3.0], [-1.0, 2.0, 3.0, -4.0])
    assert choose_largest(four, KlCovSettings(), rng).tolist() == [False, False, False, True]
    half = KlCovSettings(covariance_share=0.5)
    assert choose_largest(four, half, rng).tolist() == [False, True, False, True]  # a tie goes to the earlier
    none = KlCovSettings(covariance_share=0.0)
    assert not choose_largest(four, none, rng).any()
    assert choose_largest(tokens([], []), KlCovSettings(), rng).tolist() == []
    assert choose_between(tokens([], []), config, rng).tolist() == []


def test_a_choice_is_a_function_of_the_step_and_its_seed() -> None:
    draws = np.random.default_rng(5)
    step = tokens(draws.normal(size=400).tolist(), draws.normal(size=400).tolist())
    config = ClipCovSettings(covariance_low=0.2, covariance_share=0.05)
    first, again = (choose_between(step, config, np.random.default_rng(3)) for _ in range(2))
    assert first.tolist() == again.tolist()
    assert first.sum() == 20


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_a_loss_that_chooses_says_so_when_nothing_was_chosen(name: str) -> None:
    given = packed([lone_row([-1.0], [-1.0], [1.0])], bins=1)
    with pytest.raises(ValueError, match=r"needs LossInputs\.selected"):
        losses_of(name, replace(given.inputs(), selected=None))
