"""Fakes of a model: a policy that answers from a script, and a renderer over characters.

With them whole loops run without a model: the exact ids, log-probabilities and weight versions are known beforehand,
and failures and delays come where a test wants them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from roll_envs.errors import DeadlineExceededError
from roll_envs.types import Completion, FinishReason, Message, SamplingParams

__all__ = ["CharRenderer", "ScriptedPolicy"]

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


class ScriptedPolicy:
    """A :class:`roll_envs.policy.Policy` that answers from a script; calls may come from many threads.

    ``script`` is a list of answers, used in turn and then from the start again, or a function of the prompt's ids.
    A text becomes the ids of ``renderer`` and its stop id; ids are returned as they are. A completion longer than
    ``max_new_tokens`` is cut, with finish ``length``. Every id has the log-probability ``logprob``.

    ``failures`` maps the number of a call (from 0) to the error it raises. ``delay_s`` is slept before each answer;
    a delay past the caller's deadline raises :class:`DeadlineExceededError` when the deadline comes. ``abort`` holds
    numbers of calls that end with finish ``abort`` and no ids. ``weight_version`` may be set between calls.
    """

    def __init__(
        self,
        script: Sequence[str | Sequence[int]] | Script,
        *,
        renderer: CharRenderer | None = None,
        weight_version: int = 0,
        logprob: float = -0.5,
        delay_s: float = 0.0,
        failures: Mapping[int, Exception] | None = None,
        abort: Sequence[int] = (),
    ) -> None:
        if not callable(script) and not script:
            raise ValueError("the script has no answers; give at least one")
        self.renderer = renderer or CharRenderer()
        self.weight_version = weight_version
        self.prompts: list[tuple[int, ...]] = []
        """The prompts of all calls so far, in the order they came."""
        self._script, self._logprob, self._delay_s = script, logprob, delay_s
        self._failures, self._abort = dict(failures or {}), frozenset(abort)
        self._lock = threading.Lock()

    def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, *, timeout_s: float) -> Completion:
        with self._lock:
            number, version = len(self.prompts), self.weight_version
            self.prompts.append(tuple(prompt_ids))
        if self._delay_s:
            time.sleep(min(self._delay_s, timeout_s))
            if self._delay_s > timeout_s:
                raise DeadlineExceededError("the scripted policy", timeout_s)
        if number in self._failures:
            raise self._failures[number]
        if number in self._abort:
            return Completion(ids=(), logprobs=(), finish="abort", weight_version=version)
        ids = self._answer(number, tuple(prompt_ids))
        kept = ids[: sampling.max_new_tokens]
        stopped = bool(kept) and kept[-1] in (sampling.stop_ids or self.renderer.stop_ids)
        finish: FinishReason = "stop" if stopped else "length"
        return Completion(ids=kept, logprobs=(self._logprob,) * len(kept), finish=finish, weight_version=version)

    def _answer(self, number: int, prompt_ids: tuple[int, ...]) -> tuple[int, ...]:
        said = self._script(prompt_ids) if callable(self._script) else self._script[number % len(self._script)]
        return (*self.renderer.encode(said), CharRenderer.STOP) if isinstance(said, str) else tuple(said)
