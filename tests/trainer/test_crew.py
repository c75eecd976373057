"""Calls of ranks, without processes: each rank is a thread, reached by queues as an actor is."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pytest
import torch

from roll_envs.errors import CheckpointError, ConfigError, RollError
from trainer.cluster.crew import Crew, LocalLinks, RankError
from trainer.cluster.frames import Call, Stream, packed, unpacked
from trainer.cluster.rank import serve


class QueueLinks:
    """Ranks that are threads of this process."""

    def __init__(self, ranks: Sequence[object]) -> None:
        self.count = len(ranks)
        self.ended_all, self._lost = False, set[int]()
        self._sent: list[SimpleQueue[bytes]] = [SimpleQueue() for _ in ranks]
        self._said: SimpleQueue[tuple[int, bytes | None]] = SimpleQueue()
        for number, rank in enumerate(ranks):
            say: Callable[[bytes], None] = partial(self._say, number)
            threading.Thread(target=serve, args=(rank, number, self._sent[number].get, say), daemon=True).start()

    def _say(self, rank: int, frame: bytes) -> None:
        self._said.put((rank, frame))

    def lose(self, rank: int) -> None:
        self._lost.add(rank)
        self._said.put((rank, None))

    def name(self, rank: int) -> str:
        return f"thread {rank}"

    def send(self, rank: int, frame: bytes) -> None:
        self._sent[rank].put(frame)

    def receive(self, timeout_s: float) -> tuple[int, bytes | None] | None:
        try:
            return self._said.get(timeout=timeout_s)
        except Empty:
            return None

    def gone(self, rank: int) -> bool:
        return rank in self._lost

    def ended(self, rank: int) -> str:
        return "was killed by SIGKILL"

    def end(self) -> None:
        self.ended_all = True


class Clerk:
    """What a rank does in these tests."""

    def __init__(self, number: int) -> None:
        self.number, self.begun = number, threading.Event()

    def add(self, value: Any, other: Any) -> Any:
        return value + other + self.number

    def count(self, most: int) -> Iterator[tuple[str, torch.Tensor]]:
        for i in range(most):
            yield f"w{i}", torch.full((2, 2), 10.0 * i + self.number)

    def total(self, name: str, items: Iterator[tuple[str, torch.Tensor]]) -> tuple[str, float]:
        return name, sum(float(tensor.sum()) for _, tensor in items) + self.number

    def refuse(self, ranks: Sequence[int], error: type[RollError] = CheckpointError) -> None:
        if self.number in ranks:
            raise error("it does not fit")

    def fail(self, ranks: Sequence[int]) -> None:
        if self.number in ranks:
            raise ZeroDivisionError("one over zero")
        time.sleep(3600)

    def hang(self, ranks: Sequence[int]) -> str:
        self.begun.set()
        if self.number in ranks:
            time.sleep(3600)
        return "done"


@pytest.fixture
def links() -> QueueLinks:
    return QueueLinks([Clerk(0), Clerk(1)])


def test_calls_go_to_all_ranks(links: QueueLinks) -> None:
    crew = Crew(links, 10)
    assert crew.call("add", 1, 10) == [11, 12]
    assert crew.call_each("add", [(1, 2), (3, 4)]) == [3, 8]
    assert [tensor.tolist() for tensor in crew.call("add", torch.ones(2), 1)] == [[2, 2], [3, 3]]


def test_a_stream_out_is_that_of_rank_0_one_at_a_time(links: QueueLinks) -> None:
    crew = Crew(links, 10)
    assert [(n, float(t[0, 0])) for n, t in crew.stream("count", 3)] == [("w0", 0.0), ("w1", 10.0), ("w2", 20.0)]
    left = crew.stream("count", 1000)
    next(left)
    del left
    assert crew.call("add", 1, 1) == [2, 3], "what is left of a stream that was not read to its end is no answer"


def test_a_stream_in_goes_to_all_and_is_drawn_one_at_a_time(links: QueueLinks) -> None:
    crew, drawn = Crew(links, 10), 0

    def source() -> Iterator[tuple[str, torch.Tensor]]:
        nonlocal drawn
        for i in range(4):
            drawn += 1
            yield "w", torch.full((3,), float(i))

    assert crew.call_each("total", [("a", Stream()), ("b", Stream())], source()) == [("a", 18.0), ("b", 19.0)]
    assert drawn == 4

    def broken() -> Iterator[tuple[str, torch.Tensor]]:
        yield "w", torch.ones(3)
        raise OSError("the file is gone")

    with pytest.raises(OSError, match="the file is gone"):
        crew.call_each("total", [("a", Stream())] * 2, broken())
    assert crew.call("add", 1, 1) == [2, 3], "ranks that wait for the next item take another call instead"


def test_what_all_ranks_refuse_is_the_error_itself_and_they_stay(links: QueueLinks) -> None:
    crew = Crew(links, 10)
    with pytest.raises(CheckpointError, match=r"^it does not fit$"):
        crew.call("refuse", [0, 1])
    assert crew.call("add", 1, 1) == [2, 3]
    with pytest.raises(RankError, match=r"it does not fit\n\nrank 1 of 2 \(thread 1\) of the learner failed"):
        crew.call("refuse", [1])
    assert links.ended_all


def test_a_mistake_that_one_rank_alone_finds_is_the_error_itself_and_ends_all(links: QueueLinks) -> None:
    """A node with other releases, say: nothing that a restart would mend, and no traceback to read."""
    crew = Crew(links, 10)
    with pytest.raises(ConfigError, match=r"^it does not fit$"):
        crew.call("refuse", [1], ConfigError)
    assert links.ended_all
    with pytest.raises(RankError, match="it does not fit"):
        crew.call("add", 1, 1)


def test_a_rank_that_raises_is_named_behind_its_traceback(links: QueueLinks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one waits for it, as in a collective."""
    monkeypatch.setattr("trainer.cluster.crew._OTHERS_S", 0.2)
    crew = Crew(links, 60)
    with pytest.raises(RankError) as caught:
        crew.call("fail", [1])
    text = str(caught.value)
    assert text.startswith("Traceback")
    assert "in fail\n" in text
    assert text.index("ZeroDivisionError: one over zero") < text.index("rank 1 of 2 (thread 1) of the learner failed")
    assert links.ended_all
    with pytest.raises(RankError, match="one over zero"):
        crew.call("add", 1, 1)


