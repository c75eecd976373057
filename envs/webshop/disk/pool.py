"""Runs segment tasks in worker processes, or in this one."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from queue import Queue

from envs.webshop.disk.format import CatalogueError
from envs.webshop.disk.segments import SegmentTask, build_segment

__all__ = ["run_segments"]


def run_segments(tasks: Iterator[SegmentTask], products: Path, work: Path, workers: int) -> Iterator[SegmentTask]:
    """Make all segments; each task comes back when its segment is finished, in any order.

    With ``workers=0`` the work is done here. Raises what a worker raised, and :class:`CatalogueError` when one died.
    """
    if workers == 0:
        for task in tasks:
            build_segment(task, products, work)
            yield task
        return
    pool = _Pool(products, work)
    try:
        yield from pool.run(tasks, workers)
    finally:
        pool.close()


class _Pool:
    """Worker processes, each with at most one task; they end when their input is closed."""

    def __init__(self, products: Path, work: Path) -> None:
        self.command = [sys.executable, "-m", "envs.webshop.disk.worker", str(products.absolute()), str(work)]
        # An empty entry of sys.path is the current folder.
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}
        self.processes: list[subprocess.Popen[str]] = []
        self.busy: dict[int, SegmentTask] = {}
        """Place of a worker -> what it is doing."""
        self.answers: Queue[tuple[int, str]] = Queue()

    def run(self, tasks: Iterator[SegmentTask], workers: int) -> Iterator[SegmentTask]:
        for task in tasks:
            if len(self.processes) < workers:
                place = self._start()
            else:
                while len(self.busy) == len(self.processes):
                    yield self._wait()
                place = next(n for n in range(len(self.processes)) if n not in self.busy)
            self._give(place, task)
        while self.busy:
            yield self._wait()

    def _start(self) -> int:
        place = len(self.processes)
        process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self.environment
        )
        self.processes.append(process)
        threading.Thread(target=self._listen, args=(place, process), daemon=True).start()
        return place

    def _listen(self, place: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.answers.put((place, line))
        # An empty line stands for the end of the process.
        self.answers.put((place, ""))

    def _give(self, place: int, task: SegmentTask) -> None:
        stdin = self.processes[place].stdin
        assert stdin is not None
        self.busy[place] = task
        try:
            stdin.write(json.dumps(asdict(task)) + "\n")
            stdin.flush()
        except BrokenPipeError:
            raise self._died(place) from None

    def _wait(self) -> SegmentTask:
        place, line = self.answers.get()
        if not line:
            raise self._died(place)
        answer = json.loads(line)
        if "error" in answer:
            error = pickle.loads(b64decode(answer["error"]))
            assert isinstance(error, Exception)
            raise error
        return self.busy.pop(place)

    def _died(self, place: int) -> CatalogueError:
        status = self.processes[place].wait()
        return CatalogueError(
            f"a worker process ended with status {status} (out of memory?); the same command goes on where it stopped"
        )

    def close(self) -> None:
        """End all workers and wait for them."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    try:
                        pipe.close()
                    except BrokenPipeError:
                        continue
