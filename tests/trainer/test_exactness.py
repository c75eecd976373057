"""Promises 1, 2 and 8 for every recipe, from recorded episodes to the gradient of the last optimiser step.

The learning rate is 0, so that every step of a training step starts from the same weights.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from loop_runs import values

from roll_envs.types import Group, Outcome, Trajectory
from trainer.algorithms.estimators import make_estimator
from trainer.config import RunConfig
from trainer.config.load import parse_config
from trainer.config.parts import ESTIMATORS
from trainer.config.recipes import PRESETS
from trainer.config.yaml_text import dump_yaml
from trainer.data.batches import balance, denominators_of, make_batches
from trainer.data.table import make_table, sequences_of
from trainer.learner import make_learner
from trainer.model.network import LanguageModel
from trainer.rollout.source import Session, draw_tasks
from trainer.run.update import make_parts, update

Gradients = dict[str, torch.Tensor]


def configured(preset: str, **learner: Any) -> RunConfig:
    settings = values(
        algorithm=preset,
        steps=4,
        output="unused",
        env={"id": "roll/FrozenLake-v0", "kwargs": {"action_format": "word", "max_turns": 3}},
        rollout={"groups_per_step": 3, "group_size": 3, "max_running": 8},
        optimizer={"lr": 0.0, "lr_schedule": "constant", "max_grad_norm": 1e9},
        critic={"lr": 0.0},
        context={"kind": "last", "turns": 1},
    )
    settings["learner"] = {"pack_tokens": 64, "tokens_per_microbatch": 512, **learner}
    return parse_config(dump_yaml(settings))


@pytest.fixture(scope="module")
def played() -> Iterator[tuple[LanguageModel, list[Group]]]:
    """A model that is not the one that sampled (a version behind), and episodes of several turns and rewards."""
    config = configured("reinforce")
    threads = torch.get_num_threads()
    with Session(config) as session:
        groups = session.collect(draw_tasks(config.env, seed=0, indices=range(3)), 3)
        model = session.model
        with torch.no_grad():
            generator = torch.Generator().manual_seed(0)
            for parameter in model.network.parameters():
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
        yield model, [_with_spread(group) for group in groups]
    torch.set_num_threads(threads)


def _with_spread(group: Group) -> Group:
    """Rewards that differ within the group, so that no recipe finds it without information."""
    changed = [
        replace(t, turns=(*t.turns[:-1], replace(t.turns[-1], reward=t.turns[-1].reward + (0.0, 1.0, 0.75)[i])))
        for i, t in enumerate(group.trajectories)
    ]
    return replace(group, trajectories=tuple(changed))


def gradients(model: LanguageModel, config: RunConfig, groups: Sequence[Group]) -> Gradients:
    """Of policy and critic, after one update."""
    own = replace(model, network=copy.deepcopy(model.network))
    learner = make_learner(
        own,
        loss=config.loss,
        optimizer=config.optimizer,
        temperature=config.sampling.temperature,
        correction=config.correction,
    )
    spec = ESTIMATORS.find(config.advantage.name)
    critic: Any = learner.critic(config.critic) if spec.needs_values else None
    if critic is not None:
        with torch.no_grad():
            critic._network["head"].weight.fill_(0.1)
    parts = make_parts(
        config,
        learner,
        critic=critic,
        reference=learner.reference() if config.loss.kl_coef or config.reward.kl_coef else None,
    )
    if parts.reference is not None:
        parts.reference.load_weights((n, 0.9 * w) for n, w in learner.weights())
    greedy = (0.25,) * len(groups) if spec.needs_greedy else ()
    metrics = update(config, parts, groups, step=0, version=1, greedy=greedy)
    assert metrics["learner/sequences"] > 0
    found = {n: p.grad for n, p in own.network.named_parameters() if p.grad is not None}
    if critic is not None:
        found |= {f"critic {n}": p.grad for n, p in critic._network.named_parameters() if p.grad is not None}
    return found


def assert_close(one: Gradients, other: Gradients) -> None:
    assert one.keys() == other.keys()
    scale = max(float(g.abs().max()) for g in one.values())
    assert scale > 1e-6, "nothing was learnt, so that nothing is compared"
    for name, gradient in one.items():
        assert float((gradient - other[name]).abs().max()) < 2e-5 * max(scale, 1.0), name


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_no_recipe_depends_on_how_a_step_is_cut(name: str, played: tuple[LanguageModel, list[Group]]) -> None:
    model, groups = played
    whole = gradients(model, configured(name, pack_tokens=4096, tokens_per_microbatch=65536), groups)
    for cut in ({"pack_tokens": 1, "tokens_per_microbatch": 1}, {"pack_tokens": 90, "tokens_per_microbatch": 200}):
        assert_close(whole, gradients(model, configured(name, **cut), groups))


def _lost(group: Group, kind: Any) -> Trajectory:
    """An episode with a huge reward that ended by a fault of ours."""
    like = group.trajectories[0]
    turns = tuple(replace(turn, reward=1e6) for turn in like.turns)
    return replace(like, member=77, turns=turns, outcome=Outcome(kind=kind, reason="injected"))


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_no_recipe_learns_from_failures(name: str, played: tuple[LanguageModel, list[Group]]) -> None:
    """A fifth of the episodes are failures: the gradient is that of the others alone, to the bit."""
    model, groups = played
    injected = []
    for i, group in enumerate(groups):
        lost = _lost(group, "failed" if i % 2 else "cancelled")
        place = i % (len(group.trajectories) + 1)
        members = (*group.trajectories[:place], lost, *group.trajectories[place:])
        injected.append(replace(group, trajectories=members))
    config = configured(name)
    clean, found = gradients(model, config, groups), gradients(model, config, injected)
    assert clean.keys() == found.keys()
    assert all(torch.equal(clean[n], found[n]) for n in clean)


def _other_words(group: Group) -> Group:
    """What the environment is told to have said in the end, which no turn answered."""
    changed = [
        replace(t, turns=(*t.turns[:-1], replace(t.turns[-1], observation="other words"))) for t in group.trajectories
    ]
    return replace(group, trajectories=tuple(changed))


def _other_records(group: Group) -> Group:
    """The text of answers and all timings: nothing that is learnt from."""
    changed = [
        replace(t, turns=tuple(replace(turn, text="?", timings={"generate_s": 9.0}) for turn in t.turns))
        for t in group.trajectories
    ]
    return replace(group, trajectories=tuple(changed))


@pytest.mark.parametrize("change", [_other_words, _other_records])
@pytest.mark.parametrize("name", ["gigpo", "ppo", "gspo", "reinforce_pp"])
def test_text_after_the_fact_changes_no_bit(
    name: str, change: Callable[[Group], Group], played: tuple[LanguageModel, list[Group]]
) -> None:
    model, groups = played
    config = configured(name)
    clean, found = gradients(model, config, groups), gradients(model, config, [change(g) for g in groups])
    assert all(torch.equal(clean[n], found[n]) for n in clean)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_running_the_same_ids_once_changes_nothing(
    name: str, played: tuple[LanguageModel, list[Group]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Episodes that were played alike have other rewards; policy and critic learn from each of them."""
    model, groups = played
    twins = []
    for group in groups:
        first = group.trajectories[0]
        turns = (*first.turns[:-1], replace(first.turns[-1], reward=first.turns[-1].reward + 2.0))
        twins.append(replace(group, trajectories=(*group.trajectories, replace(first, member=50, turns=turns))))
    merged = gradients(model, configured(name), twins)
    monkeypatch.setattr("trainer.run.update._same", lambda sequences, tokens, among, **_: {i: [i] for i in among})
    assert_close(merged, gradients(model, configured(name), twins))


