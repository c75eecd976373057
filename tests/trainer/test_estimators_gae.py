"""Generalised advantages over sampled tokens, and by turns and tokens, by hand and against Monte-Carlo returns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from episode_builders import group, trajectory, turn
from hypothesis import given
from hypothesis import strategies as st
from view_builders import EpisodeView, estimated, flat, per_episode, table_of, view, views

from trainer.algorithms.estimators import make_estimator
from trainer.algorithms.estimators.returns import generalized_advantages
from trainer.config import AdvantageConfig
from trainer.data.table import make_table, sequences_of

MASKED = view(0.0, 1.0, lengths=(2, 1), values=(0.5, 0.4, 0.3))
"""Rewards 0, 0, 0, 0, 1 and values 0.5, 0.4, 0.9, 0.9, 0.3, of which the third and fourth are an observation's."""

LEVELS = view(0.5, 1.0, lengths=(2, 2), values=(0.5, 0.4, 0.2, 0.3))


def test_masked_gae_golden() -> None:
    found = estimated("gae", [MASKED], lam=0.95)
    assert found.advantages.tolist() == pytest.approx([0.43675, 0.565, 0.7])
    assert found.returns is not None
    assert found.returns.tolist() == pytest.approx([0.93675, 0.965, 1.0])


def test_without_skipping_the_observation_the_numbers_would_be_others() -> None:
    naive = generalized_advantages(
        np.array([0.0, 0.0, 0.0, 0.0, 1.0]),
        np.array([0.5, 0.4, 0.9, 0.9, 0.3]),
        np.zeros(5, dtype=np.int64),
        gamma=1.0,
        lam=0.95,
    )
    assert naive[[0, 1, 4]] == pytest.approx([0.430729, 0.558662, 0.7], abs=1e-6)


@pytest.mark.parametrize("joined", [True, False])
def test_gae_skips_observations_inside_a_row_and_between_rows(joined: bool) -> None:
    """The values of ids that were not sampled take no part, whatever they are."""
    second = (1, 5, 6, 8, 8) if joined else (9, 8)
    step = [group(trajectory(turn((1,), (5, 6)), turn(second, (7,), reward=1.0)))]
    sequences = sequences_of(step)
    assert len(sequences) == (1 if joined else 2)
    places = {5: 0.5, 6: 0.4, 7: 0.3}
    value = np.array([places[i] for s in sequences for i, m in zip(s.ids, s.mask, strict=True) if m])
    table = make_table(step, sequences).with_tokens(value=value)
    found = make_estimator(AdvantageConfig(name="gae"))(table)[0].tokens
    assert found.advantage == pytest.approx([0.43675, 0.565, 0.7])
    assert found.return_ == pytest.approx([0.93675, 0.965, 1.0])


def test_returns_of_the_critic_are_taken_before_whitening_and_clipping() -> None:
    step = [group(trajectory(turn((1,), (5, 6), reward=1.0)), trajectory(turn((1,), (7,)), member=1))]
    table = make_table(step, sequences_of(step)).with_tokens(value=np.full(3, 0.25))
    plain = make_estimator(AdvantageConfig(name="gae"))(table)[0].tokens
    white = make_estimator(AdvantageConfig(name="gae", whiten=True, clip=0.5))(table)[0].tokens
    assert white.return_ == pytest.approx(plain.return_)
    assert white.advantage is not None
    assert np.abs(white.advantage).max() == 0.5
    assert plain.advantage == pytest.approx([0.7125, 0.75, -0.25])


def test_bi_level_golden() -> None:
    found = estimated("bi_level_gae", [LEVELS], lam=1.0, high_gamma=0.95)
    assert found.advantages.tolist() == pytest.approx([0.95, 1.05, 0.8, 0.7])
    assert found.returns is not None
    assert found.returns.tolist() == pytest.approx([1.45, 1.45, 1.0, 1.0])


def test_bi_level_lambda_is_within_a_turn_only() -> None:
    found = estimated("bi_level_gae", [LEVELS], lam=0.95, high_gamma=0.95)
    assert found.advantages.tolist() == pytest.approx([-0.1 + 0.95 * 1.05, 1.05, 0.1 + 0.95 * 0.7, 0.7])


