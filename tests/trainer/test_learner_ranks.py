"""The learner of several ranks gives the numbers of one in this process, and its micro-batches are dealt by their work.

Ranks that are processes are forked here, from one that has loaded PyTorch: a program takes seconds to.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from episode_builders import batches_of, counted
from forked import RankProcess
from test_crew import QueueLinks
from test_learner import some_rows
from tiny import tiny_model
from tokenizers import Tokenizer

from roll_envs.errors import CheckpointError, ConfigError
from trainer.cluster.crew import Crew, RankError
from trainer.cluster.learner_ranks import LearnerRanks, local_environments, move_beside
from trainer.cluster.rank import Rank
from trainer.cluster.ranked import RankedLearner, RankedScorer, cut, deal, gather, make_phase_learner, releases
from trainer.cluster.seats import Machine
from trainer.config import RunConfig
from trainer.config.load import parse_config
from trainer.data.batches import Batch, cost, pack
from trainer.learner import Critic, Learner, Scorer
from trainer.model.forward import weights_of

pytestmark = pytest.mark.usefixtures("forked_ranks")
BASE = "format: 1\nname: t\nsteps: 4\nenv: {id: roll/FrozenLake-v0}\nsampling: {temperature: 0.7}\n"
SETTINGS = (
    "optimizer: {lr: 1.0e-3, max_grad_norm: 0.5}\nloss: {entropy_coef: 0.01, kl_coef: 0.1}\n"
    "critic: {lr: 1.0e-3, clip: null}\n"
)


def rank_pids(parent: int | None = None) -> set[int]:
    """Rank processes that ``parent`` has started, this process if None."""
    if parent is None:
        return {rank.pid for rank in RankProcess.alive if rank.poll() is None}
    found = set()
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            state, of = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if int(of) == parent and state != "Z" and b"trainer.cluster.rank" in (folder / "cmdline").read_bytes():
                found.add(int(folder.name))
    return found


def config_of(placed: str = "", more: str = SETTINGS) -> RunConfig:
    return parse_config(BASE + more + (f"placement: {{learner: {placed}}}\n" if placed else ""))


# -- dealing -----------------------------------------------------------------------------------------------------------


def some_batches(**columns: Any) -> list[Batch]:
    rows, advantages = some_rows()
    returns = [np.linspace(0, 1, len(r.ids)) for r in rows]
    return batches_of(rows, advantages, pack_tokens=30, tokens_per_microbatch=90, returns=returns, **columns)


def of_length(*lines: list[int]) -> Batch:
    """A micro-batch with sequences of these lengths in its lines."""
    width = max(map(sum, lines))
    segments = torch.full((len(lines), width), -1)
    for line, lengths in enumerate(lines):
        bounds = np.cumsum([0, *lengths])
        for number, (first, last) in enumerate(itertools.pairwise(bounds)):
            segments[line, first:last] = number
    empty = torch.zeros(len(lines), width, dtype=torch.int64)
    columns = {f.name: empty for f in fields(Batch) if f.default is not None}
    return Batch(**{**columns, "segments": segments})


def test_lines_are_dealt_by_the_work_of_their_sequences() -> None:
    dealt = deal([of_length([40], [30], [40], [20, 10])], 2)  # in turn they would be 80 and 60
    assert [round(load) for load in dealt.loads] == [70, 70]
    assert sorted(p.first for mine in dealt.pieces for p in mine) == [0, 1, 2, 3]
    assert dealt.imbalance == pytest.approx(1.0, abs=1e-3)
    # Attention grows with the square: two long lines weigh more than many short sequences of as many tokens.
    long = of_length([24_000], [24_000], [100] * 240, [100] * 240)
    assert [sorted(p.first > 1 for p in mine) for mine in deal([long], 2).pieces] == [[False, True]] * 2
    alone = deal([of_length([30])], 2)
    assert [len(mine) for mine in alone.pieces] == [1, 0]
    assert alone.imbalance == 2.0
    assert deal([], 2).pieces == [[], []]
    assert deal([], 2).imbalance == 1.0


def test_whole_micro_batches_are_dealt_where_there_are_enough() -> None:
    batches = [of_length([10], [10]) for _ in range(8)]
    assert all(p.last - p.first == 2 for mine in deal(batches, 2).pieces for p in mine)
    assert any(p.last - p.first == 1 for mine in deal(batches[:4], 2).pieces for p in mine)


def recorded_turns(shared_dir: Path) -> list[list[int]]:
    """Of each recorded episode of WebShop, the tokens of a prompt with the last page and this one, turn by turn."""
    folder, tokenizers = shared_dir / "webshop", shared_dir / "tokenizers" / "qwen2"
    if not (folder / "episodes.json.gz").is_file() or not tokenizers.is_dir():
        pytest.skip("the recorded WebShop episodes, or the tokenizer, are not here")
    tokenizer = Tokenizer.from_file(str(tokenizers / "tokenizer.json"))
    recorded = json.loads(gzip.decompress((folder / "episodes.json.gz").read_bytes()))
    episodes = []
    for episode in (*recorded["synthetic"], *recorded["human"]):
        pages = [len(tokenizer.encode(step["obs_text"]).ids) for step in episode["steps"]]
        episodes.append([before + page for before, page in itertools.pairwise([0, *pages])])
    return episodes


def test_recorded_episodes_of_webshop_are_dealt_to_eight_ranks_evenly(shared_dir: Path) -> None:
    """A step of configs/cluster/webshop_qwen2.5_7b_8gpus: 128 episodes, lines and micro-batches of 8192 tokens."""
    episodes = recorded_turns(shared_dir)
    for seed in range(2):
        drawn = np.random.default_rng(seed).integers(0, len(episodes), 128)
        lengths = np.array([length for episode in drawn for length in episodes[episode]])
        lines = [[int(lengths[member]) for member in line] for line in pack(lengths, 8192)]
        dealt = deal([of_length(line) for line in lines], 8)
        assert sum(dealt.loads) == pytest.approx(sum(cost(int(n)) for n in lengths))
        assert 1.0 < dealt.imbalance <= 1.05


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_what_is_dealt_comes_back_in_its_place(ranks: int) -> None:
    batches = some_batches()
    dealt = deal(batches, ranks)
    for name in ("ids", "token", "returns"):
        parts = [[getattr(cut(batches[p.source], p), name) for p in mine] for mine in dealt.pieces]
        if name == "returns":  # [K, B, T]
            parts = [[part[0] for part in mine] for mine in parts]
        for batch, together in zip(batches, gather(batches, dealt.pieces, parts), strict=True):
            whole = getattr(batch, name)
            assert torch.equal(together, whole[0] if name == "returns" else whole), name


# -- equal numbers -----------------------------------------------------------------------------------------------------


def some_steps(learner: Learner, critic: Critic, reference: Scorer) -> dict[str, Any]:
    """Two steps of everything with a skipped one between them, behind which states are put back."""
    rows, advantages = some_rows()
    own = counted(rows)
    found: dict[str, Any] = {"metrics": [], "logprobs": [], "state": []}
    for step in range(3):
        given = [np.full_like(a, np.nan) for a in advantages] if step == 1 else advantages
        plain = batches_of(rows, given, pack_tokens=20, tokens_per_microbatch=60)
        scored = [t.clone() for t in reference.score(plain)]
        batches = [replace(batch, reference_logp=logp) for batch, logp in zip(plain, scored, strict=True)]
        metrics, before = learner.step(batches, own, lr=1e-3, on_policy=step == 2)
        values = critic.score(plain)
        targets = batches_of(
            rows, pack_tokens=20, tokens_per_microbatch=20,
            value=[np.zeros(len(r.ids)) for r in rows], returns=[np.linspace(0, 1, len(r.ids)) for r in rows],
        )  # fmt: skip
        found["metrics"].append({**metrics, **critic.step(targets, own, lr=1e-2)})
        found["logprobs"] += [*before, *scored, *values, *learner.score(plain)]
        if step == 1:
            reference.load_weights(learner.weights())
            critic.load_weights([(name, weight.clone()) for name, weight in critic.weights()])
            learner.load_optimizer_state(learner.optimizer_state())
            critic.load_optimizer_state(critic.optimizer_state())
    for part in (learner, critic, reference):
        found["state"].append({name: weight.clone() for name, weight in part.weights()})
    found["optimizer"] = [part.optimizer_state() for part in (learner, critic)]
    return found


def steps_alone(more: str = SETTINGS) -> dict[str, Any]:
    config = config_of(more=more)
    learner = make_phase_learner(config, tiny_model(), warm_start=False, threads=1)
    return some_steps(learner, learner.critic(config.critic), learner.reference(fixed=False))


def steps_of_ranks(ranks: LearnerRanks, config: RunConfig) -> dict[str, Any]:
    learner = ranks.learner(tiny_model(), warm_start=False, threads=1)
    return some_steps(learner, learner.critic(config.critic), learner.reference(fixed=False))


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-6) -> bool:
    return bool((a.double() - b.double()).norm() <= tolerance * max(float(b.double().norm()), 1e-9))


def assert_same_numbers(found: dict[str, Any], alone: dict[str, Any]) -> None:
    for one, other in zip(found["metrics"], alone["metrics"], strict=True):
        assert one.pop("learner/rank_imbalance") >= 1.0
        assert one.keys() == other.keys()
        for name, value in other.items():
            assert one[name] == pytest.approx(value, rel=2e-6, abs=1e-8), name
    assert [m["learner/skipped_steps"] for m in alone["metrics"]] == [0.0, 1.0, 0.0]
    assert all(close(a, b) for a, b in zip(found["logprobs"], alone["logprobs"], strict=True))
    for one, other in zip(found["state"], alone["state"], strict=True):
        assert one.keys() == other.keys()
        assert all(close(one[name], weight) for name, weight in other.items())
    policy, other = (each["optimizer"][0] for each in (found, alone))
    assert policy.keys() == other.keys()
    assert policy["skipped"] == other["skipped"] == 0
    moments = [state["parts"][0]["state"] for state in (policy, other)]
    assert moments[0].keys() == moments[1].keys()
    for index, moment in moments[1].items():
        assert all(close(moments[0][index][name], value, 1e-5) for name, value in moment.items())


def test_one_rank_gives_the_numbers_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What crosses, without processes: the network, settings, micro-batches, weights and states of every part."""
    threads: list[int] = []
    monkeypatch.setattr("trainer.cluster.rank.torch.set_num_threads", threads.append)
    config = config_of()
    crew = Crew(QueueLinks([Rank(0, 1)]), 60)
    model = tiny_model()
    learner = RankedLearner(crew, config, model, warm_start=False, threads=1)
    found = some_steps(learner, learner.critic(config.critic), learner.reference(fixed=False))
    assert_same_numbers(found, steps_alone())
    fresh = tiny_model().network.state_dict()
    assert all(torch.equal(weight, fresh[name]) for name, weight in weights_of(model.network)), "the driver's own"
    with pytest.raises(CheckpointError, match="is missing"):
        learner.reference(fixed=False).load_weights([])
    with pytest.raises(CheckpointError, match="LoRA adapters"):
        learner.load_optimizer_state({**learner.optimizer_state(), "lora": {}})
    with pytest.raises(CheckpointError, match=r"2 optimisers .* optimizer\.name it was saved with"):
        learner.load_optimizer_state({"parts": learner.optimizer_state()["parts"] * 2})
    again = RankedLearner(crew, config, model, warm_start=True, threads=1)
    assert all(torch.equal(weight, fresh[name]) for name, weight in again.weights()), "another phase begins anew"
    batches = some_batches()
    RankedLearner(crew, config, model, warm_start=True, threads=3)
    assert threads == [1, 1, 3]
    warming = make_phase_learner(config, tiny_model(), warm_start=True, threads=1).score(batches)
    assert all(close(a, b) for a, b in zip(again.score(batches), warming, strict=True)), "at the warm start's settings"


