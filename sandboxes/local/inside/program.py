"""The untrusted process turns into the program: a Python one in this interpreter, others through ``execve``; or it
serves the cells of a session in one namespace, as in a notebook."""

from __future__ import annotations

import ast
import atexit
import builtins
import contextlib
import gc
import importlib.machinery
import linecache
import os
import signal
import site
import socket
import sys
import threading
import traceback
import types
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from . import wire

_HERE = os.path.dirname(__file__)
# Kept under names of this module: a program may replace the functions of os, and those that are built in.
_exit, _kill, _getpid, _open = os._exit, os.kill, os.getpid, open


def execute(argv: list[str], environ: Mapping[str, str]) -> NoReturn:
    """Become another program."""
    # Python ignores these two; other programs expect their default action.
    for name in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(name, signal.SIG_DFL)
    try:
        os.execve(argv[0], argv, environ)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        # As a shell: found, but it cannot be executed.
        _exit(126)


def draw_anew() -> None:
    """Seed the generators of modules that were preloaded: they draw their seed once, when they are imported."""
    for name in ("numpy.random", "torch.random"):  # Python's own ``random`` does so after each fork
        if name in sys.modules:
            sys.modules[name].seed()


_STREAMS = (
    (0, "stdin", "r", "surrogateescape"),
    (1, "stdout", "w", "surrogateescape"),
    (2, "stderr", "w", "backslashreplace"),
)


def standard_streams() -> None:
    """Make new stream objects over descriptors 0, 1 and 2, buffered as for pipes."""
    for fd, name, mode, errors in _STREAMS:
        stream: Any = _open(fd, mode, 1 if fd == 2 else -1, "utf-8", errors, closefd=False)
        stream.buffer.raw.name = f"<{name}>"
        vars(sys).update({name: stream, f"__{name}__": stream})
    site.setquit()
    site.setcopyright()
    site.sethelper()


class Script:
    """A ``__main__`` as the interpreter makes it for a script, fresh streams, and its end as the interpreter
    makes it: traceback, threads, ``atexit``, finalizers, flushing, exit code.

    Made once, in the zygote: each object that a run need not make or change is a page that need not be copied, and the
    functions of the end are looked up before the program can replace them.
    """

    def __init__(self) -> None:
        for name in [n for n in sys.modules if n.partition(".")[0] in ("inside", "sandboxes")]:
            del sys.modules[name]  # programs must not import the trusted code
        os.environ.clear()
        standard_streams()
        self.module = types.ModuleType("__main__")
        vars(self.module).update(__builtins__=builtins, __annotations__={})
        sys.modules["__main__"] = self.module
        self._shut_down: Callable[[], None] = threading._shutdown  # type: ignore[attr-defined]
        self._at_exit: Callable[[], None] = atexit._run_exitfuncs
        self._collect = gc.collect
        self._flush = (sys.stdout, sys.stderr)

    def run(self, name: str, source: bytes, arguments: list[str]) -> NoReturn:
        """Behave as ``python main.py arguments`` in the working folder, without starting an interpreter."""
        work = os.getcwd()
        path = f"{work}/{name}"
        sys.argv = [name, *arguments]
        sys.path.insert(0, work)
        loader = importlib.machinery.SourceFileLoader("__main__", path)
        vars(self.module).update(__file__=path, __cached__=None, __loader__=loader)
        try:
            # dont_inherit: without this module's own `from __future__` imports.
            exec(compile(source, path, "exec", dont_inherit=True), vars(self.module))
        except BaseException as error:
            self._end(error)
        self._end(None)

    def _end(self, error: BaseException | None) -> NoReturn:
        """End the process as Python would after ``error`` left the script (``None``: it came to its end)."""
        code, interrupted = 0, False
        if isinstance(error, SystemExit):
            code = exit_code(error)
        elif error is not None:
            show(error)
            code, interrupted = 1, isinstance(error, KeyboardInterrupt)
        # Its traceback would keep the script's objects alive, and their finalizers would not run.
        del error
        self._tried(self._shut_down, self._at_exit)
        # As Python: the script's own streams while its globals are there, and the first ones at the end.
        good = self._flushed(sys.stdout, sys.stderr)
        self._tried(self._forget, self._collect)
        left = [stream for stream in self._flush if good or stream is not sys.stdout]  # what failed fails again
        if not self._flushed(*left) or not good:
            # As Python's own exit code when standard output cannot be flushed.
            code = 120
        if interrupted:
            # Python ends by the signal itself after an unhandled KeyboardInterrupt, so that a parent sees why.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            _kill(_getpid(), signal.SIGINT)
        _exit(code & 0xFF)

    def _tried(self, *steps: Callable[[], object]) -> None:
        for step in steps:
            try:
                step()
            except BaseException as trouble:
                show(trouble)

    def _forget(self) -> None:
        """Drop the script's globals, those with an underscore first, so that finalizers run as they would."""
        names = vars(self.module)
        for hidden in (True, False):
            for name in list(names):
                if name != "__builtins__" and name.startswith("_") == hidden and names.get(name) is not None:
                    names[name] = None

    def _flushed(self, *streams: Any) -> bool:
        good = True
        for stream in streams:
            try:
                if stream is not None and not stream.closed:
                    stream.flush()
            except BaseException as trouble:
                good = False
                if stream is not sys.stderr:
                    show(trouble)
        return good


