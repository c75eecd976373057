"""One episode of a task set of verifiers: the set's own control flow, an agent that the player speaks for, its tools.

Everything here runs on one event loop, and within the calls of :class:`Talk` only.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import json
import math
import typing
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

from roll_envs.errors import ConfigError, DeadlineExceededError, EnvironmentFaultError, RollError
from roll_envs.tools.arguments import call_problem
from roll_envs.tools.formats import ToolFormat
from roll_envs.tools.types import BadCall, ToolCall, ToolResult, ToolSpec

__all__ = ["PACKAGE", "Talk", "seats", "unplayable"]

PACKAGE = "verifiers.v1"


class Talk:
    """The episode of one task. ``env``: the set's ``Env``; ``form``: how calls of tools are written."""

    def __init__(self, env: Any, task: Any, form: ToolFormat, timeout_s: float) -> None:
        self.vf = importlib.import_module(PACKAGE)
        self.env, self.task, self.form = env, task, form
        self.name = f"the task set {env.config.taskset.id!r}"
        self.system = ""
        """What the agent is told before all else."""
        self.specs: Sequence[ToolSpec] = ()
        self.over = False
        """Whether the set ended the episode."""
        self.last = False
        """Whether no answer is allowed after the one under way."""
        self.traces: list[Any] = []
        self._timeout_s = timeout_s
        self._shown: asyncio.Queue[str] = asyncio.Queue()
        self._said: asyncio.Queue[str] = asyncio.Queue()
        self._playing: asyncio.Task[None] | None = None

    async def begin(self) -> str:
        """What the agent is shown first."""
        self._playing = asyncio.ensure_future(self._episode())
        shown = await self._next()
        if shown is None:
            raise EnvironmentFaultError(f"{self.name} ended before its agent was asked anything")
        return shown

    async def answer(self, text: str, *, last: bool) -> str:
        """Go on with the agent's message; what it is shown next. After the ``last`` one the rewards are there."""
        self.last = last
        self._said.put_nowait(text)
        shown = await self._next()
        if shown is not None and last:
            raise EnvironmentFaultError(f"{self.name} goes on after its agent has stopped")
        self.over = shown is None and self.traces[-1].stop_condition != "max_turns"
        return "The conversation is over." if shown is None else shown

    def paid(self) -> float:
        """The sum of the rewards."""
        paid = float(self.traces[-1].reward)
        if not math.isfinite(paid):
            raise EnvironmentFaultError(f"{self.name} paid {paid}; a reward is a finite number")
        return paid

    def scores(self, kind: Literal["rewards", "metrics"]) -> dict[str, float]:
        """Each part of the reward, or each metric, by its name."""
        found = getattr(self.traces[-1], kind).items()
        return {name: float(getattr(each, "value", each)) for name, each in found if each is not None}

    async def ask(self, shown: str) -> str:
        """For the agent: the player's answer to what it is shown."""
        self._shown.put_nowait(shown)
        return await self._said.get()

    async def close(self) -> None:
        """End the episode, wherever it is."""
        if self._playing is not None:
            self._playing.cancel()
            done, _ = await asyncio.wait([self._playing], timeout=self._timeout_s)
            for each in done:
                each.cancelled() or each.exception()  # what it raised has been told

    async def _next(self) -> str | None:
        """What the agent is shown next, ``None`` when the episode is over."""
        assert self._playing is not None
        asked = asyncio.ensure_future(self._shown.get())
        done, _ = await asyncio.wait({asked, self._playing}, timeout=self._timeout_s, return_when="FIRST_COMPLETED")
        if asked in done:
            return asked.result()
        asked.cancel()
        await asyncio.wait([asked])
        if not done:
            self._playing.cancel()
            raise DeadlineExceededError(f"{self.name} between two answers", self._timeout_s)
        try:
            self._playing.result()
        except RollError:
            raise
        except Exception as error:
            raise EnvironmentFaultError(f"{self.name} failed: {type(error).__name__}: {error}") from error
        return None

    async def _episode(self) -> None:
        async with contextlib.AsyncExitStack() as held:
            (seat,) = seats(self.env.config)
            agents = _Agents(**{seat: _Agent(self, held)})
            await self.env.setup(agents)
            await self.env.run(self.task, agents)
            if not self.traces:
                raise EnvironmentFaultError(f"{self.name} ended without a run of its agent")
            info = self.vf.EnvInfo(id=self.env.config.env_id)
            episode = self.vf.Episode(env=info, task=_noted(self.vf, self.task), traces=self.traces)
            await self.env.finalize(self.task, episode)
            rewards = self.traces[-1].rewards
            missing = [name for name, reward in rewards.items() if reward is None]
            if missing or not rewards:
                raise EnvironmentFaultError(f"{self.name} gave no reward{' ' * bool(missing)}{', '.join(missing)}")


