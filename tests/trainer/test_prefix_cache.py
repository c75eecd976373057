"""What was run is not run again: the tree of tokens, its places, and the logits kept for sequences met before."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from tiny import full_logits, tiny_model

from trainer.engines.prefix_cache import CachedNetwork, OpenSequence
from trainer.model.network import LanguageModel


def shared(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def place_of(network: CachedNetwork, ids: tuple[int, ...]) -> int:
    place = 0
    for token in ids:
        place = network._following[place * network.vocabulary + token]
    return place


def cached(model: LanguageModel, slots: int) -> CachedNetwork:
    return CachedNetwork(copy.deepcopy(model.network).eval(), slots)


def opened(network: CachedNetwork, *ids: int) -> OpenSequence:
    sequence = OpenSequence(ids)
    network.open(sequence)
    return sequence


def grow(network: CachedNetwork, sequence: OpenSequence, token: int) -> None:
    sequence.ids.append(token)
    network.extend(sequence)


@pytest.fixture
def model() -> LanguageModel:
    return tiny_model()


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def check_logits(model: LanguageModel, network: CachedNetwork, sequences: list[OpenSequence]) -> int:
    """Compare with a plain forward pass; returns how many tokens the network ran for it."""
    before = network.tokens_computed
    logits, which = network.logits(sequences)
    for sequence, row in zip(sequences, which, strict=True):
        assert torch.allclose(logits[row], full_logits(model, sequence.ids)[-1], atol=1e-5), sequence.ids
    return network.tokens_computed - before


def places_in_use(network: CachedNetwork) -> int:
    return network.keys_values.keys.shape[1] - 1 - len(network.free_places)


def test_the_longest_prefix_of_anything_that_was_run_is_found(model: LanguageModel) -> None:
    rng = random.Random(0)
    network, plain = cached(model, 12), set[tuple[int, ...]]()
    for _ in range(100):
        batch = [tuple(rng.randrange(3) for _ in range(rng.randrange(1, 9))) for _ in range(rng.randrange(1, 13))]
        expected = 0
        for prompt in sorted(set(batch), key=len):
            found = max((shared(x, prompt) for x in plain), default=0)
            # Of a sequence that others begin with, the last token gives the logits after it, unless they are there.
            expected += len(prompt) - found or network._row[place_of(network, prompt)] < 0
            plain.add(prompt)
        sequences = [opened(network, *prompt) for prompt in batch]
        assert check_logits(model, network, sequences) == expected
        assert places_in_use(network) == len({x[:n] for x in plain for n in range(1, len(x) + 1)})
        for sequence in sequences:
            network.close(sequence)
        if rng.random() < 0.05:
            network.forget()
            plain.clear()
            assert places_in_use(network) == 0


def test_nothing_is_found_after_forget(model: LanguageModel) -> None:
    network = cached(model, 4)
    for ids, cost in (((1, 2), 2), ((1, 2, 3), 1), ((1, 2, 3), 0)):
        sequence = opened(network, *ids)
        assert check_logits(model, network, [sequence]) == cost
        network.close(sequence)
    network.forget()
    assert check_logits(model, network, [opened(network, 1, 2, 3)]) == 3


def test_a_sequence_that_was_run_costs_nothing_while_its_logits_are_kept(model: LanguageModel) -> None:
    network = cached(model, 2)
    for round_ in range(3):  # what is sampled after the same prompt is met again too
        sequence = opened(network, 5, 6, 7)
        costs = [check_logits(model, network, [sequence])]
        for token in (8, 9):
            grow(network, sequence, token)
            costs.append(check_logits(model, network, [sequence]))
        network.close(sequence)
        assert costs == ([3, 1, 1] if round_ == 0 else [0, 0, 0])
    assert places_in_use(network) == 5, "those that ran nothing took no place"
    assert len(network.free_slots) == 2


def test_open_sequences_share_what_they_begin_with(model: LanguageModel) -> None:
    network = cached(model, 3)
    a, b = opened(network, 5, 6), opened(network, 5, 6)
    assert check_logits(model, network, [a, b]) == 2
    grow(network, a, 7)
    grow(network, b, 8)
    assert check_logits(model, network, [a, b]) == 2
    network.close(a)
    c = opened(network, 5, 6)
    assert check_logits(model, network, [c]) == 0
    grow(network, c, 9)
    assert check_logits(model, network, [c, b]) == 1
    assert places_in_use(network) == 5
    network.close(b)
    network.close(c)
    network.close(c)  # is closed already
    assert {s.slot for s in (a, b, c)} == {-1}
    assert len(network.free_slots) == 3


def test_what_begins_alike_in_one_pass_is_run_once(model: LanguageModel) -> None:
    """The second looks at tokens that the first is running; the third, which opened first, waits for another pass."""
    network = cached(model, 3)
    third = opened(network, 5, 6, 7, 8)
    first, second = opened(network, 5, 6, 9), opened(network, 5, 6, 9, 9)
    assert check_logits(model, network, [first, second]) == 4
    assert check_logits(model, network, [third]) == 2


def test_a_place_in_another_use_is_not_looked_at(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.engines.prefix_cache.FIRST_PLACES", 4)
    network = cached(model, 3)
    first = opened(network, 5, 6)
    check_logits(model, network, [first])
    network.close(first)
    waiting = opened(network, 5, 6)
    assert check_logits(model, network, [waiting]) == 0
    others = [opened(network, 50, 1, 1, 1), opened(network, 60, 1, 1, 1)]
    check_logits(model, network, others)
    network.close(others[0])  # the first to leave is the first whose places are given away
    others.append(opened(network, 70, 1))
    check_logits(model, network, others[1:])
    assert (places_in_use(network), len(network.free_places)) == (12, 0)
    grow(network, waiting, 7)
    assert check_logits(model, network, [waiting]) == 1
    for other in others:
        network.close(other)
    kept = opened(network, 60, 1, 1, 1)
    assert check_logits(model, network, [kept]) == 0
    network.close(kept)
    assert check_logits(model, network, [opened(network, 50, 1, 1, 1)]) == 1  # its last token was given away
    assert network.keys_values.keys.shape[1] == 13, "places are given away before there are more of them"


def test_longer_sequences_have_more_places_before_any_is_given_away(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one slot after the other runs is kept for as many sequences as there are slots."""
    monkeypatch.setattr("trainer.engines.prefix_cache.FIRST_PLACES", 4)
    network = cached(model, 3)
    for costs in ([40, 40, 40], [0, 0, 0]):
        for start, cost in zip((50, 100, 150), costs, strict=True):
            sequence = opened(network, *range(start, start + 40))
            assert check_logits(model, network, [sequence]) == cost
            network.close(sequence)


