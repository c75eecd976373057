"""roll-train plan: who sits where on how many GPUs, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2Config, Qwen3MoeConfig

from roll_envs.errors import ConfigError
from trainer.cli import main
from trainer.command import MISTAKE
from trainer.config.load import load_config, parse_config
from trainer.run.memory_items import GIB
from trainer.run.picture import seats
from trainer.run.plan import ENGINE, ClusterPlan, Hardware, active_parameters, plan_cluster, plan_lines

SMALL = Qwen2Config(
    hidden_size=896, intermediate_size=4864, num_hidden_layers=4, num_attention_heads=14, num_key_value_heads=2,
    vocab_size=151_936, max_position_embeddings=32_768, tie_word_embeddings=True,
)  # fmt: skip
SEVEN = Qwen2Config(
    hidden_size=3584, intermediate_size=18_944, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4,
    vocab_size=152_064, max_position_embeddings=32_768, tie_word_embeddings=False,
)  # fmt: skip
THIRTY = Qwen3MoeConfig(
    hidden_size=2048, intermediate_size=6144, num_hidden_layers=48, num_attention_heads=32, num_key_value_heads=4,
    head_dim=128, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8, vocab_size=151_936,
    decoder_sparse_step=1, tie_word_embeddings=False,
)  # fmt: skip
FOLDER = Path(__file__).parents[2] / "configs" / "cluster"
FILES = sorted(FOLDER.glob("*_8gpus.yaml"))
NODE = Hardware(
    nodes=1, gpus=8, gpu_gib=80.0, node_gib=512.0, tflops=989.0, gpu_gib_s=3100.0, mfu=0.35
)  # fmt: skip
FILE = """
format: 1
name: planned
steps: 1
env: {id: roll/FrozenLake-v0}
cluster: ray
model: {max_positions: 2048, head_width: 32}
engine: {name: vllm, dtype: bfloat16, max_tokens: 2048}
learner: {precision: bfloat16}
"""


def planned(hardware: Hardware = NODE, **overrides: Any) -> Any:
    config = parse_config(FILE, [f"{key}={value}" for key, value in overrides.items()])
    return plan_cluster(config, SMALL, hardware, tokens=100_000)


def keys(**named: Any) -> dict[str, Any]:
    return {name.replace("__", "."): value for name, value in named.items()}


def test_who_sits_where() -> None:
    shared = planned(**keys(placement__learner__ranks=4, engine__replicas=2, engine__tensor_parallel_size=2))
    assert on_gpus(shared) == {i: (f"learner {i}", f"engine {i // 2}") for i in range(4)}
    assert shared.in_turn
    assert shared.step_s == pytest.approx(shared.learn_s + shared.sample_s)
    apart = planned(**keys(placement__learner__ranks=2, engine__replicas=3, engine__colocated="false"))
    alone = ("learner 0",), ("learner 1",), ("engine 0",), ("engine 1",), ("engine 2",)
    assert on_gpus(apart) == dict(enumerate(alone))
    assert apart.in_turn, "in mode sync a step learns from what it has just played"
    partly = planned(**keys(placement__learner__ranks=2, engine__replicas=3, rollout__mode="overlap"))
    assert on_gpus(partly) == {0: ("learner 0", "engine 0"), 1: ("learner 1", "engine 1"), 2: ("engine 2",)}
    assert partly.step_s == max(partly.learn_s, partly.sample_s)
    assert list(plan_lines(partly, NODE, tokens=100_000))[-1].endswith("side by side")


def test_weights_in_fp8_are_read_in_half_the_time_and_leave_more_room_for_keys_and_values() -> None:
    plain, quantized = (planned(**keys(engine__quantization=name)) for name in ("null", "fp8"))
    assert quantized.sample_s == pytest.approx(plain.sample_s / 2)
    room = [
        next(item.bytes for item in each.memory.items["cuda"] if item.what == "keys and values of servers")
        for each in (plain, quantized)
    ]
    matrices = 4 * (2 * 896 * 896 + 2 * 896 * 128 + 3 * 896 * 4864)
    assert room[1] - room[0] == matrices


def on_gpus(plan: ClusterPlan) -> dict[int, tuple[str, ...]]:
    found: dict[int, tuple[str, ...]] = {}
    for seat in seats(parse_config(FILE, plan_overrides(plan)), plan.placement):
        if seat.place.isdigit():
            found[int(seat.place)] = (*found.get(int(seat.place), ()), seat.who)
    return found


def plan_overrides(plan: ClusterPlan) -> list[str]:
    return [
        f"placement.learner.ranks={len(plan.placement.learner)}",
        f"engine.replicas={len(plan.placement.rollout)}",
    ]


def test_servers_are_on_one_node() -> None:
    """The driver's, which starts them; ranks of Ray are on any."""
    two, apart = replace(NODE, nodes=2), keys(engine__colocated="false")
    assert planned(two, **keys(placement__learner__ranks=8, engine__replicas=8)).placement.shared == tuple(range(8))
    beside = planned(two, **keys(placement__learner__ranks=3, engine__replicas=6), **apart).placement
    assert beside.learner == (0, 1, 2)
    assert beside.rollout == tuple((gpu,) for gpu in range(8, 14))
    for given in (
        keys(placement__learner__ranks=16, engine__replicas=16),
        keys(placement__learner__ranks=3, engine__replicas=9, **{"engine.colocated": "false"}),
        keys(placement__learner__ranks=9, engine__replicas=7, engine__tensor_parallel_size=2),
    ):
        with pytest.raises(ConfigError, match=r"of several nodes of 8, and a run starts its servers on the driver's"):
            planned(two, **given)


