"""ScienceWorld's tasks (arXiv:2203.07540): experiments in a simulated house, a command each turn.

Each environment has a simulator, a Java process, of its own, which starts with its first episode. The package's own
class is not used: it starts Java without the options that make an episode follow from its task and its commands.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from roll_envs.env import EnvironmentCard
from roll_envs.errors import ConfigError, EnvironmentFaultError
from roll_envs.providers.games import GameEnv, Played
from roll_envs.providers.packages import folder_of, imported

__all__ = ["ScienceWorldEnv", "card", "ids"]

_PACKAGE = "scienceworld"
_TURNS = 100
_OPTIONS = (
    # Else the order of things follows from where Java keeps them.
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",
    "-XX:+UseSerialGC",
)
_SIMPLER = (
    "teleportAction", "selfWateringFlowerPots", "openContainers", "openDoors", "noElectricalAction", "easy",
)  # fmt: skip
_LONGEST = 200
"""Characters of a command."""
_NO_MOVES = frozenset({"reset task"})
_ACTS = frozenset({"load", "step"})
"""Methods that draw random numbers of the episode; all others only tell something."""
_LISTED = {"examine": "look at", "drop": "put down"}
"""Words of the package's ways -> those that mean the same in its lists of valid commands."""
_UNKNOWN = "No known action matches"


@functools.cache
def _names() -> Sequence[str]:
    """The tasks of the installed release, read without importing it."""
    root = folder_of(_PACKAGE)
    if root is None:
        return ()
    return tuple(sorted(task["task_name"] for task in json.loads((root / "tasks.json").read_text(encoding="utf-8"))))


def ids() -> list[str]:
    """One for each task, where the package is installed."""
    return [f"{_PACKAGE}/{name}-v0" for name in _names()]


def card(id: str) -> EnvironmentCard:
    """The card of a task."""
    name = id.partition("/")[2].removesuffix("-v0")
    return EnvironmentCard(
        id=id,
        entry_point=f"{__name__}:ScienceWorldEnv",
        kwargs={"task": name},
        summary=f"{name}: a task of ScienceWorld.",
        tests="Science of primary schools, by acting in a house with instruments, substances and living things.",
        turns="A command each, 100 of them.",
        reward_range=(-1.0, 1.0),
        rewards="game: the part of the task that a command has done, 1 in all; -1 in all for a wrong final choice.",
        success="The whole task is done.",
        splits="train, dev, test: the package's own variations of the task.",
        versions={"v0": "First version."},
        citation="Wang et al., ScienceWorld, arXiv:2203.07540. Apache-2.0.",
        differences=(
            "The description of the task stands before the first observation.",
            "The score is given as a part of 1, not of 100.",
            "'reset task' is no command.",
            "Asking for the commands that are valid draws none of the random numbers that the world draws.",
        ),
    )