def test_the_whole_is_the_sum_of_its_ranks(played: tuple[LanguageModel, list[Group]]) -> None:
    """Data parallelism: each rank runs its share of the sequences with the denominators of all."""
    model, groups = played
    config = configured("dapo")
    rows = sequences_of(groups)
    tokens = make_estimator(config.advantage)(make_table(groups, rows))[0].tokens

    def gradient(share: Sequence[int]) -> Gradients:
        own = replace(model, network=copy.deepcopy(model.network))
        learner = make_learner(own, loss=config.loss, optimizer=config.optimizer, temperature=1.0)
        mine, everyone = denominators_of(tokens, share), denominators_of(tokens, range(len(rows)))
        batches = make_batches(rows, tokens, share, pack_tokens=64, tokens_per_microbatch=512)
        denominators = replace(mine, tokens=everyone.tokens, sequences=everyone.sequences)
        learner.step(batches, denominators, lr=0.0)
        return {n: p.grad for n, p in own.network.named_parameters() if p.grad is not None}

    whole = gradient(range(len(rows)))
    for ranks in (2, 3):
        shares = balance([len(row.ids) for row in rows], ranks)
        assert sorted(i for share in shares for i in share) == list(range(len(rows)))
        parts = [gradient(share) for share in shares]
        assert_close(whole, {n: torch.stack([part[n] for part in parts]).sum(0) for n in whole})


def test_recorded_episodes_are_worth_the_trouble(played: tuple[LanguageModel, list[Group]]) -> None:
    _, groups = played
    turns = [len(t.turns) for g in groups for t in g.trajectories]
    assert max(turns) > 1
    assert len(turns) == 9