def test_a_run_without_a_cluster_is_on_one_node() -> None:
    two = replace(NODE, nodes=2)
    local = parse_config(FILE.replace("cluster: ray\n", ""), ["placement.learner.ranks=9"])
    with pytest.raises(ConfigError, match=r"ranks 9: .* a node of the planned cluster has 8; .*cluster 'ray'"):
        plan_cluster(local, SMALL, two, tokens=100_000)
    assert planned(two, **keys(placement__learner__ranks=9)).placement.learner == tuple(range(9))


def test_memory_follows_the_backend_and_its_ranks() -> None:
    def learner(backend: str, ranks: int, **more: Any) -> float:
        plan = planned(**keys(learner__backend=backend, placement__learner__ranks=ranks, **more))
        always = {"weights", "gradients", "optimiser state", "float32 copies of weights"}
        return sum(i.bytes for i in plan.memory.items["cuda"] if i.owner == "learner" and i.what in always)

    alone = learner("torch", 1)
    assert learner("torch", 8) == alone
    assert learner("deepspeed", 8, learner__stage=3) == pytest.approx(alone / 8)
    assert alone / 8 < learner("deepspeed", 8, learner__stage=2) < learner("deepspeed", 8, learner__stage=1) < alone
    cut = learner("megatron", 8, learner__tensor_parallel=2, learner__pipeline_parallel=2)
    # The first stage has the embedding whole, with half of the layers. Replicas divide float32 copies and moments, two
    # thirds of it.
    head, whole = 151_936 * 896, planned().memory.parameters
    stage = ((whole - head) / 2 + head) / whole
    assert cut == pytest.approx(stage * (alone / 3 / 2 + alone * 2 / 3 / 4))


def test_shares_have_no_whole_gradients_of_micro_batches() -> None:
    def apart(backend: str, **more: Any) -> float:
        plan = planned(**keys(learner__backend=backend, placement__learner__ranks=8, engine__replicas=8, **more))
        return sum(i.bytes for i in plan.memory.items["cuda"] if i.what == "gradients of micro-batches")

    whole = apart("torch")
    assert whole == 2 * planned().memory.parameters
    assert apart("fsdp2") == apart("deepspeed", learner__stage=3) == pytest.approx(whole / 8)
    assert apart("deepspeed", learner__stage=2) == 0, "they are in the bucket"


def test_only_ranks_that_are_given_whole_weights_load_them() -> None:
    def loading(backend: str, ranks: int = 8, **more: Any) -> float:
        plan = planned(**keys(learner__backend=backend, placement__learner__ranks=ranks, engine__replicas=8, **more))
        weights = 4 * plan.memory.parameters
        return sum(i.bytes for i in plan.memory.items["cpu"] if i.owner == "loading") / weights

    assert loading("torch") == loading("deepspeed", learner__stage=2) == 8
    assert loading("fsdp2") == loading("deepspeed", learner__stage=3) == loading("megatron") == 0
    assert loading("fsdp2", ranks=1) == 1, "the model of this process, which becomes the learner's"


