"""Which replica a request goes to: places are never more than the limits, nobody is forgotten, sessions stay."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.engines import router as router_module
from trainer.engines.router import Lane, Load, Router


def lanes(*limits: int) -> list[Lane]:
    return [Lane(limit, open=True) for limit in limits]


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 20))


class Visit:
    """A request that stays in its place until it is told to go."""

    def __init__(self, router: Router, session: str | None = None) -> None:
        self.lane: Lane | None = None
        self.go, self.over = asyncio.Event(), False
        self.task = asyncio.create_task(self._stay(router, session))

    async def _stay(self, router: Router, session: str | None) -> None:
        async with router.place(session) as lane:
            self.lane = lane
            if lane is not None:
                await self.go.wait()
        self.over = True


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_session_stays_and_a_new_one_goes_where_least_is_to_do() -> None:
    async def work() -> None:
        a, b = both = lanes(4, 4)
        router = Router(both)
        first = [Visit(router, name) for name in "uvwx"]
        await settled()
        assert (a.running, b.running) == (2, 2)
        where = {name: visit.lane for name, visit in zip("uvwx", first, strict=True)}
        for visit in first:
            visit.go.set()
        await settled()
        # "u" has two more requests, so that its lane is the fuller one; "v" still goes to its own.
        again = [Visit(router, name) for name in ("u", "u", "u", "v", "v")]
        await settled()
        assert [visit.lane for visit in again] == [where[name] for name in "uuuvv"]
        new = Visit(router, "new")
        await settled()
        assert new.lane is where["v"]

    run(work())


def test_a_session_leaves_a_full_replica_for_an_idle_one() -> None:
    async def work() -> None:
        a, b = both = lanes(1, 1)
        router = Router(both)
        one, two = Visit(router, "s"), Visit(router, "s")
        await settled()
        assert {id(one.lane), id(two.lane)} == {id(a), id(b)}
        late = [Visit(router, "s") for _ in range(3)]
        await settled()
        assert not any(visit.lane for visit in late)
        one.go.set()
        two.go.set()
        await settled()
        assert [visit.lane is not None for visit in late] == [True, True, False]

    run(work())


def test_a_session_whose_replica_is_shut_goes_to_another_and_stays_there() -> None:
    async def work() -> None:
        a, b = both = lanes(2, 2)
        router = Router(both)
        first = Visit(router, "s")
        await settled()
        assert first.lane is a
        router.shut(a)
        moved = Visit(router, "s")
        await settled()
        assert moved.lane is b
        router.open(a)
        later = Visit(router, "s")
        await settled()
        assert later.lane is b

    run(work())


def test_the_session_that_asked_least_lately_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        a, b = both = lanes(9, 9)
        router = Router(both)
        visits = []  # a loop alone does not keep its tasks
        for session in ("often", "once", "often", "often", "third"):
            visits.append(Visit(router, session))
            await settled()
        assert (a.running, b.running) == (3, 2)
        kept = Visit(router, "often")
        await settled()
        assert kept.lane is a

    monkeypatch.setattr(router_module, "_SESSIONS", 2)
    run(work())


def test_whoever_gives_up_when_a_place_is_given_passes_it_on() -> None:
    async def work() -> None:
        (a,) = one = lanes(2)
        a.limit = 1
        router = Router(one)
        first, second, third = (Visit(router) for _ in range(3))
        await settled()
        assert (first.lane, second.lane) == (a, None)
        a.limit = 2
        router.fill(a)
        second.task.cancel()  # it was given the place, and has not heard of it
        await settled()
        assert third.lane is a
        assert a.running == 2

    run(work())


def test_those_that_wait_at_a_replica_that_is_shut_go_elsewhere() -> None:
    async def work() -> None:
        a, b = both = lanes(1, 1)
        router = Router(both)
        visits = [Visit(router) for _ in range(6)]
        await settled()
        router.shut(a)
        await settled()
        for visit in visits:
            visit.go.set()
        await settled()
        assert all(visit.over for visit in visits)
        assert [visit.lane is b for visit in visits[2:]] == [True] * 4
        router.shut(b)
        waits = Visit(router)
        await settled()
        assert waits.lane is None
        assert not waits.over
        router.open(a)
        await settled()
        assert waits.lane is a

    run(work())


def test_whoever_is_dismissed_gets_no_place() -> None:
    async def work() -> None:
        (a,) = one = lanes(1)
        router = Router(one)
        visits = [Visit(router) for _ in range(3)]
        await settled()
        router.dismiss()
        await settled()
        assert [visit.over for visit in visits] == [False, True, True]
        assert a.running == 1
        visits[0].go.set()
        await settled()
        assert a.to_do == 0

    run(work())


def test_whoever_gave_up_waiting_counts_no_more() -> None:
    async def work() -> None:
        a, b = both = lanes(1, 1)
        router = Router(both)
        first = [Visit(router), Visit(router)]
        await settled()
        late = [Visit(router) for _ in range(6)]
        await settled()
        assert (a.to_do, b.to_do) == (4, 4)
        for visit in late[1:]:
            visit.task.cancel()
        await settled()
        assert (a.to_do, b.to_do) == (2, 1)  # the first of them still waits at a
        router.shut(a)
        router.shut(b)
        late[0].task.cancel()
        for visit in first:
            visit.go.set()
        await settled()
        router.open(a)
        router.open(b)
        assert (a.to_do, b.to_do) == (0, 0)

    run(work())


@pytest.mark.parametrize(
    ("loads", "limits"),
    [
        ([Load(0.5, 0, 0)] * 3, [64, 64, 64]),  # never more than the most
        ([Load(0.99, 5, 0), Load(0.99, 0, 0), Load(0.5, 0, 0), Load(0.5, 0, 0)], [51, 51, 57, 64]),
        ([Load(0.9, 0, 3), Load(0.9, 0, 3), Load(0.9, 0, 4)], [51, 51, 40]),  # preempted anew, not once more the same
        ([Load(1.0, 1, 0)] * 40, [51, 40, 32, 25]),
    ],
)
def test_the_limit_follows_the_memory(loads: Sequence[Load], limits: Sequence[int]) -> None:
    lane = Lane(64)
    found = []
    for load in loads:
        lane.running = lane.limit
        lane.follow(load)
        found.append(lane.limit)
    assert found[: len(limits)] == limits
    assert min(found) >= 1


def test_requests_that_an_update_sent_back_say_nothing_of_the_memory() -> None:
    lane = Lane(64, running=64, sent_back=60)
    limits = []
    for preempted in (0, 50, 50, 51):  # the last for want of memory
        lane.follow(Load(0.9, 0, preempted))
        limits.append(lane.limit)
    assert limits == [64, 64, 64, 51]


def test_the_limit_does_not_grow_where_it_is_not_reached() -> None:
    lane = Lane(64, 10, running=5)
    lane.follow(Load(0.1, 0, 0))
    assert lane.limit == 10


ACTS = st.lists(
    st.tuples(st.sampled_from(("ask", "ask", "ask", "go", "cancel", "shut", "open", "limit")), st.integers(0, 7)),
    max_size=80,
)


@given(acts=ACTS)
def test_whatever_happens_limits_hold_and_nobody_is_forgotten(acts: list[tuple[str, int]]) -> None:
    async def work() -> None:
        several = lanes(2, 1, 3)
        router = Router(several)
        visits: list[Visit] = []
        for act, number in acts:
            lane = several[number % 3]
            here = [visit for visit in visits if not visit.task.done()]
            if act == "ask":
                visits.append(Visit(router, str(number) if number else None))
            elif act == "go" and here:
                here[number % len(here)].go.set()
            elif act == "cancel" and here:
                here[number % len(here)].task.cancel()
            elif act == "shut":
                router.shut(lane)
            elif act == "open":
                router.open(lane)
            elif act == "limit":
                lane.limit = min(lane.most, 1 + number % 3)
                router.fill(lane)
            if number % 2:
                await settled()
            assert all(each.running <= each.most for each in several)
        await settled()
        open_lanes = [each for each in several if each.open]
        waiting = [visit for visit in visits if not visit.task.done() and visit.lane is None]
        assert not waiting or all(each.running >= each.limit for each in open_lanes)
        for lane in several:
            router.open(lane)
        for visit in visits:
            visit.go.set()
        await asyncio.gather(*(visit.task for visit in visits), return_exceptions=True)
        assert all(visit.over or visit.task.cancelled() for visit in visits)
        assert [lane.to_do for lane in several] == [0, 0, 0]

    run(work())
