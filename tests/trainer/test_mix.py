"""Mixes of environments: what a file may say, which environment each task is of, and what is told apart by it."""

from __future__ import annotations

import io
import json
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from episode_builders import trajectory, turn
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_runs import assert_same_curve, configured, values
from rich.console import Console

import roll_envs
import trainer.run.preflight
from roll_envs.errors import ConfigError
from roll_envs.types import Group, Outcome, OutcomeKind, Task, Trajectory
from trainer.config import MixedEnvConfig, ModelConfig, RunConfig
from trainer.config.load import dump_config, load_config, parse_config, teacher_config
from trainer.data.table import make_table, sequences_of
from trainer.rollout.mix import Mix
from trainer.rollout.scheduler import GroupSource
from trainer.rollout.source import Ledger, Session, draw_tasks, held_out_tasks
from trainer.run.checkpoint import list_checkpoints, load_checkpoint
from trainer.run.evaluate import evaluate_run
from trainer.run.folder import RunFolder, read_metrics
from trainer.run.loop import resume, train
from trainer.run.plot import read_curve
from trainer.run.preflight import preflight
from trainer.run.report import Report

HEAD = "format: 1\nname: tiny\nsteps: 3\n"
LAKES = "envs:\n  - {id: roll/FrozenLake-v0}\n  - {id: roll/FrozenLake-v0, name: big, kwargs: {size: 8}, weight: 3}\n"


def problems(text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        parse_config(text, overrides, source="run.yaml")
    return str(error.value).splitlines()


def mixed(*envs: dict[str, Any], **changes: Any) -> RunConfig:
    """A configuration that plays ``envs``; those without an id are lakes, told apart by an argument."""
    plain = [{"id": "roll/FrozenLake-v0", "kwargs": {"size": 4 + i}, "name": f"e{i}"} for i in range(len(envs))]
    entries = [{**entry, **env} for entry, env in zip(plain, envs, strict=True)]
    return parse_config(yaml.safe_dump({**values(**changes), "env": None, "envs": entries}))


# -- what a file may say -----------------------------------------------------------------------------------------------


def test_a_mix_is_read_and_written() -> None:
    config = parse_config(HEAD + LAKES)
    first, second = config.environments
    assert (first.short_name, first.weight, first.split, dict(first.kwargs)) == ("FrozenLake", 1.0, "train", {})
    assert (second.short_name, second.weight, dict(second.kwargs)) == ("big", 3.0, {"size": 8})
    assert config.environment_words == "FrozenLake + big"
    written = dump_config(config)
    assert parse_config(written) == config
    assert "- id: roll/FrozenLake-v0\n" in written, "one line for each key"


def test_one_environment_is_a_mix_of_itself() -> None:
    config = parse_config(HEAD + "env: {id: roll/FrozenLake-v0, kwargs: {size: 5}}\n")
    (env,) = config.environments
    assert (env.id, env.kwargs, env.short_name) == ("roll/FrozenLake-v0", {"size": 5}, "FrozenLake")
    assert config.environment_words == "roll/FrozenLake-v0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "run.yaml: the section 'env' is missing; it needs env.id (or write a list 'envs', for a mix)"),
        ("env: {id: a/B-v0}\n" + LAKES, "run.yaml:5: both env and envs are set; keep one"),
        ("envs:\n  - {id: a/B-v0}\n  - {id: c/B-v1}\n", "run.yaml:4: two of envs are called 'B'; give each a 'name'"),
        (
            "envs:\n  - {id: a/B-v0, kwargs: {x: 1}}\n  - {id: a/B-v0, kwargs: {x: 1}, name: again}\n",
            "run.yaml:4: 'again' of envs has the id and the kwargs of another; join their weights",
        ),
        ("envs:\n  - {id: a/B-v0, weight: 0}\n", "run.yaml:4: every weight of envs is 0; at least one"),
        ("envs:\n  - {id: a/B-v0, weight: -1}\n", "run.yaml:5: envs[0].weight is -1; allowed: a number >= 0"),
        (
            "envs:\n  - {id: a/B-v0}\n  - {wieght: 2, id: c/D-v0}\n",
            "run.yaml:6: unknown key 'envs[1].wieght'; did you mean 'envs[1].weight'?",
        ),
        (
            "envs:\n  - id: a/B-v0\n    filter:\n      sucess_low: 0.1\n",
            "run.yaml:7: unknown key 'envs[0].filter.sucess_low'; did you mean 'envs[0].filter.success_low'",
        ),
        ("envs:\n  - {name: x}\n", "run.yaml:5: the key 'envs[0].id' is missing; allowed: text"),
        ("envs:\n  - 3\n", "run.yaml:5: envs[0] is 3; allowed: a section (keys and values)"),
        ("envs: {id: a/B-v0}\n", "run.yaml:4: envs is {'id': 'a/B-v0'}; allowed: a list of sections"),
        ("envs:\n  - {id: a/B-v0, split: test}\n", "run.yaml:5: envs[].split is 'test', which evaluation plays"),
        (
            "envs:\n  - {id: a/B-v0, observation_template: Go}\n",
            "run.yaml:5: envs[].observation_template is 'Go'; it must",
        ),
        (
            LAKES.replace("weight: 3", "max_new_tokens: 2000"),
            "run.yaml: envs[1].max_new_tokens 2000 leaves no room for a prompt in engine.max_tokens 1024",
        ),
        (
            LAKES.replace("weight: 3", "filter: {success_low: 0.7}") + "filter: {success_high: 0.5}\n",
            "run.yaml: envs[1] with its filter: filter.success_low 0.7 is above filter.success_high 0.5",
        ),
        (
            "env: {id: a/B-v0}\ncurriculum: {by: success}\n",
            "run.yaml: curriculum.by is 'success', but there is one environment; list several in envs",
        ),
    ],
)
def test_mistakes_are_told_with_their_place(text: str, expected: str) -> None:
    (found,) = problems(HEAD + text)
    assert found.startswith(expected)


