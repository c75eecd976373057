"""Streams of groups that grow while they are read."""

from __future__ import annotations

import random

import pytest
from managed import counting, settings, task

from roll_envs.errors import RollError
from roll_envs.managers import EpisodeDriver, EpisodeLimits
from roll_envs.testing import CounterEnv


def driver() -> EpisodeDriver:
    return EpisodeDriver(lambda t: CounterEnv(**t.kwargs), EpisodeLimits(max_running=4))


def test_a_stream_that_grows_gives_every_group_once() -> None:
    """It grows at moments when it is empty, too: the driver then begins with it anew."""
    with driver() as plays:
        for seed in range(5):
            rng = random.Random(seed)
            stream = plays.start([task(0)], 2, settings(), counting())
            begun, found = 1, []
            while len(found) < 40:
                more = min(40 - begun, rng.randrange(4))
                if more:
                    same = plays.start([task(begun + i) for i in range(more)], 2, settings(), counting(), into=stream)
                    assert same is stream
                    begun += more
                if len(found) < begun:
                    found.append(next(stream))
            assert sorted(group.task.index for group in found) == list(range(40))
            assert all([t.member for t in group.trajectories] == [0, 1] for group in found)
            assert next(stream, None) is None
            # A run of days keeps nothing; what came out may still be cancelled.
            assert not stream._played
            assert not stream._tasks
            stream.cancel([0, 39])
            with pytest.raises(ValueError, match=r"no tasks \[40\] to cancel: the stream has 40"):
                stream.cancel([40])


def test_a_stream_ends_with_its_driver() -> None:
    plays = driver()
    stream = plays.start([task(0)], 2, settings(), counting())
    assert next(stream).task.index == 0
    plays.close()
    with pytest.raises(RollError, match="closed"):
        plays.start([task(1)], 2, settings(), counting(), into=stream)
    assert next(stream, None) is None
