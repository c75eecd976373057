"""check_env: each rule catches its planted fault, and good environments pass them all."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import faulty_envs
import gymnasium
import numpy as np
import pytest
from faulty_envs import FAULTS, Fault, judged

import roll_envs
from roll_envs import ConfigError
from roll_envs.env_registry import settings_to_give
from roll_envs.testing import COUNTER_CARD, RULES, CounterEnv, EchoEnv, check_env

SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def copied() -> Iterator[Pool]:
    """A process that has loaded the environments, and copies itself for each: check_env starts one anew for each."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        yield pool


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f"{f.rule}-{f.env.__name__}")
def test_a_rule_catches_its_fault(fault: Fault, copied: Pool, tmp_path: Path) -> None:
    found = copied.apply(judged, (fault, tmp_path))
    assert found.status == "fail"
    assert fault.says in found.detail


def test_a_report_with_a_fault_is_not_ok() -> None:
    report = check_env(faulty_envs.PaysIdlers, seeds=SEEDS, rules=["info", "floor"])
    assert [r.status for r in report.results] == ["pass", "fail"]
    assert not report.ok


def test_every_rule_has_a_planted_fault() -> None:
    assert {fault.rule for fault in FAULTS} == set(RULES)


def test_a_good_environment_passes_every_rule() -> None:
    report = check_env(CounterEnv, card=COUNTER_CARD, seeds=SEEDS)
    expected = {**dict.fromkeys(RULES, "pass"), "splits": "skip"}
    assert {r.rule: r.status for r in report.results} == expected, str(report)
    assert report.ok


class UsesTheTemporaryFolder(CounterEnv):
    def step(self, action: str) -> Any:
        with tempfile.TemporaryDirectory() as folder:  # whose end removes files by their names in it alone
            Path(folder, "turn").write_text(action)
        return super().step(action)


def test_temporary_files_that_are_gone_again_are_no_side_effect() -> None:
    report = check_env(UsesTheTemporaryFolder, seeds=SEEDS, rules=["side_effects"])
    assert report.ok, str(report)


class HasOneTask(CounterEnv):
    """As a folder of the user's with one task, which is all of training."""

    splits = ("all", "train")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if options and options["split"] not in self.splits:
            raise ConfigError("no such split")
        return super().reset(seed=0)


def test_a_data_set_may_have_one_task() -> None:
    report = check_env(HasOneTask, seeds=SEEDS, rules=["splits"])
    assert report.ok, str(report)


class HidesItsTarget(CounterEnv):
    """Tasks of its splits differ by what is not shown."""

    splits = ("train", "test")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        split = (options or {}).get("split", "train")
        if split not in self.splits:
            raise ConfigError("no such split")
        _, info = super().reset(seed=seed)
        self._target = 2 * ((seed or 0) % 3) + 1 + self.splits.index(split)
        return self.render(), info

    def render(self) -> str:
        return f"counter {self._value}, of a target that is {'low' if self._target < 3 else 'high'}"


def test_tasks_of_two_splits_may_begin_alike() -> None:
    report = check_env(HidesItsTarget, seeds=SEEDS, rules=["splits"])
    assert report.ok, str(report)


class Slow(CounterEnv):
    """Six episodes of it take most of the time that a rule has."""

    def __init__(self) -> None:
        super().__init__(highest=60, max_turns=150)

    def step(self, action: str) -> Any:
        time.sleep(0.01)
        return super().step(action)


@pytest.mark.slow
def test_of_a_slow_environment_less_is_played_and_it_is_said() -> None:
    rules = ["values", "same_seed", "processes", "ends", "oracle", "latency"]
    report = check_env(lambda: Slow(), seeds=range(6), rules=rules, timeout_s=15)
    assert report.ok, str(report)
    said = {result.rule: result.detail for result in report.results}
    assert said["same_seed"] == "2 seeds, twice"
    assert re.search(r"since it is slow, the rules play 2 of 6 seeds, \d\d turns of a random player", said["latency"])


class SlowAndNeverEnds(Slow):
    def step(self, action: str) -> Any:
        observation, reward, terminated, _, info = super().step(action)
        self._over = terminated
        return observation, reward, terminated, False, info


@pytest.mark.slow
def test_a_slow_environment_must_end_all_the_same() -> None:
    report = check_env(lambda: SlowAndNeverEnds(), seeds=range(6), rules=["ends"], timeout_s=60)
    assert "the idle player is still going after 300 turns" in report.results[0].detail


class HangsInStep(CounterEnv):
    def step(self, action: str) -> Any:
        if action == "":
            while True:
                re.match(r"(a+)+b", "a" * 40)
        return super().step(action)


