"""Estimators from returns reproduce hand-worked numbers: group-relative, plain, greedy baseline, REINFORCE++."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from view_builders import EpisodeView, estimated, of_returns, table_of, view

from trainer.config.parts import ESTIMATORS


def run(name: str, episodes: list[EpisodeView], **config: Any) -> list[float]:
    return estimated(name, episodes, **config).advantages.tolist()  # type: ignore[no-any-return]


FOUR = of_returns(1, 0, 0, 1)
ONE_OF_FOUR = of_returns(1, 0, 0, 0)
SIGNS = np.array([1, -1, -1, 1])


@pytest.mark.parametrize(
    ("name", "config", "size"),
    [
        ("grpo", {}, 0.866024),
        ("grpo", {"normalize": "mean"}, 0.5),
        ("dr_grpo", {}, 0.5),
        ("rloo", {}, 0.666667),
        ("opo", {}, 0.5),
        ("maxrl", {}, 0.999998),
        ("gpg", {}, 0.5),
        ("lite_ppo", {}, 0.866024),
        ("reinforce_pp", {}, 0.866025),
        ("reinforce_pp_baseline", {}, 0.866025),
        ("step_reinforce", {}, 0.866024),
        ("gigpo", {"step_weight": 0.0}, 0.866024),
        ("hgpo", {"normalize": "mean"}, 0.5),
    ],
)
def test_two_of_four(name: str, config: dict[str, Any], size: float) -> None:
    assert run(name, FOUR, **config) == pytest.approx((size * SIGNS).tolist(), abs=1e-6)


@pytest.mark.parametrize(
    ("name", "config", "expected"),
    [
        ("grpo", {}, [1.499997, -0.499999, -0.499999, -0.499999]),
        ("dr_grpo", {}, [0.75, -0.25, -0.25, -0.25]),
        ("rloo", {}, [1.0, -0.333333, -0.333333, -0.333333]),
        ("maxrl", {}, [2.999988, -0.999996, -0.999996, -0.999996]),
        ("pass_at_k", {}, [1.999996, 0.0, 0.0, 0.0]),
        ("pass_at_k", {"normalize": "mean"}, [1.0, 0.0, 0.0, 0.0]),
    ],
)
def test_one_of_four(name: str, config: dict[str, Any], expected: list[float]) -> None:
    assert run(name, ONE_OF_FOUR, **config) == pytest.approx(expected, abs=1e-6)


def test_rloo_is_the_return_less_the_mean_of_the_others() -> None:
    assert run("rloo", of_returns(3, 1, 8)) == pytest.approx([3 - 4.5, 1 - 5.5, 8 - 2])


def test_opo_weighs_the_baseline_by_length() -> None:
    episodes = [view(1.0, lengths=(1,)), view(0.0, lengths=(3,))]
    assert run("opo", episodes) == pytest.approx([0.75, -0.25, -0.25, -0.25])
    silent = [view(1.0, lengths=(0,)), view(0.0, lengths=(0,)), view(1.0, lengths=(2,), group=1)]
    assert run("opo", silent) == [0.0, 0.0]


def test_maxrl_without_a_mean_above_zero_is_undefined_and_counted() -> None:
    found = estimated("maxrl", [*of_returns(1, -1), *of_returns(-1, -3, group=1), *of_returns(1, 0, group=2)])
    assert found.advantages.tolist() == pytest.approx([0, 0, 0, 0, 1, -1], abs=1e-5)
    assert found.metrics == {"advantage/undefined_groups": 2.0}


def test_pass_at_k_pays_the_lead_of_the_best() -> None:
    assert run("pass_at_k", of_returns(2, 5, 4), normalize="mean") == [0.0, 1.0, 0.0]
    assert run("pass_at_k", FOUR) == [0.0] * 4


def test_gpg_makes_up_for_idle_groups() -> None:
    episodes = [*of_returns(1, 0), *of_returns(1, 1, group=1), *of_returns(7, group=2)]
    assert run("gpg", episodes) == pytest.approx([1.25, -1.25, 0.0, 0.0, 0.0])  # 5 episodes over 2
    assert run("gpg", of_returns(1, 1)) == [0.0, 0.0]


def test_lite_ppo_divides_by_the_deviation_of_the_batch() -> None:
    episodes = [*of_returns(1, 0), *of_returns(1, 1, group=1)]
    assert run("lite_ppo", episodes) == pytest.approx([0.999998, -0.999998, 0, 0], abs=1e-6)  # std of 1, 0, 1, 1 is 0.5
    assert run("lite_ppo", [*of_returns(1, 1), *of_returns(5, 5, group=1)]) == [0.0] * 4


@pytest.mark.parametrize("name", [name for name in ESTIMATORS.built_in() if ESTIMATORS.find(name).needs_group])
def test_returns_are_compared_with_their_token_rewards(name: str) -> None:
    """Episodes that only differ in the KL of their tokens are not equal."""
    plain = [view(1.0, lengths=(2,)), view(1.0, lengths=(2,))]
    assert run(name, plain) == [0.0] * 4
    taxed = [view(1.0, lengths=(2,), tokens=(-0.1, -0.1)), view(1.0, lengths=(2,), tokens=(0.0, -0.1))]
    same = [view(0.8, lengths=(2,)), view(0.9, lengths=(2,))]
    assert run(name, taxed) == pytest.approx(run(name, same))
    assert run(name, taxed)[2] > 0


# -- plain returns -----------------------------------------------------------------------------------------------------


def test_reinforce_discounts_per_turn() -> None:
    episode = view(1.0, -2.0, 4.0, lengths=(2, 0, 1), tokens=(0.5, 0.25, -1.0))
    assert run("reinforce", [episode], gamma=0.5) == pytest.approx([1.5, 1.5, 3.0])  # rewards 1.75, -2, 3


def test_reinforce_token_discounts_per_sampled_token() -> None:
    assert run("reinforce_token", [view(1.0, 4.0, lengths=(2, 1))], token_gamma=0.5) == [1.5, 3.0, 4.0]
    taxed = view(1.0, 4.0, lengths=(2, 1), tokens=(-1.0, 0.0, -2.0))
    assert run("reinforce_token", [taxed], token_gamma=0.5) == [0.0, 2.0, 2.0]
    assert run("reinforce_token", [taxed], token_gamma=0.5) == [0.0, 2.0, 2.0]


def test_rewards_of_turns_without_tokens_are_not_lost() -> None:
    assert table_of([view(1.0, 2.0, 4.0, lengths=(0, 2, 0))]).token_rewards.tolist() == [1.0, 6.0]
    assert table_of([view(1.0, lengths=(0,)), view(3.0)]).token_rewards.tolist() == [3.0]
    assert run("reinforce_token", [view(1.0, 2.0, 4.0, lengths=(0, 2, 0))]) == [7.0, 6.0]


def test_step_reinforce_normalises_over_all_turns_of_the_step() -> None:
    episodes = [view(0.0, 0.0, 1.0), view(0.0, 0.0, 0.0, group=1)]
    returns = np.array([0.9025, 0.95, 1.0, 0.0, 0.0, 0.0])
    assert run("step_reinforce", episodes, gamma=0.95, normalize="mean") == pytest.approx(
        (returns - 0.475417).tolist(), abs=1e-6
    )
    assert run("step_reinforce", episodes, gamma=0.95) == pytest.approx(
        ((returns - 0.475417) / 0.521705).tolist(), abs=1e-5
    )


def test_step_reinforce_leaves_turns_without_a_sample_out() -> None:
    episodes = [view(0.0, 9.0, lengths=(1, 0)), view(1.0, lengths=(2,))]
    assert run("step_reinforce", episodes, normalize="mean") == pytest.approx([4.0, -4.0, -4.0])  # 9 and 1
    assert run("step_reinforce", [view(9.0, lengths=(0,)), *of_returns(3)]) == [0.0]


def test_remax_takes_the_greedy_return_off_and_counts_where_there_is_none() -> None:
    episodes = [view(1.0, greedy=0.5), view(0.0, 0.25, greedy=0.5, tokens=(0.0, -0.25)), view(7.0)]
    found = estimated("remax", episodes)
    assert found.advantages.tolist() == [0.5, -0.5, -0.5, 0.0]
    assert found.metrics == {"advantage/without_greedy": 1.0}


# -- REINFORCE++ -------------------------------------------------------------------------------------------------------


def test_reinforce_pp_whitens_over_tokens() -> None:
    episodes = [view(1.0, lengths=(2,)), view(0.0, lengths=(2,), group=1)]
    assert run("reinforce_pp", episodes) == pytest.approx([0.866025, 0.866025, -0.866025, -0.866025], abs=1e-6)
    longer = [view(1.0, lengths=(1,)), view(0.0, lengths=(3,), group=1)]
    assert run("reinforce_pp", longer) == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-6)


def test_reinforce_pp_has_the_kl_in_the_returns_to_go() -> None:
    taxed = view(1.0, lengths=(3,), tokens=(-0.5, 0.0, -0.25))  # returns to go 0.25, 0.75, 0.75
    assert run("reinforce_pp", [taxed]) == pytest.approx([-1.154700, 0.577350, 0.577350], abs=1e-6)
    assert run("reinforce_pp", of_returns(3, 3)) == [0.0, 0.0]


def test_reinforce_pp_goes_on_across_turns() -> None:
    episode = view(0.0, 1.0, lengths=(1, 1))
    other = view(0.0, group=1)
    assert run("reinforce_pp", [episode, other]) == pytest.approx([0.577350, 0.577350, -1.154700], abs=1e-6)


def test_reinforce_pp_baseline_whitens_over_tokens_and_leaves_idle_groups_at_zero() -> None:
    assert run("reinforce_pp_baseline", of_returns(1, 0)) == pytest.approx([0.707107, -0.707107], abs=1e-6)
    episodes = [view(1.0), view(0.0, lengths=(2,)), view(5.0, group=1), view(3.0, group=2), view(3.0, group=2)]
    # tokens 0.5, -0.5, -0.5, 0, 0, 0: mean -1/12, sum of squares 0.75 - 6/144, variance 0.141667
    deviation = np.sqrt(0.141667)
    expected = [(0.5 + 1 / 12) / deviation, *[(-0.5 + 1 / 12) / deviation] * 2, 0, 0, 0]
    assert run("reinforce_pp_baseline", episodes) == pytest.approx(expected, abs=1e-5)