class _Agents:
    """What ``Env.run`` is given: an agent by the name of its seat."""

    def __init__(self, **agents: _Agent) -> None:
        vars(self).update(agents)


class _Agent:
    """The seat of an ``Env``, played here: what verifiers' ``Agent`` offers to ``Env.run``."""

    def __init__(self, talk: Talk, held: contextlib.AsyncExitStack) -> None:
        self.trainable = True
        self._talk, self._held = talk, held

    async def run(self, task: Any, **borrowed: Any) -> Any:
        async with self.interaction(task, **borrowed) as interaction:
            await interaction.turn()
            interaction.trace.stop("agent_completed")
        return interaction.trace

    @contextlib.asynccontextmanager
    async def interaction(self, task: Any, **borrowed: Any) -> AsyncIterator[_Interaction]:
        talk, vf = self._talk, self._talk.vf
        given = sorted(name for name, value in borrowed.items() if value)
        reason = f"it gives its agent {', '.join(given)}" if given else unplayable(task)
        if talk.traces:
            reason = "it runs its agent more than once in an episode"
        if reason:
            raise ConfigError(f"{talk.name} cannot be played here: {reason}")
        state = importlib.import_module(f"{PACKAGE}.state").state_cls(type(task))()
        agent = vf.AgentInfo(config=vf.AgentConfig())
        trace = vf.Trace(task=_noted(vf, task), state=state, agent=agent)
        talk.traces.append(trace)
        await _called(task.setup, trace)
        tools = await _Tools.open(talk, task, trace, self._held)
        yield _Interaction(talk, task, trace, tools)
        trace.stop("user_closed")
        trace.ok = True
        await _called(task.finalize, trace)
        await task.score(trace)


