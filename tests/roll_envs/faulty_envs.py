"""Environments with one planted fault each, and the rule of check_env that must catch it."""

from __future__ import annotations

import contextlib
import decimal
import gc
import io
import json
import logging
import os
import pickle
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from counter_shop import CounterShop

from envs.sokoban.env import SokobanEnv
from roll_envs import AnyText, ConfigError, EnvironmentCard
from roll_envs.testing import COUNTER_CARD, CheckResult, CounterEnv
from roll_envs.testing.process import Request
from roll_envs.testing.table import apply


class Fault(NamedTuple):
    """A faulty environment, the rule that catches it, and a part of what the rule says."""

    rule: str
    env: type[gymnasium.Env[Any, Any]]
    says: str
    card: EnvironmentCard | None = None


class UnseededReset(CounterEnv):
    def episode_seed(self, seed: int | None) -> int:
        return 1 if seed is None else seed


class NarrowSpace(CounterEnv):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gymnasium.spaces.Text(3)


class LatinActionsOnly(CounterEnv):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = gymnasium.spaces.Text(12, charset="<answer>Lo/M")


class SilentAboutTheForm(CounterEnv):
    @property
    def instructions(self) -> str:
        return "Use More and Less."


class SilentAboutAnAction(CounterEnv):
    @property
    def instructions(self) -> str:
        return "Move: <answer>More</answer>"


class Mumbles(CounterShop):
    def legal_answers(self) -> list[str]:
        return ["say[tea]", " "]


class NoLimit(CounterEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.max_turns = 0
        return super().reset(seed=seed)


class ShowsNumbers(CounterEnv):
    def step(self, action: str) -> Any:
        _, *rest = super().step(action)
        return self._value, *rest


class ChangingInstructions(CounterEnv):
    @property
    def instructions(self) -> str:
        return f"{super().instructions} Turn {self._turns}."


class NumpyFlags(CounterEnv):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "success": np.bool_(info["success"])}


class NumpyEnd(CounterEnv):
    def step(self, action: str) -> Any:
        observation, reward, terminated, *rest = super().step(action)
        return observation, reward, np.bool_(terminated), *rest


class NumpyCounts(CounterEnv):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "count": np.int64(1)}


class NumpyCountsAtReset(CounterEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observation, info = super().reset(seed=seed)
        return observation, {**info, "count": np.int64(1)}


class PaysForForm(CounterEnv):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "format_penalty": 0.1}


class PaysInfinity(CounterEnv):
    def step(self, action: str) -> Any:
        observation, _, *rest = super().step(action)
        return observation, float("inf"), *rest


class MissingKey(CounterEnv):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, {k: v for k, v in info.items() if k != "format_penalty"}


class UnnamedReward(CounterEnv):
    def step(self, action: str) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, reward - 0.01, *rest


class StaleRender(CounterEnv):
    def render(self) -> str:
        return "a counter"

    def step(self, action: str) -> Any:
        _, *rest = super().step(action)
        return f"counter {self._value}", *rest


class ClosesOnce(CounterEnv):
    def close(self) -> None:
        del self._turns


class PlaysBeforeTheReset(CounterEnv):
    def __init__(self) -> None:
        super().__init__()
        self._over = False


class GoesOnAfterTheEnd(CounterEnv):
    def step(self, action: str) -> Any:
        self._over = False
        return super().step(action)


class CountsInstances(CounterEnv):
    made = 0

    def __init__(self) -> None:
        super().__init__()
        CountsInstances.made += 1
        self._mine = CountsInstances.made

    def render(self) -> str:
        return f"{super().render()} {self._mine}"


class UsesHash(CounterEnv):
    def episode_seed(self, seed: int | None) -> int:
        return abs(hash(str(super().episode_seed(seed))))


class PrintsSet(CounterEnv):
    def render(self) -> str:
        return f"{super().render()} {set('abcdefgh')}"