class Crashes(CounterEnv):
    def step(self, action: str) -> Any:
        if action == "":
            ctypes.string_at(0)
        return super().step(action)


class Leaves(CounterEnv):
    def step(self, action: str) -> Any:
        if action == "":
            os._exit(3)
        return super().step(action)


class LeavesPolitely(CounterEnv):
    def step(self, action: str) -> Any:
        if action == "":
            sys.exit(3)
        return super().step(action)


RULES_AROUND = ("step_outside_an_episode", "floor", "oracle", "close_twice")


@pytest.mark.parametrize(
    ("env", "said", "later"),
    [
        (HangsInStep, r"not done within 2 s in step \(test_check_env.py:\d+\), there in ", "skip"),
        (Crashes, r"the interpreter ends by SIGSEGV in step \(test_check_env.py:\d+\), there in string_at", "pass"),
        (Leaves, "the process ends with exit code 3", "pass"),
        (LeavesPolitely, r"SystemExit: 3 \(at .*test_check_env.py", "pass"),
    ],
)
def test_an_environment_that_hangs_or_crashes_is_a_finding(env: type[CounterEnv], said: str, later: str) -> None:
    told: list[str] = []
    started = time.monotonic()
    report = check_env(env, rules=RULES_AROUND, timeout_s=2, on_result=lambda r: told.append(r.rule))
    assert time.monotonic() - started < 60
    assert {r.rule: r.status for r in report.results} == dict(
        zip(RULES_AROUND, ("pass", "fail", later, later), strict=True)
    )
    assert re.match(said, report.results[1].detail), report.results[1].detail
    assert tuple(told) == RULES_AROUND


class HangsWhenMade(CounterEnv):
    def __init__(self) -> None:
        threading.Event().wait()


class BreaksWhenMade(CounterEnv):
    def __init__(self) -> None:
        raise OSError("no display")


@pytest.mark.parametrize(
    ("env", "said"), [(HangsWhenMade, "in __init__ (test_check"), (BreaksWhenMade, "OSError: no di")]
)
def test_an_environment_that_cannot_be_made_fails_once(env: type[CounterEnv], said: str) -> None:
    report = check_env(env, rules=RULES_AROUND, timeout_s=2)
    assert [(r.rule, r.status) for r in report.results] == [
        ("load", "fail"),
        *((rule, "skip") for rule in RULES_AROUND),
    ]
    assert said in report.results[0].detail


def test_what_an_environment_started_ends_with_the_check(tmp_path: Path) -> None:
    def make() -> CounterEnv:
        subprocess.Popen(["sh", "-c", f"sleep 3; echo late > '{tmp_path}/late'"])
        return CounterEnv()

    assert check_env(make, rules=["prompt"]).ok
    time.sleep(4)
    assert not list(tmp_path.iterdir())


