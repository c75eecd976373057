"""The tokenizer made locally: every text, every word of an environment one token, the same after saving."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import roll_envs
from roll_envs.errors import ConfigError
from roll_envs.testing import CounterEnv
from roll_envs.types import Message
from trainer.config import ModelConfig
from trainer.model.network import build_model, build_tokenizer, load_model, save_model, words_of
from trainer.model.renderer import ChatRenderer

TOKENIZER = build_tokenizer(["Left", "Right", "<answer>", "</answer>", "√", " || "])
FIRST_WORD = 5 + 256


def encode(text: str) -> list[int]:
    return list(TOKENIZER(text, add_special_tokens=False)["input_ids"])


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60))
def test_any_unicode_comes_back(text: str) -> None:
    assert TOKENIZER.decode(encode(text), skip_special_tokens=False, clean_up_tokenization_spaces=False) == text


@settings(max_examples=100, deadline=None)
@given(parts=st.lists(st.sampled_from(["Left", "√", " || ", "<answer>", "<", "Lef", "t", " ", "é", "\n"]), max_size=12))
def test_words_between_anything_come_back(parts: list[str]) -> None:
    text = "".join(parts)
    assert TOKENIZER.decode(encode(text)) == text


def test_words_are_one_token_and_other_text_is_bytes() -> None:
    assert len(TOKENIZER) == FIRST_WORD + 6
    assert len(encode("<answer>Left</answer>")) == 3
    assert len(encode("Leftover")) == 5
    assert len(encode("é")) == 2
    assert len(encode("√")) == 1
    assert all(i < FIRST_WORD for i in encode("abc é"))


def test_words_of_environments_make_short_answers() -> None:
    for env_id, tokens in (("roll/FrozenLake-v0", 3), ("roll/SimpleSokoban-v0", 3)):
        env = roll_envs.make(env_id)
        tokenizer = build_tokenizer(words_of(env))
        for action in range(len(env.action_format.actions)):
            text = env.action_format.format([action])
            assert len(tokenizer(text, add_special_tokens=False)["input_ids"]) == tokens, text
    several = roll_envs.make("roll/FrozenLake-v0", max_actions_per_turn=3)
    text = several.action_format.format([0, 1, 2])
    assert len(build_tokenizer(words_of(several))(text, add_special_tokens=False)["input_ids"]) == 7
    assert "√" in words_of(several)


def test_words_that_look_like_markers_are_left_out() -> None:
    assert len(build_tokenizer(["<|end|>", "<|mine|>", "x", "ok", "ok"])) == FIRST_WORD + 1


def test_model_and_tokenizer_are_the_same_after_saving(tmp_path: Path) -> None:
    model = build_model(ModelConfig(hidden_size=16, layers=1, heads=2), CounterEnv(), 3)
    save_model(model, tmp_path)
    again = load_model(tmp_path)
    messages = [Message(role="user", content="counter 1 é <answer>More</answer>")]
    assert ChatRenderer(again.tokenizer).render(messages) == ChatRenderer(model.tokenizer).render(messages)
    assert ChatRenderer(again.tokenizer).stop_ids == ChatRenderer(model.tokenizer).stop_ids
    before, after = model.network.state_dict(), again.network.state_dict()
    assert before.keys() == after.keys()
    assert all(bool((before[k] == after[k]).all()) for k in before)


def test_the_first_weights_follow_from_the_seed_alone() -> None:
    import torch

    def first(seed: int) -> torch.Tensor:
        torch.rand(7)  # the global generator is somewhere else each time
        state = torch.get_rng_state()
        built = build_model(ModelConfig(hidden_size=16, layers=1, heads=2), CounterEnv(), seed)
        assert torch.equal(torch.get_rng_state(), state)
        return next(built.network.parameters()).detach()

    assert torch.equal(first(1), first(1))
    assert not torch.equal(first(1), first(2))


@pytest.mark.parametrize(
    "damage", ["no folder", "config", "tokenizer", "weights", "template", "layer", "code", "numbers"]
)
def test_a_folder_that_cannot_be_loaded_is_an_error_of_the_configuration(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, asked = tmp_path / "model", list[str]()
    monkeypatch.setattr("builtins.input", asked.append)
    if damage != "no folder":
        save_model(build_model(ModelConfig(hidden_size=16, layers=1, heads=2), CounterEnv(), 3), folder)
    if damage == "config":
        (folder / "config.json").write_text("{")
    if damage == "tokenizer":
        (folder / "tokenizer.json").write_text("{}")
    if damage == "weights":
        (folder / "model.safetensors").write_bytes(b"short")
    if damage == "numbers":
        weights = load_file(folder / "model.safetensors")
        weights["model.norm.weight"][3] = math.inf
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    if damage == "template":
        (folder / "chat_template.jinja").unlink()
    changes = {
        "layer": {"num_hidden_layers": 2},
        "code": {"model_type": "ours", "auto_map": {"AutoConfig": "ours.Ours"}},
    }
    if damage in changes:
        written = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**written, **changes[damage]}))
    words = {
        "layer": r": .* lack 9 of the tensors .*\(model\.layers\.1\.",
        "numbers": r": 1 weights of .* not finite \(model\.norm\.weight\)",
    }
    with pytest.raises(ConfigError, match=rf"model\.path{words.get(damage, '')}"):
        load_model(folder)
    assert not asked, "whether to run the folder's code"
