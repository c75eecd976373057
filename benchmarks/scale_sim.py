"""How 8 to 1,024 GPUs would share playing and learning: a simulation with the scheduler's own window, no GPU needed.

    python benchmarks/scale_sim.py                                   # reasoning: one long turn
    python benchmarks/scale_sim.py --work agentic
    python benchmarks/scale_sim.py --records runs/NAME/episodes/stream.jsonl.gz --scale 40

``sync`` plays on all GPUs, then learns on all of them. ``overlap`` and ``async`` give ``--learners`` of the GPUs to the
learner for good; the share with the shortest step is looked for when it is not given. A step learns from
``--episodes`` episodes, however many GPUs there are, in groups of 8; which groups are begun and taken when is said by
:class:`trainer.rollout.scheduler.Window`. "Engines idle": tokens not sampled, of those that full slots would have given
(in ``sync`` of the time that it plays). "Learner idle": the share of the time that it waits.

Assumed, and to be changed on the command line: an engine runs at most ``--slots`` sequences, and a pass over ``c`` of
them takes ``--pass-ms`` * (1 + c / ``--half``); episodes go to the engine with the fewest; prompts cost nothing. The
learner takes ``6 * parameters * tokens / (MFU * peak)``, divided evenly by its GPUs. New weights take ``--sync-s``, in
which engines stand still; no replica fails. Answers have lognormal lengths, cut at ``--longest``.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trainer.rollout.scheduler import Window
from trainer.rollout.stream import RecordReader

GROUP = 8
"""Episodes of one task."""
PUBLISHED = (
    "RollPacker, sync with tail batching, <= 128 H800: 2.03-2.56 x verl (arXiv:2509.21009)",
    "AReaL, bounded staleness: 2.77 x synchronous (arXiv:2505.24298)",
    "Laminar, asynchrony by trajectory, 1,024 GPUs: up to 5.48 x (arXiv:2510.12633)",
)

Episode = list[tuple[float, float]]
"""For each turn the tokens of its answer, and the seconds that the environment then takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What engines and the learner can do, by GPU."""

    slots: int
    pass_s: float
    half: float
    learn_tokens_s: float
    sync_s: float

    def speed(self, running: int) -> float:
        """Tokens/s of each of ``running`` sequences on one GPU."""
        return 1.0 / (self.pass_s * (1.0 + running / self.half))


class Engines:
    """GPUs that share their time among sequences, and environments beside them. Time stands where it was left.

    A GPU's ``grown`` is how many tokens a sequence that was always there would have: one that begins now with n tokens
    to go ends when it has grown by n.
    """

    def __init__(self, gpus: int, machine: Machine) -> None:
        self.now = 0.0
        self.tokens = 0.0
        self._machine = machine
        self._grown, self._since = [0.0] * gpus, [0.0] * gpus
        self._ends: list[list[tuple[float, int, Iterator[tuple[float, float]], int, float]]] = [[] for _ in range(gpus)]
        self._next: list[tuple[float, int, int, int]] = []  # when, of which GPU, its epoch
        self._epoch = [0] * gpus
        self._back: list[tuple[float, int, Iterator[tuple[float, float]], int]] = []
        self._waiting: deque[tuple[Iterator[tuple[float, float]], int, float, float]] = deque()
        self._by_load = [(0, gpu) for gpu in range(gpus)]  # one entry or more a GPU: an old one is not its load
        self._number = itertools.count()

    def begin(self, episode: Episode, group: int) -> None:
        self._turn(iter(episode), group)

    def _turn(self, turns: Iterator[tuple[float, float]], group: int) -> bool:
        """Ask for the next turn; False when there is none."""
        turn = next(turns, None)
        if turn is None:
            return False
        while len(self._ends[self._by_load[0][1]]) != self._by_load[0][0]:
            heapq.heappop(self._by_load)
        load, gpu = self._by_load[0]
        if load >= self._machine.slots:
            self._waiting.append((turns, group, *turn))
        else:
            self._place(gpu, turns, group, *turn)
        return True

    def _place(self, gpu: int, turns: Iterator[tuple[float, float]], group: int, tokens: float, env_s: float) -> None:
        self._advance(gpu)
        self.tokens += tokens
        heapq.heappush(self._ends[gpu], (self._grown[gpu] + tokens, next(self._number), turns, group, env_s))
        self._plan(gpu)

    def _advance(self, gpu: int) -> None:
        self._grown[gpu] += (self.now - self._since[gpu]) * self._machine.speed(len(self._ends[gpu]))
        self._since[gpu] = self.now

    def _plan(self, gpu: int) -> None:
        """After its sequences have changed."""
        heapq.heappush(self._by_load, (len(self._ends[gpu]), gpu))
        self._epoch[gpu] += 1
        if self._ends[gpu]:
            left = self._ends[gpu][0][0] - self._grown[gpu]
            when = self.now + max(0.0, left) / self._machine.speed(len(self._ends[gpu]))
            heapq.heappush(self._next, (when, next(self._number), gpu, self._epoch[gpu]))

    def stand_still(self, seconds: float) -> None:
        """Nothing grows for a while; environments go on."""
        for gpu in range(len(self._ends)):
            self._advance(gpu)
            self._since[gpu] += seconds
        self.now += seconds
        self._next = [(when + seconds, number, gpu, epoch) for when, number, gpu, epoch in self._next]

    def until(self, limit: float) -> int | None:
        """Go on to the next end of an episode, whose group is returned; None when ``limit`` comes first."""
        while True:
            while self._next and self._next[0][3] != self._epoch[self._next[0][2]]:
                heapq.heappop(self._next)
            answer = self._next[0][0] if self._next else math.inf
            back = self._back[0][0] if self._back else math.inf
            if min(answer, back) > limit:
                self.now = limit
                return None
            self.now = min(answer, back)
            if back <= answer:
                _, _, turns, group = heapq.heappop(self._back)
                if not self._turn(turns, group):
                    return group
                continue
            _, _, gpu, _ = heapq.heappop(self._next)
            self._advance(gpu)
            _, _, turns, group, env_s = heapq.heappop(self._ends[gpu])
            heapq.heappush(self._back, (self.now + env_s, next(self._number), turns, group))
            self._plan(gpu)
            if self._waiting:
                self._place(gpu, *self._waiting.popleft())


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Of a run that goes on."""

    step_s: float
    learner_idle: float | None
    engines_idle: float


