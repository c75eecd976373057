"""Checkpoints that ranks write, and those that are written beside the training: as exact as plain ones, and as safe."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from disks import full_after
from episode_builders import batches_of, counted
from test_crew import QueueLinks
from test_learner import some_rows
from test_learner_ranks import config_of
from test_ranks_runs import equal
from tiny import tiny_model

from roll_envs.errors import CheckpointError, RollError
from trainer.cluster.crew import Crew, RankError
from trainer.cluster.learner_ranks import LearnerRanks, RankSnapshot
from trainer.cluster.rank import Rank
from trainer.cluster.ranked import RankedLearner, make_phase_learner
from trainer.config.schema import CheckpointConfig
from trainer.learner import Critic, Learner
from trainer.learner.snapshot import Dealer, SavedFiles, Share, kept_state, share_name
from trainer.run import saving
from trainer.run.checkpoint import CheckpointState, latest_good, list_checkpoints, load_checkpoint
from trainer.run.saving import Saver

CONFIG = config_of(more="critic: {lr: 1.0e-3}\n")


def state_of(step: int, learner: Learner, critic: Critic) -> CheckpointState:
    others = {"critic": critic.weights}
    return CheckpointState(step=step, version=1, model=learner.weights, optimizer={}, cursor=3, others=others)


def teach(learner: Learner, critic: Critic) -> None:
    rows, advantages = some_rows()
    columns = {"value": [a * 0 for a in advantages], "returns": advantages}
    batches = batches_of(rows, advantages, pack_tokens=30, tokens_per_microbatch=90, **columns)
    learner.step(batches, counted(rows), lr=1e-2)
    critic.step(batches, counted(rows), lr=1e-2)


def parts_here(precision: str = "float32") -> tuple[Learner, Critic]:
    config = CONFIG.model_copy(update={"learner": CONFIG.learner.model_copy(update={"precision": precision})})
    learner = make_phase_learner(config, tiny_model(), warm_start=False, threads=1)
    return learner, learner.critic(config.critic)


class TwoShares:
    """Stands for two ranks with equal parts, which write when they are let."""

    def __init__(self, learner: Learner, critic: Critic) -> None:
        self.parts = {"model": learner, "policy": learner, "critic": critic}
        self.gate, self.count = threading.Event(), 2
        self.gate.set()
        self.lost: RankError | None = None

    def snapshot(self, folder: Path, networks: Sequence[str], trained: Sequence[str]) -> RankSnapshot:
        self.shares, forms = [Share(rank, 2) for rank in range(2)], []
        for share in self.shares:
            for name in networks:
                share.add_weights(name, self.parts[name].weights())
            forms.append({name: share.add_state(name, self.parts[name].optimizer_state) for name in trained})
        assert str(forms[0]) == str(forms[1]), "all ranks have the same form"
        return RankSnapshot(self, forms[0], 5.0)  # type: ignore[arg-type]

    def check(self, method: str) -> None:
        assert method == "write_share"
        if self.lost is not None:
            raise self.lost

    def call(self, method: str, folder: Path) -> None:
        assert method == "write_share"

        def write() -> None:
            self.gate.wait(10)
            for share in self.shares:
                share.write(folder).join()

        threading.Thread(target=write, daemon=True).start()


def test_tensors_are_dealt_by_their_bytes() -> None:
    tensors = [torch.zeros(n) for n in (100, 60, 30, 30, 10, 50)]
    dealers = [Dealer(rank, 3) for rank in range(3)]
    takers = [[rank for rank, dealer in enumerate(dealers) if dealer(tensor)] for tensor in tensors]
    assert takers == [[0], [1], [2], [2], [1], [2]]


def test_what_is_not_kept_has_no_numbers_and_what_is_kept_is_a_copy() -> None:
    weight, one = torch.ones(3, 2), torch.tensor(2.0)
    for keep in (True, False):
        found = kept_state({"a": [weight, one], "b": 5}, lambda _, keep=keep: keep)
        assert found["b"] == 5
        assert found["a"][0].is_meta is not keep
        assert found["a"][0].shape == (3, 2)
        assert found["a"][1].item() == 2.0
    assert kept_state({"a": weight}, lambda _: True)["a"].data_ptr() != weight.data_ptr()


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_shares_are_a_whole_checkpoint(tmp_path: Path, asynchronous: bool, precision: str) -> None:
    learner, critic = parts_here(precision)
    teach(learner, critic)
    settings = CheckpointConfig(asynchronous=asynchronous)
    optimized = {"policy": learner, "critic": critic}
    with LearnerRanks(CONFIG) as none, Saver(tmp_path / "plain", settings, none) as plain:
        plain.save(state_of(1, learner, critic), optimized)
    two: Any = TwoShares(learner, critic)
    with Saver(tmp_path / "shares", settings, two) as saver:
        saver.save(state_of(1, learner, critic), optimized)
    whole, shared = (load_checkpoint(tmp_path / name) for name in ("plain", "shares"))
    folder = list_checkpoints(tmp_path / "shares")[0]
    files = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert files.keys() == {share_name(0), share_name(1), "training.pt", "progress.json", "manifest.json"}
    assert files[share_name(0)] == pytest.approx(files[share_name(1)], rel=0.2)
    assert files["training.pt"] < 0.3 * files[share_name(0)]
    assert [p.name for p in (tmp_path / "shares").iterdir()] == [folder.name], "nothing is left beside it"
    assert equal(dict(whole.model()), dict(shared.model()))
    assert shared.others.keys() == {"critic"}
    assert equal(dict(whole.others["critic"]()), dict(shared.others["critic"]()))
    assert equal(dict(whole.optimizer), dict(shared.optimizer))
    again, critic_again = parts_here(precision)
    again.load_optimizer_state(shared.optimizer["policy"])
    critic_again.load_optimizer_state(shared.optimizer["critic"])
    critic_again.load_weights(shared.others["critic"]())
    assert equal(again.optimizer_state(), learner.optimizer_state())
    assert equal(critic_again.optimizer_state(), critic.optimizer_state())


@pytest.mark.parametrize("damage", ["flip", "remove"])
def test_a_damaged_share_is_found(tmp_path: Path, damage: str) -> None:
    learner, critic = parts_here()
    two: Any = TwoShares(learner, critic)
    with Saver(tmp_path, CheckpointConfig(), two) as saver:
        for step in (1, 2):
            saver.save(state_of(step, learner, critic), {"policy": learner})
    good, bad = list_checkpoints(tmp_path)
    file = bad / share_name(1)
    if damage == "flip":
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    else:
        file.unlink()
    with pytest.raises(CheckpointError, match=r"rank-00001\.safetensors is .*; the newest good one before it is "):
        load_checkpoint(tmp_path)
    assert latest_good(tmp_path) == good


def test_as_many_checkpoints_are_kept_as_is_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[dict[str, Any]] = []
    monkeypatch.setattr(saving, "save_checkpoint", lambda *_, **given: saved.append(given))
    learner, critic = parts_here()
    with Saver(tmp_path, CheckpointConfig(keep=3, keep_best=2), LearnerRanks(CONFIG)) as saver:
        saver.save(state_of(1, learner, critic), {"policy": learner})
    assert saved == [{"keep": 3, "keep_best": 2, "shares": None}]


@pytest.mark.parametrize("ranks", [False, True])
def test_training_goes_on_while_a_checkpoint_is_written(
    tmp_path: Path, ranks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, critic = parts_here()
    teach(learner, critic)
    before = {name: weight.clone() for name, weight in learner.weights()}
    values = {name: weight.clone() for name, weight in critic.weights()}
    moments = kept_state(learner.optimizer_state(), lambda _: True)
    two: Any = TwoShares(learner, critic) if ranks else LearnerRanks(CONFIG)
    gate = two.gate if ranks else threading.Event()
    gate.clear()
    if not ranks:
        save = saving.save_checkpoint
        monkeypatch.setattr(saving, "save_checkpoint", lambda *a, **k: gate.wait(10) and save(*a, **k))
    with Saver(tmp_path, CheckpointConfig(asynchronous=True), two) as saver:
        saver.save(state_of(1, learner, critic), {"policy": learner})
        assert not list_checkpoints(tmp_path)
        teach(learner, critic)
        gate.set()
        saver.wait()
        assert 0 < saver.take_seconds() < 5
        assert saver.take_seconds() == 0
    loaded = load_checkpoint(tmp_path)
    assert equal(dict(loaded.model()), before)
    assert equal(dict(loaded.others["critic"]()), values)
    assert equal(dict(loaded.optimizer["policy"]), moments)


@pytest.mark.parametrize("ranks", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_full_disk_is_an_error_at_the_next_save_at_the_latest(
    tmp_path: Path, ranks: bool, asynchronous: bool
) -> None:
    learner, critic = parts_here()
    two: Any = TwoShares(learner, critic) if ranks else LearnerRanks(CONFIG)
    saver = Saver(tmp_path, CheckpointConfig(asynchronous=asynchronous, keep=1), two)
    saver.save(state_of(1, learner, critic), {"policy": learner})
    saver.wait()
    with full_after(100):
        if not asynchronous:
            with pytest.raises(RollError, match=r"the disk is full .*every earlier checkpoint is still there"):
                saver.save(state_of(2, learner, critic), {"policy": learner})
        else:
            saver.save(state_of(2, learner, critic), {"policy": learner})
            assert saver._thread is not None
            saver._thread.join()
    if asynchronous:
        with pytest.raises(RollError, match=r"the disk is full .*every earlier checkpoint is still there"):
            saver.save(state_of(3, learner, critic), {"policy": learner})
    assert load_checkpoint(tmp_path).step == 1
    saver.save(state_of(4, learner, critic), {"policy": learner})
    saver.wait()
    assert [path.name for path in tmp_path.iterdir()] == ["step-000004"]


def test_a_share_for_whose_note_the_disk_has_no_room_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_text

    def full(self: Path, text: str, **more: Any) -> int:
        if self.name.startswith("rank-"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, text, **more)

    learner, critic = parts_here()
    saver = Saver(tmp_path, CheckpointConfig(keep=1), TwoShares(learner, critic))  # type: ignore[arg-type]
    saver.save(state_of(1, learner, critic), {"policy": learner})
    with monkeypatch.context() as patch:
        patch.setattr("trainer.learner.snapshot.Path.write_text", full)
        with pytest.raises(RollError, match=r"the disk is full .*every earlier checkpoint is still there"):
            saver.save(state_of(2, learner, critic), {"policy": learner})
    assert load_checkpoint(tmp_path).step == 1


@pytest.mark.parametrize("first", [RollError("the engine died"), RankError("lost"), KeyboardInterrupt()])
def test_a_checkpoint_that_is_lost_in_the_background_does_not_hide_what_ended_the_run(
    tmp_path: Path, first: BaseException
) -> None:
    """After Ctrl-C it is the error itself: nobody may believe that the run was saved."""
    learner, critic = parts_here()
    saver = Saver(tmp_path, CheckpointConfig(asynchronous=True), LearnerRanks(CONFIG))
    with full_after(100):
        saver.save(state_of(1, learner, critic), {"policy": learner})
        with pytest.raises((RollError, KeyboardInterrupt)) as caught, saver:
            raise first
    if isinstance(first, KeyboardInterrupt):
        assert "the disk is full" in str(caught.value)
    else:
        assert caught.value is first
        assert ["the disk is full" in note for note in first.__notes__] == [True]


def test_ranks_that_are_late_or_lost_are_not_waited_for(tmp_path: Path) -> None:
    learner, critic = parts_here()
    two: Any = TwoShares(learner, critic)
    two.gate.clear()
    snapshot = two.snapshot(tmp_path, ["model"], [])
    snapshot._timeout_s = 0.1
    with pytest.raises(RollError, match=r"rank 0, 1 of the learner did not write .* within 0\.1 s \(placement"):
        snapshot.wait(tmp_path / "x", threading.Event())
    snapshot._timeout_s, given_up = 30.0, threading.Event()
    given_up.set()
    started = time.monotonic()
    with pytest.raises(RollError, match="gave up waiting for rank 0, 1 of the learner"):
        snapshot.wait(tmp_path / "x", given_up)
    saver = Saver(tmp_path, CheckpointConfig(asynchronous=True), two)
    saver.save(state_of(1, learner, critic), {})
    two.lost = RankError("lost")
    with pytest.raises(RankError, match="lost"), saver:
        raise two.lost
    assert time.monotonic() - started < 4, "the 5 s that ranks have"
    assert list(tmp_path.iterdir()) == []
    two.gate.set()


def test_a_folder_of_the_same_name_on_another_machine_is_the_drivers_to_write(tmp_path: Path) -> None:
    class Elsewhere(Rank):
        def sees_file(self, path: str, token: bytes) -> bool:
            own = tmp_path / "own"  # what this name is there
            own.write_bytes(b"an older file")
            return super().sees_file(str(own), token)

    for rank, sees in ((Elsewhere(0, 1), False), (Rank(0, 1), True)):
        ranks = LearnerRanks(CONFIG)
        ranks._crew = Crew(QueueLinks([rank]), 60)
        assert (ranks.snapshot(tmp_path, [], []) is not None) == sees
        ranks.end()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("blind", [0, 1])
def test_a_folder_that_one_rank_does_not_see_is_the_drivers_to_write_and_to_read(tmp_path: Path, blind: int) -> None:
    class Seeing:
        def __init__(self, sees: bool) -> None:
            self.sees = sees

        def sees_folder(self, folder: Path) -> bool:
            return self.sees

        def sees_file(self, path: str, token: bytes) -> bool:
            return self.sees and Path(path).read_bytes() == token

    ranks = LearnerRanks(CONFIG)
    ranks._crew = Crew(links := QueueLinks([Seeing(rank != blind) for rank in range(2)]), 60)
    assert ranks.snapshot(tmp_path, ["model"], []) is None
    assert ranks.restore(SavedFiles(tmp_path), [], []) is False
    ranks.end()
    assert links.ended_all


def test_a_rank_reads_what_it_wrote(tmp_path: Path) -> None:
    """Through the calls of the crew: policy, critic and reference, into a learner that was made anew."""
    ranks = LearnerRanks(CONFIG)
    ranks._crew = crew = Crew(QueueLinks([Rank(0, 1)]), 60)

    def parts(*, taught: bool) -> tuple[RankedLearner, Any, Any]:
        learner = RankedLearner(crew, CONFIG, tiny_model(), warm_start=False, threads=1)
        critic = learner.critic(CONFIG.critic)
        if taught:
            teach(learner, critic)
        return learner, critic, learner.reference(fixed=False)

    learner, critic, reference = parts(taught=True)
    saved = {**state_of(1, learner, critic).others, "reference": reference.weights}
    state = CheckpointState(step=1, version=1, model=learner.weights, optimizer={}, cursor=3, others=saved)
    with Saver(tmp_path, CheckpointConfig(), ranks) as saver:
        saver.save(state, {"policy": learner, "critic": critic})
    wanted = [learner.optimizer_state(), critic.optimizer_state(), dict(critic.weights())]
    policy = dict(learner.weights())
    loaded = load_checkpoint(tmp_path)
    assert (next(tmp_path.iterdir()) / share_name(0)).exists()
    assert equal(dict(loaded.model()), policy)
    learner, critic, reference = parts(taught=False)
    assert not equal(dict(critic.weights()), wanted[2])
    assert loaded.files is not None
    assert ranks.restore(loaded.files, ["critic", "reference"], ["policy", "critic"])
    assert equal([learner.optimizer_state(), critic.optimizer_state(), dict(critic.weights())], wanted)
    assert equal(dict(loaded.others["reference"]()), dict(reference.weights()))
    assert not ranks.restore(loaded.files.__class__(tmp_path / "elsewhere"), [], []), "a folder that is not seen"
    assert json.loads((next(tmp_path.iterdir()) / "manifest.json").read_text())["format"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("cluster", ["local", "ray"])
def test_a_rank_that_dies_while_it_writes_its_share_is_noticed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asynchronous: bool, cluster: str
) -> None:
    """Not by a deadline, and also where nothing is asked of the ranks any more."""
    if cluster == "ray":
        ray = pytest.importorskip("ray", reason="needs the optional part 'ray'")
    write = RankSnapshot.write

    def write_and_die(snapshot: RankSnapshot, folder: Path) -> None:
        """In place of its file rank 1 finds a pipe that nobody reads."""
        os.mkfifo(folder / share_name(1))
        write(snapshot, folder)
        links: Any = snapshot._crew._links
        threading.Timer(
            1.0, lambda: ray.kill(links._actors[1]) if cluster == "ray" else links._processes[1].kill()
        ).start()

    monkeypatch.setattr(RankSnapshot, "write", write_and_die)
    with LearnerRanks(config_of("{ranks: 2, timeout_s: 600}", f"cluster: {cluster}\n")) as ranks:
        learner: Any = ranks.learner(tiny_model(), warm_start=False, threads=1)
        state = CheckpointState(step=1, version=1, model=learner.weights, optimizer={}, cursor=3, others={})
        started = time.monotonic()
        with (
            pytest.raises(RankError, match=r"(?s)rank 1 of 2 .*of the learner was (killed|lost).* in 'write_share'"),
            Saver(tmp_path, CheckpointConfig(asynchronous=asynchronous), ranks) as saver,
        ):
            saver.save(state, {})
        assert time.monotonic() - started < 60
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_two_ranks_of_shards_begin_without_memory_and_come_back(tmp_path: Path) -> None:
    """Ranks of fsdp2 learn what one process learns, save beside the next step, and are put back to what was saved."""
    alone, critic = parts_here()
    teach(alone, critic)
    more = "critic: {lr: 1.0e-3}\nlearner: {backend: fsdp2, device: cpu}\n"
    with LearnerRanks(config_of("{ranks: 2}", more)) as ranks:
        learner: Any = ranks.learner(tiny_model(), warm_start=False, threads=1)
        own = learner.critic(CONFIG.critic)
        teach(learner, own)
        saver = Saver(tmp_path, CheckpointConfig(asynchronous=True), ranks)
        with saver:
            saver.save(state_of(1, learner, own), {"policy": learner, "critic": own})
            teach(learner, own)
        loaded = load_checkpoint(tmp_path)
        assert loaded.files is not None
        assert len(loaded.files.shares) == 2
        for found, wanted in ((loaded.model, alone), (loaded.others["critic"], critic)):
            weights = dict(found())
            assert weights.keys() == dict(wanted.weights()).keys()
            assert all(torch.allclose(weights[name], value, atol=1e-5) for name, value in wanted.weights())
        moved = learner.optimizer_state()["parts"][0]["state"][0]["step"]
        assert ranks.restore(loaded.files, ["critic"], ["policy", "critic"])
        assert (float(moved), float(learner.optimizer_state()["parts"][0]["state"][0]["step"])) == (2.0, 1.0)
        assert equal(learner.optimizer_state(), dict(loaded.optimizer["policy"]))
        assert equal(own.optimizer_state(), dict(loaded.optimizer["critic"]))
        assert equal(dict(own.weights()), dict(loaded.others["critic"]()))