def test_an_engine_takes_its_share_of_one_gpu() -> None:
    plan = planned(**keys(placement__learner__ranks=4, engine__replicas=4, engine__gpu_memory_utilization=0.3))
    served = [i.bytes for i in plan.memory.items["cuda"] if i.owner == "engine"]
    assert sum(served) == pytest.approx(0.3 * 80 * GIB)


def test_an_engine_with_gpus_of_its_own_takes_its_share_of_one_of_them() -> None:
    apart = keys(placement__learner__ranks=2, engine__replicas=2, engine__colocated="false")
    plan = planned(**apart, **keys(engine__gpu_memory_utilization=0.9))
    assert {item.owner for item in plan.memory.items["cuda"]} == {"learner"}
    served = {item.what: item.bytes for item in plan.memory.items[ENGINE]}
    assert served["weights of servers"] == 2 * plan.memory.parameters
    assert sum(served.values()) == pytest.approx(0.9 * 80 * GIB)
    lines = list(plan_lines(plan, NODE, tokens=100_000))
    assert any(line.startswith("a GPU of the engine: about 72.0 of 80 GiB") for line in lines)
    assert not any(line.startswith("      0.00 GiB") for line in lines)
    assert " s if engines are always full: " in lines[-1]
    unserved = list(plan_lines(replace(plan, sample_s=None), NODE, tokens=100_000))
    assert "sampling not counted (no server of the run's): " in unserved[-1]
    with pytest.raises(ConfigError, match=r"of a GPU of the engine are .*and the weights of a server alone take"):
        planned(**apart, **keys(engine__gpu_memory_utilization=0.001))


BESIDE = """
loss: {kl_coef: 0.1}
advantage: {name: gae}
placement: {learner: {devices: [0]}, rollout: {devices: [1]}, reference: {device: [2]}, critic: {device: [1]}}
"""


def test_reference_and_critic_have_lines_and_times_of_their_own() -> None:
    text = FILE.replace("cluster: ray\n", "") + BESIDE
    small = "engine.gpu_memory_utilization=0.4"
    plan = plan_cluster(parse_config(text, [small]), SMALL, NODE, tokens=100_000)
    assert {item.what.partition(":")[0] for item in plan.memory.items["cuda:2"]} == {"reference"}
    assert {item.what.partition(":")[0] for item in plan.memory.items["cuda:1"]} == {
        "critic", "weights of servers", "keys and values of servers",
    }  # fmt: skip
    lines = list(plan_lines(plan, NODE, tokens=100_000))
    assert {line.partition(":")[0] for line in lines if not line.startswith((" ", "a step"))} == {
        "a GPU of the learner", "GPU 1", "GPU 2", "memory of the driver's node",
    }  # fmt: skip
    forward = 2 * plan.memory.parameters * 100_000 / (0.35 * 989e12)
    assert plan.role_s == pytest.approx({"learner": 3 * forward, "reference": forward, "critic": 4 * forward})
    assert "(learner 0." in lines[-1]
    full = parse_config(text, ["engine.gpu_memory_utilization=0.9"])
    with pytest.raises(ConfigError, match=r"(?s)not enough memory.*\ncuda:1: .*servers .*critic"):
        plan_cluster(full, SMALL, replace(NODE, gpu_gib=2.0), tokens=100_000)


def test_a_role_on_the_learner_s_gpus_is_counted_with_the_learner() -> None:
    text = FILE.replace("cluster: ray\n", "")
    beside = ["loss.kl_coef=0.1", "placement.learner.ranks=2", "engine.replicas=2"]
    plans = [
        plan_cluster(parse_config(text, [*beside, *more]), SMALL, NODE, tokens=100_000).memory
        for more in ([], ["placement.reference.device=[1, 0]"], ["placement.learner.devices=[2, 3]"])
    ]
    assert plans[0] == plans[1]
    assert plans[0].items["cuda"] == plans[2].items["cuda"]
    own = ["placement.learner.devices=[2, 3]", "placement.reference.device=[3, 2]"]
    assert plan_cluster(parse_config(text, [*beside, *own]), SMALL, NODE, tokens=100_000).memory == plans[2]