def test_overrides_reach_the_entries_of_a_list() -> None:
    config = parse_config(HEAD + LAKES, ["envs.1.weight=2", "envs.0.kwargs.size=5", "envs.0.filter.top_share=0.5"])
    first, second = config.envs
    assert (second.weight, first.kwargs, first.filter.top_share) == (2.0, {"size": 5}, 0.5)
    allowed = "the numbers of its entries are 0 to 1"
    assert problems(HEAD + LAKES, "envs.2.weight=1", "envs.first.weight=1") == [
        f"override 'envs.2.weight=1': 'envs' is a list, which has no '2'; {allowed}",
        f"override 'envs.first.weight=1': 'envs' is a list, which has no 'first'; {allowed}",
    ]
    assert problems(HEAD + LAKES, "envs.1.name.x=1")[0].startswith(
        "override 'envs.1.name.x=1': 'envs[1].name' is 'big'"
    )
    assert problems(HEAD + LAKES, "envs.1.weight=-2") == [
        "override 'envs.1.weight=-2': envs[1].weight is -2; allowed: a number >= 0"
    ]


def test_a_filter_of_one_environment_changes_only_what_it_names() -> None:
    config = mixed({"filter": {"zero_variance": False, "success_high": 0.9}}, {}, filter={"zero_variance": True})
    first, second = (config.filter_of(env) for env in config.environments)
    assert (first.zero_variance, first.success_high, second.zero_variance, second.success_high) == (False, 0.9, True, 1)


def test_a_teacher_is_told_the_rules_of_every_environment() -> None:
    config = mixed(
        {"system_prompt": ""},
        {"observation_template": "{observation}!", "max_new_tokens": 2},
        warm_start={"teacher": {"url": "http://127.0.0.1:9/v1", "model": "m"}},
    )
    first, second = teacher_config(config).envs
    assert (first.system_prompt, second.observation_template, second.max_new_tokens) == (None, None, 2)


# -- which environment a task is of ------------------------------------------------------------------------------------


def names(mix: Mix, indices: Sequence[int]) -> list[str]:
    return [mix.draw(index).short_name for index in indices]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any), st.integers(0, 2**32 - 1), st.integers(0, 10**9)
)
def test_shares_are_close_to_the_weights_over_any_stretch(weights: list[int], seed: int, first: int) -> None:
    mix = Mix(mixed(*({"name": f"e{i}", "weight": float(w)} for i, w in enumerate(weights)), seed=seed))
    drawn = names(mix, range(first, first + 64))
    for length in (8, 16, 64):
        counts = Counter(drawn[:length])
        for i, weight in enumerate(weights):
            assert abs(counts[f"e{i}"] - length * weight / sum(weights)) < 3
            assert weight or not counts[f"e{i}"]