def exit_code(error: SystemExit) -> int:
    """Exit code of ``sys.exit(value)``: a number is the code, ``None`` is 0, anything else is printed and gives 1."""
    if error.code is None or isinstance(error.code, int):
        return int(error.code or 0)
    try:
        print(error.code, file=sys.stderr)
    except BaseException:
        _exit(1)
    return 1


def show(error: BaseException, *, with_cells: bool = False) -> None:
    """Print the exception through ``sys.excepthook``, without the frames of the trusted code.

    ``with_cells``: source lines of cells are in ``linecache``, which the built-in hook does not read.
    """
    trace = error.__traceback__
    while trace is not None and os.path.dirname(trace.tb_frame.f_code.co_filename) == _HERE:
        trace = trace.tb_next
    error.__traceback__ = trace
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
    try:
        if with_cells and sys.excepthook is sys.__excepthook__:
            traceback.print_exception(error)
        else:
            sys.excepthook(type(error), error, trace)
    except BaseException:
        try:
            traceback.print_exception(error)
        except BaseException:
            _exit(1)


CODE_BYTES = 4
TOKEN_BYTES = 8
"""An answer begins with the random token of its order, so that a program cannot send an answer in advance."""


def serve_cells(channel_fd: int, script: Script) -> NoReturn:
    """Run cells until the channel is closed.

    The answer to a cell is its exit code; nothing else from here is trusted.
    """
    sys.argv = [""]
    sys.path.insert(0, os.getcwd())
    channel = socket.socket(fileno=channel_fd)
    # Local names: a cell may replace functions of os and of wire.
    receive, send, own = wire.receive, channel.send, os.getpid()
    getpid, leave, dup2, close, pread, fstat = os.getpid, os._exit, os.dup2, os.close, os.pread, os.fstat
    nothing = os.open("/dev/null", os.O_RDWR)
    namespace = vars(script.module)
    while True:
        message, fds = receive(channel)
        if message is None or getpid() != own:
            leave(0)
        payload, stdout, stderr = fds
        source = pread(payload, fstat(payload).st_size, 0)
        close(payload)
        dup2(stdout, 1)
        dup2(stderr, 2)
        close(stdout)
        close(stderr)
        standard_streams()
        code = run_cell(source.decode("utf-8", "surrogatepass"), f"<cell {message['number']}>", namespace)
        if getpid() != own:  # os.fork() in a cell: the child returns here too
            leave(code)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(BaseException):
                stream.flush()
        # Gives up the cell's pipes, so that they reach their end; threads that go on print to nowhere.
        dup2(nothing, 1)
        dup2(nothing, 2)
        send(bytes.fromhex(message["token"]) + code.to_bytes(CODE_BYTES, "little"))


def run_cell(source: str, name: str, namespace: dict[str, Any]) -> int:
    """Statements, then the value of a last expression through ``sys.displayhook``; 1 after an exception."""
    # So that tracebacks show lines of cells; an entry without a time (None) is not looked for on disk.
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    try:
        # Not ast.parse(), whose frame would be in the traceback of a syntax error.
        tree = compile(source, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
        assert isinstance(tree, ast.Module)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        # dont_inherit: without this module's own `from __future__` imports.
        exec(compile(tree, name, "exec", dont_inherit=True), namespace)
        if isinstance(last, ast.Expr):
            sys.displayhook(eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), namespace))
    except SystemExit as error:
        return exit_code(error) & 0xFF
    except BaseException as error:
        show(error, with_cells=True)
        return 1
    return 0