def test_a_critic_whose_passes_do_not_fit_is_refused() -> None:
    """The default of 8,192 tokens, in float32, of a model of 7 billion weights."""
    text = FILE + "advantage: {name: gae}\n"
    shards = ["placement.learner.ranks=8", "engine.replicas=8", "learner.backend=fsdp2", "engine.colocated=true"]
    few = ["learner.tokens_per_microbatch=2048", "learner.pack_tokens=2048"]

    def refused_or_fits(*more: str) -> ClusterPlan:
        return plan_cluster(parse_config(text, [*shards, *few, *more]), SEVEN, NODE, tokens=100_000)

    with pytest.raises(ConfigError, match=r"first: critic\.tokens_per_microbatch, learner\.gradient_checkpointing"):
        refused_or_fits()
    fits = refused_or_fits("learner.gradient_checkpointing=true")
    assert fits.role_s["critic"] == pytest.approx(5 / 4 * fits.role_s["learner"])
    refused_or_fits("critic.tokens_per_microbatch=2048")


def test_a_node_that_is_too_small_for_the_driver_is_told_without_advice() -> None:
    with pytest.raises(ConfigError, match=r"cpu: .*driver: weights in float32.*are free; no key makes it smaller$"):
        plan_cluster(
            parse_config(FILE, ["placement.learner.ranks=2", "engine.replicas=2", "learner.backend=fsdp2"]),
            SEVEN,
            replace(NODE, node_gib=16.0),
            tokens=100_000,
        )