HANGS_FOR_LONG = """
import os, pathlib, time
from roll_envs.testing import CounterEnv, check_env

class Hangs(CounterEnv):
    def step(self, action):
        pathlib.Path("pid").write_text(str(os.getpid()) + " ")
        time.sleep(50)

check_env(Hangs, rules=["values"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with the one that started it")
def test_the_process_of_the_check_ends_with_a_caller_that_is_killed(tmp_path: Path) -> None:
    caller = subprocess.Popen([sys.executable, "-c", HANGS_FOR_LONG], cwd=tmp_path)
    deadline = time.monotonic() + 60
    while not (said := (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else "").endswith(" "):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert Path("/proc", said.strip()).exists()
    caller.kill()
    caller.wait()
    while Path("/proc", said.strip()).exists():
        assert time.monotonic() < deadline, "the check goes on"
        time.sleep(0.05)


def test_a_function_that_cannot_be_sent_is_checked_here() -> None:
    lock = threading.Lock()

    def make() -> CounterEnv:
        with lock:
            return CounterEnv()

    statuses = {r.rule: r.status for r in check_env(make, seeds=SEEDS, rules=["prompt", "processes", "oracle"]).results}
    assert statuses == {"prompt": "pass", "processes": "skip", "oracle": "pass"}


def test_an_id_that_only_this_process_knows_is_checked_in_another() -> None:
    gymnasium.register("OnlyHere-v0", entry_point=EchoEnv)
    try:
        assert check_env("OnlyHere-v0", seeds=SEEDS, rules=["spaces", "processes"]).ok
    finally:
        del gymnasium.registry["OnlyHere-v0"]


def test_a_deadline_that_is_none_is_refused() -> None:
    for none in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(roll_envs.ConfigError, match=f"timeout_s must be above 0 and below 1e.06, not {none}"):
            check_env(CounterEnv, timeout_s=none)


def test_rules_for_a_text_env_are_skipped_for_others_and_say_so() -> None:
    report = check_env(EchoEnv, seeds=SEEDS)
    skipped = {r.rule: r.detail for r in report.results if r.status == "skip"}
    assert report.ok, str(report)
    assert {"oracle", "snapshots", "info"} <= set(skipped)
    assert "oracle()" in skipped["oracle"]


BUILT_IN = [each.id for each in roll_envs.environments() if each.id.startswith("roll/")]


@pytest.mark.parametrize("env_id", [id for id in BUILT_IN if not settings_to_give(id)])
def test_the_built_in_environments_pass(env_id: str) -> None:
    report = check_env(env_id, seeds=SEEDS)
    assert report.ok, str(report)


def test_settings_that_a_card_gives_are_not_the_users_to_give() -> None:
    assert settings_to_give("roll/ToolEnv-v0") == ()
    assert settings_to_give("roll/OpenEnv-v0") == ("url",)


def test_an_environment_in_gymnasiums_wrappers_is_checked_without_them() -> None:
    report = check_env(lambda: gymnasium.make("roll/SimpleSokoban-v0"), seeds=SEEDS, rules=["snapshots"])
    assert report.results[0].status == "pass", str(report)


def test_an_environment_of_this_process_alone_is_played_in_others_too() -> None:
    roll_envs.register(COUNTER_CARD)
    try:
        report = check_env(COUNTER_CARD.id, seeds=SEEDS, rules=["processes"])
    finally:
        roll_envs.unregister(COUNTER_CARD.id)
    assert report.results[0].status == "pass", str(report)


def test_the_cards_range_is_not_asked_of_other_arguments() -> None:
    for kwargs, status in (({}, "pass"), ({"max_turns": 30}, "skip")):
        report = check_env("roll/SimpleSokoban-v0", kwargs=kwargs, seeds=SEEDS, rules=["reward_range"])
        assert report.results[0].status == status, str(report)


def test_arguments_reach_the_environment() -> None:
    report = check_env("roll/SimpleSokoban-v0", kwargs={"max_turns": 3}, seeds=(0,), rules=["prompt"])
    assert "3 turns" in report.results[0].detail
    with pytest.raises(roll_envs.UnknownNameError, match="did you mean 'max_turns'"):
        check_env("roll/SimpleSokoban-v0", kwargs={"max_turn": 3})


@pytest.mark.parametrize(
    "kwargs",
    [
        {"max_actions_per_turn": 3, "action_format": "think-answer"},
        {"action_format": "word", "format_penalty": -0.15},
        {"max_turns": 1},
        {"invalid_counts": False},
    ],
    ids=str,
)
def test_variants_of_sokoban_pass(kwargs: dict[str, object]) -> None:
    process = ("processes", "memory", "side_effects", "latency")  # no argument is about what it does to one
    rules = [rule for rule in RULES if rule not in process]
    report = check_env("roll/SimpleSokoban-v0", kwargs=kwargs, seeds=SEEDS, rules=rules)
    assert report.ok, str(report)


def test_the_callers_generators_are_as_before() -> None:
    random.seed(1)
    np.random.seed(1)
    check_env(CounterEnv, seeds=SEEDS, rules=["foreign_draws", "global_generators"])
    first = random.random(), np.random.random()
    random.seed(1)
    np.random.seed(1)
    assert first == (random.random(), np.random.random())


def test_an_unknown_rule_or_id_names_the_nearest() -> None:
    with pytest.raises(roll_envs.UnknownNameError, match="did you mean 'snapshots'"):
        check_env(CounterEnv, rules=["snapshot"])
    with pytest.raises(roll_envs.UnknownNameError, match="roll/SimpleSokoban-v0"):
        check_env("roll/SimpleSokobn-v0")


def test_no_seeds_is_an_error() -> None:
    with pytest.raises(roll_envs.RollError, match="at least one seed"):
        check_env(CounterEnv, seeds=())


def test_the_table_of_openenvs_checks_names_rules_that_exist() -> None:
    """All 34 of its policy, each once, and every rule of ours."""
    guide = (Path(__file__).parents[2] / "docs" / "add_an_environment.md").read_text(encoding="utf-8")
    table = guide.partition("### OpenEnv's checks")[2].partition("\n\n`roll_envs.testing`")[0]
    rows = [row.split("|")[1:3] for row in table.splitlines() if row.startswith("| `")]
    theirs = [name for left, _ in rows for name in re.findall(r"`([^`]+)`", left)]
    ours = {name for _, right in rows for name in re.findall(r"`(\w+)`", right)}
    assert len(theirs) == len(set(theirs)) == 34
    assert ours == {*RULES, "load"}  # the latter is reported where nothing can be checked
