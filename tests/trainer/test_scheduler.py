"""The scheduler: no group waits beyond the staleness that is allowed, none is lost, none counts twice."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loop_runs import configured
from test_source import ended_group, reloaded

from roll_envs.errors import ConfigError
from roll_envs.types import Group, Task
from trainer.engines import Capabilities
from trainer.rollout.mix import Mix
from trainer.rollout.scheduler import GroupSource, Window, check_mode
from trainer.rollout.source import Ledger, draw_tasks


def test_a_window_worked_by_hand() -> None:
    """The example of Window.take: two of three groups of the same step must not both wait for step 2."""
    window = Window(batch=1, max_staleness=2)
    assert window.room == 3
    for index in range(3):
        window.begin(index, 0)
    assert (window.room, window.take(0)) == (0, None)
    window.end(2)
    assert window.take(0) == [2]
    window.begin(3, 1)
    window.end(3)
    assert window.take(1) is None  # with 3, both 0 and 1 would be left for step 2
    window.end(1)
    assert window.take(1) == [1]
    window.begin(4, 2)
    window.end(4)
    assert window.take(2) is None
    window.end(0)
    assert window.take(2) == [0]
    assert (len(window), window.running, window.room) == (2, 0, 1)


@given(st.integers(1, 4), st.integers(1, 4), st.randoms(use_true_random=False), st.floats(0, 0.5))
def test_no_group_waits_too_long_and_every_one_is_taken_once(
    batch: int, staleness: int, rng: random.Random, drops: float
) -> None:
    """Groups end in any order; a step that waits always has an open group to wait for."""
    window, steps, index = Window(batch, staleness), 12, 0
    begun: dict[int, int] = {}
    running: list[int] = []
    taken: list[int] = []
    dropped: list[int] = []
    for step in range(steps):
        while True:
            for _ in range(min(window.room, (steps - step) * batch - len(window))):
                window.begin(index, step)
                begun[index] = step
                running.append(index)
                index += 1
            assert len(taken) + len(window) <= (staleness + step + 1) * batch  # the formula of the paper
            if rng.random() < 0.7 or not running:
                found = window.take(step)
                if found is not None:
                    break
            assert running, "nobody runs, and the step waits"
            # Late ones are passed over most of the time, as long episodes are.
            ended = running.pop(rng.randrange(len(running)) if rng.random() < 0.2 else -1)
            if rng.random() < drops:
                window.drop(ended)
                dropped.append(ended)
            else:
                window.end(ended)
        assert len(found) == batch
        assert all(step - begun[one] <= staleness for one in found)
        taken += found
    assert len(window) == 0
    assert sorted([*taken, *dropped]) == list(range(index))
    assert len(set(taken)) == len(taken) == steps * batch


class Plays:
    """A session whose groups end in the order of ``lengths``: the length of a task's episodes, by its index."""

    def __init__(self, config: Any, lengths: Any) -> None:
        self.config, self.lengths, self.mix = config, lengths, Mix(config)
        self.asked: list[list[int]] = []
        self.clock, self.versions, self.version = 0.0, dict[int, int](), 0
        self.failing: set[int] = set()
        """Tasks whose episodes fail."""

    def training_tasks(self, indices: Sequence[int]) -> list[Task]:
        return draw_tasks(self.config.env, seed=self.config.seed, indices=indices)

    def collect_greedy(self, tasks: Sequence[Task]) -> list[Any]:
        return [ended_group(task, 1).trajectories[0] for task in tasks]

    def start(self, tasks: Sequence[Task], group_size: int, into: Any = None) -> Any:
        self.asked.append([task.index for task in tasks])
        for task in tasks:
            self.versions[task.index] = self.version
        stream = into or _Stream(self)
        stream.add(tasks)
        return stream


