"""What holds for every estimator, whatever the episodes: order, failures, cuts, units, centring, groups without news.

(Failures are in ``test_advantages``, from whole trajectories on.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from episode_builders import group, on_ids, trajectory, turn
from hypothesis import given
from hypothesis import strategies as st
from view_builders import (
    GRID,
    EpisodeView,
    by_group,
    close,
    estimated,
    flat,
    of_returns,
    per_episode,
    table_of,
    views,
)

from roll_envs.types import Group
from trainer.algorithms.estimators import Estimate, make_estimator
from trainer.config import AdvantageConfig
from trainer.config.parts import ESTIMATORS
from trainer.data.table import StepTable, make_table, sequences_of

PARTS = {name: ESTIMATORS.find(name) for name in ESTIMATORS.built_in()}
ALL = sorted(PARTS)
GROUPED = sorted(name for name, part in PARTS.items() if part.needs_group)
CENTRED = ["dr_grpo", "gpg", "grpo", "lite_ppo", "maxrl", "rloo"]
"""One number per episode, of sum 0 in each group."""
NORMALIZE = get_args(PARTS["grpo"].settings.model_fields["normalize"].annotation)


def configured(name: str, **config: Any) -> dict[str, Any]:
    """``config`` and other values than the defaults, as far as the estimator reads them."""
    given = {"gamma": 0.9, "token_gamma": 0.95, "base_weight": 0.5, **config}
    return {key: value for key, value in given.items() if key in PARTS[name].settings.model_fields}


def whole(name: str, episodes: list[EpisodeView], **config: Any) -> Estimate:
    return estimated(name, episodes, **configured(name, **config))


def run(name: str, episodes: list[EpisodeView], **config: Any) -> list[np.ndarray]:
    return per_episode(episodes, whole(name, episodes, **config).advantages)


def each(names: Iterable[str], episodes: list[EpisodeView]) -> dict[str, np.ndarray]:
    """The advantages by every one of these estimators, from one table: no estimator may change what it is given."""
    table = table_of(episodes)
    return {name: estimated(name, table, **configured(name)).advantages for name in names}


def moved(episodes: list[EpisodeView], scale: float, shift: float) -> list[EpisodeView]:
    """The same episodes in other units: all rewards times ``scale``, each return plus ``shift``."""
    return [
        replace(
            e,
            rewards=e.rewards * scale + np.eye(len(e.rewards))[-1] * shift,
            token_rewards=None if e.token_rewards is None else e.token_rewards * scale,
        )
        for e in episodes
    ]


@given(episodes=views())
def test_every_sampled_token_gets_one_finite_number(episodes: list[EpisodeView]) -> None:
    table = table_of(episodes)
    for name in ALL:
        found = estimated(name, table, **configured(name))
        for numbers in (found.advantages, found.returns):
            if numbers is not None:
                assert numbers.shape == (sum(sum(e.lengths) for e in episodes),)
                assert np.isfinite(numbers).all()
        assert (found.returns is not None) == PARTS[name].needs_values
        assert all(key.startswith("advantage/") and np.isfinite(value) for key, value in found.metrics.items())


@given(episodes=views(), data=st.data())
def test_the_order_of_episodes_and_groups_does_not_matter(episodes: list[EpisodeView], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(episodes))))
    straight, mixed = each(ALL, episodes), each(ALL, [episodes[i] for i in order])
    for name in ALL:
        found = per_episode(episodes, straight[name])
        assert close(mixed[name], flat([found[i] for i in order]), rel=0, abs=1e-9), name


@given(episodes=views())
def test_what_is_given_stays_as_it_was(episodes: list[EpisodeView]) -> None:
    def numbers(table: StepTable) -> list[Any]:
        tokens, turns, episodes = table.tokens, table.turns, table.episodes
        return [
            c.tolist() for c in (tokens.reward, tokens.value, turns.reward, episodes.greedy_return) if c is not None
        ]

    table = table_of(episodes)
    before = str(numbers(table))
    for name, part in PARTS.items():
        part.estimate(table, part.settings(**configured(name)))
        assert str(numbers(table)) == before, name


@pytest.mark.parametrize("normalize", NORMALIZE)
@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize(
    "returns", [(5.0,), (0.3, 0.1 + 0.2, 0.3), (1e9, 1e9 + 1e-7, 1e9)], ids=["one", "equal", "large"]
)
def test_a_group_without_news_gets_exactly_zero(name: str, returns: tuple[float, ...], normalize: str) -> None:
    assert flat(run(name, of_returns(*returns), normalize=normalize)) == [0.0] * len(returns)
    beside = run(name, [*of_returns(*returns), *of_returns(3, 1, 2, group=1)], normalize=normalize)
    assert flat(beside[: len(returns)]) == [0.0] * len(returns)
    assert flat(beside[len(returns) :])[0] > 0


@given(episodes=views())
def test_groups_are_compared_within_themselves(episodes: list[EpisodeView]) -> None:
    """Adding the same to all returns of one group changes nothing, there or elsewhere."""
    raised = [moved([e], 1.0, 5.0)[0] if e.group == 1 else e for e in episodes]
    names = [n for n in GROUPED if n not in ("lite_ppo", "maxrl", "gigpo", "hgpo")]
    found, wanted = each(names, raised), each(names, episodes)
    for name in names:
        assert close(found[name], wanted[name], rel=0, abs=1e-6), name


@given(episodes=views())
def test_advantages_of_a_group_sum_to_zero(episodes: list[EpisodeView]) -> None:
    episodes = [replace(e, lengths=(1,) * len(e.lengths), token_rewards=None, values=None) for e in episodes]
    for name, advantages in each(CENTRED, episodes).items():
        found = per_episode(episodes, advantages)
        for members in by_group(episodes).values():
            assert abs(sum(found[i][0] for i in members)) <= 1e-6, name


@given(episodes=views())
def test_opo_sums_to_zero_over_tokens(episodes: list[EpisodeView]) -> None:
    found = run("opo", episodes)
    for members in by_group(episodes).values():
        if any(sum(episodes[i].lengths) for i in members):
            assert sum(float(found[i].sum()) for i in members) == pytest.approx(0.0, abs=1e-6)


@given(episodes=views())
def test_whitened_tokens_have_mean_zero_and_deviation_one(episodes: list[EpisodeView]) -> None:
    tokens = np.concatenate([np.empty(0), *run("reinforce_pp", episodes)])
    if tokens.any():
        assert tokens.mean() == pytest.approx(0.0, abs=1e-9)
        assert tokens.std(ddof=1) == pytest.approx(1.0, abs=1e-4)


AFFINE = ["grpo", "lite_ppo", "pass_at_k", "reinforce_pp_baseline"]
SAME_SCALE = [*AFFINE, "gigpo", "hgpo", "maxrl", "reinforce_pp", "step_reinforce"]
TIMES_SCALE = ["dr_grpo", "gpg", "opo", "reinforce", "reinforce_token", "rloo"]


@given(episodes=views(), scale=st.floats(0.5, 8), shift=st.floats(-9, 9))
def test_units_of_the_reward_do_not_matter(episodes: list[EpisodeView], scale: float, shift: float) -> None:
    found, wanted = each(AFFINE, moved(episodes, scale, shift)), each(AFFINE, episodes)
    for name in AFFINE:
        assert close(found[name], wanted[name], rel=0.01, abs=0.01), name


@given(episodes=views(), scale=st.floats(0.5, 8))
def test_the_scale_of_the_reward_does_not_matter(episodes: list[EpisodeView], scale: float) -> None:
    plain, scaled = (each(SAME_SCALE, e) for e in (episodes, moved(episodes, scale, 0.0)))
    for name in SAME_SCALE:
        assert close(scaled[name], plain[name], rel=0.01, abs=0.01), name  # epsilon counts where the spread is small


@given(episodes=views(), scale=st.floats(0.5, 8))
def test_others_grow_with_the_reward(episodes: list[EpisodeView], scale: float) -> None:
    plain, scaled = (each(TIMES_SCALE, e) for e in (episodes, moved(episodes, scale, 0.0)))
    for name in TIMES_SCALE:
        assert close(scaled[name], plain[name] * scale, rel=1e-7, abs=1e-6), name


# -- turns and sequences -----------------------------------------------------------------------------------------------


@given(episodes=views(min_size=1), data=st.data())
def test_estimators_per_token_do_not_see_where_turns_end(episodes: list[EpisodeView], data: st.DataObject) -> None:
    """A turn cut into two, of which the second has the reward, is the same turn."""
    cut = []
    for episode in episodes:
        t = data.draw(st.integers(0, len(episode.lengths) - 1))
        first = data.draw(st.integers(0, max(0, episode.lengths[t] - 1)))
        lengths = (*episode.lengths[:t], first, episode.lengths[t] - first, *episode.lengths[t + 1 :])
        anchors = (*episode.anchors[:t], None, *episode.anchors[t:])
        rewards = np.insert(episode.rewards, t, 0.0)
        cut.append(replace(episode, lengths=lengths, anchors=anchors, rewards=rewards))
    names = ("gae", "reinforce_pp", "reinforce_token")
    found, wanted = each(names, cut), each(names, episodes)
    for name in names:
        assert close(found[name], wanted[name], rel=1e-6, abs=1e-12), name


Played = tuple[list[tuple[list[int], float]], int]
"""Turns of an episode (sampled ids, reward), and its group."""


@st.composite
def _played(draw: st.DrawFn) -> list[Played]:
    count = draw(st.integers(1, 4))
    turns = st.lists(st.tuples(st.lists(st.integers(2, 9), min_size=1, max_size=3), GRID), min_size=1, max_size=3)
    return [(draw(turns), draw(st.integers(0, 1))) for _ in range(count)]


def _groups(played: list[Played], *, joined: bool) -> list[Group]:
    """The same episodes in sequences of all turns, or with a sequence for each turn."""
    members: dict[int, list[Any]] = {0: [], 1: []}
    for turns, g in played:
        seen: list[int] = []
        made = []
        for t, (sampled, reward) in enumerate(turns):
            prompt = [*seen, 1] if joined else [100 + t, 1]
            made.append(turn(prompt, sampled, reward=reward, anchor=f"state {t % 2}"))
            seen = [*prompt, *sampled]
        members[g].append(trajectory(*made, member=len(members[g])))
    return [group(*members[g]) for g in (0, 1)]


@given(played=_played())
def test_sequences_cut_or_joined_are_the_same_episode(played: list[Played]) -> None:
    found: dict[str, list[list[float]]] = {name: [] for name in ALL}
    for joined in (True, False):
        step = _groups(played, joined=joined)
        sequences = sequences_of(step)
        assert len(sequences) == (len(played) if joined else sum(len(turns) for turns, _ in played))
        table = make_table(step, sequences, greedy=(0.5, 0.5))
        ids = np.array([i for s in sequences for i, m in zip(s.ids, s.mask, strict=True) if m])
        table = table.with_tokens(value=0.1 * ids)
        for name in ALL:
            column = make_estimator(AdvantageConfig(name=name, **configured(name)))(table)[0].tokens.advantage
            assert column is not None
            found[name].append(column.tolist())
            spread = on_ids(sequences, column)
            assert all(not a[~np.array(s.mask)].any() for a, s in zip(spread, sequences, strict=True))
    for name, (joined_sequences, cut_sequences) in found.items():
        assert close(joined_sequences, cut_sequences, rel=0, abs=1e-12), name


@given(episodes=views())
def test_a_critic_and_a_greedy_episode_are_used_by_those_that_ask_for_them(episodes: list[EpisodeView]) -> None:
    other = [
        replace(e, values=e.values + 99.0, greedy_return=(e.greedy_return or 0.0) + 99.0)  # type: ignore[operator]
        for e in episodes
    ]
    tokens = sum(sum(e.lengths) for e in episodes)
    found, changed = each(PARTS, episodes), each(PARTS, other)
    for name, spec in PARTS.items():
        same = np.array_equal(changed[name], found[name])
        assert same == (not tokens or not (spec.needs_values or spec.needs_greedy)), name