def test_a_part_of_every_rank_is_told_to_leave_its_device_to_come_back_and_to_move() -> None:
    class Told:
        def __init__(self) -> None:
            self.heard: list[tuple[Any, ...]] = []

        def part(self, *arguments: Any) -> None:
            self.heard.append(arguments)

    told = [Told(), Told()]
    scorer = RankedScorer(Crew(QueueLinks(told), 60), "reference")
    scorer.offload()
    scorer.reload()
    scorer.move("cuda:1", "cuda:3")
    for rank, device in zip(told, ("cuda:1", "cuda:3"), strict=True):
        assert rank.heard == [("reference", "offload"), ("reference", "reload"), ("reference", "move", device)]


def test_a_reference_that_stays_has_no_weights_beside_adapters() -> None:
    pytest.importorskip("peft", reason="the extra 'lora' is not installed")
    config = config_of(more=f"{SETTINGS}learner: {{lora_rank: 2}}\n")
    learner = RankedLearner(Crew(QueueLinks([Rank(0, 1)]), 60), config, tiny_model(), warm_start=False, threads=1)
    assert list(learner.reference(fixed=True).weights()) == []
    names = {name for name, _ in weights_of(tiny_model().network)}
    assert {name for name, _ in learner.reference(fixed=False).weights()} == names