def test_a_rank_that_dies_is_blamed_even_where_another_one_notices_first(links: QueueLinks) -> None:
    crew, found = Crew(links, 60), []

    def call() -> None:
        with pytest.raises(RankError) as caught:
            crew.call("fail", [0])
        found.append(str(caught.value))

    waiting = threading.Thread(target=call)
    waiting.start()
    time.sleep(0.2)  # rank 0 has failed by now: its connection to rank 1 was closed
    links.lose(1)
    waiting.join(20)
    assert found == ["rank 1 of 2 (thread 1) of the learner was killed by SIGKILL in 'fail'; its output says why"]


def test_a_rank_that_is_late_is_named_with_where_it_is(links: QueueLinks) -> None:
    crew, began = Crew(links, 0.3), time.monotonic()
    with pytest.raises(RankError) as caught:
        crew.call("hang", [1])
    assert time.monotonic() - began < 5
    text = str(caught.value)
    assert text.startswith("rank 1 of 2 (thread 1) is at:")
    assert "time.sleep(3600)" in text
    assert "gave up waiting for rank 1 of 2 (thread 1) of the learner in 'hang' after 0.3 s" in text
    assert "rank 0" not in text
    assert links.ended_all


def environment_of(pid: int) -> list[bytes]:
    """Its variables; for a moment after its start the system shows none."""
    until = time.monotonic() + 10
    while not (found := Path(f"/proc/{pid}/environ").read_bytes()) and time.monotonic() < until:
        time.sleep(0.01)
    return found.split(b"\0")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_each_process_is_given_its_own_environment() -> None:
    links = LocalLinks(2, [{"CUDA_VISIBLE_DEVICES": "6"}, {"CUDA_VISIBLE_DEVICES": "4"}], 60)
    try:
        pids = [int(links.name(rank).removeprefix("process ")) for rank in range(2)]
        told = [environment_of(pid) for pid in pids]
    finally:
        links.end()
    assert [[x for x in each if x.startswith(b"CUDA_VISIBLE_DEVICES=")] for each in told] == [
        [b"CUDA_VISIBLE_DEVICES=6"], [b"CUDA_VISIBLE_DEVICES=4"],
    ]  # fmt: skip


def test_tensors_cross_as_their_own_numbers() -> None:
    whole = torch.arange(1000, dtype=torch.bfloat16)
    sent = {
        "view": whole[3:5],
        "turned": torch.arange(6).reshape(2, 3).T, "scalar": torch.tensor(2.5), "none": torch.empty(0, 4),
        "flag": torch.tensor([True, False]), "parameter": torch.nn.Parameter(torch.ones(2)),
    }  # fmt: skip
    frame = packed(Call(1, "m", (sent,)))
    assert len(frame) < 1500
    (found,) = unpacked(frame).arguments
    for name, tensor in sent.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name], tensor), name
        found[name].add_(1) if tensor.dtype != torch.bool else None
    assert whole[3] == 3
