"""Runs segment tasks in worker processes, or in this one.

A worker is this module run as a program: it reads pickled tasks from its standard input and answers each with what went
wrong, or None. It ends with its parent: as soon as its input is closed, whatever it is doing. An unfinished segment is
left under a temporary name, so that it is not taken for a finished one.
"""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

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
    idle: queue.LifoQueue[subprocess.Popen[bytes]] = queue.LifoQueue()
    processes: list[subprocess.Popen[bytes]] = []
    running: set[Future[SegmentTask]] = set()
    threads = ThreadPoolExecutor(workers)  # one waits for each worker
    try:
        for task in tasks:
            if len(processes) < workers:
                processes.append(_start(products, work))
                idle.put(processes[-1])
            while len(running) == workers:
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (each.result() for each in finished)
            running.add(threads.submit(_make, task, idle))
        while running:
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (each.result() for each in finished)
    finally:
        for process in processes:
            process.kill()
        threads.shutdown()
        for process in processes:
            with suppress(BrokenPipeError), process:  # closes its pipes and waits for it
                pass


def _start(products: Path, work: Path) -> subprocess.Popen[bytes]:
    # An empty entry of sys.path is the current folder.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}
    command = [sys.executable, "-m", __spec__.name, str(products.absolute()), str(work)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def _make(task: SegmentTask, idle: queue.LifoQueue[subprocess.Popen[bytes]]) -> SegmentTask:
    """Have one of the idle workers make a segment."""
    process = idle.get()
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        pickle.dump(task, process.stdin)
        process.stdin.flush()
        error = pickle.load(process.stdout)
    except (EOFError, BrokenPipeError, pickle.UnpicklingError):
        raise CatalogueError(
            f"a worker process ended with status {process.wait()} (out of memory?); the same command goes on where it "
            "stopped"
        ) from None
    idle.put(process)
    if error is not None:
        raise error
    return task


def _serve() -> None:
    """Make segments for ever; ``argv`` is the product file and the working folder."""
    products, work = map(Path, sys.argv[1:3])
    tasks: queue.SimpleQueue[SegmentTask] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(tasks,), daemon=True).start()
    while True:
        failed = None
        try:
            build_segment(tasks.get(), products, work)
        except Exception as error:
            failed = error
        pickle.dump(failed, sys.stdout.buffer)
        sys.stdout.flush()


def _listen(tasks: queue.SimpleQueue[SegmentTask]) -> None:
    with suppress(EOFError, pickle.UnpicklingError):  # the second where the parent was killed in the middle of a task
        while True:
            tasks.put(pickle.load(sys.stdin.buffer))
    # sys.exit would end this thread only.
    os._exit(0)


if __name__ == "__main__":
    try:
        _serve()
    except KeyboardInterrupt:
        os._exit(130)
