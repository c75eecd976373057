"""Estimators of other packages are found by entry point, as a name like any other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from episode_builders import group_of_returns
from plugin_builders import install
from pydantic import ValidationError
from trainer.algorithms.advantages import estimate, view_episodes

from roll_envs.errors import ConfigError, PluginError, UnknownNameError
from trainer.algorithms.estimators import ESTIMATORS, GROUP, estimator_names, find_estimator, grpo
from trainer.config import AdvantageConfig
from trainer.config.load import parse_config
from trainer.data.sequences import rows_of

CODE = """
import numpy as np
from trainer.algorithms.estimators import Estimate, EstimatorSpec, on_every_token


def signs(episodes, config):
    factor = config.kwargs.get("factor", 1.0)
    return Estimate(on_every_token([factor * np.sign(e.full_return) for e in episodes], episodes), {})


SIGNS = EstimatorSpec(estimate=signs, needs_group=True)
NUMBER = 3
"""


@pytest.fixture(autouse=True)
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.algorithms.estimators.ESTIMATORS", dict(ESTIMATORS))
    monkeypatch.syspath_prepend(str(tmp_path))
    points = ["signs = others_estimators:signs", "signs_of_groups = others_estimators:SIGNS"]
    points += [
        "number = others_estimators:NUMBER",
        "missing = others_estimators:MISSING",
        "grpo = others_estimators:signs",
    ]
    install(tmp_path, "others_estimators", CODE, "\n".join(points), group=GROUP)


@pytest.mark.parametrize("name", ["signs", "signs_of_groups"])
def test_an_estimator_of_a_package_is_used_by_its_name_and_settings(name: str) -> None:
    step = [group_of_returns(7, -2)]
    rows = rows_of(step)
    config = AdvantageConfig(name=name, kwargs={"factor": 2.0})
    found = estimate(config, view_episodes(step, rows), rows)
    assert [a.tolist() for a in found.per_row] == [[0.0, 2.0], [0.0, -2.0]]
    assert find_estimator(name) is find_estimator(name)
    assert find_estimator(name).needs_group == (name == "signs_of_groups")


RUN = "format: 1\nname: t\nsteps: 1\nenv: {id: roll/FrozenLake-v0}\n"


def test_its_needs_are_checked_in_the_configuration() -> None:
    text = RUN + "rollout: {group_size: 1}\nadvantage: {name: NAME}\n"
    assert parse_config(text.replace("NAME", "signs")).rollout.group_size == 1
    with pytest.raises((ConfigError, ValidationError), match="'signs_of_groups' compares the episodes of one task"):
        parse_config(text.replace("NAME", "signs_of_groups"))


def test_a_built_in_name_cannot_be_taken() -> None:
    assert find_estimator("grpo").estimate is grpo


def test_names_are_known_without_an_import() -> None:
    assert {"signs", "signs_of_groups", "number", "missing", "grpo", "gae"} <= set(estimator_names())
    with pytest.raises(UnknownNameError, match="did you mean 'signs'"):
        find_estimator("sings")


def test_what_is_no_estimator_is_told() -> None:
    with pytest.raises(PluginError, match=r"'number' of an installed package is 3; allowed: an EstimatorSpec"):
        find_estimator("number")
    with pytest.raises(PluginError, match=r"advantage estimator 'missing' .*cannot be loaded: AttributeError"):
        find_estimator("missing")


def test_remax_refuses_what_cannot_be_done_to_a_greedy_return() -> None:
    text = (
        "format: 1\nname: t\nsteps: 1\nenv: {id: roll/FrozenLake-v0}\nadvantage: {name: remax}\nreward: {clip: 1.0}\n"
    )
    with pytest.raises((ConfigError, ValidationError), match=r"'remax' compares .* greedy episode, which reward\.clip"):
        parse_config(text)


def test_numbers_of_a_package_are_float64_on_every_id() -> None:
    step = [group_of_returns(1, 1)]
    rows = rows_of(step)
    found = estimate(AdvantageConfig(name="signs"), view_episodes(step, rows), rows)
    assert all(a.dtype == np.float64 for a in found.per_row)
