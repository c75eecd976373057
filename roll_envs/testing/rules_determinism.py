"""Rules about identity: the same seed is the same episode, whatever runs beside it, before it or elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np

from roll_envs.env import TextEnv
from roll_envs.testing.trace import (
    Failure,
    Rule,
    Subject,
    Trace,
    difference,
    mixed,
    need,
    need_text_env,
    plain,
    play,
    play_seeds,
    skip,
    steps,
    turn_limit,
)

__all__ = ["DETERMINISM_RULES"]

_THREADS = 4
_PROCESS_TIMEOUT_S = 120
_OWN = "draw only from self.np_random or from a generator made from the seed"


def _compare(subject: Subject, found: list[Trace], where: str, mend: str) -> None:
    for seed, a, b in zip(subject.seeds, subject.reference, found, strict=True):
        apart = difference(a, b)
        need(not apart, f"seed {seed} {where} is another episode ({apart}); {mend}")


def same_seed(subject: Subject) -> str:
    """A second instance plays the same episodes."""
    _compare(subject, play_seeds(subject.make, subject.seeds), "in a second instance", _OWN)
    return f"{len(subject.seeds)} seeds, twice"


def processes(subject: Subject) -> str:
    """Other processes with other values of PYTHONHASHSEED play the same episodes."""
    try:
        payload = cloudpickle.dumps((subject.make, subject.seeds))
    except Exception as error:  # the user's own function may hold anything
        skip(f"the make function cannot be sent to another process: {type(error).__name__}: {error}")
    path = json.dumps([p or os.getcwd() for p in sys.path]).encode() + b"\n"
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "roll_envs.testing.trace"],
            input=path + payload,
            capture_output=True,
            timeout=_PROCESS_TIMEOUT_S,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
        if done.returncode != 0:
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
            raise Failure(f"the environment cannot be played in another process: {last[0][:300]}")
        where = f"in another process (PYTHONHASHSEED={hash_seed})"
        mend = "sort sets before use, and derive nothing from hash(), time, paths or process ids"
        _compare(subject, json.loads(done.stdout), where, mend)
    return "two processes with other hash seeds"


def threads(subject: Subject) -> str:
    """Several instances, each in its own thread, at once."""
    results: list[list[Trace] | BaseException] = [[] for _ in range(_THREADS)]
    start = threading.Barrier(_THREADS)

    def work(place: int) -> None:
        start.wait()
        try:
            results[place] = play_seeds(subject.make, subject.seeds)
        except Exception as error:  # handed to the thread of the check
            results[place] = error

    _ = subject.reference
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        running = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(_THREADS)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(_PROCESS_TIMEOUT_S)
            need(not thread.is_alive(), "an episode in a thread does not end; is a lock held or a signal awaited?")
    finally:
        sys.setswitchinterval(interval)
    for result in results:
        if isinstance(result, BaseException):
            raise Failure(
                f"in a thread it raises {type(result).__name__}: {result}; "
                "use nothing that works in the main thread only (signal), or in the thread that made it"
            )
        _compare(subject, result, "in one of several threads", "keep state in the instance, not in the class or module")
    return f"{_THREADS} threads at once"


def interleaved(subject: Subject) -> str:
    """Instances that take turns do not disturb each other."""
    envs = [subject.make() for _ in subject.seeds]
    traces: list[Trace] = [[plain(list(env.reset(seed=s)))] for env, s in zip(envs, subject.seeds, strict=True)]
    answers = [mixed(seed) for seed in subject.seeds]
    open_places = set(range(len(envs)))
    for _ in range(max(map(turn_limit, envs))):
        for i in sorted(open_places):
            said = answers[i](envs[i])
            result = envs[i].step(said)
            traces[i].append(plain([said, *result]))
            if result[2] or result[3] or len(traces[i]) > turn_limit(envs[i]):
                open_places.remove(i)
    _compare(subject, traces, "beside other instances", "keep state in the instance, not in the class or module")
    return f"{len(envs)} instances in turns"


def foreign_draws(subject: Subject) -> str:
    """Draws of others from the global generators change nothing."""

    def draw() -> None:
        random.seed(draws.random())
        np.random.seed(draws.randrange(2**32))

    draws = random.Random(7)
    with _global_generators():
        env = subject.make()
        found = [play(env, seed, mixed(seed), between=draw) for seed in subject.seeds]
    _compare(subject, found, "beside foreign draws from random and numpy.random", _OWN)
    return "random and numpy.random reseeded before every call"


def global_generators(subject: Subject) -> str:
    """The environment itself leaves the global generators alone."""
    with _global_generators() as states:
        env = subject.make()
        for seed in subject.seeds:
            play(env, seed, mixed(seed))
            if isinstance(env, TextEnv):
                env.reset(seed=seed)
                env.oracle()
                env.restore(env.snapshot())
        env.reset()
        after = _states()
    changed = " and ".join(name for name in states if plain(states[name]) != plain(after[name]))
    need(not changed, f"the environment draws from or seeds the global generator of {changed}; {_OWN}")
    return "random and numpy.random as they were"


def _states() -> dict[str, Any]:
    return {"random": random.getstate(), "numpy.random": np.random.get_state(legacy=False)}


@contextlib.contextmanager
def _global_generators() -> Iterator[dict[str, Any]]:
    """The states of ``random`` and ``numpy.random``, which are put back at the end."""
    states = _states()
    try:
        yield states
    finally:
        random.setstate(states["random"])
        np.random.set_state(states["numpy.random"])


def resets(subject: Subject) -> str:
    """Nothing of one episode reaches the next: an instance that was used plays like a new one."""
    env = subject.make()
    for seed in reversed(subject.seeds):
        play(env, seed, mixed(seed + 1), turns=2)
        play(env, seed, mixed(seed))
    found = [play(env, seed, mixed(seed)) for seed in subject.seeds]
    _compare(subject, found, "in a used instance", "set every attribute of the episode anew in reset")
    return "a used instance plays like a new one"


def snapshots(subject: Subject) -> str:
    """``restore(snapshot())`` resumes identically, in this and in a new instance; the snapshot is plain data."""
    probe = need_text_env(subject.make(), "snapshot()")
    for seed in subject.seeds:
        answer = mixed(seed)
        play(probe, seed, answer, turns=0)
        for _ in range(min(3, probe.max_turns - 1)):
            result = probe.step(answer(probe))
            if result[2] or result[3]:
                probe.reset(seed=seed)
                break
        shown, taken = probe.render(), probe.snapshot()
        try:
            text = json.dumps(taken)
        except (TypeError, ValueError) as error:
            raise Failure(f"snapshot() is not plain JSON-able data: {error}") from error
        expected = _play_on(probe, mixed(seed + 1))
        need(json.dumps(taken) == text, "a snapshot changes while the episode goes on; copy lists and dicts into it")
        other = need_text_env(subject.make(), "snapshot()")
        for env, where in ((other, "a new instance"), (probe, "the same instance")):
            back = env.restore(json.loads(text))
            need(back == shown, f"restore in {where} returns another observation than the one at the snapshot")
            need(env.render() == shown, f"render() after restore in {where} is not the observation at the snapshot")
            apart = difference(expected, _play_on(env, mixed(seed + 1)))
            need(not apart, f"after restore in {where} the episode goes on differently ({apart}); save all state")
    return "an episode goes on identically in this and in a new instance"


def _play_on(env: TextEnv, answer: Callable[[Any], Any]) -> Trace:
    """The rest of the running episode, and the first observation of the next one (drawn from the own generator)."""
    trace: Trace = [plain([said, *result]) for said, result in steps(env, answer)]
    trace.append(plain(["next episode", env.reset()[0]]))
    return [["", {}], *trace]


def queries(subject: Subject) -> str:
    """``oracle``, ``snapshot``, ``render`` and ``instructions`` may be asked at any time and change nothing."""
    env = need_text_env(subject.make(), "queries")

    def ask() -> None:
        if started:
            env.oracle(), env.snapshot(), env.render(), env.instructions
        started.append(True)

    found = []
    for seed in subject.seeds:
        started: list[bool] = []
        found.append(play(env, seed, mixed(seed), between=ask))
    _compare(subject, found, "asked for oracle, snapshot and render", "let these methods read the state only")
    return "asking changes nothing"


DETERMINISM_RULES: dict[str, Rule] = {
    "same_seed": same_seed,
    "processes": processes,
    "threads": threads,
    "interleaved": interleaved,
    "foreign_draws": foreign_draws,
    "global_generators": global_generators,
    "resets": resets,
    "snapshots": snapshots,
    "queries": queries,
}
