"""Recipes: every key exists, what the file says stays above them, and `explain` says where each setting is from."""

from __future__ import annotations

from pathlib import Path

import pytest
from make_reference import algorithm_reference

from roll_envs.errors import ConfigError
from trainer.cli import main
from trainer.config.keys import built_in_keys
from trainer.config.load import dump_config, load_config, parse_config, parse_resolved
from trainer.config.recipes import PRESETS
from trainer.run.explain import SECTIONS, explain

MINIMAL = "format: 1\nname: tiny\nsteps: 3\nenv:\n  id: roll/FrozenLake-v0\n"


def value_of(text: str, key: str, *overrides: str) -> object:
    found: object = parse_config(text, overrides)
    for part in key.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_recipe_sets_what_it_says_and_what_it_names_is_there(name: str) -> None:
    preset = PRESETS[name]
    assert all(tuple(key.split(".")) in built_in_keys() for key in preset.settings)
    config = parse_config(f"{MINIMAL}algorithm: {name}\n")
    for key, value in preset.settings.items():
        section, last = key.split(".")
        assert getattr(getattr(config, section), last) == value, key
    assert parse_config(dump_config(config)) == config
    assert preset.summary
    assert preset.source


def test_the_file_goes_over_the_recipe_and_the_command_line_over_both() -> None:
    text = f"{MINIMAL}algorithm: dapo\nloss: {{clip_high: 0.3}}\n"
    assert value_of(text, "loss.clip_high") == 0.3
    assert value_of(text, "filter.refill_rounds") == 10
    assert value_of(text, "loss.clip_high", "loss.clip_high=0.5") == 0.5


def test_a_recipe_of_the_command_line_goes_over_the_file_and_under_other_overrides() -> None:
    text = f"{MINIMAL}advantage: {{name: gigpo, gamma: 0.9}}\n"
    assert value_of(text, "advantage.name", "algorithm=dapo") == "grpo"
    with pytest.raises(AttributeError):  # GiGPO's, which DAPO does not read
        value_of(text, "advantage.gamma", "algorithm=dapo")
    assert value_of(text, "advantage.gamma", "algorithm=raft_pp") == 0.9  # whose estimator reads it
    with pytest.raises(ConfigError, match=r"advantage.gamma is set, but estimator 'grpo' does not read it"):
        value_of(text, "advantage.gamma", "algorithm=dapo", "advantage.gamma=0.8")
    assert value_of(text, "advantage.name", "algorithm=dapo", "advantage.name=reinforce") == "reinforce"
    assert value_of(text, "advantage.name", "advantage.name=reinforce", "algorithm=dapo") == "reinforce"


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"run.yaml:6: no algorithm 'dapoo'; did you mean 'dapo'"):
        parse_config(f"{MINIMAL}algorithm: dapoo\n", source="run.yaml")
    with pytest.raises(ConfigError, match="algorithm is 3"):
        parse_config(f"{MINIMAL}algorithm: 3\n")
    with pytest.raises(ConfigError, match="loss is 3; allowed: a section"):
        parse_config(f"{MINIMAL}algorithm: dapo\nloss: 3\n")


def test_explain_says_where_each_setting_is_from() -> None:
    text = f"{MINIMAL}algorithm: dapo\nloss: {{clip_high: 0.3}}\n"
    shown = explain(parse_resolved(text, ["loss.entropy_coef=0.01"], source="run.yaml"))
    rows = {tuple(line.split()[:2]): " ".join(line.split()[2:]) for line in shown.splitlines() if line.startswith("  ")}
    assert rows["clip_high", "0.3"] == "run.yaml:7"
    assert rows["clip_low", "0.2"].startswith("algorithm 'dapo'")
    assert rows["entropy_coef", "0.01"] == "override 'loss.entropy_coef=0.01'"
    assert rows["dual_clip", "null"].startswith("default")
    assert "arXiv:2503.14476" in shown
    assert "(R_i - mean_g) / (std_g + eps)" in shown
    assert ("tau_positive", "1") not in rows, "which DAPO's loss does not read"
    assert "critic: not used (advantage.name 'grpo' needs no critic)" in shown


def test_explain_shows_what_is_different_for_an_entry_of_a_mix() -> None:
    mix = """format: 1
name: mix
steps: 1
curriculum: {by: success}
filter: {zero_variance: true}
envs:
  - {id: roll/FrozenLake-v0}
  - id: roll/Sokoban-v0
    filter:
      zero_variance: false
      top_share: 0.5
"""
    shown = explain(parse_resolved(mix, ["envs.1.filter.top_share=0.25"], source="mix.yaml"))
    tables = {part.partition("\n")[0]: part.split() for part in shown.split("\n\n")}
    words = "filter of Sokoban, otherwise as above: zero_variance false mix.yaml:10 top_share 0.25 override"
    assert " ".join(tables["filter of Sokoban, otherwise as above:"]).startswith(words)
    assert "FrozenLake" not in shown
    assert "zero_variance true mix.yaml:5" in " ".join(tables["filter:"])
    assert "by success mix.yaml:4" in " ".join(tables["curriculum:"])
    assert "curriculum: not used (there is one environment)" in explain(parse_resolved(MINIMAL, source="run.yaml"))


def test_every_default_of_learning_says_where_it_is_from() -> None:
    for path, key in built_in_keys().items():
        if len(path) == 2 and path[0] in SECTIONS:
            assert key.origin, path


def test_explain_is_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(MINIMAL)
    assert main(["explain", str(path), "algorithm=rloo"]) == 0
    assert capsys.readouterr().out.startswith("algorithm rloo: ")
    assert main(["explain", str(path), "advantage.name=grppo"]) == 2
    assert "did you mean 'grpo'" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "configs").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_committed_configuration_can_be_explained(path: Path) -> None:
    load_config(path)
    assert "advantage" in explain(parse_resolved(path.read_text(), source=path.name))


def test_the_reference_is_the_committed_one() -> None:
    path = Path(__file__).parents[2] / "docs" / "algorithms.md"
    how = "python docs/make_reference.py"
    assert path.read_text(encoding="utf-8") == algorithm_reference(), how