class ScienceWorldEnv(GameEnv):
    """A task of ScienceWorld: seed s is variation s of the split, counted round. ``simplifications``: those of the
    package, such as ``("openDoors",)``. ``timeout_s``: for each answer of the simulator."""

    splits = ("train", "dev", "test")

    def __init__(
        self,
        *,
        task: str,
        simplifications: Sequence[str] = (),
        action_format: str = "answer",
        max_turns: int = _TURNS,
        format_penalty: float = 0.0,
        timeout_s: float = 300.0,
    ) -> None:
        """Raises :class:`ConfigError` for a task or a simplification that is not there, and without Java."""
        imported(_PACKAGE, f"{task}-v0", _PACKAGE)
        if task not in _names():
            raise ConfigError(f"ScienceWorld has no task {task!r}; it has {', '.join(_names())}")
        for each in simplifications:
            if each not in _SIMPLER:
                raise ConfigError(f"ScienceWorld has no simplification {each!r}; it has {', '.join(_SIMPLER)}")
        if not (isinstance(timeout_s, int | float) and timeout_s > 0):
            raise ConfigError(f"timeout_s is {timeout_s!r}; give a number of seconds above 0")
        if shutil.which("java") is None:
            raise ConfigError(
                "ScienceWorld needs Java (a command 'java'); on Debian and Ubuntu: apt install default-jre"
            )
        super().__init__(
            action_format=action_format,
            max_turns=max_turns,
            format_penalty=format_penalty,
            example="look around",
            moves=("look around", "inventory", "wait1"),
        )
        self.task, self._simpler, self._timeout_s = task, ",".join(simplifications), timeout_s
        self._simulator: _Simulator | None = None
        self._variation, self._score = 0, 0.0
        self._moves: list[str] = []

    def _apart(self, *seed: int) -> AbstractContextManager[None]:
        return contextlib.nullcontext()  # the simulator is a process of its own

    def _begin(self, seed: int) -> str:
        if self._simulator is None:
            self._simulator = _Simulator(self._timeout_s)
        variations = self._simulator.variations(self.task)[self._split]
        self._variation, self._moves = variations[seed % len(variations)], []
        self._score = 0.0
        shown = self._start()
        return f"{_clean(self._ask('getTaskDescription'))}\n\n{shown}"

    def _start(self) -> str:
        """The task's beginning, and what is seen there."""
        self._ask("load", self.task, self._variation, self._simpler, False)
        return _clean(self._ask("step", "look around"))

    def _play(self, move: str) -> Played:
        command = " ".join(move.split())
        if not (command.isascii() and command.isprintable() and 0 < len(command) <= _LONGEST):
            return Played("That is no command.", valid=False)
        if command.lower() in _NO_MOVES:
            return Played("That is no command.", valid=False)
        self._moves.append(command)
        before = self._seen()
        shown = _clean(self._ask("step", command))
        score, over = self._reached()
        paid, self._score = score - self._score, score
        effective = paid != 0 or self._seen() != before
        return Played(shown, paid, over, not shown.startswith(_UNKNOWN), score >= 1, effective=effective)

    def _reached(self) -> tuple[float, bool]:
        """The score, and whether the task is over."""
        score = float(self._ask("getScore"))
        return score, bool(self._ask("getCompleted")) or score < 0

    def _seen(self) -> tuple[str, str]:
        return self._ask("freeActionLook"), self._ask("freeActionInventory")

    def _ask(self, method: str, *arguments: Any) -> Any:
        assert self._simulator is not None
        try:
            return self._simulator.ask(method, *arguments)
        except EnvironmentFaultError:
            self.close()
            raise

    def legal_answers(self) -> list[str]:
        if self._over:
            return []
        found = sorted(set(self._ask("getValidActionObjectCombinations")) - _NO_MOVES)
        return [self.action_format.write(command) for command in map(_clean, found) if len(command) <= _LONGEST]

    def oracle(self) -> list[str] | None:
        """What is left of the package's own way, as long as the commands so far are those of the way, and it fits into
        the turns that are left."""
        if self._over:
            return None
        task = (self.task, self._variation, self._simpler)
        if task not in _ways:
            _ways[task] = self._way()
            self._start()
            for command in self._moves:  # back to where it was
                self._ask("step", command)
        done = len(self._moves)
        way = _ways[task][done:] if _ways[task][:done] == self._moves else []
        fits = 0 < len(way) <= self.max_turns - self._turns
        return [self.action_format.write(command) for command in way] if fits else None

    def _way(self) -> list[str]:
        """The package's own way, to where the task is done; none where it is not done by it."""
        self._ask("load", self.task, self._variation, self._simpler, True)
        found = [_listed(_clean(command)) for command in self._ask("getGoldActionSequence")]
        self._start()
        for count, command in enumerate(found, 1):
            self._ask("step", command)
            score, over = self._reached()
            if over:
                return found[:count] if score >= 1 else []
        return []

    def close(self) -> None:
        simulator, self._simulator = getattr(self, "_simulator", None), None
        if simulator is not None:
            simulator.close()


