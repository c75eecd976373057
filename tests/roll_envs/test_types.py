"""Types that check themselves: a completion's spans of weight versions."""

from __future__ import annotations

import pickle

import pytest

from roll_envs import Completion, VersionSpan


def completion(count: int, version: int, *spans: tuple[int, int]) -> Completion:
    return Completion(
        ids=tuple(range(count)),
        logprobs=(-1.0,) * count,
        finish="stop",
        weight_version=version,
        spans=tuple(VersionSpan(*span) for span in spans),
    )


def test_a_completion_of_one_version_has_one_span() -> None:
    assert completion(3, 7).spans == ((7, 3),)
    assert completion(3, 7) == completion(3, 7, (7, 3))
    assert completion(0, 7).spans == ()


def test_a_completion_has_a_log_prob_for_each_id() -> None:
    with pytest.raises(ValueError, match="2 ids and 1 log-probs; each id needs one"):
        Completion(ids=(2, 3), logprobs=(-0.5,), finish="stop", weight_version=0)


def test_spans_of_several_versions_cover_the_ids_and_the_oldest_is_the_version() -> None:
    several = completion(5, 3, (3, 2), (4, 3))
    assert [(span.version, span.tokens) for span in several.spans] == [(3, 2), (4, 3)]
    assert pickle.loads(pickle.dumps(several)) == several
    for wrong in ([(3, 2), (4, 2)], [(3, 5), (4, 0)], [(3, 6), (4, -1)]):
        with pytest.raises(ValueError, match="of a completion with 5 ids"):
            completion(5, 3, *wrong)
    with pytest.raises(ValueError, match="weight_version 4 is not the oldest"):
        completion(5, 4, (3, 2), (4, 3))
    with pytest.raises(ValueError, match="with 0 ids"):
        completion(0, 3, (3, 1))