def test_the_environment_of_a_task_follows_from_seed_index_and_weights_alone() -> None:
    envs = [{"name": "a"}, {"name": "b", "weight": 2.0}]
    # Written out, so that another release or host draws the same.
    assert "".join(names(Mix(mixed(*envs, seed=3)), range(24))) == "babbbbabbababbabbababbab"
    one, other = Mix(mixed(*envs, seed=3)), Mix(mixed(*envs, seed=3))
    backwards = [other.draw(i).short_name for i in reversed(range(24))]
    assert names(one, range(24)) == backwards[::-1] == [one.configured(i).short_name for i in range(24)]
    assert names(Mix(mixed(*envs, seed=4)), range(24)) != backwards[::-1]


def test_one_environment_has_the_tasks_that_it_always_had(tmp_path: Path) -> None:
    config = configured(tmp_path)
    with Session(config) as session:
        assert session.training_tasks(range(5, 9)) == draw_tasks(config.env, seed=config.seed, indices=range(5, 9))
        shown = session.demonstration_tasks(range(4))
        assert shown == draw_tasks(config.env, seed=config.seed, indices=range(4), split="demonstrations")
        assert session.evaluation_tasks() == held_out_tasks(config.env, config.evaluation.tasks)


def test_tasks_of_a_mix_are_those_of_its_environments(tmp_path: Path) -> None:
    config = mixed({"split": "hard"}, {"evaluation_tasks": 2}, {"weight": 0.0}, evaluation={"tasks": 3})
    e0, e1, e2 = config.environments
    with Session(config) as session:
        drawn = session.training_tasks(range(40))
        assert [t.index for t in drawn] == list(range(40))
        assert {t.split for t in drawn if t.kwargs == e0.kwargs} == {"hard"}
        assert {t.split for t in drawn if t.kwargs == e1.kwargs} == {"train"}
        assert e2.kwargs not in [t.kwargs for t in drawn], "an environment of weight 0 is evaluated only"
        (alone,) = draw_tasks(e1, seed=config.seed, indices=[(t := drawn[-1]).index], split=t.split)
        assert t.seed == alone.seed
        held_out = session.evaluation_tasks()
        assert [(t.index, t.kwargs["size"]) for t in held_out] == [
            (0, 4),
            (0, 5),
            (0, 6),
            (1, 4),
            (1, 5),
            (1, 6),
            (2, 4),
            (2, 6),
        ]
        assert [t for t in held_out if t.kwargs == e1.kwargs] == held_out_tasks(e1, 2)
        assert len(held_out) == config.evaluation_episodes
        assert len(session.evaluation_tasks(1)) == 3
        assert {t.kwargs["size"] for t in session.demonstration_tasks(range(20))} == {4, 5}


def test_held_out_tasks_of_a_list_are_each_played_once(tmp_path: Path) -> None:
    """Else an interval would count the same row several times."""
    rows = [{"question": f"{n}?", "answer": n} for n in range(8)]

    def session(id: str, **kwargs: Any) -> Session:
        return Session(configured(tmp_path, env={"id": id, "kwargs": kwargs}, evaluation={"tasks": 16}))

    data: dict[str, Any] = {"rows": rows, "verifier": "exact", "split_shares": [0.5, 0, 0.5]}
    env = roll_envs.make("roll/Dataset-v0", **data)
    held_out = {n for n in range(8) if env.reset(options={"row": n})[1]["split"] == "test"}
    assert 1 < len(held_out) < 8
    tools = {"env": "roll/Dataset-v0", "env_kwargs": data}
    for opened in (session("roll/Dataset-v0", **data), session("roll/ToolEnv-v0", **tools)):
        with opened:
            seeds = [task.seed for task in opened.evaluation_tasks()]
            played = [env.reset(seed=seed, options={"split": "test"})[1]["row"] for seed in seeds]
            assert (len(played), set(played)) == (len(held_out), held_out)
            assert len(opened.evaluation_tasks(1)) == 1
    none_held_out = {**data, "split_shares": [1, 0, 0]}
    with (
        session("roll/Dataset-v0", **none_held_out) as opened,
        pytest.raises(ConfigError, match="no row is of the split 'test'"),
    ):
        opened.evaluation_tasks()


# -- the curriculum ----------------------------------------------------------------------------------------------------


def group(task: Task, *successes: bool | None, returns: Sequence[float] = ()) -> Group:
    """One-turn episodes of ``task``, where None has failed."""

    def episode(member: int, success: bool | None) -> Trajectory:
        reward = returns[member] if returns else float(bool(success))
        played = trajectory(turn(reward=reward, info={"success": bool(success)}), member=member)
        kind: OutcomeKind = "failed" if success is None else "completed"
        return replace(played, task=task, outcome=Outcome(kind=kind))

    return Group(task=task, trajectories=tuple(episode(i, s) for i, s in enumerate(successes)))