def test_bi_level_lambda_of_the_upper_level_is_between_turns_only() -> None:
    found = estimated("bi_level_gae", [LEVELS], lam=1.0, high_gamma=0.95, high_lam=0.5)
    # e2: 0.7; e1: 0.5 + 0.95 * 0.3 - 0.4 + 0.95 * 0.5 * 0.7 = 0.7175
    assert found.advantages.tolist() == pytest.approx([0.6175, 0.7175, 0.8, 0.7])


def test_bi_level_turns_may_pay_nothing() -> None:
    episode = replace(LEVELS, rewards=np.array([0.0, 0.0]))
    found = estimated("bi_level_gae", [episode], lam=1.0, high_gamma=0.95)
    # e2: -0.3; e1: 0.95 * 0.3 - 0.4 + 0.95 * -0.3 = -0.4
    assert found.advantages.tolist() == pytest.approx([-0.5, -0.4, -0.2, -0.3])


def test_bi_level_turns_without_tokens_pay_with_the_turn_before() -> None:
    silent = view(0.25, 0.5, 0.25, 1.0, lengths=(2, 0, 0, 2), values=LEVELS.values)
    joined = view(1.0, 1.0, lengths=(2, 2), values=LEVELS.values)
    config = {"high_gamma": 0.9, "lam": 0.8}
    found, expected = (estimated("bi_level_gae", [e], **config).advantages.tolist() for e in (silent, joined))
    assert found == pytest.approx(expected)
    assert estimated("bi_level_gae", [view(1.0, lengths=(0,), values=())], **config).advantages.tolist() == []


def test_bi_level_counts_what_the_tokens_of_a_turn_pay_before_its_end() -> None:
    episode = view(0.0, 1.0, lengths=(1, 2), values=(0.0, 0.0, 0.0), tokens=(0.0, -0.25, 0.0))
    found = estimated("bi_level_gae", [episode], lam=1.0, high_gamma=0.5)
    assert found.advantages.tolist() == pytest.approx([0.5 * -0.25 + 0.5 * 1.0, 0.75, 1.0])


@given(views(min_size=1))
def test_undiscounted_both_are_the_return_less_the_value(episodes: list[EpisodeView]) -> None:
    expected = []
    for episode, rewards in zip(episodes, per_episode(episodes, table_of(episodes).token_rewards), strict=True):
        assert episode.values is not None
        expected.append(rewards[::-1].cumsum()[::-1] - episode.values)
    for name, levels in (("gae", {}), ("bi_level_gae", {"high_gamma": 1.0, "high_lam": 1.0})):
        found = estimated(name, episodes, token_gamma=1.0, lam=1.0, **levels)
        assert found.advantages.tolist() == pytest.approx(flat(expected))


@given(views(min_size=1), st.floats(0, 1), st.floats(0, 1))
def test_gae_is_the_weighted_sum_of_its_errors(episodes: list[EpisodeView], gamma: float, lam: float) -> None:
    """Equation 16 written out, without the recursion."""
    found = per_episode(episodes, estimated("gae", episodes, token_gamma=gamma, lam=lam).advantages)
    paid = per_episode(episodes, table_of(episodes).token_rewards)
    for episode, rewards, advantages in zip(episodes, paid, found, strict=True):
        assert episode.values is not None
        following = np.append(episode.values[1:], 0.0)[: len(episode.values)]
        errors = rewards + gamma * following - episode.values
        for t, advantage in enumerate(advantages):
            powers = (gamma * lam) ** np.arange(len(errors) - t)
            assert advantage == pytest.approx(float(errors[t:] @ powers), abs=1e-9)


@pytest.mark.parametrize("name", ["gae", "bi_level_gae"])
def test_a_critic_is_asked_for(name: str) -> None:
    with pytest.raises(ValueError, match="needs the values of a critic"):
        estimated(name, [view(1.0)])
    with pytest.raises(ValueError, match="column 'value' has 2 numbers for 1 sampled tokens"):
        estimated(name, [view(1.0, values=(1.0, 2.0))])
