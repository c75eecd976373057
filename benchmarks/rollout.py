"""How well rollouts use an engine: a lock-step loop beside rollout.mode sync, sync with redundancy, overlap and async.

    python benchmarks/rollout.py                          # 256 episodes a step, 256 engine slots
    python benchmarks/rollout.py --groups 128 --slots 1024

The same tasks and sampling seeds everywhere, so the same moves and the same latencies: FrozenLake, answered by the
scripted engine after a lognormal time (median ``--latency``, sigma ``--sigma``). A step of learning is a sleep of
``--learn`` seconds. Lock-step is the usual loop: all episodes of a step answer, then all are stepped.

"Busy" is the time that requests were with the engine, over (seconds * slots). The bound of a mode is its time if all
slots were busy while it plays, and, where playing waits for it, the time of learning; requests of cancelled episodes
count as work here, so look at the seconds too. Figures are of a run that goes on: without its first and last steps.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any

import roll_envs
from roll_envs.managers.episode import sampling_seed
from roll_envs.types import Completion, SamplingParams, Task
from trainer.config import RunConfig
from trainer.config.load import load_config
from trainer.rollout.scheduler import GroupSource
from trainer.rollout.source import Ledger, Session


class Watched:
    """An engine of which is known how many requests it has, integrated over time."""

    def __init__(self, engine: Any) -> None:
        self._submit, self._lock = engine.submit, threading.Lock()
        self._running, self._since = 0, time.monotonic()
        self._area = 0.0
        self.requests = 0
        engine.submit = self.submit

    def submit(self, *args: Any, **kwargs: Any) -> Future[Completion]:
        self.requests += 1
        self._add(1)
        future: Future[Completion] = self._submit(*args, **kwargs)
        future.add_done_callback(lambda _: self._add(-1))
        return future

    def _add(self, change: int) -> None:
        with self._lock:
            now = time.monotonic()
            self._area += self._running * (now - self._since)
            self._running, self._since = self._running + change, now

    def request_seconds(self) -> float:
        """Since the last call."""
        self._add(0)
        area, self._area = self._area, 0.0
        return area


def lock_step(session: Session, learn_s: float) -> Iterator[None]:
    """The loop to compare with: one batch, all of it turn by turn. Yields after each step."""
    config = session.config
    groups, size = config.rollout.groups_per_step, config.rollout.group_size
    task = session.training_tasks([0])[0]
    envs = [roll_envs.make(task.env_id, **task.kwargs) for _ in range(groups * size)]
    for step in count():
        drawn = session.training_tasks(range(step * groups, (step + 1) * groups))
        tasks = [task for task in drawn for _ in range(size)]
        _play_in_step(session, envs, tasks)
        time.sleep(learn_s)
        yield


def _play_in_step(session: Session, envs: Sequence[Any], tasks: Sequence[Task]) -> None:
    size, sampling = session.config.rollout.group_size, session.settings.sampling
    for env, task in zip(envs, tasks, strict=True):
        env.reset(seed=task.seed)
    prompt, playing, turn = (5, 6, 7), list(range(len(tasks))), 0
    while playing:
        futures = []
        for i in playing:
            seed = sampling_seed(session.settings.seed, tasks[i], i % size, turn)
            params = SamplingParams(max_new_tokens=sampling.max_new_tokens, stop_ids=sampling.stop_ids, seed=seed)
            futures.append(session.engine.submit(prompt, params, timeout_s=600))
        left = []
        for i, future in zip(playing, futures, strict=True):
            text = session.settings.renderer.decode(future.result().ids)
            _, _, terminated, truncated, _ = envs[i].step(text)
            if not terminated and not truncated:
                left.append(i)
        playing, turn = left, turn + 1


def scheduled(session: Session, learn_s: float) -> Iterator[None]:
    """Our own modes: the source of groups, with a learner that sleeps. Yields after each step."""
    ledger, version = Ledger(), count()
    source = GroupSource(session, ledger, lambda: session.engine.update_weights(_weights(session), next(version)))
    for step in count():
        ledger.settle(source.next_step(step).indices)
        time.sleep(learn_s)
        yield


def _weights(session: Session) -> Any:
    return session.model.network.state_dict().items()


def measured(name: str, config: RunConfig, steps: int, learn_s: float) -> list[float]:
    """Seconds a step, share of the time that the engine's slots were busy, share of the mode's bound, requests a step;
    of a run that goes on, after a first step that fills it."""
    with Session(config) as session:
        watched = Watched(session.engine)
        run = (lock_step if name == "lock-step" else scheduled)(session, learn_s)
        next(run)
        watched.request_seconds()
        requests, started = watched.requests, time.monotonic()
        for _ in range(steps):
            next(run)
        seconds = time.monotonic() - started
        busy_s = watched.request_seconds() / config.rollout.max_running
        requests = watched.requests - requests
    waits = name == "lock-step" or config.rollout.mode == "sync"
    bound_s = busy_s + steps * learn_s if waits else max(busy_s, steps * learn_s)
    return [seconds / steps, busy_s / seconds, bound_s / seconds, requests / steps]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=32, help="groups of 8 episodes a step")
    parser.add_argument("--slots", type=int, default=256, help="episodes that run at the same time")
    parser.add_argument("--steps", type=int, default=6, help="measured after a first one")
    parser.add_argument("--latency", type=float, default=0.4, help="median seconds of an answer")
    parser.add_argument("--sigma", type=float, default=1.0, help="deviation of its logarithm")
    parser.add_argument("--learn", type=float, default=2.0, help="seconds that a step learns")
    parser.add_argument("--redundancy", type=int, default=8, help="groups begun beyond those a step needs")
    parser.add_argument("--staleness", type=int, default=2, help="rollout.max_staleness of mode async")
    options = parser.parse_args()
    engine = {
        "name": "scripted",
        "answers": ["Left", "Down", "Right", "Up"],
        "latency_s": options.latency,
        "latency_sigma": options.sigma,
        "max_tokens": 256,
    }
    modes: dict[str, dict[str, Any]] = {
        "lock-step": {},
        "sync": {},
        f"sync, redundancy {options.redundancy}": {"redundancy": options.redundancy},
        "overlap": {"mode": "overlap"},
        f"async, staleness {options.staleness}": {"mode": "async", "max_staleness": options.staleness},
    }
    print("| Mode | s a step | to lock-step | engine busy | of the mode's bound | requests a step |")
    print("|---|---|---|---|---|---|")
    first = 0.0
    for name, rollout in modes.items():
        size = {"groups_per_step": options.groups, "group_size": 8, "max_running": options.slots}
        limits = {"turn_timeout_s": 600.0, "episode_timeout_s": 3600.0}
        path = Path(__file__).resolve().parents[1] / "configs" / "frozenlake_tiny.yaml"
        config = load_config(path, [])
        values = config.model_dump()
        values.update(steps=1_000_000, engine=engine, rollout={**values["rollout"], **size, **limits, **rollout})
        config = RunConfig.model_validate(values)
        found = measured(name, config, options.steps, options.learn)
        first = first or found[0]
        print(
            f"| {name} | {found[0]:.2f} | {first / found[0]:.2f} | {found[1]:.3f} | {found[2]:.3f} | {found[3]:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
