"""Contracts between episodes and whatever answers them: Policy (ids in, ids out) and Renderer (messages to ids).

Both are Protocols; real ones live in ``trainer`` and are reached by name, fakes in :mod:`roll_envs.testing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from roll_envs.types import Completion, Message, SamplingParams

__all__ = ["Policy", "Renderer"]


@runtime_checkable
class Policy(Protocol):
    """Something that continues token ids. Called from many threads at once."""

    def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, *, timeout_s: float) -> Completion:
        """Sample a continuation.

        Raises :class:`~roll_envs.errors.DeadlineExceededError` after ``timeout_s`` seconds and
        :class:`~roll_envs.errors.EngineError` when the policy cannot answer.
        """


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