def test_ranks_of_a_machine_have_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    config = config_of("{ranks: 2}")
    assert [one["CUDA_VISIBLE_DEVICES"] for one in local_environments(config)] == ["4", "6"]
    chosen = config_of("{ranks: 2, devices: [1, 0]}")
    assert [one["CUDA_VISIBLE_DEVICES"] for one in local_environments(chosen)] == ["6", "4"]
    with pytest.raises(ConfigError, match=r"ranks 3: each rank needs a GPU of its own, and this machine has 2"):
        local_environments(config_of("{ranks: 3}"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert [one["CUDA_VISIBLE_DEVICES"] for one in local_environments(config)] == ["0", "1"]
    on_cpu = config_of("{ranks: 3}", "learner: {device: cpu}\n")
    assert not any("CUDA_VISIBLE_DEVICES" in one for one in local_environments(on_cpu))


def test_settings_without_effect_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"placement\.learner\.gpus is set, but cluster is 'local'"):
        config_of("{gpus: 1}")
    with pytest.raises(ConfigError, match=r"a run is on one Ray cluster"):
        parse_config(BASE + "cluster: ray\nplacement: {address: 'a:1'}\nrollout: {manager: ray}\n")


class Waiting:
    """A rank that starts, and then does nothing any more."""

    def check(self, text: str, theirs: dict[str, str]) -> None:
        self.theirs = theirs

    def meet(self) -> tuple[str, int]:
        return "here", 7

    def join(self, *given: Any) -> None:
        self.joined = given

    def make(self, *given: Any) -> None:
        self.threads = given[3]

    def part(self, *_: Any) -> None:
        threading.Event().wait(60)


def test_several_ranks_are_not_this_process_and_have_their_own_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = [Waiting(), Waiting()]
    monkeypatch.setattr("trainer.cluster.learner_ranks._links", lambda config: QueueLinks(waiting))
    ranks = LearnerRanks(config_of("{ranks: 2, timeout_s: 0.3, start_timeout_s: 30}"))
    learner = ranks.learner(tiny_model(), warm_start=False, threads=8)
    assert isinstance(learner, RankedLearner)
    for rank in waiting:
        assert rank.theirs == releases()
        assert rank.joined[:2] == ("here", 7)
        assert rank.joined[3] > 10, "the driver names who is late before a collective gives up"
        assert rank.threads == 4
    began = time.monotonic()
    with pytest.raises(RankError, match=r"after 0\.3 s \(placement\.learner\.timeout_s\)"):
        learner.score(some_batches())
    assert time.monotonic() - began < 20


def test_ranks_that_refuse_to_start_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(Waiting):
        def check(self, text: str, theirs: dict[str, str]) -> None:
            raise ConfigError("the backend is not installed")

    links = QueueLinks([Refusing(), Refusing()])
    monkeypatch.setattr("trainer.cluster.learner_ranks._links", lambda config: links)
    with pytest.raises(ConfigError, match=r"^the backend is not installed$"):
        LearnerRanks(config_of("{ranks: 2}")).learner(tiny_model(), warm_start=False, threads=1)
    assert links.ended_all


def test_reference_and_critic_are_brought_to_their_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.cluster.learner_ranks.this_machine", lambda: Machine(gpus=("0", "1", "2")))
    moved: list[tuple[str, ...]] = []

    class Part:
        def move(self, *devices: str) -> None:
            moved.append(devices)

    more = f"{SETTINGS}advantage: {{name: gae}}\n"
    config = parse_config(f"{BASE}{more}placement: {{reference: {{device: [2]}}, critic: {{device: cpu}}}}\n")
    for given, name in ((config, "reference"), (config, "critic"), (config_of(more=more), "critic")):
        move_beside(given, name, Part())
    assert moved == [("cuda:2",), ("cpu",)]


# -- two processes -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two() -> Iterator[LearnerRanks]:
    with LearnerRanks(config_of("{ranks: 2, timeout_s: 60}")) as ranks:
        yield ranks
    assert not rank_pids()


@pytest.mark.slow
def test_two_ranks_give_the_numbers_of_this_process(two: LearnerRanks) -> None:
    assert_same_numbers(steps_of_ranks(two, config_of()), steps_alone())
    assert len(rank_pids()) == 2


@pytest.mark.slow
def test_the_same_steps_again_are_the_same_to_the_bit(two: LearnerRanks) -> None:
    """Learners are made anew in the same processes."""
    first, second = steps_of_ranks(two, config_of()), steps_of_ranks(two, config_of())
    assert all(torch.equal(a, b) for a, b in zip(first["logprobs"], second["logprobs"], strict=True))
    assert first["metrics"] == second["metrics"]


@pytest.mark.slow
def test_signals_to_all_processes_of_a_job_are_the_drivers_to_answer(two: LearnerRanks) -> None:
    """Slurm and systemd send SIGTERM to each of them; the driver finishes its step and saves, with the ranks."""
    learner = two.learner(tiny_model(), warm_start=False, threads=1)
    for pid in rank_pids():
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
    time.sleep(0.5)
    assert len(learner.score(some_batches())) > 0
    assert len(rank_pids()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("signalled", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_dies_or_stops_in_a_step_ends_all(signalled: signal.Signals) -> None:
    rows, advantages = some_rows()
    batches = batches_of(rows, advantages, pack_tokens=20, tokens_per_microbatch=60)
    others = rank_pids()
    with LearnerRanks(config_of("{ranks: 2, timeout_s: 8}", "")) as ranks:
        learner = ranks.learner(tiny_model(), warm_start=False, threads=1)
        victim = max(rank_pids() - others)  # rank 1, which was started last
        learner.step(batches, counted(rows), lr=1e-3)
        stopping = threading.Timer(0.3, os.kill, (victim, signalled))
        stopping.start()
        began = time.monotonic()

        def go_on() -> None:
            while time.monotonic() < began + 60:
                learner.step(batches, counted(rows), lr=1e-3)

        with pytest.raises(RankError) as caught:
            go_on()
        assert time.monotonic() - began < 40
        text = str(caught.value)
        assert f"rank 1 of 2 (process {victim})" in text
        assert "rank 0" not in text.partition("(rank 0")[0]
        if signalled == signal.SIGKILL:
            assert "was killed by SIGKILL" in text
        else:
            assert "does not say where it is" in text
        assert rank_pids() == others
