"""ToolEnv: calls are turns, answers go through, seeds and snapshots hold."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from tool_fakes import CountTool, InProcessSandbox, OddTool

import roll_envs
from roll_envs.errors import ConfigError, EnvironmentFaultError, UnknownNameError
from roll_envs.managers import EpisodeDriver, EpisodeLimits, EpisodeSettings, load_context
from roll_envs.testing import COUNTER_CARD, RULES, CharRenderer, CounterEnv, ScriptedPolicy, check_env
from roll_envs.tools import TOOL_FORMATS, ToolBudget, ToolCall, ToolEnv
from roll_envs.tools.python import PythonTool
from roll_envs.types import SamplingParams, Task

COUNT = '<tool_call>{"name": "count", "arguments": {}}</tool_call>'
MORE = "<answer>More</answer>"
BAD = "<tool_call>{</tool_call>"


def _python(code: str, name: str = "python") -> str:
    return TOOL_FORMATS["hermes"].render([ToolCall(name=name, arguments={"code": code})])


def _env(*tools: Any, **kwargs: Any) -> ToolEnv:
    return ToolEnv(env=CounterEnv(), tools=list(tools) or [CountTool()], **kwargs)


def test_a_call_is_a_turn_that_leaves_the_environment_alone() -> None:
    env = _env()
    before, _ = env.reset(seed=3)
    shown, reward, terminated, truncated, info = env.step(f"I count. {COUNT}{COUNT}{BAD}")
    assert shown.startswith("<tool_response>\ncount 1\n</tool_response>\n<tool_response>\ncount 2\n</tool_response>\n")
    assert "is malformed" in shown
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert env.env.render() == before
    assert env.render() == shown
    seconds = info.pop("tool_seconds")
    assert 0 < seconds < 5
    assert info == {
        "success": False,
        "action_is_valid": False,
        "action_is_effective": True,
        "format_penalty": 0.0,
        "reward_parts": {"tool_calls": 0.0},
        "tool_calls": 3,
        "tool_errors": 1,
    }


def test_an_answer_goes_through_unchanged() -> None:
    plain, env = CounterEnv(), _env()
    assert env.reset(seed=3) == plain.reset(seed=3)
    env.step(COUNT)
    for answer in (MORE, "garbage", MORE, MORE):
        shown, reward, terminated, truncated, info = env.step(answer)
        wanted = plain.step(answer)
        assert (shown, reward, terminated, truncated) == wanted[:4]
        assert (info.pop("tool_calls"), info.pop("tool_errors"), info.pop("tool_seconds")) == (0, 0, 0.0)
        assert info["reward_parts"].pop("tool_calls") == 0.0
        assert info == wanted[4]
        if terminated or truncated:
            break


def test_options_of_a_reset_go_to_the_environment() -> None:
    env = ToolEnv(env="roll/Dataset-v0", tools=["calculator"])
    asked = [env.reset(seed=0, options={"row": row})[0] for row in (3, 4)]
    assert asked == ["What is 11 + 37?", "What is 11 + 47?"]


def test_calls_may_cost() -> None:
    env = _env(call_cost=0.25)
    env.reset(seed=3)
    _, reward, _, _, info = env.step(COUNT + COUNT)
    assert reward == -0.5
    assert info["reward_parts"] == {"tool_calls": -0.5}


def test_the_turn_limit_is_its_own() -> None:
    env = _env(max_turns=3)
    env.reset(seed=3)
    ends = [env.step(COUNT)[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(COUNT)
    assert _env().max_turns == 6 + 8
    inner = _env(max_turns=100)
    inner.reset(seed=3)
    ended = list(itertools.takewhile(lambda _: not any(inner.step("no")[2:4]), range(100)))
    assert len(ended) == 5  # the wrapped environment's own limit of 6 still holds


def test_tools_begin_anew_with_each_episode() -> None:
    tool = CountTool()
    env = _env(tool, budget={"calls": 2})
    for _ in range(2):
        env.reset(seed=1)
        assert "count 1" in env.step(COUNT)[0]
        env.step(COUNT)
        assert "no call is left" in env.step(COUNT)[0]
    env.close()
    env.close()
    assert tool.disposed == 2


def test_the_instructions_name_the_tools_and_do_not_change() -> None:
    for name, form in TOOL_FORMATS.items():
        env = _env(CountTool(), OddTool(how="text"), format=name)
        env.reset(seed=0)
        text = env.instructions
        assert text.startswith(env.env.instructions)
        assert form.describe(tuple(env.runner.specs.values())) in text
        assert "You have 14 turns in all, and up to 16 calls of up to 10 s each." in text
        env.step(form.render([ToolCall(name="count")]))
        assert env.instructions == text


def test_the_vocabulary_holds_the_fixed_parts_of_calls() -> None:
    env = ToolEnv(env=CounterEnv(), tools=["calculator"])
    call = TOOL_FORMATS["hermes"].render([ToolCall(name="calculator", arguments={"expression": "12+3"})])
    left = call
    for word in sorted(env.vocabulary, key=len, reverse=True):
        left = left.replace(word, "|")
    assert left == "|12+3|"
    assert "<tool_response>\n" in env.vocabulary


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_every_format_plays(name: str) -> None:
    env = ToolEnv(env=CounterEnv(), tools=["calculator"], format=name)
    env.reset(seed=0)
    call = TOOL_FORMATS[name].render([ToolCall(name="calculator", arguments={"expression": "6 * 7"})])
    shown, *_, info = env.step(call)
    assert "42" in shown
    assert (info["tool_calls"], info["tool_errors"]) == (1, 0)


# -- seeds, snapshots, the validator -----------------------------------------------------------------------------------


class CallingEnv(ToolEnv):
    """Its random player calls tools too, and no clock runs, so that whole episodes can be compared."""

    def __init__(self) -> None:
        super().__init__(env=CounterEnv(), tools=[CountTool(), "calculator"], call_cost=0.125)
        self.runner._clock = lambda: 0.0
        form = self.action_format
        names = ("Less", "More")
        calls = (COUNT, BAD, COUNT * 2, COUNT + '<tool_call>{"name": "calculator", "arguments": {"expression": "7/9"}}')
        self._answers = [*(form.format([i]) for i in range(len(names))), *calls]
        self.action_format = roll_envs.make_free_format("word", example=MORE)

    def legal_answers(self) -> list[str]:
        return list(self._answers)


def test_check_env_passes_with_tools_and_with_calls() -> None:
    report = check_env(lambda: ToolEnv(env=CounterEnv(), tools=["calculator"]), seeds=(0, 1, 2), card=COUNTER_CARD)
    assert report.ok, str(report)
    # It lists a call that cannot be read, for its random player to make it.
    others = [rule for rule in RULES if rule not in ("legal_answers", "processes", "memory")]
    report = check_env(CallingEnv, seeds=(0, 1, 2), rules=others)
    assert {r.rule for r in report.results if r.status == "skip"} == {"reward_range", "splits"}, str(report)
    assert report.ok, str(report)


def _restored(env: ToolEnv, other: ToolEnv) -> tuple[str, str]:
    taken = json.loads(json.dumps(env.snapshot()))
    back = other.restore(taken)
    assert back == env.render()
    return env.step(COUNT)[0], other.step(COUNT)[0]


def test_a_snapshot_brings_the_state_of_tools_back_by_replay() -> None:
    env, other = _env(), _env()
    env.reset(seed=5)
    env.step(COUNT + BAD + COUNT)
    env.step(MORE)
    expected, found = _restored(env, other)
    assert expected == found == "<tool_response>\ncount 3\n</tool_response>"
    assert [r.text for r in other.runner.records] == [r.text for r in env.runner.records]


def test_python_variables_come_back() -> None:
    def make() -> ToolEnv:
        return _env(PythonTool(sandbox=InProcessSandbox()), budget={"call_chars": 20})

    env, other = make(), make()
    env.reset(seed=5)
    assert "are cut" in env.step(_python("x = 40; print('long' * 30)"))[0]
    env.step(_python("x += 2; print('hello', x)"))
    other.restore(json.loads(json.dumps(env.snapshot())))
    assert "42" in other.step(_python("print(x)"))[0]


def test_a_replay_that_gives_something_else_is_a_fault() -> None:
    env = _env()
    env.reset(seed=5)
    env.step(COUNT)
    other = _env(CountTool(drift=1))
    with pytest.raises(EnvironmentFaultError, match=r"call 1 \(tool 'count'\) gives another result.*count 2"):
        other.restore(env.snapshot())
    with pytest.raises(gymnasium.error.ResetNeeded):
        other.step(MORE)


def test_a_task_that_was_solved_is_solved_after_a_restore() -> None:
    env, other = _env(), _env()
    env.reset(seed=5)
    other.restore({**env.snapshot(), "success": True})
    assert other.step(COUNT)[4]["success"] is True


def test_state_outside_cannot_be_restored_and_says_so() -> None:
    env, other = _env(CountTool(state="outside")), _env(CountTool(state="outside"))
    env.reset(seed=5)
    other.restore(env.snapshot())  # before the first call there is nothing to bring back
    env.step(COUNT)
    taken = env.snapshot()
    with pytest.raises(ConfigError, match="keeps its state outside of this process"):
        other.restore(taken)


def test_a_snapshot_of_an_ended_episode() -> None:
    env, other = _env(CountTool(state="outside"), max_turns=1), _env(CountTool(state="outside"), max_turns=1)
    env.reset(seed=5)
    shown = env.step(COUNT)[0]
    assert other.restore(env.snapshot()) == shown == other.render()
    with pytest.raises(gymnasium.error.ResetNeeded):
        other.step(COUNT)


# -- python ------------------------------------------------------------------------------------------------------------


def test_the_python_tool_keeps_variables_within_an_episode_only() -> None:
    sandbox = InProcessSandbox()
    env = _env(PythonTool(sandbox=sandbox))
    env.reset(seed=0)
    assert sandbox.open_sessions == 0
    env.step(_python("x = 6"))
    assert "36" in env.step(_python("print(x * 6)"))[0]
    assert sandbox.open_sessions == 1
    env.reset(seed=0)
    assert sandbox.open_sessions == 0
    shown, *_, info = env.step(_python("print(x)"))
    assert "NameError" in shown
    assert (info["tool_errors"], info["action_is_valid"]) == (1, True)
    env.close()
    assert not sandbox.closed  # its owner closes it


def test_the_session_ends_with_the_episode() -> None:
    sandbox = InProcessSandbox()
    env = _env(PythonTool(sandbox=sandbox), max_turns=2)
    env.reset(seed=0)
    env.step(_python("x = 6"))
    assert sandbox.open_sessions == 1
    assert env.step(_python("x = 7"))[3]
    assert sandbox.open_sessions == 0


def test_the_python_tool_passes_its_limits_on() -> None:
    sandbox = InProcessSandbox()
    tool = PythonTool(sandbox=sandbox, memory_mb=77)
    for seconds in (3.0, 2.0):
        tool.call({"code": "1"}, deadline_s=seconds)
    found = [(limits.wall_s, limits.memory_mb) for limits in sandbox.limits if limits is not None]
    assert found == [(3.0, 77), (3.0, 77), (2.0, 77)]  # the session, then its cells


def test_the_python_tool_makes_its_sandbox_as_told_and_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox, made = InProcessSandbox(), list[Any]()

    def make_sandbox(name: str, **settings: Any) -> InProcessSandbox:
        made.append((name, settings))
        return sandbox

    monkeypatch.setattr("roll_envs.tools.python.make_sandbox", make_sandbox)
    tool = PythonTool(sandbox="local", sandbox_kwargs={"slots": 2})
    for _ in range(2):
        tool.open()
        tool.call({"code": "1"}, deadline_s=1.0)
    assert made == [("local", {"slots": 2})]
    tool.dispose()
    assert sandbox.closed


@pytest.mark.parametrize(
    ("code", "says", "ok"),
    [
        ("x = 1", "(no output; print a value to see it)", True),
        ("print('a\\n\\nb')", "a\n\nb", True),
        ("print('seen'); 1 / 0", "seen\nZeroDivisionError: division by zero", False),
        ("timeout", "Error: the code ran longer than 2 s and was ended; variables are lost, files are kept.", False),
        ("memory", "more than 512 MB", False),
        ("output", "printed too much", False),
        (" \n", "the code is empty", False),
        ("'\ud800'", "no valid Unicode text at character 1", False),
    ],
)
def test_what_the_python_tool_shows(code: str, says: str, ok: bool) -> None:
    tool = PythonTool(sandbox=InProcessSandbox())
    result = tool.call({"code": code}, deadline_s=2.0)
    assert says in result.text
    assert result.ok is ok


# -- faults ------------------------------------------------------------------------------------------------------------


def _play(make: Any, script: list[str]) -> Any:
    renderer = CharRenderer()
    policy = ScriptedPolicy(script)
    settings = EpisodeSettings(
        context=load_context("everything"),
        renderer=renderer,
        sampling=SamplingParams(max_new_tokens=500, stop_ids=renderer.stop_ids),
        max_tokens=50_000,
    )
    limits = EpisodeLimits(max_running=2, attempts=2, turn_timeout_s=10, env_timeout_s=10, episode_timeout_s=20)
    with EpisodeDriver(lambda task: make(), limits) as driver:
        (group,) = driver.collect(
            [Task(env_id="test/x-v0", split="train", index=0, seed=1)],
            1,
            settings,
            lambda env, ids, sampling: policy.generate(ids, sampling, timeout_s=5),
        )
    return group.trajectories[0]


def test_a_dead_sandbox_fails_the_episode_and_is_no_reward() -> None:
    played = _play(lambda: _env(PythonTool(sandbox=InProcessSandbox())), [_python("die")])
    assert played.outcome.kind == "failed"
    assert "the worker died" in played.outcome.reason
    assert played.attempts == 2


def test_an_episode_with_tools_is_an_ordinary_episode() -> None:
    played = _play(_env, [COUNT, MORE])
    assert played.scored
    assert played.turns[0].info["tool_calls"] == 1
    assert played.turns[1].prompt_observation == "<tool_response>\ncount 1\n</tool_response>"


# -- arguments ---------------------------------------------------------------------------------------------------------


def test_wrong_arguments_are_told() -> None:
    with pytest.raises(ConfigError, match="at least one tool"):
        ToolEnv(env=CounterEnv(), tools=[])
    with pytest.raises(ConfigError, match="must be a list"):
        ToolEnv(env=CounterEnv(), tools="calculator")
    with pytest.raises(ConfigError, match="env_kwargs are for"):
        ToolEnv(env=CounterEnv(), env_kwargs={"highest": 3}, tools=["calculator"])
    with pytest.raises(ConfigError, match="call_cost"):
        _env(call_cost=-1)
    with pytest.raises(ConfigError, match="max_turns must be"):
        _env(max_turns=0)
    with pytest.raises(UnknownNameError, match="did you mean 'calls'"):
        _env(budget={"call": 1})
    with pytest.raises(UnknownNameError, match="no tool format 'xml'"):
        _env(format="xml")
    with pytest.raises(UnknownNameError, match="no environment"):
        ToolEnv(env="roll/Nothing-v0", tools=["calculator"])


def test_it_is_made_by_name() -> None:
    env = roll_envs.make(
        "roll/ToolEnv-v0",
        env="roll/FrozenLake-v0",
        env_kwargs={"size": 5},
        tools=[{"tool": "calculator"}],
        budget={"calls": 3},
    )
    assert isinstance(env, ToolEnv)
    assert env.runner.budget.calls == 3
    assert len(env.reset(seed=0)[0].splitlines()) == 5


def test_the_python_of_the_guide_runs() -> None:
    guide = (Path(__file__).resolve().parents[2] / "docs" / "tools.md").read_text(encoding="utf-8")
    play, tool = re.findall(r"^```python\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    exec(play, {})
    names: dict[str, Any] = {}
    exec(tool, names)
    env = _env(names["WordLength"]())
    env.reset(seed=0)
    call = TOOL_FORMATS["hermes"].render([ToolCall(name="length", arguments={"word": "seven"})])
    assert env.step(call)[0] == "<tool_response>\n5\n</tool_response>"


def test_the_guide_names_every_format_tool_and_limit() -> None:
    guide = (Path(__file__).resolve().parents[2] / "docs" / "tools.md").read_text(encoding="utf-8")
    budget = {field.name: field.default for field in dataclasses.fields(ToolBudget)}
    named = {*TOOL_FORMATS, *budget, "python", "calculator", "search", "mcp"}
    assert {name for name in named if f"`{name}`" not in guide} == set()
    assert f"| `calls` | {budget['calls']} |" in guide
    assert f"| {budget['seconds']:g}, {budget['call_seconds']:g} |" in guide
    assert f"| {budget['output_chars']}, {budget['call_chars']} |" in guide


def test_tools_made_before_one_that_fails_are_freed() -> None:
    tool = CountTool()
    with pytest.raises(UnknownNameError):
        _env(tool, "calculater")
    assert tool.disposed == 1
    with pytest.raises(ConfigError, match="two tools"):
        _env(tool, CountTool())
    assert tool.disposed == 2


def test_a_win_on_the_last_turn_is_terminated_only() -> None:
    env = ToolEnv(env=CounterEnv(highest=1), tools=[CountTool()], max_turns=2)
    env.reset(seed=0)
    env.step(COUNT)
    assert env.step(MORE)[1:4] == (0.9, True, False)
