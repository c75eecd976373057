"""No estimator has a setting that it does not read, and none reads what it does not name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from view_builders import EpisodeView, estimated

from roll_envs.errors import ConfigError
from roll_envs.settings import description_and_origin
from trainer.config.algorithm import AdvantageConfig
from trainer.config.load import parse_config
from trainer.config.parts import ESTIMATORS, part_settings

ESTIMATOR_KEYS: dict[str, frozenset[str]] = {
    "bi_level_gae": frozenset({"token_gamma", "lam", "high_gamma", "high_lam"}),
    "dr_grpo": frozenset(),
    "gae": frozenset({"token_gamma", "lam"}),
    "gigpo": frozenset(
        {"gamma", "normalize", "epsilon", "across_steps", "episode_weight", "step_weight", "similarity"}
    ),
    "gpg": frozenset(),
    "grpo": frozenset({"normalize", "epsilon", "across_steps"}),
    "hgpo": frozenset({"gamma", "normalize", "epsilon", "across_steps", "history", "history_power", "base_weight"}),
    "lite_ppo": frozenset({"epsilon"}),
    "maxrl": frozenset({"epsilon"}),
    "opo": frozenset(),
    "pass_at_k": frozenset({"normalize", "epsilon"}),
    "reinforce": frozenset({"gamma"}),
    "reinforce_pp": frozenset({"token_gamma"}),
    "reinforce_pp_baseline": frozenset(),
    "reinforce_token": frozenset({"token_gamma"}),
    "remax": frozenset(),
    "rloo": frozenset(),
    "step_reinforce": frozenset({"gamma", "normalize", "epsilon"}),
}
"""The settings of each built-in estimator; those that all have stand in the section."""

OTHER: dict[str, Any] = {
    "gamma": 0.5, "token_gamma": 0.5, "lam": 0.3, "high_gamma": 0.4, "high_lam": 0.3, "normalize": "mean",
    "across_steps": True, "episode_weight": 0.5, "step_weight": 3.0, "similarity": 0.5, "history": 1,
    "history_power": 2.0, "base_weight": 2.0, "epsilon": 0.3,
}  # fmt: skip
"""For each key that belongs to some estimators another value than its default."""


def episodes(seed: int) -> list[EpisodeView]:
    """Two groups of four episodes of one to four turns in few, partly similar, states."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(8):
        lengths = tuple(int(n) for n in rng.integers(1, 4, size=rng.integers(1, 5)))
        states = tuple(rng.choice(["room one", "room two", "a lake"]) for _ in lengths)
        found.append(
            EpisodeView(
                group=number // 4, rewards=rng.integers(0, 3, len(lengths)).astype(float), lengths=lengths,
                anchors=states, values=rng.normal(size=sum(lengths)), greedy_return=0.5,
            )
        )  # fmt: skip
    return found


@pytest.mark.parametrize("name", ESTIMATORS.built_in())
def test_an_estimator_reads_the_settings_it_declares_and_each_says_what_it_is(name: str) -> None:
    declared = ESTIMATORS.find(name).settings.model_fields
    assert set(declared) == ESTIMATOR_KEYS[name]
    assert OTHER.keys() == set().union(*ESTIMATOR_KEYS.values())
    assert all(all(description_and_origin(field)) for field in declared.values())

    def behaviour(**config: Any) -> list[Any]:
        # HGPO takes the episode's advantage only where it has a weight.
        usual = {"base_weight": 0.5} if "base_weight" in declared else {}
        found = [estimated(name, episodes(seed), **{**usual, **config}) for seed in range(6)]
        return [[f.advantages.tolist(), None if f.returns is None else f.returns.tolist()] for f in found]

    usual = behaviour()
    assert {key for key, value in OTHER.items() if key in declared and behaviour(**{key: value}) != usual} == set(
        declared
    )


@pytest.mark.parametrize("name", ESTIMATORS.built_in())
def test_the_defaults_are_those_of_the_configuration(name: str) -> None:
    part = ESTIMATORS.find(name)
    assert part_settings(AdvantageConfig(name=name), part) == part.settings()


def test_the_command_line_chooses_another_estimator_and_what_the_file_says_for_the_old_one_goes() -> None:
    text = "format: 1\nname: t\nsteps: 1\nenv: {id: roll/FrozenLake-v0}\nadvantage:\n  name: gigpo\n  gamma: 0.9\n"
    config = parse_config(text, ["advantage.name=grpo"])
    assert config.advantage.name == "grpo"
    assert set(config.advantage.model_dump()) - set(AdvantageConfig.model_fields) == ESTIMATOR_KEYS["grpo"]
    with pytest.raises(ConfigError) as caught:
        parse_config(text, ["advantage.name=grpo", "advantage.gamma=0.8"])
    assert str(caught.value) == (
        "override 'advantage.gamma=0.8': advantage.gamma is set, but estimator 'grpo' does not read it; it is read by: "
        "gigpo, hgpo, reinforce, step_reinforce; leave it out"
    )
