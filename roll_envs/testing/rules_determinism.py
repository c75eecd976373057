"""Rules about identity: the same seed is the same episode, whatever runs beside it, before it or elsewhere."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np

from roll_envs.env import TextEnv
from roll_envs.testing import trace
from roll_envs.testing.trace import Answer, Failure, Rule, Skip, Subject, Trace, mixed, need, plain, play, play_seeds

_THREADS = 4
_RESETS = 100
_RESETS_S = 3.0
"""After which no more episodes are begun, where they are slow to begin."""
_OWN = "draw only from self.np_random or from a generator made from the seed"
_INSTANCE = "keep state in the instance, not in the class or module"


def same_seed(subject: Subject) -> str:
    """A second instance plays the same episodes."""
    subject.compare(play_seeds(subject.make, subject.seeds), "in a second instance", _OWN)
    return f"{len(subject.seeds)} seeds, twice"


def processes(subject: Subject) -> str:
    """Other processes with other values of PYTHONHASHSEED, in other time zones, play the same episodes."""
    try:
        payload = cloudpickle.dumps((subject.make, subject.seeds, trace.followed()))
    except Exception as error:  # the user's own function may hold anything
        raise Skip(f"the make function cannot be sent to another process: {type(error).__name__}: {error}") from error
    path = json.dumps([p or os.getcwd() for p in sys.path]).encode() + b"\n"
    # Two other values, since this process may have been started with one of them.
    with ThreadPoolExecutor(2) as both:
        played = list(both.map(functools.partial(_played_elsewhere, path + payload), ("1", "2")))
    for hash_seed, done in zip(("1", "2"), played, strict=True):
        if done.returncode != 0:
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
            raise Failure(f"the environment cannot be played in another process: {last[0][:300]}")
        where = f"in another process (PYTHONHASHSEED={hash_seed})"
        mend = "sort sets before use, and derive nothing from hash(), time, paths or process ids"
        traces, starts = json.loads(done.stdout)
        subject.compare(traces, where, mend)
        for own, other in zip(trace.split_starts(subject.make, subject.seeds), starts, strict=True):
            need(own == other, f"seed {own[1]} of split {own[0]!r} {where} is another episode; {mend}")
    return "two processes with other hash seeds"


def _played_elsewhere(request: bytes, hash_seed: str) -> subprocess.CompletedProcess[bytes]:
    zone = {"1": "UTC-14", "2": "UTC+12"}[hash_seed]  # it is never the same day in both
    path = os.pathsep.join(p for p in sys.path if p)
    return subprocess.run(
        [sys.executable, "-m", trace.__name__],
        input=request,
        capture_output=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path, "TZ": zone},
    )


def threads(subject: Subject) -> str:
    """Several instances, each in its own thread, at once; and one that goes from thread to thread."""
    results: list[list[Trace] | BaseException] = []
    start = threading.Barrier(_THREADS)

    def work() -> None:
        start.wait()
        try:
            results.append(play_seeds(subject.make, subject.seeds))
        except BaseException as error:  # handed to the thread of the check; a thread would end silently by SystemExit
            results.append(error)

    _ = subject.reference  # played before any thread runs
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # so that the threads take turns within a step
    try:
        running = [threading.Thread(target=work, daemon=True) for _ in range(_THREADS)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(subject.timeout_s)
            need(not thread.is_alive(), "an episode in a thread does not end; is a lock held or a signal awaited?")
    finally:
        sys.setswitchinterval(interval)
    try:
        results.append(_handed_round(subject))
    except (Exception, SystemExit) as error:
        results.append(error)
    for result in results:
        if isinstance(result, BaseException):
            raise Failure(
                f"in a thread it raises {type(result).__name__}: {result}; "
                "use nothing that works in the main thread only (signal), or in the thread that made it"
            )
        subject.compare(result, "in one of several threads", _INSTANCE)
    return f"{_THREADS} threads at once"


def _handed_round(subject: Subject) -> list[Trace]:
    """The episodes of an instance that was made here, with its calls on two other threads in turn."""
    env, traces = subject.make(), []
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        turns = itertools.cycle((one, other))
        for seed in subject.seeds:
            entries = trace.episode(env, seed, mixed(seed))
            calls = iter(lambda: next(turns).submit(next, entries, None).result(), None)  # noqa: B023 - used at once
            traces.append(list(calls))
    return traces


def interleaved(subject: Subject) -> str:
    """Instances that take turns do not disturb each other."""
    envs = [subject.make() for _ in subject.seeds]
    episodes = [trace.episode(env, seed, mixed(seed)) for env, seed in zip(envs, subject.seeds, strict=True)]
    # One call to each instance in turn; those whose episode has ended give None.
    rounds = itertools.zip_longest(*episodes)
    traces = [[entry for entry in calls if entry is not None] for calls in zip(*rounds, strict=True)]
    subject.compare(traces, "beside other instances", _INSTANCE)
    return f"{len(envs)} instances in turns"


def foreign_draws(subject: Subject) -> str:
    """Draws of others from the global generators change nothing."""
    draws = random.Random(7)

    def draw() -> None:
        random.seed(draws.random())
        np.random.seed(draws.randrange(2**32))

    with _global_generators():
        draw()
        env = subject.make()
        found = [play(env, seed, mixed(seed), after_each=draw) for seed in subject.seeds]
    subject.compare(found, "beside foreign draws from random and numpy.random", _OWN)
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
    states = {"random": random.getstate(), "numpy.random": np.random.get_state(legacy=False)}
    if torch := sys.modules.get("torch"):
        states["torch"] = torch.get_rng_state().numpy()
    return states


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
    mend = "set every attribute of the episode anew in reset"
    subject.compare([play(env, seed, mixed(seed)) for seed in subject.seeds], "in a used instance", mend)
    count, deadline = 0, time.monotonic() + _RESETS_S
    while count < _RESETS and time.monotonic() < deadline:
        play(env, subject.seeds[count % len(subject.seeds)], mixed(count), turns=1)
        count += 1
    found = [play(env, seed, mixed(seed)) for seed in subject.seeds]
    subject.compare(found, f"after {count} more resets of the instance", mend)
    return f"a used instance plays like a new one, after {count} more resets too"


def snapshots(subject: Subject) -> str:
    """``restore(snapshot())`` resumes identically, in this and in a new instance; the snapshot is plain data."""
    probe = subject.text_env("snapshot()")
    for seed in subject.seeds:
        begun = play(probe, seed, mixed(seed), turns=min(3, probe.max_turns - 1))
        # An episode that is over already has nothing to go on with: take the snapshot at its start.
        if any(terminated or truncated for *_, terminated, truncated, _ in begun[1:]):
            probe.reset(seed=seed)
        shown, taken = probe.render(), probe.snapshot()
        text = trace.json_text(taken, "snapshot()")
        expected = _play_on(probe, mixed(seed + 1))
        need(json.dumps(taken) == text, "a snapshot changes while the episode goes on; copy lists and dicts into it")
        for _ in trace.steps(probe, mixed(seed)):  # restored from the end of another episode
            pass
        for env, where in ((subject.text_env("snapshot()"), "a new instance"), (probe, "the same instance")):
            given = json.loads(text)
            back = env.restore(given)
            need(back == shown, f"restore in {where} returns another observation than the one at the snapshot")
            need(env.render() == shown, f"render() after restore in {where} is not the observation at the snapshot")
            apart = trace.difference(expected, _play_on(env, mixed(seed + 1)))
            need(not apart, f"after restore in {where} the episode goes on differently ({apart}); save all state")
            need(json.dumps(given) == text, "restore keeps the snapshot, which then changes; copy lists and dicts out")
    return "an episode goes on identically in this and in a new instance"


def ended_snapshots(subject: Subject) -> str:
    """An episode that is over is over after ``restore`` too."""
    env, ended = subject.text_env("snapshot()"), 0
    for seed, answer in subject.games():
        *_, last = play(env, seed, answer)
        if len(last) < 6 or not (last[3] or last[4]):
            continue
        ended += 1
        again = subject.text_env("snapshot()")
        shown = again.restore(json.loads(json.dumps(env.snapshot())))
        need(shown == env.render(), f"restore of the ended episode of seed {seed} returns another observation")
        try:
            again.step(mixed(0, garbage=0)(again))
        except Exception:  # any error will do, as at the end of any episode
            continue
        raise Failure(f"the ended episode of seed {seed} can be played on after restore; save that it is over")
    if not ended:
        raise Skip("no episode ended")
    return f"{ended} ended episodes stay ended"


def _play_on(env: TextEnv, answer: Answer) -> Trace:
    """The rest of the running episode, and the first observation of the next one (drawn from the own generator)."""
    rest = [plain([said, *result]) for said, result in trace.steps(env, answer)]
    return [["", {}], *rest, plain(["next episode", env.reset()[0]])]


def queries(subject: Subject) -> str:
    """``oracle``, ``snapshot``, ``render`` and ``instructions`` may be asked at any time and change nothing."""
    env = subject.text_env("queries")

    def ask() -> None:
        env.oracle(), env.snapshot(), env.render(), env.instructions, env.legal_answers()

    found = [play(env, seed, mixed(seed), after_each=ask) for seed in subject.seeds]
    subject.compare(found, "asked for oracle, snapshot and render", "let these methods read the state only")
    return "asking changes nothing"


DETERMINISM_RULES: tuple[Rule, ...] = (
    same_seed,
    processes,
    threads,
    interleaved,
    foreign_draws,
    global_generators,
    resets,
    snapshots,
    ended_snapshots,
    queries,
)
