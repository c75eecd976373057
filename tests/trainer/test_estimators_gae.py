"""Generalised advantages over sampled tokens, and by turns and tokens, by hand and against Monte-Carlo returns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from episode_builders import group, trajectory, turn
from hypothesis import given
from hypothesis import strategies as st
from trainer.algorithms.advantages import estimate, view_episodes
from view_builders import flat, view, views

from trainer.algorithms.estimators import EpisodeView, Estimator, bi_level_gae, gae, on_last_tokens
from trainer.algorithms.estimators.gae import generalized_advantages
from trainer.config import AdvantageConfig
from trainer.data.sequences import rows_of

MASKED = view(0.0, 1.0, lengths=(2, 1), values=(0.5, 0.4, 0.3))
"""Rewards 0, 0, 0, 0, 1 and values 0.5, 0.4, 0.9, 0.9, 0.3, of which the third and fourth are an observation's."""

LEVELS = view(0.5, 1.0, lengths=(2, 2), values=(0.5, 0.4, 0.2, 0.3))


def test_masked_gae_golden() -> None:
    found = gae([MASKED], AdvantageConfig(name="gae", lam=0.95))
    assert flat(found.advantages) == pytest.approx([0.43675, 0.565, 0.7])
    assert found.returns is not None
    assert flat(found.returns) == pytest.approx([0.93675, 0.965, 1.0])


def test_without_skipping_the_observation_the_numbers_would_be_others() -> None:
    naive = generalized_advantages(
        np.array([0.0, 0.0, 0.0, 0.0, 1.0]), np.array([0.5, 0.4, 0.9, 0.9, 0.3]), gamma=1.0, lam=0.95
    )
    assert naive[[0, 1, 4]] == pytest.approx([0.430729, 0.558662, 0.7], abs=1e-6)


@pytest.mark.parametrize("joined", [True, False])
def test_gae_skips_observations_inside_a_row_and_between_rows(joined: bool) -> None:
    """The values of ids that were not sampled take no part, whatever they are."""
    second = (1, 5, 6, 8, 8) if joined else (9, 8)
    step = [group(trajectory(turn((1,), (5, 6)), turn(second, (7,), reward=1.0)))]
    rows = rows_of(step)
    assert len(rows) == (1 if joined else 2)
    places = {5: 0.5, 6: 0.4, 7: 0.3}
    values = [np.array([places.get(i, 1e9) for i in row.ids]) for row in rows]
    episodes = view_episodes(step, rows)
    [episode] = episodes.views
    [of_episode] = episodes.gather(rows, values)
    found = estimate(AdvantageConfig(name="gae"), episodes.with_views([replace(episode, values=of_episode)]), rows)
    assert found.returns is not None
    for numbers, expected in ((found.per_row, (0.43675, 0.565, 0.7)), (found.returns, (0.93675, 0.965, 1.0))):
        assert np.concatenate(episodes.gather(rows, numbers)) == pytest.approx(expected)
        everywhere = np.concatenate(numbers)
        assert np.count_nonzero(everywhere) == 3


def test_returns_of_the_critic_are_taken_before_whitening_and_clipping() -> None:
    step = [group(trajectory(turn((1,), (5, 6), reward=1.0)), trajectory(turn((1,), (7,)), member=1))]
    rows = rows_of(step)
    episodes = view_episodes(step, rows)
    episodes = episodes.with_views([replace(v, values=np.full(sum(v.lengths), 0.25)) for v in episodes.views])
    plain = estimate(AdvantageConfig(name="gae"), episodes, rows)
    white = estimate(AdvantageConfig(name="gae", whiten=True, clip=0.5), episodes, rows)
    assert plain.returns is not None
    assert white.returns is not None
    assert np.concatenate(white.returns) == pytest.approx(np.concatenate(plain.returns))
    sampled = np.concatenate(episodes.gather(rows, white.per_row))
    assert np.abs(sampled).max() == 0.5
    assert np.concatenate(episodes.gather(rows, plain.per_row)) == pytest.approx([0.7125, 0.75, -0.25])


def test_bi_level_golden() -> None:
    found = bi_level_gae([LEVELS], AdvantageConfig(name="bi_level_gae", lam=1.0, high_gamma=0.95))
    assert flat(found.advantages) == pytest.approx([0.95, 1.05, 0.8, 0.7])
    assert found.returns is not None
    assert flat(found.returns) == pytest.approx([1.45, 1.45, 1.0, 1.0])


