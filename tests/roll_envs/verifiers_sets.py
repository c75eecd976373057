"""Task sets of verifiers for tests: what a set may have, each in a few lines. Imported with the package only."""

from __future__ import annotations

import asyncio
import random
import sys
import types
from collections.abc import Iterator
from typing import Any, Literal

import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=0.75)
    async def right(self, trace: vf.Trace) -> float:
        return float(self.data.answer in trace.last_reply.split())

    @vf.reward(weight=0.25)
    async def short(self, trace: vf.Trace) -> float:
        return float(self.data.answer in trace.last_reply.split() and len(trace.last_reply) < 20)

    @vf.metric
    async def words(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply.split()))


class SumsConfig(vf.TasksetConfig):
    highest: int = 20


class Sums(vf.Taskset[SumTask, SumsConfig]):
    def load(self) -> list[SumTask]:
        return [
            SumTask(SumData(prompt=f"{n} + {n} = ?", answer=str(2 * n), system_prompt="Add."), self.config.task)
            for n in range(self.config.highest)
        ]


class NamedConfig(vf.TasksetConfig):
    split: Literal["train", "test"] = "train"


class Named(vf.Taskset[SumTask, NamedConfig]):
    def load(self) -> list[SumTask]:
        first = {"train": 0, "test": 100}[self.config.split]
        return [SumTask(SumData(prompt=f"{n} + {n} = ?", answer=str(2 * n))) for n in range(first, first + 3)]


class Endless(vf.Taskset[SumTask, vf.TasksetConfig]):
    INFINITE = True

    def load(self) -> Iterator[SumTask]:
        number = 0
        while True:
            yield SumTask(SumData(prompt=f"{number} + {number} = ?", answer=str(2 * number)))
            number += 1


class Flaky(vf.Taskset[SumTask, SumsConfig]):
    """Breaks off in the middle of its tasks, the first time."""

    tries = 0

    def load(self) -> Iterator[SumTask]:
        type(self).tries += 1
        for number in range(self.config.highest):
            if number == 5 and self.tries == 1:
                raise OSError("no route to host")
            yield SumTask(SumData(prompt=f"{number} + {number} = ?", answer=str(2 * number)))


class Ending(vf.Taskset[SumTask, vf.TasksetConfig]):
    """Says that it never ends, and has three tasks."""

    INFINITE = True

    def load(self) -> list[SumTask]:
        return [SumTask(SumData(prompt="?", answer="!"))] * 3


class BrokenTask(vf.Task[SumData]):
    """The rewards break in the way that the answer names."""

    @vf.reward
    async def reward(self, trace: vf.Trace) -> float:
        said = trace.last_reply
        if said == "hang":
            await asyncio.sleep(60)
        if said == "raise":
            raise KeyError("no such thing")
        if said == "draw":
            return random.random()
        return float({"nan": "nan", "infinite": "inf"}.get(said, "0"))


class Broken(vf.Taskset[BrokenTask, vf.TasksetConfig]):
    def load(self) -> list[BrokenTask]:
        return [BrokenTask(SumData(prompt="How?", answer="raise"))]


class Count(vf.State):
    counted: int = 0


class Counter(vf.Toolset[vf.ToolsetConfig, Count]):
    @vf.tool
    async def add(self, by: int) -> str:
        """Add to the counter."""
        if by > 100:
            raise ValueError("too much")
        self.state.counted += by
        return f"{self.state.counted} now"


class CountTask(vf.Task[SumData, Count, vf.TaskConfig]):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [Counter(vf.ToolsetConfig())]

    @vf.reward
    async def reached(self, trace: vf.Trace[SumData, Count, Any]) -> float:
        return float(trace.state.counted == int(self.data.answer))

    @vf.metric
    async def results(self, trace: vf.Trace) -> float:
        return float(len(trace.tool_messages))


class Counting(vf.Taskset[CountTask, vf.TasksetConfig]):
    def load(self) -> list[CountTask]:
        return [CountTask(SumData(prompt=f"Count to {n}.", answer=str(n))) for n in (5, 7)]


class GuessTask(vf.Task[SumData]):
    @vf.stop
    async def gave_up(self, trace: vf.Trace) -> bool:
        return trace.last_reply == "stop"

    async def setup(self, trace: vf.Trace) -> None:
        trace.info["set up"] = True


class GuessConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GuessEnv(vf.Env[GuessConfig]):
    """The user says whether a number is higher or lower."""

    async def run(self, task: Any, agents: Any) -> None:
        right, guesses = int(task.data.answer), 0
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated:
                guesses += 1
                if segment.last_reply == str(right):
                    break
                higher = segment.last_reply.isdigit() and int(segment.last_reply) < right
                segment = await interaction.turn("Higher." if higher else "Lower.")
        interaction.trace.record_reward("found", float(segment.last_reply == str(right)) / max(1, guesses))

    async def finalize(self, task: Any, episode: vf.Episode) -> None:
        assert episode.traces[0].info["set up"]


class Guesses(vf.Taskset[GuessTask, vf.TasksetConfig]):
    def load(self) -> list[GuessTask]:
        opening = [vf.UserMessage(content="Guess."), vf.AssistantMessage(content="7"), vf.UserMessage(content="Lower.")]
        return [GuessTask(SumData(prompt=opening, answer=str(n))) for n in (2, 5)]


class BoxTask(SumTask):
    NEEDS_CONTAINER = True


class RuntimeTask(SumTask):
    @vf.reward
    async def ran(self, trace: vf.Trace, runtime: vf.Runtime) -> float:
        return 1.0


class Boxes(vf.Taskset[BoxTask, vf.TasksetConfig]):
    def load(self) -> list[BoxTask]:
        return [BoxTask(SumData(prompt="?", answer="!"))]


class Runtimes(vf.Taskset[RuntimeTask, vf.TasksetConfig]):
    def load(self) -> list[RuntimeTask]:
        return [RuntimeTask(SumData(prompt="?", answer="!"))]


class Nothing(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self) -> list[SumTask]:
        return []


class PairConfig(vf.EnvConfig):
    one: vf.AgentConfig = vf.AgentConfig()
    two: vf.AgentConfig = vf.AgentConfig()


class PairEnv(vf.Env[PairConfig]):
    async def run(self, task: Any, agents: Any) -> None:
        await agents.one.run(task)


class TwiceEnv(vf.Env[GuessConfig]):
    async def run(self, task: Any, agents: Any) -> None:
        await agents.player.run(task)
        await agents.player.run(task)


SETS = {
    "sums": [Sums], "named": [Named], "endless": [Endless], "flaky": [Flaky],
    "ending": [Ending], "broken": [Broken], "counting": [Counting],
    "guesses": [Guesses, GuessEnv], "boxes": [Boxes], "runtimes": [Runtimes], "nothing": [Nothing],
    "pair": [Sums, PairEnv], "twice": [Sums, TwiceEnv],
}  # fmt: skip
# The package finds a set by the module of its name.
for _name, _parts in SETS.items():
    _module = types.ModuleType(f"test_set_{_name}")
    _module.__dict__.update({part.__name__: part for part in _parts}, __all__=[part.__name__ for part in _parts])
    _module.__spec__ = __spec__
    sys.modules[_module.__name__] = _module
