"""The settings of parts in a configuration: declared beside a part's code, read from its section, strict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import Field, ValidationError

from roll_envs.errors import ConfigError
from roll_envs.settings import Part, Settings
from trainer.config import AdvantageConfig, EnvConfig, LearnerConfig, RunConfig
from trainer.config.keys import part_keys, section_keys
from trainer.config.load import dump_config, parse_config, resolve
from trainer.config.parts import BACKENDS, ENGINES, PART_SECTIONS, part_settings, readers
from trainer.config.yaml_text import read_yaml

MINIMAL = "format: 1\nname: t\nsteps: 1\nenv: {id: roll/FrozenLake-v0}\n"


class TunedSettings(Settings):
    """Of a made-up engine and backend."""

    depth: int = Field(2, ge=1)
    """How deep. Default: a book."""
    pair: tuple[float, float] = (0.5, 1.0)
    """Two numbers."""
    mode: str | None = None
    """A mode."""


@dataclass(frozen=True, kw_only=True)
class Tuned(Part):
    """A part that asks something of another section."""

    def problems(self, config: Any) -> list[str]:
        return ["the made-up part needs steps of 5 or less"] if config.steps > 5 else []


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    for registry in (ENGINES, BACKENDS):
        registry.register("tuned", Tuned(settings=TunedSettings))
    yield
    for registry in (ENGINES, BACKENDS):
        registry.unregister("tuned")


def problems(text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(MINIMAL + text, overrides, source="run.yaml")
    return str(caught.value).splitlines()


def test_a_parts_settings_stand_in_its_section_with_their_defaults() -> None:
    config = parse_config(MINIMAL + "learner: {backend: tuned, depth: 3, epochs: 2}\n")
    settings = part_settings(config.learner, BACKENDS.find(config.learner.backend))
    assert settings == TunedSettings(depth=3)
    assert config.learner.epochs == 2
    saved = read_yaml(dump_config(config)).data["learner"]
    assert (saved["depth"], saved["pair"], saved["mode"]) == (3, [0.5, 1.0], None)
    assert parse_config(dump_config(config)) == config


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("engine: {name: tuned, depth: 0}\n", "run.yaml:5: engine.depth is 0; allowed: an integer >= 1"),
        ("engine: {name: tuned, depth: 2.5}\n", "run.yaml:5: engine.depth is 2.5; allowed: an integer >= 1"),
        ("engine: {name: tuned, pair: [1]}\n", "run.yaml:5: engine.pair[1]"),
        ("engine:\n  name: tuned\n  dept: 3\n", "run.yaml:7: unknown key 'engine.dept'; did you mean 'engine.depth'?"),
        ("engine:\n  name: tuned\n  top_p: 3\n", "run.yaml:7: unknown key 'engine.top_p'; it cuts ids off"),
        ("engine: {name: tunedd, depth: 3}\n", "run.yaml:5: no engine 'tunedd'; did you mean 'tuned'?"),
        (
            "engine: {name: 3, depth: 3}\n",
            'run.yaml:5: engine.name is 3; allowed: text; in quotes it is text: "3" (in a shell \'"3"\')',
        ),
    ],
)
def test_settings_are_as_strict_as_other_keys(text: str, expected: str) -> None:
    found = problems(text)
    assert found[0].startswith(expected), found
    assert len(found) == 1


def test_what_a_part_asks_of_other_sections_is_checked_at_load() -> None:
    assert problems("learner: {backend: tuned}\n", "steps=6") == [
        "run.yaml:5: the made-up part needs steps of 5 or less"
    ]


@pytest.mark.parametrize("section", sorted(PART_SECTIONS))
def test_a_key_that_the_part_does_not_read_names_those_that_do(section: str) -> None:
    kind = PART_SECTIONS[section]
    tables = {name: set(kind.registry.find(name).settings.model_fields) for name in kind.registry.built_in()}
    for name, own in tables.items():
        for key in sorted(set().union(*tables.values()) - own):
            told = problems(f"{section}:\n  {kind.key}: {name}\n  {key}: null\n")
            (found,) = [problem for problem in told if "is missing" not in problem]  # keys that a part must be given
            names = ", ".join(sorted(other for other, keys in tables.items() if key in keys))
            assert found == (
                f"run.yaml:7: {section}.{key} is set, but {kind.noun} '{name}' does not read it; it is read by: "
                f"{names}; leave it out"
            )
            assert readers(section, key) == names.split(", ")


@pytest.mark.parametrize("section", sorted(PART_SECTIONS))
def test_every_setting_of_a_built_in_part_has_a_description_and_is_no_key_of_its_section(section: str) -> None:
    kind = PART_SECTIONS[section]
    common = {path[1] for path in section_keys() if path[0] == section and len(path) == 2}
    for name in kind.registry.built_in():
        for path, key in part_keys(section, kind.registry.find(name)).items():
            assert key.description, (name, path)
            assert path[-1] not in common, (name, path)


def made(**sections: Any) -> RunConfig:
    return RunConfig(format=1, name="t", steps=1, env=EnvConfig(id="roll/FrozenLake-v0"), **sections)


def test_a_configuration_made_in_code_is_checked_and_filled_too() -> None:
    config = resolve(made(learner=LearnerConfig(backend="tuned", pair=(1, 2))))
    assert part_settings(config.learner, BACKENDS.find("tuned")).pair == (1.0, 2.0)
    with pytest.raises(ConfigError, match=r"configuration: unknown key 'learner.dept'"):
        resolve(made(learner=LearnerConfig(backend="tuned", dept=3)))
    with pytest.raises(ValidationError, match="depth"):
        part_settings(LearnerConfig(backend="tuned", depth="deep"), BACKENDS.find("tuned"))


def test_overrides_of_a_configuration_made_in_code() -> None:
    config = resolve(made(advantage=AdvantageConfig(name="gigpo", gamma=0.9)), {"steps": 3, "optimizer": {"lr": 0.5}})
    assert (config.steps, config.optimizer.lr, config.advantage.gamma) == (3, 0.5, 0.9)
    other = resolve(config, {"advantage": {"name": "rloo"}})
    assert other.advantage.name == "rloo"
    assert not hasattr(other.advantage, "gamma")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "correction: {row_delta: 0.1}\n",
            "unknown key 'correction.row_delta'; it is called correction.sequence_delta",
        ),
        ("advantage: {kwargs: {a: 1}}\n", "unknown key 'advantage.kwargs.a'; an estimator declares its settings"),
        ("loss: {ratio: row}\n", "loss.ratio is 'row'; allowed: one of 'token', 'turn-mean', 'sequence-mean', 'seque"),
        ("correction: {name: tis, level: geometric}\n", "'geometric' is called 'sequence-mean' now"),
    ],
)
def test_old_keys_and_values_name_the_new_ones(text: str, expected: str) -> None:
    assert expected in problems(text)[0]
