"""Estimators of other packages are found by entry point, as a name like any other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from episode_builders import group_of_returns
from plugin_builders import install
from pydantic import ValidationError

from roll_envs.errors import ConfigError, PluginError, UnknownNameError
from trainer.algorithms.estimators import Estimate, make_estimator
from trainer.algorithms.estimators.group_relative import GRPO
from trainer.config import AdvantageConfig
from trainer.config.load import parse_config
from trainer.config.parts import ESTIMATORS
from trainer.data.table import make_table, sequences_of

CODE = """
import numpy as np
from pydantic import Field
from roll_envs.settings import Settings
from trainer.algorithms.estimators import Estimate, Estimator


class SignSettings(Settings):
    factor: float = Field(1.0, gt=0)
    "Size of the advantages."


def plain_signs(table, settings):
    return Estimate(np.sign(table.returns)[table.episode_of_token], {})


def signs(table, settings):
    return Estimate(settings.factor * np.sign(table.returns)[table.episode_of_token], {})


SIGNS = Estimator(estimate=signs, settings=SignSettings, needs_group=True)
NUMBER = 3
"""


@pytest.fixture(autouse=True)
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ESTIMATORS, "_loaded", {})
    monkeypatch.syspath_prepend(str(tmp_path))
    points = ["signs = others_estimators:plain_signs", "signs_of_groups = others_estimators:SIGNS"]
    points += [
        "number = others_estimators:NUMBER",
        "missing = others_estimators:MISSING",
        "grpo = others_estimators:signs",
    ]
    install(tmp_path, "others_estimators", CODE, "\n".join(points), group=ESTIMATORS.group)


def advantages(config: AdvantageConfig, *returns: float) -> np.ndarray:
    step = [group_of_returns(*returns)]
    column = make_estimator(config)(make_table(step, sequences_of(step)))[0].tokens.advantage
    assert column is not None
    return column


def test_an_estimator_of_a_package_is_used_by_its_name_and_settings() -> None:
    assert advantages(AdvantageConfig(name="signs"), 7, -2).tolist() == [1.0, -1.0]
    config = AdvantageConfig(name="signs_of_groups", factor=2.0)
    assert advantages(config, 7, -2).tolist() == [2.0, -2.0]
    with pytest.raises(ValidationError, match="greater than 0"):
        advantages(AdvantageConfig(name="signs_of_groups", factor=-2.0), 7, -2)
    for name in ("signs", "signs_of_groups"):
        assert ESTIMATORS.find(name) is ESTIMATORS.find(name)
        assert ESTIMATORS.find(name).needs_group == (name == "signs_of_groups")


RUN = "format: 1\nname: t\nsteps: 1\nenv: {id: roll/FrozenLake-v0}\n"


def test_its_needs_are_checked_in_the_configuration() -> None:
    text = RUN + "rollout: {group_size: 1}\nadvantage: {name: NAME}\n"
    assert parse_config(text.replace("NAME", "signs")).rollout.group_size == 1
    with pytest.raises((ConfigError, ValidationError), match="'signs_of_groups' compares the episodes of one task"):
        parse_config(text.replace("NAME", "signs_of_groups"))


def test_a_built_in_name_cannot_be_taken() -> None:
    assert ESTIMATORS.find("grpo") is GRPO


def test_names_are_known_without_an_import() -> None:
    assert {"signs", "signs_of_groups", "number", "missing", "grpo", "gae"} <= set(ESTIMATORS.names())
    with pytest.raises(UnknownNameError, match="did you mean 'signs'"):
        ESTIMATORS.find("sings")


def test_what_is_no_estimator_is_told() -> None:
    with pytest.raises(
        PluginError, match=r"'number' of others-estimators .*: it is 3; it must be of .*Estimator, or a function"
    ):
        ESTIMATORS.find("number")
    with pytest.raises(PluginError, match=r"advantage estimator 'missing' .*cannot be loaded: AttributeError"):
        ESTIMATORS.find("missing")


def test_remax_refuses_what_cannot_be_done_to_a_greedy_return() -> None:
    text = (
        "format: 1\nname: t\nsteps: 1\nenv: {id: roll/FrozenLake-v0}\nadvantage: {name: remax}\nreward: {clip: 1.0}\n"
    )
    with pytest.raises((ConfigError, ValidationError), match=r"'remax' compares .* greedy episode, which reward\.clip"):
        parse_config(text)


def test_numbers_of_a_package_are_float64_on_every_id() -> None:
    assert advantages(AdvantageConfig(name="signs"), 1, 1).dtype == np.float64
    ESTIMATORS.register("whole", lambda table, settings: Estimate(np.ones(len(table.episode_of_token), dtype=int), {}))
    try:
        assert advantages(AdvantageConfig(name="whole"), 1, 1).dtype == np.float64
    finally:
        ESTIMATORS.unregister("whole")