def simulate(
    mode: str, gpus: int, learners: int, machine: Machine, draw: Callable[[], Episode], batch: int, *, steps: int
) -> Outcome:
    """``batch`` groups a step; ``learners`` of ``gpus`` only learn, or none where all take turns."""
    players, skipped = gpus - learners, 2
    engines = Engines(players, machine)
    staleness = {"sync": 0, "overlap": 1, "async": 2}[mode]
    window = Window(batch, staleness)
    size: dict[int, int] = {}
    tokens_of: dict[int, float] = {}
    number = itertools.count()

    def fill(step: int) -> None:
        for _ in range(window.room):
            index = next(number)
            window.begin(index, step)
            size[index], tokens_of[index] = GROUP, 0.0
            for _ in range(GROUP):
                episode = draw()
                tokens_of[index] += sum(tokens for tokens, _ in episode)
                engines.begin(episode, index)

    def play(limit: float) -> bool:
        """Go on to the next end of a group; False when ``limit`` comes first."""
        while (group := engines.until(limit)) is not None:
            size[group] -= 1
            if not size[group]:
                window.end(group)
                return True
        return False

    begun, busy, at_start = 0.0, 0.0, 0.0
    for step in range(steps + skipped):
        if step == skipped:
            begun, busy, at_start = engines.now, 0.0, engines.tokens
        fill(step)
        while (taken := window.take(step)) is None:
            play(math.inf)
            if mode == "async":
                fill(step)
        learn = sum(tokens_of.pop(index) for index in taken) / (machine.learn_tokens_s * (learners or gpus))
        busy += learn
        if mode == "sync":
            engines.stand_still(learn)
        else:
            limit = engines.now + learn
            fill(step + 1)  # in overlap all that runs until the weights change
            while play(limit):
                if mode == "async":
                    fill(step + 1)
        if mode == "overlap":
            while window.running:
                play(math.inf)
        engines.stand_still(machine.sync_s)
    seconds = engines.now - begun
    played = seconds - busy if mode == "sync" else seconds
    full = players * machine.slots * machine.speed(machine.slots) * played
    return Outcome(
        step_s=seconds / steps,
        learner_idle=None if mode == "sync" else 1 - busy / seconds,
        engines_idle=1 - (engines.tokens - at_start) / full,
    )


