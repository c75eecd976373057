"""Ranks of the learner as actors of a Ray cluster: of one machine, and of two nodes one of which is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from episode_builders import batches_of, counted
from loop_runs import run, write_config
from test_learner import some_rows
from test_learner_ranks import BASE, SETTINGS, assert_same_numbers, steps_alone, steps_of_ranks
from test_ranks_runs import learnt
from tiny import tiny_model

from roll_envs.errors import ConfigError
from trainer.cluster.crew import RankError
from trainer.cluster.learner_ranks import LearnerRanks
from trainer.cluster.ray_ranks import RankActor, _check_room
from trainer.config import RunConfig
from trainer.config.load import parse_config
from trainer.run.checkpoint import load_checkpoint
from trainer.run.folder import read_metrics

ray = pytest.importorskip("ray", reason="needs the optional part 'ray'")


def placed_on(address: str | None, learner: str, more: str = SETTINGS) -> RunConfig:
    where = f"address: '{address}', " if address else ""
    return parse_config(BASE + more + f"cluster: ray\nplacement: {{{where}learner: {learner}}}\n")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with a processor each."""
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    try:
        cluster.add_node(**small)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_what_the_cluster_will_never_have_is_refused_at_once() -> None:
    _check_room({"CPU": 2.0}, 4, {"CPU": 8.0})
    with pytest.raises(ConfigError, match=r"ranks 4 with 2 CPU and 1 GPU each: .* too small .* 8 CPU, 0 GPU"):
        _check_room({"CPU": 2.0, "GPU": 1.0}, 4, {"CPU": 8.0})


@pytest.mark.parametrize(("gpus", "seen"), [(False, ""), (True, "3")])
def test_a_rank_without_a_share_in_gpus_sees_none(monkeypatch: pytest.MonkeyPatch, gpus: bool, seen: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    RankActor(0, 1, gpus=gpus)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # of Ray's own sockets
class TestOnTwoNodes:
    def test_no_room_is_said_within_the_deadline(self, cluster: Any) -> None:
        """One of the two processors is taken."""
        with LearnerRanks(placed_on(cluster.address, "{ranks: 1, start_timeout_s: 60}")) as taken:
            taken.learner(tiny_model(), warm_start=False, threads=1)
            began = time.monotonic()
            with (
                LearnerRanks(placed_on(cluster.address, "{ranks: 2, start_timeout_s: 3}")) as ranks,
                pytest.raises(ConfigError, match=r"had no room for them within 3 s"),
            ):
                ranks.learner(tiny_model(), warm_start=False, threads=1)
            assert time.monotonic() - began < 30

    def test_ranks_on_two_nodes_give_the_numbers_of_this_process(self, cluster: Any) -> None:
        config = placed_on(cluster.address, "{ranks: 2, timeout_s: 120}")
        with LearnerRanks(config) as ranks:
            found = steps_of_ranks(ranks, config)
        assert_same_numbers(found, steps_alone())

    def test_a_node_that_is_lost_is_named_and_ends_the_others(self, cluster: Any) -> None:
        rows, advantages = some_rows()
        batches = batches_of(rows, advantages, pack_tokens=20, tokens_per_microbatch=60)
        with LearnerRanks(placed_on(cluster.address, "{ranks: 2, timeout_s: 60}", "")) as ranks:
            learner = ranks.learner(tiny_model(), warm_start=False, threads=1)
            learner.step(batches, counted(rows), lr=1e-3)
            cluster.remove_node(next(node for node in cluster.list_all_nodes() if not node.head))
            with pytest.raises(RankError, match=r"rank \d of 2 \(actor [0-9a-f]+\)"):
                _on(lambda: learner.step(batches, counted(rows), lr=1e-3))
        assert not ray.is_initialized(), "what ends twice must not connect again"


def _on(step: Any) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        step()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # of Ray's own sockets
def test_a_run_on_a_cluster_that_is_started_for_it(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "steps": 1, "warm_start": {"steps": 1, "episodes_per_step": 4}, "evaluation": {"tasks": 4},
        "placement": {"learner": {"ranks": 2}},
    }  # fmt: skip
    here, there = (run(tmp_path / cluster, cluster=cluster, **changes)[0] for cluster in ("local", "ray"))
    assert learnt(here) == learnt(there)
    assert not ray.is_initialized()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_driver_that_is_told_to_end_saves_first(tmp_path: Path) -> None:
    """By SIGTERM, as Slurm and Kubernetes do it; Ray has a handler of its own that aborts the process."""
    checkpoint = {"every": 1000, "keep": 3}
    config = write_config(
        tmp_path, cluster="ray", steps=500, warm_start={"steps": 0}, evaluation={"tasks": 2}, checkpoint=checkpoint
    )
    command = [sys.executable, "-c", "from trainer.cli import main; raise SystemExit(main())", str(config)]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        until = time.monotonic() + 200
        while not any(read_metrics(path, "train") for path in (tmp_path / "runs").glob("*")):
            assert driver.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        driver.send_signal(signal.SIGTERM)
        said, _ = driver.communicate(timeout=100)
    finally:
        driver.kill()
    (folder,) = (tmp_path / "runs").iterdir()
    done = len(read_metrics(folder, "train"))
    assert driver.returncode == 130, said
    assert f"roll-train resume {folder}" in said
    assert load_checkpoint(folder).progress["steps"] == done > 0