def test_times_scale_as_the_formulas() -> None:
    one = planned(**keys(placement__learner__ranks=1))
    four = planned(**keys(placement__learner__ranks=4, engine__replicas=4))
    assert one.learn_s == pytest.approx(4 * four.learn_s)
    assert one.learn_s == pytest.approx(6 * one.memory.parameters * 100_000 / (0.35 * 989e12))
    epochs = planned(**keys(placement__learner__ranks=1, learner__epochs=2))
    assert epochs.learn_s == pytest.approx((2 + 1 / 3) * one.learn_s), "and log-probs before the first"
    again = planned(**keys(placement__learner__ranks=1, learner__gradient_checkpointing="true"))
    assert again.learn_s == pytest.approx(8 / 6 * one.learn_s)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ranks 9: each rank needs a GPU of its own, and the planned cluster has 8"):
        planned(**keys(placement__learner__ranks=9))
    with pytest.raises(
        ConfigError, match="3 GPUs are needed beside the 6 of the learner, and the planned cluster has 8"
    ):
        planned(**keys(placement__learner__ranks=6, engine__replicas=3, engine__colocated="false"))
    with pytest.raises(ConfigError, match="tensor_parallel_size 4 is more than the 2 GPUs of a node"):
        planned(replace(NODE, nodes=4, gpus=2), **keys(engine__tensor_parallel_size=4))
    with pytest.raises(ConfigError, match="not enough memory"):
        planned(replace(NODE, gpu_gib=4.0))
    with pytest.raises(ConfigError, match=r"learner\.device 'cpu': a plan is of GPUs.*; set it to 'auto'"):
        planned(**keys(learner__device="cpu"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_files_for_eight_gpus_fit_them(path: Path) -> None:
    config = load_config(path)
    shape = SEVEN if "7b" in path.stem else SMALL
    plan = plan_cluster(config, shape, NODE, tokens=1_000_000)
    assert plan.in_turn
    assert on_gpus(plan) == {i: (f"learner {i}", f"engine {i}") for i in range(8)}
    assert plan.placement.sleepers == tuple(range(8))
    assert {item.owner for item in plan.memory.items["cuda"]} == {"learner", "engine"}
    with pytest.raises(
        ConfigError, match=r"learner\.devices .*: the planned cluster has no GPU 4 \(it has 4, 0 to 3\)"
    ):
        plan_cluster(config, shape, replace(NODE, gpus=4), tokens=1_000_000)


@pytest.mark.slow
def test_thirty_billion_weights_fit_four_nodes() -> None:
    experts = FOLDER / "sokoban_qwen3_30b_a3b_4nodes.yaml"
    hardware = replace(NODE, nodes=4)
    plan = plan_cluster(load_config(experts), THIRTY, hardware, tokens=1_000_000)
    assert plan.placement.learner == tuple(range(24))
    assert plan.placement.rollout == (tuple(range(24, 28)), tuple(range(28, 32)))
    assert plan.memory.parameters == pytest.approx(30.5e9, rel=0.01)
    assert plan.memory.peak("cuda")[1] < plan.memory.free["cuda"]
    assert plan.memory.peak("cpu")[1] == 4 * plan.memory.parameters, "of the driver alone: ranks are given a stream"
    with pytest.raises(ConfigError, match="8 GPUs are needed beside the 24 of the learner"):
        plan_cluster(load_config(experts), THIRTY, replace(hardware, nodes=3), tokens=1_000_000)
    cut_less = load_config(experts, ["learner.pipeline_parallel=2"])
    with pytest.raises(ConfigError, match="not enough memory"):
        plan_cluster(cut_less, THIRTY, hardware, tokens=1_000_000)


def test_experts_that_a_token_does_not_meet_cost_no_time() -> None:
    model = Qwen2Config(hidden_size=8, num_hidden_layers=4)
    assert active_parameters(model, 1000) == 1000
    model.num_experts, model.num_experts_per_tok, model.moe_intermediate_size = 8, 2, 4
    assert active_parameters(model, 10_000) == 10_000 - 4 * 6 * 3 * 8 * 4


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["plan", "configs/frozenlake_tiny.yaml", "--nodes", "1", "--gpus", "2"]
    assert main(given) == 0
    said = capsys.readouterr().out
    assert "GPU 0" in said
    assert "learner 0 + engine 0" in said
    assert "a step of" in said
    assert main([*given, "cluster=ray", "placement.learner.ranks=3"]) == MISTAKE
    said = capsys.readouterr().err
    assert "the planned cluster has 2; lower it, or plan for more of them with --nodes and --gpus" in said
    assert main([*given[:2], "--nodes", "2", "--gpus", "1", "cluster=ray", "placement.learner.ranks=2"]) == 0
    assert "node 1, GPU 0" in capsys.readouterr().out
    assert main([*given[:2], "--nodes", "2", "--gpus", "1", "placement.learner.ranks=2"]) == MISTAKE
    assert "use cluster 'ray' for several machines" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("learner", "problem"),
    [
        (
            ["backend=fsdp2", "context_parallel=3"],
            "3 does not divide the model's num_attention_heads, 8",
        ),
        (
            ["backend=megatron", "pipeline_parallel=2"],
            "2 does not divide the model's num_hidden_layers, 3",
        ),
    ],
)
def test_a_model_that_its_ranks_cannot_be_given_is_refused(
    learner: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before there are ranks to find it."""
    given = ["plan", "configs/frozenlake_tiny.yaml", "cluster=ray", "placement.learner.ranks=6", "optimizer.name=adamw"]
    assert main([*given, *(f"learner.{key}" for key in learner)]) == MISTAKE
    assert problem in capsys.readouterr().err


def test_what_is_told_of_the_cluster_is_planned_with(monkeypatch: pytest.MonkeyPatch) -> None:
    class Asked(Exception):
        pass

    def plan(config: Any, model: Any, hardware: Any, *, tokens: int) -> Any:
        raise Asked(hardware, tokens)

    monkeypatch.setattr("trainer.run.plan.plan_cluster", plan)
    numbers: dict[str, Any] = {
        "nodes": 2, "gpus": 3, "cpus": 5, "gpu_gib": 40.0, "node_gib": 100.0, "tflops": 500.0, "gib_s": 1000.0,
        "mfu": 0.2,
    }  # fmt: skip
    options = [word for name, value in numbers.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    with pytest.raises(Asked) as asked:
        main(["plan", "configs/frozenlake_tiny.yaml", "--tokens", "1234", *options])
    numbers["gpu_gib_s"] = numbers.pop("gib_s")
    assert asked.value.args == (Hardware(**numbers), 1234)


@pytest.mark.parametrize(("option", "value"), [("--mfu", "0"), ("--mfu", "5"), ("--tflops", "0"), ("--gib-s", "0")])
def test_numbers_of_a_cluster_that_cannot_be(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "configs/frozenlake_tiny.yaml", option, value])
    assert f"{option}: '{value}' is not a number above 0" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--nodes", "--gpus", "--cpus"])
def test_a_cluster_of_more_than_there_is_memory_for_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "configs/frozenlake_tiny.yaml", option, "100000000"])
    assert f"{option}: '100000000' is not a whole number of 1 or more, at most" in capsys.readouterr().err