def best(mode: str, gpus: int, share: float | None, *args: object, **kwargs: object) -> tuple[int, Outcome]:
    """The outcome with the shortest step, and how many GPUs learn in it."""
    if mode == "sync":
        return 0, simulate(mode, gpus, 0, *args, **kwargs)  # type: ignore[arg-type]
    shares = [share] if share is not None else [1 / 8, 1 / 4, 3 / 8, 1 / 2]
    tried = {max(1, round(gpus * s)): None for s in shares}
    found = {n: simulate(mode, gpus, n, *args, **kwargs) for n in tried}  # type: ignore[arg-type]
    learners = min(found, key=lambda n: found[n].step_s)
    return learners, found[learners]


def lengths(options: argparse.Namespace, rng: random.Random) -> Callable[[], Episode]:
    """Draws episodes as the options say."""
    if options.records is not None:
        reader = RecordReader(options.records)
        recorded = [
            [(options.scale * len(turn.completion.ids), options.env_s) for turn in episode.turns]
            for member in reader.members
            for episode in reader.read(member).episodes
            if episode.scored  # those that were cut off say nothing of lengths
        ]
        return lambda: rng.choice(recorded)
    turns, median, sigma = {"reasoning": (1, 2500.0, 0.9), "agentic": (12, 150.0, 0.8)}[options.work]

    def draw() -> Episode:
        count = 1 if turns == 1 else min(50, max(1, round(rng.lognormvariate(0, 0.7) * turns)))
        seconds = 0.0 if turns == 1 else rng.lognormvariate(0, 1) * options.env_s
        return [(min(options.longest, rng.lognormvariate(0, sigma) * median), seconds) for _ in range(count)]

    return draw


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", choices=["reasoning", "agentic"], default="reasoning")
    parser.add_argument("--records", type=Path, help="a run's stream of records, in place of --work")
    parser.add_argument("--scale", type=float, default=1.0, help="times the recorded tokens")
    parser.add_argument("--gpus", nargs="+", type=int, default=[8, 64, 256, 1024])
    parser.add_argument("--learners", type=float, help="share of the GPUs that learn in overlap and async")
    parser.add_argument("--episodes", type=int, default=8192, help="of a step")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--pass-ms", type=float, default=12.0)
    parser.add_argument("--half", type=float, default=128.0)
    parser.add_argument("--longest", type=float, default=16384.0)
    parser.add_argument("--env-s", type=float, default=0.5, help="median seconds of an environment's step")
    parser.add_argument("--parameters", type=float, default=7.6e9)
    parser.add_argument("--mfu", type=float, default=0.35)
    parser.add_argument("--peak", type=float, default=989e12, help="FLOP/s of a GPU")
    parser.add_argument("--sync-s", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    machine = Machine(
        slots=options.slots,
        pass_s=options.pass_ms / 1000,
        half=options.half,
        learn_tokens_s=options.mfu * options.peak / (6 * options.parameters),
        sync_s=options.sync_s,
    )
    print("| GPUs | Mode | Learners | s a step | Against sync | Learner idle | Engines idle |\n|" + "---|" * 7)
    for gpus in options.gpus:
        sync = 0.0
        for mode in ("sync", "overlap", "async"):
            draw, groups = lengths(options, random.Random(options.seed)), options.episodes // GROUP
            learners, found = best(mode, gpus, options.learners, machine, draw, groups, steps=options.steps)
            sync = sync or found.step_s
            idle = "" if found.learner_idle is None else f"{found.learner_idle:.2f}"
            shown = f"{found.step_s:.1f} | {sync / found.step_s:.2f} | {idle} | {found.engines_idle:.2f}"
            print(f"| {gpus:,} | {mode} | {learners or 'all'} | {shown} |", flush=True)
    print("\nPublished, on other work and machines:", *PUBLISHED, sep="\n  ")


if __name__ == "__main__":
    main()