def task_of(env: MixedEnvConfig, index: int = 0) -> Task:
    return draw_tasks(env, seed=0, indices=[index])[0]


def test_a_curriculum_worked_by_hand() -> None:
    config = mixed({}, {"weight": 2.0}, {}, curriculum={"by": "success", "memory": 2, "floor": 0.2})
    mix, (e0, e1, e2) = Mix(config), config.environments
    assert mix.weights() == {"e0": 1.0, "e1": 2.0, "e2": 1.0}
    # 0.5 -> 0.75 -> 0.875 of successes, but for an episode that failed; and 0.5 -> 0.25.
    mix.settle([group(task_of(e0, 1), True, None, True), group(task_of(e1, 2), False, False)])
    assert mix.weights() == pytest.approx({"e0": 0.75, "e1": 1.5, "e2": 1.0})
    mix.settle([group(task_of(e0, 3), True), group(task_of(e2, 4), None, None)])
    assert mix.weights() == pytest.approx({"e0": 0.4375, "e1": 1.5, "e2": 1.0})
    mix.settle([group(task_of(e0, i), True) for i in range(5, 15)])
    assert mix.weights()["e0"] == 0.2, "the floor"
    metrics = mix.metrics([])
    assert metrics["env/e0/weight"] == pytest.approx(0.2 / 2.7)
    plain = Mix(mixed({}, {"weight": 2.0}))
    plain.settle([group(task_of(plain.environments[0]), True)])
    assert plain.weights() == {"e0": 1.0, "e1": 2.0}, "without a curriculum weights stay"
    assert "env/e0/weight" not in plain.metrics([])


def test_tasks_in_flight_keep_their_environment_through_a_kill() -> None:
    config = mixed({}, {}, curriculum={"by": "success", "memory": 1, "floor": 0.01})
    mix = Mix(config)
    e0, _ = config.environments
    before = names(mix, range(20))
    lost = [i for i, name in enumerate(before) if name == "e0"]
    # All of e0 is solved, so that it would hardly be drawn again; its other tasks are still in flight.
    mix.settle([group(task_of(e0, lost[0]), True)])
    again = Mix(config)
    again.load(json.loads(json.dumps(mix.save())))
    kept = [i for i in range(20) if i != lost[0]]
    assert names(again, kept) == [before[i] for i in kept]
    fresh = names(again, range(20, 60))
    assert fresh == names(mix, range(20, 60))
    assert Counter(fresh)["e0"] <= 3
    assert [again.configured(i).short_name for i in range(20)] == before, "demonstrations follow no curriculum"
    mix.settle([group(task_of(e0, i), True) for i in range(60)])
    assert mix.save()["drawn"] == {}


def test_a_checkpoint_of_other_environments_is_no_obstacle() -> None:
    mix = Mix(mixed({"name": "new"}, {"name": "kept"}, curriculum={"by": "success"}))
    mix.load({"success": {"kept": 1.0, "gone": 0.0}, "drawn": {"7": "gone"}})
    assert mix.weights() == {"new": 1.0, "kept": pytest.approx(0.1)}
    assert mix.draw(7).short_name in ("new", "kept")
    mix.load({})  # of an earlier release


# -- filters, numbers, settings of each --------------------------------------------------------------------------------


def test_groups_pass_the_filter_of_their_environment_and_a_step_is_filled_up() -> None:
    """Every task of odd index has equal returns, which the filter of e0 refuses and that of e1 takes."""
    config = mixed(
        {},
        {"filter": {"zero_variance": False}},
        filter={"zero_variance": True, "refill_rounds": 9},
        rollout={"groups_per_step": 8},
    )
    mix = Mix(config)

    class Played:
        def __init__(self) -> None:
            self.config, self.mix = config, mix
            self.asked: list[int] = []

        def training_tasks(self, indices: Sequence[int]) -> list[Task]:
            return [task_of(mix.draw(index), index) for index in indices]

        def start(self, tasks: Sequence[Task], group_size: int, into: Any = None) -> list[Group]:
            self.asked.append(len(tasks))
            return [group(task, True, task.index % 2 == 1) for task in reversed(tasks)]

    session, ledger = Played(), Ledger()
    found = GroupSource(cast(Any, session), ledger, lambda: None).next_step(0)
    assert len(found.kept) == config.rollout.groups_per_step
    assert session.asked == [8, *session.asked[1:]], "refills ask for what is missing"
    expected = [g for g in found.played if g.task.index % 2 == 0 or mix.environment_of(g.task).short_name == "e1"]
    assert list(found.kept) == expected
    dropped = len(found.played) - len(found.kept)
    assert dropped == sum(session.asked[1:])
    assert dropped
    assert any(g.task.index % 2 == 1 for g in found.kept)
    assert found.metrics == {
        "filter/groups": float(len(found.played)),
        "filter/zero_variance": float(dropped),
        "filter/kept": 8.0,
        "filter/rounds": float(len(session.asked)),
    }