class _Simulator:
    """A Java process, and the connection to it."""

    def __init__(self, timeout_s: float) -> None:
        root = folder_of(_PACKAGE)
        assert root is not None
        py4j = importlib.import_module("py4j.java_gateway")
        folder = tempfile.TemporaryDirectory(prefix="roll-scienceworld-")  # where it writes a list of things
        try:
            port, self._process = py4j.launch_gateway(
                classpath=str(root / "scienceworld.jar"),
                javaopts=list(_OPTIONS),
                cwd=folder.name,
                die_on_exit=True,
                return_proc=True,
            )
        except Exception as error:
            folder.cleanup()
            raise EnvironmentFaultError(f"ScienceWorld's simulator does not start: {error!r}") from error
        parameters = py4j.GatewayParameters(auto_field=True, port=port, read_timeout=timeout_s)
        self._gateway = py4j.JavaGateway(gateway_parameters=parameters, java_process=self._process)
        self._end = weakref.finalize(self, _ended, self._gateway, self._process, folder)
        try:
            self._server = self._gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface()
            self._draws = _Draws(self._gateway.jvm)
        except Exception as error:
            self.close()
            raise EnvironmentFaultError(f"ScienceWorld's simulator does not start: {error!r}") from error

    def ask(self, method: str, *arguments: Any) -> Any:
        """What a method of the simulator gives; a list is Python's. Raises :class:`EnvironmentFaultError`."""
        try:
            with contextlib.nullcontext() if method in _ACTS else self._draws.apart():
                answer = getattr(self._server, method)(*arguments)
            if isinstance(answer, str | int | float | bool | None):
                return answer
            if not len(answer) or not isinstance(answer[0], str):
                return list(answer)
            # Each element of a list is a message; all texts in one is one.
            return str(self._gateway.jvm.String.join("\n", answer)).split("\n")
        except Exception as error:  # of Java, or of the connection
            raise EnvironmentFaultError(f"ScienceWorld's simulator failed at {method}: {error!r}") from error

    def variations(self, task: str) -> Mapping[str, Sequence[int]]:
        """The variations of a task, by split."""
        if task not in _variations:
            self.ask("load", task, 0, "", False)
            names = {"train": "getVariationsTrain", "dev": "getVariationsDev", "test": "getVariationsTest"}
            _variations[task] = {split: self.ask(method) for split, method in names.items()}
        return _variations[task]

    def close(self) -> None:
        self._end()


class _Draws:
    """The generator of random numbers that all of the simulator shares: it draws from it how living things move, and
    by which of its names it calls a thing when it is asked."""

    def __init__(self, jvm: Any) -> None:
        def found(name: str, field: str) -> Any:
            declared = jvm.java.lang.Class.forName(name).getDeclaredField(field)
            declared.setAccessible(True)
            return declared

        self._shared = found("scala.util.Random$", "MODULE$").get(None)
        self._field = found("scala.util.Random", "self")
        self._own, self._other = self._field.get(self._shared), jvm.java.util.Random(0)

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Meanwhile the same numbers are drawn each time, and none of those that come in the episode."""
        self._other.setSeed(0)
        self._field.set(self._shared, self._other)
        try:
            yield
        finally:
            self._field.set(self._shared, self._own)


_ways: dict[tuple[str, int, str], list[str]] = {}
"""The package's way to where a task is done, by its variation and simplifications; none where that is not done by it.
It takes seconds to find, and there are some thousand variations."""
_variations: dict[str, Mapping[str, Sequence[int]]] = {}
"""By task; they are fixed by the package."""


def _ended(gateway: Any, process: Any, folder: tempfile.TemporaryDirectory[str]) -> None:
    with contextlib.suppress(Exception):  # it may have ended by itself
        gateway.shutdown()
    with contextlib.suppress(Exception):
        process.stdin.close()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    folder.cleanup()


def _listed(command: str) -> str:
    verb, space, rest = command.partition(" ")
    return f"{_LISTED.get(verb, verb)}{space}{rest}"


def _clean(text: str) -> str:
    """Without halves of surrogate pairs, which some texts of the package have."""
    return text.encode("utf-8", "replace").decode().strip()
