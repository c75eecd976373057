"""Environments that were not written for this package train as ours do: adapted ones, plain ones, and provided ones."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from loop_runs import run

import roll_envs
from roll_envs import EnvironmentCard, TextEnv, adapt
from trainer.run.folder import read_metrics


def lake() -> TextEnv:
    env = gymnasium.make("FrozenLake-v1", is_slippery=False, render_mode="ansi")
    return adapt(env, actions=("Left", "Down", "Right", "Up"), max_turns=4, action_format="word")


class Echo(gymnasium.Env[str, str]):
    """No instructions, no info: say the digit that is shown."""

    action_space = observation_space = roll_envs.AnyText()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._digit = str(self.np_random.integers(10))
        return self._digit, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", float(self._digit in action), True, False, {}


@pytest.fixture(params=[lake, Echo])
def id_(request: pytest.FixtureRequest) -> Iterator[str]:
    card = EnvironmentCard(
        id="test/Other-v0", entry_point=f"{__name__}:{request.param.__name__}", summary="-", tests="-", turns="-",
        reward_range=(0.0, 1.0), rewards="-", success="-",
    )  # fmt: skip
    roll_envs.register(card)
    yield card.id
    roll_envs.unregister(card.id)


@pytest.fixture
def helper(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Any]:
    """Imports what stands beside the tests of another folder."""

    def imported(folder: str, name: str) -> Any:
        monkeypatch.syspath_prepend(Path(__file__).parents[1] / folder)
        return importlib.import_module(name)

    return imported


LONGER = {"engine": {"max_tokens": 2048}, "model": {"max_positions": 2048, "hidden_size": 16, "layers": 1}}


def trained(tmp_path: Path, id: str, kwargs: dict[str, Any] | None = None, **changes: Any) -> None:
    path, summary = run(
        tmp_path,
        env={"id": id, "kwargs": kwargs or {}},
        steps=2,
        evaluation={"tasks": 2},
        rollout={"groups_per_step": 2, "group_size": 2},
        **changes,
    )
    assert [line["rollout/failed_share"] for line in read_metrics(path, "train")] == [0.0, 0.0]
    assert summary["steps"] == 2


@pytest.mark.usefixtures("no_pictures")
def test_two_steps_of_an_environment_that_was_not_written_for_this(tmp_path: Path, id_: str) -> None:
    trained(tmp_path, id_, warm_start={"steps": 0}, context={"kind": "last", "turns": 0})


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # files that the packages leave to the garbage collector
@pytest.mark.parametrize("id", [
    "reasoning_gym/chain_sum-v0", "textarena/GuessTheNumber-v0", "gem/GuessTheNumber-easy-v0",
    "textworld/CoinCollector-level1-v0", "scienceworld/find-living-thing-v0",
])  # fmt: skip
def test_two_steps_of_an_environment_of_another_package(tmp_path: Path, id: str) -> None:
    if importlib.util.find_spec(id.partition("/")[0]) is None:
        pytest.skip("needs the packages of providers: make .venv/providers.stamp")
    kwargs = {"max_turns": 5} if id.startswith("scienceworld") else {}  # each environment has a Java process
    trained(tmp_path, id, kwargs, warm_start={"steps": 0}, sampling={"max_new_tokens": 40}, **LONGER)


@pytest.mark.usefixtures("no_pictures")
def test_two_steps_of_an_openenv_server(tmp_path: Path, helper: Callable[[str, str], Any]) -> None:
    server = helper("roll_envs", "openenv_server")
    with server.serving(server.Guess) as url:
        kwargs, sampling = {"url": url, "max_turns": 3}, {"max_new_tokens": 8}
        trained(tmp_path, "roll/OpenEnv-v0", kwargs, warm_start={"steps": 0}, sampling=sampling, **LONGER)


@pytest.mark.docker
@pytest.mark.usefixtures("no_pictures")
def test_two_steps_of_a_task_of_harbor(tmp_path: Path, helper: Callable[[str, str], Any]) -> None:
    if (reason := helper("sandboxes", "docker_place").reason_to_skip()) is not None:
        pytest.skip(reason)
    for number in range(10):  # each tenth is of the split test
        helper("sandboxes", "harbor_task").task(tmp_path / "tasks" / str(number))
    kwargs, sampling = {"path": str(tmp_path / "tasks"), "max_turns": 2}, {"max_new_tokens": 8}
    trained(tmp_path, "roll/Harbor-v0", kwargs, warm_start={"steps": 0}, sampling=sampling, **LONGER)


@pytest.mark.verifiers
@pytest.mark.skipif(importlib.util.find_spec("verifiers") is None, reason="needs verifiers: make test-verifiers")
@pytest.mark.usefixtures("no_pictures")
def test_two_steps_of_a_task_set_of_verifiers(tmp_path: Path, helper: Callable[[str, str], Any]) -> None:
    helper("roll_envs", "verifiers_sets")
    kwargs, sampling = {"taskset": "test_set_sums"}, {"max_new_tokens": 40}
    trained(tmp_path, "roll/Verifiers-v0", kwargs, warm_start={"steps": 1}, sampling=sampling, **LONGER)
