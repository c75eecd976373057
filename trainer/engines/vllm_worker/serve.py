"""A server, by the name of its module and its arguments, that ends with the process that holds its standard input; run
with the server's own Python."""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import sys
import threading


def _end_with_parent() -> None:
    """Wait for the end of standard input, which the parent holds open as long as it lives, however it ends."""
    os.read(0, 1)  # not sys.stdin, whose lock would be held when the interpreter ends
    if folder := os.environ.get("ROLL_SERVER_FOLDER"):  # the parent's to remove, which may have been killed
        shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)  # the server's processes are in a group of their own, which takes its engine along


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.path.pop(0)  # this folder is on the path already
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
