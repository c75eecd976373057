"""ToolRunner: runs the calls of one episode within its budget and records their results."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from roll_envs.env_registry import within
from roll_envs.errors import ConfigError, DeadlineExceededError, EnvironmentFaultError, RollError
from roll_envs.tools.arguments import call_problem
from roll_envs.tools.types import BadCall, CallRecord, Tool, ToolBudget, ToolCall, ToolResult, ToolSpec


class ToolRunner:
    """Holds the tools of one environment open; one episode at a time.

    A call that cannot run (malformed, unknown, arguments that do not fit, budget) is answered with a text that says
    why. Raises what a tool raises, as :class:`EnvironmentFaultError` where it is not a :class:`RollError`, and
    :class:`DeadlineExceededError` for a tool that does not come back.
    """

    def __init__(self, tools: Sequence[Tool], budget: ToolBudget, clock: Callable[[], float] = time.monotonic) -> None:
        self.tools = {tool.spec.name: tool for tool in tools}
        if len(self.tools) != len(tools):
            names = [tool.spec.name for tool in tools]
            double = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"two tools have the name {double!r}; leave one out, or rename it")
        self.specs: dict[str, ToolSpec] = {name: tool.spec for name, tool in self.tools.items()}
        self.budget = budget
        self.records: list[CallRecord] = []
        """The calls of this episode so far."""
        self._clock = clock
        self._hung = ""

    def open(self) -> None:
        """Begin an episode."""
        if self._hung:
            raise EnvironmentFaultError(f"the tool {self._hung!r} hangs in an earlier call; make a new environment")
        self.records = []
        for tool in self.tools.values():
            tool.open()

    def close(self) -> None:
        """End the episode; tools free what they hold, also when one of them raises."""
        with contextlib.ExitStack() as each:
            for tool in self.tools.values():
                each.callback(tool.close)

    def dispose(self) -> None:
        """Dispose of all tools, also when one of them raises."""
        with contextlib.ExitStack() as each:
            for tool in self.tools.values():
                each.callback(tool.dispose)

    @property
    def seconds(self) -> float:
        """What the calls of this episode took."""
        return sum(record.seconds for record in self.records)

    @property
    def shown_chars(self) -> int:
        """Characters of results shown in this episode (of tools that ran)."""
        return sum(len(record.text) for record in self.records if record.ran)

    def run(self, calls: Sequence[ToolCall | BadCall]) -> list[CallRecord]:
        """Run the calls of one answer in order; each is answered, whatever happens to the others."""
        most = self.budget.calls_per_turn
        if len(calls) > most:
            reason = f"{len(calls) - most} more calls were not run: one answer may have {most}"
            calls = [*calls[:most], BadCall(reason=reason)]
        first = len(self.records)
        for call in calls:
            self.records.append(self._answer(call))
        return self.records[first:]

    def _answer(self, call: ToolCall | BadCall) -> CallRecord:
        refusal = self._refusal(call)
        if refusal or isinstance(call, BadCall):
            return CallRecord(call=call, text=f"Error: {refusal}", ok=False, ran=False)
        allowed_s = min(self.budget.call_seconds, self.budget.seconds - self.seconds)
        result = self._timed(self.tools[call.name], call, allowed_s)
        shown = self._cut(result.text)
        return CallRecord(call=call, text=shown, ok=result.ok, seconds=result.seconds, digest=digest(result.text))

    def _refusal(self, call: ToolCall | BadCall) -> str:
        budget = self.budget
        if len(self.records) >= budget.calls:
            return f"no call is left: an episode may have {budget.calls}; answer without a tool"
        if self.seconds >= budget.seconds:
            return f"no time is left: all calls of an episode may take {budget.seconds:g} s; answer without a tool"
        if self.shown_chars >= budget.output_chars:
            return (
                f"this call was not run: results may have {budget.output_chars} characters in an episode, and they are "
                "used up; answer without a tool"
            )
        return call_problem(call, self.specs)

    def _timed(self, tool: Tool, call: ToolCall, deadline_s: float) -> ToolResult:
        """Call the tool, in a thread of its own unless it is quick, so that a tool that hangs can be abandoned."""
        what = f"the tool {call.name!r}"
        work = functools.partial(tool.call, call.arguments, deadline_s=deadline_s)
        started = self._clock()
        try:
            result = work() if tool.quick else within(deadline_s + tool.grace_s, what, work)
        except (RollError, KeyboardInterrupt) as error:  # the latter is the user's
            # A thread cannot be killed: one that hangs is left behind, and `open` refuses further episodes.
            if isinstance(error, DeadlineExceededError) and error.waited_for == what:
                self._hung = call.name
            raise
        except BaseException as error:  # code of others
            raise EnvironmentFaultError(f"tool {call.name!r} raised {type(error).__name__}: {error}") from error
        if not isinstance(result, ToolResult):
            raise EnvironmentFaultError(f"tool {call.name!r} returned a {type(result).__name__}, not a ToolResult")
        return replace(result, seconds=max(0.0, self._clock() - started))

    def _cut(self, text: str) -> str:
        room = min(self.budget.call_chars, self.budget.output_chars - self.shown_chars)
        if len(text) <= room:
            return text
        # Keep the beginning and the end: a traceback ends with its error.
        head = room - room // 4
        tail = text[len(text) - room // 4 :] if room // 4 else ""
        return f"{text[:head]}\n[... {len(text) - head - len(tail)} of {len(text)} characters are cut ...]\n{tail}"

    def replay(self, records: Sequence[CallRecord]) -> None:
        """Restore the state of tools by repeating the recorded calls of those that keep state, in order.

        Raises :class:`ConfigError` for a tool whose state cannot be brought back, and :class:`EnvironmentFaultError`
        when a call gives another result than the one recorded.
        """
        for number, record in enumerate(records, 1):
            tool = self.tools.get(record.call.name) if isinstance(record.call, ToolCall) else None
            if not record.ran or tool is None or tool.state == "none":
                continue
            assert isinstance(record.call, ToolCall)
            if tool.state == "outside":
                raise ConfigError(
                    f"the snapshot was taken after a call of {record.call.name!r}, which keeps its state outside of "
                    "this process, so the episode cannot be restored; take the snapshot before the first such call, "
                    "or play the episode again from its seed"
                )
            # The time that was left in the episode is not applied: the call was allowed when it was made.
            result = self._timed(tool, record.call, self.budget.call_seconds)
            if digest(result.text) != record.digest:
                raise EnvironmentFaultError(
                    f"call {number} (tool {record.call.name!r}) gives another result than when the snapshot was taken, "
                    f"so the tool's state cannot be restored; now: {result.text[:200]!r}"
                )
        self.records = list(records)


def digest(text: str) -> str:
    """A short fingerprint of a result."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
