"""The contract of tools: specifications, calls, results and budgets of what an agent may call inside an episode.

A mistake of the model (an unknown tool, arguments that do not fit, code that raises) is a :class:`ToolResult` with
``ok=False`` whose text the model reads. An infrastructure failure (a dead sandbox, a server that does not answer)
raises; the episode then becomes ``failed``. Neither is ever an empty answer.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import PositiveInt

from roll_envs.settings import Seconds

ToolState = Literal["none", "replay", "outside"]
"""What a tool keeps from call to call: nothing; something that the same calls build up again; or something that lives
outside of this process and cannot be brought back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolSpec:
    """The description of a tool that a model is shown."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments: an object with ``properties`` and ``required``."""


def object_schema(*required: str, **properties: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON schema of an object with these ``properties``, of which those named in ``required`` must be there."""
    return {"type": "object", "properties": properties, "required": list(required)}


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolResult:
    """What one call gave; ``text`` is never empty."""

    text: str
    ok: bool = True
    """False for a mistake of the caller, which ``text`` explains."""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise ValueError("a tool result needs a text; say '(no output)' where there is none")


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """A call as a model wrote it."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class BadCall:
    """Something that was meant as a call and cannot be read; ``reason`` is shown to the model."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CallRecord:
    """One call of an episode with what the model was shown."""

    call: ToolCall | BadCall
    text: str
    """As shown: cut to the budget."""
    ok: bool
    seconds: float = 0.0
    ran: bool = True
    """False when the call was refused before it reached the tool (malformed, unknown, arguments, budget)."""
    digest: str = ""
    """Of the whole result text, to compare a replay with; empty when the call did not run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolBudget:
    """What the calls of one episode may use. What goes over is refused or cut, and the text says so."""

    calls: PositiveInt = 16
    """Calls of an episode; malformed ones count."""
    calls_per_turn: PositiveInt = 4
    """Calls of one answer."""
    seconds: Seconds = 120.0
    """Of all calls of an episode together."""
    call_seconds: Seconds = 10.0
    """Of one call."""
    output_chars: PositiveInt = 32_000
    """Shown of all results of an episode together."""
    call_chars: PositiveInt = 4_000
    """Shown of one result."""


class Tool(abc.ABC):
    """Something an agent can call by name. One instance serves one episode at a time, from one thread at a time.

    The life of an instance: ``open`` at the start of an episode, ``call`` any number of times, ``close`` at its end,
    again and again; ``dispose`` once at the very end.
    """

    spec: ToolSpec
    state: ToolState = "none"
    quick: bool = False
    """Every call ends within a second by itself, so that it is made without a second thread that could be left behind
    (which takes longer than the call)."""
    grace_s: float = 5.0
    """How long after its deadline a call may come back (after repairs of its own) before the tool counts as hung."""

    def open(self) -> None:  # noqa: B027 - a tool that keeps nothing has nothing to do
        """Begin an episode with nothing kept from another; may leave real work to the first call."""

    @abc.abstractmethod
    def call(self, arguments: Mapping[str, Any], *, deadline_s: float) -> ToolResult:
        """Run with arguments that fit ``spec.parameters``, within ``deadline_s`` seconds.

        Returns what the model is to read, its own mistakes included; raises for infrastructure failures only.
        """

    def close(self) -> None:  # noqa: B027 - as above
        """End the episode and free what it held; any number of times."""

    def dispose(self) -> None:
        """Free what is held across episodes (processes, connections); any number of times."""
        self.close()
