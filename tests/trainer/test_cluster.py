"""Where environments live is a setting: what it refuses, and workers that are Ray actors (slow, with a real Ray)."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from roll_envs.errors import ConfigError, MissingExtraError, WorkerLostError
from roll_envs.managers.episode import ResetRequest, StepRequest
from roll_envs.managers.workers import EnvWorkers, WorkerEnv
from roll_envs.types import Task
from trainer.cluster import check_manager, env_workers, manager_words, ray_cluster
from trainer.config import RolloutConfig
from trainer.config.load import parse_config, teacher_config

WAIT_S = 60.0
LAKE = Task(env_id="roll/FrozenLake-v0", split="train", index=0, seed=3)
RUN = """
format: 1
name: cluster
steps: 1
env: {id: roll/FrozenLake-v0}
"""


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["rollout.workers=2"], "rollout.workers is 2, but rollout.manager 'thread' has no workers"),
        (["rollout.manager=process", "rollout.ray.address=auto"], "rollout.manager is 'process'; set rollout.manager"),
        (["rollout.manager=rey"], "'ray'"),
        (["rollout.manager=ray", "rollout.ray.num_cpu=2"], "did you mean 'rollout.ray.num_cpus'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(RUN, overrides)
    assert says in str(refused.value)


def test_the_plan_says_where_environments_live() -> None:
    assert manager_words(RolloutConfig()) == ""
    assert manager_words(RolloutConfig(manager="process", workers=3)) == "3 processes"
    assert manager_words(RolloutConfig(manager="process"), (4, 6)) == "2 processes"
    assert manager_words(RolloutConfig(manager="process", workers=3), (4, 6)) == "3 processes"
    assert manager_words(RolloutConfig(manager="ray", workers=3)) == "Ray actors (3), cluster started here"


def test_a_teacher_keeps_its_environments_here() -> None:
    config = parse_config(
        RUN,
        [
            "rollout.manager=ray",
            "rollout.workers=2",
            "rollout.ray.address=auto",
            "warm_start.teacher={model: m, url: 'http://127.0.0.1:1/v1'}",
        ],
    )
    assert teacher_config(config).rollout.manager == "thread"


def test_a_cluster_that_is_not_there_is_told_at_once() -> None:
    pytest.importorskip("ray", reason="needs the optional part 'ray'")
    config = parse_config(RUN, ["rollout.manager=ray", "rollout.ray.address=127.0.0.1:1"]).rollout
    started = time.monotonic()
    with pytest.raises(ConfigError, match=r"'127\.0\.0\.1:1': no Ray cluster answers there .*ray start --head"):
        check_manager(config)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("address", ["10.0.0.1", "ray://10.0.0.1", ":6379", "head-node", "local"])
def test_an_address_that_cannot_be_checked_is_refused(address: str) -> None:
    pytest.importorskip("ray", reason="needs the optional part 'ray'")
    config = parse_config(RUN, ["rollout.manager=ray", f"rollout.ray.address='{address}'"]).rollout
    with pytest.raises(ConfigError, match=f"address is '{address}'; allowed: host:port .*6379"):
        check_manager(config)


def test_the_loss_of_a_cluster_s_head_is_told_while_it_is_watched(head_given_up: Callable[..., None]) -> None:
    told: list[str] = []
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as head:
        head_given_up(f"127.0.0.1:{head.getsockname()[1]}")
        with ray_cluster.head_watched(told.append):
            time.sleep(0.3)
    with ray_cluster.head_watched(told.append):  # it was never reached from here
        time.sleep(0.3)
    assert not told
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        head_given_up(address)
        with ray_cluster.head_watched(told.append):
            head.close()
            assert eventually(lambda: bool(told))
    assert told == [f"The head of the Ray cluster, {address}, does not answer"]


def test_a_head_that_may_come_back_is_waited_for(head_given_up: Callable[..., None]) -> None:
    told: list[str] = []
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as head:
        head_given_up(f"127.0.0.1:{head.getsockname()[1]}", reconnect_s=600)
        with ray_cluster.head_watched(told.append):
            head.close()
            time.sleep(0.5)
    assert not told


@pytest.mark.parametrize("by_client", [True, False])
def test_the_address_of_a_head_is_known_to_drivers_alone(monkeypatch: pytest.MonkeyPatch, by_client: bool) -> None:
    ray = pytest.importorskip("ray", reason="needs the optional part 'ray'")
    assert ray_cluster._head_address() is None
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray.util.client.ray, "is_connected", lambda: by_client)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address="10.0.0.1:6379"))
    assert ray_cluster._head_address() == (None if by_client else "10.0.0.1:6379")


def test_what_is_no_cluster_is_told_within_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="needs the optional part 'ray'")
    monkeypatch.setattr(ray_cluster, "_ANSWER_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        config = RolloutConfig(manager="ray", ray={"address": f"127.0.0.1:{other.getsockname()[1]}"})  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="has not answered as Ray does"), env_workers(config, [LAKE]):
            raise AssertionError("it is no cluster")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_cluster_that_asks_for_a_token_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `ray start --head` does where an earlier run has left a token; Ray itself says that nothing answers."""
    ray = pytest.importorskip("ray", reason="needs the optional part 'ray'")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    folder = tempfile.mkdtemp(prefix="ray")  # pytest's are too long for the names of Ray's sockets
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--include-dashboard=false"]
    command += [f"--port={address.rpartition(':')[2]}", f"--temp-dir={folder}", "--num-cpus=1"]
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    theirs = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 32}
    head = subprocess.Popen(command, env=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    config = RolloutConfig(manager="ray", ray={"address": address})  # type: ignore[arg-type]
    said = ""
    try:
        until = time.monotonic() + 60
        while "asks for a token" not in said and time.monotonic() < until:  # it has to begin to listen
            with pytest.raises(ConfigError) as error, env_workers(config, [LAKE]):
                raise AssertionError("it has no token")
            said = str(error.value)
            time.sleep(0.2)
        assert "asks for a token" in said
        assert not ray.is_initialized()
    finally:
        head.terminate()  # it ends all that it has started
        head.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def test_ray_that_is_not_installed_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else found(name))
    with pytest.raises(MissingExtraError, match=r"pip install 'roll-envs\[ray\]'"):
        check_manager(RolloutConfig(manager="ray"))


