"""Reading configurations: what is accepted, and that every mistake is named with its place and the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_reference import config_reference
from pydantic import ValidationError

from roll_envs.errors import ConfigError
from trainer.config import EnvConfig, ModelConfig, OptimizerConfig, RunConfig
from trainer.config.keys import built_in_keys, nearest_keys, section_keys
from trainer.config.load import dump_config, load_config, parse_config, resolve
from trainer.config.yaml_text import dump_yaml, read_yaml

ROOT = Path(__file__).parents[2]
MINIMAL = "format: 1\nname: tiny\nsteps: 3\nenv:\n  id: roll/FrozenLake-v0\n"


def problems(text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, overrides, source="run.yaml")
    return str(caught.value).splitlines()


def test_a_minimal_file_gets_the_defaults() -> None:
    config = parse_config(MINIMAL)
    made = RunConfig(format=1, name="tiny", steps=3, env=EnvConfig(id="roll/FrozenLake-v0"))
    assert config == resolve(made)
    assert config.model_copy(update={"steps": 4}) != resolve(made)


@pytest.mark.parametrize(
    ("written", "value"),
    [("1e-3", 1e-3), ("1E5", 1e5), ("-1e-3", None), ("2", 2.0), (".5", 0.5), ("1_0.5", 10.5), ("'1e-3'", None)],
)
def test_numbers_as_people_write_them(written: str, value: float | None) -> None:
    text = MINIMAL + f"optimizer:\n  lr: {written}\n"
    if value is None:
        assert problems(text)[0].startswith("run.yaml:7: optimizer.lr is ")
    else:
        lr = parse_config(text).optimizer.lr
        assert lr == value
        assert type(lr) is float


def test_yaml_lists_fill_tuples() -> None:
    assert parse_config(MINIMAL + "optimizer: {betas: [0, 0.5]}\n").optimizer.betas == (0.0, 0.5)


@pytest.mark.parametrize(
    ("written", "value"),
    [("010", "010"), ("12:30", "12:30"), ("2024-01-02", "2024-01-02"), ("no", False), ("0x10", 16), ("7", 7)],
)
def test_surprises_of_yaml_1_1_stay_text(written: str, value: Any) -> None:
    assert parse_config(MINIMAL + f"  kwargs: {{key: {written}}}\n").env.kwargs == {"key": value}


def test_an_integer_field_takes_no_fraction_or_truth() -> None:
    assert problems(MINIMAL, "steps=3.0") == ["override 'steps=3.0': steps is 3.0; allowed: an integer >= 0"]
    assert problems(MINIMAL, "seed=true") == [
        "override 'seed=true': seed is true; allowed: an integer from 0 to 4294967295"
    ]


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("optimiser.lr", "'optimizer.lr'?"),
        ("optimizer.learning_rate_schedule", "'optimizer.lr_schedule'?"),
        ("lr", "'warm_start.lr' or 'critic.lr' or 'optimizer.lr'?"),
        ("rolout.group_size", "'rollout.group_size'?"),
        ("Seed", "'seed'?"),
    ],
)
def test_an_unknown_key_is_named_with_its_place_and_the_nearest_key(key: str, nearest: str) -> None:
    section, _, name = key.rpartition(".")
    text = MINIMAL + (f"{section}:\n  {name}: 1\n" if section else f"{name}: 1\n")
    line = 7 if section else 6
    assert problems(text) == [f"run.yaml:{line}: unknown key '{key}'; did you mean {nearest}"]
    assert problems(MINIMAL, f"{key}=1") == [f"override '{key}=1': unknown key '{key}'; did you mean {nearest}"]


@pytest.mark.parametrize("key", ["sampling.top_p", "sampling.top_k", "sampling.min_p", "top_p", "engine.typical_p"])
def test_truncated_sampling_is_refused_with_the_reason(key: str) -> None:
    (found,) = problems(MINIMAL, f"{key}=0.9")
    assert found.startswith(f"override '{key}=0.9': unknown key '{key}'; it cuts ids off the sampler's distribution")
    assert "leave it out" in found


@pytest.mark.parametrize(
    "name", ["repetition_penalty", "frequency_penalty", "presence-penalty", "no_repeat_ngram_size"]
)
def test_penalties_of_the_sampler_are_refused_with_the_reason(name: str) -> None:
    (found,) = problems(MINIMAL + f"sampling:\n  {name}: 1.2\n")
    assert found.startswith(f"run.yaml:7: unknown key 'sampling.{name}'; it changes the sampler's probabilities")


def test_an_unknown_key_like_nothing_lists_what_is_known_there() -> None:
    assert problems(MINIMAL + "  zzzz: 1\n") == ["run.yaml:6: unknown key 'env.zzzz'; known here: id, kwargs"]


def test_every_key_is_nearest_to_itself_with_a_letter_missing() -> None:
    known = built_in_keys()
    for path, key in known.items():
        if not key.section and len(path[-1]) > 4:
            wrong = (*path[:-1], path[-1][:2] + path[-1][3:])
            assert nearest_keys(wrong, known)[0] == ".".join(path)


def test_all_problems_are_reported_at_once_in_the_order_of_the_file() -> None:
    text = (
        "format: 1\nname: a b\nseed: 1\nseed: 2\nenv: {kwargs: {is_slippery: no}}\noptimiser:\n  lr: 1\n"
        "optimizer: {betas: [1, 2]}\nmodel:\n  hidden_size: 97\nloss:\n"
    )
    assert problems(text, "rollout.group_size=0") == [
        "run.yaml:2: name is 'a b'; allowed: letters, digits and . _ - (the first a letter or digit, at most 100)",
        "run.yaml:4: duplicate key 'seed' (first on line 3); keep one of them",
        "run.yaml:5: the key 'env.id' is missing; allowed: text",
        "run.yaml:7: unknown key 'optimiser.lr'; did you mean 'optimizer.lr'?",
        "run.yaml:8: optimizer.betas[0] is 1; allowed: a list of 2: a number >= 0 and < 1, a number >= 0 and < 1",
        "run.yaml:8: optimizer.betas[1] is 2; allowed: a list of 2: a number >= 0 and < 1, a number >= 0 and < 1",
        "run.yaml:9: model.hidden_size 97 is not a multiple of model.heads 4; allowed: a multiple, such as 96, "
        "or a model.head_width",
        "run.yaml:11: loss is null; allowed: a section (keys and values); leave it out or write keys below it",
        "run.yaml: the key 'steps' is missing; allowed: an integer >= 0",
        "override 'rollout.group_size=0': rollout.group_size is 0; allowed: an integer >= 1",
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("format: 2", "run.yaml:1: format is 2; this release reads format 1; the file is of a newer release: pip"),
        ("format: 0", "run.yaml:1: format is 0; this release reads format 1; bring the keys up to date"),
        ("format: true", "run.yaml:1: format is true; this release reads format 1; write 'format: 1'"),
        ("format: '1'", "run.yaml:1: format is '1'; this release reads format 1; write 'format: 1'"),
    ],
)
def test_another_version_says_what_to_do_and_nothing_else(line: str, expected: str) -> None:
    found = problems(MINIMAL.replace("format: 1", line) + "key_of_that_version: 3\n")
    assert len(found) == 1
    assert found[0].startswith(expected)


def test_a_missing_version_is_reported_with_the_rest() -> None:
    found = problems("steps: x\n")
    assert "run.yaml: format is missing; write 'format: 1', the version of the schema it follows" in found
    assert "run.yaml:1: steps is 'x'; allowed: an integer >= 0" in found
    missing = "run.yaml: the section 'env' is missing; it needs env.id (or write a list 'envs', for a mix)"
    assert missing in found


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "the file is empty"),
        (b"# nothing\n", "the file is empty"),
        (b"format: 1\nname: [a\n", "run.yaml:3: this is not YAML: while parsing a flow sequence"),
        (b"format: 1\nname: caf\xe9\n", "run.yaml:2: byte 0xe9 is not UTF-8"),
        (b"format: 1\nname: \x00\n", "run.yaml:2: this is not YAML: the character U+0000"),
        (b"- a\n- b\n", "run.yaml:1: a configuration is keys and values, not ['a', 'b']"),
        (b"just words\n", "a configuration is keys and values, not 'just words'"),
        (b"format: 1\n---\nformat: 1\n", "run.yaml:2: this is not YAML: expected a single document"),
        (b"format: 1\nx: !!python/name:os.system\n", "run.yaml:2: x has the tag tag:yaml.org,2002:python/name"),
        (b"format: 1\na: &a {b: *a}\n", "run.yaml:2: a.b contains itself"),
        (b"format: 1\nbase: &b {x: 1}\nenv: {<<: *b}\n", "run.yaml:3: the merge key '<<' in env is not allowed"),
        (b"format: 1\n1: x\n", "run.yaml:2: the key 1 is not allowed; keys are text"),
        (b"[" * 20000, "run.yaml"),
        (b"format: 1\nname: \"\\ud800\"\n", "no file can hold"),
    ],
)  # fmt: skip
def test_files_that_are_no_configuration(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert expected in str(caught.value)


def test_aliases_that_multiply_are_stopped() -> None:
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    text += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))
    assert "values" in problems(text)[0]


def test_a_missing_file_names_those_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "lake.yaml").write_text(MINIMAL)
    with pytest.raises(ConfigError, match=r"no configuration file .*nope\.yaml'; configurations there: .*lake\.yaml"):
        load_config(tmp_path / "nope.yaml")
    with pytest.raises(ConfigError, match="is a folder, not a YAML file; to go on with a run: roll-train resume"):
        load_config(tmp_path)


def test_a_byte_order_mark_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + MINIMAL.encode())
    assert load_config(path).name == "tiny"


def test_overrides_lay_over_the_file_and_the_last_wins() -> None:
    config = parse_config(
        MINIMAL + "optimizer: {lr: 1e-2, weight_decay: 0.1}\n",
        ["optimizer.lr=1e-3", "optimizer.betas=[0.8, 0.9]", "env.kwargs.size=5", "seed=1", "seed=2", "loss.dual_clip="],
    )
    assert (config.optimizer.lr, config.optimizer.weight_decay, config.optimizer.betas) == (1e-3, 0.1, (0.8, 0.9))
    assert (config.env.kwargs, config.seed, config.loss.dual_clip) == ({"size": 5}, 2, None)
    assert parse_config(MINIMAL, ["model={layers: 2}"]).model.layers == 2


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("seed", "an override is written key=value"),
        ("=3", "an override is written key=value"),
        ("model..layers=3", "an override is written key=value"),
        ("seed=[1", "this is not YAML"),
        ("name.first=3", "'name' is 'tiny', which holds no keys"),
        ("model=3", "model is 3; allowed: a section"),
    ],
)
def test_wrong_overrides(override: str, expected: str) -> None:
    (found,) = problems(MINIMAL, override)
    assert found.startswith(f"override {override!r}: ")
    assert expected in found


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["model.hidden_size=12", "model.heads=4"], "heads of odd width 3"),
        (["model.head_width=33"], "model.head_width 33 is odd"),
        (["model.heads=4", "model.kv_heads=3"], "model.heads 4 is not a multiple of model.kv_heads 3"),
        (["context.kind=function"], "context.function is null; give it as module:name"),
        (["context.function=a:b"], "but context.kind is 'everything'"),
        (["context.kind=function", "context.function=nameonly"], "allowed: module:name"),
        (["context.observation_template=Where to?"], "it must have {observation} in it"),
        (
            ["context.kind=function", "context.function=a:b", "context.observation_template='{observation}!'"],
            "has no effect when context.kind is 'function'",
        ),
        (["model.max_positions=512"], "engine.max_tokens 1024 is more than model.max_positions 512"),
        (["sampling.max_new_tokens=1024"], "leaves no room for a prompt"),
        (["rollout.group_size=1"], "allowed: 2 or more, or advantage.name 'reinforce'"),
        (["optimizer.lr=.inf"], "optimizer.lr is inf; allowed: a number >= 0"),
        (["optimizer.lr=1e300"], "optimizer.lr is 1e+300; allowed: numbers that a float32 can hold, up to 3.4e38"),
        ([f"steps={10**30}"], f"steps is {10**30}; allowed: whole numbers of 64 bits"),
        (["optimizer.lr=.nan"], "optimizer.lr is nan; allowed: a number >= 0"),
        (["optimizer.lr=true"], "optimizer.lr is true; allowed: a number >= 0"),
        (["name=../x"], "name is '../x'; allowed: letters"),
    ],
)
def test_values_that_do_not_fit_each_other(overrides: list[str], expected: str) -> None:
    assert expected in "\n".join(problems(MINIMAL, *overrides))


def test_checks_hold_for_configurations_made_in_code() -> None:
    with pytest.raises(ValidationError, match="not a multiple"):
        ModelConfig(hidden_size=10, heads=4)
    with pytest.raises(ValidationError, match="finite"):
        OptimizerConfig(lr=float("inf"))


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=25)
@given(kwargs=st.dictionaries(st.text(), _json, max_size=4), lr=st.floats(0, 3.4e38), prompt=st.none() | st.text())
def test_a_dumped_configuration_loads_back_equal(kwargs: dict[str, Any], lr: float, prompt: str | None) -> None:
    config = RunConfig.model_validate(
        {
            "format": 1,
            "name": "a.b-c_1",
            "steps": 2,
            "env": {"id": "x", "kwargs": kwargs},
            "optimizer": {"lr": lr},
            "context": {"system_prompt": prompt},
        }
    )
    config = resolve(config)
    text = dump_config(config)
    again = parse_config(text)
    assert again == config
    assert dump_config(again) == text


@settings(deadline=None)
@given(_json)
def test_yaml_text_round_trip(data: Any) -> None:
    read = read_yaml(dump_yaml({"key": data}))
    assert read.problems == []
    assert read.data == {"key": data}


@settings(deadline=None)
@given(st.text(max_size=60) | st.text(alphabet="ab:{}[]&*!<>-#'\"\n ,?|%@`~.1e", max_size=60))
def test_no_text_gives_anything_but_a_configuration_error(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_config(text)


def test_the_reference_is_the_committed_one_and_complete() -> None:
    text = config_reference()
    committed = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert committed == text, "run: python docs/make_reference.py"
    for path, key in {**built_in_keys(), **section_keys()}.items():
        assert key.description, path
        assert key.section or f"| `{'.'.join(path)}` |" in text
