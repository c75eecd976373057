"""Contracts between episodes and whatever answers them: Policy (ids in, ids out) and Renderer (messages to ids).

Real ones live in ``trainer`` and are reached by name, fakes in :mod:`roll_envs.testing`; the one renderer that needs no
tokenizer is here.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Protocol, runtime_checkable

from roll_envs.errors import DeadlineExceededError
from roll_envs.types import Completion, Message, Role, SamplingParams


class Policy(abc.ABC):
    """Something that continues token ids. Called from many threads at once."""

    answer_name = "the engine's answer"
    """What a deadline says was waited for."""

    @abc.abstractmethod
    def submit(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, timeout_s: float, session: str | None = None
    ) -> Future[Completion]:
        """Ask for a continuation and return at once. Requests of one ``session`` (an episode) have prompts that begin
        alike, as a rule: a policy of several replicas can send them to the same one.

        The future gets the completion, a :class:`~roll_envs.errors.DeadlineExceededError` once ``timeout_s`` seconds
        have passed, or an :class:`~roll_envs.errors.EngineError` when the policy cannot answer. Its callbacks run in a
        thread of the policy and hold up everybody else's answers, so they should only hand the future on. Cancelling
        it withdraws the request.

        Raises :class:`~roll_envs.errors.EngineError` at once for a request that can never be answered.
        """

    def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, *, timeout_s: float) -> Completion:
        """:meth:`submit`, and wait: returns the completion or raises what the future holds.

        The deadline also holds for a policy that does not keep its own.
        """
        future = self.submit(prompt_ids, sampling, timeout_s=timeout_s)
        try:
            return future.result(timeout=timeout_s)
        except FutureTimeoutError:
            future.cancel()
            raise DeadlineExceededError(self.answer_name, timeout_s) from None


@runtime_checkable
class Renderer(Protocol):
    """Turns chat messages into token ids and back."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end an assistant message."""

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Ids of the whole conversation, up to and including the opening of the assistant's next message."""

    def extend(self, ids: Sequence[int], message: Message) -> tuple[int, ...] | None:
        """``ids`` (a prompt and its completion, kept to the letter) followed by ``message`` and the opening of the
        assistant's next message; ``None`` when the chat template cannot be continued that way."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of a completion, special tokens left out."""


class CharRenderer:
    """A :class:`roll_envs.policy.Renderer` with one id per Unicode character.

    Ids 0, 1, 2 open a message of system, user and assistant, 3 ends a message, and a character c is ``ord(c) + 4``:
    ``render([user "hi"])`` is ``(1, 108, 109, 3, 2)``. Any text survives the way there and back, lone surrogates too.
    For engines that take messages (:meth:`messages` reads a prompt again), and for fakes.
    """

    ROLES: Mapping[Role, int] = {"system": 0, "user": 1, "assistant": 2}
    STOP = 3
    FIRST = 4

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return (self.STOP,)

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        ids = [i for m in messages for i in (self.ROLES[m.role], *self.encode(m.content), self.STOP)]
        return (*ids, self.ROLES["assistant"])

    def messages(self, prompt_ids: Sequence[int]) -> list[Message]:
        """The messages of a prompt that :meth:`render` or :meth:`extend` made. Raises ValueError for other ids."""
        ids, start = tuple(prompt_ids), 0
        roles = {opening: role for role, opening in self.ROLES.items()}
        found: list[Message] = []
        for end in [place for place, i in enumerate(ids) if i == self.STOP]:
            if ids[start] not in roles:
                raise ValueError(f"a message begins with id {ids[start]}, which opens none")
            found.append(Message(role=roles[ids[start]], content=self.decode(ids[start + 1 : end])))
            start = end + 1
        if ids[start:] != (self.ROLES["assistant"],):
            raise ValueError("the ids do not end with the opening of a reply")
        return found

    def extend(self, ids: Sequence[int], message: Message) -> tuple[int, ...] | None:
        closing = () if ids and ids[-1] == self.STOP else (self.STOP,)
        return (*ids, *closing, *self.render([message]))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(i - self.FIRST) for i in ids if i >= self.FIRST)

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of plain text, without any markers."""
        return tuple(ord(c) + self.FIRST for c in text)
