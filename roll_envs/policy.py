"""Contracts between episodes and whatever answers them: Policy (ids in, ids out) and Renderer (messages to ids).

Real ones live in ``trainer`` and are reached by name, fakes in :mod:`roll_envs.testing`.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Protocol, runtime_checkable

from roll_envs.errors import DeadlineExceededError
from roll_envs.types import Completion, Message, SamplingParams


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