class _Stream:
    def __init__(self, session: Plays) -> None:
        self.session = session
        self.tasks: list[Task] = []
        self.waiting: list[tuple[float, int]] = []
        self.cancelled: set[int] = set()

    def add(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            self.waiting.append((self.session.clock + self.session.lengths(task.index), len(self.tasks)))
            self.tasks.append(task)

    def cancel(self, numbers: Sequence[int]) -> None:
        self.cancelled.update(numbers)

    def __iter__(self) -> Iterator[Group]:
        while self.waiting:
            yield next(self)

    def __next__(self) -> Group:
        self.waiting.sort()
        when, number = self.waiting.pop(0)
        cut = number in self.cancelled
        self.session.clock = self.session.clock if cut else max(self.session.clock, when)
        failed = self.tasks[number].index in self.session.failing
        return ended_group(self.tasks[number], 3, kind="cancelled" if cut else "failed" if failed else "completed")


def _long_tailed(index: int) -> float:
    return float(random.Random(index).lognormvariate(0, 1))


def test_redundancy_learns_from_every_task_in_the_end(tmp_path: Path) -> None:
    """The lengths that are learnt from are those that were drawn: late tasks wait for rounds of their own, and only the
    third kind of round waits for all."""
    config = configured(tmp_path, rollout={"groups_per_step": 8, "redundancy": 3})
    session, ledger = Plays(config, _long_tailed), Ledger()
    source = GroupSource(cast(Any, session), ledger, lambda: None)
    learnt: list[int] = []
    for step in range(220):
        found = source.next_step(step)
        assert len(found.played) == 8
        assert all(t.scored for group in found.played for t in group.trajectories)
        assert list(found.indices) == sorted(found.indices)
        ledger.settle(found.indices)
        learnt += found.indices
    assert len(set(learnt)) == len(learnt) == 8 * 220
    # At most one round's worth of each kind still waits; all else that was drawn was learnt from.
    assert len(ledger.in_flight) < (8 + 3) + (8 + 3) + 8
    assert {*learnt, *ledger.in_flight} == set(range(ledger.cursor))
    turns = Counter(index for asked in session.asked for index in asked)  # how often a task was begun
    assert ledger.episodes["completed"] == 3 * len(learnt)
    assert ledger.episodes["cancelled"] == 3 * sum(len(asked) - 8 for asked in session.asked)
    assert max(turns.values()) == 4
    waits_for_all = [asked for asked in session.asked if len(asked) == 8]
    assert len(waits_for_all) == pytest.approx(220 * (3 / 11) ** 3, abs=2)
    assert all(turns[index] == 4 for asked in waits_for_all for index in asked)
    lengths = [[_long_tailed(index) for index in learnt if turns[index] == begun] for begun in (1, 2, 3, 4)]
    means = [sum(found) / len(found) for found in lengths]
    assert means == sorted(means)
    shares = [len(found) / len(learnt) for found in lengths]
    assert shares == pytest.approx([8 / 11, 3 / 11 * 8 / 11, (3 / 11) ** 2 * 8 / 11, (3 / 11) ** 3], abs=0.03)


def test_every_group_of_a_redundant_round_is_accounted_for_once(tmp_path: Path) -> None:
    config = configured(tmp_path, rollout={"groups_per_step": 4, "redundancy": 2}, advantage={"name": "remax"})
    session, ledger = Plays(config, _long_tailed), Ledger()
    source = GroupSource(cast(Any, session), ledger, lambda: None)
    for step in range(12):
        asked = len(session.asked)
        found = source.next_step(step)
        ledger.settle(found.indices)
        ended = [group.task.index for group in (*found.played, *found.cancelled)]
        assert sorted(ended) == sorted(index for indices in session.asked[asked:] for index in indices)
        assert not {group.task.index for group in found.cancelled} & set(found.indices)
    assert ledger.episodes["greedy_completed"] == 12 * 4
    assert ledger.episodes["cancelled"] == 3 * sum(len(asked) - 4 for asked in session.asked) > 0
    assert ledger.episodes["completed"] == 3 * 12 * 4


def test_groups_that_fail_at_once_take_no_place_of_slow_ones(tmp_path: Path) -> None:
    """A fifth of the tasks fail immediately, fewer than are begun in addition, most of the time."""
    config = configured(tmp_path, rollout={"groups_per_step": 8, "redundancy": 4})
    failing = {index for index in range(2000) if random.Random(index + 7).random() < 0.2}
    session, ledger = Plays(config, lambda index: 0.0 if index in failing else _long_tailed(index)), Ledger()
    session.failing = failing
    source = GroupSource(cast(Any, session), ledger, lambda: None)
    for step in range(60):
        asked = len(session.asked)
        found = source.next_step(step)
        ledger.settle(found.indices)
        whole = [index for index in found.indices if index not in failing]
        (indices,) = session.asked[asked:]
        assert len(whole) == min(8, sum(index not in failing for index in indices))
        assert failing & set(indices) <= set(found.indices), "they are settled, and are not played again"
    # The share of the tasks that end in time is that of a run in which none fails and 8 of about 10 are needed.
    turns = Counter(index for asked in session.asked for index in asked)
    late = {index for index, begun in turns.items() if begun > 1}
    assert not failing & late
    assert 0.1 < len(late) / len(turns.keys() - failing) < 0.25


def test_tasks_that_were_late_come_first_after_a_kill(tmp_path: Path) -> None:
    config = configured(tmp_path, rollout={"groups_per_step": 2, "redundancy": 1})
    session, ledger = Plays(config, lambda index: 9.0 if index == 1 else 1.0), Ledger()
    found = GroupSource(cast(Any, session), ledger, lambda: None).next_step(0)
    ledger.settle(found.indices)
    assert (found.indices, ledger.in_flight) == ((0, 2), {1})
    GroupSource(cast(Any, session), reloaded(ledger), lambda: None).next_step(1)
    assert session.asked == [[0, 1, 2], [1, 3, 4]]


@pytest.mark.parametrize(("mode", "staleness"), [("overlap", 1), ("async", 1), ("async", 3)])
def test_steps_overlap_and_no_group_is_older_than_allowed(tmp_path: Path, mode: str, staleness: int) -> None:
    config = configured(tmp_path, steps=30, rollout={"groups_per_step": 4, "mode": mode, "max_staleness": staleness})
    session, ledger = Plays(config, _long_tailed), Ledger()
    step, quiet = 0, list[bool]()

    def update() -> None:
        session.version = step
        quiet.append(source._window.running == 0)

    source = GroupSource(cast(Any, session), ledger, update)
    learnt: list[int] = []
    oldest: list[int] = []
    for step in range(30):
        found = source.next_step(step)
        oldest.append(max(step - session.versions[index] for index in found.indices))
        ledger.settle(found.indices)
        learnt += found.indices
        open_now = len(source._window)
        assert open_now == min(4 * staleness, 4 * (29 - step))  # the engine has work while the step learns
    assert sorted(learnt) == list(range(120))
    assert max(oldest) == staleness
    assert all(quiet) is (mode == "overlap")
    assert ledger.in_flight == set()


def test_a_filter_in_mid_flight_makes_room_for_other_tasks(tmp_path: Path) -> None:
    """Groups of odd tasks have equal returns; each is replaced, within the rounds that are allowed."""
    for rounds, kept in ((3, 2), (1, 2), (0, 1)):
        config = configured(
            tmp_path,
            steps=6,
            filter={"zero_variance": True, "refill_rounds": rounds},
            rollout={"groups_per_step": 2, "mode": "async"},
        )
        session, ledger = Plays(config, lambda index: 1.0 + index / 100), Ledger()
        source = GroupSource(cast(Any, session), ledger, lambda: None)
        played, noted = list[int](), list[float | None]()
        for step in range(6):
            found = source.next_step(step)
            assert len(found.kept) == kept
            played.append(len(found.played))
            noted.append(found.metrics.get("filter/rounds"))
            ledger.settle(found.indices)
        # Two groups are a round; without refills there are no rounds to count.
        assert noted == [float(-(-count // 2)) if rounds else None for count in played]
        assert max(played) > 2 or not rounds
        assert ledger.in_flight == set()
        assert sum(ledger.episodes.values()) == 3 * ledger.cursor


def test_groups_that_a_step_could_not_refill_are_refilled_by_the_next(tmp_path: Path) -> None:
    """All running groups end before an update, in mode overlap, and half of them fail the filter: more than one step
    may drop. The others must not fill the steps after it."""
    config = configured(
        tmp_path,
        steps=8,
        filter={"zero_variance": True, "refill_rounds": 1},
        rollout={"groups_per_step": 2, "mode": "overlap", "max_staleness": 3},
    )
    session, ledger = Plays(config, lambda index: 1.0 + index / 100), Ledger()
    source = GroupSource(cast(Any, session), ledger, lambda: None)
    kept = []
    for step in range(8):
        found = source.next_step(step)
        assert len(found.played) - 2 <= 2, "no more are dropped than a step may refill"
        ledger.settle(found.indices)
        kept.append(len(found.kept))
    assert kept == [2] * 8
    assert ledger.in_flight == set()


def test_staleness_is_for_steps_that_do_not(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rollout.max_staleness is 3, but in rollout.mode sync .*leave .* out"):
        configured(tmp_path, rollout={"max_staleness": 3})
    configured(tmp_path, rollout={"mode": "sync", "max_staleness": 1})  # as every config.yaml says


def test_redundancy_is_for_steps_that_wait(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rollout.redundancy 2 is for rollout.mode sync"):
        configured(tmp_path, rollout={"mode": "async", "redundancy": 2})


def test_an_engine_that_cannot_do_what_a_mode_needs_is_told(tmp_path: Path) -> None:
    def session(mode: str, **can: bool) -> Any:
        config = configured(tmp_path, rollout={"mode": mode})
        return SimpleNamespace(config=config, engine=SimpleNamespace(capabilities=Capabilities(**can)))

    check_mode(session("sync", sleep=True))
    check_mode(session("overlap"))
    check_mode(session("async", updates_in_flight=True))
    with pytest.raises(ConfigError, match=r"'hf' shares its device with the learner.*rollout.mode: sync"):
        check_mode(session("overlap", sleep=True))
    with pytest.raises(ConfigError, match=r"'async': engine 'hf' cannot take weights while it answers"):
        check_mode(session("async"))
