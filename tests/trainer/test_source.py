"""The source of groups and its ledger: after any kill no task is skipped or trained on twice (promise 7)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loop_runs import configured

from roll_envs.types import Group, Outcome, OutcomeKind, Task, Trajectory
from trainer.rollout.mix import Mix
from trainer.rollout.scheduler import GroupSource
from trainer.rollout.source import Ledger, draw_tasks


def reloaded(ledger: Ledger) -> Ledger:
    """What a process finds that was killed after this ledger was saved."""
    return Ledger.load(ledger.cursor, json.loads(json.dumps(ledger.save())))


@pytest.mark.parametrize("when", ["before", "after"])
def test_ctrl_c_while_tasks_are_drawn_loses_none(when: str) -> None:
    class Interrupted(set[int]):
        def update(self, *others: Any) -> None:
            if when == "after":
                super().update(*others)
            raise KeyboardInterrupt

    ledger = Ledger(cursor=2, in_flight=Interrupted({1}))
    with pytest.raises(KeyboardInterrupt):
        ledger.draw(3)
    assert reloaded(ledger).draw(4) == [1, 2, 3, 4]


def test_a_ledger_worked_by_hand() -> None:
    ledger = Ledger()
    assert ledger.draw(3) == [0, 1, 2]
    assert ledger.draw(2) == [3, 4]
    ledger.settle([1, 4])
    assert (ledger.cursor, ledger.save()) == (5, {"in_flight": [0, 2, 3], "episodes": {}})
    again = reloaded(ledger)
    assert again.draw(2) == [0, 2]
    assert again.save()["in_flight"] == [0, 2, 3]
    assert again.draw(3) == [3, 5, 6]
    assert again.cursor == 7
    with pytest.raises(ValueError, match="task 1 is not in flight"):
        again.settle([1])
    with pytest.raises(ValueError, match=r"\[5\] cannot be in flight when only 5 were drawn"):
        Ledger.load(5, {"in_flight": [5]})


@given(st.lists(st.tuples(st.sampled_from(["draw", "train", "save", "kill"]), st.integers(0, 5)), max_size=60))
def test_no_task_is_skipped_or_trained_on_twice(events: list[tuple[str, int]]) -> None:
    """Groups finish in any order, and the process is killed at any point: what counts is what the last save knows."""
    ledger, trained = Ledger(), list[int]()
    playing: list[int] = []
    saved, saved_trained = reloaded(ledger), list[int]()
    for event, number in events:
        if event == "draw":
            playing += ledger.draw(number)
        elif event == "train" and playing:
            index = playing.pop(number % len(playing))
            ledger.settle([index])
            trained.append(index)
        elif event == "save":
            saved, saved_trained = reloaded(ledger), list(trained)
        elif event == "kill":
            ledger, trained, playing = reloaded(saved), list(saved_trained), []
    ledger, trained = reloaded(ledger), list(trained)
    ledger.settle(rest := ledger.draw(len(ledger.in_flight)))
    assert sorted([*trained, *rest]) == list(range(ledger.cursor))


class Backwards:
    """A session whose stream hands out the groups in reverse order; tasks of odd index are lost to the filter."""

    def __init__(self, config: Any) -> None:
        self.config, self.mix = config, Mix(config)
        self.asked: list[list[int]] = []

    def training_tasks(self, indices: Sequence[int]) -> list[Task]:
        return draw_tasks(self.config.env, seed=self.config.seed, indices=indices)

    def start(self, tasks: Sequence[Task], group_size: int, into: Any = None) -> list[Group]:
        self.asked.append([task.index for task in tasks])
        return [ended_group(task, group_size) for task in reversed(tasks)]


def ended_group(task: Task, size: int, kind: OutcomeKind = "completed") -> Group:
    """A group whose members have different returns if the index of its task is even."""

    def episode(member: int) -> Trajectory:
        turn = SimpleNamespace(reward=float(member if task.index % 2 == 0 else 1), info={})
        ended = Outcome(kind=kind)
        return Trajectory(task=task, member=member, turns=cast(Any, (turn,)), outcome=ended)

    return Group(task=task, trajectories=tuple(episode(member) for member in range(size)))


def test_a_step_is_the_stream_drained_in_order_and_filled_up(tmp_path: Path) -> None:
    config = configured(tmp_path, filter={"zero_variance": True, "refill_rounds": 1})
    session = Backwards(config)
    ledger = Ledger()
    found = GroupSource(cast(Any, session), ledger, lambda: None).next_step(0)
    assert session.asked == [[0, 1, 2], [3]]
    assert found.indices == (0, 1, 2, 3)
    assert [group.task.index for group in found.kept] == [0, 2]
    assert found.metrics["filter/rounds"] == 2.0
    assert ledger.save()["in_flight"] == [0, 1, 2, 3]
    assert ledger.episodes == {"completed": 12}
    # Killed before the update: the same tasks come again, and in the same rounds.
    other = Backwards(config)
    again = GroupSource(cast(Any, other), reloaded(ledger), lambda: None).next_step(0)
    assert (other.asked, again.indices) == (session.asked, found.indices)
    ledger.settle(found.indices)
    GroupSource(cast(Any, session), reloaded(ledger), lambda: None).next_step(1)
    assert session.asked[2:] == [[4, 5, 6], [7]]
