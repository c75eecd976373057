"""Context: what the next prompt shows of the episode so far. One mechanism, three ways to fill it.

A context function turns the history of an episode into the next prompt's ids. ``everything`` continues the previous
prompt and completion to the letter where the chat template allows it; ``last_turns(k)`` renders the last k turns and
the current observation anew; a user's function may return any messages it likes. How rows of training tokens follow
from the prompts is decided elsewhere, by the exact-prefix rule alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from roll_envs.errors import ConfigError
from roll_envs.policy import Renderer
from roll_envs.types import Message, Turn

__all__ = ["Context", "History", "MessagesFunction", "everything", "from_function", "last_turns", "load_context"]


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """An episode as its next prompt may see it."""

    instructions: str
    """System text; empty leaves the system message out."""
    turns: Sequence[Turn]
    observation: str
    """The observation to answer now."""
    observation_template: str | None = None
    """What the user's messages are made of: a text with ``{observation}`` in it; ``None`` is the observation alone."""

    def shown(self, observation: str) -> str:
        """The text of the user's message for ``observation``: 'Map' in 'See {observation}. Go.' is 'See Map. Go.'"""
        if self.observation_template is None:
            return observation
        return self.observation_template.replace("{observation}", observation)


Context = Callable[[History, Renderer], tuple[int, ...]]
MessagesFunction = Callable[[History], Sequence[Message]]


def _system(history: History) -> list[Message]:
    return [Message(role="system", content=history.instructions)] if history.instructions else []


def _dialogue(history: History, first: int) -> list[Message]:
    messages = _system(history)
    for turn in history.turns[first:]:
        messages.append(Message(role="user", content=history.shown(turn.prompt_observation)))
        messages.append(Message(role="assistant", content=turn.text))
    messages.append(Message(role="user", content=history.shown(history.observation)))
    return messages


def everything(history: History, renderer: Renderer) -> tuple[int, ...]:
    """All turns: the previous prompt and completion kept as they are, plus the new observation."""
    if history.turns:
        last = history.turns[-1]
        extended = renderer.extend(
            last.prompt_ids + last.completion.ids, Message(role="user", content=history.shown(history.observation))
        )
        if extended is not None:
            return extended
    return renderer.render(_dialogue(history, 0))


def last_turns(count: int) -> Context:
    """The last ``count`` turns and the current observation; 0 shows the observation alone."""

    def context(history: History, renderer: Renderer) -> tuple[int, ...]:
        return renderer.render(_dialogue(history, max(0, len(history.turns) - count)))

    return context


def from_function(messages: MessagesFunction) -> Context:
    """A context from a user's function of the history."""

    def context(history: History, renderer: Renderer) -> tuple[int, ...]:
        return renderer.render(messages(history))

    return context


def load_context(kind: str, *, turns: int = 0, function: str | None = None) -> Context:
    """The context named by a configuration: ``everything``, ``last`` (with ``turns``), or ``function``
    (``module:name`` of a function from :class:`History` to messages).

    Raises :class:`ConfigError` for another kind or a function that cannot be imported.
    """
    if kind == "everything":
        return everything
    if kind == "last":
        return last_turns(turns)
    if kind != "function":
        raise ConfigError(f"context.kind: {kind!r} is not one of 'everything', 'last', 'function'")
    module, _, name = (function or "").partition(":")
    if not module or not name:
        raise ConfigError(f"context.function: {function!r} is not of the form 'module:name'")
    try:
        loaded = getattr(importlib.import_module(module), name)
    except Exception as error:  # a module of the user: it may fail in any way
        raise ConfigError(f"context.function: cannot load {function!r}: {type(error).__name__}: {error}") from error
    if not callable(loaded):
        raise ConfigError(f"context.function: {function!r} is a {type(loaded).__name__}, not a function of the history")
    return from_function(loaded)
