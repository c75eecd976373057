"""Sequences carry what was sampled and nothing else (promise 1)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from episode_builders import group, trajectories, trajectory, turn
from hypothesis import given
from hypothesis import strategies as st

from roll_envs.types import Completion, Outcome, Trajectory, VersionSpan
from trainer.data.table import TokenSequence, sequences_of, to_sequences


def test_a_prompt_that_extends_the_sequence_joins_it() -> None:
    first = turn((1, 2), (7,), logprobs=(-0.5,), version=3)
    second = turn((1, 2, 7, 3), (8, 9), logprobs=(-0.25, -0.125), version=4)
    assert to_sequences(trajectory(first, second, member=5), group=2) == [
        TokenSequence(
            ids=(1, 2, 7, 3, 8, 9),
            mask=(False, False, True, False, True, True),
            logprobs=(0.0, 0.0, -0.5, 0.0, -0.25, -0.125),
            turns=(-1, -1, 0, -1, 1, 1),
            versions=(-1, -1, 3, -1, 4, 4),
            group=2,
            member=5,
        )
    ]


def test_every_id_has_the_version_that_sampled_it() -> None:
    said = Completion(
        ids=(7, 8, 9),
        logprobs=(-1.0, -1.0, -1.0),
        finish="stop",
        weight_version=3,
        spans=(VersionSpan(3, 1), VersionSpan(5, 2)),
    )
    (sequence,) = to_sequences(trajectory(replace(turn((1, 2)), completion=said)), group=0)
    assert sequence.versions == (-1, -1, 3, 5, 5)


@pytest.mark.parametrize(
    "prompt",
    [(1, 2, 9, 3), (1, 2), (3, 1, 2, 7), ()],
    ids=["another completion", "prompt without the completion", "something in front", "empty"],
)
def test_any_other_prompt_starts_a_new_sequence(prompt: tuple[int, ...]) -> None:
    sequences = to_sequences(trajectory(turn((1, 2), (7,)), turn(prompt, (8,))), group=0)
    assert [r.ids for r in sequences] == [(1, 2, 7), (*prompt, 8)]
    assert [r.turns[-1] for r in sequences] == [0, 1]


def test_a_prompt_equal_to_the_sequence_joins_it() -> None:
    (sequence,) = to_sequences(trajectory(turn((1,), (2,)), turn((1, 2), (3,))), group=0)
    assert sequence.ids == (1, 2, 3)
    assert sequence.mask == (False, True, True)


def test_aborted_turns_contribute_nothing_and_do_not_break_the_sequence() -> None:
    turns = (turn((1,), (2,)), turn((1, 2, 3), ()), turn((1, 2, 3), (4,)), turn((9,), ()))
    (sequence,) = to_sequences(trajectory(*turns), group=0)
    assert sequence.ids == (1, 2, 3, 4)
    assert sequence.turns == (-1, 0, -1, 2)


@pytest.mark.parametrize("kind", ["failed", "cancelled"])
def test_unscored_episodes_give_no_sequences(kind: str) -> None:
    whole = trajectory(turn())
    unscored = replace(whole, outcome=Outcome(kind=kind, reason="the environment crashed"))  # type: ignore[arg-type]
    assert to_sequences(whole, group=0)
    assert to_sequences(unscored, group=0) == []


def test_truncated_episodes_give_sequences() -> None:
    assert to_sequences(trajectory(turn(), kind="truncated"), group=0)


def test_sequences_name_their_group_and_member() -> None:
    groups = [group(trajectory(turn(), member=0), trajectory(turn(), member=1)), group(trajectory(turn(), member=4))]
    assert [(r.group, r.member) for r in sequences_of(groups)] == [(0, 0), (0, 1), (1, 4)]


@given(trajectories())
def test_masked_in_ids_are_the_completions_in_order(episode: Trajectory) -> None:
    sequences = to_sequences(episode, group=0)
    marked = [
        (i, logprob, t, version)
        for r in sequences
        for i, m, logprob, t, version in zip(r.ids, r.mask, r.logprobs, r.turns, r.versions, strict=True)
        if m
    ]
    assert marked == [
        (i, logprob, index, t.completion.weight_version)
        for index, t in enumerate(episode.turns)
        for i, logprob in zip(t.completion.ids, t.completion.logprobs, strict=True)
    ]


@given(trajectories())
def test_every_sampled_id_stands_behind_exactly_its_prompt(episode: Trajectory) -> None:
    for r in to_sequences(episode, group=0):
        for index in sorted(set(r.turns) - {-1}):
            prompt = episode.turns[index].prompt_ids
            assert r.turns.index(index) == len(prompt)
            assert r.ids[: len(prompt)] == prompt
        outside = [
            (logprob, t, v) for m, logprob, t, v in zip(r.mask, r.logprobs, r.turns, r.versions, strict=True) if not m
        ]
        assert set(outside) <= {(0.0, -1, -1)}
        assert r.mask[-1]


@given(trajectories(), st.text())
def test_texts_and_rewards_do_not_reach_the_sequence(episode: Trajectory, text: str) -> None:
    changed = tuple(
        replace(t, observation=text, prompt_observation=text, text=text, reward=t.reward + 1) for t in episode.turns
    )
    assert to_sequences(replace(episode, turns=changed), group=0) == to_sequences(episode, group=0)
