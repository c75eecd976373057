"""Task sets of verifiers: what is listed without the package, and sets of every kind with it."""

from __future__ import annotations

import asyncio
import gc
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import roll_envs
from roll_envs import ConfigError, DeadlineExceededError, EnvironmentFaultError, MissingExtraError
from roll_envs.providers import verifiers_tasks
from roll_envs.testing import check_env

INSTALLED = importlib.util.find_spec("verifiers") is not None


def installed_package(folder: Path, name: str, needs: str, source: str) -> None:
    """A distribution as pip leaves it, with one module."""
    (folder / f"{name.replace('-', '_').lower()}.py").write_text(source)
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: {needs}\n")


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages, verifiers itself (empty) among them where it is not installed."""
    if not INSTALLED:
        (tmp_path / "verifiers.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    verifiers_tasks._packages.cache_clear()
    yield tmp_path
    verifiers_tasks._packages.cache_clear()


def test_packages_with_task_sets_are_listed_and_not_imported(packages: Path) -> None:
    breaks = "raise RuntimeError('imported')\n"
    installed_package(packages, "word-puzzles", "verifiers>=0.4", f"{breaks}from x import PuzzleTaskset")
    installed_package(packages, "Sums-v1", "verifiers", f"{breaks}class SumsTaskset: ...")
    installed_package(packages, "a-trainer", "verifiers", breaks)
    installed_package(packages, "optional-sets", "verifiers; extra == 'sets'", "class MyTaskset: ...")
    installed_package(packages, "other-sets", "verifiers-of-others", "class MyTaskset: ...")
    assert verifiers_tasks.ids() == ["verifiers/sums-v1", "verifiers/word-puzzles-v0"]
    card = verifiers_tasks.card("verifiers/word-puzzles-v0")
    assert (card.kwargs, list(card.versions)) == ({"taskset": "word-puzzles"}, ["v0"])
    assert list(verifiers_tasks.card("verifiers/sums-v1").versions) == ["v1"]


def test_nothing_is_brought_in_where_the_package_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    verifiers_tasks._packages.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert verifiers_tasks.ids() == []
    verifiers_tasks._packages.cache_clear()
    monkeypatch.setitem(sys.modules, "verifiers", None)
    with pytest.raises(MissingExtraError, match=r"verifiers-v1"):
        roll_envs.make("roll/Verifiers-v0", taskset="sums")


# -- the package -------------------------------------------------------------------------------------------------------

needs_verifiers = pytest.mark.skipif(not INSTALLED, reason="needs verifiers: make test-verifiers")
SUMS = "Add."


def made(name: str, **settings: Any) -> Any:
    importlib.import_module("verifiers_sets")
    return roll_envs.make("roll/Verifiers-v0", taskset=f"test_set_{name}", **settings)


@pytest.fixture
def closing() -> Iterator[list[Any]]:
    opened: list[Any] = []
    yield opened
    for env in opened:
        env.close()
        env.close()


def call(name: str, **arguments: Any) -> str:
    return roll_envs.tools.find_tool_format("hermes").render([roll_envs.tools.ToolCall(name=name, arguments=arguments)])


@pytest.mark.verifiers
@needs_verifiers
def test_a_task_of_one_answer(closing: list[Any]) -> None:
    env = made("sums")
    closing.append(env)
    shown, info = env.reset(seed=3)
    assert (shown, env.instructions, info["split"]) == ("3 + 3 = ?", "Add.", "all")
    assert env.oracle() == ["6"]
    shown, reward, terminated, truncated, info = env.step("It is 6 , as everybody knows by now.")
    assert (reward, terminated, truncated, info["success"]) == (0.75, True, False, False)
    assert (info["scores"], info["metrics"]) == ({"right": 0.75, "short": 0.0}, {"words": 9.0})
    env.reset(seed=23)  # counted round
    _, reward, _, _, info = env.step("<think>Not 7 of 100 nor 1000</think> 6")
    assert (reward, info["success"], env.oracle()) == (1.0, True, None)
    env.reset(seed=4)
    assert env.step("\ud800 8")[1] == 1.0


@pytest.mark.verifiers
@needs_verifiers
def test_splits(closing: list[Any]) -> None:
    env, named, endless = made("sums"), made("named"), made("endless", tasks=30)
    closing += [env, named, endless]
    starts = {s: [env.reset(seed=n, options={"split": s})[0] for n in range(40)] for s in env.splits}
    assert set(starts["test"]) == {"9 + 9 = ?", "19 + 19 = ?"}
    assert set(starts["train"]) == set(starts["all"]) - set(starts["test"])
    assert named.splits == ("train", "test")
    assert [named.reset(seed=4, options={"split": s})[0] for s in named.splits] == ["1 + 1 = ?", "101 + 101 = ?"]
    assert endless.reset(seed=32)[0] == "2 + 2 = ?"
    with pytest.raises(ConfigError, match=r"split is 'dev'; it must be one of 'train', 'test'"):
        named.reset(seed=1, options={"split": "dev"})
    few = made("sums", config={"highest": 5})
    closing.append(few)
    with pytest.raises(ConfigError, match=r"of 5 tasks none is of the split 'test'"):
        few.reset(seed=1, options={"split": "test"})


@pytest.mark.verifiers
@needs_verifiers
@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        ("raise", EnvironmentFaultError, "no such thing"),
        ("nan", EnvironmentFaultError, "paid nan"),
        ("infinite", EnvironmentFaultError, "paid inf"),
        ("hang", DeadlineExceededError, "between two answers after 0.2 s"),
    ],
)
def test_rewards_that_break_are_no_rewards(closing: list[Any], answer: str, error: Any, said: str) -> None:
    env = made("broken", timeout_s=0.2)
    closing.append(env)
    env.reset(seed=0)
    with pytest.raises(error, match=said):
        env.step(answer)
    env.reset(seed=0)
    assert env.step("0")[1] == 0.0


@pytest.mark.verifiers
@needs_verifiers
def test_what_rewards_draw_follows_from_the_seed(closing: list[Any]) -> None:
    env = made("broken")
    closing.append(env)
    paid = []
    for seed in (1, 1, 2):
        env.reset(seed=seed)
        paid.append(env.step("draw")[1])
    assert paid[0] == paid[1] != paid[2]


@pytest.mark.verifiers
@needs_verifiers
def test_tools_share_the_state_of_the_episode(closing: list[Any]) -> None:
    env = made("counting")
    closing.append(env)
    for _ in range(2):  # nothing is left from the first time
        env.reset(seed=0)
        assert "counter_add" in env.instructions
        shown, reward, terminated, _, info = env.step(call("counter_add", by=3))
        assert ("3 now" in shown, reward, terminated, info["action_is_valid"]) == (True, 0.0, False, True)
        assert "5 now" in env.step(f"Two more.\n{call('counter_add', by=2)}")[0]
        _, reward, terminated, _, info = env.step("Done.")
        assert (reward, terminated, info["metrics"]) == (1.0, True, {"results": 2.0})


@pytest.mark.verifiers
@needs_verifiers
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (call("counter_ad", by=3), "there is no tool 'counter_ad'; did you mean 'counter_add'"),
        (call("counter_add", by="x"), "Error"),
        (call("counter_add", by=101), "too much"),
        ("<tool_call>{broken</tool_call>", "Error"),
    ],
)
def test_wrong_calls_are_answered(closing: list[Any], text: str, said: str) -> None:
    env = made("counting")
    closing.append(env)
    env.reset(seed=0)
    shown, _, terminated, *_ = env.step(text)
    assert said in shown
    assert not terminated


@pytest.mark.verifiers
@needs_verifiers
def test_calls_end_with_the_turns_and_the_rewards_are_given(closing: list[Any]) -> None:
    env = made("counting", max_turns=2)
    closing.append(env)
    env.reset(seed=0)
    env.step(call("counter_add", by=2))
    _, reward, terminated, truncated, _ = env.step(call("counter_add", by=3))
    assert (reward, terminated, truncated) == (1.0, False, True)


@pytest.mark.verifiers
@needs_verifiers
def test_a_set_with_a_user_of_its_own(closing: list[Any]) -> None:
    env = made("guesses")
    closing.append(env)
    shown, _ = env.reset(seed=1)
    assert shown == "[user]\nGuess.\n\n[assistant]\n7\n\n[user]\nLower."
    assert env.step("3")[0] == "Higher."
    _, reward, terminated, _, info = env.step("5")
    assert (reward, terminated, info["success"]) == (0.5, True, False)
    env.reset(seed=1)
    env.step("9")
    _, reward, terminated, truncated, _ = env.step("stop")  # the task's own stop
    assert (reward, terminated, truncated) == (0.0, True, False)
    short = made("guesses", max_turns=1)
    closing.append(short)
    short.reset(seed=1)
    assert short.step("6")[1:4] == (0.0, False, True)
    short.reset(seed=1)
    assert short.step("5")[1:4] == (1.0, True, False)


@pytest.mark.verifiers
@needs_verifiers
@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("boxes", {}, "its tasks need a container"),
        ("runtimes", {}, "its ran asks for a runtime"),
        ("nothing", {}, "has no task in its split 'all'"),
        ("pair", {}, r"has 2 agents \(one, two\)"),
        ("twice", {}, "runs its agent more than once"),
        ("sums", {"config": {"lowest": 3}}, "lowest"),
        ("absent", {}, "cannot be imported"),
        ("sums", {"tool_format": "morse"}, "morse"),
        ("sums", {"config": {"highest": {1}}}, "config and env must be made of texts, numbers.*set"),
        ("ending", {}, "should never end, but has 3 tasks; set tasks"),
    ],
)
def test_what_cannot_be_played(closing: list[Any], name: str, settings: dict[str, Any], said: str) -> None:
    def play() -> None:
        env = made(name, **settings)
        closing.append(env)
        env.reset(seed=5)
        env.step("1")

    with pytest.raises(roll_envs.RollError, match=said):
        play()


@pytest.mark.verifiers
@needs_verifiers
def test_a_set_that_breaks_off_is_loaded_anew(closing: list[Any]) -> None:
    env = made("flaky")
    closing.append(env)
    with pytest.raises(EnvironmentFaultError, match="cannot load its tasks: OSError: no route to host"):
        env.reset(seed=8)
    assert env.reset(seed=8)[0] == "8 + 8 = ?"  # of all 20, not of the five before


@pytest.mark.verifiers
@needs_verifiers
def test_what_nobody_closes_ends_quietly(capfd: pytest.CaptureFixture[str]) -> None:
    env = made("counting")
    env.reset(seed=0)
    del env
    gc.collect()
    assert capfd.readouterr().err == ""


@pytest.mark.verifiers
@needs_verifiers
def test_within_a_running_loop(closing: list[Any]) -> None:
    env = made("sums")
    closing.append(env)

    async def play() -> Any:
        env.reset(seed=3)
        return env.step("6")[1]

    assert asyncio.run(play()) == 1.0


@pytest.mark.verifiers
@needs_verifiers
def test_an_installed_set_passes_the_check(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(__file__).with_name("verifiers_sets.py").read_text()
    source = source[: source.index("class NamedConfig")] + "\n\n__all__ = ['Sums']\n"
    installed_package(packages, "test-sums-v1", "verifiers", source)
    monkeypatch.setenv("PYTHONPATH", str(packages))
    roll_envs.providers.provided.cache_clear()
    roll_envs.discover(provided=True)
    report = check_env("verifiers/test-sums-v1", seeds=(0, 1, 2), timeout_s=200)  # each process imports it anew
    assert report.ok, str(report)