@pytest.mark.parametrize("first_places", [1, 4, 64])
def test_logits_beyond_the_memory_for_them_are_run_again(
    model: LanguageModel, first_places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.engines.prefix_cache.KEPT_LOGITS", 3)
    monkeypatch.setattr("trainer.engines.prefix_cache.FIRST_PLACES", first_places)
    network = cached(model, 8)
    rng = np.random.default_rng(0)
    open_now = [opened(network, 5, 6) for _ in range(4)]
    for _ in range(200):
        check_logits(model, network, open_now)
        for i, sequence in enumerate(open_now):
            if rng.random() < 0.3:
                network.close(sequence)
                open_now[i] = opened(network, 5, *rng.integers(6, 8, size=rng.integers(1, 3)).tolist())
            else:
                grow(network, sequence, int(rng.integers(6, 8)))
    check_logits(model, network, open_now)
    kept = {row: place for row, place in enumerate(network._place_of_row) if place >= 0}
    assert len(kept) == 3
    assert kept == {row: place for place, row in enumerate(network._row) if row >= 0}, "logits of places given away"
    for sequence in open_now:
        network.close(sequence)
    assert len(network.free_slots) == 8
    network.forget()
    assert places_in_use(network) == 0


def test_after_forget_everything_is_run_anew_but_what_open_sequences_hold(model: LanguageModel) -> None:
    network = cached(model, 4)
    running, ended = opened(network, 5, 6, 7), opened(network, 8, 9)
    check_logits(model, network, [running, ended])
    network.close(ended)
    grow(network, running, 3)
    # One whose last token was run for another has that run anew, at a place that the other does not look at.
    behind = opened(network, 5, 6)
    assert check_logits(model, network, [behind]) == 1
    network.forget([running, behind])
    assert check_logits(model, network, [running, behind]) == 2
    assert behind.place not in network._places_of[running.slot, :4]
    assert check_logits(model, network, [opened(network, 8, 9)]) == 2
    network.close(behind)
    assert check_logits(model, network, [opened(network, 5, 6, 7)]) == 3
