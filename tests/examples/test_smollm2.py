"""The example of a language model: its configurations, its folder of weights, and what the model is shown."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import roll_envs
from trainer.config.load import load_config
from trainer.model.network import build_tokenizer, load_model
from trainer.rollout.source import Session, draw_tasks
from trainer.run.folder import RunFolder, read_metrics
from trainer.run.loop import train
from trainer.run.report import Report

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIGS = sorted((REPOSITORY / "configs").glob("*_smollm2.yaml"))


@pytest.fixture(scope="module")
def prepare() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prepare", REPOSITORY / "examples" / "smollm2" / "prepare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small_model() -> tuple[Any, Any]:
    tokenizer = build_tokenizer()
    shape = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(shape), tokenizer


def test_the_folder_is_made_whole_and_made_again(prepare: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "small"
    for _ in range(2):
        model, tokenizer = small_model()
        prepare.save(model, tokenizer, folder)
        loaded = load_model(folder)
        for name, weight in model.state_dict().items():
            assert torch.equal(loaded.network.state_dict()[name], weight)
        assert [path.name for path in folder.parent.iterdir()] == ["small"]


def test_what_a_stopped_attempt_left_is_no_model(prepare: ModuleType, tmp_path: Path) -> None:
    class Full:
        """A tokenizer whose files no longer fit on the disk."""

        def save_pretrained(self, folder: Path) -> None:
            raise OSError("no space left on device")

    folder = tmp_path / "small"
    with pytest.raises(OSError, match="no space left"):
        prepare.save(small_model()[0], Full(), folder)
    assert not folder.exists()
    (tmp_path / "small.partial" / "of_another_release.json").touch()
    prepare.save(*small_model(), folder)
    assert [path.name for path in tmp_path.iterdir()] == ["small"]
    assert not (folder / "of_another_release.json").exists()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_each_cell_is_a_symbol_and_the_question_comes_last(path: Path) -> None:
    """With the space before it a symbol is one token of the model; rows that ran together would be read otherwise."""
    config = load_config(path)
    env = roll_envs.make(config.env.id, **config.env.kwargs).unwrapped
    observation, _ = env.reset(seed=3)
    if symbols := config.env.kwargs.get("symbols"):
        rows = observation.split("\n")
        assert all(symbol[0] == " " and len(symbol) == 2 for symbol in symbols)
        assert {len(row) for row in rows} == {2 * len(rows)}
    template = config.context.observation_template
    assert template is not None
    assert template.format(observation=observation).endswith(":")
    assert (config.context.kind, config.context.turns) == ("last", 0)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_answers_fit_and_are_taught_and_played(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a small model that is built here: it, too, has a token for each of four words."""
    small = (
        "model.path=null model.hidden_size=16 model.layers=1 model.heads=2 model.max_positions=512 "
        "engine.max_tokens=512 learner.threads=1 warm_start.steps=2 warm_start.episodes_per_step=3 steps=1 "
        "rollout.groups_per_step=2 rollout.group_size=2 evaluation.tasks=2 evaluation.every=0"
    )
    config = load_config(path, [*small.split(), f"output={tmp_path}"])
    with Session(config) as session:
        episodes = session.demonstrate(draw_tasks(config.env, seed=0, indices=range(3), split="demonstrations"))
    answers = [turn.completion for episode in episodes for turn in episode.turns]
    assert episodes
    assert all(episode.scored for episode in episodes)
    of_words = config.sampling.max_new_tokens == 1
    assert {answer.finish for answer in answers} == {"length" if of_words else "stop"}
    monkeypatch.setattr("trainer.run.loop.plot_run", lambda folder: folder)
    with RunFolder.create(config) as folder:
        train(config, folder, Report.silent())
    warm = read_metrics(folder.path, "warm_start")
    assert [record["teacher/failed_share"] for record in warm] == [0.0, 0.0]
    (step,) = read_metrics(folder.path, "train")
    assert 1 <= step["rollout/completion_tokens_per_turn"] <= config.sampling.max_new_tokens
