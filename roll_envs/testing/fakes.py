"""Fakes with which whole loops run without a model: two tiny environments, a policy that answers from a script, and a
renderer over characters.

The exact ids, log-probabilities and weight versions are known beforehand, and failures and delays come where a test
wants them.
"""

from __future__ import annotations

import contextlib
import sched
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, SupportsFloat

import gymnasium

from roll_envs.env import AnyText, EnvironmentCard, TextEnv
from roll_envs.errors import DeadlineExceededError
from roll_envs.parsing import ActionFormat, make_action_format
from roll_envs.policy import Policy
from roll_envs.types import Completion, FinishReason, Message, SamplingParams

# -- environments: one to win by counting, one that repeats what it is told --------------------------------------------


class CounterEnv(TextEnv):
    """Bring a counter to its target by More and Less: +1 when it gets there, -0.1 a turn."""

    action_format: ActionFormat

    def __init__(self, *, highest: int = 4, max_turns: int = 6, action_format: str = "answer") -> None:
        self.highest, self.max_turns = highest, max_turns
        self.action_format = make_action_format(action_format, ("Less", "More"))
        self.action_space = AnyText(tuple(self.action_format.format([a]) for a in (0, 1)))
        self.observation_space = AnyText()
        self._over, self._value, self._target, self._turns = True, 0, 0, 0

    @property
    def instructions(self) -> str:
        return f"Bring the counter to its target with Less and More. {self.action_format.instructions}"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        draw = gymnasium.utils.seeding.np_random(self.episode_seed(seed))[0]
        self._value, self._turns, self._over = 0, 0, False
        self._target = int(draw.integers(1, self.highest + 1))
        return self.render(), {"success": False}

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        if self._over:
            raise gymnasium.error.ResetNeeded("call reset() first")
        read = self.action_format.parse(action)
        change = (-1, 1)[read.actions[0]] if read.valid else 0
        self._turns += 1
        self._value += change
        solved = self._value == self._target
        truncated = not solved and self._turns >= self.max_turns
        self._over = solved or truncated
        parts = {"turn": -0.1, "target": 1.0 if solved else 0.0}
        flags = {"success": solved, "action_is_valid": read.valid, "action_is_effective": change != 0}
        info = {**flags, "format_penalty": 0.0, "reward_parts": parts}
        return self.render(), sum(parts.values()), solved, truncated, info

    def render(self) -> str:
        return f"counter {self._value}, target {self._target}"

    def snapshot(self) -> Mapping[str, Any]:
        counts = {"value": self._value, "target": self._target, "turns": self._turns, "over": self._over}
        return {**counts, "np_random": self.np_random.bit_generator.state}

    def restore(self, snapshot: Mapping[str, Any]) -> str:
        self._value, self._target = snapshot["value"], snapshot["target"]
        self._turns, self._over = snapshot["turns"], snapshot["over"]
        self.np_random.bit_generator.state = snapshot["np_random"]
        return self.render()

    def oracle(self) -> list[str] | None:
        apart = self._target - self._value
        if self._over or abs(apart) > self.max_turns - self._turns:
            return None
        return [self.action_format.format([int(apart > 0)])] * abs(apart)


COUNTER_CARD = EnvironmentCard(
    id="test/Counter-v0",
    entry_point="roll_envs.testing.fakes:CounterEnv",
    summary="A counter to bring to its target.",
    tests="Whether a loop works at all.",
    turns="6 turns of one change.",
    reward_range=(-0.6, 0.9),
    rewards="turn: -0.1 each; target: +1 when the counter gets there.",
    success="The counter is at its target.",
)


class EchoEnv(gymnasium.Env[str, str]):
    """Shows the last answer; not a TextEnv, never pays, ends by truncation after ``max_turns``."""

    metadata: dict[str, Any] = {"render_modes": ["ansi"]}  # noqa: RUF012 - as in gymnasium.Env

    def __init__(self, *, max_turns: int = 3, render_mode: str | None = None) -> None:
        self.max_turns, self.render_mode = max_turns, render_mode
        self.action_space = AnyText(("hello", "world"))
        self.observation_space = AnyText()
        self._turns, self._shown = -1, ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._turns, self._shown = 0, f"say something ({self.np_random.integers(100)})"
        return self._shown, {}

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        if not 0 <= self._turns < self.max_turns:
            raise gymnasium.error.ResetNeeded("call reset() first")
        self._turns += 1
        self._shown = action
        return action, 0.0, False, self._turns >= self.max_turns, {"success": False}

    def render(self) -> str:
        return self._shown


# -- a model: its renderer and its policy ------------------------------------------------------------------------------

Script = Callable[[tuple[int, ...]], Sequence[int] | str]
"""From the prompt's ids to the completion, as ids or as text."""


