"""Which tokens the loss sees, and what sequences weigh, by hand; a step of which nothing is left still is a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from episode_builders import group, groups, on_ids, trajectory, turn
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_model

from roll_envs.types import FinishReason, Group, OutcomeKind, Turn
from trainer.algorithms.shaping import apply_masks
from trainer.config import MaskConfig
from trainer.config.load import parse_config
from trainer.data.table import Tokens, make_table, sequences_of
from trainer.learner import make_learner
from trainer.run.update import make_parts, update


def said(*sampled: int, prompt: tuple[int, ...] = (1,), finish: FinishReason = "stop", success: bool = False) -> Turn:
    made = turn(prompt, sampled, info={"success": success})
    return replace(made, completion=replace(made.completion, finish=finish))


class Masked(NamedTuple):
    tokens: Tokens
    weights: list[float]
    """Of each sequence."""
    metrics: dict[str, float]


def masked(step: list[Group], **config: Any) -> Masked:
    sequences = sequences_of(step)
    table, metrics = apply_masks(MaskConfig(**config), make_table(step, sequences))
    weight = table.tokens.weight
    assert weight is not None
    of_sequence = [np.unique(weight[table.tokens.sequence == s]) for s in range(len(sequences))]
    assert all(len(weights) == 1 for weights in of_sequence)
    return Masked(table.tokens, [float(w[0]) for w in of_sequence], metrics)


def masks(step: list[Group], **config: Any) -> list[list[int]]:
    return [m.astype(int).tolist() for m in on_ids(sequences_of(step), masked(step, **config).tokens.trained)]


def test_nothing_configured_leaves_tokens_as_they_are() -> None:
    step = [group(trajectory(said(5, 6, finish="length"), kind="truncated"))]
    result = masked(step)
    assert result.tokens.trained.all()
    assert result.weights == [1.0]
    assert result.metrics == {}


def test_answers_cut_at_the_longest_length_are_left_out_turn_by_turn() -> None:
    first = said(5, 6, finish="length")
    joined = said(7, prompt=(1, 5, 6, 2))
    apart = said(8, 9, prompt=(3,), finish="length")
    step = [group(trajectory(first, joined, apart))]
    assert masks(step) == [[0, 1, 1, 0, 1], [0, 1, 1]]
    assert masks(step, truncated_answers=True) == [[0, 0, 0, 0, 1], [0, 0, 0]]
    result = masked(step, truncated_answers=True)
    assert result.metrics == {"mask/tokens_share": 4 / 5, "mask/sequences": 1.0}
    assert result.tokens.turn_number.tolist() == [0, 0, 1, 2, 2]


def test_episodes_that_ended_at_their_turn_limit_are_left_out_whole() -> None:
    step = [group(trajectory(said(5), kind="truncated"), trajectory(said(5), member=1))]
    assert masks(step, truncated_episodes=True) == [[0, 0], [0, 1]]
    assert masked(step, truncated_episodes=True).metrics == {"mask/tokens_share": 0.5, "mask/sequences": 1.0}


def test_long_errors_are_left_out_and_long_successes_are_not() -> None:
    long, short, right = (said(5, 6, 7), said(8, prompt=(2,))), (said(5, 6, 7),), (said(5, 6, 7, 8, success=True),)
    step = [group(*(trajectory(*turns, member=i) for i, turns in enumerate((long, short, right))))]
    assert masks(step, error_max_tokens=3) == [[0, 0, 0, 0], [0, 0], [0, 1, 1, 1], [0, 1, 1, 1, 1]]


def test_tasks_that_are_never_solved_weigh_more() -> None:
    solved = [trajectory(said(5, success=True), member=i) for i in range(2)]
    unsolved = [trajectory(said(5), member=i) for i in range(2)]
    lost = trajectory(said(5, success=True), member=2, kind="failed")
    step = [group(*solved), group(*unsolved, lost)]
    result = masked(step, difficulty_weight=1.0)
    assert result.weights == pytest.approx([2 / 3, 2 / 3, 4 / 3, 4 / 3])
    assert result.metrics == {"mask/weight_min": pytest.approx(2 / 3), "mask/weight_max": pytest.approx(4 / 3)}
    half = [group(solved[0], replace(unsolved[0], member=1)), group(*unsolved)]
    assert masked(half, difficulty_weight=2.0).weights == pytest.approx([0.8, 0.8, 1.2, 1.2])  # 2 and 3


def test_short_episodes_weigh_more() -> None:
    turns = [(said(5, 6, 7),), (said(5, 6),), (said(5),), (said(5), said(6, 7, prompt=(2,)))]
    step = [group(*(trajectory(*t, member=i) for i, t in enumerate(turns)))]
    raw = np.array([1.0, 1.25, 1.5, 1.0, 1.0])  # the last episode has two rows
    assert masked(step, length_weight=0.5).weights == pytest.approx(raw / raw.mean())


def test_episodes_of_one_length_weigh_the_same() -> None:
    step = [group(*(trajectory(said(5, 6), member=i) for i in range(3)))]
    assert masked(step, length_weight=0.5).weights == [1.0] * 3


def test_weights_multiply_and_have_mean_one_over_what_is_left() -> None:
    episodes = [
        trajectory(said(5, success=True), member=0),
        trajectory(said(5, 6), member=1),
        trajectory(said(5, 6, 7), member=2, kind="truncated"),
    ]
    result = masked([group(*episodes)], difficulty_weight=3.0, length_weight=1.0, truncated_episodes=True)
    # one group: the same difficulty; lengths 1, 2, 3 give 2, 1.5, 1, of which the last row has no tokens
    assert result.weights == pytest.approx(np.array([2.0, 1.5, 1.0]) / 1.75)


@pytest.mark.parametrize("config", [{}, {"truncated_episodes": True, "difficulty_weight": 1.0, "length_weight": 1.0}])
def test_all_or_nothing(config: dict[str, Any]) -> None:
    assert masked([], **config).weights == []
    step = [group(trajectory(said(5), kind="truncated"))]
    assert masked(step, **config).weights == [1.0]


@given(
    st.lists(groups(), max_size=4),
    st.builds(
        MaskConfig,
        error_max_tokens=st.none() | st.integers(1, 6),
        difficulty_weight=st.sampled_from([0.0, 1.0]),
        length_weight=st.sampled_from([0.0, 2.0]),
    ),
)
def test_weights_are_positive_and_have_mean_one(step: list[Group], config: MaskConfig) -> None:
    result = masked(step, **config.model_dump())
    learnt = np.unique(result.tokens.sequence[result.tokens.trained])
    weights = np.array(result.weights)
    assert (weights > 0).all()
    if len(learnt):
        assert weights[learnt].mean() == pytest.approx(1.0)


# -- through a training step -------------------------------------------------------------------------------------------


def stepped(kinds: tuple[OutcomeKind, OutcomeKind], **mask: Any) -> tuple[dict[str, float], bool]:
    """Metrics of one update on groups of two such episodes with returns 0 and 1, and whether weights moved."""
    model = tiny_model()
    config = parse_config("format: 1\nname: t\nsteps: 1\nenv: {id: roll/FrozenLake-v0}\nadvantage: {normalize: mean}\n")
    config = config.model_copy(update={"mask": MaskConfig(**mask)})
    learner = make_learner(model, loss=config.loss, optimizer=config.optimizer, temperature=1.0)
    before = {n: w.clone() for n, w in learner.weights()}
    step = [
        group(*(trajectory(turn((20 + g, 30), (40 + m,), reward=m), member=m, kind=kinds[m]) for m in (0, 1)))
        for g in range(3)
    ]
    metrics = update(config, make_parts(config, learner), step, step=0, version=0)
    return metrics, any(not bool((before[n] == w).all()) for n, w in learner.weights())


def test_a_step_of_which_all_is_masked_moves_nothing() -> None:
    metrics, moved = stepped(("truncated", "truncated"), truncated_episodes=True, difficulty_weight=1.0)
    assert not moved
    assert metrics["learner/optimizer_steps"] == 0.0
    assert metrics["mask/tokens_share"] == 1.0


def test_masked_episodes_count_in_the_advantages_of_the_others() -> None:
    metrics, moved = stepped(("completed", "truncated"), truncated_episodes=True)
    assert moved
    assert metrics["mask/tokens_share"] == 0.5
    assert metrics["advantage/abs_mean"] == 0.5
    assert metrics["advantage/singleton_groups"] == 0.0
