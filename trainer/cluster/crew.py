"""The driver's side of the ranks: calls all of them, waits for all of them, and ends all of them when one is lost.

A :class:`Crew` knows nothing of learners, and nothing of how ranks were started: processes of this machine
(:class:`LocalLinks`, here) or actors of a Ray cluster (:mod:`trainer.cluster.ray_ranks`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from roll_envs.errors import ConfigError, RollError
from trainer.cluster.frames import Answer, Call, Failure, Item, Where, packed, unpacked

_OTHERS_S = 10.0
"""When one rank has failed: longest wait until another says that it has failed likewise, or is seen to have ended."""
_PLACE_S = 2.0
"""Longest wait until a rank says where it is, or has ended once its pipe is closed."""
_MAIN = "import sys; sys.path[:] = sys.argv[4:]; from trainer.cluster.rank import main; main()"


class RankError(RollError):
    """A rank raised, died or did not answer; all ranks were ended. A run goes on from its last checkpoint."""


class Links(Protocol):
    """Rank processes, and a pipe to each."""

    count: int

    def name(self, rank: int) -> str:
        """Which process it is, for people."""
        ...

    def send(self, rank: int, frame: bytes) -> None:
        """Raises OSError when it is gone."""
        ...

    def receive(self, timeout_s: float) -> tuple[int, bytes | None] | None:
        """A rank and a frame that it sent, None for one that is gone; None when none came in time."""
        ...

    def gone(self, rank: int) -> bool:
        """Whether it has ended; may be asked in any thread."""
        ...

    def ended(self, rank: int) -> str:
        """How one that is gone ended, for people."""
        ...

    def end(self) -> None:
        """End all, whatever they do."""
        ...


class Crew:
    """All ranks; one call at a time. No method waits longer than ``timeout_s`` for any rank."""

    def __init__(self, links: Links, timeout_s: float, key: str = "placement.learner.timeout_s") -> None:
        """``key`` is what sets ``timeout_s``, for people."""
        self._links = links
        self.count = links.count
        self._number = 0
        self._lost: RankError | None = None
        self.set_timeout(timeout_s, key)

    def set_timeout(self, timeout_s: float, key: str = "placement.learner.timeout_s") -> None:
        """From now on no method waits longer than this."""
        self._timeout_s, self._key = timeout_s, key

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """What ``method`` of every rank returns, called with the same arguments."""
        return self.call_each(method, [arguments] * self.count)

    def call_each(self, method: str, arguments: Sequence[tuple[Any, ...]], source: Iterable[Any] = ()) -> list[Any]:
        """What ``method`` of every rank returns, called with its own arguments; those that are a
        :class:`~trainer.cluster.frames.Stream` iterate over ``source``, an item at a time."""
        exchange = self._exchange(method, arguments, iter(source))
        while True:
            try:
                next(exchange)
            except StopIteration as stop:
                results: list[Any] = stop.value
                return results

    def stream(self, method: str, *arguments: Any) -> Iterator[Any]:
        """The items that ``method`` of rank 0 gives, one at a time; the other ranks run it along."""
        yield from self._exchange(method, [arguments] * self.count, iter(()))

    def check(self, method: str) -> None:
        """Raise :class:`RankError` where a rank has ended, while it does what ``method`` has begun. May be called in
        any thread, beside a call."""
        if self._lost is not None:
            raise self._lost
        for rank in range(self.count):
            if self._links.gone(rank):
                raise RankError(self._gone(rank, method))

    def end(self) -> None:
        """End all ranks."""
        self._lost = self._lost or RankError("the ranks of the learner were ended")
        self._links.end()

    # -- one call ----------------------------------------------------------------------------------------------------

    def _exchange(
        self, method: str, arguments: Sequence[tuple[Any, ...]], source: Iterator[Any]
    ) -> Generator[Any, None, list[Any]]:
        if self._lost is not None:
            raise self._lost
        self._number += 1
        number, asking = self._number, 0
        results: dict[int, Any] = {}
        errors: dict[int, Failure] = {}
        frame: bytes | None = None
        for rank, own in enumerate(arguments):
            if frame is None or own is not arguments[rank - 1]:  # the same ones are packed once
                frame = packed(Call(number, method, own))
            self._send(rank, frame, method)
        del frame
        while len(results) + len(errors) < self.count:
            found = self._receive(number, _OTHERS_S if errors else self._timeout_s)
            if found is None and errors:
                break
            if found is None:
                raise self._broken(self._late(method, set(range(self.count)) - set(results)))
            rank, answer = found
            if answer is None:
                raise self._broken(self._gone(rank, method))
            if answer.kind == "done":
                results[rank] = answer.value
            elif answer.kind == "error":
                errors[rank] = answer.value
            elif answer.kind == "item":
                yield answer.value
            elif answer.kind == "more":
                asking += 1
                if asking % self.count == 0:  # one item at a time is on its way
                    item = packed(Item(next(source, None)))
                    assert self._number == number, "what ranks are given cannot be a stream of theirs"
                    for each in range(self.count):
                        self._send(each, item, method)
            del answer, found
        if errors:
            raise self._failed(method, errors)
        return [results[rank] for rank in range(self.count)]

    def _send(self, rank: int, frame: bytes, method: str) -> None:
        try:
            self._links.send(rank, frame)
        except OSError:
            raise self._broken(self._gone(rank, method)) from None

    def _receive(self, number: int, timeout_s: float) -> tuple[int, Answer | None] | None:
        """The next answer to call ``number`` and the rank that gives it; what is left of earlier calls is dropped."""
        until = time.monotonic() + timeout_s
        while True:
            found = self._links.receive(max(0.0, until - time.monotonic()))
            if found is None:
                return None
            rank, frame = found
            if frame is None:
                return rank, None
            answer: Answer = unpacked(frame)
            if answer.number == number:
                return rank, answer

    # -- failures ----------------------------------------------------------------------------------------------------

    def _words(self, rank: int) -> str:
        return f"rank {rank} of {self.count} ({self._links.name(rank)})"

    def _gone(self, rank: int, method: str) -> str:
        return f"{self._words(rank)} of the learner {self._links.ended(rank)} in {method!r}; its output says why"

    def _failed(self, method: str, errors: dict[int, Failure]) -> RollError:
        rank, first = next(iter(errors.items()))
        if first.error is not None and len(errors) == self.count and isinstance(first.error, RollError):
            return first.error  # all have refused alike, and are as before
        if isinstance(first.error, ConfigError):  # what one node lacks, say
            self._broken(str(first.error))
            return first.error
        others = f"\n(rank {', '.join(map(str, list(errors)[1:]))} failed after it)" if len(errors) > 1 else ""
        return self._broken(
            f"{first.traceback.rstrip()}\n\n{self._words(rank)} of the learner failed in {method!r}; its traceback is "
            f"above{others}"
        )

    def _late(self, method: str, waiting: set[int]) -> str:
        """Where the ranks that have not answered are. Those that wait for others in a collective are not to blame."""
        self._number += 1
        question, places = packed(Where(self._number)), dict[int, str]()
        for rank in waiting:
            with contextlib.suppress(OSError):
                self._links.send(rank, question)
        while len(places) < len(waiting):
            found = self._receive(self._number, _PLACE_S)
            if found is None:
                break
            places[found[0]] = "" if found[1] is None else found[1].value
        blamed = sorted(r for r in waiting if "torch/distributed/" not in places.get(r, "")) or sorted(waiting)
        stacks = "".join(
            f"{self._words(rank)} is at:\n{places[rank].rstrip()}\n"
            if places.get(rank)
            else f"{self._words(rank)} does not say where it is: it is stopped, still starting, or in code that is not "
            "Python\n"
            for rank in blamed
        )
        named = ", ".join(self._words(rank) for rank in blamed)
        return (
            f"{stacks}\ngave up waiting for {named} of the learner in {method!r} after {self._timeout_s:g} s "
            f"({self._key})"
        )

    def _broken(self, reason: str) -> RankError:
        self._lost = RankError(reason)
        self._links.end()
        return self._lost


class LocalLinks:
    """Ranks that are processes of this machine. Each has a session of its own, so that Ctrl-C does not reach it, and
    ends by itself when this process is gone."""

    def __init__(self, count: int, environments: Sequence[dict[str, str]], timeout_s: float) -> None:
        """``environments`` are added to the environment variables of each rank. One that does not take a frame, or
        stops in the middle of one, for ``timeout_s`` is gone."""
        self.count = count
        self._pipes: list[Connection[Any, Any]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(count):
                ours, theirs = Pipe()
                self._pipes.append(ours)
                with socket.socket(fileno=os.dup(ours.fileno())) as pipe:
                    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                        pipe.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(timeout_s) + 1, 0))
                try:
                    self._processes.append(
                        subprocess.Popen(
                            [sys.executable, "-c", _MAIN, str(theirs.fileno()), str(rank), str(count), *sys.path],
                            pass_fds=(theirs.fileno(),),
                            stdin=subprocess.DEVNULL,
                            start_new_session=True,
                            env={**os.environ, **environments[rank]},
                        )
                    )
                finally:
                    theirs.close()
        except BaseException:
            self.end()
            raise

    def name(self, rank: int) -> str:
        return f"process {self._processes[rank].pid}"

    def send(self, rank: int, frame: bytes) -> None:
        self._pipes[rank].send_bytes(frame)

    def receive(self, timeout_s: float) -> tuple[int, bytes | None] | None:
        ready = wait(self._pipes, timeout_s)
        if not ready:
            return None
        # Rank 0 sends the streams, which must not hide what the others say.
        rank = max(self._pipes.index(one) for one in ready)  # type: ignore[arg-type]
        try:
            return rank, self._pipes[rank].recv_bytes()
        except (EOFError, OSError):
            return rank, None

    def gone(self, rank: int) -> bool:
        return self._processes[rank].poll() is not None

    def ended(self, rank: int) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._processes[rank].wait(_PLACE_S)
            return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return "stopped reading or writing"

    def end(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # what it has started ends with it
        for process in self._processes:
            process.wait()
        for pipe in self._pipes:
            pipe.close()