class CharRenderer:
    """A :class:`roll_envs.policy.Renderer` with one id per Unicode character.

    Ids 0, 1, 2 open a message of system, user and assistant, 3 ends a message, and a character c is ``ord(c) + 4``:
    ``render([user "hi"])`` is ``(1, 108, 109, 3, 2)``. Any text survives the way there and back, lone surrogates too.
    """

    ROLES: Mapping[str, int] = {"system": 0, "user": 1, "assistant": 2}
    STOP = 3
    FIRST = 4

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return (self.STOP,)

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        ids = [i for m in messages for i in (self.ROLES[m.role], *self.encode(m.content), self.STOP)]
        return (*ids, self.ROLES["assistant"])

    def extend(self, ids: Sequence[int], message: Message) -> tuple[int, ...] | None:
        closing = () if ids and ids[-1] == self.STOP else (self.STOP,)
        return (*ids, *closing, *self.render([message]))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(i - self.FIRST) for i in ids if i >= self.FIRST)

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of plain text, without any markers."""
        return tuple(ord(c) + self.FIRST for c in text)


@dataclass(eq=False)
class ScriptedPolicy(Policy):
    """A :class:`roll_envs.policy.Policy` that answers from a script; calls may come from many threads.

    ``script`` is a list of answers, used in turn and then from the start again, or a function of the prompt's ids.
    A text becomes the ids of ``renderer`` and its stop id; ids are returned as they are. A completion longer than
    ``max_new_tokens`` is cut, with finish ``length``. Every id has the log-probability ``logprob``.

    Faults and latencies are ordered by the number of a request (from 0). ``failures`` maps it to the error of its
    future. ``abort`` holds numbers of requests that end with finish ``abort`` and no ids. ``delay_s`` is the time until
    an answer comes, or a function from the number to it; past the request's deadline, a
    :class:`DeadlineExceededError` comes at the deadline instead. Without a delay, :meth:`submit` returns a future that
    is done. ``weight_version`` may be set between requests.
    """

    answer_name = "the scripted policy"

    script: Sequence[str | Sequence[int]] | Script
    _: KW_ONLY
    renderer: CharRenderer = field(default_factory=CharRenderer)
    weight_version: int = 0
    logprob: float = -0.5
    delay_s: float | Callable[[int], float] = 0.0
    failures: Mapping[int, Exception] = field(default_factory=dict)
    abort: Sequence[int] = ()
    prompts: list[tuple[int, ...]] = field(default_factory=list, init=False)
    """The prompts of all requests so far, in the order they came."""

    def __post_init__(self) -> None:
        if not callable(self.script) and not self.script:
            raise ValueError("the script has no answers; give at least one")
        self._lock, self._timer = threading.Lock(), _Timer()

    def submit(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, timeout_s: float, session: str | None = None
    ) -> Future[Completion]:
        with self._lock:  # an answer is of the version that there was when its request came, however late it is
            number, version = len(self.prompts), self.weight_version
            self.prompts.append(tuple(prompt_ids))
        answer: Future[Completion] = Future()
        delay_s = self.delay_s(number) if callable(self.delay_s) else self.delay_s

        def settle() -> None:
            with contextlib.suppress(InvalidStateError):  # the request was cancelled
                try:
                    if delay_s > timeout_s:
                        raise DeadlineExceededError(self.answer_name, timeout_s)
                    answer.set_result(self._completion(number, version, sampling))
                except Exception as error:  # one that was ordered, or the script's own
                    answer.set_exception(error)

        if delay_s > 0:
            self._timer.after(min(delay_s, timeout_s), settle)
        else:
            settle()
        return answer

    def _completion(self, number: int, version: int, sampling: SamplingParams) -> Completion:
        if number in self.failures:
            raise self.failures[number]
        ids = () if number in self.abort else self._ids(number)[: sampling.max_new_tokens]
        stopped = bool(ids) and ids[-1] in (sampling.stop_ids or self.renderer.stop_ids)
        finish: FinishReason = "abort" if number in self.abort else "stop" if stopped else "length"
        return Completion(ids=ids, logprobs=(self.logprob,) * len(ids), finish=finish, weight_version=version)

    def _ids(self, number: int) -> tuple[int, ...]:
        script = self.script
        said = script(self.prompts[number]) if callable(script) else script[number % len(script)]
        return (*self.renderer.encode(said), CharRenderer.STOP) if isinstance(said, str) else tuple(said)


class _Timer:
    """Calls functions at later times from one thread, which lives as long as there is something to call."""

    def __init__(self) -> None:
        self._due = sched.scheduler(time.monotonic, self._wait)
        self._changed = threading.Event()
        self._lock = threading.Lock()
        self._running = False

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        with self._lock:
            self._due.enter(delay_s, 0, call)
            self._changed.set()
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="scripted-policy", daemon=True).start()

    def _wait(self, wait_s: float) -> None:
        # The scheduler looks at all that is due again after each wait: an earlier call that came meanwhile is not late.
        self._changed.wait(wait_s)
        self._changed.clear()

    def _run(self) -> None:
        while self._running:
            self._due.run()
            with self._lock:
                self._running = not self._due.empty()
