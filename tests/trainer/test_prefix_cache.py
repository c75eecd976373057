"""What was run is not run again: the index of prefixes, the slots, and the logits kept for sequences met before."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from tiny import full_logits, tiny_model

from trainer.engines.prefix_cache import CachedNetwork, OpenSequence, PrefixIndex
from trainer.model.network import LanguageModel


def shared(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_the_longest_prefix_in_any_slot_is_found() -> None:
    rng = random.Random(0)
    index, plain = PrefixIndex(), dict[int, tuple[int, ...]]()
    for _ in range(3000):
        slot = rng.randrange(12)
        ids = tuple(rng.randrange(3) for _ in range(rng.randrange(1, 9)))
        if rng.random() < 0.3:
            index.drop(slot)
            plain.pop(slot, None)
        else:
            index.put(slot, ids)
            plain[slot] = ids
        prompt = tuple(rng.randrange(3) for _ in range(rng.randrange(1, 9)))
        found, length = index.longest(prompt)
        assert length == max((shared(x, prompt) for x in plain.values()), default=0)
        assert length == 0 or shared(plain[found], prompt) == length
        assert index.has(prompt) == (prompt in plain.values())
        assert all((s in index) == (s in plain) and index.ids(s) == plain.get(s, ()) for s in range(12))


def test_nothing_is_found_after_clear() -> None:
    index = PrefixIndex()
    assert index.longest((1, 2)) == (-1, 0)
    index.put(3, (1, 2))
    assert index.longest((1, 2, 3)) == (3, 2)
    index.clear()
    assert index.longest((1, 2, 3)) == (-1, 0)
    assert 3 not in index


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


def test_a_sequence_that_was_run_costs_nothing_while_its_logits_are_kept(model: LanguageModel) -> None:
    network = cached(model, 2)
    for round_ in range(3):  # what is sampled after the same prompt is met again too
        sequence = opened(network, 5, 6, 7)
        costs = [check_logits(model, network, [sequence])]
        for token in (8, 9):
            grow(network, sequence, token)
            costs.append(check_logits(model, network, [sequence]))
        network.close(sequence, keep=True)
        assert costs == ([3, 1, 1] if round_ == 0 else [0, 0, 0])
    assert (len(network.empty), len(network.left)) == (1, 1), "those that ran nothing took no slot"


def test_a_sequence_without_a_slot_goes_on_from_the_one_that_ran_what_it_begins_with(model: LanguageModel) -> None:
    """Shorter than what the index would be asked for: found by where the logits came from."""
    network = cached(model, 3)
    a, b = opened(network, 5, 6), opened(network, 5, 6)
    assert check_logits(model, network, [a, b]) == 2
    grow(network, a, 7)
    grow(network, b, 8)
    assert check_logits(model, network, [a, b]) == 2
    network.close(a, keep=False)
    c = opened(network, 5, 6)
    assert check_logits(model, network, [c]) == 0
    grow(network, c, 9)
    assert check_logits(model, network, [c, b]) == 1
    # Once its slot is taken by others, nothing is copied from it.
    network.close(b, keep=False)
    network.close(c, keep=False)
    for start in (50, 60, 70):
        check_logits(model, network, [opened(network, start, 1, 2)])
    for sequence in (a, b, c):
        assert sequence.slot == -1


def test_a_slot_in_another_use_is_not_copied_from(model: LanguageModel) -> None:
    network = cached(model, 2)
    first = opened(network, 5, 6)
    check_logits(model, network, [first])
    network.close(first, keep=False)
    waiting = opened(network, 5, 6)
    assert check_logits(model, network, [waiting]) == 0
    others = [opened(network, 50, 1), opened(network, 60, 1)]
    check_logits(model, network, others)
    network.close(others[0], keep=False)
    grow(network, waiting, 7)
    assert check_logits(model, network, [waiting]) == 3


def test_logits_beyond_the_memory_for_them_are_run_again(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.engines.prefix_cache._KEPT_LOGITS", 3)
    network = cached(model, 8)
    rng = np.random.default_rng(0)
    open_now = [opened(network, 5, 6) for _ in range(4)]
    for _ in range(200):
        check_logits(model, network, open_now)
        for i, sequence in enumerate(open_now):
            if rng.random() < 0.3:
                network.close(sequence, keep=bool(rng.random() < 0.7))
                open_now[i] = opened(network, 5, *rng.integers(6, 8, size=rng.integers(1, 3)).tolist())
            else:
                grow(network, sequence, int(rng.integers(6, 8)))
    check_logits(model, network, open_now)
    assert sum(owner is not None for owner in network._owners) == 3
    assert all(p.row >= 0 for p in network._prompts.values()), "prefixes without logits are let go"
    assert len(network.empty) + len(network.left) + sum(s.slot >= 0 for s in open_now) == 8


def test_after_forget_everything_is_run_anew_but_what_open_sequences_hold(model: LanguageModel) -> None:
    network = cached(model, 3)
    running, ended = opened(network, 5, 6, 7), opened(network, 8, 9)
    check_logits(model, network, [running, ended])
    network.close(ended, keep=True)
    grow(network, running, 3)
    network.forget()
    network.renew(running)
    assert check_logits(model, network, [running]) == 1
    assert check_logits(model, network, [opened(network, 8, 9)]) == 2
    assert check_logits(model, network, [opened(network, 5, 6, 7)]) == 3