def test_numbers_of_each_environment() -> None:
    mix = Mix(mixed({}, {}, {}))
    e0, e1, _ = mix.environments
    played = [
        group(task_of(e0, 0), True, False, None, None),
        group(task_of(e1, 1), True, returns=(5.0,)),
        group(task_of(e0, 2), True, True),
        group(task_of(e0, 3), None),
    ]
    assert mix.metrics(played) == {
        "env/e0/success_rate": 0.75,
        "env/e0/return_mean": 0.75,
        "env/e0/turns_mean": 1.0,
        "env/e0/share": 0.75,
        "env/e0/failed_share": 3 / 7,
        "env/e1/success_rate": 1.0,
        "env/e1/return_mean": 5.0,
        "env/e1/turns_mean": 1.0,
        "env/e1/share": 0.25,
        "env/e1/failed_share": 0.0,
        "env/e2/share": 0.0,
    }
    assert Mix(parse_config(HEAD + "env: {id: roll/FrozenLake-v0}\n")).metrics(played) == {}


def test_levels_of_one_id_are_environments_of_their_own_in_statistics() -> None:
    e0, e1 = mixed({}, {}).environments
    played = [group(task_of(env, i), True) for i, env in enumerate((e0, e1, e0))]
    first, second, third = make_table(played, sequences_of(played)).episodes.env
    assert first == third != second


SUMS = [{"question": f"{n} + 4?", "answer": str(n + 4)} for n in [*range(10), *[4] * 10]]


def test_a_lake_and_a_verified_data_set_are_played_side_by_side_each_by_its_settings() -> None:
    """Domain-routed learning from verifiable rewards: each domain is an environment with its verifier."""
    config = mixed(
        {"name": "lake", "kwargs": {"action_format": "word", "max_turns": 1}},
        {
            "name": "sums",
            "id": "roll/Dataset-v0",
            "kwargs": {"rows": SUMS, "verifier": "math"},
            "system_prompt": "Add.",
            "observation_template": "Q: {observation}",
            "max_new_tokens": 20,
        },
        engine={"name": "scripted", "answers": ["Up", "The answer is 8."], "max_tokens": 256},
        rollout={"group_size": 4},
    )
    with Session(config) as session:
        groups = session.collect(session.training_tasks(range(12)), 4)
        lake, sums = session.mix.by_environment(groups).values()
        assert min(len(lake), len(sums)) > 3
        tokenizer = session.model.tokenizer
        for name, mine in (("lake", lake), ("sums", sums)):
            for episode in (episode for each in mine for episode in each.trajectories):
                assert episode.scored, episode.outcome
                prompt = tokenizer.decode(episode.turns[0].prompt_ids)
                assert prompt.startswith("<|system|>Add.<|end|><|user|>Q: ") == (name == "sums")
                assert ("<|system|>" in prompt) == (name == "sums")
                assert len(episode.turns[0].completion.ids) <= (20 if name == "sums" else 3)
        said = {(t.turns[0].prompt_observation, t.turns[0].text): t.success for g in sums for t in g.trajectories}
        assert any(said.values())
        assert all(
            success == (seen == "4 + 4?" and text == "The answer is 8.") for (seen, text), success in said.items()
        )
        (greedy,) = session.collect_greedy([sums[0].task])
        assert tokenizer.decode(greedy.turns[0].prompt_ids).startswith("<|system|>Add.")
        assert len(tokenizer("Left", add_special_tokens=False)["input_ids"]) == 1, "answers of every environment"


# -- whole runs --------------------------------------------------------------------------------------------------------

