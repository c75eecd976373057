"""EnvHost: the environments of one worker (a process or an actor), and what is done with them.

Operations come in batches and their results leave in batches, so that a message costs little per step. They are done on
one thread as long as they are quick; a watchdog adds threads while some wait behind others that take long. Prompts,
answers and deadlines are the business of :mod:`roll_envs.managers.workers` on the other side. Left out: everything
about models, so that a worker starts quickly and is small.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import queue
import signal
import socket
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

import roll_envs
from roll_envs.errors import RollError
from roll_envs.managers.episode import Env, ResetRequest, StepRequest, close_quietly, perform

Operation = tuple[int, int, str, Any]
"""Number, slot, name and argument: 'make' and (id, pickled kwargs), 'reset' and (seed, split), 'step' and the action,
'close' and None; 'remake' makes and resets: (id, pickled kwargs, seed, split)."""
Result = tuple[int, bool, bytes]
"""Number, whether the operation raised, and its pickled value, or what :func:`pickled_error` made of the error."""

GRACE_S = 0.05
"""While operations wait, another thread is started when one takes longer than this, or the process computes nothing."""
_MAX_THREADS = 512


class EnvHost:
    """Environments in numbered slots. The sender sees to it that a slot has one operation at a time.

    Its methods may be called from any thread, and remotely.
    """

    def __init__(self) -> None:
        self._envs: dict[int, Env] = {}
        self._operations: queue.SimpleQueue[Operation] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self._since: dict[int, float] = {}
        """When the operation that is done at the moment began, by slot."""
        self._some_wait = threading.Event()
        """Whether operations may wait; the watchdog sleeps otherwise."""
        self._threads = 0
        self._start_thread()
        threading.Thread(target=self._watch, name="env-host-watch", daemon=True).start()

    def hello(self) -> str:
        """Where this host is, for messages."""
        return f"pid {os.getpid()} on {socket.gethostname()}"

    def put(self, frame: bytes) -> None:
        """Do the operations of a pickled list, each in its turn."""
        for operation in pickle.loads(frame):
            self._operations.put(operation)
        if not self._some_wait.is_set():
            self._some_wait.set()

    def take(self) -> bytes:
        """Wait for a result; returns a pickled list of all that are there."""
        results = [self._results.get()]
        with contextlib.suppress(queue.Empty):
            while True:
                results.append(self._results.get_nowait())
        return pickle.dumps(results)

    def close(self) -> None:
        """Close the environments that are in no operation."""
        for slot in set(self._envs) - set(self._since):
            close_quietly(self._envs.pop(slot))

    def _start_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, name="env-host", daemon=True).start()

    def _work(self) -> None:
        while True:
            operation = self._operations.get()
            slot = operation[1]
            self._since[slot] = time.monotonic()
            result = self._result(operation)
            del self._since[slot]  # before the next operation of this slot can come
            self._results.put(result)

    def _result(self, operation: Operation) -> Result:
        number, slot, name, argument = operation
        try:
            return number, False, _pickled(self._do(slot, name, argument))
        except BaseException as error:  # work of others: environments (sys.exit() too), and what they return
            return number, True, pickled_error(error)

    def _do(self, slot: int, name: str, argument: Any) -> Any:
        if name == "step":
            return perform(self._envs[slot], StepRequest(argument))
        if name == "reset":
            return perform(self._envs[slot], ResetRequest(*argument))
        if name == "close":
            if slot in self._envs:
                close_quietly(self._envs.pop(slot))
            return None
        env_id, kwargs, *reset = argument
        self._envs[slot] = env = roll_envs.make(env_id, **pickle.loads(kwargs))
        return perform(env, ResetRequest(*reset)) if reset else None

    def _watch(self) -> None:
        while True:
            self._some_wait.wait()
            cpu_s = time.process_time()
            time.sleep(GRACE_S)
            if self._operations.empty():
                self._some_wait.clear()
                if self._operations.empty():
                    continue
                self._some_wait.set()  # something came in between
            now = time.monotonic()
            took_s = now - min(self._since.copy().values(), default=now)
            idles = time.process_time() - cpu_s < GRACE_S / 2
            if took_s > GRACE_S or idles:
                # Twice as many where they wait, which may be for as long as the deadline of those behind them.
                more = min(self._operations.qsize(), self._threads) if idles else 1
                for _ in range(min(more, _MAX_THREADS - self._threads)):
                    self._start_thread()


def _pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise TypeError(
            f"what it returned cannot be sent to another process ({type(error).__name__}: {error}); return plain "
            "values, or keep environments in the trainer's process (manager 'thread')"
        ) from error


class RemoteTraceback(Exception):
    """The traceback of an error in another process, as the cause of the error here."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def pickled_error(error: BaseException) -> bytes:
    """An error as :func:`unpickled_error` reads it. Errors of this project cross unchanged; name, text and traceback of
    others, whose classes the reader may lack."""
    shown = "".join(traceback.format_exception(error))
    with contextlib.suppress(Exception):
        if isinstance(error, RollError):
            ours = pickle.dumps(error)
            pickle.loads(ours)
            return pickle.dumps((ours, type(error).__name__, str(error), shown))
    try:
        text = str(error)
    except Exception:  # an exception of others whose own text fails
        text = ""
    return pickle.dumps((None, type(error).__name__, text, shown))


def unpickled_error(frame: bytes) -> Exception:
    """An error of the same class name and text; its cause shows the traceback."""
    ours, name, text, shown = pickle.loads(frame)
    error: Exception | None = None
    if ours is not None:
        with contextlib.suppress(Exception):  # a class of a package that is not here
            error = pickle.loads(ours)
    if error is None:
        base = Exception if ours is None else RollError
        error = type(name, (base,), {"__module__": "builtins"})(text)
    error.__cause__ = RemoteTraceback(shown)
    return error


def serve(operations_fd: int, lifeline_fd: int) -> None:
    """The main program of a worker process: serve the pipe until it closes.

    Nothing is ever written to the lifeline, whose other end the parent holds: should the parent be gone, the system
    ends this process at once by SIGIO, even one that is stuck in a call that keeps the interpreter's lock, and with it
    the processes of its group, which its environments started.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    with contextlib.suppress(OSError, AttributeError):  # not on every system; the pipe's end is noticed then
        fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, fcntl.fcntl(lifeline_fd, fcntl.F_GETFL) | os.O_ASYNC)

    def close_in_child() -> None:
        os.close(operations_fd)
        os.close(lifeline_fd)

    # A child of an environment that outlives this process must not hold the pipe open: nobody would notice the death.
    os.set_inheritable(operations_fd, False)
    os.set_inheritable(lifeline_fd, False)
    os.register_at_fork(after_in_child=close_in_child)
    connection, host = Connection(operations_fd), EnvHost()
    connection.send_bytes(host.hello().encode())

    def answer() -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            while True:
                connection.send_bytes(host.take())

    threading.Thread(target=answer, name="env-host-answer", daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        while True:
            host.put(connection.recv_bytes())
    host.close()