def test_an_environment_may_take_its_own_time_to_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(Path(__file__).parents[1] / "roll_envs")
    monkeypatch.syspath_prepend(folder)
    from worker_envs import obedient

    config = RolloutConfig(manager="process", workers=1, env_timeout_s=0.2, make_timeout_s=WAIT_S)
    with env_workers(config, [obedient(make_s=1.0)]) as workers:
        assert workers is not None


def test_an_environment_that_processes_cannot_make_ends_the_start(tmp_path: Path) -> None:
    task = Task(env_id="nowhere:test/X-v0", split="", index=0, seed=0)
    config = RolloutConfig(manager="process", workers=1)
    with pytest.raises(ConfigError, match="Worker processes know"), env_workers(config, [task]):
        raise AssertionError("it was made")


# -- Ray ---------------------------------------------------------------------------------------------------------------


def made(workers: EnvWorkers, task: Task = LAKE) -> WorkerEnv:
    return workers.make(task).result(WAIT_S)


def reset(env: WorkerEnv) -> Any:
    return env.ask(ResetRequest(3, "train")).result(WAIT_S)


def lost(env: WorkerEnv) -> bool:
    return isinstance(env.ask(StepRequest("<answer>Up</answer>")).exception(WAIT_S), WorkerLostError)


def eventually(true: Callable[[], bool]) -> bool:
    until = time.monotonic() + WAIT_S
    while not true() and time.monotonic() < until:
        time.sleep(0.1)
    return true()


