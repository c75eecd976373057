"""Rewards are shaped in one order, with hand-worked numbers; what is remembered survives a resume to the bit."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from view_builders import EpisodeView, table_of, view

from roll_envs.errors import CheckpointError
from trainer.algorithms.shaping import AlgorithmState, Moments, kl_estimate, overlong_penalty, shape_rewards
from trainer.config import RewardConfig
from trainer.data.table import StepTable


def shaped(episodes: list[EpisodeView], state: AlgorithmState | None = None, **config: Any) -> list[list[float]]:
    """The rewards of the turns of each episode."""
    table, _ = shape_rewards(RewardConfig(**config), table_of(episodes), state or AlgorithmState(kl_coef=0.0))
    return [table.turns.reward[table.turns.episode == e].tolist() for e in range(len(episodes))]


def measured(episodes: list[EpisodeView], state: AlgorithmState | None = None, **config: Any) -> dict[str, float]:
    return shape_rewards(RewardConfig(**config), table_of(episodes), state or AlgorithmState(kl_coef=0.0))[1]


# -- turn by turn ------------------------------------------------------------------------------------------------------


def test_nothing_configured_changes_nothing() -> None:
    table, metrics = shape_rewards(RewardConfig(), table_of([view(1.0, -2.0)]), AlgorithmState(kl_coef=0.0))
    assert table.turns.reward.tolist() == [1.0, -2.0]
    assert table.tokens.reward.tolist() == [0.0, 0.0]
    assert metrics == {"reward/return_mean": -1.0, "reward/shaped_mean": -1.0}


def test_clip_comes_before_scale_and_the_shift_is_on_the_last_turn() -> None:
    assert shaped([view(5.0, -5.0, 0.5)], clip=1.0, scale=2.0, shift=0.25) == [[2.0, -2.0, 1.25]]
    assert measured([view(5.0, -5.0, 0.5)], clip=1.0, scale=2.0, shift=0.25) == {
        "reward/return_mean": 0.5,
        "reward/shaped_mean": 1.25,
        "reward/clipped_share": 2 / 3,
    }


def test_what_is_given_stays_as_it_was() -> None:
    before = table_of([view(5.0, 1.0, greedy=2.0)])
    config = RewardConfig(clip=1.0, scale=3.0, shift=1.0, normalize_mean="batch")
    shape_rewards(config, before, AlgorithmState(kl_coef=0.0))
    assert before.turns.reward.tolist() == [5.0, 1.0]
    assert before.episodes.greedy_return.tolist() == [2.0]
    assert before.episodes.environment_return.tolist() == [6.0]


@pytest.mark.parametrize(
    ("length", "penalty"), [(16000, 0.0), (16384, 0.0), (18432, -0.5), (20480, -1.0), (30000, -1.0)]
)
def test_overlong_golden(length: int, penalty: float) -> None:
    assert overlong_penalty(
        np.array([length, 0]), RewardConfig(overlong_tokens=20480, overlong_buffer=4096)
    ).tolist() == [penalty, 0.0]


def test_the_overlong_penalty_is_per_turn_and_is_not_scaled() -> None:
    episode = view(1.0, 1.0, 1.0, lengths=(5, 7, 0))
    config = {"overlong_tokens": 8, "overlong_buffer": 4, "overlong_factor": 2.0, "scale": 10.0}
    assert shaped([episode], **config) == [[9.5, 8.5, 10.0]]
    assert measured([episode], **config)["reward/overlong_share"] == 2 / 3


# -- normalisation -----------------------------------------------------------------------------------------------------


def test_the_mean_is_taken_off_the_last_turn_and_the_deviation_divides_all() -> None:
    episodes = [view(1.0, 2.0), view(1.0)]  # returns 3 and 1: mean 2, deviation sqrt(2)
    root = np.sqrt(2) + 1e-6
    assert shaped(episodes, normalize_mean="batch") == [[1.0, 0.0], [-1.0]]
    [first, second] = shaped(episodes, normalize_mean="batch", normalize_std="batch")
    assert first == pytest.approx([1 / root, 0.0])
    assert second == pytest.approx([-1 / root])
    assert shaped(episodes, normalize_std="batch")[0] == pytest.approx([1 / root, 2 / root])


SCOPED = [
    view(1.0, group=0, env="a"),
    view(3.0, group=0, env="b"),
    view(5.0, group=1, env="a"),
    view(5.0, group=1, env="b"),
]


@pytest.mark.parametrize(
    ("scope", "means", "deviations"),
    [
        ("batch", [3.5] * 4, [1.914854] * 4),
        ("group", [2, 2, 5, 5], [1.414214, 1.414214, 0, 0]),
        ("env", [3, 4, 3, 4], [2.828427, 1.414214, 2.828427, 1.414214]),
        ("running", [3.5] * 4, [1.914854] * 4),
    ],
)
def test_scopes_by_hand(scope: str, means: list[float], deviations: list[float]) -> None:
    returns = [1.0, 3.0, 5.0, 5.0]
    assert shaped(SCOPED, normalize_mean=scope) == [[r - m] for r, m in zip(returns, means, strict=True)]
    both = [(r - m) / d if d else 0.0 for r, m, d in zip(returns, means, deviations, strict=True)]
    found = shaped(SCOPED, normalize_mean=scope, normalize_std=scope)
    assert [r for [r] in found] == pytest.approx(both, abs=2e-6)


@pytest.mark.parametrize("scope", ["batch", "group", "env", "running"])
@pytest.mark.parametrize("episodes", [[view(1.0, 2.0)], [view(0.1, 0.2), view(0.3), view(0.3)]], ids=["one", "equal"])
def test_without_spread_rewards_become_zero(scope: str, episodes: list[EpisodeView]) -> None:
    assert shaped(episodes, normalize_std=scope) == [[0.0] * len(e.rewards) for e in episodes]


def test_mean_and_deviation_may_have_different_scopes() -> None:
    found = shaped(SCOPED, normalize_mean="group", normalize_std="batch")
    assert [r for [r] in found] == pytest.approx([-1 / 1.914854, 1 / 1.914854, 0, 0], abs=2e-6)


def test_running_numbers_include_the_present_step_and_all_before() -> None:
    state = AlgorithmState(kl_coef=0.0)
    assert shaped([view(1.0), view(2.0)], state, normalize_mean="running") == [[-0.5], [0.5]]
    assert shaped([view(6.0)], state, normalize_mean="running") == [[3.0]]  # 1, 2, 6: mean 3, variance 7
    found = measured([view(3.0)], state, normalize_mean="running", normalize_std="running")
    assert found["reward/running_mean"] == 3.0
    assert found["reward/running_std"] == pytest.approx(np.sqrt(14 / 3))


def test_running_numbers_are_of_returns_before_normalisation() -> None:
    state = AlgorithmState(kl_coef=0.0)
    shaped([view(1.0), view(2.0)], state, scale=2.0, normalize_mean="batch", normalize_std="batch")
    assert (state.returns.count, state.returns.mean, state.returns.variance) == (2, 3.0, 2.0)


def test_greedy_returns_are_scaled_and_normalised_with_the_others() -> None:
    episodes = [view(1.0, greedy=2.0), view(3.0, greedy=2.0), view(2.0)]
    config = RewardConfig(scale=2.0, shift=1.0, normalize_mean="batch", normalize_std="batch")
    table, _ = shape_rewards(config, table_of(episodes), AlgorithmState(kl_coef=0.0))
    assert table.episodes.greedy_return.tolist() == pytest.approx(
        [0.0, 0.0, np.nan], nan_ok=True
    )  # 2 * 2 + 1: the mean
    assert table.returns.tolist() == pytest.approx([-1, 1, 0], abs=1e-6)


@given(
    st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 2), st.sampled_from("ab")), min_size=1, max_size=8),
    st.sampled_from(["none", "batch", "group", "env", "running"]),
    st.sampled_from(["none", "batch", "group", "env", "running"]),
    st.data(),
)
def test_the_order_of_episodes_does_not_matter(
    drawn: list[tuple[float, int, str]], mean: Any, std: Any, data: st.DataObject
) -> None:
    episodes = [view(r, 0.5, group=g, env=e) for r, g, e in drawn]
    order = data.draw(st.permutations(range(len(episodes))))
    one, other = AlgorithmState(kl_coef=0.0), AlgorithmState(kl_coef=0.0)
    straight = shaped(episodes, one, normalize_mean=mean, normalize_std=std)
    mixed = shaped([episodes[i] for i in order], other, normalize_mean=mean, normalize_std=std)
    assert one == other
    for i, found in zip(order, mixed, strict=True):
        assert found == pytest.approx(straight[i], rel=1e-6, abs=1e-9)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8), st.floats(0.1, 10), st.floats(-10, 10))
def test_normalised_returns_do_not_depend_on_units(returns: list[float], scale: float, shift: float) -> None:
    if np.ptp(returns) < 0.1:
        return
    config: dict[str, Any] = {"normalize_mean": "batch", "normalize_std": "batch"}
    plain = shaped([view(r) for r in returns], **config)
    other = shaped([view(r) for r in returns], scale=scale, shift=shift, **config)
    np.testing.assert_allclose(other, plain, atol=1e-3)


def test_no_episodes_are_no_rewards_and_leave_the_state_alone() -> None:
    state = AlgorithmState(kl_coef=0.5)
    config = RewardConfig(kl_coef=0.5, kl_target=1.0, normalize_std="running")
    nothing = table_of([])
    assert shape_rewards(config, nothing, state) == (nothing, {})
    assert state == AlgorithmState(kl_coef=0.5)


# -- KL ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("estimator", "value"), [("k1", 0.3), ("k2", 0.045), ("k3", 0.040818), ("abs", 0.3)])
def test_kl_golden(estimator: str, value: float) -> None:
    assert kl_estimate(np.array([0.3]), estimator) == pytest.approx([value], abs=1e-6)


def test_kl_of_far_policies_stays_finite() -> None:
    far = np.array([-1e9, 1e9])
    assert kl_estimate(far, "k1").tolist() == [-20.0, 20.0]
    assert kl_estimate(far, "abs").tolist() == [20.0, 20.0]
    assert kl_estimate(far, "k3").tolist() == [10.0, 10.0]


def with_kl(*episodes: EpisodeView, kl: tuple[float, ...] = (0.1, -0.2, 0.4), paid: float = 0.0) -> StepTable:
    """A step whose tokens are as many nats likelier under the policy than under the reference."""
    table = table_of(episodes or EPISODES)
    reference = np.full(len(kl), -2.0)
    return table.with_tokens(proximal_logp=reference + kl, reference_logp=reference, reward=np.full(len(kl), paid))


EPISODES = [view(1.0, 0.0, lengths=(1, 1)), view(0.0)]


def test_kl_is_taken_off_each_token_and_not_normalised() -> None:
    config = RewardConfig(kl_coef=0.5, normalize_mean="batch", normalize_std="batch")
    table, metrics = shape_rewards(config, with_kl(), AlgorithmState(kl_coef=0.5))
    assert table.tokens.reward == pytest.approx([-0.05, 0.1, -0.2])  # a likelier token than the reference's costs
    assert metrics["reward/kl"] == pytest.approx(0.1)
    assert metrics["reward/kl_coef"] == 0.5


def test_kl_adds_to_token_rewards_that_are_there() -> None:
    table, _ = shape_rewards(RewardConfig(kl_coef=0.5), with_kl(paid=1.0), AlgorithmState(kl_coef=0.5))
    assert table.tokens.reward == pytest.approx([0.95, 1.1, 0.8])


def test_a_token_that_is_not_predicted_has_no_kl() -> None:
    table = with_kl().with_tokens(predicted=np.array([False, True, True]))
    found, metrics = shape_rewards(RewardConfig(kl_coef=0.5), table, AlgorithmState(kl_coef=0.5))
    assert found.tokens.reward == pytest.approx([0.0, 0.1, -0.2])
    assert metrics["reward/kl"] == pytest.approx(0.2 / 3)


def test_the_coefficient_follows_the_target_after_it_was_used() -> None:
    config = RewardConfig(kl_coef=0.5, kl_target=0.05, kl_horizon=100)
    state = AlgorithmState(kl_coef=0.5)
    table, metrics = shape_rewards(config, with_kl(), state)
    assert metrics["reward/kl_coef"] == 0.5
    assert table.tokens.reward[2] == pytest.approx(-0.2)
    assert state.kl_coef == pytest.approx(0.5 * (1 + 0.2 * 2 / 100))  # twice the target: cut to 0.2, two episodes
    table, metrics = shape_rewards(config, with_kl(), state)
    assert metrics["reward/kl_coef"] == pytest.approx(0.502)
    assert table.tokens.reward[2] == pytest.approx(-0.2008)


def test_a_fixed_coefficient_is_the_configured_one() -> None:
    state = AlgorithmState(kl_coef=9.0)  # of a checkpoint that had a target
    table, _ = shape_rewards(RewardConfig(kl_coef=0.5), with_kl(), state)
    assert table.tokens.reward[2] == pytest.approx(-0.2)
    assert state.kl_coef == 9.0


def test_a_step_without_tokens_moves_no_coefficient() -> None:
    state = AlgorithmState(kl_coef=0.5)
    empty = with_kl(view(1.0, lengths=(0,)), kl=())
    _, metrics = shape_rewards(RewardConfig(kl_coef=0.5, kl_target=0.05), empty, state)
    assert state.kl_coef == 0.5
    assert "reward/kl" not in metrics


def test_kl_without_a_reference_is_refused() -> None:
    for missing in ({"proximal_logp": None}, {"reference_logp": None}):
        with pytest.raises(ValueError, match=r"kl_coef is 0\.5, but no log-probs of the reference"):
            shape_rewards(RewardConfig(kl_coef=0.5), with_kl().with_tokens(**missing), AlgorithmState(kl_coef=0.5))


# -- what is remembered ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kl", "episodes", "expected"),
    [
        (0.2, 1000, 1.02),
        (0.11, 1000, 1.01),
        (0.0, 1000, 0.98),
        (-5.0, 1000, 0.98),
        (0.2, 10**6, 1.2),
        (0.0, 10**6, 0.8),
    ],
)
def test_the_coefficient_by_hand(kl: float, episodes: int, expected: float) -> None:
    state = AlgorithmState(kl_coef=1.0)
    state.follow(kl, target=0.1, horizon=10_000, episodes=episodes)
    assert state.kl_coef == pytest.approx(expected)


@given(st.lists(st.lists(st.floats(-1e3, 1e3), max_size=5), max_size=5))
def test_moments_are_those_of_all_numbers_together(parts: list[list[float]]) -> None:
    moments = Moments()
    for part in parts:
        moments.add(np.array(part))
    together = np.array([x for part in parts for x in part])
    assert moments.count == len(together)
    if len(together):
        assert moments.mean == pytest.approx(together.mean(), abs=1e-9)
    if len(together) > 1:
        assert moments.variance == pytest.approx(together.var(ddof=1), rel=1e-9, abs=1e-6)


@given(st.lists(st.floats(-1e6, 1e6), max_size=6), st.floats(0, 1))
def test_the_state_survives_a_checkpoint_to_the_bit(returns: list[float], kl_coef: float) -> None:
    state = AlgorithmState(kl_coef=kl_coef)
    state.returns.add(np.array(returns))
    assert AlgorithmState.from_dict(json.loads(json.dumps(state.to_dict()))) == state


def test_a_resumed_state_goes_on_with_the_same_numbers() -> None:
    config = RewardConfig(normalize_mean="running", normalize_std="running", kl_coef=0.3, kl_target=0.1, kl_horizon=7)
    through = AlgorithmState(kl_coef=0.3)
    resumed = AlgorithmState(kl_coef=0.3)
    for _ in range(3):
        resumed = AlgorithmState.from_dict(json.loads(json.dumps(resumed.to_dict())))
        one, other = (shape_rewards(config, with_kl(), state) for state in (through, resumed))
        assert one[1] == other[1]
        assert np.array_equal(one[0].turns.reward, other[0].turns.reward)
        assert np.array_equal(one[0].tokens.reward, other[0].tokens.reward)
    assert through == resumed


@pytest.mark.parametrize(
    "saved", [{}, {"kl_coef": 1.0}, {"kl_coef": 1.0, "returns": [1, 2]}, {"kl_coef": None, "returns": [0, 0, 0]}]
)
def test_what_is_no_state_is_told(saved: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="does not hold the algorithm's state"):
        AlgorithmState.from_dict(saved)