def test_bi_level_lambda_is_within_a_turn_only() -> None:
    found = bi_level_gae([LEVELS], AdvantageConfig(name="bi_level_gae", lam=0.95, high_gamma=0.95))
    assert flat(found.advantages) == pytest.approx([-0.1 + 0.95 * 1.05, 1.05, 0.1 + 0.95 * 0.7, 0.7])


def test_bi_level_lambda_of_the_upper_level_is_between_turns_only() -> None:
    found = bi_level_gae([LEVELS], AdvantageConfig(name="bi_level_gae", lam=1.0, high_gamma=0.95, high_lam=0.5))
    # e2: 0.7; e1: 0.5 + 0.95 * 0.3 - 0.4 + 0.95 * 0.5 * 0.7 = 0.7175
    assert flat(found.advantages) == pytest.approx([0.6175, 0.7175, 0.8, 0.7])


def test_bi_level_turns_may_pay_nothing() -> None:
    episode = replace(LEVELS, rewards=np.array([0.0, 0.0]))
    found = bi_level_gae([episode], AdvantageConfig(name="bi_level_gae", lam=1.0, high_gamma=0.95))
    # e2: -0.3; e1: 0.95 * 0.3 - 0.4 + 0.95 * -0.3 = -0.4
    assert flat(found.advantages) == pytest.approx([-0.5, -0.4, -0.2, -0.3])


def test_bi_level_turns_without_tokens_pay_with_the_turn_before() -> None:
    silent = view(0.25, 0.5, 0.25, 1.0, lengths=(2, 0, 0, 2), values=LEVELS.values)
    joined = view(1.0, 1.0, lengths=(2, 2), values=LEVELS.values)
    config = AdvantageConfig(name="bi_level_gae", high_gamma=0.9, lam=0.8)
    assert flat(bi_level_gae([silent], config).advantages) == pytest.approx(
        flat(bi_level_gae([joined], config).advantages)
    )
    assert bi_level_gae([view(1.0, lengths=(0,), values=())], config).advantages[0].tolist() == []


def test_bi_level_counts_what_the_tokens_of_a_turn_pay_before_its_end() -> None:
    episode = view(0.0, 1.0, lengths=(1, 2), values=(0.0, 0.0, 0.0), tokens=(0.0, -0.25, 0.0))
    found = bi_level_gae([episode], AdvantageConfig(name="bi_level_gae", lam=1.0, high_gamma=0.5))
    assert flat(found.advantages) == pytest.approx([0.5 * -0.25 + 0.5 * 1.0, 0.75, 1.0])


@given(views(min_size=1))
def test_undiscounted_both_are_the_return_less_the_value(episodes: list[EpisodeView]) -> None:
    config = AdvantageConfig(name="bi_level_gae", token_gamma=1.0, lam=1.0, high_gamma=1.0, high_lam=1.0)
    expected = []
    for episode in episodes:
        assert episode.values is not None
        to_go = on_last_tokens(episode)[::-1].cumsum()[::-1]
        expected.append(to_go - episode.values)
    for estimator in (gae, bi_level_gae):
        assert flat(estimator(episodes, config).advantages) == pytest.approx(flat(expected))


@given(views(min_size=1), st.floats(0, 1), st.floats(0, 1))
def test_gae_is_the_weighted_sum_of_its_errors(episodes: list[EpisodeView], gamma: float, lam: float) -> None:
    """Equation 16 written out, without the recursion."""
    found = gae(episodes, AdvantageConfig(name="gae", token_gamma=gamma, lam=lam)).advantages
    for episode, advantages in zip(episodes, found, strict=True):
        assert episode.values is not None
        following = np.append(episode.values[1:], 0.0)[: len(episode.values)]
        errors = on_last_tokens(episode) + gamma * following - episode.values
        for t, advantage in enumerate(advantages):
            powers = (gamma * lam) ** np.arange(len(errors) - t)
            assert advantage == pytest.approx(float(errors[t:] @ powers), abs=1e-9)


@pytest.mark.parametrize("estimator", [gae, bi_level_gae])
def test_a_critic_is_asked_for(estimator: Estimator) -> None:
    with pytest.raises(ValueError, match="needs the values of a critic"):
        estimator([view(1.0)], AdvantageConfig())
    with pytest.raises(ValueError, match="2 values for an episode of 1 sampled tokens"):
        estimator([view(1.0, values=(1.0, 2.0))], AdvantageConfig())
