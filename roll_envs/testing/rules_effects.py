"""Rules about what playing leaves behind in the process, and what it costs: nothing, and little."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import os
import statistics
import sys
import tempfile
import threading
import time
import tracemalloc
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from roll_envs.env import AnyEnv, TextEnv
from roll_envs.testing.trace import Rule, Skip, Subject, is_cut, mixed, need, play, surroundings

_ENDS_S = 2.0
"""How long threads and processes of a closed environment have to end."""


def side_effects(subject: Subject) -> str:
    """The process, its directory and other files are left alone, and ``close`` ends threads, processes and files."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        _played(subject, 1)  # what starts once in a process, a library's pool say, is no leak
    threads, open_files, children = set(threading.enumerate()), _open_files(), _children()
    with (
        contextlib.redirect_stdout(printed), _written_to_stdout() as written, _audited() as events,
        _temporary_folder() as temporary, warnings.catch_warnings(),
    ):  # fmt: skip
        warnings.resetwarnings()
        _played(subject)
        filters, replaced = list(warnings.filters), sys.stdout is not printed
        gc.collect()
        left = os.listdir(temporary)
    need(not filters, f"playing sets the filter of warnings {filters[:1]}; use warnings.catch_warnings()")
    need(not replaced, "playing replaces sys.stdout; use contextlib.redirect_stdout()")
    need(not left, f"close() leaves {left[:1]} in the folder of temporary files; remove it there")
    for what, now in surroundings().items():
        was = subject.before[what]
        need(now == was, f"playing changes the {what}: {_apart(was, now)}; leave the process as it was")
    said = printed.getvalue() or written()
    need(not said, f"playing prints {said[:60]!r} to stdout, which is for the caller; use logging")
    need(not events, f"playing {events[0] if events else ''}; an episode needs neither")
    gc.collect()
    _need_ended(lambda: [t.name for t in threading.enumerate() if t not in threads], "the thread", "running")
    _need_ended(lambda: sorted(_children() - children), "the process", "running")
    _need_ended(lambda: sorted(_open_files() - open_files), "the file descriptor", "open")
    return "directory, variables, files, stdout, threads and processes are as before"


def _played(subject: Subject, most: int | None = None) -> None:
    """All that is asked of an environment: episodes that end in different ways, and queries."""
    env = subject.make()
    for seed, answer in subject.games(most):
        if isinstance(env, TextEnv):
            env.reset(seed=seed)
            with contextlib.suppress(Exception):  # which other rules will meet, too
                env.oracle(), env.legal_answers(), env.render(), env.restore(env.snapshot())
        play(env, seed, answer)
    env.close()


@contextlib.contextmanager
def _temporary_folder() -> Iterator[str]:
    """A new folder in which ``tempfile`` makes its files meanwhile."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        try:
            yield folder
        finally:
            tempfile.tempdir = before


def _apart(was: Any, now: Any) -> str:
    if isinstance(was, dict):
        return ", ".join(sorted(name for name in was.keys() | now.keys() if was.get(name) != now.get(name))[:3])
    if isinstance(was, set | list):
        return ", ".join(sorted(set(was) ^ set(now))[:3]) or "another order"
    return f"{now} instead of {was}"


def _need_ended(left: Any, what: str, still: str) -> None:
    """What ``left`` gives is empty soon."""
    deadline = time.monotonic() + _ENDS_S
    while (found := left()) and time.monotonic() < deadline:
        time.sleep(0.01)
    need(not found, f"close() leaves {what} {found[0] if found else ''!r} {still}; end it there")


@contextlib.contextmanager
def _written_to_stdout() -> Iterator[Any]:
    """Afterwards, a function that gives what went to the descriptor itself: by C code, or a process."""
    with tempfile.TemporaryFile() as file:
        kept = os.dup(1)
        os.dup2(file.fileno(), 1)
        said = b""
        try:
            yield lambda: said.decode(errors="replace")
        finally:
            os.dup2(kept, 1)
            os.close(kept)
            file.seek(0)
            said = file.read(1000)


def _open_files() -> set[str]:
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        return set()
    found = set()
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):  # the listing's own
            found.add(f"{name} ({os.readlink(folder / name)})")
    return found


def _children() -> set[int]:
    """Processes that this one started, and those that they left behind; the latter only in a session of its own."""
    own, found = os.getpid(), set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # of one that ends meanwhile
            state, parent, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(parent) == own or (int(session) == own and state != "Z"):
                found.add(int(stat.parent.name))
    return found - {own}


_CHANGES = {
    "os.mkdir": ("makes", 2),
    "os.remove": ("removes", 1),
    "os.rename": ("renames", 2),
    "os.rmdir": ("removes", 1),
}
"""Events, what they do, and which argument is the descriptor of the folder that a relative path starts from."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_HERE = ("127.", "::1", "localhost")
_TEMPORARY = tempfile.gettempdir()
_watching: list[list[str]] = []
"""Where the events go that are looked for now, if any."""


@contextlib.contextmanager
def _audited() -> Iterator[list[str]]:
    """What is done meanwhile to files outside of the temporary folder, and to other hosts, in words."""
    _add_hook()
    _watching.append([])
    try:
        yield _watching[-1]
    finally:
        _watching.pop()


@functools.cache
def _add_hook() -> None:
    sys.addaudithook(_audit)  # it can never be taken away, and does nothing while nobody watches