class MainThreadOnly(CounterEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        return super().reset(seed=seed)


class LeavesOtherThreads(CounterEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if threading.current_thread() is not threading.main_thread():
            raise SystemExit
        return super().reset(seed=seed)


class ClassState(CounterEnv):
    shared: dict[str, int] = {}  # noqa: RUF012 - the fault

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.shared["turns"] = 0
        return super().reset(seed=seed)

    def step(self, action: str) -> Any:
        self.shared["turns"] += 1
        observation, *rest = super().step(action)
        return f"{observation}, turn {self.shared['turns']}", *rest


class GlobalDraws(CounterEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        random.seed(seed)
        return super().reset(seed=seed)

    def step(self, action: str) -> Any:
        observation, *rest = super().step(action)
        return f"{observation} {random.random()}", *rest


class SeedsNumpy(CounterEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        np.random.seed(self.episode_seed(seed) % 2**32)
        return super().reset(seed=seed)


class KeepsCounting(CounterEnv):
    ever = 0

    def step(self, action: str) -> Any:
        self.ever += 1
        observation, *rest = super().step(action)
        return f"{observation} ({self.ever} turns)", *rest


class ForgetsTurns(CounterEnv):
    def snapshot(self) -> Any:
        return {**super().snapshot(), "turns": 0}


class LiveSnapshot(CounterEnv):
    def __init__(self) -> None:
        super().__init__()
        self._log: list[str] = []

    def step(self, action: str) -> Any:
        self._log.append(action)
        return super().step(action)

    def snapshot(self) -> Any:
        return {**super().snapshot(), "log": self._log}


class TuplesAndArrays(CounterEnv):
    def snapshot(self) -> Any:
        return {**super().snapshot(), "value": np.int64(self._value)}


class StaysTired(CounterEnv):
    """Right in a new instance, since that is not tired yet."""

    tired = False

    def __init__(self) -> None:
        super().__init__(highest=20)

    def step(self, action: str) -> Any:
        observation, *rest = super().step(action)
        observation += ", tired" if self.tired else ""
        self.tired = self._turns >= 5
        return observation, *rest


class OracleMoves(CounterEnv):
    def oracle(self) -> list[str] | None:
        self._turns += 1
        return super().oracle()


class PaysForLength(CounterEnv):
    def step(self, action: str) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, reward + len(action) / 1000, *rest


class WinsByLength(CounterEnv):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "success": info["success"] or len(action) > 1000}


class EncodesStrictly(CounterEnv):
    def step(self, action: str) -> Any:
        action.encode()
        return super().step(action)


class ReadsNumbers(CounterEnv):
    def step(self, action: str) -> Any:
        digits = "".join(c for c in action if c.isdigit())
        self._last = int(digits or 0)
        return super().step(action)


class MovesWhenIdle(CounterEnv):
    def step(self, action: str) -> Any:
        return super().step(action or "<answer>More</answer>")


class PaysIdlers(CounterEnv):
    def step(self, action: str) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, reward if action else 0.2, *rest


class EndsTwice(CounterEnv):
    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, truncated, info


class EndsTwiceOnALateWin(CounterEnv):
    def __init__(self) -> None:
        super().__init__(highest=20, max_turns=21)  # far enough that chance does not win on the last turn

    def step(self, action: str) -> Any:
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, self._turns >= self.max_turns, info


class EndsATurnLate(CounterEnv):
    def __init__(self) -> None:
        super().__init__(highest=20)

    def step(self, action: str) -> Any:
        self.max_turns += 1
        result = super().step(action)
        self.max_turns -= 1
        return result


class ForgivesForEver(CounterEnv):
    def step(self, action: str) -> Any:
        if not self.action_format.parse(action).valid:
            self._turns -= 1
        return super().step(action)


class WrongOracle(CounterEnv):
    def oracle(self) -> list[str] | None:
        return ["<answer>Less</answer>"] * self.max_turns


class TalkativeOracle(CounterEnv):
    def oracle(self) -> list[str] | None:
        way = super().oracle()
        return way and [*way, "<answer>More</answer>"]


class DetourOracle(CounterEnv):
    def oracle(self) -> list[str] | None:
        way = super().oracle()
        return way and ["<answer>Less</answer>", "<answer>More</answer>", *way]


class FarDetourOracle(DetourOracle):
    """No random player is quicker."""

    def __init__(self) -> None:
        super().__init__(highest=20, max_turns=24)


class FixedOracle(CounterEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        found = super().reset(seed=seed, options=options)
        self._way = super().oracle()
        return found

    def oracle(self) -> list[str] | None:
        return self._way


class AnswersWithNothing(CounterEnv):
    """Some steps later than the first."""

    def step(self, action: str) -> Any:
        _, *rest = super().step(action)
        return None if self.snapshot()["turns"] > 1 else _, *rest


class AllValid(CounterEnv):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "action_is_valid": True}


class ForgetsTheEnd(CounterEnv):
    def restore(self, snapshot: Any) -> str:
        return super().restore({**snapshot, "over": False})

    def snapshot(self) -> Any:
        return super().snapshot()


class Moves(CounterEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        os.chdir("/")
        return super().reset(seed=seed, options=options)


class SetsVariables(CounterEnv):
    def step(self, action: str) -> Any:
        os.environ["COUNTER_TURN"] = action[:20]
        return super().step(action)


class LeavesFiles(CounterEnv):
    def close(self) -> None:
        Path("counter.log").touch()


class Prints(CounterEnv):
    def step(self, action: str) -> Any:
        print("turn")
        return super().step(action)


class LeavesThreads(CounterEnv):
    def __init__(self) -> None:
        super().__init__()
        threading.Thread(target=time.sleep, args=(5,), name="watcher", daemon=True).start()


class Spawns(CounterEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._helper = subprocess.Popen(["sleep", "20"])
        return super().reset(seed=seed)


class LeavesFilesOpen(CounterEnv):
    opened: list[Any] = []  # noqa: RUF012 - the fault

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.opened.append(open(os.devnull))  # noqa: SIM115 - the fault
        return super().reset(seed=seed)


class WritesElsewhere(CounterEnv):
    def step(self, action: str) -> Any:
        with contextlib.suppress(OSError), open("/no/such/folder/counter.log", "a") as log:
            log.write(action)
        return super().step(action)


class CallsHome(CounterEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        with socket.socket() as home, contextlib.suppress(OSError):
            home.settimeout(0.01)
            home.connect(("192.0.2.1", 80))
        return super().reset(seed=seed)


class PrintsByChild(CounterEnv):
    def step(self, action: str) -> Any:
        subprocess.run(["echo", "turn"], check=True)
        return super().step(action)


class HandlesSignals(CounterEnv):
    def __init__(self) -> None:
        super().__init__()
        with contextlib.suppress(ValueError):  # in a thread
            signal.signal(signal.SIGTERM, signal.SIG_IGN)


class RemembersAll(CounterEnv):
    def step(self, action: str) -> Any:
        found = super().step(action)
        self._log = [*getattr(self, "_log", []), found]
        return found


class Sleeps(CounterEnv):
    def step(self, action: str) -> Any:
        time.sleep(0.51)
        return super().step(action)


class OneTask(CounterEnv):
    def episode_seed(self, seed: int | None) -> int:
        super().episode_seed(seed)
        return 5


class SmallSeeds(CounterEnv):
    def episode_seed(self, seed: int | None) -> int:
        return super().episode_seed(None if seed is None else np.int16(seed).item())


class SameHeldOut(CounterEnv):
    def episode_seed(self, seed: int | None) -> int:
        return super().episode_seed(None if seed is None else seed % 1000)


class StickyOptions(CounterEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.highest = 9 if options is not None else 4
        return super().reset(seed=seed)


class TakesOptions(CounterEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if options is not None:
            options["highest"] = 4
        return super().reset(seed=seed)


class AnySplit(CounterEnv):
    splits = ("train", "test")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observation, info = super().reset(seed=seed)
        return f"{observation} {(options or {}).get('split')}", info


class OverlappingSplits(CounterEnv):
    splits = ("train", "test")


class TellsTheWay(CounterEnv):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "debug": {"plan": self.oracle()}}


class ShowsTheWay(CounterEnv):
    def __init__(self) -> None:
        super().__init__(highest=9)
        self.max_turns = 12

    def render(self) -> str:
        return f"{super().render()} {', '.join(['More'] * (self._target - self._value))}"


class TellsTheAnswer(CounterShop):
    def __init__(self) -> None:
        super().__init__(max_turns=1)

    def oracle(self) -> list[str] | None:
        return [f"say[{self._wanted}]"]

    def _info(self) -> dict[str, Any]:
        return {"row": 1, "reference": f"say[{self._wanted}]"}


class ShowsTheAnswer(TellsTheAnswer):
    def _look(self) -> str:
        return f"Say it. (Answer: say[{self._wanted}])"

    def _info(self) -> dict[str, Any]:
        return {}


class ReadsItself(CounterEnv):
    """Takes the first action that stands anywhere in an answer."""

    def step(self, action: str) -> Any:
        for name in self.action_format.actions:
            if name in action:
                action = self.action_format.format([self.action_format.actions.index(name)])
                break
        return super().step(action)


class ReadsCase(CounterEnv):
    def step(self, action: str) -> Any:
        return super().step(action if action == action.lower() else action.replace("more", "").replace("MORE", ""))


class RefusesLess(CounterEnv):
    def step(self, action: str) -> Any:
        return super().step("" if action == self.action_format.format([0]) else action)


class ListsTwice(CounterEnv):
    def legal_answers(self) -> list[str]:
        return [*super().legal_answers(), self.action_format.format([0])]


class ThreeValues(CounterEnv):
    """On the second turn only."""

    def step(self, action: str) -> Any:
        found = super().step(action)
        return found if self._turns < 2 else found[:3]


class WordsForRewards(CounterEnv):
    def step(self, action: str) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, str(reward), *rest


class OwnKeys(CounterEnv):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, 3: True}


class EffectiveAnyway(CounterEnv):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "action_is_effective": True}


class Unnumbered(CounterEnv):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "mean": float("nan")}


class BreaksInReset(CounterEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        raise RuntimeError("no display")


class OneInfo(CounterEnv):
    def __init__(self) -> None:
        super().__init__()
        self._info: dict[str, Any] = {}

    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        self._info.update(info)
        return *rest, self._info


class TellsTooMuch(CounterEnv):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "log": "x" * 2_000_000}


class ShowsTooMuch(CounterEnv):
    def render(self) -> str:
        return super().render() + " " * 2_000_000


class OddExamples(CounterEnv):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = AnyText(("hello", "world"))


class KeepsTheSnapshot(CounterEnv):
    _log: list[str]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._log = []
        return super().reset(seed=seed)

    def step(self, action: str) -> Any:
        self._log.append(action)
        return super().step(action)

    def snapshot(self) -> Any:
        return {**super().snapshot(), "log": list(self._log)}

    def restore(self, snapshot: Any) -> str:
        self._log = snapshot["log"]
        return super().restore(snapshot)


class ReadsNested(CounterEnv):
    def step(self, action: str) -> Any:
        with contextlib.suppress(ValueError):
            json.loads(action)
        return super().step(action)


class ShufflesLegalAnswers(CounterEnv):
    def __init__(self) -> None:
        super().__init__()
        self._asked = 0

    def legal_answers(self) -> list[str]:
        self._asked += 1
        return super().legal_answers()[:: (-1) ** self._asked]


class BeginsTheSame(CounterEnv):
    def episode_seed(self, seed: int | None) -> int:
        return super().episode_seed(self._np_random_seed if seed is None else seed)


class HintsTheWay(CounterEnv):
    def __init__(self) -> None:
        super().__init__(highest=6)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        found = super().reset(seed=seed)
        self._target = max(self._target, 4)
        self._hint = f"Hint: {self.oracle()}"
        return self.render(), found[1]

    def restore(self, snapshot: Any) -> str:
        return super().restore(snapshot)

    def snapshot(self) -> Any:
        return super().snapshot()

    @property
    def instructions(self) -> str:
        return f"{super().instructions} {self._hint}"


class SilencesLogs(CounterEnv):
    def step(self, action: str) -> Any:
        logging.getLogger().setLevel(logging.CRITICAL)
        return super().step(action)


class RoundsDecimals(CounterEnv):
    def step(self, action: str) -> Any:
        decimal.getcontext().prec = 5
        return super().step(action)


class KeepsGarbage(CounterEnv):
    def step(self, action: str) -> Any:
        gc.disable()
        return super().step(action)


class HidesFiles(CounterEnv):
    def step(self, action: str) -> Any:
        os.umask(0o077)
        return super().step(action)


class HurriesSockets(CounterEnv):
    def step(self, action: str) -> Any:
        socket.setdefaulttimeout(3.0)
        return super().step(action)


class SwallowsErrors(CounterEnv):
    def step(self, action: str) -> Any:
        sys.excepthook = lambda *error: None
        return super().step(action)


class SetsATimer(CounterEnv):
    def step(self, action: str) -> Any:
        signal.setitimer(signal.ITIMER_REAL, 3600)
        return super().step(action)


class TakesStdin(CounterEnv):
    def step(self, action: str) -> Any:
        sys.stdin = io.StringIO()
        return super().step(action)


class NeverEffective(CounterEnv):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "action_is_effective": False}


class NeverEffectiveInTheDark(NeverEffective):
    """Only the oracle's episodes tell that the state changes."""

    def __init__(self) -> None:
        super().__init__(max_turns=4)

    def render(self) -> str:
        return f"target {self._target}"


class TiresLate(CounterEnv):
    begun = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.begun += 1
        return super().reset(seed=seed)

    def step(self, action: str) -> Any:
        return super().step(action if self.begun < 50 else "")


class Ponders(CounterEnv):
    def oracle(self) -> list[str] | None:
        time.sleep(2.1)
        return super().oracle()


class ListsMoreAlone(CounterEnv):
    def legal_answers(self) -> list[str]:
        return super().legal_answers()[1:]


class ListsSaltOnce(CounterShop):
    def legal_answers(self) -> list[str]:
        words = ("tea",) if self._said else ("tea", "salt")
        return [self.action_format.write(action) for action in (*(f"say[{word}]" for word in words), "click[leave]")]


class NeverListsTheDoor(CounterShop):
    def legal_answers(self) -> list[str]:
        return [self.action_format.write(f"say[{word}]") for word in ("tea", "salt")]


class FarCounter(CounterEnv):
    """A random player does not win: faults of a win, and of later turns, wait for others."""

    def __init__(self) -> None:
        super().__init__(highest=20, max_turns=24)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        _, info = super().reset(seed=seed)
        self._target = max(self._target, 12)
        return self.render(), info


class WinsNothing(FarCounter):
    def step(self, action: str) -> Any:
        observation, reward, terminated, *rest = super().step(action)
        return observation, float("nan") if terminated else reward, terminated, *rest


class ForgetsAtTheWin(FarCounter):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        if info["success"]:
            del info["action_is_valid"]
        return *rest, info


class BowsAtTheWin(FarCounter):
    def step(self, action: str) -> Any:
        observation, reward, terminated, *rest = super().step(action)
        return "Well done!" if terminated else observation, reward, terminated, *rest


class PlaysOnAfterTheWin(FarCounter):
    def step(self, action: str) -> Any:
        self._over = self._over and (not self._turns or self._value != self._target)
        return super().step(action)


class RestoresTheWin(FarCounter):
    def restore(self, snapshot: Any) -> str:
        shown = super().restore(snapshot)
        self._over = self._turns >= self.max_turns
        return shown

    def snapshot(self) -> Any:
        return super().snapshot()


class StaysOver(CounterEnv):
    def restore(self, snapshot: Any) -> str:
        over = self._over and self._turns > 0
        shown = super().restore(snapshot)
        self._over |= over
        return shown

    def snapshot(self) -> Any:
        return super().snapshot()


class ChangesTheOthers(CounterEnv):
    moves = (-1, 1)

    def close(self) -> None:
        ChangesTheOthers.moves = ()

    def step(self, action: str) -> Any:
        return super().step(action if self.moves else None)  # type: ignore[arg-type]


class NoText(CounterEnv):
    metadata: dict[str, Any] = {}  # noqa: RUF012 - the fault


class EffectiveWhereNothingMoves(FarCounter):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        valid = info["action_is_valid"]
        return *rest, {**info, "action_is_effective": valid and not info["action_is_effective"]}


class ShowsTheDay(CounterEnv):
    def render(self) -> str:
        return f"{super().render()} ({time.strftime('%A')})"


class DealsByHash(CounterEnv):
    splits = ("train", "test")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        found = super().reset(seed=seed)
        if options:
            self._target = abs(hash(options["split"])) % 1000
        return self.render(), found[1]


class KeepsItsThread(CounterEnv):
    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def step(self, action: str) -> Any:
        if threading.get_ident() != self._thread:
            raise RuntimeError("made in another thread")
        return super().step(action)


class LeavesTemporaryFiles(CounterEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._folder = tempfile.mkdtemp()
        return super().reset(seed=seed)


class LeavesOrphans(CounterEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        subprocess.run(["sh", "-c", "sleep 20 &"], check=True)
        return super().reset(seed=seed)


class SilencesWarnings(CounterEnv):
    def step(self, action: str) -> Any:
        warnings.simplefilter("ignore")
        return super().step(action)


class TakesStdout(CounterEnv):
    def step(self, action: str) -> Any:
        sys.stdout = io.StringIO()
        return super().step(action)


class CountsDigits(CounterEnv):
    def step(self, action: str) -> Any:
        sys.set_int_max_str_digits(0)
        return super().step(action)


class CheersAtTheWin(FarCounter):
    def step(self, action: str) -> Any:
        found = super().step(action)
        if found[2]:
            print("solved")
        return found


class PrintsItsWay(CounterEnv):
    def oracle(self) -> list[str] | None:
        print("searching")
        return super().oracle()


class SleepsOnce(FarCounter):
    def step(self, action: str) -> Any:
        time.sleep(1.1 if self._turns == 15 else 0)
        return super().step(action)


class SameInPairs(CounterEnv):
    def __init__(self) -> None:
        super().__init__(highest=10_000)

    def episode_seed(self, seed: int | None) -> int:
        return super().episode_seed(seed) // 2


class SlowSameInPairs(SameInPairs):
    """Few of its episodes are begun, but enough."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        time.sleep(0.07)
        return super().reset(seed=seed, options=options)


class RefusesItsSplits(CounterEnv):
    splits = ("train", "test")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if options:
            raise ConfigError("there are no splits")
        return super().reset(seed=seed)


class OneTaskASplit(CounterEnv):
    splits = ("train", "test")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if not options:
            return super().reset(seed=seed)
        return super().reset(seed=self.splits.index(options["split"]))


class OverlapsLate(CounterEnv):
    splits = ("train", "test")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        _, info = super().reset(seed=seed)
        self._target = (seed or 0) % 60 + (150 if options == {"split": "test"} else 100)
        return self.render(), info


class EitherWay(CounterEnv):
    """Targets on both sides of 0."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        _, info = super().reset(seed=seed)
        self._target = (self._target + 1) * (-1) ** self._target
        return self.render(), info


class TellsTheNextMove(EitherWay):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "expected": (self.oracle() or [""])[0]}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observation, info = super().reset(seed=seed)
        return observation, {**info, "expected": (self.oracle() or [""])[0]}


class TellsInitials(EitherWay):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observation, info = super().reset(seed=seed)
        names = [self.action_format.parse(answer).content for answer in self.oracle() or ()]
        return observation, {**info, "key": "".join(name[0] for name in names)}


class ReadsTheLast(CounterEnv):
    def step(self, action: str) -> Any:
        return super().step(action[action.rfind("<answer>") :] if "<answer>" in action else action)


class ReadsTheFirstOfTwo(CounterEnv):
    def step(self, action: str) -> Any:
        return super().step(action.split(" ||", maxsplit=1)[0] + "</answer>" if " ||" in action else action)


class NeedsNoThought(CounterEnv):
    def __init__(self) -> None:
        super().__init__(action_format="think-answer")

    def step(self, action: str) -> Any:
        return super().step(action if "</think>" in action else f"</think>{action}")


class TakesDigits(CounterShop):
    def step(self, action: str) -> Any:
        said = (self.action_format.read(action) or "")[4:-1][:100]
        if said.isdigit():
            int(said)
        return super().step(action)


class SearchesByPattern(CounterShop):
    def step(self, action: str) -> Any:
        re.search((self.action_format.read(action) or "")[4:-1][:100], "tea, salt")
        return super().step(action)


class AllValidInTheShop(CounterShop):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "action_is_valid": True}


class JumpsLate(FarCounter):
    def legal_answers(self) -> list[str]:
        return [*super().legal_answers(), *(["<answer>Jump</answer>"] if self._turns > 4 else [])]


class ListsNothingLate(FarCounter):
    def legal_answers(self) -> list[str]:
        return super().legal_answers() if self._turns < 3 else []


class ListsMoreAloneLate(FarCounter):
    def legal_answers(self) -> list[str]:
        return super().legal_answers()[self._turns > 4 :]


class LosesAndSucceeds(CounterEnv):
    """To go below 0 ends the game, which counts as success."""

    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        if self._value < 0 and not truncated:
            self._over = terminated = info["success"] = True
            reward -= 1.0
            info["reward_parts"]["lost"] = -1.0
        return observation, reward, terminated, truncated, info


class MovesDownWhenIdle(SokobanEnv):
    def step(self, action: str) -> Any:
        valid = self.action_format.parse(action).valid
        *rest, info = super().step(action if valid else "<answer>Down</answer>")
        return *rest, {**info, "action_is_valid": valid, "action_is_effective": valid and info["action_is_effective"]}


class EndsATurnEarly(FarCounter):
    def step(self, action: str) -> Any:
        self.max_turns -= 1
        result = super().step(action)
        self.max_turns += 1
        return result


class EndsByTheRules(CounterEnv):
    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, False, info


class OracleTiresLate(FarCounter):
    def oracle(self) -> list[str] | None:
        way = super().oracle()
        return way[1:] if way and self._turns > 2 else way


FAULTS = (
    Fault("values", WinsNothing, "the reward is nan"),
    Fault("info", ForgetsAtTheWin, "info lacks 'action_is_valid'"),
    Fault("info", EffectiveWhereNothingMoves, "action_is_effective is False at every such step"),
    Fault("render", BowsAtTheWin, "not the observation"),
    Fault("render", NoText, "metadata has the render_modes ()"),
    Fault("close_twice", ChangesTheOthers, "TypeError"),
    Fault("step_outside_an_episode", PlaysOnAfterTheWin, "after the end of the episode (terminated) does not raise"),
    Fault("ended_snapshots", RestoresTheWin, "can be played on after restore"),
    Fault("snapshots", StaysOver, "ResetNeeded"),
    Fault("processes", ShowsTheDay, "in another process"),
    Fault("processes", DealsByHash, "of split 'train' in another process (PYTHONHASHSEED=1) is another episode"),
    Fault("threads", KeepsItsThread, "made in another thread"),
    Fault("side_effects", LeavesTemporaryFiles, "in the folder of temporary files"),
    Fault("side_effects", LeavesOrphans, "leaves the process"),
    Fault("side_effects", SilencesWarnings, "sets the filter of warnings"),
    Fault("side_effects", TakesStdout, "replaces sys.stdout"),
    Fault("side_effects", CountsDigits, "changes the limit of digits: 0 instead of 4300"),
    Fault("side_effects", CheersAtTheWin, "prints 'solved"),
    Fault("side_effects", PrintsItsWay, "prints 'searching"),
    Fault("latency", SleepsOnce, "s each time; more than 1 s keeps its group waiting"),
    Fault("seeds_differ", SameInPairs, "20 seeds in a row begin 10 different episodes, others 20"),
    Fault("seeds_differ", SlowSameInPairs, "8 seeds in a row begin 4 different episodes, others 8"),
    Fault("splits", RefusesItsSplits, "refuses each of the splits ('train', 'test')"),
    Fault("splits", OneTaskASplit, "20 seeds of a split begin one task"),
    Fault("splits", OverlapsLate, "is one of 'train' too"),
    Fault("leaks", TellsTheNextMove, "info['expected'] always holds the oracle's next answer"),
    Fault("leaks", TellsInitials, "the info holds the answer"),
    Fault("near_answers", ReadsTheLast, "plays another action"),
    Fault("near_answers", ReadsTheFirstOfTwo, "reads nothing in"),
    Fault("near_answers", NeedsNoThought, "reads nothing in '<answer>Less</answer>'"),
    Fault("near_answers", TakesDigits, "raises ValueError: invalid literal for int()"),
    Fault("near_answers", SearchesByPattern, "PatternError" if sys.version_info >= (3, 13) else "raises error"),
    Fault("strange_answers", AllValidInTheShop, "names no action, and action_is_valid is True"),
    Fault("legal_answers", JumpsLate, "lists '<answer>Jump</answer>' at turn 5"),
    Fault("legal_answers", ListsNothingLate, "lists nothing at turn 3 of seed 0"),
    Fault("unlisted_answers", ListsMoreAloneLate, "leaves out '<answer>Less</answer>' at turn 5 of seed 0"),
    Fault("floor", LosesAndSucceeds, "counts as success and earns"),
    Fault("floor", MovesDownWhenIdle, "cannot be read and plays a move"),
    Fault("ends", EndsATurnEarly, "is truncated after 23 turns, but max_turns is 24"),
    Fault("ends", EndsByTheRules, "the turn limit ends seed 0 by terminated"),
    Fault("oracle", FarDetourOracle, "earns more without 1 of its answers from turn 1 on"),
    Fault("oracle_midway", OracleTiresLate, "after 3 random answers in seed 0 the oracle's"),
    Fault("gymnasium_checker", UnseededReset, "random number generator"),
    Fault("gymnasium_checker", BreaksInReset, "RuntimeError: no display"),
    Fault("spaces", NarrowSpace, "not in observation_space"),
    Fault("spaces", LatinActionsOnly, "use roll_envs.AnyText()"),
    Fault("prompt", SilentAboutTheForm, "<answer>"),
    Fault("spaces", AnswersWithNothing, "step after reset(seed=0) gives a NoneType; return text (str)"),
    Fault("spaces", ShowsNumbers, "step after reset(seed=0) gives a int; return text (str)"),
    Fault("prompt", SilentAboutAnAction, "never name the actions ['Less']"),
    Fault("prompt", Mumbles, "does not read the legal answer [' ']"),
    Fault("prompt", NoLimit, "max_turns must be an int of 1 or more, not 0"),
    Fault("prompt", ChangingInstructions, "change within an episode"),
    Fault("info", NumpyFlags, "info['success'] is a bool"),
    Fault("values", NumpyEnd, "terminated is a bool"),
    Fault("values", ThreeValues, "step gives a tuple of 3; return (observation, reward"),
    Fault("values", WordsForRewards, "must be a finite number"),
    Fault("values", OwnKeys, "has the key [3]"),
    Fault("info", EffectiveAnyway, "action_is_effective is True where"),
    Fault("info", NeverEffective, "lead to another observation, and action_is_effective is False at every such"),
    Fault("info", NeverEffectiveInTheDark, "the oracle's answers solve seed 0, and action_is_effective is False"),
    Fault("info", Unnumbered, "info of step is not plain JSON-able data"),
    Fault("info", NumpyCounts, "info of step is not plain JSON-able data"),
    Fault("info", NumpyCountsAtReset, "info of reset is not plain JSON-able data"),
    Fault("info", PaysForForm, "it must be <= 0"),
    Fault("values", PaysInfinity, "must be a finite number"),
    Fault("info", MissingKey, "lacks 'format_penalty'"),
    Fault("reward_parts", UnnamedReward, "but the reward is"),
    Fault("render", StaleRender, "not the observation"),
    Fault("close_twice", ClosesOnce, "AttributeError"),
    Fault("step_outside_an_episode", PlaysBeforeTheReset, "before reset() does not raise"),
    Fault("step_outside_an_episode", GoesOnAfterTheEnd, "does not raise"),
    Fault("same_seed", CountsInstances, "in a second instance"),
    Fault("processes", UsesHash, "PYTHONHASHSEED"),
    Fault("processes", PrintsSet, "sort sets"),
    Fault("threads", MainThreadOnly, "main thread"),
    Fault("threads", LeavesOtherThreads, "in a thread it raises SystemExit"),
    Fault("interleaved", ClassState, "beside other instances"),
    Fault("foreign_draws", GlobalDraws, "beside foreign draws"),
    Fault("global_generators", GlobalDraws, "generator of random;"),
    Fault("global_generators", SeedsNumpy, "generator of numpy.random;"),
    Fault("resets", KeepsCounting, "in a used instance"),
    Fault("resets", TiresLate, "after 100 more resets"),
    Fault("snapshots", ForgetsTurns, "goes on differently"),
    Fault("snapshots", StaysTired, "after restore in the same instance the episode goes on differently"),
    Fault("snapshots", LiveSnapshot, "changes while the episode goes on"),
    Fault("snapshots", TuplesAndArrays, "not plain JSON-able"),
    Fault("ended_snapshots", ForgetsTheEnd, "can be played on after restore"),
    Fault("side_effects", Moves, "changes the working directory: / instead of"),
    Fault("side_effects", SetsVariables, "changes the environment variables: COUNTER_TURN"),
    Fault("side_effects", LeavesFiles, "changes the files of the working directory: counter.log"),
    Fault("side_effects", Prints, "prints 'turn"),
    Fault("side_effects", LeavesThreads, "leaves the thread 'watcher' running"),
    Fault("side_effects", Spawns, "leaves the process"),
    Fault("side_effects", LeavesFilesOpen, "leaves the file descriptor"),
    Fault("side_effects", WritesElsewhere, "writes /no/such/folder/counter.log"),
    Fault("side_effects", CallsHome, "connects to 192.0.2.1"),
    Fault("side_effects", PrintsByChild, "prints 'turn"),
    Fault("side_effects", HandlesSignals, "changes the signal handlers: SIGTERM"),
    Fault("memory", RemembersAll, "bytes behind"),
    Fault("latency", Sleeps, "a step takes 5"),
    Fault("latency", Ponders, "(median); a teacher asks it at every turn"),
    Fault("seeds_differ", OneTask, "give the same episode"),
    Fault("trainer_seeds", SmallSeeds, "Error"),
    Fault("trainer_seeds", SameHeldOut, "play the tasks of seeds from 0 on"),
    Fault("options", StickyOptions, "reset(options={}) gives another episode"),
    Fault("options", TakesOptions, "changes the options {}"),
    Fault("splits", AnySplit, "takes the split 'no such split'"),
    Fault("splits", OverlappingSplits, "is one of 'train' too"),
    Fault("leaks", TellsTheWay, "the info holds the answer"),
    Fault("leaks", ShowsTheWay, "the observation holds the answer"),
    Fault("leaks", TellsTheAnswer, "the info holds the answer"),
    Fault("leaks", ShowsTheAnswer, "the observation holds the answer"),
    Fault("near_answers", ReadsItself, "reads nothing in"),
    Fault("near_answers", ReadsCase, "plays another action"),
    Fault("legal_answers", RefusesLess, "step refuses it"),
    Fault("legal_answers", ListsTwice, "more than once"),
    Fault("unlisted_answers", ListsMoreAlone, "leaves out '<answer>Less</answer>' at turn 0 of seed 0"),
    Fault("unlisted_answers", ListsSaltOnce, "leaves out 'say[salt]' at turn 1"),
    Fault("unlisted_answers", NeverListsTheDoor, "leaves out 'click[leave]' where oracle() gives it in seed 0"),
    Fault("queries", OracleMoves, "asked for oracle"),
    Fault("strange_answers", PaysForLength, "is paid"),
    Fault("strange_answers", WinsByLength, "counts as success"),
    Fault("strange_answers", EncodesStrictly, "'lone surrogates'"),
    Fault("strange_answers", ReadsNumbers, "'many numbers'"),
    Fault("floor", MovesWhenIdle, "solved by empty answers"),
    Fault("floor", PaysIdlers, "empty answers earn"),
    Fault("ends", EndsATurnLate, "may take 7 turns"),
    Fault("ends", EndsTwice, "terminated and truncated both"),
    Fault("ends", EndsTwiceOnALateWin, "a win on the last turn"),
    Fault("ends", ForgivesForEver, "still going"),
    Fault("oracle", WrongOracle, "do not solve"),
    Fault("oracle", TalkativeOracle, "of the oracle's"),
    Fault("oracle", DetourOracle, "a random player earns"),
    Fault("oracle_midway", FixedOracle, "after 1 random answers in seed 0"),
    Fault("strange_answers", AllValid, "names no action, and action_is_valid is True"),
    Fault("info", OneInfo, "an info changes while the episode goes on"),
    Fault("info", TellsTooMuch, "characters as JSON"),
    Fault("spaces", ShowsTooMuch, "2000019 characters"),
    Fault("spaces", OddExamples, "reads none of the examples of action_space, such as ('hello',)"),
    Fault("snapshots", KeepsTheSnapshot, "restore keeps the snapshot"),
    Fault("strange_answers", ReadsNested, "the answer 'nested brackets'"),
    Fault("legal_answers", ShufflesLegalAnswers, "differs when it is asked again"),
    Fault("seeds_differ", BeginsTheSame, "20 resets without a seed begin the same episode"),
    Fault("leaks", HintsTheWay, "the observation holds the answer"),
    Fault("side_effects", SilencesLogs, "changes the level of the root logger"),
    Fault("side_effects", RoundsDecimals, "changes the precision of decimal: 5 instead of 28"),
    Fault("side_effects", KeepsGarbage, "changes the garbage collection"),
    Fault("side_effects", HidesFiles, "changes the mask of new files: 0077"),
    Fault("side_effects", HurriesSockets, "changes the default timeout of sockets: 3.0"),
    Fault("side_effects", SwallowsErrors, "changes the hook for uncaught errors"),
    Fault("side_effects", SetsATimer, "changes the timer of signals"),
    Fault("side_effects", TakesStdin, "changes the standard streams"),
    Fault("reward_range", CounterEnv, "mend it", replace(COUNTER_CARD, reward_range=(-0.6, 0.5))),
    Fault("reward_range", CounterEnv, "mend it", replace(COUNTER_CARD, reward_range=(-0.3, 0.9))),
    Fault("reward_range", CounterEnv, "must be below the highest", replace(COUNTER_CARD, reward_range=(1.0, 1.0))),
)


def judged(fault: Fault, folder: Path) -> CheckResult:
    """What the rule says in a copy of this process, which has a session of its own, works in ``folder`` and ends."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setsid()
            os.chdir(folder)
            request = Request(
                target=fault.env, kwargs={}, card=fault.card, known=None, seeds=tuple(range(6)), rules=(fault.rule,),
                timeout_s=60.0,
            )  # fmt: skip
            os.write(writer, pickle.dumps(apply(fault.rule, request.subject())))
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with open(reader, "rb") as pipe:
        return pickle.loads(os.read(pipe.fileno(), 1 << 16))  # type: ignore[no-any-return]
