"""Who sits where: what a placement gives to whom on a machine that need not be there, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from roll_envs.errors import ConfigError
from trainer.cluster.seats import Machine, Placement, place, placed_engine
from trainer.config import RunConfig
from trainer.config.load import parse_config, teacher_config
from trainer.config.parts import ENGINES, part_settings
from trainer.run.evaluate import _without_learner
from trainer.run.picture import seats

BASE = "format: 1\nname: t\nsteps: 4\nenv: {id: roll/FrozenLake-v0}\nmodel: {head_width: 32}\n"
SERVED = "engine: {name: vllm, device: cuda, "
FOUR = Machine(gpus=("4", "5", "6", "7"), cpus=(0, 1, 2, 3, 8, 9))


def config_of(placement: str = "", engine: str = "", more: str = "") -> RunConfig:
    text = BASE + (f"placement: {{{placement}}}\n" if placement else "") + more
    return parse_config(text + (f"{SERVED}{engine}}}\n" if engine else ""))


def placed(placement: str = "", engine: str = "", more: str = "", machine: Machine = FOUR) -> Placement:
    return place(config_of(placement, engine, more), machine)


def engine_settings(config: RunConfig, machine: Machine = FOUR) -> Any:
    engine = placed_engine(config, place(config, machine), machine)
    return part_settings(engine, ENGINES.find(engine.name))


# -- GPUs --------------------------------------------------------------------------------------------------------------


def test_without_a_word_servers_sit_on_the_learner_s_gpus_and_sleep_there() -> None:
    found = placed("learner: {ranks: 2}", "replicas: 1, tensor_parallel_size: 2")
    assert (found.learner, found.rollout, found.sleepers) == ((0, 1), ((0, 1),), (0,))
    assert found.shared == (0, 1)
    assert found.words.startswith("GPUs of learner and engine take turns")


def test_a_list_and_a_count_beside_the_learner() -> None:
    listed = placed("learner: {ranks: 2, devices: [3, 1]}, rollout: {devices: [0, 2]}", "replicas: 2")
    assert (listed.learner, listed.rollout, listed.sleepers) == ((3, 1), ((0,), (2,)), ())
    assert "of their own" in listed.words
    counted = placed("learner: {ranks: 2, devices: [3, 1]}, rollout: {devices: 2}", "replicas: 2")
    assert counted == listed
    assert placed("learner: {ranks: 2}", "replicas: 2, colocated: false").rollout == ((2,), (3,))


def test_of_replicas_that_overlap_in_part_those_on_the_learner_s_gpus_sleep() -> None:
    for given in ("", "rollout: {devices: [0, 1, 2]}"):
        found = placed(given, "replicas: 3")
        assert (found.learner, found.rollout, found.sleepers) == ((0,), ((0,), (1,), (2,)), (0,))
        assert "1, 2 go on" in found.words
    wide = placed("learner: {devices: [3]}, rollout: {devices: [0, 1, 2, 3]}", "replicas: 2, tensor_parallel_size: 2")
    assert wide.sleepers == (1,)


def test_what_the_file_says_of_sleeping_stands() -> None:
    assert placed("rollout: {devices: [1, 2]}", "replicas: 2, colocated: true").sleepers == (0, 1)
    awake = placed("rollout: {devices: [0]}", "colocated: false")
    assert (awake.sleepers, awake.shared) == ((), (0,))
    assert "both stay" in awake.words
    assert placed("rollout: {devices: [0, 1]}", "replicas: 2, colocated: [1]").sleepers == (1,)


def test_servers_are_given_the_names_of_their_gpus_and_told_who_sleeps() -> None:
    settings = engine_settings(config_of("rollout: {devices: [0, 2, 3]}", "replicas: 3"))
    assert (settings.gpus, settings.colocated) == ("4,6,7", [0])
    assert [settings.variables(i)["CUDA_VISIBLE_DEVICES"] for i in range(3)] == ["4", "6", "7"]
    assert settings.resolved("cuda").transfer == "ipc"
    apart = engine_settings(config_of("rollout: {devices: [2]}", "replicas: 1"))
    assert (apart.gpus, apart.colocated, apart.resolved("cuda").transfer) == ("6", False, "broadcast")
    elsewhere = engine_settings(config_of("learner: {devices: [2]}", "replicas: 1"))
    assert (elsewhere.gpus, elsewhere.transfer) == ("6", "shared_memory")
    assert engine_settings(config_of(engine="gpus: 'GPU-5ab,GPU-6cd', replicas: 2")).gpus == "GPU-5ab,GPU-6cd"
    with pytest.raises(ConfigError, match=r"engine\.gpus '4, 6,4' names a GPU twice"):
        config_of(engine="gpus: '4, 6,4', replicas: 2")


def test_an_engine_in_the_trainer_s_process_takes_the_first_gpu() -> None:
    inside = "in_process: true"
    settings = engine_settings(config_of(engine=inside))
    assert (settings.gpus, settings.colocated, settings.in_process_problems()) == (None, [0], [])
    beside = engine_settings(config_of("learner: {devices: [2]}", inside))
    assert (beside.gpus, beside.colocated, beside.transfer) == (None, False, "auto")
    assert placed("rollout: {devices: [0]}", inside).rollout == ((0,),)
    with pytest.raises(
        ConfigError, match=r"devices \[1\]: engine 'vllm' takes the first GPU when it is in the trainer's"
    ):
        placed("rollout: {devices: [1]}", inside)
    with pytest.raises(ConfigError, match=r"rollout\.cpus \[1\]: engine 'vllm' starts no server"):
        placed("rollout: {cpus: [1]}", inside, machine=Machine(gpus=(), cpus=(0, 1)))
    seat = next(seat for seat in seats(config_of(engine=inside), placed(engine=inside)) if seat.who == "engine 0")
    assert (seat.place, seat.process) == ("0", "this process, asleep while the learner learns")


def test_gpus_that_the_engine_names_are_seats_too() -> None:
    found = placed("learner: {ranks: 2}", "gpus: '5,7', replicas: 2")
    assert (found.rollout, found.sleepers) == (((1,), (3,)), (0,))


def test_the_built_in_engine_can_have_another_gpu() -> None:
    config = config_of("rollout: {devices: [2]}")
    assert placed_engine(config, place(config, FOUR), FOUR).device == "cuda:2"
    beside = config_of("learner: {devices: [3]}")
    assert placed_engine(beside, place(beside, FOUR), FOUR).device == "cuda:3"
    plain = config_of()
    assert placed_engine(plain, place(plain, FOUR), FOUR) == plain.engine


@pytest.mark.parametrize(
    ("placement", "engine", "message"),
    [
        ("learner: {ranks: 5}", "", r"ranks 5: each rank needs a GPU of its own, and this machine has 4"),
        ("learner: {devices: [0, 1]}", "", r"devices \[0, 1\] are 2, and each of placement\.learner\.ranks 1 has one"),
        ("learner: {devices: [4]}", "", r"learner\.devices \[4\]: this machine has no GPU 4 \(it has 4, 0 to 3\)"),
        ("rollout: {devices: [1, 7]}", "replicas: 2", r"rollout\.devices \[1, 7\]: this machine has no GPU 7"),
        ("rollout: {devices: [1]}", "replicas: 2", r"devices \[1\] are 1: engine\.replicas 2 of .*_size 1 need 2 GPUs"),
        ("rollout: {devices: [1, 2]}", "", r"engine 'hf' is in the trainer's process and needs 1 GPUs"),
        ("rollout: {devices: 4}", "replicas: 4", r"devices 4: 4 GPUs are needed beside the 1 of the learner.* has 4"),
        ("rollout: {devices: 2}", "replicas: 3", r"devices 2 are 2: engine\.replicas 3 .* need 3 GPUs"),
        ("", "replicas: 5", r"engine\.replicas 5 of engine\.tensor_parallel_size 1 need 5 GPUs; this machine has 4"),
        ("learner: {ranks: 4}", "colocated: false", r"engine\.colocated False: 1 GPUs are needed beside the 4"),
        ("rollout: {devices: [1]}", "gpus: '1'", r"rollout\.devices \[1\] and engine\.gpus '1' say the same thing"),
        ("rollout: {devices: [1]}", "url: 'http://127.0.0.1:1'", r"run elsewhere \(engine\.url\).*; leave it out"),
        ("reference: {device: [1]}", "", r"reference\.device \[1\]: loss\.kl_coef and reward\.kl_coef are 0"),
        ("critic: {device: cpu}", "", r"critic\.device 'cpu': advantage\.name 'grpo' needs no critic"),
        ("rollout: {cpus: 2}", "replicas: 2", r"rollout\.cpus 2: engine 'vllm' starts no server that computes on proc"),
    ],
)
def test_what_cannot_be_met_is_refused_with_what_to_change(placement: str, engine: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        placed(placement, engine)


def test_without_gpus_lists_of_them_are_refused() -> None:
    none = Machine(cpus=(0, 1))
    assert placed("learner: {ranks: 3}", machine=none) == Placement()
    with pytest.raises(ConfigError, match=r"learner\.devices \[0\]: this machine has no GPU"):
        placed("learner: {devices: [0]}", machine=none)
    with pytest.raises(ConfigError, match=r"rollout\.devices \[0\]: this machine has no GPU; leave it out"):
        placed("rollout: {devices: [0]}", machine=none)
    with pytest.raises(ConfigError, match=r"learner\.devices \[0\]: learner\.device is 'cpu'.*set learner\.device"):
        placed("learner: {devices: [0]}", more="learner: {device: cpu}\n")


def test_episodes_beside_learning_need_a_replica_that_stays_awake() -> None:
    later = "rollout: {mode: overlap}\n"
    with pytest.raises(ConfigError, match=r"rollout\.mode 'overlap': every replica of engine 'vllm' sleeps on a GPU"):
        placed("", "replicas: 1", later)
    assert placed("", "replicas: 2", later).sleepers == (0,)


def test_on_ray_the_learner_s_gpus_are_ray_s() -> None:
    ray = "cluster: ray\n"
    found = placed("learner: {ranks: 2, gpus: 1}", "replicas: 2", ray)
    assert (found.learner, found.rollout, found.sleepers) == ((), ((0,), (1,)), (0, 1)), "which ones is not known"
    assert placed("learner: {ranks: 2, gpus: 1}, rollout: {devices: [1, 2]}", "replicas: 2", ray).sleepers == ()
    assert placed("learner: {ranks: 2}", "replicas: 2", ray).sleepers == (), "the learner computes on processors"


# -- reference and critic ----------------------------------------------------------------------------------------------


KL_AND_VALUES = "loss: {kl_coef: 0.1}\nadvantage: {name: gae}\n"


def test_reference_and_critic_on_gpus_of_their_own() -> None:
    given = "learner: {ranks: 2, devices: [0, 1]}, reference: {device: [2, 3]}, critic: {device: [1, 2]}"
    found = placed(given, more=KL_AND_VALUES)
    assert [found.visible(rank) for rank in (0, 1)] == [(0, 2, 1), (1, 3, 2)]
    assert found.devices_of("reference", apart=True) == ("cuda:1", "cuda:1")
    assert found.devices_of("critic", apart=True) == ("cuda:2", "cuda:2")
    alone = placed("reference: {device: [2]}, critic: {device: cpu}", more=KL_AND_VALUES)
    assert alone.devices_of("reference", apart=False) == ("cuda:2",)
    assert alone.devices_of("critic", apart=False) == ("cpu",)
    assert placed(more=KL_AND_VALUES).devices_of("critic", apart=False) is None
    with pytest.raises(ConfigError, match=r"reference\.device \[2\] are 1 GPUs, and each of .*ranks 2 needs one"):
        placed("learner: {ranks: 2}, reference: {device: [2]}", more=KL_AND_VALUES)
    with pytest.raises(ConfigError, match=r"learner\.lora_rank the reference is the policy without its adapters"):
        placed("reference: {device: cpu}", more=KL_AND_VALUES + "learner: {lora_rank: 2}\n")
    with pytest.raises(ConfigError, match=r"backend 'fsdp2' cuts the critic .* set critic\.backend"):
        config_of("critic: {device: cpu}", more=KL_AND_VALUES + "learner: {backend: fsdp2}\n")


# -- processors --------------------------------------------------------------------------------------------------------


ON_CPUS = "engine: {name: vllm, device: cpu, replicas: 2}\nrollout: {manager: process}\n"


def test_processors_are_dealt_and_counts_take_what_no_list_names() -> None:
    found = placed("rollout: {cpus: 4}, environments: {cpus: [1, 9]}", more=ON_CPUS)
    assert (found.rollout_cpus, found.environment_cpus) == (((0, 2), (3, 8)), (1, 9))
    found = placed("rollout: {cpus: 2}, environments: {cpus: 3}", more=ON_CPUS)
    assert (found.rollout_cpus, found.environment_cpus) == (((0,), (1,)), (2, 3, 8))
    config = config_of("rollout: {cpus: [8, 9]}", more=ON_CPUS)
    assert engine_settings(config).cpus == [[8], [9]]


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        (
            "rollout: {cpus: 3}",
            r"rollout\.cpus 3 are 3, and engine\.replicas 2 share them evenly; give a multiple of 2",
        ),
        ("environments: {cpus: [0, 4]}", r"this machine has no processor 4 for the trainer; choose among 0-3,8-9"),
        ("rollout: {cpus: 4}, environments: {cpus: 3}", r"environments\.cpus 3: .* 6 processors .* of which 4 are giv"),
    ],
)
def test_processors_that_are_not_there_are_refused(placement: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        placed(placement, more=ON_CPUS)


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ("learner: {devices: [0, 0]}", r"placement\.learner\.devices is \[0, 0\]; a list names each number once"),
        ("learner: {devices: 2}", r"placement\.learner\.devices is 2; allowed: a list of numbers of GPUs"),
        ("rollout: {devices: 0}", r"placement\.rollout\.devices is 0; allowed: how many, a list"),
        ("rollout: {cpus: [-1]}", r"placement\.rollout\.cpus is \[-1\]; allowed: how many, a list of numbers of proc"),
        ("reference: {device: cuda}", r"placement\.reference\.device is 'cuda'; allowed: 'cpu', a list of numbers"),
        ("environments: {cpus: 2}", r"rollout\.manager 'thread' has no worker processes"),
    ],
)
def test_values_are_checked_where_they_stand(placement: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(placement)
    with pytest.raises(ConfigError, match=r"on cluster 'ray' Ray chooses the GPUs"):
        config_of("learner: {devices: [0]}", more="cluster: ray\n")


def test_servers_that_sleep_are_there() -> None:
    with pytest.raises(ConfigError, match=r"engine\.colocated \[2\] names servers from 0 to 1"):
        config_of(engine="replicas: 2, colocated: [2]")


# -- configurations of sessions without a learner ----------------------------------------------------------------------


def test_a_teacher_and_an_evaluation_are_not_placed_as_the_run_is() -> None:
    given = "learner: {ranks: 2, devices: [0, 1]}, rollout: {cpus: 2}, environments: {cpus: 2}, critic: {device: cpu}"
    teacher = "warm_start: {teacher: {name: openai, url: 'http://127.0.0.1:1/v1', model: m}}\nadvantage: {name: gae}\n"
    config = config_of(given, more=ON_CPUS + teacher)
    assert place(teacher_config(config), Machine()) == Placement(), "on any machine"
    alone = _without_learner(config)
    assert place(alone, Machine(cpus=(0, 1, 2, 3))).rollout_cpus == ((0,), (1,))
    late = config_of("learner: {ranks: 2}", "replicas: 3", "rollout: {mode: overlap}\n")
    evaluated = place(_without_learner(late), FOUR)
    assert (evaluated.rollout, evaluated.sleepers) == (((0,), (1,), (2,)), ())
