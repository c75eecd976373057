"""A process that makes segments: a task per line on standard input, an answer per line on standard output.

It ends with its parent: as soon as its input is closed, whatever it is doing. An unfinished segment is left under a
temporary name, so that it is not taken for a finished one.
"""

from __future__ import annotations

import json
import os
import pickle
import queue
import sys
import threading
from base64 import b64encode
from pathlib import Path

from envs.webshop.disk.segments import SegmentTask, build_segment

__all__ = ["main"]


def _listen(tasks: queue.Queue[str]) -> None:
    for line in sys.stdin:
        tasks.put(line)
    # sys.exit would end this thread only.
    os._exit(0)


def main() -> None:
    """Serve tasks for ever; ``argv`` is the product file and the working folder."""
    products, work = map(Path, sys.argv[1:3])
    tasks: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(tasks,), daemon=True).start()
    while True:
        fields = json.loads(tasks.get())
        task = SegmentTask(**{**fields, "skip": tuple(fields["skip"])})
        answer: dict[str, object] = {"number": task.number}
        try:
            build_segment(task, products, work)
        except Exception as error:
            answer["error"] = b64encode(pickle.dumps(error)).decode()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        os._exit(130)