@pytest.fixture
def ray_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Ray, which ends with the test."""
    ray = pytest.importorskip("ray", reason="needs the optional part 'ray'")
    yield ray
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_actors_hold_environments_die_and_are_replaced(ray_folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(Path(__file__).parents[1] / "roll_envs")
    monkeypatch.syspath_prepend(folder)
    from worker_envs import OBEDIENT, obedient

    brought = {"runtime_env": {"env_vars": {"PYTHONPATH": folder}}}
    brought |= {"num_cpus": 0.5, "resources": {"env_node": 1.0}}
    config = RolloutConfig(manager="ray", workers=2, step_timeout_s=0.5, ray=brought)  # type: ignore[arg-type]
    with env_workers(config, [LAKE, obedient()]) as workers:
        assert workers is not None
        envs = [made(workers, obedient()) for _ in range(4)]
        pids = [int(reset(env)[0].split()[0]) for env in envs]
        assert len(set(pids)) == 2
        assert os.getpid() not in pids
        raised = envs[0].ask(StepRequest("raise no such thing")).exception(WAIT_S)
        assert (type(raised).__name__, str(raised)) == ("LookupError", "no such thing")
        error = envs[0].ask(StepRequest(f"kill {signal.SIGKILL:d}")).exception(WAIT_S)
        assert isinstance(error, WorkerLostError)
        assert f"(pid {pids[0]} on " in str(error)
        assert f"during step of {OBEDIENT}" in str(error)
        assert len({reset(env)[0].split()[0] for env in envs}) <= 2
        hanging = envs[1].ask(StepRequest("sleep 3600"))
        assert hanging.cancel()
        assert eventually(lambda: reset(made(workers, obedient()))[0].split()[0] != str(pids[1]))
        with pytest.raises(
            ConfigError, match=r"cannot be made on environment worker \d.*No module named 'nowhere'.*runtime_env"
        ):
            workers.check(
                [Task(env_id="nowhere:test/X-v0", split="", index=0, seed=0)], WAIT_S, "rollout.ray.runtime_env"
            )
    assert not ray_folder.is_initialized()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_node_that_goes_takes_no_more_than_its_environments(ray_folder: Any) -> None:
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    small = {"object_store_memory": 100 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **small})
    try:
        node = cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
        config = RolloutConfig(manager="ray", workers=2, ray={"address": cluster.address})  # type: ignore[arg-type]
        with env_workers(config, [LAKE]) as workers:
            assert workers is not None
            many = env_workers(config.model_copy(update={"workers": 8}), [LAKE])
            with pytest.raises(ConfigError, match="need 8, but the Ray cluster has 3"), many:
                raise AssertionError("there is no room")
            beside = env_workers(config.model_copy(update={"workers": 3}), [LAKE], kept_cpus=1.0)
            with (
                pytest.raises(ConfigError, match=r"need 3, but the Ray cluster has 2 beside the 1 of placement"),
                beside,
            ):
                raise AssertionError("the ranks of the learner have a processor")
            envs = [made(workers) for _ in range(8)]
            first = [reset(env) for env in envs]
            cluster.remove_node(node)
            assert eventually(lambda: any(lost(env) for env in envs))
            assert [reset(env) for env in envs] == first
            assert not any(lost(env) for env in envs)
    finally:
        ray_folder.shutdown()
        cluster.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_node_that_never_comes_back_leaves_the_other_actors(ray_folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.cluster_utils import Cluster

    monkeypatch.setattr("roll_envs.managers.workers._LEAST_START_S", 2.0)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    small = {"object_store_memory": 100 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **small})
    try:
        node = cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
        wanted = {"address": cluster.address}
        config = RolloutConfig(manager="ray", workers=2, env_timeout_s=2.5, ray=wanted)  # type: ignore[arg-type]
        with env_workers(config, []) as workers:
            assert workers is not None
            envs = [made(workers) for _ in range(4)]
            first = [reset(env) for env in envs]
            cluster.remove_node(node)
            assert eventually(lambda: "were never ready" in workers._broken)
            assert [reset(env) for env in envs] == first
            assert reset(made(workers)) == first[0]
            assert not any(lost(env) for env in envs)
    finally:
        ray_folder.shutdown()
        cluster.shutdown()