def _folder(descriptor: int) -> str:
    """What a relative path starts from. A descriptor that is none fails in what is audited, not here."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/fd/{descriptor}")
    return os.getcwd()


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if not _watching:
        return
    if event == "socket.connect" and isinstance(args[1], tuple) and not str(args[1][0]).startswith(_HERE):
        _watching[-1].append(f"connects to {args[1][0]}")
    does, place = _CHANGES.get(event, ("", 0))
    if event == "open" and (args[2] or 0) & _WRITES:
        does = "writes"
    if does and isinstance(args[0], str | bytes | os.PathLike):
        path = os.path.abspath(os.path.join(_folder(args[place] if place else -1), os.fsdecode(args[0])))
        if not path.startswith((_TEMPORARY, "/dev/", "/proc/")) and "__pycache__" not in path:
            _watching[-1].append(f"{does} {path}")


# -- costs -------------------------------------------------------------------------------------------------------------

_SLOWEST_STEP_S = 0.5
_SLOWEST_TURN_S = 1.0
"""Of a turn that is slow each time that it is played; the last one may judge the whole episode."""
_MEASURED = 50
"""Turns of an episode."""
_SLOWEST_RESET_S = 10.0
_SLOWEST_ORACLE_S = 2.0


def latency(subject: Subject) -> str:
    """A step takes less time than the model's answer to it would, and neither a reset nor the oracle is a wait."""
    env = subject.make()
    resets, answers, oracles = [], {}, []
    for seed in subject.seeds:
        started = time.perf_counter()
        env.reset(seed=seed)
        resets.append(time.perf_counter() - started)
        if isinstance(env, TextEnv):
            started = time.perf_counter()
            env.oracle()
            oracles.append(time.perf_counter() - started)
        took = _turns(env, seed)
        answers.update({(seed, turn): took_s for turn, took_s in enumerate(took)})
    step, reset = statistics.median(answers.values()), statistics.median(resets)
    seen = f"a step takes {1000 * step:.3g} ms, a reset {1000 * reset:.3g} ms (medians)"
    need(step <= _SLOWEST_STEP_S, f"{seen}; more than {_SLOWEST_STEP_S:g} s a step keeps every rollout waiting")
    need(reset <= _SLOWEST_RESET_S, f"{seen}; more than {_SLOWEST_RESET_S:g} s a reset keeps every rollout waiting")
    seed, turn = max(answers, key=lambda each: answers[each])
    worst = answers[seed, turn]
    for _ in range(2):  # what is loaded once, or another program, makes no turn slow each time
        if worst > _SLOWEST_TURN_S:
            worst = min(worst, [*_turns(env, seed), 0.0][turn])
    need(worst <= _SLOWEST_TURN_S, f"turn {turn + 1} of seed {seed} takes {worst:.3g} s each time; more than "
                                   f"{_SLOWEST_TURN_S:g} s keeps its group waiting")  # fmt: skip
    asked = statistics.median(oracles) if oracles else 0.0
    need(asked <= _SLOWEST_ORACLE_S, f"oracle() takes {asked:.3g} s (median); a teacher asks it at every turn, so that "
                                     f"more than {_SLOWEST_ORACLE_S:g} s is too much")  # fmt: skip
    return f"{seen}; since it is slow, the rules play {subject.pace}" if subject.pace else seen


def _turns(env: AnyEnv, seed: int) -> list[float]:
    """The seconds of each turn of an episode, without its last one where there are others."""
    env.reset(seed=seed)
    found, answer = [], mixed(seed)
    for turn in range(_MEASURED):
        if is_cut(answer, turn):
            break
        said = answer(env)
        started = time.perf_counter()
        *_, terminated, truncated, _ = env.step(said)
        found.append(time.perf_counter() - started)
        if terminated or truncated:
            return found[:-1] or found
    return found


_RESETS = 40
_LEAST_RESETS = 20
_PARTS = 4
_MEMORY_S = 1.0
"""Of each part of the resets. Where there are too few in it, filling a table looks like a leak."""
_BYTES = 200
"""Of a reset and its first turns: the interpreter's own lists of freed objects grow by up to 130."""


def memory(subject: Subject) -> str:
    """Two hundred resets, with turns, leave no memory behind: neither in the instance nor elsewhere."""
    env = subject.make()
    done = _reset_for(env, subject.seeds)  # what is kept once, of imports and of each seed, is no leak
    left = []
    gc.collect()
    gc.freeze()  # so that a collection looks at what is made from here on, not at all that was imported
    tracemalloc.start()
    try:
        for _ in range(_PARTS):
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            count = _reset_for(env, subject.seeds)
            if count < _LEAST_RESETS:
                raise Skip(f"{count} resets with their turns take {_MEMORY_S:g} s; too few to tell a leak")
            gc.collect()
            left.append((tracemalloc.get_traced_memory()[0] - before) / count)
            done += count
    finally:
        tracemalloc.stop()
        gc.unfreeze()
    # What grows without an end grows in every part; a table that is filled up once does not.
    each = min(left)
    need(each <= _BYTES, f"each reset with its turns leaves {each:.0f} bytes behind; let go of the last episode")
    return f"{max(each, 0):.0f} bytes a reset, over {done}"


def _reset_for(env: AnyEnv, seeds: Sequence[int]) -> int:
    """How many episodes were begun, in the time that there is."""
    deadline, count = time.monotonic() + _MEMORY_S, 0
    while count < _RESETS and time.monotonic() < deadline:
        for seed in seeds:  # always all of them, so that each part ends with the same episode
            play(env, seed, mixed(seed), turns=10)
        count += len(seeds)
    return count


EFFECT_RULES: tuple[Rule, ...] = (side_effects, latency, memory)
