"""Which slot a prompt begins like: the longest beginning, found next to where the prompt would stand."""

from __future__ import annotations

import random

from trainer.engines.prefix_cache import PrefixIndex


def shared(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_the_longest_beginning_of_any_slot_is_found() -> None:
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


def test_nothing_is_held_after_clear() -> None:
    index = PrefixIndex()
    assert index.longest((1, 2)) == (-1, 0)
    index.put(3, (1, 2))
    assert index.longest((1, 2, 3)) == (3, 2)
    index.clear()
    assert index.longest((1, 2, 3)) == (-1, 0)
    assert 3 not in index
