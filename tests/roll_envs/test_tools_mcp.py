"""MCP servers: a real small one, over stdio and streamable HTTP; its mistakes, its slowness, its death."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from roll_envs.errors import ConfigError, EnvironmentFaultError, UnknownNameError
from roll_envs.testing import CounterEnv
from roll_envs.tools import Tool, ToolBudget, ToolCall, ToolEnv, ToolRunner, make_tools
from roll_envs.tools.mcp_connection import McpConnection, McpEndpoint, ServerGoneError

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("mcp") is None, reason="needs the optional part 'mcp'"),
]

SERVER = str(Path(__file__).with_name("mcp_small_server.py"))
COMMAND = [sys.executable, SERVER]


def _tools(**kwargs: Any) -> dict[str, Tool]:
    given: dict[str, Any] = {"command": COMMAND} if "url" not in kwargs else {}
    return {tool.spec.name: tool for tool in make_tools({"tool": "mcp", **given, **kwargs})}


def _begin(tools: Mapping[str, Tool]) -> None:
    for tool in tools.values():
        tool.close()
        tool.open()


def _end(tools: Mapping[str, Tool]) -> None:
    for tool in tools.values():
        tool.dispose()


@pytest.fixture(scope="module")
def tools() -> Iterator[dict[str, Tool]]:
    """Tools of one server that no test here kills."""
    found = _tools(stateless=True, env={"SMALL_SERVER": "as given"})
    yield found
    _end(found)


def _children(named: str = "mcp_small_server") -> list[str]:
    """The command lines of this process's children that run the server, whole: `ps` cuts them to the COLUMNS it is
    told, and then no name is found in a long path."""
    children: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread may end meanwhile
            children += (task / "children").read_text().split()
    lines = []
    for child in children:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it may end meanwhile
            lines.append(Path("/proc", child, "cmdline").read_bytes().decode().replace("\0", " "))
    return [line for line in lines if named in line]


def test_tools_are_listed_and_called(tools: dict[str, Tool]) -> None:
    assert set(tools) == {"add", "count", "variable", "fail", "slow", "nothing", "die", "stall"}
    spec = tools["add"].spec
    assert spec.description == "Add two whole numbers."
    assert spec.parameters["required"] == ["a", "b"]
    assert tools["add"].call({"a": 40, "b": 2}, deadline_s=30).text == "42"
    assert tools["nothing"].call({}, deadline_s=30).text
    assert tools["variable"].call({"name": "SMALL_SERVER"}, deadline_s=30).text == "as given"


def test_an_error_of_a_tool_is_a_text(tools: dict[str, Tool]) -> None:
    failed = tools["fail"].call({}, deadline_s=30)
    assert not failed.ok
    assert "fail" in failed.text
    wrong = tools["add"].call({"a": "x", "b": 2}, deadline_s=30)  # the server's own check
    assert not wrong.ok


def test_a_slow_tool_of_a_living_server_is_a_text(tools: dict[str, Tool]) -> None:
    started = time.monotonic()
    late = tools["slow"].call({"seconds": 2.0}, deadline_s=0.2)
    assert late.text == "Error: the tool did not answer within 0.2 s"
    assert not late.ok
    assert time.monotonic() - started < 2
    assert tools["add"].call({"a": 1, "b": 1}, deadline_s=30).text == "2"


def test_it_plays_in_an_environment(tools: dict[str, Tool]) -> None:
    env = ToolEnv(env=CounterEnv(), tools=list(tools.values()))
    env.reset(seed=0)
    shown, *_, info = env.step('<tool_call>{"name": "add", "arguments": {"a": 1, "b": "2"}}</tool_call>')
    assert "argument 'b' must be of type integer" in shown
    assert info["tool_errors"] == 1
    shown = env.step('<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>')[0]
    assert shown == "<tool_response>\n3\n</tool_response>"


@pytest.mark.slow
def test_each_episode_has_a_server_of_its_own() -> None:
    before = len(_children())
    with pytest.raises(UnknownNameError, match="did you mean 'count'"):
        _tools(only=["cuont"])
    tools = _tools(only=["count"], prefix="small.")
    try:
        counter = tools["small.count"]
        _begin(tools)
        assert [counter.call({}, deadline_s=30).text for _ in range(2)] == ["count 1", "count 2"]
        _begin(tools)
        assert counter.call({}, deadline_s=30).text == "count 1"
        assert len(_children()) == before + 1
    finally:
        _end(tools)
    assert len(_children()) == before


@pytest.mark.slow
def test_a_server_that_dies_is_restarted_once(tmp_path: Path) -> None:
    before = len(_children())
    tools = _tools()
    try:
        _begin(tools)
        # The first call of an episode: nothing is lost by a restart.
        assert tools["die"].call({"flag": str(tmp_path / "a")}, deadline_s=30).text == "survived"
        with pytest.raises(EnvironmentFaultError, match="whose state is lost"):
            tools["die"].call({"flag": str(tmp_path / "b")}, deadline_s=30)
        _begin(tools)
        assert tools["count"].call({}, deadline_s=30).text == "count 1"
        _begin(tools)
        flag = tmp_path / "kept out"
        flag.symlink_to(tmp_path / "no folder" / "flag")  # can never be made: the server dies at every call
        with pytest.raises(EnvironmentFaultError, match=r"the server gives up.*after one restart"):
            tools["die"].call({"flag": str(flag)}, deadline_s=30)
    finally:
        _end(tools)
    assert len(_children()) == before


@pytest.mark.slow
def test_a_server_that_stalls_is_told_before_the_call_counts_as_a_hang() -> None:
    tools = _tools(start_s=5.0)
    try:
        runner = ToolRunner(list(tools.values()), ToolBudget(call_seconds=12.0))
        runner.open()
        with pytest.raises(EnvironmentFaultError, match="is gone: it did not answer 'stall' within 12 s"):
            runner.run([ToolCall(name="stall")])
        runner.open()
        assert runner.run([ToolCall(name="count")])[0].text == "count 1"
    finally:
        _end(tools)


def test_a_restart_has_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    started_s: list[float] = []
    deadlines_s: list[float] = []

    class Dying:
        """A connection whose server dies in each call, after a moment."""

        tools = ({"name": "wait"},)

        def __init__(self, endpoint: McpEndpoint, *, start_s: float) -> None:
            started_s.append(start_s)

        def call(self, name: str, arguments: Mapping[str, Any], *, deadline_s: float) -> dict[str, Any]:
            deadlines_s.append(deadline_s)
            time.sleep(0.2)
            raise ServerGoneError("the server is gone")

        def close(self) -> None: ...

    monkeypatch.setattr("roll_envs.tools.mcp.McpConnection", Dying)
    (tool,) = _tools(start_s=33.0).values()
    assert tool.grace_s > 33.0
    with pytest.raises(EnvironmentFaultError, match="after one restart"):
        tool.call({}, deadline_s=5.0)
    assert deadlines_s[0] == 5.0
    assert 3.0 < deadlines_s[1] <= 4.8
    assert started_s == [33.0, 33.0]


@pytest.mark.slow
def test_a_stateless_server_is_restarted_at_any_time(tmp_path: Path) -> None:
    tools = _tools(stateless=True)
    try:
        _begin(tools)
        tools["count"].call({}, deadline_s=30)
        assert tools["die"].call({"flag": str(tmp_path / "a")}, deadline_s=30).text == "survived"
    finally:
        _end(tools)


@pytest.mark.parametrize("stateless", [False, True])
def test_a_connection_that_ended_between_two_calls_is_not_opened_again_in_silence(stateless: bool) -> None:
    tools = _tools(stateless=stateless)
    try:
        _begin(tools)
        assert tools["count"].call({}, deadline_s=30).text == "count 1"
        tools["count"]._server._connection._background.stop()  # type: ignore[attr-defined]  # as when its transport breaks
        if stateless:
            assert tools["count"].call({}, deadline_s=30).text == "count 1"
        else:
            with pytest.raises(EnvironmentFaultError, match="after 1 calls of this episode, whose state is lost"):
                tools["count"].call({}, deadline_s=30)
    finally:
        _end(tools)


@pytest.mark.slow
def test_a_call_that_is_under_way_when_the_connection_is_closed_opens_nothing() -> None:
    """Its server is busy and takes seconds to end; meanwhile the call fails, and asks whether the server lives."""
    before = set(threading.enumerate())
    connection = McpConnection(McpEndpoint(command=tuple(COMMAND)), start_s=60)
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(connection.call, "slow", {"seconds": 6.0}, deadline_s=30)
        time.sleep(0.5)
        connection.close()
        assert isinstance(calling.exception(20), ServerGoneError)
    assert set(threading.enumerate()) <= before


@pytest.mark.slow
def test_streamable_http() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = subprocess.Popen([*COMMAND, str(port)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        tools = _tools(url=f"http://127.0.0.1:{port}/mcp")
        _begin(tools)
        assert tools["add"].call({"a": 40, "b": 2}, deadline_s=30).text == "42"
        assert tools["count"].call({}, deadline_s=30).text == "count 1"
        running.kill()
        running.wait(10)
        with pytest.raises(EnvironmentFaultError, match="is gone"):
            tools["count"].call({}, deadline_s=30)
        _end(tools)
    finally:
        running.kill()
        running.wait(10)
    with pytest.raises(EnvironmentFaultError, match=r"cannot be reached|was not ready"):
        _tools(url=f"http://127.0.0.1:{port}/mcp", start_s=5)


@pytest.mark.slow
def test_a_server_that_cannot_start_is_told() -> None:
    before = len(_children(""))
    started = time.monotonic()
    with pytest.raises(EnvironmentFaultError, match=r"cannot be reached.*its stderr ends.*no_such_module"):
        _tools(command=[sys.executable, "-c", "import no_such_module"], start_s=20)
    with pytest.raises(EnvironmentFaultError, match=r"was not ready after 0\.5 s"):
        _tools(command=[sys.executable, "-c", "import time; time.sleep(30)"], start_s=0.5)
    assert time.monotonic() - started < 20
    assert len(_children("")) == before


def test_wrong_arguments_are_told() -> None:
    with pytest.raises(ConfigError, match="either command"):
        make_tools("mcp")
    with pytest.raises(ConfigError, match=r"command should be a list, not 'python server.py'"):
        _tools(command="python server.py")