SHORT = (
    "steps=3 model.layers=1 model.hidden_size=16 model.heads=2 warm_start.steps=1 warm_start.episodes_per_step=4 "
    "rollout.groups_per_step=6 rollout.group_size=2 evaluation.tasks=3 evaluation.every=1 envs.2.evaluation_tasks=4 "
    "checkpoint.every=1 checkpoint.keep=9 curriculum.memory=3 envs.0.kwargs.max_turns=2 envs.1.kwargs.max_turns=2 "
    "envs.2.kwargs.max_turns=2"
).split()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The committed mix, made small; its folder and summary."""
    output = tmp_path_factory.mktemp("mix")
    config = load_config(Path(__file__).parents[2] / "configs" / "mix_tiny.yaml", [*SHORT, f"output={output}"])
    with RunFolder.create(preflight(config).config) as folder:
        return folder.path, train(config, folder, Report.silent())


def test_a_run_of_the_committed_mix_tells_its_environments_apart(whole: tuple[Path, dict[str, Any]]) -> None:
    path, summary = whole
    assert summary["env"] == "lake + slippery + sokoban"
    for phase in summary["phases"]:
        parts = {part["name"]: part for part in phase["environments"]}
        assert {name: part["tasks"] for name, part in parts.items()} == {"lake": 3, "slippery": 3, "sokoban": 4}
        assert phase["tasks"] == 10
        assert {part["step"] for part in parts.values()} == {phase["step"]}
        total = sum(part["mean_return"] * part["tasks"] for part in parts.values())
        assert phase["mean_return"] == pytest.approx(total / 10)
    for record in read_metrics(path, "train"):
        assert sum(record[f"env/{name}/share"] for name in ("lake", "slippery", "sokoban")) == pytest.approx(1.0)
        rates = [record[f"env/{name}/return_mean"] * record[f"env/{name}/share"] for name in parts]
        assert record["rollout/return_mean"] == pytest.approx(sum(rates))
        assert record["filter/groups"] == 6
    for record in read_metrics(path, "evaluation"):
        assert record["env/sokoban/tasks"] == 4
        assert "env/sokoban/seconds" not in record
    weights = [record["env/lake/weight"] for record in read_metrics(path, "train")]
    assert weights[0] == pytest.approx(1 / 4)
    assert weights[-1] > 0.3, "the curriculum follows what was played"
    assert read_curve(path).evaluation[0].environments[2].tasks == 4


def test_a_mix_with_a_curriculum_resumes_exactly(whole: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    path, _ = whole
    copy = tmp_path / path.name
    shutil.copytree(path, copy)
    with RunFolder.open(copy) as folder:
        resume(folder, Report.silent(), checkpoint=list_checkpoints(copy / "checkpoints")[-2])
    assert_same_curve(path, copy)
    left, right = (load_checkpoint(each).progress["mix"] for each in (path, copy))
    assert left == right
    assert left["drawn"] == {}
    assert set(left["success"].values()) != {0.5}


def test_a_run_of_a_mix_is_evaluated_and_shown(whole: tuple[Path, dict[str, Any]]) -> None:
    path, summary = whole
    found = evaluate_run(path)
    last = summary["phases"][-1]["environments"]
    assert [(e.name, e.success, e.turns) for e in found.environments] == [
        (e["name"], e["success"], e["turns"]) for e in last
    ]
    fewer = evaluate_run(path, tasks=1)
    assert [e.tasks for e in fewer.environments] == [1, 1, 1]
    alone = evaluate_run(path, tasks=2, env_id="roll/SimpleSokoban-v0")
    assert (alone.tasks, alone.environments) == (2, ())
    text = io.StringIO()
    shown = Report(Console(file=text, width=100))
    shown.print_evaluation_table([fewer])
    rows = [line.split()[0] for line in text.getvalue().splitlines() if line.startswith("   ") and line.strip()]
    assert rows == ["lake", "slippery", "sokoban"]
    with RunFolder.open(path) as folder:
        shown.print_plan(folder.config)
    assert "slippery, 25%: roll/FrozenLake-v0 (action_format='word'" in text.getvalue()
    assert "10 held-out tasks" in text.getvalue()


def test_the_model_that_is_planned_knows_the_words_of_every_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    config = mixed({}, {"id": "roll/SimpleSokoban-v0", "kwargs": {"symbols": "abcdefg"}})
    planned: list[int] = []
    original = trainer.run.preflight.small_config

    def watched(model: ModelConfig, tokenizer: Any) -> Any:
        planned.append(len(tokenizer))
        return original(model, tokenizer)

    monkeypatch.setattr(trainer.run.preflight, "small_config", watched)
    preflight(config)
    with Session(config) as session:
        assert planned == [len(session.model.tokenizer)]