class _Interaction:
    """A conversation that the caller leads, turn by turn, as verifiers' ``Interaction``."""

    def __init__(self, talk: Talk, task: Any, trace: Any, tools: _Tools) -> None:
        self.trace = trace
        self._talk, self._vf, self._task, self._tools = talk, talk.vf, task, tools
        self._fresh: list[str] = []
        """What the agent has not been shown yet."""
        self._begun = False

    async def turn(self, message: str | None = None) -> Any:
        """What the agent says to ``message``, after all calls of its tools; ``terminated`` when it says no more."""
        if not self._begun:
            self._begun = True
            self._talk.specs = tuple(self._tools.specs.values())
            self._open()
        elif message is None:
            raise ValueError("a turn after the first needs a message")
        elif self._talk.last:
            self.trace.stop("max_turns")
        if message is not None:
            self._note(self._vf.UserMessage(content=message), message)
        first = len(self.trace.nodes)
        calling = True
        while calling and self.trace.stop_condition is None:
            shown, self._fresh = "\n\n".join(filter(None, self._fresh)), []
            text = await self._talk.ask(shown or "Begin.")
            calls = self._talk.form.parse(text, self._tools.specs) if self._tools.specs else ()
            await self._say(text, calls)
            for stop in self._task.hooks("stop"):
                if await _called(stop, self.trace):
                    self.trace.stop(stop.__name__)
            calling = bool(calls)
            if calling and self._talk.last:
                self.trace.stop("max_turns")
        said = [node.message for node in self.trace.nodes[first:]]
        return self._vf.Segment(messages=said, terminated=not said)

    def _open(self) -> None:
        data = self._task.data
        if data.system_prompt is not None:
            self._talk.system = data.system_prompt
            self._note(self._vf.SystemMessage(content=data.system_prompt))
        asked = [self._vf.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else data.prompt or []
        several = sum(message.role != "system" for message in asked) > 1
        for message in asked:
            text = "\n".join(_texts(message))
            if message.role == "system":
                self._talk.system = "\n\n".join(filter(None, [self._talk.system, text]))
                self._note(message)
            else:
                self._note(message, f"[{message.role}]\n{text}" if several else text)

    async def _say(self, text: str, calls: Sequence[ToolCall | BadCall]) -> None:
        vf, first = self._vf, len(self.trace.nodes)
        thought, mark, rest = text.partition("</think>")
        made: dict[int, Any] = {
            number: vf.ToolCall(id=f"call-{first}-{number}", name=call.name, arguments=json.dumps(dict(call.arguments)))
            for number, call in enumerate(calls)
            if isinstance(call, ToolCall)
        }
        message = vf.AssistantMessage(
            content=rest.strip() if mark else text,
            reasoning_content=thought.strip().removeprefix("<think>").strip() if mark else None,
            tool_calls=list(made.values()) or None,
        )
        self._note(message, sampled=True)
        for number, call in enumerate(calls):
            result = await self._tools.call(call)
            shown = self._talk.form.show([(call, result)])
            if number in made:
                id, name = made[number].id, made[number].name
                self._note(vf.ToolMessage(tool_call_id=id, content=result.text, name=name), shown)
            else:  # what could not be read as a call has no id to answer to
                self._note(vf.UserMessage(content=result.text), shown)

    def _note(self, message: Any, shown: str = "", *, sampled: bool = False) -> None:
        nodes = self.trace.nodes
        nodes.append(self._vf.MessageNode(parent=len(nodes) - 1 if nodes else None, message=message, sampled=sampled))
        self._fresh.append(shown)


class _Tools:
    """The set's tools, run in this process instead of in servers of their own."""

    def __init__(self) -> None:
        self.specs: dict[str, ToolSpec] = {}
        self._served: dict[str, tuple[Any, str]] = {}

    @classmethod
    async def open(cls, talk: Talk, task: Any, trace: Any, held: contextlib.AsyncExitStack) -> _Tools:
        made, taskset = cls(), talk.env.taskset
        shared = taskset.toolsets(taskset.config)
        for toolset in [*shared, *task.toolsets(task.config)]:
            if getattr(toolset.config, "url", None):
                raise ConfigError(f"{talk.name} has tools at {toolset.config.url}; only those in Python are run here")
            held.push_async_callback(toolset._exit_stack.aclose)
            _share_state(toolset, trace)
            await toolset.setup()
            if toolset not in shared:
                await toolset.setup_task(task.data)
            server = importlib.import_module("mcp.server.mcpserver").MCPServer(type(toolset).__name__)
            toolset.register(server)
            for tool in await server.list_tools():
                name = f"{toolset.server_name}_{tool.name}" if toolset.server_name else tool.name
                if name in made.specs:
                    raise ConfigError(f"{talk.name} has two tools of the name {name!r}")
                made.specs[name] = ToolSpec(name=name, description=tool.description or "", parameters=tool.input_schema)
                made._served[name] = server, tool.name
        return made

    async def call(self, call: ToolCall | BadCall) -> ToolResult:
        """The result of a call. Mistakes of the model, and what a tool raises, are texts for the model, as there."""
        wrong = call_problem(call, self.specs)
        if wrong or isinstance(call, BadCall):
            return ToolResult(text=f"Error: {wrong}", ok=False)
        server, name = self._served[call.name]
        try:
            result = await server.call_tool(name, dict(call.arguments))
        except Exception as error:
            return ToolResult(text=f"Error: {error}", ok=False)
        text = "\n".join(str(getattr(block, "text", block)) for block in result.content)
        return ToolResult(text=text.strip() or "(no output)", ok=not result.is_error)


def _share_state(toolset: Any, trace: Any) -> None:
    """Have a toolset work on the episode's state, which a server would fetch over HTTP before each call."""

    async def pull() -> Any:
        return trace.state

    async def push(before: bytes) -> None:
        """Nothing: it is the same object."""

    toolset._pull_state, toolset._push_state = pull, push


def seats(config: Any) -> list[str]:
    """The names of an environment's agents."""
    kind = importlib.import_module(PACKAGE).AgentConfig
    return [name for name, value in config if isinstance(value, kind)]


def unplayable(task: Any) -> str:
    """Why a task cannot be played here; empty where it can."""
    vf, data = importlib.import_module(PACKAGE), task.data
    if task.NEEDS_CONTAINER or data.image or data.skills or data.artifacts:
        return "its tasks need a container"
    own = [name for name in ("setup", "finalize") if getattr(type(task), name) is not getattr(vf.Task, name)]
    hooks = [*task.hooks("reward"), *task.hooks("metric"), *(getattr(task, name) for name in own)]
    needs = [hook.__name__ for hook in hooks if _needs_runtime(hook)]
    if needs:
        return f"its {', '.join(needs)} asks for a runtime"
    if any(hasattr(value, "intercept") for kind in type(task).__mro__ for value in vars(kind).values()):
        return "it intercepts requests to the model"
    for stop in task.hooks("stop"):
        if {vf.Request, vf.Response} & set(typing.get_type_hints(stop).values()):
            return f"its {stop.__name__} looks at requests to the model"
    if not isinstance(data.prompt, str) and any(_has_pictures(message) for message in data.prompt or ()):
        return "its prompts have pictures"
    return ""


def _needs_runtime(hook: Any) -> bool:
    asked = inspect.signature(hook).parameters.get("runtime")
    return asked is not None and asked.default is asked.empty


async def _called(hook: Any, trace: Any) -> Any:
    """What a hook of a task gives: the trace is all that one without a runtime may ask for."""
    asked = [name for name, one in inspect.signature(hook).parameters.items() if one.default is one.empty]
    result = hook(**{name: None if name == "runtime" else trace for name in asked})
    return await result if inspect.isawaitable(result) else result


def _noted(vf: Any, task: Any) -> Any:
    return vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)


def _texts(message: Any) -> list[str]:
    content = message.content or ""
    return [content] if isinstance(content, str) else [part.text for part in content]


def _has_pictures(message: Any) -> bool:
    return not isinstance(message.content, str) and any(part.type != "text" for part in message.content or ())
